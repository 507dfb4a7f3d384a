"""What a run says that it loses without failing: once, with what to change, and in every place that a person looks at."""
import array
import json
import shutil
import struct

from kit import ROOT, check
from jobs import aqpipe, launch, losses, manifest, metrics

JOB = {"pipeline.stages": 2, "train.evaluate_every": 0, "edges.forward.codec": None}


def scaled(folder, name, factor):
    """The weights of a folder with one tensor so many times as large."""
    path = folder / "model.safetensors"
    data = bytearray(path.read_bytes())
    length = struct.unpack("<Q", data[:8])[0]
    first, end = (8 + length + offset for offset in json.loads(data[8:8 + length])[name]["data_offsets"])
    values = array.array("f", bytes(data[first:end]))
    data[first:end] = array.array("f", [factor * value for value in values]).tobytes()
    path.write_bytes(data)


def told(done, name, text):
    """The line, which stands once on the run's output and once in each of the others."""
    check(done.stderr.count(text) == 1, f"{name}: '{text}' is {done.stderr.count(text)} times in\n{done.stderr}")
    check([line["text"] for line in metrics(name, "notice") if text in line["text"]], f"{name}: no notice of '{text}'")
    for command in (("report", ROOT / name), ("status", ROOT / name), ("top", "--once", ROOT / name)):
        said = " ".join(aqpipe(*command).stdout.split())
        check(said.count(text) == 1, f"{command}: {said}")


def scenario_notices():
    """Embeddings of 10^5: no sample is raw under the default codecs, and those are told that a named fp16 sends so; a cut
    that loses its gradients is told; a guard mends that."""
    launch(manifest("first", **{**JOB, "train.steps_max": 1, "train.lr": "1e-9"}))
    large = ROOT / "large"
    large.mkdir()
    for name in ("model.safetensors", "config.json"):
        shutil.copy(ROOT / "first" / name, large)
    scaled(large, "transformer.wte.weight", 2.5e6)
    model = {key: None for key in ("model.blocks", "model.heads", "model.channels", "model.context", "model.tied")}
    job = {**JOB, **model, "model.weights": str(large), "data.tokenizer": "bytes", "train.epochs": 5}
    launch(manifest("raw", **{**job, "edges.forward.codec": "raw", "edges.backward.codec": "raw"}))
    for name, edges in (("unsaid", {}), ("aqsgd", {"edges.forward.codec": "aqsgd"})):
        done = launch(manifest(name, **{**job, **edges}))
        check(all(line["raws"][0] == 0 and line["backward_raws"][1] == 0 for line in metrics(name)), f"{name} has raw samples")
        check(all(line["wide"][0] == line["samples"] for line in metrics(name)), f"{name}: not all are in bf16")
        told(done, name, "cut 0 forward: there are values that fp16 cannot hold")
        check(abs(losses(name)[-1] - losses("raw")[-1]) < 0.02 * losses("raw")[-1], f"{name}: {losses(name)} {losses('raw')}")
    for name, edges in (("store", "{codec: aqsgd, store: fp16}"), ("plain", "{codec: raw, precision: fp16}")):
        done = launch(manifest(name, **job), "--set", f"edges.forward={edges}")
        check(all(line["raws"][0] == line["samples"] for line in metrics(name)), f"{name}: raw samples are not counted")
        told(done, name, "samples went as 32-bit floats, because their values do not fit the codec")
    bad = {**JOB, "edges.backward.codec": "directq", "edges.backward.bits": 1, "train.epochs": 10}
    told(launch(manifest("lossy", **bad)), "lossy", "cut 0 backward: 8 steps in a row lost more than half of the gradients")
    done = launch(manifest("guarded", **bad, **{"edges.guard": "true"}))
    check("lost more than half" not in done.stderr, done.stderr)
    bits = [line["backward_bits"][1] for line in metrics("guarded")]
    check(bits[0] == 1 and bits[-1] == 2, f"the guard of gradients: {bits}")
