"""Split learning: the distance correlation of inputs and activations, as a part of the client's loss."""
import re

from jobs import aqpipe, check, no_workers
from kit import ROOT
from split import CODED, PLAIN, Client, Server, begin, job, lost, report, split, stopped, whole

KEY = "split.privacy.distance_correlation"


def correlations(folder):
    """Of each start of the client's first stage: the mean over its micro-batches."""
    text = (ROOT / folder / "run/logs/stage-0.log").read_text()
    return [float(found) for found in re.findall(r"distance correlation of inputs and activations, mean of \d+ micro-batches: (\S+)", text)]


def scenario_split_correlation():
    """It falls where it is asked for, the run resumes bit for bit, nothing changes where it is off, and what cannot be is refused by name."""
    begin("a", "b")
    keys = {**PLAIN, "split.rounds": 4, "split.epochs": 3}
    whole(split("plain", **keys), "a")
    whole(split("zero", **{**keys, KEY: 0}), "a")
    check(lost("zero") == lost("plain") and not correlations("zero-a"), "0 is not off")
    whole(split("seen", **{**keys, KEY: 1e-7}), "a")
    whole(split("less", **{**keys, KEY: 10}), "a")
    seen, less = correlations("seen-a"), correlations("less-a")
    check(len(seen) == len(less) == 4 and all(0 < each < 1 for each in seen + less), f"{seen} {less}")
    check(less[0] < seen[0] and less[-1] < seen[-1] - 0.02, f"it does not fall: {seen}, with the penalty {less}")
    check(lost("less") != lost("plain"), "the penalty does nothing")
    check(report("less")["privacy"]["distance_correlation"] == 10 and report("plain")["privacy"] is None, "report.json does not say so")

    slow = {**CODED, "checkpoint.every": "2 steps", "split.wait": "60s", KEY: 10}
    whole(split("whole", **slow), "a")
    server = Server(split("killed", **slow))
    client = Client(server, "a", stops=(5,))
    stopped(server, client, 5)
    client.kill()
    Client(server, "a").end()
    server.end()
    check(lost("killed") == lost("whole"), "killed in mid-turn it is another run")

    done = aqpipe("plan", split("wrong", **{**keys, KEY: 1, "train.micro_batch": 1}))
    check(done.returncode != 0 and KEY in done.stderr and "train.micro_batch" in done.stderr, done.stderr)
    done = aqpipe("plan", job("alone", **{**PLAIN, "pipeline.stages": 1, KEY: 1}))
    check(done.returncode != 0 and KEY in done.stderr and "split.clients" in done.stderr, done.stderr)
    no_workers("split_correlation")
