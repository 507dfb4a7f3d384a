"""Split learning over a wide-area network (tools/wanlab): a server and eight clients, each behind a line of its own.

split_wan has three clients with a quarter of the samples. split_wan_long (label long, 5 minutes) has eight; with AQ_WAN_LONG=1 (a quarter of
an hour more) also turns of 24 steps, with the codecs of examples/split-cifar10, at two and at eight micro-batches a step.
split_wan_bound has eight in network mode (tools/bench/timed_worker.c: a stage computes nothing), and compares its steps with the plan's bound and prediction.
AQ_WAN_CLIENTS=N: of so many clients."""
import json
import os
import statistics
import sys

import jobs
from far import scenario_in_the_lab
from jobs import check, no_workers
from kit import ROOT
from split import Client, Server, begin, of_client, records, report, split, stopped
from split_lengths import CODED, sizes, tables, turns
from tables import job, table
from wan import WANLAB, tell

SHORT = sys.argv[2] not in ("split_wan_long", "split_wan_bound")
CLIENTS, SAMPLES = int(os.environ.get("AQ_WAN_CLIENTS", 3 if SHORT else 8)), 256 if SHORT else 1024
RTT_MS, RATE_MBPS = 80, 20
LAB_S = 3000  # that a scenario may take there
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


def images(name, **changes):
    return split(name, clients=CLIENTS, **{**KEYS, **changes})


def run(name, rate, rtt, clients=CLIENTS, make=images, kind="bin", **changes):
    """Lines of steps by client, and how long a turn took, from its offer to the next one's (of the last: to the end)."""
    tell("--rate", rate, "--rtt", rtt)
    server = Server(make(name, **{"split.server": "10.79.0.1:0", **changes}), at=(WANLAB, "exec", "0"))
    started = [Client(server, f"c{i}", at=(WANLAB, "exec", str(i + 1)), host="10.79.0.1", kind=kind) for i in range(clients)]
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


# GPT-2, whose cuts are all alike: 64 KiB of 16 bits a sample, 12 bits a value both ways over both cuts. Bodies are noise, which does not shrink (link.entropy).
FLOATS = 256 * 128
BOUND = {**{key: KEYS[key] for key in KEYS if key.startswith(("link.", "edges.", "cache."))}, "edges.backward.bits": 8, "link.entropy": "off", "train.idle_stage": "warn",
         "model.blocks": 2, "model.channels": 128, "model.context": 256, "train.T": 256, "train.micro_batch": 2, "train.epochs": None, "data.train_samples_max": 0,
         "data.heldout_samples_max": 2, "split.rounds": 1, "split.epochs": 6, "split.wait": "60s", "train.evaluate_every": "6 epochs", "checkpoint.every": "6 epochs",
         "pipeline.stages": "[{layers: 0, dials: true}, {layers: 1-2}, {layers: 3, dials: true}]", "edges.check": "none", "security.keys": str(ROOT / "keys"), "train.warmup_steps": 0}


def bound_of(path):
    """What `aqpipe plan` has of a job whose arithmetic takes no time."""
    told = jobs.aqpipe("plan", path, "--json", "--gflops", "1e9", "--cores", "2")
    check(told.returncode == 0, told.stderr)
    plan = json.loads(told.stdout)
    return plan["time"], [(edge["step_bytes_forward"], edge["step_bytes_backward"]) for edge in plan["edges"]]


def scenario_split_wan_bound():
    """Eight clients at 80 ms and 20 Mbit/s whose stages only wait, one after the other and all at once: bytes are the plan's; prints the step, the plan's bound and prediction."""
    if not scenario_in_the_lab(CLIENTS + 1, limit_s=LAB_S):
        return
    begin(*[f"c{i}" for i in range(CLIENTS)])
    os.environ.update(AQPIPE_WORKER=str(jobs.BIN / "aqpipe_timed"), TIMED_FORWARD_MS="0.01", TIMED_BACKWARD_MS="0.01", TIMED_SAMPLE_FLOATS=str(FLOATS))
    for batch in (64, 16):
        for i in range(CLIENTS):
            (ROOT / f"c{i}.txt").write_text(jobs.text(i, batch * 256)[:batch * 256 + 1])  # a step an epoch
        for name, keys in (("turns", {"split.mode": "relay"}), ("at-once", {"split.mode": "splitfed1", "split.parallel": CLIENTS})):
            lines, _ = run(f"{name}-{batch}", RATE_MBPS, RTT_MS, make=jobs.manifest, kind="txt",
                           **{**BOUND, **keys, "split.clients": CLIENTS, "train.batch": batch, "data.train": str(ROOT / "c0.txt"), "data.heldout": str(ROOT / "c1.txt")})
            time, edges = bound_of(ROOT / f"{name}-{batch}.yaml")
            steps, means = [], []
            for of in lines.values():
                check(len(of) == 6, f"{name}: {len(of)} steps")
                sent = [(line["forward_bytes"], line["backward_bytes"]) for line in of[1:]]
                for e, planned in enumerate(edges):
                    check(all(1 <= planned[w] / way[w][e + w] < 1.07 for way in sent for w in (0, 1)), f"{name}: edge {e} is planned to have {planned} bytes a step: {sent[0]}")
                steps.append(statistics.median(b["time"] - a["time"] for a, b in zip(of, of[1:])))
                means.append((of[-1]["time"] - of[0]["time"]) / (len(of) - 1))  # with BBR's pauses, one in 10 s
            middle = statistics.median(steps)
            print(json.dumps({"run": name, "clients": CLIENTS, "rtt ms": RTT_MS, "Mbit/s": RATE_MBPS, "micro-batches": batch // 2, "step s": round(middle, 4),
                              "bound s": round(time["bound_s"], 4), "bound/measured": round(time["bound_s"] / middle, 3), "bound/mean": round(time["bound_s"] / statistics.median(means), 3), "least": round(time["bound_s"] / max(steps), 3),
                              "most": round(time["bound_s"] / min(steps), 3), "predicted/measured": round(time["step_s"] / middle, 3), "binds": time["binds"]}), flush=True)
    no_workers("split_wan_bound")


def losses_of(run_):
    return {who: [line.get("loss") for line in lines] for who, lines in run_[0].items()}  # none where a client had no part of the batch


def scenario_split_wan_pad():
    """split.pad at 80 ms and 20 Mbit/s, two clients at once: the losses of a near network and of a run that sends lengths; no size follows a length; a client that is killed returns."""
    if not scenario_in_the_lab(3, limit_s=LAB_S):
        return
    tables("a", "b")
    table("train.tsv", 3, 48)
    table("b.tsv", 9, 40)
    keys = {**CODED, **turns("splitfed1", **{"split.clients": 2, "split.parallel": 2, "split.wait": "60s", "split.server": "10.79.0.1:0", "link.host": "10.79.0.1",
                                             "checkpoint.every": "2 steps", "train.batch": 8, "train.micro_batch": 2})}
    pad, paced = {"split.pad": "true"}, {"link.rtt_ms": RTT_MS, "link.rate_mbps": RATE_MBPS}
    runs = (("near", 1000, 0.2, pad, ()), ("far", RATE_MBPS, RTT_MS, pad, ()), ("far-paced", RATE_MBPS, RTT_MS, {**pad, **paced}, ()),
            ("far-sent", RATE_MBPS, RTT_MS, {}, ()), ("far-killed", RATE_MBPS, RTT_MS, {**pad, **paced}, (3,)),
            ("near-stale", 1000, 0.2, {**pad, "train.staleness": 1}, ()), ("far-stale", RATE_MBPS, RTT_MS, {**pad, **paced, "train.staleness": 1}, ()))
    found = {}
    for name, rate, rtt, more, stops in runs:
        tell("--rate", rate, "--rtt", rtt)
        server = Server(job(name, **{**keys, **more}), at=(WANLAB, "exec", "0"))

        def start(who, i, **options):
            return Client(server, who, data="train" if who == "a" else "b", kind="tsv", at=(WANLAB, "exec", str(i)), host="10.79.0.1", **options)
        clients = {"a": start("a", 1, stops=stops), "b": start("b", 2)}
        if stops:
            stopped(server, clients["a"], stops[0])
            clients["a"].kill()
            clients["a"].release()
            clients["a"] = start("a", 1)
        for client in clients.values():
            client.end()
        server.end()
        found[name] = [[line["loss"] for line in of_client(name, who)] for who in "ab"]
        check((ROOT / name / "lengths").exists() == (name == "far-sent"), f"{name}: lengths at the server: {server.text()}")
        check("stale" in name or (sizes(name) == 1) == (name != "far-sent"), f"{name}: {sizes(name)} sizes of steps")
        seconds = [line["time"] for line in of_client(name, "a")]
        print(json.dumps({"run": name, "rtt ms": rtt, "Mbit/s": rate, "step s": round(statistics.median(b - a for a, b in zip(seconds, seconds[1:])), 3)}), flush=True)
    for name in found:
        near = "near-stale" if "stale" in name else "near"
        check(found[name] == found[near], f"{name}: losses {found[name]}, near {found[near]}")
    check(found["near"] != found["near-stale"], "staleness changes nothing: no test")
    no_workers("split_wan_pad")


def scenario_split_wan_long():
    """The same, of eight clients with four times the samples."""
    scenario_split_wan()


def scenario_split_wan():
    """Three clients at 80 ms and 20 Mbit/s: the losses of a near network, and how near steps and turns come to what the line allows; with staleness, too. With global sampling the losses alone."""
    if not scenario_in_the_lab(CLIENTS + 1, limit_s=LAB_S):
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
