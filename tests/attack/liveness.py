#!/usr/bin/env python3
"""Processes that neither die nor go on, and a limit of file sizes: every one has its name, and an end."""
import itertools
import json
import os
import re
import resource
import signal
import subprocess
import time

import kit
import jobs
from kit import attack
from jobs import BIN, PATIENCE, ROOT, losses, manifest, weights  # noqa: F401

AQSGD = {"edges.forward.codec": "aqsgd", "edges.forward.bits": 4, "edges.backward.codec": "directq",
         "edges.backward.bits": 8, "pipeline.stages": 2, "checkpoint.every": "3 steps"}


@attack("file size limit", 4, 60)
def file_size_limit(run, rng, count):
    """ulimit -f of a whole job: one line that names file and remedy, no restart; without it the run goes on, the same."""
    jobs.launch(manifest("limit-none", **AQSGD))
    sizes = [12_000, 40_000, 300_000, 412_000] + [rng.randrange(9_000, 420_000) for _ in range(count)]
    for number, size in enumerate(sizes[:count]):
        name = f"limit-{number}"
        path = manifest(name, **AQSGD)
        done = subprocess.run([str(jobs.BIN / "aqpipe"), "launch", str(path), "--no-progress"], capture_output=True, text=True,
                              timeout=PATIENCE, stdin=subprocess.DEVNULL,
                              preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (size, size)))
        lines = done.stderr.strip().splitlines()
        if done.returncode == 0:
            run.survived()
            continue
        named = any("File too large" in line and "ulimit -f" in line and str(jobs.ROOT) in line or
                    re.search(r"stage-\d\.safetensors\.partial.*ulimit -f", line) for line in lines)
        if done.returncode != 1 or not named or "restart" in done.stderr:
            run.wrong(f"with files of {size} bytes: {done.returncode}, {lines[-3:]}")
            continue
        holds = (jobs.ROOT / name).exists() and (jobs.ROOT / name / "run.json").exists()
        again = jobs.aqpipe("launch", path, "--no-progress", *(["--resume"] if holds else []))
        if again.returncode != 0 or losses(name) != losses("limit-none") or weights(name) != weights("limit-none"):
            run.wrong(f"after files of {size} bytes: {again.returncode}, another run: {again.stderr[-500:]}")
        else:
            run.refused()


INHERITED = (
    ("SIGCHLD ignored", "trap '' CHLD", 0, ""),
    ("a soft limit of the stack", "ulimit -Ss 64", 0, ""),
    ("a small stack", "ulimit -s 64", 2, "raise the limit (ulimit -s"),
    ("every other signal ignored", "trap '' USR1 USR2 ALRM PIPE HUP", 0, ""),
    ("standard input and output closed", "exec <&- >&-", 0, ""),
    ("a umask of 000", "umask 000", 0, ""),
)


@attack("inherited from the launcher", 4, 12)
def inherited(run, rng, count):
    """What a supervisor may leave to those it starts: the same losses, or one line that says what is too little."""
    jobs.launch(manifest("inherited-none", **AQSGD))
    for number in range(count):
        what, words, wanted, text = INHERITED[number % len(INHERITED)]
        name = f"inherited-{number}"
        begin = time.monotonic()
        done = subprocess.run(["bash", "-c", f'{words}; exec "$0" "$@"', str(jobs.BIN / "aqpipe"), "launch", str(manifest(name, **AQSGD)),
                               "--no-progress"], stderr=subprocess.PIPE, text=True, timeout=PATIENCE, stdin=subprocess.DEVNULL)
        if done.returncode != wanted or text not in done.stderr or time.monotonic() - begin > PATIENCE:
            run.wrong(f"{what}: {done.returncode} after {time.monotonic() - begin:.0f} s: {done.stderr[-500:]}")
        elif wanted:
            run.refused()
        elif losses(name) != losses("inherited-none"):
            run.wrong(f"{what}: other losses")
        elif any(path.stat().st_mode & 0o022 for path in (jobs.ROOT / name).rglob("*")):
            run.wrong(f"{what}: files that others may write")
        else:
            run.survived()


SLOW = {**AQSGD, "train.epochs": 6, "train.evaluate_every": "2 steps", "control.silence_max": "2s"}
VICTIMS = ("aqpiped", "worker 0", "worker 1")
# Where a worker is held until one is stopped: in its first step, before the evaluation behind a step, in a checkpoint's thread. None: it starts.
MOMENTS = {"start": None, "first step": (1, "forward"), "evaluation": (2, "end"), "checkpoint": (3, "write")}


def lines_of(name):
    path = jobs.ROOT / name / "metrics.jsonl"
    return path.read_text() if path.exists() else ""


def stop_one(run, name, victim, moment):
    """One process stopped at one moment: noticed, begun again, and the undisturbed run's bits, however often a busy machine has one that is well noticed, too."""
    word, _, number = victim.partition(" ")
    place = MOMENTS[moment]
    hold = jobs.Hold(*place, rank=int(number or 0)) if place else None
    process = subprocess.Popen([str(jobs.BIN / "aqpipe"), "launch", str(manifest(name, **SLOW)), "--no-progress", "--restarts", "1000"],
                               stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, stdin=subprocess.DEVNULL,
                               env={**os.environ, **(hold.environment() if hold else {})})
    if hold:
        hold.reached(process)
    target = jobs.descendant(process.pid, word, int(number or 0))
    try:
        os.kill(target, signal.SIGSTOP)
    except (ProcessLookupError, TypeError):
        pass  # a busy machine: it has been noticed as well
    if hold:
        hold.release()
    began = time.time()
    try:
        errors = process.communicate(timeout=PATIENCE)[1]
    except subprocess.TimeoutExpired:
        run.hung(f"{victim} stopped at {moment}")
        process.kill()
        return
    restarts = lines_of(name).count('"event":"restart"')
    same = process.returncode == 0 and losses(name) == losses("stop-none") and weights(name) == weights("stop-none")
    noticed = "has been silent for" in errors or "does not accept the job" in errors
    if not same or restarts == 0 or not noticed:
        run.wrong(f"{victim} stopped at {moment}: {process.returncode}, {restarts} restarts in {time.time() - began:.1f} s, "
                  f"{errors[-600:]}")
    else:
        run.survived()


@attack("stopped", 2, 24)
def stopped(run, rng, count):
    """SIGSTOP for daemon and workers at every moment, by the real clock; tests/simulate_stopped has who is named, and the launcher."""
    jobs.launch(manifest("stop-none", **SLOW))
    cases = list(itertools.product(VICTIMS, MOMENTS))
    rng.shuffle(cases)
    for number in range(count):
        stop_one(run, f"stop-{number}", *cases[number % len(cases)])
    jobs.no_workers("stopped")


@attack("killed by nobody", 1, 3)
def killed_by_nobody(run, rng, count):
    """SIGKILL that no process of ours sent: the line says who may have, and how much memory the worker held."""
    for number in range(count):
        name = f"killed-{number}"
        hold = jobs.Hold(2, rank=rng.randrange(2))  # the job waits for its killer
        process = subprocess.Popen([str(jobs.BIN / "aqpipe"), "launch", str(manifest(name, **SLOW)), "--no-progress",
                                    "--restarts", "0"], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
                                   stdin=subprocess.DEVNULL, env={**os.environ, **hold.environment()})
        os.kill(hold.reached(process), signal.SIGKILL)
        errors = process.communicate(timeout=PATIENCE)[1]
        if process.returncode == 1 and re.search(r"killed by signal 9 \(KILL\): .*because memory ran out.*; it held .*B at most", errors):
            run.survived()
        else:
            run.wrong(f"{process.returncode}: {errors[-500:]}")
    jobs.no_workers("killed by nobody")


if __name__ == "__main__":
    kit.main("liveness")
