"""output.report_to: the program beside a launch that sends its figures to TensorBoard, MLflow and W&B."""
import contextlib
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import time

import jobs
from kit import ROOT, check
from jobs import aqpipe, manifest, metrics

# A tracker's package that writes down what it is asked. `SLOW` in the environment: each call that sends takes so long.
MLFLOW = '''
import json, os, time
def note(*what):
    with open(os.environ["TRACKED"], "a") as file:
        file.write(json.dumps(what) + "\\n")
class Run:
    def __init__(self, run_id): self.info = type("Info", (), {"run_id": run_id})
def set_tracking_uri(uri): note("uri", uri)
def get_tracking_uri(): return "https://me:sesame@tracker.example/x"
def start_run(run_id=None, run_name=None):
    global run
    run = Run(run_id or "first")
    note("start", run_id, run_name)
def active_run(): return run
def log_params(some): note("params", some)
def set_tag(key, value): note("tag", key, value)
def end_run(state): note("end", state)
class entities:
    @staticmethod
    def Metric(name, value, stamp, step): return [name, step]
class MlflowClient:
    def log_batch(self, run_id, metrics):
        if os.environ.get("FAILS"):
            raise RuntimeError("no answer of " + get_tracking_uri() + " to " + os.environ["WANDB_API_KEY"] + "\\nmore")
        time.sleep(float(os.environ.get("SLOW", 0)))
        note("metrics", run_id, metrics)
'''


@contextlib.contextmanager
def environment(**values):
    before = {name: os.environ.get(name) for name in values}
    os.environ.update({name: str(value) for name, value in values.items()})
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value


def python_without_packages():
    """An interpreter that has the standard library only."""
    path = ROOT / "python-bare"
    path.write_text(f'#!/bin/sh\nexec "{sys.executable}" -I -S "$@"\n')
    path.chmod(0o755)
    return path


def tracked():
    path = ROOT / "tracked"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def sent(name="loss/train"):
    """The steps of one figure, in the order in which the tracker got them."""
    return [step for what, *rest in tracked() if what == "metrics" for got, step in rest[1] if got == name]


def files(name):
    return sorted((ROOT / name / "tensorboard").glob("events.out.tfevents.*.aqpipe"))


def followers(name):
    """Processes that follow this run."""
    found = []
    for path in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().decode(errors="replace").split("\0")
        except OSError:
            continue  # it has ended meanwhile
        if any("follow" in word for word in words) and str(ROOT / name) in words:
            found.append(words)
    return found


def missing():
    """No package: a line with the remedy at the start and one at the end; the job is done, with the bits of one without trackers."""
    plain, job = manifest("plain"), manifest("bare", **{"output.report_to": "[tensorboard, wandb, mlflow]"})
    for path in plain, job:
        with environment(AQPIPE_PYTHON=python_without_packages()):
            done = aqpipe("launch", path)
        check(done.returncode == 0, done.stderr)
    for package in "wandb", "mlflow":
        check(len(re.findall(rf"report_to: {package}: its package is not installed: \S+ -m pip install {package}\n", done.stderr)) == 1, done.stderr)
    check("not all trackers got everything; the rest is sent by: " in done.stderr, done.stderr)
    check(len(files("bare")) == 1, "TensorBoard needs no package")
    kept = json.loads((ROOT / "bare/report_to.json").read_text())
    steps = [line["step"] for line in metrics("bare") if line["event"] == "step"]
    check(kept.keys() == {"tensorboard"} and kept["tensorboard"]["told"]["step"] == steps[-1], kept)
    losses = [[line["loss"] for line in metrics(name) if line["event"] == "step"] for name in ("plain", "bare")]
    check(losses[0] == losses[1], "a tracker changed the run")
    with environment(AQPIPE_PYTHON=python_without_packages()):
        done = aqpipe("plan", job)
        check(done.returncode == 0 and "report_to: wandb: its package is not installed" in done.stderr, done)
        done = aqpipe("doctor", job, "--json")
    found = [json.loads(line) for line in done.stdout.splitlines()]
    found = [(line["state"], line["remedy"].split(" -m ")[1]) for line in found if line["check"] == "trackers"]
    check(done.returncode == 0 and sorted(found) == [("doubtful", "pip install mlflow"), ("doubtful", "pip install wandb")], found)


def nothing():
    """Neither Python nor the program: a line, and the job is done."""
    job = manifest("none", **{"report_to": "tensorboard"})
    for values, words in (({"AQPIPE_PYTHON": "/nowhere/python3"}, "there is no /nowhere/python3: install Python 3"),
                          ({"AQPIPE_FOLLOW": "/nowhere/follow"}, "AQPIPE_FOLLOW names no file that can be read; the job continues without it")):
        with environment(**values):
            done = aqpipe("launch", job, "--fresh")
        check(done.returncode == 0 and words in done.stderr, done.stderr)
    for value, words in (("comet_ml", "'comet_ml' is not one of tensorboard, wandb, mlflow"), ("[all]", "'all' is not one of")):
        done = aqpipe("plan", job, "--set", f"output.report_to={value}")
        check(done.returncode == 2 and words in done.stderr, done)
    done = aqpipe("plan", job, "--set", "output.report_to=none")
    check(done.returncode == 0, done.stderr)


def again():
    """A resumed run is the same run: ids, no figure twice. --fresh is a new one."""
    job = manifest("again", **{"report_to": "[tensorboard, mlflow]", "job.name": "again"})
    done = aqpipe("launch", job)
    check(done.returncode == 0 and "report_to: " not in done.stderr.replace("report_to is", ""), done.stderr)
    last = [line["step"] for line in metrics("again") if line["event"] == "step"][-1]
    check(sent() == list(range(1, last + 1)), f"each step once: {sent()}")
    start = [rest for what, *rest in tracked() if what == "start"]
    parameters = {key: value for what, *rest in tracked() if what == "params" for key, value in rest[0].items()}
    check(start == [[None, "again"]] and parameters["job.name"] == "again" and float(parameters["train.lr"]) > 0, f"{start} {parameters}")
    check(not any(key.startswith(("security.", "status.")) for key in parameters), parameters)
    check(tracked()[-1] == ["end", "FINISHED"], tracked()[-1])
    check("sesame" not in (ROOT / "again/report_to.json").read_text(), "an address with a password is kept")
    done = aqpipe("resume", ROOT / "again", "--epochs", 5)
    check(done.returncode == 0, done.stderr)
    check(sent() == list(range(1, last + 1 + last // 4)), f"each step once, over a resume: {sent()}")
    check([rest for what, *rest in tracked() if what == "start"][1:] == [["first", None]], "another run")
    check(len(files("again")) == 2, "a file of events for each launch")
    (ROOT / "again/tensorboard/notes.txt").write_text("mine")
    done = aqpipe("launch", job, "--fresh")
    check(done.returncode == 0 and len(files("again")) == 1, f"--fresh keeps old events: {files('again')}")
    check((ROOT / "again/tensorboard/notes.txt").exists(), "--fresh removes a file that is not ours")
    check([rest for what, *rest in tracked() if what == "start"][2:] == [[None, "again"]], "--fresh is a new run")


def trouble():
    """A tracker that fails or hangs: one line without secrets; the job takes as long as without, and its end can be had at once."""
    job = manifest("trouble", **{"report_to": "mlflow"})
    with environment(FAILS="1", WANDB_API_KEY="0123456789abcdef"):
        done = aqpipe("launch", job)
    check(done.returncode == 0 and done.stderr.count("output.report_to: mlflow: no answer of https://***@tracker.example/x to ***\n") == 1, done.stderr)
    check("sesame" not in done.stderr and "0123456789abcdef" not in done.stderr, done.stderr)
    with environment(SLOW="1000"):
        process = subprocess.Popen([jobs.BIN / "aqpipe", "launch", job, "--fresh"], stderr=subprocess.PIPE, text=True)
        lines = []
        for line in process.stderr:
            lines.append(line)
            if "waits up to" in line:
                check(any("done: " in line for line in lines), "it waits before the job is done")
                process.send_signal(signal.SIGINT)
    check(process.wait(jobs.PATIENCE) == 0, f"ended with {process.returncode}")
    check("the rest is sent by: " in lines[-1], "".join(lines[-5:]))
    check(not followers("trouble"), f"left behind: {followers('trouble')}")


def killed():
    """The launcher dies: its follower ends, and the next launch continues."""
    job = manifest("killed", **{"report_to": "tensorboard", "train.epochs": 100000, "checkpoint.every": "5 steps"})
    process = subprocess.Popen([jobs.BIN / "aqpipe", "launch", job, "--no-progress"], stderr=subprocess.DEVNULL)
    deadline = time.time() + jobs.PATIENCE
    while not (ROOT / "killed/report_to.json").exists():
        check(time.time() < deadline and process.poll() is None, "nothing is sent")
        time.sleep(0.05)
    process.kill()
    process.wait()
    while followers("killed"):
        check(time.time() < deadline, f"left behind: {followers('killed')}")
        time.sleep(0.05)


def scenario_report_to():
    beside = jobs.BIN / "../../../tools/follow"  # not where the programs are a copy; one of another owner is not trusted
    if not beside.is_file() or beside.stat().st_uid not in (0, (jobs.BIN / "aqpipe").stat().st_uid):
        os.environ["AQPIPE_FOLLOW"] = str(pathlib.Path(__file__).resolve().parents[2] / "tools/follow")
    (ROOT / "modules").mkdir()
    (ROOT / "modules/mlflow.py").write_text(MLFLOW)
    missing()
    nothing()
    with environment(PYTHONPATH=ROOT / "modules", TRACKED=ROOT / "tracked", AQPIPE_PYTHON=sys.executable):
        again()
        trouble()
    killed()


READ = '''
import json, pathlib, sys
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
reader = EventAccumulator(sys.argv[1], size_guidance={"scalars": 0})
reader.Reload()
text = reader.Tensors("config/text_summary" if "config/text_summary" in reader.Tags()["tensors"] else "config")[0].tensor_proto.string_val[0].decode()
print(json.dumps({"steps": [e.step for e in reader.Scalars("loss/train")], "losses": [e.value for e in reader.Scalars("loss/train")], "text": text}))
'''
MLRUN = '''
import json, mlflow, sys
run = mlflow.MlflowClient().get_run(sys.argv[1])
history = mlflow.MlflowClient().get_metric_history(sys.argv[1], "loss/train")
print(json.dumps({"steps": sorted(m.step for m in history), "status": run.info.status, "params": run.data.params, "name": run.info.run_name}))
'''


def told(python, program, *arguments):
    done = subprocess.run([python, "-c", program, *map(str, arguments)], capture_output=True, text=True, timeout=300, check=False)
    check(done.returncode == 0, done.stderr)
    return json.loads(done.stdout.splitlines()[-1])


def scenario_report_to_packages():
    """The same with tensorboard, mlflow and wandb of PyPI, whose files are read back by those packages."""
    python = os.environ.get("AQPIPE_PYTHON") or sys.executable
    lacking = [name for name in ("tensorboard", "mlflow", "wandb")
               if subprocess.run([python, "-c", f"import importlib.util as u, sys; sys.exit(not u.find_spec('{name}'))"], check=False).returncode]
    if lacking:
        print(f"skip: {python} has no {', '.join(lacking)}: pip install tensorboard mlflow wandb, or name another one with AQPIPE_PYTHON")
        sys.exit(77)
    job = manifest("real", **{"report_to": "[tensorboard, wandb, mlflow]", "job.name": "real one"})
    with environment(AQPIPE_PYTHON=python, WANDB_MODE="offline", WANDB_SILENT="true", MLFLOW_TRACKING_URI=f"sqlite:///{ROOT}/mlflow.db"):
        done = aqpipe("launch", job)
        check(done.returncode == 0 and "rest is sent by" not in done.stderr, done.stderr)
        done = aqpipe("resume", ROOT / "real", "--epochs", 5)
        check(done.returncode == 0 and "rest is sent by" not in done.stderr, done.stderr)
        kept = json.loads((ROOT / "real/report_to.json").read_text())
        losses = {line["step"]: line["loss"] for line in metrics("real") if line["event"] == "step"}
        seen = told(python, READ, ROOT / "real/tensorboard")
        check(seen["steps"] == list(losses), f"TensorBoard: {seen['steps']}")
        check(all(abs(loss - losses[step]) < 1e-5 for step, loss in zip(seen["steps"], seen["losses"])), "TensorBoard has other losses")
        check("real one" in seen["text"] and "train.lr" in seen["text"], seen["text"][:300])
        seen = told(python, MLRUN, kept["mlflow"]["run_id"])
        check(seen["steps"] == list(losses) and seen["status"] == "FINISHED" and seen["name"] == "real one", f"MLflow: {seen}")
        check("train.lr" in seen["params"], seen["params"])
    offline = list((ROOT / "real/wandb").glob("offline-run-*"))
    check(len(offline) == 2 and all(path.name.endswith("-" + kept["wandb"]["id"]) for path in offline), f"W&B: {offline}")
    check(all(list(path.glob("run-*.wandb")) for path in offline), "W&B wrote no run")
