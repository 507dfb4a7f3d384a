"""reduce.patience over several daemons: one is lost with its workers, another one answers at its port, and the replica is back."""
import json
import os
import re
import signal
import subprocess

import jobs
from jobs import aqpipe, check, launch, manifest, metrics, no_workers, weights
from kit import BIN, ROOT, end
from rounds import ROUNDS, can_return, entered, repeated, rounds, whole_run

KEYS = {**ROUNDS, "pipeline.replicas": 3, "train.batch": 12, "train.micro_batch": 1, "train.epochs": 10}


class Daemons:
    """So many daemons, each at a port that stays its own; the holds of all their workers are in one folder."""

    def __init__(self, count, *arguments):
        self.holds = ROOT / "holds"
        self.holds.mkdir(exist_ok=True)
        self.arguments, self.running = arguments, {}
        self.ports = [jobs.lasting_port() for _ in range(count)]
        for number in range(count):
            self.begin(number)

    def begin(self, number):
        told = ROOT / f"port-{self.ports[number]}"
        told.unlink(missing_ok=True)
        with jobs.faults(hold=self.holds):
            self.running[number] = subprocess.Popen([BIN / "aqpiped", "--listen", f"127.0.0.1:{self.ports[number]}", "--port-file", told, *self.arguments],
                                                    stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=self.folder(number))
        jobs.await_file(told)

    def folder(self, number):
        """In which the daemon works; None: as this process."""
        return None

    def address(self, number):
        return f"tcp://127.0.0.1:{self.ports[number]}"

    def kill(self, number):
        self.running[number].kill()
        self.running[number].wait()

    def placed(self, *replicas):
        """Of each replica the daemons of its two stages."""
        first, second = ([self.address(place[s]) for place in replicas] for s in (0, 1))
        return f"[{{layers: '0-2', host: {json.dumps(first)}}}, {{layers: '3-5', host: {json.dumps(second)}}}]"

    def close(self):
        for daemon in self.running.values():
            daemon.kill()
            daemon.wait()


def lose(name, keys, daemons, rank, kill, back, away=0, log=None):
    """Launch, and kill(launcher) a daemon in the middle of step 6, where the worker of `rank` is held. back(): a daemon answers there again: when the
    loss was told, or in the round after the one that ends without the replica (`away`). Nobody trains the last step of that round before the replica
    can return; or the rounds that it misses are those of `log`. Answers what the launcher said."""
    path, said = manifest(name, **keys), ROOT / f"{name}.err"
    for held in daemons.holds.glob("*.held"):  # of the launch before
        held.unlink()
    hold = jobs.Hold(6, "backward", rank, daemons.holds)
    living = None if log else jobs.Hold(12 if away else 8, "forward", 4 if rank < 4 else 0, daemons.holds)
    with open(said, "w", encoding="utf-8") as file:
        process = subprocess.Popen([BIN / "aqpipe", "launch", path, "--no-progress", *(("--rounds", log) if log else ())], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=file,
                                   env={**os.environ, **hold.environment()})
    try:
        hold.reached(process)
        kill(process)
        hold.release()
        jobs.await_text(said, "is tried again until it answers", process)
        if not away:
            back()
        if living:
            living.reached(process)
            if away:
                check(rounds(name)[0][2] == [rank // 2], f"{name}: {rounds(name)}")
                back()
            can_return(name, process, rank // 2 * 2, rank // 2 * 2 + 1)
            living.release()
        process.wait(jobs.PATIENCE)
    finally:
        process.kill()
        process.wait()
    check(process.returncode == 0, f"{name}: exit code {process.returncode}, wanted 0\n{said.read_text()[-3000:]}")
    return said.read_text()


def came_back(name, said, where, replica, *steps):
    """The rounds that end with these steps had the others only; the loss and the return were told once each."""
    others = [w for w in range(3) if w != replica]
    check(rounds(name) == [(step, others, [replica]) for step in steps], f"{name}: {rounds(name)}\n{said[-2000:]}")
    check(entered(name) == [(steps[-1], [replica])], f"{name}: {entered(name)}")
    whole_run(name, len(metrics(name)), 3, 2)
    for text in (f"{where} is tried again", f"{where} answers again", f"replica {replica} is back, from step {steps[-1] + 1}"):
        check(said.count(text) == 1, f"{name}: '{text}' {said.count(text)} times in\n{said[-3000:]}")


def scenario_rounds_hosts():
    """A daemon is killed in a round: the others end the round without its replica, which is back when a daemon answers at that port."""
    daemons = Daemons(3)
    try:
        keys = {**KEYS, "pipeline.stages": daemons.placed((0, 0), (1, 1), (2, 2))}
        launch(manifest("calm", **keys))
        for name, number, away in (("host", 1, False), ("long", 1, True), ("first", 0, False)):
            said = lose(name, keys, daemons, 2 * number, lambda _: daemons.kill(number), lambda: daemons.begin(number), away)
            came_back(name, said, f"the daemon of {daemons.address(number)}", number, *((8, 12) if away else (8,)))
            check(f"is lost (the daemon of {daemons.address(number)} is out of reach" in said, f"{name}: {said[-3000:]}")
            check(weights(name) != weights("calm"), f"{name}: the lost replica's work counts")
            check(len(metrics(name)) == len(metrics("calm")), f"{name}: steps are missing")
        repeated("host", keys, resumes=False)
        repeated("long", keys, resumes=False)
        # Each step is a round: it misses the step of its loss and the next one, whatever time its daemon takes.
        log, steps = ROOT / "away.jsonl", {**keys, "reduce.every": 1}
        log.write_text(json.dumps({"event": "round", "step": 7, "without": [1]}) + "\n")
        said = lose("steps", steps, daemons, 2, lambda _: daemons.kill(1), lambda: daemons.begin(1), log=log)
        came_back("steps", said, f"the daemon of {daemons.address(1)}", 1, 6, 7)
        check(weights("steps") != weights("host"), "reduce.every: 1 is as 4")
        repeated("steps", steps, resumes=False)
    finally:
        daemons.close()
    no_workers("rounds_hosts")


def scenario_rounds_hosts_more():
    """A replica on two hosts of which one is lost; a daemon that is stopped, and then runs on; one under TLS."""
    done = aqpipe("keys", "init", ROOT / "keys", "--job", "e2e", "--stages", 6, "--hosts", "127.0.0.1")
    check(done.returncode == 0, done.stderr)
    daemons, secured = Daemons(4), Daemons(3, "--keys", ROOT / "keys")
    try:
        keys = {**KEYS, "pipeline.stages": daemons.placed((0, 0), (1, 2), (3, 3))}
        near = aqpipe("plan", manifest("near", **keys)).stdout
        far = aqpipe("plan", manifest("far", **{**keys, "pipeline.stages": keys["pipeline.stages"].replace("127.0.0.1", "192.0.2.1"), "security.keys": ROOT / "keys"})).stdout
        told = r"reduce\.patience: to return, each stage of a lost replica gets a file from another replica: stage 0 \d+ KiB( \(\d+ s\))?, stage 1 \d+ KiB"
        check(re.search(told, far) and "reduce.every" in near and not re.search(told, near), f"plan of hosts elsewhere: {far}\nand here: {near}")
        said = lose("apart", keys, daemons, 3, lambda _: daemons.kill(2), lambda: daemons.begin(2))
        came_back("apart", said, f"the daemon of {daemons.address(2)}", 1, 8)
        repeated("apart", keys, resumes=False)
        keys = {**KEYS, "pipeline.stages": daemons.placed((0, 0), (1, 1), (2, 2)), "control.silence_max": "15s"}
        said = lose("stopped", keys, daemons, 2, lambda _: end(daemons.running[1].pid, signal.SIGSTOP), lambda: end(daemons.running[1].pid, signal.SIGCONT))
        came_back("stopped", said, f"the daemon of {daemons.address(1)}", 1, 8)
        check("has been silent for" in said, f"stopped: {said[-3000:]}")
        check(weights("stopped") == weights("apart"), "stopped: other weights than of one that was killed")
        keys = {**KEYS, "pipeline.stages": secured.placed((0, 0), (1, 1), (2, 2)), "security.tls": "on", "security.keys": ROOT / "keys"}
        said = lose("secured", keys, secured, 2, lambda _: secured.kill(1), lambda: secured.begin(1))
        came_back("secured", said, f"the daemon of {secured.address(1)}", 1, 8)
        check(weights("secured") == weights("apart"), "secured: other weights than in the clear")
    finally:
        daemons.close()
        secured.close()
    no_workers("rounds_hosts_more")
