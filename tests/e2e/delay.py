"""reduce.delay: the average of a round travels during the first steps of the next one."""
import json
import re
import struct

import jobs
import trace_rules
from jobs import aqpipe, check, launch, losses, manifest, metrics, no_workers, raw, weights
from kit import REPLICAS, RESTARTED, ROOT, arrays, complete, end, interrupt, launch_and_kill, refused, same_run, start
from local import OUTER, SPARSE, meets

EVERY, DELAY = 4, 2
DELAYED = {**REPLICAS, "reduce.every": EVERY, "reduce.delay": DELAY, "train.shuffle": "false"}
OWN_END, PENDING = "optimizer.local_end", "optimizer.local_pending"


def floats(data):
    return struct.unpack(f"<{len(data) // 4}f", data)


def scenario_delay():
    """Bytes go once a round; the outer weights are shared at all times, all weights at the end; cut, schedule, rate, looks and
    checkpoints change nothing; a replica trains on beside the average."""
    base = {**DELAYED, **raw(), **raw("backward"), "train.epochs": 6, "train.clip": 0.5, "checkpoint.every": "1 step",
            "checkpoint.keep": 20, "train.evaluate_every": "2 steps"}
    launch(manifest("two", **base))
    last = len(metrics("two"))
    check(last == 18, f"{last} steps")
    for rank in (0, 1):
        for step in range(1, last + 1):
            mine, other = arrays("two", rank, step), arrays("two", rank + 2, step)
            shared = [key for key in mine if not key.startswith("optimizer.") or key in ("optimizer.outer_momentum", PENDING)]
            check(all(mine[key] == other[key] for key in shared), f"step {step}, stage {rank}: outer weights differ")
            check((mine[OUTER] == other[OUTER]) == (step == last), f"step {step}, stage {rank}: its own weights")
            pending = step >= EVERY and step < last and step % EVERY < DELAY
            check(floats(mine[PENDING]) == (float(pending),), f"step {step}: pending {floats(mine[PENDING])}")
            check(not meets(step, last) or step == last or mine[OUTER] == mine[OWN_END], f"step {step}: its end")
    evals = {line["step"]: line["loss"] for line in metrics("two", "eval")}
    for step in range(4, last, 4):  # in the middle of a round the outer weights are evaluated, which have not moved since
        check(step + 2 == last or evals[step] == evals[step + 2], f"held-out losses {evals}")
        check(step + 4 not in evals or evals[step] != evals[step + 4], f"held-out losses {evals}")
    check(losses("two")[-1] < losses("two")[0] * 0.95, f"nothing was learnt: {losses('two')}")
    for name, changes in {"one": {"pipeline.stages": 1}, "zb": {"pipeline.schedule": "zb-h1"},
                          "paced": {"link.rate_mbps": 30, "pipeline.schedule": "gpipe"},
                          "quiet": {"checkpoint.every": 0, "train.evaluate_every": "1 epoch", "output.trace": "true"}}.items():
        launch(manifest(name, **{**base, **changes}))
        check(losses(name) == losses("two") and weights(name) == weights("two"), f"{name}: another run than two")
    for line in metrics("quiet"):  # a round's bytes are of the step that takes it up, or that follows on a look: after 3, 6, 9, 12
        due = line["step"] in (6, 10, 13, 18)
        check([value > 0 for value in line["gradient_bytes"]] == [due] * 4, f"step {line['step']}: {line['gradient_bytes']}")
    text = (ROOT / "quiet" / "trace.json").read_text()
    trace_rules.check(text)
    averages = [event["pid"] for event in json.loads(text) if event["name"] == "average"]
    check(sorted(averages) == sorted(4 * [0, 1, 2, 3] + [0, 1, 2, 3]), f"five rounds of four ranks in the trace: {averages}")
    launch(manifest("now", **{**base, "reduce.delay": 0}))
    launch(manifest("never", **{key: value for key, value in base.items() if key != "reduce.delay"}))
    check(weights("now") == weights("never") and weights("now") != weights("two"), "reduce.delay: 0 is not the run without it")
    check(losses("now")[:EVERY] == losses("two")[:EVERY], "the first round")
    for name, W, changes in (("three", 3, {"train.batch": 12}), ("six", 6, {"train.batch": 12, "pipeline.stages": 1}),
                             ("rest", 3, {"train.batch": 12, "data.train_samples_max": 42}), ("q4", 2, {"reduce.codec": "q4"}),
                             ("sign", 3, {"train.batch": 12, "reduce.codec": "sign", "reduce.outer_momentum": 0}),
                             ("topk", 3, {"train.batch": 12, "reduce.codec": "topk", "reduce.density": 0.1, **SPARSE}),
                             ("sgd", 2, {"train.optimizer": "sgd", "train.lr": 0.05, "reduce.delay": 3}),
                             ("lamb", 2, {"train.optimizer": "lamb", "train.lr": 0.02, "reduce.delay": 1}),
                             ("frozen", 2, {"train.freeze": "embedding, block 0"}),
                             ("stage", 2, {"pipeline.stages": "[{layers: 0}, {layers: 1-5}]", "train.freeze": "embedding"}),
                             ("stale", 2, {"train.staleness": 1}), ("stale3", 2, {"train.staleness": 1, "reduce.delay": 3}),
                             ("auto", 2, {"reduce.codec": "auto"})):
        launch(manifest(name, **{**base, "checkpoint.every": "5 steps", "pipeline.replicas": W, "train.micro_batch": 1, **changes}))
        P = changes.get("pipeline.stages", 2) if name != "stage" else 2
        for rank in range(P, P * W):
            mine, other = arrays(name, rank), arrays(name, rank % P)
            check(all(mine[key] == other[key] for key in mine if not key.startswith("optimizer.")), f"{name}: rank {rank} differs")
        check(losses(name)[-1] < losses(name)[0], f"{name}: nothing was learnt: {losses(name)}")
    no_workers("delay")


def scenario_delay_isolated():
    """Where no host can reach the weights, as on a GPU, movements are averaged in the host's memory: the same bits, also resumed."""
    base = {**DELAYED, **raw(), **raw("backward"), "checkpoint.every": 3, "train.epochs": 6}
    for name, changes in {"fp32": {}, "q4": {"reduce.codec": "q4"}, "stale": {"train.staleness": 1, "reduce.codec": "bf16", "reduce.outer_momentum": 0},
                          "three": {"pipeline.replicas": 3, "train.batch": 12, "reduce.codec": "sign", "reduce.delay": 3}}.items():
        launch(manifest(name, **{**base, **changes}))
        jobs.isolated(True)
        launch(manifest(f"{name}-isolated", **{**base, **changes}))
        path = manifest(f"{name}-again", **{**base, **changes})
        interrupt("worker", path, 7)
        launch(path, "--resume")
        jobs.isolated(False)
        for each in (f"{name}-isolated", f"{name}-again"):
            check(losses(each) == losses(name) and weights(each) == weights(name), f"{each}: another run than {name}")
        for rank in range(2 * changes.get("pipeline.replicas", 2)):
            check(arrays(f"{name}-isolated", rank) == arrays(name, rank), f"{name}: the checkpoint of rank {rank} differs")
    no_workers("delay_isolated")


def beside(path, victim=None):
    """Launch; replica 0 comes to the step of the outer step while replica 1 has not ended the round. Then one of them is killed."""
    late = jobs.Hold(EVERY, "begin", 1)
    early = jobs.Hold(EVERY + DELAY, "begin", 0, late.folder)
    process = start(path, environment=late.environment(), lines=False)
    try:
        workers = [late.reached(process), early.reached(process)]
        if victim is not None:
            end(workers[victim])
        early.release()
        late.release()
        _, errors = process.communicate(timeout=jobs.PATIENCE)
    finally:
        process.kill()
    check(process.returncode == 0, f"exit code {process.returncode}\n{errors[-2000:]}")
    return errors


def scenario_delay_beside():
    """A replica trains the first steps of a round while another one has not ended the round before; a worker that is killed
    meanwhile, with an average under way, sends both back to the last checkpoint, and changes no bit."""
    keys = {**DELAYED, "pipeline.stages": 1, "train.epochs": 4, "checkpoint.every": "3 steps"}
    launch(manifest("calm", **keys))
    for name, victim in (("beside", None), ("late", 0), ("early", 1)):
        errors = beside(manifest(name, **keys), victim)
        check((victim is None) == ("killed by signal 9" not in errors), f"{name}: {errors[-2000:]}")
        check(weights(name) == weights("calm") and losses(name) == losses("calm"), f"{name}: another run")
    no_workers("delay_beside")


def scenario_delay_resume():
    """Killed or stopped anywhere, also while an average is under way, a run goes on bit for bit; a stop ends with a round."""
    keys = {**RESTARTED, **REPLICAS, "train.epochs": 8, "reduce.every": 5, "reduce.delay": 3}
    for tag, more in {"": {}, "-q4": {"reduce.codec": "q4", "checkpoint.mirror": "true"},
                      "-topk": {"reduce.codec": "topk", **SPARSE},
                      "-stale": {"train.staleness": 1, "reduce.codec": "bf16", "reduce.outer_momentum": 0, "reduce.delay": 4},
                      "-fp16": {"model.precision": "fp16", "train.loss_scale_window": 2}}.items():
        launch(manifest(f"whole{tag}", **{**keys, **more}))
        for how, step in (("sigint", 7), ("worker", 7), ("worker", 13)) if tag in ("", "-q4", "-topk") else (("worker", 7),):
            path = manifest(f"{how}{step}{tag}", **{**keys, **more})
            errors = interrupt(how, path, step)
            if how == "sigint":
                check("stops when the next round of 5 steps ends (reduce.delay)" in errors, errors[-2000:])
                at = len(losses(f"{how}{step}{tag}"))
                check(at == 15, f"stopped after step {at}: the vote of the round's end at 10 ends the run at 15")
            launch(path, "--resume")
            same_run(f"{how}{step}{tag}", f"whole{tag}")
    path = manifest("killed", **keys)
    launch_and_kill(path, [(7, 2), (17, 3)])
    same_run("killed", "whole")
    path = manifest("daemon", **keys)
    launch_and_kill(path, [(11, "daemon")])
    same_run("daemon", "whole")
    no_workers("delay_resume")


def scenario_delay_outage():
    """Links that are cut again and again, to neighbours and to replicas, heal beside both threads that use them: the same bits."""
    keys = {**DELAYED, **raw(), "train.epochs": 8, "link.outage_max": "60s", "reduce.codec": "q8"}
    for tag, more in {"": {}, "-stale": {"train.staleness": 1}}.items():
        launch(manifest(f"whole{tag}", **{**keys, **more}))
        with jobs.faults(links="seed=1&cut_every=20000"):
            launch(manifest(f"cut{tag}", **{**keys, **more}))
        logs = "".join(log.read_text() for log in (ROOT / f"cut{tag}" / "logs").glob("*"))
        between = len(re.findall(r"rank 0 .*link to rank 2 ", logs))
        heals = sum(metrics(f"cut{tag}")[-1]["heals"])
        print(f"cut{tag}: {heals} links healed, {between} lines of the link between replicas")
        check(heals > 10 and between > 0, f"cut{tag}: {heals} links were healed, {between} lines of the link between replicas")
        check(losses(f"cut{tag}") == losses(f"whole{tag}"), f"cut{tag}: losses differ")
        check(weights(f"cut{tag}") == weights(f"whole{tag}"), f"cut{tag}: weights differ")
    no_workers("delay_outage")


def scenario_delay_reshard():
    """Where a round ends another number of replicas goes on from the outer weights; in the middle of one they are told what to do."""
    keys = {**DELAYED, **raw(), **raw("backward"), "train.batch": 12, "train.epochs": 16, "checkpoint.every": "3 steps"}
    for name, more in {"plain": {}, "q4": {"reduce.codec": "q4"}}.items():
        counts = (2, 3, 1, 2)
        for index, W in enumerate(counts):
            path = manifest(name, **{**keys, **more, "pipeline.replicas": W, "train.micro_batch": 2})
            again = ["--resume"] if index else []
            if index + 1 == len(counts):
                launch(path, *again)
                continue
            interrupt("sigint", path, complete(name) + 3, *again)
            check(complete(name) % EVERY == 0 or W == 1, f"{name}: stopped after step {complete(name)}")
        check(len(losses(name)) == 32 and losses(name)[-1] < losses(name)[0] * 0.95, f"{name}: {losses(name)}")
    path = manifest("middle", **keys)
    interrupt("worker", path, 10)
    step = complete("middle")
    check(step % EVERY, f"step {step} is no middle of a round: no test")
    refused("middle", path, rf"step {step} is in the middle of a round of reduce\.every: 3 replicas cannot take over what 2 .*"
            r"resume with 2 and stop that run", 1, "--resume", "--set", "pipeline.replicas=3")
    launch(path, "--resume")
    no_workers("delay_reshard")


def scenario_delay_bad_input():
    """What does not fit is refused by name; the plan has the memory and the time; a lost replica sends all back."""
    path = manifest("good", **DELAYED)
    for tag, pattern, *more in (("below", r"reduce\.delay: 4 must be below reduce\.every, 4", "reduce.delay=4"),
                                ("one", r"reduce\.delay: needs reduce\.every of 2 and more", "reduce.every=1"),
                                ("negative", r"reduce\.delay", "reduce.delay=-1"),
                                ("speed", r"reduce\.delay: does not go with reduce\.steps: speed", "reduce.patience=60s", "reduce.steps=speed",
                                 "checkpoint.every=4 steps", "train.evaluate_every=4 steps"),
                                ("nccl", r"reduce\.delay: needs reduce\.transport: links", "reduce.transport=nccl")):
        refused(tag, path, pattern, 2, *(part for each in more for part in ("--set", each)))
    said = aqpipe("plan", path).stdout
    check(re.search(r"reduce\.every 4: a round is 4 steps, .*reduce\.delay 2", said) and "outer step" in said, said)
    plans = [json.loads(aqpipe("plan", path, "--json", "--set", f"reduce.delay={delay}").stdout) for delay in (0, DELAY)]
    memory = [plan["stages"][0]["memory"]["outer step"] for plan in plans]
    parameters = plans[0]["stages"][0]["parameters"]
    check(0 <= memory[1] - memory[0] - 8 * parameters < 4096, f"two more copies of {parameters} parameters: {memory}")
    said = aqpipe("plan", path, "--json", "--set", "reduce.patience=60s", "--set", "checkpoint.every=4 steps").stdout
    patient = json.loads(said)["stages"][0]["memory"]["outer step"]
    check(0 <= patient - memory[1] - 4 * parameters < 4096, f"one more copy of {parameters} parameters: {patient}, {memory}")
    no_workers("delay_bad_input")
