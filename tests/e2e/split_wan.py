"""Split learning over a wide-area network (tools/wanlab): a server and eight clients, each behind a line of its own.

split_wan has three clients with a quarter of the samples. split_wan_long (label long, 5 minutes) has eight; with AQ_WAN_LONG=1 (a quarter of
an hour more) also turns of 24 steps, with the codecs of examples/split-cifar10, at two and at eight micro-batches a step.
AQ_WAN_CLIENTS=N: of so many clients."""
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

SHORT = sys.argv[2] != "split_wan_long"
CLIENTS, SAMPLES = int(os.environ.get("AQ_WAN_CLIENTS", 3 if SHORT else 8)), 256 if SHORT else 1024
RTT_MS, RATE_MBPS = 80, 20
LONG_SAMPLES, LONG_BATCH = 2048, 256
# link.rate_mbps: a plan that knows the rate has as few micro-batches in flight as hide the distance, and both ways of the line busy at once.
KEYS = {"edges.forward.codec": "aqsgd", "edges.forward.bits": 4, "edges.backward.codec": "directq", "edges.backward.bits": 4,
        "train.batch": SAMPLES, "train.micro_batch": 32, "split.rounds": 1, "split.epochs": 3, "split.wait": "60s", "model.width": 16,
        "link.host": "10.79.0.1", "data.heldout_samples_max": 32, "checkpoint.every": "3 epochs", "train.evaluate_every": "3 epochs",
        "link.rtt_ms": RTT_MS, "link.rate_mbps": RATE_MBPS, "cache.direct": "false"}


# As many bytes a step, and their shares by cut and way, as the example's ResNet-34 has; little to compute.
LONG = {"model.width": 64, "model.levels": 3, "pipeline.stages": "[{layers: 0-1, dials: true}, {layers: 2-7}, {layers: 8-10, dials: true}]",
        "train.batch": LONG_BATCH, "edges.forward.bits": 2, "edges.backward.bits": 8, "edges.backward.top_k": 0.2}
TRIPS_S = 4 * RTT_MS / 2 * 1e-3  # 2 (P - 1) one-way trips, as the bound of `aqpipe bench wan` has them
ON_WIRE = 1500 / 1448


def run(name, rate, rtt, clients=CLIENTS, **changes):
    """Lines of steps by client, and how long a turn took, from its offer to the next one's (of the last: to the end)."""
    tell("--rate", rate, "--rtt", rtt)
    server = Server(split(name, clients=clients, **{**KEYS, "split.server": "10.79.0.1:0", **changes}), at=(WANLAB, "exec", "0"))
    started = [Client(server, f"c{i}", at=(WANLAB, "exec", str(i + 1)), host="10.79.0.1") for i in range(clients)]
    for client in started:
        client.end()
    server.end()
    check(all(line["turns"] == 1 and line["missed"] == 0 for line in report(name)["clients"]), f"{report(name)}")
    offered = sorted((path.stat().st_mtime, path.stem) for path in (ROOT / name / "turns").glob("*.yaml"))
    ends = [time for time, _ in offered[1:]] + [(ROOT / name / "report.json").stat().st_mtime]
    return {f"c{i}": of_client(name, f"c{i}") for i in range(clients)}, {who: end - begin for (begin, who), end in zip(offered, ends)}


def ways(lines):
    """Bytes up and down the client's line, packed."""
    up = down = 0
    for line in lines:
        forward, backward = ([bytes_ * (1 if packed is None else packed) for bytes_, packed in zip(line[f"{way}_bytes"], line[f"{way}_packed"])]
                             for way in ("forward", "backward"))
        up, down = up + forward[0] + backward[2], down + backward[1] + forward[1]
    return up, down


def bytes_s(*parts):
    """Of the busier way of the client's line."""
    return max(map(sum, zip(*parts))) * 8 / RATE_MBPS * 1e-6


def files(name, who):
    """Of its ends: they go down before a turn, and up after it."""
    size = sum((ROOT / f"{name}-{who}" / "begin" / f"stage-{rank}.safetensors").stat().st_size for rank in (0, 2))
    return size, size


def tell_ratios(name, clients, turns, stale=0, **more):
    """Of steps without keyframes: from the end of the step before them to the last one's, for with staleness one's bytes go in another's time."""
    rows = []
    for who, lines in clients.items():
        cold = sum(sum(line["keyframes"]) > 0 for line in lines)
        warm, seconds = lines[cold:], lines[-1]["time"] - lines[cold - 1]["time"]
        busy = bytes_s(ways(warm))
        rows.append({"step s": seconds / len(warm), "bytes s": busy / len(warm), "bytes/measured": busy / seconds,
                     "bytes and trips/measured": (busy * ON_WIRE + len(warm) * TRIPS_S / (1 + stale)) / seconds,  # two steps share them
                     "turn s": turns[who], "turn bytes/measured": bytes_s(ways(lines), files(name, who)) / turns[who]})
    middle = {key: round(statistics.median(row[key] for row in rows), 3) for key in rows[0]}
    ratios = sorted(row["bytes/measured"] for row in rows)
    print(json.dumps({"run": name, "clients": len(clients), "rtt ms": RTT_MS, "Mbit/s": RATE_MBPS, "staleness": stale, **more, "steps a turn": len(lines), **middle,
                      "least": round(ratios[0], 3), "most": round(ratios[-1], 3)}), flush=True)


def losses_of(run_):
    return {who: [line.get("loss") for line in lines] for who, lines in run_[0].items()}  # none where a client had no part of the batch


def scenario_split_wan_long():
    """The same, of eight clients with four times the samples."""
    scenario_split_wan()


def scenario_split_wan():
    """Three clients at 80 ms and 20 Mbit/s: the losses of a near network, and how near steps and turns come to what the line allows; with staleness, too. With global sampling the losses alone."""
    if not os.environ.get("AQPIPE_WANLAB"):
        tried = subprocess.run([WANLAB, "2", "--", "true"], capture_output=True, text=True, timeout=jobs.PATIENCE)
        if tried.returncode != 0:
            print(f"skipped: {tried.stderr.strip()}")
            sys.exit(77)
        done = subprocess.run([WANLAB, str(CLIENTS + 1), "--rate", "100", "--rtt", "0.2", "--", sys.executable, *sys.argv], timeout=3000)
        check(done.returncode == 0, f"in the lab: {done.returncode}")
        return
    begin(*[f"c{i}" for i in range(CLIENTS)])
    for i in range(CLIENTS):
        records(f"c{i}", SAMPLES, i)
    near = run("near", 1000, 0.2)
    for name, keys in (("far", {}), ("far-stale", {"train.staleness": 1})):
        far = run(name, RATE_MBPS, RTT_MS, **keys)
        tell_ratios(name, *far, stale=len(keys))
        check(keys or losses_of(near) == losses_of(far), "the losses are not those of a near network")
        check(not keys or losses_of(near) != losses_of(far), "staleness changes nothing: no test")
    together = [run(f"global-{name}", rate, rtt, **{"split.mode": "global"}) for name, rate, rtt in (("near", 1000, 0.2), ("far", RATE_MBPS, RTT_MS))]
    check(losses_of(together[0]) == losses_of(together[1]), "global sampling: the losses are not those of a near network")
    if os.environ.get("AQ_WAN_LONG"):
        for i in range(CLIENTS):
            records(f"c{i}", LONG_SAMPLES, i)
        for parts in (2, 8):
            for stale in (0, 1):
                name = f"long-{parts}-{stale}"
                far = run(name, RATE_MBPS, RTT_MS, **LONG, **{"train.micro_batch": LONG_BATCH // parts, "train.staleness": stale})
                tell_ratios(name, *far, stale=stale, **{"micro-batches": parts})
    no_workers("split_wan")
