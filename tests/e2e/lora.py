"""Low-rank adapters: they alone train, whatever the model is cut into, and stop and go on like any run."""
import array
import json
import os
import shutil
import sys

from jobs import aqpipe, check, launch, losses, manifest, metrics, raw, weights
from kit import ROOT, arrays, interrupt, refused

from freeze import model, tensors

KEYS = {"lora.rank": 3, "lora.alpha": 6, "train.lr": 0.01}


def scenario_lora():
    """3 stages x 2 replicas with AQ-SGD, clipping, dropout and the defaults' codec: adapters alone are saved each time, and killed or not
    it is the same run."""
    keys = {**KEYS, "pipeline.stages": 3, "pipeline.replicas": 2, "data.train_samples_max": 24, "train.clip": 0.5,
            "checkpoint.every": "3 steps", "train.epochs": 8, "train.weight_decay": 0.1, "lora.dropout": 0.2,
            "lora.rank_pattern": "{c_fc: 2, h.0.attn.c_attn: 5}", "lora.alpha_pattern": "{c_fc: 3}", "lora.modules_to_save": "[ln_f]"}
    launch(manifest("whole", **keys))
    for rank in range(6):
        saved = [name for name in arrays("whole", rank) if not name.startswith("optimizer.")]
        check(all(".lora_" in name or name.startswith("ln_f.") for name in saved), f"rank {rank} saves {sorted(saved)}")
        if rank < 3:
            once = tensors(ROOT / "whole" / "checkpoint" / f"frozen-stage-{rank}.safetensors")
            check(once and not any(".lora_" in name for name in once), f"rank {rank} saves once {sorted(once)}")
    check(losses("whole")[-1] < losses("whole")[0], f"nothing is learnt: {losses('whole')}")
    for name in ("worker", "launcher"):
        path = manifest(name, **keys)
        interrupt(name, path, 7)
        launch(path, "--resume")
        check(losses(name) == losses("whole"), f"{name}: losses differ:\n{losses(name)}\n{losses('whole')}")
        check(weights(name) == weights("whole"), f"{name}: model.safetensors differs")
    for changed, words in (({"lora.rank": 4}, "lora.rank: 3 there, 4 here"), ({**dict.fromkeys((key for key in keys if key.startswith("lora."))), "lora.dropout": 0}, "lora.rank: 3 there, none here"),
                           ({"lora.alpha": 7}, "lora.alpha: 6 there, 7 here"),
                           ({"lora.targets": "'c_attn, c_fc'"}, 'lora.targets: none there, "c_attn, c_fc" here'),
                           ({"lora.rank_pattern": "{c_fc: 4}"}, "lora.rank_pattern:"), ({"lora.modules_to_save": None}, "lora.modules_to_save:")):
        refused(f"changed {changed}", manifest("whole", **{**keys, "train.epochs": 9, **changed}), words, 2, "--resume")


def scenario_lora_cut():
    """Without compression three stages are one, in halves too, with adapters of some layers or of all, and heads beside them."""
    for tag, changed in (("all", {}), ("some", {"lora.targets": "'blocks 1-2, !c_proj'"}),
                         ("beside", {"train.freeze": "'*, !head, !ln_1'", "model.tied": "false", "lora.rank_pattern": "{c_proj: 1, h.1.mlp.c_fc: 7}"}),
                         ("saved", {"lora.modules_to_save": "wte, ln_f", "model.tied": "exact", "lora.alpha_pattern": "{h.0.attn.c_attn: 1.5}"}),
                         ("bf16", {"model.precision": "bf16", "lora.dropout": 0.25, "lora.rslora": "true"}), ("stale", {"train.staleness": 1}), ("dora", {"lora.dora": "true", "lora.targets": "'blocks 0-2'"})):
        keys = {**KEYS, **raw(), **raw("backward"), "train.epochs": 2, "train.clip": 0.5, **changed}
        launch(manifest(f"{tag}-1", **{**keys, "pipeline.stages": 1}))
        for name, cut in (("3", {"pipeline.stages": 3}), ("halves", {"pipeline.stages": 3, "pipeline.schedule": "zb-h1"})):
            name = f"{tag}-{name}"
            launch(manifest(name, **{**keys, **cut}))
            check(losses(name) == losses(f"{tag}-1"), f"{name}: losses differ:\n{losses(name)}\n{losses(f'{tag}-1')}")
            check(model(name) == model(f"{tag}-1"), f"{name}: weights differ")
            norms = [[line["grad_norm"] for line in metrics(run)] for run in (name, f"{tag}-1")]
            check(norms[0] == norms[1], f"{name}: gradient norms differ: {norms}")


def floats(values):
    return array.array("f", values)


def goes_on(keys, sizes):
    """From PEFT's folder on: as adapters of a run, or added to the base; and what is refused, in a line, with nothing written."""
    folder = ROOT / "tuned" / "adapter"
    lora = {key: None for key in KEYS if key.startswith("lora.")}
    more = {**sizes, **keys, **lora, "lora.weights": str(folder), "train.epochs": 1}
    launch(manifest("more", **{**more, "train.lr": 1e-30}))
    before, after = (tensors(path / "adapter_model.safetensors") for path in (folder, ROOT / "more" / "adapter"))
    check(before.keys() == after.keys(), f"other adapters: {sorted(before.keys() ^ after.keys())[:3]}")
    for name in before:
        apart = max(abs(x - y) for x, y in zip(floats(before[name]), floats(after[name])))
        check(apart <= 1e-6, f"{name} did not begin as it was: {apart}")
    own = ("--data", ROOT / "heldout.txt", "--T", 32, "--batch", 2, "--tokenizer", "bytes", "--json")
    figures = []
    for path in ((ROOT / "tuned",), (ROOT / "base", "--adapter", folder), (ROOT / "base",)):
        done = aqpipe("eval", *path, *own)
        check(done.returncode == 0, done.stderr)
        figures.append(json.loads(done.stdout)["loss"])
    check(abs(figures[0] - figures[1]) < 1e-6 < abs(figures[0] - figures[2]), f"merged, added, base: {figures}")
    done = aqpipe("import", ROOT / "base", "--adapter", folder, "--json")
    told = json.loads(done.stdout)
    check(done.returncode == 0 and told["trains"], done.stderr)
    check(told["adapter"] == {"layers": 8 if "lora.dora" in keys else 16, "rank": 3, "alpha": 6.0, "rslora": False, "dora": "lora.dora" in keys}, f"import: {told['adapter']}")
    begins = aqpipe("import", ROOT / "base", "--adapter", folder, "--manifest").stdout
    check(str(folder) in begins.split("lora:")[1], f"no adapters in the manifest: {begins}")
    launch(manifest("wide", **{"pipeline.stages": 1, "train.epochs": 1, "model.channels": 64}))
    done = aqpipe("import", ROOT / "wide", "--adapter", folder)
    check(done.returncode == 1 and "the adapter was made for" in done.stdout, done.stdout + done.stderr)
    for changed, words in (({"use_dora": "lora.dora" not in keys}, "lora_magnitude_vector"), ({"peft_type": "IA3"}, "peft_type"), ({"bias": "all"}, "bias"),
                           ({"r": 2}, "with r 2 needs"), ({"r": 5000}, "r: found 5000, expected 1 to 1024"), ({"lora_alpha": 0}, "lora_alpha"), ({"rank_pattern": {"c_attn": 0}}, "rank_pattern: .*whole numbers above 0"),
                           ({"rank_pattern": {"c_attn": 2}}, "with r 2 needs"), ({"alpha_pattern": {"a.*": 1}}, "alpha_pattern: .*an expression"),
                           ({"modules_to_save": ["ln_f"]}, "has no ln_f.weight, and modules_to_save"), ({"modules_to_save": "ln_f"}, "modules_to_save: .*a list of modules")):
        other = ROOT / "other"
        shutil.rmtree(other, ignore_errors=True)
        shutil.copytree(folder, other)
        config = json.loads((other / "adapter_config.json").read_text())
        (other / "adapter_config.json").write_text(json.dumps({**config, **changed}))
        refused(f"{changed}", manifest("none", **{**more, "lora.weights": str(other)}), words, 2)
        check(not (ROOT / "none" / "checkpoint").exists(), f"{changed}: something was written")
    for changed in ({"lora.rank": 4}, {"lora.targets": "c_attn"}, {"lora.alpha": 7}, {"lora.rank_pattern": "{c_attn: 2}"}, {"lora.modules_to_save": "wte"}):
        refused(f"{changed}", manifest("none", **{**more, **changed}), next(iter(changed)), 2)


def scenario_lora_export():
    """What a run leaves: the sum of model and adapters under the model's names, and the adapters alone as PEFT has them."""
    launch(manifest("base", **{"pipeline.stages": 1, "train.epochs": 1}))
    keys = {**KEYS, "pipeline.stages": 2, "train.epochs": 2, "model.weights": str(ROOT / "base")}
    keys = {key: value for key, value in keys.items() if key != "model.tied"}
    sizes = {f"model.{name}": None for name in ("blocks", "heads", "channels", "context", "vocabulary", "tied")}
    launch(manifest("tuned", **{**sizes, **keys}))
    base, merged, adapter = (tensors(path) for path in (
        ROOT / "base" / "model.safetensors", ROOT / "tuned" / "model.safetensors",
        ROOT / "tuned" / "adapter" / "adapter_model.safetensors"))
    check(base.keys() <= merged.keys() and not any(".lora_" in name for name in merged), f"names: {sorted(merged)}")
    config = json.loads((ROOT / "tuned" / "adapter" / "adapter_config.json").read_text())
    check((config["peft_type"], config["r"], config["lora_alpha"], config["fan_in_fan_out"]) == ("LORA", 3, 6, True),
          f"adapter_config.json: {config}")
    check(config["base_model_name_or_path"] == str(ROOT / "base"), f"its base: {config['base_model_name_or_path']}")
    check(len(adapter) == 2 * len(config["target_modules"]) == 2 * 4 * 4, f"{sorted(adapter)}")
    for module in config["target_modules"]:
        A, B = (floats(adapter[f"base_model.model.{module}.lora_{which}.weight"]) for which in "AB")
        before, after = (floats(of[f"{module}.weight"]) for of in (base, merged))
        ins, outs = len(A) // 3, len(B) // 3
        moved = 0.0
        for i in range(ins):
            for o in range(outs):
                plus = 2 * sum(B[o * 3 + r] * A[r * ins + i] for r in range(3))
                moved = max(moved, abs(plus))
                check(abs(before[i * outs + o] + plus - after[i * outs + o]) < 1e-6, f"{module}: ({i}, {o}) is not the sum")
        check(moved > 1e-4, f"{module} has learnt nothing")
    same = [name for name in base if name.removesuffix(".weight") not in config["target_modules"]]
    check(all(base[name] == merged[name] for name in same), "what has no adapter has moved")
    goes_on(keys, sizes)
    done = aqpipe("export", ROOT / "tuned", ROOT / "out")
    check(done.returncode == 0, done.stderr)
    for name in ("model.safetensors", "adapter/adapter_model.safetensors", "adapter/adapter_config.json"):
        check((ROOT / "out" / name).read_bytes() == (ROOT / "tuned" / name).read_bytes(), f"export: {name} differs")


def scenario_lora_dora():
    """Rows of adapted matrices with lengths of their own: what is merged has them, PEFT's folder too, and a run goes on from it."""
    launch(manifest("base", **{"pipeline.stages": 1, "train.epochs": 1}))
    keys = {**KEYS, "lora.dora": "true", "lora.targets": "'c_attn, c_fc'", "pipeline.stages": 2, "train.epochs": 2,
            "model.weights": str(ROOT / "base")}
    sizes = {f"model.{name}": None for name in ("blocks", "heads", "channels", "context", "vocabulary", "tied")}
    launch(manifest("tuned", **{**keys, **sizes}))
    base, merged, adapter = (tensors(path) for path in (
        ROOT / "base" / "model.safetensors", ROOT / "tuned" / "model.safetensors",
        ROOT / "tuned" / "adapter" / "adapter_model.safetensors"))
    config = json.loads((ROOT / "tuned" / "adapter" / "adapter_config.json").read_text())
    check(config["use_dora"] and len(adapter) == 3 * len(config["target_modules"]) == 3 * 2 * 4, f"{config}: {sorted(adapter)}")
    for module in config["target_modules"]:
        A, B, m = (floats(adapter[f"base_model.model.{module}.{name}"]) for name in ("lora_A.weight", "lora_B.weight", "lora_magnitude_vector"))
        before, after = (floats(of[f"{module}.weight"]) for of in (base, merged))
        ins, outs, moved = len(A) // 3, len(m), 0.0
        for o in range(outs):
            V = [before[i * outs + o] + 2 * sum(B[o * 3 + r] * A[r * ins + i] for r in range(3)) for i in range(ins)]
            length, was = (sum(x * x for x in row) ** 0.5 for row in (V, [before[i * outs + o] for i in range(ins)]))
            moved = max(moved, abs(m[o] - was))
            for i in range(ins):
                check(abs(V[i] * m[o] / length - after[i * outs + o]) < 2e-6, f"{module}: ({i}, {o}) is not of length {m[o]}")
        check(moved > 1e-4, f"{module}: no length has moved")
    goes_on({key: value for key, value in keys.items() if key != "lora.targets"}, sizes)
    for changed, words in (({"lora.dropout": 0.1}, "lora.dropout.*write lora.dropout: 0"), ({"lora.rank": 0}, "lora.dora.*there are no adapters"),
                           ({"pipeline.stages": "[{layers: '0-2', device: auto}, {layers: '3-5'}]"}, "lora.dora.*only on CPUs: stage 0 has device auto")):
        refused(f"{changed}", manifest("none", **{**keys, **sizes, **changed}), words, 2)


def scenario_lora_packed():
    """The frozen base in 16, 8 or 4 bits: one stage or three, killed or not, with its file lost, the same bits; what is left is near the base."""
    launch(manifest("base", **{"pipeline.stages": 1, "train.epochs": 1}))
    base = tensors(ROOT / "base" / "model.safetensors")
    sizes = {f"model.{name}": None for name in ("blocks", "heads", "channels", "context", "vocabulary", "tied")}
    common = {**sizes, **KEYS, **raw(), **raw("backward"), "model.weights": str(ROOT / "base"), "train.epochs": 3, "checkpoint.every": "2 steps"}
    bounds = {"bf16": (2, 2.0 ** -8), "q8": (4, 0.5 / 126.9), "nf4_double": (4, 0.17)}
    for store, (width, near) in bounds.items():
        keys = {**common, "train.frozen_store": store}
        launch(manifest(store + "-1", **{**keys, "pipeline.stages": 1}))
        launch(manifest(store, **keys))
        check(losses(store) == losses(store + "-1"), f"{store}: losses differ:\n{losses(store)}\n{losses(store + '-1')}")
        check(model(store) == model(store + "-1"), f"{store}: weights differ")
        path = manifest(store + "-killed", **keys)
        interrupt("worker", path, 5)
        (ROOT / (store + "-killed") / "checkpoint" / "frozen-stage-1.safetensors").unlink()
        launch(path, "--resume")
        check(losses(store + "-killed") == losses(store) and model(store + "-killed") == model(store), f"{store}: killed, another run")
        once = (ROOT / store / "checkpoint" / "frozen-stage-1.safetensors").read_bytes()
        check((b'.packed"' in once) == store.startswith("nf4"), f"{store}: the frozen file has no bytes, or some")
        check((b'"dtype":"BF16"' in once) == (store == "bf16"), f"{store}: the frozen file has other types")
        check((ROOT / (store + "-killed") / "checkpoint" / "frozen-stage-1.safetensors").read_bytes() == once, f"{store}: the file made again differs")
        left, adapter = model(store), tensors(ROOT / store / "adapter" / "adapter_model.safetensors")
        for name, values in base.items():
            A = adapter.get(f"base_model.model.{name.removesuffix('.weight')}.lora_A.weight")
            if not A:
                check(left[name] == values, f"{store}: {name} has moved")
                continue
            A, B = floats(A), floats(adapter[f"base_model.model.{name.removesuffix('.weight')}.lora_B.weight"])
            ins, outs = len(A) // 3, len(B) // 3
            before, after = floats(values), floats(left[name])
            apart = 0.0
            for i in range(ins):
                for o in range(outs):
                    at = i * outs + o
                    off = abs(after[at] - before[at] - 2 * sum(B[o * 3 + r] * A[r * ins + i] for r in range(3)))
                    most = abs(before[at]) if store == "bf16" else max(map(abs, before[at // 64 * 64:at // 64 * 64 + 64]))
                    check(off <= near * most + 1e-6, f"{store}: {name} ({i}, {o}) is {off} off, of {most}")
                    apart = max(apart, off)
            check(apart > 1e-5, f"{store}: {name} is not rounded")
        figure = metrics(store, "eval")[-1]["loss"]
        done = aqpipe("eval", ROOT / store, "--json")
        check(done.returncode == 0, done.stderr)
        check(abs(json.loads(done.stdout)["loss"] - figure) < 1e-5 * figure, f"{store}: {done.stdout} is not {figure}")
    check(len({tuple(losses(name)) for name in bounds}) == len(bounds), "two stores give the same losses")
    refused("another kind", manifest("q8", **{**common, "train.frozen_store": "bf16", "train.epochs": 4}), "train.frozen_store", 2, "--resume")
    refused("nothing frozen", manifest("none", **{"train.frozen_store": "q8"}), "train.frozen_store: nothing is frozen", 2)


def scenario_lora_gpu():
    """On GPUs a frozen base in 16, 8 or 4 bits, and packed conversations, give the CPU's losses but for the order of sums."""
    rows = [{"prompt": "ab"[i % 2] * (1 + i % 3), "response": "xyz"[i % 3] * (1 + i % 4)} for i in range(24)]
    (ROOT / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    packed = {"data.kind": "instruct", "data.train": str(ROOT / "train.jsonl"), "data.heldout": None, "data.train_samples_max": 0}
    for tag, changed in (("bf16", {**KEYS, "train.frozen_store": "bf16"}), ("q8", {**KEYS, "train.frozen_store": "q8"}),
                         ("nf4", {**KEYS, "train.frozen_store": "nf4"}), ("nf4-double", {**KEYS, "train.frozen_store": "nf4_double"}),
                         ("q8-bf16", {**KEYS, "train.frozen_store": "q8", "model.precision": "bf16"}), ("packed", packed)):
        keys = {**raw(), **raw("backward"), "train.epochs": 2, **changed}
        near = 1e-3 if "model.precision" in changed else 1e-6
        launch(manifest(tag + "-cpu", **{**keys, "pipeline.stages": 2}))
        path = manifest(tag, **{**keys, "pipeline.stages": "[{device: cuda}, {device: cuda}]"})
        done = aqpipe("launch", path, "--no-progress")
        if done.returncode and "device: cuda" in done.stderr and os.environ.get("AQ_GPU") != "required":
            print(done.stderr.strip().split("\n")[-1])
            sys.exit(77)
        check(done.returncode == 0, f"{tag}: {done.stderr[-2000:]}")
        for a, b in zip(losses(tag), losses(tag + "-cpu"), strict=True):
            check(abs(a - b) < near * b, f"{tag}: losses {losses(tag)}, on the CPU {losses(tag + '-cpu')}")
