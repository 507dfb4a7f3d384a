"""Split learning with 64 clients: the server's memory and disk are those of the turns at once, not of the clients."""
import json
import os
import pathlib
import re
import threading

import jobs
from jobs import aqpipe, check, no_workers
from kit import ROOT
from split import CODED, Client, Server, begin, records, report, split

PARALLEL, FEW, MANY = 2, 4, 64
SERVER_MIB, CLIENT_KIB = 48, 512  # a server that waits; what each client may add: its plan, its connection (320 KiB of buffers), TLS
PROCESS_MIB = 60                 # of a turn's launcher, daemon and worker each, beside what the plan counts: libraries, stacks, TLS


def memory(pid, what):
    try:
        found = re.search(rf"^{what}:\s+(\d+) kB", pathlib.Path(f"/proc/{pid}/status").read_text(), re.M)
    except OSError:
        return 0
    return int(found.group(1)) * 1024 if found else 0


class Watch:
    """What the server's processes take, looked at while it runs."""

    def __init__(self, server):
        self.server, self.peak, self.turns, self.all, self.caches = server, 0, 0, 0, 0
        self.over = threading.Event()
        self.thread = threading.Thread(target=self.look, daemon=True)
        self.thread.start()

    def look(self):
        pid, caches = self.server.process.pid, ROOT / self.server.path.stem / "clients"
        while not self.over.wait(0.05):
            self.peak = max(self.peak, memory(pid, "VmHWM"))
            parts = [[each for each in jobs.descendants(pid, word)] for word in ("split-turn", "worker", "aqpiped")]
            # A list takes a moment to make: a turn that ended in it can be in it with its successor.
            self.turns = max(self.turns, len(set(parts[0]) & set(jobs.descendants(pid, "split-turn"))))
            self.all = max(self.all, sum(memory(each, "VmRSS") for group in parts for each in set(group)))
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
