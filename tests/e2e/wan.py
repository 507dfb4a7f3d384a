"""Jobs over a wide-area network (tools/wanlab): one daemon an end, mutual TLS, distance, losses, changes while they train."""
import contextlib
import json
import os
import pathlib
import re
import subprocess
import time

import jobs
from far import scenario_in_the_lab
from jobs import aqpipe, check, launch, losses, manifest, metrics
from kit import BIN, ROOT, end, marked, same_run, start

WANLAB = str(pathlib.Path(__file__).resolve().parents[2] / "tools/wanlab")
os.environ["AQPIPE_BIN"] = str(BIN)
ENDS = 4
KEYS = {"edges.forward.codec": "aqsgd", "edges.forward.bits": 3, "edges.backward.codec": "directq", "edges.backward.bits": 6,
        "train.epochs": 3}


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


def logs(name):
    return "".join(path.read_text() for path in (ROOT / name / "logs").glob("*.log"))


def hole():
    """From step 3 on packets above 1200 bytes vanish between two ends, to the job's end: it finds its way through, and says what is wrong."""
    launch_and_tell(manifest_at_ends("hole", **{"link.silence_max": "2s"}), {3: lambda: tell("--link", "1-2", "--mtu-blackhole", 1200)})
    same_run("hole", "near")
    check(heals("hole") > 0 and "MTU black hole" in logs("hole"), f"hole: {heals('hole')} heals, and in the logs:\n{logs('hole')[-3000:]}")
    launch(manifest_at_ends("in-hole"))
    same_run("in-hole", "near")
    check("MTU black hole" in logs("in-hole"), f"in-hole: not named:\n{logs('in-hole')[-3000:]}")
    tell("--link", "1-2", "--mtu-blackhole", 0)


def connections(end, port):
    """Connections of that end's namespace from or to the port that stand."""
    done = subprocess.run([WANLAB, "exec", str(end), "cat", "/proc/net/tcp"], capture_output=True, text=True, check=True)
    rows = [line.split() for line in done.stdout.splitlines()[1:]]
    return sum(row[3] == "01" and f"{port:04X}" in (row[1][-4:], row[2][-4:]) for row in rows)


def streams():
    """Four connections a link under Reno, with losses: parts of bodies come in any order, and the losses are those of the near run."""
    tell("--rtt", 80, "--loss", 0.5)
    seen = []
    path = manifest_at_ends("streams", **{"link.streams": 4, "link.congestion": "reno"})
    launch_and_tell(path, {4: lambda: seen.append(connections(1, 7800))})
    same_run("streams", "near")
    check(seen[0] >= 8, f"streams: end 1 has {seen} connections, wanted 4 for each of its links")
    check(heals("streams") == 0, f"streams: {heals('streams')} connections were given up, and nothing was wrong with them")


def inside():
    with daemons():
        launch(manifest_at_ends("near"))
        tell("--rtt", 80, "--loss", 0.1)
        launch(manifest_at_ends("far"))
        same_run("far", "near")
        check(heals("far") == 0, f"far: {heals('far')} connections were given up, and nothing was wrong with them")
        tell("--rtt", 20, "--loss", 0)
        tell("--link", "1-2", "--rate", "100/2")  # a line that carries fifty times more one way than back
        launch_and_tell(manifest_at_ends("moves"), {3: lambda: tell("--end", 2, "--rtt", 400)})
        same_run("moves", "near")
        tell("--rtt", 20, "--rate", 100)
        check(heals("moves") == 0, f"moves: {heals('moves')} connections were given up as their end moved away")
        launch_and_tell(manifest_at_ends("silent", **{"link.silence_max": "2s"}), {3: lambda: silence(4)})
        same_run("silent", "near")
        check(heals("silent") > 0, "silent: four seconds of silence were not noticed, with link.silence_max 2 s")
        took = [line["time"] for line in metrics("silent")]
        check(max(b - a for a, b in zip(took, took[1:])) > 1, f"silent: no step waited, at {took}")
        hole()
        streams()
        print(f"losses of {len(losses('near'))} steps: near, far, moves, silent, hole, streams alike")


FAR = {"link.rtt_ms": 80, "link.rate_mbps": 100}
RATES = "'wte = 1e-2, h.*.ln_* = 2e-5, head = 1e-4'"


def replicas_at_ends():
    """Two replicas of two stages, each stage at an end of its own."""
    ends = [f"10.79.0.{i + 1}" for i in range(ENDS)]
    places = ", ".join(f"{{layers: {layers}, host: {json.dumps([f'tcp://{end}:7700' for end in ends[s::2]])}, address: {json.dumps([f'{end}:7800' for end in ends[s::2]])}}}"
                       for s, layers in enumerate(("0-2", "3-5")))
    return {"pipeline.stages": f"[{places}]", "pipeline.replicas": 2}


def far_inside():
    """Each pair of runs near and far, of the same keys."""
    runs = {"quic": {"link.protocol": "quic"}, "flush": {"pipeline.schedule": "gpipe", "pipeline.flush": "true"},
            "stale": {"train.staleness": 1, "train.lr_patterns": RATES}, "rates": {"train.lr_patterns": RATES},
            "delay": {**replicas_at_ends(), "reduce.every": 4, "reduce.delay": 2, "reduce.codec": "q4", "train.clip": 0.5, "data.train_samples_max": 26, "train.epochs": 6,
                      **{f"edges.{way}.{key}": None for way in ("forward", "backward") for key in ("codec", "bits")}}}
    if "built without QUIC" in aqpipe("plan", manifest_at_ends("asked", **runs["quic"])).stderr:
        print("without QUIC, which is not built")
        del runs["quic"]
    with daemons():
        for where, settings in (("near", ("--rtt", 0.2, "--loss", 0)), ("far", ("--rtt", 80, "--loss", 0.5))):
            tell(*settings)
            for name, keys in runs.items():
                launch(manifest_at_ends(f"{name}-{where}", **FAR, **keys))
        launch(manifest_at_ends("plain-far", **FAR))
    for name in runs:
        same_run(f"{name}-far", f"{name}-near")
        check(heals(f"{name}-far") == 0, f"{name}: {heals(f'{name}-far')} connections were given up, and nothing was wrong with them")
    for name in runs.keys() & {"quic", "flush"}:
        check(losses(f"{name}-far") == losses("plain-far"), f"{name}: not the losses of a plain run")
    for name in ("rates", "stale"):
        check(losses(f"{name}-far") != losses("plain-far"), f"{name}: its keys change nothing: no test")
    check(len(losses("delay-far")) == 24 and losses("delay-far")[-1] < losses("delay-far")[0], f"delay: {losses('delay-far')}")
    check(losses("stale-far") != losses("rates-far"), "staleness changes nothing beside rates: no test")


def scenario_wan_far():
    """80 ms and 0.5 % of loss: links over QUIC, a flush after each step, rates by tensor with staleness, and replicas with reduce.delay in the default codec are the near runs, bit for bit."""
    if scenario_in_the_lab(ENDS):
        far_inside()


def adapters(keys, path, holds):
    """Over the relay at 80 ms with LoRA: a worker is killed, the run is resumed, and begins again in its folder: each time the run of one machine."""
    tell("--rtt", 80, "--loss", 0.5)
    lora = {**keys, "link.rtt_ms": 80, "lora.rank": 3, "lora.alpha": 6, "train.lr": 0.01, "checkpoint.every": "3 steps"}
    launch(manifest("alone-lora", **{**lora, "pipeline.stages": 2}))
    there = {key: re.search(pattern, path.read_text(), re.M)[1] for key, pattern in (("pipeline.stages", r"^  stages: (.*)$"), ("link.relay", r"^  relay: (.*)$"))}
    path = manifest("nat-lora", **{**lora, **there})
    hold = jobs.Hold(6, "begin", 1, holds)
    process = start(path, "--restarts", "0", lines=False)
    try:
        worker = hold.reached(process)
        marked(path, 5)
        end(worker)
        hold.release()
        errors = process.communicate(timeout=jobs.PATIENCE)[1]
    finally:
        process.kill()
    check(process.returncode == 1, f"killed: {process.returncode}\n{errors[-2000:]}")
    launch(path, "--resume")
    same_run("nat-lora", "alone-lora")
    launch(path, "--fresh")
    same_run("nat-lora", "alone-lora")


def nat_inside():
    """Ends 1 and 2 cannot reach each other, as two behind NAT cannot; both reach end 3, where the relay is. The launcher is at end 0."""
    hosts = [f"10.79.0.{i + 1}" for i in range(ENDS)]
    for end, other in ((1, 2), (2, 1)):
        subprocess.run([WANLAB, "exec", str(end), "ip", "route", "add", "blackhole", f"{hosts[other]}/32"], check=True, timeout=jobs.PATIENCE)
    holds = ROOT / "holds"
    holds.mkdir()
    with jobs.faults(hold=holds), daemons():
        one, two = (f"layers: '{layers}', host: 'tcp://{hosts[end]}:7700'" for end, layers in ((1, "0-2"), (2, "3-5")))
        keys = {**KEYS, "security.keys": str(ROOT / "keys"), "link.rtt_ms": 40}
        launch(manifest("alone", **{**keys, "pipeline.stages": 2}))  # of this machine
        launch(manifest("direct", **{**keys, "pipeline.stages": f"[{{{one}}}, {{{two}, address: '{hosts[2]}:7800'}}]", "link.connect_max": "3s"}), want=1)
        with open(ROOT / "relay.txt", "wb") as log:
            relay = subprocess.Popen([WANLAB, "exec", "3", BIN / "aqpiped", "--relay", f"{hosts[3]}:7900", "--port-file", ROOT / "relay.port"],
                                     stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        try:
            jobs.await_file(ROOT / "relay.port")
            tell("--rtt", 40, "--loss", 0.1)
            path = manifest("nat", **{**keys, "pipeline.stages": f"[{{{one}, dials: true}}, {{{two}, dials: true}}]", "link.relay": f"{hosts[3]}:7900"})
            launch(path)
            same_run("nat", "alone")
            adapters(keys, path, holds)
        finally:
            relay.terminate()
            relay.wait(jobs.PATIENCE)


def scenario_relay_nat():
    """Two stages that cannot reach each other, over a relay at 40 ms with losses: the run of one machine, bit for bit; without the relay they do not meet. At 80 ms with LoRA, killed and resumed."""
    if scenario_in_the_lab(ENDS):
        nat_inside()


def scenario_wan():
    """80 ms and 0.1 % of loss, an end that moves from 20 to 400 ms over a line of 100 and 2 Mbit/s, silence one way, an MTU black hole, four streams: the near run's losses, bit for bit."""
    if scenario_in_the_lab(ENDS):
        inside()
