"""Images: a network that shares nothing with GPT-2, cut into stages whose cuts have shapes of their own."""
import json
import os
import pathlib
import sys

import jobs
from jobs import aqpipe, check, launch, losses, manifest, metrics, no_workers, raw, weights
from kit import ROOT, interrupt
from split import records

CODECS = {"edges.forward.codec": "aqsgd", "edges.forward.bits": 4, "edges.backward.codec": "directq",
          "edges.backward.bits": 8}


def cifar10():
    source = pathlib.Path(__file__).resolve().parent.parent.parent
    folder = pathlib.Path(os.environ.get("AQ_SHARED", source.parent / "shared")) / "data" / "cifar10"
    if not (folder / "train_10k.bin").exists():
        print(f"skipped: {folder}/train_10k.bin is not there (AQ_SHARED names the folder of shared data)")
        sys.exit(77)
    return folder


def job(name, **changes):
    folder = cifar10()
    gpt2 = dict.fromkeys(("model.blocks", "model.heads", "model.channels", "model.context", "model.tied", "train.T"))
    return manifest(name, **{**gpt2, "model.kind": "pyramid", "model.width": 8, "model.levels": 4, "data.kind": "cifar10",
                             "data.train": str(folder / "train_10k.bin"), "data.heldout": str(folder / "test_2k.bin"),
                             "data.train_samples_max": 500, "data.heldout_samples_max": 300, "train.batch": 50,
                             "train.micro_batch": 25, "train.epochs": 6, "train.lr": "5e-3", "train.decay": "constant", "pipeline.stages": 3, **changes})


def scenario_images():
    """CIFAR-10 over 3 stages: as one stage bit for bit, with AQ-SGD nearly as well, through a resume, and on two replicas."""
    plain = {**raw(), **raw("backward"), "train.epochs": 2}
    launch(job("one", **{**plain, "pipeline.stages": 1}))
    launch(job("three", **plain))
    check(losses("three") == losses("one"), f"losses {losses('three')} are not those of one stage {losses('one')}")
    check(weights("three") == weights("one"), "model.safetensors differs, or its batch statistics")
    for key in ("loss", "accuracy"):
        check(metrics("three", "eval")[-1][key] == metrics("one", "eval")[-1][key], f"held-out {key} differs")
    jobs.isolated(True)
    launch(job("isolated", **plain))
    jobs.isolated(False)
    check(weights("isolated") == weights("one"), "on a device whose memory no host can reach: model.safetensors differs")
    refused = aqpipe("plan", str(job("mixed", **{"model.blocks": 2})))
    check(refused.returncode != 0 and "pyramid has no such key" in refused.stderr, refused.stderr)

    for key, value, wanted in (("train.T", 8, "has no tokens to count"), ("model.classes", 5, "targets have 10 values"),
                               ("model.side", 24, "not a power of two"), ("data.kind", "text", "have no images"),
                               ("model.task", "language_model", "have no targets")):
        refused = aqpipe("plan", str(job("refused", **{key: value})))
        check(refused.returncode != 0 and wanted in refused.stderr, f"{key}: {value}: {refused.stderr}")

    launch(job("aqsgd", **CODECS, **{"checkpoint.every": 10}))
    first, last = metrics("aqsgd")[0], metrics("aqsgd")[-1]
    check(last["loss"] < first["loss"] * 0.75, f"loss {first['loss']} to {last['loss']}")
    accuracy = metrics("aqsgd", "eval")[-1]["accuracy"]
    check(0.2 < accuracy < 1, f"accuracy {accuracy}: a guess has 0.1")
    plan = json.loads(aqpipe("plan", str(job("plan", **CODECS)), "--json").stdout)
    cuts = [edge["message_bytes"] for edge in plan["edges"]]
    check(cuts[0] != cuts[1], f"both cuts have one shape: {cuts}")

    path = job("resumed", **CODECS, **{"checkpoint.every": 10, "train.epochs": 3})
    launch(path)
    launch(path, "--resume", "--set", "train.epochs=6")
    check(losses("resumed")[30:] == losses("aqsgd")[30:] and weights("resumed") == weights("aqsgd"),
          "resumed: not the run that would have been: optimizer, statistics or caches were lost")
    launch(job("replicas", **CODECS, **{"pipeline.stages": 2, "pipeline.replicas": 2, "train.epochs": 2}))
    line = metrics("replicas", "eval")[-1]
    check(line["targets"] == 300 and 0 < line["accuracy"] < 1, f"of both replicas: {line}")
    report = json.loads(aqpipe("report", str(ROOT / "replicas"), "--json").stdout)["runs"][0]
    check(report["heldout"]["accuracy"] == line["accuracy"], f"the report has {report['heldout']}")
    no_workers("images")


def scenario_images_views():
    """Crops and flips in 3 stages of 3 replicas with the codecs that a job has which names none, clipped, the last batch short: killed, the run goes on as if it had not been."""
    base = {"pipeline.stages": 3, "pipeline.replicas": 3, "data.train_samples_max": 100, "data.heldout_samples_max": 30, "train.batch": 24, "train.micro_batch": 4,
            "train.clip": 0.3, "train.epochs": 6, "checkpoint.every": "3 steps", "data.augment.crop": 4, "data.augment.flip": "true"}
    launch(job("whole", **base))
    steps = metrics("whole")
    check(len(steps) == 30 and steps[4]["samples"] < steps[0]["samples"] == 24, f"{len(steps)} steps, of {[line['samples'] for line in steps[:5]]} samples")
    check(any(line["grad_norm"] > 0.3 for line in steps), "nothing was clipped")
    first, seen = (sum(sum(line["keyframes"]) for line in steps if low <= line["epoch"] < 6) for low in (1, 0))
    check(0 < first and seen <= 4 * 2 * 100, f"{seen} keyframes, {first} after the first epoch: two sides of 100 images at both ends of two cuts are the most")
    for how, step in (("worker", 8), ("launcher", 17)):
        name = f"killed-{how}"
        path = job(name, **base)
        interrupt(how, path, step)
        launch(path, "--resume")
        check(losses(name) == losses("whole") and weights(name) == weights("whole"), f"{name}: {losses(name)} are not {losses('whole')}")
        check([line["loss"] for line in metrics(name, "eval")] == [line["loss"] for line in metrics("whole", "eval")], f"{name}: held-out losses differ")
        for line, other in zip(metrics(name), steps):
            check(line["keyframes"] == other["keyframes"] and not any(line["fetched"]), f"{name}: messages were lost: {line}")
    no_workers("images_views")


HUNDRED = {"model.kind": "resnet", "model.depth": 10, "model.filters": 4, "data.kind": "cifar100", "data.train": "hundred.bin", "data.heldout": "heldout.bin",
           "train.batch": 20, "train.micro_batch": 10, "train.epochs": 3, "train.lr": "5e-3", "train.decay": "constant", "pipeline.stages": 3}


def hundred(name, **changes):
    gpt2 = dict.fromkeys(("model.blocks", "model.heads", "model.channels", "model.context", "model.tied", "train.T", "data.train_samples_max", "data.heldout_samples_max"))
    return manifest(name, **{**gpt2, **HUNDRED, **changes})


def scenario_images_100():
    """CIFAR-100's records train as CIFAR-10's of the same labels with as many outputs, whatever their coarse labels; crops, flips, cuts, codecs, a resume; bad files."""
    plain = {**raw(), **raw("backward")}
    for name, coarse in (("ten", None), ("hundred", lambda label: label % 20), ("other", lambda label: 19 - label)):
        records(name, 50, 1, coarse=coarse)
        records(f"{name}-heldout", 30, 2, coarse=coarse)
    records("heldout", 30, 2, 100, lambda label: label // 5)
    records("many", 50, 1, 100, lambda label: label // 5)
    launch(hundred("ten", **plain, **{"data.kind": "cifar10", "data.train": "ten.bin", "data.heldout": "ten-heldout.bin", "model.classes": 100}))
    launch(hundred("hundred", **plain, **{"data.kind": None, "data.heldout": "hundred-heldout.bin", "pipeline.stages": 1}))
    launch(hundred("other", **plain, **{"data.train": "other.bin", "data.heldout": "other-heldout.bin"}))
    for name in ("hundred", "other"):
        check(losses(name) == losses("ten") and weights(name) == weights("ten"), f"{name}: {losses(name)}, of CIFAR-10's records {losses('ten')}")
        for key in ("loss", "accuracy"):
            check([line[key] for line in metrics(name, "eval")] == [line[key] for line in metrics("ten", "eval")], f"{name}: held-out {key} differs")

    many = {"data.train": "many.bin", "data.augment.crop": 4, "data.augment.flip": "true", "train.epochs": 6, "checkpoint.every": "3 steps"}
    for kind, keys in (("resnet", {}), ("pyramid", {"model.depth": None, "model.filters": None, "model.width": 8, "model.levels": 4})):
        keys = {**many, **CODECS, "model.kind": kind, **keys}
        launch(hundred(kind, **keys))
        lines = metrics(kind)
        check(len(lines) == 18 and lines[2]["samples"] == 10 and lines[-1]["loss"] < lines[0]["loss"], f"{kind}: losses {losses(kind)}")
        check(abs(lines[0]["loss"] - 4.6) < 0.9, f"{kind}: of 100 classes a first loss is near log 100, not {lines[0]['loss']}")
        path = hundred(f"{kind}-killed", **keys)
        interrupt("worker", path, 8)
        launch(path, "--resume")
        check(losses(f"{kind}-killed") == losses(kind) and weights(f"{kind}-killed") == weights(kind), f"{kind}: resumed is another run: {losses(f'{kind}-killed')}")
    launch(hundred("still", **{**many, **CODECS, "data.augment.crop": 0, "data.augment.flip": "false"}))
    check(losses("still") != losses("resnet"), "images are seen as they are")

    whole = (ROOT / "many.bin").read_bytes()
    for data, wanted in ((whole[:-1], "record 49 has 3073 bytes, a record of CIFAR-100 has 3074"), (b"", "record 0 has 0 bytes"),
                         (whole[:3074 * 7] + bytes([20]) + whole[3074 * 7 + 1:], "record 7 has coarse label 20, CIFAR-100 has 0 to 19"),
                         (whole[:3075] + bytes([100]) + whole[3076:], "record 1 has fine label 100, CIFAR-100 has 0 to 99")):
        (ROOT / "bad.bin").write_bytes(data)
        for key in ("data.train", "data.heldout"):
            refused = aqpipe("plan", str(hundred("refused", **{key: "bad.bin"})))
            check(refused.returncode == 2 and f"bad.bin: {wanted}" in refused.stderr and refused.stderr.count("\n") == 1, f"{key}: {wanted}: {refused.returncode} {refused.stderr}")
    for keys, wanted in (({"model.classes": 10}, "targets have 100 values"), ({"data.kind": "cifar10"}, "a record of CIFAR-10 has 3073")):
        refused = aqpipe("plan", str(hundred("refused", **keys)))
        check(refused.returncode == 2 and wanted in refused.stderr, f"{keys}: {refused.stderr}")
    no_workers("images_100")
