#!/usr/bin/env python3
"""test_plot AQPIPE: `aqpipe plot` draws small files whole and large ones in part, several runs, any names; errors are one object."""
import json
import pathlib
import re
import subprocess
import sys
import tempfile
import xml.etree.ElementTree

AQPIPE = sys.argv[1]
SVG = "{http://www.w3.org/2000/svg}"
STEPS, LARGE = 5000, 64 << 20


def plot(*arguments, code=0):
    done = subprocess.run([AQPIPE, "plot", *map(str, arguments)], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == code, (arguments, done)
    return done


def write(folder, codec, steps=STEPS, pad="", torn=""):
    folder.mkdir()
    with open(folder / "metrics.jsonl", "w") as file, open(folder / "metrics.jsonl.index", "w") as index:
        file.write(json.dumps({"event": "start", "codec": codec}) + "\n")
        for step in range(1, steps + 1):
            line = {"event": "step", "step": step, "time": step / 10, "loss": 1 + 1 / step, "sequences_per_second": 8,
                    "forward_bytes": [1000, None], "forward_packed": [0.5, None], "backward_bytes": [None, 500],
                    "contraction": [0.3, 0.4, None], "pad": pad}
            file.write(json.dumps(line) + "\n")
            if step % 500 == 0:
                held = {"event": "eval", "step": step, "time": step / 10, "loss": 2 + 1 / step}
                file.write(json.dumps(held) + "\n")
                if step < steps - 350:  # every 4 MiB, in a real one
                    index.write("0" * 16 + " " + json.dumps({"offset": file.tell(), "sums": {"eval": held}}) + "\n")
        index.write("torn")
        file.write(torn)


def drawn(*arguments):
    """The picture's elements, and what --json says of it."""
    output = pathlib.Path(arguments[-1])
    said = json.loads(plot(*arguments[:-1], "-o", output, "--json").stdout)
    root = xml.etree.ElementTree.parse(output).getroot()
    assert root.tag == SVG + "svg" and said["output"] == str(output)
    return root, said


def texts(root):
    return [text.text or "" for text in root.iter(SVG + "text")]


def places(root, colour):
    """Of the thick line of that colour."""
    path = next(p for p in root.iter(SVG + "path") if p.get("stroke") == colour and p.get("stroke-width") == "2.5")
    return [(float(x), float(y)) for x, y in re.findall(r"[ML]([\d.]+) ([\d.]+)", path.get("d"))]


with tempfile.TemporaryDirectory() as name:
    top = pathlib.Path(name)
    evil = top / "a <script>'&\"\x1b[2J"
    write(evil, "AQ-SGD fw2 <b>", torn='{"event":"st')
    root, said = drawn(evil, "--x", "step", top / "one.svg")
    assert said["runs"][0]["steps"] == STEPS and said["runs"][0]["evaluations"] == 10 and not said["runs"][0]["part"]
    assert len(root.findall(SVG + "circle")) == 10, "a ring an evaluation"
    assert any("a <script>'&\"" in text and "\x1b" not in text for text in texts(root)), texts(root)
    assert not list(root.iter(SVG + "script")) and "<script" not in (top / "one.svg").read_text()
    line = places(root, "#0072B2")
    assert line == sorted(line) and len(line) > 1000, "in order"
    assert line[0][1] < line[-1][1], "a loss that falls is drawn falling (y grows downwards)"
    assert any("smallest to largest" in text for text in texts(root)), "a point stands for several steps"

    write(top / "few", "fp32", 40)
    root, said = drawn(top / "few", evil, "--x", "bytes", "--title", "two & more", top / "two.svg")
    assert [run["steps"] for run in said["runs"]] == [40, STEPS]
    ends = [places(root, colour)[-1][0] for colour in ("#0072B2", "#D55E00")]
    # A step sends 500 + 500 bytes: the shorter run ends at 40 kB of the longer one's 5 MB.
    assert abs((ends[0] - 72) / (ends[1] - 72) - 40 / STEPS) < 1e-3, ends
    assert "two & more" in texts(root) and any("fp32" in text for text in texts(root)), "runs are told apart by codecs"
    root, _ = drawn(top / "few", "--y", "c_q", top / "cq.svg")
    assert any("0.4000" in text for text in texts(root)), "the worst cut's"
    drawn(top / "few", "--y", "speed", top / "speed.svg")
    assert plot(top / "few").stdout.startswith("<?xml"), "without -o: standard output"

    write(top / "large", "x", STEPS, "." * (LARGE // STEPS))
    assert (top / "large/metrics.jsonl").stat().st_size > LARGE
    root, said = drawn(top / "large", "--x", "step", top / "large.svg")
    part = said["runs"][0]
    assert part["part"] and 1500 < part["steps"] < STEPS // 2 and part["evaluations"] == 10, part
    line = places(root, "#0072B2")
    assert line == sorted(line) and max(b[0] - a[0] for a, b in zip(line, line[1:])) < 3, "evenly"
    root, said = drawn(top / "large", "--x", "bytes", top / "large.svg")
    assert said["runs"][0]["steps"] == STEPS, "sums need every line"

    def wrong(*arguments, code=2):
        done = plot(*arguments, "-o", top / "wrong.svg", "--json", code=code)
        assert len(done.stderr.strip().split("\n")) == 1 and not (top / "wrong.svg").exists(), done
        return json.loads(done.stdout)

    said = wrong(top / "few", top / "nowhere")
    assert said["file"] == str(top / "nowhere") and said["status"] == "not found" and "name the folder of a run" in said["error"], said
    (top / "few/metrics.jsonl").write_bytes(b'{"event":"step","step":1}\n' + b"\xff\n" * 3 + b'{"event":"step","step":2}\n')
    said = wrong(top / "few")
    assert said["status"] == "corrupt" and "metrics.jsonl:2" in said["error"], said
    (top / "few/metrics.jsonl").write_text('{"event":"step","step":1,"loss":null}\n')
    assert "no step with a figure for 'loss'" in wrong(top / "few")["error"]
    said = json.loads(plot(evil, "-o", top / "nowhere/x.svg", "--json", code=2).stdout)
    assert said["file"] == str(top / "nowhere/x.svg"), said
    for arguments in ((), (evil, "--x", "epochs"), (evil, "--json"), (evil,) * 9):
        plot(*arguments, code=2)
