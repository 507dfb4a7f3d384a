"""Text: what split-audit tries on the activations and gradients of tokens. A row of a matrix is a token's.

Plain text is cut into blocks of T tokens, and the label of a row is the next token. Of a table (a file .tsv) each row is a sample of its own length,
of at most T tokens, with one label. known.py is what an attacker makes who has the weights.
"""
import json
import pathlib
import re
import struct

import numpy as np

TOKEN_GAIN, LENGTH_R2, ROWS, CODES, CLASSES = 0.15, 0.25, 6000, 2048, 10
FLOATS = {"F32": "<f4", "F16": "<f2", "BF16": "<u2"}


class Texts:
    """ids: of each sample its tokens, as many as its matrices have rows; labels: of each sample one per row (plain text, conversations: the next token, -1: not learnt) or one (a table).

    names: of a table whose labels are no numbers, what each label's number stands for in this file."""

    def __init__(self, ids, labels, names=None):
        self.ids, self.labels, self.names = ids, labels, names
        self.keys = [each.tobytes() for each in ids]

    def __len__(self):
        return len(self.ids)

    @property
    def tokens(self):
        return max(int(each.max()) for each in self.ids) + 1


def bytes_of(audit, path):
    try:
        return pathlib.Path(path).read_bytes()
    except OSError as error:
        audit.fail(f"{path}: {error.strerror}")
    return b""


def tokenizer_of(audit, folder, T):
    """A function from a text to its first T ids: bytes, or those of FOLDER/tokenizer.json, special tokens around it included."""
    if not folder:
        return lambda text: list(text.encode())[:T]
    try:
        from tokenizers import Tokenizer
    except ImportError:
        print("split-audit: --tokenizer needs the package tokenizers, which is not there", file=audit.sys.stderr)
        audit.sys.exit(77)
    place = pathlib.Path(folder) / "tokenizer.json"
    try:
        made = Tokenizer.from_file(str(place))
    except Exception as error:  # the package raises this class itself
        audit.fail(f"{place}: {error}")
    made.enable_truncation(T)
    made.no_padding()
    return lambda text: made.encode(text).ids


def table_of(audit, path, T, tokenizer, columns):
    lines = bytes_of(audit, path).decode("utf-8", "replace").split("\n")  # not splitlines(): U+2028 ends no row
    lines = [line.rstrip("\r") for line in lines]
    names = lines[0].split("\t")
    if any(column not in names for column in columns):
        audit.fail(f"{path}:1: columns are {', '.join(names)[:200]}, and --columns {','.join(columns)}")
    encode, text, label = tokenizer_of(audit, tokenizer, T), *(names.index(column) for column in columns)
    rows = [line.split("\t") for line in lines[1:] if line]
    if not rows or any(len(row) != len(names) for row in rows):
        audit.fail(f"{path}: no rows, or a row without {len(names)} fields")
    ids = [np.array(encode(row[text]), np.int64) for row in rows]
    if all(re.fullmatch("[0-9]{1,9}", row[label]) for row in rows):
        return Texts(ids, np.array([int(row[label]) for row in rows]))
    kinds = sorted({row[label] for row in rows})
    return Texts(ids, np.array([kinds.index(row[label]) for row in rows]), kinds)


def read(audit, path, asked):
    if str(path).endswith(".tsv"):
        return table_of(audit, path, asked.text, asked.tokenizer, asked.columns.split(","))
    data, T = bytes_of(audit, path), asked.text
    tokens = np.frombuffer(data, "<i4" if str(path).endswith(".i32") and len(data) % 4 == 0 else np.uint8).astype(np.int64)
    count = (len(tokens) - 1) // T
    if T < 2 or count < 1:
        audit.fail(f"{path}: {len(tokens)} tokens make no block of {T} and one more")
    blocks = [tokens[i * T:i * T + T + 1] for i in range(count)]
    return Texts([block[:-1] for block in blocks], [block[1:] for block in blocks])


def make(audit, asked, train, others, out):
    """Members and others in turns. Of a table: its lines."""
    count = audit.candidates_of(train, others)
    picked = [np.arange(count) * len(texts) // count for texts in (train, others)]
    if out.suffix == ".tsv":
        lines = [[line for line in bytes_of(audit, path).split(b"\n") if line] for path in (asked.data, asked.make[0])]
        if lines[0][0] != lines[1][0]:
            audit.fail(f"{asked.make[0]}:1: other columns than {asked.data}")
        rows = [of[1 + i] for pair in zip(*picked) for of, i in zip(lines, pair)]
        out.write_bytes(b"\n".join([lines[0][0], *rows]) + b"\n")
    else:
        ids = [texts.ids[i] for pair in zip(*picked) for texts, i in zip((train, others), pair)]
        tokens = np.append(np.concatenate(ids), ids[-1][-1])
        out.write_bytes(tokens.astype("<i4" if out.suffix == ".i32" else np.uint8).tobytes())
    print(f"{out}: {count} samples of the training data, and as many others")


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
    """How much of what the most frequent token leaves: 0 is to guess that one always, 1 is every token."""
    most = np.unique(truth, return_counts=True)[1].max() / len(truth)
    return float(((guess == truth).mean() - most) / max(1 - most, 1e-9))


def unit(rows):
    return rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-30)


def centred(matrices):
    """Rows of all samples, without what a place adds in all samples that have it."""
    longest = max(map(len, matrices))
    sums, counts = np.zeros((longest, matrices[0].shape[1])), np.zeros((longest, 1))
    for each in matrices:
        sums[:len(each)] += each
        counts[:len(each)] += 1
    mean = sums / np.maximum(counts, 1)
    mean[counts[:, 0] < 8] = sums.sum(0) / counts.sum()  # too few to tell a place from a sample
    return np.concatenate([each - mean[:len(each)] for each in matrices])


def nearest(rows, table):
    """Of each row the token whose vector has its direction."""
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


def matrices(audit, seen, kind, samples, texts):
    """Of each sample its matrix, a row per token."""
    out = [seen.of[kind][sample][-1][1].reshape(-1, seen.columns[kind]).astype(np.float64) for sample in samples]
    for sample, each in zip(samples, out):
        tokens = len(texts.ids[sample])
        if len(each) < tokens if seen.padded else len(each) != tokens:
            audit.fail(f"sample {sample} has {len(each)} rows, and {tokens} tokens here: --text is train.T, --tokenizer the job's, --samples of the same job")
    return out


def tokens_of(matrices, samples, texts):
    """Which rows of all these matrices are of a token; the others are padding (split.pad), which is no text, and nobody has read any of it."""
    return np.concatenate([np.arange(len(each)) < len(texts.ids[sample]) for sample, each in zip(samples, matrices)])


def some(samples, texts, rows):
    """The first of them, until they have that many rows."""
    out, total = [], 0
    for sample in samples:
        if total >= rows:
            break
        out.append(sample)
        total += len(texts.ids[sample])
    return out, total


def token_attacks(audit, seen, train, candidates, members, asked, known, draw):
    shown = {candidates.keys[s] for s in seen.of[audit.HELDOUT] if s < len(candidates)}
    tried, rows_tried = some([s for s in sorted(seen.of[audit.ACTIVATION]) if s < len(train) and train.keys[s] not in shown], train, ROWS)
    others, rows_others = some([s for s in sorted(seen.of[audit.HELDOUT]) if s < len(candidates) and not members[s]], candidates, ROWS)
    if min(rows_tried, rows_others) < 5 * audit.LEAST:
        audit.fail(f"{rows_tried} rows of training samples that are no candidates and {rows_others} of held-out ones that were not trained on: an audit "
                   f"needs {5 * audit.LEAST} of each (--make)")
    sent, truth = matrices(audit, seen, audit.ACTIVATION, tried, train), np.concatenate([train.ids[s] for s in tried])
    own = tokens_of(sent, tried, train)
    rows, columns, vocabulary = np.concatenate(sent)[own], seen.columns[audit.ACTIVATION], max(train.tokens, candidates.tokens)
    of = f"{len(truth)} tokens"

    def by_table(table, random_table=None):
        marked = table[truth] + draw.standard_normal(rows.shape) * table.std() / 2
        direct, shuffled = centred(sent)[own], draw.permutation(truth)
        untrained = None if random_table is None else gain(nearest(direct, random_table), truth)
        return (gain(nearest(direct, table), truth), TOKEN_GAIN, gain(nearest(marked, table), truth), gain(nearest(direct, table), shuffled),
                f"{of}, a table of {len(table)}", untrained)
    if asked.weights:
        yield ("nearest-token", "gain", *by_table(embedding(audit, asked.weights, columns, vocabulary)))
    if known:
        yield ("nearest-layer", "gain", *by_table(known.table(vocabulary), known.table(vocabulary, untrained=True)))
    held = matrices(audit, seen, audit.HELDOUT, others, candidates)
    inputs, words = np.concatenate(held)[tokens_of(held, others, candidates)], np.concatenate([candidates.ids[s] for s in others])
    codes = draw.standard_normal((vocabulary, columns))
    yield ("token-decoder", "gain", gain(decoder(inputs, words, rows), truth), TOKEN_GAIN, gain(decoder(codes[words], words, codes[truth]), truth),
           gain(decoder(inputs, draw.permutation(words), rows), truth), f"decoder of {len(words)} tokens, tried on {len(truth)}")
    if known:
        yield ("learned-decoder", "gain", *known.decoder_attack(sent, own, truth, TOKEN_GAIN, gain, draw))


def label_attacks(audit, seen, train, draw):
    """Of plain text the label of a row is the next token, and classes are the most frequent ones. Of a table it is the sample's; its rows are added."""
    samples = [s for s in sorted(seen.of[audit.GRADIENT]) if s < len(train)]
    if not samples:
        audit.fail("no gradients of samples of --data")
    count, columns = min(len(seen.of[audit.GRADIENT][s]) for s in samples), seen.columns[audit.GRADIENT]
    table = isinstance(train.labels, np.ndarray)

    def visit(v):
        of = [seen.of[audit.GRADIENT][s][v][1].reshape(-1, columns) for s in samples]
        if table:
            return np.stack([each.sum(0) for each in of])  # padding is in it: the server does not know which rows are
        return np.concatenate(of)[tokens_of(of, samples, train)] if seen.padded else np.concatenate(of)
    labels = train.labels[samples] if table else np.concatenate([train.labels[s] for s in samples])
    visits = [visit(v) for v in range(-count, 0)]
    if len(visits[0]) != len(labels):
        audit.fail(f"gradients of {len(visits[0])} rows, and {len(labels)} tokens here: --text is train.T, --samples of the same job")
    names, counts = np.unique(labels[labels >= 0], return_counts=True)
    classes = [c for c in names[np.argsort(-counts)][:CLASSES] if (labels == c).sum() >= 3 * audit.PER_CLASS]
    kept = np.flatnonzero(np.isin(labels, classes))
    kept = np.sort(draw.permutation(kept)[:ROWS // 2])
    if len(kept) < audit.LEAST or len(classes) < 2:
        audit.fail(f"{len(kept)} rows of {len(classes)} frequent labels: an audit needs {audit.LEAST}, of 2")
    numbers = np.searchsorted(np.sort(classes), labels[kept])
    yield from audit.label_tries([of[kept] for of in visits], numbers, list(range(len(classes))), draw,
                                 f"{len(kept)} {'samples' if table else 'tokens'} of {len(classes)} classes, {count} visits")


def length_attack(audit, seen, train, draw):
    """Of padded samples: the last row whose gradient is not zero. Figure: the square of the correlation with the length."""
    samples, columns = [s for s in sorted(seen.of[audit.GRADIENT]) if s < len(train)], seen.columns[audit.GRADIENT]
    lengths = np.array([len(train.ids[s]) for s in samples])

    def correlation(rows, truth):
        """rows: (sample, row), which are not zero."""
        guess = (rows.shape[1] - rows[:, ::-1].argmax(1)) * rows.any(1)
        return float(np.corrcoef(guess, truth)[0, 1] ** 2) if guess.std() and truth.std() else 0.0
    if len(samples) < audit.LEAST:
        audit.fail(f"{len(samples)} samples with gradients: an audit needs {audit.LEAST}")
    rows = np.stack([np.any([visit[1].reshape(-1, columns).any(1) for visit in seen.of[audit.GRADIENT][s]], 0) for s in samples])
    leak = np.arange(rows.shape[1]) < lengths[:, None]
    return ("padding-zeros", "r2", correlation(rows, lengths), LENGTH_R2, correlation(leak, lengths), correlation(rows, draw.permutation(lengths)), f"{len(samples)} samples of {rows.shape[1]} rows")


def attacks(audit, seen, train, candidates, asked, known, draw):
    trained = set(train.keys)
    members = np.array([key in trained for key in candidates.keys])
    yield from label_attacks(audit, seen, train, draw)
    yield from token_attacks(audit, seen, train, candidates, members, asked, known, draw)
    yield audit.member_attack(seen, candidates, members, draw)
    if seen.padded and len({len(ids) for ids in train.ids}) > 1:
        yield length_attack(audit, seen, train, draw)
    if known and known.judges(audit, candidates):
        yield known.member_attack(audit, seen, candidates, members, draw)
