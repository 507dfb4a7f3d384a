"""train.staleness 1: a formula, not a race. What a run learns does not depend on cut, schedule, links, looks or deaths."""
import json
import shutil

import jobs
from freeze import model
from jobs import aqpipe, check, launch, losses, manifest, metrics, no_workers, raw, weights
from kit import OPTIMIZERS, REPLICAS, RESTARTED, ROOT, arrays, interrupt, launch_and_kill, same_run

STALE = {"train.staleness": 1}


def same(name, whole, learnt=weights):
    """Steps and what was learnt; held-out losses where both were evaluated."""
    for key in ("loss", "grad_norm", "skipped"):
        mine, other = [line[key] for line in metrics(name)], [line[key] for line in metrics(whole)]
        check(mine == other, f"{name}: {key} {mine} is not that of {whole} {other}")
    check(learnt(name) == learnt(whole), f"{name}: model.safetensors differs from {whole}")
    mine, other = ({line["step"]: line["loss"] for line in metrics(run, "eval")} for run in (name, whole))
    for step in mine.keys() & other.keys():
        check(mine[step] == other[step], f"{name}: held-out loss {mine[step]} after step {step}, {whole} has {other[step]}")


def scenario_staleness():
    """P stages equal one stage, any schedule, any number in flight, any link; and looks and checkpoints change nothing."""
    base = {**raw(), **raw("backward"), **STALE}
    launch(manifest("fresh", **{**base, "train.staleness": 0, "pipeline.stages": 1}))
    launch(manifest("one", **{**base, "pipeline.stages": 1}))
    check(losses("one")[:2] == losses("fresh")[:1] + losses("one")[1:2] and losses("one")[1:] != losses("fresh")[1:],
          f"step 1 is at the first weights, as without staleness: {losses('one')} {losses('fresh')}")
    for name, changes in {"two": {"pipeline.stages": 2}, "four": {}, "four-gpipe": {"pipeline.schedule": "gpipe"},
                          "four-few": {"pipeline.in_flight": 3}, "four-many": {"pipeline.in_flight": 99},
                          "gpipe-rounds": {"pipeline.schedule": "gpipe", "pipeline.in_flight": 5},
                          "three-classic": {"pipeline.stages": 3, "pipeline.in_flight": "classic"},
                          "four-paced": {"link.rate_mbps": 50, "link.receive_slots": 1, "link.send_frames": 1},
                          "four-zb": {"pipeline.schedule": "zb-h1"},
                          "looks": {"train.evaluate_every": "1 steps", "checkpoint.every": "1 steps"},
                          "looks-2": {"train.evaluate_every": "3 steps", "checkpoint.every": "2 steps"}}.items():
        launch(manifest(name, **{**base, **changes}))
        same(name, "one")
    check(losses("one")[-1] < losses("one")[0] * 0.9, f"nothing was learnt: {losses('one')}")
    # Prediction begins with the first update: at the weights as they were, of the same numbers, the third step is another.
    asked = {"train.prediction": "false"}
    for name, changes in {"asked": {"pipeline.stages": 1}, "asked-four": {}}.items():
        launch(manifest(name, **{**base, **asked, **changes}))
        same(name, "asked")
    check(losses("asked")[:2] == losses("one")[:2] and losses("asked")[2:] != losses("one")[2:],
          f"train.prediction changes nothing: {losses('one')} {losses('asked')}")
    # What the caches hold is a matter of order, too: also where a sample comes in two steps that follow each other.
    coded = {"edges.forward.codec": "aqsgd", "edges.forward.bits": 4, "edges.backward.codec": "directq",
             "edges.backward.bits": 8, "model.dropout": 0.1, "train.epochs": 8, **STALE}
    for tag, changes in (("", {}), ("-tiny", {"data.train_samples_max": 8, "train.epochs": 16})):
        launch(manifest(f"coded{tag}", **{**coded, **changes}))
        for name, more in {"gpipe": {"pipeline.schedule": "gpipe"}, "paced": {"link.rate_mbps": 50},
                           "looks": {"checkpoint.every": "2 steps"}, "window": {"cache.window": 0},
                           "memory": {"cache.kind": "memory"}}.items():
            launch(manifest(f"coded{tag}-{name}", **{**coded, **changes, **more}))
            same(f"coded{tag}-{name}", f"coded{tag}")
    no_workers("staleness")


def scenario_staleness_resume():
    """Stopped or killed anywhere, a run goes on bit for bit: checkpoints hold both versions of the weights."""
    keys = {**RESTARTED, **STALE}
    launch(manifest("whole", **keys))
    for how in ("sigint", "worker", "launcher"):
        path = manifest(how, **keys)
        interrupt(how, path, 7)
        launch(path, "--resume")
        same_run(how, "whole")
    pairs = {**keys, **REPLICAS, "train.epochs": 8, "checkpoint.mirror": "true"}
    launch(manifest("pairs", **pairs))
    path = manifest("pairs-stopped", **pairs)
    interrupt("sigint", path, 7)
    launch(path, "--resume")
    same_run("pairs-stopped", "pairs")
    path = manifest("pairs-killed", **pairs)
    launch_and_kill(path, [(5, 2), (17, 3)])
    same_run("pairs-killed", "pairs")
    no_workers("staleness_resume")


def scenario_staleness_replicas():
    """Replicas, every optimizer, with clip: bit-identical, the same at any rate, and as one pipeline but for rounding."""
    plain = {**raw(), **raw("backward"), **REPLICAS, **STALE, "train.shuffle": "false"}
    launch(manifest("alone", **{**plain, "pipeline.replicas": 1}))
    launch(manifest("plain", **plain))
    for a, b in zip(losses("plain"), losses("alone")):
        check(abs(a - b) <= 1e-5 * b, f"replicas: losses {losses('plain')}, alone {losses('alone')}")
    for name, keys in OPTIMIZERS.items():
        keys = {**REPLICAS, **STALE, "pipeline.stages": 3, "checkpoint.every": "5 steps", **keys}
        if name == "onebit_adam":
            del keys["optimizer.freeze_ratio"]  # its default: a number of all stages decides when v freezes
        launch(manifest(name, **keys))
        launch(manifest(f"{name}-paced", **{**keys, "link.rate_mbps": 30, "pipeline.schedule": "gpipe"}))
        same(f"{name}-paced", name)
        for rank in range(3):
            mine, other = arrays(name, rank), arrays(name, rank + 3)
            check(all(mine[key] == other[key] for key in mine if not key.startswith("optimizer.")),
                  f"{name}: replica 1 of stage {rank} has other weights")
    no_workers("staleness_replicas")


def scenario_staleness_fp16():
    """fp16: void steps and the loss scale follow the same formula on every cut, and after a resume."""
    keys = {**raw(), **raw("backward"), **STALE, "model.precision": "fp16", "train.loss_scale_window": 2,
            "train.epochs": 16, "train.lr": "2e-3", "checkpoint.every": "3 steps"}
    launch(manifest("one", **{**keys, "pipeline.stages": 1}))
    for name, changes in (("four", {}), ("two-gpipe", {"pipeline.stages": 2, "pipeline.schedule": "gpipe"})):
        launch(manifest(name, **{**keys, **changes}))
        same(name, "one")
    skipped = [line["step"] for line in metrics("one") if line["skipped"]]
    check(len(skipped) >= 2, f"no void steps: no test ({skipped})")
    path = manifest("stopped", **keys)
    interrupt("sigint", path, 7)
    launch(path, "--resume")
    same("stopped", "four")
    no_workers("staleness_fp16")


def scenario_staleness_lost():
    """Caches that are lost come back by windows of fetches, whatever the steps around them look like: two under way, backwards in halves, replicas."""
    lost = {**RESTARTED, "train.epochs": 12}
    pairs = {**REPLICAS, "pipeline.stages": 3, "train.epochs": 8}
    for name, rank, changes in (("stale", 1, STALE), ("zb", 2, {"pipeline.schedule": "zb-h1"}), ("pairs", 4, pairs),
                                ("stale-zb-pairs", 3, {**pairs, **STALE, "pipeline.schedule": "zb-h1"})):
        keys = {**lost, **changes}
        launch(manifest(f"{name}-whole", **keys))
        path = manifest(name, **keys)
        interrupt("sigint", path, 9)
        shutil.rmtree(ROOT / name / "cache" / f"stage-{rank}")
        launch(path, "--resume")
        check(same_run(name, f"{name}-whole") > 0, f"{name}: nothing was fetched")
    no_workers("staleness_lost")


def scenario_staleness_frozen():
    """A stage that trains nothing, with two steps under way: the same run on every cut and schedule, and what is frozen stays."""
    keys = {**raw(), **raw("backward"), **STALE, "train.freeze": "'embedding, block 0, h.2.attn'", "train.epochs": 6}
    launch(manifest("one", **{**keys, "pipeline.stages": 1}))
    launch(manifest("fresh", **{**keys, "pipeline.stages": 1, "train.staleness": 0}))
    check(losses("one") != losses("fresh"), "staleness changes nothing: no test")
    frozen_first = {"pipeline.stages": "\n    - {layers: 0-1}\n    - {layers: 2-3}\n    - {layers: 4-5}"}
    for name, changes in {"four": {}, "first": frozen_first, "first-gpipe": {**frozen_first, "pipeline.schedule": "gpipe"},
                          "first-zb": {**frozen_first, "pipeline.schedule": "zb-h1"}}.items():
        launch(manifest(name, **{**keys, **changes}))
        same(name, "one", model)
    path = manifest("stopped", **{**keys, **frozen_first, "checkpoint.every": "3 steps"})
    interrupt("sigint", path, 7)
    launch(path, "--resume")
    same("stopped", "one", model)
    no_workers("staleness_frozen")


def scenario_staleness_memory():
    """What a second version of weights and gradients, and twice the slots, take of a process is what the plan says they do."""
    keys = {"model.channels": 256, "model.heads": 4, "train.T": 64, "model.context": 64, "train.epochs": 2, "pipeline.stages": 2}
    done = {}
    for name, changes in (("without", {}), ("with", STALE)):
        launch(manifest(name, **{**keys, **changes}))
        lines = metrics(name, "end")[0]["stages"]
        done[name] = [(line["memory_bytes"], line["memory_planned"]) for line in lines]
        plan = json.loads(aqpipe("plan", ROOT / f"{name}.yaml", "--json").stdout)
        check([stage["memory_bytes"] for stage in plan["stages"]] == [planned for _, planned in done[name]], f"{name}: {plan['stages']} {done}")
    for stage, ((rss, planned), (rss_with, planned_with)) in enumerate(zip(done["without"], done["with"])):
        more, wanted = rss_with - rss, planned_with - planned
        check(wanted > 10 << 20, f"stage {stage}: the plan has only {wanted} bytes more: no test")
        check(0.8 * wanted < more < 1.2 * wanted, f"stage {stage}: the process took {more} bytes more, the plan has {wanted}: {done}")
    no_workers("staleness_memory")
