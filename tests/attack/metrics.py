#!/usr/bin/env python3
"""metrics.jsonl and what is beside it (index, tail, the bytes that checkpoint/complete names), damaged before --resume.

A resume either refuses in a line that names the file, and then leaves it as it is, or ends with the weights of the undisturbed run.
"""
import json
import os
import re
import shutil
import subprocess
import time

import kit
import jobs

SMALL = {"pipeline.stages": 2, "model.blocks": 2, "model.channels": 16, "train.epochs": 20, "data.train_samples_max": 12,
         "data.heldout_samples_max": 2, "train.batch": 4, "checkpoint.every": 7, "edges.forward.codec": "aqsgd",
         "edges.forward.bits": 4}
KILLED_AT, PATIENCE = 20, 300
known = {}


def launch(*arguments):
    """(exit code, its output); None: it does not end."""
    program = subprocess.Popen([str(jobs.BIN / "aqpipe"), "launch", str(known["manifest"]), "--no-progress", *arguments],
                               stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                               start_new_session=True)
    try:
        said, _ = program.communicate(timeout=PATIENCE)
    except subprocess.TimeoutExpired:
        os.killpg(program.pid, 9)
        program.communicate()
        return None, ""
    return program.returncode, said.decode(errors="replace")


def prepare():
    """An undisturbed run, and one that was killed some steps after a checkpoint: what each try begins with."""
    known["manifest"] = jobs.manifest("job", **SMALL)
    run = known["run"] = jobs.ROOT / "job"
    code, said = launch()
    assert code == 0, said
    known["weights"], known["losses"] = jobs.weights("job"), jobs.losses("job")
    while True:
        shutil.rmtree(run)
        program = subprocess.Popen([str(jobs.BIN / "aqpipe"), "launch", str(known["manifest"]), "--no-progress"],
                                   stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
        metrics = run / "metrics.jsonl"
        end = time.time() + PATIENCE
        while program.poll() is None and time.time() < end and \
                (not metrics.exists() or metrics.read_bytes().count(b'"event":"step"') < KILLED_AT):
            time.sleep(0.001)
        os.killpg(program.pid, 9)
        program.wait()
        jobs.no_workers("the killed run")
        if (run / "checkpoint" / "complete").exists() and not (run / "model.safetensors").exists():
            break
    mark = known["mark"] = json.loads((run / "checkpoint" / "complete").read_text())
    assert mark["metrics"] > 0, mark
    with open(metrics, "ab") as file:  # restarts are never dropped; the last line is torn
        file.write(b'{"event":"restart","step":7,"restarts":1,"cause":"the attack","time":1}\n{"event":"step","st')
    shutil.copytree(run, jobs.ROOT / "template", symlinks=True)


def again(run, what, want):
    """Resume; `want`: 0 it must go on, 1 it must refuse, None either."""
    folder = known["run"]
    metrics = folder / "metrics.jsonl"
    before = metrics.read_bytes() if metrics.is_file() and not metrics.is_symlink() else None
    code, said = launch("--resume")
    if code is None:
        return run.hung(f"{what}: the launch does not end")
    if code < 0 or "this is a bug" in said or (want is not None and (code != 0) != want):
        return run.wrong(f"{what}: exit {code}: {said[-400:]}")
    if code == 0:
        if jobs.weights("job") != known["weights"]:
            return run.wrong(f"{what}: other weights")
        return run.survived()
    if "metrics.jsonl" not in said and "complete" not in said:
        return run.wrong(f"{what}: exit {code}, and no word of the file: {said[-400:]}")
    if want and before is not None and metrics.read_bytes() != before:
        return run.lost(f"{what}: refused, and changed all the same")
    return run.refused()


def fresh():
    shutil.rmtree(known["run"])
    shutil.copytree(jobs.ROOT / "template", known["run"], symlinks=True)
    return known["run"] / "metrics.jsonl"


def flip(rng, path, first, last, count=3):
    data = bytearray(path.read_bytes())
    for _ in range(count):
        data[rng.randrange(first, last)] ^= rng.randrange(1, 256)
    path.write_bytes(data)


def same_history(run, what, restarts):
    """What was trained, each step once; and the restarts that there were."""
    if jobs.losses("job") != known["losses"] or len(jobs.metrics("job", "restart")) != restarts:
        return run.wrong(f"{what}: other losses, or {len(jobs.metrics('job', 'restart'))} restarts of {restarts}")
    return run.survived()


@kit.attack("metrics", 11, 220)
def attack_metrics(run, rng, count):
    prepare()
    bytes_known = known["mark"]["metrics"]

    def torn():
        again(run, "torn", 0)
        same_history(run, "torn", 1)

    def cut_before():
        os.truncate(metrics, rng.randrange(0, bytes_known))
        again(run, "cut before the checkpoint", 1)

    def cut_behind():
        os.truncate(metrics, rng.randrange(bytes_known, metrics.stat().st_size))
        again(run, "cut behind the checkpoint", 0)

    def flipped_behind():
        flip(rng, metrics, bytes_known, metrics.stat().st_size)
        again(run, "flipped behind the checkpoint", 0)

    def flipped_before():
        flip(rng, metrics, 0, bytes_known, 1)
        again(run, "flipped before the checkpoint", None)

    def other_file():
        metrics.write_bytes(rng.randbytes(2 * bytes_known))
        again(run, "another file", 1)

    def gone():
        metrics.unlink()
        again(run, "gone", 0)

    def index():
        beside = metrics.with_name("metrics.jsonl.index")
        beside.write_bytes(rng.choice([rng.randbytes(5000), b"\n" * 100, b'0123456789abcdef {"offset":1}\n', b"x" * 100000]))
        again(run, "index", 0)
        same_history(run, "index", 1)

    def tail():
        metrics.with_name("metrics.jsonl.tail").write_bytes(rng.choice([b"", b"x\n", b"99999999999\n{}\n", rng.randbytes(50)]))
        again(run, "tail", 1)

    def mark():
        complete = known["run"] / "checkpoint" / "complete"
        value = rng.choice(["-1", '"x"', "1", "9223372036854775807", str(bytes_known + 1), str(bytes_known - 1), "[]", "0"])
        complete.write_text(re.sub(r'"metrics":\d+', f'"metrics":{value}', complete.read_text()))
        # What is no count is not known: then the whole file is read.
        again(run, f"mark {value}", 0 if value in ("-1", '"x"', "[]", "0") else 1)

    def link():
        victim = jobs.ROOT / "victim"
        victim.write_bytes(metrics.read_bytes())
        metrics.unlink()
        metrics.symlink_to(victim)
        text = victim.read_bytes()
        again(run, "link", 1)
        if victim.read_bytes() != text:
            run.lost("link: the file behind it was changed")

    ways = [torn, cut_before, cut_behind, flipped_behind, flipped_before, other_file, gone, index, tail, mark, link]
    for number in range(count):
        metrics = fresh()
        ways[number % len(ways)]()


kit.main("metrics")
