"""Split learning with clients that mean harm, or are broken: each costs its own turn, is said in one line at both ends, and changes nothing of the others' runs."""
import base64
import json
import os
import re
import signal
import socket
import ssl
import struct
import subprocess
import threading
import time

import jobs
from jobs import aqpipe, check, no_workers
from kit import ROOT
from split import CODED, Client, Server, begin, of_client, report, split, stranger, whole


def context(identity, role):
    made = ssl.SSLContext(role)
    made.check_hostname, made.verify_mode = False, ssl.CERT_NONE
    made.load_cert_chain(identity)
    return made


class Sealed:
    """TLS over a socket that one thread reads while others write: a session of OpenSSL belongs to one thread at a time, so it is
    locked, and the socket is waited for outside of the lock."""

    def __init__(self, plain, made, server_side):
        self.plain, self.session, self.writing = plain, threading.Lock(), threading.Lock()
        self.came, self.goes = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.tls = made.wrap_bio(self.came, self.goes, server_side)
        while True:
            try:
                self.tls.do_handshake()
                break
            except ssl.SSLWantReadError:
                plain.sendall(self.goes.read())
                self.more()
        plain.sendall(self.goes.read())

    def more(self):
        came = self.plain.recv(1 << 20)
        if not came:
            raise OSError("the other end has closed the connection")
        with self.session:
            self.came.write(came)

    def sendall(self, data):
        with self.writing:
            with self.session:
                self.tls.write(data)
                sealed = self.goes.read()
            self.plain.sendall(sealed)

    def lines(self):
        """Each line that comes, until the other end closes the session, or the connection breaks (OSError)."""
        held = []  # what has come of a line: a record of TLS has 16 KiB, and a line may have a MiB
        while True:
            try:
                with self.session:
                    came = self.tls.read(1 << 20)
                if not came:
                    return
                *whole, rest = came.split(b"\n")
                if whole:
                    yield b"".join((*held, whole[0]))
                    yield from whole[1:]
                    held = []
                held.append(rest)
            except ssl.SSLWantReadError:
                self.more()

    def cut(self):
        try:
            self.plain.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass


class Between:
    """Stands between a client and its server, with the bundle of that client and (as no client ever has) the server's own
    certificate. rule(who, line, send) says what becomes of a line of "client" or "server": a line, or None. send(to, line) adds
    one. It looks like a server to Client()."""

    def __init__(self, server, name, rule):
        self.path, self.server, self.name, self.rule = server.path, server, name, rule
        self.bundle = f"keys-{name}"
        self.door = socket.create_server(("127.0.0.1", 0))
        self.port = self.door.getsockname()[1]
        self.silent = threading.Event()  # set: nothing passes any more, and no connection ends
        self.live = []
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            try:
                plain, _ = self.door.accept()
                threading.Thread(target=self.meet, args=(plain,), daemon=True).start()
            except OSError:
                return

    def meet(self, plain):
        ends = {}
        try:
            ends["client"] = Sealed(plain, context(ROOT / "keys/launcher.pem", ssl.PROTOCOL_TLS_SERVER), True)
            ends["server"] = Sealed(socket.create_connection(("127.0.0.1", self.server.port)),
                                    context(ROOT / self.bundle / f"site-{self.name}.pem", ssl.PROTOCOL_TLS_CLIENT), False)
        except OSError:
            plain.close()
            return
        self.live = list(ends.values())

        def send(to, line):
            ends[to].sendall(line if isinstance(line, bytes) else json.dumps(line).encode() + b"\n")

        def carry(who, to):
            try:
                for raw in ends[who].lines():
                    while self.silent.is_set():
                        time.sleep(0.05)
                    line = self.rule(who, json.loads(raw), send)
                    if line is not None:
                        send(to, line)
            except (OSError, ValueError):
                pass
            for end in ends.values():
                end.cut()
        for who, to in (("client", "server"), ("server", "client")):
            threading.Thread(target=carry, args=(who, to), daemon=True).start()

    def cut(self):
        for end in self.live:
            end.cut()

    def close(self):
        self.door.close()
        self.cut()


def plain_rule(who, line, send):
    return line


def floods_idle(who, line, send):
    """Once it has joined, a daemon's words without end that no turn asked for."""
    if who == "server" and line.get("event") == "joined":
        send("server", b'{"event":"beat"}\n' * 200000)
    return line


def floods_training(who, line, send):
    """In its turn it repeats what its workers say, a thousand times each."""
    if who == "client" and line.get("event") == "step":
        send("server", (json.dumps(line).encode() + b"\n") * 1000)
    return line


def speaks_for_the_server(who, line, send):
    """Its workers' steps are said to be the server's stage's."""
    return {**line, "rank": 1} if who == "client" and line.get("event") == "step" else line


def weights_none(who, line, send):
    """The last value of its first stage's file is NaN."""
    if who == "client" and line.get("op") == "ends" and line["rank"] == 0:
        blob = base64.b64decode(line["data"])
        if line["offset"] + len(blob) == line["of"]:
            blob = blob[:-4] + struct.pack("<f", float("nan"))
        return {**line, "data": base64.b64encode(blob).decode()}
    return line


def weights_long(who, line, send):
    """Its file is larger than any of its stage."""
    return {**line, "of": 1 << 40} if who == "client" and line.get("op") == "ends" else line


def mute():
    """A client that is offered a turn and never ready: its turn is missed when it has not answered for too long. The time passes for the server alone."""
    unanswered, clock = threading.Event(), jobs.Clock("split-server")

    def rule(who, line, send):
        if who == "client" and line.get("op") == "ready":
            unanswered.set()
            return None
        return line
    server = Server(split("silence", rounds=1, epochs=1, clients=1, **{**CODED, "split.wait": "60s", "control.silence_max": "120s"}), at=clock.at())
    door = Between(server, "mute", rule)
    client = Client(door, "mute", "--patience", "1", data="b")
    check(unanswered.wait(jobs.PATIENCE), f"no turn was offered: {server.text()}")
    clock.until(lambda: server.process.poll() is not None)
    server.end(1)
    check("mute has not answered" in server.text() or "it has not answered for too long" in server.text(), server.text())
    check(report("silence")["clients"][0]["missed"] == 1, f"{report('silence')}")
    client.end(1)
    door.close()


def scenario_split_hostile():
    """Clients that flood, lie or send no numbers, beside two that train: the two have the run without them. One that is never ready costs its own turn."""
    rules = {"flood": floods_idle, "repeat": floods_training, "liar": speaks_for_the_server, "none": weights_none, "long": weights_long}
    values = {"nan": "activation nan 2 1000000", "inf": "gradient inf 2 1000000"}
    begin("a", "b", "mute", *rules, *values)
    keys = {**CODED, "split.wait": "1s", "train.skips_max": 2}  # only who breaks the protocol is away
    whole(split("peace", rounds=2, epochs=1, clients=2, **keys), "a", "b")
    wanted = {name: [line["loss"] for line in of_client("peace", name)] for name in ("a", "b")}

    server = Server(split("war", rounds=2, epochs=1, clients=1 + len(rules) + len(values), **keys))
    good = [Client(server, name) for name in ("a", "b")]
    doors = {name: Between(server, name, rule) for name, rule in rules.items()}
    bad = {name: Client(door, name, "--patience", "1", data="b") for name, door in doors.items()}
    for name, what in values.items():
        os.environ.update(AQPIPE_WORKER=str(jobs.BIN / "aqpipe_faulty"), FAULTY_VALUES=what)
        bad[name] = Client(server, name, "--patience", "1", data="b")
        del os.environ["AQPIPE_WORKER"], os.environ["FAULTY_VALUES"]
    for client in good:
        client.end()
    server.end()
    said = {name: client.process.communicate(timeout=jobs.PATIENCE)[1] for name, client in bad.items()}
    for name, losses in wanted.items():
        check([line["loss"] for line in of_client("war", name)] == losses, f"{name}: not the run without the others: {server.text()}")
    lines = {line["name"]: line for line in report("war")["clients"]}
    if os.environ.get("AQ_SHOW"):
        print(server.text(), json.dumps(said, indent=1))
    both = {"flood": "sends too much after its turn", "repeat": "reports step 1 while step 2 is due",
            "liar": "speaks for a stage that is not its own", "none": "stage-0.safetensors: optimizer.velocity: value 95 of 96 is NaN",
            "long": "sends 'ends' whose 'of' is not a whole number from 1 to", "nan": "without a finite gradient", "inf": "without a finite gradient"}
    for name, why in both.items():
        check(lines[name]["turns"] == 0 and lines[name]["missed"] == 2, f"{name}: {lines[name]}: {server.text()}")
        own = [line for line in server.text().splitlines() if re.search(rf"\b{name}\b", line) and why in line]
        check(own, f"{name}: the server does not say '{why}': {server.text()}")
        check(why in said[name], f"{name}: the client does not say '{why}': {said[name]}")
    check("error:" not in server.text() and str(ROOT) not in "".join(said[name] for name in rules), f"paths, or two lines: {server.text()}")
    mute()
    no_workers("split_hostile")


def scenario_split_stalls():
    """A client that is stopped in its turn, whole or one worker alone, and one whose line goes silent: deadlines, and the others' run."""
    begin("a", "b", "c", "d")
    keys = {**CODED, "split.wait": "1s", "control.silence_max": "6s", "link.silence_max": "3s"}  # 3 s passed between two words of a client that was well, on a busy machine
    (ROOT / "c.bin").write_bytes((ROOT / "b.bin").read_bytes())
    whole(split("peace", rounds=1, epochs=2, clients=2, **keys), "a", "c")  # c's worker is stopped once, and begins again
    wanted = {name: [line["loss"] for line in of_client("peace", name)] for name in "ac"}
    server = Server(split("war", rounds=1, epochs=2, clients=4, **keys))
    door = Between(server, "d", plain_rule)
    clients = {name: Client(door if name == "d" else server, name, "--patience", "1", data="b" if name != "a" else "a",
                            stops=(2,) if name != "a" else ()) for name in "abcd"}
    left, stopped = set("bcd"), []
    deadline = time.time() + jobs.PATIENCE
    while left:
        check(time.time() < deadline and server.process.poll() is None, f"not all had their turns: {server.text()}")
        for name in sorted(left):
            hold = clients[name].holds[2]
            if not hold.asked.with_name(hold.asked.name + ".held").exists():
                continue
            left.remove(name)
            if name == "d":
                door.silent.set()
            else:
                stopped.append(clients[name].process.pid if name == "b" else hold.reached())
                os.kill(stopped[-1], signal.SIGSTOP)
            hold.release()
        time.sleep(0.01)
    clients["a"].end()
    clients["c"].end()
    server.end()
    text = server.text()
    door.close()
    for victim in stopped:
        try:
            os.kill(victim, signal.SIGCONT)
        except ProcessLookupError:
            pass
    said = {name: clients[name].process.communicate(timeout=jobs.PATIENCE)[1] for name in "bd"}
    if os.environ.get("AQ_SHOW"):
        print(text, json.dumps(said, indent=1))
    for name, losses in wanted.items():
        check([line["loss"] for line in of_client("war", name)] == losses, f"{name}: not the run without the others: {text}")
    lines = {line["name"]: line for line in report("war")["clients"]}
    for name in "bd":
        check(lines[name]["turns"] == 0 and lines[name]["missed"] == 1, f"{name}: {lines[name]}: {text}")
        check(re.search(rf"{name}( misses its turn|.* is gone|: )[^\n]*(silent|owes|closed|stage)", text), f"{name}: no reason: {text}")
    no_workers("split_stalls")


def scenario_split_doors():
    """Certificates that have expired, a second job or client in a folder that has one, another model."""
    begin("a", "b")
    behind = {**os.environ, "LD_PRELOAD": str(jobs.BIN / "libclock_jump.so"), "CLOCK_DAYS": "-30"}
    done = subprocess.run([jobs.BIN / "aqpipe", "keys", "enroll", ROOT / "keys", "--site", "c", "--days", "5", "--out", ROOT / "keys-old"],
                          env=behind, capture_output=True, text=True)
    check(done.returncode == 0, done.stderr)
    server = Server(split("doors", rounds=1, clients=2, **CODED))
    said = Client(server, "c", "--patience", "1", data="b", keys="keys-old").end(1)
    check("site-c.pem is not valid: certificate has expired" in said and len(said.splitlines()) == 1, f"an expired certificate: {said}")
    check(stranger(server, "keys-old/site-c", b'{"op":"join"}\n') == "", "who shows an expired certificate is answered")
    server.await_text("presents aqpipe://split/site/c, which expired on ")
    for _ in range(50):
        stranger(server, "keys-old/site-c", b"x")
    check(0 < server.text().count("which expired on") < 20, f"strangers fill the log: {server.text()}")
    first = Client(server, "a")
    server.await_text(" has joined, with ")  # the folder is its own before anybody else asks for it
    second = Client(server, "b", folder=ROOT / "doors-a").end(1)
    check("doors-a" in second and len(second.splitlines()) == 1, f"a second client in a folder: {second}")
    other = subprocess.run([jobs.BIN / "aqpipe", "split-server", server.path], capture_output=True, text=True, timeout=jobs.PATIENCE)
    check(other.returncode == 1 and len(other.stderr.splitlines()) == 1, f"a second server in a folder: {other.stderr}")
    said = Client(server, "b", "--patience", "1", "--set", "model.width=16").end(1)
    check("model.width: 8 there, 16 here" in said and "has another plan" in server.text(), f"another model: {said}")
    Client(server, "b").end()
    first.end()
    server.end()

    # Another job where one was: both folders are refused.
    other = split("other", rounds=1, clients=1, **{**CODED, "output.path": str(ROOT / "doors")})
    done = subprocess.run([jobs.BIN / "aqpipe", "split-server", other], capture_output=True, text=True, timeout=jobs.PATIENCE)
    check(done.returncode == 2 and len(done.stderr.splitlines()) == 1 and "doors" in done.stderr, f"another job's folder: {done.stderr}")
    server = Server(split("third", rounds=1, clients=1, **CODED))
    said = Client(server, "a", "--patience", "1", folder=ROOT / "doors-a").end(2)
    check("doors-a is the folder of job 'doors', and this is job 'third'" in said, said)
    (ROOT / "doors-a/client.json").unlink()  # whose it is shows only in its turn then
    client = Client(server, "a", "--patience", "1", folder=ROOT / "doors-a")
    _, said = client.process.communicate(timeout=jobs.PATIENCE)
    server.process.wait(jobs.PATIENCE)
    check(client.process.returncode == 1 and "doors-a/run holds the run of another run, of the job 'doors'" in said, said)
    check(server.process.returncode == 1 and "nothing was trained" in said and "nothing was trained" in server.text(), server.text())
    check(report("third")["clients"][0]["missed"] == 1 and "holds the run of another run" in server.text(), server.text())
    no_workers("split_doors")


def broken_programs(name):
    """A daemon whose workers cannot be started: the program beside it needs a library that is nowhere."""
    folder = ROOT / name
    folder.mkdir()
    (folder / "aqpiped").write_bytes((jobs.BIN / "aqpiped").read_bytes())
    program = (jobs.BIN / "aqpipe").read_bytes()
    library = next(each for each in (b"libyaml-0.so.2", b"libm.so.6") if each + b"\0" in program)
    gone = library[:-1] + b"Z"
    (folder / "aqpipe").write_bytes(program.replace(library + b"\0", gone + b"\0"))
    for each in folder.iterdir():
        each.chmod(0o755)
    return folder / "aqpiped", gone.decode()


def scenario_split_nothing():
    """A job in which every turn was missed is an error at both ends, with the cause; one in which some were is none."""
    begin("a", "b")
    daemon, library = broken_programs("broken")
    cause = f"stage [02] .*ended with code 127 .*error while loading shared libraries: {library}"
    keys = {**CODED, "split.wait": "60s"}  # a client that dials again is awaited on a busy machine, too: else it is away, and no cause is told
    server = Server(split("nothing", rounds=2, epochs=1, clients=1, **{**keys, "split.collect": "true"}))
    broken = Client(server, "a", at=("env", f"AQPIPE_DAEMON={daemon}"))
    said = broken.end(1)
    server.end(1)
    last = {"client": said.splitlines()[-1], "server": server.text().splitlines()[-1]}
    for end, line in last.items():
        check("nothing was trained" in line and re.search(cause, line), f"{end}: {line}")
    check(re.search(f"the turn is over: .*{cause}", said), said)
    about = report("nothing")
    check(about["loss"] is None and [line["turns"] for line in about["clients"]] == [0], f"{about}")
    check(re.search(cause, about["clients"][0]["missed_why"]), f"{about}")
    check(re.search(cause, json.loads((ROOT / "nothing" / "split.json").read_text())["clients"][0]["why"]), "split.json has no cause")
    check(not (ROOT / "nothing" / "model.safetensors").exists(), "weights that nobody trained were left as a model")
    again = subprocess.run([jobs.BIN / "aqpipe", "split-server", server.path], capture_output=True, text=True, timeout=jobs.PATIENCE)
    check(again.returncode == 2, f"the same command once more: {again.returncode}, {again.stderr}")

    # Nor can the daemon be started: there is no program beside it.
    alone = ROOT / "alone"
    alone.mkdir()
    (alone / "aqpiped").write_bytes((jobs.BIN / "aqpiped").read_bytes())
    (alone / "aqpiped").chmod(0o755)
    server = Server(split("alone", rounds=1, epochs=1, clients=1, **keys, **{"output.path": str(ROOT / "alone-server")}))
    said = Client(server, "a", "--patience", "5", at=("env", f"AQPIPE_DAEMON={alone / 'aqpiped'}"), folder=ROOT / "alone-a").end(1)
    server.end(1)
    check("there is no aqpipe next to this program" in said and "the daemon of a has ended with code" in said, said)
    check(re.search("nothing was trained.*the daemon of a has ended with code", server.text().splitlines()[-1]), server.text())

    # The other one trains: no error, and who has trained nothing is told why.
    server = Server(split("some", rounds=1, epochs=1, clients=2, **keys))
    broken, sound = Client(server, "a", at=("env", f"AQPIPE_DAEMON={daemon}")), Client(server, "b")
    said = broken.end()
    sound.end()
    server.end()
    check(re.search(f"nothing of a was trained, it missed its last turn: .*{cause}", said), said)
    check(re.search(f"a has trained in none of the rounds.*{cause}", server.text()), server.text())
    no_workers("split_nothing")


def scenario_split_nan():
    """One activation that is no number: the step is void, but a batch norm's statistics have it. The turn is missed, and the next client trains."""
    begin("a", "b")
    keys = {**CODED, "model.kind": "resnet", "model.width": None, "model.depth": 18, "model.filters": 16, "model.levels": None, "split.wait": "1s",
            "pipeline.stages": "[{layers: 0-1, dials: true}, {layers: 2-8}, {layers: 9-10, dials: true}]"}
    server = Server(split("nan", rounds=1, epochs=1, clients=2, **keys))
    good = Client(server, "a")
    os.environ.update(AQPIPE_WORKER=str(jobs.BIN / "aqpipe_faulty"), FAULTY_VALUES="activation nan 2 1")
    bad = Client(server, "b")
    del os.environ["AQPIPE_WORKER"], os.environ["FAULTY_VALUES"]
    good.end()
    said = bad.end()
    server.end()
    lines = {line["name"]: line for line in report("nan")["clients"]}
    check((lines["a"]["turns"], lines["b"]["turns"], lines["b"]["missed"]) == (1, 0, 1), f"{lines}: {server.text()}")
    why = "the weights of its turn are refused: stage-1.safetensors"
    check(why in said and why in server.text(), f"{said}: {server.text()}")
    no_workers("split_nan")
