"""Text: what split-audit tries on the activations and gradients of tokens. A row of a matrix is a token's."""
import json
import pathlib
import struct

import numpy as np

TOKEN_GAIN, ROWS, CODES, CLASSES = 0.15, 6000, 2048, 10
FLOATS = {"F32": "<f4", "F16": "<f2", "BF16": "<u2"}


def tokens_of(audit, path):
    """Bytes; or int32, little-endian, of a file whose name ends in .i32."""
    try:
        data = pathlib.Path(path).read_bytes()
    except OSError as error:
        audit.fail(f"{path}: {error.strerror}")
    if str(path).endswith(".i32") and len(data) % 4 == 0:
        return np.frombuffer(data, "<i4").astype(np.int64)
    return np.frombuffer(data, np.uint8).astype(np.int64)


def blocks_of(audit, path, T):
    """(samples, T + 1): the last token of each is the target of the one before it."""
    tokens = tokens_of(audit, path)
    count = (len(tokens) - 1) // T
    if T < 2 or count < 1:
        audit.fail(f"{path}: {len(tokens)} tokens make no block of {T} and one more")
    return np.stack([tokens[i * T:i * T + T + 1] for i in range(count)])


def make(audit, train, others, out):
    count = min(len(train), len(others), audit.CANDIDATES)
    picked = [blocks[np.arange(count) * len(blocks) // count, :-1] for blocks in (train, others)]
    tokens = np.append(np.stack(picked, 1).ravel(), picked[1][-1, -1])
    out.write_bytes(tokens.astype("<i4" if out.suffix == ".i32" else np.uint8).tobytes())
    print(f"{out}: {count} blocks of the training data, and as many others")


def embedding(audit, path, columns, vocabulary):
    """The table of tokens in a safetensors file: the first that has a row for each token, as wide as the cut."""
    try:
        with open(path, "rb") as file:
            size = struct.unpack("<Q", file.read(8))[0]
            head = json.loads(file.read(min(size, 1 << 27)))
            for name, about in sorted(head.items(), key=lambda item: "emb" not in item[0] and "wte" not in item[0]):
                shape = about.get("shape", [])
                if len(shape) != 2 or shape[1] != columns or shape[0] < vocabulary or about.get("dtype") not in FLOATS:
                    continue
                file.seek(8 + size + about["data_offsets"][0])
                raw = np.frombuffer(file.read(about["data_offsets"][1] - about["data_offsets"][0]), FLOATS[about["dtype"]])
                values = (raw.astype("<u4") << 16).view("<f4") if about["dtype"] == "BF16" else raw.astype(np.float32)
                return values.reshape(shape)
    except (OSError, ValueError, KeyError, struct.error) as error:
        audit.fail(f"{path}: no safetensors file: {error}")
    audit.fail(f"{path}: no table of {vocabulary} tokens or more and {columns} columns")
    return None


def gain(guess, truth):
    """How much of what the most frequent token leaves: 0 is to say that one always, 1 is every token."""
    most = np.unique(truth, return_counts=True)[1].max() / len(truth)
    return float(((guess == truth).mean() - most) / max(1 - most, 1e-9))


def unit(rows):
    return rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-30)


def nearest(matrices, table):
    """Of each row the token whose embedding has its direction; what a place adds in all samples is taken off."""
    rows = (matrices - matrices.mean(0)).reshape(-1, matrices.shape[2])
    codes = unit(table - table.mean(0)).T
    return np.concatenate([(unit(rows[at:at + 512]) @ codes).argmax(1) for at in range(0, len(rows), 512)])


def decoder(known, tokens, asked):
    """Ridge regression to one-hot tokens, those of `tokens` that are most; its weight is chosen on a quarter that is left out."""
    names, counts = np.unique(tokens, return_counts=True)
    names = names[np.argsort(-counts)[:CODES]]
    centre, scale = known.mean(0), known.std(0) + 1e-12
    own, wanted = (known - centre) / scale, (tokens[:, None] == names[None]).astype(np.float64)
    mean, cut, best = wanted.mean(0), 3 * len(known) // 4, None

    def fits(rows, targets):
        gram, products = rows.T @ rows, rows.T @ (targets - mean)
        return lambda ridge: np.linalg.solve(gram + ridge * max(np.trace(gram) / len(gram), 1e-30) * np.eye(len(gram)), products)
    fit = fits(own[:cut], wanted[:cut])
    for power in range(-5, 2):
        guess = names[(own[cut:] @ fit(10.0 ** power) + mean).argmax(1)]
        right = (guess == tokens[cut:]).mean()
        if best is None or right > best[0]:
            best = right, 10.0 ** power
    return names[((asked - centre) / scale @ fits(own, wanted)(best[1]) + mean).argmax(1)]


def matrices(seen, kind, samples):
    rows, columns = seen.shapes[kind]
    return seen.newest(kind, samples).reshape(len(samples), rows, columns).astype(np.float64)


def token_attacks(audit, seen, train, candidates, members, weights, draw):
    T = train.shape[1] - 1
    shown = {candidates[s].tobytes() for s in seen.of[audit.HELDOUT] if s < len(candidates)}
    asked = [s for s in sorted(seen.of[audit.ACTIVATION]) if s < len(train) and train[s, :-1].tobytes() not in shown][:ROWS // T]
    others = [s for s in sorted(seen.of[audit.HELDOUT]) if s < len(candidates) and not members[s]][:ROWS // T]
    if len(asked) * T < 10 * audit.LEAST or len(others) * T < 10 * audit.LEAST or seen.shapes[audit.ACTIVATION][0] != T:
        audit.fail(f"{len(asked)} training blocks that are no candidates and {len(others)} held-out ones that were not trained on, of "
                   f"{seen.shapes[audit.ACTIVATION][0]} rows: an audit needs {10 * audit.LEAST} rows of each (--make), and --text is train.T")
    sent, truth = matrices(seen, audit.ACTIVATION, asked), train[asked, :-1].ravel()
    if weights:
        table = embedding(audit, weights, sent.shape[2], int(max(train.max(), candidates.max())) + 1)
        marked = table[truth].reshape(sent.shape)
        marked = marked + draw.standard_normal(sent.shape) * marked.std() / 2
        yield ("nearest-token", "gain", gain(nearest(sent, table), truth), TOKEN_GAIN, gain(nearest(marked, table), truth),
               gain(nearest(sent, table), draw.permutation(truth)), f"{len(truth)} tokens, a table of {len(table)}")
    known, words = matrices(seen, audit.HELDOUT, others).reshape(-1, sent.shape[2]), candidates[others, :-1].ravel()
    rows = sent.reshape(-1, sent.shape[2])
    codes = draw.standard_normal((int(max(truth.max(), words.max())) + 1, sent.shape[2]))
    yield ("token-decoder", "gain", gain(decoder(known, words, rows), truth), TOKEN_GAIN, gain(decoder(codes[words], words, codes[truth]), truth),
           gain(decoder(known, draw.permutation(words), rows), truth), f"decoder of {len(words)} tokens, tried on {len(truth)}")


def label_attacks(audit, seen, train, draw):
    """The label of a row is the token that comes next; the classes are those that are most frequent."""
    T, (rows, columns) = train.shape[1] - 1, seen.shapes.get(audit.GRADIENT, (0, 0))
    samples = [s for s in sorted(seen.of[audit.GRADIENT]) if s < len(train)]
    if rows != T or not samples:
        audit.fail(f"gradients of {rows} rows, of {len(samples)} samples: --text is train.T")
    labels = train[samples, 1:].ravel()
    names, counts = np.unique(labels, return_counts=True)
    classes = names[np.argsort(-counts)][:CLASSES]
    classes = [c for c in classes if (labels == c).sum() >= 3 * audit.PER_CLASS]
    kept = np.flatnonzero(np.isin(labels, classes))
    kept = np.sort(draw.permutation(kept)[:ROWS // 2])
    if len(kept) < audit.LEAST or len(classes) < 2:
        audit.fail(f"{len(kept)} rows of {len(classes)} frequent tokens: an audit needs {audit.LEAST}, of 2")
    count = min(len(seen.of[audit.GRADIENT][s]) for s in samples)
    visits = [np.concatenate([seen.of[audit.GRADIENT][s][v][1].reshape(rows, columns) for s in samples])[kept] for v in range(-count, 0)]
    numbers = np.searchsorted(np.sort(classes), labels[kept])
    yield from audit.label_tries(visits, numbers, list(range(len(classes))), draw, f"{len(kept)} tokens of {len(classes)}, {count} visits")


def attacks(audit, seen, train, candidates, weights, draw):
    trained = {block[:-1].tobytes() for block in train}
    members = np.array([block[:-1].tobytes() in trained for block in candidates])
    yield from label_attacks(audit, seen, train, draw)
    yield from token_attacks(audit, seen, train, candidates, members, weights, draw)
    yield audit.member_attack(seen, candidates, members, draw)
