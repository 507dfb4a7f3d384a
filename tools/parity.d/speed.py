"""speed.py: a training step of published shapes, PyTorch's beside ours in one run (tools/parity --speed): tokens a second.

A step is what `aqpipe bench stage` measures: forward, backward, clipping, AdamW, zeroed gradients, random tokens, tied head, all
cores; PyTorch with its fused attention and optimizer, bf16 by autocast. Ours and theirs take turns (SHAPES says how often); a figure is
the median of them, each that of its median step; the ratio is ours over PyTorch's. `lora16` is a step of adapters of rank 16 on every linear
layer of the blocks, alone, beside PEFT's; in bf16 PEFT's model is held in bf16, as people have it. `compiled` is PyTorch's step by torch.compile, where
asked for (AQ_SPEED_COMPILE=1: minutes). Where PyTorch has no product of bf16 to speak of (no AVX-512: a hundredth of fp32's), a
step of it would take some ten minutes: our bf16 is then measured beside PyTorch's fp32, its better choice there, and `pytorch
bf16 product` says what its product in bf16 takes of its product in fp32. Qwen3-0.6B wants 12 GB. Of ResNet-34 on images of 32 x 32
a step is forward, backward, SGD with momentum; PyTorch's in both orders of memory, of which the better one counts.
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


class Block(torch.nn.Module):
    """A basic block, as torchvision has it."""

    def __init__(self, before, after, stride):
        super().__init__()
        self.conv1, self.bn1 = torch.nn.Conv2d(before, after, 3, stride, 1, bias=False), torch.nn.BatchNorm2d(after)
        self.conv2, self.bn2 = torch.nn.Conv2d(after, after, 3, 1, 1, bias=False), torch.nn.BatchNorm2d(after)
        self.shortcut = torch.nn.Sequential() if stride == 1 else torch.nn.Sequential(
            torch.nn.Conv2d(before, after, 1, stride, bias=False), torch.nn.BatchNorm2d(after))

    def forward(self, x):
        y = self.bn2(self.conv2(torch.relu(self.bn1(self.conv1(x)))))
        return torch.relu(y + self.shortcut(x))


def resnet(blocks):
    layers, width = [torch.nn.Conv2d(3, 64, 3, 1, 1, bias=False), torch.nn.BatchNorm2d(64), torch.nn.ReLU()], 64
    for level, count in enumerate(blocks):
        for block in range(count):
            layers.append(Block(width, 64 << level, 2 if level and not block else 1))
            width = 64 << level
    return torch.nn.Sequential(*layers, torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(width, 10)).train()


def images_of_theirs(blocks, B, last):
    """Images a second of PyTorch's median step: SGD with momentum. last: channels_last, which oneDNN likes."""
    torch.set_num_threads(os.cpu_count())
    form = torch.channels_last if last else torch.contiguous_format
    model = resnet(blocks).to(memory_format=form)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    images, labels, seconds = torch.randn(B, 3, 32, 32).contiguous(memory_format=form), torch.randint(0, 10, (B,)), []
    for _ in range(STEPS):
        begin = time.monotonic()
        torch.nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()
        optimizer.zero_grad()
        seconds.append(time.monotonic() - begin)
    return B / statistics.median(seconds[1:])


def image_step(depth, blocks, B):
    name = f"speed resnet{depth} fp32"

    def run(place):
        turns = [(ours(place.program, f"stage resnet{depth} fp32 B{B}"), images_of_theirs(blocks, B, False), images_of_theirs(blocks, B, True))
                 for _ in range(2)]
        mine, plain, last = (statistics.median(of) for of in zip(*turns))
        yield name, mine, "images/s", None
        yield f"{name} pytorch", plain, "images/s", None
        yield f"{name} pytorch channels_last", last, "images/s", None
        yield f"{name} ratio", mine / max(plain, last), "times PyTorch's better one", None

    run.names = [name, f"{name} pytorch", f"{name} pytorch channels_last", f"{name} ratio"]
    return run


SPEED = [step(shape, precision) for shape in SHAPES for precision in ("fp32", "bf16")]
SPEED += [step(shape, precision, 16) for shape in SHAPES if shape != "gpt2-124m" for precision in ("fp32", "bf16")]
SPEED += [image_step(34, (3, 4, 6, 3), 64)]
