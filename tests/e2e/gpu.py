"""Stages on GPUs, real or emulated (tests/cuda_host), compared with the CPU and with links."""
import json
import os
import re
import shutil
import subprocess
import sys

import jobs
from images import hundred
from jobs import aqpipe, check, launch, losses, manifest, metrics, no_workers, weights
from kit import BIN, OPTIMIZERS, REPLICAS, RESTARTED, ROOT, arrays, interrupt, launch_and_kill, refused, same_run
from split import records


def emulated(epochs):
    """Emulated kernels take a thousand times as long: a smaller job of as many stages, micro-batches and kinds of layers."""
    return {"model.blocks": 4, "model.channels": 32, "model.context": 16, "train.T": 16, "data.train_samples_max": 14,
            "train.epochs": epochs} if BIN.name == "cuda_host" else {}


def scenario_gpu():
    """A job on a GPU learns as it does on the CPU, and a stage on each keep their caches one."""
    keys = {"edges.forward.codec": "aqsgd", "edges.forward.bits": 4, "edges.backward.codec": "directq",
            "edges.backward.bits": 8, "pipeline.stages": 2, "model.channels": 64, **emulated(2)}
    launch(manifest("cpu", **keys))
    for name, devices in (("gpu", ("cuda", "cuda")), ("mixed", ("cpu", "cuda")), ("mixed-back", ("cuda", "cpu")),
                          ("fp16", ("cuda", "cuda"))):
        if name == "fp16":
            keys = {**keys, "train.epochs": 1}
            launch(manifest("short", **keys))
            keys["model.precision"] = "fp16"
        like = "short" if name == "fp16" else "cpu"
        stages = f"[{{layers: 0-2, device: {devices[0]}}}, {{layers: 3-5, device: {devices[1]}}}]"
        path = manifest(name, **{**keys, "pipeline.stages": stages})
        done = aqpipe("launch", path, "--no-progress")
        if done.returncode and "device: cuda" in done.stderr and os.environ.get("AQ_GPU") != "required":
            print(done.stderr.strip().split("\n")[-1])
            sys.exit(77)
        check(done.returncode == 0, f"{name}: {done.stderr[-2000:]}")
        for a, b in zip(losses(name), losses(like), strict=True):
            check(abs(a - b) < 0.02 * abs(b), f"{name}: losses {losses(name)}, on the CPU {losses(like)}")
        fetched = sum(x or 0 for line in metrics(name) for x in line["fetched"])
        check(fetched == 0, f"{name}: {fetched} messages were fetched: the caches were not one")
        for log in (ROOT / name / "logs").glob("stage-*.log"):
            check("beyond the plan" not in log.read_text(), f"{log}: the plan is not all that the GPU has to hold")
    # Streams that run at once, or (on a GPU) in another time: who waits where it must gets the same bits.
    stages = "[{layers: 0-2, device: cuda}, {layers: 3-5, device: cuda}]"
    gpipe = {**keys, "pipeline.stages": stages, "pipeline.schedule": "gpipe", "train.micro_batch": 1, "train.epochs": 2,
             "data.train_samples_max": 8, "data.heldout_samples_max": 2}
    launch(manifest("gpipe", **gpipe))
    os.environ["CUDA_HOST_STREAMS"] = "early"
    launch(manifest("early", **gpipe))
    os.environ.pop("CUDA_HOST_STREAMS")
    check(losses("early") == losses("gpipe"), f"losses {losses('gpipe')}, with other timing {losses('early')}")
    check(weights("early") == weights("gpipe"), "with other timing model.safetensors differs")
    # One slot for all micro-batches, the last one shorter: a forward waits until the loss of the one before is taken up.
    slot = {**SMALL, "train.epochs": 1, "pipeline.stages": "[{layers: 0-2, device: cuda}]", "train.micro_batch": 2,
            "data.train_samples_max": 7}
    for name, key, value in (("slot", "CUDA_HOST_STREAMS", "early"), ("slot-late", "CUDA_HOST_LOOKS", "300")):
        os.environ[key] = value
        launch(manifest(name, **slot))
        os.environ.pop(key)
    check(losses("slot-late") == losses("slot"), f"losses {losses('slot-late')}, in time {losses('slot')}")
    check(weights("slot-late") == weights("slot"), "a slot was taken before its time: model.safetensors differs")
    # A checkpoint says where it was written; going on elsewhere is allowed and said.
    os.environ["CUDA_HOST_CAPABILITY"] = "80"
    launch(ROOT / "slot.yaml", "--resume", "--set", "train.epochs=2")
    os.environ.pop("CUDA_HOST_CAPABILITY")
    log = "".join(file.read_text() for file in (ROOT / "slot/logs").glob("stage-0*"))
    said = re.search(r"written on .*, \d+ processors, cuBLASLt \d+, and continues on .*sm_80.*: from here on its bits may differ", log)
    check(bool(said) == ("cuda_host" in str(BIN)), f"resumed: {'a' if said else 'no'} warning of another GPU")
    no_workers("gpu")


def scenario_gpu_bad_input():
    """What keeps a stage from its GPU is one line with cause and remedy; auto takes the CPU where there is none, and says so."""
    def stages(device):
        return {"pipeline.stages": f"[{{layers: 0-5, device: {device}}}]", "train.epochs": 1}

    def wrong(tag, device, pattern, **environment):
        os.environ.update(environment)
        refused(tag, manifest(f"{tag}-{device}", **stages(device)), pattern, 1)
        for name in environment:
            os.environ.pop(name)

    for device in ("cuda", "auto"):
        wrong("driver", device, r"the driver is for CUDA 12\.4, this build for 13\.0; install a later driver", CUDA_HOST_DRIVER="12040")
        wrong("old", device, r"capability 7\.5; this build is for sm_.*build with -DCMAKE_CUDA_ARCHITECTURES=75",
              CUDA_HOST_CAPABILITY="75")
        wrong("memory", device, r"needs 0\.\d+ GiB, 0\.\d+ of 0\.13 GiB are free; this process holds 0\.13, and 0\.00 are the CUDA context's.*"
              r"; stage 0: device scratch 256 MiB, slots [0-9.]+ KiB, .*; lower train\.micro_batch", CUDA_HOST_MIB="129")
        wrong("little", device, r"needs 0\.\d+ GiB, 0\.06 of 0\.06 GiB are free.*; take another GPU", CUDA_HOST_MIB="64")
    wrong("none", "cuda", r"no NVIDIA driver here .*; install the driver for CUDA 13\.0 or later, or set device: cpu",
          CUDA_HOST_DRIVER="0")
    # A plan assumes nothing of a GPU: its time is measured on one, or not told.
    path = manifest("plan", **stages("cuda"))
    measured = aqpipe("plan", path, "--measure")
    check(measured.returncode == 0 and "predicted step" in measured.stdout, f"plan --measure: {measured.stdout} {measured.stderr}")
    os.environ["CUDA_HOST_DRIVER"] = "0"
    for arguments, code in (((), 0), (("--measure",), 1)):
        told = aqpipe("plan", path, *arguments)
        check(told.returncode == code and "time: a GPU's cannot be foretold" in told.stdout and "predicted" not in told.stdout,
              f"plan {arguments}: {told.stdout}")
        check(code == 0 or "no NVIDIA driver here" in told.stderr, f"plan {arguments} does not say why: {told.stderr}")
    check(json.loads(aqpipe("plan", path, "--json").stdout)["time"] is None, "plan --json tells a GPU's time")
    path = manifest("cpu-auto", **stages("auto"))
    done = launch(path)
    check(re.search(r"rank 0, whose device is auto, is on cpu: ", done.stderr), f"auto does not say where: {done.stderr}")
    os.environ.pop("CUDA_HOST_DRIVER")
    no_workers("gpu_bad_input")


def scenario_replicas_one_gpu():
    """Two replicas whose stages share one GPU learn as on the CPU, and stay bit-identical."""
    keys = {**REPLICAS, "edges.forward.codec": "aqsgd", "edges.forward.bits": 4, "edges.backward.codec": "directq",
            "edges.backward.bits": 8, "model.channels": 64, "reduce.codec": "q4", **emulated(2)}
    launch(manifest("cpu", **keys))
    path = manifest("gpu", **{**keys, "pipeline.stages": "[{layers: 0-2, device: cuda}, {layers: 3-5, device: cuda}]"})
    done = aqpipe("launch", path, "--no-progress")
    if done.returncode and "device: cuda" in done.stderr and os.environ.get("AQ_GPU") != "required":
        print(done.stderr.strip().split("\n")[-1])
        sys.exit(77)
    check(done.returncode == 0, f"gpu: {done.stderr[-2000:]}")
    for a, b in zip(losses("gpu"), losses("cpu"), strict=True):
        check(abs(a - b) < 0.02 * abs(b), f"losses {losses('gpu')}, on the CPU {losses('cpu')}")
    for rank in (2, 3):
        mine, other = arrays("gpu", rank), arrays("gpu", rank - 2)
        check(all(mine[key] == other[key] for key in mine if "error" not in key), f"rank {rank} differs")
    no_workers("replicas_one_gpu")


def scenario_replicas_gpu():
    """Replicas on GPUs of their own average over NCCL, on one GPU over links, with the same bits; what cannot be is said."""
    os.environ["CUDA_HOST_GPUS"] = "2"
    codecs = {"edges.forward.codec": "aqsgd", "edges.forward.bits": 4, "edges.backward.codec": "directq",
              "edges.backward.bits": 8}
    base = {**REPLICAS, **codecs, **SMALL, "train.micro_batch": 2, "data.train_samples_max": 12, "train.epochs": 1, "reduce.codec": "q4"}

    def stages(*places):
        return ("[" + ", ".join(f"{{layers: {layers}, device: [{a}, {b}], device_index: [{i}, {j}]}}"
                                for layers, ((a, i), (b, j)) in zip(("0-1", "2"), places)) + "]")

    def log(name):
        return "".join(file.read_text() for file in (ROOT / name / "logs").iterdir())
    apart, one = (("cuda", 0), ("cuda", 1)), (("cuda", 0), ("cuda", 0))
    cpus = (("cpu", 0), ("cpu", 0))
    momenta = {**base, "train.optimizer": "qadam", "optimizer.warmup_steps": 2}
    nccl = manifest("nccl", **{**momenta, "pipeline.stages": stages(apart, apart)})
    plan = aqpipe("plan", nccl).stdout
    check("over NCCL if each replica of a stage has its own GPU" in plan and " reduction " in plan, plan)
    launch(nccl)
    check(all(f"stage {s} reduces by NCCL" in log("nccl") for s in (0, 1)), log("nccl"))
    for name, places, keys in (("links", apart, {"reduce.transport": "links"}), ("shared", one, {}),
                               ("paced", apart, {"link.rate_mbps": 400})):
        launch(manifest(name, **{**momenta, **keys, "pipeline.stages": stages(places, places)}))
        check("NCCL" not in log(name), f"{name}: {log(name)}")
        check(losses(name) == losses("nccl"), f"{name}: losses {losses(name)}, over NCCL {losses('nccl')}")
        check(weights(name) == weights("nccl"), f"{name}: model.safetensors differs")
    fp32 = {**base, "reduce.codec": "fp32", "pipeline.stages": stages(apart, apart)}
    launch(manifest("fp32", **fp32))
    launch(manifest("fp32-links", **{**fp32, "reduce.transport": "links"}))
    check(losses("fp32-links") == losses("fp32") and weights("fp32-links") == weights("fp32"), "sums in fp32 differ")
    longer = {**momenta, **RESTARTED, "train.epochs": 3, "pipeline.stages": stages(apart, apart)}
    launch(manifest("whole", **longer))
    launch_and_kill(manifest("killed", **longer), [(5, 3)])  # all others leave NCCL, and begin again
    same_run("killed", "whole")
    auto = manifest("auto", **{**base, "reduce.codec": "auto", "pipeline.stages": stages(apart, apart)})
    launch(auto)
    check(all(codecs[:2] == codecs[2:] for codecs in (line["reduce_codec"] for line in metrics("auto"))), "auto")
    refused("one GPU", manifest("one", **{**base, "reduce.transport": "nccl", "pipeline.stages": stages(one, one)}),
            r"ranks 0 and 1 share a GPU, and NCCL needs one for each", 1)
    refused("a CPU", manifest("cpu", **{**base, "reduce.transport": "nccl", "pipeline.stages": stages(cpus, apart)}),
            r"cpu\.yaml:\d+:\d+: reduce\.transport: nccl needs GPUs, and stage 0 is on the CPU", 2)
    refused("beside a CPU", manifest("beside", **{**base, "pipeline.stages": stages(apart, (("cpu", 0), ("cuda", 1)))}),
            r"beside\.yaml:\d+:\d+: pipeline\.stages: stage 1 has replicas on cpu and on cuda", 2)
    refused("machine first", manifest("machine", **{**base, **OPTIMIZERS["slamb"], "reduce.codec": "fp32",
                                                    "reduce.machine_first": "true", "pipeline.stages": stages(one, one)}),
            r"machine\.yaml:\d+:\d+: reduce\.machine_first: stage 0 is on a GPU: replicas of a host average", 2)
    no_workers("replicas_gpu")


SMALL = {"model.blocks": 1, "model.channels": 16, "model.context": 16, "train.T": 16, "data.train_samples_max": 8,
         "data.heldout_samples_max": 3, "train.batch": 4, "train.micro_batch": 1}


def on_gpus(*indices):
    """pipeline.stages of a SMALL model, each on the GPU of its index."""
    cuts = {2: ("0-1", "2"), 3: ("0", "1", "2")}[len(indices)]
    return ("[" + ", ".join(f"{{layers: {cut}, device: cuda, device_index: {i}}}" for cut, i in zip(cuts, indices)) + "]")


def logs(name):
    return "".join(file.read_text() for file in (ROOT / name / "logs").iterdir())


def gpus_here():
    """Of tests as many as are wanted."""
    if BIN.name == "cuda_host":
        os.environ["CUDA_HOST_GPUS"] = "4"
        return 4
    try:
        return subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True).stdout.count("GPU ")
    except OSError:
        return 0


def scenario_edges_gpu():
    """Stages on GPUs hand bodies on by CUDA IPC or over NCCL, with the bits of links; what cannot be is said, or gives way."""
    codecs = {"edges.forward.codec": "aqsgd", "edges.forward.bits": 4, "edges.backward.codec": "directq",
              "edges.backward.bits": 8}
    base = {**SMALL, **codecs, "train.epochs": 2, "pipeline.stages": on_gpus(0, 1, 2)}
    links = {"link.transport": "links"}
    gpus = gpus_here()
    if gpus == 0:
        print("no GPU here")
        sys.exit(77)
    one = {**base, "pipeline.stages": on_gpus(0, 0)}
    launch(manifest("one", **one))
    check("edge 0 goes by CUDA IPC, from GPU to GPU" in logs("one") and "NCCL" not in logs("one"), logs("one"))
    check("mapped memory that is freed" not in logs("one"), "memory is freed before the neighbour has let go of it")
    refused("one GPU", manifest("one-nccl", **{**one, "link.transport": "nccl"}),
            r"stages 0 and 1 share a GPU, and NCCL needs one for each: give each its own, or set link\.transport: links", 1)

    def same(name, other):
        check(losses(name) == losses(other), f"{name}: losses {losses(name)}, {other} {losses(other)}")
        check([x["loss"] for x in metrics(name, "eval")] == [x["loss"] for x in metrics(other, "eval")], f"{name}: eval")
        check(weights(name) == weights(other), f"{name}: model.safetensors differs from {other}'s")

    launch(manifest("one-links", **{**one, **links}))
    check("goes by" not in logs("one-links"), logs("one-links"))
    same("one", "one-links")
    if BIN.name == "cuda_host":  # a body may be overwritten when its copy has passed, and no earlier
        many = {**one, "pipeline.schedule": "gpipe", "train.batch": 8, "train.epochs": 1}
        launch(manifest("many", **many, **links))
        os.environ["CUDA_HOST_COPY_MS"] = "60"
        launch(manifest("slow", **many))
        os.environ.pop("CUDA_HOST_COPY_MS")
        check("goes by CUDA IPC" in logs("slow"), logs("slow"))
        same("slow", "many")
    if gpus > 1:
        launch(manifest("two", **{**base, "pipeline.stages": on_gpus(0, 1), "link.transport": "nccl"}))
        check("edge 0 goes by NCCL, from GPU to GPU" in logs("two"), logs("two"))
        same("two", "one")
    if BIN.name == "cuda_host":  # where memory cannot be mapped: NCCL, or where it cannot be either, links
        os.environ["CUDA_HOST_IPC"] = "0"
        for name, stages, line in (("no-ipc", on_gpus(0, 1), "edge 0 goes by NCCL"), ("no-way", on_gpus(0, 0), "")):
            launch(manifest(name, **{**base, "pipeline.stages": stages}))
            check("edge 0: not by CUDA IPC: " in logs(name) and line in logs(name), logs(name))
            check(line or "goes by" not in logs(name), logs(name))
            same(name, "one")
        refused("no memory is mapped", manifest("must-ipc", **{**one, "link.transport": "ipc"}),
                r"link\.transport: ipc: stages 0 and 1 cannot map each other's memory", 1)
        os.environ.pop("CUDA_HOST_IPC")
    if gpus < 4:
        print(f"{gpus} GPUs: the rest wants 4")
        return
    path = manifest("ipc", **base)
    plan, told = aqpipe("plan", path).stdout, json.loads(aqpipe("plan", path, "--json").stdout)
    check("by CUDA IPC where the two stages' GPUs are on one machine" in plan and " bodies between GPUs " in plan, plan)
    check([edge["transport"] for edge in told["edges"]] == ["auto", "auto"], told["edges"])
    launch(path)
    check(all(f"edge {e} goes by CUDA IPC, from GPU to GPU" in logs("ipc") for e in (0, 1)), logs("ipc"))
    check("mapped memory that is freed" not in logs("ipc"), "memory is freed before the neighbour has let go of it")
    check("beyond the plan" not in logs("ipc"), "the plan is not all that a GPU has to hold")
    os.environ["CUDA_HOST_LAZY"] = "1"  # nothing is loaded while NCCL waits: all has been run once before
    launch(manifest("nccl", **{**base, "link.transport": "nccl"}))
    os.environ.pop("CUDA_HOST_LAZY")
    launch(manifest("links", **{**base, **links}))
    same("ipc", "nccl")
    check(all(f"edge {e} goes by NCCL, from GPU to GPU" in logs("nccl") for e in (0, 1)), logs("nccl"))
    check("beyond the plan" not in logs("nccl"), "the plan is not all that a GPU has to hold")
    check("NCCL" not in logs("links"), logs("links"))
    same("nccl", "links")
    for line, like in zip(metrics("nccl"), metrics("links")):
        for key in ("forward_bytes", "backward_bytes", "keyframes", "fetched"):
            check(line[key] == like[key], f"{key}: {line[key]}, over links {like[key]}")
        check(set(line["forward_packed"][:2] + line["backward_packed"][1:]) == {1}, f"nothing is packed: {line}")
    launch(manifest("paced", **{**base, "link.rate_mbps": 400}))
    check("goes by" not in logs("paced"), logs("paced"))
    # Raw bodies, fewer frames in flight than there are slots; messages in 8 bits, part of a gradient.
    short = {**base, "train.epochs": 1, "pipeline.stages": on_gpus(3, 1)}
    for name, keys in (("bf16", {"edges.forward.codec": "raw", "edges.forward.precision": "bf16", "edges.backward.codec":
                                 "raw", "edges.backward.precision": "bf16", "pipeline.schedule": "gpipe",
                                 "link.receive_slots": 1, "link.send_frames": 1, "cache.kind": "memory"}),
                       ("fp16", {"model.precision": "fp16", "edges.forward.store": "q8", "edges.backward.top_k": 0.3,
                                 "train.micro_batch": 2})):
        way = "ipc" if name == "bf16" else "nccl"
        launch(manifest(name, **{**short, **keys, "link.transport": way}))
        launch(manifest(f"{name}-links", **{**short, **keys, **links}))
        check(f"edge 0 goes by {'CUDA IPC' if way == 'ipc' else 'NCCL'}" in logs(name), logs(name))
        same(name, f"{name}-links")
    # Two replicas of two stages: their gradients over NCCL, too.
    both = {**short, "pipeline.replicas": 2, "pipeline.stages": "[{layers: 0-1, device: cuda, device_index: [0, 1]}, "
            "{layers: 2, device: cuda, device_index: [2, 3]}]"}
    launch(manifest("both", **both))
    launch(manifest("both-links", **{**both, **links, "reduce.transport": "links"}))
    check("goes by CUDA IPC" in logs("both") and "reduces by NCCL" in logs("both") and "NCCL" not in logs("both-links"), "both")
    same("both", "both-links")
    no_workers("edges_gpu")


def scenario_edges_gpu_fault():
    """Over NCCL, and by IPC: a link that is cut heals, lost messages are fetched, a stage that dies ends all others, which begin again."""
    gpus_here()
    base = {**RESTARTED, **SMALL, "train.epochs": 9, "pipeline.stages": on_gpus(0, 1, 2), "link.transport": "nccl"}
    launch(manifest("whole", **base))
    with jobs.faults(links="seed=1&cut_every=1500"):
        launch(manifest("cut", **base))
    heals = sum(metrics("cut")[-1]["heals"])
    check(heals >= 5, f"only {heals} links were healed")
    check(same_run("cut", "whole") == 0 and "goes by NCCL" in logs("cut"), "a message was fetched, or it was not over NCCL")
    path = manifest("lost", **base)
    interrupt("sigint", path, 9)
    shutil.rmtree(ROOT / "lost" / "cache" / "stage-1")
    launch(path, "--resume")
    check(same_run("lost", "whole") > 0, "nothing was fetched")
    launch_and_kill(manifest("killed", **base), [(4, 1), (11, 2)])
    same_run("killed", "whole")
    ipc = {**base, "link.transport": "ipc"}
    with jobs.faults(links="seed=2&cut_every=1500"):
        launch(manifest("ipc-cut", **ipc))
    check(same_run("ipc-cut", "whole") == 0 and "goes by CUDA IPC" in logs("ipc-cut"), "a message was fetched, or it was not by IPC")
    launch_and_kill(manifest("ipc-killed", **ipc), [(4, 1), (11, 0)])
    same_run("ipc-killed", "whole")
    refused("one GPU", manifest("one", **{**base, "pipeline.stages": on_gpus(0, 1, 1)}), r"stages 1 and 2 share a GPU", 1)
    cpu = "[{layers: 0-1, device: cpu}, {layers: 2, device: cuda}]"
    refused("a CPU", manifest("cpu", **{**base, "pipeline.stages": cpu}),
            r"cpu\.yaml:\d+:\d+: link\.transport: nccl needs GPUs, and stage 0 is on the CPU", 2)
    no_workers("edges_gpu_fault")


def scenario_gpu_default():
    """A job that names no codec, on two GPU stages, has the losses of the same job on CPUs; so has a job with long samples."""
    stages = "[{layers: 0-2, device: cuda}, {layers: 3-5, device: cuda}]"
    for name, keys in (("plain", {"model.channels": 64, **emulated(2)}),
                       # Samples long enough that keyframes and gradients are coded against their channel means.
                       ("long", {"model.channels": 64, "model.context": 128, "train.T": 128, "data.train_samples_max": 10, "train.batch": 4,
                                 **({"model.channels": 32, "data.train_samples_max": 4, "data.heldout_samples_max": 2} if emulated(1) else {})})):
        keys = {"edges.forward.codec": None, "pipeline.stages": 2, "train.epochs": 2, **keys}
        launch(manifest(f"{name}-cpu", **keys))
        done = aqpipe("launch", manifest(f"{name}-gpu", **{**keys, "pipeline.stages": stages}), "--no-progress", "--restarts", "0")
        if done.returncode and "device: cuda" in done.stderr and os.environ.get("AQ_GPU") != "required":
            print(done.stderr.strip().split("\n")[-1])
            sys.exit(77)
        check(done.returncode == 0, f"{name}: {done.stderr[-2000:]}")
        for a, b in zip(losses(f"{name}-gpu"), losses(f"{name}-cpu"), strict=True):
            check(abs(a - b) < 1e-3 * abs(b), f"{name}: losses {losses(f'{name}-gpu')}, on the CPU {losses(f'{name}-cpu')}")
    no_workers("gpu_default")


def scenario_images_gpu():
    """A ResNet on GPU stages has the losses of the same job on CPUs, whether its convolutions are gathered rows or cuDNN's; a resumed one is told of the change."""
    records("many", 8, 1, 100, lambda label: label // 5)
    records("heldout", 4, 2, 100, lambda label: label // 5)
    keys = {"data.train": "many.bin", "train.batch": 4, "train.micro_batch": 2, "train.epochs": 2, "pipeline.stages": 2}
    launch(hundred("cpu", **keys))
    keys["pipeline.stages"] = "[{layers: 0-2, device: cuda}, {layers: 3-6, device: cuda}]"
    for name, way, precision in (("rows", "own", "fp32"), ("cudnn", "cudnn", "fp32"), ("rows-bf16", "own", "bf16"), ("cudnn-bf16", "cudnn", "bf16")):
        os.environ["AQ_GPU_CONVOLUTION"] = way
        path = hundred(name, **keys, **{"model.precision": precision})
        done = aqpipe("launch", path, "--no-progress", "--restarts", "0")
        if done.returncode and way == "cudnn" and re.search(r"AQ_GPU_CONVOLUTION.*(without cuDNN|is not on this machine|is installed, but)", done.stderr):
            print(done.stderr.strip().split("\n")[-1])
            continue
        if done.returncode and "device: cuda" in done.stderr and os.environ.get("AQ_GPU") != "required":
            print(done.stderr.strip().split("\n")[-1])
            sys.exit(77)
        check(done.returncode == 0, f"{name}: {done.stderr[-2000:]}")
        limit = 1e-3 if precision == "fp32" else 0.02
        for a, b in zip(losses(name), losses("cpu"), strict=True):
            check(abs(a - b) < limit * abs(b), f"{name}: losses {losses(name)}, on the CPU {losses('cpu')}")
        log = "".join(file.read_text() for file in (ROOT / name / "logs").glob("stage-*.log"))
        check(("convolutions by cuDNN" in log) == (way == "cudnn"), f"{name}: the logs {'do not ' * (way == 'cudnn')}have convolutions by cuDNN")
        # cuDNN has no gradients of 3 channels in 16 bits; its emulation has.
        check("not cuDNN" not in log or (precision == "bf16" and BIN.name != "cuda_host"), f"{name}: cuDNN was not taken for all convolutions: {log[-2000:]}")
    if (ROOT / "cudnn/metrics.jsonl").exists():
        os.environ["AQ_GPU_CONVOLUTION"] = "cudnn"
        launch(ROOT / "rows.yaml", "--resume", "--set", "train.epochs=3")
        log = "".join(file.read_text() for file in (ROOT / "rows/logs").glob("stage-0*"))
        said = re.search(r"continues on .*, cuDNN \d+: convolutions: from here on its bits may differ", log)
        check(said, f"resumed with other convolutions, and no warning: {log[-2000:]}")
    os.environ.pop("AQ_GPU_CONVOLUTION")
    no_workers("images_gpu")


def scenario_gpu_attention():
    """Whose attention a job has by the clock, which is the emulated one: cuDNN's or ours, once, then by the table; also after a resume."""
    check(BIN.name == "cuda_host", "CUDA_HOST_SLOW is the emulated runtime's")
    base = {**SMALL, "model.heads": 2, "model.precision": "bf16", "checkpoint.every": "2 steps", "pipeline.stages": on_gpus(0, 0)}
    os.environ["AQ_GPU_ATTENTION"] = "fastest"
    refused("no table", manifest("none", **base), r"AQ_GPU_ATTENTION=fastest and .* keep their choices in a folder.*set AQ_GPU_TABLE to one", 1)

    def run(name, way, slow, table=""):
        os.environ.update(AQ_GPU_ATTENTION=way, CUDA_HOST_SLOW=slow, AQ_GPU_TABLE=str(ROOT / table) if table else "")
        (ROOT / table).mkdir(exist_ok=True)
        launch(manifest(name, **base))
        return losses(name), weights(name)

    own, cudnn = run("own", "own", ""), run("cudnn", "cudnn", "")
    check(own != cudnn, "cuDNN's attention has the bits of ours: was it asked?")
    check(run("clock-cudnn", "fastest", "attention", "table-a") == cudnn, "with our kernels slow, the job is not cuDNN's")
    check(run("table-cudnn", "fastest", "cudnn", "table-a") == cudnn, "the table says cuDNN, and the job is not cuDNN's")
    check(run("clock-own", "fastest", "cudnn", "table-b") == own, "with cuDNN slow, the job is not ours")
    os.environ.update(AQ_GPU_TABLE=str(ROOT / "table-a"))
    path = manifest("resumed", **base)
    interrupt("sigint", path, 3)
    launch(path, "--resume")
    same_run("resumed", "cudnn")
    check("its bits may differ" not in logs("resumed"), f"the resumed run was told of a change: {logs('resumed')[-2000:]}")
    os.environ.update(AQ_GPU_TABLE=str(path))
    refused("a file", manifest("file", **base), r"AQ_GPU_ATTENTION=fastest and .* keep their choices in the folder AQ_GPU_TABLE: ", 1)
    for name in ("AQ_GPU_ATTENTION", "AQ_GPU_TABLE", "CUDA_HOST_SLOW"):
        os.environ.pop(name)
    no_workers("gpu_attention")


def scenario_gpu_graphs():
    """With AQ_GPU_GRAPHS=1 passes are launched as graphs, and a job has the bits that it has without: the default codec, dropout,
    a smaller last micro-batch, staleness, adapters, split backward, and a resume in the middle."""
    base = {**SMALL, "data.train_samples_max": 7, "train.micro_batch": 2, "train.epochs": 6, "model.dropout": 0.1, "checkpoint.every": "4 steps",
            "pipeline.stages": on_gpus(0, 0)}
    ways = {"default": {}, "stale": {"train.staleness": 1}, "lora": {"lora.rank": 2, "lora.alpha": 4, "lora.dropout": 0.1},
            "split": {"pipeline.schedule": "zb-h1", "model.precision": "bf16"}}

    def passes(name):
        """(launched as graphs, all) of both stages, by the end of their logs."""
        return [tuple(int(n) for n in found) for found in re.findall(r"graphs: (\d+) of (\d+) passes were one launch; \d+ were recorded", logs(name))]

    for name, keys in ways.items():
        launch(manifest(name, **{**base, **keys}))
        check(not passes(name), f"{name}: graphs that nobody asked for: {passes(name)}")
        os.environ["AQ_GPU_GRAPHS"] = "1"
        path = manifest(f"{name}-graphs", **{**base, **keys})
        if name == "default":
            interrupt("worker", path, 6)
        launch(path, *(("--resume",) if name == "default" else ()))
        os.environ.pop("AQ_GPU_GRAPHS")
        check(losses(f"{name}-graphs") == losses(name), f"{name}: losses {losses(f'{name}-graphs')}, without graphs {losses(name)}")
        check(weights(f"{name}-graphs") == weights(name), f"{name}: model.safetensors differs with graphs")
        found = passes(f"{name}-graphs")
        if name == "split":
            check(not found and "a split backward (zb-h1) exchanges buffers" in logs("split-graphs"), f"split: {found}")
            continue
        check(len(found) >= 2 and all(launched > all_ // 4 for launched, all_ in found), f"{name}: {found} passes were graphs")
    os.environ["AQ_GPU_GRAPHS"] = "2"
    refused("no such way", manifest("none", **base), r'AQ_GPU_GRAPHS is "2"; it must be 0 or 1', 1)
    os.environ.pop("AQ_GPU_GRAPHS")
    no_workers("gpu_graphs")
