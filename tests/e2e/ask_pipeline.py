"""`aqpipe generate --pipeline`: a run's stages as processes write what one process writes, and a stage that ends is one line."""
import json
import os
import re
import signal
import subprocess
import threading
import time

from ask import answer, wrong
from jobs import BIN, aqpipe, check, descendants, launch, manifest, no_workers
from kit import ROOT, end, serve
from tables import job as table_job, table

PROMPT = ("--prompt", "the pipeline ")
DRAWN = ("--temperature", 2, "--tokens", 24)
ASKED = (("--tokens", 24), (*DRAWN, "--seed", 3), (*DRAWN, "--seed", 4, "--top-k", 50, "--top-p", 0.9, "--repetition-penalty", 1.3),
         (*DRAWN, "--seed", 5, "--no-cache"), ("--tokens", 1000), (*DRAWN, "--seed", 6, "--precision", "bf16", "--threads", 2))
WIDE = {"model.context": 48, "train.steps_max": 4}
# Rounding at random is drawn from keys, which must be those of one process; keyframes have a codec of their own.
JOBS = {
    "two": {"pipeline.stages": 2, "edges.forward.codec": "directq", "edges.forward.bits": 2, "edges.forward.rounding": "stochastic"},
    "three": {"pipeline.stages": 3, "model.kind": "llama", "model.kv_heads": 1, "model.mlp": 56, "edges.forward.codec": "ec",
              "edges.forward.rate": 2, "edges.forward.keyframe": "ec", "edges.guard": "true"},
    "copies": {"pipeline.stages": 2, "pipeline.replicas": 2, "edges.forward.codec": "directq", "edges.forward.bits": 3},
}


def same(run, stages, *arguments):
    """What one process gives with these arguments; the stages' processes give the same."""
    alone, through = (answer("generate", run, *PROMPT, *arguments, *more) for more in ((), ("--pipeline",)))
    check(alone["processes"] == 1 and through["processes"] == stages, f"{run.name} {arguments}: {alone}, {through}")
    for key in ("ids", "text", "ended", "cache", "codec", "tokens", "prompt_tokens"):
        check(alone[key] == through[key], f"{run.name} {arguments}: {key} is {through[key]}, of one process {alone[key]}")
    return alone


def scenario_generate_pipeline():
    """Two and three stages, replicas, a far daemon: token for token what one process writes, codec on and off, drawn and not."""
    for name, keys in JOBS.items():
        launch(manifest(name, **WIDE, **keys))
        run, stages, before = ROOT / name, keys["pipeline.stages"], sorted((ROOT / name).rglob("*"))
        for asked in ASKED if name != "copies" else ASKED[1:2]:
            plain, coded = same(run, stages, *asked), same(run, stages, *asked, "--codec", "on")
            check("--temperature" not in asked or plain["ids"] != coded["ids"], f"{name} {asked}: the codec changes nothing: {plain}")
        check(sorted(run.rglob("*")) == before, f"{name}: something was written")
    drawn = same(ROOT / "two", 2, *DRAWN, "--seed", 3)
    word = drawn["text"][6:8]
    stopped = same(ROOT / "two", 2, *DRAWN, "--seed", 3, "--stop", "\x01never", "--stop", word)
    check(stopped["ended"] == "stop" and stopped["text"] == drawn["text"][:drawn["text"].index(word)], f"{stopped}")
    text = aqpipe("generate", ROOT / "two", *PROMPT, "--tokens", 4, "--pipeline", "--codec", "on")
    check(re.fullmatch(r"aqpipe: 4 tokens behind 13, .*; 2 processes, codec on, 1 cut\n", text.stderr), text.stderr)

    daemon, port = serve()
    try:
        launch(manifest("far", **WIDE, **{**JOBS["two"], "pipeline.stages": f"[{{layers: '0-2'}}, {{layers: '3-5', host: 'tcp://127.0.0.1:{port}'}}]"}))
        same(ROOT / "far", 2, *DRAWN, "--seed", 3, "--codec", "on")
        check(not descendants(daemon.pid, "worker"), "the daemon's worker is left")
    finally:
        daemon.terminate()
        daemon.wait()
    wrong(r"daemon|connect", 1, "generate", ROOT / "far", *PROMPT, "--pipeline")
    no_workers("generate_pipeline")


def broken(run, pattern, victim, how, *arguments):
    """Ask for a long text; when it has begun, do `how` to one of the processes. One line, exit code 1, nobody is left."""
    process = subprocess.Popen([BIN / "aqpipe", "generate", run, *PROMPT, "--pipeline", "--tokens", "1000000", *arguments],
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL)
    check(process.stdout.read(4), f"no text came: {process.stderr.read() if process.poll() is not None else ''}")
    pid = victim(process.pid)
    threading.Thread(target=process.stdout.read, daemon=True).start()  # its text must not hold it up
    began = time.time()
    check(end(pid, how), "the process had ended already")
    code = process.wait(120)
    errors = process.stderr.read().decode()
    if how == signal.SIGSTOP:
        end(pid)
    check(code == 1 and len(errors.splitlines()) == 1 and re.search(pattern, errors),
          f"{how}: exit {code} after {time.time() - began:.1f} s, wanted 1 and /{pattern}/ in one line:\n{errors}")
    no_workers(f"{how}")


def worker(number):
    return lambda pid: descendants(pid, "worker")[number]


def scenario_generate_broken():
    """A stage that is killed or stopped, a daemon that is killed, an asker that goes: one line, and no process is left."""
    launch(manifest("run", **{"model.context": 60000, "train.steps_max": 2, "pipeline.stages": 3, "control.silence_max": "5s"}))
    run = ROOT / "run"
    for number in range(3):
        broken(run, rf"stage {number} \(pid \d+\) was killed by signal 9", worker(number), signal.SIGKILL)
    broken(run, r"stage 1 \(pid \d+\) has been silent", worker(1), signal.SIGSTOP, "--codec", "on")
    broken(run, r"the daemon of this machine .*was killed by signal 9", lambda pid: descendants(pid, "aqpiped")[0], signal.SIGKILL)
    process = subprocess.Popen([BIN / "aqpipe", "generate", run, *PROMPT, "--pipeline", "--tokens", "1000000"], stdout=subprocess.PIPE,
                               stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL)
    process.stdout.read(4)
    process.kill()
    process.wait()
    no_workers("the asker is killed")
    refusals(run)


def refusals(run):
    ask = (*PROMPT, "--pipeline")
    done = aqpipe("export", run, ROOT / "model")
    wrong(r"--pipeline: .*model is not a run's folder", 2, "generate", ROOT / "model", *ask, "--tokenizer", "bytes")
    launch(manifest("one", **{"pipeline.stages": 1, "train.steps_max": 1}))
    wrong(r"--pipeline: .*one was one stage", 2, "generate", ROOT / "one", *ask)
    table("train.tsv", 3, 22)
    table("heldout.tsv", 4, 9)
    launch(table_job("rows", **{"train.steps_max": 1, "pipeline.stages": 2}))
    wrong(r"is a GPT2ForSequenceClassification, which writes no text", 2, "generate", ROOT / "rows", *ask)
    wrong(r"adapter_config\.json: there is no such file", 2, "generate", run, *ask, "--adapter", ROOT / "none")
    # The first and the last stage have what they need: the one between them misses a tensor.
    model = (run / "model.safetensors").read_bytes()
    size = int.from_bytes(model[:8], "little")
    head = json.loads(model[8:8 + size])
    name = next(name for name in head if ".h.2." in name or name.startswith("h.2."))
    text = json.dumps({("x" + key if key == name else key): value for key, value in head.items()}).encode()
    text += b" " * (-len(text) % 8)
    (run / "model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + model[8 + size:])
    wrong(rf"stage 1 failed: .*{re.escape(name.removeprefix('transformer.'))}", 2, "generate", run, *ask)
    check(done.returncode == 0 and not os.path.exists(run / "none"), f"{done}")
    no_workers("refusals")
