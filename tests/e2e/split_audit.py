"""tools/split-audit on conversations and on images of one's own, with what `aqpipe split-client --samples` wrote of the captured job."""
import json
import math
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
from split import begin, seen, split, whole
from split_lengths import PLAIN, turns
from tables import job as of_table
from tables import table

TOOL = pathlib.Path(__file__).resolve().parents[2] / "tools/split-audit"
PYTHON = "/usr/bin/python3"  # the one that Debian's NumPy and PyYAML are of
NOISE = {"split.privacy.clip": 5, "split.privacy.noise": 2, "split.privacy.gradient_clip": 0.01, "split.privacy.gradient_noise": 10}
PADDED = {"data.pack": "false", "split.pad": "true"}
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


def waves(name, seed, count):
    """CIFAR-10's records: images of a few waves, which are such ones wherever they are cut, and flipped, too."""
    draw, out = random.Random(seed), bytearray()
    for _ in range(count):
        out.append(draw.randrange(10))
        for _ in range(3):
            parts = [(draw.uniform(0, 40), draw.uniform(0, math.tau)) for _ in range(6)]  # how high, and its phase; one value of each for each place along it
            left, flat, right, down_left, down, down_right = ([high * math.cos(at * math.tau / 32 + phase) for at in range(32)] for high, phase in parts)
            across = [128 + left[-x] + flat[0] + right[x] for x in range(32)]
            out += bytes(max(0, min(255, round(across[x] + down_left[y - x] + down[y] + down_right[y + x - 32]))) for y in range(32) for x in range(32))
    (ROOT / f"{name}.bin").write_bytes(out)


def rewrite_views(folder, change):
    """change: a function of a view's eight numbers."""
    for path in (folder / "seen").glob("*.bin"):
        data, at = bytearray(path.read_bytes()), 16
        while at < len(data):
            kind, rows, columns = struct.unpack_from("<III", data, at)
            if kind == 4:
                struct.pack_into("<8f", data, at + 32, *change(*struct.unpack_from("<8f", data, at + 32)))
            at += 32 + 4 * rows * columns
        path.write_bytes(data)


def scenario_split_audit_views():
    """Images that are cropped, flipped and holed at random: what the audit compares with is the view that was sent. With the views of other visits it finds less."""
    if subprocess.run([PYTHON, "-c", "import numpy, yaml"], capture_output=True).returncode:
        print("skipped: NumPy or PyYAML is not there")
        sys.exit(77)
    begin("a")
    waves("a", 1, 260)
    waves("others", 2, 130)
    tool("--data", ROOT / "a.bin", "--make", ROOT / "others.bin", ROOT / "test.bin")
    keys = {**PLAIN, **SEEN, "data.augment.crop": 4, "data.augment.flip": "true", "data.augment.cutout": 4}
    for name, more in (("views", {}), ("views-noise", NOISE)):
        found, page = audit(name, split(name, **{**keys, **more}), "bin")
        check(len(found) == 5 and "260 training samples, each an image" in page and "cropped by up to 4 pixels, flipped, a hole of 4 pixels" in page, f"{name}: {found} {page}")
        check(leaks(found) >= {"inversion", "label-cosine"} if not more else not leaks(found), f"{name}: {found}")
        got = seen(f"{name}/clients/a", flags=2)
        pairs = [(view, activation) for view, activation in zip(got, got[1:]) if activation[0] == 1]
        check(len(pairs) == 520 and all(view[0] == 4 and view[3:5] == activation[3:5] for view, activation in pairs) and sum(line[0] == 4 for line in got) == 520, f"{name}: views")
        numbers = [view[5] for view, _ in pairs]
        check({each[0] for each in numbers} == {each[1] for each in numbers} == set(range(-4, 5)) and {each[2:4] for each in numbers} == {(0, 4), (1, 4)}, f"{name}: {numbers}")
        if not more:
            found_views = found
    by_records = tool(ROOT / "views/clients/a", "--data", ROOT / "a.bin", "--heldout", ROOT / "test.bin", "--json").stdout
    by_records = {line["attack"]: line for line in map(json.loads, by_records.splitlines())}
    check(abs(by_records["inversion"]["value"] - found_views["inversion"]["value"]) < 1e-3, f"{by_records}, with --samples {found_views}")
    kept = (ROOT / "views/clients/a/seen/0.bin").read_bytes()
    for name, change in (("down", lambda down, *of: (-down, *of)), ("right", lambda down, right, *of: (down, -right, *of)), ("flip", lambda down, right, flipped, *of: (down, right, 1 - flipped, *of)),
                         ("whole", lambda *of: (0,) * 8)):
        rewrite_views(ROOT / "views/clients/a", change)
        said = tool(ROOT / "views/clients/a", "--samples", ROOT / "views.samples", "--json", want=(0, 1, 3)).stdout
        value = {line["attack"]: line for line in map(json.loads, said.splitlines())}["inversion"]["value"]
        print(f"{name}: inversion: {value:.3f}", flush=True)
        check(value < found_views["inversion"]["value"] - 0.1, f"{name}: {value} with other views, {found_views['inversion']}")
        (ROOT / "views/clients/a/seen/0.bin").write_bytes(kept)
    for name, bad, text in (("view", kept[:16] + struct.pack("<I", 3) + kept[20:], "without its image's view"),
                            ("numbers", kept[:48] + struct.pack("<f", 0.5) + kept[52:], "no view of an image"), ("old", b"aqpipe seen 1" + kept[13:], "an older program")):
        (ROOT / "views/clients/a/seen/0.bin").write_bytes(bad)
        done = tool(ROOT / "views/clients/a", "--samples", ROOT / "views.samples", want=(2,))
        check(text in done.stderr and done.stderr.count("\n") == 1, f"{name}: {done.returncode} {done.stderr}")
    no_workers("split_audit_views")


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
    all_found = {}
    for name, more in (("packed", {}), ("each", {"data.pack": "false"}), ("noise", NOISE), ("padded", PADDED), ("padded-noise", {**PADDED, **NOISE})):
        found, page = audit(name, manifest(name, **{**keys, **more}), "jsonl")
        all_found[name], attacks = found, 6 if "padded" in name else 5
        check(len(found) == attacks and page.count("| Can ") == attacks, f"{name}: {found}")
        wanted = {"token-decoder", "membership", "label-cosine", *(["padding-zeros"] if name == "padded" else [])} if "noise" not in name else set()
        check(leaks(found) >= wanted and (wanted or not leaks(found)), f"{name}: {found}")
        check(("in which 320 conversations are packed" in page) == (name in ("packed", "noise")) and "the length of every text in tokens" in page, f"{name}: {page}")
        check(("split.pad` is on" in page) == (attacks == 6), f"{name}: {page}")
    # Padding is no text: with it and without it the attacks on tokens and on labels have the same rows, and so the same figures.
    for attack in ("token-decoder", "label-norm", "label-cosine", "label-zeros"):
        check(all_found["padded"][attack] == all_found["each"][attack], f"{attack}: {all_found['padded'][attack]}, and without padding {all_found['each'][attack]}")

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
