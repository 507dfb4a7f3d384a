"""reduce.delay with reduce.patience: an average that travels is made again without a replica that is lost meanwhile."""
import json
import signal

import jobs
from jobs import check, launch, losses, manifest, metrics, no_workers, weights
from kit import ROOT, complete, end, interrupt, marked, start
from local import SPARSE
from rounds import EVERY, FOUR, ROUNDS, can_return, entered, lose, lose_averaging, repeated, rounds, stopped_while_lost, whole_run

# An evaluation waits for the average, and a checkpoint follows on every second round: the averages of steps 4 and 12 travel.
TRAVELS = {"reduce.delay": 2, "train.evaluate_every": "8 steps"}
DELAYED = {**ROUNDS, **TRAVELS}
FOUR_DELAYED = {**FOUR, **TRAVELS}
PHASES = ("parts", "sums", "results", "mean")


def without_patience(keys):
    return {**keys, "reduce.patience": 0}


def scenario_rounds_delay():
    """Undisturbed the bits are those of each key alone; an average travels beside steps; a lost replica's round ends without it."""
    for name, more in {"fp32": {}, "q4": {"reduce.codec": "q4"}, "three": {"pipeline.replicas": 3, "train.batch": 12, "reduce.codec": "sign", "reduce.delay": 3},
                       "topk": {"reduce.codec": "topk", "reduce.density": 0.1, **SPARSE, "reduce.delay": 1},
                       "stage": {"pipeline.stages": "[{layers: 0}, {layers: 1-5}]", "train.freeze": "embedding"},
                       "looks": {"train.evaluate_every": "1 step"}, "auto": {"reduce.codec": "auto", "link.rate_mbps": 3}}.items():
        keys = {**DELAYED, "train.micro_batch": 1, **more}
        launch(manifest(f"{name}-calm", **without_patience(keys)))
        launch(manifest(name, **keys))
        check(losses(name) == losses(f"{name}-calm") and not rounds(name), f"{name}: reduce.patience changes an undisturbed run: {rounds(name)}")
        check(name == "auto" or weights(name) == weights(f"{name}-calm"), f"{name}: other weights")
    # The average of step 4 stands still, and two replicas train the next round's steps.
    path = manifest("beside", **{**DELAYED, "train.micro_batch": 1})
    still = jobs.Hold(EVERY, "sums", 3)
    ahead = [jobs.Hold(EVERY + TRAVELS["reduce.delay"], "backward", rank, still.folder) for rank in (0, 2)]
    process = start(path, environment=still.environment(), lines=False)
    try:
        for hold in (still, *ahead):
            hold.reached(process)
        still.release()
        for hold in ahead:
            hold.release()
        _, errors = process.communicate(timeout=jobs.PATIENCE)
    finally:
        process.kill()
    check(process.returncode == 0 and weights("beside") == weights("fp32") and not rounds("beside"), f"beside: {rounds('beside')}\n{errors[-2000:]}")
    # Lost after those steps: it counts in the round before, and the next one ends without it.
    for name, rank, more in (("two", 3, {}), ("first", 0, {"reduce.codec": "q4"}),
                             ("delta", 2, {"edges.forward.codec": "aqsgd", "edges.forward.bits": 4})):
        keys = {**DELAYED, **more}
        _, errors = lose(name, keys, rank, 7)
        gone = rank // 2
        check(rounds(name) == [(8, [1 - gone], [gone])] and entered(name) == [(8, [gone])], f"{name}: {rounds(name)}, {entered(name)}\n{errors[-2000:]}")
        whole_run(name, 18, 2, 2)
        repeated(name, keys)
    launch(manifest("calm", **DELAYED))
    check(weights("two") != weights("calm"), "the lost replica's work counts")
    no_workers("rounds_delay")


def lose_beside(name, keys, ranks, step, average=(0, "sums")):
    """Launch, and kill these workers in that step, the first ones after step 4, while another one's average of step 4 stands still."""
    path = manifest(name, **keys)
    holds = [jobs.Hold(EVERY, average[1], average[0]), None, None, None]
    folder = holds[0].folder
    holds[1] = jobs.Hold(step, "backward", ranks[0], folder, also=ranks[1:])
    gone = sorted({rank // 2 for rank in ranks})
    holds[2] = jobs.Hold(8, "forward", 2 * next(w for w in range(keys["pipeline.replicas"]) if w not in gone), folder)
    process = start(path, environment=holds[0].environment(), lines=False)
    try:
        for hold in holds[:2]:
            hold.reached(process)
        for rank in ranks:
            end(int((folder / f"{rank}.{step}.backward.held").read_text()))
        holds[1].release()
        can_return(name, process, *(2 * w + s for w in gone for s in (0, 1)))
        holds[0].release()
        holds[2].reached(process)
        holds[2].release()
        _, errors = process.communicate(timeout=jobs.PATIENCE)
    finally:
        process.kill()
    stayed = [w for w in range(keys["pipeline.replicas"]) if w not in gone]
    check(process.returncode == 0, f"{name}: exit code {process.returncode}, wanted 0\n{errors[-3000:]}")
    check(rounds(name) == [(4, stayed, gone), (8, stayed, gone)] and entered(name) == [(8, gone)], f"{name}: {rounds(name)}, {entered(name)}\n{errors[-2000:]}")
    whole_run(name, len(metrics(name)), keys["pipeline.replicas"], 2)


def waiting():
    """The others make an average again while all their last stages only wait for their neighbours."""
    path = manifest("waiting", **FOUR_DELAYED)
    hold = jobs.Hold(EVERY, "sums", 3)
    neighbour = jobs.Hold(5, "forward", 4, hold.folder, also=(0, 6))
    living = jobs.Hold(8, "forward", 0, hold.folder)
    process = start(path, environment=hold.environment(), lines=False)
    try:
        neighbour.reached(process)
        end(hold.reached(process))
        hold.release()
        jobs.await_text(ROOT / "waiting" / "metrics.jsonl", '"step":4,"members":[0,2,3],"without":[1]', process)
        neighbour.release()
        living.reached(process)
        can_return("waiting", process, 2, 3)
        living.release()
        _, errors = process.communicate(timeout=jobs.PATIENCE)
    finally:
        process.kill()
    check(process.returncode == 0 and weights("waiting") == weights("four-parts"), f"waiting: {process.returncode}, {rounds('waiting')}\n{errors[-2000:]}")


def scenario_rounds_delay_average():
    """Killed in each phase of an average that travels, and in each step meanwhile: the same bits, which are the log's."""
    for phase in PHASES:
        lose_averaging(f"four-{phase}", FOUR_DELAYED, 4, phase, (3,))
        check(weights(f"four-{phase}") == weights("four-parts"), f"{phase}: other weights than after a loss in another phase")
    for step in (5, 6):
        lose_beside(f"step-{step}", FOUR_DELAYED, (3,), step)
        check(weights(f"step-{step}") == weights("four-parts"), f"step {step}: other weights than after a loss in a phase of the average")
    repeated("four-sums", FOUR_DELAYED, resumes=False)
    waiting()
    lose_beside("mean", FOUR_DELAYED, (2,), 5, average=(0, "mean"))
    check(weights("mean") == weights("four-parts"), "mean: other weights")
    lose_beside("two-at-once", FOUR_DELAYED, (3, 4), 5)
    repeated("two-at-once", FOUR_DELAYED, resumes=False)
    lose_averaging("marked", FOUR_DELAYED, 8, "sums", (0,))  # waited for at the round's end
    repeated("marked", FOUR_DELAYED, resumes=False)
    stopped = {**FOUR_DELAYED, "control.silence_max": "4s"}
    lose_averaging("stopped", stopped, 4, "sums", (3,), act=lambda worker: end(worker, signal.SIGSTOP))
    check(weights("stopped") == weights("four-parts"), "stopped: other weights than killed")
    no_workers("rounds_delay_average")


def scenario_rounds_delay_coded():
    """Errors of a codec, and a codec that is chosen, are as if nobody had tried before; the same where no host reaches a device's memory."""
    three = {**FOUR_DELAYED, "pipeline.replicas": 3, "train.batch": 12, "data.train_samples_max": 36}
    for tag, more in {"sign": {"reduce.codec": "sign"}, "q8": {"reduce.codec": "q8", "reduce.outer_momentum": 0}}.items():
        keys = {**three, **more}
        for phase in ("sums", "results"):
            lose_averaging(f"{tag}-{phase}", keys, 4, phase, (3,))
        check(weights(f"{tag}-sums") == weights(f"{tag}-results"), f"{tag}: other weights than after a loss in another phase")
        lose_beside(f"{tag}-beside", keys, (3,), 6)
        check(weights(f"{tag}-beside") == weights(f"{tag}-sums"), f"{tag}: other weights than after a loss in the average")
        repeated(f"{tag}-sums", keys, resumes=False)
        jobs.isolated(True)
        lose_beside(f"{tag}-apart", keys, (3,), 5)
        jobs.isolated(False)
        check(weights(f"{tag}-apart") == weights(f"{tag}-sums"), f"{tag}: other weights where no host reaches a device's memory")
    auto = {**three, "reduce.codec": "auto", "link.rate_mbps": 3}
    lose_averaging("auto", auto, 4, "sums", (3,))
    no_workers("rounds_delay_coded")


def scenario_rounds_delay_resume():
    """The launcher is killed, or told to stop, while an average stands still and the others train on: the resumed run is the undisturbed one."""
    keys = {**DELAYED, "train.micro_batch": 1}
    launch(manifest("calm", **keys))
    for name, step, how, code, kept in (("killed", 12, signal.SIGKILL, -9, 8), ("early", 4, signal.SIGINT, 3, 8), ("stopped", 12, signal.SIGINT, 3, 16)):
        path = manifest(name, **keys)
        still = jobs.Hold(step, "sums", 3)
        holds = [still, *(jobs.Hold(step + 1, "backward", rank, still.folder) for rank in (0, 2))]
        process = start(path, "--restarts", "0", environment=still.environment(), lines=False)
        for hold in holds:
            hold.reached(process)
        end(process.pid, how)
        if how == signal.SIGKILL:
            process.wait()
        for hold in holds:
            hold.release()
        _, errors = process.communicate(timeout=jobs.PATIENCE)
        no_workers(name)
        check((process.returncode, complete(name)) == (code, kept), f"{name}: {process.returncode}, the checkpoint of {complete(name)}\n{errors[-2000:]}")
        launch(path, "--resume")
        check(weights(name) == weights("calm") and losses(name) == losses("calm"), f"{name}: another run")


def scenario_rounds_delay_late():
    """A late replica; a stop while a replica is away; stopped or killed at steps with and without an average, and resumed."""
    keys = {**DELAYED, "control.silence_max": 0, "control.stall_max": 0}
    clock = jobs.Clock("launch")

    def wait(hold, process):
        clock.until(lambda: '"without":[1]' in (ROOT / "late" / "metrics.jsonl").read_text(), process, step=100)

    lose("late", keys, 3, 7, act=wait, back=0, clock=clock)
    check(rounds("late")[0] == (8, [0], [1]) and entered("late")[-1][0] == rounds("late")[-1][0], f"late: {rounds('late')}, {entered('late')}")
    whole_run("late", 18, 2, 2)
    repeated("late", keys, resumes=False)
    launch(manifest("calm", **DELAYED))
    for how, step in (("sigint", 6), ("daemon", 13), ("launcher", 10)):  # after a stop in step 7 the run ends with its round
        path = manifest(f"{how}", **DELAYED)
        errors = interrupt(how, path, step)
        if how == "sigint":
            check("stops when the round of 4 steps ends (reduce.every)" in errors and complete(how) == 8, f"{how}: {complete(how)}\n{errors[-2000:]}")
        launch(path, "--resume")
        check(weights(how) == weights("calm") and losses(how) == losses("calm"), f"{how}: another run")
    path = stopped_while_lost(DELAYED, 7)
    launch(path, "--resume")
    whole_run("stopped", 18, 2, 2)
    # A log by which a replica is away for two rounds, and that a resumed run goes on with.
    log = ROOT / "away.jsonl"
    log.write_text("".join(json.dumps({"event": "round", "step": step, "members": [0], "without": [1]}) + "\n" for step in (4, 8)))
    launch(manifest("away", **DELAYED), "--rounds", log)
    check(rounds("away") == [(step, [0], [1]) for step in (4, 8)] and entered("away") == [(8, [1])], f"{rounds('away')}, {entered('away')}")
    path = manifest("away-again", **DELAYED)
    hold = jobs.Hold(14)
    process = start(path, "--rounds", log, environment=hold.environment(), lines=False)
    hold.reached(process)
    marked(path, 8)
    end(process.pid)
    process.communicate(timeout=jobs.PATIENCE)
    hold.release()
    no_workers("away-again")
    launch(path, "--resume")
    check(weights("away-again") == weights("away"), "away-again: other weights")
    no_workers("rounds_delay_late")
