"""What scenarios share: a folder of their own, and runs that are launched, caught, stopped, killed and compared."""
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
import jobs  # noqa: E402
from jobs import aqpipe, check, descendant, losses, metrics, no_workers, weights  # noqa: E402

ON_DISK = ("resume", "background", "lost_disk", "power")  # they kill processes between writes and syncs: on a real file system
ROOT = jobs.begin(pathlib.Path(sys.argv[1]), "e2e", f"tests/e2e/run {sys.argv[1]} {sys.argv[2]}", disk=sys.argv[2] in ON_DISK)
BIN = jobs.BIN
if BIN.name == "cuda_host":
    (ROOT / "gpu-locks").mkdir()  # a GPU that is not there belongs to each test alone
    os.environ["AQ_GPU_LOCKS"] = str(ROOT / "gpu-locks")

RESTARTED = {"edges.forward.codec": "aqsgd", "edges.forward.bits": 3, "edges.backward.codec": "directq",
             "edges.backward.bits": 6, "checkpoint.every": "3 steps", "train.epochs": 20, "model.dropout": 0.1}
REPLICAS = {"pipeline.stages": 2, "pipeline.replicas": 2, "data.train_samples_max": 24, "train.clip": 1.0}
OPTIMIZERS = {
    "adamw": {}, "adamw-q4": {"reduce.codec": "q4"}, "adamw-sign": {"reduce.codec": "sign"},
    "adamw-bf16": {"reduce.codec": "bf16"}, "adamw-powersgd": {"reduce.codec": "powersgd", "reduce.start_step": 2},
    "sgd": {"train.optimizer": "sgd", "train.lr": 0.05}, "lamb": {"train.optimizer": "lamb", "train.lr": 0.02},
    "lion": {"train.optimizer": "lion", "train.lr": 2e-4},
    "qadam": {"train.optimizer": "qadam", "optimizer.warmup_steps": 3},
    "onebit_adam": {"train.optimizer": "onebit_adam", "optimizer.warmup_steps": 3, "optimizer.freeze_ratio": 0},
    "onebit_lamb": {"train.optimizer": "onebit_lamb", "optimizer.warmup_steps": 3, "train.lr": 0.02},
    "lioncub": {"train.optimizer": "lioncub", "train.lr": 2e-4},
    "lioncub-rates": {"train.optimizer": "lioncub", "train.lr": 2e-4, "train.lr_patterns": "'wte = 4e-4, h.0-1.mlp = 1e-4'",
                      "optimizer.measure_every": 2},
    "lioncub-lanes": {"train.optimizer": "lioncub", "optimizer.lane_bits": 8, "reduce.codec": "lp5", "train.lr": 2e-4},
    "slamb-fp16": {"train.optimizer": "slamb", "optimizer.sync_every": 4, "train.lr": 0.02, "reduce.codec": "fp16",
                   "optimizer.density_steps": 3},
    "slamb": {"train.optimizer": "slamb", "optimizer.sync_every": 4, "train.lr": 0.02},
    "slamb-falls": {"train.optimizer": "slamb", "optimizer.sync_every": 4, "train.lr": 0.02, "optimizer.density_steps": 400},
    "lamb-topk_fp32": {"train.optimizer": "lamb", "optimizer.form": "norm", "train.lr": 0.02, "reduce.codec": "topk_fp32", "reduce.density": 0.1},
    "lamb-randomk": {"train.optimizer": "lamb", "optimizer.form": "printed", "train.lr": 0.02, "reduce.codec": "randomk", "reduce.density": 0.1},
}


PHASES = {"sigint": "begin", "worker": "forward", "launcher": "begin", "daemon": "end"}  # where each finds the run


def marked(path, step):
    """Wait until the last checkpoint that is due up to `step` is complete: a held worker still writes it.

    With staleness a neighbour has frames of the next step on their way to the held worker, and a mirrored checkpoint
    moves only between training frames (aq_edge_mirror_turn). Then the one before it is complete, and no more is sure."""
    text = path.read_text()
    every = re.search(r"^checkpoint:\n(?:  .*\n)*?  every: '?(\d+) steps?'?$", text, re.M)
    due = step // int(every[1]) * int(every[1]) if every else 0
    if due and re.search(r"^  mirror: true$", text, re.M) and re.search(r"^  staleness: 1$", text, re.M):
        due -= int(every[1])
    deadline = time.time() + jobs.PATIENCE
    while due and complete(path.stem) < due:
        check(time.time() < deadline, f"{path.stem}: the checkpoint of step {due} does not become complete")
        time.sleep(0.005)


def twins(path, rank):
    """The same stage's ranks in the other replicas: one that waits for a held replica in a reduction writes no checkpoint meanwhile."""
    pipeline = re.search(r"^pipeline:\n((?:  .*\n)*)", path.read_text(), re.M)[1]
    replicas = re.search(r"^  replicas: (\d+)$", pipeline, re.M)
    stages = re.search(r"^  stages: (\d+)$", pipeline, re.M)
    stages = int(stages[1]) if stages else pipeline.count("layers:")
    return [other for other in range(rank % stages, stages * int(replicas[1]), stages) if other != rank] if replicas else []


def complete(name):
    """The step of the newest complete checkpoint; 0: none."""
    path = ROOT / name / "checkpoint" / "complete"
    return json.loads(path.read_text())["step"] if path.exists() else 0


def hold_at(path, step, *arguments, phase="begin", rank=0, folder=None):
    """Launch, and stop a worker in the step after `step`: the launcher, the hold, and the worker's process id.

    `folder`: of the holds, for daemons that run already."""
    hold = jobs.Hold(step + 1, phase, rank, folder, twins(path, rank))
    process = start(path, "--restarts", "0", *arguments, environment=hold.environment(), lines=False)
    worker = hold.reached(process)
    marked(path, step)
    return process, hold, worker


def interrupt(how, path, step, *arguments, folder=None):
    """Launch, and after `step` send SIGINT to the launcher, or SIGKILL to a worker, the daemon or the launcher."""
    process, hold, worker = hold_at(path, step, *arguments, phase=PHASES[how], folder=folder)
    victim = worker if how == "worker" else descendant(process.pid, "aqpiped") if how == "daemon" else process.pid
    end(victim, signal.SIGINT if how == "sigint" else signal.SIGKILL)
    hold.release_others()
    if how != "sigint":  # SIGINT itself ends the hold, once the worker has been told
        hold.release()
    _, errors = process.communicate(timeout=jobs.PATIENCE)
    hold.release()
    if not folder:  # else daemons are left, which the caller began
        no_workers(how)
    wanted = {"sigint": 3, "worker": 1, "daemon": 1, "launcher": -9}[how]
    check(process.returncode == wanted, f"{how}: exit code {process.returncode}, wanted {wanted}\n{errors[-2000:]}")
    return errors


def end(pid, how=signal.SIGKILL):
    """Send the signal. False: it has ended already."""
    try:
        os.kill(pid, how)
    except ProcessLookupError:
        return False
    return True


def start(path, *arguments, environment=None, lines=True):
    """A launch that goes on; without `lines` it does not print its events."""
    return subprocess.Popen([str(jobs.BIN / "aqpipe"), "launch", str(path), "--no-progress", *(["--json"] if lines else []), *arguments],
                            stdout=subprocess.PIPE if lines else subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
                            stdin=subprocess.DEVNULL, env={**os.environ, **(environment or {})})


def launch_and_kill(path, due, kill=None, folder=None):
    """Launch, and after each step of `due` kill the worker of that rank, or the daemon ("daemon"): its errors.

    kill(victim, process, worker) kills something else. `folder`: of the holds, for daemons that run already."""
    holds = []
    for step, victim in due:
        rank = victim if isinstance(victim, int) else 0
        holds.append(jobs.Hold(step + 1, "begin", rank, folder, twins(path, rank)))
        folder = holds[0].folder
    process = start(path, environment=holds[0].environment(), lines=False)
    try:
        for (step, victim), hold in zip(due, holds):
            worker = hold.reached(process)
            marked(path, step)
            if kill:
                kill(victim, process, worker)
            else:
                end(descendant(process.pid, "aqpiped") if victim == "daemon" else worker)
            hold.release()
        _, errors = process.communicate(timeout=jobs.PATIENCE)
    finally:
        process.kill()
    check(process.returncode == 0, f"exit code {process.returncode}, wanted 0\n{errors[-2000:]}")
    return errors


def same_run(name, whole):
    """Losses, weights and held-out losses are those of the undisturbed run, and no cache was lost for good."""
    check(losses(name) == losses(whole), f"{name}: losses are not those of the undisturbed run:\n{losses(name)}\n"
          f"{losses(whole)}")
    check([line["loss"] for line in metrics(name, "eval")] == [line["loss"] for line in metrics(whole, "eval")],
          f"{name}: held-out losses differ")
    check(weights(name) == weights(whole), f"{name}: model.safetensors differs")
    steps = metrics(name)
    keyframes = sum(x or 0 for line in steps if line["epoch"] > steps[0]["epoch"] for x in line["keyframes"])
    check(keyframes == 0, f"{name}: {keyframes} keyframes after the first epoch: a cache was lost")
    return sum(x or 0 for line in steps for x in line["fetched"])


def refused(tag, path, pattern, code, *arguments):
    done = aqpipe("launch", path, "--no-progress", *arguments)
    check(done.returncode == code, f"{tag}: exit code {done.returncode}, wanted {code}\n{done.stderr}")
    check(re.search(pattern, done.stderr), f"{tag}: no /{pattern}/ in:\n{done.stderr}")
    no_workers(tag)


def arrays(name, rank, step=None):
    """The tensors of a rank's checkpoint of that step, or the newest one, by name, as bytes."""
    step = step or json.loads((ROOT / name / "checkpoint" / "complete").read_text())["step"]
    data = (ROOT / name / "checkpoint" / str(step) / f"stage-{rank}.safetensors").read_bytes()
    size = int.from_bytes(data[:8], "little")
    places = {key: about["data_offsets"] for key, about in json.loads(data[8:8 + size]).items() if key != "__metadata__"}
    return {key: data[8 + size + first:8 + size + end] for key, (first, end) in places.items()}


def serve(port=0):
    """A listening daemon, and its port."""
    (ROOT / "port").unlink(missing_ok=True)
    daemon = subprocess.Popen([BIN / "aqpiped", "--listen", f"127.0.0.1:{port}", "--port-file", ROOT / "port"],
                              stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    jobs.await_file(ROOT / "port")
    return daemon, int((ROOT / "port").read_text())
