"""tools/scale --check: the plan's event simulation against jobs that run, up to 8 workers, each at an end of its own of the lab (tools/wanlab).

A machine of two cores has no 8 stages that compute at once. So a stage here takes the time that the plan reckons for it (tools/bench/timed_worker.c: it computes a small
model in truth, and sleeps until that time is over); codecs, updates, links, TLS, packets and the order of everything are real. What is compared is thus all that a simulation
of a schedule over links can get wrong, and not what a core computes in a second. The plan is given 1448/1500 of
the links' rate: it counts heads of packets, but neither acknowledgements nor TLS records nor what is sent again (docs/DECISIONS.md 0491).

A machine that is in use has no core for a stage when it wants one. In slow motion (--slow N) computing takes N times as long, links have an Nth of the rate and N times the round trip: the same
picture, in which what the machine does besides is an Nth."""
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time as clock

import cities

WANLAB = pathlib.Path(__file__).resolve().parents[1] / "wanlab"
FORWARD_S, MICRO, STEPS, EPOCHS = 0.02, 16, 4, 3  # of the slowest stage; micro-batches of a replica; steps of an epoch
TCP_SHARE, PATIENCE = 1448 / 1500, 1200
NEAR = 0.2  # ms
# Stages, replicas, Mbit/s of each link, round trip (ms, or cities), and what else is asked for.
ROWS = {
    "2 stages near": (2, 1, 100, NEAR, {}),
    "2 stages 80 ms": (2, 1, 100, 80, {}),
    "4 stages near": (4, 1, 100, NEAR, {}),
    "4 stages 80 ms": (4, 1, 100, 80, {}),
    "4 stages cities": (4, 1, 100, "cities", {}),
    "4 stages 3 Mbit/s": (4, 1, 3, 20, {}),
    "8 stages near": (8, 1, 100, NEAR, {}),
    "8 stages 20 ms": (8, 1, 100, 20, {}),
    "8 stages 80 ms": (8, 1, 100, 80, {}),
    "8 stages cities": (8, 1, 100, "cities", {}),
    "8 stages 3 Mbit/s": (8, 1, 3, 20, {}),
    "8 stages 80 ms gpipe": (8, 1, 100, 80, {"pipeline.schedule": "gpipe"}),
    "2 stages x 2 20 ms": (2, 2, 100, 20, {}),
    "4 stages x 2 20 ms": (4, 2, 100, 20, {}),
    "4 stages x 2 3 Mbit/s": (4, 2, 3, 20, {}),
}
QUICK = ("2 stages 80 ms", "4 stages 3 Mbit/s")


def slowed(row, slow):
    stages, replicas, rate, place, more = row
    return stages, replicas, rate / slow, place, more


def host_of(end):
    """The address at an end of the lab."""
    return f"10.79.0.{end + 1}"


def rank(stages, s, w):
    return w * stages + s


def tree(keys):
    """Dotted names as a manifest's tree; JSON is YAML."""
    out = {}
    for name, value in keys.items():
        *parents, leaf = name.split(".")
        node = out
        for parent in parents:
            node = node.setdefault(parent, {})
        node[leaf] = value
    return out


LAYERS = {2: ("0-4", "5-9"), 4: ("0-2", "3-4", "5-6", "7-9"), 8: ("0-1", "2", "3", "4", "5", "6", "7", "8-9")}  # the last one is the head


def manifest(folder, name, row, rate, slow, longer=None):
    """longer: by stage, how many times as long a pass takes as was reckoned."""
    stages, replicas, _, place, more = row
    places = []
    for s in range(stages):
        at = [host_of(rank(stages, s, w)) for w in range(replicas)]
        host, address = [f"tcp://{a}:7700" for a in at], [f"{a}:7800" for a in at]
        places.append({"host": host if replicas > 1 else host[0], "address": address if replicas > 1 else address[0], "threads": 1,
                       "layers": LAYERS[stages][s], "speed": (0.7 if s % 3 == 2 else 1) / (longer[s] if longer else 1)})
    keys = {"job.name": "check", "model.kind": "gpt2", "model.blocks": int(LAYERS[stages][-1].rpartition("-")[2]) - 1, "model.heads": 2, "model.channels": 64, "model.context": 128, "data.tokenizer": "bytes",
            "data.train": str(folder / "text.txt"), "data.train_samples_max": 2 * MICRO * replicas * STEPS, "train.T": 128, "train.micro_batch": 2,
            "train.batch": 2 * MICRO * replicas, "train.epochs": EPOCHS, "train.lr": 1e-3, "pipeline.schedule": "1f1b", "pipeline.replicas": replicas,
            "pipeline.stages": places, "edges.forward.codec": "aqsgd", "edges.forward.bits": 4, "edges.backward.codec": "directq", "edges.backward.bits": 8,
            "reduce.codec": "q4", "link.rate_mbps": rate, "link.entropy": "off", "checkpoint.every": 0, "cache.kind": "memory",
            "security.keys": str(folder / "keys"), "output.path": str(folder / name), **more}
    if stages > 1:
        keys["edges.list"] = [{"edge": e, "rtt_ms": trip(stages, e, place, slow)} for e in range(stages - 1)]
    if replicas > 1:
        keys["link.rtt_ms"] = trip(stages, 0, place, slow)
    path = folder / f"{name}.yaml"
    path.write_text(json.dumps(tree(keys)))
    return path


def trip(stages, e, place, slow):
    """What the manifest says: nothing of near links."""
    ms = cities.trip_of(stages, e, place)
    return ms * slow if ms >= 1 else 0


def ran(*command, **options):
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL, timeout=PATIENCE, **options)
    if done.returncode != 0:
        sys.exit(f"scale: {' '.join(map(str, command[:4]))} ... ended with {done.returncode}: {done.stderr.strip()[-1500:]}")
    return done.stdout


def planned(build, folder, row, slow):
    """The plan where the slowest stage takes FORWARD_S for a micro-batch."""
    path = manifest(folder, "planned", row, row[2] * TCP_SHARE, slow)

    def plan(gflops):
        return json.loads(ran(build / "aqpipe", "plan", path, "--json", "--cores", 1, "--gflops", gflops))["time"]
    gflops = max(plan(1)["forward_s"]) / (FORWARD_S * slow)
    return plan(gflops), gflops


def planned_as_ran(build, folder, row, slow, time, gflops, steps):
    """The plan again, with passes as long as they were in the run: what a late wake-up adds to them is the machine's, and no error of a simulation of schedule and links."""
    stages, replicas = row[:2]
    longer = []
    for s in range(stages):
        took = statistics.mean(step["compute_ns"][rank(stages, s, w)] for step in steps for w in range(replicas)) * 1e-9
        longer.append(took / (MICRO * (time["forward_s"][s] + time["backward_s"][s])))
    path = manifest(folder, "as-ran", row, row[2] * TCP_SHARE, slow, longer)
    return json.loads(ran(build / "aqpipe", "plan", path, "--json", "--cores", 1, "--gflops", gflops))["time"]["step_s"], max(longer)


def daemon_of(build, folder, row, time, end):
    """The command of the daemon at that end, and what its environment has besides: the times that the plan has for its stage."""
    host, s = host_of(end), end % row[0]
    return [str(build / "aqpiped"), "--listen", f"{host}:7700", "--keys", str(folder / "keys"), "--host", host, "--port-file", str(folder / f"port-{end}")], {
        "AQPIPE_WORKER": str(build / "aqpipe_timed"), "TIMED_FORWARD_MS": str(1e3 * time["forward_s"][s]), "TIMED_BACKWARD_MS": str(1e3 * time["backward_s"][s])}


def make_keys(build, folder, row):
    hosts = [host_of(end) for end in range(row[0] * row[1])]
    ran(build / "aqpipe", "keys", "init", folder / "keys", "--job", "check", "--stages", len(hosts), "--hosts", ",".join(hosts))


def daemons(build, folder, row, time):
    """One at each end."""
    make_keys(build, folder, row)
    started = []
    for end in range(row[0] * row[1]):
        command, own = daemon_of(build, folder, row, time, end)
        with open(folder / f"daemon-{end}.log", "wb") as log:
            started.append(subprocess.Popen([str(WANLAB), "exec", str(end), *command], stdin=subprocess.DEVNULL, stdout=log, stderr=log, env={**os.environ, **own}))
    for end, daemon in enumerate(started):
        while not (folder / f"port-{end}").exists():
            if daemon.poll() is not None:
                sys.exit(f"scale: the daemon at end {end} ended: {(folder / f'daemon-{end}.log').read_text(errors='replace')[-500:]}")
            clock.sleep(0.1)
    return started


def inside(build, folder, name, slow):
    """At end 0 of the lab."""
    row = slowed(ROWS[name], slow)
    stages, replicas, rate, place, _ = row
    ran(WANLAB, "set", "--rate", rate, "--rtt", (NEAR if place == "cities" else place) * slow)
    for w in range(replicas):
        for e in range(stages - 1):
            if place == "cities":
                ran(WANLAB, "set", "--link", f"{rank(stages, e, w)}-{rank(stages, e + 1, w)}", "--rtt", cities.trip_of(stages, e, place) * slow)
    time, gflops = planned(build, folder, row, slow)
    started = daemons(build, folder, row, time)
    try:
        ran(build / "aqpipe", "launch", manifest(folder, "run", row, 0, slow), "--no-progress", "--restarts", 0)
    finally:
        for daemon in started:
            daemon.terminate()
        for daemon in started:
            daemon.wait(PATIENCE)
    print(json.dumps(compared(build, folder, name, row, slow, time, gflops)), flush=True)


def compared(build, folder, name, row, slow, time, gflops):
    """What the run in that folder took, and what was predicted."""
    stages, replicas = row[:2]
    lines = [json.loads(line) for line in (folder / "run" / "metrics.jsonl").read_text().splitlines()]
    steps = [line for line in lines if line["event"] == "step" and line["epoch"] > 0]
    seconds = [step["seconds"] for step in steps]
    late = sum(path.read_text(errors="replace").count("timed: ") for path in (folder / "run" / "logs").glob("*.log"))
    step_s = statistics.median(seconds)
    as_ran_s, longer = planned_as_ran(build, folder, row, slow, time, gflops, steps)
    return {"row": name, "workers": stages * replicas, "slow": slow, "step_s": round(step_s, 4), "predicted_s": round(time["step_s"], 4),
            "predicted/measured": round(time["step_s"] / step_s, 4), "as_ran/measured": round(as_ran_s / statistics.mean(seconds), 4), "longer": round(longer, 4), "steps": len(seconds),
            "least_s": round(min(seconds), 4), "most_s": round(max(seconds), 4), "late_passes": late, "passes": 2 * MICRO * stages * replicas * STEPS * EPOCHS,
            "binds": time["binds"]}


def check(tool, build, names, slow):
    """A lab a row. 77: this machine has no labs, with the reason."""
    if not (build / "aqpipe_timed").is_file():
        sys.exit(f"scale: there is no aqpipe_timed in {build}: it is built with the tests (cmake --preset test, --build build/test/bin)")
    os.environ["AQPIPE_BIN"] = str(build)
    tried = subprocess.run([str(WANLAB), "2", "--", "true"], capture_output=True, text=True, check=False)
    if tried.returncode != 0:
        print(f"scale: no lab here: {tried.stderr.strip()}", file=sys.stderr)
        return 77
    wrong = 0
    for name in names:
        stages, replicas = ROWS[name][:2]
        with tempfile.TemporaryDirectory(prefix="aqpipe-scale-") as folder:
            pathlib.Path(folder, "text.txt").write_text("the pipeline sends what changed and keeps what it has seen\n" * 2000)
            done = subprocess.run([str(WANLAB), str(stages * replicas), "--rate", "100", "--rtt", str(NEAR), "--", sys.executable, "-B", str(tool), "--build", str(build),
                                   "--inside", folder, "--row", name, "--slow", str(slow)], check=False, timeout=2 * PATIENCE)
        wrong |= done.returncode != 0
    return int(wrong)
