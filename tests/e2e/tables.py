"""Tables of texts of different lengths: a classifier over GPT-2's blocks, of which padding is neither sent nor kept."""
import json
import os
import pathlib
import shutil
import sys

import jobs
from jobs import aqpipe, check, launch, losses, manifest, metrics, no_workers, raw, weights
from kit import ROOT, interrupt, refused

CODECS = {"edges.forward.codec": "aqsgd", "edges.forward.bits": 4, "edges.backward.codec": "directq",
          "edges.backward.bits": 8}
PLAIN = {**raw(), **raw("backward")}


def table(name, seed, rows):
    """Words, and whether there are more long than short ones: something a small model can learn. Returns its lengths."""
    state, lines = seed, ["number\twords\tkind"]
    for i in range(rows):
        words = []
        for _ in range(1 + (state >> 40) % 6):
            state = (state * 6364136223846793005 + 1442695040888963407) % 2**64
            words.append(jobs.WORDS[(state >> 33) % len(jobs.WORDS)])
        kind = "long" if sum(len(word) > 3 for word in words) * 2 > len(words) else "short"
        lines.append(f"{i}\t{' '.join(words)}\t{kind}")
    (ROOT / name).write_text("\n".join(lines) + "\n")
    return [min(32, len(line.split("\t")[1])) for line in lines[1:]]


def job(name, **changes):
    return manifest(name, **{
        "model.task": "classification", "data.kind": "tsv", "data.train": str(ROOT / "train.tsv"),
        "data.heldout": str(ROOT / "heldout.tsv"), "data.text_column": "words", "data.label_column": "kind",
        "data.labels": "'short, long'", "data.train_samples_max": 0, "data.heldout_samples_max": 0, **changes})


def same(name, whole):
    check(losses(name) == losses(whole), f"{name}: losses {losses(name)} are not those of {whole} {losses(whole)}")
    check(weights(name) == weights(whole), f"{name}: model.safetensors differs from that of {whole}")
    for key in ("loss", "accuracy", "targets"):
        check(metrics(name, "eval")[-1][key] == metrics(whole, "eval")[-1][key], f"{name}: held-out {key} differs")


def scenario_tables():
    """Samples with lengths: as one stage bit for bit in every precision and schedule; bytes follow the lengths."""
    lengths = table("train.tsv", 3, 22)
    table("heldout.tsv", 4, 9)
    for tag, changes in (("fp32", {}), ("bf16", {"model.precision": "bf16"}), ("fp16", {"model.precision": "fp16"}),
                         ("recompute", {"model.recompute": "true", "model.dropout": 0.1}),
                         ("stale", {"train.staleness": 1}), ("zb", {"pipeline.schedule": "zb-h1"}),
                         ("clipped", {"train.clip": 0.1})):
        one = {**changes, "pipeline.schedule": None} if tag == "zb" else changes
        launch(job(tag + "-one", **{**PLAIN, **one, "pipeline.stages": 1}))
        launch(job(tag, **{**PLAIN, **changes}))
        same(tag, tag + "-one")
    jobs.isolated(True)
    launch(job("isolated", **PLAIN))
    jobs.isolated(False)
    same("isolated", "fp32-one")
    numbers = {**PLAIN, "model.task": "regression", "data.label_column": "number", "data.labels": None}
    launch(job("scores-one", **{**numbers, "pipeline.stages": 1}))
    launch(job("scores", **numbers))
    check(losses("scores") == losses("scores-one") and weights("scores") == weights("scores-one"), "scores: not as one stage")
    mine, one = metrics("scores", "eval")[-1], metrics("scores-one", "eval")[-1]
    check(all(mine[key] == one[key] for key in ("loss", "mse", "pearson")) and mine["targets"] == 9, f"scores: {mine}, {one}")
    check(mine["mse"] == mine["loss"] and -1 <= mine["pearson"] <= 1, f"scores: {mine}")
    config = json.loads((ROOT / "scores" / "config.json").read_text())
    check(config["problem_type"] == "regression" and len(config["id2label"]) == 1, f"scores: config.json says {config}")
    told = aqpipe("eval", str(ROOT / "scores"), "--json")
    check(told.returncode == 0 and abs(json.loads(told.stdout)["pearson"] - mine["pearson"]) < 1e-6, told.stdout + told.stderr)
    refused("labels", job("labels", **{**numbers, "model.labels": 2}), "model.labels: 2, but the task is one number a sample", 2)
    refused("word", job("word", **{**numbers, "data.label_column": "kind"}), 'train.tsv:2: the label "', 2)

    # What a step sends is the real rows of its samples: fp32 of 32 channels, a row and a gap of each, a header a frame.
    steps = metrics("fp32")
    sent = sum(line["forward_bytes"][0] for line in steps)
    values, samples, epochs = 32 * 4 * sum(lengths), len(lengths), 4
    check(epochs * values <= sent <= epochs * (values + samples * 64 + 11 * 16), f"{sent} bytes of {epochs * values}")
    check(sum(line["backward_bytes"][1] for line in steps) == sent, "gradients have other lengths")
    check(sum(lengths) < 28 * samples, "the table has no short samples: nothing was tested")
    plan = json.loads(aqpipe("plan", str(job("plan", **PLAIN)), "--json").stdout)
    planned = plan["edges"][0]["step_bytes_forward"] / (sent / len(steps))
    check(0.9 < planned < 1.25, f"the plan has {planned} of the bytes that were sent")

    launch(job("aqsgd", **CODECS, **{"train.epochs": 30, "train.lr": "5e-3"}))
    first, last = metrics("aqsgd", "eval")[0], metrics("aqsgd", "eval")[-1]
    check(last["targets"] == 9 and metrics("aqsgd")[-1]["loss"] < metrics("aqsgd")[0]["loss"] * 0.7,
          f"nothing was learnt: {first}, {last}, {losses('aqsgd')}")
    launch(job("two", **{**PLAIN, "pipeline.stages": 2, "pipeline.replicas": 2, "train.shuffle": "false"}))
    launch(job("two-one", **{**PLAIN, "pipeline.stages": 1, "train.shuffle": "false"}))
    check(all(abs(a - b) < 1e-4 * abs(b) for a, b in zip(losses("two"), losses("two-one"))),
          f"replicas: losses {losses('two')} are not those of one {losses('two-one')}")
    check(metrics("two", "eval")[-1]["targets"] == 9, "replicas: not all held-out samples were counted")
    no_workers("tables")


def scenario_tables_resume():
    """Killed and resumed, the same run: caches of messages of different lengths are as they were."""
    table("train.tsv", 3, 22)
    table("heldout.tsv", 4, 9)
    keys = {**CODECS, "edges.forward.bits": 3, "checkpoint.every": "3 steps", "train.epochs": 20, "model.dropout": 0.1}
    launch(job("whole", **keys))
    for name, changes in (("sigint", {}), ("worker", {})):
        path = job(name, **keys, **changes)
        interrupt(name, path, 7)
        launch(path, "--resume")
        same(name, "whole")
        keyframes = sum(x or 0 for line in metrics(name)[3:] for x in line["keyframes"])
        check(keyframes == 0, f"{name}: {keyframes} keyframes after the first epoch: a cache was lost")
    # Another file has other lengths: neither checkpoints nor caches are of it.
    table("train.tsv", 5, 22)
    refused("other", job("sigint", **{**keys, "train.epochs": 30}), "data.train", 2, "--resume")


def scenario_tables_bad_input():
    """Rows that are none, columns that are not there, labels that nobody named: a line each, and nothing is written."""
    table("train.tsv", 3, 22)
    table("heldout.tsv", 4, 9)
    broken = (ROOT / "train.tsv").read_text().splitlines()
    broken[7] = broken[7].replace("\t", " ")
    (ROOT / "broken.tsv").write_text("\n".join(broken) + "\n")
    for tag, changes, wanted in (
            ("row", {"data.train": str(ROOT / "broken.tsv")}, r"broken.tsv:8: 1 fields between tabs, the lines before have 3"),
            ("held", {"data.heldout": str(ROOT / "broken.tsv")}, r"broken.tsv:8: 1 fields"),
            ("column", {"data.text_column": "word"}, r"train.tsv:1: data.text_column: there is no column word"),
            ("none", {"data.label_column": None}, r"data.label_column is missing"),
            ("label", {"data.labels": "'short, wide'"}, r'train.tsv:\d+: the label "long" is not in data.labels'),
            ("number", {"data.labels": None}, r"is not a number from 0; name the labels in data.labels"),
            ("few", {"model.labels": 1}, r"model.labels: 1, but the data has 2"),
            ("task", {"model.task": None}, r"have no targets, which the task language_model compares with"),
            ("text", {"data.kind": "text"}, r"have no labels, which the task classification compares with")):
        refused(tag, job(tag, **changes), wanted, 2)
        check(not (ROOT / tag).exists(), f"{tag}: something was written")


def scenario_instruct():
    """Answers alone are learnt: as one stage bit for bit, over replicas the same mean, and through a resume."""
    def lines(name, seed, count):
        words = jobs.text(seed, 8 * count).split()
        rows = [{"prompt": " ".join(words[8 * i:8 * i + 1 + i % 2]) + " ", "response": " ".join(words[8 * i + 2:8 * i + 3 + i % 3])}
                for i in range(count)]
        rows[1] = {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}
        (ROOT / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
    lines("train.jsonl", 1, 40)
    lines("heldout.jsonl", 2, 9)
    (ROOT / "tokenizer_config.json").write_text(json.dumps({"chat_template": "{% for m in messages %}<{{ m.role }}>{{ m.content }}|"
                                                            "{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"}))
    keys = {"data.kind": "instruct", "data.train": str(ROOT / "train.jsonl"), "data.heldout": str(ROOT / "heldout.jsonl"),
            "data.chat_template": str(ROOT), "data.train_samples_max": 0, "data.heldout_samples_max": 0, "train.T": 48,
            "model.context": 48, "train.shuffle": "false"}

    def alike(name, whole):
        check(losses(name) == losses(whole) and weights(name) == weights(whole), f"{name} is not {whole}")
        check(metrics(name, "eval")[-1]["loss"] == metrics(whole, "eval")[-1]["loss"], f"{name}: held-out loss differs")
    for tag, changes in (("packed", {}), ("whole", {"data.pack": "false"})):
        launch(manifest(tag + "-one", **{**PLAIN, **keys, **changes, "pipeline.stages": 1}))
        launch(manifest(tag, **{**PLAIN, **keys, **changes}))
        alike(tag, tag + "-one")
    check(metrics("packed", "eval")[-1]["targets"] == metrics("whole", "eval")[-1]["targets"], "packing loses targets")
    check(metrics("packed")[-1]["step"] < metrics("whole")[-1]["step"], "nothing was packed")
    # Packed conversations do not see each other: nothing is learnt, and losses are those of each by itself. With the mask off they do.
    still = {}
    for tag, changes in (("packed", {}), ("whole", {"data.pack": "false"}), ("seen", {"data.pack_mask": "false"})):
        launch(manifest("still-" + tag, **{**PLAIN, **keys, **changes, "train.lr": 0, "train.steps_max": 1}))
        still[tag] = metrics("still-" + tag, "eval")[-1]["loss"]
    check(abs(still["packed"] - still["whole"]) < 1e-6 * still["whole"], f"packed conversations see each other: {still}")
    check(abs(still["seen"] - still["whole"]) > 1e-5 * still["whole"], f"data.pack_mask changes nothing: {still}")
    # Replicas have different numbers of targets, and the mean is over all of them: the gradients are those of one.
    launch(manifest("two", **{**PLAIN, **keys, "data.pack": "false", "pipeline.stages": 2, "pipeline.replicas": 2}))
    norms = [[line["grad_norm"] for line in metrics(name)] for name in ("two", "whole")]
    check(all(abs(a - b) < 1e-4 * b for a, b in zip(*norms)), f"replicas: gradients {norms}")
    # Seven packed samples over two replicas: one is left out, and its parts with it.
    launch(manifest("packed-two", **{**PLAIN, **keys, "data.train_samples_max": 7, "pipeline.stages": 2, "pipeline.replicas": 2}))
    check(losses("packed-two"), "packed replicas made no step")
    coded = {**keys, **CODECS, "train.epochs": 20, "checkpoint.every": "3 steps", "data.pack": "false"}
    launch(manifest("coded", **coded))
    path = manifest("killed", **coded)
    interrupt("worker", path, 7)
    launch(path, "--resume")
    alike("killed", "coded")
    (ROOT / "broken.jsonl").write_text((ROOT / "train.jsonl").read_text() + '{"prompt": "p"}\n')
    refused("broken", manifest("broken", **{**keys, "data.train": str(ROOT / "broken.jsonl")}),
            r'broken.jsonl:41: has no "response"; its fields are "prompt"', 2)
    no_workers("instruct")


def scenario_early_stop():
    """A run ends when evaluations get no better, keeps and leaves its best step; killed and resumed, at the same step."""
    table("train.tsv", 3, 22)
    table("heldout.tsv", 4, 9)
    keys = {**CODECS, "train.epochs": 40, "train.lr": "1e-2", "train.evaluate_every": "6 steps", "checkpoint.every": "3 steps",
            "train.early_stop": 3, "pipeline.stages": 2}

    def ends(name):
        steps = [(line["loss"], line["step"]) for line in metrics(name, "eval")]
        best = min(steps)[1]
        check(steps[-1][1] == best + 18 < 120, f"{name}: evaluations {steps}: the best is {best}, it ends elsewhere")
        check(metrics(name, "end")[-1]["best"]["step"] == best, f"{name}: {metrics(name, 'end')[-1].get('best')}")
        left = {entry.name for entry in (ROOT / name / "checkpoint").iterdir() if entry.name.isdigit()}
        check(left == {str(best), str(steps[-1][1]), str(steps[-1][1] - 3)}, f"{name}: checkpoints {left}, the best is {best}")
        report = json.loads(aqpipe("report", str(ROOT / name), "--json").stdout)["runs"][0]
        check(report["best"]["step"] == best, f"{name}: the report has {report.get('best')}")
        return best
    path = job("stopped", **keys)
    launch(path)
    best = ends("stopped")
    out = ROOT / "exported"
    done = aqpipe("export", str(ROOT / "stopped"), str(out), "--step", str(best))
    check(done.returncode == 0, done.stderr)
    check((out / "model.safetensors").read_bytes() == (ROOT / "stopped" / "best" / "model.safetensors").read_bytes(),
          "best/ is not the checkpoint of the best step")
    again = aqpipe("resume", str(ROOT / "stopped"))
    check(again.returncode == 0 and "is finished" in again.stderr, again.stderr)
    ends("stopped")
    # Killed before it has left its model, it leaves that, and trains nothing more.
    path_of = ROOT / "stopped"
    (path_of / "best" / "model.safetensors").unlink()
    lines = (path_of / "metrics.jsonl").read_text().splitlines(keepends=True)
    check('"end"' in lines[-1], f"the last line is no end: {lines[-1]}")
    (path_of / "metrics.jsonl").write_text("".join(lines[:-1]))
    again = aqpipe("resume", str(path_of))
    check(again.returncode == 0 and (path_of / "best" / "model.safetensors").exists(), again.stderr)
    ends("stopped")
    # Kept by another figure than from the beginning, the best step's checkpoint may be gone: it is said.
    late = {**keys, "train.early_stop": 0, "checkpoint.keep": 1}
    launch(job("late", **{**late, "train.steps_max": best + 12}))
    again = aqpipe("launch", job("late", **{**late, "train.steps_max": best + 18, "checkpoint.best": "loss"}), "--resume")
    kept = [line for line in again.stderr.splitlines() if "of which stage 0's checkpoint is not in" in line]
    check(again.returncode == 0 and len(kept) == 1 and not (ROOT / "late" / "best").exists(), again.stderr)
    path = job("killed", **keys)
    interrupt("worker", path, 8)
    launch(path, "--resume")
    check(ends("killed") == best, "killed and resumed, another step is the best")
    same("killed", "stopped")
    launch(job("two", **{**keys, "pipeline.replicas": 2, "checkpoint.best": "accuracy"}))
    check(metrics("two", "end")[-1]["best"]["figure"] == "accuracy", "replicas: no best")
    for tag, changes, wanted in (("none", {"data.heldout": None}, "train.early_stop: needs held-out samples"),
                                 ("mute", {"output.metrics": "false"}, "train.early_stop: needs output.metrics"),
                                 ("rare", {"checkpoint.every": "4 steps"}, "needs a checkpoint at every evaluation")):
        refused(tag, job(tag, **{**keys, **changes}), wanted, 2)
    no_workers("early_stop")


def shared(name):
    source = pathlib.Path(__file__).resolve().parent.parent.parent
    path = pathlib.Path(os.environ.get("AQ_SHARED", source.parent / "shared")) / "data" / name
    if not path.exists():
        print(f"skipped: {path} is not there (AQ_SHARED names the folder of shared data)")
        sys.exit(77)
    return str(path)


def scenario_glue():
    """CoLA and QNLI with GPT-2's tokens over four stages and a codec, stopped, killed and resumed: the same figures."""
    cola = {"data.tokenizer": "gpt2", "data.tokenizer_path": shared("gpt2_bpe"), "data.train": shared("cola/in_domain_train.tsv"),
            "data.heldout": shared("cola/in_domain_dev.tsv"), "data.text_column": 4, "data.label_column": 2,
            "data.labels": None, "data.train_samples_max": 160, "data.heldout_samples_max": 60, "train.epochs": 3,
            "train.lr": "1e-3", "checkpoint.every": "5 steps", **CODECS}
    qnli = {**cola, "data.train": shared("qnli/train_10k.tsv"), "data.heldout": shared("qnli/dev_part_a.tsv"),
            "data.text_column": "question", "data.pair_column": "sentence", "data.label_column": "label",
            "data.labels": "'entailment, not_entailment'", "data.train_samples_max": 64, "train.T": 64, "model.context": 64}
    for name, keys in (("cola", cola), ("qnli", qnli)):
        launch(job(name, **keys))
        last = metrics(name, "eval")[-1]
        check(last["targets"] == 60 and 0.2 < last["accuracy"] <= 1, f"{name}: {last}")
        check(last["loss"] < 1.0, f"{name}: {last}")
        path = job(name + "-killed", **keys)
        interrupt("worker", path, 7)
        launch(path, "--resume")
        same(name + "-killed", name)
        report = json.loads(aqpipe("report", str(ROOT / name), "--json").stdout)["runs"][0]
        check(abs(report["heldout"]["accuracy"] - last["accuracy"]) < 1e-8, f"{name}: the report has {report['heldout']}")
    example = pathlib.Path(__file__).resolve().parents[2] / "examples" / "gpt2-cola" / "job.yaml"
    few = {"data.train": cola["data.train"], "data.heldout": cola["data.heldout"], "data.train_samples_max": 64,
           "data.heldout_samples_max": 20, "data.tokenizer_path": cola["data.tokenizer_path"], "link.rate_mbps": 0,
           "output.path": ROOT / "example"}
    launch(example, *[word for key, value in few.items() for word in ("--set", f"{key}={value}")])
    check(metrics("example", "eval")[-1]["targets"] == 20, "the example does not run")

    # A language model's folder begins a classifier: what it lacks of it is new, and said.
    shutil.copy(cola["data.train"], ROOT / "words.txt")
    launch(job("language", **{**{key: value for key, value in cola.items() if key.startswith("data.tok")}, "model.task": None,
                              "data.kind": "text", "data.train": str(ROOT / "words.txt"), "data.heldout": None,
                              "data.text_column": None, "data.label_column": None, "data.labels": None,
                              "train.steps_max": 1, "pipeline.stages": 1}))
    shape = {f"model.{key}": None for key in ("blocks", "heads", "channels", "context", "tied")}
    launch(job("begun", **{**cola, **shape, "model.weights": str(ROOT / "language"), "train.epochs": 1}))
    logs = "".join(path.read_text() for path in (ROOT / "begun" / "logs").iterdir())
    check("score.weight is new, and starts from train.seed" in logs, logs[-2000:])
    launch(job("again", **{**cola, **shape, "model.weights": str(ROOT / "begun"), "train.epochs": 1}))
    logs = "".join(path.read_text() for path in (ROOT / "again" / "logs").iterdir())
    check("score.weight" not in logs, "a classifier that was there began anew")
    no_workers("glue")
