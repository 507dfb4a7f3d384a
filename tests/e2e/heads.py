"""A new head (model.new_head) with what else a job may have: cuts, replicas, adapters, split learning, a kill; and a head of one number."""
import json
import shutil

import folders
import jobs
from jobs import aqpipe, check, launch, losses, metrics, no_workers
from kit import ROOT, interrupt, refused
from split import begin, whole
from split_lengths import CODED, PLAIN, STAGES, same, turns
from tables import job, table

HEAD = "score.weight"
SIZES = dict.fromkeys(folders.SIZES)


def model(name):
    return folders.tensors(ROOT / name / "model.safetensors")


def ways():
    """A folder whose head has three labels, and tables of two: what each job starts with."""
    table("train.tsv", 3, 22)
    table("heldout.tsv", 4, 9)
    launch(job("base", **{**PLAIN, "data.labels": "'short, long, none'", "train.steps_max": 3, "pipeline.stages": 1}))
    check(model("base")[HEAD][1] == [3, 32], f"the base's head is {model('base')[HEAD][1]}")
    return {**SIZES, **PLAIN, "model.weights": ROOT / "base", "model.new_head": "true"}


def begins(name):
    """A job that trains nothing leaves the folder's weights, but for the head."""
    there, here = model("base"), model(name)
    check(all(value == there[key] for key, value in here.items() if key != HEAD), f"{name}: more than the head is new")
    return here[HEAD]


def scenario_new_head():
    """A new head is one and the same on every cut and replica, with adapters, after a kill; the run's own folder has it; a head of one number and back."""
    keys = ways()
    still = {**keys, "train.lr": 0, "train.steps_max": 2}
    for name, more in (("still", {"pipeline.stages": 1}), ("still-cut", {}), ("still-two", {"pipeline.stages": 2, "pipeline.replicas": 2})):
        launch(job(name, **{**still, **more}))
    heads = {name: begins(name) for name in ("still", "still-cut", "still-two")}
    check(heads["still"][1] == [2, 32] and any(heads["still"][2]) and len({value[2] for value in heads.values()}) == 1, "the new head depends on the cut")
    launch(job("one", **{**keys, "pipeline.stages": 1}))
    launch(job("cut", **keys))
    check(losses("cut") == losses("one") and model("cut") == model("one"), f"cut: {losses('cut')}, of one stage {losses('one')}")
    mean = {"train.shuffle": "false"}
    launch(job("two-one", **{**keys, **mean, "pipeline.stages": 1}))
    launch(job("two", **{**keys, **mean, "pipeline.stages": 2, "pipeline.replicas": 2}))
    check(all(abs(a - b) < 1e-4 * b for a, b in zip(losses("two"), losses("two-one"), strict=True)), f"replicas: {losses('two')}, of one {losses('two-one')}")
    config = json.loads((ROOT / "one" / "config.json").read_text())
    check(config["id2label"] == {"0": "short", "1": "long"}, f"config.json: {config['id2label']}")
    done = aqpipe("eval", ROOT / "one", "--json")
    check(done.returncode == 0 and abs(json.loads(done.stdout)["loss"] - metrics("one", "eval")[-1]["loss"]) < 1e-6, f"{done.stdout}{done.stderr}")

    # Killed and resumed, without the folder that it started from: the head is that of the checkpoint.
    coded = {**keys, **CODED, "checkpoint.every": "3 steps"}
    launch(job("whole", **coded))
    shutil.copytree(ROOT / "base", ROOT / "base-kept")
    path = job("killed", **coded)
    interrupt("worker", path, 7)
    shutil.rmtree(ROOT / "base")
    done = aqpipe("resume", ROOT / "killed", "--no-progress")
    check(done.returncode == 0, done.stderr)
    check(losses("killed") == losses("whole") and model("killed") == model("whole"), f"killed: {losses('killed')}, not {losses('whole')}")
    shutil.copytree(ROOT / "base-kept", ROOT / "base")
    launch(job("whole", **{**coded, "train.epochs": 6}), "--resume")
    launch(job("longer", **{**coded, "train.epochs": 6}))
    check(losses("whole")[12:] == losses("longer")[12:] and model("whole") == model("longer"), "a longer run starts its head again")
    refused("without", job("longer", **{**coded, "train.epochs": 7, "model.new_head": "false"}), r"model\.new_head", 2, "--resume")

    # With adapters the new head trains next to them; both come out, merged and for PEFT.
    lora = {**keys, "lora.rank": 3, "lora.alpha": 6, "train.lr": 0.01}
    launch(job("lora", **{**lora, "pipeline.stages": 1}))
    launch(job("lora-cut", **{**lora, "checkpoint.every": "3 steps"}))
    path = job("lora-killed", **{**lora, "checkpoint.every": "3 steps"})
    interrupt("worker", path, 7)
    launch(path, "--resume")
    for name in ("lora-cut", "lora-killed"):
        check(losses(name) == losses("lora") and model(name) == model("lora"), f"{name}: {losses(name)}, not {losses('lora')}")
    check(model("lora")[HEAD] != heads["still"] and model("lora")[HEAD][1] == [2, 32], "with adapters the new head did not train")
    own = ("--data", ROOT / "heldout.tsv", "--text-column", "words", "--label-column", "kind", "--labels", "short,long", "--T", 32, "--json")
    merged, added = aqpipe("eval", ROOT / "lora", "--json"), aqpipe("eval", ROOT / "base", "--adapter", ROOT / "lora" / "adapter", *own)
    check(merged.returncode == 0 and added.returncode == 0, f"{merged.stderr}{added.stderr}")
    merged, added = (json.loads(done.stdout)["loss"] for done in (merged, added))
    check(abs(merged - added) < 1e-5, f"held-out loss {merged} merged, {added} with the adapter on its base")

    # Adapters that go on bring their head: it is not a new one.
    more = {**lora, "lora.rank": None, "lora.alpha": None, "lora.weights": ROOT / "lora" / "adapter", "train.lr": 0, "train.steps_max": 1, "train.epochs": 1}
    launch(job("lora-more", **more))
    check(model("lora-more")[HEAD] == model("lora")[HEAD], "the head of adapters that go on is a new one")

    # One number a sample in place of three labels, cut and on replicas; and labels in place of the number.
    number = {**keys, "model.task": "regression", "data.label_column": "number", "data.labels": None}
    for name, more in (("number", {"pipeline.stages": 1}), ("number-cut", {}), ("number-two", {"pipeline.stages": 2, "pipeline.replicas": 2})):
        launch(job(name, **{**number, **more}))
        check(model(name)[HEAD][1] == [1, 32], f"{name}: the head is {model(name)[HEAD][1]}")
    check(losses("number-cut") == losses("number") and model("number-cut") == model("number"), "number: not as one stage")
    refused("number", job("refused", **{**number, "model.new_head": None}), r"score\.weight is 3 x 32.*model\.new_head: true", 2)
    launch(job("labels", **{**keys, "model.weights": ROOT / "number", "train.steps_max": 1}))
    check(model("labels")[HEAD][1] == [2, 32], f"labels: the head is {model('labels')[HEAD][1]}")
    refused("labels", job("refused", **{**keys, "model.weights": ROOT / "number", "model.new_head": None}), r"score\.weight is 1 x 32.*model\.new_head: true", 2)
    no_workers("new_head")


def scenario_split_new_head():
    """Split learning with a new head: at a client, at the server that has the labels, with adapters, of one number; one client is the unsplit run."""
    begin("a", "b")
    keys = ways()
    table("b.tsv", 9, 17)
    launch(job("one", **{**keys, "pipeline.stages": 1}))
    for mode in ("relay", "global"):
        whole(job(mode, **{**keys, **turns(mode)}), "a", data="train", kind="tsv")
        same(mode, "one")
    served = {"split.labels": "server", "pipeline.stages": "[{layers: 0-1, dials: true}, {layers: 2-5}]"}
    whole(job("served", **{**keys, **turns(), **served}), "a", data="train", kind="tsv")
    same("served", "one")
    lora = {"lora.rank": 3, "lora.alpha": 6, "train.lr": 0.01}
    number = {"model.task": "regression", "data.label_column": "number", "data.labels": None}
    for tag, more in (("lora", lora), ("number", number)):
        launch(job(f"{tag}-one", **{**keys, **more, "pipeline.stages": 1}))
        whole(job(tag, **{**keys, **more, **turns()}), "a", data="train", kind="tsv")
        same(tag, f"{tag}-one")
    launch(job("three", **{**keys, **CODED, "pipeline.stages": STAGES.replace(", dials: true", "")}))
    whole(job("coded", **{**keys, **CODED, **turns()}), "a", data="train", kind="tsv")
    same("coded", "three")
    no_workers("split_new_head")
