"""Replicas: copies of a pipeline that train as one."""
import json
import math
import os
import re
import shutil
import socket
import struct
import subprocess

import jobs
from jobs import aqpipe, check, launch, losses, manifest, metrics, no_workers, raw, weights
from kit import (BIN, OPTIMIZERS, REPLICAS, RESTARTED, ROOT, arrays, interrupt, launch_and_kill, refused, same_run,
                 serve, start)


def tensors(name, rank):
    """Bytes of the tensors in a rank's newest checkpoint, without the header, which names the rank."""
    step = json.loads((ROOT / name / "checkpoint" / "complete").read_text())["step"]
    data = (ROOT / name / "checkpoint" / str(step) / f"stage-{rank}.safetensors").read_bytes()
    return data[8 + int.from_bytes(data[:8], "little"):]


def weights_of(name, rank):
    """Weights in a rank's newest checkpoint; what its optimizer and its codec owe is its own."""
    return {key: value for key, value in arrays(name, rank).items() if not key.startswith("optimizer.")}


def close(name, other, tolerance):
    """Losses and gradient norms are the same but for the order of sums."""
    check(len(losses(name)) == len(losses(other)), f"{name}: {len(losses(name))} steps, {len(losses(other))} of {other}")
    for key in ("loss", "grad_norm"):
        for a, b in zip(metrics(name), metrics(other)):
            check(abs(a[key] - b[key]) <= tolerance * abs(b[key]), f"{name}: {key} {a[key]}, {other} has {b[key]}")
    a, b = metrics(name, "eval")[-1], metrics(other, "eval")[-1]
    check(a["targets"] == b["targets"] and abs(a["loss"] - b["loss"]) <= tolerance * b["loss"], f"{name}: {a} {b}")


def scenario_replicas():
    """W replicas of P stages, uncompressed, train as one with the same batches but for rounding, and stay bit-identical."""
    plain = {**raw(), **raw("backward"), **REPLICAS, "train.shuffle": "false"}
    launch(manifest("one", **{**plain, "pipeline.replicas": 1}))
    for name, W, P in (("two", 2, 2), ("four", 4, 1), ("three", 3, 2)):
        batches = {"train.batch": 12, "train.micro_batch": 2} if W == 3 else {}
        if W == 3:
            launch(manifest("one12", **{**plain, **batches, "pipeline.replicas": 1}))
        launch(manifest(name, **{**plain, **batches, "pipeline.replicas": W, "pipeline.stages": P}))
        close(name, "one12" if W == 3 else "one", 1e-5)
        for rank in range(P, W * P):
            check(tensors(name, rank) == tensors(name, rank % P), f"{name}: rank {rank} differs from rank {rank % P}")
    launch(manifest("dials", **{**plain, "pipeline.stages": "[{layers: 0-2, dials: [true, false]}, {layers: 3-5}]"}))
    check(losses("dials") == losses("two") and weights("dials") == weights("two"), "who dials changes what is learnt")
    report = json.loads((ROOT / "two" / "report.json").read_text())["runs"][0]
    check(report["replicas"] == 2 and report["stages"] == 2 and len(report["memory"]) == 4, f"the report says {report}")
    check(report["bytes_per_step"]["gradient"] > 0, f"the report says {report['bytes_per_step']}")
    check(report["bytes_per_step"]["forward"] * 2 ==
          json.loads((ROOT / "one" / "report.json").read_text())["runs"][0]["bytes_per_step"]["forward"],
          "a replica's link carries half of the samples")
    launch(manifest("shuffled", **{**plain, "train.shuffle": "true", "edges.forward.codec": "aqsgd",
                                   "edges.forward.bits": 4}))
    keyframes = [sum(x or 0 for x in line["keyframes"]) for line in metrics("shuffled")]
    check(sum(keyframes[:3]) == 24 and sum(keyframes[3:]) == 0, f"a sample has met another's cache: {keyframes}")
    for rank in (2, 3):
        check(tensors("shuffled", rank) == tensors("shuffled", rank - 2), f"shuffled: rank {rank} differs")
    no_workers("replicas")


def scenario_replicas_resume():
    """Two replicas, stopped or killed anywhere, go on bit for bit; a killed worker is begun again by the launcher."""
    keys = {**RESTARTED, **REPLICAS, "train.epochs": 8}
    launch(manifest("whole", **keys))
    for how in ("sigint", "worker"):
        path = manifest(how, **keys)
        interrupt(how, path, 7)
        launch(path, "--resume")
        same_run(how, "whole")
    path = manifest("killed", **keys)
    errors = launch_and_kill(path, [(5, 2), (17, 3)])
    check("replica 1 stage" in errors, f"nothing names the replica:\n{errors}")
    same_run("killed", "whole")
    no_workers("replicas_resume")


def scenario_replicas_codecs():
    """Dithered ec and lowrank in 3 stages of 3 replicas, clipped, the last micro-batch short: killed, each goes on as if it had not been."""
    base = {"pipeline.stages": 3, "pipeline.replicas": 3, "data.train_samples_max": 34, "train.batch": 12, "train.micro_batch": 2,
            "train.clip": 0.3, "checkpoint.every": "3 steps", "train.epochs": 6, "model.dropout": 0.1, "edges.forward.keyframe": "ec"}
    kinds = {"ec": {f"edges.{way}.{key}": value for way, rate in (("forward", 2), ("backward", 3))
                    for key, value in (("codec", "ec"), ("rate", rate), ("rounding", "stochastic"))},
             "lowrank": {f"edges.{way}.codec": "lowrank" for way in ("forward", "backward")}}
    for kind, codecs in kinds.items():
        for more in ({}, {"reduce.codec": "q4"}):
            tag = f"{kind}-{'q4' if more else 'plain'}"
            launch(manifest(f"{tag}-whole", **base, **codecs, **more))
            steps = metrics(f"{tag}-whole")
            check(len(steps) == 18 and [line["samples"] for line in steps[:3]] == [12, 12, 9],
                  f"{tag}: {len(steps)} steps of {[line['samples'] for line in steps[:3]]} samples")
            check(any(line["grad_norm"] > 0.3 for line in steps), f"{tag}: nothing was clipped")
            for how, step in (("worker", 8), ("launcher", 11)) if not more else (("daemon", 7),):
                name = f"{tag}-{how}"
                path = manifest(name, **base, **codecs, **more)
                interrupt(how, path, step)
                launch(path, "--resume")
                check(same_run(name, f"{tag}-whole") == 0, f"{name}: messages were fetched: two caches were not one")
                for rank in range(9):
                    check(tensors(name, rank) == tensors(f"{tag}-whole", rank), f"{name}: rank {rank} has another state")
            for rank in range(3, 9):
                check(weights_of(f"{tag}-whole", rank) == weights_of(f"{tag}-whole", rank % 3), f"{tag}: rank {rank} has other weights")
            # One epoch more: every message of both ends is read, and its digest compared.
            launch(path, "--resume", "--set", "train.epochs=7")
            last = [line for line in metrics(name) if line["epoch"] == 6]
            check(len(last) == 3 and not any(x for line in last for key in ("keyframes", "fetched") for x in line[key]),
                  f"{name}: a message was lost or other at one end: {last}")
    no_workers("replicas_codecs")


def scenario_replicas_optimizers():
    """Every optimizer trains two replicas and leaves them bit-identical; stopped with errors in hand, it goes on exactly."""
    base = {**REPLICAS, "train.epochs": 4, "checkpoint.every": "5 steps"}
    for name, keys in OPTIMIZERS.items():
        launch(manifest(name, **{**base, **keys}))
        check(losses(name)[-1] < losses(name)[0] * 0.985, f"{name}: nothing was learnt: {losses(name)}")
        path = manifest(name + "-again", **{**base, **keys})
        launch(path, "--set", "train.steps_max=0")
        check(losses(name + "-again") == losses(name), f"{name}: not the same twice")
    fp32, q4, sign = (sum(metrics(name)[-1]["gradient_bytes"]) for name in ("adamw", "adamw-q4", "adamw-sign"))
    check(7 < fp32 / q4 < 8 and 28 < fp32 / sign < 32, f"bytes between replicas: {fp32} fp32, {q4} q4, {sign} sign")
    for name in ("adamw-q4", "qadam", "onebit_adam", "onebit_lamb", "slamb", "slamb-fp16", "lamb-topk_fp32", "lioncub-rates"):
        keys = {**base, **OPTIMIZERS[name], "train.epochs": 8}
        launch(manifest(name + "-whole", **keys))
        path = manifest(name + "-stopped", **keys)
        interrupt("sigint", path, 7)
        launch(path, "--resume")
        check(losses(name + "-stopped") == losses(name + "-whole"), f"{name}: the resumed run differs")
        check(weights(name + "-stopped") == weights(name + "-whole"), f"{name}: model.safetensors differs")
    no_workers("replicas_optimizers")


def scenario_replicas_planned():
    """Every optimizer: the plan's bytes between replicas are those of the run, within 2 %; one that never compresses is named."""
    base = {**REPLICAS, "train.epochs": 4, "checkpoint.every": 0}
    more = {"lioncub-momenta": {**OPTIMIZERS["lioncub"], "optimizer.momentum_every": 5, "optimizer.momentum_names": "wte,head",
                                "optimizer.mask_names": "wte", "optimizer.measure_every": 3},
            "slamb-dense": {**OPTIMIZERS["slamb"], "optimizer.sync_every": 5, "optimizer.dense_below": 600, "optimizer.sync_gradient": "true"},
            "adamw-local": {"reduce.every": 5, "reduce.codec": "q4"}, "never": {"train.optimizer": "onebit_adam"}}
    for name, keys in {**OPTIMIZERS, **more}.items():
        path = manifest(name, **{**base, **keys})
        errors = launch(path).stderr
        sent = sum(sum(line["gradient_bytes"]) for line in metrics(name))
        planned = json.loads(aqpipe("plan", path, "--json").stdout)
        check(0.98 < planned["totals"]["gradient_bytes"] / sent < 1.02, f"{name}: replicas sent {sent} bytes, the plan has {planned['totals']}")
        check(("onebit_adam never compresses in this job" in errors) == (name == "never"), f"{name}: {errors}")
    check(planned["warmup"]["steps"] == planned["steps"] and not planned["warmup"]["compresses"], f"the plan says {planned['warmup']}")
    no_workers("replicas_planned")


def scenario_replicas_defaults():
    """Every optimizer with its own defaults, three stages, two and six replicas, clipping, an epoch's partial last batch."""
    os.environ["AQ_LOG"] = "optimizer:2"
    base = {"pipeline.stages": 3, "model.blocks": 3, "train.clip": 0.5, "train.epochs": 3, "data.train_samples_max": 42,
            "train.batch": 12, "train.micro_batch": 1}
    for kind in ("adamw", "sgd", "lamb", "lion", "qadam", "onebit_adam", "onebit_lamb", "lioncub", "slamb"):
        for replicas in (2, 6):
            launch(manifest(f"{kind}-{replicas}", **{**base, "pipeline.replicas": replicas, "train.optimizer": kind}))
    # The variance of 1-bit Adam is frozen by the whole model's norm: by all stages and replicas in the same step, and by a
    # pipeline in the step of a single stage, whose losses it has.
    frozen = {}
    base.update({"train.optimizer": "onebit_adam", "train.beta2": 0.9, "train.epochs": 12, **raw(), **raw("backward")})
    for stages, replicas in ((1, 1), (3, 1), (3, 2)):
        name = f"frozen-{stages}-{replicas}"
        launch(manifest(name, **{**base, "pipeline.stages": stages, "pipeline.replicas": replicas}))
        logs = [path.read_text() for path in (ROOT / name / "logs").iterdir()]
        frozen[name] = [re.findall(r"the variance is frozen after step (\d+)", log) for log in logs]
        check(all(steps == frozen[name][0] and len(steps) == 1 for steps in frozen[name]), f"{name}: {frozen[name]}")
    check(frozen["frozen-1-1"][0] == frozen["frozen-3-1"][0], f"stages freeze in steps of their own: {frozen}")
    check(losses("frozen-1-1") == losses("frozen-3-1"), "three stages are not one")
    # The norms of the past are state: stopped before it freezes and resumed, it is the same run.
    base.update({"pipeline.replicas": 2, "checkpoint.every": "5 steps"})
    launch(manifest("whole", **base))
    path = manifest("again", **base)
    interrupt("sigint", path, 12)
    launch(path, "--resume", "--set", "link.rate_mbps=0")
    check(losses("again") == losses("whole") and weights("again") == weights("whole"), "resumed with norms of the past: another run")
    no_workers("replicas_defaults")


def scenario_replicas_rates():
    """Rates by tensor and a flush change no bit with the cut; the rates are those of the tensors; figures of optimizers are in the lines."""
    base = {**raw(), **raw("backward"), "train.epochs": 3, "data.train_samples_max": 24, "model.tied": "true",
            "train.lr_patterns": "'wte = 1e-2, h.*.ln_* = 2e-5, head = 1e-4'"}
    launch(manifest("one", **{**base, "pipeline.stages": 1}))
    for name, keys in {"three": {"pipeline.stages": 3}, "flush": {"pipeline.stages": 3, "pipeline.schedule": "gpipe", "pipeline.flush": "true"},
                       "chains": {"pipeline.stages": 2, "pipeline.schedule": "zb-h1"}}.items():
        launch(manifest(name, **{**base, **keys}))
        check(losses(name) == losses("one"), f"{name}: losses {losses(name)}, of one stage {losses('one')}")
        check(weights(name) == weights("one"), f"{name}: model.safetensors differs")
    for name, keys in {"stale-one": {"pipeline.stages": 1}, "stale-three": {"pipeline.stages": 3, "link.rtt_ms": 40}}.items():
        launch(manifest(name, **{**base, "train.staleness": 1, **keys}))
    check(losses("stale-three") == losses("stale-one") != losses("one"), "rates with staleness: three stages are not one, or nothing is stale")
    check(weights("stale-three") == weights("stale-one"), "rates with staleness: model.safetensors differs")
    plain = {key: value for key, value in base.items() if key != "train.lr_patterns"}
    launch(manifest("plain", **{**plain, "pipeline.stages": 1}))
    check(weights("plain") != weights("one"), "rates by tensor change nothing")
    path = manifest("stopped", **{**base, "pipeline.stages": 3, "checkpoint.every": 2})
    interrupt("sigint", path, 4)
    refused("other rates", path, r'train\.lr_patterns: .* there, "wte = 1e-3" here', 2, "--resume", "--set", "train.lr_patterns='wte = 1e-3'")
    launch(path, "--resume")
    check(losses("stopped") == losses("one") and weights("stopped") == weights("one"), "resumed with rates: another run")
    for value, words in (("wte", r"'wte' has no rate above 0: 'embedding = 3e-2'"), ("wte=1, head = 0", r"'head' has no rate above 0"),
                         ("!wte = 1e-3", r"'!wte' has no rate above 0"), ("embeding = 1", r"it has no 'embeding'; did you mean 'embedding'\?")):
        refused(value, path, r"train\.lr_patterns: .*" + words, 2, "--set", f"train.lr_patterns='{value}'")
    refused("no lr", path, r"train\.lr_patterns: warm-up and decay are those of train\.lr, which is 0", 2, "--set", "train.lr=0")
    flush = ("--set", "pipeline.flush=true")
    refused("1f1b", path, r"pipeline\.flush: needs pipeline\.schedule: gpipe", 2, *flush, "--set", "pipeline.schedule=1f1b")
    refused("stale", path, r"pipeline\.flush: does not go with train\.staleness", 2, *flush, "--set", "pipeline.schedule=gpipe", "--set",
            "train.staleness=1")
    refused("lamb", path, r'form is "sqrt", must be ratio, norm or printed', 2, "--set", "train.optimizer=lamb", "--set", "optimizer.form=sqrt")
    figures = {"lamb": ("lamb_c",), "onebit_lamb": ("lamb_c", "lamb_r"), "lioncub-rates": ("sign_match", "momentum_spread")}
    for name, wanted in figures.items():
        launch(manifest(name, **{**REPLICAS, **OPTIMIZERS[name], "train.epochs": 2}))
        line = metrics(name)[-1]
        for key in wanted:
            check(len(line[key]) == 4 and all(value is not None and value >= 0 for value in line[key]), f"{name}: {key} is {line.get(key)}")
    no_workers("replicas_rates")


def scenario_replicas_auto():
    """Replicas choose few bits over a slow link and fp32 over a fast one; a resumed run keeps what was chosen."""
    ROOT.joinpath("train.txt").write_text(jobs.text(1, 2000))
    # Much to compute hides a fast link's fp32, also where everything is slower; little does not hide a slow one's 4 bits.
    base = {**REPLICAS, "reduce.codec": "auto", "checkpoint.every": "2 steps"}
    much = {**base, "data.train_samples_max": 256, "train.batch": 128, "train.micro_batch": 16, "train.epochs": 4}

    def chosen(name):
        """The codecs of all ranks: the same in every step, and on all replicas of a stage."""
        codecs = [line["reduce_codec"] for line in metrics(name)]
        check(all(one == codecs[0] for one in codecs) and codecs[0][:2] == codecs[0][2:], f"{name}: {codecs}")
        return codecs[0]

    launch(manifest("fast", **much))
    check(chosen("fast") == ["fp32"] * 4, f"over a link of memory's speed: {chosen('fast')}")
    first = metrics("fast")[0]
    check(all(rate > 100 for rate in first["reduce_rate_mbps"]) and "reduce_rate_mbps" not in metrics("fast")[1],
          f"what was measured is told in the first step: {first}")
    launch(manifest("slow", **{**base, "link.rate_mbps": 1}))
    check(chosen("slow") == ["sign"] * 4, f"over 1 Mbit/s: {chosen('slow')}")
    check(all(0.1 < rate < 2 for rate in metrics("slow")[0]["reduce_rate_mbps"]), f"{metrics('slow')[0]}")
    check(28 < metrics("fast")[-1]["gradient_bytes"][0] / metrics("slow")[-1]["gradient_bytes"][0] < 33, "bytes of signs")
    log = "".join(file.read_text() for file in (ROOT / "slow" / "logs").iterdir())
    check(re.search(r"stage 0 averages in sign \(reduce\.codec: auto\): links carry .* Mbit/s, .* q4 .* s \(packing", log), log)
    report = json.loads((ROOT / "slow" / "report.json").read_text())["runs"][0]
    check(report["reduce_codec"] == ["sign"] * 4, f"the report says {report['reduce_codec']}")
    # Stopped over the slow link and resumed over the fast one: measured again it would choose more bits.
    path = manifest("again", **{**base, "link.rate_mbps": 1})
    interrupt("sigint", path, 3)
    launch(path, "--resume", "--set", "link.rate_mbps=0")
    check(chosen("again") == ["sign"] * 4, f"resumed: {chosen('again')}")
    check(losses("again") == losses("slow") and weights("again") == weights("slow"), "a resumed choice is another run")
    # Another count of replicas keeps it, one replica sends nothing.
    path = manifest("more", **{**base, "link.rate_mbps": 1})
    interrupt("sigint", path, 3)
    launch(path, "--resume", "--set", "link.rate_mbps=0", "--set", "pipeline.replicas=4")
    check(metrics("more")[-1]["reduce_codec"] == ["sign"] * 8, f"of four replicas: {metrics('more')[-1]}")
    launch(manifest("one", **{**base, "pipeline.replicas": 1}))
    check("reduce_codec" not in metrics("one")[0], "one replica has nothing to choose")
    plan = json.loads(aqpipe("plan", path, "--json").stdout)
    check([stage["reduce_codec"] for stage in plan["stages"]] == ["sign"] * 2, f"the plan expects {plan['stages']}")
    for optimizer, words in (("lioncub", "vote"), ("slamb", "fp32, fp16 or bf16, of few values")):
        refused(optimizer, path, rf"reduce\.codec: auto does not fit train\.optimizer {optimizer}.*{words}", 2, "--set",
                f"train.optimizer={optimizer}")
    no_workers("replicas_auto")


def scenario_replicas_machines():
    """Replicas of a machine average first: four on two machines train as two would, and one of each talks to the other."""
    slamb = {**raw(), **raw("backward"), **REPLICAS, "train.optimizer": "slamb", "train.lr": 0.02, "train.shuffle": "false",
             "optimizer.density": 0.3, "optimizer.sync_every": 4, "train.micro_batch": 1, "checkpoint.every": "3 steps",
             "checkpoint.keep": 10}
    first = {**slamb, "reduce.machine_first": "true", "pipeline.replicas": 4}

    def placed(*hosts):
        return f"[{{layers: 0-2, host: [{', '.join(hosts)}]}}, {{layers: 3-5, host: [{', '.join(hosts)}]}}]"

    holds = ROOT / "holds"
    holds.mkdir()
    with jobs.faults(hold=holds):
        a, one = serve()
        b, other = serve()
        here, there = (f"'tcp://127.0.0.1:{port}'" for port in (one, other))
        try:
            # Samples go round the replicas: replicas 0 and 2 have together what replica 0 of two has.
            launch(manifest("two", **slamb))
            path = manifest("four", **{**first, "pipeline.stages": placed(here, there, here, there)})
            launch(path)
            close("four", "two", 1e-4)
            sent = [sum(column) for column in zip(*(line["gradient_bytes"] for line in metrics("four")))]
            whole = [sum(column) for column in zip(*(line["gradient_bytes"] for line in metrics("two")))]
            check(sent[:4] == whole and sent[4:] == [0] * 4, f"one of each machine talks to the other: {sent}, of two {whole}")
            launch(manifest("half", **{**first, "reduce.codec": "fp16", "pipeline.stages": placed(here, there, here, there)}))
            half = [sum(column) for column in zip(*(line["gradient_bytes"] for line in metrics("half")))]
            check(half[4:] == [0] * 4 and 0.65 < sum(half) / sum(whole) < 0.8, f"masks in fp16, averages in fp32: {half} of {whole}")
            close("half", "four", 1e-2)
            folder = ROOT / "four" / "checkpoint" / "3"  # no step at which machines average their weights
            files = [(folder / f"stage-{rank}.safetensors").read_bytes() for rank in range(8)]
            files = [data[8 + int.from_bytes(data[:8], "little"):] for data in files]
            check(files[:4] == files[4:] and files[0] != files[2] and files[1] != files[3], "those of a machine drift, or none")
            again = manifest("again", **{**first, "pipeline.stages": placed(here, there, here, there), "train.epochs": 8})
            launch(manifest("whole", **{**first, "pipeline.stages": placed(here, there, here, there), "train.epochs": 8}))
            interrupt("sigint", again, 7, folder=holds)
            done = aqpipe("launch", again, "--no-progress", "--resume", "--set", "pipeline.stages=" + placed(here, here, there, there))
            check(done.returncode == 1 and "plan_hash is" in done.stderr, f"on other machines: {done.returncode} {done.stderr}")
            launch(again, "--resume")
            check(losses("again") == losses("whole") and weights("again") == weights("whole"), "the resumed run differs")
            # On one machine alone there is nothing left to make sparse: LAMB of the whole batch.
            launch(manifest("lamb", **{**slamb, "pipeline.replicas": 1}))
            launch(manifest("alone", **first))
            close("alone", "lamb", 1e-4)
            check(sum(metrics("alone")[-1]["gradient_bytes"]) == 0, "nothing goes to another machine")
        finally:
            for daemon in (a, b):
                daemon.terminate()
                daemon.wait(jobs.PATIENCE)
    path = manifest("bad", **{**first, "pipeline.stages": placed(here, there, there, there)})
    refused("uneven", path, r"reduce\.machine_first: the host of replica 0 has 1 replicas, that of replica 1 has 3", 2)
    crossed = f"[{{layers: 0-2, host: [{here}, {here}, {there}, {there}]}}, {{layers: 3-5, host: [{here}, {there}, {here}, {there}]}}]"
    refused("crossed", path, r"replicas 0 and 1 share a host at stage 0 or at stage 1, but not at both", 2, "--set",
            "pipeline.stages=" + crossed)
    refused("adamw", path, r"reduce\.machine_first: does not fit train\.optimizer adamw", 2, "--set",
            "train.optimizer=adamw")
    no_workers("replicas_machines")


def scenario_replicas_isolated():
    """Replicas whose memory no host can reach reduce and update bit for bit as on a CPU, with every kind of optimizer."""
    codecs = {"edges.forward.codec": "aqsgd", "edges.forward.bits": 4, "edges.backward.codec": "directq",
              "edges.backward.bits": 8}
    base = {**REPLICAS, **codecs, "checkpoint.every": 2}
    cases = {"sign": {"reduce.codec": "sign", "train.optimizer": "lion"},
             "bf16": {"reduce.codec": "bf16", "train.optimizer": "lamb", "pipeline.replicas": 3, "train.batch": 12},
             "lp4": {"reduce.codec": "lp4", "train.optimizer": "sgd", "pipeline.stages": 1},
             "local": {"reduce.every": 3, "reduce.codec": "q4"},
             "stale": {"train.staleness": 1},
             "local-fp32": {"reduce.every": 4, "reduce.outer_momentum": 0, "train.staleness": 1}}
    cases.update({name: OPTIMIZERS[name] for name in ("qadam", "onebit_lamb", "slamb", "slamb-fp16", "lioncub-lanes", "lioncub-rates", "adamw-powersgd")})
    for name, changes in cases.items():
        launch(manifest(name, **{**base, **changes}))
        jobs.isolated(True)
        launch(manifest(f"{name}-isolated", **{**base, **changes}))
        jobs.isolated(False)
        check(losses(f"{name}-isolated") == losses(name), f"{name}: losses {losses(name)}, isolated {losses(f'{name}-isolated')}")
        check(weights(f"{name}-isolated") == weights(name), f"{name}: model.safetensors differs")
        P = changes.get("pipeline.stages", 2)
        for rank in range(P * changes.get("pipeline.replicas", 2)):
            check(arrays(f"{name}-isolated", rank) == arrays(name, rank), f"{name}: the checkpoint of rank {rank} differs")
    jobs.isolated(True)
    path = manifest("again", **{**base, **cases["qadam"]})
    interrupt("sigint", path, 5)
    launch(path, "--resume")
    check(losses("again") == losses("qadam") and weights("again") == weights("qadam"), "a resumed run differs")
    auto = {**base, "reduce.codec": "auto", "link.rate_mbps": 4}
    launch(manifest("auto", **auto))
    check(len(metrics("auto")) == len(metrics("qadam")), "reduce.codec: auto")
    jobs.isolated(False)
    no_workers("replicas_isolated")


def scenario_replicas_reshard():
    """A run goes on with another count of replicas: uncompressed as if nothing were, and with errors handed over."""
    base = {**REPLICAS, "train.batch": 12, "train.shuffle": "false", "train.epochs": 12, "checkpoint.every": "3 steps"}
    plain = {**raw(), **raw("backward")}
    launch(manifest("whole", **{**base, **plain, "pipeline.replicas": 1}))

    def changed(name, keys, *counts):
        """As many steps with each count as its part of 24; answers the steps at which the count was another."""
        changes = []
        for index, W in enumerate(counts):
            path = manifest(name, **{**base, **keys, "pipeline.replicas": W})
            more = ["--resume"] if index else []
            if index + 1 < len(counts):
                interrupt("sigint", path, 24 // len(counts) * (index + 1) - 1, *more)
                changes.append(len(losses(name)))
            else:
                launch(path, *more)
        check(len(losses(name)) == 24, f"{name}: {len(losses(name))} steps")
        return changes

    changed("plain", plain, 2, 1, 3)
    for a, b in zip(losses("plain"), losses("whole")):
        check(abs(a - b) <= 1e-4 * b, f"plain: {losses('plain')} is not {losses('whole')}")
    # Two versions of the weights, and what is foreseen, too.
    launch(manifest("whole-stale", **{**base, **plain, "pipeline.replicas": 1, "train.staleness": 1}))
    changed("stale", {**plain, "train.staleness": 1}, 1, 2)
    for a, b in zip(losses("stale"), losses("whole-stale")):
        check(abs(a - b) <= 1e-4 * b, f"stale: {losses('stale')} is not {losses('whole-stale')}")
    check(losses("whole-stale") != losses("whole"), "staleness changes nothing: no test")
    for name in ("adamw-q4", "onebit_adam"):
        changes = changed(name, {**OPTIMIZERS[name], "edges.forward.codec": "aqsgd"}, 2, 3, 1, 2)
        check(losses(name)[-1] < losses(name)[5], f"{name}: {losses(name)}")
        fresh = [sum(x or 0 for x in line["keyframes"]) for line in metrics(name)]
        for step in changes:
            check(step == 24 or fresh[step] > 0, f"{name}: samples that moved begin with keyframes: {fresh} {changes}")
    path = manifest("refused", **{**base, **plain})
    interrupt("sigint", path, 5)
    refused("another seed", path, "of another plan", 2, "--resume", "--set", "train.seed=8", "--set", "pipeline.replicas=1")
    # Files of all old replicas are read: one that is another's is named, a damaged one too, and the older checkpoint taken.
    folder = ROOT / "refused" / "checkpoint"
    folder = folder / str(json.loads((folder / "complete").read_text())["step"])
    stages = len(list(folder.glob("stage-*.safetensors"))) // 2
    first, second = folder / "stage-0.safetensors", folder / f"stage-{stages}.safetensors"
    good = {file: file.read_bytes() for file in (first, second)}
    second.write_bytes(good[first])
    refused("another's file", path, rf"stage-{stages}\.safetensors: its stage is 0, .* need {stages}", 1, "--resume", "--set",
            "pipeline.replicas=1")
    second.write_bytes(good[second])
    first.write_bytes(good[first][:-1] + bytes([good[first][-1] ^ 1]))
    done = launch(path, "--resume", "--set", "pipeline.replicas=1")
    check(re.search(r"stage-0\.safetensors: its bytes have digest .* older checkpoint", done.stderr), f"damaged:\n{done.stderr}")
    no_workers("replicas_reshard")


def scenario_replicas_bad_input():
    """What replicas cannot be is one line with its place, and nothing is started."""
    path = manifest("bad", **REPLICAS)
    refused("data", path, r"bad\.yaml:\d+:\d+: pipeline\.replicas: data\.train has 1 samples for 2 replicas", 2, "--set",
            "data.train_samples_max=1")
    for samples in (22, 23):  # what W does not divide is left out, aloud
        done = launch(manifest(f"rest-{samples}", **{**REPLICAS, "data.train_samples_max": samples, "train.epochs": 1}))
        said = "the last 1 samples of data.train are left out, so that 2 replicas have the same number" in done.stderr
        check(said == (samples == 23), f"of {samples} samples: {done.stderr}")
    check(losses("rest-22") == losses("rest-23"), "a sample that is left out was trained on")
    refused("batch", path, r"train\.batch: 8 is not a multiple of train\.micro_batch \(2\) times pipeline\.replicas \(3\)",
            2, "--set", "pipeline.replicas=3")
    refused("none", path, r"pipeline\.replicas: '0' is out of range: must be a whole number", 2, "--set", "pipeline.replicas=0")
    for codec, optimizer, words in (("vote", "adamw", "any codec but vote"), ("q4", "slamb", "fp32, fp16 or bf16, of few values"),
                                    ("powersgd", "qadam", "q8..q2"), ("sign", "lioncub", "vote")):
        refused(f"{codec} of {optimizer}", path, rf"reduce\.codec: {codec} does not fit train\.optimizer {optimizer}.*{words}", 2,
                "--set", f"train.optimizer={optimizer}", "--set", f"reduce.codec={codec}")
    refused("nan", path, r"10 steps in a row without a finite gradient", 1, "--set", "train.lr=100", "--set",
            "train.clip=0", "--set", "train.epochs=40", "--set", "train.optimizer=sgd", "--set", "train.warmup_steps=0")
    skipped = [line["skipped"] for line in metrics("bad")]
    check(skipped[-9:] == [True] * 9, f"steps without a finite gradient are skipped: {skipped}")
    shutil.rmtree(ROOT / "bad")
    refused("nan, three", path, r"3 steps in a row without a finite gradient \(train\.skips_max\)", 1, "--set", "train.lr=100",
            "--set", "train.clip=0", "--set", "train.epochs=40", "--set", "train.optimizer=sgd", "--set",
            "train.warmup_steps=0", "--set", "train.skips_max=3")
    another_plan(path)


def another_plan(path):
    """A worker that plans something else than its launcher says why it does not begin."""
    ours, theirs = socket.socketpair()

    def in_child():
        os.dup2(theirs.fileno(), 3)

    with ours, theirs:
        worker = subprocess.Popen([str(BIN / "aqpipe"), "worker"], preexec_fn=in_child, close_fds=False,
                                  stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        theirs.close()
        start = {"op": "start", "rank": 3, "manifest": path.read_text(), "plan_hash": "0123456789abcdef",
                 "run": str(ROOT / "other"), "checkpoint": str(ROOT / "other" / "checkpoint")}
        ours.sendall(json.dumps(start).encode() + b"\n")
        ours.settimeout(jobs.PATIENCE)
        answer = json.loads(ours.makefile().readline())
        check(worker.wait(jobs.PATIENCE) == 1 and answer["event"] == "failed", f"another plan: {answer}")
        check(re.search("this machine plans [0-9a-f]{16}, the launcher 0123456789abcdef: another version", answer["text"]),
              f"another plan: {answer}")
        worker.stderr.close()


def with_value(path, tensor, first, count, value):
    """The same safetensors file, some floats of a tensor replaced."""
    data = bytearray(path.read_bytes())
    size = int.from_bytes(data[:8], "little")
    begin = 8 + size + json.loads(data[8:8 + size])[tensor]["data_offsets"][0] + 4 * first
    data[begin:begin + 4 * count] = struct.pack("<f", value) * count
    return bytes(data)


def scenario_replicas_nan():
    """One sample's gradient is not finite, on one replica: all skip that step alike, no error of a codec has a part of it."""
    words = bytearray(jobs.text(1, 400).encode())
    words[32 * 5 + 7] = ord("Z")  # sample 5 is replica 1's, and no layer norm holds the embedding of Z
    ROOT.joinpath("train.txt").write_bytes(words)
    base = {**REPLICAS, "train.epochs": 3, "train.micro_batch": 1}
    launch(manifest("good", **{**base, "train.steps_max": 1}))
    made = with_value(ROOT / "good" / "model.safetensors", "transformer.wte.weight", 32 * ord("Z"), 32, 3e38)
    ROOT.joinpath("made.safetensors").write_bytes(made)
    for name, keys in {"fp32": {}, "q4": {"reduce.codec": "q4"}, "onebit": OPTIMIZERS["onebit_adam"]}.items():
        launch(manifest(name, **{**base, **keys, "model.weights": str(ROOT / "made.safetensors"), "train.skips_max": 1000}))
        skipped = [line["skipped"] for line in metrics(name)]
        check([sum(skipped[e:e + 3]) for e in (0, 3, 6)] == [1, 1, 1], f"{name}: one step in each epoch: {skipped}")
        good = [line["loss"] for line in metrics(name) if not line["skipped"]]
        check(all(loss is not None and loss < 10 for loss in good) and good[-1] < good[0], f"{name}: {losses(name)}")
        for rank in (2, 3):
            mine, other = arrays(name, rank), arrays(name, rank - 2)
            check(all("error" in key or mine[key] == other[key] for key in mine), f"{name}: rank {rank} differs")
            owed = [value for key in mine if "error" in key for (value,) in struct.iter_unpack("<f", mine[key])]
            check(all(map(math.isfinite, owed)) and any(owed) == bool(keys), f"{name}: rank {rank} owes what is not finite")
        report = json.loads((ROOT / name / "report.json").read_text())["runs"][0]
        check(report["steps_skipped"] == 3, f"{name}: the report says {report['steps_skipped']}")
    path = manifest("lost", **{**base, "model.weights": str(ROOT / "made.safetensors"), "train.skips_max": 1})
    refused("lost", path, r"1 steps in a row without a finite gradient \(train\.skips_max\)", 1)
    no_workers("replicas_nan")
