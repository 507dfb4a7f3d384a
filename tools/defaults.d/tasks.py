"""Rows of tools/defaults: small jobs of every kind, their data, and their manifests. No row names a codec."""
import dataclasses
import json
import random

import kit

WORDS = ("the pipeline sends what changed and keeps what it has seen a link is slow and a disk is near so every sample "
         "meets its own message again the sum stays the same on both ends of the edge").split()


@dataclasses.dataclass(frozen=True)
class Size:
    """How long a row runs. spread: per cent between three seeds, measured once by `tools/defaults --short --seeds 3`."""
    epochs: int
    samples: int
    spread: float = 0.0


@dataclasses.dataclass(frozen=True)
class Row:
    name: str
    kind: str  # the words of the table
    data: str  # one of DATA
    stages: int
    T: int     # of images: 0
    long: Size
    short: Size = None  # None: in the long form only
    batch: int = 8
    micro_batch: int = 4
    blocks: int = 4
    channels: int = 64
    pretrained: bool = False
    below: float = 5.0    # per cent that the bytes may be below the plan's: many values at cuts are zero, or samples are small
    notice: str = None    # the run has to say this (cause of a notice), and its loss may then be higher
    more: dict = dataclasses.field(default_factory=dict)  # sections and keys of the manifest beside those of all


# --- data: each maker writes one file of `count` samples of about T bytes ------------------------------------------------


def words(rng, count):
    """Words in an order that depends on the word before: something that a small model can learn."""
    at, out = rng.randrange(len(WORDS)), []
    for _ in range(count):
        at = (at * 7 + rng.choice((1, 1, 1, 2, 5))) % len(WORDS)
        out.append(WORDS[at])
    return out


def text(path, rng, count, T):
    path.write_text(" ".join(words(rng, count * T // 3)) + ".\n")


def conversations(path, rows):
    path.write_text("".join(json.dumps({"prompt": prompt, "response": response}) + "\n" for prompt, response in rows))


def cut(some, most):
    """As many whole words as fit."""
    return " ".join(some)[:most].rsplit(" ", 1)[0]


def short_answers(path, rng, count, T):
    """The answer is two letters of a long prompt: few values of a gradient at a cut are not zero."""
    prompts = [cut(words(rng, T), rng.randrange(T // 2, T - 16)) for _ in range(count)]
    conversations(path, [(prompt + "?", prompt.split()[-1][0] + prompt[0]) for prompt in prompts])


def long_answers(path, rng, count, T):
    """The answer continues the prompt over most of the sample."""
    whole = [cut(words(rng, T), T - 10 - rng.randrange(T // 4)) for _ in range(count)]
    conversations(path, [(one[:T // 5], one[T // 5:]) for one in whole])


def small_conversations(path, rng, count, T):
    """Conversations of a third of T or less, which data.pack puts together."""
    short_answers(path, rng, 3 * count, max(48, T // 3))


def table(path, rng, count, T, draw):
    lines = ["text\tlabel"]
    for _ in range(count):
        some, label = draw(cut(words(rng, T), rng.randrange(T // 4, T - 4)).split())
        lines.append(f"{' '.join(some)}\t{label}")
    path.write_text("\n".join(lines) + "\n")


def classes(path, rng, count, T):
    """Two classes: three words of ten are "north" or "south", mostly that of the class: no text is certain, so the loss has a floor."""
    def draw(some):
        kind = rng.randrange(2)
        return [("north", "south")[kind if rng.random() < 0.65 else 1 - kind] if rng.random() < 0.3 else word for word in some], kind
    table(path, rng, count, T, draw)


def numbers(path, rng, count, T):
    """A number: twice the share of words of four letters or more, and noise, so that the loss has a floor."""
    table(path, rng, count, T, lambda some: (some, f"{2 * sum(len(word) > 3 for word in some) / len(some) + rng.gauss(0, 0.7):.3f}"))


def images(path, rng, count, T):
    """CIFAR-10's binary form: ten classes, each a colour and a direction of stripes, under noise of the same size."""
    del T
    kinds = [bytes(rng.randrange(64) + 32 * ((x * (kind % 4) + y * (kind // 4)) // 8 % 2) for _ in range(3)
                   for y in range(32) for x in range(32)) for kind in range(10)]
    with path.open("wb") as out:
        for _ in range(count):
            kind = rng.randrange(10)
            noise = rng.randbytes(3072)
            out.write(bytes([kind]) + bytes(a + (b >> 1) for a, b in zip(kinds[kind], noise)))


TEXT = {"tokenizer": "bytes"}
TABLE = {"kind": "tsv", "tokenizer": "bytes", "text_column": "text", "label_column": "label"}
TALK = {"kind": "instruct", "tokenizer": "bytes"}
DATA = {  # maker, suffix, keys of data, keys of model
    "text": (text, "txt", TEXT, {}),
    "short": (short_answers, "jsonl", {**TALK, "pack": False}, {}),
    "long": (long_answers, "jsonl", {**TALK, "pack": False}, {}),
    "packed": (small_conversations, "jsonl", TALK, {}),
    "classes": (classes, "tsv", TABLE, {"task": "classification"}),
    "numbers": (numbers, "tsv", TABLE, {"task": "regression"}),
    "images": (images, "bin", {"kind": "cifar10"}, {"kind": "pyramid", "width": 8, "levels": 4}),
}

SPARSE = 25.0
SLOWER = {"train": {"lr": 5e-4}}  # one value per sample is learnt: larger steps learn samples by heart
PREFIX = {"train": {"freeze": "embedding, blocks 0-1"}}
LORA = {"lora": {"rank": 4, "alpha": 8}, "train": {"lr": 1e-2}}

ROWS = [
    Row("text-2", "text", "text", 2, 128, Size(6, 96), Size(6, 64, 1.38)),
    Row("text-16", "text, short samples", "text", 2, 16, Size(4, 256), below=8.0),
    Row("text-4", "text", "text", 4, 512, Size(6, 48), None, 4, 2),
    Row("text-8", "text", "text", 8, 64, Size(12, 96), None, 8, 2, 6, more=SLOWER),
    Row("text-8-large", "text, learning rate too high", "text", 8, 64, Size(12, 96), None, 8, 2, 6, notice="activations"),
    Row("text-2048", "text, long samples", "text", 2, 2048, Size(6, 12), None, 2, 1, 2, 32),
    Row("tied-3", "text, tied head", "text", 3, 64, Size(6, 96), None, more={"model": {"tied": "exact"}}),
    Row("short-4", "instruct, short answers", "short", 4, 128, Size(6, 96), Size(6, 64, 2.66), 8, 2, below=SPARSE),
    Row("short-8", "instruct, short answers", "short", 8, 128, Size(6, 64), None, 8, 2, 6, below=85.0),
    Row("long-2", "instruct, long answers", "long", 2, 128, Size(6, 96)),
    Row("long-4", "instruct, long answers", "long", 4, 512, Size(6, 48), None, 4, 2),
    Row("packed-3", "instruct, packed", "packed", 3, 128, Size(6, 64), Size(6, 48, 1.54), below=SPARSE),
    Row("classes-2", "classification", "classes", 2, 128, Size(4, 192), Size(3, 128, 4.35), more=SLOWER, below=SPARSE),
    Row("classes-4", "classification", "classes", 4, 64, Size(4, 192), more=SLOWER, below=SPARSE),
    Row("numbers-2", "regression", "numbers", 2, 128, Size(4, 192), more=SLOWER, below=SPARSE),
    Row("images-3", "images", "images", 3, 0, Size(6, 400), Size(4, 200, 4.03), 40, 20, more={"train": {"lr": 1e-3}}, below=SPARSE),
    Row("lora-2", "LoRA, short answers", "short", 2, 128, Size(6, 96), Size(6, 64, 2.34), pretrained=True, more=LORA, below=SPARSE),
    Row("lora-4", "LoRA, long answers", "long", 4, 128, Size(6, 96), None, 8, 2, pretrained=True, more=LORA),
    Row("prefix-3", "text, frozen prefix", "text", 3, 64, Size(6, 96), Size(6, 64, 0.10), pretrained=True, more=PREFIX),
]


def write(path, tree):
    path.write_text("".join(f"{name}: {json.dumps(keys)}\n" for name, keys in tree.items()))  # JSON is YAML
    return path


def model_of(row):
    if row.data == "images":
        return {}
    return {"blocks": row.blocks, "heads": 4, "channels": row.channels, "context": max(row.T, 128), "tied": "untied"}


def pretrained(out, row, train):
    """Weights of the row's network after 60 steps of text in one stage: what adapters and frozen layers stand on."""
    folder = out / f"pretrained-{row.blocks}-{row.channels}"
    if not (folder / "model.safetensors").exists():
        kit.run_remove(folder)
        data = out / "pretrain.txt"
        text(data, random.Random("pretrain"), 160, 128)
        train(write(out / "pretrain.yaml", {
            "job": {"name": "pretrain"}, "model": model_of(row), "data": {**TEXT, "train": data.name, "train_samples_max": 160},
            "train": {"T": 128, "batch": 8, "micro_batch": 8, "epochs": 3, "lr": 2e-3, "seed": 9, "evaluate_every": 0},
            "pipeline": {"stages": 1, "threads": 1}, "checkpoint": {"every": 0}}), folder)
    return folder.name + "/model.safetensors"


def manifest(out, row, size, train):
    """Its path. Data is made beside it; train(manifest, folder) runs a job, for rows that begin from a trained model."""
    maker, suffix, keys, model = DATA[row.data]
    data = out / f"{row.name}-{size.samples}.{suffix}"
    maker(data, random.Random(row.name), size.samples, row.T)
    tree = {"job": {"name": row.name}, "model": {**model_of(row), **model},
            "data": {**keys, "train": data.name},
            "train": {"batch": row.batch, "micro_batch": row.micro_batch, "epochs": size.epochs, "lr": 2e-3, "clip": 1.0,
                      "seed": 1, "evaluate_every": 0},
            "pipeline": {"stages": row.stages, "threads": 1}, "cache": {"kind": "memory"}, "checkpoint": {"every": 0}}
    if row.data == "text":
        tree["data"]["train_samples_max"] = size.samples
    if row.T:
        tree["train"]["T"] = row.T
    if row.pretrained:
        tree["model"]["weights"] = pretrained(out, row, train)
    for section, more in row.more.items():
        tree[section] = {**tree.get(section, {}), **more}
    return write(out / f"{row.name}-{size.epochs}-{size.samples}.yaml", tree)
