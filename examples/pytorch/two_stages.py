"""AQ-SGD between two processes: rank 0 has a model's first half, rank 1 the second; what crosses is the change of each sample.

    python3 two_stages.py [fp32 | aqsgd]        both, one after the other, without a word
"""
import os
import sys
import tempfile

import aqsgd
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn as nn

SAMPLES, BATCH, EPOCHS, T, C, CLASSES = 256, 32, int(os.environ.get("EPOCHS", 12)), 16, 64, 8
CODECS = {"fp32": ("codec=raw", "codec=raw"), "aqsgd": ("codec=aqsgd bits=4", "codec=directq bits=8")}


def data():
    """Sequences whose class is in how often some words come."""
    g = torch.Generator().manual_seed(1)
    words, weight = torch.randint(0, 50, (SAMPLES, T), generator=g), torch.randn(50, CLASSES, generator=g)
    return words, weight[words].sum(1).argmax(1)


def send(codec, matrices, kept, samples, to):
    """Each matrix coded against its sample's message, which moves on; a sample without one sends a keyframe."""
    known = [kept.get(s) for s in samples]
    messages = [kept.setdefault(s, codec.message()) for s in samples]
    coded = [codec.encode(a.contiguous(), m, m_out=after) for a, m, after in zip(matrices, known, messages)]
    dist.send(torch.tensor([[len(body), flags] for body, flags in coded]), to)
    dist.send(torch.frombuffer(bytearray(b"".join(body for body, _ in coded)), dtype=torch.uint8), to)
    return sum(len(body) for body, _ in coded)


def receive(codec, kept, samples, whom):
    """What the other end sent, decoded against this end's messages: the same bits as there."""
    heads, matrices, at = torch.empty(len(samples), 2, dtype=torch.long), torch.empty(len(samples), T, C), 0
    dist.recv(heads, whom)
    bodies = torch.empty(int(heads[:, 0].sum()), dtype=torch.uint8)
    dist.recv(bodies, whom)
    for matrix, s, (size, flags) in zip(matrices, samples, heads.tolist()):
        m = kept.get(s)
        codec.decode(bodies[at:at + size], flags, m, matrix, m_out=kept.setdefault(s, codec.message()))
        at += size
    return matrices


def work(rank, how, meeting):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=2)
    torch.manual_seed(rank)
    forward, backward = (aqsgd.Codec(settings, T, C) for settings in CODECS[how])
    (words, classes), kept, sent, losses = data(), {}, 0, []
    model = (nn.Sequential(nn.Embedding(50, C), nn.Linear(C, C), nn.Tanh()) if rank == 0 else
             nn.Sequential(nn.Linear(C, C), nn.Tanh(), nn.Flatten(), nn.Linear(T * C, CLASSES)))
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    for samples in (b for e in range(EPOCHS) for b in torch.randperm(SAMPLES, generator=torch.Generator().manual_seed(e)).split(BATCH)):
        optimizer.zero_grad()
        if rank == 0:
            out = model(words[samples])
            sent += send(forward, out.detach(), kept, samples.tolist(), 1)
            out.backward(receive(backward, {}, samples.tolist(), 1))
        else:
            hat = receive(forward, kept, samples.tolist(), 0).requires_grad_()
            losses.append(nn.functional.cross_entropy(model(hat), classes[samples]))
            losses[-1].backward()
            send(backward, hat.grad, {}, samples.tolist(), 0)
        optimizer.step()
    digests = [None, None]
    dist.all_gather_object(digests, aqsgd.digest(b"".join(kept[s] for s in sorted(kept))))
    text = f"{sent / EPOCHS / SAMPLES:.0f} bytes a sample and visit" if rank == 0 else f"loss {losses[0]:.3f}, {sum(losses[-8:]) / 8:.3f} in the last epoch"
    print(f"rank {rank}, {forward}: {text}; messages are {'equal' if digests[0] == digests[1] else 'NOT EQUAL'}", flush=True)


if __name__ == "__main__":
    for way in sys.argv[1:] or CODECS:
        with tempfile.TemporaryDirectory() as folder:  # the two meet at a file: a fixed port may be in use
            mp.start_processes(work, (way, f"file://{folder}/meeting"), nprocs=2, start_method="fork")  # torch is imported once
