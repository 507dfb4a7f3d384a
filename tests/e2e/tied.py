"""A head that is the embedding's table stays one tensor where a cut separates the two (model.tied)."""
import json
import struct

from jobs import aqpipe, check, launch, losses, manifest, metrics, no_workers, raw, weights
from kit import OPTIMIZERS, REPLICAS, ROOT, arrays, interrupt, refused, same_run

TIED = {"model.tied": "exact", **raw(), **raw("backward")}
COPY, TABLE = "lm_head.weight", "wte.weight"


def tensors(path):
    """The tensors of a safetensors file, as bytes by name."""
    data = path.read_bytes()
    begin = 8 + struct.unpack("<Q", data[:8])[0]
    head = json.loads(data[8:begin])
    return {name: data[begin + at["data_offsets"][0]:begin + at["data_offsets"][1]]
            for name, at in head.items() if name != "__metadata__"}


def copies_equal(name, stages, replicas=1, trained=False):
    """The last stage's copy has the bits of the first stage's table in the last checkpoint; exact: it has no moments."""
    for replica in range(replicas):
        first, last = (arrays(name, replica * stages + s) for s in (0, stages - 1))
        check(first[TABLE] == last[COPY], f"{name}: the copies of the tied table differ")
        if trained:
            if "optimizer.m" in last:
                check(first["optimizer.m"][:len(first[TABLE])] == last["optimizer.m"][-len(last[COPY]):], f"{name}: other moments")
            continue
        state = [len(last[key]) for key in last if key == "optimizer.m"]
        own = sum(len(last[key]) for key in last if not key.startswith("optimizer.")) - len(last[COPY])
        check(all(bytes_ == own for bytes_ in state), f"{name}: moments of {state} bytes, parameters of {own}")


def same(name, one, **changes):
    launch(manifest(name, **{**TIED, **changes}))
    check(losses(name) == losses(one), f"{name}: losses {losses(name)} are not those of one stage {losses(one)}")
    mine, its = metrics(name, "eval")[-1], metrics(one, "eval")[-1]
    check(mine["loss"] == its["loss"], f"{name}: held-out loss {mine['loss']} is not {its['loss']}")
    check(weights(name) == weights(one), f"{name}: model.safetensors differs")


def scenario_tied():
    """P stages equal one stage, bit for bit, with a tied head: several micro-batches, every schedule, clipping, replicas."""
    families = {"gpt2": {}, "bf16": {"model.precision": "bf16"}, "dropout": {"model.dropout": 0.1},
                "fp16": {"model.precision": "fp16", "train.loss_scale_window": 2},
                "llama": {"model.kind": "llama", "model.mlp": 56, "model.kv_heads": 1}}
    for family, own in families.items():
        launch(manifest(f"{family}-one", **{**TIED, **own, "pipeline.stages": 1}))
        for stages in (2, 4) if family == "gpt2" else (2,):
            same(f"{family}-{stages}", f"{family}-one", **own, **{"pipeline.stages": stages})
    check(losses("gpt2-one")[-1] < losses("gpt2-one")[0] * 0.9, f"nothing was learnt: {losses('gpt2-one')}")
    for schedule in ("gpipe", "zb-h1"):
        same(f"three-{schedule}", "gpt2-one", **{"pipeline.stages": 3, "pipeline.schedule": schedule})
    described = json.loads((ROOT / "gpt2-4" / "config.json").read_text())
    check(described["tie_word_embeddings"] is True, "the folder of four stages says that its head is not tied")
    check(not [name for name in tensors(ROOT / "gpt2-4" / "model.safetensors") if "lm_head" in name], "the head has a tensor")
    both = {**REPLICAS, "train.batch": 8, "train.micro_batch": 2}
    launch(manifest("pair-one", **{**TIED, **both, "pipeline.stages": 1}))
    same("pair-two", "pair-one", **both)
    no_workers("tied")


def scenario_tied_optimizers():
    """Every optimizer and codec of replicas, local steps, prediction and staleness leave both copies alike."""
    cases = {**{name: {**REPLICAS, **own} for name, own in OPTIMIZERS.items()},
             "local": {**REPLICAS, "reduce.every": 3, "train.evaluate_every": "2 steps"},
             "stale": {"pipeline.stages": 3, "train.staleness": 1},
             "ahead": {"pipeline.stages": 3, "train.staleness": 1, "train.prediction": "true",
                       "train.evaluate_every": "2 steps"}}
    for name, own in cases.items():
        launch(manifest(name, **{**TIED, **own, "checkpoint.every": "4 steps"}))
        copies_equal(name, own.get("pipeline.stages", 2), own.get("pipeline.replicas", 1))
        check(losses(name)[-1] < losses(name)[0], f"{name}: nothing was learnt: {losses(name)}")
    no_workers("tied_optimizers")


def scenario_tied_resume():
    """Killed anywhere and resumed, a run with a tied head is the run that nobody disturbed."""
    keys = {**TIED, "pipeline.stages": 3, "checkpoint.every": "3 steps", "train.epochs": 8, "model.dropout": 0.1}
    for case, own in (("plain", {}), ("stale", {"train.staleness": 1})):
        launch(manifest(f"{case}-whole", **{**keys, **own}))
        for how in ("worker", "launcher"):
            name = f"{case}-{how}"
            interrupt(how, manifest(name, **{**keys, **own}), 7)
            done = aqpipe("resume", ROOT / name, "--no-progress")
            check(done.returncode == 0, f"{name}: resume ended with {done.returncode}\n{done.stderr[-2000:]}")
            same_run(name, f"{case}-whole")
    no_workers("tied_resume")


def scenario_tied_compressed():
    """The head's gradient quantized, the embedding's as rows: both ends update alike, and learn as with one tensor."""
    keys = {**TIED, "model.tied": "compressed", "pipeline.stages": 3, "checkpoint.every": "3 steps", "train.epochs": 8}
    launch(manifest("one", **{**keys, "model.tied": "exact"}))
    cases = {"whole": {}, "two": {"pipeline.stages": 2}, "sgd": {"train.optimizer": "sgd", "train.lr": 0.05},
             "lamb": {"train.optimizer": "lamb", "train.lr": 0.02}, "lion": {"train.optimizer": "lion", "train.lr": 2e-4},
             "stale": {"train.staleness": 1}, "fp16": {"model.precision": "fp16", "train.loss_scale_window": 2},
             "onebit": {"train.optimizer": "onebit_adam", "optimizer.warmup_steps": 3, "optimizer.freeze_ratio": 0},
             "zb": {"pipeline.schedule": "zb-h1"}, "pair": {**REPLICAS, "reduce.codec": "fp32"}}
    for name, own in cases.items():
        launch(manifest(name, **{**keys, **own}))
        copies_equal(name, own.get("pipeline.stages", 3), own.get("pipeline.replicas", 1), trained=True)
        check(losses(name)[-1] < losses(name)[0], f"{name}: nothing was learnt: {losses(name)}")
    mine, its = metrics("whole")[0]["grad_norm"], metrics("one")[0]["grad_norm"]
    check(abs(mine / its - 1) < 0.02, f"the first step's norm is {mine}, with one tensor {its}: is the table counted twice?")
    check(losses("two") == losses("whole") == losses("zb"), "the cut or the schedule changes what is learnt")
    check(abs(losses("whole")[-1] / losses("one")[-1] - 1) < 0.05, f"{losses('whole')[-1]}, with one tensor {losses('one')[-1]}")
    described = json.loads((ROOT / "whole" / "config.json").read_text())
    check(described["tie_word_embeddings"] is True, "the folder says that its head is not tied")
    check(not [name for name in tensors(ROOT / "whole" / "model.safetensors") if "head" in name or "residual" in name],
          "the head has a tensor")
    interrupt("worker", manifest("killed", **keys), 7)
    done = aqpipe("resume", ROOT / "killed", "--no-progress")
    check(done.returncode == 0, f"resume ended with {done.returncode}\n{done.stderr[-2000:]}")
    same_run("killed", "whole")
    refused("codec", manifest("codec", **{**keys, **REPLICAS, "reduce.codec": "q4"}), "reduce.codec.*model.tied: exact", 2)
    refused("kind", manifest("kind", **{**keys, **REPLICAS, "train.optimizer": "qadam"}),
            "train.optimizer.*model.tied: untied", 2)
    no_workers("tied_compressed")


def scenario_tied_bytes():
    """`plan` prints what each choice sends in a step, and a run sends so much; frozen, and with adapters, nothing."""
    for how in ("exact", "compressed", "untied"):
        path = manifest(how, **{**TIED, "model.tied": how, "pipeline.stages": 3})
        launch(path)
        plan = json.loads(aqpipe("plan", path, "--json").stdout)["tied"]
        check(plan["choice"] == how and set(plan["step_bytes"]) == {"exact", "compressed", "untied"}, f"{how}: {plan}")
        up, down = plan["step_bytes"][how]["up"], plan["step_bytes"][how]["down"]
        for line in metrics(how):
            sent = line.get("tied_bytes")
            if how == "untied":
                check(sent is None, f"untied: {sent} bytes were sent")
                continue
            first, middle, last = sent
            check(last == up and middle == up + first, f"{how}: {sent} bytes were sent, planned {up} and {down}")
            check(first == down if how == "exact" else 0 < first <= down, f"{how}: {first} bytes back, planned {down}")
    frozen = {"train.freeze": "embedding"}, {"lora.rank": 2}
    for number, own in enumerate(frozen):
        name = f"still-{number}"
        launch(manifest(name, **{**TIED, **own, "pipeline.stages": 2}))
        check(all("tied_bytes" not in line for line in metrics(name)), f"{name}: a table that is frozen travels")
        launch(manifest(f"{name}-one", **{**TIED, **own, "pipeline.stages": 1}))
        check(losses(name) == losses(f"{name}-one"), f"{name}: losses are not those of one stage")
        mine, its = (tensors(ROOT / run / "model.safetensors") for run in (name, f"{name}-one"))
        check(mine == its, f"{name}: tensors of model.safetensors differ")
    no_workers("tied_bytes")
