"""Split learning over a wide-area network (tools/wanlab): a server and eight clients, each behind a line of its own."""
import json
import os
import statistics
import subprocess
import sys

import jobs
from jobs import check, no_workers
from kit import ROOT
from split import Client, Server, begin, of_client, records, report, split
from wan import WANLAB, tell

CLIENTS, RTT_MS, RATE_MBPS, SAMPLES = 8, 80, 20, 1024
# link.rate_mbps: a plan that knows the rate has as few micro-batches in flight as hide the distance, and both ways of the line busy at once.
KEYS = {"edges.forward.codec": "aqsgd", "edges.forward.bits": 4, "edges.backward.codec": "directq", "edges.backward.bits": 4,
        "train.batch": SAMPLES, "train.micro_batch": 32, "split.rounds": 1, "split.epochs": 3, "split.wait": "60s", "model.width": 16,
        "link.host": "10.79.0.1", "data.heldout_samples_max": 32, "checkpoint.every": "3 epochs", "train.evaluate_every": "3 epochs",
        "link.rtt_ms": RTT_MS, "link.rate_mbps": RATE_MBPS, "cache.direct": "false"}


def run(name, rate, rtt):
    tell("--rate", rate, "--rtt", rtt)
    server = Server(split(name, clients=CLIENTS, **{**KEYS, "split.server": "10.79.0.1:0"}), at=(WANLAB, "exec", "0"))
    clients = [Client(server, f"c{i}", at=(WANLAB, "exec", str(i + 1)), host="10.79.0.1") for i in range(CLIENTS)]
    for client in clients:
        client.end()
    server.end()
    check(all(line["turns"] == 1 and line["missed"] == 0 for line in report(name)["clients"]), f"{report(name)}")
    return {f"c{i}": of_client(name, f"c{i}") for i in range(CLIENTS)}


def bound_s(line):
    """Of a step: the busier way of the client's line, of what went over it, packed."""
    forward, backward = ([bytes_ * (packed or 0) for bytes_, packed in zip(line[f"{way}_bytes"], line[f"{way}_packed"])] for way in ("forward", "backward"))
    return max(forward[0] + backward[2], backward[1] + forward[1]) * 8 / RATE_MBPS * 1e-6


def scenario_split_wan():
    """Eight clients at 80 ms and 20 Mbit/s: the losses of a near network, and how near the steps come to what the line allows."""
    if not os.environ.get("AQPIPE_WANLAB"):
        tried = subprocess.run([WANLAB, "2", "--", "true"], capture_output=True, text=True, timeout=jobs.PATIENCE)
        if tried.returncode != 0:
            print(f"skipped: {tried.stderr.strip()}")
            sys.exit(77)
        done = subprocess.run([WANLAB, str(CLIENTS + 1), "--rate", "100", "--rtt", "0.2", "--", sys.executable, *sys.argv], timeout=1000)
        check(done.returncode == 0, f"in the lab: {done.returncode}")
        return
    begin(*[f"c{i}" for i in range(CLIENTS)])
    for i in range(CLIENTS):
        records(f"c{i}", SAMPLES, i)
    near, far = run("near", 1000, 0.2), run("far", RATE_MBPS, RTT_MS)
    check({who: [line["loss"] for line in lines] for who, lines in near.items()} ==
          {who: [line["loss"] for line in lines] for who, lines in far.items()}, "the losses are not those of a near network")
    kept = [line for lines in far.values() for line in lines[1:]]  # the first has keyframes
    ratios = [bound_s(line) / line["seconds"] for line in kept]
    print(json.dumps({"clients": CLIENTS, "rtt ms": RTT_MS, "Mbit/s": RATE_MBPS, "step s": round(statistics.median(line["seconds"] for line in kept), 3),
                      "bound s": round(statistics.median(map(bound_s, kept)), 3), "bound/measured": round(statistics.median(ratios), 3),
                      "least": round(min(ratios), 3), "most": round(max(ratios), 3),
                      "near step s": round(statistics.median(line["seconds"] for lines in near.values() for line in lines[1:]), 3)}), flush=True)
    no_workers("split_wan")
