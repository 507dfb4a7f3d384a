"""Published folders: what a run leaves is one to begin from; sharded is single bit for bit; bad ones are refused in a line."""
import json
import os
import shutil
import struct
import subprocess

from jobs import aqpipe, check, launch, losses, manifest, raw, weights
from kit import BIN, ROOT, refused

SIZES = ("model.blocks", "model.heads", "model.channels", "model.context", "model.tied")


def tensors(path):
    data = path.read_bytes()
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8:8 + size])
    return {key: (about["dtype"], about["shape"], data[8 + size + about["data_offsets"][0]:8 + size + about["data_offsets"][1]])
            for key, about in header.items() if key != "__metadata__"}


def write(path, table):
    """A safetensors file of {name: (dtype, shape, bytes)}."""
    header, at = {}, 0
    for name, (dtype, shape, data) in table.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + len(data)]}
        at += len(data)
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(data for _, _, data in table.values()))


def shard(folder, table, count):
    """The same in `count` files, dealt out like cards, with their index."""
    names = [f"model-{i + 1:05}-of-{count:05}.safetensors" for i in range(count)]
    place = {name: names[i % count] for i, name in enumerate(table)}
    for file in names:
        write(folder / file, {name: table[name] for name in table if place[name] == file})
    total = sum(len(data) for _, _, data in table.values())
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {"total_size": total}, "weight_map": place}))


def folder_of(name, config, table=None, files=1):
    folder = ROOT / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    if table and files > 1:
        shard(folder, table, files)
    elif table:
        write(folder / "model.safetensors", table)
    return folder


def begun(name, folder, **keys):
    """A job whose manifest says no size: config.json does."""
    return manifest(name, **{**{key: None for key in SIZES}, "model.weights": folder, "train.steps_max": 3, **raw(), **raw("backward"),
                             "model.tied": "false", **keys})


def scenario_folders():
    launch(manifest("base", **{"train.steps_max": 2, **raw(), **raw("backward")}))
    config = json.loads((ROOT / "base" / "config.json").read_text())
    table = tensors(ROOT / "base" / "model.safetensors")

    # The folder of a run, its weights alone, in shards, without what stands in front of names: one beginning.
    launch(manifest("file", **{"model.weights": ROOT / "base" / "model.safetensors", "train.steps_max": 3, **raw(), **raw("backward")}))
    bare = {name.removeprefix("transformer."): tensor for name, tensor in table.items()}
    for name, folder in (("folder", ROOT / "base"), ("single", folder_of("a-single", config, table)),
                         ("shards", folder_of("a-shards", config, table, 3)), ("bare", folder_of("a-bare", config, bare, 2))):
        launch(begun(name, folder))
        check(losses(name) == losses("file") and weights(name) == weights("file"), f"{name} is not the run from the file")
    launch(begun("cut", ROOT / "a-shards", **{"pipeline.stages": 1}))
    check(losses("cut") == losses("file"), "one stage is not four")

    # A stage opens its own shards alone: with its folder's others gone meanwhile, a run goes on as before.
    done = launch(begun("gone", ROOT / "a-single"), "--set", "train.steps_max=1")
    check(done.returncode == 0, "one step")
    shutil.rmtree(ROOT / "a-single")
    done = aqpipe("resume", ROOT / "gone", "--set", "train.steps_max=3", "--no-progress")
    check(done.returncode == 0, f"a run does not go on without the folder it began from: {done.stderr}")
    commands(table)
    untrained()
    large()
    bad_folders(config, table)


def commands(table):
    """aqpipe import says what a folder is, aqpipe export writes one: with the run's own files, or in other types and shards."""
    done = aqpipe("import", ROOT / "a-shards", "--json")
    about = json.loads(done.stdout)
    check(done.returncode == 0 and about["trains"] and about["kind"] == "gpt2" and about["sizes"]["blocks"] == 4 and
          about["values"] == sum(len(data) // 4 for _, _, data in table.values()) and about["types"] == {"F32": about["values"]},
          f"import: {done}")
    done = aqpipe("import", ROOT / "a-shards", "--manifest")
    check(done.returncode == 0 and "blocks" not in done.stdout, f"import --manifest: {done}")
    (ROOT / "made.yaml").write_text(done.stdout)
    done = aqpipe("plan", ROOT / "made.yaml")
    check(done.returncode == 0 and "4 blocks, 2 heads, 32 channels" in done.stdout, f"the manifest of import: {done}")

    run, out = ROOT / "folder", ROOT / "exported"
    done = aqpipe("export", run, out)
    check(done.returncode == 0 and tensors(out / "model.safetensors") == tensors(run / "model.safetensors") and
          (out / "config.json").read_bytes() == (run / "config.json").read_bytes(), f"export: {done}")
    for words, code, arguments in (("is not empty", 1, (run, out)), ("is not a run folder", 2, (ROOT / "a-shards", ROOT / "none")),
                                   ("stage 0's file of step 999", 2, (run, ROOT / "none", "--step", "999"))):
        done = aqpipe("export", *arguments)
        check(done.returncode == code and words in done.stderr and not (ROOT / "none").exists(), f"export {arguments}: {done}")
    check(aqpipe("export", run, ROOT / "none", "--dtype", "int8").returncode == 2, "a type that is not written")
    done = aqpipe("export", run, ROOT / "exported-bf16", "--dtype", "bf16", "--file-bytes", "20000", "--json")
    check(done.returncode == 0 and json.loads(done.stdout)["dtype"] == "BF16", f"export: {done}")
    done = aqpipe("import", ROOT / "exported-bf16", "--values")
    check(done.returncode == 0 and "values of BF16" in done.stdout, f"import of an export: {done}")


def untrained():
    """A task's own head, which the folder has not, begins from train.seed: alike on every cut, said in a line."""
    (ROOT / "table.tsv").write_text("".join(f"sentence {i} of some\t{i % 3}\n" for i in range(12)))
    keys = {"model.task": "classification", "data.kind": "tsv", "data.train": ROOT / "table.tsv", "data.text_column": 1,
            "data.label_column": 2, "data.heldout": None, "data.train_samples_max": None}
    for name, stages in (("labels", 1), ("labels-cut", 3)):
        done = launch(begun(name, ROOT / "a-shards", **{**keys, "pipeline.stages": stages}))
        check("new, and start from train.seed: score.weight" in done.stderr, f"nothing is said of the head: {done.stderr}")
    one, cut = tensors(ROOT / "labels" / "model.safetensors"), tensors(ROOT / "labels-cut" / "model.safetensors")
    check(one["score.weight"][1] == [3, 32] and any(one["score.weight"][2]) and one == cut, "the head does not begin alike")
    # The same for a folder with a head for other labels, if it is asked for.
    (ROOT / "two.tsv").write_text("".join(f"sentence {i} of some\t{i % 2}\n" for i in range(12)))
    path = begun("other", ROOT / "labels", **{**keys, "data.train": ROOT / "two.tsv", "train.lr": 0})
    refused("another count of labels", path, r"score\.weight is .*model\.new_head: true", 2)
    done = launch(path, "--set", "model.new_head=true")
    check("new, and start from train.seed: score.weight" in done.stderr, f"nothing is said of the new head: {done.stderr}")
    other = tensors(ROOT / "other" / "model.safetensors")
    check(other.pop("score.weight")[1] == [2, 32] and all(value == one[name] for name, value in other.items()), "more than the head is new")
    path = begun("headless", ROOT / "a-shards", **{"model.new_head": "true"})
    refused("a new head of a language model", path, r"model\.new_head: this model has no classifier", 2)


def large():
    """6 GB of weights in a launcher's 200 MB (made-up: the files have holes)."""
    C, L = 1600, 48
    shapes = {"wte.weight": [50257, C], "lm_head.weight": [50257, C], "wpe.weight": [1024, C], "ln_f.weight": [C], "ln_f.bias": [C]}
    for block in range(L):
        for name, shape in (("ln_1", [C]), ("ln_2", [C]), ("attn.c_attn", [C, 3 * C]), ("attn.c_proj", [C, C]), ("mlp.c_fc", [C, 4 * C]),
                            ("mlp.c_proj", [4 * C, C])):
            shapes.update({f"h.{block}.{name}.weight": shape, f"h.{block}.{name}.bias": shape[-1:]})
    folder = folder_of("a-large", {"model_type": "gpt2", "n_layer": L, "n_head": 25, "n_embd": C, "vocab_size": 50257, "n_positions": 1024})
    place, total = {}, 0
    for part in range(3):
        header, at, file = {}, 0, f"model-{part + 1:05}-of-00003.safetensors"
        for name in list(shapes)[part::3]:
            end = at + 4 * shapes[name][0] * (shapes[name][1:] or [1])[0]
            header[name], place[name], at = {"dtype": "F32", "shape": shapes[name], "data_offsets": [at, end]}, file, end
        text = json.dumps(header).encode()
        with (folder / file).open("wb") as out:
            out.write(struct.pack("<Q", len(text)) + text)
            out.truncate(8 + len(text) + at)
        total += at
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {"total_size": total}, "weight_map": place}))
    check(total > 6e9, f"{total} bytes")
    for command in (("import", folder), ("plan", begun("large", folder, **{"data.heldout": None}))):
        process = subprocess.Popen([BIN / "aqpipe", *map(str, command)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        _, status, usage = os.wait4(process.pid, 0)
        code = os.waitstatus_to_exitcode(status)
        check(code == 0 or command[0] == "plan", f"{command}: {code}")  # the plan may not fit this machine
        check(usage.ru_maxrss < 200 * 1024, f"aqpipe {command[0]} of {total / 1e9:.1f} GB of weights has {usage.ru_maxrss} KiB resident")
    # 1.6 billion values are looked at, too, before anything is there: one of the first is none.
    with (folder / place["wpe.weight"]).open("r+b") as out:
        size = struct.unpack("<Q", out.read(8))[0]
        out.seek(8 + size + json.loads(out.read(size))["wpe.weight"]["data_offsets"][0] + 4 * 5)
        out.write(b"\0\0\xc0\x7f")
    refused("large NaN", begun("large-nan", folder, **{"data.heldout": None, "data.tokenizer": "bytes"}), r"wpe\.weight: value 5 of \d+ is NaN", 2)
    check(not (ROOT / "large-nan").exists(), "large NaN: something was written")


def bad_folders(config, table):
    def wrong(tag, pattern, code=2, folder=None, changes=None, keys=None, files=1):
        folder = folder or folder_of("a-bad", {**config, **(changes or {})}, table, files)
        refused(tag, begun("bad", folder, **(keys or {})), pattern, code)
        left = [*(ROOT / "bad").glob("*.safetensors"), *(ROOT / "bad").glob("checkpoint/**/*.safetensors")]
        check(not left and not (ROOT / "bad").exists(), f"{tag}: something was written: {left}")
        shutil.rmtree(ROOT / "bad", ignore_errors=True)

    def damaged(what):
        folder = folder_of("a-bad", config, table, 2)
        what(folder)
        return folder

    wrong("unknown architecture", r"Qwen3NextForCausalLM \(qwen3_next\) is not among the models that can be trained .*: gpt2, llama",
          changes={"architectures": ["Qwen3NextForCausalLM"], "model_type": "qwen3_next"})
    wrong("activation", r'config\.json: activation_function: found "relu", expected gelu_new', changes={"activation_function": "relu"})
    wrong("contradiction", r"bad\.yaml:\d+:\d+: model\.blocks: 3, but .*a-bad/config\.json \(model\.weights\) has 4",
          keys={"model.blocks": 3})
    wrong("shape", r"wpe\.weight is 32 x 32, the model needs 48 x 32", changes={"n_positions": 48})
    wrong("vocabulary", r"bad\.yaml:\d+:\d+: model\.vocabulary \(of its config\.json\): 200 is less than the 256 tokens of the tokenizer bytes", changes={"vocab_size": 200})
    wrong("more layers than weights", r"h\.4\.ln_1\.weight is missing", changes={"n_layer": 5})
    wrong("fewer", r"transformer\.h\.3\.|has h\.3\.", changes={"n_layer": 3})
    wrong("no config", r"is not a model.s folder: it has no config\.json, but .*; copy the config\.json", folder=damaged(lambda at: (at / "config.json").unlink()))
    wrong("missing shard", r"model-00002-of-00002\.safetensors: there is no such file",
          folder=damaged(lambda at: (at / "model-00002-of-00002.safetensors").unlink()))
    wrong("truncated shard", r"model-00001-of-00002\.safetensors: .*cut short",
          folder=damaged(lambda at: (at / "model-00001-of-00002.safetensors").write_bytes(
              (at / "model-00001-of-00002.safetensors").read_bytes()[:-4])))
    wrong("climbing shard", r"which is not the name of a \.safetensors file in the folder",
          folder=damaged(lambda at: (at / "model.safetensors.index.json").write_text(
              json.dumps({"weight_map": {"transformer.wte.weight": "../base/model.safetensors"}}))))

    def pickled(at):
        for file in at.glob("model*"):
            file.unlink()
        (at / "pytorch_model.bin").write_bytes(b"PK\3\4")
    wrong("pickle", r"pytorch_model\.bin: a pickle is a program.*torch\.load\(", folder=damaged(pickled))
    name = "transformer.h.1.mlp.c_fc.bias"
    for value, word in ((b"\0\0\xc0\x7f", "NaN"), (b"\0\0\x80\x7f", "infinite")):
        dtype, shape, data = table[name]
        folder = folder_of("a-bad", config, {**table, name: (dtype, shape, data[:8] + value + data[12:])})
        wrong(word, rf"h\.1\.mlp\.c_fc\.bias: value 2 of {len(data) // 4} is {word}", 2, folder=folder)
