#!/usr/bin/env python3
"""Strangers at the doors of the links of a job that runs, and whose connections are cut all the while, so that healing needs the doors.

Connections that say nothing and stay, garbage, other protocols, HELLOs cut short or broken; from another address and from that of the
right peers. Nobody of them gets a HELLO, and the job's losses are those of the undisturbed run.
"""
import os
import random
import socket
import struct
import subprocess
import threading
import time

import kit
from kit import jobs

STAGES = 3
EPOCHS = 100      # some seconds
RATE = 200        # connections a second and door
HELD = 150        # that stay open, a stranger
CUT = "seed=5&cut_every=90000"   # a connection breaks after some 90 KB


def hello(draw):
    """128 bytes of header and 96 of body as FRAME.md has them; digests are left wrong, for XXH3 is not at hand."""
    body = struct.pack("<QQIIIIIIQQ", draw.getrandbits(64), draw.getrandbits(64), draw.randrange(4), 1, 0, 1 << 20, 8, 1,
                       draw.choice([0, draw.getrandbits(64)]), draw.randrange(3)).ljust(96, b"\0")
    head = b"AQPF" + struct.pack("<HHHHIIIQQQ", 1, 1, 0, 0, 96, 1, 0, draw.getrandbits(64), 0, 0)
    return head.ljust(128, b"\0") + body


def garbage(draw):
    kind = draw.randrange(7)
    if kind == 0:
        return b""  # held half-open
    if kind == 1:
        return b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
    if kind == 2:
        return draw.randbytes(draw.randrange(1, 600))
    if kind == 3:
        return b"AQPF" + draw.randbytes(draw.randrange(300))
    if kind == 4:
        return b"\x16\x03\x01" + struct.pack(">H", draw.randrange(600)) + b"\x01" + draw.randbytes(draw.randrange(500))
    whole = bytearray(hello(draw))
    if kind == 5:
        return bytes(whole[:draw.randrange(len(whole))])
    return bytes(whole) + draw.randbytes(draw.randrange(40))


class Stranger(threading.Thread):
    """RATE connections a second at one door from one address, until it is told to stop."""

    def __init__(self, port, source, seed):
        super().__init__(daemon=True)
        self.port, self.source, self.draw = port, source, random.Random(seed)
        self.stopped, self.tried, self.answered = threading.Event(), 0, 0
        self.held = []

    def look(self, connection):
        """A stranger gets an ABORT, an alert or nothing: never a HELLO."""
        try:
            heard = connection.recv(4096)
        except OSError:
            return
        if heard[:4] == b"AQPF" and heard[6:8] == b"\x01\x00":
            self.answered += 1

    def run(self):
        while not self.stopped.wait(1 / RATE):
            connection = socket.socket()
            try:
                connection.bind((self.source, 0))
                connection.settimeout(0.2)
                connection.connect(("127.0.0.1", self.port))
                connection.sendall(garbage(self.draw))
                connection.setblocking(False)
            except OSError:
                connection.close()
                continue
            self.tried += 1
            self.held.append(connection)
            if len(self.held) > HELD:
                oldest = self.held.pop(0)
                self.look(oldest)
                oldest.close()
        for connection in self.held:
            self.look(connection)
            connection.close()


def run_job(name, strangers_at, tls, seed):
    """Launch with strangers at every door; returns how many connections they made, and how many were answered."""
    first = jobs.lasting_port(STAGES)
    keys = {"pipeline.stages": STAGES, "link.port_first": first, "link.outage_max": "120s", "train.epochs": EPOCHS}
    if tls:
        folder = jobs.ROOT / "keys"
        if not folder.exists():
            done = jobs.aqpipe("keys", "init", folder, "--job", "links", "--stages", STAGES)
            jobs.check(done.returncode == 0, done.stderr)
        keys.update({"job.name": "links", "security.tls": "on", "security.keys": str(folder)})
    path = jobs.manifest(name, **keys)
    sources = ["127.0.0.1", "127.0.0.2"] if strangers_at else []
    strangers = [Stranger(first + stage, source, f"{seed} {stage} {source}")
                 for stage in range(1, STAGES) for source in sources]
    for stranger in strangers:
        stranger.start()
    environment = {**os.environ, **jobs.faulty(links=CUT)}
    work = subprocess.Popen([str(jobs.BIN / "aqpipe"), "launch", str(path), "--no-progress", "--restarts", "0"], env=environment,
                            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, text=True)
    try:
        said, _ = work.communicate(timeout=jobs.PATIENCE)
    except subprocess.TimeoutExpired:
        work.kill()
        said, _ = work.communicate()
        return None, sum(s.tried for s in strangers), sum(s.answered for s in strangers), said
    finally:
        for stranger in strangers:
            stranger.stopped.set()
        for stranger in strangers:
            stranger.join()
    return work.returncode, sum(s.tried for s in strangers), sum(s.answered for s in strangers), said


def healed(name):
    """How often the links of a run were made again, as their logs say."""
    return sum(log.read_text(errors="replace").count(": healed after") for log in (jobs.ROOT / name / "logs").glob("*.log"))


def flood(run, rng, count, tls):
    code, _, _, said = run_job("calm-tls" if tls else "calm", False, tls, 0)
    jobs.check(code == 0, f"the undisturbed run ended with {code}\n{said}")
    right = jobs.losses("calm-tls" if tls else "calm")
    tried, number = 0, 0
    while tried < count and number < 40:
        name = f"flood-{'tls-' if tls else ''}{number}"
        begin = time.monotonic()
        code, some, answered, said = run_job(name, True, tls, f"{rng.getrandbits(40)}")
        tried, number = tried + some, number + 1
        if code is None:
            run.hung(f"{name}: still running after {jobs.PATIENCE} s among strangers\n{said[-1500:]}")
            return
        if code != 0 or jobs.losses(name) != right:
            run.wrong(f"{name} ended with {code}, losses {'alike' if code == 0 else '?'}\n{said[-1500:]}")
            return
        if not healed(name):
            run.wrong(f"{name}: no link was cut, so that no door was needed")
        if answered:
            run.wrong(f"{name}: {answered} strangers got a HELLO")
        run.survived()
        for _ in range(some):
            run.refused()
        print(f"{name}: {some} connections of strangers in {time.monotonic() - begin:.1f} s, {healed(name)} heals", flush=True)
    jobs.no_workers("flood")


@kit.attack("flood", short=600, long=10000)
def flood_plain(run, rng, count):
    flood(run, rng, count, False)


@kit.attack("flood under tls", short=600, long=10000)
def flood_tls(run, rng, count):
    flood(run, rng, count, True)


if __name__ == "__main__":
    kit.main("links")
