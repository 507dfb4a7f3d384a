"""The PyTorch rows of tools/versus: one rank of two. usage: ranks.py FOLDER ROW RANK SCHEDULE STEPS NAME; ranks.py FOLDER evaluate WEIGHTS...

FOLDER/form.json has the sizes. A rank writes FOLDER/NAME-RANK.json (times and losses of steps, memory) and FOLDER/NAME-RANK.pt
(its weights after the last step)."""
import json
import math
import pathlib
import resource
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F

VOCABULARY, KEYFRAME_BYTES = 256, 2  # first visits go as fp16


class Block(nn.Module):
    """GPT-2's: norms before, heads of equal width, GELU by tanh."""

    def __init__(self, C, H):
        super().__init__()
        self.H = H
        self.ln_1, self.ln_2 = nn.LayerNorm(C), nn.LayerNorm(C)
        self.c_attn, self.attn_proj, self.c_fc, self.mlp_proj = nn.Linear(C, 3 * C), nn.Linear(C, C), nn.Linear(C, 4 * C), nn.Linear(4 * C, C)

    def forward(self, x):
        B, T, C = x.shape
        q, k, v = (part.view(B, T, self.H, C // self.H).transpose(1, 2) for part in self.c_attn(self.ln_1(x)).split(C, 2))
        x = x + self.attn_proj(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(B, T, C))
        return x + self.mlp_proj(F.gelu(self.c_fc(self.ln_2(x)), approximate="tanh"))


class Part(nn.Module):
    """Blocks [first, end) of L; with 0 the embedding, with L the head. bf16: what enters and leaves at the cut is bf16."""

    def __init__(self, form, first, end, bf16=False):
        super().__init__()
        C, H, L, T = (form[key] for key in ("channels", "heads", "blocks", "T"))
        self.bf16, self.first, self.end = bf16, first == 0, end == L
        if self.first:
            self.wte, self.wpe = nn.Embedding(VOCABULARY, C), nn.Embedding(T, C)
        self.blocks = nn.ModuleList(Block(C, H) for _ in range(first, end))
        if self.end:
            self.ln_f, self.head = nn.LayerNorm(C), nn.Linear(C, VOCABULARY, bias=False)
        self.numbers = range(first, end)

    def forward(self, x):
        x = self.wte(x) + self.wpe.weight[:x.shape[1]] if self.first else x.float()
        for block in self.blocks:
            x = block(x)
        if self.end:
            return self.head(self.ln_f(x))
        return x.to(torch.bfloat16) if self.bf16 else x

    def names(self):
        """Our names of tensors, by those of GPT-2's folders; True: stored the other way round there."""
        out = {}
        if self.first:
            out |= {"wte.weight": ("wte.weight", False), "wpe.weight": ("wpe.weight", False)}
        for at, number in enumerate(self.numbers):
            for ours, theirs, turned in (("ln_1", "ln_1", False), ("ln_2", "ln_2", False), ("c_attn", "attn.c_attn", True),
                                         ("attn_proj", "attn.c_proj", True), ("c_fc", "mlp.c_fc", True), ("mlp_proj", "mlp.c_proj", True)):
                out[f"h.{number}.{theirs}.weight"] = (f"blocks.{at}.{ours}.weight", turned)
                out[f"h.{number}.{theirs}.bias"] = (f"blocks.{at}.{ours}.bias", False)
        if self.end:
            out |= {"ln_f.weight": ("ln_f.weight", False), "ln_f.bias": ("ln_f.bias", False), "lm_head.weight": ("head.weight", False)}
        return out

    def load(self, tensors):
        own = dict(self.named_parameters())
        with torch.no_grad():
            for theirs, (ours, turned) in self.names().items():
                own[ours].copy_(tensors[theirs].t() if turned else tensors[theirs])

    def save(self, path):
        own = dict(self.named_parameters())
        torch.save({theirs: (own[ours].t() if turned else own[ours]).detach().clone() for theirs, (ours, turned) in self.names().items()}, path)


def safetensors(path):
    data = pathlib.Path(path).read_bytes()
    size, out = int.from_bytes(data[:8], "little"), {}
    for key, about in json.loads(data[8:8 + size]).items():
        if key != "__metadata__":
            first, end = about["data_offsets"]
            part = torch.frombuffer(bytearray(data[8 + size + first:8 + size + end]), dtype=torch.float32)
            out[key.removeprefix("transformer.")] = part.reshape(about["shape"])
    return out


def samples(folder, name, T, count):
    """Tokens and targets of the first `count` windows of T bytes."""
    text = torch.tensor(list((folder / name).read_bytes()[:count * T + 1]))
    return text[:count * T].view(count, T), text[1:count * T + 1].view(count, T)


def loss_of(logits, targets):
    return F.cross_entropy(logits.reshape(-1, VOCABULARY), targets.reshape(-1))


class Row:
    """What the rows share: the form, data, an optimizer with warm-up, and the clock."""

    def __init__(self, folder, rank, steps):
        self.folder, self.rank = folder, rank
        self.form = json.loads((folder / "form.json").read_text())
        self.base = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        self.x, self.y = samples(folder, "train.txt", self.form["T"], self.form["samples"])
        self.epoch_steps = self.form["samples"] // self.form["batch"]
        self.steps = steps or self.epoch_steps * self.form["epochs"]
        self.times, self.losses = [], []

    def begin(self, model):
        self.model = model
        model.load(safetensors(self.folder / "model.safetensors"))
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=self.form["lr"], betas=(0.9, 0.999), eps=1e-8, weight_decay=0.0)
        dist.barrier()
        self.start = time.monotonic()

    def batch(self, step):
        """Ids of the samples of step 0, 1, ...; the order is the text's."""
        first = step % self.epoch_steps * self.form["batch"]
        return range(first, first + self.form["batch"])

    def update(self, step):
        for group in self.optimizer.param_groups:
            group["lr"] = self.form["lr"] * min(1, (step + 1) / self.form["warmup"])
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)

    def told(self, loss):
        self.times.append(time.monotonic() - self.start)
        self.losses.append(loss)


def pipeline(row, schedule, bf16):
    """torch.distributed.pipelining, as its documentation uses it."""
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
    L, batch, micro = row.form["blocks"], row.form["batch"], row.form["micro"]
    part = Part(row.form, *((0, L // 2) if row.rank == 0 else (L // 2, L)), bf16)
    row.begin(part)
    plan = {"1F1B": Schedule1F1B, "GPipe": ScheduleGPipe}[schedule](PipelineStage(part, row.rank, 2, torch.device("cpu")), batch // micro,
                                                                   loss_fn=loss_of)
    dist.barrier()
    row.start = time.monotonic()
    for step in range(row.steps):
        ids, losses = row.batch(step), []
        if row.rank == 0:
            plan.step(row.x[ids.start:ids.stop])
        else:
            plan.step(target=row.y[ids.start:ids.stop], losses=losses)
        row.update(step)
        row.told(sum(loss.item() for loss in losses) / max(1, len(losses)))


def encode(x, bits):
    """Uniform levels over each row's largest magnitude, which goes as fp16: (bytes, decoded)."""
    scale = x.abs().amax(-1, keepdim=True).clamp(min=6e-8).half()
    levels = 1 << bits
    codes = (x / scale.float() * (levels / 2) + levels / 2).floor_().clamp_(0, levels - 1).to(torch.uint8)
    packed = codes if bits == 8 else codes[..., 0::2] | codes[..., 1::2] << 4
    return torch.cat([scale.view(torch.uint8).flatten(), packed.flatten()]), decoded(codes, scale, bits)


def decoded(codes, scale, bits):
    return (codes.float() + 0.5 - (1 << bits) / 2) * (scale.float() * (2.0 / (1 << bits)))


def decode(data, shape, bits):
    rows = math.prod(shape[:-1])
    scale, packed = data[:2 * rows].view(torch.float16).view(*shape[:-1], 1), data[2 * rows:]
    codes = packed if bits == 8 else torch.stack([packed & 15, packed >> 4], -1)
    return decoded(codes.reshape(shape), scale, bits)


def size_of(shape, bits):
    return 2 * math.prod(shape[:-1]) + math.prod(shape) * bits // 8


class Aqsgd:
    """The same method in PyTorch: 4 bits of each activation's change, 8 bits of its gradient. Sends and receives run beside the
    arithmetic; rank 0 has `ahead` micro-batches in flight."""

    def __init__(self, row, ahead):
        L, self.row, self.ahead = row.form["blocks"], row, ahead
        self.shape = (row.form["micro"], row.form["T"], row.form["channels"])
        self.messages = torch.zeros(row.form["samples"], *self.shape[1:])
        row.begin(Part(row.form, *((0, L // 2) if row.rank == 0 else (L // 2, L))))

    def parts(self, step):
        ids, micro = self.row.batch(step), self.row.form["micro"]
        return [slice(first, first + micro) for first in range(ids.start, ids.stop, micro)]

    def bytes_forward(self, step):
        return KEYFRAME_BYTES * math.prod(self.shape) if step < self.row.epoch_steps else size_of(self.shape, 4)

    def first_stage(self, step):
        parts, sends, outs = self.parts(step), [], {}
        incoming = [torch.empty(size_of(self.shape, 8), dtype=torch.uint8) for _ in parts]
        waits = [dist.irecv(data, 1) for data in incoming]

        def forward(i):
            outs[i] = self.row.model(self.row.x[parts[i]])
            value = outs[i].detach()
            if step < self.row.epoch_steps:
                data = value.half()
                self.messages[parts[i]] = data.float()
                data = data.view(torch.uint8).flatten()
            else:
                data, change = encode(value - self.messages[parts[i]], 4)
                self.messages[parts[i]] += change
            sends.append((dist.isend(data, 1), data))

        for i in range(min(self.ahead, len(parts))):
            forward(i)
        for i in range(len(parts)):
            waits[i].wait()
            outs.pop(i).backward(decode(incoming[i], self.shape, 8))
            if i + self.ahead < len(parts):
                forward(i + self.ahead)
        for wait, _ in sends:
            wait.wait()
        return 0.0

    def last_stage(self, step):
        parts, sends, total = self.parts(step), [], 0.0
        incoming = [torch.empty(self.bytes_forward(step), dtype=torch.uint8) for _ in parts]
        waits = [dist.irecv(data, 0) for data in incoming]
        for i, part in enumerate(parts):
            waits[i].wait()
            if step < self.row.epoch_steps:
                self.messages[part] = incoming[i].view(torch.float16).view(self.shape).float()
            else:
                self.messages[part] += decode(incoming[i], self.shape, 4)
            value = self.messages[part].clone().requires_grad_()
            loss = loss_of(self.row.model(value), self.row.y[part])
            (loss / len(parts)).backward()
            data, _ = encode(value.grad, 8)
            sends.append((dist.isend(data, 0), data))
            total += loss.item()
        for wait, _ in sends:
            wait.wait()
        return total / len(parts)

    def run(self):
        for step in range(self.row.steps):
            loss = self.first_stage(step) if self.row.rank == 0 else self.last_stage(step)
            self.row.update(step)
            self.row.told(loss)
        digest = torch.tensor([self.messages.view(torch.int32).long().sum()])
        both = [torch.zeros_like(digest) for _ in range(2)]
        dist.all_gather(both, digest)
        assert torch.equal(*both), "the messages of both ends differ"


def local_steps(row):
    """DiLoCo: each end has the whole model and half of each batch. After every H steps the mean of both changes is one step of
    SGD with Nesterov momentum, 0.7 and 0.9 as published; inner states stay."""
    form = row.form
    row.begin(Part(form, 0, form["blocks"]))
    own = list(row.model.parameters())
    outer = [value.detach().clone() for value in own]
    sgd, half = torch.optim.SGD(outer, lr=form["outer_lr"], momentum=form["outer_momentum"], nesterov=True), form["batch"] // 2
    for step in range(row.steps):
        ids = row.batch(step)
        part = slice(ids.start + row.rank * half, ids.start + (row.rank + 1) * half)
        loss = loss_of(row.model(row.x[part]), row.y[part])
        loss.backward()
        row.update(step)
        if (step + 1) % form["local_steps"] == 0 or step + 1 == row.steps:
            change = torch.cat([(there - here.detach()).flatten() for there, here in zip(outer, own)])
            dist.all_reduce(change)
            for value, piece in zip(outer, change.div_(2).split([value.numel() for value in outer])):
                value.grad = piece.view_as(value)
            sgd.step()
            with torch.no_grad():
                for here, there in zip(own, outer):
                    here.copy_(there)
        row.told(loss.item())
    losses = torch.tensor(row.losses)
    dist.all_reduce(losses)  # behind the clock
    row.losses = (losses / 2).tolist()


def train(folder, name, rank, schedule, steps, out):
    torch.set_num_threads(1)
    row = Row(folder, rank, steps)
    dist.init_process_group("gloo", rank=rank, world_size=2)
    if name in ("torch-fp32", "torch-bf16"):
        pipeline(row, schedule, name == "torch-bf16")
    elif name == "torch-aqsgd":
        micros = row.form["batch"] // row.form["micro"]
        Aqsgd(row, {"1F1B": 2, "GPipe": micros}[schedule]).run()
    else:
        local_steps(row)
    row.model.save(folder / f"{out}-{rank}.pt")
    (folder / f"{out}-{rank}.json").write_text(json.dumps({
        "times": row.times, "losses": row.losses, "memory": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024, "memory_base": row.base}))
    dist.destroy_process_group()


def evaluate(folder, paths):
    """Held-out loss in fp32, without a codec, of one model in one process."""
    form, tensors = json.loads((folder / "form.json").read_text()), {}
    for path in paths:
        tensors |= safetensors(path) if path.endswith(".safetensors") else torch.load(path)
    model = Part(form, 0, form["blocks"])
    model.load(tensors)
    x, y = samples(folder, "heldout.txt", form["T"], form["heldout"])
    with torch.no_grad():
        print(sum(loss_of(model(x[i:i + 1]), y[i:i + 1]).item() for i in range(len(x))) / len(x))


if __name__ == "__main__":
    if sys.argv[2] == "evaluate":
        evaluate(pathlib.Path(sys.argv[1]), sys.argv[3:])
    else:
        train(pathlib.Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), sys.argv[4], int(sys.argv[5]), sys.argv[6])
