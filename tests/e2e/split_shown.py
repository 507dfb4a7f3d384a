"""What a split-server and its clients show: the status page while rounds go on, and events with --json."""
import http.client
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import time

import jobs
import openmetrics
import page_seen
from jobs import aqpipe, no_workers
from kit import ROOT, check
from split import CODED, Client, Server, begin, of_client, split


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def get(port, path):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    connection.request("GET", path)
    answer = connection.getresponse()
    return answer.status, answer.read().decode()


def until(port, what, good):
    deadline = time.time() + jobs.PATIENCE
    while True:
        said = json.loads(get(port, "/status.json")[1])
        if good(said):
            return said
        check(time.time() < deadline, f"{what}: {said}")
        time.sleep(0.05)


def scenario_split_shown():
    begin("a", "b")
    path = split("seen", rounds=2, epochs=1, clients=2, **CODED, **{"split.wait": "60s", "status.listen": "127.0.0.1:0"})
    done = aqpipe("split-server", path, "--set", "status.listen=here")
    check(done.returncode == 2, done)
    if "without libmicrohttpd" in aqpipe("split-server", path, "--set", "status.listen=256.0.0.1:0").stderr:
        print("split_shown: built without libmicrohttpd")
        sys.exit(77)
    server = Server(path, "--json", out=(ROOT / "server.jsonl").open("w"))
    match = re.search(r"status page: http://127.0.0.1:(\d+)/", server.text())
    check(match, server.text())
    port = int(match[1])
    said = until(port, "nobody is here", lambda said: "waits for clients: 0 of 2 are here" in said["waits_for"])
    check(said["split"]["round"] == 0 and said["split"]["clients"] == [] and said["remedy"], said)
    first = Client(server, "a", "--json", stops=(1,))
    said = until(port, "one is here", lambda said: said["split"]["clients"])
    check(said["split"]["clients"][0]["name"] == "a" and "1 of 2" in said["waits_for"], said)
    second = Client(server, "b", "--json", stops=(1,))  # whoever trains first is held
    said = until(port, "one trains, one waits", lambda said: sorted(each["trains"] for each in said["split"]["clients"]) == [False, True])
    at_work, waits = sorted(said["split"]["clients"], key=lambda each: not each["trains"])
    check(said["split"]["round"] == 1 and said["state"] == "running" and waits["does"] == f"waits for {at_work['name']}", said)
    status, page = get(port, "/")
    check(status == 200 and "<h2>Clients</h2>" in page and waits["does"] in page and "round</dt><dd>1 / 2" in page, page)
    samples = openmetrics.read(get(port, "/metrics")[1])
    check(samples[("aqpipe_split_clients_here", (("job", said["job"]),))] == 2, "OpenMetrics")

    def of_one(name, figure):
        return samples.get((f"aqpipe_split_client_{figure}", tuple(sorted({"job": said["job"], "client": name}.items()))))
    for name, at_turn in ((at_work["name"], 1), (waits["name"], 0)):  # one trains, and the other waits for it
        check([of_one(name, figure) for figure in ("here", "trains", "awaited", "turns_total")] == [1, at_turn, at_turn, 0], f"{name}: {samples}")
    other = second if at_work["name"] == "a" else first  # it is held in its first turn
    killed = (first if at_work["name"] == "a" else second).kill()  # its turn is tried again
    first = Client(server, at_work["name"], "--json")
    said = until(port, "one has had a turn", lambda said: any(each["turns"] for each in said["split"]["clients"]))
    told = next(each for each in said["split"]["clients"] if each["turns"])
    kept, browser = os.environ.get("AQ_SCREENSHOTS"), page_seen.browser()
    for name, size in page_seen.SIZES.items() if kept and browser else ():
        page_seen.screenshot(browser, f"http://127.0.0.1:{port}/", size, name == "phone", pathlib.Path(kept) / f"split-{name}.png")
    other.release()
    check(0 <= told["accuracy"] <= 1 and told["loss"] > 0 and told["sent_bytes"] > 0, told)
    samples = openmetrics.read(get(port, "/metrics")[1])
    for figure, key in (("turns_total", "turns"), ("sent_bytes_total", "sent_bytes"), ("heldout_loss", "loss"), ("accuracy", "accuracy"), ("samples", "samples")):
        check(abs(of_one(told["name"], figure) - told[key]) <= 1e-9 * abs(told[key]), f"{figure}: {of_one(told['name'], figure)}, not {told[key]}")
    said = [client.end() for client in (first, other)]
    check("; it waits for other clients: 1 of 2 are here" in killed + said[1] and "; it waits for its turn" in said[0], (killed, said))
    server.end()
    events = lines(ROOT / "server.jsonl")
    kinds = [line["event"] for line in events]
    check(kinds[0] == "start" and kinds[-1] == "end" and events[-1]["state"] == "done" and events[-1]["turns"] == 4, events)
    check(kinds.count("trained") == 4 and kinds.count("joined") == 3 and kinds.count("away") >= 1, events)
    turns = [line for line in events if line["event"] == "turn"]
    again = [line for line in turns if line["client"] == at_work["name"] and line["round"] == 1]
    check(len(turns) == 5 and len(again) == 2 and again[0] == again[1], events)
    check([line["round"] for line in events if line["event"] == "round"] == [0, 1, 2], events)
    check(all(0 <= line["accuracy"] <= 1 for line in events if line["event"] == "trained"), events)
    mine = [json.loads(line) for line in first.out.splitlines()]
    check([line["event"] for line in mine] == ["joined", "turn", "turn", "end"] and mine[1]["round"] == 1, mine)
    causes()
    no_workers("split_shown")


def causes():
    """A server whose disk fails ends with that cause, in the last event as on its terminal."""
    served = {"split.labels": "server", "pipeline.stages": "[{layers: 0-1, dials: true}, {layers: 2-13}]"}
    for name, changes, blocked in (("state", {}, "split.json.new"), ("labels", served, "labels/a/train.sent")):
        with (ROOT / f"{name}.jsonl").open("w") as out:
            server = Server(split(name, rounds=1, epochs=1, **CODED, **changes), "--json", out=out)
        (ROOT / name / blocked / "full").mkdir(parents=True)  # a folder in the place of a file
        client = Client(server, "a")
        server.end(1)
        client.kill()
        end = lines(ROOT / f"{name}.jsonl")[-1]
        check(end["event"] == "end" and end["state"] == "failed" and blocked in end["cause"], f"{end}: {server.text()}")
        check(end["cause"] in server.text(), f"{end}: {server.text()}")


def unit():
    """The settings of the server's unit of systemd."""
    lines = (pathlib.Path(__file__).resolve().parents[2] / "tools/systemd/aqpipe-split-server@.service.in").read_text().splitlines()
    return dict(line.split("=", 1) for line in lines if "=" in line and not line.startswith("#"))


def scenario_split_service():
    """A server under its unit's settings: killed again and again, in a turn and between turns, it is started and the run is the undisturbed one."""
    begin("a", "b")
    keys = {**CODED, "split.mode": "splitfed1", "split.wait": "60s", "checkpoint.every": "1 steps"}
    server = Server(split("calm", rounds=3, epochs=1, clients=2, **keys))
    for client in [Client(server, name) for name in "ab"]:
        client.end()
    server.end()

    said = unit()
    check(said["Restart"] == "on-failure" and {said["RestartPreventExitStatus"], said["SuccessExitStatus"]} == {"2", "3"}, said)
    program, *arguments = said["ExecStart"].replace("@CMAKE_INSTALL_FULL_BINDIR@", str(jobs.BIN)).replace("%i", "unit").split()
    path = split("unit", rounds=3, epochs=1, clients=2, **keys)
    port = int(re.search(r"server: \S*127\.0\.0\.1:(\d+)", path.read_text()).group(1))  # a service has one port, whichever process listens

    def start():
        return subprocess.Popen([program, *arguments], cwd=path.parent, stderr=(ROOT / "unit.server.log").open("a"), stdin=subprocess.DEVNULL)
    process = start()
    server.path, server.port = path, port
    clients = [Client(server, name) for name in "ab"]
    for moment in ("round 1 of 3: . trains steps", "round 1: . has trained up to", "round 2: the turns of 2 clients are averaged", "round 3 of 3: . trains steps"):
        deadline = time.time() + jobs.PATIENCE
        while not re.search(moment, (ROOT / "unit.server.log").read_text()):
            check(time.time() < deadline and process.poll() is None, f"'{moment}' is not said: {(ROOT / 'unit.server.log').read_text()}")
            time.sleep(0.01)
        process.kill()
        check(process.wait() == -signal.SIGKILL, f"{moment}: it had ended")  # which on-failure starts again
        process = start()
    for client in clients:
        client.end()
    check(process.wait(jobs.PATIENCE) == 0, "the unit fails")
    for name in "ab":
        ours, theirs = ([line["loss"] for line in of_client(run, name)] for run in ("unit", "calm"))
        check(ours == theirs, f"{name}: {ours}, not {theirs}")
    process = start()  # all rounds are over: systemd does not start it again
    check(process.wait(jobs.PATIENCE) == int(said["RestartPreventExitStatus"]) and "has finished its 3 rounds" in (ROOT / "unit.server.log").read_text(), "a job that is over")
    path.write_text(path.read_text().replace("model:", "modal:", 1))
    check(start().wait(jobs.PATIENCE) == int(said["RestartPreventExitStatus"]), "a manifest that is refused")
    no_workers("split_service")
