"""Split learning: the epsilon of a client, counted on disk before anything is sent, over runs, crashes and both of its stages."""
import json
import re
import shutil
import signal

import jobs
from jobs import aqpipe, check, no_workers
from kit import ROOT
from split import CODED, Client, Server, begin, of_client, report, split

NOISE, GRADIENT_NOISE = 4, 2  # a visit adds 0.25 to mu^2 at the first cut, and 1 at the second
KEYS = {**CODED, "split.privacy.clip": 5, "split.privacy.noise": NOISE, "split.privacy.gradient_clip": 0.05, "split.privacy.gradient_noise": GRADIENT_NOISE,
        "split.wait": "1s", "split.mode": "splitfed1"}
MAX = "split.privacy.epsilon_max"


def epsilon(visits, cuts=2):
    """Of a sample with so many visits, by the command that test_split_dp compares with the library."""
    both = ("--gradient-noise", GRADIENT_NOISE) if cuts == 2 else ()
    done = aqpipe("epsilon", "--noise", NOISE, *both, "--visits", visits, "--json")
    check(done.returncode == 0, done.stderr)
    return json.loads(done.stdout.splitlines()[-1])["epsilon"]


def ledgers(name):
    """Of each file of that client's folder, training samples first: what `aqpipe epsilon` finds in it."""
    found = []
    for path in sorted((ROOT / f"ledgers-{name}").glob("visits-*.ledger")):
        done = aqpipe("epsilon", path, "--json")
        check(done.returncode == 0, done.stderr)
        found.append({**json.loads(done.stdout), "path": path})
    # test.bin has 40 samples, and its ledger has none before the first evaluation. Names of files are digests: no order.
    return sorted(found, key=lambda line: line["samples"] in (0, 40) and not line["visits_gradients"])


def client(server, name, *arguments, **options):
    return Client(server, name, "--set", f"split.privacy.ledger={ROOT}/ledgers-{name}", *arguments, **options)


def together(path, *names, more=(), codes=()):
    """Server and clients, to the end: what each client said. `more`: arguments of the first client."""
    server = Server(path)
    clients = [client(server, name, *(more if name == names[0] else ())) for name in names]
    said = [each.end(code) for each, code in zip(clients, codes or [0] * len(names))]
    server.end()
    return server, said


def scenario_split_epsilon():
    """What plan, client, report and ledger say is one figure; epsilon_max stops a client before a round, the others go on, and a new run on the same data goes on counting."""
    begin("a", "b")
    planned = json.loads(aqpipe("plan", split("seen", rounds=2, epochs=1, clients=2, **KEYS), "--json").stdout)["epsilon"]
    check(abs(planned["training"] - epsilon(2)) < 1e-6 and planned["visits"] == 2 and planned["passes"] == 4, f"{planned}")
    check(planned["weights_leave"] and planned["stops_before_round"] is None, f"{planned}")
    server, said = together(split("seen", rounds=2, epochs=1, clients=2, **KEYS), "a", "b")
    lines = {line["name"]: line for line in report("seen")["clients"]}
    for name, text in zip("ab", said):
        check(abs(lines[name]["epsilon"] - epsilon(2)) < 1e-6 and abs(lines[name]["delta"] - 1e-5) < 1e-9, f"{lines[name]}")
        counts = [float(value) for value in re.findall(r"epsilon (\S+), delta 1e-05: \d visits of the training sample", text)]
        check(counts[0] == 0 and abs(counts[-1] - epsilon(2)) < 1e-3 and len(counts) == 3, f"{name}: {text}")
        state = json.loads((ROOT / f"seen-{name}/privacy.json").read_text())
        check(abs(state["epsilon"] - epsilon(2)) < 1e-6 and state["visits"] == 2 and state["epsilon_max"] is None, f"{state}")
        # Three steps of two micro-batches in a turn: a record (and a sync) per step and cut. Of held-out samples one per pass.
        check([state["ledgers"][of]["records"] for of in ("training", "heldout")] == [2 * 3 * 2, 4], f"{state}")
        training, heldout = ledgers(name)
        check((training["visits_activations"], training["visits_gradients"]) == (2, 2), f"{training}")
        check((heldout["visits_activations"], heldout["visits_gradients"]) == (4, 0), f"{heldout}")  # of each turn, one with its codec
    check("epsilon" in server.text().split("in all")[0], f"no epsilon in the table: {server.text()[-600:]}")
    first = ledgers("a")

    # Two rounds are counted. The limit allows one more.
    most = (epsilon(3) + epsilon(4)) / 2
    path = split("limit", rounds=4, epochs=1, clients=2, **KEYS)
    server, said = together(path, "a", "b", more=("--set", f"{MAX}={most}"), codes=(4, 0))
    check("round 2 would raise epsilon" in said[0] and MAX in said[0] and "sends nothing more" in said[0], said[0])
    check("would raise epsilon" in server.text(), f"the server does not say why a left: {server.text()[-2000:]}")
    lines = {line["name"]: line for line in report("limit")["clients"]}
    check((lines["a"]["turns"], lines["b"]["turns"]) == (1, 4), f"{lines}")
    check(abs(lines["a"]["epsilon"] - epsilon(3)) < 1e-6 and lines["a"]["epsilon"] <= most and lines["b"]["epsilon"] > most, f"{lines}")
    check("would raise epsilon" in lines["a"]["missed_why"], f"{lines['a']}")
    check(ledgers("a")[0]["visits_activations"] == 3 and first[0]["visits_activations"] == 2, "a new run does not go on counting")

    # A new folder over the same data: no turn at all, and nothing is sent.
    before = ledgers("a")
    server, said = together(split("again", rounds=2, epochs=1, clients=2, **KEYS), "a", "b", more=("--set", f"{MAX}={most}"), codes=(4, 0))
    check("round 1 would raise epsilon" in said[0] and ledgers("a") == before, said[0])
    check({line["name"]: line["turns"] for line in report("again")["clients"]} == {"a": 0, "b": 2}, f"{report('again')}")

    # Labels at the server: only the first cut is the client's. And a part of the data, whose places are counted.
    served = {**KEYS, "split.labels": "server", "pipeline.stages": "[{layers: 0-1, dials: true}, {layers: 2-13}]",
              "split.privacy.gradient_clip": 0, "split.privacy.gradient_noise": 0}
    shutil.rmtree(ROOT / "ledgers-a")
    path = split("served", rounds=2, epochs=1, **{**served, "data.skip": 5})
    said = aqpipe("plan", path).stdout
    check("without noise; labels, losses" in said, said)
    together(path, "a")
    training, heldout = ledgers("a")
    check((training["visits_activations"], training["visits_gradients"], heldout["visits_activations"]) == (2, 0, 4), f"{training} {heldout}")
    check((training["samples"], heldout["samples"]) == (55, 40) and training["sample"] >= 5, f"{training} {heldout}")
    check(abs(report("served")["clients"][0]["epsilon"] - epsilon(4, cuts=1)) < 1e-6, "a held-out sample with more visits does not count")

    # Before a cut that nothing trains before a sample is sent once: one visit, and the plan knows it.
    shutil.rmtree(ROOT / "ledgers-a")
    frozen = {**KEYS, "train.freeze": "patch 0", "split.seal": "false"}
    done = aqpipe("plan", split("frozen", rounds=2, epochs=1, **frozen), "--json")
    together(split("frozen", rounds=2, epochs=1, **frozen), "a", more=("--set", f"{MAX}={epsilon(2) * 0.999}"))
    training = ledgers("a")[0]
    check((training["visits_activations"], training["visits_gradients"]) == (1, 2), f"{training}")
    check(abs(json.loads(done.stdout)["epsilon"]["training"] - training["epsilon"]) < 1e-6 and training["epsilon"] < epsilon(2), f"{training} {done.stdout}")

    for keys, text in (({"split.privacy.clip": 5, MAX: 3}, "a clip without noise has no epsilon"),
                       ({"split.privacy.clip": 5, "split.privacy.noise": 4, MAX: 3}, "the gradients at a client's second cut have no noise"),
                       ({**KEYS, MAX: 0.1}, "is passed in the first round")):
        done = aqpipe("plan", split("bad", rounds=2, epochs=1, **{**CODED, **keys}))
        check(done.returncode == 2 and text in done.stderr and MAX in done.stderr, f"{keys}: {done.returncode} {done.stderr}")
    done = aqpipe("plan", split("stops", rounds=4, epochs=1, **{**KEYS, MAX: most}))
    check("round 4 would pass" in done.stdout and "stops after round 3" in done.stdout and "without noise" in done.stdout, done.stdout)
    no_workers("split_epsilon")


def mid_turn(name, most, **options):
    """A client that is held in its first turn, after its first step; and another job of its that has no limit, on the same data."""
    server = Server(split(name, rounds=1, epochs=1, **{**KEYS, "split.wait": "60s"}))
    held = client(server, "a", "--set", f"{MAX}={most}", stops=(1,), **options)
    held.holds[1].reached(held.process)
    together(split(f"{name}-other", rounds=1, epochs=1, **KEYS), "a")
    before = ledgers("a")[0]
    held.release()
    said = held.end(4)
    server.process.send_signal(signal.SIGINT)
    server.process.wait(jobs.PATIENCE)
    return server, said, before, ledgers("a")[0]


def scenario_split_epsilon_stages():
    """In mid-turn each of a client's two stages stops by itself, where another job on the same data has taken what was left; and it is never passed."""
    begin("a")
    # After the other job each sample of the rest has a visit of both cuts. Room for no other activation: stage 0 stops.
    server, said, before, after = mid_turn("first", epsilon(1) * 1.0001)
    check("would raise epsilon" in said, said)
    log = (ROOT / "first-a/run/logs/stage-0.log").read_text()
    check("another visit of a training sample would pass epsilon" in log and "nothing of it is sent" in log, log)
    check(after["epsilon"] == before["epsilon"], f"{before} {after}")
    # Room for an activation and not for its gradient: stage 2 stops.
    shutil.rmtree(ROOT / "ledgers-a")
    most = epsilon(8, cuts=1)  # mu^2 2: a visit of both cuts is 1.25
    server, said, before, after = mid_turn("second", most)
    log = (ROOT / "second-a/run/logs/stage-2.log").read_text()
    check("another visit of a training sample would pass epsilon" in log, log)
    check(after["epsilon"] == before["epsilon"], f"{before} {after}")

    # Held-out samples that are trained on, too: the plan counts visits and passes, as the client does.
    shutil.rmtree(ROOT / "ledgers-a")
    one_file = split("one-file", rounds=2, epochs=1, **KEYS)
    planned = json.loads(aqpipe("plan", one_file, "--set", f"data.heldout={ROOT}/a.bin", "--json").stdout)["epsilon"]
    server = Server(one_file)
    client(server, "a", "--heldout", ROOT / "a.bin").end()
    server.end()
    counted = report("one-file")["clients"][0]["epsilon"]
    check(abs(planned["training"] - counted) < 1e-6 and planned["heldout"] == planned["training"] > epsilon(2), f"{planned} {counted}")

    # And evaluations count before the turn, not only in it.
    shutil.rmtree(ROOT / "ledgers-a")
    server = Server(split("both", rounds=2, epochs=1, **KEYS))
    both = ("--heldout", ROOT / "a.bin")
    said = client(server, "a", *both, "--set", f"{MAX}={epsilon(1) * 1.02}").end(2)
    check("is passed in the first round" in said and not ledgers("a"), f"{said} {ledgers('a')}")
    said = client(server, "a", *both, "--set", f"{MAX}={epsilon(2) * 1.02}").end(4)
    check("round 2 would raise epsilon" in said and ledgers("a")[0]["visits_gradients"] == 1, f"{said} {ledgers('a')}")
    server.process.send_signal(signal.SIGINT)
    server.process.wait(jobs.PATIENCE)
    no_workers("split_epsilon_stages")


def scenario_split_epsilon_killed():
    """Killed between the ledger and the send, a visit counts; what is sent again counts again; and no resumed run forgets."""
    begin("a")
    server = Server(split("killed", rounds=1, epochs=1, **{**KEYS, "split.wait": "60s"}))
    hold = jobs.Hold(2, phase="noised")
    killed = client(server, "a", environment=hold.environment())
    worker = hold.reached(killed.process)
    found = ledgers("a")[0]
    check(found["visits_activations"] == 1 and len(of_client("killed", "a")) <= 1, f"{found}")
    size = found["path"].stat().st_size
    jobs.os.kill(worker, signal.SIGKILL)
    killed.kill()
    check(ledgers("a")[0]["path"].stat().st_size >= size, "what was on disk is not there")
    hold.release()
    client(server, "a").end()
    server.end()
    # Steps 1 and 2 began twice: their first micro-batches were sent, or could have been, two times.
    found = ledgers("a")[0]
    check((found["visits_activations"], found["visits_gradients"]) == (2, 2), f"{found}")
    check(abs(report("killed")["clients"][0]["epsilon"] - epsilon(2)) < 1e-6, f"{report('killed')}")
    no_workers("split_epsilon_killed")


def alone(run, name, *settings, code=2):
    """What a client says that ends with 2 (or `code`) before it finds out whether there is a server."""
    done = aqpipe("split-client", split(run, rounds=2, epochs=1, **KEYS), "--id", name, "--data", ROOT / f"{name}.bin", *(word for text in settings for word in ("--set", text)), "--patience", "2",
                  "--set", f"security.keys={ROOT}/keys-{name}", "--set", f"output.path={ROOT}/{run}-{name}")
    check(done.returncode == code, f"{done.returncode}: {done.stderr}")
    return done.stderr


def scenario_split_epsilon_damaged():
    """A ledger that is damaged, gone, another one or an older copy: nothing is sent, and one line names the file and the remedy."""
    begin("a")
    together(split("whole", rounds=1, epochs=1, **KEYS), "a")
    training = ledgers("a")[0]["path"]
    older = training.read_bytes()
    together(split("more", rounds=1, epochs=1, **KEYS), "a")
    newer = training.read_bytes()

    def refused(data, *texts):
        training.unlink(missing_ok=True)
        if data is not None:
            training.write_bytes(data)
        said = alone("more", "a", f"split.privacy.ledger={ROOT}/ledgers-a")
        for text in (*texts, training.name):
            check(text in said, f"no '{text}' in {said}")
    middle = bytearray(newer)
    middle[len(newer) // 2] ^= 1
    refused(bytes(middle), "is damaged at byte", "nothing is sent", "restore a copy")
    refused(newer[:-60], "is an older copy", "bring it back")
    refused(older, "is an older copy", "nothing is sent")
    refused(None, "is gone", "nothing is sent")
    check(not training.exists(), "an empty ledger took the place of the lost one")

    # What a crash cuts off was never sent: the copy with a torn end is as good.
    training.write_bytes(newer + newer[-50:-11])
    together(split("torn", rounds=1, epochs=1, **KEYS), "a")
    check(ledgers("a")[0]["visits_activations"] == 3, f"{ledgers('a')}")

    said = alone("inside", "a", f"split.privacy.ledger={ROOT}/inside-a/ledgers")
    check("lies in output.path" in said, said)

    # Held-out samples that a client gets later have no ledger yet.
    for want in (("data.heldout=[]",), ()):
        said = alone("later", "a", f"split.privacy.ledger={ROOT}/ledgers-later", *want, code=1)
        check("waits for the split-server" in said and "damaged" not in said, said)
        check(len(ledgers("later")) == 2 - len(want), f"{ledgers('later')}")
    no_workers("split_epsilon_damaged")
