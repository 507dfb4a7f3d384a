"""A communication hook for torch.nn.parallel.DistributedDataParallel: gradients travel compressed, with error feedback.

    model = DistributedDataParallel(model)
    state = aqsgd.ddp.State("q4")
    model.register_comm_hook(state, aqsgd.ddp.hook)

Every rank sends its bucket's bytes to all others and takes the mean of what all sent, its own among them as the others decode it: the
same bits everywhere. That is (W - 1) bodies in and out a rank: for two ranks, and for a few. Of many ranks `aqpipe` itself reduces in
chunks (docs/GUIDE.md).
"""
import torch
import torch.distributed as dist

import aqsgd


class State:
    """name: a gradient compressor. group: None is all ranks."""

    def __init__(self, name, group=None):
        self.name, self.group, self.step = name, group, 0
        self.bytes, self.raw_bytes = 0, 0  # sent by this rank, and what fp32 would have had
        self._buckets = {}

    def bucket(self, index, counts):
        """Compressor and error of a bucket; DDP makes its buckets anew after the first step."""
        known = self._buckets.get(index)
        if known is None or known[0] != counts:
            codec = aqsgd.Gradient(self.name, counts)
            known = self._buckets[index] = (counts, codec, torch.zeros(codec.count))
        return known[1], known[2]


def hook(state, bucket):
    flat = bucket.buffer()
    codec, error = state.bucket(bucket.index(), [p.numel() for p in bucket.parameters()])
    ranks = dist.get_world_size(state.group)
    mine = torch.empty(codec.bytes, dtype=torch.uint8)
    codec.encode(flat, mine, error, state.step)
    bodies = [torch.empty_like(mine) for _ in range(ranks)]
    if bucket.is_last():
        state.step += 1
    state.bytes += (ranks - 1) * codec.bytes
    state.raw_bytes += (ranks - 1) * 4 * codec.count

    def mean(_):
        for rank, body in enumerate(bodies):
            codec.decode(body, flat, 1.0 / ranks, add=rank > 0)
        return flat

    return dist.all_gather(bodies, mine, group=state.group, async_op=True).get_future().then(mean)
