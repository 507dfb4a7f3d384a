"""What tools/convergence and tools/lab share: an output folder that is theirs, runs, and what their metrics say."""
import json
import math
import pathlib
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
RAW = ["edges.forward.codec=raw", "edges.backward.codec=raw"]


def codec(kind, forward, backward):
    """aqsgd or directq of so many bits forward, directq backward."""
    return [f"edges.forward.codec={kind}", f"edges.forward.bits={forward}", "edges.backward.codec=directq",
            f"edges.backward.bits={backward}"]


def entropy_coded(forward, backward, rounding="half_dither"):
    return [f"edges.{way}.{key}" for way, rate in (("forward", forward), ("backward", backward))
            for key in ("codec=ec", f"rate={rate}", f"rounding={rounding}")]


def folder_take(tool, out):
    """`out` is made, or was left by the same tool: anything else is refused."""
    mark = out / f".aqpipe-{tool}"
    out.mkdir(parents=True, exist_ok=True)
    if any(out.iterdir()) and not mark.exists():
        sys.exit(f"{tool}: {out} holds something that this tool did not leave: choose another folder with --out")
    mark.touch()


def binary_check(tool, folder):
    if not (folder / "aqpipe").exists():
        sys.exit(f"{tool}: there is no aqpipe in {folder}: cmake --preset release && cmake --build --preset release")


def run_remove(folder):
    """A run's folder and nothing else."""
    if (folder / "aqpipe-folder.json").exists():
        shutil.rmtree(folder)


def launch(tool, binaries, manifest, folder, sets, resume=False):
    """The lines of the run's metrics; None: it diverged."""
    done = subprocess.run([str(binaries / "aqpipe"), "launch", str(manifest), "--run", str(folder), "--no-progress",
                           *(["--resume"] if resume else []), *[word for one in sets for word in ("--set", one)]],
                          capture_output=True, text=True, stdin=subprocess.DEVNULL)
    if "without a finite gradient" in done.stderr:
        return None
    if done.returncode:
        sys.exit(f"{tool}: the run {folder.name} failed:\n{done.stderr[-2000:]}")
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def steps_of(lines):
    """Lines of steps; of one that was done twice (a run that went on from a checkpoint) the later."""
    return list({line["step"]: line for line in lines if line["event"] == "step"}.values())


def last_epoch(steps):
    return [line for line in steps if line["epoch"] == steps[-1]["epoch"]]


def train_loss(steps):
    return sum(line["loss"] * line["samples"] for line in steps) / sum(line["samples"] for line in steps)


def bytes_of(steps):
    """Bodies of all frames of all cuts: forward, backward."""
    return [sum(sum(line[way]) for line in steps) for way in ("forward_bytes", "backward_bytes")]


def measures(steps):
    """Mean over cuts of delta_ratio and error_ratio of these steps, and the largest common mode."""
    def values(key):
        return [v for line in steps for v in (line.get(key) or []) if v is not None]

    def mean(key):
        return sum(values(key)) / len(values(key)) if values(key) else math.nan
    return mean("delta_ratio"), mean("error_ratio"), max(values("common_mode"), default=math.nan)
