"""A residual stream of bf16 (model.residual): one run however it is cut, stopped or asked; as good as one of fp32; refused by name."""
import json

from ask import answer, same_figures
from freeze import model
from jobs import aqpipe, check, launch, losses, manifest, no_workers, raw
from kit import ROOT, interrupt, refused, same_run

BF16 = {"model.precision": "bf16"}
NARROW = {**BF16, "model.residual": "bf16"}
LLAMA = {"model.kind": "llama", "model.mlp": 56, "model.kv_heads": 1}
COARSE = {"edges.forward.codec": "aqsgd", "edges.forward.bits": 4, "edges.backward.codec": "directq", "edges.backward.bits": 8}


def same(name, whole):
    """Losses and weights, which frozen tensors put into another order."""
    check(losses(name) == losses(whole), f"{name}: losses differ:\n{losses(name)}\n{losses(whole)}")
    check(model(name) == model(whole), f"{name}: weights differ")


def scenario_residual():
    """P stages equal one, in every way of keeping activations; the loss is that of an fp32 stream; killed, asked, resumed."""
    cases = {"gpt2": {}, "llama": LLAMA, "lora": {"lora.rank": 3, "train.lr": 0.01, "model.dropout": 0.1},
             "frozen": {"train.freeze": "'blocks 0-1, wte'", "model.tied": "false"}, "stale": {"train.staleness": 1, "model.tied": "false"}}
    for name, changes in cases.items():
        keys = {**raw(), **raw("backward"), **NARROW, **changes}
        launch(manifest(f"{name}-1", **{**keys, "pipeline.stages": 1}))
        for cut, ways in (("3", {}), ("again", {"model.recompute": "true"}), ("halves", {"pipeline.schedule": "zb-h1"})):
            launch(manifest(f"{name}-{cut}", **{**keys, "pipeline.stages": 3, **ways}))
            same(f"{name}-{cut}", f"{name}-1")
        launch(manifest(f"{name}-wide", **{**keys, "pipeline.stages": 1, "model.residual": "fp32"}))
        narrow, wide = losses(f"{name}-1"), losses(f"{name}-wide")
        check(narrow != wide, f"{name}: a stream of bf16 has the losses of one of fp32: {narrow}")
        far = max(abs(a - b) / b for a, b in zip(narrow, wide))
        print(f"{name}: losses within {far:.2g} of an fp32 stream's, {wide[0]:.4g} to {wide[-1]:.4g}")
        check(far < 1e-3, f"{name}: losses {narrow}, with a stream of fp32 {wide}")
        check(narrow[-1] < narrow[0], f"{name}: nothing was learnt: {narrow}")

    # Coded cuts, checkpoints, evaluation and generation.
    keys = {**NARROW, **COARSE, "pipeline.stages": 3, "checkpoint.every": "3 steps", "train.epochs": 6}
    launch(manifest("whole", **keys))
    path = manifest("killed", **keys)
    interrupt("worker", path, 5)
    launch(path, "--resume")
    same_run("killed", "whole")
    refused("changed", manifest("whole", **{**keys, "train.epochs": 7, "model.residual": "fp32"}),
            "model.residual: bf16 there, none here", 2, "--resume")
    same_figures(answer("eval", ROOT / "whole"), "whole", "perplexity")
    prompt = ("--prompt", "the pipeline ", "--tokens", 12)
    one, stages = (answer("generate", ROOT / "whole", *prompt, *way) for way in ((), ("--pipeline",)))
    check(one["ids"] == stages["ids"], f"one process writes {one}, the stages {stages}")

    # A plan counts it, and refuses families that do not have it, with place and remedy.
    memory = {}
    for stream in ("fp32", "bf16"):
        done = aqpipe("plan", manifest(f"plan-{stream}", **{**BF16, "model.residual": stream, "pipeline.stages": 1, "train.micro_batch": 8}), "--json")
        check(done.returncode == 0, done.stderr)
        memory[stream] = json.loads(done.stdout)["stages"][0]["memory_bytes"]
    check(memory["bf16"] < memory["fp32"], f"memory: {memory}")
    refused("family", manifest("family", **{**NARROW, **LLAMA, "model.kind": "gemma3"}),
            r"family\.yaml:\d+:\d+: model\.residual: bf16 is not computed for gemma3, .*set fp32", 2)
    refused("precision", manifest("precision", **{"model.residual": "bf16"}),
            r"precision\.yaml:\d+:\d+: model\.residual: .*set model\.precision: bf16", 2)
    no_workers("residual")
