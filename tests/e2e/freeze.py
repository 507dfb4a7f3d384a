"""Frozen tensors: they keep their bits, cost no gradient, are saved once, and change nothing of how runs stop and go on."""
import json
import os
import shutil
import sys

from jobs import aqpipe, check, launch, losses, manifest, metrics, raw, weights
from kit import OPTIMIZERS, ROOT, arrays, interrupt, refused, same_run
from resume import flip

LIST = "embedding, block 0, h.2.attn"


def tensors(path):
    data = path.read_bytes()
    size = int.from_bytes(data[:8], "little")
    return {key: data[8 + size + about["data_offsets"][0]:8 + size + about["data_offsets"][1]]
            for key, about in json.loads(data[8:8 + size]).items() if key != "__metadata__"}


def model(name):
    return tensors(ROOT / name / "model.safetensors")


def is_frozen(name):
    name = name.removeprefix("transformer.")
    return name.startswith(("wte.", "wpe.", "h.0.", "h.2.attn."))


def expect_kept(name, began, frozen=is_frozen):
    """Frozen tensors are what they began as, and all others have moved."""
    now = model(name)
    check(now.keys() == began.keys(), f"{name}: other tensors: {sorted(now.keys() ^ began.keys())}")
    for key, value in now.items():
        check((value == began[key]) == frozen(key), f"{name}: {key} has {'moved' if frozen(key) else 'not moved'}")


def scenario_freeze():
    """3 stages x 2 replicas, of which the first stage trains nothing; cut or not, killed or not, it is the same run."""
    keys = {"pipeline.stages": "\n    - {layers: 0-1}\n    - {layers: 2-3}\n    - {layers: 4-5}", "pipeline.replicas": 2,
            "data.train_samples_max": 24, "train.clip": 0.5, "checkpoint.every": "3 steps", "train.epochs": 8,
            "train.weight_decay": 0.1, "train.freeze": f"'{LIST}'"}
    launch(manifest("began", **{**keys, "train.lr": 0, "train.steps_max": 1, "train.freeze": None}))
    began = model("began")
    launch(manifest("whole", **keys))
    expect_kept("whole", began)
    checkpoint = ROOT / "whole" / "checkpoint"
    for rank in range(6):
        saved, frozen = arrays("whole", rank).keys(), tensors(checkpoint / f"frozen-stage-{rank}.safetensors").keys() \
            if rank % 3 < 2 else set()
        check(not any(is_frozen(key) for key in saved) and all(is_frozen(key) for key in frozen),
              f"rank {rank} has saved {sorted(saved)}, once {sorted(frozen)}")
    check(not (checkpoint / "frozen-stage-2.safetensors").exists(), "stage 2 has nothing that is frozen")

    report = json.loads((ROOT / "whole" / "report.json").read_text())["runs"][0]
    counts = [sum(len(value) // 4 for key, value in model("whole").items() if is_frozen(key) or every)
              for every in (False, True)]
    check([report["parameters_frozen"], report["parameters"]] == counts, f"the report counts {report}, there are {counts}")
    for command, words in (("report", f"{counts[1] - counts[0]} of {counts[1]} parameters were trained"),
                           ("plan", f"{counts[1]} parameters, {counts[1] - counts[0]} trained, {counts[0]} frozen")):
        done = aqpipe(command, ROOT / "whole" / ("manifest.yaml" if command == "plan" else ""))
        text = " ".join(done.stdout.split())
        check(done.returncode == 0 and words in text, f"{command}: no '{words}' in\n{done.stdout}\n{done.stderr}")

    # Killed; and what was saved once lost, or damaged: it comes from where it came from.
    for name, loses in (("worker", None), ("launcher", "gone"), ("daemon", "damaged")):
        path = manifest(name, **keys)
        interrupt(name, path, 7)
        file = ROOT / name / "checkpoint" / "frozen-stage-1.safetensors"
        kept = file.read_bytes()
        if loses == "gone":
            file.unlink()
        elif loses:
            file.write_bytes(kept[:-1] + bytes([kept[-1] ^ 1]))
        launch(path, "--resume")
        check(losses(name) == losses("whole"), f"{name}: losses differ:\n{losses(name)}\n{losses('whole')}")
        check(weights(name) == weights("whole"), f"{name}: model.safetensors differs")
        check(tensors(file) == tensors(checkpoint / file.name), f"{name}: {file.name} has not come back")

    # Another list is another run; so is another beginning.
    path = manifest("other", **keys)
    interrupt("sigint", path, 4)
    other = manifest("other", **{**keys, "train.freeze": "embedding"})
    refused("other list", other, 'train.freeze: "embedding, block 0, h.2.attn" there, "embedding" here', 2, "--resume")
    refused("no list", manifest("other", **{**keys, "train.freeze": None}),
            'train.freeze: "embedding, block 0, h.2.attn" there, none here', 2, "--resume")
    for rank in (0, 3):
        shutil.copy(ROOT / "other" / "checkpoint" / "frozen-stage-1.safetensors",
                    ROOT / "other" / "checkpoint" / f"frozen-stage-{rank}.safetensors")
    launch(manifest("other", **keys), "--resume")  # of another stage: made again
    check(weights("other") == weights("whole"), "other: model.safetensors differs")

    # With more replicas, which have no file of their own, and with fewer.
    for name, before, after in (("wider", 1, 2), ("narrower", 2, 1)):
        interrupt("sigint", manifest(name, **{**keys, "pipeline.replicas": before}), 4)
        launch(manifest(name, **{**keys, "pipeline.replicas": after}), "--resume")
        expect_kept(name, began)


def scenario_freeze_cut():
    """Without compression three stages are one, whatever is frozen; a file of weights is where it begins."""
    for tag, freeze in (("prefix", LIST), ("head", "*, !head"), ("bias", "bias, wte")):
        keys = {**raw(), **raw("backward"), "train.freeze": f"'{freeze}'", "train.epochs": 2, "train.clip": 0.5}
        launch(manifest(f"{tag}-3", **{**keys, "pipeline.stages": 3}))
        launch(manifest(f"{tag}-1", **{**keys, "pipeline.stages": 1}))
        launch(manifest(f"{tag}-halves", **{**keys, "pipeline.stages": 3, "pipeline.schedule": "zb-h1"}))
        check(losses(f"{tag}-1") == losses(f"{tag}-halves"), f"{tag}: losses differ in halves")
        check(model(f"{tag}-1") == model(f"{tag}-halves"), f"{tag}: weights differ in halves")
        check(losses(f"{tag}-1") == losses(f"{tag}-3"), f"{tag}: losses differ:\n{losses(f'{tag}-1')}\n{losses(f'{tag}-3')}")
        check(model(f"{tag}-1") == model(f"{tag}-3"), f"{tag}: weights differ")
        norms = [[line["grad_norm"] for line in metrics(f"{tag}-{P}")] for P in (1, 3)]
        check(norms[0] == norms[1], f"{tag}: gradient norms differ: {norms}")
    keys = {"pipeline.stages": 2, "train.freeze": f"'{LIST}'", "checkpoint.every": "2 steps",
            "model.weights": str(ROOT / "head-1" / "model.safetensors")}
    launch(manifest("tuned", **keys))
    began = model("head-1")
    expect_kept("tuned", began)
    path = manifest("alone", **keys)
    interrupt("sigint", path, 4)
    (ROOT / "head-1" / "model.safetensors").unlink()  # a run that goes on does not need it
    done = aqpipe("resume", ROOT / "alone", "--no-progress")
    check(done.returncode == 0, done.stderr)
    expect_kept("alone", began)
    check(weights("alone") == weights("tuned"), "alone: model.safetensors differs")


def prefix_bytes(name, what):
    """Of each step behind the first epoch, on each edge."""
    steps = metrics(name)
    return [value for line in steps if line["epoch"] > steps[0]["epoch"] for value in line[what]]


def scenario_freeze_prefix():
    """Behind layers that never change a sample is sent once, with the bits of computing and sending it each time."""
    os.environ["AQ_CPU"] = "plain"  # whose sums do not depend on how many samples a product has
    stages = "\n    - {layers: 0-1}\n    - {layers: 2-3}\n    - {layers: 4-5}"
    keys = {"pipeline.stages": stages, "train.freeze": "'embedding, blocks 0-2'", "train.batch": 9, "train.micro_batch": 3,
            "train.epochs": 4, "train.evaluate_every": "4 steps", "checkpoint.every": "3 steps", **raw()}
    launch(manifest("each", **{**keys, "train.frozen_prefix": "false"}))
    launch(manifest("once", **keys))
    same_run("once", "each")
    sent, before = prefix_bytes("once", "forward_bytes"), prefix_bytes("each", "forward_bytes")
    check(max(sent[0::3] + sent[1::3]) == 48 * 9 and min(before[0::3]) > 4 * 4096, f"bytes forward: {sent}, each time {before}")
    back = [value for line in metrics("once") for value in line["backward_bytes"]]
    check(sum(back) == 0, f"gradients travel to where nothing trains: {back}")
    again = [line["compute_ns"][0] for line in metrics("once") if line["epoch"] > 0]
    check(again and max(again) == 0, f"samples that both ends hold are computed again: {again}")

    # Stopped, or killed, and what caches had is gone in the middle, or damaged everywhere: then it is computed again.
    for name, how, hurt in (("middle", "sigint", lambda run: shutil.rmtree(run / "cache" / "stage-1")),
                            ("all", "worker", lambda run: [flip(run / "cache" / f"stage-{s}" / "slab", 4096, 1000, s)
                                                           for s in range(3)])):
        path = manifest(name, **keys)
        interrupt(how, path, 7)
        hurt(ROOT / name)
        launch(path, "--resume")
        check(same_run(name, "each") > 0, f"{name}: nothing was fetched")
    said = "".join(path.read_text() for path in (ROOT / "all" / "logs").glob("*.log"))
    check("lost at both ends: computed again" in said, "all: nothing was computed again")

    # Adapters of the last block alone, three replicas, and messages of 16 bits; of 4 bits it is near, no more.
    keys = {"pipeline.stages": 2, "pipeline.replicas": 3, "lora.rank": 2, "lora.targets": "block 3", "train.batch": 9,
            "train.micro_batch": 3, "train.epochs": 2, "edges.forward.codec": "raw", "edges.forward.precision": "fp16"}
    launch(manifest("lora-each", **{**keys, "train.frozen_prefix": "false"}))
    launch(manifest("lora-once", **keys))
    same_run("lora-once", "lora-each")
    check(0 < max(prefix_bytes("lora-once", "forward_bytes")) <= 48 * 9, "lora-once sends more than rows")
    done = aqpipe("plan", manifest("lora-drop", **{**keys, "model.dropout": 0.1}), "--json")
    check(not json.loads(done.stdout)["edges"][0]["frozen_prefix"], "a prefix with dropout is taken for still")
    done = aqpipe("plan", manifest("lora-plan", **keys), "--json")
    check(json.loads(done.stdout)["edges"][0]["frozen_prefix"], "a frozen prefix is not seen by the plan")
    check("frozen prefix" in aqpipe("plan", ROOT / "lora-plan.yaml").stdout, "the plan does not say so")


def scenario_freeze_optimizers():
    """Every optimizer with a stage that has nothing to train, and one that has some: replicas agree, nothing frozen moves."""
    keys = {"pipeline.stages": 2, "pipeline.replicas": 2, "data.train_samples_max": 24, "train.epochs": 2,
            "train.weight_decay": 0.1, "checkpoint.every": "2 steps", "train.freeze": f"'{LIST}, block 1'"}
    launch(manifest("began", **{**keys, "train.lr": 0, "train.steps_max": 1, "train.freeze": None}))
    for name, settings in {**OPTIMIZERS, "auto": {"reduce.codec": "auto"}}.items():
        launch(manifest(name, **{**keys, **settings}))
        expect_kept(name, model("began"), lambda key: is_frozen(key) or ".h.1." in key)


def scenario_freeze_gpu():
    """The same on GPUs: copies in 16 bits of what is frozen, a stage without anything to train, killed and resumed."""
    keys = {"pipeline.stages": "\n    - {layers: 0-1, device: cuda}\n    - {layers: 2-5, device: cuda}",
            "pipeline.replicas": 2, "data.train_samples_max": 16, "train.clip": 0.5, "checkpoint.every": "2 steps",
            "train.epochs": 3, "model.precision": "bf16", "train.freeze": f"'{LIST}'"}
    done = aqpipe("launch", manifest("began", **{**keys, "train.lr": 0, "train.steps_max": 1, "train.freeze": None}),
                  "--no-progress")
    if done.returncode and "device: cuda" in done.stderr and os.environ.get("AQ_GPU") != "required":
        print(done.stderr.strip().split("\n")[-1])
        sys.exit(77)
    check(done.returncode == 0, done.stderr[-2000:])
    launch(manifest("whole", **keys))
    expect_kept("whole", model("began"))
    for log in (ROOT / "whole" / "logs").glob("stage-*.log"):
        check("beyond the plan" not in log.read_text(), f"{log}: the plan is not all that the GPU has to hold")
    path = manifest("worker", **keys)
    interrupt("worker", path, 3)
    launch(path, "--resume")
    check(losses("worker") == losses("whole"), f"losses differ:\n{losses('worker')}\n{losses('whole')}")
    check(weights("worker") == weights("whole"), "model.safetensors differs")
