"""Gradient compressors of libaqsgd against PyTorch's PowerSGD, as hooks of DistributedDataParallel: loss and bytes, two processes.

    python3 ddp_hooks.py [none | powersgd4 | q4 | sign ...]        powersgdN: rank N; the rest are names of aqsgd.Gradient
"""
import os
import sys
import tempfile
import time

import aqsgd.ddp
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn as nn
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as powersgd

STEPS, BATCH, T, C, WORDS, LAYERS = int(os.environ.get("STEPS", 250)), 16, 16, 48, 32, 2
HOOKS = ("none", "powersgd1", "powersgd4", "q4", "q2", "sign", "topk")


class Model(nn.Module):
    """A small transformer that foretells the next word."""

    def __init__(self):
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, C), nn.Parameter(torch.zeros(T, C))
        layer = nn.TransformerEncoderLayer(C, 4, 4 * C, dropout=0.0, batch_first=True, norm_first=True)
        self.blocks, self.head = nn.TransformerEncoder(layer, LAYERS), nn.Linear(C, WORDS)
        self.register_buffer("mask", torch.full((T, T), float("-inf")).triu(1))

    def forward(self, words):
        return self.head(self.blocks(self.words(words) + self.places, self.mask))


def batches(seed, count):
    """Texts of a chain of words: each has four likely successors, by the two before it."""
    rules = torch.randint(0, WORDS, (WORDS, WORDS, 4), generator=torch.Generator().manual_seed(0))
    g = torch.Generator().manual_seed(seed)
    for _ in range(count):
        text = torch.randint(0, WORDS, (BATCH, T + 1), generator=g)
        for t in range(2, T + 1):
            text[:, t] = rules[text[:, t - 2] % 4, text[:, t - 1], torch.randint(0, 4, (BATCH,), generator=g)]
        yield text


def loss_of(model, text):
    return nn.functional.cross_entropy(model(text[:, :-1]).flatten(0, 1), text[:, 1:].flatten())


def work(rank, name, meeting):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=2)
    torch.manual_seed(0)
    model = nn.parallel.DistributedDataParallel(Model())
    count, state = sum(p.numel() for p in model.parameters()), None
    if name.startswith("powersgd"):
        state = powersgd.PowerSGDState(None, int(name[8:]), start_powerSGD_iter=2)
        model.register_comm_hook(state, powersgd.powerSGD_hook)
    elif name != "none":
        state = aqsgd.ddp.State(name)
        model.register_comm_hook(state, aqsgd.ddp.hook)
    optimizer, begin = torch.optim.AdamW(model.parameters(), 2e-3), time.perf_counter()
    for text in batches(100 + rank, STEPS):
        optimizer.zero_grad()
        loss_of(model, text).backward()
        optimizer.step()
    seconds = time.perf_counter() - begin
    with torch.no_grad():
        held = sum(loss_of(model.module, text).item() for text in batches(1, 16)) / 16
    if isinstance(state, aqsgd.ddp.State):
        times = state.raw_bytes / state.bytes
    else:  # PowerSGD tells what it has kept of all numbers
        times = state.compression_stats()[0] if state else 1.0
    same = [None, None]
    dist.all_gather_object(same, aqsgd.digest(b"".join(p.detach().numpy().tobytes() for p in model.parameters())))
    if rank == 0:
        print(f"{name:10} held-out loss {held:.4f}  {4 * count / times / 1000:8.1f} kB a step, {times:5.1f} times less  "
              f"{1000 * seconds / STEPS:6.1f} ms a step  replicas {'equal' if same[0] == same[1] else 'DIFFER'}", flush=True)


if __name__ == "__main__":
    for hook in sys.argv[1:] or HOOKS:
        with tempfile.TemporaryDirectory() as folder:  # the two meet at a file: a fixed port may be in use
            mp.start_processes(work, (hook, f"file://{folder}/meeting"), nprocs=2, start_method="fork")  # torch is imported once
