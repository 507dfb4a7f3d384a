"""What a job finds around it: names of files, links to folders, variables, limits, clocks and closed descriptors. The losses are the same. In CI a part of it; AQ_TESTS=long: all."""
import json
import os
import shutil
import subprocess

import jobs
from jobs import check, losses, manifest, metrics, no_workers, weights
from kit import ROOT

SMALL = {"model.blocks": 2, "pipeline.stages": 2, "train.epochs": 2, "checkpoint.every": "2 steps"}
LONG = os.environ.get("AQ_TESTS") == "long"
SHORT = ("HOME unset", "a TMPDIR that cannot be written", "64 open files", "standard output closed", "no environment", "a clock before 2000", "a decimal comma")
NAMES = {"space": "a b  c", "utf8": "größe-模型-ñ", "long": "n" * 200, "dash": "-dash", "quote": "it's \"so\" & $HOME; # 100%"}


def quoted(path):
    """As a value of YAML."""
    return "'" + str(path).replace("'", "''") + "'"


def bash(words, *arguments, cwd=None):
    return subprocess.run(["bash", "-c", f'{words}\nexec "$0" "$@"', str(jobs.BIN / "aqpipe"), *map(str, arguments)], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          text=True, errors="replace", timeout=jobs.PATIENCE, stdin=subprocess.DEVNULL, cwd=cwd)


def right(what, done, code=0):
    check(done.returncode == code, f"{what}: {done.args[3:]} ended with {done.returncode}, wanted {code}\n{done.stdout[-1500:]}\n{done.stderr[-3000:]}")
    return done


def named(tag, name, whole):
    """A job of which everything has that name: folder, manifest, data, run, cache, checkpoints; and every command on what it leaves."""
    folder = ROOT / f"of-{tag}" / name
    folder.mkdir(parents=True)
    for text in ("train", "heldout"):
        shutil.copy(ROOT / f"{text}.txt", folder / f"{name}-{text}"[-250:])
    (folder / "store").mkdir()
    path = manifest(tag, **{**SMALL, "data.train": quoted(folder / f"{name}-train"[-250:]), "data.heldout": quoted(folder / f"{name}-heldout"[-250:]), "output.path": quoted(folder / "run" / name),
                            "cache.path": quoted(folder / "cache" / name), "checkpoint.path": quoted(folder / "store" / name), "data.cache": quoted(folder / "store"),
                            "job.name": quoted(name[:60])})
    path = path.rename(folder / f"{name}.yaml")
    given = f"./{path.name}" if name.startswith("-") else path.name
    right(tag, bash("", "plan", given, cwd=folder))
    right(tag, bash("", "launch", given, "--no-progress", cwd=folder))
    if name.startswith("-"):
        right(tag, bash("", "plan", "--", path.name, cwd=folder))
    run = folder / "run" / name
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    check([line["loss"] for line in lines if line["event"] == "step"] == losses(whole), f"{tag}: other losses")
    check((run / "model.safetensors").read_bytes() == weights(whole), f"{tag}: other weights")
    own = f"./{name}" if name.startswith("-") else name
    for arguments in (("report", own, "--json"), ("eval", own, "--json"), ("plot", own, "-o", f"./{name[:100]}.svg"), ("export", own, f"./x{name[:100]}"),
                      ("cache", "stat", f"../cache/{name}"), ("resume", own, "--epochs", 3, "--no-progress")):
        right(tag, bash("", *arguments, cwd=run.parent))


def links(whole):
    """The run's folder, its cache and its data by symbolic links; and the run by another one in the end."""
    real, path = ROOT / "real", ROOT / "links"
    for name in ("run", "cache", "store", "data"):
        (real / name).mkdir(parents=True)
    path.mkdir()
    shutil.copy(ROOT / "train.txt", real / "data")
    for name in ("run", "cache", "store", "data"):
        (path / name).symlink_to(real / name)
    file = manifest("linked", **{**SMALL, "data.train": path / "data" / "train.txt", "output.path": path / "run", "cache.path": path / "cache", "checkpoint.path": path / "store"})
    right("links", bash("", "launch", file, "--no-progress"))
    check((real / "run" / "model.safetensors").read_bytes() == weights(whole), "links: other weights")
    (ROOT / "again").symlink_to(real / "run")
    for arguments in (("report", ROOT / "again", "--json"), ("eval", ROOT / "again", "--json"), ("resume", ROOT / "again", "--epochs", 3, "--no-progress")):
        right("links", bash("", *arguments))


def comma():
    """A locale with a decimal comma: made where there is none. None: it cannot be made."""
    folder = ROOT / "locales"
    folder.mkdir()
    try:
        done = subprocess.run(["localedef", "-i", "de_DE", "-f", "UTF-8", folder / "de_DE.UTF-8"], capture_output=True, timeout=jobs.PATIENCE)
    except OSError:
        return None
    return folder if done.returncode == 0 else None


def rows():
    """What is around, and the words of bash that make it so."""
    deep, locale = ROOT / ("t" * 150), comma()
    deep.mkdir()
    found = [("HOME unset", "unset HOME XDG_CACHE_HOME XDG_STATE_HOME"), ("HOME that is not there", "export HOME=/nonexistent; unset XDG_CACHE_HOME XDG_STATE_HOME"),
             ("TMPDIR unset", "unset TMPDIR"), ("a TMPDIR of 150 characters", f"export TMPDIR={deep}"), ("a TMPDIR that cannot be written", "export TMPDIR=/proc"),
             ("umask 077", "umask 077"), ("64 open files", "ulimit -n 64"), ("standard input closed", "exec <&-"), ("standard output closed", "exec >&-"),
             ("no environment", f"exec env -i AQ_TEST_FOLDER={ROOT} \"$0\" \"$@\""),
             ("a clock before 2000", f"export LD_PRELOAD={jobs.BIN}/libclock_jump.so CLOCK_DAYS=-10000")]
    if locale:
        found.append(("a decimal comma", f"export LOCPATH={locale} LC_ALL=de_DE.UTF-8"))
    else:
        print("without a decimal comma: localedef makes no de_DE.UTF-8 here")
    return found


def scenario_surroundings():
    jobs.launch(manifest("whole", **SMALL))
    for tag, name in NAMES.items():
        if LONG or tag in ("space", "dash"):
            named(tag, name, "whole")
    links("whole")
    for number, (what, words) in enumerate(row for row in rows() if LONG or row[0] in SHORT):
        name = f"row-{number}"
        done = bash(words, "launch", manifest(name, **{**SMALL, "output.trace": "true", "status.listen": "127.0.0.1:0"}), "--no-progress")
        right(what, done)
        check(losses(name) == losses("whole") and weights(name) == weights("whole"), f"{what}: {losses(name)}, not {losses('whole')}")
        for arguments in (("report", ROOT / name, "--json"), ("resume", ROOT / name, "--epochs", 3, "--no-progress")):
            done = right(what, bash(words, *arguments))
            if "--json" in arguments and "output closed" not in what:
                json.loads(done.stdout)
    no_workers("surroundings")
