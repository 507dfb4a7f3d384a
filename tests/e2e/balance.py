"""Cuts by measured layers: measured once, kept in a file, and a run that goes on keeps the cut that it has."""
import json
import os
import re

from kit import ROOT, check, losses, weights
from jobs import aqpipe, launch, manifest, no_workers, raw

KEPT = ROOT / "home" / "aqpipe" / "layers.json"


def said(*arguments):
    done = aqpipe(*arguments)
    check(done.returncode == 0, f"{arguments}: {done.returncode}\n{done.stderr[-2000:]}")
    return done.stdout + done.stderr


def cut(name):
    """The layers of each stage, as the run's own manifest has them."""
    return re.findall(r"- layers: (\d+-\d+)", (ROOT / name / "manifest.yaml").read_text())


def plan_hash(name):
    return json.loads((ROOT / name / "run.json").read_text())["plan_hash"]


def scenario_balance():
    os.environ["XDG_CACHE_HOME"] = str(ROOT / "home")
    base = {**raw(), **raw("backward"), "pipeline.stages": 2, "pipeline.cut": "measured", "train.epochs": 2,
            "checkpoint.every": "3 steps"}
    text = said("launch", manifest("first", **base))
    found = re.search(r"layers measured on cpu: .* \((/[^()]*)\): embedding [\d.]+ .s, 4 x block [\d.]+ .s, head [\d.]+ .s a "
                      r"micro-batch; cut at (\d+-\d+) \| (\d+-\d+): slowest", re.sub(r"\s+", " ", text))
    check(found and found[1] == str(KEPT) and [found[2], found[3]] == cut("first"), f"{cut('first')}: {text}")

    # Layers are known now; the same layers by hand are the same plan and the same run.
    text = said("launch", manifest("second", **base))
    check("layers known on cpu" in text and cut("second") == cut("first"), text)
    entries = "[" + ", ".join(f"{{layers: {layers}}}" for layers in cut("first")) + "]"
    launch(manifest("hand", **{**base, "pipeline.stages": entries, "pipeline.cut": "flops"}))
    for name in "second", "hand":
        check(plan_hash(name) == plan_hash("first"), f"{name}: another plan")
        check(losses(name) == losses("first") and weights(name) == weights("first"), f"{name}: another run")

    # Another machine's times: the run that goes on keeps its cut, and says what a new one would have; a new one has it.
    kept = json.loads(KEPT.read_text())
    for kind, seconds in ("embedding", 0.2), ("block", 0.05), ("head", 0.01):
        kept["times"].update({key: [seconds / 2, seconds / 2, 0] for key in kept["times"] if f" {kind}:" in key})
    KEPT.write_text(json.dumps(kept))
    for command in (("resume", ROOT / "first", "--epochs", 3),
                    ("launch", ROOT / "second.yaml", "--resume", "--set", "train.epochs=3")):
        before = cut("first")
        text = re.sub(r"\s+", " ", said(*command))
        check("a new run would be cut at 0-0 | 1-5 (" in text and f"this one keeps its cut {' | '.join(before)}" in text, text)
        check(cut("second") == before and cut("first") == before, f"{cut('first')}, {cut('second')}: not {before}")
    check(losses("first") == losses("second") and len(losses("first")) == 9, f"{losses('first')}\n{losses('second')}")
    launch(manifest("third", **base))
    check(cut("third") == ["0-0", "1-5"], f"third: {cut('third')}")

    # What `plan` says of cuts, and of a file that is none.
    KEPT.write_text("{")
    done = aqpipe("plan", ROOT / "hand.yaml", "--json", "--measure", "--set", "pipeline.stages=[{layers: 0-4}, {layers: 5-5}]",
                  "--set", "edges.list=[]")
    check(done.returncode == 0 and f"{KEPT} is not a file of measured layers" in done.stderr, done.stderr)
    time = json.loads(done.stdout)["time"]
    told = time["cut"]
    check(len(told["layer_s"]) == 6 and len(set(told["layer_s"][1:5])) == 1 and min(told["layer_s"]) > 0, told)
    check(told["best_slowest_s"] <= told["slowest_s"] and told["best_ends"][1] == 6, told)
    check(all(0 <= idle < 1 for idle in time["idle"]) and len(time["idle"]) == 2, time)
    check(json.loads(KEPT.read_text())["format"] == "aqpipe layers 1", "the file was not made anew")
    no_workers("balance")
