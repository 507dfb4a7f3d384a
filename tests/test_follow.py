#!/usr/bin/env python3
"""test_follow: tools/follow into event files (read back by the format's rules, and by tensorboard where it is here), MLflow and W&B
(modules of that name that write down what they are asked); a run that is cut back and goes on; files that are damaged."""
import importlib.util
import json
import pathlib
import struct
import subprocess
import sys
import tempfile
import time

TOOL = pathlib.Path(__file__).resolve().parent.parent / "tools/follow"
START = {"event": "start", "name": "job <x>", "codec": "fw4", "stages": 2, "resumed": 0}


def crc32c(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ 0x82F63B78 * (crc & 1)
    return crc ^ 0xFFFFFFFF


assert crc32c(b"123456789") == 0xE3069283, "the check value of CRC-32C"


def unmasked(value):
    value = (value - 0xA282EAD8) & 0xFFFFFFFF
    return (value >> 17 | value << 15) & 0xFFFFFFFF


def fields(data):
    """[(number, value)] of a protocol buffer."""
    def whole(at):
        value = shift = 0
        while True:
            value |= (data[at] & 127) << shift
            shift += 7
            at += 1
            if data[at - 1] < 128:
                return value, at
    at, out = 0, []
    while at < len(data):
        key, at = whole(at)
        if key & 7 == 0:
            value, at = whole(at)
        elif key & 7 == 2:
            count, at = whole(at)
            value, at = data[at:at + count], at + count
        else:
            size, code = {1: (8, "<d"), 5: (4, "<f")}[key & 7]
            value, at = struct.unpack_from(code, data, at)[0], at + size
        out.append((key >> 3, value))
    return out


def events(folder):
    """[(wall, step, {tag: value} or "start" or version)] of the only file."""
    (path,) = folder.glob("events.out.tfevents.*")
    data, at, out = path.read_bytes(), 0, []
    while at < len(data):
        (count,), (head,) = struct.unpack_from("<Q", data, at), struct.unpack_from("<I", data, at + 8)
        body = data[at + 12:at + 12 + count]
        (tail,) = struct.unpack_from("<I", data, at + 12 + count)
        assert unmasked(head) == crc32c(data[at:at + 8]) and unmasked(tail) == crc32c(body), f"a sum is wrong at byte {at}"
        event = dict(fields(body))
        what = event[3].decode() if 3 in event else "start" if 7 in event else {
            dict(fields(value))[1].decode(): dict(fields(value)).get(2, dict(fields(value)).get(8)) for _, value in fields(event[5])}
        if "config" not in what:
            out.append((event[1], event.get(2, 0), what))
        at += 16 + count
    return out


def step(n, loss=None):
    return {"event": "step", "step": n, "time": n / 2, "seconds": 0.5, "loss": loss if loss is not None else 1 / n, "lr": None, "grad_norm": 2,
            "contraction": [0.25, None], "forward_bytes": [100, None]}


def write(folder, lines, torn=""):
    """At once: a follower never sees the file empty, as it never does when a run cuts its own (ftruncate)."""
    beside = folder / "metrics.jsonl.new"
    beside.write_text("".join(json.dumps(line) + "\n" for line in lines) + torn)
    beside.rename(folder / "metrics.jsonl")


def follow(folder, *arguments, code=0, path=""):
    done = subprocess.run([sys.executable, "-B", TOOL, folder, *arguments], capture_output=True, text=True, timeout=300, check=False,
                          env={"PYTHONPATH": str(path), "PATH": "/usr/bin:/bin", "HOME": str(folder)})
    assert done.returncode == code, done
    return done


def awaited(what, good):
    deadline = time.time() + 300
    while not good():
        assert time.time() < deadline, what
        time.sleep(0.05)


def tensorboard(top):
    run, board = top / "run", top / "board"
    run.mkdir()
    held = {"event": "eval", "step": 3, "time": 1.6, "loss": 0.5, "perplexity": 1.6, "targets": 9}
    write(run, [START, *map(step, range(1, 6)), held], torn='{"event":"st')
    follow(run, "--tensorboard", board, "--once")
    seen = events(board)
    assert [what for _, _, what in seen[:2]] == ["brain.Event:2", "start"]
    assert [(n, what["loss/train"]) for _, n, what in seen[2:7]] == [(n, struct.unpack("<f", struct.pack("<f", 1 / n))[0]) for n in range(1, 6)]
    assert seen[2][2].keys() == {"loss/train", "optimizer/grad_norm", "speed/step_seconds", "cut/c_q/0", "bytes/forward/0"}, seen[2]
    assert abs(seen[6][0] - seen[2][0] - 2) < 1e-6, "times are the run's"
    assert seen[7][1:] == (3, {"loss/heldout": 0.5, "heldout/perplexity": struct.unpack("<f", struct.pack("<f", 1.6))[0]})

    # While it is followed the run goes on, is cut back to step 4, and ends.
    live = top / "live"
    process = subprocess.Popen([sys.executable, "-B", TOOL, run, "--tensorboard", live, "--every", "0.05"])
    try:
        awaited("the first steps", lambda: live.exists() and len(list(live.iterdir())) == 1 and len(events(live)) == 8)
        write(run, [START, *map(step, range(1, 5)), {"event": "restart", "step": 4, "restarts": 1, "cause": "x"}, step(5, 7), step(6, 7),
                    {"event": "end", "state": "done"}])
        assert process.wait(60) == 0
    finally:
        process.kill()
    seen = events(live)
    assert [(n, what if what == "start" else what["loss/train"]) for _, n, what in seen[8:]] == [(5, "start"), (5, 7), (6, 7)], seen[8:]
    try:
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    except ImportError:
        return
    reader = EventAccumulator(str(live))
    reader.Reload()
    assert [(event.step, round(event.value, 3)) for event in reader.Scalars("loss/train")] == [(1, 1), (2, .5), (3, .333), (4, .25), (5, 7), (6, 7)]
    print("read back by tensorboard, too")


RECORDER = """
import json
class Recorder:
    def __init__(self, name): self.name = name
    def __getattr__(self, what): return Recorder(f"{self.name}.{what}")
    def __setitem__(self, key, value): self(key, value)
    def __str__(self): return self.name
    def startswith(self, _): return True
    def __call__(self, *a, **k):
        print(json.dumps([self.name, a, k], default=str)); return Recorder("run")
def __getattr__(what):
    if what.startswith("__"): raise AttributeError(what)
    return Recorder(what)
"""


def others(top):
    run, path = top / "run", top / "modules"
    path.mkdir()
    for name in "mlflow", "wandb":
        (path / f"{name}.py").write_text(RECORDER)
    said = [json.loads(line) for line in follow(run, "--mlflow", "--experiment", "e", path=path).stdout.splitlines()]
    assert said[0][:2] == ["set_experiment", ["e"]] and said[1] == ["start_run", [], {"run_name": "job <x>"}], said[:2]
    assert said[2][0] == "log_params" and said[2][1][0]["codec"] == "fw4", said[2]
    metrics = [word[1] for word in said if word[0] == "entities.Metric"]
    assert [(name, step) for name, _, _, step in metrics if name == "loss/train"] == [("loss/train", n) for n in range(1, 7)], metrics
    assert "log_batch" in said[-2][0] and said[-1] == ["end_run", ["FINISHED"], {}], said[-2:]
    said = [json.loads(line) for line in follow(run, "--wandb", "--name", "n", path=path).stdout.splitlines()]
    assert said[0][0] == "init" and said[0][2]["name"] == "n" and said[2][0] == "run.log" and said[2][1][0]["step"] == 1, said[:3]
    (path / "mlflow.py").write_text("def start_run(**_): raise RuntimeError('no server\\nand more')\n")
    done = follow(run, "--mlflow", path=path, code=1)
    assert done.stderr == "tools/follow: mlflow: no server\n", done
    assert said[-1] == ["run.finish", [], {"exit_code": 0}], said[-1]


def bad(top):
    def refused(words, *arguments, code=1):
        done = follow(*arguments, code=code)
        assert words in done.stderr and (code == 2 or done.stderr.count("\n") == 1), done

    run = top / "bad"
    refused("name the folder of a run", top / "nowhere", "--tensorboard", top / "x")
    refused("whereto?", run, code=2)
    run.mkdir()
    for text, words in (('{"event":"start"}\nnonsense\n', "metrics.jsonl:2"), ("[1]\n", "not a JSON object"), ("\udcff\n", "metrics.jsonl:1")):
        (run / "metrics.jsonl").write_bytes(text.encode(errors="surrogateescape"))
        refused(words, run, "--tensorboard", top / "x", "--once")
    write(run, [START, {"event": "step", "step": "x"}, {"event": "step", "step": 1, "loss": None, "contraction": 3}, {"event": "step", "step": 2, "loss": 1e300}])
    follow(run, "--tensorboard", top / "odd", "--once")
    assert [what for _, n, what in events(top / "odd") if n == 2][0]["loss/train"] > 3e38, "as large as a float is"
    if not importlib.util.find_spec("mlflow"):
        refused("pip install mlflow", run, "--mlflow", "--once")


with tempfile.TemporaryDirectory() as name:
    for part in tensorboard, others, bad:
        part(pathlib.Path(name))
