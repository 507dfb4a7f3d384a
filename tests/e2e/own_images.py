"""Images of one's own (data.kind: image_files) with what else a job may have: replicas, two clients, a shared cache, tables that change, odd sizes."""
import os
import random
import struct
import zlib

import jobs
from jobs import aqpipe, check, launch, losses, manifest, metrics, no_workers, raw, weights
from kit import ROOT, interrupt, refused
from split import Client, Server, begin, of_client, report, tensors, whole

PLAIN = {**raw(), **raw("backward")}
CODED = {"edges.forward.codec": "aqsgd", "edges.forward.bits": 4, "edges.backward.codec": "directq", "edges.backward.bits": 8}
CLASSES = 3


def png(height, width, colours, bits, draw, label):
    """A PNG file whose brightness follows its label."""
    most, rows = (1 << bits) - 1, b""
    for _ in range(height):
        row = [min(most, max(0, (label * most // CLASSES) + draw.randrange(-most // 9, most // 9))) for _ in range(width * colours)]
        rows += b"\0" + (bytes(row) if bits == 8 else struct.pack(f">{len(row)}H", *row))

    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
    head = struct.pack(">IIBBBBB", width, height, bits, 2 if colours == 3 else 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(rows, 1)) + chunk(b"IEND", b"")


SHAPES = ((24, 24, 3, 8), (63, 65, 1, 8), (31, 40, 3, 16), (65, 63, 1, 16))


def images(name, seed, count, shapes=SHAPES, labels=CLASSES):
    """A table NAME.csv of files in the folder NAME; their rows."""
    draw, rows = random.Random(seed), []
    (ROOT / name).mkdir(exist_ok=True)
    for i in range(count):
        (ROOT / name / f"{i}.png").write_bytes(png(*shapes[i % len(shapes)], draw, i % labels))
        rows.append(f"{name}/{i}.png,{i % labels}")
    return rewrite(name, rows)


def rewrite(name, rows):
    (ROOT / f"{name}.csv").write_text("file,label\n" + "".join(row + "\n" for row in rows))
    return rows


def job(name, **changes):
    gpt2 = dict.fromkeys(("model.blocks", "model.heads", "model.channels", "model.context", "model.tied", "train.T", "data.train_samples_max", "data.heldout_samples_max"))
    return manifest(name, **{**gpt2, "model.kind": "resnet", "model.depth": 10, "model.filters": 4, "model.side": 16, "data.kind": "image_files", "data.train": ROOT / "a.csv",
                             "data.heldout": ROOT / "test.csv", "train.batch": 8, "train.micro_batch": 2, "train.epochs": 3, "train.lr": "5e-3", "train.decay": "constant",
                             "pipeline.stages": 2, **changes})


def alike(name, one):
    check(losses(name) == losses(one) and weights(name) == weights(one), f"{name}: {losses(name)}, of {one} {losses(one)}")
    check([line["loss"] for line in metrics(name, "eval")] == [line["loss"] for line in metrics(one, "eval")], f"{name}: held-out losses differ from {one}")


def scenario_own_images():
    """Cut, on replicas, killed, with one cache for several manifests, with tables that were reordered or changed, with an odd side and 16 bits."""
    rows = images("a", 1, 22)
    images("test", 2, 9)
    cache = {"data.cache": ROOT / "cache"}
    (ROOT / "cache").mkdir()
    launch(job("one", **{**PLAIN, "pipeline.stages": 1}))
    launch(job("cut", **PLAIN, **cache))
    alike("cut", "one")
    two = {**CODED, "pipeline.replicas": 2, "checkpoint.every": "2 steps", "train.epochs": 5, "data.augment.crop": 2, "data.augment.flip": "true"}
    launch(job("two", **two))
    check(metrics("two", "eval")[-1]["targets"] == 9, f"{metrics('two', 'eval')[-1]}")
    path = job("two-killed", **two, **cache)  # the workers of both replicas read one cache
    interrupt("worker", path, 5)
    launch(path, "--resume")
    alike("two-killed", "two")

    # Another side, other bits and another table in the cache of the first manifest: each is the run without a cache.
    kept = set(os.listdir(ROOT / "cache"))
    for name, more in (("wide", {"data.image.bits": 16}), ("stretched", {"data.image.fit": "stretch"}), ("odd", {"model.side": 15}), ("other", {"data.train": ROOT / "test.csv"})):
        launch(job(f"{name}-alone", **PLAIN, **more))
        launch(job(name, **PLAIN, **more, **cache))
        alike(name, f"{name}-alone")
    check(kept < set(os.listdir(ROOT / "cache")), "the other manifests have kept nothing in the cache")
    launch(job("again", **PLAIN, **cache))
    alike("again", "one")

    # The order of rows is the order of samples: a resume with another order, other labels or another picture is refused; a table that comes back as it was is resumed.
    path = job("changed", **PLAIN, **cache, **{"checkpoint.every": "2 steps"})
    interrupt("worker", path, 4)
    picture = (ROOT / "a" / "0.png").read_bytes()
    other = png(24, 24, 3, 8, random.Random(99), 0)
    label = [rows[0][:-1] + "1", *rows[1:]]
    for what, table, data in (("reordered", rows[::-1], picture), ("relabelled", label, picture), ("shorter", rows[:-1], picture), ("repainted", rows, other)):
        rewrite("a", table)
        (ROOT / "a" / "0.png").write_bytes(data)
        refused(what, path, r"data\.train", 2, "--resume")
    rewrite("a", rows)
    (ROOT / "a" / "0.png").write_bytes(picture)
    launch(path, "--resume")
    alike("changed", "one")

    # Fewer labels than the held-out images have: the manifest states how many there are, by a count or by names.
    images("few", 5, 10, SHAPES[:2], 2)
    few = {**PLAIN, "data.train": ROOT / "few.csv", "train.epochs": 1}
    refused("few", job("few", **few), r"data\.heldout: has 3 labels, data\.train has 2: set model\.classes, or data\.labels", 2)
    launch(job("few-stated", **few, **{"model.classes": CLASSES}))
    launch(job("few-named", **few, **{"data.labels": "'0, 1, 2'"}))
    alike("few-named", "few-stated")

    # The published stem on odd sides, of grey images and of 16 bits.
    stem = {**PLAIN, "model.stem": "imagenet", "model.side": 63, "data.image.bits": 16, "train.epochs": 1}
    launch(job("stem", **{**stem, "pipeline.stages": 1}))
    launch(job("stem-cut", **{**stem, "pipeline.stages": 3}))
    alike("stem-cut", "stem")
    launch(job("stem-two", **{**stem, "pipeline.replicas": 2, "model.side": 33}))
    no_workers("own_images")


def scenario_split_own_images():
    """One client with a table of its own is the unsplit run; two take turns and train together; a client whose table has fewer or more classes than the job."""
    begin("a", "b", "c")
    images("a", 1, 22)
    images("test", 2, 9)
    images("b", 3, 17, SHAPES[:2], 2)  # no image of the last class
    images("c", 4, 12, SHAPES[:1], 4)  # one class more
    turns = {"split.clients": 1, "split.server": "127.0.0.1:0", "split.rounds": 2, "split.epochs": 2, "split.wait": "20s", "split.collect": "true", "security.keys": ROOT / "keys",
             "checkpoint.every": "1 epoch", "train.warmup_steps": 0, "model.classes": CLASSES, "pipeline.stages": "[{layers: 0-1, dials: true}, {layers: 2-4}, {layers: 5-6, dials: true}]"}
    launch(job("one", **{**PLAIN, "train.epochs": 4, "train.warmup_steps": 0, "pipeline.stages": 1}))
    for mode in ("relay", "global"):
        whole(job(mode, **{**PLAIN, **turns, "split.mode": mode, "data.cache": ROOT / f"cache-{mode}"}), "a", kind="csv")
        check(losses("one") == [line["loss"] for line in of_client(mode, "a")], f"{mode}: losses differ from the unsplit run's")
        check(tensors(ROOT / "one" / "model.safetensors") == tensors(ROOT / mode / "model.safetensors"), f"{mode}: weights differ")
    # A new classifier on the weights of that run, for the two classes of client b: as the unsplit run, and refused for client a, which has three.
    images("test", 6, 6, labels=2)
    sizes = dict.fromkeys(("model.kind", "model.depth", "model.filters", "model.side", "model.classes"))
    head = {**sizes, "model.weights": ROOT / "one", "model.new_head": "true"}
    launch(job("head-one", **{**PLAIN, **head, "data.train": ROOT / "b.csv", "train.epochs": 4, "train.warmup_steps": 0, "pipeline.stages": 1}))
    whole(job("head", **{**PLAIN, **turns, **head}), "b", kind="csv")
    check(losses("head-one") == [line["loss"] for line in of_client("head", "b")], "a new head: losses differ from the unsplit run's")
    ours, theirs = (tensors(ROOT / name / "model.safetensors") for name in ("head", "head-one"))
    check(ours == theirs and len(ours["fc.bias"]) == 2 * 4, f"a new head: weights differ, or its bias has {len(ours['fc.bias'])} bytes")
    images("test", 2, 9)
    for mode in ("splitfed1", "global"):
        whole(job(f"two-{mode}", **{**CODED, **turns, "split.clients": 2, "split.mode": mode, "data.cache": ROOT / "cache"}), "a", "b", kind="csv")
        check([line["turns"] for line in report(f"two-{mode}")["clients"]] == [2, 2], f"two-{mode}: {report(f'two-{mode}')}")
    server = Server(job("more", **{**CODED, **turns, "split.wait": "1s"}))
    said = Client(server, "c", kind="csv").end(2)
    check("model.classes: 3, but the data's targets have 4 values" in said and said.count("\n") <= 2, f"more classes: {said}")
    Client(server, "a", kind="csv").end()
    server.end()
    no_workers("split_own_images")
