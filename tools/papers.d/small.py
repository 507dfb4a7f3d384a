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
    follows = {word: draw.sample(WORDS, 4) for word in sorted(set(WORDS))}  # a set has another order in each process
    word, out = WORDS[0], []
    for _ in range(12000):
        word = draw.choice(follows.get(word, WORDS))
        out.append(word)
    path.write_text(" ".join(out) + "\n", encoding="utf-8")


MODEL = {"model.kind": "gpt2", "model.blocks": 2, "model.heads": 2, "model.channels": 64, "model.context": SEQUENCE, "model.tied": False}
SCALE = "0.1M parameters and one seed: no conclusion is drawn from it"


def keys(folder, count, epochs=10, **more):
    """Of a job of `count` steps from the pretrained model: ten epochs of its samples, as the papers fine-tune."""
    samples = BATCH * max(1, count // epochs)
    return {"model.weights": str(folder / "base"), "data.tokenizer": "bytes", "data.train": str(folder / "second.txt"), "data.train_samples_max": samples,
            "train.T": SEQUENCE, "train.batch": BATCH, "train.micro_batch": 2, "train.epochs": math.ceil(count * BATCH / samples), "train.steps_max": count, "train.lr": 1e-3, "train.decay": "constant",
            "checkpoint.every": 0, "cache.kind": "memory", **{name.replace("__", "."): value for name, value in more.items()}}


def shown(settings):
    """Those keys of a run that a figure is about."""
    return {key: value for key, value in settings.items() if key.split(".")[0] in ("edges", "optimizer", "reduce", "pipeline", "model", "train") and key != "model.weights"}


def base(build, folder, short):
    """The pretrained model, made once."""
    if (folder / "base").exists():
        return
    for name, seed in (("first", 1), ("second", 2)):
        text(folder / f"{name}.txt", seed)
    kit.launch(build, folder, "base", {
        **MODEL, "data.tokenizer": "bytes", "data.train": str(folder / "first.txt"), "train.T": SEQUENCE, "train.batch": BATCH, "train.micro_batch": BATCH, "train.epochs": 1, "train.steps_max": 60 if short else 300,
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
    """Mean of the last tenth of the steps' losses: an epoch. NaN: the run has diverged. FP16 skips the steps whose gradients overflow its scale."""
    losses = [math.nan if step["loss"] is None else step["loss"] for step in kit.steps(run_folder) if not step.get("skipped")]
    last = losses[-max(1, len(losses) // 10):]
    return sum(last) / len(last)


PLAIN, HALF = {"codec": "raw", "precision": "fp32"}, {"codec": "raw", "precision": "fp16"}


def coded(codec, forward, backward, **more):
    """Edges of a codec with so many bits forward, DirectQ with so many backward. A first visit is in full precision (AQ-SGD, Algorithm 1, line 5)."""
    return {"codec": codec, "bits": forward, **({"keyframe": "fp32"} if codec == "aqsgd" else {}), **more}, {"codec": "directq", "bits": backward}


def edges(forward, backward):
    return {f"edges.forward.{key}": value for key, value in forward.items()} | {f"edges.backward.{key}": value for key, value in backward.items()}


def changes(run_folder):
    """Mean over cuts and steps of |a - m| / |a|, by epoch."""
    by = {}
    for step in kit.steps(run_folder):
        by.setdefault(step["epoch"], []).extend(value for value in step.get("delta_ratio") or [] if value is not None)
    return [[epoch, round(sum(values) / len(values), 6)] for epoch, values in sorted(by.items()) if values and epoch > 0]


def convergence(build, folder, short):
    base(build, folder, short)
    count = 16 if short else 160
    differs = f"DeBERTa-1.5B and GPT2-1.5B there, and curves without numbers; {SCALE}"
    scale = f"run here: GPT-2 of 2 blocks of 64 channels, steps of {BATCH} sequences of {SEQUENCE}"

    def loss(name, settings):
        return last_loss(kit.launch(build, folder, name, settings))

    def row(table, name, settings, against, of):
        value = loss(name.replace(" ", "-").replace(",", "").replace(".", "-"), settings)
        kit.say(table, name, None, 100 * (value / against - 1), f"% above {of}", f"{scale}; mean loss of the last tenth of the steps of {settings['train.steps_max']}, against {against:.4f} of {of}", differs, settings=shown(settings))

    def job(pair, steps=count, **more):
        return {**keys(folder, steps), "pipeline.stages": 4, **edges(*pair), **more}
    dense = loss("fp32", job((PLAIN, PLAIN)))
    for forward, backward in ((2, 4), (3, 6), (4, 8)):
        for name, codec in (("DirectQ", "directq"), ("AQ-SGD", "aqsgd")):
            row("AQ-SGD figures 3 and 9, convergence", f"{name} fw{forward} bw{backward}", job(coded(codec, forward, backward)), dense, "FP32")
    trace = changes(folder / "AQ-SGD-fw4-bw8")
    kit.say("AQ-SGD figure 1b", "fw4 bw8", None, trace[-1][1], "size of the change, over the size of the activation", f"{scale}; mean over 3 cuts; `trace`: [epoch, ratio] from the first visit that has a message on",
            f"GPT2-1.5B there, and curves of mean |a| and mean |change| without numbers, the second far below; {SCALE}", trace)
    for name, codec in (("DirectQ", "directq"), ("AQ-SGD", "aqsgd")):
        row("AQ-SGD figure 9, K = 2", f"{name} fw2 bw4, 2 stages", job(coded(codec, 2, 4), **{"pipeline.stages": 2}), dense, "FP32")
    for bits in (8, 4, 2):
        row("AQ-SGD figure 9, previous messages", f"AQ-SGD fw2 bw4, messages in {bits} bits", job(coded("aqsgd", 2, 4, store=f"q{bits}")), dense, "FP32")
    half = {"model.precision": "fp16"}
    rounded = loss("fp16", job((HALF, HALF), **half))
    row("AQ-SGD figure 8, FP16", "FP16 training, uncompressed", job((HALF, HALF), **half), dense, "FP32")
    for name, codec in (("DirectQ", "directq"), ("AQ-SGD", "aqsgd")):
        row("AQ-SGD figure 8, FP16", f"FP16 training, {name} fw3 bw6", job(coded(codec, 3, 6), **half), rounded, "uncompressed FP16")
    whole = {"pipeline.stages": 2, "pipeline.replicas": 2}
    steps = 160  # also of a short run: a variance of one step is none, and a warm-up is an epoch
    epoch = steps // 10
    both = {**whole, "train.optimizer": "qadam", "optimizer.warmup_steps": epoch, "reduce.codec": "q4", "edges.warmup_epochs": 1}
    pair = loss("figure-5-fp32", job((PLAIN, PLAIN), steps, **whole, **{"reduce.codec": "fp32"}))  # replicas see samples in an order of their own
    for name, codec in (("DirectQ", "directq"), ("AQ-SGD", "aqsgd")):
        row("AQ-SGD figure 5, QuantizedAdam in 4 bits", f"{name} fw3 bw6, 2 stages x 2 replicas", job(coded(codec, 3, 6), steps, **both), pair, "AdamW and FP32, 2 stages x 2 replicas")

    def scratch(pair):
        settings = {**job(pair), **keys(folder, count, 20), **MODEL, "train.lr": 3e-3}
        del settings["model.weights"]
        return settings
    begun = loss("scratch-fp32", scratch((PLAIN, PLAIN)))
    for name, codec in (("DirectQ", "directq"), ("AQ-SGD", "aqsgd")):
        row("AQ-SGD figure 7, from scratch", f"{name} fw3 bw6, 20 epochs", scratch(coded(codec, 3, 6)), begun, "FP32 from scratch")


def flat(path, own=None):
    """Values of a checkpoint's tensors in the order of the optimizer's states, or one of these states."""
    if own:
        return floats(path, own)
    named = sorted(((value["data_offsets"], key) for key, value in floats(path, None).items() if not key.startswith("optimizer.")))
    return [value for _, key in named for value in floats(path, key)]


def last_steps(run_folder, replicas):
    """Weights, and momenta by replica, of the last two steps that have a checkpoint."""
    out = []
    for step in sorted(int(path.name) for path in (run_folder / "checkpoint").glob("[0-9]*"))[-2:]:
        files = [run_folder / "checkpoint" / str(step) / f"stage-{rank}.safetensors" for rank in range(replicas)]
        out.append((step, flat(files[0]), [flat(path, "optimizer.m") for path in files]))
    return out


def sign(value):
    return (value > 0) - (value < 0)


def updates(before, after, beta1, beta2):
    """By value: the update of each replica. Momenta of two steps give the gradient between them, and these the update."""
    for place in range(len(before[1])):
        own = [(m[place], now[place]) for m, now in zip(before[2], after[2])]
        yield [beta1 * m + (1 - beta1) * (now - beta2 * m) / (1 - beta2) for m, now in own]


def votes(build, folder, short):
    """A step late in a run, when momenta have built up: what the votes moved weights by, and the sign of the mean update, as Lion takes it, from the momenta of the same replicas."""
    base(build, folder, short)
    count = 30 if short else 300
    published = {(1, 1): (29.15, 32.08), (1, -1): (2.26, 4.34), (1, 0): (18.59, 13.54), (-1, 1): (2.26, 4.34), (-1, -1): (29.14, 32.13), (-1, 0): (18.59, 13.56)}
    for place, replicas in enumerate((4, 8)):
        settings = {**keys(folder, count), "train.optimizer": "lioncub", "train.lr": 3e-4, "train.beta1": 0.9, "train.beta2": 0.99, "train.weight_decay": 0, "pipeline.stages": 1,
                    "pipeline.replicas": replicas, "train.micro_batch": BATCH // replicas, "checkpoint.every": "1 steps", "checkpoint.keep": 2,
                    "optimizer.lane_bits": 4, "reduce.codec": "vote"}  # sums of votes show a tie; one bit has none
        before, after = last_steps(kit.launch(build, folder, f"votes-{replicas}", settings), replicas)
        moves, alike = [], 0
        for was, now, own in zip(before[1], after[1], updates(before, after, 0.9, 0.99)):
            lion, voted = sign(sum(own)), sign(was - now)
            if lion:  # rows of bytes that nobody has seen have no gradient
                moves.append((lion, voted))
                alike += voted == sign(sum(map(sign, own)))
        for (lion, says), figures in published.items():
            voted = f"vote {says:+d}" if says else "a tie"
            kit.say("Lion Cub table 3", f"{replicas} workers, Lion {lion:+d}, {voted}", figures[place], 100 * moves.count((lion, says)) / len(moves), "% of updates",
                    f"run here: step {after[0]}, of {BATCH} sequences, from the pretrained small model; signs of what weights moved by, and of the mean of the replicas' updates, which checkpoints of this "
                    f"step and of the one before give (their votes are the moves in {100 * alike / len(moves):.2f} % of values)", f"the 3000th step of GPT 730M there; {SCALE}", settings=shown(settings))


TABLE_2 = {"32 bits": 2.94, "1 bit": 3.22, "8 bits, L0": 3.07, "8 bits, L-infinity": 4.64, "8 bits, L1": 2.97}  # losses


def momentum(build, folder, short):
    base(build, folder, short)
    count = 12 if short else 120

    workers = 8

    def job(more):
        return {**keys(folder, count), "train.lr": 3e-4, "pipeline.stages": 1, "pipeline.replicas": workers, "train.micro_batch": BATCH // workers, **more}
    def lanes(norm):
        return {"optimizer.lane_bits": 8, "reduce.codec": "lp5", "reduce.norm": norm}
    votes_of, every = {"optimizer.lane_bits": 0}, {"optimizer.momentum_every": 10}
    rows = {"votes, momenta never averaged": votes_of, "votes, all momenta every 10 steps": {**votes_of, **every, "optimizer.momentum_names": "*"},
            "votes, momenta of the first and last layers every 10 steps": {**votes_of, **every, "optimizer.momentum_names": "wte,wpe,lm_head"},
            "L1 to [-15, 15], momenta never averaged": lanes(1)}
    norms = {"1 bit": votes_of, "8 bits, L0": lanes(0), "8 bits, L-infinity": lanes("inf"), "8 bits, L1": lanes(1)}
    for beta2 in (0.95, 0.99):
        dense = last_loss(kit.launch(build, folder, f"lion-{beta2}", job({"train.optimizer": "lion", "train.beta2": beta2, "reduce.codec": "fp32"})))

        def row(table, name, more, published, differs):
            settings = job({"train.optimizer": "lioncub", "train.beta2": beta2, **more})
            here = kit.launch(build, folder, f"cub-{beta2}-{table[-1]}-{len(list(folder.iterdir()))}", settings)
            kit.say(table, name, published, 100 * (last_loss(here) / dense - 1), "% above Lion in fp32",
                    f"run here: {workers} replicas, {count} steps, mean loss of the last tenth of the steps, against {dense:.4f} of Lion in fp32", f"{differs}; {SCALE}", settings=shown(settings))
        for name, more in rows.items():
            row("Lion Cub figure 5", f"beta2 {beta2}, {name}", more, None,
                "GPT 730M there, and curves without numbers: with a small beta2 votes alone stay behind, averaged momenta or L1 do not")
        for name, more in norms.items() if beta2 == 0.99 else []:
            row("Lion Cub table 2", name, more, round(100 * (TABLE_2[name] / TABLE_2["32 bits"] - 1), 2), "GPT 730M on FineWeb there, validation loss; nearest rounding here, where there L-infinity rounds by chance")
    zeros(build, folder, count)


def naive(build, folder, short):
    """LAMB whose gradients are compressed naively with errors kept (Algorithm 2), and SLAMB: as many values in each step."""
    base(build, folder, short)
    count, workers = 16 if short else 160, 4

    def job(more):
        return {**keys(folder, count), "train.lr": 0.01, "pipeline.stages": 1, "pipeline.replicas": workers, "train.micro_batch": BATCH // workers, **more}
    lamb = {"train.optimizer": "lamb", "optimizer.form": "norm"}
    dense = last_loss(kit.launch(build, folder, "lamb-dense", job({**lamb, "reduce.codec": "fp32"})))
    for share in (0.1, 0.01):
        rows = {"LAMB, top-k": {**lamb, "reduce.codec": "topk_fp32", "reduce.density": share}, "LAMB, random-k": {**lamb, "reduce.codec": "randomk", "reduce.density": share},
                "SLAMB": {"train.optimizer": "slamb", "optimizer.density": share}}
        for place, (name, more) in enumerate(rows.items()):
            settings = job(more)
            kit.say("SLAMB figure 1", f"k {share}, {name}", None, 100 * (last_loss(kit.launch(build, folder, f"naive-{share}-{place}", settings)) / dense - 1), "% above LAMB in fp32",
                    f"run here: {workers} replicas, {count} steps, mean loss of the last tenth of the steps, against {dense:.4f} of LAMB in fp32",
                    f"BERT-Base at batches of 2K and 64K there, and curves without numbers: with 64K and k 10 % both naive ones converge much slower; k of each 4,096 values here; {SCALE}",
                    settings=shown(settings))


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


def trace_of(build, folder, name, count, more, quantities):
    """By tensor and quantity of a checkpoint: its values by step. r c is the product of the states ratio and coefficient."""
    every = max(2, count // 20)
    settings = {**keys(folder, count), "pipeline.stages": 1, "pipeline.replicas": 2, "train.micro_batch": 4, "checkpoint.every": f"{every} steps",
                "checkpoint.keep": 1000, "cache.kind": "lmdb", **more}
    here = kit.launch(build, folder, name, settings)
    files = sorted((int(path.parent.name), path) for path in here.glob("checkpoint/*/stage-0.safetensors"))
    tensors = sorted(((key, value) for key, value in floats(files[0][1], None).items() if not key.startswith("optimizer.")), key=lambda of: of[1]["data_offsets"])
    out = {}
    for tensor in ("h.0.ln_1.weight", "h.0.attn.c_attn.weight", "h.0.mlp.c_fc.weight"):
        place = [key for key, _ in tensors].index(tensor)
        first = sum(value["data_offsets"][1] - value["data_offsets"][0] for _, value in tensors[:place]) // 4
        last = first + (tensors[place][1]["data_offsets"][1] - tensors[place][1]["data_offsets"][0]) // 4
        for quantity in quantities:
            values = []
            for step, path in files:
                if quantity == "v":
                    value = norm(floats(path, "optimizer.v")[first:last])
                else:
                    value = math.prod(floats(path, f"optimizer.{part}")[place] for part in quantity.split(" "))
                values.append([step, round(value, 9)])
            out[tensor, quantity] = values
    return out, shown(settings)


def traces(build, folder, short):
    """Of LAMB, 1-bit LAMB and 1-bit Adam: what their checkpoints hold, step by step."""
    base(build, folder, short)
    warmup, count = (4, 12) if short else (40, 160)
    # 1-bit LAMB in its warm-up is LAMB, and with beta3 0 the mean of c that it keeps is c.
    runs = {"lamb": ({"train.optimizer": "onebit_lamb", "optimizer.warmup_steps": count, "optimizer.beta3": 0}, {
                "coefficient": ("1-bit LAMB figures 1 and 4, c of LAMB", "curves between 0.01 and 0.3 that rise to a plateau")}),
            "onebit_lamb": ({"train.optimizer": "onebit_lamb", "optimizer.warmup_steps": warmup}, {
                "ratio coefficient": ("1-bit LAMB, r times the mean of c", "no curve: it takes the place of c behind the warm-up (line 20)"),
                "ratio": ("1-bit LAMB figure 6, r", "curves around 1 within 0.5 and 4: 1 in warm-up, moving behind it"),
                "v": ("1-bit LAMB figure 5, norm of the variance", "curves that fall, and settle before the warm-up ends")}),
            "onebit_adam": ({"train.optimizer": "onebit_adam", "optimizer.warmup_steps": warmup, "optimizer.freeze_ratio": 0}, {
                "v": ("1-bit Adam, norm of the variance", "curves that settle; behind the warm-up ours stands still because it is frozen")})}
    for kind, (more, quantities) in runs.items():
        found, settings = trace_of(build, folder, f"trace-{kind}", count, more, quantities)
        for (tensor, quantity), trace in found.items():
            table, published = quantities[quantity]
            kit.say(table, tensor, None, trace[-1][1], "value at the last step", f"run here: 2 replicas, {count} steps, warm-up {more['optimizer.warmup_steps']}; `trace`: [step, value] by checkpoint",
                    f"BERT-Large, 5993 steps, published as {published}; {SCALE}", trace, settings)


def norm(values):
    return math.sqrt(sum(value * value for value in values))
