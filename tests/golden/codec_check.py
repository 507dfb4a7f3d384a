#!/usr/bin/env python3
"""Decode golden/codec.txt by docs/FORMAT.md alone: a second implementation, to keep the first one and the page honest.

Needs numpy. Prints one line and exits non-zero at the first bit that differs.
"""
import math
import os
import struct
import sys

try:
    import numpy as np
except ImportError:
    print("skipped: no numpy for this python")
    sys.exit(77)

F = np.float32
BITS = {1: 32, 2: 16, 3: 16, 4: 8, 5: 4, 6: 2}
CHANNEL = 16  # added to a store's number: a scale a channel


def codes(data, count, bits):
    stream = int.from_bytes(data[: (count * bits + 7) // 8], "little")
    return [(stream >> (i * bits)) & ((1 << bits) - 1) for i in range(count)]


def plain(data, kind):
    if kind == 1:
        return np.frombuffer(data, "<f4").astype(F)
    if kind == 2:
        return np.frombuffer(data, "<f2").astype(F)
    return (np.frombuffer(data, "<u2").astype(np.uint32) << 16).view(F)


def power(e):
    return F(math.ldexp(1.0, e))


def rise(code, bits, unit):
    return F(2 * (code - (1 << (bits - 1))) + 1) * unit


def message_read(data, kind, rows, cols):
    if kind <= 3:
        return plain(data, kind).reshape(rows, cols)
    bits, groups = BITS[kind % CHANNEL], cols if kind >= CHANNEL else rows
    scales = np.frombuffer(data[: 4 * groups], "<f4")
    c = codes(data[4 * groups :], rows * cols, bits)
    s = [scales[i % cols if kind >= CHANNEL else i // cols] for i in range(rows * cols)]
    return np.array([rise(c[i], bits, s[i] * power(-bits)) for i in range(rows * cols)], F).reshape(rows, cols)


def pack(values, bits):
    stream = sum(v << (i * bits) for i, v in enumerate(values))
    return stream.to_bytes((len(values) * bits + 7) // 8, "little")


def bfloat(x):
    b = x.astype("<f4").view(np.uint32).astype(np.uint64)
    return ((b + 0x7FFF + ((b >> 16) & 1)) >> 16).astype("<u2")


def message_write(x, kind):
    rows, cols = x.shape
    if kind == 1:
        return x.astype("<f4").tobytes()
    if kind == 2:
        return x.astype("<f2").tobytes()
    if kind == 3:
        return bfloat(x).tobytes()
    bits, scales, out = BITS[kind % CHANNEL], b"", []
    half = 1 << (bits - 1)
    for group in x.T if kind >= CHANNEL else x:
        s = np.max(np.abs(group))
        unit = s * power(-bits)
        inverse = F(1) / (F(2) * unit)
        if not np.isfinite(inverse):
            s = inverse = F(0)
        scales += struct.pack("<f", s)
        out.append([int(min(max(np.floor(v * inverse), -half), half - 1)) + half for v in group])
    out = np.array(out).T if kind >= CHANNEL else np.array(out)
    return scales + pack([int(v) for v in out.flatten()], bits)


def scale_read(data, fmt):
    if fmt == 1:
        s = np.frombuffer(data, "<f2").astype(F)
        return np.where(np.signbit(s), -s * F(65536), s)
    if fmt == 2:
        return plain(data, 3)
    if fmt == 3:
        return np.frombuffer(data, "<f4").astype(F)
    return np.array([0 if e == 0 else math.ldexp(1.0, e - 127) for e in data], F)


def unrotate(row, tile):
    at = 0
    while at < len(row):
        n = tile
        while n > len(row) - at:
            n //= 2
        v = [row[at + i] for i in range(n)]
        h = 1
        while h < n:
            for i in range(n):
                if not i & h:
                    v[i], v[i + h] = v[i] + v[i + h], v[i] - v[i + h]
            h *= 2
        scale = F(1.0 / math.sqrt(n))
        row[at : at + n] = [x * scale for x in v]
        at += n


def positions(data, n, k):
    low = (n // k).bit_length() - 1
    low_bytes = (k * low + 7) // 8
    fano = low_bytes + (k + (n >> low) + 1 + 7) // 8
    bitmap = (n + 7) // 8
    if bitmap <= fano:
        flags = codes(data, n, 1)
        return [e for e in range(n) if flags[e]], bitmap
    stream = int.from_bytes(data[:low_bytes], "little")
    high = codes(data[low_bytes:], k + (n >> low) + 1, 1)
    ones = [i for i, bit in enumerate(high) if bit]
    return [((ones[j] - j) << low) | ((stream >> (j * low)) & ((1 << low) - 1)) for j in range(k)], fano


def decode(f, flags, m, body):
    kind, raw, bits, grid, group, tile, fmt, hadamard, topk, prescale, store, keyframe, rows, cols = f
    n = rows * cols
    if flags & 2:
        return message_read(body, 1, rows, cols), m
    if kind == 1:
        return message_read(body, raw, rows, cols), b""
    if flags & 1:
        x = message_read(body, keyframe, rows, cols)
        return x, message_write(x, store)
    tiles = (cols + tile - 1) // tile
    groups = {1: 1, 2: rows, 3: cols, 4: rows * tiles}[group]
    size = {1: 2, 2: 2, 3: 4, 4: 1}[fmt]
    scales = scale_read(body[: groups * size], fmt)
    at, kept = groups * size, list(range(n))
    fraction = struct.unpack("<f", struct.pack("<I", topk & 0xFFFFFFFF))[0]
    if kind == 2 and 0 < fraction < 1:
        k = max(1, math.ceil(fraction * n))
        kept, used = positions(body[at:], n, k)
        at += used
    c = codes(body[at:], len(kept), bits)
    level, half = np.zeros(n, F), 1 << (bits - 1)
    for code, e in zip(c, kept):
        t, col = divmod(e, cols)
        s = scales[{1: 0, 2: t, 3: col, 4: t * tiles + col // tile}[group]]
        if grid == 1:
            level[e] = F(2 * (code - half) + 1) * (s * power(-bits - prescale))
        elif grid == 2:
            level[e] = F(code - half) * (s / F(half - 1) * power(-prescale))
        else:
            level[e] = F(code - half) * (s * power(1 - bits - prescale))
    level = level.reshape(rows, cols)
    if hadamard:
        for row in level:
            unrotate(row, tile)
    if kind == 2:
        return level, b""
    x = message_read(m, store, rows, cols) + level
    return x, message_write(x, store)


def slots_of(weights, escapes):
    """Slots of each symbol, q0 + 8 + 16 (q1 + 8); symbol 0 is the escape."""
    total = (weights[0] + 2 * sum(weights[1:])) ** 2
    slots = {0: escapes}
    for q1 in range(-7, 8):
        for q0 in range(-7, 8):
            product = weights[abs(q0)] * weights[abs(q1)]
            slots[q0 + 8 + 16 * (q1 + 8)] = (product * (4096 - escapes) + total // 2) // total
    slots[136] = max(1, slots[136])
    largest = max((s for s in slots if s), key=lambda s: (slots[s], -s))
    slots[largest] += 4096 - sum(slots.values())
    assert slots[largest] > 0
    return slots


def chunk_read(data, words, escapes, refine, count, slots):
    """(q, cell) of each value of a chunk, and the bytes that it takes."""
    x = list(struct.unpack("<32I", data[:128]))
    word = iter(struct.unpack(f"<{words // 2}H", data[128 : 128 + words]))
    table, first = [], {}
    for symbol in sorted(slots):
        first[symbol] = len(table)
        table += [symbol] * slots[symbol]
    pairs = []
    for p in range((count + 63) // 64 * 32):
        lane = p % 32
        s = x[lane] % 4096
        symbol = table[s]
        pairs.append(symbol)
        x[lane] = x[lane] // 4096 * slots[symbol] + s - first[symbol]
        if x[lane] < 1 << 15:
            x[lane] = x[lane] << 16 | next(word)
    assert x == [1 << 15] * 32 and next(word, None) is None
    at, end, q = 128 + words, 128 + words + escapes, []
    for symbol in pairs:
        for half in range(2):
            if symbol:
                q.append((symbol >> 4 * half & 15) - 8)
                continue
            z, shift = 0, 0
            while True:
                z |= (data[at] & 127) << shift
                at, shift = at + 1, shift + 7
                if data[at - 1] < 128:
                    break
            q.append(-(z + 1) // 2 if z % 2 else z // 2)
    assert at == end
    used = (count + 7) // 8 * refine
    cells = codes(data[end : end + used], count, refine) if refine else [0] * count
    return list(zip(q, cells)), end + used


def philox(key, block):
    """Sixteen bytes of Philox4x32-10."""
    k0, k1, c2, c3 = struct.unpack("<4I", key)
    c0, c1 = block & 0xFFFFFFFF, block >> 32
    for _ in range(10):
        p0, p1 = 0xD2511F53 * c0, 0xCD9E8D57 * c2
        c0, c1, c2, c3 = p1 >> 32 ^ c1 ^ k0, p1 & 0xFFFFFFFF, p0 >> 32 ^ c3 ^ k1, p0 & 0xFFFFFFFF
        k0, k1 = k0 + 0x9E3779B9 & 0xFFFFFFFF, k1 + 0xBB67AE85 & 0xFFFFFFFF
    return struct.pack("<4I", c0, c1, c2, c3)


def mix(x):
    x = (x ^ x >> 16) * 0x21F0AAAD & 0xFFFFFFFF
    x = (x ^ x >> 15) * 0xD35A2D97 & 0xFFFFFFFF
    return x ^ x >> 15


def dither(key, rows, cols, unit):
    """w of each value."""
    words, out = struct.unpack("<4I", philox(key, 0)), []
    for t in range(rows):
        begin, mask = (mix(words[at] ^ mix(words[at + 1] + t & 0xFFFFFFFF)) for at in (0, 2))
        for c in range(cols):
            word = mix(begin + 16 * (c // 64) + c % 16 & 0xFFFFFFFF) ^ mask
            out.append(F(2 * (word >> 8 * (c // 16 % 4) & 255) - 255) * unit)
    return out


def low_rank(body, rows, cols):
    """The product of the factors."""
    rank = struct.unpack("<I", body[:4])[0]
    x = np.zeros((rows, cols), F)
    if rank == 0:
        assert len(body) == 4
        return x
    gains, lines = np.frombuffer(body[4 : 4 + 4 * rank], "<f4"), (rank * (rows + cols) + 63) // 64
    factors, centre = entropy(body[4 + 4 * rank :], lines, 64)
    if centre is not None:
        factors = centre + factors
    factors = factors.reshape(-1)[: rank * (rows + cols)].reshape(rank, rows + cols)
    for i in range(rank):
        x = x + (factors[i, :rows] * gains[i])[:, None] * factors[i, rows:][None, :]
    return x


def entropy(body, rows, cols):
    """x^ of a body that is entropy coded, without its reference; the reference of its own, or None."""
    step = np.frombuffer(body[:4], "<f4")[0]
    level = [F(0), *np.frombuffer(body[4:32], "<f4")]
    slots = slots_of(struct.unpack("<8H", body[32:48]), struct.unpack("<H", body[48:50])[0])
    refine, centred, dithered, common, half = body[50], body[51] & 1, body[51] & 4, body[51] & 8, body[51] >> 4
    each = max(1, 65536 // cols)
    chunks = (rows + each - 1) // each
    at, centre, out = 52 + 8 * chunks, None, []
    if dithered:
        w, at = dither(body[at : at + 16], rows, cols, step * power(-refine - 1) * power(-8 - half)), at + 16
    if centred:
        centre, at = plain(body[at : at + 2 * cols], 2), at + 2 * cols
    if common:
        unit, ks = np.frombuffer(body[at : at + 4], "<f4")[0], codes(body[at + 4 :], cols, 4)
        means, at = [F(2 * k - 15) * unit for k in ks], at + 4 + (cols + 1) // 2
    for k in range(chunks):
        words, escapes = struct.unpack("<2I", body[52 + 8 * k : 60 + 8 * k])
        values, used = chunk_read(body[at:], words, escapes, refine, min(each, rows - k * each) * cols, slots)
        at += used
        for q, cell in values:
            x = level[abs(q)] if abs(q) < 8 else F(abs(q)) * step
            x = -x if q < 0 else x
            if refine:
                x = x + F(2 * cell + 1 - (1 << refine)) * (step * power(-refine - 1))
            x = x - w[len(out)] if dithered else x
            out.append(x + means[len(out) % cols] if common else x)
    assert at == len(body)
    return np.array(out, F).reshape(rows, cols), centre


def decode_entropy(f, flags, m, body):
    rows, cols = f[12:14]
    x, centre = (low_rank(body, rows, cols), None) if f[0] == 6 and flags == 0 else entropy(body, rows, cols)
    if centre is not None:
        x = centre + x
    if flags == 0 and f[10]:
        x = message_read(m, f[10], rows, cols) + x
    return x, message_write(x, f[10]) if f[10] else b""


def main():
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "codec.txt")
    count = 0
    np.seterr(all="ignore")
    for line in open(path, encoding="ascii"):
        words = line.split()
        fields, flags = [int(w) for w in words[1:15]], int(words[15])
        m, body, hat, after = [b"" if w == "-" else bytes.fromhex(w) for w in words[16:20]]
        coded = flags == 0 and fields[0] in (5, 6) or flags == 1 and fields[11] == 7
        x, stored = (decode_entropy if coded else decode)(fields, flags, m, body)
        if x.astype("<f4").tobytes() != hat or stored != after:
            sys.exit(f"{words[0]} decodes to other bits by docs/FORMAT.md")
        count += 1
    print(f"{count} bodies decode to the bits they name")


if __name__ == "__main__":
    main()
