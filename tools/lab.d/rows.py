"""What a record says of where it comes from, and rows for docs/RESULTS.md."""
import json
import os
import pathlib
import platform
import resource
import shutil
import struct
import subprocess
import time


def commit(root):
    """Of the source tree, as RESULTS.md has it."""
    def git(*words):
        return subprocess.run(["git", "-C", str(root), *words], capture_output=True, text=True, check=False).stdout.strip()
    if not shutil.which("git") or not (head := git("rev-parse", "--short=8", "HEAD")):
        return "not recorded"
    return f"not recorded (changed after {head})" if git("status", "--porcelain", "--untracked-files=no") else head


def machine():
    """The processor, and the cores that this process may use."""
    lines = pathlib.Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    name = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())
    cores = len(os.sched_getaffinity(0))
    return f"{name}, {cores} core{'s' * (cores > 1)}"


def used():
    """Processor seconds until now: of the whole machine, of our children that have ended, and by the clock."""
    ticks = [int(word) for word in pathlib.Path("/proc/stat").read_text(encoding="utf-8").split("\n", 1)[0].split()[1:]]
    own = resource.getrusage(resource.RUSAGE_CHILDREN)
    return (sum(ticks[:3]) + sum(ticks[5:8])) / os.sysconf("SC_CLK_TCK"), own.ru_utime + own.ru_stime, time.time()


def others(before, after):
    """Cores that other programs used between two calls of used()."""
    whole, own, clock = (b - a for a, b in zip(before, after))
    return round(max(0.0, whole - own) / max(clock, 1e-3), 2)


def parameters(path):
    """Of a safetensors file."""
    with open(path, "rb") as file:
        header = json.loads(file.read(struct.unpack("<Q", file.read(8))[0]))
    total = 0
    for name, tensor in header.items():
        size = 1
        for side in tensor.get("shape", [0]) if name != "__metadata__" else [0]:
            size *= side
        total += size
    return total


def joined(values):
    """Different ones, in order."""
    return ", ".join(dict.fromkeys(values)) or "not recorded"


def row(figure, value, records, command, name=None):
    """A row of RESULTS.md. `name`: what the page calls the machine."""
    commits = [record.get("commit", "not recorded") for record in records]
    one = joined(commits)
    if len(set(commits)) > 1 and any(commit.startswith("not") for commit in commits):
        one = f"not recorded for all ({one})"
    machines = joined(record.get("machine", "not recorded") for record in records)
    busy = ", busy" if any(record.get("others", 0) > 0.1 for record in records) else ""
    return f"| {figure} | {value} | {name or machines}{busy} | {one} | `{command}` |".replace("\n", " ")
