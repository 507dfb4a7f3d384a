"""reduce.patience with more than one thing at once: a loss while a checkpoint is written; an average again under a clip, over QUIC, or where links heal."""
import contextlib
import json
import shutil
import time

import jobs
from jobs import check, launch, manifest, metrics, no_workers, weights
from kit import ROOT, complete, end, marked, start
from rounds import FOUR, ROUNDS, UNSAID, can_return, entered, killed_at, lose, repeated, rounds, shares, whole_run

LONG = {**FOUR, "train.epochs": 12}  # 36 steps
DELTA = {**LONG, "edges.forward.codec": "aqsgd", "edges.forward.bits": 4}


class Losses:
    """A launch whose workers are held at (step, phase, rank), in this order; each is killed in its turn.

    No living replica trains a step of `backs` before the replicas that are lost by then wait for their return."""

    def __init__(self, name, keys, *places, backs=(), words=()):
        self.name, self.places = name, places
        self.holds = [jobs.Hold(*places[0])]
        self.holds += [jobs.Hold(*place, self.holds[0].folder) for place in places[1:]]
        self.backs = {step: jobs.Hold(step, "forward", 0, self.holds[0].folder) for step in backs}
        self.path = manifest(name, **keys)
        self.process = start(self.path, *words, environment=self.holds[0].environment(), lines=False)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()

    def lose(self, number, mark=0):
        """mark: when the checkpoint of this step is complete."""
        worker = self.holds[number].reached(self.process)
        if mark:
            marked(self.path, mark)
        end(worker)
        self.holds[number].release()

    def back(self, step, *replicas, times=1, then=True):
        self.backs[step].reached(self.process)
        for replica in replicas:
            can_return(self.name, self.process, 2 * replica, 2 * replica + 1, times=times)
        if then:
            self.backs[step].release()

    def over(self):
        _, errors = self.process.communicate(timeout=jobs.PATIENCE)
        check(self.process.returncode == 0, f"{self.name}: exit code {self.process.returncode}, wanted 0\n{errors[-3000:]}")
        whole_run(self.name, len(metrics(self.name)), 4, 2)
        return errors


def checkpoints_are(name, *wanted):
    """Until these are there, and no other one."""
    deadline = time.time() + jobs.PATIENCE
    while (found := sorted(int(path.name) for path in (ROOT / name / "checkpoint").iterdir() if path.name.isdigit())) != list(wanted):
        check(time.time() < deadline, f"{name}: the checkpoints {found}, wanted {wanted}")
        time.sleep(0.02)


def scenario_rounds_mark():
    """A replica is lost while a checkpoint is written: it is broken off, its files go, and the next one is complete. Nobody starts again."""
    with Losses("broken-off", LONG, (16, "write", 3), backs=(20,)) as run:
        run.lose(0)
        run.back(20, 1, then=False)
        checkpoints_are("broken-off", 8)
        check(complete("broken-off") == 8, f"the checkpoint of {complete('broken-off')} is complete")
        run.backs[20].release()
        errors = run.over()
    check("the checkpoint of step 16 is broken off: replica 1 had not written its part" in errors, errors[-2000:])
    check(rounds("broken-off") == [(20, [0, 2, 3], [1])] and entered("broken-off") == [(20, [1])], f"{rounds('broken-off')}, {entered('broken-off')}")
    repeated("broken-off", LONG, resumes=False)
    with Losses("whole", LONG, (17, "forward", 3), backs=(20,)) as run:
        run.lose(0, mark=16)
        run.back(20, 1)
        run.over()
    check(weights("whole") == weights("broken-off"), "a checkpoint that is broken off changes the run")
    # One that was to enter from it waits for the next one.
    with Losses("entering", LONG, (6, "backward", 3), (8, "write", 4), backs=(8, 12)) as run:
        run.lose(0)
        run.back(8, 1)
        run.lose(1)
        run.back(12, 2)
        run.over()
    check(rounds("entering") == [(8, [0, 2, 3], [1]), (12, [0, 3], [1, 2])], f"{rounds('entering')}")
    check(entered("entering") == [(8, [1]), (12, [1, 2])], f"{entered('entering')}")
    repeated("entering", LONG, resumes=False)
    # The launcher is killed while the checkpoint after the one that was broken off is written: the one before is the last.
    with Losses("killed", DELTA, (16, "write", 3), (20, "write", 0), backs=(20,)) as run:
        run.lose(0)
        run.back(20, 1)
        run.holds[1].reached(run.process)
        end(run.process.pid)
        run.process.wait()
        run.holds[1].release()
    no_workers("rounds_mark")
    check(complete("killed") == 8, f"killed: {complete('killed')}")
    launch(run.path, "--resume")
    check([line["step"] for line in metrics("killed")] == list(range(1, 37)), "killed: steps")
    no_workers("rounds_mark")


def scenario_rounds_mark_speed():
    """Replicas that train different numbers of steps, and one that is lost while a checkpoint is written: its dropped round does not count, and the bits are those of a checkpoint that was not broken off."""
    keys, steps = {**LONG, "reduce.steps": "speed", "train.evaluate_every": "8 steps"}, [4, 2, 3, 1]
    log = ROOT / "shares.jsonl"
    log.write_text("".join(json.dumps({"event": "round", "step": end, "without": [], "steps": steps}) + "\n" for end in range(4, 37, 4)))
    words = ("--rounds", log)
    launch(manifest("even", **keys), *words)
    with Losses("uneven", keys, (16, "write", 3), backs=(20,), words=words) as run:
        run.lose(0)
        run.back(20, 1, then=False)
        checkpoints_are("uneven", 8)
        run.backs[20].release()
        errors = run.over()
    check("the checkpoint of step 16 is broken off: replica 1 had not written its part" in errors, errors[-2000:])
    check(rounds("uneven") == [(20, [0, 2, 3], [1])] and entered("uneven") == [(20, [1])], f"{rounds('uneven')}, {entered('uneven')}")
    check(shares("uneven")[:5] == [*shares("even")[:4], (20, steps, [20, 10, 16, 8], [20, 20, 16, 8])], f"{shares('uneven')}")
    repeated("uneven", keys, resumes=False)
    # The launcher is killed while the next checkpoint is written: the steps of the one before are trained again by the same shares.
    with Losses("killed", keys, (16, "write", 3), (20, "write", 0), backs=(20,), words=words) as run:
        run.lose(0)
        run.back(20, 1)
        run.holds[1].reached(run.process)
        end(run.process.pid)
        run.process.wait()
        run.holds[1].release()
    no_workers("rounds_mark_speed")
    check(complete("killed") == 8, f"killed: {complete('killed')}")
    launch(run.path, "--resume", *words)
    check(weights("killed") == weights("even") and shares("killed") == shares("even"), f"killed: {shares('killed')}")
    no_workers("rounds_mark_speed")


def scenario_rounds_more():
    """An average is made again under a clip that acts, over QUIC, and where the links of one that has just returned are cut."""
    ways = {"clip": {"train.clip": 0.05}, "quic": {"link.protocol": "quic"}}
    if "built without QUIC" in jobs.aqpipe("plan", manifest("quic-plan", **{**FOUR, **ways["quic"]})).stderr:
        print("rounds_more: built without QUIC, which was said in one line")
        del ways["quic"]
    for name, more in ways.items():
        with Losses(name, {**FOUR, **more}, (4, "sums", 3), backs=(8,)) as run:
            run.lose(0)
            run.back(8, 1)
            run.over()
        check(rounds(name)[0] == (4, [0, 2, 3], [1]), f"{name}: {rounds(name)}")
        repeated(name, {**FOUR, **(more if name == "clip" else {})}, resumes=False)  # over TCP
    check(all(line["grad_norm"] > 0.05 for line in metrics("clip")), "the clip does not act")
    # A second replica is lost in the first average of one that is back: it returns there, if it is ready, or a round later.
    held = {**LONG, "link.outage_max": "60s"}
    far = {**LONG, "link.connect_max": "1h"}  # nobody waits so long for a link to one that is lost
    for name, keys, cut, phase, gone in (("cut", held, "seed=1&cut_every=30000", "sums", 2), ("joining", far, None, "joins", 2), ("returned", far, None, "joins", 1)):
        with jobs.faults(links=cut) if cut else contextlib.nullcontext():
            with Losses(name, keys, (6, "backward", 3), (12, "forward", 2), (12, phase, 4), backs=(8, 16)) as run:
                run.lose(0)
                run.back(8, 1)
                returned = run.holds[1].reached(run.process)
                run.holds[1].release()
                joins = run.holds[2].reached(run.process)
                end(returned if gone == 1 else joins)
                run.holds[2].release()
                run.back(16, gone, times=2 if gone == 1 else 1)
                errors = run.over()
        check(rounds(name)[:2] == [(8, [0, 2, 3], [1]), (12, [w for w in range(4) if w != gone], [gone])], f"{name}: {rounds(name)}\n{errors[-3000:]}")
        check(entered(name)[0] == (8, [1]) and entered(name)[1] in ((12, [gone]), (16, [gone])), f"{name}: {entered(name)}")
        repeated(name, keys, resumes=False)
    log = "".join((ROOT / "cut" / "logs" / f"stage-{rank}.log").read_text().split("waits for a round's end")[-1] for rank in (2, 3))
    check("healed after" in log, f"no link of the one that returned was cut\n{log[-3000:]}")
    check("of 4 average, attempt 2" in log, f"the average was not made again\n{log[-3000:]}")
    no_workers("rounds_more")


def first_visits(name, replica):
    """Of the steps after step 16: messages that were sent whole at the cut of this replica."""
    return sum(line["keyframes"][2 * replica] or 0 for line in metrics(name)[16:])


def scenario_rounds_caches():
    """A replica that returns has the message caches of the newest checkpoint before its loss: it need not send all again."""
    long = {**ROUNDS, "train.epochs": 9}  # 27 steps
    delta = {**long, "edges.forward.codec": "aqsgd", "edges.forward.bits": 4}
    for name, keys in (("delta", delta), ("default", {**long, **UNSAID}), ("memory", {**delta, "cache.kind": "memory"})):
        lose(name, keys, 3, 14, back=16)
        check(entered(name) == [(16, [1])], f"{name}: {entered(name)}")
        check([line["caches"] for line in metrics(name, "round") if line["without"]] == [{"1": 8}], f"{name}: {metrics(name, 'round')}")
        check(first_visits(name, 0) == 0 and (first_visits(name, 1) > 0) == (name == "memory"), f"{name}: {first_visits(name, 1)} first visits after the return")
        whole_run(name, len(metrics(name)), 2, 2)
        log = ROOT / f"{name}-log.jsonl"
        shutil.copyfile(ROOT / name / "metrics.jsonl", log)
        launch(manifest(f"{name}-again", **keys), "--rounds", log)
        check(weights(f"{name}-again") == weights(name), f"{name}-again: other weights")
        if name == "memory":
            continue
        # Nobody returns: all start again from the round's checkpoint, and later from one after it.
        path = manifest(f"{name}-all", **keys)
        launch(path, "--rounds", log, "--restarts", "0", want=1)
        check(complete(f"{name}-all") == 16, f"{name}-all: the checkpoint of {complete(f'{name}-all')}")
        killed_at(path, 19)
        launch(path, "--resume")
        check(weights(f"{name}-all") == weights(name), f"{name}-all: other weights")
    # It is lost again in its first round, and in the one after it, before another checkpoint: the mark of its return counts after it has averaged.
    for name, step, back, noted in (("twice", 18, 20, [{"1": 8}, {"1": 8}, None]), ("later", 22, 24, [{"1": 8}, None, {"1": 16}, None])):
        path = manifest(name, **delta)
        first = jobs.Hold(14, "backward", 3)
        again, *others = [jobs.Hold(at, "forward", rank, first.folder) for at, rank in ((step, 3), (16, 0), (back, 0))]
        process = start(path, environment=first.environment(), lines=False)
        for times, (hold, other) in enumerate(zip((first, again), others), 1):
            end(hold.reached(process))
            hold.release()
            other.reached(process)
            can_return(name, process, 2, 3, times=times)
            other.release()
        _, errors = process.communicate(timeout=jobs.PATIENCE)
        check(process.returncode == 0, f"{name}: exit code {process.returncode}\n{errors[-2000:]}")
        check([line.get("caches") for line in metrics(name, "round")] == noted, f"{name}: {metrics(name, 'round')}")
        check(first_visits(name, 1) == 0, f"{name}: {first_visits(name, 1)} first visits after the returns")
        whole_run(name, len(metrics(name)), 2, 2)
        log = ROOT / f"{name}-log.jsonl"
        shutil.copyfile(ROOT / name / "metrics.jsonl", log)
        launch(manifest(f"{name}-again", **delta), "--rounds", log)
        check(weights(f"{name}-again") == weights(name), f"{name}-again: other weights")

    def removed(*ranks):
        def act(hold, _):
            end(int((hold.folder / "3.14.backward.held").read_text()))
            for rank in ranks:
                shutil.rmtree(ROOT / "removed" / "cache" / f"stage-{rank}")
        return act
    # The cache of one end is gone: what it lacks comes from the other one. Those of both: all is sent again.
    lose("removed", delta, 3, 14, act=removed(3), back=16)
    check(weights("removed") == weights("delta") and first_visits("removed", 1) == 0, f"removed: {first_visits('removed', 1)} first visits")
    shutil.rmtree(ROOT / "removed")
    _, errors = lose("removed", delta, 3, 14, act=removed(2, 3), back=16)
    check(first_visits("removed", 1) > 0 and entered("removed") == [(16, [1])], f"removed: {first_visits('removed', 1)} first visits\n{errors[-2000:]}")
    whole_run("removed", len(metrics("removed")), 2, 2)
    no_workers("rounds_caches")
