"""Global sampling: a client that leaves takes its samples with it, and the server's owner can change what was settled."""
from jobs import aqpipe, check, no_workers
from kit import ROOT
from split import PLAIN, Client, Server, begin, of_client, records, report, split, stopped, whole
from split_global import GLOBAL, alike

ALONE, ALL = 6, 21  # steps of a round: 105 samples in batches of 20, and 405


def enroll():
    begin("a", "b", "c")
    records("c", 300, 9)


def rounds_of(server, name, steps):
    """The step lines of a client, cut into rounds of so many steps."""
    lines, out = of_client(server, name), []
    for count in steps:
        out.append(lines[:count])
        lines = lines[count:]
    check(not lines and len(out[-1]) == steps[-1], f"{name}: {[len(each) for each in out]} steps, and {len(lines)} more")
    return out


def away(name, restart):
    """c leaves in round 2, is out of round 3, and is back in round 4. `restart`: the server is killed in round 3."""
    keys = {**PLAIN, **GLOBAL, "split.wait": "6s", "checkpoint.every": "2 steps", "train.optimizer": "adamw", "train.momentum": None,
            "train.lr": 0.002, "train.decay": "linear", "train.warmup_steps": 0}
    held = 2 * ALL + 3
    server = Server(split(name, rounds=4, epochs=1, clients=3, **keys))
    clients = {each: Client(server, each, stops={"a": (held,), "c": (ALL + 2,)}.get(each, ())) for each in "abc"}
    stopped(server, clients["c"], ALL + 2)
    clients["c"].kill()
    server.await_text("round 2: c misses its turn")
    stopped(server, clients["a"], held)
    check("batches are drawn over 105 samples of 2 clients: 1 away, and 300 samples with it" in server.text(), server.text())
    if restart:
        server.process.kill()
        server.process.wait()
        server = Server(server.path, "--set", f"split.server='127.0.0.1:{server.port}'")
        server.await_text("has joined", 5)
    clients["c"] = Client(server, "c")
    server.await_text("c (127.0.0.1", 3)
    clients["a"].release()
    said = {each: clients[each].end() for each in "abc"}
    server.end()
    check("batches are drawn over 405 samples of 3 clients: 1 back, and 300 samples with it" in server.text(), server.text())
    check("105 samples of all clients, 60 of them here: 1 away, and 300 samples with it" in said["a"], said["a"])
    check("round 3: waits for c" in server.text() and "round 4: waits for" not in server.text(), server.text())
    return {line["name"]: line for line in report(name)["clients"]}


def scenario_split_global_away():
    """The others' epochs are those of their own samples while it is away, and of all when it is back; a server that is killed meanwhile changes nothing."""
    enroll()
    lines = away("away", restart=False)
    check([lines[name]["turns"] for name in "abc"] == [4, 4, 2] and lines["c"]["missed"] == 2, f"{lines}")
    cut = {name: rounds_of("away", name, (ALL, ALL, ALONE, ALL)) for name in "ab"}
    for name, samples in (("a", 60), ("b", 45)):
        check([sum(line["samples"] for line in each) for each in cut[name]] == [samples] * 4, f"{name}: not each sample once an epoch")
    parts = [cut["a"][2][i]["samples"] + cut["b"][2][i]["samples"] for i in range(ALONE)]
    check(parts == [20] * 5 + [5], f"the batches of round 3: {parts}")
    rates = [each[0]["lr"] / 0.002 for each in cut["a"]]  # a quarter of the run each, however many steps it has
    check(all(abs(rate - (1 - i / 4)) < 0.05 for i, rate in enumerate(rates)), f"learning rates by rounds: {rates}")
    alike("away", "a", "b", "c")
    check([line["lr"] for line in of_client("away", "a")] == [line["lr"] for line in of_client("away", "b")], "two rates")

    away("killed", restart=True)
    for name in "ab":
        check([line.get("loss") for line in of_client("killed", name)] == [line.get("loss") for line in of_client("away", name)],
              f"{name}: a server that was killed makes another run")
    no_workers("split_global_away")


def kept_of(server):
    """The bytes of the files of a server's folder. Those of its clients' runs are not among them: launchers that lost their server still end."""
    return {path.name: path.read_bytes() for path in (ROOT / server).iterdir() if path.is_file() and path.name != "lock"}


def scenario_split_global_owner():
    """Lower limits at a restart put a client out, and the round begins again: the run of the others alone. Sizes of the network stay."""
    enroll()
    keys = {**PLAIN, **GLOBAL, "split.wait": "20s", "checkpoint.every": "2 steps"}
    whole(split("alone", rounds=2, epochs=1, clients=2, **keys), "a", "b")
    wanted = {name: [line["loss"] for line in of_client("alone", name) if "loss" in line] for name in "ab"}
    for limit, why in (("split.samples_max=200", "whose 'train_samples' is not a whole number from 1 to 200 (split.samples_max)"),
                       ("split.share_max=0.7", "has 300 of the 405 samples of all clients, more than split.share_max: 0.70")):
        name = limit[6:11]
        server = Server(split(name, rounds=2, epochs=1, clients=3, **keys))
        clients = {each: Client(server, each, stops=(4,) if each == "a" else ()) for each in "abc"}
        stopped(server, clients["a"], 4)
        server.process.kill()
        server.process.wait()
        clients["a"].release()
        if name == "sampl":
            before = kept_of(name)
            refused = aqpipe("split-server", server.path, "--set", "facts.vocabulary=11", "--set", "split.rounds=7")
            check(refused.returncode == 1 and "has weights of a network with 10 tokens or classes" in refused.stderr, refused.stderr)
            check("split.json" in before and kept_of(name) == before, f"a server that is refused because of another network changes its folder: {before}")
        again = Server(server.path, "--set", limit, "--set", f"split.server='127.0.0.1:{server.port}'")
        check(why in clients["c"].end(1), "c is not told why")
        said = [clients[each].end() for each in "ab"]
        again.end()
        text = again.text()
        check("c is out of this job: it has 300" in text and "round 1 begins again, without them" in text, text)
        check("batches are drawn over 105 samples of all clients, 60 of them here" in said[0], said[0])
        for each in "ab":
            losses = [line["loss"] for line in of_client(name, each) if "loss" in line]
            check(losses[-len(wanted[each]):] == wanted[each], f"{limit}: {each} has another run than without c")
        turns = {line["name"]: line["turns"] for line in report(name)["clients"]}
        check(turns == {"a": 2, "b": 2, "c": 0}, f"{turns}")
    no_workers("split_global_owner")
