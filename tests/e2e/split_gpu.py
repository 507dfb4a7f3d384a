"""Split learning on GPUs, emulated or real, and on devices whose memory the host cannot reach: what is done to values at the cut."""
import json
import os
import re
import statistics
import sys

import jobs
from jobs import aqpipe, check, no_workers
from gpu import gpus_here
from kit import BIN, ROOT
from split import CODED, PLAIN, begin, lost, records, seen, split, whole

CLIP, GRADIENT_CLIP = 17.0, 0.5  # some are above, some below
CLIPS = {"split.privacy.clip": CLIP, "split.privacy.gradient_clip": GRADIENT_CLIP}
KEY = "split.privacy.distance_correlation"
PENALTY = {KEY: 100}
FEW = {**PLAIN, "pipeline.stages": "[{layers: 0-7, dials: true}, {layers: 8-11}, {layers: 12-13, dials: true}]", "model.width": 4, "split.rounds": 1, "split.epochs": 1, "split.capture": "64MiB"}


def logs(name):
    return "".join(path.read_text() for path in sorted((ROOT / f"{name}-a").rglob("stage-*.log")))


def clipped(name):
    """(samples that left, clipped) of activations and of gradients."""
    return [tuple(map(int, found)) for found in re.findall(r"of (\d+) (?:activations|gradients) that left, (\d+) were clipped", logs(name))]


def scenario_split_isolated():
    """Clip, penalty and capture where the host cannot reach the values, and streams are late: every bit as on a CPU."""
    begin("a")
    cases = {"both": {**FEW, **CLIPS, **PENALTY}, "clip": {**FEW, **CLIPS, "split.rounds": 2}, "penalty": {**FEW, **PENALTY},
             "coded": {**FEW, **CODED, **CLIPS, "pipeline.schedule": "gpipe", "train.micro_batch": 5}}
    for name, keys in cases.items():
        whole(split(name, **keys), "a")
        jobs.isolated(True)
        whole(split(f"{name}-apart", **keys), "a")
        jobs.isolated(False)
        check(lost(f"{name}-apart") == lost(name), f"{name}: losses {lost(f'{name}-apart')} are not {lost(name)}")
        check(sorted(seen(f"{name}-apart/clients/a")) == sorted(seen(f"{name}/clients/a")) != [], f"{name}: the server saw other values")
        check(clipped(f"{name}-apart") == clipped(name), f"{name}: {clipped(f'{name}-apart')}, {clipped(name)}")
        check(logs(name).count("distance correlation") == logs(f"{name}-apart").count("distance correlation") == (KEY in keys), name)
    check(lost("both") != lost("clip")[:3] != lost("penalty") != lost("both"), "clip or penalty does nothing")
    no_workers("split_isolated")


def on_gpus(first, server, last=None):
    """A client's two stages on these GPUs (one for both), the server's on that one; None: on a CPU."""
    middle = "device: cpu" if server is None else f"device: cuda, device_index: {server}"
    return (f"[{{layers: 0-7, dials: true, device: cuda, device_index: {first}}}, {{layers: 8-11, {middle}}}, "
            f"{{layers: 12-13, dials: true, device: cuda, device_index: {first if last is None else last}}}]")


def first(name, kind):
    """What the server saw of the first step: a vector a sample. Nothing has been learned by then."""
    return {line[4]: line[5] for line in seen(f"{name}/clients/a") if line[0] == kind and line[3] == 0}


def differences(name, other, kind):
    mine, theirs = first(name, kind), first(other, kind)
    check(len(mine) == 20 and mine.keys() == theirs.keys(), f"{name}: {sorted(mine)}, {other}: {sorted(theirs)}")
    return [a - b for sample in mine for a, b in zip(mine[sample], theirs[sample], strict=True)]


def pinned(path):
    """Of each stage: bytes of pinned host memory in the plan of a turn."""
    done = aqpipe("plan", path, "--json", "--set", "split.client=a")
    check(done.returncode == 0, done.stderr)
    return [stage["memory"].get("pinned", 0) for stage in json.loads(done.stdout)["stages"]]


def scenario_split_privacy_gpu():
    """Clip, noise and penalty on GPUs: what the server sees, there and the losses, is what it is of a client on CPUs; noise is as large as asked."""
    gpus = gpus_here()
    if gpus == 0:
        print("no GPU here")
        sys.exit(77)
    begin("a")
    records("test", 10, 2)
    gpu, every = {"pipeline.stages": on_gpus(*((0, 1) if gpus > 1 else (0, None)))}, {**FEW, **CLIPS, **PENALTY}
    whole(split("gpu", **{**every, **gpu}), "a")
    whole(split("cpu", **every), "a")
    for a, b in zip(lost("gpu"), lost("cpu"), strict=True):
        check(abs(a - b) < 1e-5 * b, f"losses {lost('gpu')}, on the CPU {lost('cpu')}")
    for limit, kind in ((CLIP, 1), (GRADIENT_CLIP / 20, 2)):
        norms = [sum(value * value for value in values) ** 0.5 for line in seen("gpu/clients/a") if line[0] == kind for values in [line[5]]]
        check(len(norms) == 60 and max(norms) <= limit * (1 + 1e-6), f"kind {kind}: a norm of {max(norms)}, where {limit} is the most")
        apart = max(map(abs, differences("gpu", "cpu", kind)))
        check(apart < 1e-4 * limit, f"kind {kind}: {apart} from what a client on CPUs sends")
    for mine, theirs in zip(clipped("gpu"), clipped("cpu"), strict=True):
        check(mine[0] == theirs[0] and abs(mine[1] - theirs[1]) <= 1 < mine[1] < mine[0], f"{clipped('gpu')}, on the CPU {clipped('cpu')}")

    # The penalty alone: it does on a GPU what it does on a CPU.
    for name, keys in (("none-cpu", {}), ("penalty-cpu", PENALTY), ("penalty", {**PENALTY, **gpu})):
        whole(split(name, **{**FEW, **keys}), "a")
    check(all(abs(a - b) < 1e-5 * b for a, b in zip(lost("penalty"), lost("penalty-cpu"), strict=True)), f"{lost('penalty')}")
    check(max(abs(a - b) / b for a, b in zip(lost("penalty"), lost("none-cpu"))) > 1e-3, f"the penalty does nothing: {lost('penalty')}")
    check("were clipped" not in logs("penalty") and "split.privacy" not in logs("none-cpu"), logs("penalty"))

    # Noise: what it adds to the first step's values has the deviation that was asked for, and no mean.
    noise, gradient_noise = 0.05, 20.0
    noisy = {**FEW, **CLIPS, **gpu, "split.privacy.noise": noise, "split.privacy.gradient_noise": gradient_noise}
    for name in ("noisy", "noisier"):
        whole(split(name, **noisy), "a")
    for kind, sigma in ((1, noise * CLIP), (2, gradient_noise * GRADIENT_CLIP / 20)):
        for name, other, wanted in (("noisy", "gpu", sigma), ("noisier", "noisy", sigma * 2 ** 0.5)):
            drawn = differences(name, other, kind)
            check(abs(statistics.stdev(drawn) / wanted - 1) < 0.08 and abs(statistics.fmean(drawn)) < 5 * wanted / len(drawn) ** 0.5,
                  f"{name}, kind {kind}: deviation {statistics.stdev(drawn)}, mean {statistics.fmean(drawn)}; asked for {wanted}")

    # Streams that run at once, or late in another time, and bodies over NCCL: who waits where it must gets the same bits.
    if BIN.name == "cuda_host":
        apart = {"pipeline.stages": on_gpus(0, 1, 2)}
        for name, stages, changed in (("early", gpu, {"CUDA_HOST_STREAMS": "early"}),
                                      ("late", apart, {"CUDA_HOST_LOOKS": "20", "CUDA_HOST_IPC": "0"})):
            os.environ.update(changed)
            whole(split(name, **{**every, **stages}), "a")
            for key in changed:
                os.environ.pop(key)
            check(lost(name) == lost("gpu") and sorted(seen(f"{name}/clients/a")) == sorted(seen("gpu/clients/a")), f"{name}: other bits")
        check("goes by NCCL" in logs("late") and "goes by CUDA IPC" in logs("gpu"), logs("late"))

    # The plan has the pinned memory of a micro-batch's values, at the stages that look at them.
    bytes_of = 10 * len(next(iter(first("gpu", 1).values()))) * 4, 10 * len(next(iter(first("gpu", 2).values()))) * 4
    less = pinned(split("less", **{**FEW, **gpu, "split.capture": 0}))
    more = [b - a for a, b in zip(less, pinned(split("more", **{**every, **gpu})))]
    check(more == [bytes_of[0], max(bytes_of) if gpus > 1 else 0, bytes_of[1]], f"{more} bytes of pinned memory, values are {bytes_of}")
    check(pinned(split("host", **every)) == pinned(split("host-less", **{**FEW, "split.capture": 0})), "pinned memory of a CPU")
    no_workers("split_privacy_gpu")
