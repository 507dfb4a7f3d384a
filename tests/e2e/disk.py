"""A disk that becomes full, or turns read-only, while a job runs: one line that names it, no restart, and the run that would have been once the disk is well again."""
import contextlib
import os
import re
import subprocess
import sys

import jobs
from jobs import check, launch, losses, manifest, metrics, no_workers, weights
from kit import ROOT, start
from split import Client, Server, begin, of_client, split, stopped
from split_epsilon import KEYS as NOISED

KEYS = {"edges.forward.codec": "aqsgd", "edges.forward.bits": 3, "edges.backward.codec": "directq", "edges.backward.bits": 6, "pipeline.stages": 2,
        "checkpoint.every": "3 steps", "train.epochs": 3, "status.listen": "127.0.0.1:0"}
MIB = 1 << 20
FULL = r"the disk is full|No space left on device"
READ_ONLY = r"Read-only file system|Input/output error"


def run(*words):
    done = subprocess.run(list(map(str, words)), capture_output=True, text=True, timeout=jobs.PATIENCE)
    return done if done.returncode else None


class Small:
    """A file system of its own. full() and well(): it has no room, and has again."""
    problem = FULL

    def __init__(self, name, mib):
        self.path = ROOT / name
        self.path.mkdir()
        check(not run("mount", "-t", "tmpfs", "-o", f"size={mib}m", "none", self.path), f"no tmpfs at {self.path}")

    def worse(self):
        with contextlib.suppress(OSError), open(self.path / "filler", "wb", buffering=0) as file:
            while True:
                file.write(bytes(4096))

    def well(self):
        (self.path / "filler").unlink()

    def end(self):
        check(not run("umount", self.path), f"{self.path} stays")


class Journaled(Small):
    """The same of ext4, which turns read-only as it does after an error of its disk; what was not synced is lost."""
    problem = READ_ONLY

    def __init__(self, name, mib):
        self.path, self.image = ROOT / name, ROOT / f"{name}.image"
        self.path.mkdir()
        with open(self.image, "wb") as file:
            file.truncate(mib * MIB)
        check(not run("mkfs.ext4", "-q", "-F", "-m", 0, self.image) and not run("mount", "-o", "loop,noatime", self.image, self.path), "no ext4")

    def worse(self):
        run("mount", "-o", "remount,abort", self.path)
        with contextlib.suppress(OSError):
            (self.path / "probe").touch()
            check(False, "the file system takes files yet: no test")

    def well(self):
        self.end()
        check(not run("mount", "-o", "loop,noatime", self.image, self.path), f"{self.image} cannot be mounted again")


def disks():
    """The kinds that this machine can make."""
    yield Small
    probe = ROOT / "probe.image"
    with open(probe, "wb") as file:
        file.truncate(8 * MIB)
    (ROOT / "probe").mkdir()
    if run("mkfs.ext4", "-q", "-F", probe) or run("mount", "-o", "loop", probe, ROOT / "probe"):
        print("without a read-only disk: there is no ext4 in a loop device here")
        return
    run("umount", ROOT / "probe")
    yield Journaled


def in_namespace(body):
    """With mounts of its own. It needs root, or skips."""
    if not os.environ.get("AQ_OWN_MOUNTS"):
        if run("unshare", "-m", "mount", "-t", "tmpfs", "none", ROOT):
            print("skipped: no file system can be mounted here")
            sys.exit(77)
        sys.exit(subprocess.run(["unshare", "-m", sys.executable, "-B", *sys.argv], env={**os.environ, "AQ_OWN_MOUNTS": "1"}, timeout=900).returncode)
    body()


def worse_at(path, step, disk):
    """Launch, let the disk become bad in the step after `step`: what the launch prints until it ends with 1."""
    hold = jobs.Hold(step + 1)
    process = start(path, environment=hold.environment(), lines=False)
    try:
        hold.reached(process)
        disk.worse()
        hold.release()
        errors = process.communicate(timeout=jobs.PATIENCE)[1]
    finally:
        process.kill()
    check(process.returncode == 1, f"{path.stem}: ended with {process.returncode}\n{errors[-3000:]}")
    return errors


def one_line(what, disk, errors):
    """Of the last try exactly one line has the cause and a path of that disk. A full disk has no second try; an input/output error may pass, and has, for which the launcher
    goes back in two files of its own. A file that is only shown may have its own line."""
    tries = errors.split(": restarts from the checkpoint")
    lines = [line for line in tries[-1].splitlines() if re.search(disk.problem, line) and str(disk.path) in line and "`aqpipe status` is behind" not in line]
    check(1 <= len(lines) <= (3 if "Input/output error" in errors else 1), f"{what}: {len(lines)} lines with the cause and its file:\n{errors}")
    check(all("Input/output error" in before for before in tries[:-1]), f"{what}: it was started again:\n{errors}")


def of_job():
    launch(manifest("whole", **KEYS))
    for kind in disks():
        for what, key in (("run", "output.path"), ("cache", "cache.path"), ("checkpoint", "checkpoint.path")):
            name = f"{what}-{kind.__name__.lower()}"
            disk = kind(f"disk-{name}", 16)
            place = disk.path / what
            path = manifest(name, **{**KEYS, key: place})
            one_line(name, disk, worse_at(path, 4, disk))
            disk.well()
            launch(path, "--resume")
            if key == "output.path":
                (ROOT / name).symlink_to(place)
            check(losses(name) == losses("whole") and weights(name) == weights("whole"), f"{name}: {losses(name)}, not {losses('whole')}")
            check([line["loss"] for line in metrics(name, "eval")] == [line["loss"] for line in metrics("whole", "eval")], f"{name}: held-out losses differ")
            disk.end()
    no_workers("bad_disk")


def of_split():
    begin("a")
    keys = {**NOISED, "split.wait": "60s", "checkpoint.every": "2 steps"}
    for kind in disks():
        for what in ("server", "client", "ledger")[:2 if kind is Small else 3]:  # a ledger's last block has room yet
            name = f"{what}-{kind.__name__.lower()}"
            disk = kind(f"disk-{name}", 24)
            places = {each: disk.path / each if each == what else ROOT / f"{name}-{each}" for each in ("server", "client", "ledger")}
            path = split(name, rounds=1, epochs=2, **{**keys, "output.path": places["server"]})
            (ROOT / name).symlink_to(places["server"])
            options = {"folder": places["client"]}
            words = ("--set", f"split.privacy.ledger={places['ledger']}")
            server = Server(path)
            client = Client(server, "a", *words, stops=(3,), **options)
            stopped(server, client, 3)
            disk.worse()
            client.release()
            if what == "server":
                server.end(1)
                errors = server.text()
                client.process.kill()
                client.process.communicate()
            else:
                errors = client.end(1)
            one_line(name, disk, errors)
            check(what == "server" or "make room, and start this client again" in errors, f"{name}: its user is not told what to do:\n{errors}")
            disk.well()
            if what == "server":
                server = Server(path, "--set", f"split.server='127.0.0.1:{server.port}'")
            Client(server, "a", *words, **options).end()
            server.end()
            steps = [line["step"] for line in of_client(name, "a")]
            check(steps == list(range(1, 7)), f"{name}: steps {steps}")
            disk.end()
    of_split_end(keys)
    no_workers("split_bad_disk")


def of_split_end(keys):
    """The turn ends well, because its stages write elsewhere; the client's own files have no room."""
    outer, folder = Small("disk-end", 4), ROOT / "disk-end/client"
    folder.mkdir()
    inner = [Small(f"disk-end/client/{part}", 24) for part in ("run", "begin")]
    server = Server(split("end", rounds=1, epochs=2, **keys))
    words = ("--set", f"split.privacy.ledger={ROOT}/end-ledger")
    client = Client(server, "a", *words, stops=(3,), folder=folder)
    stopped(server, client, 3)
    outer.worse()
    client.release()
    errors = client.end(1)
    one_line("end", outer, errors)
    check("privacy.json" in errors and "make room, and start this client again" in errors, f"end: its user is not told what to do:\n{errors}")
    check([line["step"] for line in of_client("end", "a")] == list(range(1, 7)), "end: the turn did not end well: no test")
    outer.well()
    Client(server, "a", *words, folder=folder).end()
    server.end()
    check([line["step"] for line in of_client("end", "a")] == list(range(1, 7)), "end: the turn was trained again")
    for disk in (*inner, outer):
        disk.end()


def scenario_bad_disk():
    """A full and a read-only disk under the run's folder, the cache and the checkpoints."""
    in_namespace(of_job)


def scenario_split_bad_disk():
    """The same under the server's folder, a client's, and its ledger of visits."""
    in_namespace(of_split)
