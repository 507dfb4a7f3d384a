"""Split learning: the ledger of a client has every release that the server got, whatever happens between the two: a line that is cut, a client that is killed, a loss of power."""
import collections
import json
import pathlib
import signal
import struct
import sys

import jobs
from far import scenario_in_the_lab
from jobs import check, no_workers
from kit import ROOT, end
from power import Power
from split import Client, Server, begin, of_client, seen, split
from split_epsilon import KEYS
from split_wan import LAB_S, RATE_MBPS, RTT_MS
from wan import WANLAB, tell

CUT_OF = {1: 0, 2: 1, 3: 0}  # kinds of split.capture: which column of the ledger
# A start from another step leaves what was seen before in a file of its own.
COUNTED = {**KEYS, "split.capture": "64MiB", "checkpoint.every": "2 steps", "split.wait": "60s"}
STEPS, SAMPLES = 12, 60  # of a client in two rounds of two epochs; in a


def visits(path):
    """{cut: {sample: count}} of a ledger, by docs/FORMAT.md."""
    data, at, found = path.read_bytes(), 48, (collections.Counter(), collections.Counter())
    while at + 40 <= len(data):
        _, _, count, cut = struct.unpack_from("<QdII", data, at)
        if at + 40 + 4 * count > len(data):
            break  # its writer was killed
        found[cut].update(struct.unpack_from(f"<{count}I", data, at + 40))
        at += 40 + 4 * count
    return found


def sent(name, cut):
    """The same of what the server got, for training and for held-out samples. cut: as in seen."""
    found = (collections.Counter(), collections.Counter()), (collections.Counter(), collections.Counter())
    for kind, _, _, _, sample, _ in seen(f"{name}/clients/a", cut=cut):
        found[kind == 3][CUT_OF[kind]][sample] += 1
    return found


def counted(name, folder, ledgers, exactly=False, cut=False):
    """Each sample's releases are in the ledger once or more: the most that one has more. folder: the client's; ledgers: theirs; cut: the server's worker may still be writing."""
    known, most = json.loads((folder / "privacy.json").read_text())["ledgers"], 0
    for of, got in zip(("training", "heldout"), sent(name, cut)):
        path = ledgers / f"visits-{known[of]['digest']}.ledger"
        have = visits(path)
        for cut in range(2):
            missing = {sample: (count, have[cut][sample]) for sample, count in got[cut].items() if count > have[cut][sample]}
            check(not missing, f"{name}: {path.name}, cut {cut}: sent and counted, by sample: {missing}")
            most = max(most, *[have[cut][sample] - got[cut][sample] for sample in have[cut]], 0)
        if exactly and of == "training":  # of held-out samples the last pass, by the codec, is not written
            check(have == got, f"{name}: {path.name}: {have} counted, {got} sent")
    return most


def scenario_split_wan_epsilon():
    """At 80 ms and 20 Mbit/s: undisturbed, with stale gradients, with a line that is cut until both ends give up, with a client that is killed between ledger and send: what left is counted."""
    if not scenario_in_the_lab(2, limit_s=LAB_S):
        return
    begin("a")
    keys = {**COUNTED, "split.server": "10.79.0.1:0", "link.host": "10.79.0.1", "link.rtt_ms": RTT_MS}
    soon = {"control.silence_max": "3s", "control.stall_max": "3s"}  # only where the turn breaks off: elsewhere a machine that stands still is no fault
    tell("--rate", RATE_MBPS, "--rtt", RTT_MS)
    for name, stops, more in (("whole", False, {}), ("stale", False, {"train.staleness": 1}), ("cut", True, soon), ("killed", True, soon)):
        server = Server(split(name, rounds=2, epochs=2, **keys, **more), at=(WANLAB, "exec", "0"))

        def start(**options):
            return Client(server, "a", "--set", f"split.privacy.ledger={ROOT}/ledgers-{name}", at=(WANLAB, "exec", "1"), host="10.79.0.1", **options)
        hold = jobs.Hold(6, phase="noised")
        one = start(environment=hold.environment() if stops else None)
        if stops:
            hold.reached(one.process)
            tell("--link", "0-1", "--loss", 100)
        if name == "cut":
            hold.release()
            server.await_text("has left")
            tell("--link", "0-1", "--loss", 0)
        elif name == "killed":
            one.kill()
            hold.release()
            tell("--link", "0-1", "--loss", 0)
            one = start()
        said = one.end()
        server.end()
        over = counted(name, ROOT / f"{name}-a", ROOT / f"ledgers-{name}", exactly=not stops)
        steps = [line["step"] for line in of_client(name, "a")]
        check(steps == list(range(1, STEPS + 1)), f"{name}: steps {steps}")
        check(over >= (2 if stops else 1), f"{name}: {over} visits more than were sent: {said}")
    no_workers("split_wan_epsilon")


def watched(pid, power):
    """Is it a process of the client, whose disk loses its power?"""
    try:
        return f"POWER_LOSS_ROOT={power.folder}".encode() in pathlib.Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return False


def scenario_split_epsilon_power():
    """Power fails at a client in mid-step: what its disk has of the ledger is what left, or more, and the client goes on with it."""
    if jobs.MEMORY not in ROOT.parents:
        print("skipped: confined workers can write the store only in /dev/shm")
        sys.exit(77)
    begin("a")
    for seed, mixed in ((1, False), (2, True)):
        name = f"power{seed}"
        power = Power(ROOT / f"disk{seed}", seed)
        server = Server(split(name, rounds=2, epochs=2, **COUNTED))

        def start(hold=None):
            ledger = f"split.privacy.ledger={ROOT}/disk{seed}/ledgers"
            environment = {**power.environment(), **(hold.environment() if hold else {})}
            return Client(server, "a", "--set", ledger, folder=ROOT / f"disk{seed}/client", environment=environment)
        losses, place = 0, (ROOT / f"disk{seed}/client", ROOT / f"disk{seed}/ledgers")
        for step, rank, phase in ((3, 0, "noised"), (6, 2, "noised"), (8, 0, "begin"), (10, 2, "end")):
            hold = jobs.Hold(step, phase=phase, rank=rank)
            one = start(hold)
            hold.reached(one.process)
            mine = [pid for pid, *_ in jobs.ours() if watched(pid, power)]
            for how in (signal.SIGSTOP, signal.SIGSTOP, signal.SIGKILL):
                if how == signal.SIGKILL:
                    power.off()
                for pid in mine:
                    end(int(pid), how)
            hold.release()
            one.process.communicate(timeout=jobs.PATIENCE)
            server.await_text("has left", losses + 1)
            power.on(mixed)
            for key in (ROOT / f"disk{seed}").rglob("seal.key"):
                key.chmod(0o600)  # what is made from the store has no modes
            losses += 1
            counted(name, *place, cut=True)
        start().end()
        server.end()
        counted(name, *place)
        check(len(of_client(name, "a")) >= STEPS, f"{name}: {of_client(name, 'a')}")
    no_workers("split_epsilon_power")
