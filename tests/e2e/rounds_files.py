"""reduce.patience over hosts that share no folder: a replica that returns gets its files of the checkpoint from the ranks that wrote them."""
import json
import os
import shutil
import signal
import subprocess

import jobs
from jobs import aqpipe, check, launch, manifest, metrics, no_workers, weights
from kit import BIN, ROOT, end
from rounds import CODED, can_return, entered, rounds
from rounds_hosts import KEYS, Daemons


def disk(number):
    """The folder in which the daemon of that number, or the launcher (0), works."""
    path = ROOT / f"disk-{number}"
    path.mkdir(exist_ok=True)
    return path


class Hosts(Daemons):
    """Each with a disk of its own: a path that begins with /proc/self/cwd is another one on each."""

    def folder(self, number):
        return disk(number)


def keys_of(hosts, name, **changes):
    """Replica w is on host w, and so are its checkpoints: those of a run in disk-w/NAME."""
    return {**KEYS, "pipeline.stages": hosts.placed((0, 0), (1, 1), (2, 2)), "checkpoint.path": f"/proc/self/cwd/{name}", "checkpoint.keep": 9, **changes}


def begin(name, keys, *arguments, **environment):
    said = ROOT / f"{name}.err"
    with open(said, "w", encoding="utf-8") as file:
        process = subprocess.Popen([BIN / "aqpipe", "launch", manifest(name, **keys), "--no-progress", *arguments], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                   stderr=file, env={**os.environ, **environment}, cwd=disk(0))
    return process, said


def ended(name, process, said, want=0):
    process.wait(jobs.PATIENCE)
    check(process.returncode == want, f"{name}: exit code {process.returncode}, wanted {want}\n{said.read_text()[-3000:]}")
    return said.read_text()


def lose(name, keys, hosts, rank=2, act=None, back=8, log=()):
    """Launch, and kill the worker of `rank` in the middle of step 6. Nobody trains step `back` before its replica can return. act(process, said): what
    happens then."""
    for held in hosts.holds.iterdir():  # of the launch before
        held.unlink()
    hold = jobs.Hold(6, "backward", rank, hosts.holds)
    living = jobs.Hold(back, "forward", 4 if rank < 4 else 0, hosts.holds)
    process, said = begin(name, keys, *log)
    try:
        end(hold.reached(process))
        hold.release()
        living.reached(process)
        can_return(name, process, rank // 2 * 2, rank // 2 * 2 + 1)
        living.release()
        if act:
            act(process, said)
        return ended(name, process, said)
    finally:
        process.kill()
        process.wait()


def file_of(name, number, step, rank):
    return disk(number) / name / str(step) / f"stage-{rank}.safetensors"


def whole(name, said, *steps, sent=2):
    """Replica 1 missed the rounds that end with these steps, was back once, and each of its ranks got its file from replica 0's."""
    check(rounds(name) == [(step, [0, 2], [1]) for step in steps], f"{name}: {rounds(name)}\n{said[-2000:]}")
    check(not metrics(name, "restart"), f"{name}: {metrics(name, 'restart')}\n{said[-2000:]}")
    check([line["step"] for line in metrics(name)] == list(range(1, len(metrics("calm")) + 1)), f"{name}: {[line['step'] for line in metrics(name)]}")
    check(said.count("gets its checkpoint of step") == sent, f"{name}: {sent} files were to be sent\n{said[-3000:]}")
    for rank in (2, 3) if sent else ():
        check(file_of(name, 1, steps[-1], rank).read_bytes() == file_of(name, 0, steps[-1], rank).read_bytes(), f"{name}: another file of rank {rank}")
        check(not list(disk(1).glob(f"{name}/*/*.partial")), f"{name}: something of a file is left")


def repeated(name, keys, hosts):
    """The same bits from the log alone, on disks of their own."""
    log = ROOT / f"{name}-log.jsonl"
    shutil.copyfile(ROOT / name / "metrics.jsonl", log)
    again = f"{name}-again"
    process, said = begin(again, {**keys, "checkpoint.path": f"/proc/self/cwd/{again}"}, "--rounds", log)
    ended(again, process, said)
    check(rounds(again) == rounds(name) and weights(again) == weights(name), f"{again}: {rounds(again)}, or other weights")


def scenario_rounds_files():
    """Its files come over the network, with the bits of a run on a shared folder; all start again from that checkpoint, each from its own disk."""
    hosts = Hosts(3)
    try:
        launch(manifest("calm", **{**KEYS, "pipeline.stages": hosts.placed((0, 0), (1, 1), (2, 2))}))
        said = lose("shared", {**keys_of(hosts, "shared"), "checkpoint.path": None}, hosts)
        whole("shared", said, 8, sent=0)
        log = (ROOT / "shared" / "logs" / "stage-2.log").read_text()
        check("its file of step 8 is here" in log, f"shared: the file is not looked at\n{log[-2000:]}")
        keys = keys_of(hosts, "apart")
        said = lose("apart", keys, hosts)
        whole("apart", said, 8)
        check(weights("apart") == weights("shared") != weights("calm"), "apart: other weights than with a shared folder")
        repeated("apart", keys, hosts)
        # The launcher is killed when the others have trained on: all resume from the checkpoint that the replica got.
        keys = {**keys_of(hosts, "killed"), "checkpoint.every": 0}
        for held in hosts.holds.iterdir():
            held.unlink()
        late = jobs.Hold(11, "begin", 0, hosts.holds)

        def kill(process, _):
            late.reached(process)
            end(process.pid)
            process.wait()
            late.release()
        # (a hold of step 11 outlives the cleaning of lose)
        hold, living = jobs.Hold(6, "backward", 2, hosts.holds), jobs.Hold(8, "forward", 4, hosts.holds)
        process, said = begin("killed", keys)
        try:
            end(hold.reached(process))
            hold.release()
            living.reached(process)
            can_return("killed", process, 2, 3)
            living.release()
            kill(process, said)
        finally:
            process.kill()
            process.wait()
        process, said = begin("killed", keys, "--resume")
        ended("killed", process, said)
        check(weights("killed") == weights("apart"), f"killed: other weights after all resumed\n{said.read_text()[-2000:]}")
    finally:
        hosts.close()
    no_workers("rounds_files")
