"""What tools/papers and its parts share: rows, and runs of aqpipe."""
import json
import math
import subprocess
import sys


def say(table, row, published, ours, unit, how, differs, trace=None, settings=None):
    """`settings`: the keys of the run that the row is about, dotted. `ours` null: the run has diverged."""
    print(json.dumps({"table": table, "row": row, "published": published, "ours": float(f"{ours:.5g}") if math.isfinite(ours) else None, "unit": unit,
                      "ratio": round(ours / published, 3) if published else None, "how": how, "differs": differs,
                      "settings": settings, "trace": trace}), flush=True)


def run(build, *arguments):
    done = subprocess.run([str(build / "aqpipe"), *map(str, arguments)], capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
    if done.returncode != 0:
        print(f"papers: aqpipe {' '.join(map(str, arguments[:3]))}: {done.stderr.strip()[-1500:]}", file=sys.stderr)
        sys.exit(1)
    return done.stdout


def manifest(folder, name, keys):
    """Writes a manifest of these keys, dotted. JSON is YAML."""
    tree = {}
    for key, value in {"job.name": name, "output.path": str(folder / name), "link.entropy": "off", **keys}.items():
        *parents, leaf = key.split(".")
        node = tree
        for parent in parents:
            node = node.setdefault(parent, {})
        node[leaf] = value
    path = folder / f"{name}.yaml"
    path.write_text(json.dumps(tree).replace('"inf"', "inf"), encoding="utf-8")  # a number that JSON has not
    return path


def launch(build, folder, name, keys):
    """A job by its keys; its folder."""
    run(build, "launch", manifest(folder, name, {"pipeline.threads": 1, **keys}), "--no-progress")
    return folder / name


def steps(run_folder):
    lines = [json.loads(line) for line in (run_folder / "metrics.jsonl").read_text().splitlines()]
    return [line for line in lines if line["event"] == "step"]


FORWARD_MS, BACKWARD_MS, STAGES = 45, 135, 8  # of a micro-batch: Wang et al. 2022, table 3 and section 4.1
