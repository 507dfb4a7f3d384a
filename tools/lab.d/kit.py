"""What tools/convergence and tools/lab share: an output folder that is theirs, runs, and what their metrics say."""
import ctypes
import fcntl
import json
import math
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
RAW = ["edges.forward.codec=raw", "edges.backward.codec=raw"]


def codec(kind, forward, backward):
    """aqsgd or directq of so many bits forward, directq backward."""
    return [f"edges.forward.codec={kind}", f"edges.forward.bits={forward}", "edges.backward.codec=directq",
            f"edges.backward.bits={backward}"]


def entropy_coded(forward, backward, rounding="half_dither"):
    return [f"edges.{way}.{key}" for way, rate in (("forward", forward), ("backward", backward))
            for key in ("codec=ec", f"rate={rate}", f"rounding={rounding}")]


LOCKS = []  # open while this process or a run that it started works in the folder


class OutOfTime(Exception):
    """The run was stopped with a checkpoint, because its time was up."""


def folder_take(tool, out):
    """`out` is made, or was left by the same tool: anything else is refused. One process at a time."""
    mark = out / f".aqpipe-{tool}"
    try:
        out.mkdir(parents=True, exist_ok=True)
        if any(out.iterdir()) and not mark.exists():
            sys.exit(f"{tool}: {out} holds something that this tool did not leave: choose another folder with --out")
        lock = mark.open("a", encoding="utf-8")
    except OSError as error:
        sys.exit(f"{tool}: {out}: {error.strerror}: choose another folder with --out")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        sys.exit(f"{tool}: another {tool} works in {out}, or its last run is still ending: wait for it, or choose another folder with --out")
    LOCKS.append(lock)


LIBC = ctypes.CDLL(None)  # loaded here: a child of a process with threads may find a lock taken


def ends_with(parent):
    """In the child: whatever ends the parent ends it, too, with a checkpoint."""
    LIBC.prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG
    if parent != os.getppid():
        os._exit(125)


def binary_check(tool, folder):
    if not (folder / "aqpipe").exists():
        sys.exit(f"{tool}: there is no aqpipe in {folder}: cmake --preset release && cmake --build --preset release")


def run_remove(folder):
    """A run's folder and nothing else. A kill leaves all of it, or nothing of that name: half of a folder would be taken for a run that can go on."""
    removed = folder.with_name(f"{folder.name}.removed")
    if removed.exists():  # by a call that was killed
        shutil.rmtree(removed)
    if (folder / "aqpipe-folder.json").exists():
        folder.rename(removed)
        shutil.rmtree(removed)


def launch(tool, binaries, manifest, folder, sets, resume=False, until=math.inf):
    """The lines of the run's metrics; None: it diverged. A run that `until`, a time, or a signal ends leaves a checkpoint."""
    words = [str(binaries / "aqpipe"), "launch", str(manifest), "--run", str(folder), "--no-progress", *(["--resume"] if resume else []),
             *[word for one in sets for word in ("--set", one)]]
    parent = os.getpid()
    # In a session of its own, so that it hears of Ctrl-C once.
    run = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, stdin=subprocess.DEVNULL, start_new_session=True,
                           pass_fds=[lock.fileno() for lock in LOCKS], preexec_fn=lambda: ends_with(parent))
    try:
        said = run.communicate(timeout=None if until == math.inf else max(0.0, until - time.time()))[1]
    except subprocess.TimeoutExpired as late:
        run.terminate()
        run.communicate()
        raise OutOfTime from late
    except BaseException:
        run.terminate()
        run.communicate()
        raise
    if "without a finite gradient" in said:
        return None
    if run.returncode:
        sys.exit(f"{tool}: the run {folder.name} failed:\n{said[-2000:]}")
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def evaluate(tool, binaries, run, text, samples, way="off"):
    """What `aqpipe eval` has to say of a run on a set of its own."""
    done = subprocess.run([str(binaries / "aqpipe"), "eval", str(run), "--data", str(text), "--samples", str(samples), "--codec", way, "--json", "--no-progress"],
                          capture_output=True, text=True, stdin=subprocess.DEVNULL)
    if done.returncode:
        sys.exit(f"{tool}: aqpipe eval {run} failed:\n{done.stderr[-1000:]}")
    return json.loads(done.stdout)


def steps_of(lines):
    """Lines of steps; of one that was done twice (a run that went on from a checkpoint) the later."""
    return list({line["step"]: line for line in lines if line["event"] == "step"}.values())


def last_epoch(steps):
    return [line for line in steps if line["epoch"] == steps[-1]["epoch"]]


def train_loss(steps):
    return sum(line["loss"] * line["samples"] for line in steps) / sum(line["samples"] for line in steps)


def bytes_of(steps):
    """Bodies of all frames of all cuts: forward, backward."""
    return [sum(sum(line[way]) for line in steps) for way in ("forward_bytes", "backward_bytes")]


def measures(steps):
    """Mean over cuts of delta_ratio and error_ratio of these steps, and the largest common mode."""
    def values(key):
        return [v for line in steps for v in (line.get(key) or []) if v is not None]

    def mean(key):
        return sum(values(key)) / len(values(key)) if values(key) else math.nan
    return mean("delta_ratio"), mean("error_ratio"), max(values("common_mode"), default=math.nan)
