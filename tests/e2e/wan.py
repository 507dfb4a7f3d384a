"""Jobs over a wide-area network (tools/wanlab): one daemon an end, mutual TLS, distance, losses, changes while they train."""
import contextlib
import json
import os
import pathlib
import subprocess
import sys
import time

import jobs
from jobs import aqpipe, check, launch, losses, manifest, metrics
from kit import BIN, ROOT, same_run

WANLAB = str(pathlib.Path(__file__).resolve().parents[2] / "tools/wanlab")
os.environ["AQPIPE_BIN"] = str(BIN)
ENDS = 4
KEYS = {"edges.forward.codec": "aqsgd", "edges.forward.bits": 3, "edges.backward.codec": "directq", "edges.backward.bits": 6,
        "train.epochs": 6}


def tell(*settings):
    subprocess.run([WANLAB, "set", *map(str, settings)], check=True, timeout=jobs.PATIENCE)


def manifest_at_ends(name, **changes):
    stages = ", ".join(f"{{layers: '{layers}', host: 'tcp://10.79.0.{i + 1}:7700', address: '10.79.0.{i + 1}:7800'}}"
                       for i, layers in enumerate(("0-1", "2", "3", "4-5")))
    return manifest(name, **{**KEYS, "pipeline.stages": f"[{stages}]", "security.keys": str(ROOT / "keys"), **changes})


@contextlib.contextmanager
def daemons():
    """One at each end, with its host's keys."""
    hosts = [f"10.79.0.{i + 1}" for i in range(ENDS)]
    done = aqpipe("keys", "init", ROOT / "keys", "--job", "e2e", "--stages", ENDS, "--hosts", ",".join(hosts))
    check(done.returncode == 0, f"keys init: {done.stderr}")
    started = []
    try:
        for i, host in enumerate(hosts):
            with open(ROOT / f"daemon-{i}.log", "wb") as log:
                started.append(subprocess.Popen(
                    [WANLAB, "exec", str(i), str(BIN / "aqpiped"), "--listen", f"{host}:7700", "--keys", ROOT / "keys", "--host", host,
                     "--port-file", ROOT / f"port-{i}"], stdin=subprocess.DEVNULL, stdout=log, stderr=log))
            jobs.await_file(ROOT / f"port-{i}")
        yield
    finally:
        for daemon in started:
            daemon.terminate()
            daemon.wait(jobs.PATIENCE)


def launch_and_tell(path, due):
    """Launch, and at each step of `due` do what stands there."""
    process = subprocess.Popen([BIN / "aqpipe", "launch", path, "--no-progress", "--json"], stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE, text=True, stdin=subprocess.DEVNULL)
    left, restarts = dict(due), 0
    try:
        for line in process.stdout:
            event = json.loads(line)
            restarts += event.get("event") == "restart"
            if event.get("event") == "step" and event["step"] in left:
                left.pop(event["step"])()
        errors = process.communicate(timeout=jobs.PATIENCE)[1]
    finally:
        process.kill()
    check(process.returncode == 0, f"{path}: exit code {process.returncode}\n{errors[-2000:]}")
    check(not left and restarts == 0, f"{path}: {restarts} restarts, steps {list(left)} did not come\n{errors[-2000:]}")


def heals(name):
    return sum(sum(x or 0 for x in line.get("heals", [])) for line in metrics(name))


def silence(seconds):
    """From end 1 to end 2 nothing comes any more, for a while; the other way everything does."""
    tell("--link", "1-2", "--loss", "100/0")
    time.sleep(seconds)
    tell("--link", "1-2", "--loss", 0)


def inside():
    with daemons():
        launch(manifest_at_ends("near"))
        tell("--rtt", 80, "--loss", 0.1)
        launch(manifest_at_ends("far"))
        same_run("far", "near")
        check(heals("far") == 0, f"far: {heals('far')} connections were given up, and nothing was wrong with them")
        tell("--rtt", 20, "--loss", 0)
        launch_and_tell(manifest_at_ends("moves"), {3: lambda: tell("--end", 2, "--rtt", 400), 6: lambda: tell("--end", 2, "--rtt", 20)})
        same_run("moves", "near")
        check(heals("moves") == 0, f"moves: {heals('moves')} connections were given up as their end moved away")
        launch_and_tell(manifest_at_ends("silent", **{"link.silence_max": "2s"}), {3: lambda: silence(4)})
        same_run("silent", "near")
        check(heals("silent") > 0, "silent: four seconds of silence were not noticed, with link.silence_max 2 s")
        took = [line["time"] for line in metrics("silent")]
        check(max(b - a for a, b in zip(took, took[1:])) > 1, f"silent: no step waited, at {took}")
        print(f"losses of {len(losses('near'))} steps: near, far, moves, silent alike")


def scenario_wan():
    """80 ms and 0.1 % of loss, an end that moves from 20 to 400 ms, silence one way: the losses of the near run, bit for bit."""
    if os.environ.get("AQPIPE_WANLAB"):
        inside()
        return
    tried = subprocess.run([WANLAB, "2", "--", "true"], capture_output=True, text=True, timeout=jobs.PATIENCE)
    if tried.returncode != 0:
        print(f"skipped: {tried.stderr.strip()}")
        sys.exit(77)
    done = subprocess.run([WANLAB, str(ENDS), "--rate", "100", "--rtt", "0.2", "--", sys.executable, *sys.argv], timeout=1000)
    check(done.returncode == 0, f"in the lab: {done.returncode}")
