"""generate.py: greedy generation of GPT-2 124M with random weights, transformers' beside ours in one run (tools/parity --speed).

64 tokens behind a prompt of 16, each with its cache of keys and values, the best of three in turns; the prompt is part of it, reading
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

PROMPT, TOKENS, TURNS = "abcdefghijklmnop", 64, 3


def text_model(folder):
    """A model without an end token, and a tokenizer of single bytes."""
    torch.manual_seed(0)
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(bos_token_id=0, eos_token_id=None)).eval()
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


def ours(program, folder, precision):
    run = subprocess.run([str(program.parent / "aqpipe"), "generate", str(folder), "--prompt", PROMPT, "--tokens", str(TOKENS),
                          "--precision", precision, "--json"], capture_output=True, text=True, check=False)
    if run.returncode != 0:
        raise kit.Failed(run.stderr.strip().splitlines()[-1])
    found = json.loads(run.stdout)
    return found["tokens_per_second"], found["ids"]


def generate(precision):
    name = f"speed generate gpt2-124m {precision}"

    def run(place):
        folder = place.folder("gpt2")
        model, ids = text_model(folder)
        turns = [(theirs(model, ids), ours(place.program, folder, precision)) for _ in range(TURNS)]
        if precision == "fp32" and turns[0][0][1] != turns[0][1][1]:
            raise kit.Failed("greedy text is not that of transformers")
        peer, mine = (max(one[0] for one in of) for of in zip(*turns, strict=True))
        yield name, mine, "tokens/s", None
        yield f"{name} transformers", peer, "tokens/s in fp32", None
        yield f"{name} ratio", mine / peer, "times transformers", None

    run.names = [name, f"{name} transformers", f"{name} ratio"]
    return run


SPEED = [generate(precision) for precision in ("fp32", "bf16")]
