"""tools/split-audit on conversations and on images of one's own, with what `aqpipe split-client --samples` wrote of the captured job."""
import json
import pathlib
import random
import struct
import subprocess
import sys

import jobs
from jobs import aqpipe, check, manifest, no_workers
from kit import ROOT
from own_images import SHAPES, images
from own_images import job as of_images
from split import begin, whole
from split_lengths import PLAIN, turns
from tables import job as of_table
from tables import table

TOOL = pathlib.Path(__file__).resolve().parents[2] / "tools/split-audit"
PYTHON = "/usr/bin/python3"  # the one that Debian's NumPy and PyYAML are of
NOISE = {"split.privacy.clip": 5, "split.privacy.noise": 2, "split.privacy.gradient_clip": 0.01, "split.privacy.gradient_noise": 10}
SEEN = {"split.capture": "256MiB", "split.collect": "false", "split.rounds": 1, "split.epochs": 2}


def tool(*arguments, want=(0, 1)):
    done = subprocess.run([PYTHON, "-B", TOOL, *map(str, arguments)], capture_output=True, text=True, timeout=jobs.PATIENCE)
    check(done.returncode in want, f"split-audit {arguments}: {done.returncode}: {done.stdout}{done.stderr}")
    return done


def talks(name, seed, count):
    """Questions and answers of letters of unlike frequency."""
    draw = random.Random(seed)

    def letters(low, high):
        return "".join(draw.choices("abcdefghijkl", range(12, 0, -1), k=draw.randrange(low, high)))
    rows = [{"prompt": letters(4, 9) + " ", "response": letters(6, 14)} for _ in range(count)]
    (ROOT / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def audit(name, path, kind, *more):
    """Objects by attack, and the page."""
    whole(path, "a", kind=kind)
    samples, page = ROOT / f"{name}.samples", ROOT / f"{name}.md"
    done = aqpipe("split-client", path, "--id", "a", "--data", ROOT / f"a.{kind}", "--samples", samples)
    check(done.returncode == 0 and samples.stat().st_mode & 0o77 == 0, f"{name}: {done.stderr}")
    said = tool(ROOT / name / "clients/a", "--samples", samples, "--page", page, "--json", *more).stdout
    found = {line["attack"]: line for line in map(json.loads, said.splitlines())}
    for line in found.values():
        print(f"{name}: {line['attack']}: {line['value']:.3f}, injected {line['positive']:.3f}, shuffled {line['shuffled']:.3f}", flush=True)
        check(line["verdict"] != "void", f"{name}: a control failed: {line}")
    return found, page.read_text()


def kinds(data):
    """(what, number of values) of each record of a file of samples."""
    at = 16
    while at < len(data):
        yield (pair := struct.unpack_from("<II", data, at))
        at += 24 + 4 * pair[1]


def leaks(found):
    return {attack for attack, line in found.items() if line["verdict"] == "leaks"}


def scenario_split_audit_kinds():
    """As they are conversations, packed or not, and images are read, and members are known; of noise nothing is. Damaged files of samples are refused."""
    if subprocess.run([PYTHON, "-c", "import numpy, yaml"], capture_output=True).returncode:
        print("skipped: NumPy or PyYAML is not there")
        sys.exit(77)
    begin("a")
    talks("a", 1, 320)
    talks("others", 2, 130)
    tool("--data", ROOT / "a.jsonl", "--make", ROOT / "others.jsonl", ROOT / "test.jsonl")
    keys = {**PLAIN, **turns("splitfed1"), **SEEN, "data.kind": "instruct", "data.train": ROOT / "a.jsonl", "data.heldout": ROOT / "test.jsonl", "data.train_samples_max": 0,
            "data.heldout_samples_max": 0, "train.T": 48, "model.context": 48, "train.batch": 16, "train.micro_batch": 4, "train.lr": "1e-4"}
    for name, more in (("packed", {}), ("each", {"data.pack": "false"}), ("noise", NOISE)):
        found, page = audit(name, manifest(name, **{**keys, **more}), "jsonl")
        check(len(found) == 5 and page.count("| Can ") == 5, f"{name}: {found}")
        wanted = {"token-decoder", "membership", "label-cosine"} if name != "noise" else set()
        check(leaks(found) >= wanted and (wanted or not leaks(found)), f"{name}: {found}")
        check(("in which 320 conversations are packed" in page) == (name != "each") and "the length of every text in tokens" in page, f"{name}: {page}")

    images("a", 1, 260, SHAPES[:2])
    images("others", 2, 130, SHAPES[:2])
    tool("--data", ROOT / "a.csv", "--make", ROOT / "others.csv", ROOT / "test.csv")
    cut = {"model.classes": 3, "model.norm_groups": 2, "split.statistics": "group", "train.lr": "1e-4", "pipeline.stages": "[{layers: 0-1, dials: true}, {layers: 2-4}, {layers: 5-6, dials: true}]"}
    for name, more in (("pictures", {}), ("pictures-noise", NOISE)):
        found, page = audit(name, of_images(name, **{**PLAIN, **turns("splitfed1"), **SEEN, **cut, "train.batch": 20, "train.micro_batch": 10, **more}), "csv")
        check(len(found) == 5 and "260 training samples, each an image" in page, f"{name}: {found}")
        check(leaks(found) >= {"inversion", "membership", "label-cosine"} if not more else not leaks(found), f"{name}: {found}")

    # A table: its tokens and labels, and nothing that another task would learn.
    table("train.tsv", 3, 22)
    table("heldout.tsv", 4, 9)
    done = aqpipe("split-client", of_table("table", **{**turns("splitfed1")}), "--id", "a", "--samples", ROOT / "table.samples")
    sizes = {}
    for what, count in kinds((ROOT / "table.samples").read_bytes()):
        sizes.setdefault(what, []).append(count)
    check(done.returncode == 0 and {what: len(each) for what, each in sizes.items()} == {1: 31, 3: 31} and set(sizes[3]) == {1} and min(sizes[1]) < max(sizes[1]), f"{sizes} {done.stderr}")

    # A file that is none, that was cut, or of another job.
    data = (ROOT / "packed.samples").read_bytes()
    end = 16 + 24 + 4 * int.from_bytes(data[20:24], "little")  # of the first record
    for tag, bad, text in (("none", b"other" * 9, "is not a file of"), ("cut", data[:-3], "no record at byte"), ("kind", data[:16] + b"\x09" + data[17:], "no record at byte 16"),
                           ("twice", data + data[16:end], "a second time"), ("empty", data[:16], "has no samples"),
                           ("part", data[:16] + data[end:], "has no values")):
        (ROOT / "bad.samples").write_bytes(bad)
        done = tool(ROOT / "packed/clients/a", "--samples", ROOT / "bad.samples", want=(2,))
        check(text in done.stderr and done.stderr.count("\n") == 1, f"{tag}: {done.stderr}")
    done = tool(ROOT / "packed/clients/a", "--samples", ROOT / "each.samples", want=(2,))
    check("--samples of the same job" in done.stderr, done.stderr)
    done = tool("--data", ROOT / "a.csv", "--make", ROOT / "others.csv", ROOT / "others" / "test.csv", want=(2,))
    check("is not below" in done.stderr, done.stderr)
    no_workers("split_audit_kinds")
