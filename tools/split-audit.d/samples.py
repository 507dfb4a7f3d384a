"""The samples of a client as its job reads them: the file of `aqpipe split-client --samples` (docs/FORMAT.md, "Samples of a client").

Conversations, tables, plain text: a row of a matrix is a token's. A packed sample has several conversations, which do not see each other; each of them is taken as a sample.
Images: pixel values and a label.
"""
import csv
import io
import pathlib
import struct

import numpy as np

MAGIC, HEAD = b"aqpipe samples 1", struct.Struct("<IIIIQ")
TOKENS, TARGETS, LABELS, SCORES, IMAGES, PARTS = range(1, 7)


class Samples:
    """of[heldout][what]: {place: values}."""

    def __init__(self, audit, path):
        try:
            data = memoryview(pathlib.Path(path).read_bytes())
        except OSError as error:
            audit.fail(f"{path}: {error.strerror}")
        if bytes(data[:16]) != MAGIC:
            audit.fail(f"{path}: is not a file of `aqpipe split-client --samples` (docs/FORMAT.md)")
        self.audit, self.path, self.of, at = audit, path, ({}, {}), 16
        while at < len(data):
            what, count, heldout, zero, place = HEAD.unpack_from(data, at) if at + HEAD.size <= len(data) else (0, 0, 0, 0, 0)
            end = at + HEAD.size + 4 * count
            if not TOKENS <= what <= PARTS or heldout > 1 or zero or end > len(data):
                audit.fail(f"{path}: no record at byte {at}: it was cut short, or is damaged; write it again")
            values = np.frombuffer(data, "<f4" if what in (SCORES, IMAGES) else "<i4", count, at + HEAD.size)
            if self.of[heldout].setdefault(what, {}).setdefault(place, values) is not values:
                audit.fail(f"{path}: at byte {at} sample {place} a second time")
            at = end
        if not self.of[0]:
            audit.fail(f"{path}: has no samples")
        for part in self.of:
            counts = {len(each) for each in part.values()}
            if len(counts) > 1 or any(set(each) != set(range(len(each))) for each in part.values()):
                audit.fail(f"{path}: a sample has no values of its own kind: it was cut short, or is damaged; write it again")

    def values(self, heldout, what):
        """In the order of places."""
        of = self.of[heldout].get(what, {})
        return [of[place] for place in range(len(of))]

    @property
    def has_images(self):
        return IMAGES in self.of[0]

    def images(self, heldout):
        return Images(self.audit, self.path, self.values(heldout, IMAGES), self.values(heldout, LABELS))

    def parts(self, heldout):
        """Of each packed sample how many tokens each of its conversations has; None: samples are not packed."""
        parts = self.values(heldout, PARTS)
        for tokens, each in zip(self.values(heldout, TOKENS), parts):
            if each.sum() != len(tokens) or each.min(initial=1) < 1:
                self.audit.fail(f"{self.path}: a sample of {len(tokens)} tokens has parts of {each.sum()}")
        return parts or None

    def texts(self, heldout, text):
        """text: the module of that name. Labels of a row: the next token, -1 where it is not learnt."""
        tokens, labels = self.values(heldout, TOKENS), self.values(heldout, LABELS)
        if not tokens or SCORES in self.of[heldout]:
            self.audit.fail(f"{self.path}: has no {'held-out ' if heldout else ''}texts with classes or next tokens")
        ids = [each.astype(np.int64) for each in tokens]
        if labels:
            return text.Texts(ids, np.array([int(each[0]) for each in labels]))
        rows, parts = [each.astype(np.int64) for each in self.values(heldout, TARGETS)], self.parts(heldout)
        if any(len(a) != len(b) for a, b in zip(ids, rows)):
            self.audit.fail(f"{self.path}: a sample has not as many targets as tokens")
        return text.Texts(cut(ids, parts), cut(rows, parts)) if parts else text.Texts(ids, rows)


def cut(values, parts):
    """Of each sample its parts' values; parts of all samples are numbered one behind the other."""
    return [piece for each, lengths in zip(values, parts) for piece in np.split(each, np.cumsum(lengths)[:-1])]


def unpack(audit, seen, samples):
    """Puts each conversation of a packed sample in its place: the matrices of `seen` become those of conversations."""
    for kind, heldout in ((audit.ACTIVATION, 0), (audit.GRADIENT, 0), (audit.HELDOUT, 1)):
        parts, of = samples.parts(heldout), {}
        if not parts:
            continue
        first = np.concatenate([[0], np.cumsum([len(each) for each in parts])])
        for sample, visits in seen.of[kind].items():
            if sample >= len(parts):
                continue
            for step, values, view in visits:
                rows = values.reshape(-1, seen.columns[kind])
                if len(rows) != parts[sample].sum():
                    audit.fail(f"sample {sample} has {len(rows)} rows, and {parts[sample].sum()} tokens in {samples.path}: "
                               "both are of one job")
                for i, piece in enumerate(np.split(rows, np.cumsum(parts[sample])[:-1])):
                    of.setdefault(int(first[sample]) + i, []).append((step, piece.ravel(), view))
        seen.of[kind] = of


class Images:
    """What the attacks on images ask: labels, keys (equal ones are one image), pixels."""

    def __init__(self, audit, path, images, labels):
        if not images or len({len(each) for each in images}) != 1 or len(labels) != len(images):
            audit.fail(f"{path}: has no images of one size with labels; are there held-out ones?")
        self.images, self.labels = images, np.array([int(each[0]) for each in labels])
        self.keys, self.side = [each.tobytes() for each in images], audit.part("views").side_of(len(images[0]), 3)

    def __len__(self):
        return len(self.images)

    def pixels(self, samples):
        return np.stack([self.images[s] for s in samples]).astype(np.float64)


# ---- candidates ----

def lines_of(audit, path):
    try:
        data = pathlib.Path(path).read_bytes()
    except OSError as error:
        audit.fail(f"{path}: {error.strerror}")
    lines = [line for line in data.removeprefix(b"\xef\xbb\xbf").splitlines() if line.strip()]
    if not lines or data[:2] == b"\x1f\x8b" or lines[0].strip()[:1] != b"{":
        audit.fail(f"{path}: is no file of JSON lines: --make reads a conversation a line, not packed")
    return lines


def make_lines(audit, train, others, out):
    """A conversation a line: members and others in turns."""
    rows = [lines_of(audit, path) for path in (train, others)]
    count = audit.candidates_of(*rows)
    picked = [[of[i * len(of) // count] for i in range(count)] for of in rows]
    out.write_bytes(b"".join(line + b"\n" for pair in zip(*picked) for line in pair))
    print(f"{out}: {count} conversations of the training data, and as many others")


def table_of(audit, path):
    """Rows (file, label) of a CSV of images."""
    try:
        rows = list(csv.DictReader(io.StringIO(pathlib.Path(path).read_text(encoding="utf-8-sig"))))
    except (OSError, UnicodeDecodeError) as error:
        audit.fail(f"{path}: {error}")
    if not rows or not {"file", "label"} <= set(rows[0]):
        audit.fail(f"{path}:1: --make reads a CSV with the columns file and label")
    return [(pathlib.Path(path).parent / row["file"], row["label"]) for row in rows]


def make_images(audit, train, others, out):
    """A table of members and others in turns, next to which (or below which) the images lie."""
    rows, place = [table_of(audit, path) for path in (train, others)], out.resolve().parent
    count = audit.candidates_of(*rows)
    picked = [[of[i * len(of) // count] for i in range(count)] for of in rows]
    with out.open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file)
        table.writerow(("file", "label"))
        for image, label in (row for pair in zip(*picked) for row in pair):
            if place not in image.resolve().parents:
                audit.fail(f"{image}: is not below {place}: a table names files of its own folder (docs/DATA.md); write OUT where both tables' images are below it")
            table.writerow((image.resolve().relative_to(place), label))
    print(f"{out}: {count} images of the training data, and as many others")
