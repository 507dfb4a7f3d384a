"""The guide's manifest and each example's with one key changed to each of its documented values in turn (docs/MANIFEST.md).

Each is planned: it is accepted, or an error names that key, or one that it is checked with (keys.def); no crash, no assertion. A seeded sample of what is accepted then trains a step, and ends well or
says one such line. In CI a part of the table (a fixed one); AQ_TESTS=long plans all of it and trains more. AQ_ONLY=JOB:KEY: only that."""
import concurrent.futures
import os
import pathlib
import random
import re
import shutil
import subprocess

import examples
import jobs
from jobs import aqpipe, check, no_workers
from kit import ROOT

SOURCE = pathlib.Path(__file__).resolve().parents[2]
LONG = os.environ.get("AQ_TESTS") == "long"
PLANS, STEPS = (10**9, 400) if LONG else (60, 10)
LENGTH_MAX, SECONDS = 900, jobs.PATIENCE
ENTRIES = {"An entry of `pipeline.stages`": "pipeline.stages.0.", "A codec": "edges.forward.", "An entry of `edges.list`": "edges.list.0."}
WORDS = {"path": ["nowhere", ""], "path or list": ["nowhere", "[]"], "text": ["x", "''"], "section": ["{}"], "list": ["[]"], "range": ["0-0", "'*'"], "size": ["0", "1", "1MiB", "1TB"],
         "rate": ["0", "1kbit", "100mbit", "1000000"], "interval": ["0", "1 epoch", "1 steps", "1000000 steps"], "interval or duration": ["0", "1 epoch", "1 steps", "1s"],
         "list of numbers": ["none", "'1 2'", "''"], "count or list": ["1", "2", "3", "128"], "true or false": ["true", "false"]}
EDGES = {"whole number": ("0", "1", "2", "3", "7"), "number": ("0", "0.5", "1", "1.5"), "count or word": ("auto", "1", "2"), "duration": ("0", "1ms", "30s"), "number or word": ("auto", "1", "2")}


def values_of(kind, limits, default):
    """What the page says that a key may be: its words, or its limits and some between them."""
    kind = kind.strip()
    if kind in EDGES:
        found = [*EDGES[kind], *re.findall(r"-?[0-9][0-9.e+-]*s?", limits), default]
    else:
        found = WORDS.get(kind) or [word.strip() for word in kind.split(",")]
    return [value for value in dict.fromkeys(found) if value]


def rules():
    """Each key with those that a rule of keys.def is about with it."""
    found = {}
    for row in re.split(r"^(?=AQ_[A-Z]*_?KEY\()", (SOURCE / "runtime/job/keys.def").read_text(encoding="utf-8"), flags=re.M)[1:]:
        name = re.match(r'AQ_[A-Z_]+\("([^"]+)"', row)[1]
        for other in " ".join(re.findall(r'\.(?:other|where) = "!?([^"]+)"', row)).split():
            found.setdefault(name, set()).add(other)
            found.setdefault(other, set()).add(name)
    return found


RULES = rules()
# What is checked together and has no rule in keys.def: the error stands at the other key.
TOGETHER = ((r"model\.(blocks|depth|levels|kind|weights|stem|norm)$", ("pipeline.stages",)),  # stages name layers, and the model has other ones now
            (r"pipeline\.stages\.0\.", ("pipeline.stages", "split.clients", "edges.list")),  # the sweep writes two stages, however many there were
            (r"edges\.(forward|backward)\.codec$", ("edges.forward.bits", "edges.backward.bits", "edges.forward.rate", "edges.backward.rate")),  # of the codec before
            (r"train\.batch$", ("train.micro_batch",)), (r"data\.(kind|layout|format)$", ("data.train", "data.skip_invalid")))  # the file is of another kind


def is_named(said, key, value):
    """Does it name the key, in whatever entry of a list, or one that it is checked with; or the key's last word and its value?"""
    others = [name for pattern, names in TOGETHER if re.match(pattern, key) for name in names]
    spelt = [re.escape(name).replace(r"\.0\.", r"(\.0|\[0\])\.") for name in {key, *RULES.get(key, ())}]
    spelt += [re.escape(name) + r"(\.\w+)*" for name in others]
    leaf, value = key.rpartition(".")[2], value.strip("'")
    return any(re.search(rf"(?<![\w.]){name}(?!\w|\.\w)", said) for name in spelt) or bool(
        value and re.search(rf"\b{re.escape(leaf)}\b", said) and value in said)


def table():
    """Every key and value of the page."""
    prefix, found = "", {}
    for line in (SOURCE / "docs/MANIFEST.md").read_text(encoding="utf-8").splitlines():
        if line.startswith("#"):
            prefix = next((place for title, place in ENTRIES.items() if line.startswith(f"### {title}")), "")
        cells = [cell.strip() for cell in line.split(" | ")]
        if not line.startswith("| `") or len(cells) < 6:
            continue
        key = cells[0].strip("|` ")
        if key.startswith("facts.") or "." not in key and not prefix:
            continue
        for value in values_of(cells[1], cells[3], cells[4].strip("`")):
            found[prefix + key, value] = True
            if prefix == "edges.forward.":
                found["edges.backward." + key, value] = True
    return list(found)


def manifests():
    """The jobs, with their data as their READMEs ask for it, shortened: name -> manifest."""
    folder = ROOT / "examples"
    shutil.copytree(SOURCE / "examples", folder, ignore=shutil.ignore_patterns("text", "run", "*.jsonl"))
    subprocess.run([SOURCE / "tools/text", folder / "text"], check=True, stdout=subprocess.DEVNULL)
    guide = re.search(r"```yaml\n(.*?)```", (SOURCE / "docs/GUIDE.md").read_text(encoding="utf-8"), re.S)[1]
    (folder / "guide.yaml").write_text(guide)
    texts = (f"data.train={ROOT}/train.txt", f"data.heldout={ROOT}/heldout.txt")
    found = {"guide": (folder / "guide.yaml", texts), "bytes-4-stages": (folder / "bytes-4-stages.yaml", texts), "two-replicas": (folder / "two-replicas.yaml", texts[:1]),
             "eight-stages": (folder / "eight-stages.yaml", texts)}
    for name, data in examples.DATA.items():
        own = folder if data in (examples.text, examples.one_text, examples.conversations) else folder / name  # tables have one name
        found[name] = folder / name / "job.yaml", data(own)
    for name in ("split-text", "split-images"):
        if name == "split-images":
            subprocess.run([folder / name / "shapes", "--out", ROOT / "shapes", "--clients", "1", "--images", "24", "--heldout", "8"], check=True, stdout=subprocess.DEVNULL)
            texts = (f"data.train={ROOT}/shapes/client-000.csv", f"data.heldout={ROOT}/shapes/heldout.csv")
        found[name] = folder / name / "job.yaml", texts
    done = aqpipe("keys", "init", ROOT / "keys", "--job", "sweep", "--stages", 3)
    check(done.returncode == 0, done.stderr)
    short = [each for each in examples.SHORT if each != "train.warmup_steps=0"]
    return {name: (path, [*short, *data, *([f"security.keys={ROOT}/keys"] if name.startswith("split") else [])]) for name, (path, data) in found.items()}


def command(verb, path, base, key, value, *more):
    changes = [word for word in base if not word.startswith(f"{key}=")]
    if key.startswith("edges.list.0."):
        changes.append(f"edges.list=[{{edge: 0, {key[13:]}: {value}}}]")
    elif key.startswith("pipeline.stages.0."):
        changes.append(f"pipeline.stages=[{{{key[18:]}: {value}}}, {{}}]")
    else:
        changes.append(f"{key}={value}")
    return [str(jobs.BIN / "aqpipe"), verb, str(path), *(word for change in changes for word in ("--set", change)), *more]


def problem(words, key, value, codes=(0, 1, 2)):
    """What is wrong with the answer, or None; and was the job accepted?"""
    try:
        done = subprocess.run(words, capture_output=True, text=True, errors="replace", stdin=subprocess.DEVNULL, timeout=SECONDS, cwd=ROOT)
    except subprocess.TimeoutExpired:
        return f"no end within {SECONDS} s", False
    said = done.stderr.strip()
    if re.search(r"assert|Sanitizer|Segmentation|signal \d|SIGSEGV|SIGABRT|is a fault of aqpipe", said):
        return f"{done.returncode}: {said[-600:]}", False
    if done.returncode not in codes:
        return f"ended with {done.returncode}: {said[-600:]}", False
    if done.returncode == 0:
        return None, True
    *_, last = said.splitlines() or [""]
    if len(last) > LENGTH_MAX or not (is_named(said, key, value) or re.search(r"memory|GiB on this machine", said)):
        return f"ended with {done.returncode}, and no line has {key}: {said[-600:]}", False
    return None, False


def takes_long(case):
    """A table of a million rows and its optimizer take a minute of a processor and 5 GiB."""
    return case[1] == "model.vocabulary" and case[2].isdigit() and int(case[2]) > 1 << 16


def scenario_key_sweep():
    only, jobs_of, draw, wrong = os.environ.get("AQ_ONLY", "").split(":"), manifests(), random.Random(7), []
    cases = [(name, key, value) for name in jobs_of for key, value in table() if only == [""] or [name, key] == only]
    draw.shuffle(cases)

    def poor(text):
        print(text, flush=True)
        wrong.append(text)

    def plan(case):
        name, key, value = case
        path, base = jobs_of[name]
        what, accepted = problem(command("plan", path, base, key, value), key, value)
        if what:
            poor(f"plan {name}, {key}={value}: {what}")
        return accepted

    def step(numbered):
        number, (name, key, value) = numbered
        path, base = jobs_of[name]
        what, _ = problem(command("launch", path, base, key, value, "--no-progress", "--restarts", "0", *([] if key == "output.path" else ["--run", str(ROOT / f"run-{number}")])), key, value)
        if what:
            poor(f"launch {name}, {key}={value}: {what}")
        shutil.rmtree(ROOT / f"run-{number}", ignore_errors=True)
    for name, (path, base) in jobs_of.items():
        what, accepted = problem(command("plan", path, base, "job.name", "sweep"), "job.name", "sweep")
        check(accepted, f"{name} itself is refused: {what}")
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        planned = cases[:PLANS]
        accepted = [case for case, good in zip(planned, pool.map(plan, planned)) if good]
        trained = [case for case in accepted if not case[0].startswith("split") and (LONG or not takes_long(case))][:STEPS]
        list(pool.map(step, enumerate(trained)))
    print(f"{len(planned)} of {len(cases)} plans, {len(accepted)} accepted, {len(trained)} trained a step")
    check(not wrong, f"{len(wrong)} poor answers")
    no_workers("key_sweep")
