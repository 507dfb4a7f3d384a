"""PEFT's rank_pattern, alpha_pattern and modules_to_save: a folder that has them is read, trained on, and written for PEFT.

First logits and gradients of the folder. Then both train the same STEPS steps of AdamW with weight decay on the same samples, ours in
two stages. Compared are the logits of PEFT with the folder that the run left, and of the merged model, with PEFT's own.
"""
import json
import subprocess

import kit
import peft
import torch
import transformers
from encoders import bert
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, BertConfig, LlamaConfig, Qwen3Config

STEPS, BATCH, T, LR, DECAY = 10, 4, 24, 1e-3, 0.1
SMALL = {"vocab_size": 307, "hidden_size": 48, "intermediate_size": 88, "num_hidden_layers": 3, "max_position_embeddings": 64,
         "num_attention_heads": 4, "num_key_value_heads": 2}
RANKS = {"v_proj": 2, "layers.0.self_attn.q_proj": 6}
# Configuration, PEFT's options beside r and lora_alpha.
KINDS = {
    "qwen3": (Qwen3Config(**SMALL, head_dim=12, tie_word_embeddings=False),
              {"target_modules": ["q_proj", "v_proj", "down_proj"], "rank_pattern": RANKS, "alpha_pattern": {"v_proj": 12, "model.layers.1.mlp.down_proj": 1.5},
               "modules_to_save": ["embed_tokens", "lm_head"], "use_rslora": True}),
    "llama tied apart": (LlamaConfig(**SMALL, tie_word_embeddings=True),
                         {"target_modules": "all-linear", "rank_pattern": RANKS, "modules_to_save": ["lm_head"]}),
    "llama tied": (LlamaConfig(**SMALL, tie_word_embeddings=True),
                   {"target_modules": ["q_proj", "o_proj"], "alpha_pattern": {"o_proj": 3}, "modules_to_save": ["embed_tokens", "norm"],
                    "ensure_weight_tying": True}),
    "bert": (BertConfig(**{**bert.COMMON, "vocab_size": 307}), {"target_modules": ["query", "value", "intermediate.dense"], "rank_pattern": {"query": 2, "layer.0.intermediate.dense": 7},
                                         "alpha_pattern": {"value": 1}, "modules_to_save": ["classifier", "pooler.dense", "word_embeddings"]})}


def loads(kind, **words):
    auto = AutoModelForSequenceClassification if kind == "bert" else AutoModelForCausalLM
    return lambda path: auto.from_pretrained(path, dtype=torch.float32, attn_implementation="eager", **words)


def made(kind, case):
    """The base and PEFT's folder, with adapters and saved modules that are not those of the base."""
    config, words = KINDS[kind]
    torch.manual_seed(9)
    model = (AutoModelForSequenceClassification if kind == "bert" else AutoModelForCausalLM).from_config(config).float()
    kit.shake(model, 9)
    model.save_pretrained(case / "base")
    model = peft.get_peft_model(loads(kind)(case / "base"), peft.LoraConfig(r=4, lora_alpha=8, init_lora_weights=False, **words))
    generator = torch.Generator().manual_seed(10)
    with torch.no_grad():
        for parameter in (p for n, p in model.named_parameters() if "modules_to_save" in n):
            parameter.add_(0.02 * torch.randn(parameter.shape, generator=generator))
    model.save_pretrained(case / "adapter")
    return peft.PeftModel.from_pretrained(loads(kind)(case / "base"), case / "adapter", is_trainable=True).eval()


def loss_of(kind, model, x, y):
    logits = model(x).logits
    return torch.nn.functional.cross_entropy(logits.flatten(0, -2), y.flatten(), ignore_index=-1)


def words_of(count):
    """Text of that many bytes."""
    generator = torch.Generator().manual_seed(4)
    words, out = ["the", "stage", "sends", "what", "changed", "over", "a", "slow", "link"], ""
    while len(out) < count:
        out += words[int(torch.randint(0, len(words), (1,), generator=generator))] + " "
    return out[:count - 1] + "."


def batches(kind, case):
    """The samples as a file of a job, and as tensors."""
    if kind != "bert":
        text = words_of(STEPS * BATCH * T + 1)
        (case / "data.txt").write_text(text)
        tokens = torch.tensor(list(text.encode()))
        return [tuple(tokens[at + more:at + more + BATCH * T].reshape(BATCH, T) for more in (0, 1)) for at in range(0, STEPS * BATCH * T, BATCH * T)]
    text = words_of(STEPS * BATCH * T).replace("\n", " ")
    rows = [text[i * T:(i + 1) * T].strip().ljust(T, "x") for i in range(STEPS * BATCH)]
    labels = [i * 7 % 3 for i in range(STEPS * BATCH)]
    (case / "data.tsv").write_text("".join(f"{row}\t{label}\n" for row, label in zip(rows, labels, strict=True)))
    x = torch.tensor([list(row.encode()) for row in rows]).reshape(STEPS, BATCH, T)
    return list(zip(x, torch.tensor(labels).reshape(STEPS, BATCH, 1), strict=True))


def theirs(kind, model, samples):
    """PEFT's steps. In evaluation mode: nothing is dropped."""
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW([{"params": [p for p in trained if p.dim() > 1], "weight_decay": DECAY},
                                   {"params": [p for p in trained if p.dim() < 2], "weight_decay": 0.0}], lr=LR)
    for x, y in samples:
        optimizer.zero_grad()
        loss_of(kind, model, x, y).backward()
        optimizer.step()


def ours(place, kind, case):
    data = {"train": "data.tsv", "kind": "tsv", "text_column": "1", "label_column": "2"} if kind == "bert" else {"train": "data.txt"}
    job = {"job": {"name": "patterns"}, "model": {"weights": "base"}, "lora": {"weights": "adapter"},
           "train": {"T": T, "batch": BATCH, "micro_batch": BATCH, "epochs": 1, "lr": LR, "lr_min": LR, "weight_decay": DECAY, "clip": 0, "shuffle": False},
           "data": {**data, "tokenizer": "bytes"}, "pipeline": {"stages": 2, "threads": 1}, "cache": {"kind": "memory"}, "output": {"path": "run"},
           "edges": {"forward": {"codec": "raw"}, "backward": {"codec": "raw"}}}
    if kind == "bert":
        job["model"]["task"] = "classification"
    (case / "job.yaml").write_text(json.dumps(job))
    run = subprocess.run([str(place.program.parent / "aqpipe"), "launch", str(case / "job.yaml")], capture_output=True, text=True, check=False)
    if run.returncode != 0:
        raise kit.Failed((run.stderr.strip().splitlines() or [f"aqpipe launch: {run.returncode}"])[-1])
    return case / "run"


def gradients(place, kind, case, model, x, y):
    """Distances of logits and gradients of the folder as it is."""
    kit.batch_write(case, tokens=x, **({"labels": y, "types": torch.zeros_like(x)} if kind == "bert" else {"targets": y}))
    model.zero_grad()
    logits = model(x).logits
    torch.nn.functional.cross_entropy(logits.flatten(0, -2), y.flatten()).backward()
    front = "base_model.model."
    grads = {name.removeprefix(front).replace(".default", "").replace(".modules_to_save", ""): p.grad for name, p in model.named_parameters() if p.grad is not None}
    mine = place.adapted(case / "base", case, task="classification" if kind == "bert" else "language_model", adapter=1)
    for name in grads.keys() - mine[2].keys():
        if (path := case / f"{name}.turned.f32").exists():
            mine[2][name] = kit.values(path).reshape(grads[name].T.shape).T
    if grads.keys() != mine[2].keys():
        raise kit.Failed(f"gradients of one side alone: {sorted(grads.keys() ^ mine[2].keys())[:3]}")
    return kit.distance(mine[0], logits.detach()), max(kit.distance(mine[2][name], grads[name]) for name in grads)


def patterns(kind):
    limits = {f"parity peft patterns {kind} {what}": limit for what, limit in (("logits", 1e-5), ("gradients", 1e-4), ("trained", 1e-5), ("merged", 1e-5))}

    def run(place):
        case = place.folder(kind.replace(" ", "-"))
        model = made(kind, case)
        samples = batches(kind, case)
        found = [*gradients(place, kind, case, model, *samples[0])]
        theirs(kind, model, samples)
        out = ours(place, kind, case)
        with torch.no_grad():
            wanted = model(samples[0][0]).logits
            again = peft.PeftModel.from_pretrained(loads(kind)(case / "base"), out / "adapter").eval()
            found += [kit.distance(again(samples[0][0]).logits, wanted), kit.distance(loads(kind)(out).eval()(samples[0][0]).logits, wanted)]
        for (name, limit), value in zip(limits.items(), found, strict=True):
            yield name, value, "relative", limit

    run.names = list(limits)
    run.long = "tied" in kind
    return run


CASES = [patterns(kind) for kind in KINDS]
