"""train.staleness 1: a formula, not a race. What a run learns does not depend on cut, schedule, links, looks or deaths."""
import jobs
from jobs import check, descendant, launch, losses, manifest, metrics, no_workers, raw, weights
from kit import OPTIMIZERS, REPLICAS, RESTARTED, arrays, end, interrupt, launch_and_kill, same_run

STALE = {"train.staleness": 1}


def same(name, whole):
    """Steps and what was learnt; held-out losses where both were evaluated."""
    for key in ("loss", "grad_norm", "skipped"):
        mine, other = [line[key] for line in metrics(name)], [line[key] for line in metrics(whole)]
        check(mine == other, f"{name}: {key} {mine} is not that of {whole} {other}")
    check(weights(name) == weights(whole), f"{name}: model.safetensors differs from {whole}")
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

    def kill(process, number):
        pid = descendant(process.pid, "worker", number)
        return pid is not None and end(pid)

    launch_and_kill(path, [(5, 2), (17, 3)], kill)
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
