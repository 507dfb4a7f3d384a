#!/usr/bin/env python3
"""Attacks on split learning by those who have a good certificate: clients that lie about their data, two machines with one bundle, and a server that lies."""
import json
import os
import pathlib
import queue
import socket
import struct
import sys
import threading
import time
import types

import kit
from kit import attack, jobs

CLASSES = 7
LIE = {"train_digest": 1, "heldout_samples": 0, "heldout_digest": 1, "labels": 0, "weights_digest": 0}


def learn():
    """The e2e scenarios' server, client and man between, in this attack's folder."""
    if "split_hostile" not in sys.modules:
        fake = {"kit": types.ModuleType("kit"), "resume": types.ModuleType("resume")}
        fake["kit"].ROOT, fake["resume"].flip = jobs.ROOT, None
        sys.modules.update(fake)
        sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "e2e"))
        import split
        import split_hostile  # noqa: F401
        sys.modules["kit"] = kit
        split.begin("a", "b", "c", "d")
        for seed, name in enumerate("cd"):
            split.records(name, 45, 7 + seed)
    return sys.modules["split"], sys.modules["split_hostile"]


def facts(**changed):
    """What a client says of its data, whatever they are: no patched program is needed for that."""
    return [word for key, value in {**LIE, **changed}.items() for word in ("--set", f"facts.{key}={value}")]


def job(name, **changes):
    split, _ = learn()
    return split.split(name, rounds=1, epochs=1, clients=2, **{**split.PLAIN, "split.wait": "2s", **changes})


PEACE = {}


def peace(**changes):
    """The losses of a and b alone."""
    split, _ = learn()
    key = json.dumps(changes)
    if key not in PEACE:
        name = f"peace{len(PEACE)}"
        split.whole(job(name, **changes), "a", "b")
        PEACE[key] = losses(name)
    return PEACE[key]


def losses(server):
    split, _ = learn()
    return {name: [line.get("loss") for line in split.of_client(server, name)] for name in "ab"}


def honest(run, server, what, **changes):
    """a and b join, train, and have the losses of the run without the liar."""
    split, _ = learn()
    clients = [split.Client(server, name) for name in "ab"]
    said = {client.name: client.process.communicate(timeout=jobs.PATIENCE)[1] for client in clients}
    server.process.wait(jobs.PATIENCE)
    codes = [client.process.returncode for client in clients]
    if codes != [0, 0] or server.process.returncode != 0:
        return run.wrong(f"{what}: honest clients ended with {codes}: {said}: {server.text()[-2000:]}")
    if losses(server.path.stem) != peace(**changes):
        return run.wrong(f"{what}: an honest client has other losses than without the liar")
    return run.survived()


@attack("another network", short=2, long=24)
def another_network(run, rng, count):
    """One who comes first, says that its data have 7 classes, and goes, stays, or meets a server whose owner gave the classes."""
    split, _ = learn()
    for i in range(count):
        way = ("goes", "given", "stays", "goes")[i % 4]
        changes = {"split.mode": "splitfed1"} if i % 4 == 3 else {}
        server = split.Server(job(f"network{i}", **changes), *(("--set", "facts.vocabulary=10") if way == "given" else ()))
        liar = split.Client(server, "c", *facts(train_samples=60, vocabulary=rng.choice((1, CLASSES, 11, 1000))))
        if way == "given":
            said = liar.end(1)
            if "can set facts.vocabulary" not in said:
                run.wrong(f"the remedy is not said: {said}")
        else:
            server.await_text("c (127.0.0.1")
        if way == "goes":
            liar.kill()
            server.await_text("c (127.0.0.1:") and server.await_text(") is gone")
        honest(run, server, f"{way} {changes}", **changes)
        if way == "stays":
            said = liar.end(1)
            if "has data of another network" not in said:
                run.wrong(f"the liar is not told: {said}")


@attack("claims of samples", short=2, long=20)
def claims(run, rng, count):
    """split.mode: global: one says that it has a million samples, or 10^8, and dies when all is settled, or before."""
    split, _ = learn()
    together = {"split.mode": "global"}
    for i in range(count):
        samples = (10**8, 10**6, 1200)[i % 3] + rng.randrange(1000)
        server = split.Server(job(f"claim{i}", **together))
        liar = split.Client(server, "c", *facts(train_samples=samples, vocabulary=10))
        if samples > 2_000_000:
            said = liar.end(1)
            if "samples' is not a whole number from " not in said or "to 2000000 (split.samples_max)" not in said:
                run.wrong(f"a claim of {samples}: {said}")
        else:
            server.await_text("c (127.0.0.1")
        if i % 6 == 4:
            liar.kill()
            server.await_text(") is gone")
        honest(run, server, f"{samples} samples", **together)
        if samples <= 2_000_000 and i % 6 != 4:
            said = liar.end(1)
            if "more than split.share_max" not in said:
                run.wrong(f"a claim of {samples} is not told why: {said}")


@attack("two machines with one bundle", short=1, long=4)
def two_machines(run, rng, count):
    split, _ = learn()
    for i in range(count):
        server = split.Server(job(f"twice{i}", **{"link.rate_mbps": 8}))
        clients = [split.Client(server, name) for name in "ab"]
        split.await_step(server, "a", 1)
        said = split.Client(server, "a", folder=jobs.ROOT / f"second{i}").end(1)
        for client in clients:
            client.end()
        server.end()
        text = server.text()
        if "a (127.0.0.1" not in text or "is connected from another machine or folder" not in said or "its own bundle" not in said:
            run.wrong(f"the second is not told why: {said}")
        elif "it came again by another connection" in text:
            run.wrong(f"the first was ousted: {text}")
        else:
            run.refused()


class Watched:
    """A third party's port: who connects is counted."""

    def __init__(self):
        self.door, self.count = socket.create_server(("127.0.0.2", 0)), 0
        self.port = self.door.getsockname()[1]
        threading.Thread(target=self.serve, daemon=True).start()

    def serve(self):
        while True:
            peer, _ = self.door.accept()
            self.count += 1
            peer.close()


@attack("a server that lies", short=2, long=12)
def lying_server(run, rng, count):
    """It sends a client's stages to somebody else's port, or files of weights without an end."""
    split, hostile = learn()
    third = Watched()

    def elsewhere(who, line, send):
        return {**line, "address": f"127.0.0.2:{third.port}"} if who == "server" and line.get("op") == "connect" else line

    def nowhere(who, line, send):
        bad = rng.choice(("", "[::1", "a" * 5000, "?", "10.0.0.1", "metadata.internal:80\x1b[2J"))
        return {**line, "address": bad} if who == "server" and line.get("op") == "connect" else line

    def endless(who, line, send):
        if who != "server" or line.get("event") != "ends":
            return line
        for at in range(64):
            send("client", {**line, "offset": at << 20, "of": 1 << 50})
        return None

    def twice(who, line, send):
        if who == "server" and line.get("event") == "ends":
            send("client", line)
        return line
    for i in range(count):
        rule, wanted = ((elsewhere, "the job's split.server is"), (endless, "of weights where byte"), (nowhere, "its address"),
                        (twice, "the server sends"))[i % 4]
        server = split.Server(job(f"lies{i}", **{"split.clients": 1}))
        door = hostile.Between(server, "d", rule)
        client = split.Client(door, "d", "--patience", "2")
        said = client.process.communicate(timeout=jobs.PATIENCE)[1]
        server.process.kill()
        server.process.wait()
        begin = jobs.ROOT / f"lies{i}-d" / "begin"
        held = sum(path.stat().st_size for path in begin.rglob("*") if path.is_file())
        if third.count:
            run.wrong(f"{third.count} connections at a third party's port")
        elif held > 64 << 20:
            run.wrong(f"the client wrote {held >> 20} MiB of weights")
        elif "\x1b" in said or client.process.returncode != 1 or (wanted not in said and "split.server is" not in said):
            run.wrong(f"{rule.__name__}: the client ended with {client.process.returncode}: {said}")
        else:
            run.refused()


@attack("another user at the socket of sums", short=2, long=20)
def sums_of_others(run, rng, count):
    """split.mode: global: a process of another account connects to sums.sock, where its folder is open to it, and says what a stage says."""
    split, _ = learn()
    if os.geteuid() != 0:
        return run.skip("only root can be another user")
    server = split.Server(job("sums", **{"split.mode": "global", "split.wait": "60s"}))
    first, second = split.Client(server, "a", stops=(2,)), split.Client(server, "b")
    split.stopped(server, first, 2)
    path = jobs.ROOT / "sums" / "sums.sock"
    hello = struct.pack("<QIIQQQ", 0x31736d7573716141, 1, 0, 0, 0, 11000) + b"a".ljust(64, b"\0")
    for i in range(count):
        child = os.fork()
        if child == 0:
            code = 1
            try:
                if i % 2:  # somebody careless has opened it, and the folders above
                    path.chmod(0o777)
                    path.parent.chmod(0o711)
                    jobs.ROOT.chmod(0o711)
                door = socket.socket(socket.AF_UNIX)
                door.settimeout(20)
                os.setgid(65534)
                os.setuid(65534)
                door.connect(str(path))
                door.sendall(hello)
                code = 0 if door.recv(40) == b"" else 1
            except (PermissionError, ConnectionError):
                code = 0
            finally:
                os._exit(code)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if code == 0:
            run.refused()
        else:
            run.wrong(f"try {i}: another user's stage is heard, or hangs")
    first.release()
    for client in (first, second):
        client.end()
    server.end()


class Far:
    """A way to the server's port with so many seconds of delay each way."""

    def __init__(self, path, port, delay):
        self.path, self.to, self.delay, self.door = path, port, delay, socket.create_server(("127.0.0.1", 0))
        self.port = self.door.getsockname()[1]
        threading.Thread(target=self.serve, daemon=True).start()

    def serve(self):
        while True:
            near, _ = self.door.accept()
            threading.Thread(target=self.pair, args=(near,), daemon=True).start()

    def pair(self, near):
        time.sleep(self.delay)
        try:
            far = socket.create_connection(("127.0.0.1", self.to))
        except OSError:
            near.close()
            return
        time.sleep(self.delay)
        for one, other in ((near, far), (far, near)):
            pieces = queue.Queue()
            threading.Thread(target=self.read, args=(one, pieces), daemon=True).start()
            threading.Thread(target=self.write, args=(other, pieces), daemon=True).start()

    def read(self, end, pieces):
        piece = b"x"
        while piece:
            try:
                piece = end.recv(1 << 16)
            except OSError:
                piece = b""
            pieces.put((time.monotonic() + self.delay, piece))

    @staticmethod
    def write(end, pieces):
        piece = b"x"
        while piece:
            at, piece = pieces.get()
            time.sleep(max(0, at - time.monotonic()))
            try:
                end.sendall(piece) if piece else end.shutdown(socket.SHUT_RDWR)
            except OSError:
                return


@attack("strangers at a client's own address", short=1, long=8)
def crowd(run, rng, count):
    """They come as often as 400 times a second and stay; a client 100 ms away joins all the same, at the latest after some tries."""
    split, _ = learn()
    for i in range(count):
        rate, server = (400, 80, 200, 1000)[i % 4], split.Server(job(f"crowd{i}"))
        end, held = threading.Event(), []

        def flood(server=server, rate=rate, end=end, held=held):
            begin, made = time.monotonic(), 0
            while not end.is_set():
                for _ in range(int((time.monotonic() - begin) * rate) - made):
                    made += 1
                    try:
                        held.append(socket.create_connection(("127.0.0.1", server.port), timeout=1))
                    except OSError:
                        pass
                del held[:-300]  # who was told to go is gone, and those that stay are more than the places
                time.sleep(0.005)
            print(f"strangers: {made / (time.monotonic() - begin):.0f} a second", flush=True)
        stranger = threading.Thread(target=flood, daemon=True)
        stranger.start()
        time.sleep(0.5)
        far, begin = Far(server.path, server.port, 0.05), time.monotonic()
        client = split.Client(far, "a", "--patience", "60")
        deadline, joined = time.monotonic() + 60, False
        while not joined and time.monotonic() < deadline and client.process.poll() is None:
            joined = "a (127.0.0.1:" in server.text() and "has joined" in server.text()
            time.sleep(0.02)
        print(f"strangers: {rate} a second, 100 ms away: joined {joined} after {time.monotonic() - begin:.1f} s", flush=True)
        end.set()
        stranger.join()
        client.kill()
        server.process.kill()
        server.process.wait()
        (run.survived if joined else lambda: run.wrong(f"{rate} strangers a second keep a client out for 60 s"))()


@attack("refused again and again", short=60, long=4000)
def again(run, rng, count):
    """A certificate's holder whom the server refuses: what is logged of it has a bound."""
    split, _ = learn()
    server = split.Server(job("again"))
    before, begin = len(server.text()), time.monotonic()
    for i in range(count):
        line = {"op": "join", "protocol": 1, "id": "c", "plan_hash": f"{i:016x}", "train_samples": 45, "heldout_samples": 40,
                "vocabulary": 10, "labels": 0, "train_digest": "1" * 16, "heldout_digest": "1" * 16, "weights_digest": "0" * 16}
        answer = split.stranger(server, "keys-c/site-c", json.dumps(line).encode() + b"\n")
        if "another plan" in answer and str(jobs.ROOT) not in answer:
            run.refused()
        else:
            run.wrong(f"try {i}: {answer[:300]}")
    # At most 16 lines in the 10 s from the first on, and one with the number of the others (split_server.c).
    lines, seconds = server.text()[before:].splitlines(), time.monotonic() - begin
    if len(lines) > 17 * (1 + seconds // 10):
        run.wrong(f"{count} refusals in {seconds:.1f} s are {len(lines)} lines of the log")
    server.process.kill()
    server.process.wait()


if __name__ == "__main__":
    kit.main("clients")
