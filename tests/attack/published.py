#!/usr/bin/env python3
"""Attacks by what a person downloads or is given: model folders, tokenizers, data, run folders with FIFOs in them, names with escapes."""
import itertools
import json
import os
import pathlib
import pty
import re
import resource
import shutil
import struct
import subprocess

import kit
from kit import attack, jobs

PATIENCE = 600  # by the clock: a busy machine gives little of its processors
GB = 1 << 30


def spent():
    """CPU seconds of those that have ended: a busy machine is no hang."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def run_aqpipe(*arguments, memory=8 * GB, terminal=False):
    """(exit code or None, output, seconds of CPU); never longer than PATIENCE, in so much address space."""
    begin, out = spent(), {}
    if terminal:
        master, slave = pty.openpty()
        out = {"stdout": slave, "stderr": slave}
    process = subprocess.Popen([str(jobs.BIN / "aqpipe"), *map(str, arguments)], stdin=subprocess.DEVNULL,
                               preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (memory, memory)), cwd=jobs.ROOT,
                               **(out or {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}))
    said = b""
    try:
        if terminal:
            os.close(slave)
            process.wait(PATIENCE)
            try:
                while piece := os.read(master, 65536):
                    said += piece
            except OSError:
                pass
            os.close(master)
        else:
            said, _ = process.communicate(timeout=PATIENCE)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        return None, "", spent() - begin
    return process.returncode, said.decode(errors="replace"), spent() - begin


# ---- tokenizers ----

def byte_names():
    """How byte-level vocabularies write their bytes."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = itertools.count(256)
    return {byte: chr(byte) if byte in plain else chr(next(others)) for byte in range(256)}


def tokenizer(name, **head):
    folder = jobs.ROOT / name
    folder.mkdir()
    vocab = {text: byte for byte, text in byte_names().items()}
    steps = {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False}
    whole = {"pre_tokenizer": steps, **head, "model": {"type": "BPE", "vocab": vocab, "merges": []}}
    (folder / "tokenizer.json").write_text(json.dumps(whole))
    return folder


def replace(pattern, content, kind="String"):
    return {"type": "Replace", "pattern": {kind: pattern}, "content": content}


def split(regex):
    return {"type": "Sequence", "pretokenizers": [{"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated", "invert": False},
                                                  {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False}]}


def bombs(rng):
    grow = replace("a", "a" * rng.randrange(100, 400))
    yield "three that grow", {"normalizer": {"type": "Sequence", "normalizers": [grow] * 3}}, "a" * 180
    yield "one of a megabyte", {"normalizer": replace("a", "b" * (1 << 20))}, "a" * 3000
    yield "steps at each place", {"pre_tokenizer": split(f"(?:a|a){{{rng.randrange(16, 24)}}}b|.")}, "a" * 20000
    yield "steps in a normalizer", {"normalizer": replace("(a+a+)+[bc]", "x", "Regex")}, "a" * 20000
    yield "steps by scanning", {"pre_tokenizer": split("(?:(?=[^b]*+)a){1,400}b|.")}, "a" * 40000
    yield "marks in a row", {"normalizer": {"type": "NFC"}}, "a" + "\u0301" * 60000 + "\u0316" * 60000
    yield "many lengths", {"added_tokens": [{"id": 256 + i, "content": "a" * (i + 2)} for i in range(600)]}, "a" * 20000


@attack("tokenizers", short=7, long=70)
def tokenizers(run, rng, count):
    """A budget for each text: refused by name, or done; within seconds, and within 2 GB."""
    for i in range(count):
        what, head, text = list(bombs(rng))[i % 7]
        folder = tokenizer(f"bomb{i}", **head)
        path = jobs.ROOT / f"bomb{i}.txt"
        path.write_text(text)
        job = jobs.manifest(f"bomb{i}-job", **{"data.tokenizer": "huggingface", "data.tokenizer_path": folder, "data.train": path, "data.heldout": None,
                                               "data.heldout_samples_max": None, "pipeline.stages": 1})
        code, said, seconds = run_aqpipe("plan", job, memory=2 * GB)
        if code is None or seconds > 30:
            run.hung(f"{what}: {seconds:.0f} s")
        elif code == 0:
            run.survived()
        elif code in (1, 2) and re.search("makes a text longer|takes too much time|too many different lengths", said):
            run.refused()
        else:
            run.wrong(f"{what}: {code} {said[-400:]}")


# ---- FIFOs ----

COMMANDS = (("resume", "RUN"), ("status", "RUN"), ("logs", "RUN"), ("report", "RUN"), ("plot", "RUN", "-o", "x.svg"), ("export", "RUN", "EXPORT"),
            ("generate", "RUN", "--prompt", "a", "--tokens", "2"), ("eval", "RUN"), ("cache", "verify", "RUN"), ("stop", "RUN"),
            ("launch", "JOB", "--resume", "--no-progress"), ("plan", "RUN/manifest.yaml"))


@attack("fifos in a run folder", short=40, long=2000)
def fifos(run, rng, count):
    """A FIFO in place of each file of a run, and each command: refused at once."""
    job = jobs.manifest("fifo", **{"pipeline.stages": 2, "train.epochs": 1, "model.blocks": 2, "model.channels": 16, "train.batch": 4,
                                   "data.train_samples_max": 8, "data.heldout_samples_max": 2, "checkpoint.every": 1})
    jobs.launch(job)
    folder, safe = jobs.ROOT / "fifo", jobs.ROOT / "fifo-kept"
    shutil.copytree(folder, safe)
    names = sorted(str(path.relative_to(safe)) for path in safe.rglob("*") if path.is_file())
    pairs = [("manifest.yaml", command) for command in COMMANDS] + rng.sample(list(itertools.product(names, COMMANDS)), k=len(names) * len(COMMANDS))
    for number, (name, command) in enumerate(pairs[:count]):
        shutil.rmtree(folder)
        shutil.copytree(safe, folder)
        (folder / name).unlink()
        os.mkfifo(folder / name)
        words = {"RUN": folder, "JOB": job, "EXPORT": jobs.ROOT / f"export{number}", "RUN/manifest.yaml": folder / "manifest.yaml"}
        code, said, seconds = run_aqpipe(*(words.get(word, word) for word in command))
        if code is None:
            run.hung(f"{name}: {' '.join(command)}")
        elif code < 0:
            run.wrong(f"{name}: {' '.join(command)}: signal {-code}")
        else:
            run.refused() if code else run.survived()


def special(path, kind):
    path.unlink(missing_ok=True)
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    else:
        path.mkdir()
    return path


@attack("what is no file", short=12, long=30)
def no_file(run, rng, count):
    """FIFOs, devices and folders as a manifest, data, a tokenizer, weights, and in a model folder."""
    model = jobs.ROOT / "model"
    model.mkdir()
    for name in ("config.json", "model.safetensors", "tokenizer.json"):
        (model / name).write_text("{}")
    base = jobs.manifest("special", **{"pipeline.stages": 1})
    cases = []
    for kind in ("fifo", "device", "folder"):
        for key in ("data.train .txt", "data.train .jsonl", "data.heldout .txt", "model.weights .safetensors", "status.token_file .t"):
            key, end = key.split()
            cases.append((kind, jobs.ROOT / f"special{end}", ("plan", base, "--set", f"{key}={jobs.ROOT}/special{end}")))
        cases.append((kind, jobs.ROOT / "special-job.yaml", ("plan", jobs.ROOT / "special-job.yaml")))
        cases += [(kind, model / name, ("import", model)) for name in ("config.json", "model.safetensors", "tokenizer.json", "adapter_config.json")]
        cases.append((kind, model / "spm.model", ("plan", base, "--set", "data.tokenizer=sentencepiece", "--set", f"data.tokenizer_path={model}/spm.model")))
    for kind, path, command in rng.sample(cases, k=len(cases))[:count]:
        kept = path.read_bytes() if path.exists() else None
        special(path, kind)
        code, said, seconds = run_aqpipe(*command, memory=2 * GB)
        if code is None:
            run.hung(f"{kind} as {path.name}: {command[0]}")
        elif code < 0:
            run.wrong(f"{kind} as {path.name}: signal {-code}")
        else:
            run.refused() if code else run.survived()
        shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
        if kept is not None:
            path.write_bytes(kept)


# ---- sizes ----

def sparse(path, size):
    with path.open("wb") as file:
        file.write(b"a text\n")
        file.truncate(size)
    return path


def header_of(path, text):
    path.write_bytes(struct.pack("<Q", len(text)) + text)
    return path


@attack("sizes", short=6, long=6)
def sizes(run, rng, count):
    """What is small to send and large to read: sparse files, one endless line, headers of very many tensors."""
    folder = jobs.ROOT / "sizes"
    folder.mkdir()
    line = folder / "line.jsonl"
    line.write_bytes(b'{"text": "' + b"a" * (70 << 20) + b'"}\n')
    tensors = b"{" + b",".join(b'"t%d":{"dtype":"F32","shape":[0],"data_offsets":[0,0]}' % i for i in range(200_000)) + b"}"
    numbers = b'{"t":{"dtype":"F32","data_offsets":[0,0],"shape":[' + b"1," * 10_000_000 + b"1]}}"
    cases = [("data.train", sparse(folder / "two.txt", 2 << 30), "is a sparse file"), ("data.train", sparse(folder / "tera.txt", 1 << 40), "is a sparse file"),
             ("data.train", sparse(folder / "tera.jsonl", 1 << 40), "is a sparse file"), ("data.train", line, "line.jsonl:1: the line has"),
             ("model.weights", header_of(folder / "many.safetensors", tensors), "at most 131072 tensors"),
             ("model.weights", header_of(folder / "long.safetensors", numbers), "at most 131072 tensors")]
    for number, (key, path, wanted) in enumerate(cases[:count]):
        job = jobs.manifest(f"size{number}", **{key: path, "data.heldout": None, "data.heldout_samples_max": None, "data.train_samples_max": None, "pipeline.stages": 1})
        code, said, seconds = run_aqpipe("plan", job, memory=2 * GB) if ".t" not in path.name and ".jsonl" not in path.name else run_aqpipe("plan", job, memory=1 << 42)
        path.unlink()
        if code is None or seconds > 20:
            run.hung(f"{path.name}: {seconds:.0f} s")
        elif code in (1, 2) and wanted in said:
            run.refused()
        else:
            run.wrong(f"{path.name}: {code} {said[-300:]}")


# ---- escapes ----

ESCAPES = ("\x1b]0;own\x07", "\x1b[2J\x1b[1;1H", "\u009b31m", "\u202egpj", "a\rb", "\x9d0;x\x9c")


def foreign(said):
    """What acts on a terminal, or shows a line in another order than it has. aqpipe's own progress has \\r."""
    return re.findall(r"\x1b|[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\u0080-\u009f\u202a-\u202e\u2066-\u2069]", said)


def safetensors(path, names):
    header = {name: {"dtype": "F32", "shape": [1], "data_offsets": [4 * i, 4 * i + 4]} for i, name in enumerate(names)}
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + bytes(4 * len(names)))


@attack("escapes on a terminal", short=6, long=30)
def escapes(run, rng, count):
    """Names of tensors, folders and jobs, and what a model writes, on a terminal."""
    for i in range(count):
        bad = ESCAPES[i % len(ESCAPES)]
        folder = jobs.ROOT / f"m{i}{bad.replace('/', '')}"
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps({"model_type": "gpt2", "architectures": [f"GPT2{bad}"], "n_layer": 1, "n_head": 1, "n_embd": 8,
                                                        "n_positions": 8, "vocab_size": 8}))
        safetensors(folder / "model.safetensors", [f"x{bad}{n}" for n in range(3)])
        job = jobs.manifest(f"escape{i}", **{"pipeline.stages": 1, "job.name": json.dumps("j" + bad)})
        for command in (("import", folder), ("plan", job), ("import", folder, "--manifest"), ("doctor", job), ("export", folder, "x"), ("report", folder)):
            code, said, seconds = run_aqpipe(*command, terminal=True)
            found = foreign(said)
            if code is None:
                run.hung(" ".join(map(str, command[:1])))
            elif found:
                run.wrong(f"{command[0]}: {found} on the terminal: {said[:300]!r}")
            else:
                run.survived()


if __name__ == "__main__":
    kit.main("published")
