"""What a version left: samples of every format, kept in tests/golden/samples-VERSION, which this version goes on with (COMPATIBILITY.md)."""
import importlib.machinery
import importlib.util
import json
import os
import pathlib
import shutil
import tarfile
import time

import jobs
from jobs import aqpipe, check, launch, losses, manifest, metrics, no_workers
from kit import ROOT
import split

GOLDEN = pathlib.Path(__file__).resolve().parent.parent / "golden"
SIZES = {"model.channels": 8, "model.blocks": 2, "model.context": 16, "train.T": 16, "train.batch": 4, "train.micro_batch": 2,
         "pipeline.stages": 2, "data.train_samples_max": 12, "data.heldout_samples_max": 4, "train.decay": "constant",
         "checkpoint.every": "3 steps", "checkpoint.keep": 1, "model.dropout": 0.1}
CODED = {"edges.forward.codec": "aqsgd", "edges.forward.bits": 4, "edges.backward.codec": "directq", "edges.backward.bits": 8}
# Each run ends after `train.epochs` and goes on to twice as many: by a checkpoint, caches and a manifest of the version that began it.
RUNS = {"coded": {**SIZES, **CODED}, "entropy": {**SIZES, "edges.forward.codec": "ec", "edges.backward.codec": "ec"},
        "lora": {**SIZES, **CODED, "lora.rank": 2, "lora.alpha": 4}}
EPOCHS = 2
# What a run leaves that nobody reads who goes on with it.
DROPPED = ("logs", "trace.json", "report.json", "lock")
TURNS = {"split.clients": 1, "split.server": "127.0.0.1:0", "split.rounds": 2, "split.epochs": 1, "security.keys": None,
         "pipeline.stages": "[{layers: 0-0, dials: true}, {layers: 1-2}, {layers: 3-3, dials: true}]"}
EVAL = ("--data", None, "--T", 16, "--batch", 2, "--tokenizer", "bytes", "--json", "--threads", 1)
BITS = 1e-5  # how near losses must be where libm gives other bits than where the sample was made


def libm():
    loader = importlib.machinery.SourceFileLoader("golden_runs", str(GOLDEN.parent / "golden_runs"))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("golden_runs", loader))
    loader.exec_module(module)
    return module.libm_digest()


def model_loss(*folder):
    done = aqpipe("eval", *folder, *(ROOT / "heldout.txt" if word is None else word for word in EVAL))
    check(done.returncode == 0, f"eval {folder}: {done.stderr}")
    return json.loads(done.stdout)["loss"]


def template(path):
    """The manifest with ROOT in place of this test's folder."""
    path.write_text(path.read_text().replace(str(ROOT), "ROOT"))


def keys_of_site():
    done = aqpipe("keys", "init", ROOT / "keys", "--job", "split", "--stages", 3)
    check(done.returncode == 0, done.stderr)
    done = aqpipe("keys", "enroll", ROOT / "keys", "--site", "a", "--out", ROOT / "keys-a")
    check(done.returncode == 0, done.stderr)
    shutil.copy(ROOT / "train.txt", ROOT / "a.txt")


def turns(path, ends):
    """The split job: until its first turn has ended, or to the end. Losses of the client's steps."""
    server = split.Server(path)
    client = split.Client(server, "a", kind="txt")
    if ends:
        client.end()
        server.end()
    else:
        state, deadline = ROOT / path.stem / "split.json", time.time() + jobs.PATIENCE
        while not state.exists() or not any(site["turns"] for site in json.loads(state.read_text())["clients"]):
            check(server.process.poll() is None and time.time() < deadline, f"no turn ends: {server.text()}")
            time.sleep(0.01)
        client.kill()
        server.process.kill()
        server.process.wait()
    return [line["loss"] for line in split.of_client(path.stem, "a")]


def scenario_samples():
    """Make them: what this version leaves, and what becomes of it, in tests/golden/samples-VERSION."""
    os.environ["AQ_CPU"] = "plain"
    version = aqpipe("--version").stdout.split()[1]
    folder = GOLDEN / f"samples-{version}"
    check(not folder.exists(), f"{folder} is there: what was released stays; remove it by hand where it was not released")
    want = {"version": version, "libm": libm(), "losses": {}, "heldout": {}}
    for name, keys in RUNS.items():
        launch(manifest(name, **keys, **{"train.epochs": EPOCHS}))
        shutil.copytree(ROOT / name, ROOT / "kept" / name, ignore=shutil.ignore_patterns(*DROPPED))
        launch(manifest(name, **keys, **{"train.epochs": 2 * EPOCHS}), "--resume")
        want["losses"][name] = losses(name)
        want["heldout"][name] = [line["loss"] for line in metrics(name, "eval")]
    done = aqpipe("export", ROOT / "kept" / "coded", ROOT / "kept" / "export")
    check(done.returncode == 0, done.stderr)
    shutil.rmtree(ROOT / "kept" / "lora" / "model.safetensors", ignore_errors=True)
    want["eval"] = model_loss(ROOT / "kept" / "export")
    want["eval_adapter"] = model_loss(ROOT / "kept" / "export", "--adapter", ROOT / "kept" / "lora" / "adapter")
    keys_of_site()
    cut = manifest("turns", **{**SIZES, **split.PLAIN, **TURNS, "security.keys": str(ROOT / "keys")})
    turns(cut, False)
    for name in ("turns", "turns-a"):
        shutil.copytree(ROOT / name, ROOT / "kept" / name, ignore=shutil.ignore_patterns(*DROPPED))
    want["turns"] = turns(cut, True)
    for path in [*ROOT.glob("*.yaml"), *ROOT.glob("*.txt")]:
        shutil.copy(path, ROOT / "kept")
        template(ROOT / "kept" / path.name)
    for path in ROOT.glob("kept/*/manifest.yaml"):
        template(path)
    folder.mkdir()
    with tarfile.open(folder / "samples.tar.xz", "w:xz", preset=9) as tar:
        tar.add(ROOT / "kept", ".", filter=lambda member: nobody(member))
    (folder / "want.json").write_text(json.dumps(want, indent=1) + "\n")
    print(f"{folder}: {(folder / 'samples.tar.xz').stat().st_size} bytes")


def nobody(member):
    member.uid = member.gid = member.mtime = 0
    member.uname = member.gname = ""
    return member


def same(what, ours, theirs, exact):
    near = len(ours) == len(theirs) and all(abs(a - b) <= (0 if exact else BITS) * abs(b) for a, b in zip(ours, theirs))
    check(near, f"{what}: {ours} here, {theirs} in the sample")


def scenario_compatibility():
    """Runs, models, adapters and split jobs of each version kept go on here, with the losses that version had."""
    os.environ["AQ_CPU"] = "plain"
    kept = sorted(GOLDEN.glob("samples-*"))
    check(kept, f"no samples in {GOLDEN}")
    for folder in kept:
        want = json.loads((folder / "want.json").read_text())
        exact = want["libm"] == libm()
        with tarfile.open(folder / "samples.tar.xz") as tar:
            tar.extractall(ROOT, **({"filter": "fully_trusted"} if hasattr(tarfile, "data_filter") else {}))
        for path in [*ROOT.glob("*.yaml"), *ROOT.glob("*/manifest.yaml")]:
            path.write_text(path.read_text().replace("ROOT", str(ROOT)))
        same("eval", [model_loss(ROOT / "export")], [want["eval"]], exact)
        adapter = model_loss(ROOT / "export", "--adapter", ROOT / "lora" / "adapter")
        same("eval --adapter", [adapter], [want["eval_adapter"]], exact)
        for name in want["losses"]:
            launch(ROOT / f"{name}.yaml", "--resume")
            first = metrics(name)[len(want["losses"][name]) // 2:]
            # The encoder of ec chooses its steps otherwise since DECISIONS 0540, so that a run of it goes on with other bits.
            if name == "entropy":
                half, heldout = len(want["losses"][name]) // 2, [line["loss"] for line in metrics(name, "eval")]
                same(f"{name}: losses before the resume", losses(name)[:half], want["losses"][name][:half], exact)
                for a, b in zip([*losses(name), *heldout], [*want["losses"][name], *want["heldout"][name]], strict=True):
                    check(abs(a - b) < 1e-3 * b, f"{name}: {losses(name)}, held-out {heldout}; in the sample {want['losses'][name]}, {want['heldout'][name]}")
            else:
                same(f"{name}: losses", losses(name), want["losses"][name], exact)
                same(f"{name}: held-out losses", [line["loss"] for line in metrics(name, "eval")], want["heldout"][name], exact)
            keyframes = sum(x or 0 for line in first for x in line["keyframes"])
            check(keyframes == 0, f"{name}: {keyframes} keyframes after the resume: its caches were not read")
        keys_of_site()
        same("turns", turns(ROOT / "turns.yaml", True), want["turns"], exact)
        no_workers("compatibility")
        print(f"{folder.name}: {len(want['losses'])} runs, a model, adapters and a split job{'' if exact else f', to {BITS}: another libm'}")
        shutil.rmtree(ROOT / "keys")
