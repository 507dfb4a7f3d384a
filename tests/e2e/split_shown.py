"""What a split-server and its clients show: the status page while rounds go on, and events with --json."""
import http.client
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import time

import jobs
import openmetrics
import page_seen
from jobs import aqpipe, no_workers
from kit import ROOT, check
from split import CODED, Client, Server, begin, job, of_client, report, split


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def get(port, path):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=jobs.PATIENCE)
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
    # The page prints nine digits.
    for figure, key in (("turns_total", "turns"), ("sent_bytes_total", "sent_bytes"), ("heldout_loss", "loss"), ("accuracy", "accuracy"), ("samples", "samples")):
        check(abs(of_one(told["name"], figure) - told[key]) <= 5e-9 * abs(told[key]), f"{figure}: {of_one(told['name'], figure)}, not {told[key]}")
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
    """A server whose disk fails ends with that cause, in its last event as on its terminal."""
    served = {"split.labels": "server", "pipeline.stages": "[{layers: 0-1, dials: true}, {layers: 2-13}]"}
    for name, changes, blocked in (("state", {}, "split.json.new"), ("labels", served, "labels/a/train.sent")):
        with (ROOT / f"{name}.jsonl").open("w") as out:
            server = Server(split(name, rounds=1, epochs=1, **CODED, **changes), "--json", out=out)
        (ROOT / name / blocked / "full").mkdir(parents=True)  # a folder in the place of a file
        client = Client(server, "a")
        server.end(1)
        client.kill()
        end = [line for line in lines(ROOT / f"{name}.jsonl") if line["event"] != "error"][-1]
        check(end["event"] == "end" and end["state"] == "failed" and blocked in end["cause"], f"{end}: {server.text()}")
        check(end["cause"] in server.text(), f"{end}: {server.text()}")


def figures(command, folder):
    done = aqpipe(command, folder, "--json")
    check(done.returncode == 0, f"{command} {folder}: {done.stderr}")
    found = json.loads(done.stdout)
    return found["runs"][0] if command == "report" else found


def until_status(folder, what, good):
    deadline = time.time() + jobs.PATIENCE
    while True:
        said = figures("status", folder)
        if good(said):
            return said
        check(time.time() < deadline, f"{what}: {said}")
        time.sleep(0.1)


def scenario_split_status():
    """`aqpipe status` and `aqpipe report` of both kinds of folder: before a client is here, in a turn, after a crash, at the end; other folders are refused."""
    begin("a", "b")
    three = split("three", clients=3, **CODED, **{"split.mode": "splitfed1", "split.parallel": 3})
    said = aqpipe("plan", three).stdout
    check("turns at once: 3 (split.parallel), each with a stage 1 on device cpu" in said, said)
    check(json.loads(aqpipe("plan", three, "--json").stdout)["turns_at_once"] == 3, "turns at once")
    noise = {"split.privacy.clip": 5, "split.privacy.noise": 4, "split.privacy.gradient_clip": 0.05, "split.privacy.gradient_noise": 2}
    server = Server(split("told", rounds=2, epochs=1, clients=2, **CODED, **noise, **{"split.wait": "60s"}))
    run, mine = ROOT / "told", ROOT / "told-a"
    said = until_status(run, "nobody is here", lambda said: said["waits_for"])
    check((said["role"], said["state"], said["round"], said["rounds_planned"], said["clients"]) == ("split-server", "running", 0, 2, []), said)
    check(said["pid"] == server.process.pid and said["waits_for"] == "waits for clients: 0 of 2 are here", said)
    ledger = {name: ("--set", f"split.privacy.ledger={ROOT}/ledgers-{name}") for name in "ab"}
    clients = [Client(server, name, *ledger[name], stops=(1,)) for name in "ab"]
    said = until_status(run, "one trains, one waits", lambda said: sorted(bool(each["trains"]) for each in said["clients"]) == [False, True])
    at_work, waits = sorted(said["clients"], key=lambda each: not each["trains"])
    check(said["round"] == 1 and waits["does"] == f"waits for {at_work['name']}" and at_work["awaited"] and waits["here"], said)
    text = aqpipe("status", run).stdout
    check(f"waits for {at_work['name']}" in text and "round 1 of 2" in text and "split-server (relay), running" in text, text)
    said = until_status(ROOT / f"told-{at_work['name']}", "the client trains", lambda said: said["state"] == "training")
    check(said["role"] == "split-client" and said["round"] == 1 and said["client"] == at_work["name"] and "trains steps 1 to" in said["waits_for"], said)
    for words in (("top", run), ("report", run, "--tsv"), ("report", mine, "--tsv")):
        done = aqpipe(*words)
        check(done.returncode == 2 and "clients/NAME" in done.stderr, f"{words}: {done}")

    server.process.kill()  # of a crash the state is not "running"
    server.process.wait()
    said = figures("status", run)
    check(said["state"] == "interrupted" and said["pid"] == 0 and said["waits_for"] is None and "does" not in said["clients"][0], said)
    again = Server(server.path)
    check(again.port > 0, "no port")
    for client in clients:
        client.kill()
    check(figures("status", mine)["state"] == "interrupted", "a client that was killed")
    clients = [Client(again, name, *ledger[name]) for name in "ab"]
    for client in clients:
        client.end()
    again.end()

    # The runs have each client's figures; a server without a page and --json does not read them after each turn.
    said = json.loads((run / "status.json").read_text())["clients"]
    check(sorted((line["name"], line["turns"], line["sent_bytes"], line["loss"], line["accuracy"]) for line in said) == [(name, 2, None, None, None) for name in "ab"], said)
    said, told = figures("report", run), report("told")
    said.pop("folder")
    told.pop("folder")
    told = json.loads(json.dumps(told), parse_float=lambda text: float(f"{float(text):.9g}"))  # as `report --json` prints figures
    check(said == told and said["round"] == said["rounds"] == 2 and said["sent_bytes"] > 0, (said, told))
    check(all(line["turns"] == 2 and 0 <= line["heldout"]["accuracy"] <= 1 and line["epsilon"] > 0 for line in said["clients"]), said)
    check(figures("status", run)["state"] == "done", figures("status", run))
    for name, line in zip("ab", sorted(said["clients"], key=lambda line: line["name"])):
        own = figures("report", ROOT / f"told-{name}")
        check((own["turns"], own["round"], own["rounds_planned"], own["state"]) == (2, 2, 2, "done"), own)
        check(abs(own["heldout"]["loss"] - line["heldout"]["loss"]) < 1e-8 and own["epsilon"] == line["epsilon"], (own, line))
        check(0 < own["sent_bytes"] and own["step"] == line["step"], (own, line))
    table = aqpipe("report", run, mine, run / "clients/a").stdout
    check("held-out metric" in table and "accuracy 0." in table and "split-client a of" in table and "epsilon" in table, table)

    # Logs: at the server those of each client's turns, at a client those of its own stages.
    lines = [json.loads(line) for line in aqpipe("logs", run, "--json").stdout.splitlines()]
    check([(line["client"], line["stage"]) for line in lines if line["stage"] is not None] == [("a", 1), ("b", 1)], lines)
    check(all("worker" in line["text"] for line in lines if line["stage"] == 1) and lines[0]["client"] == "a", lines)
    text = aqpipe("logs", run, "1", "-n", 1).stdout.splitlines()
    check([line for line in text if "==>" in line] == [f"==> {run}/clients/{name}/logs/stage-1.log <==" for name in "ab"] and len(text) == 4, text)
    text = aqpipe("logs", mine).stdout
    check(all(f"==> {mine}/run/logs/stage-{stage}.log <==" in text for stage in (0, 2)), text)
    check(aqpipe("logs", mine, "2", "-n", 1).stdout.count("\n") == 1, "the log of one stage of a client")
    for words, wanted in (((run, "0"), "has no log of that stage"), ((mine, "1"), "there is no log of stage 1"), ((run, "-f"), "clients/NAME")):
        done = aqpipe("logs", *words)
        check(done.returncode == 2 and wanted in done.stderr and not done.stdout, f"logs {words}: {done}")

    for name, kept in (("damaged", "split.json"), ("damaged-client", "client.json")):
        (ROOT / name).mkdir()
        (ROOT / name / kept).write_text("[1, 2")
    (ROOT / "other").mkdir()
    for command in ("status", "report"):
        for name, words in (("damaged", "split.json is damaged"), ("damaged-client", "client.json is damaged"), ("other", "metrics.jsonl"), ("nowhere", "metrics.jsonl")):
            done = aqpipe(command, ROOT / name)
            check(done.returncode == 2 and words in done.stderr, f"{command} {name}: {done}")
    hostile = {"job": "\x1b[31m", "round": -1, "clients": [{"name": "../../etc"}, 7, {"name": "a", "turns": "x", "why": 3}], "planned": [], "mode": None}
    (ROOT / "damaged/split.json").write_text(json.dumps(hostile))
    for command in ("status", "report"):
        done = aqpipe(command, ROOT / "damaged")
        check(done.returncode == 0 and "\x1b" not in done.stdout and "etc" not in done.stdout, f"{done}")
        check([line["name"] for line in figures(command, ROOT / "damaged")["clients"]] == ["a"], "names")
    # Two clients whose bytes are finite, and whose sum is not.
    shutil.copytree(run, ROOT / "huge")
    for name in "ab":
        log = ROOT / "huge/clients" / name / "metrics.jsonl"
        steps = [json.loads(line) for line in log.read_text().splitlines()]
        count = sum(line["event"] == "step" for line in steps)
        for line in steps:
            if line["event"] == "step":
                line["forward_bytes"] = [1.5e308 / count / len(line["forward_bytes"])] * len(line["forward_bytes"])
        log.write_text("".join(json.dumps(line) + "\n" for line in steps))
    for command in ("status", "report"):
        said = figures(command, ROOT / "huge")
        check(all(line["sent_bytes"] > 1e307 for line in said["clients"]) and said["sent_bytes"] is None, said)
        done = aqpipe(command, ROOT / "huge")
        check(done.returncode == 0, f"{command}: {done}")
    no_workers("split_status")


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


def scenario_split_shared():
    """A second job at the place of a split-server or a split-client is refused, and `aqpipe status` and `report` print the first one's figures."""
    begin("a", "b")
    path = split("told", rounds=1, epochs=1, **CODED)
    server = Server(path)
    Client(server, "a").end()
    server.end()
    run, mine = ROOT / "told", ROOT / "told-a"
    before = {command: [figures(command, folder) for folder in (run, mine)] for command in ("status", "report")}
    other = split("other", rounds=2, epochs=1, **CODED)
    plain = job("plain", **CODED, **{"train.epochs": 1})

    def client(path, name):
        return ("split-client", path, "--id", name, "--data", ROOT / "a.bin", "--set", f"security.keys={ROOT}/keys-{name}", "--set", f"split.server='127.0.0.1:{server.port}'", "--patience", "1")
    for folder, words, said in ((run, ("split-server", other), "is the folder of job 'told', and this is job 'other'"),
                                (run, ("launch", plain), "is the folder of a split-server (split.json)"),
                                (run, client(path, "a"), "is the folder of a split-server (split.json)"),
                                (mine, client(other, "a"), "is the folder of job 'told', and this is job 'other'"),
                                (mine, client(path, "b"), "is the folder of client 'a', and this is client 'b'"),
                                (mine, ("split-server", path), "is the folder of a split-client (client.json)"),
                                (mine, ("launch", plain), "is the folder of a split-client (client.json)")):
        done = aqpipe(*words, "--set", f"output.path={folder}")
        check(done.returncode == 2 and said in done.stderr, f"{words[0]} at {folder}: {done.returncode} {done.stderr[-800:]}")
        now = {command: [figures(command, each) for each in (run, mine)] for command in ("status", "report")}
        check(now == before, f"{words[0]} at {folder}: {now}, not {before}")
    for which in (other, path):  # a client that had no turn may get another job: its name was wrong
        done = aqpipe(*client(which, "a"), "--set", f"output.path={ROOT / 'refused'}")
        check(done.returncode == 1 and (ROOT / "refused" / "client.json").exists() and "is the folder of" not in done.stderr, f"{which}: {done.returncode} {done.stderr[-800:]}")
    long = "j" * 90 + "\u00e9"  # no job is refused its own folder
    again = split("own", rounds=1, epochs=1, **CODED)
    for _ in range(2):
        server = Server(again, *("--set", f"job.name={long}"))
        server.process.terminate()
        server.process.wait()
        check("is the folder of job" not in server.text(), server.text())
        check((ROOT / "own/split.json").exists(), "the server has left no split.json")
    no_workers("split_shared")
