"""DeBERTa over cuts: one table of relative positions for all stages, or one a block; on tables of texts."""
import json
import struct

import jobs
from jobs import aqpipe, check, launch, losses, manifest, metrics, no_workers, raw, weights
from kit import ROOT, arrays, interrupt, refused
from tables import CODECS, table

PLAIN = {**raw(), **raw("backward")}
SHARED = ("encoder.rel_embeddings.weight", "encoder.LayerNorm.weight", "encoder.LayerNorm.bias")


def job(name, **changes):
    return manifest(name, **{
        "model.kind": "deberta", "model.tied": "true", "model.buckets": 8, "model.kernel": 3, "model.dropout": 0.1,
        "data.kind": "tsv", "data.train": str(ROOT / "train.tsv"), "data.heldout": str(ROOT / "heldout.tsv"),
        "data.text_column": "words", "data.label_column": "kind", "data.labels": "'short, long'",
        "data.train_samples_max": 0, "data.heldout_samples_max": 0, "checkpoint.every": "4 steps", **changes})


def near(name, whole, limit):
    far = max(abs(a - b) / abs(b) for a, b in zip(losses(name), losses(whole)))
    check(far <= limit, f"{name}: losses are {far} from those of {whole}")


def scenario_deberta():
    """A table that stages share is trained as in one stage, but for the order of sums; copies have one's bits."""
    table("train.tsv", 3, 22)
    table("heldout.tsv", 4, 9)
    launch(job("one", **{**PLAIN, "pipeline.stages": 1}))
    for stages in (2, 4):
        name = f"shared-{stages}"
        launch(job(name, **{**PLAIN, "pipeline.stages": stages}))
        near(name, "one", 1e-5)
        first = arrays(name, 0)
        for rank in range(1, stages):
            mine = arrays(name, rank)
            for key in SHARED:
                check(key in first and (key not in mine or mine[key] == first[key]),
                      f"{name}: {key} of stage {rank} is not that of stage 0")
            check(stages > 2 or SHARED[0] in mine, "no stage but the first has a copy: nothing was tested")
    rates = {**PLAIN, "train.lr_patterns": "'embedding = 3e-2'"}  # its table is the embedding's: its copies have that rate, too
    launch(job("rates-one", **{**rates, "pipeline.stages": 1}))
    launch(job("rates-two", **{**rates, "pipeline.stages": 2}))
    near("rates-two", "rates-one", 1e-4)
    one, whole, mine = (struct.unpack(f"<{len(values) // 4}f", values) for values in
                        (arrays(name, 0)[SHARED[0]] for name in ("one", "rates-one", "rates-two")))
    far, moved = (max(abs(a - b) for a, b in zip(values, whole)) for values in (mine, one))
    check(far < 1e-2 * moved, f"with a rate for the embedding the table of two stages is {far} from that of one, which it moves by {moved}")
    check(abs(losses("rates-one")[-1] / losses("one")[-1] - 1) > 1e-2, "the pattern changes nothing: nothing was tested")
    (size,) = struct.unpack("<Q", weights("shared-4")[:8])
    names = json.loads(weights("shared-4")[8:8 + size])
    check("deberta." + SHARED[0] in names and not any("layer.2.rel" in name for name in names),
          f"an export has copies: {sorted(names)}")
    launch(job("own-one", **{**PLAIN, "model.tied": "false", "pipeline.stages": 1}))
    launch(job("own", **{**PLAIN, "model.tied": "false"}))
    check(losses("own") == losses("own-one") and weights("own") == weights("own-one"),
          "a table a block: not as one stage bit for bit")
    jobs.isolated(True)
    launch(job("isolated", **{**PLAIN, "pipeline.stages": 4}))
    jobs.isolated(False)
    check(losses("isolated") == losses("shared-4"), "a device that no host can reach gives other losses")

    plan = aqpipe("plan", str(job("plan", **PLAIN)))
    check("shared by stages" in plan.stdout, f"the plan does not say what is shared:\n{plan.stdout}")
    refused("stale", job("stale", **{"train.staleness": 1}), "train.staleness.*model.tied: untied", 2)
    refused("votes", job("votes", **{"pipeline.stages": 2, "pipeline.replicas": 2, "train.optimizer": "qadam"}),
            "train.optimizer.*model.tied: untied", 2)
    launch(job("two", **{**PLAIN, "pipeline.stages": 2, "pipeline.replicas": 2, "model.dropout": 0}))
    no_workers("deberta")


def scenario_deberta_resume():
    """Through AQ-SGD's codecs something is learnt; killed and resumed it is the same run."""
    table("train.tsv", 3, 22)
    table("heldout.tsv", 4, 9)
    keys = {**CODECS, "train.epochs": 20, "model.dropout": 0, "train.lr": "5e-3", "model.kernel": 0}
    launch(job("whole", **keys))
    line = metrics("whole", "eval")[-1]
    check(metrics("whole")[-1]["loss"] < 0.7 * metrics("whole")[0]["loss"], f"nothing was learnt: {losses('whole')}, {line}")
    for name in ("sigint", "worker"):
        path = job(name, **keys)
        interrupt(name, path, 7)
        launch(path, "--resume")
        check(losses(name) == losses("whole") and weights(name) == weights("whole"), f"{name}: not the same run")
    no_workers("deberta_resume")
