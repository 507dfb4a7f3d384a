"""What tests/chaos_split trains: every kind of data that clients may have, with the models and options that treat it differently, and the modes that it goes with."""
import jobs
import own_images
import split
import tables
from kit import ROOT
from split_lengths import STAGES, talks

ALL = ("relay", "splitfed1", "splitfed2", "global")
TURNS = ALL[:3]
COUNTS = {"cifar10": (60, 45, 45, 40), "cifar100": (45, 30, 30, 30), "talks": (44, 34, 28, 12)}  # of a, b, c, and held out; of the others:
COUNT = (22, 17, 14, 9)
SERVED = "[{layers: 0-1, dials: true}, {layers: 2-%d}]"
UNSAID = {f"edges.{way}.{key}": None for way in ("forward", "backward") for key in ("codec", "bits")}
LORA = {"lora.rank": 3, "lora.alpha": 6, "train.lr": 0.01}
RESNET = {"model.kind": "resnet", "model.width": None, "model.levels": None, "model.depth": 10, "model.filters": 4, "data.kind": "cifar100",
          "data.augment.crop": 4, "data.augment.flip": "true", "pipeline.stages": "[{layers: 0-1, dials: true}, {layers: 2-5}, {layers: 6, dials: true}]"}
OWN = {"model.classes": own_images.CLASSES, "link.rate_mbps": 1, "pipeline.stages": "[{layers: 0-1, dials: true}, {layers: 2-4}, {layers: 5-6, dials: true}]"}
NUMBERS = {"model.task": "regression", "data.labels": None}
TALKS = {"data.kind": "instruct", "train.T": 48, "model.context": 48}


def write_numbers(name, seed, count):
    """A table whose labels are numbers: the words' count of letters."""
    tables.table(name, seed, count)
    head, *rows = (line.split("\t") for line in (ROOT / name).read_text().splitlines())
    (ROOT / name).write_text("".join("\t".join(row) + "\n" for row in [head, *([a, b, str(len(b) / 10)] for a, b, _ in rows)]))


# By the name of a kind of data: the ending of its files, and what writes one (its name without the ending, a seed, a count of samples).
DATA = {"cifar10": ("bin", lambda name, seed, count: split.records(name, count, seed)),
        "cifar100": ("bin", lambda name, seed, count: split.records(name, count, seed, 100, lambda label: label // 5)),
        "own": ("csv", own_images.images),
        "text": ("txt", lambda name, seed, count: (ROOT / f"{name}.txt").write_text(jobs.text(seed, 16 * count)[:32 * count + 1])),
        "words": ("tsv", lambda name, seed, count: tables.table(f"{name}.tsv", seed, count)),
        "numbers": ("tsv", lambda name, seed, count: write_numbers(f"{name}.tsv", seed, count)),
        "talks": ("jsonl", lambda name, seed, count: talks(f"{name}.jsonl", seed, count))}
TEXT = {"pipeline.stages": STAGES, "link.rate_mbps": 0.3, "data.train_samples_max": 0, "data.heldout_samples_max": 0}  # so slow that faults meet every part of a turn
# By name: its kind of data, what makes its manifest, its keys, and its modes.
CELLS = {"cifar10": ("cifar10", split.job, {}, ALL),
         "cifar10, labels at the server": ("cifar10", split.job, {"split.labels": "server", "pipeline.stages": SERVED % 13}, ALL),
         "cifar10, local statistics": ("cifar10", split.job, {"split.statistics": "local", "split.collect": "false"}, ALL),
         "cifar10, stale": ("cifar10", split.job, {"train.staleness": 1}, TURNS),
         "cifar100, cropped": ("cifar100", split.job, RESNET, ALL),
         "own images": ("own", own_images.job, OWN, ALL),
         "own images, labels at the server": ("own", own_images.job, {**OWN, "split.labels": "server", "pipeline.stages": SERVED % 6}, ALL),
         "text": ("text", jobs.manifest, TEXT, ALL),
         "text, default codec": ("text", jobs.manifest, {**TEXT, **UNSAID}, ALL),
         "text, tied": ("text", jobs.manifest, {**TEXT, "model.tied": "exact"}, ALL),
         "text, LoRA": ("text", jobs.manifest, {**TEXT, **LORA}, ALL),
         "classes": ("words", tables.job, TEXT, ALL),
         "classes, bert": ("words", tables.job, {**TEXT, "model.kind": "bert", "model.tied": None, "pipeline.stages": STAGES.replace("4-5", "4-6")}, ALL),
         "classes, labels at the server": ("words", tables.job, {**TEXT, "split.labels": "server", "pipeline.stages": SERVED % 5}, ALL),
         "classes, padded": ("words", tables.job, {**TEXT, "split.pad": "true"}, ALL),
         "regression": ("numbers", tables.job, {**TEXT, **NUMBERS}, ALL),
         "conversations": ("talks", jobs.manifest, {**TEXT, **TALKS, "data.pack": "false"}, TURNS),
         "conversations, packed": ("talks", jobs.manifest, {**TEXT, **TALKS}, TURNS),
         "conversations, packed, padded": ("talks", jobs.manifest, {**TEXT, **TALKS, "data.pack_mask": "false", "split.pad": "true"}, TURNS)}


def write(kind, names):
    """The files of the clients, and what is held out."""
    for seed, (who, count) in enumerate(zip((*names, "heldout"), COUNTS.get(kind, COUNT))):
        ending, make = DATA[kind]
        if not (ROOT / f"{who}-{kind}.{ending}").exists():
            make(f"{who}-{kind}", seed, count)


def manifest(name, cell, mode, **keys):
    """Of a job of that cell and mode; keys: what all have."""
    kind, make, own, _ = CELLS[cell]
    if mode == "global":  # gradients of the ends, in fp32, cross the links in each step: at 0.3 Mbit/s a run would take minutes
        own = {**own, "link.rate_mbps": 10}
    ending = DATA[kind][0]
    files = {"data.train": ROOT / f"a-{kind}.{ending}", "data.heldout": ROOT / f"heldout-{kind}.{ending}"}
    return make(name, **{**files, "split.mode": mode, "split.collect": "true", "pipeline.stages": split.STAGES, "train.decay": "constant", "train.warmup_steps": 0, **keys, **own})
