"""Frozen tensors: they keep their bits, cost no gradient, are saved once, and change nothing of how runs stop and go on."""
import json
import shutil

from jobs import check, launch, losses, manifest, metrics, raw, weights
from kit import OPTIMIZERS, ROOT, arrays, interrupt, refused

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


def scenario_freeze_cut():
    """Without compression three stages are one, whatever is frozen; a file of weights is where it begins."""
    for tag, freeze in (("prefix", LIST), ("head", "*, !head"), ("bias", "bias, wte")):
        keys = {**raw(), **raw("backward"), "train.freeze": f"'{freeze}'", "train.epochs": 2, "train.clip": 0.5}
        launch(manifest(f"{tag}-3", **{**keys, "pipeline.stages": 3}))
        launch(manifest(f"{tag}-1", **{**keys, "pipeline.stages": 1}))
        check(losses(f"{tag}-1") == losses(f"{tag}-3"), f"{tag}: losses differ:\n{losses(f'{tag}-1')}\n{losses(f'{tag}-3')}")
        check(model(f"{tag}-1") == model(f"{tag}-3"), f"{tag}: weights differ")
        norms = [[line["grad_norm"] for line in metrics(f"{tag}-{P}")] for P in (1, 3)]
        check(norms[0] == norms[1], f"{tag}: gradient norms differ: {norms}")
    keys = {"pipeline.stages": 2, "train.epochs": 1, "train.freeze": f"'{LIST}'",
            "model.weights": str(ROOT / "head-1" / "model.safetensors")}
    launch(manifest("tuned", **keys))
    expect_kept("tuned", model("head-1"))


def scenario_freeze_optimizers():
    """Every optimizer with a stage that has nothing to train, and one that has some: replicas agree, nothing frozen moves."""
    keys = {"pipeline.stages": 2, "pipeline.replicas": 2, "data.train_samples_max": 24, "train.epochs": 2,
            "train.weight_decay": 0.1, "checkpoint.every": "2 steps", "train.freeze": f"'{LIST}, block 1'"}
    launch(manifest("began", **{**keys, "train.lr": 0, "train.steps_max": 1, "train.freeze": None}))
    for name, settings in {**OPTIMIZERS, "auto": {"reduce.codec": "auto"}}.items():
        launch(manifest(name, **{**keys, **settings}))
        expect_kept(name, model("began"), lambda key: is_frozen(key) or ".h.1." in key)
