"""Images: a network that shares nothing with GPT-2, cut into stages whose cuts have shapes of their own."""
import json
import os
import pathlib
import sys

import jobs
from jobs import aqpipe, check, launch, losses, manifest, metrics, no_workers, raw, weights
from kit import ROOT, interrupt

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
