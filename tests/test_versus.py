#!/usr/bin/env python3
"""test_versus: the table of tools/versus from figures that are given: speed, bytes, losses after the same time, rows that did not begin
alike, another form's results, and the page that it is put into. Nothing is trained. Where PyTorch is, its codec is held to its bounds."""
import json
import pathlib
import subprocess
import sys
import tempfile

TOOLS = pathlib.Path(__file__).resolve().parent.parent / "tools"


def versus(folder, *arguments, code=0):
    done = subprocess.run([sys.executable, "-B", TOOLS / "versus", "--tiny", "--out", folder, "--table", *arguments], capture_output=True, text=True,
                          timeout=300, check=False)
    assert done.returncode == code, done
    return done


def row(folder, name, seconds, losses, **more):
    """12 steps of batch 4, 4 to an epoch; each takes so many seconds."""
    (folder / f"row-{name}.json").write_text(json.dumps({
        "row": name, "schedule": "1F1B", "times": [seconds * (n + 1) for n in range(len(losses))], "losses": losses, "heldout": 1.5,
        "bytes": 12_000_000, "memory": 300 << 20, "memory_base": 200 << 20, **more}))


def cells(text, name):
    return next(line for line in text.splitlines() if line.startswith(f"| {name} |")).strip("| ").split(" | ")


def main():
    with tempfile.TemporaryDirectory() as name:
        top = pathlib.Path(name)
        out = top / "out"
        out.mkdir()
        (out / ".aqpipe-versus").touch()
        assert "has no rows yet" in versus(out, code=1).stderr
        row(out, "torch-fp32", 2.0, [5.0] * 4 + [4.0] * 4 + [3.0] * 4)
        row(out, "aqpipe", 0.5, [5.01] * 4 + [4.0] * 4 + [2.0] * 4, memory=30 << 20, memory_base=0)
        text = versus(out).stdout
        # The faster row ends after 6 s. The other one has done 3 steps then: no epoch.
        assert "train loss after 6 s" in text, text
        assert cells(text, "PyTorch pipeline, fp32")[1:] == ["2.0", "1.000", "3.0000", "1.5000", "less than an epoch", "300 MiB (100 + PyTorch)"], text
        assert cells(text, "aqpipe, default codec")[1:] == ["8.0", "1.000", "2.0000", "1.5000", "2.0000", "30 MiB"], text
        row(out, "torch-fp32", 1.0, [5.0] * 4 + [4.0] * 4 + [3.0] * 4)
        assert cells(versus(out).stdout, "PyTorch pipeline, fp32")[5] == "4.5000", "steps 3 to 6, the last epoch's worth by then"
        assert "| versus, 100 Mbit/s, 80 ms, sequences/s |" in versus(out).stdout

        page = top / "page.md"
        page.write_text("# A\n<!-- versus -->\nold\n<!-- /versus -->\nz\n")
        text = versus(out, "--readme", page).stdout
        assert page.read_text() == f"# A\n<!-- versus -->\n{text.split(chr(10) * 2)[0]}\n<!-- /versus -->\nz\n", page.read_text()
        page.write_text("# A\n")
        assert "needs one line <!-- versus -->" in versus(out, "--readme", page, code=1).stderr

        row(out, "local", 1.0, [6.0] * 12)
        assert "do not begin alike" in versus(out, code=1).stderr
        (out / "form.json").write_text(json.dumps({"blocks": 1}))
        assert "another form's results" in versus(out, code=1).stderr
        assert "another form's results" in versus(out, "--only", "aqpipe", code=1).stderr
        assert "no row 'petals'" in versus(out, "--only", "petals", code=2).stderr
        (top / "mine").mkdir()
        (top / "mine/thesis.txt").touch()
        assert "did not leave" in versus(top / "mine", code=1).stderr


def codec():
    """Of the row "AQ-SGD in PyTorch": what is sent decodes to what the sender has, within half a level of each row's largest."""
    sys.path.insert(0, str(TOOLS / "versus.d"))
    import ranks
    torch = ranks.torch
    torch.manual_seed(1)
    for shape in ((2, 5, 6), (1, 1, 2)):
        x = torch.randn(shape) * torch.tensor([1e-3, 1.0]).repeat(shape[-1] // 2)
        x[0, 0] = 0
        for bits in 4, 8:
            data, own = ranks.encode(x, bits)
            assert data.numel() == ranks.size_of(shape, bits)
            assert torch.equal(ranks.decode(data, shape, bits), own), "both ends have other bits"
            bound = x.abs().amax(-1, keepdim=True) * (1 / (1 << bits) + 2**-10) + 1e-7  # fp16 rounds the scale
            assert bool(((own - x).abs() <= bound).all()), f"{bits} bits: {(own - x).abs().max()}"


main()
try:
    import torch  # noqa: F401
except ImportError:
    print("the codec of the row AQ-SGD in PyTorch is not tested: this Python has no PyTorch")
    sys.exit(0)
codec()
