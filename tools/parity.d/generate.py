"""generate.py: greedy text, transformers' beside ours.

CASES: of every family of decoders at small size, with random weights: the tokens of 64 that differ. Logits differ in their last bits:
where transformers' two best are nearer than 1e-4 a text is compared no further, and half of all tokens must be compared.

SPEED (tools/parity --speed): GPT-2 124M with random weights, both in one run. 64 tokens behind a prompt of 16, each with its cache of keys and values, the best of three in turns; the prompt is part of it, reading
the model is not. Ours in bf16 keeps its weights in bf16 beside fp32; theirs is of fp32 in both, its better choice without AVX-512.
"""
import json
import os
import subprocess
import time

import kit
import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

PROMPT, TOKENS, TURNS, NEAR = "abcdefghijklmnop", 64, 3, 1e-4
SMALL = {"vocab_size": 307, "hidden_size": 48, "intermediate_size": 88, "num_hidden_layers": 3, "max_position_embeddings": 128,
         "num_attention_heads": 4, "num_key_value_heads": 2, "initializer_range": 0.2, "bos_token_id": 0, "eos_token_id": None,
         "pad_token_id": None}
FAMILIES = {
    "gpt2": transformers.GPT2Config(vocab_size=307, n_embd=48, n_layer=3, n_head=4, n_positions=128, initializer_range=0.2,
                                    bos_token_id=0, eos_token_id=None),
    "llama": transformers.LlamaConfig(**SMALL),
    "qwen2": transformers.Qwen2Config(**SMALL),
    "qwen3": transformers.Qwen3Config(**SMALL, head_dim=12),
    "gemma2": transformers.Gemma2Config(**SMALL, head_dim=12, sliding_window=16, query_pre_attn_scalar=3, attn_logit_softcapping=1.5,
                                        final_logit_softcapping=2.0),
    "gemma3": transformers.Gemma3TextConfig(**SMALL, head_dim=12, sliding_window=16),
    "llama-biases": transformers.LlamaConfig(**SMALL, attention_bias=True, mlp_bias=True),
    "yarn": transformers.Qwen3Config(**SMALL, head_dim=12, rope_parameters={"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0,
                                                                             "original_max_position_embeddings": 32}),
    "mistral": transformers.MistralConfig(**SMALL, sliding_window=16),
    "ministral3": transformers.Ministral3Config(**SMALL, head_dim=12, rope_parameters={
        "rope_type": "yarn", "rope_theta": 10000.0, "factor": 1.25, "original_max_position_embeddings": 100, "llama_4_scaling_beta": 0.1}),
    "smollm3": transformers.SmolLM3Config(**{**SMALL, "num_hidden_layers": 4, "pad_token_id": 0}),
    "olmo2": transformers.Olmo2Config(**{**SMALL, "num_key_value_heads": 4}),
    "olmo3": transformers.Olmo3Config(**{**SMALL, "num_key_value_heads": 4, "num_hidden_layers": 4}, sliding_window=16),
    "exaone4": transformers.Exaone4Config(**SMALL, sliding_window=16, sliding_window_pattern=3),
    "qwen3_5": transformers.Qwen3_5TextConfig(**{**SMALL, "num_hidden_layers": 4}, head_dim=16, linear_num_key_heads=2, linear_num_value_heads=4,
                                              linear_key_head_dim=12, linear_value_head_dim=10),
    "granite": transformers.GraniteConfig(**SMALL, embedding_multiplier=12.0, attention_multiplier=0.1, residual_multiplier=0.22,
                                          logits_scaling=8.0),
    "phi3": transformers.Phi3Config(**SMALL, original_max_position_embeddings=100, rope_parameters={
        "rope_type": "longrope", "rope_theta": 10000.0, "partial_rotary_factor": 0.5, "short_factor": [1.0, 1.25, 2.0], "long_factor": [1.0, 4.0, 16.0]}),
    "phi3-long": transformers.Phi3Config(**SMALL, original_max_position_embeddings=8, rope_parameters={
        "rope_type": "longrope", "rope_theta": 10000.0, "short_factor": [1.0] * 6, "long_factor": [1.0, 1.5, 2.0, 4.0, 8.0, 16.0]}),
    "lfm2": transformers.Lfm2Config(**SMALL, full_attn_idxs=[1], block_multiple_of=8)}


def text_model(folder, config):
    """A model without an end token, and a tokenizer of single bytes."""
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager").float().eval()
    model.generation_config = transformers.GenerationConfig(bos_token_id=0)
    model.save_pretrained(folder)
    words = Tokenizer(models.BPE({letter: i for i, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}, []))
    words.pre_tokenizer, words.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    transformers.PreTrainedTokenizerFast(tokenizer_object=words).save_pretrained(folder)
    return model, words.encode(PROMPT).ids


def theirs(model, ids):
    torch.set_num_threads(os.cpu_count())
    begin = time.monotonic()
    with torch.no_grad():
        out = model.generate(torch.tensor([ids]), max_new_tokens=TOKENS, min_new_tokens=TOKENS, do_sample=False, pad_token_id=0)
    return TOKENS / (time.monotonic() - begin), out[0, len(ids):].tolist()


def ours(program, folder, precision, prompt=PROMPT):
    run = subprocess.run([str(program.parent / "aqpipe"), "generate", str(folder), "--prompt", prompt, "--tokens", str(TOKENS),
                          "--precision", precision, "--json"], capture_output=True, text=True, check=False)
    if run.returncode != 0:
        raise kit.Failed(run.stderr.strip().splitlines()[-1])
    found = json.loads(run.stdout)
    return found["tokens_per_second"], found["ids"]


def generate(precision):
    name = f"speed generate gpt2-124m {precision}"

    def run(place):
        folder = place.folder("gpt2")
        model, ids = text_model(folder, transformers.GPT2Config(bos_token_id=0, eos_token_id=None))
        turns = [(theirs(model, ids), ours(place.program, folder, precision)) for _ in range(TURNS)]
        if precision == "fp32" and turns[0][0][1] != turns[0][1][1]:
            raise kit.Failed("greedy text is not that of transformers")
        peer, mine = (max(one[0] for one in of) for of in zip(*turns, strict=True))
        yield name, mine, "tokens/s", None
        yield f"{name} transformers", peer, "tokens/s in fp32", None
        yield f"{name} ratio", mine / peer, "times transformers", None

    run.names = [name, f"{name} transformers", f"{name} ratio"]
    return run


def equal(family):
    name = f"parity generate {family}"

    def run(place):
        folder, differ, compared = place.folder(family), 0, 0
        model, _ = text_model(folder, FAMILIES[family])
        words = Tokenizer.from_file(str(folder / "tokenizer.json"))
        prompts = (PROMPT, "the sum of both", "0123456789 " * 3)
        for prompt in prompts:
            ids = words.encode(prompt).ids
            with torch.no_grad():
                out = model.generate(torch.tensor([ids]), max_new_tokens=TOKENS, min_new_tokens=TOKENS, do_sample=False, pad_token_id=0,
                                     return_dict_in_generate=True, output_logits=True)
            best = [row[0].topk(2).values for row in out.logits]
            sure = next((i for i, two in enumerate(best) if two[0] - two[1] < NEAR), TOKENS)
            mine, wanted = ours(place.program, folder, "fp32", prompt)[1], out.sequences[0, len(ids):].tolist()
            differ += sum(a != b for a, b in zip(mine[:sure], wanted[:sure], strict=True))
            compared += sure
        if 2 * compared < TOKENS * len(prompts):
            raise kit.Failed(f"{family}: only {compared} tokens are sure")
        yield name, differ, f"tokens that differ, of {compared}", 0

    run.names, run.long = [name], family != "gemma3"  # the family with windows and norms of its own is the short form
    return run


CASES = [equal(family) for family in FAMILIES]
SPEED = [generate(precision) for precision in ("fp32", "bf16")]
