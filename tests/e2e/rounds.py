"""reduce.patience: a round ends without a replica that is lost or late, and a repeated run has the same bits."""
import json
import math
import shutil
import signal
import time

import jobs
from jobs import check, launch, losses, manifest, metrics, no_workers, raw, weights
from kit import REPLICAS, ROOT, arrays, complete, end, marked, refused, start

EVERY = 4
ROUNDS = {**REPLICAS, **raw(), **raw("backward"), "reduce.every": EVERY, "reduce.patience": "300s", "train.epochs": 6,
          "checkpoint.every": "8 steps", "checkpoint.keep": 2, "train.evaluate_every": "2 steps"}
UNSAID = {f"edges.{way}.{key}": None for way in ("forward", "backward") for key in ("codec", "precision")}  # the default: ec, both ways


def lose(name, keys, rank, step, phase="backward", act=None, back=8, clock=None):
    """Launch, and kill the worker of `rank` in the middle of the step (or act on it): the run ends by itself.

    `clock`: the launcher's. `back`: a living replica is held in that step until the lost one can return at its end; 0: it returns when it is ready."""
    path = manifest(name, **keys)
    hold = jobs.Hold(step, phase, rank)
    living = jobs.Hold(back, "forward", 2 if rank < 2 else 0, hold.folder) if back else None
    process = start(path, environment={**hold.environment(), **(clock.environment() if clock else {})}, lines=False)
    try:
        worker = hold.reached(process)
        if act:
            act(hold, process)
        else:
            end(worker)
        hold.release()
        if living:
            living.reached(process)
            can_return(name, process, rank // 2 * 2, rank // 2 * 2 + 1)
            living.release()
        _, errors = process.communicate(timeout=jobs.PATIENCE)
    finally:
        process.kill()
    check(process.returncode == 0, f"{name}: exit code {process.returncode}, wanted 0\n{errors[-3000:]}")
    return path, errors


def can_return(name, process, *ranks, times=1):
    """Until new processes of these ranks wait for a round's end, for that many-th time."""
    deadline = time.time() + jobs.PATIENCE
    for rank in ranks:
        log = ROOT / name / "logs" / f"stage-{rank}.log"
        while log.read_text().count("waits for a round's end") < times:
            check(process.poll() is None and time.time() < deadline, f"{name}: rank {rank} does not come back")
            time.sleep(0.02)


def rounds(name):
    return [(line["step"], line["members"], line["without"]) for line in metrics(name, "round") if line["without"]]


def whole_run(name, last, W, P):
    """No step is missing or doubled, nobody but the lost replica started again, and all replicas end with one model."""
    check(not metrics(name, "restart"), f"{name}: {metrics(name, 'restart')}")
    check([line["step"] for line in metrics(name)] == list(range(1, last + 1)), f"{name}: {[line['step'] for line in metrics(name)]}")
    for rank in range(P, P * W):
        mine, other = arrays(name, rank), arrays(name, rank % P)
        check(all(mine[key] == other[key] for key in mine if not key.startswith("optimizer.")), f"{name}: rank {rank} differs")


def entered(name):
    """The step after which a lost replica was back, and which ones were."""
    return [(line["step"], line["entering"]) for line in metrics(name, "round") if line["entering"]]


def killed_at(path, step):
    """A run that resumes, and whose launcher is killed at this step."""
    hold = jobs.Hold(step)
    process = start(path, "--resume", environment=hold.environment(), lines=False)
    hold.reached(process)
    end(process.pid)
    process.communicate(timeout=jobs.PATIENCE)
    hold.release()
    no_workers(path.stem)


def repeated(name, keys, resumes=True):
    """The same weights from the log alone, nobody killed; and from a checkpoint, by --resume."""
    log = ROOT / f"{name}-log.jsonl"
    shutil.copyfile(ROOT / name / "metrics.jsonl", log)
    path = manifest(f"{name}-again", **keys)
    launch(path, "--rounds", log)
    check(rounds(f"{name}-again") == rounds(name), f"{rounds(f'{name}-again')}, not {rounds(name)}")
    check(weights(f"{name}-again") == weights(name), f"{name}-again: other weights")
    if not resumes:
        return
    check(entered(f"{name}-again") == entered(name), f"{entered(f'{name}-again')}, not {entered(name)}")
    path = manifest(f"{name}-resumed", **keys)
    launch(path, "--rounds", log, "--restarts", "0", want=1)  # the round's checkpoint is complete, and nobody starts again
    check(complete(f"{name}-resumed") == 8, f"{name}-resumed: the checkpoint of {complete(f'{name}-resumed')}")
    killed_at(path, 11)
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
        check(entered(name) == [(8, [gone])], f"{name}: {entered(name)}")
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


FOUR = {**ROUNDS, "pipeline.replicas": 4, "data.train_samples_max": 48, "train.batch": 16, "train.micro_batch": 1}


def lose_averaging(name, keys, step, phase, ranks, act=end):
    """Launch, and kill the workers of `ranks` in that phase of the average of the round that ends with this step.

    The last one starts again when that round has ended, however long its average takes. Nobody trains step 8 before all can return."""
    path = manifest(name, **keys)
    hold = jobs.Hold(step, phase, ranks[0], also=ranks[1:])
    gone, back = sorted({rank // 2 for rank in ranks}), 8 if step < 8 else 12
    W = keys["pipeline.replicas"]
    stayed = [w for w in range(W) if w not in gone]
    living = jobs.Hold(back, "forward", 2 * stayed[0], hold.folder)
    starts = jobs.Hold(0, "starts", ranks[-1], hold.folder)
    process = start(path, environment=hold.environment(), lines=False)
    try:
        hold.reached(process)
        for number, rank in enumerate(ranks):
            if number:  # the loss before has been seen
                can_return(name, process, *(ranks[0] // 2 * 2 + s for s in (0, 1)))
            act(int((hold.folder / f"{rank}.{step}.{phase}.held").read_text()))
        hold.release()
        living.reached(process)
        starts.release()
        can_return(name, process, *(2 * w + s for w in gone for s in (0, 1)))
        living.release()
        _, errors = process.communicate(timeout=jobs.PATIENCE)
    finally:
        process.kill()
    check(process.returncode == 0, f"{name}: exit code {process.returncode}, wanted 0\n{errors[-3000:]}")
    check(rounds(name)[0][::2] == (step, gone), f"{name}: {rounds(name)}\n{errors[-2000:]}")
    if not ranks[1:]:  # of two the first one is ready before the second one is lost, and enters at once
        check(rounds(name) == [(each, stayed, gone) for each in range(step, back + 1, EVERY)], f"{name}: {rounds(name)}")
        check(entered(name) == [(back, gone)], f"{name}: {entered(name)}")
    whole_run(name, len(metrics(name)), W, 2)


def another_failure():
    """A failure after a loss that was dealt with is told as what it is: a checkpoint cannot be written."""
    path = manifest("blocked", **FOUR)
    hold = jobs.Hold(4, "sums", 3)
    process = start(path, environment=hold.environment(), lines=False)
    try:
        worker = hold.reached(process)
        (ROOT / "blocked/checkpoint/16/stage-1.safetensors.partial").mkdir(parents=True)  # of a rank whose average was torn
        end(worker)
        hold.release()
        _, errors = process.communicate(timeout=jobs.PATIENCE)
    finally:
        process.kill()
    check(process.returncode == 1 and "stage-1.safetensors.partial is a folder" in errors, f"blocked: the cause is not told\n{errors[-3000:]}")


def scenario_rounds_average():
    """Killed or stopped in each phase of an average: the others make it again without the lost one, and have the same bits whatever the phase."""
    for phase in ("parts", "sums", "results", "mean"):
        lose_averaging(f"four-{phase}", FOUR, 4, phase, (3,))
        check(weights(f"four-{phase}") == weights("four-parts"), f"{phase}: other weights than after a loss in another phase")
    repeated("four-sums", FOUR, resumes=False)
    lose_averaging("marked", FOUR, 8, "sums", (0,))  # a checkpoint is due there, and the first member ends
    repeated("marked", FOUR, resumes=False)
    lose_averaging("two-at-once", FOUR, 4, "sums", (3, 4))
    lose_averaging("two-in-turn", FOUR, 4, "results", (2, 7))
    repeated("two-in-turn", FOUR, resumes=False)
    stopped = {**FOUR, "control.silence_max": "4s"}
    lose_averaging("stopped", stopped, 4, "sums", (3,), act=lambda worker: end(worker, signal.SIGSTOP))
    check(weights("stopped") == weights("four-sums"), "stopped: other weights than killed")
    healing = {**FOUR, "link.outage_max": "20s"}
    lose_averaging("healing", healing, 4, "results", (3,))
    check(weights("healing") == weights("four-sums"), "healing: other weights")
    another_failure()
    no_workers("rounds_average")


THREE = {**ROUNDS, "pipeline.replicas": 3, "train.batch": 12, "train.micro_batch": 1, "train.epochs": 10}
CODED = {"sign": {"reduce.codec": "sign"}, "q8": {"reduce.codec": "q8", "reduce.outer_momentum": 0},
         "topk": {"reduce.codec": "topk", "reduce.density": 0.1, "reduce.outer_lr": 1, "reduce.outer_momentum": 0},
         "bf16": {"reduce.codec": "bf16"}, "careless": {"reduce.codec": "q4", "reduce.error_feedback": "false"}}


def errors_of(name, rank, step):
    """What that rank's codec had lost and not sent yet after the step, as bytes of its checkpoint."""
    return {key: value for key, value in arrays(name, rank, step).items() if key.endswith("_error")}


def scenario_rounds_coded():
    """Compressed averages: undisturbed they are those without patience; without a replica each other one's errors are as if nobody had tried before."""
    for tag, keys in CODED.items():
        keys = {**THREE, **keys}
        launch(manifest(f"calm-{tag}", **{**keys, "reduce.patience": 0}))
        launch(manifest(f"patient-{tag}", **keys))
        check(weights(f"patient-{tag}") == weights(f"calm-{tag}") and not rounds(f"patient-{tag}"), f"{tag}: reduce.patience changes an undisturbed run")
        lose(tag, keys, 2, 6)
        check(rounds(tag) == [(8, [0, 2], [1])] and entered(tag) == [(8, [1])], f"{tag}: {rounds(tag)}, {entered(tag)}")
        whole_run(tag, len(metrics(tag)), 3, 2)
        check(weights(tag) != weights(f"calm-{tag}"), f"{tag}: the lost replica's work counts")
        repeated(tag, keys, resumes=tag in ("sign", "topk"))
    for phase in ("parts", "sums", "results", "mean"):
        lose_averaging(f"sign-{phase}", {**THREE, **CODED["sign"]}, 4, phase, (3,))
        check(weights(f"sign-{phase}") == weights("sign-parts"), f"{phase}: other weights than after a loss in another phase")
    repeated("sign-sums", {**THREE, **CODED["sign"]}, resumes=False)
    jobs.isolated(True)  # as on a GPU
    lose_averaging("sign-apart", {**THREE, **CODED["sign"]}, 4, "results", (3,))
    jobs.isolated(False)
    check(weights("sign-apart") == weights("sign-parts"), "other weights where no host reaches a device's memory")
    # A codec that is chosen in the first round, and a replica that is lost while it is, or right after.
    auto = {**THREE, "reduce.codec": "auto", "link.rate_mbps": 3}
    for phase in ("parts", "sums"):
        lose_averaging(f"auto-{phase}", auto, 4, phase, (3,))
        for stage in (0, 1):
            chosen = {arrays(f"auto-{phase}", 2 * w + stage)["optimizer.reduce_choice"] for w in range(3)}
            check(len(chosen) == 1 and any(min(chosen)), f"auto-{phase}: stage {stage} has chosen {chosen}")
    refused("auto-again", ROOT / "auto-sums.yaml", "reduce.codec auto measures and chooses again: set the codec", 2, "--rounds",
            str(ROOT / "auto-sums" / "metrics.jsonl"))
    # What waits is in the checkpoint: the run goes on from it as if it had not been killed. The file that a member wrote
    # for the lost one has no errors, as long as its own are.
    path = manifest("killed", **{**THREE, **CODED["sign"], "checkpoint.keep": 9})
    shutil.copyfile(ROOT / "sign-sums" / "metrics.jsonl", ROOT / "killed.jsonl")
    hold = jobs.Hold(18)
    process = start(path, "--rounds", ROOT / "killed.jsonl", environment=hold.environment(), lines=False)
    hold.reached(process)
    marked(path, 16)
    end(process.pid)
    process.communicate(timeout=jobs.PATIENCE)
    hold.release()
    no_workers("rounds_coded")
    for rank in range(6):
        lost, kept = errors_of("killed", rank, 8), errors_of("killed", rank, 16)
        check({key: len(value) for key, value in lost.items()} == {key: len(value) for key, value in kept.items()}, f"rank {rank}: errors of another length")
        check(len(kept) == 2 and all(any(value) for value in kept.values()), f"rank {rank}: nothing waits in {list(kept)}")
        check(rank // 2 != 1 or not any(any(value) for value in lost.values()), f"rank {rank} was lost, and has errors of another rank")
    launch(path, "--resume")
    check(weights("killed") == weights("sign-sums"), "killed: other weights after it was resumed")
    no_workers("rounds_coded")


def stopped_while_lost(keys, step):
    """Ctrl-C while rank 0, killed in that step, is away, and the other replica is in the next one: the run ends with the round of step 8. The manifest."""
    path = manifest("stopped", **keys)
    holds = [jobs.Hold(step, "backward", 0)]
    holds.append(jobs.Hold(step + 1, "backward", 2, holds[0].folder))
    process = start(path, environment=holds[0].environment(), lines=False)
    workers = [hold.reached(process) for hold in holds]
    end(workers[0])
    jobs.await_text(ROOT / "stopped" / "logs" / "stage-1.log", "trains", process)
    end(process.pid, signal.SIGINT)
    for hold in holds:
        hold.release()
    _, errors = process.communicate(timeout=jobs.PATIENCE)
    check(process.returncode == 3 and complete("stopped") == 8, f"stopped: {process.returncode}, {complete('stopped')}\n{errors}")
    return path


def scenario_rounds_late():
    """A replica that comes later than reduce.patience is left out; one that comes in time is not; one that waits is waited for."""
    # Minutes, which pass for the launcher alone while replica 1 is held: nobody else can be late.
    keys = {**ROUNDS, "control.silence_max": 0, "control.stall_max": 0}
    clock = jobs.Clock("launch")

    def wait(hold, process):
        clock.until(lambda: '"without":[1]' in (ROOT / "late" / "metrics.jsonl").read_text(), process, step=100)

    lose("late", keys, 3, 6, act=wait, back=0, clock=clock)
    check(rounds("late")[0] == (8, [0], [1]) and entered("late")[-1][0] == rounds("late")[-1][0], f"late: {rounds('late')}, {entered('late')}")
    whole_run("late", len(metrics("late")), 2, 2)
    repeated("late", keys, resumes=False)
    lose("in_time", ROUNDS, 3, 6, act=lambda hold, process: None, back=0)
    launch(manifest("calm", **{**ROUNDS, "reduce.patience": 0}))
    check(weights("in_time") == weights("calm") and not rounds("in_time"), f"in_time: {rounds('in_time')}")
    # A stop that comes while rank 0 is lost ends with the round, too.
    path = stopped_while_lost(ROUNDS, 6)
    said = jobs.aqpipe("report", ROOT / "stopped")
    check(said.returncode == 0, f"{said.stdout}\n{said.stderr}")
    launch(path, "--resume")
    whole_run("stopped", len(metrics("calm")), 2, 2)
    no_workers("rounds_late")


def scenario_rounds_return():
    """Several are lost, one of them again when it has just returned; and one that cannot return."""
    keys = {**ROUNDS, "pipeline.replicas": 3, "train.batch": 12, "train.micro_batch": 1, "train.epochs": 12, "link.port_first": jobs.lasting_port()}
    # Two of three are lost in one round and return after it; one is killed again before it has met the others. Then both
    # are lost again, and link up with each other at the end of the round that both are back in.
    path = manifest("two_of_three", **keys)
    holds = [jobs.Hold(6, "backward", 3, also=(4,))]
    holds += [jobs.Hold(step, "forward", rank, holds[0].folder) for step, rank in ((8, 0), (10, 5), (12, 0), (16, 0))]
    holds.append(jobs.Hold(14, "forward", 2, holds[0].folder, also=(4,)))
    process = start(path, environment=holds[0].environment(), lines=False)
    holds[0].reached(process)
    for rank in (3, 4):
        end(int((holds[0].folder / f"{rank}.6.backward.held").read_text()))
    holds[0].release()
    holds[1].reached(process)
    can_return("two_of_three", process, 2, 3, 4, 5)
    holds[1].release()
    end(holds[2].reached(process))
    holds[2].release()
    holds[3].reached(process)
    can_return("two_of_three", process, 4, 5, times=2)
    holds[3].release()
    holds[5].reached(process)
    for rank in (2, 4):
        end(int((holds[0].folder / f"{rank}.14.forward.held").read_text()))
    holds[5].release()
    holds[4].reached(process)
    can_return("two_of_three", process, 2, 3, times=2)
    can_return("two_of_three", process, 4, 5, times=3)
    holds[4].release()
    _, errors = process.communicate(timeout=jobs.PATIENCE)
    check(process.returncode == 0, f"two_of_three: {process.returncode}\n{errors[-3000:]}")
    check(rounds("two_of_three") == [(8, [0], [1, 2]), (12, [0, 1], [2]), (16, [0], [1, 2])], f"{rounds('two_of_three')}\n{errors[-2000:]}")
    check(entered("two_of_three") == [(8, [1, 2]), (12, [2]), (16, [1, 2])], f"{entered('two_of_three')}")
    whole_run("two_of_three", len(metrics("two_of_three")), 3, 2)
    repeated("two_of_three", keys, resumes=False)
    # By a log in which it is away for longer than it may be started: it waits, and enters where it did.
    keys = {**ROUNDS, "train.epochs": 8}
    log = ROOT / "away.jsonl"
    log.write_text("".join(json.dumps({"event": "round", "step": step, "members": [0], "without": [1]}) + "\n" for step in (4, 8, 12, 16)))
    launch(manifest("away", **keys), "--rounds", log, "--restarts", "1")
    check(rounds("away") == [(step, [0], [1]) for step in (4, 8, 12, 16)] and entered("away") == [(16, [1])], f"{rounds('away')}, {entered('away')}")
    whole_run("away", 24, 2, 2)
    # It ends where it waits for its return, more often than --restarts allows: all go back to the next round's checkpoint.
    path = manifest("gone", **ROUNDS)
    holds = [jobs.Hold(6, "backward", 3)]
    holds.append(jobs.Hold(8, "forward", 0, holds[0].folder))
    process = start(path, "--restarts", "1", environment=holds[0].environment(), lines=False)
    end(holds[0].reached(process))
    holds[0].release()
    holds[1].reached(process)
    can_return("gone", process, 2, 3)
    end(jobs.descendants(process.pid, "worker")[-1])
    holds[1].release()
    _, errors = process.communicate(timeout=jobs.PATIENCE)
    check(process.returncode == 0, f"gone: {process.returncode}\n{errors[-3000:]}")
    back = [line["step"] for line in metrics("gone", "restart")]
    check(back in ([8], [12]), f"{back}\n{errors[-2000:]}")  # 12: it had begun to enter when it was found dead
    check([line["step"] for line in metrics("gone")] == list(range(1, len(metrics("gone")) + 1)), "gone: steps")
    no_workers("rounds_return")


SPEED = {**ROUNDS, "reduce.steps": "speed", "train.evaluate_every": "8 steps"}
ENDS = (4, 8, 12, 16, 18)


def by_log(name, keys, steps, without=None):
    """Launch with a log that names each replica's steps of the rounds after the first one, and who is missing in which."""
    log = ROOT / f"{name}-shares.jsonl"
    log.write_text("".join(json.dumps({"event": "round", "step": end, "without": (without or {}).get(end, []), "steps": steps}) + "\n" for end in ENDS))
    launch(manifest(name, **keys), "--rounds", log)
    return log


def shares(name):
    return [(line["step"], line["steps"], line["position"], line["updates"]) for line in metrics(name, "round")]


def scenario_rounds_speed():
    """reduce.steps: speed: a replica trains the steps that are named for it; the log, a resumed run and a return have the same bits."""
    equal = {**SPEED, "reduce.steps": "equal"}
    launch(manifest("equal", **equal))
    by_log("alike", SPEED, [4, 4])
    check(weights("alike") == weights("equal") and losses("alike") == losses("equal"), "with equal shares: other weights than with equal steps")
    delta = {"edges.forward.codec": "aqsgd", "edges.forward.bits": 4, "data.train_samples_max": 48, "train.epochs": 3}  # six steps a pass
    for name, keys in (("half", SPEED), ("delta", {**SPEED, **delta}), ("ec", {**SPEED, **UNSAID})):
        log = by_log(name, keys, [4, 2])
        lines = metrics(name)
        whole_run(name, 18, 2, 2)
        trained = ([4, 4], [8, 6], [12, 8], [16, 10], [18, 12])  # the last round has two steps
        check(shares(name) == [(end, [2, 2] if end == 16 else [4, 2], each, each) for end, each in zip(ENDS, trained)], f"{name}: {shares(name)}")
        idle = [line["step"] for line in lines if line["stage_seconds"][2] is None]
        check(idle == [step for step in range(5, 17) if step % 4 in (1, 2)], f"{name}: replica 1 is missing in steps {idle}")
        check(not any(None in line["stage_seconds"][:2] for line in lines), f"{name}: replica 0 is missing in a step")
        full = lines[0]["samples"]
        check([line["samples"] for line in lines] == [full // 2 if step in idle else full for step in range(1, 19)], f"{name}: samples")
        repeated(name, keys, resumes=False)
        # From a checkpoint: killed after step 8, in the next round.
        path = manifest(f"{name}-resumed", **keys)
        hold = jobs.Hold(12)
        process = start(path, "--rounds", log, environment=hold.environment(), lines=False)
        hold.reached(process)
        marked(path, 8)
        end(process.pid)
        process.communicate(timeout=jobs.PATIENCE)
        hold.release()
        no_workers(name)
        launch(path, "--resume", "--rounds", log)
        check(weights(f"{name}-resumed") == weights(name), f"{name}-resumed: other weights")
        check(shares(f"{name}-resumed") == shares(name), f"{name}-resumed: {shares(f'{name}-resumed')}")
    # A sample is new to its cut once: the first pass of the slow replica has no gap, and no sample twice.
    for rank, trained in ((0, 18), (2, 12)):
        new = [line["keyframes"][rank] for line in metrics("delta") if line["keyframes"][rank] is not None]
        check(new == 6 * [4] + (trained - 6) * [0], f"delta: keyframes of rank {rank}: {new}")
    check(weights("half") != weights("equal"), "half the steps change nothing")
    by_log("least", SPEED, [1, 4])
    check(shares("least")[-1][1:] == ([1, 4], [8, 18], [8, 18]), f"least: {shares('least')}")
    whole_run("least", 18, 2, 2)
    # By what this machine measures, whatever that is.
    said = jobs.aqpipe("plan", manifest("measured", **SPEED))
    check("a round is 4 steps of the fastest replica" in said.stdout, f"measured: {said.stdout}\n{said.stderr}")
    launch(manifest("measured", **SPEED))
    check(all(max(steps) == (2 if end == 16 else 4) and min(steps) >= 1 for end, steps, _, _ in shares("measured")), f"measured: {shares('measured')}")
    whole_run("measured", 18, 2, 2)
    repeated("measured", SPEED, resumes=False)
    # A replica whose passes take 0.1 s longer trains a smaller share of each round but the first, in which no speed is known.
    with jobs.faults(slow="3 100"):
        launch(manifest("slow", **SPEED))
    check(shares("slow")[0][2] == [4, 4] and all(slow < fast == (2 if end == 16 else 4) for end, (fast, slow), _, _ in shares("slow")), f"slow: {shares('slow')}")
    check(4 < shares("slow")[-1][2][1] < shares("slow")[-1][2][0] == 18, f"slow: {shares('slow')}")
    whole_run("slow", 18, 2, 2)
    repeated("slow", SPEED, resumes=False)
    # A replica is lost in the middle of a round of which it has a part, and returns.
    log = by_log("lost", SPEED, [4, 3], {8: [1]})
    check(entered("lost") == [(8, [1])], f"lost: {entered('lost')}")
    check(shares("lost")[1] == (8, [4, 3], [8, 4], [8, 8]), f"lost: {shares('lost')}")
    whole_run("lost", 18, 2, 2)
    repeated("lost", SPEED, resumes=False)
    # The fast replica is killed in a step that the slow one leaves out: nobody has trained it, and its line is there.
    log = by_log("gaps", SPEED, [4, 1])
    path = manifest("gap", **SPEED)
    hold = jobs.Hold(6, "backward", 0)
    living = jobs.Hold(8, "forward", 2, hold.folder)
    process = start(path, "--rounds", log, environment=hold.environment(), lines=False)
    worker = hold.reached(process)
    living.reached(process)
    end(worker)
    hold.release()
    can_return("gap", process, 0, 1)
    living.release()
    _, errors = process.communicate(timeout=jobs.PATIENCE)
    check(process.returncode == 0 and rounds("gap") == [(8, [1], [0])], f"gap: {rounds('gap')}\n{errors[-2000:]}")
    whole_run("gap", 18, 2, 2)
    check([line.get("samples") for line in metrics("gap")][4:8] == [4, None, None, 4], f"gap: {[line.get('samples') for line in metrics('gap')]}")
    check(shares("gap")[1] == (8, [4, 1], [4, 5], [5, 5]), f"gap: {shares('gap')}")
    said = jobs.aqpipe("report", ROOT / "gap")
    check(said.returncode == 0, f"gap: {said.stdout}\n{said.stderr}")
    repeated("gap", SPEED, resumes=False)
    # All go back to a checkpoint: the steps of its next round are the log's.
    path = manifest("back", **SPEED)
    hold = jobs.Hold(18, "backward", 3)
    process = start(path, "--rounds", ROOT / "half-shares.jsonl", environment=hold.environment(), lines=False)
    worker = hold.reached(process)
    marked(path, 18)
    end(worker)
    hold.release()
    _, errors = process.communicate(timeout=jobs.PATIENCE)
    check(process.returncode == 0 and [line["step"] for line in metrics("back", "restart")] == [16], f"back: {metrics('back', 'restart')}\n{errors[-2000:]}")
    check(weights("back") == weights("half") and shares("back") == shares("half"), f"back: {shares('back')}")
    # Another count of replicas takes over: all shares are whole again.
    four = {**SPEED, "pipeline.replicas": 4, "data.train_samples_max": 48}
    path = manifest("taken", **four)
    hold = jobs.Hold(12)
    process = start(path, environment=hold.environment(), lines=False)
    hold.reached(process)
    marked(path, 12)
    end(process.pid)
    process.communicate(timeout=jobs.PATIENCE)
    hold.release()
    no_workers("taken")
    launch(manifest("taken", **{**four, "pipeline.replicas": 2}), "--resume")
    whole_run("taken", 36, 2, 2)
    check(len(shares("taken")[2][1]) == 2 and shares("taken")[2][2] == [12, 12], f"taken: {shares('taken')}")
    lose("killed", SPEED, 3, 8)
    check(rounds("killed") == [(8, [0], [1])] and entered("killed") == [(8, [1])], f"killed: {rounds('killed')}")
    whole_run("killed", 18, 2, 2)
    repeated("killed", SPEED, resumes=False)
    for tag, changes, pattern in (("patience", {"reduce.patience": 0}, "speed applies only with reduce.patience"),
                                  ("looks", {"train.evaluate_every": "6 steps"}, "a multiple of reduce.every"),
                                  ("epochs", {"train.evaluate_every": "1 epoch"}, "train.evaluate_every in steps"),
                                  ("bits", {"edges.bits": "auto"}, "does not go with edges.bits: auto"),
                                  ("metrics", {"output.metrics": "false"}, "speed needs output.metrics")):
        refused(tag, manifest(tag, **{**SPEED, **changes}), rf"reduce\.steps.*{pattern}", 2)
    log.write_text("")
    refused("other", manifest("other", **SPEED), "has no line of the round that ends with step 4", 1, "--rounds", str(log), "--restarts", "0")
    no_workers("rounds_speed")


def scenario_rounds_links():
    """Replicas return over TCP and over QUIC, in the clear and under TLS: the same bits."""
    folder = ROOT / "keys"
    check(jobs.aqpipe("keys", "init", folder, "--job", "e2e", "--stages", 4).returncode == 0, "keys init")
    tls = {"security.tls": "on", "security.keys": str(folder)}
    ways = {"tcp": {}, "tcp-tls": tls, "quic": {"link.protocol": "quic"}, "quic-tls": {**tls, "link.protocol": "quic"}}
    done = launch(manifest("both", **{**ROUNDS, **ways["quic"], "link.streams": 4}), want=2)
    if "built without QUIC" in done.stderr:
        print("rounds_links: built without QUIC, which was said in one line")
        ways = {name: keys for name, keys in ways.items() if "quic" not in name}
    for name, keys in ways.items():
        lose(name, {**ROUNDS, **keys}, 3, 6)
        check(rounds(name) == [(8, [0], [1])] and entered(name) == [(8, [1])], f"{name}: {rounds(name)}, {entered(name)}")
        whole_run(name, len(metrics(name)), 2, 2)
        check(weights(name) == weights("tcp"), f"{name}: other weights than over TCP")
    with jobs.faults(links="seed=1&cut_every=30000"):  # also in the first round of the one that returns
        lose("cut", {**ROUNDS, "link.outage_max": "60s"}, 3, 6)
    check(rounds("cut") == [(8, [0], [1])] and entered("cut") == [(8, [1])], f"cut: {rounds('cut')}, {entered('cut')}")
    whole_run("cut", len(metrics("cut")), 2, 2)
    check(weights("cut") == weights("tcp"), "cut: other weights than over TCP")
    back = (ROOT / "cut" / "logs" / "stage-2.log").read_text().split("waits for a round's end")[-1].split("step 12: replicas")[0]
    check("healed after" in back, f"no link of the one that returned was cut in its first round\n{back}")
    no_workers("rounds_links")


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
    for tag, changes, pattern in (("one", {"pipeline.replicas": 1}, "pipeline.replicas of 2 and more"),
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
                                 ("negative", {"without": [-1]}, "is none of this job"),
                                 ("marks", {"caches": [1]}, "is none of this job"), ("later", {"caches": {"1": 8}}, "is none of this job"),
                                 ("below", {"caches": {"1": -8}}, "is none of this job"), ("words", {"caches": {"1": "4"}}, "is none of this job"),
                                 ("all", {"without": [0, 1]}, "is none of this job"),
                                 ("last", {"step": last}, rf"the round of step {last} cannot end without replica 1")):
        log = ROOT / f"{tag}.jsonl"
        log.write_text(json.dumps({**good, **change}) + "\n")
        refused(tag, manifest(f"log-{tag}", **ROUNDS), pattern, 1, "--rounds", str(log), "--restarts", "0")
    refused("none", manifest("log-none", **ROUNDS), "--rounds: cannot read", 1, "--rounds", str(ROOT / "none.jsonl"))
    refused("off", manifest("log-off", **{**ROUNDS, "reduce.patience": 0}), "the manifest has no reduce.patience", 1, "--rounds", str(log))
    no_workers("rounds_bad_input")
