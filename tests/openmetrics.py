"""openmetrics: is a text what OpenMetrics 1.0 says (the rules that an exporter can break)? `read` answers its samples."""
import re

NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\\n]|\\[\\"n])*)"')
SUFFIXES = {"counter": ("_total", "_created"), "gauge": ("",), "info": ("_info",), "stateset": ("",), "unknown": ("",)}


class Broken(Exception):
    """What rule is broken, and where."""


def labels_of(text, where):
    labels, at = {}, 0
    while at < len(text):
        match = LABEL.match(text, at)
        if not match or match[1] in labels:
            raise Broken(f"{where}: a label is broken, or there twice")
        labels[match[1]] = re.sub(r"\\(.)", lambda m: {"n": "\n"}.get(m[1], m[1]), match[2])
        at = match.end()
        if at < len(text):
            if text[at] != "," or at + 1 == len(text):
                raise Broken(f"{where}: labels are parted by one comma")
            at += 1
    return labels


def sample(line, family, kind, where):
    match = re.fullmatch(r"([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(.*)\})? (\S+)(?: (\S+))?", line)
    if not match:
        raise Broken(f"{where}: no sample")
    name, labels = match[1], labels_of(match[2] or "", where)
    if family is None or name not in [family + suffix for suffix in SUFFIXES[kind]]:
        raise Broken(f"{where}: not of the family {family} ({kind})")
    value = float(match[3])
    if kind == "counter" and not value >= 0:
        raise Broken(f"{where}: a counter below 0")
    if kind == "info" and value != 1:
        raise Broken(f"{where}: an info is 1")
    if kind == "stateset" and (family not in labels or value not in (0, 1)):
        raise Broken(f"{where}: a state has a label of the family's name, and is 0 or 1")
    return name, labels, value


def read(text):
    """{(name, labels): value}, labels as a sorted tuple of pairs."""
    if not text.endswith("# EOF\n"):
        raise Broken("the last line is not # EOF")
    samples, family, kind, said, families = {}, None, None, set(), set()
    for number, line in enumerate(text.split("\n")[:-2], 1):
        where = f"line {number} ({line[:80]})"
        if line.startswith("# "):
            word, name, rest = (line[2:].split(" ", 2) + ["", ""])[:3]
            if word not in ("TYPE", "HELP", "UNIT") or not NAME.fullmatch(name):
                raise Broken(f"{where}: no metadata")
            if name != family:
                if name in families:
                    raise Broken(f"{where}: families come whole")
                family, kind, said = name, "unknown", set()
                families.add(name)
            if word in said or any(key[0].startswith(name) and key[0][len(name):] in SUFFIXES[kind] for key in samples):
                raise Broken(f"{where}: metadata comes once, before the samples")
            said.add(word)
            if word == "TYPE":
                kind = rest
                if kind not in SUFFIXES:
                    raise Broken(f"{where}: no type")
                if kind != "unknown" and name.endswith(tuple(filter(None, SUFFIXES[kind]))):
                    raise Broken(f"{where}: a family's name has no suffix of its type")
            if word == "HELP" and re.search(r"\\(?![\\n\"])", rest):
                raise Broken(f"{where}: a backslash that escapes nothing")
        else:
            name, labels, value = sample(line, family, kind, where)
            key = (name, tuple(sorted(labels.items())))
            if key in samples:
                raise Broken(f"{where}: there twice")
            samples[key] = value
    return samples
