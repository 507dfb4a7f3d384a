"""reduce.patience over hosts that share no folder: a replica that returns gets its files of the checkpoint from the ranks that wrote them."""
import json
import os
import re
import shutil
import subprocess
import time

import jobs
from jobs import aqpipe, check, launch, losses, manifest, metrics, no_workers, weights
from kit import BIN, ROOT, end
from rounds import CODED, UNSAID, can_return, entered, rounds
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


def lose(name, keys, hosts, rank=2, act=None, back=8, also=None, ready=None, want=0):
    """Launch, and kill the worker of `rank` in the middle of step 6. Nobody trains step `back` before its replica can return, and
    ready() has been called. also(): another hold, and act(process, it): what happens then."""
    for held in hosts.holds.iterdir():  # of the launch before
        held.unlink()
    other = also() if also else None
    hold = jobs.Hold(6, "backward", rank, hosts.holds)
    living = jobs.Hold(back, "forward", 4 if rank < 4 else 0, hosts.holds)
    process, said = begin(name, keys)
    try:
        end(hold.reached(process))
        hold.release()
        living.reached(process)
        can_return(name, process, rank // 2 * 2, rank // 2 * 2 + 1)
        if ready:
            ready()
        living.release()
        if act:
            act(process, other)
        return ended(name, process, said, want)
    finally:
        process.kill()
        process.wait()


def kill_launcher(process, hold):
    """The worker stays where it is until its daemon has ended it: released earlier, it might do what it was kept from."""
    held = hold.reached(process)
    end(process.pid)
    process.wait()
    jobs.await_end(held)
    hold.release()


def file_of(name, number, step, rank):
    return disk(number) / name / str(step) / f"stage-{rank}.safetensors"


def partial(name, number, step, rank):
    """What has come of a file. Of a rank that is ended meanwhile it stays, and goes with its checkpoint."""
    path = file_of(name, number, step, rank)
    return path.with_name(f"{path.name}.partial")


def whole(name, said, *steps, sent=2):
    """Replica 1 missed the rounds that end with these steps, was back once, and each of its ranks got its file from replica 0's."""
    check(rounds(name) == [(step, [0, 2], [1]) for step in steps], f"{name}: {rounds(name)}\n{said[-2000:]}")
    check(not metrics(name, "restart"), f"{name}: {metrics(name, 'restart')}\n{said[-2000:]}")
    check([line["step"] for line in metrics(name)] == list(range(1, len(metrics("calm")) + 1)), f"{name}: {[line['step'] for line in metrics(name)]}")
    check(said.count("gets its checkpoint of step") == sent, f"{name}: {sent} files were to be sent\n{said[-3000:]}")
    for rank in (2, 3) if sent else ():
        check(file_of(name, 1, steps[-1], rank).read_bytes() == file_of(name, 0, steps[-1], rank).read_bytes(), f"{name}: another file of rank {rank}")
        check(not partial(name, 1, steps[-1], rank).exists(), f"{name}: something of a file is left")


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
        # The launcher is killed when the replica has its files, and trains: all resume from that checkpoint, each from its own disk.
        keys = keys_of(hosts, "killed")
        lose("killed", keys, hosts, act=kill_launcher, also=lambda: jobs.Hold(10, "begin", 2, hosts.holds), want=-9)
        process, said = begin("killed", keys, "--resume")
        ended("killed", process, said)
        check(weights("killed") == weights("apart"), f"killed: other weights after all resumed\n{said.read_text()[-2000:]}")
    finally:
        hosts.close()
    no_workers("rounds_files")


def scenario_rounds_files_faults():
    """The receiver is killed, the sender is killed, a file is damaged on its way, nobody can connect: the others train on, and the replica returns later."""
    hosts = Hosts(3)
    try:
        launch(manifest("calm", **{**KEYS, "pipeline.stages": hosts.placed((0, 0), (1, 1), (2, 2))}))

        def receiver(process, hold):
            end(hold.reached(process))
            hold.release()
        said = lose("receiver", keys_of(hosts, "receiver"), hosts, act=receiver, also=lambda: jobs.Hold(8, "takes", 2, hosts.holds))
        check([step for step, entering in entered("receiver") if 1 in entering][0] == 8 and len(entered("receiver")) == 2, f"receiver: {entered('receiver')}\n{said[-2000:]}")
        whole("receiver", said, *[step for step, _, _ in rounds("receiver")], sent=said.count("gets its checkpoint of step"))
        check(said.count("replica 1 is back") == 1, f"receiver: {said[-3000:]}")
        repeated("receiver", keys_of(hosts, "receiver"), hosts)

        def sender(process, hold):
            end(hold.reached(process))
            hold.release()
        said = lose("sender", keys_of(hosts, "sender"), hosts, act=sender, also=lambda: jobs.Hold(8, "gives", 2, hosts.holds))
        check("replica 1 stage 0 does not get its checkpoint from replica 0 stage 0: it is lost" in said, f"sender: {said[-3000:]}")
        check([line[1] for line in rounds("sender")][1] == [2], f"sender: {rounds('sender')}\n{said[-2000:]}")
        for replica in (0, 1):
            check(said.count(f"replica {replica} is back") == 1, f"sender: replica {replica} is not back\n{said[-3000:]}")
        check(not metrics("sender", "restart"), f"sender: {metrics('sender', 'restart')}")
        repeated("sender", keys_of(hosts, "sender"), hosts)

        said = lose("damaged", keys_of(hosts, "damaged"), hosts, also=lambda: (hosts.holds / "2.8.damage").touch())
        check("stage-2.safetensors came from" in said and "it is damaged there" in said, f"damaged: {said[-3000:]}")
        check(said.count("replica 1 is back") == 1 and not metrics("damaged", "restart"), f"damaged: {said[-3000:]}")
        check(not file_of("damaged", 1, 8, 2).exists() and not partial("damaged", 1, 8, 2).exists(), "damaged: something of that file is left")
        repeated("damaged", keys_of(hosts, "damaged"), hosts)
    finally:
        hosts.close()
    no_workers("rounds_files_faults")


def scenario_rounds_files_kinds():
    """Under TLS, over QUIC, with each step a round, with lossy codecs, for a rank that has an older file of that step."""
    done = aqpipe("keys", "init", ROOT / "keys", "--job", "e2e", "--stages", 6, "--hosts", "127.0.0.1")
    check(done.returncode == 0, done.stderr)
    hosts, secured = Hosts(3), Hosts(3, "--keys", ROOT / "keys")
    try:
        launch(manifest("calm", **{**KEYS, "pipeline.stages": hosts.placed((0, 0), (1, 1), (2, 2))}))
        keys = keys_of(hosts, "plain")
        said = lose("plain", keys, hosts)
        whole("plain", said, 8)
        under = {"pipeline.stages": secured.placed((0, 0), (1, 1), (2, 2)), "security.tls": "on", "security.keys": ROOT / "keys"}
        for name, changes in (("secured", {}), ("quic", {"link.protocol": "quic"})):
            said = lose(name, {**keys_of(secured, name), **under, **changes}, secured)
            whole(name, said, 8)
            check(weights(name) == weights("plain"), f"{name}: other weights than in the clear")
        for name, changes in (("steps", {"reduce.every": 1}), ("sign", CODED["sign"]), ("topk", CODED["topk"])):
            keys = keys_of(hosts, name, **changes)
            said = lose(name, keys, hosts)
            whole(name, said, *[step for step, _, _ in rounds(name)])
            repeated(name, keys, hosts)

        # A file of that step is there, of the same length: it is another one, and is replaced.
        def stale():
            file_of("stale", 1, 8, 2).parent.mkdir()
            shutil.copyfile(file_of("plain", 1, 16, 2), file_of("stale", 1, 8, 2))
        said = lose("stale", keys_of(hosts, "stale"), hosts, ready=stale)
        whole("stale", said, 8)
        check(weights("stale") == weights("plain"), "stale: other weights")
    finally:
        hosts.close()
        secured.close()
    no_workers("rounds_files_kinds")


def marked(name, keys, step):
    """Until the checkpoint that is due before that step is complete: with train.early_stop a loss before it would send all back."""
    path = (disk(0) / name if keys.get("checkpoint.path") else ROOT / name / "checkpoint") / "complete"
    due, deadline = (step - 1) // 8 * 8, time.time() + jobs.PATIENCE
    while due and not (path.exists() and json.loads(path.read_text())["step"] >= due):
        check(time.time() < deadline, f"{name}: the checkpoint of step {due} does not become complete")
        time.sleep(0.005)


def alone(name, keys, hosts, *arguments, step=6, rank=2, act=None, also=None, want=0, **environment):
    """Launch, and kill the worker of `rank` in the middle of the step; its replica cannot return while the others train. act(process, it): what happens
    then, with the hold of also()."""
    for held in hosts.holds.iterdir():
        held.unlink()
    other = also() if also else None
    hold = jobs.Hold(step, "backward", rank, hosts.holds)
    process, said = begin(name, keys, *arguments, **environment)
    try:
        victim = hold.reached(process)
        marked(name, keys, step)
        end(victim)
        hold.release()
        if act:
            act(process, other)
        return ended(name, process, said, want)
    finally:
        process.kill()
        process.wait()


def resumed(name, keys, want=0):
    process, said = begin(name, keys, "--resume")
    return ended(name, process, said, want)


EARLY = {"train.early_stop": 50, "train.evaluate_every": "8 steps"}  # no replica returns while the others train


def from_newest(name, said, step, sent=2, host=1):
    """All started from that step, and each rank of replica 1, on that host, got its file before."""
    check(said.count(f"gets its checkpoint of step {step}") == sent, f"{name}: {sent} files were to be sent\n{said[-3000:]}")
    check(f"continues after step {step}" in said or [line["step"] for line in metrics(name, "restart")] == [step], f"{name}: {said[-3000:]}")
    check([line["step"] for line in metrics(name)] == list(range(1, len(metrics(name)) + 1)), f"{name}: {[line['step'] for line in metrics(name)]}")
    for rank in (2, 3) if sent else ():
        check(file_of(name, host, step, rank).read_bytes() == file_of(name, 0, step, rank).read_bytes(), f"{name}: another file of rank {rank}")
    check(not list(disk(host).glob(f"{name}/*/*.partial")), f"{name}: something of a file is left")


def scenario_rounds_files_all():
    """All start from a checkpoint whose files of a missing replica are on another host: by themselves, by --resume after a failure, a stop and a kill, with message caches,
    and with another host in the place of the lost one."""
    hosts = Hosts(4)
    try:
        for name, changes in (("gone", EARLY), ("coded", {**EARLY, **UNSAID})):
            said = alone(f"{name}-shared", {**keys_of(hosts, f"{name}-shared", **changes), "checkpoint.path": None}, hosts)
            from_newest(f"{name}-shared", said, 8, sent=0)
            said = alone(name, keys_of(hosts, name, **changes), hosts)
            from_newest(name, said, 8)
            check(weights(name) == weights(f"{name}-shared"), f"{name}: other weights than with a shared folder")
        # A launcher that starts anew knows who has the files.
        for name, changes in (("shared", {"checkpoint.path": None}), ("apart", {}), ("moved", {})):
            keys = {**keys_of(hosts, name), **changes}
            alone(name, keys, hosts, "--restarts", "0", want=1)
            if not changes:
                check(not file_of(name, 1, 8, 2).exists() and file_of(name, 0, 8, 2).exists(), f"{name}: rank 2 has its file already")
            if name == "moved":
                keys["pipeline.stages"] = hosts.placed((0, 0), (3, 3), (2, 2))
            from_newest(name, resumed(name, keys), 8, sent=0 if changes else 2, host=3 if name == "moved" else 1)
            check(weights(name) == weights("shared"), f"{name}: other weights than with a shared folder")
        # It is stopped while the replica is missing.
        def stop(process, living):
            living.reached(process)
            process.terminate()
            jobs.await_text(ROOT / "stopped.err", "stops when the round", process)
            living.release()
        keys = keys_of(hosts, "stopped", **EARLY)
        alone("stopped", keys, hosts, act=stop, also=lambda: jobs.Hold(8, "forward", 4, hosts.holds), want=3)
        from_newest("stopped", resumed("stopped", keys), 8)
        check(weights("stopped") == weights("gone"), "stopped: other weights than those of a run that was not stopped")
        # The launcher is killed while a file is on its way to a replica that returns.
        keys = keys_of(hosts, "killed")
        lose("killed", keys, hosts, act=kill_launcher, also=lambda: jobs.Hold(8, "takes", 2, hosts.holds), want=-9)
        said = resumed("killed", keys)
        from_newest("killed", said, 8, sent=1 + ("replica 1 stage 1 gets" in said))  # that rank may have had its file before
        check(weights("killed") == weights("shared"), "killed: other weights than with a shared folder")
    finally:
        hosts.close()
    no_workers("rounds_files_all")


def restarts(name):
    return [line["step"] for line in metrics(name, "restart")]


def scenario_rounds_files_all_faults():
    """At a start of all: either end is killed, a file is damaged or gone, another one has its name; under TLS, over QUIC, at fixed ports."""
    done = aqpipe("keys", "init", ROOT / "keys", "--job", "e2e", "--stages", 6, "--hosts", "127.0.0.1")
    check(done.returncode == 0, done.stderr)
    hosts, secured = Hosts(3), Hosts(3, "--keys", ROOT / "keys")
    try:
        alone("shared", {**keys_of(hosts, "shared", **EARLY), "checkpoint.path": None}, hosts)

        def kill(process, hold):
            end(hold.reached(process))
            hold.release()
        for name, phase in (("sender", "gives"), ("receiver", "takes")):
            said = alone(name, keys_of(hosts, name, **EARLY), hosts, act=kill, also=lambda: jobs.Hold(8, phase, 2, hosts.holds))
            check("was killed" in said and restarts(name) == [8, 8], f"{name}: {restarts(name)}\n{said[-3000:]}")
            check(weights(name) == weights("shared"), f"{name}: other weights than with a shared folder")

        # The checkpoint cannot be had: the one before it, or the run ends with the cause, and can be resumed.
        def damage(rank, step):
            (hosts.holds / f"{rank}.{step}.damage").touch()
        said = alone("damaged", keys_of(hosts, "damaged", **EARLY), hosts, step=10, also=lambda: damage(2, 12))
        check("it is damaged there: restarts from the older checkpoint of step 8" in said and restarts("damaged") == [12, 8], f"damaged: {said[-3000:]}")
        clock, slow = jobs.Clock("launch"), ROOT / "slow.err"

        def wait(process, hold):
            hold.reached(process)
            clock.until(lambda: "in time (900 s)" in slow.read_text(), process, step=100)
            hold.release()
        said = alone("slow", keys_of(hosts, "slow", **EARLY, **{"control.silence_max": 0}), hosts, step=10, act=wait, also=lambda: jobs.Hold(12, "takes", 2, hosts.holds), **clock.environment())
        check(re.search(r"replica 1 has not read its checkpoint in time .900 s., a file of .* restarts from the older", said) and restarts("slow") == [12, 8], f"slow: {said[-3000:]}")
        keys = keys_of(hosts, "single", **EARLY)
        said = alone("single", keys, hosts, also=lambda: damage(2, 8), want=1)
        check("it is damaged there" in said and restarts("single") == [8], f"single: {said[-3000:]}")
        check(not file_of("single", 1, 8, 2).exists() and not list(disk(1).glob("single/*/stage-2*.partial")), "single: something of that file is left")
        (hosts.holds / "2.8.damage").unlink()
        resumed("single", keys)
        check(weights("single") == weights("shared"), "single: other weights than with a shared folder")
        for name, lose_it, cause in (("gone", lambda: file_of("gone", 0, 12, 2).unlink(), "is not here any more"),
                                     ("unsaid", lambda: (ROOT / "unsaid" / "hashes.json").unlink(), "there is no such file")):
            keys = keys_of(hosts, name)
            alone(name, keys, hosts, "--restarts", "0", step=10, want=1)
            lose_it()
            said = resumed(name, keys)
            check(cause in said and restarts(name) == [8], f"{name}: {restarts(name)}\n{said[-3000:]}")

        # A file of that step is there, of the same length: it is another one, and is replaced.
        keys = keys_of(hosts, "stale", **EARLY)
        alone("stale", keys, hosts, "--restarts", "0", want=1)
        file_of("stale", 1, 8, 2).parent.mkdir()
        shutil.copyfile(file_of("sender", 1, 16, 2), file_of("stale", 1, 8, 2))
        from_newest("stale", resumed("stale", keys), 8)
        check(weights("stale") == weights("shared"), "stale: other weights than with a shared folder")

        under = {"pipeline.stages": secured.placed((0, 0), (1, 1), (2, 2)), "security.tls": "on", "security.keys": ROOT / "keys"}
        for name, changes in (("secured", {}), ("quic", {"link.protocol": "quic"})):
            keys = {**keys_of(secured, name, **EARLY), **under, "link.port_first": jobs.lasting_port(6), **changes}
            from_newest(name, alone(name, keys, secured), 8)
            check(weights(name) == weights("shared"), f"{name}: other weights than in the clear")
    finally:
        hosts.close()
        secured.close()
    no_workers("rounds_files_all_faults")


def scenario_rounds_files_all_kinds():
    """The same with each step a round, shares of a round, lossy codecs, two replicas, the first one lost, replicas over two hosts."""
    hosts = Hosts(4)
    try:
        for name, rank, step, at, changes in (("steps", 2, 6, 6, {"reduce.every": 1}), ("speed", 2, 8, 8, {"reduce.steps": "speed", "train.evaluate_every": "8 steps"}),
                                              ("sign", 2, 6, 8, CODED["sign"]), ("topk", 2, 10, 12, CODED["topk"]), ("first", 0, 6, 8, {}),
                                              ("two", 3, 6, 8, {"pipeline.replicas": 2, "pipeline.stages": hosts.placed((0, 0), (1, 1))}),
                                              ("over", 3, 6, 8, {"pipeline.stages": hosts.placed((0, 3), (1, 2), (2, 0))})):
            for kind in ("shared", "apart"):
                run = f"{name}-{kind}"
                keys = {**keys_of(hosts, run), **changes, **({"checkpoint.path": None} if kind == "shared" else {})}
                alone(run, keys, hosts, "--restarts", "0", step=step, rank=rank, want=1)
                said = resumed(run, keys)
                check(f"continues after step {at}" in said and not metrics(run, "restart"), f"{run}: {said[-3000:]}")
                check(said.count(f"gets its checkpoint of step {at}") == (0 if kind == "shared" else 2), f"{run}: {said[-3000:]}")
            # Shares of a round depend on time. A model over two hosts is joined on none.
            check(name == "speed" or losses(f"{name}-shared") == losses(f"{name}-apart"), f"{name}: other losses than with a shared folder")
            check(name in ("speed", "over") or weights(f"{name}-shared") == weights(f"{name}-apart"), f"{name}: other weights than with a shared folder")
    finally:
        hosts.close()
    no_workers("rounds_files_all_kinds")
