#!/usr/bin/env python3
"""Lies by seed in split learning: a client, and a server, whose lines are dropped, repeated, exchanged and changed at random, in each mode."""
import random
import subprocess

import clients
import kit
from kit import ATTACKS, attack, jobs

ATTACKS.clear()  # those of clients.py are run there
MODES = ("relay", "global", "splitfed1")
NUMBERS = (0, 1, -1, 2, 7, 1 << 20, 1 << 32, (1 << 53) - 1, (1 << 63) - 1, 1.5, 1e300)
TEXTS = ("", "a" * 5000, "../../../../etc/passwd", "\x1b]0;own\x07", "\0", "a", "[::1]:1", "ffffffffffffffff", "%s%n")
WORDS = {"client": ("join", "ready", "ends", "labels", "leave"), "server": ("joined", "together", "turn", "ends", "over", "closed", "end", "refused")}


def changed(draw, who, line, before):
    """Another line in this one's place, or None."""
    kind = draw.randrange(7)
    if kind == 0:
        return None
    if kind == 1 and before:
        return draw.choice(before)
    line = dict(line)
    word = "op" if "op" in line else "event"
    if kind == 2:
        line[word] = draw.choice(WORDS[who])
        return line
    key = draw.choice(sorted(line))
    if kind == 3:
        line.pop(key)
    elif kind == 4:
        line[draw.choice(sorted(line)) + "_"] = line[key]
    elif isinstance(line[key], str):
        line[key] = draw.choice(TEXTS)
    else:
        line[key] = draw.choice(NUMBERS)
    return line


class Liar:
    """A rule for Between: from the event `after` on, lines of `who` are changed, one in `every`."""

    def __init__(self, draw, who, after, every):
        self.draw, self.who, self.after, self.every = draw, who, after, every
        self.lies, self.count, self.before = after is None, 0, []

    def __call__(self, who, line, send):
        self.lies |= who == "server" and line.get("event") == self.after
        if who != self.who or not self.lies or not isinstance(line, dict):
            return line
        self.before = [*self.before[-7:], line]
        if self.draw.randrange(self.every):
            return line
        self.count += 1
        if self.draw.randrange(5) == 0:
            send("server" if who == "client" else "client", line)
        return changed(self.draw, who, line, self.before)


def job(name, mode, count):
    return clients.job(name, **{"split.mode": mode, "split.clients": count, "control.silence_max": "4s", "split.wait": "3s"})


@attack("lies of a client", short=3, long=90)
def client_lies(run, rng, count):
    """The others train and end well, and the liar hears neither a path of the server nor an escape."""
    split, hostile = clients.learn()
    for i in range(count):
        mode, every, seed = MODES[i % 3], rng.choice((3, 10, 40)), rng.getrandbits(32)
        server = split.Server(job(f"client{i}", mode, 3))
        rule = Liar(random.Random(seed), "client", "together" if mode == "global" else "joined", every)
        door = hostile.Between(server, "d", rule)
        liar = split.Client(door, "d", "--patience", "2")
        honest = [split.Client(server, name) for name in "ab"]
        what = f"{mode}, one in {every}, seed {seed}"
        try:
            said = [client.process.communicate(timeout=jobs.PATIENCE)[1] for client in honest]
            server.process.wait(jobs.PATIENCE)
        except subprocess.TimeoutExpired:
            run.hung(f"{what}: {server.text()[-1500:]}")
            split.end_all()
            continue
        codes = [client.process.returncode for client in honest] + [server.process.returncode]
        liar.process.terminate()
        heard = liar.process.communicate()[1]
        door.close()
        if codes != [0, 0, 0]:
            run.wrong(f"{what}: honest clients and server ended with {codes}: {said}: {server.text()[-1500:]}")
        elif str(jobs.ROOT / server.path.stem) + "/" in heard.replace(str(jobs.ROOT / f"{server.path.stem}-d"), "") or "\x1b" in heard + server.text():
            run.wrong(f"{what}: the liar hears what is not his: {heard}")
        else:
            run.survived()


@attack("lies of a server", short=3, long=90)
def server_lies(run, rng, count):
    """A client ends, with 0 or with 1 and a reason; it writes no more than its plan's files, and its terminal is its own."""
    split, hostile = clients.learn()
    third = clients.Watched()
    for i in range(count):
        mode, every, seed = MODES[i % 3], rng.choice((3, 10, 40)), rng.getrandbits(32)
        server = split.Server(job(f"server{i}", mode, 1))
        door = hostile.Between(server, "d", Liar(random.Random(seed), "server", None, every))
        client = split.Client(door, "d", "--patience", "2")
        what = f"{mode}, one in {every}, seed {seed}"
        try:
            said = client.process.communicate(timeout=jobs.PATIENCE)[1]
        except subprocess.TimeoutExpired:
            run.hung(f"{what}: {server.text()[-1500:]}")
            split.end_all()
            continue
        server.process.kill()
        server.process.wait()
        door.close()
        held = sum(path.stat().st_size for path in (jobs.ROOT / f"{server.path.stem}-d").rglob("*") if path.is_file())
        if client.process.returncode not in (0, 1) or (client.process.returncode == 1 and not said.strip()):
            run.wrong(f"{what}: the client ended with {client.process.returncode}: {said}")
        elif third.count or held > 64 << 20 or "\x1b" in said:
            run.wrong(f"{what}: {third.count} connections elsewhere, {held >> 20} MiB: {said}")
        else:
            run.survived()


if __name__ == "__main__":
    kit.main("lies")
