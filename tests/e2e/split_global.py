"""Split learning with global sampling: one batch over all clients, what it is equal to, and who goes, is late, or sends no numbers."""
import json
import os
import signal
import time

import jobs
from jobs import aqpipe, check, launch, losses, metrics, no_workers
from kit import ROOT
from split import CODED, PLAIN, Client, Server, begin, job, of_client, records, report, split, stopped, tensors, whole
from split_hostile import Between
from split_modes import newest, together

GLOBAL = {"split.mode": "global"}
# Without batch norms: what a sample makes does not depend on what it is computed with.
GROUPS = {"model.kind": "resnet", "model.width": None, "model.levels": None, "model.depth": 10, "model.filters": 8, "model.norm_groups": 4}
CUT = {"pipeline.stages": "[{layers: 0-1, dials: true}, {layers: 2-4}, {layers: 5-6, dials: true}]"}


def of_all(server, *names):
    """The mean loss over each step's batch: of its parts, by their samples."""
    steps = {}
    for name in names:
        for line in of_client(server, name):
            if line["samples"] > 0:
                steps.setdefault(line["step"], []).append((line["samples"], line["loss"]))
    return [sum(n * loss for n, loss in parts) / sum(n for n, _ in parts) for _, parts in sorted(steps.items())]


def ends(server, name):
    """What a client's two stages had at last."""
    folder = ROOT / f"{server}-{name}" / "run" / "checkpoint"
    step = max((int(each.name) for each in folder.iterdir() if each.name.isdigit()))
    return [tensors(folder / str(step) / f"stage-{rank}.safetensors") for rank in (0, 2)]


def middle(server, name):
    folder = ROOT / server / "clients" / name / "checkpoint"
    step = max((int(each.name) for each in folder.iterdir() if each.name.isdigit()))
    return tensors(folder / str(step) / "stage-1.safetensors")


def close(mine, other, most, what):
    check(len(mine) == len(other), f"{what}: {len(mine)} and {len(other)} of them")
    for at, (a, b) in enumerate(zip(mine, other)):
        check(abs(a - b) <= most * abs(b), f"{what}, number {at}: {a} and {b}")


def learnt(tensors):
    """Without statistics, which are a client's own."""
    return {name: values for name, values in tensors.items() if "running_" not in name}


def alike(server, *names):
    """All clients have the same ends, and the server one middle, bit for bit."""
    stages = {name: [learnt(part) for part in (*ends(server, name), middle(server, name))] for name in names}
    for name in names[1:]:
        check(stages[name] == stages[names[0]], f"{server}: the weights of {name} and {names[0]} differ")


def both(*names):
    return b"".join((ROOT / f"{name}.bin").read_bytes() for name in names)


def scenario_split_global():
    """One client is the unsplit run, bit for bit; several are the unsplit run of all their data, as far as sums may differ."""
    begin("a", "b", "late")
    launch(job("unsplit", **PLAIN, **{"train.epochs": 4, "pipeline.stages": 1}))
    whole(split("alone", rounds=2, **PLAIN, **GLOBAL), "a")
    check([line["loss"] for line in of_client("alone", "a")] == losses("unsplit"), "one client is not the unsplit run")
    mine = together(newest("alone"))
    check(mine == tensors(ROOT / "unsplit" / "checkpoint" / "12" / "stage-0.safetensors"), "nor are its weights")

    (ROOT / "all.bin").write_bytes(both("a", "b"))
    launch(job("joined", **PLAIN, **GROUPS, **{"train.epochs": 4, "pipeline.stages": 1, "data.train": str(ROOT / "all.bin")}))
    server = Server(split("two", rounds=2, clients=2, **PLAIN, **GLOBAL, **GROUPS, **CUT))
    clients = [Client(server, name) for name in ("b", "a")]
    server.await_text("batches are drawn over 105 samples of 2 clients")
    late = Client(server, "late", data="b")
    said = late.end(1)
    check("was not there when the clients of this job were settled" in said, said)
    for client in clients:
        client.end()
    server.end()
    parts = [{line["step"]: line["samples"] for line in of_client("two", name)} for name in ("a", "b")]
    check(all(parts[0][step] + parts[1][step] == (5 if step % 6 == 0 else 20) for step in range(1, 25)), f"batches: {parts}")
    check(len({parts[0][step] for step in parts[0]}) > 3, f"they are not drawn over all: {parts}")
    check(sum(parts[0].values()) == 4 * 60 and sum(parts[1].values()) == 4 * 45, f"each sample once an epoch: {parts}")
    # Sums in another order: 1e-8 at first, ten times as much every third step in the end, by the machine's instructions.
    close(of_all("two", "a", "b")[:12], losses("joined")[:12], 1e-6, "the unsplit run of all data")
    close(of_all("two", "a", "b"), losses("joined"), 1e-2, "the unsplit run of all data")
    alike("two", "a", "b")
    table = report("two")
    sent = sum(sum(line[way]) for name in "ab" for line in of_client("two", name) for way in ("forward_bytes", "backward_bytes", "gradient_bytes"))
    check(abs(table["sent_bytes"] - sent) < 0.01 * sent, f"{table['sent_bytes']} bytes, and steps say {sent}")
    check(table["mode"] == "global" and [line["turns"] for line in table["clients"]] == [2, 2], f"{table}")
    check(not list((ROOT / "two" / "sums").iterdir()), "sums are left behind")
    no_workers("split_global")


def scenario_split_global_leaves():
    """Clients, workers and servers that are killed, and begun again: the run that was not. One that does not come back misses the round, and is there in the next."""
    begin("a", "b", "c")
    slow = {**CODED, **GLOBAL, "split.wait": "60s", "checkpoint.every": "2 steps"}
    whole(split("whole", rounds=2, clients=2, **slow), "a", "b")
    wanted = {name: [line.get("loss") for line in of_client("whole", name)] for name in ("a", "b")}
    alike("whole", "a", "b")

    server = Server(split("killed", rounds=2, clients=2, **slow))
    clients = {"a": Client(server, "a", stops=(6,)), "b": Client(server, "b", stops=(3,))}
    for name, step, then in (("b", 3, (9,)), ("a", 6, (14,))):
        stopped(server, clients[name], step)
        clients[name].kill()
        clients[name] = Client(server, name, stops=then)
    stopped(server, clients["b"], 9)
    server.process.kill()
    server.process.wait()
    again = Server(server.path, "--set", f"split.server='127.0.0.1:{server.port}'")
    clients["b"].release()
    stopped(again, clients["a"], 14)
    os.kill(clients["a"].holds[14].reached(), signal.SIGKILL)
    clients["a"].release()
    for client in clients.values():
        client.end()
    again.end()
    for name, losses_of in wanted.items():
        check([line.get("loss") for line in of_client("killed", name)] == losses_of, f"{name}: not the run that would have been")
    check(newest_of("killed") == newest_of("whole"), "nor its weights")

    clock = jobs.Clock("split-server")
    server = Server(split("gone", rounds=3, clients=2, **{**slow, "control.silence_max": "3600s", "control.stall_max": 0}), at=clock.at())
    clients = {name: Client(server, name, stops=(4,) if name == "b" else ()) for name in ("a", "b")}
    stopped(server, clients["b"], 4)
    clients["b"].kill()
    clock.until(lambda: "round 1: b misses its turn" in server.text(), server.process)
    clients["b"] = Client(server, "b")
    for client in clients.values():
        client.end()
    server.end()
    lines = {line["name"]: line for line in report("gone")["clients"]}
    check((lines["a"]["turns"], lines["b"]["turns"], lines["b"]["missed"]) == (3, 2, 1), f"{lines}: {server.text()}")
    alike("gone", "a", "b")
    steps = [line["step"] for line in of_client("gone", "b")]
    check(len(steps) < 36 and of_client("gone", "b")[-1]["lr"] == of_client("gone", "a")[-1]["lr"], f"{steps}")
    no_workers("split_global_leaves")


def newest_of(server):
    return together(newest(server))


def scenario_split_global_nan():
    """A client whose gradients are no numbers is left out of that step, and no other loses it; with labels at the server, too."""
    begin("a", "b")
    keys = {**CODED, **GLOBAL, **GROUPS, **CUT, "split.wait": "20s"}  # statistics would keep the NaN, and the turn be refused
    server = Server(split("nan", rounds=1, epochs=2, clients=2, **keys))
    good = Client(server, "a")
    os.environ.update(AQPIPE_WORKER=str(jobs.BIN / "aqpipe_faulty"), FAULTY_VALUES="activation nan 2 1")
    bad = Client(server, "b")
    del os.environ["AQPIPE_WORKER"], os.environ["FAULTY_VALUES"]
    good.end()
    bad.end()
    server.end()
    check("the gradients of b are not finite: the step is without them" in server.text(), server.text())
    lines = {line["name"]: line for line in report("nan")["clients"]}
    check((lines["a"]["turns"], lines["b"]["turns"]) == (1, 1), f"{lines}: {server.text()}")
    check(not any(line["skipped"] for line in of_client("nan", "a")), "a lost a step")
    alike("nan", "a", "b")
    no_workers("split_global_nan")


def scenario_split_global_late():
    """Who says nothing while the others wait is late, and misses the round; a worker that stands still is one."""
    begin("a", "b")
    slow = {**CODED, **GLOBAL, "split.wait": "60s", "control.silence_max": "3600s", "control.stall_max": 0, "link.silence_max": "300s"}
    clock = jobs.Clock("split-server")
    server = Server(split("late", rounds=1, epochs=2, clients=2, **slow), at=clock.at())
    clients = {name: Client(server, name, stops=(3,) if name == "a" else ()) for name in ("a", "b")}
    stopped(server, clients["a"], 3)
    os.kill(clients["a"].holds[3].reached(), signal.SIGSTOP)
    clients["a"].release()
    clock.until(lambda: "it is late: the others have waited" in server.text(), server.process)
    clients["b"].end()
    clients["a"].end()
    server.end()
    lines = {line["name"]: line for line in report("late")["clients"]}
    check((lines["a"]["missed"], lines["a"]["late"], lines["b"]["turns"]) == (1, 1, 1), f"{lines}: {server.text()}")
    check("it is late: the others have waited for its part of step" in server.text(), server.text())
    no_workers("split_global_late")


def scenario_split_global_labels():
    """Labels at the server: two stages, one cut, the same sums. An end that trains nothing has none."""
    begin("a", "b")
    keys = {**PLAIN, **GLOBAL, "split.labels": "server", "pipeline.stages": "[{layers: 0-1, dials: true}, {layers: 2-13}]"}
    whole(split("labels", rounds=2, clients=2, **keys), "a", "b")
    whole(split("u-shape", rounds=2, clients=2, **PLAIN, **GLOBAL), "a", "b")
    close(of_all("labels", "a", "b"), of_all("u-shape", "a", "b"), 1e-5, "labels at the server")
    no_workers("split_global_labels")


def hash_of(manifest):
    path = ROOT / "theirs.yaml"
    path.write_text(manifest)
    done = aqpipe("plan", path, "--json")
    check(done.returncode == 0, done.stderr)
    return json.loads(done.stdout)["plan_hash"]


def scenario_split_global_settled():
    """What is settled stays: other data, another network, a second start with another manifest and lies of either end are refused, and the others' run goes on."""
    begin("a", "b", "c", "d")
    for name, seed in (("c", 7), ("d", 8)):
        records(name, 45, seed)
    slow = {**CODED, **GLOBAL, "split.wait": "60s", "checkpoint.every": "2 steps"}
    server = Server(split("settled", rounds=3, epochs=1, clients=2, **slow))
    early = Client(server, "b")  # it has joined, and is away when all is settled: its samples are in no batch
    server.await_text("b (127.0.0.1")
    early.kill()
    server.await_text(") has left: ")
    clients = [Client(server, name, stops=(2,) if name == "a" else (8,)) for name in ("a", "c")]
    server.await_text("samples of 2 clients")
    stopped(server, clients[0], 2)
    server.process.kill()
    server.process.wait()
    clients[0].release()
    again = Server(server.path, "--set", f"split.server='127.0.0.1:{server.port}'")
    records("b", 400, 5)
    clients[1].holds[8].reached()  # the run lasts while others are refused
    said = Client(again, "b").end(1)
    check("was not there when the clients of this job were settled" in said, said)
    said = Client(again, "a", data="b", folder=ROOT / "elsewhere").end(1)
    check("comes with other data than it began with" in said, said)
    other = split("other", rounds=3, epochs=1, clients=2, **{**slow, "edges.forward.bits": 2})
    said = Client(again, "a", path=other, folder=ROOT / "elsewhere").end(1)
    check("edges.list.0.forward.bits" in said, said)
    clients[1].release()
    for client in clients:
        client.end()
    again.end()
    shorter = aqpipe("split-server", server.path, "--set", "split.epochs=2", "--set", "split.rounds=4")
    check(shorter.returncode != 0 and "is of rounds of 6 steps, and the job's have 12" in shorter.stderr, shorter.stderr)
    lines = {line["name"]: line for line in report("settled")["clients"]}
    check([lines[name]["turns"] for name in sorted(lines)] == [3, 3], f"{lines}: {again.text()}")
    alike("settled", "a", "c")

    more = ("--set", "split.rounds=4")  # more rounds go further
    server = Server(server.path, *more)
    for client in [Client(server, name, *more) for name in ("a", "c")]:
        client.end()
    server.end()
    check([line["turns"] for line in report("settled")["clients"]] == [4, 4], server.text())
    alike("settled", "a", "c")

    path = ROOT / "settled/split.json"
    good = json.loads(path.read_text())
    for changed in ({"all_samples": 0}, {"all_samples": 106}, {"all_samples": 2**33}, {"clients": [{**each, "first": each["first"] + 1} for each in good["clients"]]},
                    {"clients": [{**each, "samples": 50} for each in good["clients"]]},
                    {"clients": [{**each, "begin": 9, "until": 16} if each["name"] == "a" else each for each in good["clients"]]}):
        path.write_text(json.dumps({**good, **changed}))
        broken = aqpipe("split-server", server.path, "--set", "split.rounds=5")
        check(broken.returncode == 2 and "is damaged: put it back" in broken.stderr, f"{changed}: {broken.returncode}, {broken.stderr}")
    path.write_text(json.dumps(good))

    # Of eleven classes, with the hash that such a plan has.
    server = Server(split("network", rounds=1, epochs=1, clients=2, **{**CODED, **GLOBAL, "split.wait": "20s"}))
    first = Client(server, "a")
    server.await_text("a (127.0.0.1")
    theirs = {}

    def eleven(who, line, send):
        if who == "client" and line.get("op") == "join":
            return {**line, "vocabulary": 11, **theirs}
        if who == "server" and line.get("manifest"):
            theirs["plan_hash"] = hash_of(line["manifest"])
        return line
    liar = Between(server, "d", eleven)
    Client(liar, "d").end(1)
    check(theirs, "the server told no plan")
    eleven_classes = Client(liar, "d", folder=ROOT / "eleven")
    server.await_text("d has 11 tokens or classes")

    def too_many(who, line, send):
        return {**line, "samples": 5 * 10**9} if line.get("event") == "together" else line
    fooled = Client(Between(server, "c", too_many), "c")
    check("the server counts 5000000000 samples of all clients" in fooled.end(1), server.text())
    said = eleven_classes.end(1)
    check("has data of another network (11 tokens or classes" in said and "than the 2 clients" in said, said)
    last = Client(server, "c")
    for client in (first, last):
        client.end()
    server.end()
    check([line["turns"] for line in report("network")["clients"]] == [1, 1], server.text())
    no_workers("split_global_settled")


def scenario_split_global_odd():
    """What a job has that says nothing of codecs, clipping, AdamW, batches and clients of odd sizes, one of a single sample: killed in mid-turn the run is the one that was not; and the folder is no other job's."""
    begin("a", "b", "c")
    for name, count, seed in (("a", 31, 5), ("b", 1, 6), ("c", 7, 7)):
        records(name, count, seed)
    odd = {**GLOBAL, "train.batch": 12, "train.micro_batch": 3, "train.optimizer": "adamw", "train.momentum": None, "train.clip": 0.5,
           "split.wait": "60s", "checkpoint.every": "3 steps"}
    whole(split("odd", rounds=2, clients=3, **odd), "c", "a", "b")
    alike("odd", "a", "b", "c")
    norms = [line["grad_norm"] for line in of_client("odd", "a")]
    check(all([line["grad_norm"] for line in of_client("odd", name)] == norms for name in ("b", "c")), "the norm that is clipped by is not one")
    check(max(norms) > 0.5, f"nothing is clipped: {norms}")
    check(sorted({line["samples"] for line in of_client("odd", "b")}) == [0, 1], "the one sample is not once in an epoch")

    server = Server(split("odd-killed", rounds=2, clients=3, **odd))
    clients = {name: Client(server, name, stops=(5,) if name == "b" else ()) for name in ("a", "b", "c")}
    stopped(server, clients["b"], 5)
    clients["b"].kill()
    clients["b"] = Client(server, "b")
    for client in clients.values():
        client.end()
    server.end()
    check(newest_of("odd-killed") == newest_of("odd"), "not the weights that would have been")

    said = jobs.aqpipe("split-server", ROOT / "odd.yaml")
    check(said.returncode == 2 and "has finished its 2 rounds" in said.stderr, said.stderr)
    for change, wanted in (("split.mode=splitfed1", "is of split.mode: global"), ("train.batch=24", "is of rounds of 8 steps")):
        said = jobs.aqpipe("split-server", ROOT / "odd.yaml", "--set", "split.rounds=3", "--set", change)
        check(said.returncode == 1 and wanted in said.stderr, f"{change}: {said.stderr}")
    no_workers("split_global_odd")


def scenario_split_global_crowd():
    """12 clients at once, or AQ_CLIENTS: one leaves for good, and all others have the same weights, bit for bit, and nearly the unsplit run's losses."""
    count = int(os.environ.get("AQ_CLIENTS", 12))
    names = [f"c{i:02}" for i in range(count)]
    begin(*names)
    for i, name in enumerate(names):
        records(name, 8 + i % 3, i)
    (ROOT / "all.bin").write_bytes(b"".join((ROOT / f"{name}.bin").read_bytes() for name in names))
    keys = {**PLAIN, **GROUPS, **CUT, "train.batch": 4 * count, "train.micro_batch": 4, "train.decay": "constant", "train.warmup_steps": 0, "split.wait": "20s"}
    one = {key: value for key, value in keys.items() if not key.startswith("split.")}
    launch(job("one", **{**one, "pipeline.stages": 1, "data.train": str(ROOT / "all.bin"), "train.epochs": 2}))
    started = time.time()
    server = Server(split("crowd", rounds=2, epochs=1, clients=count, **{**keys, **GLOBAL}))
    clients = [Client(server, name, "--no-progress") for name in names]
    server.await_text("round 1: c00 has trained up to", patience=jobs.PATIENCE + 4 * count)
    clients[-1].kill()  # in the second round
    for client in clients[:-1]:
        client.process.wait(jobs.PATIENCE + 4 * count)
        client.end()
    server.end()
    turns = {line["name"]: line["turns"] for line in report("crowd")["clients"]}  # in the order in which they joined
    check([turns[name] for name in names[:-1]] == [2] * (count - 1) and turns[names[-1]] <= 1, f"{turns}")
    alike("crowd", *names[:-1])
    first = [line["step"] for line in of_client("crowd", names[0])]
    whole_steps = [line["loss"] for line in metrics("one")][:len(first) // 2]
    close(of_all("crowd", *names)[:len(whole_steps)], whole_steps, 1e-4, "losses of the first round")
    print(json.dumps({"clients": count, "s": round(time.time() - started, 1)}), flush=True)
    no_workers("split_global_crowd")
