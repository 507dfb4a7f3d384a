#!/usr/bin/env python3
"""Folders where others have been: planted files, links and FIFOs, homes as checkpoint.path, other jobs, disks that are gone.

A file of somebody else that is changed or gone counts as lost, a launch that does not end as hung.
"""
import json
import os
import pathlib
import shutil
import stat
import subprocess
import time

import kit
import jobs

SMALL = {"pipeline.stages": 2, "model.blocks": 2, "model.channels": 16, "train.epochs": 2, "data.train_samples_max": 12,
         "data.heldout_samples_max": 2, "train.batch": 4, "checkpoint.every": 1, "edges.forward.codec": "aqsgd",
         "edges.forward.bits": 4, "output.trace": "true"}
STEPS = 6
PATIENCE = 300


def manifest(name, **changes):
    return jobs.manifest(name, **{**SMALL, **changes})


def launch(path, *arguments, **options):
    """(exit code, its output); None: it does not end."""
    program = subprocess.Popen([str(jobs.BIN / "aqpipe"), "launch", str(path), "--no-progress", *map(str, arguments)],
                               stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                               start_new_session=True, **options)
    try:
        said, _ = program.communicate(timeout=PATIENCE)
    except subprocess.TimeoutExpired:
        os.killpg(program.pid, 9)
        program.communicate()
        return None, ""
    return program.returncode, said.decode(errors="replace")


def tree(*folders):
    """All that is below, links and times of change included."""
    found = {}
    for folder in (folder for folder in folders if os.path.lexists(folder)):
        for path in [folder, *sorted(folder.rglob("*"))]:
            about = path.lstat()
            bytes_of = path.read_bytes() if stat.S_ISREG(about.st_mode) else b""
            link = os.readlink(path) if stat.S_ISLNK(about.st_mode) else ""
            when = about.st_mtime_ns if stat.S_ISREG(about.st_mode) else 0
            found[str(path)] = (about.st_mode, bytes_of, link, when)
    return found


def await_step(folder, step):
    """The checkpoint of that step, or of a later one, is complete. Folders of steps come and go; what `complete` says only grows."""
    deadline = time.time() + PATIENCE
    while time.time() < deadline:
        try:
            if json.loads((folder / "complete").read_text())["step"] >= step:
                return
        except (OSError, ValueError):
            pass
        time.sleep(0.01)
    raise TimeoutError(f"no checkpoint of step {step} in {folder}")


def judge(run, what, before, folders, code, said, want=(0, 1, 2)):
    """Nothing of theirs is changed; what was refused says so in a line."""
    after = tree(*folders)
    gone = [path for path in before if after.get(path) != before[path]]
    if code is None:
        return run.hung(f"{what}: the launch does not end")
    if gone:
        return run.lost(f"{what}: {gone[0]} (exit {code}): {said[-300:]}")
    if code < 0 or code not in want or "this is a bug" in said:
        return run.wrong(f"{what}: exit {code}: {said[-400:]}")
    if code == 0:
        return run.survived()
    return run.refused() if said.strip() else run.wrong(f"{what}: exit {code} without a word")


def home(name):
    """A folder as somebody's home: files, folders, names that look like ours, an empty one."""
    folder = jobs.ROOT / name
    for inner in ("2023", "2023/photos", "20231105", "mail", "empty", "7", "logs"):
        (folder / inner).mkdir(parents=True, exist_ok=True)
    for file in ("thesis.tex", "2023/photos/1.jpg", "20231105/notes", "mail/inbox", "7/stage-0.safetensors", "logs/mine.log",
                 "7/mirror-stage-0.safetensors", "stage-0"):
        (folder / file).write_text("theirs: " + file)
    return folder


def narrow_weights():
    """A model of another width: the stages fail before the first step."""
    path = jobs.ROOT / "narrow.safetensors"
    if not path.exists():
        code, said = launch(manifest("narrow", **{"model.channels": 8, "train.epochs": 1, "output.trace": "false"}))
        assert code == 0, said
        shutil.copy(jobs.ROOT / "narrow" / "model.safetensors", path)
    return path


@kit.attack("home", 3, 9)
def attack_home(run, rng, count):
    """checkpoint.path, cache.path or the run folder is somebody's home; a first launch failed, the next throws away."""
    cases = [(key, flag) for key in ("checkpoint.path", "cache.path", "output.path") for flag in ((), ("--fresh",), ("--resume",))]
    for number, (key, flag) in enumerate(([cases[0], cases[1], cases[6]] if count < 9 else cases)[:count]):
        folder = home(f"home{number}")
        before = tree(folder)
        path = manifest(f"homely{number}", **{"model.weights": str(narrow_weights()), key: str(folder)})
        what = f"{key} is a home, {' '.join(flag) or 'no flag'}"
        for again in ((), flag):
            code, said = launch(path, *again)
            if tree(folder) != before or code is None:
                break
        judge(run, what, before, [folder], code, said, want=(1, 2))


@kit.attack("begun", 2, 3)
def attack_begun(run, rng, count):
    """Somebody's files come into a folder that was ours: a launch without flags, --fresh and --resume leave them."""
    for number, flag in enumerate(((), ("--fresh",), ("--resume",))[:count]):
        folder = jobs.ROOT / f"begun-checkpoints{number}"
        path = manifest(f"begun{number}", **{"model.weights": str(narrow_weights()), "checkpoint.path": str(folder)})
        code, said = launch(path)
        home(folder.name)
        before = {name: what for name, what in tree(folder).items() if "aqpipe-folder" not in name and name != str(folder)
                  and not name.endswith("/lock")}
        code, said = launch(path, *flag)
        judge(run, f"files beside ours, {flag}", before, [folder], code, said, want=(1, 2))


@kit.attack("digits", 1, 4)
def attack_digits(run, rng, count):
    """An ordinary run keeps one checkpoint; all-digit names beside its own are not its own."""
    for number in range(count):
        folder = jobs.ROOT / f"digits-checkpoints{number}"
        path = manifest(f"digits{number}", **{"checkpoint.path": str(folder), "checkpoint.keep": 1 + number % 3,
                                              "train.epochs": 4})
        code, said = launch(path, "--set", "train.epochs=4", env=dict(os.environ))
        if code != 0:
            run.wrong(f"the first launch: {said[-300:]}")
            continue
        shutil.rmtree(jobs.ROOT / f"digits{number}")  # the same again, among these
        shutil.rmtree(folder)
        folder.mkdir()
        # As the first step ends they come.
        program = subprocess.Popen([str(jobs.BIN / "aqpipe"), "launch", str(path), "--no-progress"], stdin=subprocess.DEVNULL,
                                   stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                   env={**os.environ, **jobs.faulty(checkpoint=5)})
        await_step(folder, 1)
        mine = folder / "9"  # the name of a checkpoint to come, and names of none
        mine.mkdir(exist_ok=True)
        (mine / "notes").write_text("theirs")
        for name in ("0", "1999", "20231105", str(rng.randrange(10**9, 10**12))):
            (folder / name).mkdir(exist_ok=True)
            (folder / name / "photo").write_text("theirs")
        theirs = [path_of for path_of in folder.rglob("*") if path_of.name in ("notes", "photo")]
        before = tree(*theirs)
        said = program.communicate(timeout=PATIENCE)[0].decode(errors="replace")
        after = {str(at): None for at in theirs if at.exists()}
        lost = [name for name in before if name not in after]
        kept = sum((entry / "stage-0.safetensors").exists() for entry in folder.iterdir())
        if lost:
            run.lost(f"{lost[0]} is gone")
        elif program.returncode != 0 or kept > 1 + number % 3:
            run.wrong(f"exit {program.returncode}, {kept} checkpoints are kept: {said[-300:]}")
        else:
            run.survived()


@kit.attack("shared", 1, 3)
def attack_shared(run, rng, count):
    """Two runs, of another job and of the very same one, name one checkpoint.path or cache.path."""
    for number, key in enumerate(("checkpoint.path", "cache.path", "output.path")[:count]):
        folder = jobs.ROOT / f"shared{number}"
        paths = [manifest(f"one{number}-{who}", **{key: str(folder), "train.seed": seed, "job.name": job})
                 for who, seed, job in (("first", 7, "same"), ("other", 8, "other"), ("twin", 7, "same"))]
        code, said = launch(paths[0], "--set", "train.epochs=1")
        code, said = launch(paths[0])
        if key == "output.path":
            code, said = (0, "") if code == 2 else (code, said)
            paths.pop()
        elif code != 2:  # another count of epochs is another plan
            run.wrong(f"another plan: {code} {said[-200:]}")
            continue
        before = tree(folder)
        for path in paths[1:]:
            code, said = launch(path)
            judge(run, f"{key} of another run", before, [folder], code, said, want=(1, 2))
            if code and "another" not in said:
                run.wrong(f"{key} of another run is refused without saying so: {said[-300:]}")


@kit.attack("race", 1, 8)
def attack_race(run, rng, count):
    """Two launches at the same moment want one folder: at most one trains, and what it leaves is its own."""
    for number in range(count):
        key = ("checkpoint.path", "output.path", "cache.path")[number % 3]
        folder = jobs.ROOT / f"raced{number}"
        names = [f"race{number}-{who}" for who in range(2)]
        paths = [manifest(name, **{key: str(folder), "job.name": "race", "train.seed": 7}) for name in names]
        both = [subprocess.Popen([str(jobs.BIN / "aqpipe"), "launch", str(path), "--no-progress"], stdin=subprocess.DEVNULL,
                                 stdout=subprocess.PIPE, stderr=subprocess.STDOUT) for path in paths]
        try:
            said = [one.communicate(timeout=PATIENCE)[0].decode(errors="replace") for one in both]
        except subprocess.TimeoutExpired:
            for one in both:
                one.kill()
            run.hung(f"two launches with one {key}")
            continue
        codes = [one.returncode for one in both]
        done = [name for name, code in zip(names, codes) if code == 0]
        steps = [len(jobs.losses(folder.name if key == "output.path" else name)) for name in done]
        # One that ends before the other begins leaves a folder that is not the other's, and a run that is done.
        if len(done) > 1 or any(count != STEPS for count in steps) or not set(codes) <= {0, 1, 2}:
            run.wrong(f"two launches with one {key}: {codes}, steps {steps}: {said[0][-200:]} {said[1][-200:]}")
        else:
            run.refused()


LINKED = ["lock", "run.json", "run.json.new", "manifest.yaml", "manifest.yaml.new", "metrics.jsonl", "metrics.jsonl.new",
          "report.json", "report.json.new", "trace.json", "model.safetensors", "model.safetensors.partial", "logs/stage-0.log",
          "logs/stage-1.log.1", "checkpoint/complete", "checkpoint/complete.new", "checkpoint/4/stage-0.safetensors",
          "checkpoint/4/stage-0.safetensors.partial", "checkpoint/3/stage-1.safetensors", "checkpoint/lock",
          "cache/stage-0/slab", "cache/stage-1/index.mdb", "cache/stage-0/index.mdb.new", "cache/stage-1/lock",
          "aqpipe-folder.json", "checkpoint/aqpipe-folder.json", "metrics.jsonl.index", "metrics.jsonl.tail",
          "metrics.jsonl.tail.new", "hashes.json", "hashes.json.new", "config.json", "config.json.new"]
FOLDERS = ["logs", "checkpoint", "checkpoint/4", "checkpoint/3", "cache", "cache/stage-0"]
HEARD = ["metrics.jsonl", "logs/stage-0.log", "report.json", "trace.json", "model.safetensors", "checkpoint/4", "lock",
         "cache/stage-0/slab"]


def half_a_run():
    """A run that stands after step 3 of 6, once, to be copied."""
    folder = jobs.ROOT / "half"
    if not folder.exists():
        env = {**os.environ, **jobs.faulty(checkpoint=20)}
        path = manifest("half")
        program = subprocess.Popen([str(jobs.BIN / "aqpipe"), "launch", str(path), "--no-progress"], stdin=subprocess.DEVNULL,
                                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=env)
        await_step(folder / "checkpoint", 2)
        program.kill()
        program.wait()
        jobs.no_workers("half")
    return folder


def copy_of(name):
    """The half run under another name, and its manifest."""
    shutil.copytree(half_a_run(), jobs.ROOT / name)
    return manifest(name, **{"job.name": "half"}), jobs.ROOT / name


def plant(path, kind, victims):
    """A link to a file of theirs, to a folder of theirs, to nothing yet, a hard link, or a FIFO, in place of ours."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.is_symlink() or path.is_file():
        path.unlink()
    elif path.is_dir():
        shutil.rmtree(path)
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "hard link":
        os.link(victims / "file", path)
    elif kind == "folder":
        path.symlink_to(victims / "folder")
    else:
        path.symlink_to(victims / ("file" if kind == "link" else "none"))


@kit.attack("planted", 10, 300)
def attack_planted(run, rng, count):
    """Each name that a run writes is a link, a hard link or a FIFO when it is resumed, and when it begins."""
    cases = [(name, kind) for name in LINKED for kind in ("link", "dangling link", "hard link", "fifo")]
    cases += [(name, "folder") for name in FOLDERS]
    first = [(name, "fifo" if number % 2 else "link") for number, name in enumerate(HEARD)]
    first += [(name, "folder") for name in FOLDERS] + [("run.json", "link"), ("metrics.jsonl", "hard link")]
    for number, (name, kind) in enumerate((cases if count >= len(cases) else first)[:count]):
        path, folder = copy_of(f"planted{number}")
        victims = jobs.ROOT / f"victims{number}"
        (victims / "folder").mkdir(parents=True)
        (victims / "file").write_text("theirs\n")
        (victims / "folder" / "stage-0.log").write_text("theirs\n")
        (victims / "folder" / "stage-0.safetensors").write_text("theirs\n")
        plant(folder / name, kind, victims)
        before = tree(victims)
        code, said = launch(path, "--resume")
        judge(run, f"{name} is a {kind}", before, [victims], code, said)
        shutil.rmtree(folder)


@kit.attack("copied", 1, 2)
def attack_copied(run, rng, count):
    """A copy of a run that is made of hard links stays what it is when the run goes on, or its copy does."""
    for number in range(count):
        path, folder = copy_of(f"copied{number}")
        copy = jobs.ROOT / f"copy{number}"
        shutil.copytree(folder, copy, copy_function=os.link)
        before = {name: what[:2] for name, what in tree(copy).items()}
        code, said = launch(path, "--resume", *(["--run", copy] if number else []))
        other = folder if number else copy
        after = {name.replace(str(other), str(copy)): what[:2] for name, what in tree(other).items()}
        if code is None:
            run.hung("a run of hard links")
        elif any(after.get(name) != what for name, what in before.items()):
            run.lost(f"{next(name for name, what in before.items() if after.get(name) != what)} of the copy: {said[-300:]}")
        elif code == 0:
            run.survived()
        else:
            run.refused() if "hard links" in said else run.wrong(f"exit {code}: {said[-300:]}")


@kit.attack("old", 1, 4)
def attack_old(run, rng, count):
    """A run from before there were markers goes on; one that has lost a file that tells of its checkpoints does not begin anew."""
    cases = [["aqpipe-folder.json", "checkpoint/aqpipe-folder.json", "cache/aqpipe-folder.json"], ["run.json"], ["checkpoint/complete"], ["aqpipe-folder.json"]]
    for number, names in enumerate(cases[:count]):
        path, folder = copy_of(f"old{number}")
        for name in names:
            (folder / name).unlink()
        if number == 3:  # of 0.1.0, and its checkpoints are not there
            (folder / "checkpoint").rename(jobs.ROOT / "old-away")
        metrics = (folder / "metrics.jsonl").read_bytes()
        code, said = launch(path, "--resume")
        if number == 0 and (code != 0 or len(jobs.losses(f"old{number}")) != STEPS or "starts at step" in said):
            run.wrong(f"a run of 0.1.0: exit {code}: {said[-300:]}")
        elif number and (code != 2 or (folder / "metrics.jsonl").read_bytes() != metrics):
            run.wrong(f"without {names[0]}: exit {code}: {said[-300:]}")
        else:
            run.refused() if number else run.survived()


@kit.attack("unmounted", 1, 5)
def attack_unmounted(run, rng, count):
    """The disk of the checkpoints, or all disks, are not there when a run is resumed: nothing is begun anew or made."""
    for number in range(count):
        deep = number % 2 == 1  # checkpoint.path is below the mount point
        disk = jobs.ROOT / f"disk{number}"
        folder = disk / "checkpoints" if deep else disk
        disk.mkdir()
        path = manifest(f"mounted{number}", **{"checkpoint.path": str(folder)})
        program = subprocess.Popen([str(jobs.BIN / "aqpipe"), "launch", str(path), "--no-progress"], stdin=subprocess.DEVNULL,
                                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                                   env={**os.environ, **jobs.faulty(checkpoint=20)})
        await_step(folder, 2)
        program.kill()
        program.wait()
        jobs.no_workers("unmounted")
        away, mine = jobs.ROOT / f"away{number}", jobs.ROOT / f"mounted{number}"
        disk.rename(away)
        if number < 4:
            disk.mkdir()  # an empty mount point; else it is gone, too
        metrics, caches = (mine / "metrics.jsonl").read_bytes(), tree(mine / "cache")
        for flag in (("--resume",), ()):
            code, said = launch(path, *flag)
            what = f"disk {'above' if deep else 'is'} checkpoint.path, {flag}"
            if (mine / "metrics.jsonl").read_bytes() != metrics or tree(mine / "cache") != caches:
                run.lost(f"{what}: metrics or caches are cut: {said[-300:]}")
            elif code not in (1, 2):
                run.wrong(f"{what}: exit {code}: {said[-300:]}")
            elif disk.exists() and list(disk.iterdir()) or (number >= 4 and disk.exists()):
                run.wrong(f"{what}: something was made at {disk}")
            elif flag and str(folder) not in said:
                run.wrong(f"{what}: the folder is not named: {said[-300:]}")
            else:
                run.refused()
        shutil.rmtree(disk, ignore_errors=True)
        away.rename(disk)
        code, said = launch(path, "--resume")
        if code != 0 or len(jobs.losses(f"mounted{number}")) != STEPS:
            run.wrong(f"mounted again: exit {code}: {said[-300:]}")
        else:
            run.survived()


@kit.attack("vanishes", 1, 2)
def attack_vanishes(run, rng, count):
    """The checkpoints' disk goes while a run trains: the run ends with a line, and its mount point gets nothing."""
    for number in range(count):
        disk = jobs.ROOT / f"vanishing{number}"
        path = manifest(f"vanishes{number}", **{"checkpoint.path": str(disk), "train.epochs": 200})
        hold = jobs.Hold(4)  # so that no checkpoint is being written meanwhile: a disk in use cannot be unmounted
        program = subprocess.Popen([str(jobs.BIN / "aqpipe"), "launch", str(path), "--no-progress"], stdin=subprocess.DEVNULL,
                                   stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env={**os.environ, **hold.environment()})
        hold.reached(program)
        await_step(disk, 3)
        disk.rename(jobs.ROOT / f"vanished{number}")
        if number == 0:
            disk.mkdir()
        hold.release()
        try:
            said = program.communicate(timeout=PATIENCE)[0].decode(errors="replace")
        except subprocess.TimeoutExpired:
            program.kill()
            run.hung("the checkpoints' disk goes")
            continue
        if program.returncode != 1 or str(disk) not in said:
            run.wrong(f"the checkpoints' disk goes: exit {program.returncode}: {said[-300:]}")
        elif disk.exists() and list(disk.rglob("*.safetensors")):
            run.wrong(f"the checkpoints' disk goes, and its mount point gets {list(disk.rglob('*'))}")
        else:
            run.survived()


@kit.attack("names", 2, 5)
def attack_names(run, rng, count):
    """Names of folders that are no UTF-8: a clear line, or they work."""
    path = manifest("named")
    odd = os.fsencode(jobs.ROOT) + b"/odd-\xff\xfe"
    os.mkdir(odd)
    cases = [("--run", odd + b"/run", None), ("cwd", b"", odd), ("checkpoint.path", odd + b"/c", None),
             ("cache.path", odd + b"/k", None), ("manifest", b"", None)]
    for what, value, cwd in cases[:count]:
        arguments = ["--no-progress"]
        at = os.fsencode(path)
        if what == "--run":
            arguments += ["--run", value]
        elif what == "cwd":
            arguments += ["--run", "here"]
        elif what == "manifest":
            at = odd + b"/job.yaml"
            shutil.copy(os.fsencode(path), at)
        else:
            arguments += ["--set", os.fsencode(what) + b"=" + value]
        try:
            done = subprocess.run([str(jobs.BIN / "aqpipe"), "launch", at, *arguments], stdin=subprocess.DEVNULL,
                                  capture_output=True, timeout=PATIENCE, cwd=cwd)
        except subprocess.TimeoutExpired:
            run.hung(f"{what} is not UTF-8")
            continue
        said = done.stderr.decode(errors="replace").strip()
        if done.returncode == 0:
            run.survived()
        elif done.returncode in (1, 2) and "UTF-8" in said and len(said.splitlines()) == 1:
            run.refused()
        else:
            run.wrong(f"{what} is not UTF-8: exit {done.returncode}: {said[-300:]}")


@kit.attack("remote", 1, 3)
def attack_remote(run, rng, count):
    """All stages are on other machines: what is no longer kept is forgotten there, and nothing else."""
    for number in range(count):
        token = jobs.ROOT / f"token{number}"
        token.write_text("a secret of this test, long enough\n")
        token.chmod(0o600)
        port = jobs.ROOT / f"port{number}"
        daemon = subprocess.Popen([str(jobs.BIN / "aqpiped"), "--listen", "tcp://127.0.0.1:0", "--token-file", str(token),
                                   "--port-file", str(port)], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                  stderr=subprocess.DEVNULL)
        try:
            jobs.await_file(port)
            address = f"tcp://127.0.0.1:{port.read_text().strip()}"
            stages = f"[{{layers: 0-1, host: \"{address}\"}}, {{layers: 2-3, host: \"{address}\"}}]"
            there, keep = jobs.ROOT / f"there{number}", 1 + number
            path = manifest(f"remote{number}", **{"pipeline.stages": stages, "checkpoint.path": str(there), "train.epochs": 5,
                                                  "checkpoint.keep": keep})
            again = []
            if number == 1:  # the launcher's list outlives it
                program = subprocess.Popen([str(jobs.BIN / "aqpipe"), "launch", str(path), "--no-progress", "--token-file",
                                            str(token)], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                           stderr=subprocess.DEVNULL)
                await_step(there, 7)
                program.kill()
                program.wait()
                again = ["--resume"]
            code, said = launch(path, "--token-file", token, *again)
            while "it runs the job" in said:  # the daemon still reaps what the killed one had there
                code, said = launch(path, "--token-file", token, *again)
            left = [str(at) for at in there.glob("*/stage-0.safetensors")]
            if code != 0:
                run.wrong(f"exit {code}: {said[-300:]}")
            elif len(left) > keep:
                run.wrong(f"keep {keep} leaves {len(left)}: {sorted(left)}")
            else:
                run.survived()
        finally:
            daemon.terminate()
            daemon.wait()


if __name__ == "__main__":
    kit.main("folders")
