"""speed.py: a training step of published shapes, PyTorch's beside ours in one run (tools/parity --speed): tokens a second.

A step is what `aqpipe bench stage` measures: forward, backward, clipping, AdamW, zeroed gradients, random tokens, tied head, all
cores; PyTorch with its fused attention and optimizer, bf16 by autocast. Ours and theirs take turns (SHAPES says how often); a figure is
the median of them, each that of its median step; the ratio is ours over PyTorch's. `lora16` is a step of adapters of rank 16 on every linear
layer of the blocks, alone, beside PEFT's; in bf16 PEFT's model is held in bf16, as people have it. `compiled` is PyTorch's step by torch.compile, where
asked for (AQ_SPEED_COMPILE=1: minutes). Where PyTorch has no product of bf16 to speak of (no AVX-512: a hundredth of fp32's), a
step of it would take some ten minutes: our bf16 is then measured beside PyTorch's fp32, its better choice there, and `pytorch
bf16 product` says what its product in bf16 takes of its product in fp32. Qwen3-0.6B wants 12 GB.
"""
import json
import os
import statistics
import subprocess
import time

import kit
import peft
import torch
import transformers
from transformers import GPT2Config, LlamaConfig, Qwen3Config

STEPS = 4
USELESS = 0.25  # a bf16 product slower than this part of fp32's
SHAPES = {  # turns, B, T, configuration
    "gpt2-124m": (2, 4, 256, GPT2Config(resid_pdrop=0, embd_pdrop=0, attn_pdrop=0)),
    "smollm2-135m": (2, 4, 256, LlamaConfig(vocab_size=49152, hidden_size=576, intermediate_size=1536, num_hidden_layers=30,
                                            num_attention_heads=9, num_key_value_heads=3, tie_word_embeddings=True)),
    "qwen3-0.6b": (1, 2, 256, Qwen3Config(vocab_size=151936, hidden_size=1024, intermediate_size=3072, num_hidden_layers=28,
                                          num_attention_heads=16, num_key_value_heads=8, head_dim=128, tie_word_embeddings=True)),
}


def products():
    """PyTorch's product in bf16 over its product in fp32, in speed."""
    seconds = {}
    for of in (torch.float32, torch.bfloat16):
        a, b, times = torch.ones(256, 512, dtype=of), torch.ones(512, 512, dtype=of), []
        for _ in range(3):
            begin = time.monotonic()
            torch.mm(a, b)
            times.append(time.monotonic() - begin)
        seconds[of] = min(times)
    return seconds[torch.float32] / seconds[torch.bfloat16]


def theirs(config, B, T, bf16, rank=0, compiled=False):
    """Tokens a second of PyTorch's median step."""
    torch.set_num_threads(os.cpu_count())
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="sdpa").float().train()
    if rank:
        model = peft.get_peft_model(model.bfloat16() if bf16 else model, peft.LoraConfig(
            r=rank, lora_alpha=2 * rank, target_modules="all-linear", task_type="CAUSAL_LM"))
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-4, fused=True)
    forward = torch.compile(model) if compiled else model
    tokens, targets = kit.batch_of(config.vocab_size, B, T, 1)
    seconds = []
    for _ in range(STEPS):
        begin = time.monotonic()
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=bf16):
            logits = forward(tokens).logits
        torch.nn.functional.cross_entropy(logits.flatten(0, 1).float(), targets.flatten(), ignore_index=-1).backward()
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        optimizer.zero_grad()
        seconds.append(time.monotonic() - begin)
    return B * T / statistics.median(seconds[1:])


def ours(program, case):
    run = subprocess.run([str(program.parent / "aqpipe"), "bench", "stage", "--only", case, "--json"], capture_output=True, text=True,
                         check=False)
    for line in run.stdout.splitlines():
        found = json.loads(line)
        if found["case"] == case:
            return found["value"]
    raise kit.Failed(f"aqpipe bench stage has no figure of {case}")


def step(shape, precision, rank=0):
    rounds, B, T, config = SHAPES[shape]
    which = f"{shape} lora{rank} {precision}" if rank else f"{shape} {precision}"
    case, name, asked = f"stage {which} B{B} T{T}", f"speed {which}", bool(os.environ.get("AQ_SPEED_COMPILE"))

    def run(place):
        product = products() if precision == "bf16" else 1.0
        bf16, turns = precision == "bf16" and product >= USELESS, []
        for _ in range(rounds):
            turns.append((ours(place.program, case), theirs(config, B, T, bf16, rank)))
        mine, peer = (statistics.median(of) for of in zip(*turns))
        if precision == "bf16":
            yield f"{name} pytorch bf16 product", product, "times its fp32 product", None
        yield name, mine, "tokens/s", None
        yield f"{name} pytorch", peer, f"tokens/s in {'bf16' if bf16 else 'fp32'}", None
        if asked:
            compiled = theirs(config, B, T, bf16, rank, True)
            yield f"{name} pytorch compiled", compiled, f"tokens/s in {'bf16' if bf16 else 'fp32'}", None
            peer = max(peer, compiled)
        yield f"{name} ratio", mine / peer, "times PyTorch", None

    run.names = [name, f"{name} pytorch", f"{name} ratio"]
    run.names += [f"{name} pytorch compiled"] * asked + [f"{name} pytorch bf16 product"] * (precision == "bf16")
    return run


SPEED = [step(shape, precision) for shape in SHAPES for precision in ("fp32", "bf16")]
SPEED += [step(shape, precision, 16) for shape in SHAPES if shape != "gpt2-124m" for precision in ("fp32", "bf16")]
