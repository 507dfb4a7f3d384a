"""Training: what a run learns does not depend on how it is cut, coded or packed; every precision; wrong input."""
import json
import math
import os
import shutil
import socket
import subprocess

import jobs
from jobs import aqpipe, check, launch, losses, manifest, metrics, no_workers, raw, weights
from kit import BIN, REPLICAS, ROOT, interrupt, refused, same_run

ZERO_BUBBLE = {"pipeline.schedule": "zb-h1"}


def scenario_equal():
    """P stages without compression equal one stage, bit for bit: losses, held-out loss, every weight."""
    base = {**raw(), **raw("backward")}
    launch(manifest("one", **{**base, "pipeline.stages": 1}))
    for name, changes in (("two", {"pipeline.stages": 2}), ("four", {}), ("four-gpipe", {"pipeline.schedule": "gpipe"}),
                          ("three-classic", {"pipeline.stages": 3, "pipeline.in_flight": "classic"}),
                          ("two-threads", {"pipeline.stages": 2, "pipeline.threads": 2}),
                          ("four-paced", {"link.rate_mbps": 200})):
        launch(manifest(name, **{**base, **changes}))
        check(losses(name) == losses("one"), f"{name}: losses {losses(name)} are not those of one stage {losses('one')}")
        one, other = metrics("one", "eval")[-1], metrics(name, "eval")[-1]
        check(one["loss"] == other["loss"], f"{name}: held-out loss {other['loss']} is not {one['loss']}")
        check(weights(name) == weights("one"), f"{name}: model.safetensors differs")
    check(losses("one")[-1] < losses("one")[0] * 0.9, f"nothing was learnt: {losses('one')}")
    no_workers("equal")


FAMILIES = {
    "llama": {"model.kv_heads": 1},
    "qwen2": {"model.kv_heads": 2, "model.qkv_bias": "true"},
    "qwen3": {"model.kv_heads": 1, "model.qk_norm": "true", "model.head_dim": 24},
}


def scenario_families():
    """Llama and its kin: four stages equal one, bit for bit, in every schedule; and they learn through AQ-SGD."""
    for family, own in FAMILIES.items():
        base = {"model.kind": "llama", "model.mlp": 56, **own}
        plain = {**base, **raw(), **raw("backward")}
        launch(manifest(f"{family}-one", **{**plain, "pipeline.stages": 1}))
        one = losses(f"{family}-one")
        for cut, changes in (("four", {}), ("three-zb", {"pipeline.stages": 3, **ZERO_BUBBLE}),
                             ("two-again", {"pipeline.stages": 2, "model.recompute": "true"})):
            name = f"{family}-{cut}"
            launch(manifest(name, **{**plain, **changes}))
            check(losses(name) == one, f"{name}: losses {losses(name)} are not those of one stage {one}")
            check(weights(name) == weights(f"{family}-one"), f"{name}: model.safetensors differs")
        check(one[-1] < one[0] * 0.9, f"{family}: nothing was learnt: {one}")
        name = f"{family}-aq4"
        launch(manifest(name, **{**base, "edges.forward.codec": "aqsgd", "edges.forward.bits": 4, "edges.backward.codec": "directq",
                                 "edges.backward.bits": 8}))
        check(abs(losses(name)[-1] - one[-1]) < 0.1 * one[-1], f"{name}: last loss {losses(name)[-1]}, uncompressed {one[-1]}")
    no_workers("families")


def scenario_isolated():
    """Stages whose device memory no host can reach, with streams that run as late as they may, train bit for bit as on a CPU."""
    codecs = {"edges.forward.codec": "aqsgd", "edges.forward.bits": 4, "edges.backward.codec": "directq",
              "edges.backward.bits": 8}
    cases = {
        "raw": {**raw(), **raw("backward"), "pipeline.stages": 2},
        "one": {"pipeline.stages": 1, "model.dropout": 0.1},
        "tied": {**raw(), **raw("backward"), "pipeline.stages": 3, "model.tied": "exact"},
        "tied-compressed": {**codecs, "pipeline.stages": 3, "model.tied": "compressed", "train.staleness": 1},
        "four": {**codecs, "checkpoint.every": 4},
        "three": {**codecs, "pipeline.stages": 3, "model.dropout": 0.1, "model.recompute": "true",
                  "edges.forward.rounding": "stochastic", "cache.kind": "memory", "pipeline.schedule": "gpipe"},
        "two-fp16": {**codecs, "pipeline.stages": 2, "model.precision": "fp16", "train.loss_scale_window": 1},
        "two-bf16": {**codecs, "pipeline.stages": 2, "model.precision": "bf16", "edges.forward.store": "q8",
                     "edges.backward.top_k": 0.3},
    }
    for name, changes in cases.items():
        launch(manifest(name, **changes))
        jobs.isolated(True)
        launch(manifest(f"{name}-isolated", **changes))
        jobs.isolated(False)
        check(losses(f"{name}-isolated") == losses(name), f"{name}: losses {losses(f'{name}-isolated')} are not {losses(name)}")
        mine, whole = metrics(f"{name}-isolated", "eval")[-1], metrics(name, "eval")[-1]
        check(mine["loss"] == whole["loss"], f"{name}: held-out loss {mine['loss']} is not {whole['loss']}")
        check(weights(f"{name}-isolated") == weights(name), f"{name}: model.safetensors differs")
    no_workers("isolated")


def scenario_cut():
    """The loss of a step does not depend on how the batch is cut into micro-batches (but for rounding)."""
    base = {**raw(), **raw("backward"), "pipeline.stages": 2}
    launch(manifest("mb2", **base))
    for B in (1, 4, 8):
        launch(manifest(f"mb{B}", **{**base, "train.micro_batch": B}))
        for a, b in zip(losses("mb2"), losses(f"mb{B}")):
            check(abs(a - b) < 2e-4 * abs(a), f"micro_batch {B}: loss {b} against {a}")


def scenario_unsaid():
    """A job that says nothing of codecs is entropy coded both ways, first visits too, and trains as well as the published setting; killed, it goes on the same."""
    unsaid = {"edges.forward.codec": None, "checkpoint.every": "3 steps", "train.epochs": 8}
    launch(manifest("whole", **unsaid))
    launch(manifest("published", **{**unsaid, "edges.forward.codec": "aqsgd"}))
    launch(manifest("raw", **{**unsaid, **raw(), **raw("backward")}))
    said = metrics("whole", "start")[0]
    check("ec" in json.dumps(said) and "aqsgd" not in json.dumps(said), f"the start says {said}")
    sent = {name: sum(sum(line["forward_bytes"]) + sum(line["backward_bytes"]) for line in metrics(name)) for name in ("whole", "published")}
    check(sent["whole"] < 0.75 * sent["published"], f"bytes: {sent}")
    last = {name: losses(name)[-1] for name in ("whole", "published", "raw")}
    check(abs(last["whole"] - last["raw"]) < 0.02 * last["raw"], f"last losses {last}")
    path = manifest("killed", **unsaid)
    interrupt("worker", path, 7)
    launch(path, "--resume")
    same_run("killed", "whole")
    # A run that the published setting began goes on by its own manifest; another one is refused by name.
    old = manifest("old", **{**unsaid, "edges.forward.codec": "aqsgd", "train.epochs": 4})
    launch(old)
    refused("other default", manifest("old", **unsaid), r"codec: aqsgd there, ec here", 2, "--resume")
    done = aqpipe("resume", ROOT / "old", "--epochs", 8, "--no-progress")
    check(done.returncode == 0, f"aqpipe resume: {done.stderr}")
    check(len(losses("old")) == len(losses("published")), "the older run has not gone on to its end")
    no_workers("unsaid")


def scenario_codecs():
    """AQ-SGD and DirectQ train through every kind of edge; only the first visit of a sample is a keyframe."""
    launch(manifest("raw", **{**raw(), **raw("backward")}))
    reference = losses("raw")[-1]
    cases = {
        "aq4": {"edges.forward.codec": "aqsgd", "edges.forward.bits": 4},
        "aq2": {"edges.forward.codec": "aqsgd", "edges.forward.bits": 2, "edges.backward.bits": 4},
        "aq3-tile": {"edges.forward.codec": "aqsgd", "edges.forward.bits": 3, "edges.forward.group": "tile",
                     "edges.forward.tile": 32, "edges.forward.hadamard": "true"},
        "aq4-q8": {"edges.forward.codec": "aqsgd", "edges.forward.bits": 4, "edges.forward.store": "q8"},
        "aq4-memory": {"edges.forward.codec": "aqsgd", "edges.forward.bits": 4, "cache.kind": "memory"},
        "aq4-stochastic": {"edges.forward.codec": "aqsgd", "edges.forward.bits": 4, "edges.forward.rounding": "stochastic"},
        "direct4": {"edges.forward.codec": "directq", "edges.forward.bits": 4},
        "topk": {"edges.forward.codec": "aqsgd", "edges.forward.bits": 4, "edges.backward.top_k": 0.3},
    }
    for name, changes in cases.items():
        base = {"edges.backward.codec": "directq", "edges.backward.bits": 8}
        launch(manifest(name, **{**base, **changes}))
        last = losses(name)[-1]
        check(abs(last - reference) < 0.1 * reference, f"{name}: last loss {last}, uncompressed {reference}")
        steps = metrics(name)
        per_epoch = len(steps) // 4
        fetched = sum(x or 0 for line in steps for x in line["fetched"])
        check(fetched == 0, f"{name}: {fetched} messages were fetched in an undisturbed run")
        keyframes = [sum(x or 0 for x in line["keyframes"]) for line in steps]
        if "codec" in str(changes) and changes["edges.forward.codec"] == "aqsgd":
            check(sum(keyframes[:per_epoch]) == 22 * 3, f"{name}: {keyframes} keyframes, wanted 66 in the first epoch")
            check(sum(keyframes[per_epoch:]) == 0, f"{name}: keyframes after the first epoch: {keyframes}")
    check(losses("aq4-memory") == losses("aq4"), "a cache in memory gives other losses than one on disk")
    no_workers("codecs")


def scales(name):
    return [line["loss_scale"] for line in metrics(name)]


def scenario_zero_bubble():
    """Weight halves of backwards that fill waits change no bit: losses, norms, weights, bytes, void steps; killed and resumed."""
    codecs = {"edges.forward.codec": "aqsgd", "edges.forward.bits": 4, "edges.backward.codec": "directq", "edges.backward.bits": 8}
    fp16 = {"model.precision": "fp16", "train.loss_scale_window": 1, "train.epochs": 6, "pipeline.stages": 3}
    cases = {"four": codecs,
             "one-tied": {"pipeline.stages": 1, "model.tied": "true"},
             "three-classic": {**codecs, "pipeline.stages": 3, "pipeline.in_flight": "classic", "model.dropout": 0.1},
             "two-bf16": {**codecs, "pipeline.stages": 2, "model.precision": "bf16", "link.rate_mbps": 20},
             "fp16-void": {**codecs, **fp16},
             "replicas": {**codecs, **REPLICAS, "reduce.codec": "q4", "checkpoint.every": "3 steps"}}
    for name, keys in cases.items():
        whole, split = f"{name}-1f1b", f"{name}-zb"
        launch(manifest(whole, **keys))
        launch(manifest(split, **keys, **ZERO_BUBBLE))
        same_run(split, whole)
        for key in ("grad_norm", "forward_bytes", "backward_bytes", "skipped"):
            a, b = ([line[key] for line in metrics(run)] for run in (split, whole))
            check(a == b, f"{name}: {key} {a}, with 1f1b {b}")
    check(scales("fp16-void-zb") == scales("fp16-void-1f1b"), f"loss scales {scales('fp16-void-zb')}")
    check(any(line["skipped"] for line in metrics("fp16-void-zb")), f"no step was void: {scales('fp16-void-zb')}")
    jobs.isolated(True)
    launch(manifest("isolated", **cases["three-classic"], **ZERO_BUBBLE))
    jobs.isolated(False)
    same_run("isolated", "three-classic-1f1b")
    longer = {**codecs, "checkpoint.every": "3 steps", "train.epochs": 20, "model.dropout": 0.1}
    launch(manifest("whole", **longer))
    for name, before in (("sigint", ZERO_BUBBLE), ("worker", {})):  # one of them begun with 1f1b
        path = manifest(name, **longer, **before)
        interrupt(name, path, 7)
        launch(path, "--resume", "--set", "pipeline.schedule=zb-h1")
        same_run(name, "whole")
    refused("recompute", manifest("recompute", **ZERO_BUBBLE, **{"model.recompute": "true"}),
            r"recompute\.yaml:\d+:\d+: model\.recompute: pipeline\.schedule: zb-h1 splits backward.*schedule: 1f1b", 2)
    no_workers("zero_bubble")


def scenario_warmup():
    """Uncompressed epochs at the beginning are those of an uncompressed run, bit for bit; then codecs begin, and resume exactly."""
    few = {"edges.backward.codec": "directq", "edges.backward.bits": 4, "train.epochs": 4, "checkpoint.every": "2 steps"}
    direct = {**few, "edges.forward.codec": "directq", "edges.forward.bits": 3}
    whole = {**few, "edges.forward.codec": "aqsgd", "edges.forward.bits": 3, "edges.forward.keyframe": "fp32"}
    launch(manifest("plain", **{"train.epochs": 4, **raw(), **raw("backward")}))
    steps = len(metrics("plain")) // 4
    for name, keys in (("direct", direct), ("aqsgd", whole)):
        launch(manifest(name + "-cold", **keys))
        for epochs in (1, 2):
            tag = f"{name}-{epochs}"
            path = manifest(tag, **keys, edges__warmup_epochs=epochs)
            launch(path)
            equal = [a == b for a, b in zip(losses(tag), losses("plain"))]
            check(all(equal[:epochs * steps]), f"{tag}: uncompressed epochs differ from an uncompressed run's: {equal}")
            check(not any(equal[epochs * steps + 1:]), f"{tag}: nothing is compressed after them")
        sent = [sum(line["forward_bytes"]) + sum(line["backward_bytes"]) for line in metrics(f"{name}-1")]
        check(min(sent[:steps - 1]) > 3 * max(sent[steps:]), f"{name}: bytes of steps: {sent}")
        path = manifest(name + "-stopped", **keys, edges__warmup_epochs=1)
        interrupt("sigint", path, 2)
        launch(path, "--resume")
        check(losses(name + "-stopped") == losses(name + "-1"), f"{name}: the resumed run differs")
    plan = json.loads(aqpipe("plan", manifest("plan", **direct, edges__warmup_epochs=1), "--json").stdout)
    edge = plan["edges"][0]
    check(edge["step_bytes_backward_first"] > 5 * edge["step_bytes_backward"] and
          edge["step_bytes_forward_first"] > 6 * edge["step_bytes_forward"], f"the plan: {edge}")
    no_workers("warmup")


def scenario_fp16():
    """fp16 learns as fp32 does; its loss scale is found, kept over a resume, and one on all ranks."""
    base = {**raw(), **raw("backward"), "pipeline.stages": 2}
    codecs = {"edges.forward.codec": "aqsgd", "edges.forward.bits": 4, "edges.backward.codec": "directq",
              "edges.backward.bits": 8, "pipeline.stages": 2}
    fp16 = {"model.precision": "fp16"}
    for tag, keys in (("raw", base), ("coded", codecs)):
        launch(manifest(tag, **keys))
        launch(manifest(f"{tag}-fp16", **keys, **fp16))
        check(all("loss_scale" not in line for line in metrics(tag)), f"{tag}: a loss scale where none is needed")
        check(set(scales(f"{tag}-fp16")) == {65536}, f"{tag}: loss scales {scales(f'{tag}-fp16')}")
        for line, truth in zip(metrics(f"{tag}-fp16"), metrics(tag)):
            check(not line["skipped"] and abs(line["loss"] / truth["loss"] - 1) < 0.02, f"{tag}: {line}, in fp32 {truth}")
            check(abs(line["grad_norm"] / truth["grad_norm"] - 1) < 0.1, f"{tag}: norm of {line}, in fp32 {truth}")
        raws = sum(x or 0 for line in metrics(f"{tag}-fp16") for x in line["raws"])
        check(raws == 0 or tag == "raw", f"{tag}: {raws} samples did not fit the codec")
    launch(manifest("one-fp16", **{**base, **fp16, "pipeline.stages": 1}))
    check(losses("one-fp16") == losses("raw-fp16"), f"one stage: {losses('one-fp16')}, two: {losses('raw-fp16')}")

    # A window of one step: twice the scale each step until a gradient overflows, and on and on about there.
    search = {**codecs, **fp16, "train.loss_scale_window": 1, "checkpoint.every": "3 steps", "train.epochs": 10}
    launch(manifest("search", **search))
    steps = metrics("search")
    check(scales("search")[:4] == [65536, 131072, 262144, 524288], f"the scale does not double: {scales('search')}")
    for before, after in zip(steps, steps[1:]):
        wanted = before["loss_scale"] * (0.5 if before["skipped"] else 2)
        check(after["loss_scale"] == min(wanted, 2**24), f"loss scale {after['loss_scale']} after {before}")
    skipped = sum(line["skipped"] for line in steps)
    check(0 < skipped < len(steps) / 2 + 1, f"{skipped} of {len(steps)} steps were skipped: {scales('search')}")
    check(losses("search")[-1] < losses("search")[0] * 0.9, f"nothing was learnt: {losses('search')}")
    report = json.loads((ROOT / "search" / "report.json").read_text())["runs"][0]
    check(report["loss_scale"] == scales("search")[-1] and report["steps_skipped"] == skipped, f"report: {report}")
    path = manifest("resumed", **search)
    interrupt("sigint", path, 7)
    launch(path, "--resume")
    check(scales("resumed") == scales("search"), f"loss scales {scales('resumed')}, undisturbed {scales('search')}")
    check(losses("resumed") == losses("search"), f"losses {losses('resumed')}, undisturbed {losses('search')}")
    check(weights("resumed") == weights("search"), "resumed: model.safetensors differs")

    # Replicas skip and scale alike. Gradients that never are finite bring the scale down, and end the run only then.
    path = manifest("replicas", **{**REPLICAS, **fp16, "train.loss_scale_window": 1, "train.epochs": 8})
    launch(path)
    check(any(line["skipped"] for line in metrics("replicas")), f"no scale was too large: {scales('replicas')}")
    lost = {**base, **fp16, "train.lr": 100, "train.optimizer": "sgd", "train.clip": 0, "train.warmup_steps": 0,
            "train.epochs": 40}
    path = manifest("lost", **lost)
    refused("lost", path, r"10 steps in a row without a finite gradient \(train\.skips_max\): lower train\.lr", 1)
    check(scales("lost")[-1] == 1, f"it ended before the scale was 1: {scales('lost')}")
    path = manifest("fixed", **lost, **{"train.loss_scale": 1048576})
    refused("fixed", path, r"10 steps in a row without a finite gradient \(train\.skips_max\): lower train\.loss_scale", 1)
    refused("bf16", path, r"train\.loss_scale: applies only to fp16", 2, "--set", "train.loss_scale=8", "--set",
            "model.precision=bf16")
    no_workers("fp16")


def scenario_bad_input():
    """Each wrong input ends in a line that names place and cause, a non-zero exit, and no worker left."""
    path = manifest("bad")
    good = path.read_text()

    def wrong(tag, old, new, pattern, code=2):
        check(old in good, f"{tag}: '{old}' is not in the manifest")
        path.write_text(good.replace(old, new))
        refused(tag, path, pattern, code)

    for arguments, code in ((["help", "lanuch"], 2), (["help", "plan"], 0), (["plan", ROOT / "none.yaml"], 2), (["--version"], 0)):
        check(aqpipe(*arguments).returncode == code, f"{arguments}: exit code {aqpipe(*arguments).returncode}")
        with open("/dev/full", "w") as full:
            done = subprocess.run([str(BIN / "aqpipe"), *map(str, arguments)], stdout=full, stderr=subprocess.PIPE, text=True)
        check(done.returncode == (code or 1), f"{arguments} with a full disk behind its output: {done.returncode}, {done.stderr}")
    launch(manifest("deep", **{"train.steps_max": 1}))
    for command in ("plan", "launch"):
        done = aqpipe(command, path, "--set", "model.blocks=3", "--set", f"model.weights={ROOT}/deep/model.safetensors")
        check(done.returncode == 2 and "is model.blocks right?" in done.stderr, f"{command} of fewer blocks: {done}")
    wrong("unknown key", "  batch: 8", "  btach: 8", r"bad\.yaml:\d+:\d+: .*btach.*batch")
    wrong("ill-typed key", "  batch: 8", "  batch: many", r"bad\.yaml:\d+:\d+: train\.batch")
    wrong("no partition", "  stages: 4", "  stages: [{layers: 0-2}, {layers: 4-5}]", r"bad\.yaml:\d+:\d+: .*layer")
    wrong("missing text", "train.txt", "nowhere.txt", r"nowhere\.txt", 2)
    path.write_text(good)
    refused("nan", path, r"10 steps in a row without a finite gradient \(train\.skips_max\)", 1, "--set", "train.lr=100",
            "--set", "train.clip=0", "--set", "train.epochs=40", "--set", "train.optimizer=sgd", "--set",
            "train.warmup_steps=0")
    check(math.isfinite(metrics("bad")[-1]["loss"]) or metrics("bad")[-1]["skipped"], "a step of no finite gradient was made")
    shutil.rmtree(ROOT / "bad")
    refused("missing manifest", ROOT / "none.yaml", r"none\.yaml", 2)
    with socket.socket() as taken:
        port = jobs.lasting_port(4)
        taken.bind(("127.0.0.1", port + 1))
        taken.listen()
        refused("port in use", path, rf"{port + 1}", 1, "--set", f"link.port_first={port}")
    shutil.rmtree(ROOT / "bad", ignore_errors=True)
    path.write_text(good.replace("  epochs: 4", "  epochs: 400"))
    interrupt("sigint", path, 2)
    files = list((ROOT / "bad" / "checkpoint").glob("*/stage-1.safetensors"))
    check(len(files) == 1, f"one checkpoint file of stage 1: {files}")
    data = bytearray(files[0].read_bytes())
    data[-100] ^= 1
    files[0].write_bytes(data)
    refused("corrupt checkpoint", path, r"stage-1\.safetensors.*damaged", 1, "--resume")
