"""Convergence, votes and traces of the papers, with a model that a machine of two cores trains in a minute.

One small GPT-2 (2 blocks of 64 channels, bytes) is pretrained on one text and then trained on another; every row begins with it. Differences of losses are seen as far as so small a model
shows them: a figure that was drawn of 730M to 1.5B parameters has no number here to be compared with, and `published` is null."""
import array
import json
import math
import random
import struct

import kit

WORDS = ("the pipeline sends what changed and keeps what it has seen a link is slow and a disk is near so every sample meets its own message again "
         "the sum stays the same on both ends of the edge").split()
SEQUENCE, BATCH = 32, 16


def text(path, seed):
    """Words of which each has four that may follow: a small model can learn them, and another seed is another text."""
    draw = random.Random(seed)
    follows = {word: draw.sample(WORDS, 4) for word in set(WORDS)}
    word, out = WORDS[0], []
    for _ in range(12000):
        word = draw.choice(follows.get(word, WORDS))
        out.append(word)
    path.write_text(" ".join(out) + "\n", encoding="utf-8")


def keys(folder, count, **more):
    """Of a job of `count` steps from the pretrained model: ten epochs of its samples, as the papers fine-tune."""
    samples = BATCH * max(1, count // 10)
    return {"model.weights": str(folder / "base"), "data.tokenizer": "bytes", "data.train": str(folder / "second.txt"), "data.train_samples_max": samples,
            "train.T": SEQUENCE, "train.batch": BATCH, "train.micro_batch": 2, "train.epochs": math.ceil(count * BATCH / samples), "train.steps_max": count, "train.lr": 1e-3, "train.decay": "constant",
            "checkpoint.every": 0, "cache.kind": "memory", **{name.replace("__", "."): value for name, value in more.items()}}


def base(build, folder, short):
    """The pretrained model, made once."""
    if (folder / "base").exists():
        return
    for name, seed in (("first", 1), ("second", 2)):
        text(folder / f"{name}.txt", seed)
    kit.launch(build, folder, "base", {
        "model.kind": "gpt2", "model.blocks": 2, "model.heads": 2, "model.channels": 64, "model.context": SEQUENCE, "model.tied": False, "data.tokenizer": "bytes",
        "data.train": str(folder / "first.txt"), "train.T": SEQUENCE, "train.batch": BATCH, "train.micro_batch": BATCH, "train.epochs": 1, "train.steps_max": 60 if short else 300,
        "train.lr": 3e-3, "checkpoint.every": 0, "pipeline.stages": 1})


def floats(path, name):
    """A tensor of a safetensors file."""
    with open(path, "rb") as file:
        count = struct.unpack("<Q", file.read(8))[0]
        header = json.loads(file.read(count))
        if name is None:
            return {key: value for key, value in header.items() if key != "__metadata__"}
        first, last = header[name]["data_offsets"]
        file.seek(8 + count + first)
        values = array.array("f")
        values.frombytes(file.read(last - first))
    return values


def last_loss(run_folder):
    """Mean of the last tenth of the steps' losses: an epoch."""
    losses = [step["loss"] for step in kit.steps(run_folder)]
    last = losses[-max(1, len(losses) // 10):]
    return sum(last) / len(last)


def convergence(build, folder, short):
    base(build, folder, short)
    count = 16 if short else 160
    plain = {"codec": "raw", "precision": "fp32"}
    half = {"codec": "raw", "precision": "fp16"}

    def loss(name, forward, backward, **more):
        shown = {f"edges.forward.{key}": value for key, value in forward.items()} | {f"edges.backward.{key}": value for key, value in backward.items()}
        return last_loss(kit.launch(build, folder, name, {**keys(folder, count), "pipeline.stages": 4, **shown, **more}))
    dense = loss("fp32", plain, plain)
    how = f"run here: GPT-2 of 2 blocks of 64 channels in 4 stages, {count} steps of {BATCH} sequences of {SEQUENCE}; mean loss of the last epoch of ten, against {dense:.4f} of FP32"
    differs = "a pretrained model of 0.1M parameters for DeBERTa-1.5B and GPT2-1.5B, one seed; the figure has curves and no numbers: FP32 and AQ-SGD lie on one another, DirectQ of few bits above or divergent"
    for forward, backward in ((2, 4), (3, 6), (4, 8)):
        for name, codec in (("DirectQ", "directq"), ("AQ-SGD", "aqsgd")):
            gap = loss(f"{codec}-{forward}", {"codec": codec, "bits": forward}, {"codec": "directq", "bits": backward})
            kit.say("AQ-SGD figures 3 and 9, convergence", f"{name} fw{forward} bw{backward}", None, 100 * (gap / dense - 1), "% above FP32", how, differs)
    kit.say("AQ-SGD figure 8, FP32 and FP16", "FP16", None, 100 * (loss("fp16", half, half) / dense - 1), "% above FP32", how, f"{differs}; FP16 is of what crosses cuts, computing is FP32 here")
    whole = {"pipeline.stages": 2, "pipeline.replicas": 2}
    pair = loss("figure-5-fp32", plain, plain, **whole, **{"reduce.codec": "fp32"})  # replicas see samples in an order of their own
    kit.say("AQ-SGD figure 5, with compressed gradients", "AQ-SGD fw3 bw6, gradients in 4 bits, 2 stages x 2 replicas", None,
            100 * (loss("figure-5", {"codec": "aqsgd", "bits": 3}, {"codec": "directq", "bits": 6}, **whole, **{"reduce.codec": "q4"}) / pair - 1), "% above FP32",
            how.replace(f"{dense:.4f} of FP32", f"{pair:.4f} of FP32 in 2 stages x 2 replicas"), f"{differs}; the paper has QuantizedAdam, here AdamW over `reduce.codec: q4`")


def moved(build, folder, name, more):
    """Signs of one step's update, a value each, in order of the model's tensors."""
    here = kit.launch(build, folder, name, {**keys(folder, 1), "train.weight_decay": 0, "pipeline.stages": 1, **more})
    out = []
    for tensor in sorted(floats(here / "model.safetensors", None)):
        now, before = (floats(path / "model.safetensors", tensor) for path in (here, folder / "base"))
        out += [(a < b) - (a > b) for a, b in zip(now, before)]
    return out


def votes(build, folder, short):
    """The first step from a pretrained model: momenta are zero, so that Lion's update is the sign of the mean gradient, and a vote the sign of one's own."""
    base(build, folder, short)
    published = {(1, 1): (29.15, 32.08), (1, -1): (2.26, 4.34), (1, 0): (18.59, 13.54), (-1, 1): (2.26, 4.34), (-1, -1): (29.14, 32.13), (-1, 0): (18.59, 13.56)}
    for place, replicas in enumerate((4,) if short else (4, 8)):
        more = {"pipeline.replicas": replicas, "train.micro_batch": BATCH // replicas}
        whole = moved(build, folder, f"lion-{replicas}", {**more, "train.optimizer": "lion", "reduce.codec": "fp32"})
        vote = moved(build, folder, f"votes-{replicas}", {**more, "train.optimizer": "lioncub", "optimizer.lane_bits": 0})
        moves = [(a, b) for a, b in zip(whole, vote) if a != 0]  # rows of bytes that nobody has seen have no gradient
        for of, figures in published.items():
            kit.say("Lion Cub table 3", f"{replicas} workers, Lion {of[0]:+d}, vote {of[1]:+d}", figures[place], 100 * moves.count(of) / len(moves), "% of updates",
                    f"run here: the first step of {BATCH} sequences from the pretrained small model, values that Lion moves; signs of what weights moved by",
                    "the 3000th step of GPT 730M there. A bit has no zero: where votes tie, ours goes one way, theirs is 0")


def momentum(build, folder, short):
    base(build, folder, short)
    count = 12 if short else 120

    def loss(name, more):
        return last_loss(kit.launch(build, folder, name, {**keys(folder, count), "train.lr": 3e-4, "pipeline.stages": 1, "pipeline.replicas": 4, "train.micro_batch": 4, **more}))
    for beta2 in (0.9, 0.99):
        dense = loss(f"lion-{beta2}", {"train.optimizer": "lion", "train.beta2": beta2, "reduce.codec": "fp32"})
        how = f"run here: 4 replicas, {count} steps, mean loss of the last epoch of ten, against {dense:.4f} of Lion in fp32"
        for name, more in (("votes, momenta never averaged", {"optimizer.lane_bits": 0}), ("votes, all momenta every 10 steps", {"optimizer.lane_bits": 0, "optimizer.momentum_every": 10, "optimizer.momentum_names": "*"}),
                           ("L1, 4 bits, momenta never averaged", {"optimizer.lane_bits": 4, "reduce.codec": "lp4"})):
            kit.say("Lion Cub figure 5", f"beta2 {beta2}, {name}", None, 100 * (loss(f"cub-{beta2}-{name[:5]}-{len(name)}".replace(" ", "").replace(",", ""), {"train.optimizer": "lioncub", "train.beta2": beta2, **more}) / dense - 1),
                    "% above Lion in fp32", how, "GPT 730M there, and curves without numbers: with a small beta2 votes alone stay behind, averaged momenta or L1 do not")
    zeros(build, folder, count)


def zeros(build, folder, count):
    """Rows of the embedding that are never asked for: no worker has an update for them, and a bit has no zero."""
    unseen = sorted(set(range(256)) - set((folder / "second.txt").read_bytes()))
    rate = 3e-4
    for name, mask in (("one bit, no zero: ties take turns", "none"), ("such rows are masked", "wte")):
        here = kit.launch(build, folder, f"mask-{mask}", {**keys(folder, count), "train.lr": rate, "train.weight_decay": 0, "pipeline.stages": 1, "pipeline.replicas": 4, "train.micro_batch": 4,
                                                          "train.optimizer": "lioncub", "optimizer.lane_bits": 0, "optimizer.mask_names": mask})
        tensor = next(key for key in floats(here / "model.safetensors", None) if key.endswith("wte.weight"))
        now, before = (floats(path / "model.safetensors", tensor) for path in (here, folder / "base"))
        wide = len(now) // 256
        far = [abs(now[row * wide + i] - before[row * wide + i]) / rate for row in unseen for i in range(wide)]
        kit.say("Lion Cub figure 10", f"{name}: embeddings of {len(unseen)} bytes that nobody has seen, after {count} steps", None, sum(far) / len(far), "steps away from where they began",
                f"run here: 4 replicas, mean of |x - x0| over the learning rate; {count} is what a vote that is always 1 would give",
                "the figure has losses of GPT 730M: the naive one diverges, the one whose zeros alternate between 1 and -1 does not; ours is the latter, and can mask")


def traces(build, folder, short):
    """Of 1-bit LAMB and 1-bit Adam: what their checkpoints hold, step by step."""
    base(build, folder, short)
    warmup, count = (4, 12) if short else (40, 160)
    every = max(2, count // 20)
    for kind, quantities in (("onebit_lamb", ("coefficient", "ratio", "v")), ("onebit_adam", ("v",))):
        more = {"optimizer.freeze_ratio": 0} if kind == "onebit_adam" else {}
        here = kit.launch(build, folder, f"trace-{kind}", {**keys(folder, count), "pipeline.stages": 1, "pipeline.replicas": 2, "train.micro_batch": 4, "train.optimizer": kind,
                                                           "optimizer.warmup_steps": warmup, "checkpoint.every": f"{every} steps", "checkpoint.keep": 1000, "cache.kind": "lmdb", **more})
        files = sorted((int(path.parent.name), path) for path in here.glob("checkpoint/*/stage-0.safetensors"))
        tensors = sorted(((key, value) for key, value in floats(files[0][1], None).items() if not key.startswith("optimizer.")), key=lambda of: of[1]["data_offsets"])
        for name in ("h.0.ln_1.weight", "h.0.attn.c_attn.weight", "h.0.mlp.c_fc.weight"):
            place = [key for key, _ in tensors].index(name)
            first = sum(value["data_offsets"][1] - value["data_offsets"][0] for _, value in tensors[:place]) // 4
            last = first + (tensors[place][1]["data_offsets"][1] - tensors[place][1]["data_offsets"][0]) // 4
            for quantity in quantities:
                trace = [[step, norm(floats(path, "optimizer.v")[first:last]) if quantity == "v" else floats(path, f"optimizer.{quantity}")[place]] for step, path in files]
                shown = {"coefficient": ("1-bit LAMB figures 1 and 4, c (its mean by beta3)", "curves between 0.01 and 0.3, which move most in warm-up, and in each layer otherwise"),
                         "ratio": ("1-bit LAMB figure 6, r", "curves around 1 within 0.5 and 4: 1 in warm-up, moving behind it"),
                         "v": (f"{'1-bit LAMB figure 5' if kind == 'onebit_lamb' else '1-bit Adam'}, norm of the variance", "curves of BERT-Large: they fall, and settle before the warm-up ends")}[quantity]
                kit.say(shown[0], name, None, trace[-1][1], "value at the last step", f"run here: 2 replicas, {count} steps, warm-up {warmup}; `trace`: [step, value] by checkpoint",
                        f"BERT-Large, 5993 steps, published as {shown[1]}", [[step, round(value, 9)] for step, value in trace])


def norm(values):
    return math.sqrt(sum(value * value for value in values))
