"""Split learning of tied tensors: what embedding and head, or all blocks, share is one tensor, wherever the cuts are."""
from jobs import aqpipe, check, launch, losses, manifest, no_workers
from kit import ROOT
from split import Client, Server, lost, stopped, tensors, whole
from split_modes import newest
from split_lengths import CODED, PLAIN, STAGES, same, tables, talks, turns
from tables import job

LLAMA = {"model.kind": "llama", "model.kv_heads": 2, "model.head_dim": 16, "model.mlp": 64}
KINDS = {"gpt2": {}, "llama": LLAMA}
DEBERTA = {"model.kind": "deberta", "model.buckets": 8, "pipeline.stages": STAGES.replace("4-5", "4-6")}


def scenario_split_tied_kinds():
    """Tied ends of every kind of decoder: one client is the unsplit run bit for bit, whatever else the job has on."""
    tables("a", "b")
    talks("train.jsonl", 1, 40)
    talks("heldout.jsonl", 2, 9)
    answers = {"data.kind": "instruct", "data.train": str(ROOT / "train.jsonl"), "data.heldout": str(ROOT / "heldout.jsonl"),
               "data.train_samples_max": 0, "data.heldout_samples_max": 0, "train.T": 48, "model.context": 48, "model.tied": "exact"}
    more = {"bf16": {"model.precision": "bf16"}, "clip": {"train.clip": 0.1}, "sgd": {"train.optimizer": "sgd", "train.momentum": 0.9},
            "stale": {"train.staleness": 1}, "dropout": {"model.dropout": 0.1, "model.recompute": "true"},
            "saved": {"lora.rank": 3, "lora.alpha": 6, "lora.modules_to_save": "embed_tokens", **LLAMA}}
    for tag, keys in {**KINDS, **more}.items():
        keys = {**PLAIN, **answers, **keys}
        launch(manifest(f"{tag}-one", **{**keys, "pipeline.stages": 1}))
        for mode in ("relay", "splitfed1", "splitfed2") if tag == "llama" else ("relay",):
            whole(manifest(f"{tag}-{mode}", **{**keys, **turns(mode)}), "a", data="train", kind="jsonl")
            same(f"{tag}-{mode}", f"{tag}-one")
            check("lm_head.weight" not in tensors(ROOT / f"{tag}-{mode}/model.safetensors"), f"{tag}: the head has a tensor")

    # A client that is killed in its second turn, and a server that is killed in the first of two: the undisturbed run.
    keys = {**PLAIN, **answers, **LLAMA, **turns(**{"split.wait": "60s", "checkpoint.every": "2 steps"})}
    server = Server(manifest("killed", **keys))
    client = Client(server, "a", data="train", kind="jsonl", stops=(3,))
    stopped(server, client, 3)
    server.process.kill()
    server.process.wait()
    client.release()
    again = Server(server.path, "--set", f"split.server='127.0.0.1:{server.port}'")
    client.kill()
    client = Client(again, "a", data="train", kind="jsonl", stops=(6,))
    stopped(again, client, 6)
    client.kill()
    client.release()
    Client(again, "a", data="train", kind="jsonl").end()
    again.end()
    same("killed", "llama-one")
    no_workers("split_tied_kinds")


def scenario_split_tied_deberta():
    """DeBERTa's one table of relative positions, in blocks at the client and at the server: copies with the same bits, the run of three stages."""
    tables("a", "b")
    keys = {**PLAIN, **DEBERTA, "model.tied": "exact"}
    launch(job("three", **{**keys, "pipeline.stages": DEBERTA["pipeline.stages"].replace(", dials: true", "")}))
    for mode in ("relay", "splitfed1"):
        whole(job(mode, **{**keys, **turns(mode), **DEBERTA}), "a", data="train", kind="tsv")
        same(mode, "three")
    for mode in ("relay", "splitfed1", "global"):  # what one leaves another goes on from
        name = f"two-{mode}"
        server = Server(job(name, **{**keys, **turns(mode), **DEBERTA, "split.clients": 2}))
        clients = [Client(server, "a", data="train", kind="tsv"), Client(server, "b", kind="tsv")]
        for client in clients:
            client.end()
        server.end()
        stages = [tensors(newest(name) / f"stage-{rank}.safetensors") for rank in range(3)]
        copies = {key: [stage[key] for stage in stages if key in stage] for stage in stages for key in stage if ".rel_" in key or "encoder.LayerNorm" in key}
        check(sum(len(each) > 1 for each in copies.values()) > 0, f"{name}: no stage but one has a copy: {sorted(stages[1])}")
        check(all(each.count(each[0]) == len(each) for each in copies.values()), f"{name}: copies differ")
    done = aqpipe("plan", job("apart", **{**keys, **turns("splitfed2"), **DEBERTA}))
    check(done.returncode == 2 and "splitfed2 averages the ends, and not the middle" in done.stderr, done.stderr)
    done = aqpipe("plan", job("own", **{**keys, **turns("splitfed2"), **DEBERTA, "model.tied": "untied"}))
    check(done.returncode == 0, done.stderr)
    no_workers("split_tied_deberta")


def scenario_split_rates():
    """train.lr_patterns: one client is the unsplit run bit for bit, whichever end a pattern names; a client that is killed changes nothing; ends agree on rates."""
    tables("a", "b")
    talks("train.jsonl", 1, 40)
    talks("heldout.jsonl", 2, 9)
    rates = {"train.lr_patterns": "'embedding = 3e-2, h.1-2.mlp = 5e-4, h.*.ln_* = 2e-2, head = 4e-3'"}
    launch(job("plain-one", **{**PLAIN, "pipeline.stages": 1}))
    launch(job("one", **{**PLAIN, **rates, "pipeline.stages": 1}))
    check(losses("one") != losses("plain-one"), "rates change nothing: nothing is tested")
    for pattern in ("embedding = 3e-2", "block 1 = 5e-3", "head = 4e-3"):  # each stage has one that moves it
        tag = pattern.split()[0]
        launch(job(f"{tag}-one", **{**PLAIN, "train.lr_patterns": f"'{pattern}'", "pipeline.stages": 1}))
        check(losses(f"{tag}-one") not in (losses("plain-one"), losses("one")), f"{pattern} changes nothing")
        whole(job(tag, **{**PLAIN, **turns(), "train.lr_patterns": f"'{pattern}'"}), "a", data="train", kind="tsv")
        same(tag, f"{tag}-one")
    for mode in ("relay", "splitfed1", "splitfed2", "global"):
        whole(job(mode, **{**PLAIN, **rates, **turns(mode)}), "a", data="train", kind="tsv")
        same(mode, "one")
    served = {"split.labels": "server", "pipeline.stages": "[{layers: 0-1, dials: true}, {layers: 2-5}]"}
    whole(job("served", **{**PLAIN, **rates, **turns(), **served}), "a", data="train", kind="tsv")
    same("served", "one")

    # A tied table has the embedding's rate at both ends of the client; adapters have those of their layers; staleness keeps them.
    answers = {"data.kind": "instruct", "data.train": str(ROOT / "train.jsonl"), "data.heldout": str(ROOT / "heldout.jsonl"),
               "data.train_samples_max": 0, "data.heldout_samples_max": 0, "train.T": 48, "model.context": 48}
    for tag, make, keys, kind in (("tied", manifest, {**answers, "model.tied": "exact", "train.lr_patterns": "'embedding = 2e-2'"}, "jsonl"),
                                  ("adapted", job, {"lora.rank": 3, "lora.alpha": 6, "train.lr": 0.01, "train.lr_patterns": "'block 0 = 5e-2, block 2 = 1e-3'"}, "tsv"),
                                  ("stale", job, {**rates, "train.staleness": 1}, "tsv")):
        launch(make(f"{tag}-one", **{**PLAIN, **keys, "pipeline.stages": 1}))
        whole(make(tag, **{**PLAIN, **keys, **turns()}), "a", data="train", kind=kind)
        same(tag, f"{tag}-one")

    # Two clients with codecs, one of which is killed in mid-turn.
    keys = {**CODED, **rates, **turns("splitfed1", **{"split.wait": "60s", "checkpoint.every": "2 steps", "split.clients": 2})}
    for name, stops in (("calm", ()), ("killed", (3,))):
        server = Server(job(name, **keys))
        clients = {"a": Client(server, "a", data="train", kind="tsv", stops=stops), "b": Client(server, "b", kind="tsv")}
        if stops:
            stopped(server, clients["a"], 3)
            clients["a"].kill()
            clients["a"].release()
            clients["a"] = Client(server, "a", data="train", kind="tsv")
        for client in clients.values():
            client.end()
        server.end()
    check([lost("killed", name) for name in "ab"] == [lost("calm", name) for name in "ab"], "a killed client changes the run")

    # A client with other rates, or with none, is refused by name; so is a pattern that no layer has, by the plan.
    server = Server(job("agreed", **{**PLAIN, **rates, **turns()}))
    for name, other in (("other", "'embedding = 2e-2, h.1-2.mlp = 5e-4, h.*.ln_* = 2e-2, head = 4e-3'"), ("none", None)):
        said = Client(server, "a", data="train", kind="tsv", path=job(name, **{**PLAIN, **turns(), "train.lr_patterns": other})).end(1)
        check("train.lr_patterns" in said, f"{name}: {said}")
    server.process.terminate()
    server.process.wait()
    done = aqpipe("plan", job("typo", **{**PLAIN, **turns(), "train.lr_patterns": "'embeding = 1e-2'"}))
    check(done.returncode == 2 and "did you mean 'embedding'" in done.stderr, done.stderr)
    no_workers("split_rates")
