#!/usr/bin/env python3
"""neighbours: what the keeper of a checkpoint's copy may do to it: forge it, swap it, cut it, read it.

What a neighbour may say on a link is attacked in tests/runtime/test_neighbour.c and tests/runtime/test_neighbour_edge.c; the long form runs them
over many seeds."""
import ctypes
import ctypes.util
import json
import os
import pathlib
import shutil
import signal
import struct
import subprocess

import kit
from kit import attack, jobs

STEPS = {"edges.forward.codec": "aqsgd", "edges.forward.bits": 3, "edges.backward.codec": "directq", "edges.backward.bits": 6,
         "train.epochs": 12, "pipeline.stages": 2, "checkpoint.mirror": "true", "checkpoint.every": "6 steps"}


def stopped(name, **changes):
    """A run that was stopped after three checkpoints, and where its folder is kept for each try."""
    path = jobs.manifest(name, **{**STEPS, **changes, "link.rate_mbps": 20})
    process = subprocess.Popen([str(jobs.BIN / "aqpipe"), "launch", str(path), "--json", "--restarts", "0"],
                               stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    complete = jobs.ROOT / name / "checkpoint" / "complete"
    for _ in process.stdout:
        if complete.exists() and json.loads(complete.read_text())["older"] > 0:
            break
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=jobs.PATIENCE)
    jobs.check(process.returncode == 3, f"{name}: was not caught: {process.returncode}")
    folder, safe = jobs.ROOT / name, jobs.ROOT / f"{name}-kept"
    shutil.copytree(folder, safe)
    mark = json.loads((folder / "checkpoint" / "complete").read_text())
    return path, folder, safe, mark["step"], mark["older"]


def again(folder, safe):
    shutil.rmtree(folder)
    shutil.copytree(safe, folder)


def digest_seeded(data, seed):
    library = ctypes.CDLL(ctypes.util.find_library("xxhash"))
    library.XXH3_64bits_withSeed.restype = ctypes.c_uint64
    library.XXH3_64bits_withSeed.argtypes = (ctypes.c_char_p, ctypes.c_size_t, ctypes.c_uint64)
    return library.XXH3_64bits_withSeed(data, len(data), seed)


def forge(data, rng):
    """Another weight in a checkpoint, and the digest of its metadata made anew, as anybody can."""
    length = struct.unpack("<Q", data[:8])[0]
    header, body = json.loads(data[8:8 + length]), bytearray(data[8 + length:])
    spans = sorted(entry["data_offsets"] for name, entry in header.items() if name != "__metadata__")

    def digest():
        value = 0
        for first, end in spans:
            value = digest_seeded(bytes(body[first:end]), value)
        return f"{value:016x}"
    old = header["__metadata__"]["digest"]
    if digest() != old:
        raise AssertionError("the digest of a checkpoint is made otherwise than this attack believes")
    first, end = spans[rng.randrange(len(spans))]
    at = first + 4 * rng.randrange((end - first) // 4)
    body[at:at + 4] = struct.pack("<f", 1.5)
    return data[:8 + length].replace(old.encode(), digest().encode()) + bytes(body)


def launch(path, *arguments):
    return subprocess.run([str(jobs.BIN / "aqpipe"), "launch", str(path), "--resume", "--no-progress", *arguments],
                          capture_output=True, text=True, timeout=jobs.PATIENCE, stdin=subprocess.DEVNULL)


@attack("forged copies", short=3, long=40)
def forged_copies(run, rng, count):
    if not ctypes.util.find_library("xxhash"):
        run.skip("no libxxhash to forge with")
        return
    path, folder, safe, step, older = stopped("forged")
    jobs.launch(jobs.manifest("whole", **{**STEPS, "checkpoint.mirror": "false"}))
    whole = (jobs.ROOT / "whole" / "model.safetensors").read_bytes()
    own, copy = (folder / "checkpoint" / str(step) / name for name in ("stage-0.safetensors", "mirror-stage-0.safetensors"))
    good = copy.read_bytes()
    for i in range(count):
        again(folder, safe)
        own.unlink()
        how = ("forged", "older", "control", "cut")[i % 4]
        if how == "forged" or how == "control":
            copy.write_bytes(forge(good, rng))
        elif how == "older":
            copy.write_bytes((folder / "checkpoint" / str(older) / "mirror-stage-0.safetensors").read_bytes())
        else:
            copy.write_bytes(good[:rng.randrange(8, len(good))])
        if how == "control":  # on one's own disk nothing tells: the forgery itself is sound
            own.write_bytes(copy.read_bytes())
            done = launch(path)
            if done.returncode != 0:
                run.wrong(f"the forgery is none: {done.stderr}")
            continue
        done = launch(path, "--restarts", "0")
        if done.returncode != 1 or "is not the file that this stage wrote" not in done.stderr:
            run.wrong(f"{how}: {done.returncode} {done.stderr}")
        elif own.exists():
            run.wrong(f"{how}: the copy took its place")
        else:
            run.refused(how)
        done = launch(path)  # the older checkpoint is whole
        if done.returncode != 0 or (folder / "model.safetensors").read_bytes() != whole:
            run.lost(f"{how}: {done.returncode} {done.stderr}")
        else:
            run.survived()


@attack("sealed copies", short=1, long=20)
def sealed_copies(run, rng, count):
    key = jobs.ROOT / "mirror.key"
    jobs.aqpipe("keys", "mirror", key)
    if key.stat().st_mode & 0o777 != 0o600 or len(key.read_bytes()) != 32:
        run.wrong(f"{key}: no key, or one that others read")
    path, folder, safe, step, older = stopped("sealed", **{"checkpoint.mirror_key": str(key)})
    if not (jobs.ROOT / "whole").exists():
        jobs.launch(jobs.manifest("whole", **{**STEPS, "checkpoint.mirror": "false"}))
    whole = (jobs.ROOT / "whole" / "model.safetensors").read_bytes()
    own, copy = (folder / "checkpoint" / str(step) / name for name in ("stage-0.safetensors", "mirror-stage-0.safetensors"))
    plain, good = own.read_bytes(), copy.read_bytes()
    for at in range(0, len(plain) - 16, 16):
        if len(set(plain[at:at + 16])) > 8 and plain[at:at + 16] in good:
            run.wrong(f"16 bytes of the file at {at} are in its sealed copy")
            break
    else:
        run.survived()
    again(folder, safe)
    own.unlink()
    done = launch(path, "--restarts", "0")
    if done.returncode != 0 or (folder / "model.safetensors").read_bytes() != whole:
        run.lost(f"a sealed copy did not come back: {done.returncode} {done.stderr}")
    else:
        run.survived()
    for i in range(count):
        again(folder, safe)
        own.unlink()
        touched = bytearray(good)
        if i % 2:
            touched = bytearray((folder / "checkpoint" / str(older) / "mirror-stage-0.safetensors").read_bytes())
        else:
            touched[rng.randrange(len(touched))] ^= 1 << rng.randrange(8)
        copy.write_bytes(bytes(touched))
        done = launch(path, "--restarts", "0")
        told = any(text in done.stderr for text in ("copy of step", "the copy is of"))
        if done.returncode == 1 and told:
            run.refused(f"try {i}")
        else:
            run.wrong(f"try {i}: {done.returncode} {done.stderr}")
        if own.exists():
            run.wrong(f"try {i}: the copy took its place")


@attack("on the link", short=0, long=2000)
def on_the_link(run, rng, count):
    if not count:  # ctest has it
        return
    for name in ("test_neighbour", "test_neighbour_edge"):
        program = pathlib.Path(jobs.BIN) / name
        if not program.exists():
            run.skip(f"no {program}")
            continue
        done = subprocess.run([str(program)], env={**os.environ, "AQ_NEIGHBOUR_SEEDS": str(count)}, capture_output=True, text=True,
                              timeout=20 * jobs.PATIENCE)
        if done.returncode != 0:
            run.wrong(done.stdout[-2000:] + done.stderr[-2000:])
        for _ in range(count if done.returncode == 0 else 0):
            run.refused()


kit.main("neighbours")
