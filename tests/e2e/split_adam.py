"""Split learning with Adam: bias corrections go by the updates that the moments have had, whoever made them."""
import array
import json
import math

from jobs import check, no_workers
from kit import ROOT
from split import PLAIN, begin, split, tensors, whole

LR, B1, B2, EPSILON = 1e-3, 0.9, 0.95, 1e-8
ADAM = {**PLAIN, "train.optimizer": "adamw", "train.momentum": None, "train.lr": LR, "train.beta2": B2, "train.weight_decay": 0, "train.batch": 10,
        "train.micro_batch": 5, "train.clip": 0, "checkpoint.every": "1 step", "checkpoint.keep": 100}
STEPS = {"a": 6, "b": 5}  # 60 and 45 samples, in batches of 10


def turns(server):
    """(client, first step, last step) of each turn, in order."""
    lines = [line.split(": ", 2)[2].split() for line in server.text().splitlines() if " trains steps " in line]
    return [(words[0], int(words[3]), int(words[5])) for words in lines]


def at(server, name, step, rank):
    """A stage's file of a client's own step, and the updates that it says."""
    folder = ROOT / server / "clients" / name if rank == 1 else ROOT / f"{server}-{name}" / "run"
    path = folder / "checkpoint" / str(step) / f"stage-{rank}.safetensors"
    blob = path.read_bytes()
    about = json.loads(blob[8:8 + int.from_bytes(blob[:8], "little")])["__metadata__"]
    return tensors(path), about


def floats(values):
    """Parameters in order of the flat buffer (statistics are none), and both moments."""
    flat = array.array("f")
    for name in values:
        if not name.startswith("optimizer.") and ".running_" not in name:
            flat.frombytes(values[name])
    return flat, array.array("f", values["optimizer.m"]), array.array("f", values["optimizer.v"])


def expect_update(before, after, updates, what):
    """AdamW's update in double, with the corrections of so many updates: p and v follow from m, v and the gradient that m tells."""
    one, two = 1 / (1 - B1 ** updates), 1 / (1 - B2 ** updates)
    worst = 0.0
    for p, m, v, p1, m1, v1 in zip(*before, *after):
        gradient = (m1 - B1 * m) / (1 - B1)
        wanted_v = B2 * v + (1 - B2) * gradient * gradient
        check(abs(v1 - wanted_v) <= 1e-4 * (v1 + 1e-3 * abs(m1) ** 2) + 1e-20, f"{what}: v is {v1}, and not {wanted_v}: not of the moments before")
        worst = max(worst, abs(p1 - (p - LR * (m1 * one) / (math.sqrt(v1 * two) + EPSILON))) / LR)
    check(worst < 2e-3, f"{what}: an update is {worst:.3g} learning rates away from that of {updates} updates")


def expect_turns(server, name, first, last, rank, begin_with, updates):
    """All steps of a turn, from the file that it began with; the file that it left."""
    for step in range(first, last + 1):
        values, about = at(server, name, step, rank)
        updates += 1
        expect_update(floats(begin_with), floats(values), updates, f"{server}, {name}, stage {rank}, step {step}")
        check(about["format"] == "aqpipe checkpoint 2" and about["updates"] == str(updates), f"{server}, {name}: the file says {about}")
        begin_with = values
    return begin_with, updates


def first_weights(server, rank):
    """Before the first turn, which a first round of SplitFed leaves as they were: the same in every job of this seed."""
    return tensors(ROOT / server / "weights" / "0" / f"stage-{rank}.safetensors")


def average(parts):
    """Of (samples, tensors): each value in double, in order of names."""
    samples = sum(count for count, _ in parts)
    out = {}
    for name in parts[0][1]:
        each = [(count, array.array("f", values[name])) for count, values in parts]
        out[name] = array.array("f", [sum(count * value[i] for count, value in each) / samples for i in range(len(each[0][1]))]).tobytes()
    return out


def follow(server, mode, beginnings):
    """All turns of a job, each by the file and the count that it began with."""
    order = turns(server)
    check(len(order) == 6 and {name for name, _, _ in order} == {"a", "b"}, f"{order}")
    name = server.path.stem
    for rank in range(3):
        now, updates = beginnings[rank], 0
        passed_on = mode == "relay" or (mode == "splitfed2" and rank == 1)
        for round_of in (order[:2], order[2:4], order[4:]):
            left = []
            for client, first, last in round_of:
                check(last - first + 1 == STEPS[client], f"{client}: {first} to {last}")
                done, count = expect_turns(name, client, first, last, rank, now, updates)
                left.append((client, {"a": 60, "b": 45}[client], done, count))
                if passed_on:
                    now, updates = done, count
            if not passed_on:
                left.sort()
                now = average([(samples, done) for _, samples, done, _ in left])
                updates = math.floor(sum(samples * count for _, samples, _, count in left) / 105 + 0.5)
        check(updates == (33 if passed_on else 18), f"{mode}, stage {rank}: {updates} updates")


def scenario_split_adam():
    """Each update of each stage and client, in all modes, is AdamW's in double with the count of all updates that its moments have had."""
    begin("a", "b")
    whole(split("first", rounds=1, epochs=1, clients=2, **{**ADAM, "split.mode": "splitfed1"}), "a", "b")
    beginnings = [first_weights("first", rank) for rank in range(3)]
    for mode in ("relay", "splitfed1", "splitfed2"):
        follow(whole(split(mode, rounds=3, epochs=1, clients=2, **{**ADAM, "split.mode": mode}), "a", "b"), mode, beginnings)
    no_workers("split_adam")
