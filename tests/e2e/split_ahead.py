"""Split learning's next turn, made ready while the one before is under way: files passed on as they come, and what becomes of them; clients that join late."""
import json
import threading
import time

import jobs
from jobs import aqpipe, check, no_workers
from kit import ROOT
from split import CODED, Client, Server, begin, of_client, records, report, split, stopped, whole
from split_hostile import Between, weights_none

# The last stage's file has several pieces of 1 MiB.
KEYS = {**CODED, "model.width": 40, "split.wait": "60s", "pipeline.stages": "[{layers: 0-1, dials: true}, {layers: 2-6}, {layers: 7-13, dials: true}]"}
NAMES = ("a", "b", "c")


def trained(server):
    """Whose turn began, in order."""
    return [line.split(": ")[2].split()[0] for line in server.text().splitlines() if " trains steps " in line]


def losses_of(server, names=NAMES):
    return {name: [line["loss"] for line in of_client(server, name)] for name in names}


class Seen:
    """What passed a door, and what is waited for before more may pass."""

    def __init__(self):
        self.events = {what: threading.Event() for what in ("turn", "piece", "ready", "over", "go")}
        self.pieces = 0

    def await_(self, what):
        check(self.events[what].wait(jobs.PATIENCE), f"'{what}' did not come")

    def next_rule(self, who, line, send):
        """Of the client whose turn comes next."""
        if who == "server" and line.get("event") == "ends" and line["rank"] == 2:
            self.events["piece"].set()
        for what, end, word in (("turn", "server", "event"), ("over", "server", "event"), ("ready", "client", "op")):
            if who == end and line.get(word) == what and not line.get("done"):
                self.events[what].set()
        return line

    def holds_last(self, what):
        """A rule: the last piece of all that it has trained waits for that."""
        def rule(who, line, send):
            if who == "client" and line.get("op") == "ends" and line["rank"] == 2:
                self.pieces += 1
                if line["offset"] + (1 << 20) >= line["of"]:
                    self.await_(what)
            return line
        return rule


def war(name, order, first_rule, seen, **keys):
    """A server and three clients, the first two behind doors. Returns it, doors and clients."""
    server = Server(split(name, rounds=1, epochs=1, clients=3, **keys))
    doors = {order[0]: Between(server, order[0], first_rule), order[1]: Between(server, order[1], seen.next_rule)}
    return server, doors, {each: Client(doors.get(each, server), each) for each in NAMES}


def ended(server, doors, clients, names=NAMES):
    for each in names:
        clients[each].end()
    server.end()
    for door in doors.values():
        door.close()
    return {line["name"]: line for line in report(server.path.stem)["clients"]}


def scenario_split_ahead():
    """A relay's next client has pieces before the last one was sent; SplitFed's is ready while the one before trains; killed then, it loses nothing; and of files that are refused it trains nothing."""
    begin(*NAMES)
    records("c", 45, 9)
    order = trained(whole(split("relay", rounds=1, epochs=1, clients=3, **KEYS), *NAMES))
    wanted = losses_of("relay")

    seen = Seen()
    server, doors, clients = war("passed", order, seen.holds_last("piece"), seen, **KEYS)
    said = ended(server, doors, clients)
    check(seen.pieces > 2 and not seen.events["over"].is_set(), f"{seen.pieces} pieces: {server.text()}")
    check(losses_of("passed") == wanted, f"passed on, they are other losses: {server.text()}")

    # The next one goes when it has a part of them: it is told again, and has lost no try.
    seen = Seen()
    server, doors, clients = war("killed", order, seen.holds_last("go"), seen, **KEYS)
    seen.await_("piece")
    clients[order[1]].kill()
    server.await_text(f"{order[1]} (127.0.0.1:")
    server.await_text(") has left: ")
    clients[order[1]] = Client(doors[order[1]], order[1])
    seen.events["go"].set()
    said = ended(server, doors, clients)
    check(losses_of("killed") == wanted, f"killed, it is another run: {server.text()}")
    check(all((line["turns"], line["missed"]) == (1, 0) for line in said.values()), f"{said}")

    # The one before goes with its last piece unsent: what was passed on is void, and comes again.
    seen = Seen()
    server, doors, clients = war("left", order, seen.holds_last("go"), seen, **KEYS)
    seen.await_("piece")
    clients[order[0]].kill()
    doors[order[0]].close()  # whose rule still holds what that client said
    seen.await_("over")
    seen.events["go"].set()
    clients[order[0]] = Client(server, order[0])
    said = ended(server, doors, clients)
    check(losses_of("left") == wanted, f"left, it is another run: {server.text()}")
    check(all((line["turns"], line["missed"]) == (1, 0) for line in said.values()), f"{said}")

    # What was passed on is refused in the end: the next one begins with the weights of before.
    rest = order[1:]
    whole(split("peace", rounds=1, epochs=1, clients=2, **KEYS), *rest)
    seen = Seen()
    server, doors, clients = war("none", order, weights_none, seen, **KEYS)
    said = ended(server, doors, clients)
    check(seen.events["over"].is_set() and said[order[0]]["missed"] == 1 and "is NaN" in server.text(), f"{server.text()}")
    check(losses_of("none", rest) == losses_of("peace", rest), f"of weights that were refused something is left: {server.text()}")

    for mode in ("splitfed1", "splitfed2"):  # the ends begin with the round's weights: the next one is ready before the first has closed
        keys = {**KEYS, "split.mode": mode}
        order = trained(whole(split(mode, rounds=1, epochs=1, clients=3, **keys), *NAMES))
        seen = Seen()
        server, doors, clients = war(f"{mode}-ahead", order, seen.holds_last("go"), seen, **keys)
        seen.await_("ready")
        check(f"{order[0]} has trained" not in server.text() and trained(server) == order[:1], f"{mode}: {server.text()}")
        clients[order[1]].kill()
        server.await_text(") has left: ")
        clients[order[1]] = Client(doors[order[1]], order[1])
        server.await_joined(order[1], 2)  # a client of splitfed1 that is away when its turn is due is passed by the next one
        seen.events["go"].set()
        said = ended(server, doors, clients)
        check(trained(server) == order and losses_of(f"{mode}-ahead") == losses_of(mode), f"{mode}: killed, it is another run: {server.text()}")
        check(all((line["turns"], line["missed"]) == (1, 0) for line in said.values()), f"{mode}: {said}")
    check("error:" not in server.text(), server.text())
    no_workers("split_ahead")


def scenario_split_joins():
    """A relay's client that joins during a round waits for the turn that is under way; a server that was killed behind the last round still writes its results, and tells its clients."""
    begin(*NAMES)
    records("c", 45, 9)
    order = trained(whole(split("ordered", rounds=1, epochs=1, clients=3, **KEYS), *NAMES))
    server = Server(split("joins", rounds=1, epochs=1, clients=1, **KEYS, **{"split.collect": "true"}))
    clients = {order[-1]: Client(server, order[-1], stops=(2,))}
    stopped(server, clients[order[-1]], 2)
    for name in order[:-1]:  # both precede it in the round's order
        clients[name] = Client(server, name)
        server.await_text(f"{name} (127.0.0.1")
    server.await_text("has joined", 3)
    time.sleep(1)
    check(trained(server) == [order[-1]], f"two turns of a relay at once: {server.text()}")
    clients[order[-1]].release()
    for client in clients.values():
        client.end()
    server.end()
    check(trained(server) == [order[-1], *order[:-1]], server.text())

    folder, model = ROOT / "joins", (ROOT / "joins/model.safetensors").read_bytes()
    said = aqpipe("split-server", server.path)
    check(said.returncode == 2 and "has finished its 1 rounds" in said.stderr, said.stderr)
    state = json.loads((folder / "split.json").read_text())
    check(state["ended"] is True, f"{state}")
    (folder / "split.json").write_text(json.dumps({**state, "ended": False}))
    (folder / "model.safetensors").unlink()
    server = Server(server.path)
    for client in [Client(server, name) for name in order]:
        client.end()
    server.end()
    check("all rounds are over: clients are told" in server.text(), server.text())
    check((folder / "model.safetensors").read_bytes() == model, "another model")
    no_workers("split_joins")
