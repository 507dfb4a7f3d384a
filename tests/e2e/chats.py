"""What comes out of a fine-tuned model: its beginning, its end, its chat template, names of labels, its head."""
import array
import json
import os
import shutil

from folders import tensors, write
from jobs import aqpipe, check, launch, manifest, metrics, raw
from kit import ROOT, refused

PLAIN = {**raw(), **raw("backward")}
SPECIALS = ["<|endoftext|>", "<|begin|>", "<|im_start|>", "<|im_end|>"]  # 256, 257, 258, 259
CHATML = ("{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.role == 'assistant' and loop.last %}<think>\n\n</think>\n\n{% endif %}"
          "{{ m.content }}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n"
          "{% if enable_thinking is defined and enable_thinking is false %}<think>\n\n</think>\n\n{% endif %}{% endif %}")
SIZES = {key: None for key in ("model.blocks", "model.heads", "model.channels", "model.context", "model.tied", "data.train_samples_max",
                               "data.heldout_samples_max", "data.heldout", "train.clip", "train.warmup_steps")}


def letters():
    """The 256 characters that stand for bytes in byte-level vocabularies."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    return sorted(map(chr, plain + [256 + i for i in range(256 - len(plain))]))


def tokenizer(folder, begin=None, **settings):
    """Bytes, and special tokens; begin: the one that the post-processor puts in front."""
    folder.mkdir(exist_ok=True)
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    template = {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": begin, "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
                "pair": [], "special_tokens": {begin: {"id": begin, "ids": [256 + SPECIALS.index(begin)], "tokens": [begin]}}} if begin else None
    if template:
        template["pair"] = [*template["single"], {"Sequence": {"id": "B", "type_id": 1}}]
    (folder / "tokenizer.json").write_text(json.dumps({
        "version": "1.0", "added_tokens": [{"id": 256 + i, "content": name, "single_word": False, "lstrip": False, "rstrip": False,
                                            "normalized": False, "special": True} for i, name in enumerate(SPECIALS)],
        "normalizer": None, "pre_tokenizer": level, "post_processor": template, "decoder": level,
        "model": {"type": "BPE", "vocab": {letter: i for i, letter in enumerate(letters())}, "merges": []}}))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": SPECIALS[0], "bos_token": SPECIALS[1], **settings}))
    return folder


def base(name, begin=None, **settings):
    """A published folder with this tokenizer, made of a short run."""
    kept = tokenizer(ROOT / f"{name}-tokenizer", begin, **settings)
    launch(manifest(f"{name}-made", **{**PLAIN, "data.tokenizer": "huggingface", "data.tokenizer_path": kept, "model.tied": "true",
                                       "model.context": 64, "pipeline.stages": 1, "train.steps_max": 2, "data.bos": "false"}))
    folder = ROOT / name
    folder.mkdir()
    for file in ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"):
        shutil.copy(ROOT / f"{name}-made" / file, folder)
    return folder


def run(name, folder, **keys):
    launch(manifest(name, **{**SIZES, **PLAIN, "model.weights": folder, "pipeline.stages": 2, "train.epochs": 1, **keys}))
    return ROOT / name


def evaluated(*arguments):
    done = aqpipe("eval", *arguments, "--json")
    check(done.returncode == 0, f"eval {arguments}: {done.stderr}")
    return json.loads(done.stdout)


def begins(folder):
    """A block of T tokens stands behind what the tokenizer puts in front, and the same targets count."""
    data = ("--data", ROOT / "heldout.txt", "--T", "16")
    auto, none = evaluated(folder, *data), evaluated(folder, *data, "--bos", "false")
    check(auto["targets"] == none["targets"] == 16 * auto["samples"] and auto["loss"] != none["loss"], f"{auto} {none}")
    bare = tokenizer(ROOT / "bare")
    there = evaluated(folder, *data, "--tokenizer", "huggingface", "--tokenizer-path", bare)
    check(there["loss"] == none["loss"], f"without a post-processor nothing stands in front: {there}")
    always = evaluated(folder, *data, "--tokenizer", "huggingface", "--tokenizer-path", bare, "--bos", "true")
    check(always["loss"] == auto["loss"], f"bos: true takes bos_token: {always}")
    whole = evaluated(folder, *data[:3], "64")  # the context: no place more than it has
    check(whole["targets"] == 63 * whole["samples"], f"the whole context: {whole}")

    # A run has it on any cut, and eval gives its figures again.
    keys = {"train.T": 16, "data.heldout": ROOT / "heldout.txt", "data.heldout_samples_max": 4, "train.steps_max": 3}
    figures = [metrics(name, "eval")[-1] for name, stages in (("begins", 2), ("begins-one", 1))
               if run(name, folder, **keys, **{"pipeline.stages": stages})]
    check(figures[0]["loss"] == figures[1]["loss"] and figures[0]["targets"] == 64, f"two stages are not one: {figures}")
    again = evaluated(ROOT / "begins")
    check(abs(again["loss"] - figures[0]["loss"]) < 1e-6, f"eval of the run: {again}, it had {figures[0]}")
    refused("begins not", manifest("begins-not", **{**SIZES, "model.weights": folder, "data.bos": "maybe"}), "data.bos.*auto, true, false", 2)


def pairs(folder):
    """Prompt and response: in front once, also where the prompt was rendered with it."""
    (ROOT / "pairs.jsonl").write_text(json.dumps({"prompt": "question", "response": "yes"}) + "\n")
    (ROOT / "rendered.jsonl").write_text(json.dumps({"prompt": "<|begin|>question", "response": "yes"}) + "\n")
    got = [evaluated(folder, "--kind", "instruct", "--T", "32", "--data", ROOT / f"{name}.jsonl") for name in ("pairs", "rendered")]
    check(got[0]["loss"] == got[1]["loss"] and got[0]["targets"] == 4, f"pairs: {got}")
    told = [json.loads(aqpipe("generate", folder, "--json", "--tokens", "1", "--prompt", text).stdout)["prompt_tokens"]
            for text in ("question", "<|begin|>question")]
    check(told == [9, 9], f"generate: {told}")


def chats(folder):
    """Template and end token of the training are in the run and its exports, byte for byte; variables reach the template."""
    talks = ROOT / "talks"
    talks.mkdir()
    (talks / "chat_template.jinja").write_text(CHATML)
    (ROOT / "talk.jsonl").write_text("".join(json.dumps({"messages": [
        {"role": "user", "content": f"q{i}"}, {"role": "assistant", "content": "a"}]}) + "\n" for i in range(24)))
    keys = {"data.kind": "instruct", "data.train": ROOT / "talk.jsonl", "data.chat_template": talks, "train.T": 48}
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": 256, "max_new_tokens": 3}))
    out = run("talked", folder, **keys, **{"train.epochs": 2, "data.chat_variables": "{enable_thinking: false}"})
    for place in (out, ROOT / "talked-out"):
        if place != out:
            check(aqpipe("export", out, place).returncode == 0, "export")
        ends = json.loads((place / "generation_config.json").read_text())
        check(ends == {"eos_token_id": [256, 259], "max_new_tokens": 3}, f"{place}: {ends}")
        check((place / "chat_template.jinja").read_text() == CHATML, f"{place}: another chat template")
    done = aqpipe("generate", out, "--chat", "hi", "--json")
    check(done.returncode == 0, done.stderr)
    mine = json.loads(done.stdout)
    other = json.loads(aqpipe("generate", out, "--chat", "hi", "--json", "--chat-variable", "enable_thinking=true").stdout)
    check(mine["prompt_tokens"] - other["prompt_tokens"] == len("<think>\n\n</think>\n\n"), f"the run's variables: {mine} {other}")
    check(mine["tokens"] <= 3, f"max_new_tokens: {mine}")
    data = ("--kind", "instruct", "--data", ROOT / "talk.jsonl", "--chat", talks)
    thinks = [evaluated(folder, *data, *more)["targets"] for more in ((), ("--chat-variable", "enable_thinking=false"))]
    check(thinks == [24 * 21, 24 * 2], f"the empty block is prompt: {thinks}")
    done = aqpipe("eval", folder, *data, "--chat-variable", "=false")
    check(done.returncode == 2 and "is not NAME=VALUE" in done.stderr, done.stderr)
    refused("variables", manifest("variables", **{**SIZES, **keys, "model.weights": folder, "data.chat_variables": "no"}),
            "data.chat_variables: must be a section", 2)

    # The folder and the template may go: the run has them.
    shutil.move(folder, ROOT / "moved")
    shutil.move(talks, ROOT / "moved-talks")
    done = aqpipe("resume", out, "--epochs", "3", "--no-progress")
    check(done.returncode == 0, f"a run needs its folder: {done.stderr}")
    shutil.move(ROOT / "moved", folder)


def generation(folder):
    """What generation_config.json has is taken where the command line says nothing."""
    (folder / "generation_config.json").write_text(json.dumps({"repetition_penalty": 50, "num_beams": 4, "max_new_tokens": 12}))
    done = aqpipe("generate", folder, "--prompt", "the", "--json")
    asked = aqpipe("generate", folder, "--prompt", "the", "--json", "--repetition-penalty", "50", "--tokens", "12")
    none = aqpipe("generate", folder, "--prompt", "the", "--json", "--repetition-penalty", "1")
    got = [json.loads(one.stdout)["ids"] for one in (done, asked, none)]
    check(got[0] == got[1] != got[2] and len(got[0]) == 12, f"the folder's penalty: {got}")
    check("num_beams, which is not computed here" in done.stderr, done.stderr)
    (folder / "generation_config.json").unlink()


def labels(folder):
    """A classifier keeps the names of its labels; the same names in another order are the same labels."""
    table = ROOT / "names.tsv"
    table.write_text("sentence\tlabel\n" + "good fine\tpositive\nbad awful\tnegative\n" * 4)
    keys = {"model.task": "classification", "data.kind": "tsv", "data.train": table, "data.text_column": "sentence",
            "data.label_column": "label", "train.T": 32}
    out = run("named", folder, **keys, **{"data.labels": "'negative, positive'"})
    config = json.loads((out / "config.json").read_text())
    check(config["id2label"] == {"0": "negative", "1": "positive"} and config["label2id"] == {"negative": 0, "positive": 1}, f"{config}")
    turned = run("turned", out, **keys, **{"data.labels": "'positive, negative'", "train.lr": 0, "train.weight_decay": 0})
    config = json.loads((turned / "config.json").read_text())
    check(config["id2label"] == {"0": "negative", "1": "positive"}, f"another order: {config}")
    table_of = ("--data", table, "--text-column", "sentence", "--label-column", "label")
    both = [evaluated(out, *table_of, "--labels", names)["loss"] for names in ("negative, positive", "positive,negative")]
    check(both[0] == both[1], f"eval maps names: {both}")
    plain = run("unnamed", out, **keys, **{"data.labels": "'negative, positive'", "train.steps_max": 1})
    check(aqpipe("export", plain, ROOT / "unnamed-out").returncode == 0, "export")
    check(json.loads((ROOT / "unnamed-out" / "config.json").read_text())["id2label"]["1"] == "positive", "an export's names")
    refused("half", manifest("half", **{**SIZES, **keys, "model.weights": out, "data.labels": "'positive, other'"}),
            "names its labels 'negative, positive'", 2)


def heads(folder):
    """A tied folder with a head of its own is no tied one; one that has the head's name alone is."""
    table, data = tensors(folder / "model.safetensors"), ("--data", ROOT / "heldout.txt", "--T", "16")
    name, = (key for key in table if key.endswith("wte.weight"))
    dtype, shape, values = table[name]
    half = array.array("f", [value / 2 for value in array.array("f", values)]).tobytes()
    figures = {"as it was": evaluated(folder, *data)["loss"]}
    for tag, changed in (("alone", {"lm_head.weight": table[name]}),
                         ("other", {name: table[name], "lm_head.weight": (dtype, shape, half)})):
        other = ROOT / f"head-{tag}"
        shutil.copytree(folder, other)
        write(other / "model.safetensors", {**{key: value for key, value in table.items() if key != name}, **changed})
        figures[tag] = evaluated(other, *data)["loss"]
        done = aqpipe("import", other)
        check("trains     yes" in done.stdout, f"{tag}: {done.stdout}{done.stderr}")
        out = run(f"head-{tag}-run", other, **{"train.T": 16, "train.steps_max": 1, "train.lr": 0, "train.weight_decay": 0})
        check(abs(evaluated(out, *data)["loss"] - figures[tag]) < 1e-6, f"{tag}: the run's folder is another model")
        tied = json.loads((out / "config.json").read_text())["tie_word_embeddings"]
        check(tied == (tag == "alone"), f"{tag}: tie_word_embeddings {tied}")
    check(figures["alone"] == figures["as it was"] != figures["other"], f"{figures}")


def odd(folder):
    """What transformers ignores is ignored, told in a line, or carried: words of Python's json, tokens beyond the table, names of models."""
    other = ROOT / "odd"
    shutil.copytree(folder, other)
    config = json.loads((other / "config.json").read_text())
    config["limits"] = [0.5, float("inf"), float("-inf"), float("nan"), "Infinity"]
    (other / "config.json").write_text(json.dumps(config))
    words = json.loads((other / "tokenizer.json").read_text())
    words["added_tokens"].append({**words["added_tokens"][-1], "id": 262, "content": "<image>"})  # 261 is a hole, 260 rows are there
    (other / "tokenizer.json").write_text(json.dumps(words))
    out = run("odd-run", other, **{"train.T": 16, "train.steps_max": 1})
    check('"limits": [\n    0.5,\n    Infinity,\n    -Infinity,\n    NaN,\n    "Infinity"' in (out / "config.json").read_text(), "words of Python's json")
    data = ("--T", "16", "--data")
    check(evaluated(other, *data, ROOT / "heldout.txt")["loss"] == evaluated(folder, *data, ROOT / "heldout.txt")["loss"], "more tokens: another loss")
    (ROOT / "image.txt").write_text("a text with an <image> in it, and more of it behind")
    done = aqpipe("eval", other, *data, ROOT / "image.txt")
    check(done.returncode == 2 and 'the token 262 ("<image>"), and the model\'s table has 260 rows' in done.stderr, done.stderr)
    (other / "config.json").write_text(json.dumps({**config, "n_embd": float("nan")}))
    check("n_embd: found NaN, expected a whole number" in aqpipe("import", other).stderr, "NaN under a key that is read")

    done = aqpipe("import", "Qwen/Qwen3-0.6B")
    check(done.returncode == 2 and "`hf download Qwen/Qwen3-0.6B --local-dir Qwen3-0.6B` gets it" in done.stderr, done.stderr)
    place = ROOT / "hub" / "models--some--model"
    (place / "refs").mkdir(parents=True)
    (place / "refs" / "main").write_text("0123abcd\n")
    shutil.copytree(folder, place / "snapshots" / "0123abcd")
    os.environ["HF_HUB_CACHE"] = str(ROOT / "hub")
    check(aqpipe("import", "hf://some/model").stdout == aqpipe("import", place / "snapshots" / "0123abcd").stdout != "", "hf://some/model")
    run("hub-run", "hf://some/model", **{"train.T": 16, "train.steps_max": 1})
    refused("hub", manifest("hub", **{**SIZES, "model.weights": "hf://some/other"}), "`hf download some/other` puts it there", 2)
    del os.environ["HF_HUB_CACHE"]


def scenario_leaves():
    folder = base("published", "<|begin|>")
    begins(folder)
    pairs(folder)
    chats(folder)
    generation(folder)
    labels(folder)
    heads(folder)
    odd(folder)
