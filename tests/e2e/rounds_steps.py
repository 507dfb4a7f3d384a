"""reduce.patience with reduce.every: 1: a step ends without a replica that is lost or late, and a repeated run has the same bits."""
import json
import shutil
import signal

import jobs
from jobs import check, launch, losses, manifest, metrics, no_workers, raw, weights
from kit import OPTIMIZERS, REPLICAS, ROOT, arrays, complete, end, marked, refused, start
from replicas import with_value
from rounds import UNSAID, can_return, entered, rounds, whole_run

STEPS = {**REPLICAS, **raw(), **raw("backward"), "reduce.patience": "300s", "train.epochs": 4, "checkpoint.every": "4 steps", "checkpoint.keep": 20,
         "train.evaluate_every": "2 steps"}
THREE = {**STEPS, "pipeline.replicas": 3, "train.batch": 12, "train.micro_batch": 1, "train.epochs": 5}
CODED = {"fp32": {}, "sign": {"reduce.codec": "sign"}, "q8": {"reduce.codec": "q8"}, "bf16": {"reduce.codec": "bf16"},
         "topk": {"reduce.codec": "topk", "reduce.density": 0.1}, "careless": {"reduce.codec": "q4", "reduce.error_feedback": "false"}}


def lose(name, keys, rank, step, phase, act=end, sure=True, also=None):
    """Launch, and kill the worker of `rank` there. Its replica trains again from the step after the next.

    sure: by a log, however fast it starts. Else by itself: the others train the next step only when it can return, and it may be as fast as the step of its loss.
    also: another (step, phase) in which it is held meanwhile. What the launcher said."""
    path, gone, W = manifest(name, **keys), rank // 2, keys["pipeline.replicas"]
    first = step + 1 if phase == "end" else step  # that ends without it
    log = ROOT / f"{name}-away.jsonl"
    log.write_text(json.dumps({"event": "round", "step": first + 1, "without": [gone]}) + "\n")
    hold = jobs.Hold(step, phase, rank)
    other = jobs.Hold(*also, rank, hold.folder) if also else None
    living = None if sure else jobs.Hold(step + 1, "forward", 2 if gone == 0 else 0, hold.folder)
    process = start(path, *(("--rounds", log) if sure else ()), environment=hold.environment(), lines=False)
    try:
        if other:
            other.reached(process)
        act(hold.reached(process))
        if other:
            other.release()
        hold.release()
        if living:
            living.reached(process)
            can_return(name, process, 2 * gone, 2 * gone + 1)
            living.release()
        _, errors = process.communicate(timeout=jobs.PATIENCE)
    finally:
        process.kill()
    check(process.returncode == 0, f"{name}: exit code {process.returncode}, wanted 0\n{errors[-3000:]}")
    stayed = [w for w in range(W) if w != gone]
    away = [(each, stayed, [gone]) for each in (first, first + 1)]
    check(rounds(name) == away or (not sure and rounds(name) == away[:1]), f"{name}: {rounds(name)}\n{errors[-2000:]}")
    check(entered(name) == [(rounds(name)[-1][0], [gone])], f"{name}: {entered(name)}")
    alike(name, W)
    return errors


def alike(name, W, P=2):
    """No step is missing, and all replicas end with the same weights and moments; what is still to be sent is each one's own."""
    whole_run(name, len(metrics(name)), W, P)
    for rank in range(P, P * W):
        mine, other = arrays(name, rank), arrays(name, rank % P)
        check(all("error" in key or "residual" in key or mine[key] == other[key] for key in mine), f"{name}: rank {rank} differs")


def repeated(name, keys, resumes=None, told=True):
    """The same bits from the log alone, nobody killed; and from the checkpoint of step `resumes`, when all are killed two steps later.

    told: all that trained a step have told its loss, too."""
    log = ROOT / f"{name}-log.jsonl"
    shutil.copyfile(ROOT / name / "metrics.jsonl", log)
    launch(manifest(f"{name}-again", **keys), "--rounds", log)
    check((rounds(f"{name}-again"), entered(f"{name}-again")) == (rounds(name), entered(name)), f"{rounds(f'{name}-again')}, {entered(f'{name}-again')}")
    check(weights(f"{name}-again") == weights(name), f"{name}-again: other weights")
    check(not told or losses(f"{name}-again") == losses(name), f"{name}-again: other losses: {losses(f'{name}-again')}, not {losses(name)}")
    if not resumes:
        return
    path = manifest(f"{name}-resumed", **keys)
    hold = jobs.Hold(resumes + 2)
    process = start(path, "--rounds", log, environment=hold.environment(), lines=False)
    hold.reached(process)
    marked(path, resumes)
    end(process.pid)
    process.communicate(timeout=jobs.PATIENCE)
    hold.release()
    no_workers(name)
    check(complete(f"{name}-resumed") == resumes, f"{name}-resumed: the checkpoint of {complete(f'{name}-resumed')}")
    launch(path, "--resume")
    check(weights(f"{name}-resumed") == weights(name), f"{name}-resumed: other weights")


def scenario_rounds_steps():
    """A stage is killed in the middle of a step: the others finish it, and its replica trains the step after the next."""
    launch(manifest("calm", **{**STEPS, "reduce.patience": 0}))
    launch(manifest("patient", **STEPS))
    check(weights("patient") == weights("calm") and losses("patient") == losses("calm"), "reduce.patience changes an undisturbed run")
    check(not metrics("patient", "round"), f"{metrics('patient', 'round')}")
    for name, W, rank, keys in (("two", 2, 3, {}), ("first", 2, 0, {}), ("three", 3, 2, {"train.batch": 12, "train.micro_batch": 1}),
                                ("delta", 2, 2, {"edges.forward.codec": "aqsgd", "edges.forward.bits": 4}), ("ec", 2, 3, UNSAID), ("clip", 2, 1, {"train.clip": 0.05})):
        keys = {**STEPS, "pipeline.replicas": W, **keys}
        lose(name, keys, rank, 6, "backward", sure=False)
        nulls = [line["stage_seconds"][rank] is None for line in metrics(name)]
        check(nulls == [step in [line[0] for line in rounds(name)] for step in range(1, len(nulls) + 1)], f"{name}: rank {rank} has figures of {nulls}")
        full = metrics(name)[0]["samples"]
        check([line["samples"] for line in metrics(name)] == [full * (W - 1) // W if none else full for none in nulls], f"{name}: samples")
        repeated(name, keys, resumes=8 if name in ("two", "delta", "ec") else None)
    check(losses("two")[:5] == losses("calm")[:5] and weights("two") != weights("calm"), "the lost replica's gradients count")
    # Stopped by Ctrl-C while one is away: it ends with a checkpoint, and continues with all.
    path = manifest("stopped", **STEPS)
    holds = [jobs.Hold(6, "backward", 3)]
    holds.append(jobs.Hold(7, "begin", 0, holds[0].folder))
    process = start(path, environment=holds[0].environment(), lines=False)
    end(holds[0].reached(process))
    holds[0].release()
    holds[1].reached(process)
    end(process.pid, signal.SIGINT)  # which ends the hold
    _, errors = process.communicate(timeout=jobs.PATIENCE)
    check(process.returncode == 3 and complete("stopped") == 7, f"stopped: {process.returncode}, {complete('stopped')}\n{errors}")
    launch(path, "--resume")
    whole_run("stopped", len(metrics("calm")), 2, 2)
    # In the last step nobody can be left out: all go back.
    last = len(metrics("calm"))
    path = manifest("in_the_last", **STEPS)
    hold = jobs.Hold(last, "backward", 3)
    process = start(path, environment=hold.environment(), lines=False)
    worker = hold.reached(process)
    marked(path, last - 1)
    end(worker)
    hold.release()
    _, errors = process.communicate(timeout=jobs.PATIENCE)
    check(process.returncode == 0 and len(metrics("in_the_last", "restart")) == 1, f"{process.returncode}\n{errors[-2000:]}")
    check(weights("in_the_last") == weights("calm"), "in_the_last: another run than calm")
    no_workers("rounds_steps")


def scenario_rounds_steps_kinds():
    """A loss scale, a stage that trains nothing, zb-h1, a tied head: undisturbed as without patience, and a replica that is lost returns to the same bits."""
    for name, keys in {"fp16": {"model.precision": "fp16", "train.loss_scale_window": 1}, "frozen": {"train.freeze": "'embedding, block 0, block 1'"},
                       "zero_bubble": {"pipeline.schedule": "zb-h1"}, "tied": {"model.tied": "exact"}, "compressed": {"model.tied": "compressed"}}.items():
        keys = {**STEPS, **keys}
        launch(manifest(f"calm-{name}", **{**keys, "reduce.patience": 0}))
        launch(manifest(f"patient-{name}", **keys))
        check(weights(f"patient-{name}") == weights(f"calm-{name}"), f"{name}: reduce.patience changes an undisturbed run")
        lose(name, keys, 3, 6, "backward")
        repeated(name, keys, resumes=8)
    owed = {rank: [any(value) for key, value in arrays("compressed", rank, 7).items() if "residual" in key] for rank in (1, 3)}
    check(owed == {1: [True], 3: [False]}, f"compressed: the lost replica's file has the residual of another one: {owed}")
    no_workers("rounds_steps_kinds")


def scenario_rounds_steps_coded():
    """Compressed gradients: undisturbed they are those without patience; killed or stopped in each phase of a step's mean, the others have the same bits whatever the phase."""
    for tag, keys in CODED.items():
        keys = {**THREE, **keys}
        launch(manifest(f"calm-{tag}", **{**keys, "reduce.patience": 0}))
        launch(manifest(f"patient-{tag}", **keys))
        check(weights(f"patient-{tag}") == weights(f"calm-{tag}"), f"{tag}: reduce.patience changes an undisturbed run")
        lose(tag, keys, 2, 6, "backward")
        check(weights(tag) != weights(f"calm-{tag}"), f"{tag}: the lost replica's gradients count")
        repeated(tag, keys, resumes=8 if tag == "sign" else None)
        if tag in ("fp32", "sign"):
            for phase in ("parts", "sums", "results", "mean"):
                lose(f"{tag}-{phase}", keys, 3, 6, phase)
                check(weights(f"{tag}-{phase}") == weights(tag), f"{tag}-{phase}: other weights than after a loss before the mean")
    owed = [value for rank in (0, 4) for key, value in arrays("sign", rank, 8).items() if key.endswith("_error")]
    check(len(owed) == 4 and all(any(value) for value in owed), "no error of a codec waits: nothing was tested")
    lost = [value for key, value in arrays("sign", 2, 7).items() if key.endswith("_error")]
    check(len(lost) == 2 and not any(any(value) for value in lost), "replica 1 was lost, and has errors of another one")
    stopped = {**THREE, **CODED["sign"], "control.silence_max": "4s"}
    lose("stopped", stopped, 3, 6, "sums", lambda worker: end(worker, signal.SIGSTOP))
    check(weights("stopped") == weights("sign"), "stopped: other weights than killed")
    jobs.isolated(True)  # as on a GPU
    lose("apart", {**THREE, **CODED["sign"]}, 3, 6, "results")
    jobs.isolated(False)
    check(weights("apart") == weights("sign"), "other weights where no host reaches a device's memory")
    auto = {**THREE, "reduce.codec": "auto", "link.rate_mbps": 3}
    lose("auto", auto, 3, 1, "sums", sure=False)
    for stage in (0, 1):
        chosen = {arrays("auto", 2 * w + stage)["optimizer.reduce_choice"] for w in range(3)}
        check(len(chosen) == 1 and any(min(chosen)), f"auto: stage {stage} has chosen {chosen}")
    for name in ("sgd", "lamb", "lion"):
        keys = {**THREE, **OPTIMIZERS[name]}
        lose(name, keys, 3, 6, "sums")
        repeated(name, keys)
    no_workers("rounds_steps_coded")


def scenario_rounds_steps_late():
    """A replica that is late by more than reduce.patience is left out of the step; one that is not, is waited for."""
    keys = {**STEPS, "control.silence_max": 0, "control.stall_max": 0}
    clock = jobs.Clock("launch")  # minutes, which pass for the launcher alone while replica 1 is held: nobody else can be late
    path = manifest("late", **keys)
    hold = jobs.Hold(6, "backward", 3)
    process = start(path, environment={**hold.environment(), **clock.environment()}, lines=False)
    hold.reached(process)
    clock.until(lambda: '"without":[1]' in (ROOT / "late" / "metrics.jsonl").read_text(), process, step=100)
    hold.release()
    _, errors = process.communicate(timeout=jobs.PATIENCE)
    check(process.returncode == 0 and "replica 1 is late by more than reduce.patience" in errors, f"late: {process.returncode}\n{errors[-3000:]}")
    check(rounds("late")[0] == (6, [0], [1]) and len(entered("late")) == 1, f"late: {rounds('late')}, {entered('late')}")
    alike("late", 2)
    repeated("late", keys)
    path = manifest("in_time", **STEPS)
    hold = jobs.Hold(6, "backward", 3)
    process = start(path, environment=hold.environment(), lines=False)
    hold.reached(process)
    hold.release()
    _, errors = process.communicate(timeout=jobs.PATIENCE)
    launch(manifest("calm", **{**STEPS, "reduce.patience": 0}))
    check(process.returncode == 0 and weights("in_time") == weights("calm") and not rounds("in_time"), f"in_time: {rounds('in_time')}\n{errors[-2000:]}")
    no_workers("rounds_steps_late")


def scenario_rounds_steps_void():
    """A gradient of one replica that is not finite voids the step for all that take part; a lost replica's voids nothing."""
    words = bytearray(jobs.text(1, 400).encode())
    words[32 * 5 + 7] = ord("Z")  # sample 5 is replica 1's, and no layer norm holds the embedding of Z
    ROOT.joinpath("train.txt").write_bytes(words)
    base = {**STEPS, "train.micro_batch": 1, "train.epochs": 3, "train.skips_max": 1000}
    launch(manifest("good", **{**base, "train.steps_max": 1}))
    made = with_value(ROOT / "good" / "model.safetensors", "transformer.wte.weight", 32 * ord("Z"), 32, 3e38)
    ROOT.joinpath("made.safetensors").write_bytes(made)
    for tag, keys in {"fp32": {}, "q4": {"reduce.codec": "q4"}}.items():
        keys = {**base, **keys, "model.weights": str(ROOT / "made.safetensors")}
        launch(manifest(f"calm-{tag}", **{**keys, "reduce.patience": 0}))
        skipped = [line["step"] for line in metrics(f"calm-{tag}") if line["skipped"]]
        check(len(skipped) == 3 and skipped[0] < len(metrics(f"calm-{tag}")), f"{tag}: {skipped} are void")
        launch(manifest(tag, **keys))
        check([line["step"] for line in metrics(tag) if line["skipped"]] == skipped and weights(tag) == weights(f"calm-{tag}"), f"{tag}: other steps are void")
        log = ROOT / f"{tag}.jsonl"
        log.write_text(json.dumps({"event": "round", "step": skipped[0], "members": [0], "without": [1]}) + "\n")
        launch(manifest(f"lost-{tag}", **keys), "--rounds", log)
        check(not metrics(f"lost-{tag}")[skipped[0] - 1]["skipped"], f"lost-{tag}: a lost replica's gradient voids step {skipped[0]}")
        alike(f"lost-{tag}", 2)
        # It is lost when it has voided the step, and not all have been told that all have the mean: the step is averaged again, and counts.
        for phase in ("backward", "mean"):
            lose(f"{phase}-{tag}", keys, 2, skipped[0], phase)
            check(not metrics(f"{phase}-{tag}")[skipped[0] - 1]["skipped"], f"{phase}-{tag}: a lost replica's gradient voids step {skipped[0]}")
        check(weights(f"mean-{tag}") == weights(f"backward-{tag}"), f"mean-{tag}: other weights than after a loss before the votes")
        check("attempt 2" in (ROOT / f"mean-{tag}" / "logs" / "stage-0.log").read_text(), f"mean-{tag}: the step was not averaged again")
        repeated(f"mean-{tag}", keys)
    no_workers("rounds_steps_void")


def scenario_rounds_steps_losses():
    """Lost before a step's first micro-batch, after its update, or while a checkpoint is written: a step counts on all stages of a replica or on none, and the bits say which."""
    lose("forward", STEPS, 3, 6, "forward")
    lose("begin", STEPS, 3, 6, "begin")
    check(weights("begin") == weights("forward"), "begin: other weights than after a loss in the step's forward")
    lose("next", STEPS, 3, 7, "forward")
    lose("end", STEPS, 3, 6, "end")
    check(weights("end") == weights("next") and weights("next") != weights("begin"), "end: step 6 does not count, or step 7 does")
    lose("whole", STEPS, 3, 9, "forward", lambda worker: (marked(ROOT / "whole.yaml", 8), end(worker)))
    errors = lose("write", STEPS, 3, 9, "begin", also=(8, "write"))
    check("the checkpoint of step 8 is broken off: replica 1 had not written its part" in errors, f"write: {errors[-2000:]}")
    check(weights("write") == weights("whole"), "a checkpoint that is broken off changes the run")
    check(not (ROOT / "write" / "checkpoint" / "8").exists() and (ROOT / "whole" / "checkpoint" / "8").exists(), "write: the folder of checkpoint 8")
    repeated("end", STEPS, told=False)
    repeated("write", STEPS)
    no_workers("rounds_steps_losses")


def scenario_rounds_steps_links():
    """A replica returns at a step's end over TLS, and over links that are cut again and again: the same bits as over TCP."""
    folder = ROOT / "keys"
    check(jobs.aqpipe("keys", "init", folder, "--job", "e2e", "--stages", 4).returncode == 0, "keys init")
    lose("tcp", STEPS, 3, 6, "backward")
    lose("tls", {**STEPS, "security.tls": "on", "security.keys": str(folder)}, 3, 6, "backward")
    with jobs.faults(links="seed=1&cut_every=30000"):
        lose("cut", {**STEPS, "link.outage_max": "60s"}, 3, 6, "backward")
    for name in ("tls", "cut"):
        check(weights(name) == weights("tcp") and losses(name) == losses("tcp"), f"{name}: other weights than over TCP")
    back = (ROOT / "cut" / "logs" / "stage-2.log").read_text().split("waits for a round's end")[-1]
    check("healed after" in back, f"no link of the one that returned was cut\n{back}")
    no_workers("rounds_steps_links")


def scenario_rounds_steps_bad_input():
    """What cannot be made again without a replica is refused by name, with what can."""
    for tag, changes, pattern in (("powersgd", OPTIMIZERS["adamw-powersgd"], r"reduce\.patience.*does not go with reduce\.codec: powersgd.*take q8\.\.q2"),
                                  ("qadam", OPTIMIZERS["qadam"], r"reduce\.patience.*does not fit train\.optimizer qadam.*take adamw, "),
                                  ("slamb", OPTIMIZERS["slamb"], r"reduce\.patience.*does not fit train\.optimizer slamb"),
                                  ("lioncub", OPTIMIZERS["lioncub"], r"reduce\.patience.*does not fit train\.optimizer lioncub"),
                                  ("one", {"pipeline.replicas": 1}, r"reduce\.patience.*needs pipeline\.replicas of 2 and more"),
                                  ("stale", {"train.staleness": 1}, r"reduce\.patience.*does not go with train\.staleness"),
                                  ("time", {"checkpoint.every": "30min"}, r"reduce\.patience.*needs checkpoint\.every in steps"),
                                  ("speed", {"reduce.steps": "speed"}, r"reduce\.steps.*speed needs reduce\.every of 2 and more")):
        refused(tag, manifest(tag, **{**STEPS, **changes}), pattern, 2)
    no_workers("rounds_steps_bad_input")
