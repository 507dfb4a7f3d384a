"""What scenarios share: a folder of their own, and runs that are launched, caught, stopped, killed and compared."""
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
import jobs  # noqa: E402
from jobs import aqpipe, check, descendant, losses, metrics, no_workers, weights  # noqa: E402

ROOT = jobs.begin(pathlib.Path(sys.argv[1]), "e2e", f"tests/e2e/run {sys.argv[1]} {sys.argv[2]}")
BIN = jobs.BIN
if BIN.name == "cuda_host":
    (ROOT / "gpu-locks").mkdir()  # a GPU that is not there belongs to each test alone
    os.environ["AQ_GPU_LOCKS"] = str(ROOT / "gpu-locks")

SLOW = (1, 0.3, 0.1, 0.03)
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
    "lioncub-lanes": {"train.optimizer": "lioncub", "optimizer.lane_bits": 8, "reduce.codec": "lp5", "train.lr": 2e-4},
    "slamb": {"train.optimizer": "slamb", "optimizer.sync_every": 4, "train.lr": 0.02},
}


def slower(path, rates, attempt):
    """attempt(rate) until it is not None. A run that a busy machine could not catch in time is run again, slower."""
    for rate in rates:
        shutil.rmtree(ROOT / path.stem, ignore_errors=True)
        found = attempt(rate)
        if found is not None:
            return found
    sys.exit(f"{path.stem}: the runs end before they are caught, at {rates} Mbit/s")


def interrupt(how, path, step, rates=SLOW):
    """Launch, and at `step` send SIGINT to the launcher, or SIGKILL to a worker, the daemon or the launcher."""
    def attempt(rate):
        process = start(path, rate, "--restarts", "0")
        seen = 0
        for line in process.stdout:
            if line.startswith("{") and json.loads(line).get("event") == "step":
                seen = json.loads(line)["step"]
            if seen >= step:
                break
        check(seen >= step, f"{how}: ended before step {step}: {process.stderr.read()[-2000:] if seen < step else ''}")
        victim = process.pid
        if how in ("worker", "daemon"):
            victim = descendant(process.pid, "worker" if how == "worker" else "aqpiped")
        if victim:
            end(victim, signal.SIGINT if how == "sigint" else signal.SIGKILL)
        _, errors = process.communicate(timeout=jobs.PATIENCE)
        no_workers(how)
        if process.returncode == 0:
            return None
        wanted = {"sigint": 3, "worker": 1, "daemon": 1, "launcher": -9}[how]
        check(process.returncode == wanted, f"{how}: exit code {process.returncode}, wanted {wanted}\n{errors[-2000:]}")
        return True
    slower(path, rates, attempt)


def end(pid, how=signal.SIGKILL):
    """Send the signal. False: it has ended already."""
    try:
        os.kill(pid, how)
    except ProcessLookupError:
        return False
    return True


def start(path, rate, *arguments, environment=None):
    return subprocess.Popen([str(jobs.BIN / "aqpipe"), "launch", str(path), "--no-progress", "--json", "--set",
                             f"link.rate_mbps={rate}", *arguments],
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, stdin=subprocess.DEVNULL,
                            env={**os.environ, **(environment or {})})


def launch_and_kill(path, due, kill):
    """Launch, and at each (step, victim) of `due` call kill(process, victim), each after the restart of the one before.

    A run is too fast where a kill found nobody, or came so late that no checkpoint lay between it and the next."""
    def attempt(rate):
        process, left, late, restarts = start(path, rate), list(due), False, 0
        try:
            for line in process.stdout:
                event = json.loads(line)
                restarts += event.get("event") == "restart"
                waits = restarts < len(due) - len(left)
                if not left or waits or event.get("event") != "step" or event["step"] < left[0][0]:
                    continue
                step, victim = left.pop(0)
                late = not kill(process, victim) or late or event["step"] > step + 6
            _, errors = process.communicate(timeout=jobs.PATIENCE)
        finally:
            process.kill()
        if left or late:
            return None
        check(process.returncode == 0, f"exit code {process.returncode}, wanted 0\n{errors[-2000:]}")
        return errors
    return slower(path, (2, 0.5, 0.1), attempt)


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


def arrays(name, rank):
    """The tensors of a rank's newest checkpoint by name, as bytes."""
    step = json.loads((ROOT / name / "checkpoint" / "complete").read_text())["step"]
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
