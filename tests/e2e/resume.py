"""Resume: runs that are stopped, killed, robbed of disks or power go on as the runs that would have been."""
import json
import math
import os
import re
import resource
import shutil
import signal
import socket
import subprocess
import time

import jobs
from jobs import aqpipe, check, descendant, launch, losses, manifest, metrics, no_workers, weights
from kit import (REPLICAS, RESTARTED, ROOT, complete, end, hold_at, interrupt, launch_and_kill, refused, same_run,
                 serve, start, twins)
from power import Power


def scenario_resume():
    """Stop and resume equals an undisturbed run, bit for bit: Ctrl-C, kill -9 of a worker, of the daemon, of the launcher."""
    keys = {"edges.forward.codec": "aqsgd", "edges.forward.bits": 3, "edges.backward.codec": "directq",
            "edges.backward.bits": 6, "checkpoint.every": "3 steps", "train.epochs": 20, "model.dropout": 0.1}
    launch(manifest("whole", **keys))
    want = losses("whole")
    for name in ("sigint", "worker", "daemon", "launcher"):
        path = manifest(name, **keys)
        interrupt(name, path, 7)
        # In another order of work, too: all forwards, then all backwards, and wider windows.
        launch(path, "--resume", *(["--set", "link.rtt_ms=80"] if name == "worker" else []))
        check(losses(name) == want, f"{name}: losses after the resume are not those of the undisturbed run:\n"
              f"{losses(name)}\n{want}")
        check(weights(name) == weights("whole"), f"{name}: model.safetensors differs")
        steps = metrics(name)
        keyframes = sum(x or 0 for line in steps[len(steps) // 20:] for x in line["keyframes"])
        check(keyframes == 0, f"{name}: {keyframes} keyframes after the first epoch: a cache was lost")


def scenario_guard():
    """A guard gives a cut more bits in the same step whether or not the run was killed, in replicas each its own; off, it changes nothing."""
    keys = {"edges.forward.codec": "aqsgd", "edges.forward.bits": 2, "edges.forward.group": "tensor",
            "edges.forward.grid": "midtread", "edges.backward.bits": 4, "edges.guard": "true", "checkpoint.every": "3 steps",
            "train.epochs": 16, "train.lr": 1e-3, "train.warmup_steps": 6}

    def bits(name):
        return [line["forward_bits"] for line in metrics(name)]
    for tag, more in (("one", {}), ("replicas", {**REPLICAS, "train.batch": 4, "train.staleness": 1})):
        name = f"guard-{tag}"
        launch(manifest(f"{name}-whole", **keys, **more))
        want = bits(f"{name}-whole")
        raised = [step for step in range(1, len(want)) if want[step] != want[step - 1]]
        cuts = [r for r, b in enumerate(want[0]) if b is not None]
        check(raised and all(b is None or b == 2 for b in want[0]), f"{name}: nothing was raised: {want}")
        check(all(a[r] <= b[r] for a, b in zip(want, want[1:]) for r in cuts), f"{name}: bits went down: {want}")
        contractions = [line["contraction"] for line in metrics(f"{name}-whole") if "contraction" in line]
        check(any(c and c > 0.71 for line in contractions for c in line), f"{name}: all contracts: {contractions}")
        for how, step in (("worker", raised[0] + 2),) if tag == "one" else (("launcher", max(raised[0] - 2, 4)),):
            path = manifest(f"{name}-{how}", **keys, **more)
            interrupt(how, path, step)
            launch(path, "--resume")
            check(bits(f"{name}-{how}") == want, f"{name}-{how}: bits of the resumed run {bits(f'{name}-{how}')}\n{want}")
            check(losses(f"{name}-{how}") == losses(f"{name}-whole"), f"{name}-{how}: other losses after the resume")
            check(weights(f"{name}-{how}") == weights(f"{name}-whole"), f"{name}-{how}: other weights after the resume")
    report = json.loads(aqpipe("report", "--json", str(ROOT / "guard-one-whole")).stdout)["runs"][0]
    check([cut["bits"] for cut in report["cuts"]] == [want_last for want_last in bits("guard-one-whole")[-1][:-1]],
          f"the report says {report['cuts']}")
    keys |= {"edges.forward.bits": 4, "edges.forward.group": "row", "train.lr": 1e-3}
    for name, on in (("on", "true"), ("off", "false")):
        launch(manifest(f"quiet-{name}", **{**keys, "edges.guard": on}))
    check(losses("quiet-on") == losses("quiet-off") and weights("quiet-on") == weights("quiet-off"), "a guard that raises nothing changes bits")
    no_workers("guard")


AUTO = {"edges.forward.codec": "ec", "edges.forward.rate": 2, "edges.backward.codec": "directq", "edges.backward.bits": 3,
        "edges.bits": "auto", "checkpoint.every": "3 steps"}
AUTO_BITS = {"forward_bits": (2, 2.5, 3, 4), "backward_bits": (3, 4, 5, 7)}


def bits_are(name, epoch, rungs, stages, ladders=AUTO_BITS):
    """In that epoch each rank of each replica sends with the bits of its rungs."""
    lines = [line for line in metrics(name) if line["epoch"] == epoch]
    check(lines, f"{name}: no steps of epoch {epoch}")
    for line in lines:
        for key, edge_of, way in (("forward_bits", 0, 0), ("backward_bits", -1, 1)):
            for rank, bits in enumerate(line[key]):
                edge = rank % stages + edge_of
                want = ladders[key][rungs[2 * edge + way]] if 0 <= edge < stages - 1 else None
                check(bits == want, f"{name}: step {line['step']} rank {rank}: {key} {bits}, wanted {want}")


def scenario_bits_auto():
    """edges.bits: auto: bits follow what links have room for; what was decided is on disk, and a run that goes on goes by it."""
    for tag, more in (("one", {}), ("replicas", {**REPLICAS, "train.batch": 4})):
        stages = more.get("pipeline.stages", 4)
        ways = 2 * stages - 2
        for rate, rung in ((0.5, 0), (100000, 3)) if tag == "one" else ((100000, 3),):  # replicas: their reduction is the step
            name = f"bits-{tag}-{rung}"
            launch(manifest(name, **AUTO, **more, **{"link.rate_mbps": rate, "train.epochs": 3}))
            found = json.loads((ROOT / name / "bits.json").read_text())
            check(found["1"] == found["2"] == [rung] * ways, f"{name}: with links of {rate} Mbit/s {found}")
            for epoch in range(3):
                bits_are(name, epoch, found[str(epoch)], stages)
        # Decided beforehand, each cut and direction otherwise: as told, to the end, and the same where it was killed.
        told = {str(epoch): [(epoch + way) % 4 for way in range(ways)] for epoch in range(1, 6)}
        for how in ("whole", "killed"):
            name = f"bits-{tag}-{how}"
            path = manifest(name, **AUTO, **more, **{"link.rate_mbps": 100, "train.epochs": 1})
            launch(path)
            at = ROOT / name / "bits.json"
            at.write_text(json.dumps({**json.loads(at.read_text()), **told}))
            first = len(metrics(name))
            arguments = ("--resume", "--set", "train.epochs=6")
            if how == "killed":
                interrupt("worker", path, 3 * first + 1, *arguments)
            launch(path, *arguments)
            for epoch in range(1, 6):
                bits_are(name, epoch, told[str(epoch)], stages)
        same_run(f"bits-{tag}-killed", f"bits-{tag}-whole")
    at.write_text('{"1": [7]}')
    refused("damaged", path, r"bits\.json is damaged.*remove it", 1, "--resume", "--set", "train.epochs=7")
    # lowrank has rungs, too: bits of a number of its factors.
    keys = {"edges.forward.codec": "lowrank", "edges.forward.rank": 4, "edges.forward.rate": 3, "edges.backward.codec": "lowrank",
            "edges.backward.rank": 8, "edges.backward.rate": 4, "edges.bits": "auto", "link.rate_mbps": 100, "train.epochs": 1}
    path = manifest("bits-lowrank", **keys)
    launch(path)
    at = ROOT / "bits-lowrank" / "bits.json"
    told = {str(epoch): [(epoch + way) % 4 for way in range(6)] for epoch in range(1, 4)}
    at.write_text(json.dumps({**json.loads(at.read_text()), **told}))
    launch(path, "--resume", "--set", "train.epochs=4")
    for epoch in range(1, 4):
        bits_are("bits-lowrank", epoch, told[str(epoch)], 4, {"forward_bits": (3, 3.5, 4, 5), "backward_bits": (4, 4.5, 5, 6)})
    # No rate is declared: the first epoch has the manifest's bits, and what links were seen to carry decides of the others.
    launch(manifest("bits-live", **AUTO, **{"train.epochs": 3}))
    found = json.loads((ROOT / "bits-live" / "bits.json").read_text())
    check(found["0"] == [0] * 6 and set(found) == {"0", "1", "2"}, f"bits-live: {found}")
    for epoch in range(3):
        bits_are("bits-live", epoch, found[str(epoch)], 4)
    # What a step's meter sees may have come before it or after: of all steps together each link has carried something.
    for key, at in (("in_link", slice(1, None)), ("out_link", slice(None, -1))):
        for unit in ("bytes", "ns"):
            seen = [sum(of_stage) for of_stage in zip(*(line[f"{key}_{unit}"][at] for line in metrics("bits-live")))]
            check(len(seen) == 3 and all(seen), f"bits-live: {key}_{unit} {seen}")
    refused("staleness", manifest("stale", **AUTO, **{"link.rate_mbps": 100, "train.staleness": 1}), "does not go with train.staleness", 2)
    no_workers("bits_auto")


def scenario_power():
    """Power fails at seeded moments: what was not synced is gone, wholly or in parts; --resume goes on all the same."""
    launch(manifest("whole", **RESTARTED))
    STEPS = len(losses("whole"))
    for seed, mixed in ((1, False), (2, True)):
        name = f"power{seed}"
        power = Power(ROOT / name, seed)
        path = manifest(name, **{**RESTARTED, "output.path": str(ROOT / name / "run")})
        losses_of_power = lost = 0
        while True:
            resumes = ["--resume"] if (ROOT / name / "run").exists() else []
            last = complete(f"{name}/run") + power.rng.randrange(1, 9)  # the step after which the power fails
            hold = jobs.Hold(last + 1, power.rng.choice(("begin", "forward")))
            process = start(path, "--restarts", "0", *resumes, environment={**power.environment(), **hold.environment()}, lines=False)
            if last < STEPS:
                hold.reached(process)
                time.sleep(power.rng.uniform(0, 0.03))
                # All stop at one moment: none may be told of a sync that the disk never made, and remove what it replaces.
                for how in (signal.SIGSTOP, signal.SIGSTOP, signal.SIGKILL):
                    if how == signal.SIGKILL:
                        power.off()
                    for pid, _, _ in jobs.ours():
                        end(int(pid), how)
                hold.release()
            _, errors = process.communicate(timeout=jobs.PATIENCE)
            no_workers(name)
            if process.returncode == 0:
                break
            check(process.returncode == -signal.SIGKILL, f"{name}: the launcher ended with {process.returncode}\n{errors}")
            power.on(mixed)
            losses_of_power, lost = losses_of_power + 1, lost + power.lost_bytes
        shutil.rmtree(ROOT / "now", ignore_errors=True)
        shutil.copytree(ROOT / name / "run", ROOT / "now")
        same_run("now", "whole")
        check(losses_of_power >= 5 and lost > 0, f"{name}: {losses_of_power} losses of power, {lost} bytes lost: no test")
        print(f"{name}: {losses_of_power} losses of power, {lost} bytes lost{' in parts' if mixed else ''}")


def scenario_stop():
    """SIGINT: the step that is being made is the last one, on all ranks, and what follows --resume is the same run."""
    few = {"data.train_samples_max": 20, "train.epochs": 3, "train.batch": 4, "data.heldout_samples_max": 2}
    cases = {"one": {**few, "pipeline.stages": 1}, "two": {**few, "pipeline.stages": 2},
             "replicas": {**few, "pipeline.stages": 2, "pipeline.replicas": 2}}
    for name, keys in cases.items():
        began = time.time()
        launch(manifest(f"{name}-whole", **keys))
        took = time.time() - began
        # The first rank hears of it before step 3 is summed up, or when step 3 is over: then step 4 is the last one.
        for phase, last in (("begin", 3), ("forward", 3), ("end", 4)):
            run = f"{name}-{phase}"
            path = manifest(run, **keys)
            process, hold, _ = hold_at(path, 2, phase=phase)
            end(process.pid, signal.SIGINT)
            hold.release_others()
            if phase == "forward":  # within a step nothing tells that it has been heard
                time.sleep(0.3)
                hold.release()
            _, errors = process.communicate(timeout=jobs.PATIENCE)
            check(process.returncode == 3, f"{run}: exit code {process.returncode}, wanted 3\n{errors[-2000:]}")
            check(complete(run) in ((3, 4) if phase == "forward" else (last,)), f"{run}: it stopped after step {complete(run)}")
            check(f"step {complete(run)} is the last one" in errors, f"{run}: it stopped after step {complete(run)} and says {errors}")
            (ROOT / run / "config.json").mkdir()  # what stands beside the weights cannot be written: they are, and it is said
            done = launch(path, "--resume")
            check("config.json and the tokenizer's files are not all there" in done.stderr, f"{run}: {done.stderr}")
            check(losses(run) == losses(f"{name}-whole"), f"{run}: losses differ after the stop")
            check(weights(run) == weights(f"{name}-whole"), f"{run}: weights differ after the stop")
    # Its terminal closes: SIGHUP stops it, too, and does nothing after nohup.
    for ignored, code in ((signal.SIG_DFL, 3), (signal.SIG_IGN, 0)):
        run = f"terminal-{code}"
        before = signal.signal(signal.SIGHUP, ignored)  # a child inherits it
        process, hold, _ = hold_at(manifest(run, **cases["two"]), 2, phase="end")
        signal.signal(signal.SIGHUP, before)
        end(process.pid, signal.SIGHUP)
        hold.release_others()
        if ignored == signal.SIG_IGN:
            hold.release()
        _, errors = process.communicate(timeout=jobs.PATIENCE)
        check(process.returncode == code, f"{run}: exit code {process.returncode}, wanted {code}\n{errors[-2000:]}")
    check(losses("terminal-0") == losses("two-whole"), "after nohup and SIGHUP it is another run")
    # train.time_max stops like SIGINT. The worker is held beyond that time, so the step after it is the last one. A machine on
    # which a whole run takes long may take as long to come to that step.
    path = manifest("limited", **{**cases["two"], "train.time_max": f"{1 + 2 * took:.1f}s"})
    process, hold, _ = hold_at(path, 2)
    hold.release_others()
    _, errors = process.communicate(timeout=jobs.PATIENCE)
    check(process.returncode == 3 and "train.time_max: stops after this step" in errors, f"{process.returncode}: {errors[-2000:]}")
    check(complete("limited") == 3, f"train.time_max: it stopped after step {complete('limited')}")
    launch(path, "--resume", "--set", "train.time_max=0")
    check(losses("limited") == losses("two-whole") and weights("limited") == weights("two-whole"), "train.time_max changed the run")
    no_workers("stop")


def scenario_timed():
    """checkpoint.every as a time: all ranks take a checkpoint after the same step, and what follows --resume is the same run."""
    few = {"data.train_samples_max": 20, "train.epochs": 3, "train.batch": 4, "data.heldout_samples_max": 2, "pipeline.stages": 2}
    cases = {"one": {**few, "pipeline.stages": 1}, "two": few, "mirrored": {**few, "checkpoint.mirror": "true"},
             "stale": {**few, "train.staleness": 1}, "replicas": {**few, "pipeline.replicas": 2},
             "local": {**few, "pipeline.replicas": 2, "reduce.every": 2, "train.optimizer": "adamw"},
             "delay": {**few, "pipeline.replicas": 2, "reduce.every": 2, "reduce.delay": 1, "train.optimizer": "adamw"}}
    for name, keys in cases.items():
        launch(manifest(f"{name}-whole", **keys))
        path = manifest(name, **keys, **{"checkpoint.every": "200ms"})
        # Rank 0 is held for that time, so that it chooses by step 4 at the latest; all others go by its word.
        hold = jobs.Hold(3, "begin", 0, None, twins(path, 0))
        late = jobs.Hold(8, "begin", 0, hold.folder, twins(path, 0))
        process = start(path, "--restarts", "0", environment=hold.environment(), lines=False)
        hold.reached(process)
        time.sleep(0.25)
        hold.release()
        worker = late.reached(process)
        deadline = time.time() + jobs.PATIENCE
        while complete(name) == 0:
            check(time.time() < deadline, f"{name}: no checkpoint is complete")
            time.sleep(0.01)
        end(worker)
        late.release()
        process.communicate(timeout=jobs.PATIENCE)
        step = complete(name)
        check(process.returncode == 1 and 0 < step < 8, f"{name}: exit code {process.returncode}, checkpoint of step {step}")
        check(name not in ("local", "delay") or step % 2 == 0, f"{name}: a checkpoint of the middle of a round: {step}")
        launch(path, "--resume")
        check(losses(name) == losses(f"{name}-whole") and weights(name) == weights(f"{name}-whole"), f"{name}: not the same run")
    said = aqpipe("plan", path).stdout
    check("checkpoint  0.2 s after the one before, at a step that stage 0 chooses" in said, said)
    check(json.loads(aqpipe("plan", path, "--json").stdout)["checkpoint_seconds"] == 0.2, "plan --json")
    said = aqpipe("report", ROOT / name).stdout
    check("a checkpoint 0.2 s after the one before" in said, said)
    no_workers("timed")


def half_written(name):
    """Checkpoint files that are being written at this moment."""
    return list((ROOT / name / "checkpoint").glob("*/stage-*.safetensors.partial"))


def while_writing(name, path, act, want):
    """Launch; when the checkpoint of step 12 is half written and step 13 is trained, act on a worker that writes it. The launcher's stderr."""
    writes = jobs.Hold(12, "write", rank=1)
    trained = jobs.Hold(14, folder=writes.folder)
    process = subprocess.Popen([str(jobs.BIN / "aqpipe"), "launch", str(path), "--no-progress", "--restarts", "0"],
                               stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, stdin=subprocess.DEVNULL,
                               env={**os.environ, **writes.environment()},
                               restore_signals=False)  # SIGXFSZ stays ignored: a file that is too long is a status
    trained.reached(process)
    worker = writes.reached(process)
    check(complete(name) == 6 and half_written(name), f"{name}: complete is {complete(name)}, half written {half_written(name)}")
    if act(process, worker):  # the file is written further
        writes.release()
    _, errors = process.communicate(timeout=jobs.PATIENCE)
    for hold in (writes, trained):
        hold.asked.unlink(missing_ok=True)
    check(process.returncode == want, f"{name}: exit code {process.returncode}, wanted {want}\n{errors[-2000:]}")
    no_workers(name)
    return errors


def scenario_background():
    """Training goes on while a checkpoint is written; whatever happens then, the older one is whole, and resuming exact."""
    keys = {**RESTARTED, "checkpoint.every": "6 steps"}
    launch(manifest("whole", **keys))

    for name, want in (("worker", 1), ("daemon", 1), ("launcher", -9)):
        def kill(process, worker):
            end({"worker": worker, "launcher": process.pid}.get(name) or descendant(process.pid, "aqpiped"))

        path = manifest(name, **keys)
        while_writing(name, path, kill, want)
        check(complete(name) == 6, f"{name}: step {complete(name)} counts as complete, killed while 12 was written")
        check(half_written(name), f"{name}: nothing was half written")
        launch(path, "--resume")
        same_run(name, "whole")
    path = manifest("sigint", **keys)
    while_writing("sigint", path, lambda process, _: end(process.pid, signal.SIGINT), 3)
    check(not half_written("sigint"), "sigint: ended with a checkpoint half written")
    check(complete("sigint") == metrics("sigint")[-1]["step"] == 14, f"sigint: the last checkpoint is of {complete('sigint')}")
    launch(path, "--resume")
    same_run("sigint", "whole")
    # No cache here, so that nothing but the checkpoint meets the bound on the length of files.
    keys = {**keys, "edges.forward.codec": "directq"}
    launch(manifest("whole-direct", **keys))
    path = manifest("full", **keys)

    def bound(_, worker):
        resource.prlimit(worker, resource.RLIMIT_FSIZE, (4096, 4096))
        return True
    errors = while_writing("full", path, bound, 1)
    check(re.search(r"stage 1 failed: .*/\d+/stage-1\.safetensors\.partial.*(too large|space)", errors),
          f"a disk that is full is not named:\n{errors}")
    check(len(half_written("full")) < 4, "full: the file that could not be written was left")
    launch(path, "--resume")
    check(losses("full") == losses("whole-direct"), "full: losses differ after the resume")
    check(weights("full") == weights("whole-direct"), "full: model.safetensors differs")
    # A checkpoint that is due while the last one is being written waits for it, and changes nothing.
    launch(manifest("each", **{**RESTARTED, "checkpoint.every": "1 steps", "train.epochs": 3}))
    with jobs.faults(checkpoint=5):
        launch(manifest("each-slow", **{**RESTARTED, "checkpoint.every": "1 steps", "train.epochs": 3}))
    waited = sum(sum(line["mark_wait_ns"]) for line in metrics("each-slow"))
    check(waited > 0, "a checkpoint that was due while the last one was written has not waited")
    check(losses("each-slow") == losses("each"), "losses differ where checkpoints wait for each other")


def scenario_restart():
    """kill -9 of a worker three times, of the daemon once: the launcher goes back to the last checkpoint by itself."""
    launch(manifest("whole", **RESTARTED))
    path = manifest("killed", **RESTARTED)

    errors = launch_and_kill(path, [(5, 0), (17, 2), (31, "daemon"), (44, 3)])
    same_run("killed", "whole")
    check(len(metrics("killed", "restart")) == 4, f"restarts in the metrics: {metrics('killed', 'restart')}")
    report = json.loads((ROOT / "killed" / "report.json").read_text())["runs"][0]
    check(report["restarts"] == 4 and report["state"] == "done", f"the report says {report}")
    check(errors.count("restarts from the checkpoint of step") == 4, f"not said:\n{errors}")
    no_workers("restart")


def scenario_restart_daemon():
    """The same with a listening daemon: its worker is killed, then the daemon itself, which comes back a second later."""
    keys = {**RESTARTED, "pipeline.stages": "[{layers: '0-2'}, {layers: '3-5'}]"}
    launch(manifest("whole", **keys))
    holds = ROOT / "holds"
    holds.mkdir()
    with jobs.faults(hold=holds):
        daemon, port = serve(jobs.lasting_port())
        far = f"[{{layers: '0-2'}}, {{layers: '3-5', host: 'tcp://127.0.0.1:{port}'}}]"
        path = manifest("killed", **{**keys, "pipeline.stages": far})

        def kill(victim, _, worker):
            nonlocal daemon
            if victim == 1:
                end(worker)
                return
            daemon.kill()
            daemon.wait()
            time.sleep(1)
            daemon, _ = serve(port)

        try:
            launch_and_kill(path, [(5, 1), (17, "daemon")], kill, holds)
            same_run("killed", "whole")
            check(len(metrics("killed", "restart")) == 2, f"restarts in the metrics: {metrics('killed', 'restart')}")
        finally:
            daemon.terminate()
            daemon.wait(jobs.PATIENCE)
    no_workers("restart_daemon")


def flip(path, first, share, seed):
    """Flip bits in the file from byte `first` on, in about so many places of a thousand blocks."""
    data = bytearray(path.read_bytes())
    state = seed
    for at in range(first, len(data), 512):
        state = (state * 6364136223846793005 + 1442695040888963407) % 2**64
        if (state >> 33) % 1000 < share:
            data[min(at + (state >> 43) % 512, len(data) - 1)] ^= 1 << (state >> 53) % 8
    path.write_bytes(data)


def scenario_lost_disk():
    """A cache that is gone or damaged is filled from the neighbours; a damaged checkpoint gives way to the one before."""
    launch(manifest("whole", **RESTARTED))

    def stopped(name, hurt, *arguments):
        path = manifest(name, **RESTARTED)
        interrupt("sigint", path, 13)
        hurt(ROOT / name)
        done = launch(path, "--resume", *arguments)
        return same_run(name, "whole"), done.stderr

    fetched, said = stopped("gone", lambda run: shutil.rmtree(run / "cache" / "stage-1"))
    check(fetched > 0, f"gone: nothing was fetched:\n{said}")
    fetched, said = stopped("flipped", lambda run: flip(run / "cache" / "stage-2" / "slab", 4096, 300, 5))
    check(fetched > 0, f"flipped: nothing was fetched:\n{said}")
    fetched, said = stopped("index", lambda run: flip(run / "cache" / "stage-1" / "index.mdb", 0, 200, 6))
    check(fetched > 0, f"index: nothing was fetched:\n{said}")

    def newest(run):
        return run / "checkpoint" / str(json.loads((run / "checkpoint" / "complete").read_text())["step"])

    fetched, said = stopped("checkpoint", lambda run: flip(newest(run) / "stage-2.safetensors", 2000, 100, 7))
    check(re.search(r"stage-2\.safetensors.*damaged.*restarts from the older checkpoint of step \d+", said),
          f"checkpoint: not said:\n{said}")
    check(fetched == 0, f"checkpoint: {fetched} messages were fetched: the caches had both marks")
    stopped("missing", lambda run: (newest(run) / "stage-0.safetensors").unlink())
    launch(manifest("other", **{**RESTARTED, "train.seed": 8}), "--set", "train.steps_max=4")
    path = manifest("foreign", **RESTARTED)
    interrupt("sigint", path, 13)
    cache = ROOT / "foreign" / "cache" / "stage-1"
    shutil.rmtree(cache)
    shutil.copytree(ROOT / "other" / "cache" / "stage-1", cache)
    before = (cache / "slab").read_bytes()
    done = launch(path, "--resume", want=1)
    check(re.search(r'stage 1 failed: .*job "other"', done.stderr), f"another job's cache: not named:\n{done.stderr}")
    check((cache / "slab").read_bytes() == before, "another job's cache was overwritten")
    no_workers("lost_disk")


def scenario_mirror():
    """Each checkpoint has a copy at the neighbour; a stage whose whole disk is lost goes on from it, bit for bit."""
    keys = {**RESTARTED, "checkpoint.mirror": "true", "checkpoint.every": "6 steps"}
    launch(manifest("whole", **{**keys, "checkpoint.mirror": "false"}))
    launch(manifest("whole-two", **{**keys, "checkpoint.mirror": "false", "pipeline.stages": 2}))

    def copies(name, stages):
        for step in (ROOT / name / "checkpoint").glob("[0-9]*"):
            for rank in range(stages):
                own, copy = step / f"stage-{rank}.safetensors", step / f"mirror-stage-{rank}.safetensors"
                check(own.read_bytes() == copy.read_bytes(), f"{name}: {copy} is not {own}")

    launch(manifest("copied", **keys))
    same_run("copied", "whole")
    copies("copied", 4)
    with jobs.faults(links="seed=3&cut_every=40000"):
        launch(manifest("cut", **keys))
    same_run("cut", "whole")
    copies("cut", 4)

    def lose(name, rank, stages):
        """What lies on the disk of that stage: its files, the copies that it keeps, its cache."""
        kept = [r for r in range(stages) if (r + 1 if r + 1 < stages else r - 1) == rank]
        for step in (ROOT / name / "checkpoint").glob("[0-9]*"):
            (step / f"stage-{rank}.safetensors").unlink()
            for other in kept:
                (step / f"mirror-stage-{other}.safetensors").unlink()
        shutil.rmtree(ROOT / name / "cache" / f"stage-{rank}")

    for name, rank, stages in (("first", 0, 4), ("middle", 1, 4), ("beside-last", 2, 4), ("last", 3, 4), ("of-two", 0, 2),
                               ("other-of-two", 1, 2)):
        path = manifest(name, **{**keys, "pipeline.stages": stages})
        interrupt("sigint", path, 13)
        copies(name, stages)
        lose(name, rank, stages)
        done = launch(path, "--resume", "--restarts", "0")
        check(same_run(name, "whole" if stages == 4 else "whole-two") > 0, f"{name}: nothing was fetched")
        logs = (ROOT / name / "logs" / f"stage-{rank}.log").read_text()
        check("has lost its checkpoint" in logs, f"{name}: not said:\n{logs}\n{done.stderr}")

    # Two replicas of two stages: a neighbour is one of the same replica.
    both = {**keys, **REPLICAS, "train.epochs": 8}
    launch(manifest("whole-replicas", **{**both, "checkpoint.mirror": "false"}))
    path = manifest("replica", **both)
    interrupt("sigint", path, 7)
    for step in (ROOT / "replica" / "checkpoint").glob("[0-9]*"):
        for file in ("stage-2.safetensors", "mirror-stage-3.safetensors"):
            (step / file).unlink()
    shutil.rmtree(ROOT / "replica" / "cache" / "stage-2")
    launch(path, "--resume", "--restarts", "0")
    same_run("replica", "whole-replicas")

    path = manifest("killed", **keys)  # copies of a run that is killed while it makes them
    for how, step in (("worker", 8), ("launcher", 16), ("daemon", 26)):
        interrupt(how, path, step, *(["--resume"] if (ROOT / "killed").exists() else []))
    launch(path, "--resume")
    same_run("killed", "whole")
    copies("killed", 4)

    def newest(name):
        return ROOT / name / "checkpoint" / str(complete(name))

    path = manifest("damaged", **keys)  # its own file damaged: the copy takes its place, no older checkpoint is needed
    interrupt("sigint", path, 13)
    good = (newest("damaged") / "stage-2.safetensors").read_bytes()
    flip(newest("damaged") / "stage-2.safetensors", 2000, 100, 7)
    done = launch(path, "--resume")
    same_run("damaged", "whole")
    check("restarts from" not in done.stderr, f"damaged: an older checkpoint was taken:\n{done.stderr}")
    path = manifest("copy-damaged", **keys)  # its file is gone and the copy damaged: the older checkpoint is taken
    interrupt("sigint", path, 13)
    (newest("copy-damaged") / "stage-1.safetensors").unlink()
    flip(newest("copy-damaged") / "mirror-stage-1.safetensors", 2000, 100, 7)
    done = launch(path, "--resume")
    check("restarts from the older checkpoint" in done.stderr, f"copy-damaged: the older one was not taken:\n{done.stderr}")
    same_run("copy-damaged", "whole")
    path = manifest("both", **keys)
    interrupt("sigint", path, 13)
    for file in ("stage-1.safetensors", "mirror-stage-1.safetensors"):
        (newest("both") / file).unlink()
    refused("both gone", path, r"step \d+ of stage 1 is missing or damaged, and stage 2 holds no copy of it", 1, "--resume",
            "--restarts", "0")
    done = launch(path, "--resume")
    check("restarts from the older checkpoint" in done.stderr, f"both: the older one was not taken:\n{done.stderr}")
    same_run("both", "whole")
    refused("alone", manifest("alone", **{**keys, "pipeline.stages": 1}), r"checkpoint\.mirror: one stage has no neighbour", 2)
    no_workers("mirror")


EXTENDED = {"pipeline.stages": 2, "edges.forward.codec": "aqsgd", "edges.forward.bits": 3, "train.decay": "constant",
            "model.dropout": 0.1, "model.blocks": 2, "train.epochs": 1}


def scenario_extend():
    """One epoch and then a second: the run of two epochs, bit for bit, from the caches of the first."""
    launch(manifest("whole", **{**EXTENDED, "train.epochs": 2}))
    path = manifest("further", **EXTENDED)
    launch(path)
    check(losses("further") == losses("whole")[:3], "the first epochs differ")
    (ROOT / "further").rename(ROOT / "moved")
    folder = os.path.relpath(ROOT / "moved")
    done = aqpipe("resume", folder, "--no-progress", "--epochs", "2", "--set", "train.evaluate_every=2 steps")
    check(done.returncode == 0, f"it does not go further: {done.returncode} {done.stderr}")
    check("it ends at step 6, not 3" in done.stderr, f"nothing is said of it: {done.stderr}")
    check(losses("moved") == losses("whole"), f"{losses('moved')} are not the losses of two epochs: {losses('whole')}")
    check(weights("moved") == weights("whole"), "the weights differ")
    check([line["step"] for line in metrics("moved", "eval")] == [3, 4, 6], "held-out losses are not as asked")
    check(sum(x or 0 for line in metrics("moved")[3:] for x in line["keyframes"]) == 0, "the caches were lost")
    done = aqpipe("resume", folder, "--no-progress", "--steps", 5)
    check(done.returncode == 2 and "has made 6 steps already" in done.stderr, f"{done.returncode} {done.stderr}")
    done = aqpipe("resume", folder, "--no-progress")
    check(done.returncode == 0 and "is finished: step 6 of 6" in done.stderr, f"{done.returncode} {done.stderr}")
    text = (ROOT / "train.txt").read_text()
    (ROOT / "train.txt").write_text(text[::-1])
    done = aqpipe("resume", folder, "--no-progress", "--epochs", "3")
    check(done.returncode == 2 and "data.train: 22 samples" in done.stderr, f"another text: {done.returncode} {done.stderr}")
    (ROOT / "train.txt").write_text(text)
    no_workers("extend")


COURSE = {"pipeline.stages": 2, "edges.forward.codec": "aqsgd", "edges.forward.bits": 3, "model.blocks": 2, "train.epochs": 2, "train.lr": 0.008,
          "train.lr_min": 0.001, "train.warmup_steps": 2}


def rates(name):
    return [line["lr"] for line in metrics(name)]


def course(decay, total, step):
    """Of one schedule by itself, in double: peak, warm-up and least are COURSE's, `every` is 2 steps, `rate` 0.5, `power` 2."""
    peak, least, warmup = 0.008, 0.001, 2
    if step <= warmup:
        return peak * step / warmup
    done = step - warmup - 1
    part = done / (total - warmup)
    left = {"constant": 1, "linear": 1 - part, "cosine": 0.5 + 0.5 * math.cos(math.pi * part), "polynomial": (1 - part) ** 2,
            "step": 0.5 ** (done // 2), "exponential": 0.5 ** (done / 2)}[decay]
    return least + (peak - least) * left


def expect_rates(name, wanted, what):
    got = rates(name)
    check(len(got) == len(wanted) and all(abs(a - b) < 1e-9 for a, b in zip(got, wanted)), f"{what}: rates {got}, wanted {wanted}")


def goes_on(name, *arguments, want=0):
    done = aqpipe("resume", ROOT / name, "--no-progress", *arguments)
    check(done.returncode == want, f"{name}: resume {arguments} ended with {done.returncode}: {done.stderr}")
    return done.stderr


def scenario_extend_schedule():
    """resume --epochs with each --schedule: the learning rate of every step, what is said, and that later resumes keep the choice."""
    old, new = 6, 12  # steps of 2 and of 4 epochs
    for decay in ("linear", "cosine", "polynomial", "constant", "step", "exponential"):
        about = {**COURSE, "train.decay": decay, **({"train.decay_every": "2 steps", "train.decay_rate": 0.5} if decay in ("step", "exponential") else {}),
                 **({"train.decay_power": 2} if decay == "polynomial" else {})}
        launch(manifest(decay, **about))
        first = [course(decay, old, step) for step in range(1, old + 1)]
        expect_rates(decay, first, decay)
        ends = decay in ("linear", "cosine", "polynomial")
        for choice in ("extend", "continue", "restart") if ends else ("continue", "restart"):
            name = f"{decay}-{choice}"
            shutil.copytree(ROOT / decay, ROOT / name)
            said = goes_on(name, "--epochs", 4, "--schedule", choice)
            more = {"extend": [course(decay, new, step) for step in range(old + 1, new + 1)],
                    "continue": [course(decay, old, old)] * old if ends else [course(decay, new, step) for step in range(old + 1, new + 1)],
                    "restart": [course(decay, new - old, step) for step in range(1, new - old + 1)]}[choice]
            expect_rates(name, first + more, name)
            for figure in (first[-1], more[0]):
                check(f"{figure:g}" in said, f"{name}: {figure:g} is not said: {said}")
            check(f"train.schedule: {choice}: " in said and "it ends at step 12, not 6" in said, f"{name}: {said}")
    # Unsaid: as it was, and the other choices are named where the rate jumps.
    shutil.copytree(ROOT / "linear", ROOT / "unsaid")
    said = goes_on("unsaid", "--epochs", 4)
    expect_rates("unsaid", rates("linear-extend"), "unsaid")
    check(losses("unsaid") == losses("linear-extend"), "extend is not what is done when nothing is said")
    check("--schedule continue or restart" in said, said)
    shutil.copytree(ROOT / "constant", ROOT / "constant-unsaid")
    check("train.schedule" not in goes_on("constant-unsaid", "--epochs", 4), "a rate that does not change is told")

    # A stop between the old end and the new one: the same run goes on.
    shutil.copytree(ROOT / "linear", ROOT / "stopped")
    goes_on("stopped", "--epochs", 4, "--steps", 9, "--schedule", "restart")
    check("train.schedule" not in goes_on("stopped"), "a finished run has another schedule")
    said = goes_on("stopped", "--epochs", 4, "--steps", 11)  # the last choice is kept: it begins once more
    expect_rates("stopped", [course("linear", 6, s) for s in range(1, 7)] + [course("linear", 3, s) for s in range(1, 4)] +
                 [course("linear", 2, s) for s in (1, 2)], "restarted twice")
    check("train.schedule: restart: " in said, said)
    # Killed on the way: a resume that says nothing keeps what was chosen.
    shutil.copytree(ROOT / "linear", ROOT / "shot")
    hold = jobs.Hold(9)
    process = subprocess.Popen([jobs.BIN / "aqpipe", "resume", ROOT / "shot", "--epochs", "4", "--schedule", "continue", "--no-progress",
                                "--set", "checkpoint.every=1 step"], stderr=subprocess.DEVNULL, env={**os.environ, **hold.environment()})
    hold.reached(process)
    process.kill()
    process.wait()
    hold.release()
    no_workers("shot")
    goes_on("shot")
    expect_rates("shot", first_linear(6) + [course("linear", 6, 6)] * 6, "killed on the way")
    # The choice is kept when it goes further, and another takes its place.
    path = manifest("further-on", **{**COURSE, "checkpoint.every": "1 step"})
    launch(path)
    goes_on("further-on", "--epochs", 4, "--steps", 8, "--schedule", "continue")
    goes_on("further-on", "--epochs", 4, "--steps", 10)
    said = goes_on("further-on", "--epochs", 4, "--schedule", "extend")
    expect_rates("further-on", first_linear(6) + [course("linear", 6, 6)] * 4 + [course("linear", 12, s) for s in (11, 12)], "held, then stretched")
    for arguments, text in ((("--schedule", "restart"), "--schedule needs --epochs or --steps"),
                            (("--epochs", 5, "--schedule", "begin"), "must be extend, continue or restart")):
        check(text in goes_on("further-on", *arguments, want=2), f"{arguments} are taken")
    done = aqpipe("launch", path, "--resume", "--no-progress", "--set", "train.epochs=5", "--set", "train.schedule=restart")
    check(done.returncode == 2 and "train.schedule" in done.stderr and "restart 24, continue 48" in done.stderr, done.stderr)
    no_workers("extend_schedule")


def first_linear(steps):
    return [course("linear", steps, step) for step in range(1, steps + 1)]


def scenario_late():
    """A launch that failed before its first step is launched again, changed; one that trained is not, and says why."""
    first = jobs.lasting_port(4)
    taken = socket.create_server(("127.0.0.1", first + 1))
    path = manifest("late", **{**EXTENDED, "model.channels": 16, "train.steps_max": 1, "link.port_first": first})
    done = aqpipe("launch", path, "--no-progress", "--restarts", "0")
    check(done.returncode == 1, f"it was to fail: {done.returncode} {done.stderr}")
    path = manifest("late", **{**EXTENDED, "model.channels": 16, "train.steps_max": 1})
    launch(path, "--set", "train.seed=8", "--set", "model.blocks=3")
    done = aqpipe("launch", path, "--no-progress", "--resume", "--set", "train.lr=0.5", "--set", "model.blocks=3")
    check(done.returncode == 2 and "train.lr: 0.002 there, 0.5 here; train.seed: 8 there, 7 here. To continue"
          in done.stderr, f"not told by its keys: {done.returncode} {done.stderr}")
    launch(path, "--fresh")
    for command, at, words in (("launch", ROOT / "late", "`aqpipe resume "), ("resume", path, "`aqpipe launch "),
                               ("resume", ROOT, "is not a run folder: there is no ")):
        done = aqpipe(command, at)
        check(done.returncode == 2 and words in done.stderr, f"{command} {at}: {done.returncode} {done.stderr}")
    no_workers("late")


def scenario_wrong_position():
    """What a run is to go on from is of another step, seed or job: refused in a line that names it, and left as it is."""
    def stopped(name, step=13):
        path = manifest(name, **RESTARTED)
        interrupt("sigint", path, step)
        mark = json.loads((ROOT / name / "checkpoint" / "complete").read_text())
        return path, ROOT / name / "checkpoint", mark["step"], mark["older"]

    launch(manifest("whole", **RESTARTED))
    launch(manifest("seed", **{**RESTARTED, "train.seed": 8, "train.steps_max": 13}))
    launch(manifest("model", **{**RESTARTED, "model.channels": 48, "train.steps_max": 13}))

    # A stage's file of another step, of another seed, of another model.
    path, folder, step, older = stopped("file")
    good = (folder / str(step) / "stage-1.safetensors").read_bytes()
    for what, foreign, pattern in (
            ("step", folder / str(older), rf"step is {older}, this run has {step}"),
            ("seed", ROOT / "seed" / "checkpoint" / "13", r"plan_hash is \w{16}, this run has \w{16}"),
            ("model", ROOT / "model" / "checkpoint" / "13", r"plan_hash is \w{16}, this run has \w{16}"),
            ("stage", folder / str(step), r"stage is 2, this run has 1")):
        source = foreign / ("stage-2.safetensors" if what == "stage" else "stage-1.safetensors")
        target = folder / str(step) / "stage-1.safetensors"
        target.write_bytes(source.read_bytes())
        refused(what, path, r"stage 1 failed: .*stage-1\.safetensors: " + pattern, 1, "--resume")
        check(target.read_bytes() == source.read_bytes(), f"{what}: the foreign file was touched")
    target.write_bytes(good)
    launch(path, "--resume")
    same_run("file", "whole")

    # The whole position is of another plan, or of no step that the caches hold.
    path, folder, step, older = stopped("position", 16)
    complete_file = folder / "complete"
    noted = complete_file.read_text()
    mark = json.loads(noted)
    complete_file.write_text(json.dumps({**mark, "plan_hash": "0123456789abcdef", "resume_hash": "fedcba9876543210"}) + "\n")
    refused("plan", path, r"the checkpoint of .* belongs to plan 0123456789abcdef, the run to \w{16}", 2, "--resume")
    backup = ROOT / "backup"
    shutil.copytree(ROOT / "position", backup)
    complete_file.write_text(json.dumps({**mark, "step": 3, "older": 0}) + "\n")
    shutil.copytree(folder / str(older), folder / "3", dirs_exist_ok=True)
    before = {cache.name: (cache / "index.mdb").read_bytes() for cache in (ROOT / "position" / "cache").glob("stage-*")}
    refused("behind", path, rf"the checkpoint is of step 3, but no cache here holds its mark .*{older} and {step}", 2, "--resume")
    after = {cache.name: (cache / "index.mdb").read_bytes() for cache in (ROOT / "position" / "cache").glob("stage-*")}
    check(before == after, "caches of another position were touched")
    # One stage's cache that is ahead of the others is filled from its neighbours: nothing is lost.
    complete_file.write_text(noted)
    other = manifest("ahead", **{**RESTARTED, "job.name": "position"})
    interrupt("sigint", other, 30)
    shutil.rmtree(ROOT / "position" / "cache" / "stage-1")
    shutil.copytree(ROOT / "ahead" / "cache" / "stage-1", ROOT / "position" / "cache" / "stage-1")
    launch(path, "--resume")
    check(same_run("position", "whole") > 0, "nothing was fetched for a cache of another step")

    # The manifest has another seed than the run in the folder.
    path = manifest("reseeded", **RESTARTED)
    interrupt("sigint", path, 7)
    refused("seed", path, r"holds the run 'reseeded' of another plan", 2, "--resume", "--set", "train.seed=8")
    no_workers("wrong_position")
