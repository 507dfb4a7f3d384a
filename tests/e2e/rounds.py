"""reduce.patience: a round ends without a replica that is lost or late, and a repeated run has the same bits."""
import json
import math
import shutil
import signal

import jobs
from jobs import check, launch, losses, manifest, metrics, no_workers, raw, weights
from kit import REPLICAS, ROOT, arrays, complete, end, marked, refused, start

EVERY = 4
ROUNDS = {**REPLICAS, **raw(), **raw("backward"), "reduce.every": EVERY, "reduce.patience": "300s", "train.epochs": 6,
          "checkpoint.every": "8 steps", "checkpoint.keep": 2, "train.evaluate_every": "2 steps"}


def lose(name, keys, rank, step, phase="backward", act=None):
    """Launch, and kill the worker of `rank` in the middle of the step (or act on it): the run ends by itself."""
    path = manifest(name, **keys)
    hold = jobs.Hold(step, phase, rank)
    process = start(path, environment=hold.environment(), lines=False)
    try:
        worker = hold.reached(process)
        if act:
            act(hold, process)
        else:
            end(worker)
        hold.release()
        _, errors = process.communicate(timeout=jobs.PATIENCE)
    finally:
        process.kill()
    check(process.returncode == 0, f"{name}: exit code {process.returncode}, wanted 0\n{errors[-3000:]}")
    return path, errors


def rounds(name):
    return [(line["step"], line["members"], line["without"]) for line in metrics(name, "round") if line["without"]]


def whole_run(name, last, W, P):
    """No step is missing or doubled, no restart went back, and all replicas end with one model."""
    check([line["step"] for line in metrics(name)] == list(range(1, last + 1)), f"{name}: {[line['step'] for line in metrics(name)]}")
    for rank in range(P, P * W):
        mine, other = arrays(name, rank), arrays(name, rank % P)
        check(all(mine[key] == other[key] for key in mine if not key.startswith("optimizer.")), f"{name}: rank {rank} differs")


def repeated(name, keys):
    """The same weights from the log alone, nobody killed; and from a checkpoint, by --resume."""
    log = ROOT / f"{name}-log.jsonl"
    shutil.copyfile(ROOT / name / "metrics.jsonl", log)
    path = manifest(f"{name}-again", **keys)
    launch(path, "--rounds", log)
    check(rounds(f"{name}-again") == rounds(name), f"{rounds(f'{name}-again')}, not {rounds(name)}")
    check(weights(f"{name}-again") == weights(name), f"{name}-again: other weights")
    path = manifest(f"{name}-resumed", **keys)
    launch(path, "--rounds", log, "--restarts", "0", want=1)  # the round's checkpoint is complete, and nobody starts again
    check(complete(f"{name}-resumed") == 8, f"{name}-resumed: the checkpoint of {complete(f'{name}-resumed')}")
    hold = jobs.Hold(11)
    process = start(path, "--resume", environment=hold.environment(), lines=False)
    hold.reached(process)
    end(process.pid)
    process.communicate(timeout=jobs.PATIENCE)
    hold.release()
    no_workers(name)
    launch(path, "--resume")
    check(weights(f"{name}-resumed") == weights(name), f"{name}-resumed: other weights")


def scenario_rounds():
    """A stage is killed in the middle of a round: the round ends without its replica, which is back in the next one."""
    launch(manifest("calm", **{**ROUNDS, "reduce.patience": 0}))
    launch(manifest("patient", **ROUNDS))
    check(weights("patient") == weights("calm") and not rounds("patient"), "reduce.patience changes an undisturbed run")
    last, evals = len(metrics("calm")), [line["loss"] for line in metrics("calm", "eval")]
    for name, W, rank, keys in (("two", 2, 3, {}), ("first", 2, 0, {}), ("three", 3, 2, {"train.batch": 12, "train.micro_batch": 1}),
                                ("delta", 2, 2, {"edges.forward.codec": "aqsgd", "edges.forward.bits": 4})):
        keys = {**ROUNDS, "pipeline.replicas": W, **keys}
        path, errors = lose(name, keys, rank, 6)
        gone = rank // 2
        check(rounds(name) == [(8, [w for w in range(W) if w != gone], [gone])], f"{name}: {rounds(name)}\n{errors[-2000:]}")
        restarts = [line["step"] for line in metrics(name, "restart")]
        check(restarts == [8], f"{name}: goes back to {restarts}, and the round ended with step 8")
        whole_run(name, len(metrics(name)), W, 2)
        nulls = [line["stage_seconds"][rank] is None for line in metrics(name)]
        check(nulls[5] and nulls[7] and not any(nulls[8:]), f"{name}: rank {rank} has figures of {nulls}")
        loss = metrics(name, "eval")[-1]["loss"]
        check(math.isfinite(loss) and (name != "two" or abs(loss - evals[-1]) < 0.05 * evals[-1]), f"{name}: {loss}, undisturbed {evals[-1]}")
        if name in ("two", "delta"):
            repeated(name, keys)
    check(weights("two") != weights("calm"), "the lost replica's work counts")
    check(len(metrics("two")) == last, "steps are missing")
    no_workers("rounds")


def scenario_rounds_late():
    """A replica that comes later than reduce.patience is left out; one that comes in time is not; one that waits is waited for."""
    keys = {**ROUNDS, "reduce.patience": "2s"}

    def wait(hold, process):
        jobs.await_text(ROOT / "late" / "metrics.jsonl", '"event":"restart"', process)

    lose("late", keys, 3, 6, act=wait)
    check(rounds("late") == [(8, [0], [1])], f"late: {rounds('late')}")
    check([line["step"] for line in metrics("late", "restart")] == [8], f"{metrics('late', 'restart')}")
    whole_run("late", len(metrics("late")), 2, 2)
    repeated("late", keys)
    lose("in_time", ROUNDS, 3, 6, act=lambda hold, process: None)
    launch(manifest("calm", **{**ROUNDS, "reduce.patience": 0}))
    check(weights("in_time") == weights("calm") and not rounds("in_time"), f"in_time: {rounds('in_time')}")
    # A stop that comes while rank 0 is lost ends with the round, too.
    path = manifest("stopped", **ROUNDS)
    holds = [jobs.Hold(6, "backward", 0)]
    holds.append(jobs.Hold(7, "backward", 2, holds[0].folder))
    process = start(path, environment=holds[0].environment(), lines=False)
    workers = [hold.reached(process) for hold in holds]
    end(workers[0])
    jobs.await_text(ROOT / "stopped" / "logs" / "stage-1.log", "trains", process)
    end(process.pid, signal.SIGINT)
    for hold in holds:
        hold.release()
    _, errors = process.communicate(timeout=jobs.PATIENCE)
    check(process.returncode == 3 and complete("stopped") == 8, f"stopped: {process.returncode}, {complete('stopped')}\n{errors}")
    said = jobs.aqpipe("report", ROOT / "stopped")
    check(said.returncode == 0, f"{said.stdout}\n{said.stderr}")
    launch(path, "--resume")
    whole_run("stopped", len(metrics("calm")), 2, 2)
    no_workers("rounds_late")


def scenario_rounds_bad_input():
    """Where no round can end without a replica, all go back as ever; what does not fit is refused with its reason."""
    launch(manifest("calm", **ROUNDS))
    last = len(metrics("calm"))
    for name, step, back in (("in_the_last_round", last, [16]), ("both", 6, [0])):

        def both(hold, process):
            for rank in (1, 3):
                end(int((hold.folder / f"{rank}.{step}.backward.held").read_text()))

        path = manifest(name, **ROUNDS)
        hold = jobs.Hold(step, "backward", 3, also=(1,))
        process = start(path, environment=hold.environment(), lines=False)
        worker = hold.reached(process)
        marked(path, step)
        both(hold, process) if name == "both" else end(worker)
        hold.release()
        _, errors = process.communicate(timeout=jobs.PATIENCE)
        check(process.returncode == 0, f"{name}: exit code {process.returncode}\n{errors[-3000:]}")
        check([line["step"] for line in metrics(name, "restart")] == back, f"{name}: {metrics(name, 'restart')}, wanted {back}")
        check(losses(name) == losses("calm") and weights(name) == weights("calm"), f"{name}: another run than calm")
    # The missing replica's files are not on its machine: all go back to the checkpoint before.
    log = ROOT / "sixteen.jsonl"
    log.write_text(json.dumps({"event": "round", "step": 16, "members": [0], "without": [1]}) + "\n")
    path = manifest("elsewhere", **ROUNDS)
    launch(path, "--rounds", log, "--restarts", "0", want=1)
    check(complete("elsewhere") == 16, f"elsewhere: {complete('elsewhere')}")
    for rank in (2, 3):
        (ROOT / "elsewhere" / "checkpoint" / "16" / f"stage-{rank}.safetensors").unlink()
    launch(path, "--resume")
    check([line["step"] for line in metrics("elsewhere", "restart")] == [8], f"elsewhere: {metrics('elsewhere', 'restart')}")
    check(weights("elsewhere") == weights("calm"), "elsewhere: another run than calm")
    for tag, changes, pattern in (("codec", {"reduce.codec": "q4"}, "needs reduce.codec: fp32"),
                                  ("every", {"reduce.every": 1}, "needs reduce.every of 2 and more"),
                                  ("one", {"pipeline.replicas": 1}, "pipeline.replicas of 2 and more"),
                                  ("stale", {"train.staleness": 1}, "does not go with train.staleness"),
                                  ("mirror", {"checkpoint.mirror": "true"}, "does not go with checkpoint.mirror"),
                                  ("nccl", {"reduce.transport": "nccl"}, "needs reduce.transport: links"),
                                  ("mark", {"checkpoint.every": "6 steps"}, "needs checkpoint.every in steps"),
                                  ("epoch", {"checkpoint.every": "1 epoch"}, "needs checkpoint.every in steps"),
                                  ("time", {"checkpoint.every": "30min"}, "needs checkpoint.every in steps")):
        refused(tag, manifest(tag, **{**ROUNDS, **changes}), rf"reduce\.patience.*{pattern}", 2)
    good = {"event": "round", "step": 8, "members": [0], "without": [1]}
    for tag, change, pattern in (("step", {"step": 7}, "its round of step 7 is none of this job"),
                                 ("text", {"without": "1"}, "is none of this job"), ("far", {"without": [2]}, "is none of this job"),
                                 ("negative", {"without": [-1]}, "is none of this job"), ("all", {"without": [0, 1]}, "is none of this job"),
                                 ("last", {"step": last}, rf"the round of step {last} cannot end without replica 1")):
        log = ROOT / f"{tag}.jsonl"
        log.write_text(json.dumps({**good, **change}) + "\n")
        refused(tag, manifest(f"log-{tag}", **ROUNDS), pattern, 1, "--rounds", str(log), "--restarts", "0")
    refused("none", manifest("log-none", **ROUNDS), "--rounds: cannot read", 1, "--rounds", str(ROOT / "none.jsonl"))
    refused("off", manifest("log-off", **{**ROUNDS, "reduce.patience": 0}), "the manifest has no reduce.patience", 1, "--rounds", str(log))
    no_workers("rounds_bad_input")
