"""`aqpipe plan --probe`: what is between the daemons of a job, measured in the lab within bounds of what the lab was asked for; and what
is wrong there: a way that is blocked, packets that vanish, a certificate that is no good any more, an end that moves, a daemon that has a job."""
import json
import os
import pathlib
import subprocess
import sys
import threading
import time

import jobs
from far import scenario_in_the_lab
from jobs import aqpipe, check
from kit import BIN, ROOT
from wan import ENDS, connections, daemons, manifest_at_ends, tell

# Of each pair: round trip in ms, Mbit/s up and down, percent lost, as the lab is told.
ASKED = {(0, 1): (80, 100, 100, 0.5), (1, 2): (20, 50, 10, 0)}


def probe(path, want, *arguments):
    done = aqpipe("plan", path, "--probe", "--json", *arguments)
    check(done.returncode == want, f"plan --probe ended with {done.returncode}, wanted {want}: {done.stdout[-1500:]}{done.stderr[-3000:]}")
    plan = json.loads(done.stdout)
    return plan, {(pair["from"], pair["to"]): pair for pair in plan["probe"]}


def within(what, got, least, most):
    check(least <= got <= most, f"{what}: {got}, wanted {least} to {most}")


def found(pair, *words):
    text = json.dumps(pair["findings"])
    check(all(word in text for word in words), f"{words} are not in {text}")


def figures(path):
    """All that a pair has, within what a busy machine does to it; and the plan is made with it."""
    plan, pairs = probe(path, 0)
    check(set(pairs) == set(ASKED), f"pairs {set(pairs)}")
    for ends, (rtt, up, down, lost) in ASKED.items():
        pair, name = pairs[ends], f"{ends}"
        check(pair["outcome"] == "measured" and pair["edge"] == ends[0], f"{pair}")
        # One under BBR: a probe has no sums, which would be counted as delivered.
        check(pair["streams"] == 1, f"{pair}")
        # The least is the line's; whatever else is there waits for a processor, too: the lab, TLS and both ends share two.
        # A packet may leave early with one that is due, by an 80th of its way, 0.05 to 0.5 ms (wan_line.c).
        early = 2 * min(max(rtt / 2 / 80, 0.05), 0.5)
        within(f"{name} rtt min", pair["rtt_ms"]["min"], rtt - early, rtt * 1.05 + 4)
        within(f"{name} rtt median", pair["rtt_ms"]["median"], rtt - early, rtt * 1.25 + 15)
        for way, asked in (("up", up), ("down", down)):
            within(f"{name} rate {way}", pair["rate_mbps"][way], asked * (0.3 if lost else 0.6), asked)
            within(f"{name} loss {way}", pair["loss"][way] * 100, lost * 0.3, lost * 2.5 + 0.05)
        check(pair["congestion"]["up"] == ("bbr" if rtt >= 5 else pair["congestion"]["up"]), f"{pair['congestion']}")
    found(pairs[1, 2], "its directions differ")
    found(pairs[0, 1], "the round trip is ", "declared are 0.0", "rtt_ms: ")
    within("the plan's losses", plan["edges"][0]["loss"] * 100, 0.1, 1.5)
    within("the plan's distances", plan["edges"][0]["rtt_ms"], 80, 115)
    within("the plan's rate", plan["time"]["rate_mbps"], 6, 10)
    check(not list(ROOT.glob("probed/*")), "a probe has written a run folder")


def manifest_of(name, ends):
    """A stage at each of these ends; whoever asks, at end 0, reaches them whatever is between them."""
    each = 6 // len(ends)
    stages = ", ".join(f"{{layers: '{i * each}-{i * each + each - 1}', host: 'tcp://10.79.0.{end + 1}:7700', "
                       f"address: '10.79.0.{end + 1}:7800'}}" for i, end in enumerate(ends))
    return jobs.manifest(name, **{"pipeline.stages": f"[{stages}]", "security.keys": str(ROOT / "keys")})


def blocked(path):
    """A way that is blocked is named, after the time that a connection is given."""
    tell("--rtt", 1, "--rate", 100, "--loss", 0, "--link", "1-2", "--loss", "100")
    _, pairs = probe(path, 1)
    check(pairs[0, 1]["outcome"] == "not measured", f"blocked: {pairs}")
    found(pairs[0, 1], "10.79.0.3:7800", "firewalls", "gave up")


def hole(path):
    """A way on which large packets vanish is named."""
    tell("--rtt", 1, "--rate", 100, "--loss", 0, "--link", "1-2", "--mtu-blackhole", "1200")
    _, pairs = probe(path, 1)
    check(pairs[0, 1]["outcome"] == "mtu black hole" and pairs[0, 1]["segment"] <= 1000, f"black hole: {pairs[0, 1]}")
    found(pairs[0, 1], "MTU black hole", "tcp_mtu_probing")
    tell("--link", "1-2", "--mtu-blackhole", "0")


def moves(path):
    """An end that is 20 ms away when it is measured first, and 400 at the end."""
    tell("--rtt", 1, "--rate", 100, "--loss", 0, "--link", "1-2", "--rtt", "20")

    def move():  # in the midst of what is measured, however long the start took
        deadline = time.monotonic() + jobs.PATIENCE
        while connections(1, 7800) == 0 and time.monotonic() < deadline:
            time.sleep(0.05)
        time.sleep(4)
        tell("--link", "1-2", "--rtt", "400")

    threading.Thread(target=move).start()
    _, pairs = probe(path, 0)
    found(pairs[0, 1], "the round trip has changed while it was measured")
    tell("--rtt", "1")


def refusals(path):
    """A certificate that was revoked meanwhile, and one that is none of the job's: each is named, and nothing is measured."""
    done = aqpipe("keys", "revoke", ROOT / "keys", "stage-1")
    check(done.returncode == 0, done.stderr)
    _, pairs = probe(path, 1)
    found(pairs[0, 1], "stage 1", "revoked")
    other = ROOT / "other"
    done = aqpipe("keys", "init", other, "--job", "e2e", "--stages", 2)
    check(done.returncode == 0, done.stderr)
    (ROOT / "keys/stage-1.pem").write_bytes((other / "stage-1.pem").read_bytes())
    _, pairs = probe(path, 1)
    found(pairs[0, 1], "stage 1", "stage-1.pem")


def busy(path):
    """A daemon that has a job is not asked to measure beside it; whoever asks hears whose it is."""
    job = subprocess.Popen([BIN / "aqpipe", "launch", manifest_at_ends("busy", **{"train.epochs": 1000}), "--no-progress", "--json"],
                           stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL)
    try:
        for line in job.stdout:
            if json.loads(line).get("event") == "step":
                break
        done = aqpipe("plan", path, "--probe")
        check(done.returncode == 1 and "it runs the job 'busy'" in done.stderr, f"{done.returncode} {done.stderr}")
    finally:
        job.kill()
        job.wait(jobs.PATIENCE)


def workers():
    """Processes `aqpipe worker` of this build."""
    found = []
    for entry in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            words = (entry / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if words[1:2] == [b"worker"] and words[0].startswith(str(BIN).encode()):
            found.append(int(entry.name))
    return found


def abandoned(path):
    """Whoever asks is killed in the midst: daemons end their workers, and measure for the next."""
    asker = subprocess.Popen([BIN / "aqpipe", "plan", path, "--probe"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                             stdin=subprocess.DEVNULL)
    deadline = time.monotonic() + jobs.PATIENCE
    while len(workers()) < 2 and time.monotonic() < deadline:
        time.sleep(0.05)
    time.sleep(1)
    asker.kill()
    asker.wait()
    while workers() and time.monotonic() < deadline:
        time.sleep(0.05)
    check(not workers(), f"workers are left of a probe that was killed: {workers()}")


def inside():
    with daemons():
        two = manifest_of("two", (1, 2))
        parts = {"probe": ((figures, manifest_of("probed", (0, 1, 2))), (abandoned, two), (busy, two), (refusals, two)),
                 "probe_blocked": ((blocked, two),), "probe_trouble": ((hole, two),), "probe_moves": ((moves, two),)}
        for part, path in parts[sys.argv[2]]:
            began = time.monotonic()
            part(path)
            print(f"{part.__name__}: {time.monotonic() - began:.1f} s", flush=True)


def here():
    """Without daemons: on one machine the workers are its own, here replicas, and their link is measured."""
    path = jobs.manifest("alone", **{"pipeline.stages": 1, "pipeline.replicas": 2})
    _, pairs = probe(path, 0)
    check(set(pairs) == {(0, 1)} and "edge" not in pairs[0, 1], f"pairs {pairs}")
    for pair in pairs.values():
        check(pair["outcome"] == "measured" and pair["rate_mbps"]["up"] > 20 and pair["rtt_ms"]["min"] < 50, f"{pair}")
    jobs.no_workers("plan --probe")
    done = aqpipe("plan", jobs.manifest("single", **{"pipeline.stages": 1}), "--probe")
    check(done.returncode == 2 and "has no links" in done.stderr, f"{done.returncode} {done.stderr}")
    dead = jobs.manifest("dead", **{"pipeline.stages": "[{host: 'tcp://127.0.0.1:1'}, {host: 'tcp://127.0.0.1:1'}]"})
    done = aqpipe("plan", dead, "--probe")  # nothing was measured: one line with the cause, and no word of a plan
    check(done.returncode == 1 and done.stderr.count("cannot reach the daemon at tcp://127.0.0.1:1") == 1, f"{done.returncode} {done.stderr}")
    check(done.stdout == "", f"a table of nothing: {done.stdout}")


def scenario_probe():
    """Rate, distance and loss of each pair, and what daemons do that are busy, abandoned or asked with a wrong certificate."""
    if not os.environ.get("AQPIPE_WANLAB"):
        here()
    in_lab()


def scenario_probe_blocked():
    """A way that a firewall blocks: it costs the time that a connection is given."""
    in_lab()


def scenario_probe_trouble():
    """What is wrong between two ends is named: a black hole."""
    in_lab()


def scenario_probe_moves():
    """An end that moves while it is measured is named."""
    in_lab()


def in_lab():
    lab = [word for (a, b), (rtt, up, down, lost) in ASKED.items() for word in ("--link", f"{a}-{b}", "--rtt", rtt, "--rate", f"{up}/{down}", "--loss", lost)]
    if scenario_in_the_lab(ENDS, *lab):
        inside()
