#!/usr/bin/env python3
"""test_plot: tools/plot reads small files whole and large ones in part, in order, with their ends. No gnuplot is run."""
import importlib.machinery
import importlib.util
import json
import pathlib
import sys
import tempfile

sys.dont_write_bytecode = True
tool = pathlib.Path(__file__).resolve().parent.parent / "tools/plot"
loader = importlib.machinery.SourceFileLoader("plot", str(tool))
plot = importlib.util.module_from_spec(importlib.util.spec_from_loader("plot", loader))
loader.exec_module(plot)
STEPS = 5000


def write(folder, torn=b""):
    with open(folder / "metrics.jsonl", "wb") as file, open(folder / "metrics.jsonl.index", "w") as index:
        file.write(b'{"event":"start","codec":"x"}\n')
        for step in range(1, STEPS + 1):
            line = {"event": "step", "step": step, "time": step / 10, "loss": 1 + 1 / step, "pad": "." * (step % 50)}
            file.write(json.dumps(line).encode() + b"\n")
            if step % 500 == 0:
                held = {"event": "eval", "step": step, "time": step / 10, "loss": 2 + 1 / step}
                file.write(json.dumps(held).encode() + b"\n")
                if step < STEPS - 600:
                    index.write("0" * 16 + " " + json.dumps({"offset": file.tell(), "sums": {"eval": held}}) + "\n")
        index.write("torn")
        file.write(torn)


with tempfile.TemporaryDirectory() as name:
    folder = pathlib.Path(name)
    write(folder, b'{"event":"st')
    whole = plot.Run(name, "step")
    assert len(whole.train) == STEPS and len(whole.heldout) == 10 and whole.codec == "x" and not whole.part
    plot.LARGE_BYTES, plot.TAIL_BYTES, plot.PROBES = 1000, 1000 * 100, 300
    part = plot.Run(name, "step")
    steps = [x for x, _ in part.train]
    assert part.part and steps == sorted(set(steps)) and set(part.train) <= set(whole.train), "in order, each once"
    assert steps[0] == 1 and steps[-1] == STEPS and 300 <= len(steps) < STEPS // 2, (steps[0], steps[-1], len(steps))
    assert max(b - a for a, b in zip(steps, steps[1:])) < 3 * STEPS // 300, "evenly"
    assert part.heldout == whole.heldout and part.seconds == whole.seconds
    (folder / "metrics.jsonl.index").unlink()
    assert plot.Run(name, "step").heldout[-1] == whole.heldout[-1], "without an index: those of the end"
    (folder / "metrics.jsonl").write_bytes(b'{"event":"step"}\n' + b"\xff\n" * 1000)
    try:
        plot.Run(name, "step")
        raise SystemExit("damage was not told")
    except plot.Trouble as trouble:
        assert "metrics.jsonl" in str(trouble)
