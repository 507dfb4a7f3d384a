"""Adapters: PEFT's folder here, with the same logits and gradients; and back: a run that begins as it and moves nothing leaves adapters
that PEFT loads, and a model that transformers loads, both with the logits of the first."""
import json
import subprocess

import kit
import peft
import qwen3_5
import torch
import transformers
from encoders import bert, deberta, modernbert
from transformers import (BertConfig, DebertaV2Config, EuroBertConfig, Exaone4Config, Gemma2Config, GPT2Config, GraniteConfig, Lfm2Config, LlamaConfig,
                          Ministral3Config, MistralConfig, ModernBertConfig, Olmo2Config, Olmo3Config, Phi3Config, Qwen3_5TextConfig, Qwen3Config,
                          RobertaConfig, SmolLM3Config, XLMRobertaConfig)

SMALL = {"vocab_size": 307, "hidden_size": 48, "intermediate_size": 88, "num_hidden_layers": 3, "max_position_embeddings": 128,
         "num_attention_heads": 4}
# Configuration, what is adapted (a list, a pattern), whether the scale is rank-stabilized; and whether rows have lengths (DoRA).
KINDS = {"gpt2": (GPT2Config(vocab_size=307, n_embd=48, n_layer=3, n_head=4, n_positions=64), ["c_attn", "c_proj"], False),
         "llama": (LlamaConfig(**SMALL, num_key_value_heads=2), ["q_proj", "v_proj"], True),
         "qwen3": (Qwen3Config(**SMALL, num_key_value_heads=2, head_dim=12), r".*\.layers\.[12]\..*(q_proj|down_proj)", False),
         "llama-biases": (LlamaConfig(**SMALL, num_key_value_heads=2, attention_bias=True, mlp_bias=True), ["q_proj", "o_proj", "up_proj"], False),
         "mistral": (MistralConfig(**SMALL, num_key_value_heads=2, sliding_window=7), ["q_proj", "v_proj"], False),
         "ministral3": (Ministral3Config(**SMALL, num_key_value_heads=2, head_dim=12, pad_token_id=None, rope_parameters={
             "rope_type": "yarn", "rope_theta": 10000.0, "factor": 2.0, "original_max_position_embeddings": 64, "llama_4_scaling_beta": 0.1}), ["q_proj", "v_proj"], False),
         "gemma2": (Gemma2Config(**SMALL, num_key_value_heads=2, head_dim=12, sliding_window=7, query_pre_attn_scalar=3, attn_logit_softcapping=1.5,
                                 final_logit_softcapping=2.0), ["q_proj", "o_proj", "down_proj"], False),
         "phi3": (Phi3Config(**SMALL, num_key_value_heads=2, pad_token_id=None, original_max_position_embeddings=16, rope_parameters={
             "rope_type": "longrope", "rope_theta": 10000.0, "short_factor": [1.0] * 6, "long_factor": [1.0, 1.5, 2.0, 4.0, 8.0, 16.0]}),
             ["qkv_proj", "o_proj", "gate_up_proj", "down_proj"], False),
         "smollm3": (SmolLM3Config(**SMALL, num_key_value_heads=2, pad_token_id=0, no_rope_layer_interval=2), ["k_proj", "down_proj"], False),
         "olmo2": (Olmo2Config(**SMALL, pad_token_id=None), ["q_proj", "o_proj", "down_proj"], False),
         "olmo3": (Olmo3Config(**SMALL, sliding_window=7), ["k_proj", "up_proj"], False),
         "exaone4": (Exaone4Config(**SMALL, num_key_value_heads=2, sliding_window=7, sliding_window_pattern=3), ["q_proj", "gate_proj"], False),
         "qwen3_5": (Qwen3_5TextConfig(**qwen3_5.SMALL, num_hidden_layers=4, num_key_value_heads=2), ["in_proj_qkv", "in_proj_a", "out_proj", "q_proj"], False),
         "granite": (GraniteConfig(**SMALL, num_key_value_heads=2, embedding_multiplier=12.0, attention_multiplier=0.1,
                                   residual_multiplier=0.22, logits_scaling=8.0), ["q_proj", "o_proj", "down_proj"], False),
         "lfm2": (Lfm2Config(**SMALL, num_key_value_heads=2, full_attn_idxs=[1], block_multiple_of=8),
                  ["in_proj", "out_proj", "w1", "w2", "w3", "q_proj"], False),
         "deberta": (DebertaV2Config(**deberta.COMMON), ["query_proj", "key_proj", "dense"], False),
         "modernbert": (ModernBertConfig(**{**modernbert.COMMON, "initializer_range": 0.05}), ["Wqkv", "Wi", "Wo"], False),
         "bert": (BertConfig(**bert.COMMON), ["query", "key", "dense"], False),
         "roberta": (RobertaConfig(**bert.COMMON), ["query", "value"], False),
         "xlm-roberta": (XLMRobertaConfig(**bert.COMMON), ["value", "attention.output.dense"], False),
         "eurobert": (EuroBertConfig(**{**bert.COMMON, **bert.EURO}), ["q_proj", "o_proj", "down_proj"], False)}
KINDS.update({"gpt2 dora": (*KINDS["gpt2"], True), "qwen3 dora": (*KINDS["qwen3"], True), "deberta dora": (*KINDS["deberta"], True)})
ENCODERS = ("deberta", "modernbert", "bert", "roberta", "xlm-roberta", "eurobert", "deberta dora")


def adapted(kind, seed):
    """The model with random weights, and PEFT's with random adapters around it."""
    config, targets, rslora, *dora = KINDS[kind]
    torch.manual_seed(seed)
    classifies = kind in ENCODERS
    auto = transformers.AutoModelForSequenceClassification if classifies else transformers.AutoModelForCausalLM
    model = auto.from_config(config, **({} if classifies else {"attn_implementation": "eager"})).float().eval()
    kit.shake(model, seed)
    more = {"modules_to_save": ["classifier"], "exclude_modules": ["pooler.dense", "classifier"]} if classifies else {}
    lora = peft.LoraConfig(r=3, lora_alpha=6, target_modules=targets, use_rslora=rslora, init_lora_weights=False,
                           use_dora=bool(dora), fan_in_fan_out=kind.startswith("gpt2"), **more)
    return model, lora


def batch(kind, case):
    config = KINDS[kind][0]
    tokens, targets = kit.batch_of(config.vocab_size, 3, 21, 5)
    if kind in ENCODERS:
        labels = torch.tensor([[0], [2], [1]])
        kit.batch_write(case, tokens=tokens, labels=labels, types=torch.zeros_like(tokens))
        return tokens, labels
    kit.batch_write(case, tokens=tokens, targets=targets)
    return tokens, targets


def roundtrip(kind):
    loss = 3e-6 if "dora" in kind else 1e-6  # norms of columns are rounded, too: 1.2e-6 with AVX2
    limits = {f"parity peft roundtrip {kind} {what}": limit for what, limit in (("logits", 1e-5), ("loss", loss), ("gradients", 1e-4))}

    def run(place):
        case = place.folder(kind)
        model, lora = adapted(kind, 11)
        model.save_pretrained(case / "base")
        model = peft.get_peft_model(model, lora).eval()
        model.save_pretrained(case / "adapter")
        tokens, targets = batch(kind, case)
        logits = model(tokens).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, -2), targets.flatten(), ignore_index=-1)
        loss.backward()
        front = "base_model.model."
        theirs = {name.removeprefix(front).replace(".default", "").replace(".modules_to_save", "").replace("lora_magnitude_vector", "lora_M"): p.grad
                  for name, p in model.named_parameters() if p.grad is not None}
        task = "classification" if kind in ENCODERS else "language_model"
        mine = place.adapted(case / "base", case, task=task, adapter=1)
        for name in theirs.keys() - mine[2].keys():
            if (path := case / f"{name}.turned.f32").exists():
                mine[2][name] = kit.values(path).reshape(theirs[name].T.shape).T
        shared = theirs.keys() & mine[2].keys()
        if theirs.keys() - shared or any(".lora_" in name for name in mine[2].keys() - shared):
            raise kit.Failed(f"gradients of one side alone: {sorted(theirs.keys() ^ mine[2].keys())[:3]}")
        found = (kit.distance(mine[0], logits.detach()), abs(mine[1] - loss.item()) / abs(loss.item()),
                 max(kit.distance(mine[2][name], theirs[name]) for name in shared))
        for (name, limit), value in zip(limits.items(), found):
            yield name, value, "relative", limit

    run.names = list(limits)
    return run


def still(place, case):
    """A run of one step of no length."""
    (case / "text.txt").write_text("the pipeline sends what changed. " * 40)
    job = {"job": {"name": "still"}, "model": {"weights": "base"}, "lora": {"weights": "adapter"}, "train": {
        "T": 16, "batch": 2, "micro_batch": 2, "steps_max": 1, "lr": 0, "weight_decay": 0}, "data": {"train": "text.txt", "tokenizer": "bytes"},
        "pipeline": {"stages": 2, "threads": 1}, "cache": {"kind": "memory"}, "output": {"path": "run"}}
    (case / "job.yaml").write_text(json.dumps(job))
    run = subprocess.run([str(place.program.parent / "aqpipe"), "launch", str(case / "job.yaml")], capture_output=True, text=True, check=False)
    if run.returncode != 0:
        raise kit.Failed((run.stderr.strip().splitlines() or [f"aqpipe launch: {run.returncode}"])[-1])
    return case / "run"


def back(kind):
    limits = {f"parity peft roundtrip {kind} {what}": 1e-5 for what in ("adapter back", "merged")}

    def run(place):
        case = place.folder(f"{kind}-back")
        model, lora = adapted(kind, 12)
        model.save_pretrained(case / "base")
        model = peft.get_peft_model(model, lora).eval()
        model.save_pretrained(case / "adapter")
        tokens, _ = kit.batch_of(KINDS[kind][0].vocab_size, 2, 21, 6)
        out = still(place, case)
        load = transformers.AutoModelForCausalLM.from_pretrained
        with torch.no_grad():
            wanted = model(tokens).logits
            again = peft.PeftModel.from_pretrained(load(case / "base", attn_implementation="eager"), out / "adapter").eval()
            found = (kit.distance(again(tokens).logits, wanted),
                     kit.distance(load(out, attn_implementation="eager").eval()(tokens).logits, wanted))
        for (name, limit), value in zip(limits.items(), found, strict=True):
            yield name, value, "relative", limit

    run.names = list(limits)
    return run


CASES = [roundtrip(kind) for kind in KINDS] + [back(kind) for kind in KINDS if kind not in ENCODERS]
