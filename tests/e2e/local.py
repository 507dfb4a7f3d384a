"""reduce.every: replicas that train some steps each on its own, then take an outer step together."""
import json
import math
import re
import struct

import jobs
from jobs import aqpipe, check, launch, losses, manifest, metrics, no_workers, raw, weights
from kit import REPLICAS, RESTARTED, ROOT, arrays, interrupt, launch_and_kill, refused, same_run
from replicas import with_value

EVERY = 4
LOCAL = {**REPLICAS, "reduce.every": EVERY, "train.shuffle": "false"}
OUTER = "optimizer.local_steps"
SPARSE = {"reduce.outer_lr": 1, "reduce.outer_momentum": 0}  # SparseLoCo's outer step


def meets(step, last, every=EVERY):
    return step % every == 0 or step == last


def scenario_local():
    """Bytes go once a round; replicas share the outer weights at all times and all weights where a round ends; the cut,
    schedule, rate, looks and checkpoints change nothing."""
    base = {**LOCAL, **raw(), **raw("backward"), "train.epochs": 6, "train.clip": 0.5, "checkpoint.every": "3 steps",
            "checkpoint.keep": 20, "train.evaluate_every": "2 steps"}
    launch(manifest("two", **base))
    last = len(metrics("two"))
    check(last == 18, f"{last} steps")
    for line in metrics("two"):
        sent = [value > 0 for value in line["gradient_bytes"]]
        check(sent == [meets(line["step"], last)] * 4, f"step {line['step']}: bytes between replicas {line['gradient_bytes']}")
    check(losses("two")[-1] < losses("two")[0] * 0.95, f"nothing was learnt: {losses('two')}")
    evals = {line["step"]: line["loss"] for line in metrics("two", "eval")}
    for step in range(4, last, 4):  # in the middle of a round the outer weights are evaluated, which have not moved since
        check(meets(step + 2, last) or evals[step] == evals[step + 2], f"held-out losses {evals}")
        check(step + 4 not in evals or evals[step] != evals[step + 4], f"held-out losses {evals}")
    for step in range(3, last + 1, 3):
        for rank in (0, 1):
            mine, other = arrays("two", rank, step), arrays("two", rank + 2, step)
            shared = [key for key in mine if not key.startswith("optimizer.") or key == "optimizer.outer_momentum"]
            check(all(mine[key] == other[key] for key in shared), f"step {step}, stage {rank}: outer weights differ")
            check((mine[OUTER] == other[OUTER]) == meets(step, last), f"step {step}, stage {rank}: its own weights")
    for name, changes in {"one": {"pipeline.stages": 1}, "zb": {"pipeline.schedule": "zb-h1"},
                          "paced": {"link.rate_mbps": 30, "pipeline.schedule": "gpipe"},
                          "quiet": {"checkpoint.every": 0, "train.evaluate_every": "1 epoch"}}.items():
        launch(manifest(name, **{**base, **changes}))
        check(losses(name) == losses("two") and weights(name) == weights("two"), f"{name}: another run than two")
    # Three and six replicas, an epoch's partial last batch, what is compressed on its way; all end with one model.
    for name, W, changes in (("three", 3, {"train.batch": 12}), ("six", 6, {"train.batch": 12, "pipeline.stages": 1}),
                             ("rest", 3, {"train.batch": 12, "data.train_samples_max": 42}), ("q4", 2, {"reduce.codec": "q4"}),
                             ("sign", 3, {"train.batch": 12, "reduce.codec": "sign", "reduce.outer_momentum": 0}),
                             ("topk", 3, {"train.batch": 12, "reduce.codec": "topk", "reduce.density": 0.1, **SPARSE}),
                             ("sgd", 2, {"train.optimizer": "sgd", "train.lr": 0.05}),
                             ("lamb", 2, {"train.optimizer": "lamb", "train.lr": 0.02}),
                             ("lion", 2, {"train.optimizer": "lion", "train.lr": 2e-4}),
                             ("frozen", 2, {"train.freeze": "embedding, block 0"}),
                             ("stale", 2, {"train.staleness": 1}), ("auto", 2, {"reduce.codec": "auto"})):
        launch(manifest(name, **{**base, "pipeline.replicas": W, "train.micro_batch": 1, **changes}))
        P = changes.get("pipeline.stages", 2)
        for rank in range(P, P * W):
            mine, other = arrays(name, rank), arrays(name, rank % P)
            check(all(mine[key] == other[key] for key in mine if not key.startswith("optimizer.")), f"{name}: rank {rank} differs")
        check(losses(name)[-1] < losses(name)[0], f"{name}: nothing was learnt: {losses(name)}")
    check(sum(metrics("two")[3]["gradient_bytes"]) > 7 * sum(metrics("q4")[3]["gradient_bytes"]), "q4 sends an eighth")
    refused("GPU", ROOT / "topk.yaml", r"stage 0 is on a GPU: reduce\.codec topk has no kernels", 2, "--set",
            "pipeline.stages=[{layers: 0-2, device: cuda}, {layers: 3-5, device: cpu}]")
    plan = json.loads(aqpipe("plan", ROOT / "two.yaml", "--json").stdout)
    sent = json.loads((ROOT / "two" / "report.json").read_text())["runs"][0]["bytes_per_step"]["gradient"]
    planned = sum(stage["step_bytes_gradient"] for stage in plan["stages"]) / len(plan["stages"])
    check(plan["reduce_every"] == EVERY and math.isclose(sent / planned, EVERY * 5 / 18), f"the report says {sent} bytes a step, the plan {planned}")
    said = aqpipe("plan", ROOT / "two.yaml").stdout
    check(re.search(r"reduce\.every 4: a round is 4 steps, .* 4 times less than fp32", said) and "outer step" in said, said)
    for optimizer in ("qadam", "onebit_adam", "onebit_lamb", "lioncub", "slamb"):
        refused(optimizer, ROOT / "two.yaml", rf"reduce\.every: 4 does not fit train\.optimizer {optimizer}.*take adamw, sgd, lamb,"
                " lion", 2, "--set", f"train.optimizer={optimizer}")
    refused("powersgd", ROOT / "two.yaml", r"reduce\.codec: powersgd does not fit reduce\.every 4", 2, "--set",
            "reduce.codec=powersgd")
    no_workers("local")


def scenario_local_resume():
    """Killed or stopped anywhere, also in the middle of a round, a run goes on bit for bit; a stop ends with a round."""
    keys = {**RESTARTED, **REPLICAS, "train.epochs": 8, "reduce.every": 5}
    stopped = re.compile(r"stopped after step (\d+)")
    for tag, more in {"": {}, "-q4": {"reduce.codec": "q4", "checkpoint.mirror": "true"},
                      "-topk": {"reduce.codec": "topk", **SPARSE},
                      "-stale": {"train.staleness": 1, "reduce.codec": "bf16", "reduce.outer_momentum": 0},
                      "-fp16": {"model.precision": "fp16", "train.loss_scale_window": 2}}.items():
        launch(manifest(f"whole{tag}", **{**keys, **more}))
        for how in ("sigint", "worker") if tag in ("", "-q4", "-topk") else ("worker",):
            path = manifest(f"{how}{tag}", **{**keys, **more})
            interrupt(how, path, 7)
            if how == "sigint":
                at = len(losses(f"{how}{tag}"))
                check(at % 5 == 0, f"stopped after step {at}, no round's end")
            launch(path, "--resume")
            same_run(f"{how}{tag}", f"whole{tag}")
    path = manifest("killed", **keys)
    launch_and_kill(path, [(7, 2), (17, 3)])
    same_run("killed", "whole")
    no_workers("local_resume")


def scenario_local_reshard():
    """Where a round ends another number of replicas goes on; in the middle of one they are told what to do."""
    keys = {**LOCAL, **raw(), **raw("backward"), "train.batch": 12, "train.epochs": 12, "checkpoint.every": "3 steps"}
    for name, more in {"plain": {}, "q4": {"reduce.codec": "q4"}, "topk": {"reduce.codec": "topk", **SPARSE}}.items():
        counts = (2, 3, 1, 2)
        for index, W in enumerate(counts):
            path = manifest(name, **{**keys, **more, "pipeline.replicas": W, "train.micro_batch": 2})
            again = ["--resume"] if index else []
            if index + 1 == len(counts):
                launch(path, *again)
                continue
            interrupt("sigint", path, 6 * index + 3, *again)
        check(len(losses(name)) == 24 and losses(name)[-1] < losses(name)[0] * 0.95, f"{name}: {losses(name)}")
    path = manifest("middle", **keys)
    interrupt("worker", path, 7)
    step = json.loads((ROOT / "middle" / "checkpoint" / "complete").read_text())["step"]
    check(step % EVERY, f"step {step} is no middle of a round: no test")
    refused("middle", path, rf"step {step} is in the middle of a round of reduce\.every: 3 replicas cannot take over what 2 .*"
            r"resume with 2 and stop that run", 1, "--resume", "--set", "pipeline.replicas=3")
    launch(path, "--resume")
    no_workers("local_reshard")


def scenario_local_void():
    """One replica's gradients are not finite now and then: it alone skips those steps, and nobody's weights hear of it."""
    words = bytearray(jobs.text(1, 400).encode())
    words[32 * 5 + 7] = ord("Z")  # sample 5 is replica 1's, and no layer norm holds the embedding of Z
    ROOT.joinpath("train.txt").write_bytes(words)
    base = {**REPLICAS, "train.epochs": 3, "train.micro_batch": 1, "reduce.every": 3}
    launch(manifest("good", **{**base, "train.steps_max": 1}))
    made = with_value(ROOT / "good" / "model.safetensors", "transformer.wte.weight", 32 * ord("Z"), 32, 3e38)
    ROOT.joinpath("made.safetensors").write_bytes(made)
    for name, more in {"fp32": {}, "q4": {"reduce.codec": "q4"}, "topk": {"reduce.codec": "topk", **SPARSE}}.items():
        launch(manifest(name, **{**base, **more, "model.weights": str(ROOT / "made.safetensors"), "train.skips_max": 1000}))
        skipped = [line["skipped"] for line in metrics(name)]
        check([sum(skipped[e:e + 3]) for e in (0, 3, 6)] == [1, 1, 1], f"{name}: one step in each epoch: {skipped}")
        check(metrics(name, "eval")[-1]["loss"] < metrics(name, "eval")[0]["loss"], f"{name}: {metrics(name, 'eval')}")
        for rank in (2, 3):
            mine, other = arrays(name, rank), arrays(name, rank - 2)
            check(all(mine[key] == other[key] for key in mine if not key.startswith("optimizer.")), f"{name}: rank {rank} differs")
            owed = [value for key in mine if "error" in key or "momentum" in key
                    for (value,) in struct.iter_unpack("<f", mine[key])]
            check(all(map(math.isfinite, owed)) and any(owed), f"{name}: rank {rank} owes what is not finite")
    no_workers("local_void")
