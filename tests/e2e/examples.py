"""Examples: each plans as it is shipped, and runs in short form on small files of the form that its README asks for."""
import os
import pathlib
import shutil
import subprocess

from jobs import aqpipe, check, launch, losses, no_workers
from kit import ROOT

SOURCE = pathlib.Path(__file__).resolve().parents[2]
SHARED = SOURCE.parent / "shared/data"
BYTES = ("data.tokenizer=bytes", 'data.tokenizer_path=""')


def text(folder):
    return BYTES + (f"data.train={folder}/text/train.txt", f"data.heldout={folder}/text/heldout.txt")


def one_text(folder):
    return BYTES + tuple(f"data.{which}={folder}/text/train.txt" for which in ("train", "heldout"))


def table(folder, head, row):
    """Files of 40 and 10 rows."""
    for name, count in (("train", 40), ("dev", 10)):
        (folder / f"{name}.tsv").write_text(head + "".join(row(i) + "\n" for i in range(count)))
    return BYTES + (f"data.train={folder}/train.tsv", f"data.heldout={folder}/dev.tsv")


def cola(folder):
    return table(folder, "", lambda i: f"gj04\t{i % 2}\t{'*' if i % 2 else ''}\tThe sailors rode the breeze {i}.")


def qnli(folder):
    return table(folder, "index\tquestion\tsentence\tlabel\n", lambda i: f"{i}\tWho rode {i}?\tThe sailors rode.\t{'not_' * (i % 2)}entailment")


def conversations(folder):
    """The example makes its own."""
    subprocess.run([folder / "qwen3-sft-lora/make-data"], check=True, stdout=subprocess.DEVNULL)
    return ()


DATA = {"gpt2-wikitext2": text, "gpt2-arxiv": one_text, "qwen3-sft-lora": conversations, "gpt2-cola": cola, "deberta-cola": cola, "deberta-qnli": qnli}
SHORT = ("train.steps_max=2", "train.warmup_steps=0", "train.evaluate_every=0", "data.train_samples_max=40", "data.heldout_samples_max=4",
         "train.batch=8", "train.micro_batch=4", "link.rate_mbps=0", "checkpoint.every=0", "data.skip=0")


def short(folder, name):
    """Its README's form, of two steps."""
    words = [word for key in SHORT + DATA[name](folder) for word in ("--set", key)]
    launch(folder / name / "job.yaml", *words, "--set", f"output.path={ROOT}/{name}")
    check(len(losses(name)) == 2, f"{name}: {losses(name)}")
    left = {path.name for path in (ROOT / name).iterdir()}
    check({"model.safetensors", "config.json", "report.json"} <= left, f"{name} leaves {sorted(left)}")
    check(("adapter" in left) == ("lora" in name), f"{name}: adapters are among {sorted(left)}")


def scenario_examples():
    """Jobs of a file plan, and the small one runs; folders say what file they miss, run in short form, and plan where their data is."""
    folder = ROOT / "examples"
    shutil.copytree(SOURCE / "examples", folder, ignore=shutil.ignore_patterns("text", "run", "*.jsonl"))
    subprocess.run([SOURCE / "tools/text", folder / "text"], check=True, stdout=subprocess.DEVNULL)
    aqpipe("keys", "init", ROOT / "keys", "--job", "two-hosts", "--stages", 2, "--hosts", "10.0.0.1,10.0.0.2")
    for path in sorted(folder.glob("*.yaml")):
        # Keys are no part of the examples.
        done = aqpipe("plan", path, *(["--set", f"security.keys={ROOT / 'keys'}"] if path.name == "two-hosts.yaml" else []))
        check(done.returncode == 0, f"{path}: {done.stderr}")
    launch(folder / "bytes-4-stages.yaml", "--set", "train.steps_max=1", "--set", "link.rate_mbps=0", "--set",
           f"output.path={ROOT}/example", "--set", "train.evaluate_every=0", "--set", "data.heldout_samples_max=1")
    check(len(losses("example")) == 1, "bytes-4-stages.yaml does not run")
    # Split learning's have a server and clients: scenario split_example.
    names = [path.parent.name for path in sorted(folder.glob("*/job.yaml")) if not path.parent.name.startswith("split-")]
    check(set(names) == set(DATA), f"no short form of {set(names) ^ set(DATA)}")
    for name in names:
        done = aqpipe("plan", folder / name / "job.yaml")
        check(done.returncode in (1, 2) and "cannot read" in done.stderr and len(done.stderr.splitlines()) <= 2, f"{name}: {done}")
        check("## What you should see" in (folder / name / "README.md").read_text(), f"{name}: its README does not say what to see")
        short(folder, name)
    no_workers("examples")
    if SHARED.exists() and not os.environ.get("AQ_SHARED"):
        for name in set(names) - {"qwen3-sft-lora"}:
            done = aqpipe("plan", SOURCE / "examples" / name / "job.yaml")
            check(done.returncode == 0, f"{name} as it stands: {done.stderr}")
    else:
        print(f"not planned with whole data: {SHARED} is not there")
