"""Split learning's modes: what a round of SplitFed makes of its turns, who takes part, and who is late."""
import array
import ctypes
import ctypes.util
import json
import os
import signal
import time

import jobs
from jobs import check, launch, losses, no_workers
from kit import ROOT
from split import CODED, PLAIN, Client, Server, await_step, begin, job, of_client, report, split, tensors, whole


def averaged(parts):
    """Of [(samples, bytes of floats)]: sums in double, one after the other, as runtime/split/split_weights.c has it."""
    total, out = None, None
    for samples, values in parts:
        products = [float(samples) * value for value in array.array("f", values)]
        out = products if out is None else [a + b for a, b in zip(out, products)]
        total = samples if total is None else total + samples
    return array.array("f", [value / total for value in out]).tobytes()


def rewrite(path, values):
    """A checkpoint's file with other values, and their digest: what every tensor's bytes chain to."""
    library = ctypes.CDLL(ctypes.util.find_library("xxhash"))
    library.XXH3_64bits_withSeed.restype = ctypes.c_uint64
    library.XXH3_64bits_withSeed.argtypes = [ctypes.c_char_p, ctypes.c_size_t, ctypes.c_uint64]
    blob = path.read_bytes()
    size = int.from_bytes(blob[:8], "little")
    head = json.loads(blob[8:8 + size])
    digest, body = 0, bytearray(blob[8 + size:])
    for name, about in sorted(((n, a) for n, a in head.items() if n != "__metadata__"), key=lambda item: item[1]["data_offsets"][0]):
        first, last = about["data_offsets"]
        body[first:last] = values[name]
        digest = library.XXH3_64bits_withSeed(values[name], last - first, digest)
    was = head["__metadata__"]["digest"].encode()
    assert blob[:8 + size].count(was) == 1
    path.write_bytes(blob[:8 + size].replace(was, b"%016x" % digest) + bytes(body))


def together(folder):
    """The three stages' tensors as one stage has them: the optimizer's arrays one behind the other."""
    out = {}
    for rank in range(3):
        for name, values in tensors(folder / f"stage-{rank}.safetensors").items():
            out[name] = out.get(name, b"") + values if name.startswith("optimizer.") else values
    return out


def newest(server):
    state = json.loads((ROOT / server / "split.json").read_text())
    return ROOT / server / "weights" / str(state["weights"])


def scenario_split_fed():
    """SplitFed v1 is FedAvg of the unsplit runs bit for bit, statistics and momenta too; one client is the unsplit run; v2 is neither."""
    begin("a", "b")
    samples, steps = {"a": 60, "b": 45}, {"a": 3, "b": 3}
    for name in samples:
        launch(job(f"alone-{name}", **{**PLAIN, "pipeline.stages": 1, "data.train": str(ROOT / f"{name}.bin"), "train.epochs": 1}))
    whole(split("fed", rounds=2, epochs=1, clients=2, **{**PLAIN, "split.mode": "splitfed1", "split.collect": "true"}), "a", "b")
    for turn in (1, 2):
        files = {name: ROOT / f"alone-{name}/checkpoint/{turn * steps[name]}/stage-0.safetensors" for name in samples}
        ours = {name: tensors(path) for name, path in files.items()}
        mean = {tensor: averaged([(samples[name], ours[name][tensor]) for name in sorted(ours)]) for tensor in ours["a"]}
        for name, path in files.items():
            rewrite(path, mean)
        if turn == 1:
            for name in samples:
                launch(job(f"alone-{name}", **{**PLAIN, "pipeline.stages": 1, "data.train": str(ROOT / f"{name}.bin"), "train.epochs": 2}),
                       "--resume")
    for name in samples:
        check(losses(f"alone-{name}") == [line["loss"] for line in of_client("fed", name)], f"{name}: not FedAvg's losses")
    check(together(newest("fed")) == mean, "not FedAvg's weights")
    model = tensors(ROOT / "fed/model.safetensors")
    check(all(values == mean[name] for name, values in model.items()), "the model that is left is another")
    check(not list((ROOT / "fed/round").glob("*/*")), "turns that were averaged are kept")

    for mode in ("splitfed1", "splitfed2"):  # of one client both are the run that was not split
        whole(split(f"one-{mode}", rounds=2, epochs=1, **{**PLAIN, "split.mode": mode}), "a")
    launch(job("unsplit", **{**PLAIN, "pipeline.stages": 1, "train.epochs": 2}))
    for mode in ("splitfed1", "splitfed2"):
        check(losses("unsplit") == [line["loss"] for line in of_client(f"one-{mode}", "a")], f"{mode}: one client is another run")

    # v2: the middle goes from turn to turn, the ends from round to round.
    server = whole(split("two", rounds=2, epochs=1, clients=2, **{**PLAIN, "split.mode": "splitfed2"}), "a", "b")
    order = [line.split(": ")[2].split()[0] for line in server.text().splitlines() if " trains steps " in line]
    last = {name: tensors(ROOT / f"two/clients/{name}/checkpoint/6/stage-1.safetensors") for name in samples}
    check(tensors(newest("two") / "stage-1.safetensors") == last[order[3]] and last["a"] != last["b"], "v2's middle is not the last turn's")
    ends = {name: tensors(ROOT / f"two-{name}/run/checkpoint/6/stage-0.safetensors") for name in samples}
    mean = {tensor: averaged([(samples[name], ends[name][tensor]) for name in sorted(ends)]) for tensor in ends["a"]}
    check(tensors(newest("two") / "stage-0.safetensors") == mean, "v2's first stage is not averaged")
    first, second = order[:2]
    check(of_client("two", first)[0]["loss"] == of_client("fed", first)[0]["loss"], "v2's first turn begins with other weights")
    check(of_client("two", second)[0]["loss"] != of_client("fed", second)[0]["loss"], "v2's second turn has not the first one's middle")
    check(report("two")["mode"] == "splitfed2", report("two"))
    no_workers("split_fed")
