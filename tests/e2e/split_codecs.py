"""Split learning's codecs: the published fw2 bw8[0.2], and what a job has that says nothing of codecs."""
import json
import os
import pathlib
import subprocess

import jobs
from jobs import aqpipe, check, launch, losses, manifest, metrics, no_workers
from kit import ROOT
from split import PLAIN, STAGES, Client, Server, begin, job, of_client, records, report, split, stopped, tensors, whole
from split_modes import newest

H6 = {"edges.forward.codec": "aqsgd", "edges.forward.bits": 2, "edges.backward.codec": "directq", "edges.backward.bits": 8,
      "edges.backward.top_k": 0.2}
UNSAID = {"edges.forward.codec": None}


def three_stages(name, data, **keys):
    """The run that a split one with one client is to be."""
    launch(job(name, **{**keys, "train.epochs": 6, "pipeline.stages": STAGES.replace(", dials: true", ""), "data.train": str(ROOT / f"{data}.bin")}))
    return losses(name)


def sent_backward(name, client):
    return sum(sum(line["backward_bytes"]) for line in of_client(name, client))


def scenario_split_topk():
    """fw2 bw8[0.2] with uneven last batches (45 samples in batches of 20, micro-batches of 10): a run of three stages, and a share of its bytes."""
    begin("b")
    wanted = three_stages("three", "b", **H6)
    whole(split("kept", **H6), "b")
    check(wanted == [line["loss"] for line in of_client("kept", "b")], "with top-k the losses are not those of three stages")
    check(len(wanted) == 18 and all(line["samples"] == size for line, size in zip(of_client("kept", "b"), (20, 20, 5) * 6)), "batches")
    whole(split("all", **{**H6, "edges.backward.top_k": 1}), "b")
    whole(split("plain", **PLAIN), "b")
    check(wanted != [line["loss"] for line in of_client("all", "b")], "top_k does nothing")
    # A value kept is 8 bits, its place 0.85 of one for each there is, and a scale 2 bytes a row: of 8 to 64 columns here.
    kept, every, plain = (sent_backward(name, "b") for name in ("kept", "all", "plain"))
    check(every - kept > 0.8 * 0.69 * plain / 4, f"backward bytes {kept} with top_k 0.2, {every} without, {plain} plain")
    check(kept < plain / 6, f"backward bytes {kept} of {plain}")
    check(report("kept")["sent_bytes"] < report("all")["sent_bytes"], "the report's bytes")
    bad = aqpipe("plan", split("bad", **{**H6, "edges.backward.group": "channel"}))
    check(bad.returncode == 2 and "top_k" in bad.stderr, f"{bad.returncode}: {bad.stderr}")
    no_workers("split_topk")


def scenario_split_unsaid():
    """A split job that says nothing of codecs has ec both ways, first visits too: three stages' run; a decoder with DoRA's adapters, too."""
    begin("a", "b")
    wanted = three_stages("three", "b", **UNSAID)
    whole(split("ec", **UNSAID), "b")
    said = json.dumps(metrics("ec/clients/b", "start")[0]["edges"])
    check(said.count('"ec ') == 4 and "directq" not in said and "aqsgd" not in said, said)
    check(wanted == [line["loss"] for line in of_client("ec", "b")], "with ec the losses are not those of three stages")
    server = whole(split("both", rounds=2, clients=2, **UNSAID), "a", "b")
    check([line["turns"] for line in report("both")["clients"]] == [2, 2], f"{server.text()}")

    stages = "[{layers: 0-1, dials: true}, {layers: 2-3}, {layers: 4-5, dials: true}]"
    dora = {**UNSAID, "lora.rank": 3, "lora.alpha": 6, "lora.dora": "true", "train.lr": 0.01, "train.decay": "constant", "train.warmup_steps": 0}
    launch(manifest("dora-three", **{**dora, "train.epochs": 4, "pipeline.stages": stages.replace(", dials: true", "")}))
    turns = {"split.clients": 1, "split.server": "127.0.0.1:0", "split.rounds": 2, "split.epochs": 2, "security.keys": str(ROOT / "keys"),
             "pipeline.stages": stages, "split.collect": "true", "checkpoint.every": "1 epoch"}
    whole(manifest("dora", **{**dora, **turns}), "a", data="train", kind="txt")
    check(losses("dora-three") == [line["loss"] for line in of_client("dora", "a")], "with DoRA the losses are not those of three stages")
    sent = [name for rank in range(3) for name in tensors(newest("dora") / f"stage-{rank}.safetensors") if not name.startswith("optimizer.")]
    check(any(".lora_M." in name for name in sent) and all("lora_" in name for name in sent), f"what travels: {sent}")
    ours, theirs = (tensors(ROOT / run / "model.safetensors") for run in ("dora", "dora-three"))
    check(ours == theirs, f"the model that is left differs in {[n for n in theirs if ours.get(n) != theirs[n]]}")
    no_workers("split_unsaid")


VIEWS = {"data.augment.crop": 4, "data.augment.flip": "true"}


def visits(name, client):
    """Of each epoch of a client, both cuts together: visits that were keyframes, bytes forward."""
    epochs = {}
    for line in of_client(name, client):
        seen = epochs.setdefault(line["epoch"], [0, 0])
        seen[0] += sum(line["keyframes"])
        seen[1] += sum(line["forward_bytes"])
    return [epochs[epoch] for epoch in sorted(epochs)]


def scenario_split_crops():
    """Images cropped and flipped anew in each epoch: split is unsplit, references move along, and a client that is killed goes on the same."""
    begin("a", "b")
    plain = {**PLAIN, **VIEWS}
    launch(job("one", **{**plain, "train.epochs": 6, "pipeline.stages": 1}))
    whole(split("plain", **plain), "a")
    wanted = [line["loss"] for line in of_client("plain", "a")]
    check(losses("one") == wanted, "losses are not those of one stage")
    launch(job("still", **{**PLAIN, "train.epochs": 6, "pipeline.stages": 1}))
    check(losses("still")[0] != wanted[0], "images are seen as they are")

    keys = {**H6, **VIEWS, "edges.forward.store": "q8"}
    three = three_stages("three", "b", **keys)
    whole(split("moved", **keys), "b")
    check(three == [line["loss"] for line in of_client("moved", "b")], "with crops the losses are not those of three stages")
    epochs = visits("moved", "b")
    first, last = epochs[0], epochs[-1]
    check(first[0] == 2 * 45 and sum(seen[0] for seen in epochs) <= 4 * 45, f"more keyframes than images have sides: {epochs}")
    check(last[0] < 20 and last[1] < 0.5 * first[1], f"later visits are coded as first ones: {epochs}")

    slow = {**keys, "split.wait": "60s", "checkpoint.every": "2 steps"}
    server = Server(split("killed", **slow))
    for step in (5, 11):
        client = Client(server, "b", stops=(step,))
        stopped(server, client, step)
        client.kill()
    client = Client(server, "b")
    client.end()
    server.end()
    check(three == [line["loss"] for line in of_client("killed", "b")], "not the run that would have been")
    check([seen[0] for seen in visits("killed", "b")] == [seen[0] for seen in epochs], "messages were lost")

    for changes, said in (({"data.augment.crop": 32}, "leaves nothing"), ({"edges.forward.store": "q4", "edges.forward.store_group": "channel"}, "store_group")):
        bad = aqpipe("plan", job("bad", **{**keys, "pipeline.stages": STAGES.replace(", dials: true", ""), **changes}))
        check(bad.returncode == 2 and said in bad.stderr and "data.augment.crop" in bad.stderr, f"{bad.returncode}: {bad.stderr}")
    bad = aqpipe("plan", manifest("text", **VIEWS))
    check(bad.returncode == 2 and "needs images" in bad.stderr, f"{bad.returncode}: {bad.stderr}")
    no_workers("split_crops")


def scenario_split_cifar100():
    """CIFAR-100 split, a ResNet with crops and flips: with labels at the client and at the server one client is the unsplit run; a client with a bad label is refused."""
    begin("a", "b")
    for seed, (name, count) in enumerate({"a": 45, "b": 30, "test": 30}.items()):
        records(name, count, seed, 100, lambda label: label // 5)
    keys = {**PLAIN, **VIEWS, "data.kind": "cifar100", "model.kind": "resnet", "model.width": None, "model.levels": None, "model.depth": 10, "model.filters": 4}
    home, served = "[{layers: 0-1, dials: true}, {layers: 2-5}, {layers: 6, dials: true}]", "[{layers: 0-1, dials: true}, {layers: 2-6}]"
    launch(job("unsplit", **{**keys, "pipeline.stages": 1, "train.epochs": 4}))
    for name, stages, more in (("home", home, {}), ("served", served, {"split.labels": "server"})):
        whole(split(name, rounds=2, epochs=2, **{**keys, "pipeline.stages": stages, "split.collect": "true", **more}), "a")
        check(losses("unsplit") == [line["loss"] for line in of_client(name, "a")], f"{name}: one client is another run")
        check(tensors(ROOT / "unsplit/model.safetensors") == tensors(ROOT / f"{name}/model.safetensors"), f"{name}: weights differ")
    labels = (ROOT / "a.bin").read_bytes()[1::3074]
    check(max(labels) > 9 and (ROOT / "served/labels/a/train").read_bytes() == b"aqpipe labels 1\n" + b"".join(label.to_bytes(4, "little") for label in labels),
          "the server's labels are not the fine ones")
    check(not (ROOT / "home/labels/a/train").exists(), "labels at home are at the server")
    server = Server(split("both", rounds=1, epochs=1, clients=1, **{**keys, **H6, "pipeline.stages": home}))
    bad = bytearray((ROOT / "b.bin").read_bytes())
    bad[3075] = 100
    (ROOT / "bad.bin").write_bytes(bad)
    said = Client(server, "b", data="bad").end(2)
    check("bad.bin: record 1 has fine label 100" in said, said)
    Client(server, "a").end()
    server.end()
    no_workers("split_cifar100")


def scenario_split_compare():
    """examples/split-cifar10/compare: four runs of a small network, a row each; asked again it reads what is there."""
    example = pathlib.Path(__file__).resolve().parents[2] / "examples/split-cifar10/compare"
    words = [example, "--train", records("many", 120, 1), "--heldout", records("test", 20, 2), "--clients", "2", "--out", ROOT / "compared", "--"]
    for key in ("split.rounds=1", "split.epochs=2", "pipeline.threads=1", "model.depth=10", "model.filters=16", "train.batch=32", "train.micro_batch=16",
                "pipeline.stages=[{layers: 0-1, dials: true}, {layers: 2-3}, {layers: 4-6, dials: true}]"):
        words += ["--set", key]
    for _ in range(2):
        done = subprocess.run(words, env={**os.environ, "AQPIPE": str(jobs.BIN / "aqpipe")}, capture_output=True, text=True, timeout=jobs.PATIENCE)
        check(done.returncode == 0, f"{done.returncode}: {done.stderr[-3000:]}")
        rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in done.stdout.splitlines() if line.startswith("| ")][1:]
        check([row[0] for row in rows] == ["fp32", "default codec", "AQ-SGD fw2 bw8[0.2]", "DirectQ fw2 bw8[0.2]"], done.stdout)
    # Two epochs of 120 samples, (1024 x 16 + 64 x 64) values each way, and tables; a first visit costs about 4 bits more.
    plain, default, ours, direct = (float(row[5]) for row in rows)
    check(0 < plain - 2 * 120 * 2 * 4 * (1024 * 16 + 64 * 64) / 1e6 < 0.1, done.stdout)
    check(plain / ours > 10 and ours > direct and ours < default < plain / 6 and float(rows[2][7]) == round(plain / ours, 1), done.stdout)
    check(done.stderr == "", f"it runs again: {done.stderr}")

    # The one of split-text: 16 bits of 128 tokens of 64 channels, both ways over both cuts.
    lines = ROOT / "lines.txt"
    lines.write_text((ROOT / "train.txt").read_text().replace(" the ", "\nthe ") * 4)
    words = [example.parents[1] / "split-text/compare", "--train", lines, "--heldout", ROOT / "heldout.txt", "--clients", "2", "--out", ROOT / "texts", "--"]
    for key in ("split.rounds=2", "split.epochs=1", "pipeline.threads=1", "model.channels=64", "model.head_dim=16", "model.mlp=64", "train.batch=8", "data.train_samples_max=12",
                "data.heldout_samples_max=2"):
        words += ["--set", key]
    done = subprocess.run(words, env={**os.environ, "AQPIPE": str(jobs.BIN / "aqpipe")}, capture_output=True, text=True, timeout=jobs.PATIENCE)
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in done.stdout.splitlines() if line.startswith("| ")][1:]
    check(done.returncode == 0 and [row[0] for row in rows] == ["16 bits", "ec 2.5 / 4, the default", "lowrank 16 / 16"], done.stdout + done.stderr[-3000:])
    values = 12 * 128 * 64 * 4 * 2 / 1e6
    check(0 < float(rows[0][3]) - values < 0.05 * values, f"{rows[0]}: {values} MB of values in 16 bits")
    check(all(float(row[3]) < 0.6 * float(rows[0][3]) for row in rows[1:]), done.stdout)
    no_workers("split_compare")
