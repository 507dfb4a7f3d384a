#!/usr/bin/env python3
"""Makes nf4.safetensors: what bitsandbytes makes of a few tensors, on a CPU in one thread. test_frozen compares.

Needs torch, safetensors and bitsandbytes (the file is of bitsandbytes 0.50.2 and torch 2.15.0):
    python tests/golden/nf4_make.py [OUT]
"""
import pathlib
import sys

import bitsandbytes.functional as bnb
import torch
from safetensors.torch import save_file

torch.set_num_threads(1)
generator = torch.Generator().manual_seed(31)


def normal(*shape):
    """Values of fp16, so that the file is small, as fp32."""
    return (torch.randn(shape, generator=generator) * 0.05).half().float()


def cases():
    yield "one", normal(1)
    yield "odd", normal(7, 9)
    yield "group", normal(64)
    yield "group_and_one", normal(65)
    yield "scales_of_eight", normal(8, 64)
    yield "matrix", normal(30, 64)
    zeros = normal(20, 64)
    zeros[3:5] = 0
    zeros[7, ::2] = -0.0
    yield "zeros", zeros
    yield "nothing", torch.zeros(3, 70)
    wide = normal(9, 64)
    wide[2] *= 1e4
    wide[5, 3] = 60000
    yield "outliers", wide
    yield "tiny", normal(2, 65) * 1e-37
    yield "ties", torch.cat([torch.ones(1), (BOUNDS * 1.0), -torch.ones(1), torch.zeros(47)])
    yield "two_rows_of_scales", normal(261 * 64 + 37)


CODE = bnb.get_4bit_type("nf4", device="cpu")
BOUNDS = (CODE[:-1] + CODE[1:]) / 2
out = {"code": CODE}
for name, values in cases():
    half = values.half()
    out[f"{name}.input"] = half if torch.equal(half.float(), values) else values
    for kind, double in (("nf4", False), ("nf4_double", True)):
        packed, state = bnb.quantize_4bit(values, blocksize=64, quant_type="nf4", compress_statistics=double)
        # Flat: the CPU kernel takes wrong scales where a row of 16 n values is no multiple of 64. Blocks are of the flat tensor.
        state.shape = torch.Size([values.numel()])
        if values.numel() % 64:  # the kernel's general path
            padded = torch.nn.functional.pad(packed.flatten(), (0, values.numel() // 64 * 32 + 32 - packed.numel()), value=0x77)
            state.shape = torch.Size([padded.numel() * 2])
            back = bnb.dequantize_4bit(padded.unsqueeze(1), state).flatten()[:values.numel()]
        else:
            back = bnb.dequantize_4bit(packed, state).flatten()
        at = f"{name}.{kind}"
        assert f"{name}.codes" not in out or torch.equal(out[f"{name}.codes"], packed.flatten())
        out[f"{name}.codes"], out[f"{at}.scales"] = packed.flatten().clone(), state.absmax.clone()
        if double:
            out[f"{at}.scales_of_scales"], out[f"{at}.offset"] = state.state2.absmax.clone(), state.offset.reshape(1)
            out["map"] = state.state2.code.clone()
        out[f"{at}.values"] = back if back.numel() < 700 else back[::61].clone()
save_file(out, sys.argv[1] if len(sys.argv) > 1 else str(pathlib.Path(__file__).parent / "nf4.safetensors"))
