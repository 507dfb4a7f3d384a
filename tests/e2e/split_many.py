"""Split learning with many clients: the server's memory and disk are those of the turns at once, not of the clients."""
import json
import os
import pathlib
import re
import threading
import time

import jobs
from jobs import aqpipe, check, no_workers
from kit import ROOT
from split import CODED, STAGES, Client, Server, begin, records, report, split

PARALLEL, FEW, MANY = 2, 4, 64
SERVER_MIB, CLIENT_KIB = 48, 512  # a server that waits; what each client may add: its plan, its connection (320 KiB of buffers), TLS
FILES_A_CLIENT = 24
PROCESS_MIB = 60                 # of a turn's launcher, daemon and worker each, beside what the plan counts: libraries, stacks, TLS


def memory(pid, what):
    try:
        found = re.search(rf"^{what}:\s+(\d+) kB", pathlib.Path(f"/proc/{pid}/status").read_text(), re.M)
    except OSError:
        return 0
    return int(found.group(1)) * 1024 if found else 0


def children(pid):
    """The kernel's own list: at one moment, and quickly where much else runs."""
    try:
        return pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return []


class Watch:
    """What the server's processes take, looked at while it runs."""

    def __init__(self, server):
        self.server, self.peak, self.turns, self.all, self.caches, self.files = server, 0, 0, 0, 0, 0
        self.over = threading.Event()
        self.thread = threading.Thread(target=self.look, daemon=True)
        self.thread.start()

    def look(self):
        pid, caches = self.server.process.pid, ROOT / self.server.path.stem / "clients"
        while not self.over.wait(0.05):
            self.peak = max(self.peak, memory(pid, "VmHWM"))
            try:
                self.files = max(self.files, len(os.listdir(f"/proc/{pid}/fd")))
            except OSError:
                pass
            launchers = children(pid)  # a turn's each, with a daemon, which has a worker
            self.turns = max(self.turns, len(launchers))
            daemons = [daemon for launcher in launchers for daemon in children(launcher)]
            self.all = max(self.all, sum(memory(each, "VmRSS") for each in [*launchers, *daemons, *(worker for daemon in daemons for worker in children(daemon))]))
            bytes_ = 0
            for path in caches.glob("*/cache/stage-1/*"):
                try:
                    bytes_ += os.stat(path).st_blocks * 512
                except OSError:
                    pass
            self.caches = max(self.caches, bytes_)

    def end(self):
        self.over.set()
        self.thread.join()


def figures(count, keys):
    """One round of so many clients."""
    names = [f"c{i}" for i in range(count)]
    server = Server(split(f"of-{count}", clients=count, **keys))
    watch = Watch(server)
    clients = [Client(server, name) for name in names]
    for client in clients:
        client.end()
    server.end()
    watch.end()
    said = report(f"of-{count}")
    check(len(said["clients"]) == count and all(line["turns"] == 1 and line["missed"] == 0 for line in said["clients"]), f"{said}")
    plan = json.loads(aqpipe("plan", ROOT / f"of-{count}/turns/c0.yaml", "--json").stdout)
    return watch, plan["stages"][1]


def scenario_split_many():
    """64 clients, two turns at once: the server takes what two turns take, and a little for each that waits; caches stay below split.cache_max."""
    begin(*[f"c{i}" for i in range(MANY)])
    for i in range(MANY):
        records(f"c{i}", 40, i)
    one = 6 << 20  # of a cache's files: room for four messages of each sample and cut
    keys = {**CODED, "split.rounds": 1, "split.epochs": 1, "split.mode": "splitfed1", "split.parallel": PARALLEL, "split.wait": "60s",
            "split.cache_max": 2 * one, "train.batch": 20}
    few, _ = figures(FEW, keys)
    many, stage = figures(MANY, keys)
    planned = PARALLEL * (stage["memory_bytes"] + 3 * (PROCESS_MIB << 20))
    print(json.dumps({"clients": MANY, "turns at once": many.turns, "server MiB": round(many.peak / 2**20, 1),
                      f"server MiB, {FEW} clients": round(few.peak / 2**20, 1), "turns MiB": round(many.all / 2**20, 1),
                      f"turns MiB, {FEW} clients": round(few.all / 2**20, 1), "bound of turns MiB": round(planned / 2**20, 1),
                      "caches MiB": round(many.caches / 2**20, 1)}), flush=True)
    check(1 <= many.turns <= PARALLEL, f"{many.turns} turns at once")
    check(many.peak < (SERVER_MIB << 20) + MANY * (CLIENT_KIB << 10), f"the server took {many.peak} bytes, with {FEW} clients {few.peak}")
    check(many.peak - few.peak < (MANY - FEW) * (CLIENT_KIB << 10), f"{many.peak - few.peak} bytes more for {MANY - FEW} clients")
    check(many.all < planned, f"turns took {many.all} bytes, planned are {planned}")
    # The limit, those of turns under way, and those of turns that have ended since it was looked at.
    check(many.caches < 2 * one + 2 * PARALLEL * one, f"caches took {many.caches} bytes")
    no_workers("split_many")


def scenario_split_crowd():
    """24 clients, or AQ_CLIENTS, of which half take part in a round and every eighth leaves for good: those that are there train, memory and files are bounded."""
    count, rounds = int(os.environ.get("AQ_CLIENTS", 24)), 2
    parallel, half = (32 if count > 64 else 4), -(-count // 2)
    names = [f"c{i:03}" for i in range(count)]
    begin(*names)
    for i, name in enumerate(names):
        records(name, 20, i)
    keys = {**CODED, "split.mode": "splitfed1", "split.parallel": parallel, "split.participation": 0.5, "split.wait": "5s", "train.batch": 20}
    gpu = {"pipeline.stages": STAGES.replace("2-11", "2-11, device: cuda"), "split.participation": 1}
    for tag, changes, wanted in (("gpu", gpu, f"{parallel} turns at once cannot have stage 1 on one GPU"),
                                 ("step", {**gpu, "split.mode": "global", "split.parallel": 1}, f"{count if count <= 64 else 3} turns at once cannot have stage 1 on one GPU"),
                                 ("wide", {"split.mode": "global", "split.parallel": 1, "split.participation": 1, "split.clients": 65}, "global trains all clients at once, at most 64"),
                                 ("more", {"split.clients": 257}, "must be a whole number, 0 to 256 clients")):
        done = aqpipe("plan", split(f"no-{tag}", clients=changes.pop("split.clients", count if count <= 64 else 3), **{**keys, **changes}))
        check(done.returncode == 2 and wanted in done.stderr, f"{tag}: {done.returncode}, {done.stderr}")
    started = time.time()
    server = Server(split("crowd", rounds=rounds, epochs=1, clients=count, **keys))
    watch = Watch(server)
    clients = {name: Client(server, name, "--no-progress") for name in names}
    leave = names[::8]
    server.await_text("round 1 of 2: ", patience=jobs.PATIENCE + count)
    for name in leave:
        clients[name].kill()
    for name in names:
        if name not in leave:
            clients[name].process.wait(jobs.PATIENCE + 4 * count)
            said = clients[name].end()
            check("error" not in said or "trained nothing" in said, f"{name}: {said}")
    server.end()
    watch.end()
    seconds = time.time() - started
    lines = {line["name"]: line for line in report("crowd")["clients"]}
    check(sorted(lines) == names, f"{len(lines)} clients")
    for name, line in lines.items():
        check(line["turns"] + line["missed"] + line["rested"] == rounds and (name in leave or line["missed"] == 0), f"{name}: {line}")
    sums = {key: sum(line[key] for line in lines.values()) for key in ("turns", "missed", "rested")}
    check(sums["turns"] + sums["missed"] == rounds * half and sums["turns"] >= rounds * half - rounds * len(leave) and sums["missed"] > 0, f"{sums}")
    files = [path for path in (ROOT / "crowd").rglob("*") if path.is_file()]
    left = [path for path in files if path.parent.parent.name == "round"]
    stage = json.loads(aqpipe("plan", ROOT / f"crowd/turns/{next(name for name in names if lines[name]['turns'])}.yaml", "--json").stdout)["stages"][1]
    planned = parallel * (stage["memory_bytes"] + 3 * (PROCESS_MIB << 20))
    print(json.dumps({"clients": count, "turns at once": watch.turns, **sums, "s": round(seconds, 1), "server MiB": round(watch.peak / 2**20, 1),
                      "turns MiB": round(watch.all / 2**20, 1), "bound of turns MiB": round(planned / 2**20, 1), "descriptors": watch.files,
                      "files a client": round(len(files) / count, 1)}), flush=True)
    check(1 <= watch.turns <= parallel, f"{watch.turns} turns at once")
    check(watch.peak < (SERVER_MIB << 20) + count * (CLIENT_KIB << 10), f"the server took {watch.peak} bytes")
    check(watch.all < planned, f"turns took {watch.all} bytes, planned are {planned}")
    check(watch.files < count + 3 * parallel + 32, f"{watch.files} descriptors")
    check(not left and len(files) < FILES_A_CLIENT * count + 32, f"{len(files)} files, of averaged turns {left}")
    no_workers("split_crowd")
