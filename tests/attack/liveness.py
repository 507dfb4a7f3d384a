#!/usr/bin/env python3
"""Processes that neither die nor go on, and a limit of file sizes: every one has its name, and an end."""
import re
import resource
import subprocess

import kit
import jobs
from kit import attack
from jobs import BIN, PATIENCE, ROOT, losses, manifest, weights  # noqa: F401

AQSGD = {"edges.forward.codec": "aqsgd", "edges.forward.bits": 4, "edges.backward.codec": "directq",
         "edges.backward.bits": 8, "pipeline.stages": 2, "checkpoint.every": "3 steps"}


@attack("file size limit", 4, 60)
def file_size_limit(run, rng, count):
    """ulimit -f of a whole job: one line that names file and remedy, no restart; without it the run goes on, the same."""
    jobs.launch(manifest("limit-none", **AQSGD))
    sizes = [12_000, 40_000, 300_000, 412_000] + [rng.randrange(9_000, 420_000) for _ in range(count)]
    for number, size in enumerate(sizes[:count]):
        name = f"limit-{number}"
        path = manifest(name, **AQSGD)
        done = subprocess.run([str(jobs.BIN / "aqpipe"), "launch", str(path), "--no-progress"], capture_output=True, text=True,
                              timeout=PATIENCE, stdin=subprocess.DEVNULL,
                              preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (size, size)))
        lines = done.stderr.strip().splitlines()
        if done.returncode == 0:
            run.survived()
            continue
        named = any("File too large" in line and "ulimit -f" in line and str(jobs.ROOT) in line or
                    re.search(r"stage-\d\.safetensors\.partial.*ulimit -f", line) for line in lines)
        if done.returncode != 1 or not named or "restart" in done.stderr:
            run.wrong(f"with files of {size} bytes: {done.returncode}, {lines[-3:]}")
            continue
        holds = (jobs.ROOT / name).exists() and (jobs.ROOT / name / "run.json").exists()
        again = jobs.aqpipe("launch", path, "--no-progress", *(["--resume"] if holds else []))
        if again.returncode != 0 or losses(name) != losses("limit-none") or weights(name) != weights("limit-none"):
            run.wrong(f"after files of {size} bytes: {again.returncode}, another run: {again.stderr[-500:]}")
        else:
            run.refused()


if __name__ == "__main__":
    kit.main("liveness")
