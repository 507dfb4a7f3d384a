#!/usr/bin/env python3
"""Attacks on aqpiped: floods of strangers, clients that do not read, lines without an end."""
import hashlib
import hmac
import json
import os
import resource
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time

import kit
from kit import attack, jobs

SECRET = b"what only friends know.."


class Daemon:
    """A real aqpiped on loopback, its log and what it uses."""

    def __init__(self, name, *options, **environment):
        self.folder = jobs.ROOT / name
        self.folder.mkdir()
        token, port = self.folder / "token", self.folder / "port"
        token.write_bytes(SECRET + b"\n")
        token.chmod(0o600)
        self.log = self.folder / "log"
        self.process = subprocess.Popen(
            [str(jobs.BIN / "aqpiped"), "--listen", "127.0.0.1:0", "--token-file", str(token), "--port-file", str(port),
             *options], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=self.log.open("wb"),
            env={**os.environ, **environment})
        while not port.exists():
            if self.process.poll() is not None:
                sys.exit(f"aqpiped ended: {self.log.read_text()}")
            time.sleep(0.02)
        self.port = int(port.read_text())
        self.address = f"127.0.0.1:{self.port}"
        self.token = token

    def connect(self, source="127.0.0.1"):
        peer = socket.create_connection(("127.0.0.1", self.port), timeout=jobs.PATIENCE, source_address=(source, 0))
        return peer

    def peak_bytes(self):
        for line in open(f"/proc/{self.process.pid}/status"):
            if line.startswith("VmHWM"):
                return int(line.split()[1]) << 10
        return 0

    def end(self):
        self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return None


def sealed(identity):
    """TLS with a launcher's certificate; who the daemon is, others look at (attack_keys)."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.load_cert_chain(identity)
    return context


class Client:
    """One that holds the token."""

    def __init__(self, daemon, source="127.0.0.1", way=0, identity=None):
        self.peer = daemon.connect(source)
        if identity:  # both wait for each other's part of the handshake: a way each
            time.sleep(way)
            self.peer = sealed(identity).wrap_socket(self.peer)
        self.file = self.peer.makefile("rb")
        nonce, ours = self.line()["nonce"], "0" * 32
        time.sleep(way)  # what a long way takes: a stranger's flood has that long
        proof = hmac.new(SECRET, f"aqpipe client 1 {nonce} {ours}".encode(), hashlib.sha256).hexdigest()
        self.say({"op": "hello", "protocol": 1, "version": "x", "nonce": ours, "proof": proof})
        self.line()

    def close(self):
        self.file.close()
        self.peer.close()

    def line(self):
        text = self.file.readline()
        if not text:
            raise ConnectionError("the daemon closed the connection")
        return json.loads(text)

    def say(self, message):
        self.peer.sendall(json.dumps(message).encode() + b"\n")

    def ask(self, message):
        self.say(message)
        return self.line()

    def open(self, folder, name="attack"):
        return self.ask({"op": "open", "job": name, "protocol": 1, "version": "x", "plan_hash": "1" * 16,
                         "resume_hash": "1" * 16, "id": "1" * 16, "run": str(folder),
                         "checkpoint": f"{folder}/checkpoint", "fresh": False, "resumed": False, "resume": 0})


class Flood:
    """So many connections a second from one source, each held for some time, until it is told to end."""

    def __init__(self, daemon, rate, hold):
        self.daemon, self.rate, self.hold = daemon, rate, hold
        self.over, self.opened, self.closed = False, 0, 0
        self.thread = threading.Thread(target=self.run)
        self.thread.start()

    def run(self):
        held, begin = [], time.monotonic()
        while not self.over:
            now = time.monotonic()
            while held and held[0][0] < now:
                held.pop(0)[1].close()
            while self.opened < (now - begin) * self.rate and len(held) < 2000:
                peer = socket.socket()
                peer.setblocking(False)
                try:
                    peer.connect(("127.0.0.1", self.daemon.port))
                except BlockingIOError:
                    pass
                except OSError:
                    peer.close()
                    break
                if self.opened % 2:
                    try:
                        peer.send(b"\x1b]0;hello\x07\n")
                    except OSError:
                        pass
                held.append((now + self.hold, peer))
                self.opened += 1
            time.sleep(0.002)
        for _, peer in held:
            peer.close()

    def end(self):
        self.over = True
        self.thread.join()


def greeted(run, daemon, source, what, way=0, identity=None):
    """Does one who holds the token get in, and an answer?"""
    begin = time.monotonic()
    try:
        client = Client(daemon, source, way, identity)
        ok = client.ask({"op": "status"})["event"] == "status"
        client.close()
    except (OSError, ValueError) as error:
        run.wrong(f"{what}: {error}")
        return
    if not ok:
        run.wrong(f"{what}: no status")
    elif time.monotonic() - begin > 30:
        run.hung(f"{what}: {time.monotonic() - begin:.0f} s")
    else:
        run.survived()


def flooded(run, daemon, owner, count, what, identity=None):
    """Crowds of strangers at the doors: friends get in, the owner of a job stays, the log stays small."""
    for rate, hold in ((80, 5), (200, 5), (200, 0.1)):
        strangers = Flood(daemon, rate, hold)
        while strangers.opened < rate:  # a second of it
            time.sleep(0.01)
        for i in range(count // 3):
            for source in ("127.0.0.2", "127.0.0.1"):
                greeted(run, daemon, source, f"{what} from {source}, {rate}/s held {hold} s", 0.3, identity)
            if owner.ask({"op": "status"})["job"] != "attack":
                run.wrong("the owner has lost its job")
        strangers.end()
    size = daemon.log.stat().st_size
    if size > 20000:
        run.wrong(f"the log has {size} bytes")
    else:
        run.survived()


def under_flood(run, name, count, *options, identity=None):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 8192), hard))
    daemon = Daemon(name, *options)
    owner = Client(daemon, identity=identity)
    jobs.check(owner.open(jobs.ROOT / name / "run")["event"] == "opened", "the job is not opened")
    try:
        flooded(run, daemon, owner, count, name, identity)
    finally:
        owner.close()
        code = daemon.end()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    if code != 0:
        run.wrong(f"the daemon ended with {code}")


@attack("flood", short=6, long=60)
def flood(run, rng, count):
    """80 and 200 connections a second that say nothing, or garbage, to a daemon with a token."""
    under_flood(run, "flood", count)


@attack("tls_flood", short=3, long=30)
def tls_flood(run, rng, count):
    """The same to a daemon with keys: a launcher has to finish a handshake while strangers hold the doors."""
    keys = jobs.ROOT / "flood-keys"
    done = jobs.aqpipe("keys", "init", keys, "--job", "attack", "--stages", "1", "--hosts", "127.0.0.1")
    jobs.check(done.returncode == 0, f"no keys: {done.stderr}")
    under_flood(run, "tls-flood", count, "--keys", str(keys), identity=keys / "launcher.pem")


@attack("slow_reader", short=4, long=100)
def slow_reader(run, rng, count):
    """Clients ask for logs, again and again, and read nothing: others get their answers at once."""
    daemon = Daemon("slow")
    folder = jobs.ROOT / "slow" / "run"
    owner = Client(daemon)
    jobs.check(owner.open(folder)["event"] == "opened", "the job is not opened")
    (folder / "logs").mkdir(exist_ok=True)
    (folder / "logs" / "stage-0.log").write_bytes(b'a line of "text" \x1b[31m\n' * 100000)
    slow = []
    question = b'{"op":"logs","rank":0,"bytes":1048576}\n'
    for i in range(count):
        client = Client(daemon, "127.0.0.3")
        client.peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.peer.setblocking(False)
        for _ in range(50):
            try:
                client.peer.send(question)
            except BlockingIOError:
                break
        slow.append(client)
        begin = time.monotonic()
        owner.ask({"op": "status"})
        took = time.monotonic() - begin
        if took > 10:
            run.hung(f"the owner waited {took:.1f} s")
        greeted(run, daemon, "127.0.0.2", "beside clients that do not read")
    peak = daemon.peak_bytes()
    if peak > 64 << 20:
        run.wrong(f"the daemon took {peak >> 20} MiB")
    else:
        run.survived()
    for client in slow:
        client.close()
    owner.close()
    if daemon.end() != 0:
        run.wrong("the daemon did not end well")


@attack("long_line", short=1, long=20)
def long_line(run, rng, count):
    """15 MiB in a line, as text and as values, of strangers, of clients, and of the owner of a job."""
    daemon = Daemon("long")
    for i in range(count):
        for kind, piece in (("text", b"x" * 4096), ("values", b"[]," * 1365), ("depth", b"[" * 4096)):
            for who in ("stranger", "client", "owner"):
                before, client = daemon.peak_bytes(), None
                if who == "stranger":
                    peer = daemon.connect()
                else:
                    client = Client(daemon)
                    peer = client.peer
                    if who == "owner" and client.open(jobs.ROOT / "long" / "run")["event"] != "opened":
                        run.wrong("the daemon did not take the next job")
                sent = 0
                try:
                    peer.sendall(b'{"op":"start","rank":0,"a":' + (b'"' if kind == "text" else b"["))
                    while sent < 15 << 20:
                        peer.sendall(piece)
                        sent += len(piece)
                    peer.sendall(b"\n")
                    peer.settimeout(jobs.PATIENCE)
                    while peer.recv(4096):
                        pass
                except socket.timeout:
                    run.hung(f"{kind} of a {who}: neither closed nor answered")
                except OSError:
                    pass
                peer.close()
                if client:
                    client.close()
                grown = daemon.peak_bytes() - before
                if grown > 16 << 20:
                    run.wrong(f"{kind} of a {who} cost {grown >> 20} MiB")
                else:
                    run.refused()
    greeted(run, daemon, "127.0.0.1", "after long lines")
    if daemon.end() != 0:
        run.wrong("the daemon did not end well")


PROBE = """#!/bin/sh
for path in {secret} /etc/shadow {data}/ok; do if cat $path >/dev/null 2>&1; then echo "read $path"; fi; done
for path in {outside}/written {data}/written {run}/written; do if (echo x >$path) 2>/dev/null; then echo "wrote $path"; fi; done
echo "memory $(ulimit -d)"
echo done
"""


@attack("forbidden_paths", short=1)
def forbidden_paths(run, rng, count):
    """Runs and data outside the allowed folders: asked for by name, by .., by symlink, and by what a worker itself opens."""
    top = jobs.ROOT / "paths"
    runs, data, outside, programs = (top / name for name in ("runs", "data", "outside", "programs"))
    for folder in (runs, data, outside, programs, top / "runs-too"):
        folder.mkdir(parents=True)
    (outside / "secret").write_text("secret")
    (data / "ok").write_text("data")
    (runs / "link").symlink_to(outside)
    (runs / "nowhere").symlink_to(outside / "absent")
    inside = runs / "job"
    script = programs / "probe"
    script.write_text(PROBE.format(secret=outside / "secret", data=data, outside=outside, run=inside))
    script.chmod(0o755)
    try:
        daemon = Daemon("paths-daemon", "--allow-run", str(runs), "--allow-data", str(data), "--max-memory", "512M",
                        AQPIPE_WORKER=str(script))
    except SystemExit:
        run.skip("aqpiped does not start with --allow-run: this kernel has no Landlock")
        return
    for path in (outside / "job", top / "runs-too" / "job", runs / ".." / "outside" / "job", runs / "link" / "job",
                 runs / "nowhere" / "job", data / "job", "/", "relative"):
        client = Client(daemon)
        answer = client.open(path)
        if answer["event"] != "refused" or len(list(outside.iterdir())) != 1:
            run.wrong(f"{path}: {answer}")
        else:
            run.refused(answer["text"])
        client.close()
    owner = Client(daemon)
    if owner.open(inside)["event"] != "opened":
        run.wrong("an allowed folder is refused")
    owner.say({"op": "start", "rank": 0, "stages": 1, "manifest": "", "plan_hash": "1" * 16, "resume": 0})
    while owner.line().get("event") != "exited":
        pass
    log = (inside / "logs" / "stage-0.log").read_text()
    wanted = [f"read {data}/ok", f"wrote {inside}/written", "memory 524288", "done"]
    if log.splitlines() != wanted:
        run.wrong(f"a worker could do this: {log!r}, not {wanted}")
    else:
        run.survived()
    owner.close()
    if daemon.end() != 0:
        run.wrong("the daemon did not end well")


@attack("allowed_job", short=1)
def allowed_job(run, rng, count):
    """A real worker trains in the folders that are allowed, and ends in a line where its data lies elsewhere."""
    top = jobs.ROOT / "job"
    runs, data = top / "runs", top / "data"
    runs.mkdir(parents=True)
    data.mkdir()
    for name in ("train.txt", "heldout.txt"):
        (data / name).write_text((jobs.ROOT / name).read_text())
    try:
        daemon = Daemon("job-daemon", "--allow-run", str(runs), "--allow-data", str(data), "--max-memory", "4G")
    except SystemExit:
        run.skip("aqpiped does not start with --allow-run: this kernel has no Landlock")
        return
    stages = f"[{{layers: '0-2'}}, {{layers: '3-5', host: 'tcp://{daemon.address}'}}]"
    for name, folder, want in (("good", data, 0), ("bad", jobs.ROOT, 1)):
        path = jobs.manifest(name, pipeline__stages=stages, train__epochs=1, cache__kind="memory",
                             output__path=str(runs / name), data__train=str(folder / "train.txt"),
                             data__heldout=str(folder / "heldout.txt"))
        done = jobs.aqpipe("launch", path, "--no-progress", "--restarts", "0", "--token-file", daemon.token)
        if done.returncode != want or (want and "train.txt" not in done.stderr):
            run.wrong(f"{name} ended with {done.returncode}: {done.stderr[-500:]}")
        elif want:
            run.refused(done.stderr)
        else:
            run.survived()
    if daemon.end() != 0:
        run.wrong("the daemon did not end well")


@attack("too_small", short=1)
def too_small(run, rng, count):
    """A plan that wants more than --max-memory is refused in one line, with both figures, before it has begun."""
    daemon = Daemon("small-daemon", "--max-memory", "32M")
    stages = f"[{{layers: '0-2'}}, {{layers: '3-5', host: 'tcp://{daemon.address}'}}]"
    path = jobs.manifest("small", pipeline__stages=stages, train__epochs=1, cache__kind="memory")
    done = jobs.aqpipe("launch", path, "--no-progress", "--token-file", daemon.token)
    said = [line for line in done.stderr.splitlines() if "by its plan" in line]
    if done.returncode != 1 or len(said) != 1 or "32.0 MiB here" not in said[0] or "--max-memory" not in said[0]:
        run.wrong(f"it ended with {done.returncode}: {done.stderr[-1000:]}")
    else:
        run.refused(said[0])
    greeted(run, daemon, "127.0.0.1", "after the refusal")
    if daemon.end() != 0:
        run.wrong("the daemon did not end well")


NASTY = "\x1b]0;owned\x07\x1b[2J\x9b31m\u202eevil\u2066 \x7f"


@attack("escapes", short=1)
def escapes(run, rng, count):
    """A job's name, a log and a stranger's line that would steer a terminal."""
    daemon = Daemon("escapes")
    folder = jobs.ROOT / "escapes" / "run"
    owner = Client(daemon)
    jobs.check(owner.open(folder, "job" + NASTY)["event"] == "opened", "the job is not opened")
    (folder / "logs").mkdir(exist_ok=True)
    (folder / "logs" / "stage-0.log").write_bytes(b"line\xff\xc2\x9b " + NASTY.encode() + b"\n")
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in (
        {"event": "start", "name": NASTY, "codec": NASTY, "steps_planned": 3},
        {"event": "end", "state": NASTY, "cause": NASTY})))
    other = Client(daemon)
    other.say({"op": NASTY})
    there = ("--daemon", daemon.address, "--token-file", daemon.token)
    for command in (("status", *there), ("logs", *there, "0"), ("top", "--once", *there), ("status", folder),
                    ("logs", folder), ("top", "--once", folder), ("report", folder)):
        done = subprocess.run([str(jobs.BIN / "aqpipe"), *map(str, command)], capture_output=True, stdin=subprocess.DEVNULL,
                              timeout=jobs.PATIENCE)
        said = (done.stdout + done.stderr).decode(errors="surrogateescape")
        bad = [c for c in said if c not in "\n\t" and (c < " " or "\x7f" <= c < "\xa0" or c in "\u202e\u2066" or c > "\ud7ff")]
        if bad:
            run.wrong(f"{command[0]} showed {bad}: {said[:300]!r}")
        else:
            run.survived()
    other.close()
    owner.close()
    if daemon.end() != 0:
        run.wrong("the daemon did not end well")
    log = daemon.log.read_bytes().decode(errors="surrogateescape")
    if any(c != "\n" and (c < " " or c >= "\x7f") for c in log):
        run.wrong(f"the daemon's log: {log!r}")
    else:
        run.survived()


if __name__ == "__main__":
    kit.main("daemon")
