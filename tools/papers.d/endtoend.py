"""AQ-SGD figure 5c: throughput of replicated pipelines when nothing is compressed, only activations, only gradients, or both.

Of the four runs that are compared, all pack their frames or none does, and all that compress gradients have the published buckets of 512 values."""
import json

import kit
from kit import BACKWARD_MS, FORWARD_MS, STAGES

PLAIN = {"edges.forward.codec": "raw", "edges.forward.precision": "fp32", "edges.backward.codec": "raw", "edges.backward.precision": "fp32"}
EDGES = {"edges.forward.codec": "aqsgd", "edges.forward.bits": 3, "edges.forward.keyframe": "fp32", "edges.backward.codec": "directq", "edges.backward.bits": 6}
WHOLE, REPLICAS = {"train.optimizer": "adamw", "reduce.codec": "fp32"}, {"train.optimizer": "qadam", "reduce.codec": "q4", "reduce.bucket": 512}
NOTHING, ACTIVATIONS, GRADIENTS, BOTH = "nothing is compressed", "only activations", "only gradients", "both"
RUNS = {NOTHING: {**PLAIN, **WHOLE}, ACTIVATIONS: {**EDGES, **WHOLE}, GRADIENTS: {**PLAIN, **REPLICAS}, BOTH: {**EDGES, **REPLICAS}}
WIDTH, BATCH = 4, 32
PUBLISHED = 8.5  # both over nothing, the most over networks


def plan(build, folder, mbps, keys):
    stages = [{"host": [f"tcp://h{stage}r{replica}:7000" for replica in range(WIDTH)], "threads": 1} for stage in range(STAGES)]
    path = kit.manifest(folder, "figure-5c", {
        "model.kind": "gpt2", "model.blocks": 48, "model.heads": 25, "model.channels": 1600, "model.context": 1024, "model.vocabulary": 50257, "model.tied": False,
        "data.tokenizer": "bytes", "data.train": str(folder / "text.txt"), "train.T": 1024, "train.batch": BATCH * WIDTH, "train.micro_batch": 1, "train.epochs": 2,
        "security.tls": "off", "pipeline.schedule": "gpipe", "pipeline.stages": stages, "pipeline.replicas": WIDTH, "link.rate_mbps": mbps, **keys,
        **({"optimizer.warmup_steps": 1} if keys["train.optimizer"] == "qadam" else {})})
    return json.loads(kit.run(build, "plan", path, "--json", "--cores", 1, "--compute-forward-ms", FORWARD_MS, "--compute-backward-ms", BACKWARD_MS))


def simulated(build, folder, rates):
    """At the paper's scale, by the plan's event simulation."""
    table, scale = "AQ-SGD figure 5c, GPT2-1.5B", (f"simulated: {WIDTH} x {STAGES} stages, {BATCH} sequences of 1024 per replica and step, micro-batches of 1, {FORWARD_MS} and {BACKWARD_MS} ms of "
                                                   "computing each; steps behind the warm-up, frames as they are")
    differs = "the batch of this figure is not told; a CPU core codes, and updates up to 2.7e8 parameters per stage in 3 to 4 s, which a GPU does not need"
    for rate, mbps in rates.items():
        for way, flush in (("with a flush", True), ("without", False)):
            took = {name: plan(build, folder, mbps, {**keys, "pipeline.flush": flush})["time"]["step_s"] for name, keys in RUNS.items()}
            for name, keys in RUNS.items():
                kit.say(table, f"{rate}, {name}, {way}", None, WIDTH * BATCH / took[name], "sequences/s", scale, f"bars without numbers there; {differs}", settings={**keys, "pipeline.flush": flush})
            kit.say(table, f"{rate}, both over nothing, {way}", PUBLISHED if mbps == min(rates.values()) else None, took[NOTHING] / took[BOTH], "times the throughput", scale,
                    f"the published figure is \"up to 8.5\", with a flush; {differs}", settings={**RUNS[BOTH], "pipeline.flush": flush})


def step_of(build, folder, name, keys, short):
    """The median step behind the first epoch, which is the warm-up: eight workers share this machine's cores. Seconds, and MB that all of them send."""
    epoch = 4 if short else 8
    here = kit.launch(build, folder, name, {
        "model.kind": "gpt2", "model.blocks": 4, "model.heads": 4, "model.channels": 256, "model.context": 64, "model.tied": False, "data.tokenizer": "bytes", "data.train": str(folder / "text.txt"),
        "data.train_samples_max": 8 * epoch, "train.T": 64, "train.batch": 8, "train.micro_batch": 1, "train.epochs": 2 if short else 4, "train.lr": 1e-4, "pipeline.stages": 4,
        "pipeline.replicas": 2, "link.rate_mbps": 10, "checkpoint.every": 0, "cache.kind": "memory", **keys,
        **({"optimizer.warmup_steps": epoch} if keys["train.optimizer"] == "qadam" else {})})
    steps = kit.steps(here)
    took = sorted(now["time"] - before["time"] for before, now in zip(steps, steps[1:]) if before["epoch"] > 0)
    later = [step for step in steps if step["epoch"] > 0]
    sent = sum(sum(step[key]) for step in later for key in ("forward_bytes", "backward_bytes", "gradient_bytes"))
    return took[len(took) // 2], sent / len(later) / 1e6


def measured(build, folder, short):
    for packing, word in (("off", "as they are"), ("auto", "packed")):
        names = RUNS if packing == "off" else (NOTHING, BOTH)
        took = {name: step_of(build, folder, f"figure-5c-{packing}-{place}", {**RUNS[name], "link.entropy": packing}, short) for place, name in enumerate(names)}
        for name in list(names)[1:]:
            kit.say("AQ-SGD figure 5c, small", f"frames {word}: {name}", None, took[NOTHING][0] / took[name][0], "times the throughput",
                    f"run here: 2 x 4 stages on this machine, links of 10 Mbit/s, GPT-2 of 4 blocks of 256 channels, 4 sequences of 64 per replica and step; median step {took[name][0]:.3f} s with {took[name][1]:.3f} MB "
                    f"of all workers, {took[NOTHING][0]:.3f} s with {took[NOTHING][1]:.3f} MB when {NOTHING}", "4 x 8 machines and GPT2-1.5B there: shares of gradients, activations and computing are others", settings={**RUNS[name], "link.entropy": packing})
