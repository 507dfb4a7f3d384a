"""Loss, output and gradients of a range of GPT-2's layers by PyTorch, in double precision: the other side of test_stage_torch.

usage: torch_gpt2.py FOLDER. Reads FOLDER/case.txt ("key value" lines; "tensor NAME dims..." lines), NAME.f32, tokens.i32 and
targets.i32 or x.f32 and dy.f32. Writes loss.f64 or y.f32, dx.f32 and NAME.grad.f32. Exits 77 where torch is not there.
"""
import math
import os
import sys

try:
    import torch
except ImportError as error:
    print("skip: PyTorch is not there:", error)
    sys.exit(77)

folder = sys.argv[1]
keys, tensors = {}, {}


def path(name):
    return os.path.join(folder, name)


def load(name, shape, kind="float32"):
    with open(path(name), "rb") as file:
        data = bytearray(file.read())
    return torch.frombuffer(data, dtype=getattr(torch, kind)).reshape(shape)


def save(name, value):
    with open(path(name), "wb") as file:
        file.write(value.detach().contiguous().numpy().tobytes())


for line in open(path("case.txt")):
    words = line.split()
    if words[0] == "tensor":
        shape = [int(w) for w in words[2:]]
        tensors[words[1]] = load(words[1] + ".f32", shape).double().requires_grad_(True)
    else:
        keys[words[0]] = float(words[1]) if "." in words[1] else int(words[1])

samples, T, C, H, L = (keys[k] for k in ("samples", "T", "C", "H", "L"))
first, end = keys["first"], keys["end"]


def norm(x, name):
    return torch.nn.functional.layer_norm(x, (C,), tensors[name + ".weight"], tensors[name + ".bias"], 1e-5)


def linear(x, name):
    return x @ tensors[name + ".weight"] + tensors[name + ".bias"]


def gelu(x):
    return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x ** 3)))


def stream(x):
    """The residual stream as it is kept: of bf16, each sum is rounded once. Gradients pass unchanged."""
    return x + (x.detach().float().bfloat16().double() - x.detach()) if keys.get("residual_bf16") else x


def block(x, name):
    q, k, v = (part.reshape(samples, T, H, C // H).transpose(1, 2)
               for part in linear(norm(x, name + ".ln_1"), name + ".attn.c_attn").split(C, dim=2))
    scores = q @ k.transpose(2, 3) / math.sqrt(C // H)
    future = torch.triu(torch.ones(T, T, dtype=torch.bool), 1)
    weights = scores.masked_fill(future, float("-inf")).softmax(-1)
    a = (weights @ v).transpose(1, 2).reshape(samples, T, C)
    x = stream(x + linear(a, name + ".attn.c_proj"))
    return stream(x + linear(gelu(linear(norm(x, name + ".ln_2"), name + ".mlp.c_fc")), name + ".mlp.c_proj"))


start = None
if first == 0:
    tokens = load("tokens.i32", (samples, T), "int32").long()
    x = stream(tensors["wte.weight"][tokens] + tensors["wpe.weight"][:T])
else:
    start = load("x.f32", (samples, T, C)).double().requires_grad_(True)
    x = stream(start)
for layer in range(max(first, 1), min(end, L + 1)):
    x = block(x, "h.%d" % (layer - 1))
if end == L + 2:
    head = tensors.get("lm_head.weight", tensors.get("wte.weight"))
    logits = norm(x, "ln_f") @ head.T
    targets = load("targets.i32", (samples * T,), "int32").long()
    loss = torch.nn.functional.cross_entropy(logits.reshape(samples * T, -1), targets, ignore_index=-1, reduction="sum")
    save("loss.f64", loss)
    (loss * keys["loss_scale"]).backward()
else:
    save("y.f32", x.float())
    (x * load("dy.f32", (samples, T, C)).double()).sum().backward()
if start is not None:
    save("dx.f32", start.grad.float())
for name, tensor in tensors.items():
    save(name + ".grad.f32", tensor.grad.float())
