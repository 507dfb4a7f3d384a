"""Loss, output and gradients of a range of GPT-2's layers by PyTorch, in double precision: the other side of test_stage_torch.

Prints "ready" at its start. Each line of its standard input is the folder of a case, after which it prints "done". Reads FOLDER/case.txt
("key value" lines; "tensor NAME dims..." lines), NAME.f32, tokens.i32 and targets.i32 or x.f32 and dy.f32. Writes loss.f64 or y.f32,
dx.f32 and NAME.grad.f32. Exits 77 where torch is not there.
"""
import math
import os
import sys

sys.dont_write_bytecode = True
from torch_process import leave
try:
    import torch
except ImportError as error:
    print("skip: PyTorch is not there:", error, file=sys.stderr)
    sys.exit(77)


class Case:
    def __init__(self, folder):
        self.folder, self.keys, self.tensors = folder, {}, {}
        for line in open(self.path("case.txt")):
            words = line.split()
            if words[0] == "tensor":
                shape = [int(w) for w in words[2:]]
                self.tensors[words[1]] = self.load(words[1] + ".f32", shape).double().requires_grad_(True)
            else:
                self.keys[words[0]] = float(words[1]) if "." in words[1] else int(words[1])
        self.samples, self.T, self.C, self.H, self.L = (self.keys[k] for k in ("samples", "T", "C", "H", "L"))

    def path(self, name):
        return os.path.join(self.folder, name)

    def load(self, name, shape, kind="float32"):
        with open(self.path(name), "rb") as file:
            data = bytearray(file.read())
        return torch.frombuffer(data, dtype=getattr(torch, kind)).reshape(shape)

    def save(self, name, value):
        with open(self.path(name), "wb") as file:
            file.write(value.detach().contiguous().numpy().tobytes())

    def norm(self, x, name):
        return torch.nn.functional.layer_norm(x, (self.C,), self.tensors[name + ".weight"], self.tensors[name + ".bias"], 1e-5)

    def linear(self, x, name):
        return x @ self.tensors[name + ".weight"] + self.tensors[name + ".bias"]

    def stream(self, x):
        """The residual stream as it is kept: of bf16, each sum is rounded once. Gradients pass unchanged."""
        return x + (x.detach().float().bfloat16().double() - x.detach()) if self.keys.get("residual_bf16") else x

    def block(self, x, name):
        samples, T, C, H = self.samples, self.T, self.C, self.H
        q, k, v = (part.reshape(samples, T, H, C // H).transpose(1, 2)
                   for part in self.linear(self.norm(x, name + ".ln_1"), name + ".attn.c_attn").split(C, dim=2))
        scores = q @ k.transpose(2, 3) / math.sqrt(C // H)
        future = torch.triu(torch.ones(T, T, dtype=torch.bool), 1)
        weights = scores.masked_fill(future, float("-inf")).softmax(-1)
        a = (weights @ v).transpose(1, 2).reshape(samples, T, C)
        x = self.stream(x + self.linear(a, name + ".attn.c_proj"))
        hidden = gelu(self.linear(self.norm(x, name + ".ln_2"), name + ".mlp.c_fc"))
        return self.stream(x + self.linear(hidden, name + ".mlp.c_proj"))

    def run(self):
        samples, T, first, end, start = self.samples, self.T, self.keys["first"], self.keys["end"], None
        if first == 0:
            tokens = self.load("tokens.i32", (samples, T), "int32").long()
            x = self.stream(self.tensors["wte.weight"][tokens] + self.tensors["wpe.weight"][:T])
        else:
            start = self.load("x.f32", (samples, T, self.C)).double().requires_grad_(True)
            x = self.stream(start)
        for layer in range(max(first, 1), min(end, self.L + 1)):
            x = self.block(x, "h.%d" % (layer - 1))
        if end == self.L + 2:
            head = self.tensors.get("lm_head.weight", self.tensors.get("wte.weight"))
            logits = self.norm(x, "ln_f") @ head.T
            targets = self.load("targets.i32", (samples * T,), "int32").long()
            loss = torch.nn.functional.cross_entropy(logits.reshape(samples * T, -1), targets, ignore_index=-1, reduction="sum")
            self.save("loss.f64", loss)
            (loss * self.keys["loss_scale"]).backward()
        else:
            self.save("y.f32", x.float())
            (x * self.load("dy.f32", (samples, T, self.C)).double()).sum().backward()
        if start is not None:
            self.save("dx.f32", start.grad.float())
        for name, tensor in self.tensors.items():
            self.save(name + ".grad.f32", tensor.grad.float())


def gelu(x):
    return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x ** 3)))


print("ready", flush=True)
for asked in sys.stdin:
    Case(asked.removesuffix("\n")).run()
    print("done", flush=True)
leave()
