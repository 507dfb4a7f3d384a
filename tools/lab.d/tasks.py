"""The tasks of tools/lab: their texts, cut into sets no two of which have a line in common, and the keys of their data."""
import json
import random
import shutil
import zlib

# Of what a model is pretrained on, and what it is called: "model" reads bytes of abstracts and instructions, "words" abstracts
# and WikiText-2 in GPT-2's tokens. Rows are samples with a class.
TASKS = {"wikitext": "model", "instructions": "model", "cola": "words", "qnli": "words"}
ROWS = ("cola", "qnli")
REPORT = {"wikitext": "wikitext-report.txt", "instructions": "instructions-report.jsonl", "cola": "cola-report.tsv", "qnli": "qnli-report.tsv"}
DATA = {"wikitext": "train: wikitext-train.txt, heldout: wikitext-heldout.txt, train_samples_max: %(samples)d, heldout_samples_max: %(held)d",
        "instructions": "kind: instruct, train: instructions-train.jsonl, heldout: instructions-heldout.jsonl, heldout_samples_max: %(held)d",
        "cola": "kind: tsv, train: cola-train.tsv, heldout: cola-heldout.tsv, text_column: 4, label_column: 2, train_samples_max: %(rows)d, "
                "heldout_samples_max: %(held_rows)d",
        "qnli": "kind: tsv, train: qnli-train.tsv, heldout: qnli-heldout.tsv, text_column: question, pair_column: sentence, label_column: label, "
                "labels: \"entailment, not_entailment\", train_samples_max: %(rows)d, heldout_samples_max: %(held_rows)d"}
SUMMANDS = 32  # 1,024 sums
HELDOUT_LINES = 120
PROMPTS_MAX = 160  # half of them are sums, and 103 of the 1,024 are of the exam


def part_of(prompt):
    """The set that an instruction belongs to, whoever draws it: a tenth is held out, for the report and for the exam each."""
    return ("heldout", "report", "exam", *["train"] * 7)[zlib.crc32(prompt.encode()) % 10]


def instructions(seed, count, part):
    """(prompt, response) without end of line, of one set. Those that are held out come once each."""
    draw, seen, number = random.Random(seed), set(), 0
    while number < count:
        if number % 2:
            a, b = draw.randrange(SUMMANDS), draw.randrange(SUMMANDS)
            prompt, response = f"add {a} {b} =", f" {a + b}"
        else:
            word = "".join(draw.choice("abcdefghijklmnop") for _ in range(4))
            prompt, response = f"copy {word} =", f" {word}"
        if part_of(prompt) != part or prompt in seen:
            continue
        if part != "train":
            seen.add(prompt)
        number += 1
        yield prompt, response


def paragraphs(o):
    abstracts = (o.data / "arxiv/abstracts_18k.txt").read_text(errors="replace")[:o.size["pretrain_bytes"]]
    return [line for line in abstracts.splitlines() if line]


def texts_of_bytes(o):
    """Abstracts with instructions between them; WikiText-2; instructions as lines of JSON."""
    lines = instructions(1, 1 << 40, "train")
    with open(o.out / "pretrain-model.txt", "w") as out:
        for paragraph in paragraphs(o):
            out.write(paragraph + "\n")
            budget = len(paragraph) // 4
            while budget > 0:
                line = "".join(next(lines))
                out.write(line + "\n")
                budget -= len(line) + 1
    shutil.copy(o.data / "wikitext2/train.txt", o.out / "wikitext-train.txt")
    valid = (o.data / "wikitext2/valid.txt").read_text().splitlines(keepends=True)
    (o.out / "wikitext-heldout.txt").write_text("".join(valid[:len(valid) // 2]))
    (o.out / "wikitext-report.txt").write_text("".join(valid[len(valid) // 2:]))
    for part, seed, count in (("train", 2, o.size["lines"]), ("report", 4, HELDOUT_LINES), ("heldout", 3, HELDOUT_LINES)):
        with open(o.out / f"instructions-{part}.jsonl", "w") as out:
            for prompt, response in instructions(seed, count, part):
                out.write(json.dumps({"prompt": prompt, "response": response}) + "\n")


def texts_of_words(o):
    """WikiText-2 and abstracts; the rows of CoLA and QNLI, of whose public held-out rows every other one is for the report."""
    wiki = (o.data / "wikitext2/train.txt").read_text()[:o.size["pretrain_bytes"]]
    (o.out / "pretrain-words.txt").write_text(wiki + "\n" + "\n".join(paragraphs(o)) + "\n")
    for task, train, dev, head in (("cola", "cola/in_domain_train.tsv", "cola/in_domain_dev.tsv", 0),
                                   ("qnli", "qnli/train_10k.tsv", "qnli/dev_part_a.tsv", 1)):
        shutil.copy(o.data / train, o.out / f"{task}-train.tsv")
        rows = (o.data / dev).read_text().splitlines(keepends=True)
        for part, first in (("heldout", head), ("report", head + 1)):
            (o.out / f"{task}-{part}.tsv").write_text("".join(rows[:head] + rows[first::2]))


def texts(o):
    """Written once: they are the same for every run of a folder (form.json)."""
    for family, write in (("model", texts_of_bytes), ("words", texts_of_words)):
        if family in {TASKS[task] for task in o.tasks.split(",")} and not (o.out / f"texts-{family}").exists():
            write(o)
            (o.out / f"texts-{family}").touch()


def majority(o, task):
    """The share of the most frequent class among the rows of the second held-out set that runs are judged by."""
    lines = (o.out / REPORT[task]).read_text().splitlines()[task == "qnli":][:o.size["held_rows"]]
    classes = [line.split("\t")[1 if task == "cola" else -1] for line in lines]
    return max(classes.count(one) for one in set(classes)) / len(classes)
