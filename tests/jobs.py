"""Small whole jobs for tests: manifests, launches, what they leave, and the processes below them. See e2e and chaos."""
import contextlib
import ctypes
import fcntl
import json
import mmap
import os
import pathlib
import random
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
import time

PATIENCE = 300  # seconds: what is awaited comes soon or never, but the machine may be busy
BIN = pathlib.Path("build/test/bin")
ROOT = pathlib.Path("/nonexistent")
AGAIN = ""
PORTS = []  # the names of lasting_port()


MEMORY = pathlib.Path("/dev/shm")
MEMORY_FREE_MIN = 4 << 30  # of six tests at once none has had 300 MiB
PR_SET_THP_DISABLE = 41


def lasting_port(count=1):
    """The first of `count` ports in a row that nobody has: below those that the system gives to connections, which others have in parallel. For a
    server that starts again at its port, and for ports that a test counts up from the first. Until this process ends no other test gets them, not
    even while nobody listens there: each is held by an abstract name, of which a network namespace has one, as of a port."""
    low = int(pathlib.Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    while True:
        port, names = random.SystemRandom().randrange(max(1024, low - 12000), low - count), []
        try:
            for each in range(port, port + count):
                names.append(socket.socket(socket.AF_UNIX))
                names[-1].bind(f"\0aqpipe-test-port-{each}")
                with socket.socket() as probe:
                    probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                    probe.bind(("127.0.0.1", each))
            PORTS.extend(names)
            return port
        except OSError:
            for name in names:
                name.close()


def hold_folder(path):
    """Until this process ends the folder is in use, for whoever looks from another PID namespace (the lab), too."""
    made = path / "in-use.new"  # sweep() of another test must not find it before it is locked
    fcntl.flock(os.open(made, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600), fcntl.LOCK_EX)
    made.rename(path / "in-use")


def sweep(tag):
    """Remove the folders in memory of tests that were killed: nobody holds them."""
    for path in MEMORY.glob(f"aqpipe-{tag}-*-*"):
        try:
            if path.stat().st_uid != os.getuid() or (path / "kept").exists():
                continue
            fd = os.open(path / "in-use", os.O_RDWR | os.O_CLOEXEC)  # one that begins has none yet
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(path, ignore_errors=True)
            finally:
                os.close(fd)
        except OSError:
            pass


def folder_of_tests(disk):
    """Where tests write: TMPDIR where it is set; else in memory, where syncs cost nothing, if there is room; else on the disk.

    `disk`: the test is about files of a real disk (syncs, O_DIRECT)."""
    if disk or os.environ.get("TMPDIR") or not os.access(MEMORY, os.W_OK):
        return None
    about = os.statvfs(MEMORY)
    return MEMORY if about.f_bavail * about.f_frsize >= MEMORY_FREE_MIN else None


def begin(folder, tag, again, disk=False):
    """Programs of `folder`, a new folder for everything that is written; `again` is how to run the test again."""
    global BIN, ROOT, AGAIN
    BIN, AGAIN = pathlib.Path(folder).resolve(), again
    ctypes.CDLL(None).prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0)  # small jobs without huge pages, which the kernel clears: kit/case_parts.c
    where = folder_of_tests(disk)
    if where:
        sweep(tag)
    ROOT = pathlib.Path(tempfile.mkdtemp(prefix=f"aqpipe-{tag}-{os.getpid()}-", dir=where))
    hold_folder(ROOT)
    os.environ["AQ_TEST_FOLDER"] = str(ROOT)
    os.environ["XDG_STATE_HOME"] = str(ROOT / "state")  # ledgers of visits
    ROOT.joinpath("train.txt").write_text(text(1, 400))
    ROOT.joinpath("heldout.txt").write_text(text(2, 100))
    return ROOT


def isolated(on):
    """Programs whose CPU is the isolated device (isolated/device_isolated.c) from here on, or the plain ones again."""
    global BIN
    BIN = BIN / "isolated" if on else BIN.parent


def faulty(links=None, checkpoint=None, hold=None, slow=None):
    """The environment of a launch whose links break, whose checkpoints or a rank are slow, or whose workers stop (kit/faulty_worker.c)."""
    asked = {"AQPIPE_WORKER": str(BIN / "aqpipe_faulty"), "FAULTY_LINKS": links, "FAULTY_CHECKPOINT": checkpoint, "FAULTY_HOLD": hold, "FAULTY_SLOW": slow}
    return {name: str(value) for name, value in asked.items() if value is not None}


@contextlib.contextmanager
def faults(**asked):
    """The same for everything that is launched meanwhile."""
    os.environ.update(faulty(**asked))
    try:
        yield
    finally:
        for name in faulty(**asked):
            del os.environ[name]


class Hold:
    """A place where the worker of a rank stops until release() (kit/faulty_worker.c). Steps count from 1, as they are printed.

    `also`: other ranks that stop there. Several holds of one launch share a folder: the first one's is the `folder` of the others."""

    def __init__(self, step, phase="begin", rank=0, folder=None, also=()):
        self.folder = folder or pathlib.Path(tempfile.mkdtemp(prefix="hold-", dir=ROOT))
        self.asked, *self.others = [self.folder / f"{each}.{step}.{phase}" for each in (rank, *also)]
        for path in (self.asked, *self.others):
            path.touch()

    def environment(self):
        return faulty(hold=self.folder)

    def reached(self, *processes):
        """The process id of the first rank's worker, when all are held. It is an error if one of the processes ends before."""
        deadline = time.time() + PATIENCE
        for path in (*self.others, self.asked):
            held = path.with_name(path.name + ".held")
            while not held.exists():
                for process in processes:
                    if process.poll() is not None:
                        said = process.stderr.read() if process.stderr else ""
                        check(False, f"{path.name}: ended with {process.returncode} before it came there\n{said[-3000:]}")
                check(time.time() < deadline, f"no worker comes to {path}")
                time.sleep(0.005)
        return int(held.read_text())

    def release_others(self):
        for path in self.others:
            path.unlink(missing_ok=True)

    def release(self):
        self.release_others()
        self.asked.unlink(missing_ok=True)


class Clock:
    """The clock of one command of aqpipe, which a test lets run ahead (kit/clock_ahead.c): "launch", "split-server". Others have the real one."""

    def __init__(self, command):
        self.command, self.path = command, pathlib.Path(tempfile.mkdtemp(prefix="clock-", dir=ROOT)) / "ahead"
        self.path.write_bytes(bytes(16))
        with self.path.open("r+b") as file:
            self.numbers = mmap.mmap(file.fileno(), 16)

    def environment(self):
        return {"LD_PRELOAD": str(BIN / "libclock_ahead.so"), "CLOCK_AHEAD": str(self.path), "CLOCK_AHEAD_OF": self.command}

    def at(self):
        """In front of a command."""
        return ("env", *(f"{name}={value}" for name, value in self.environment().items()))

    def passes(self, seconds):
        """So many more may pass, where the command waits for nothing but time."""
        allowed, _ = struct.unpack("QQ", self.numbers)
        self.numbers[:8] = struct.pack("Q", allowed + int(seconds * 1e9))

    def until(self, come, process=None, step=20):
        """Let time pass, `step` seconds at once, until come(): less than a limit of what follows is left over."""
        deadline = time.time() + PATIENCE
        while not come():
            check((process is None or process.poll() is None) and time.time() < deadline, f"the clock of {self.command} went on, and what was awaited did not come")
            allowed, passed = struct.unpack("QQ", self.numbers)
            if passed >= allowed:
                self.passes(step)
            time.sleep(0.005)


WORDS = ("the pipeline sends what changed and keeps what it has seen a link is slow and a disk is near so every sample "
         "meets its own message again the sum stays the same on both ends of the edge").split()


def text(seed, count):
    """Words in an order that depends on the one before: something a small model can learn."""
    state, out = seed, []
    for i in range(count):
        state = (state * 6364136223846793005 + 1442695040888963407) % 2**64
        out.append(WORDS[(state >> 33) % 7 + (i % 5) * 5 if (state >> 60) < 9 else (state >> 40) % len(WORDS)])
    return " ".join(out) + ".\n"


def manifest(name, **changes):
    keys = {
        "job.name": name, "model.blocks": 4, "model.heads": 2, "model.channels": 32, "model.context": 32,
        "model.tied": "false", "data.train": str(ROOT / "train.txt"), "data.heldout": str(ROOT / "heldout.txt"),
        "data.train_samples_max": 22, "data.heldout_samples_max": 5,
        "train.T": 32, "train.batch": 8, "train.micro_batch": 2, "train.epochs": 4, "train.lr": "2e-3",
        "edges.check": "all", "train.warmup_steps": 2, "train.clip": 1.0, "train.seed": 7, "pipeline.stages": 4, "pipeline.threads": 1,
        "checkpoint.every": 0, "cache.kind": "lmdb", "output.path": str(ROOT / name),
    }
    changes = {k.replace("__", "."): v for k, v in changes.items()}
    if not any(key.startswith("edges.forward") or key.startswith("edges.backward") for key in changes):
        keys["edges.forward.codec"] = "aqsgd"  # the published setting, which the figures of scenarios are of; None: what is meant unsaid
    keys.update(changes)
    path = ROOT / (name + ".yaml")
    tree = {}
    for key, value in keys.items():
        if value is None:  # leave it out
            continue
        node = tree
        *parents, leaf = key.split(".")
        for parent in parents:
            node = node.setdefault(parent, {})
        node[leaf] = value
    lines = []

    def write(node, depth):
        for key, value in node.items():
            if isinstance(value, dict):
                lines.append("  " * depth + f"{key}:")
                write(value, depth + 1)
            else:
                lines.append("  " * depth + f"{key}: {value}")
    write(tree, 0)
    path.write_text("\n".join(lines) + "\n")
    return path


def raw(direction="forward"):
    return {f"edges.{direction}.codec": "raw", f"edges.{direction}.precision": "fp32"}


def aqpipe(*arguments, **options):
    return subprocess.run([str(BIN / "aqpipe"), *map(str, arguments)], capture_output=True, text=True,
                          timeout=options.get("timeout", 2 * PATIENCE), stdin=subprocess.DEVNULL)


def launch(path, *arguments, want=0):
    done = aqpipe("launch", path, "--no-progress", *arguments)
    if done.returncode != want:
        sys.exit(f"launch {path} ended with {done.returncode}, wanted {want}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}")
    return done


def metrics(name, event="step"):
    lines = [json.loads(line) for line in (ROOT / name / "metrics.jsonl").read_text().splitlines()]
    return [line for line in lines if line.get("event") == event]


def losses(name):
    return [line["loss"] for line in metrics(name)]


def check(condition, what):
    if not condition:
        sys.exit(f"{what}\nrun it again: {AGAIN}")


def ours():
    """The processes of this test: begin() has left a word in the environment that each of them was given."""
    found, word = [], f"AQ_TEST_FOLDER={ROOT}\0".encode()
    for entry in pathlib.Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            if "aqpipe" in command.split(" ")[0] and (str(ROOT) in command or word in (entry / "environ").read_bytes()):
                found.append((entry.name, command, (entry / "stat").read_text().split()[3]))
        except OSError:  # it has just ended, or is another user's
            pass
    return found


def no_workers(tag):
    """No process of this test is left: other tests run at the same time, with workers of their own."""
    deadline = time.time() + PATIENCE
    while (left := ours()) and time.time() < deadline:
        time.sleep(0.02)
    check(not left, f"{tag}: processes are left: {left}")


def weights(name):
    return (ROOT / name / "model.safetensors").read_bytes()


def await_file(path):
    deadline = time.time() + PATIENCE
    while not path.exists():
        check(time.time() < deadline, f"{path} does not come")
        time.sleep(0.02)


def await_end(pid):
    """Until that process, of another parent, has ended."""
    deadline = time.time() + PATIENCE
    while pathlib.Path(f"/proc/{pid}").exists():
        check(time.time() < deadline, f"process {pid} does not end")
        time.sleep(0.005)


def await_text(path, text, process):
    """Until the file has it; it is an error if the process ends before."""
    deadline = time.time() + PATIENCE
    while not path.exists() or text not in path.read_text():
        check(process.poll() is None and time.time() < deadline, f"{path}: {text} does not come")
        time.sleep(0.02)


def descendants(pid, word):
    """Processes below pid whose program or first argument ends in the word, the eldest first."""
    parents, commands = {}, {}
    for entry in pathlib.Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parents[int(entry.name)] = int((entry / "stat").read_text().rsplit(")", 1)[1].split()[1])
                commands[int(entry.name)] = (entry / "cmdline").read_bytes().decode(errors="replace").split("\0")
            except (OSError, IndexError):
                pass
    found = []
    for child in sorted(commands):
        at, below = child, False
        while at in parents and at > 1:
            at = parents[at]
            below = below or at == pid
        if below and any(part.endswith(word) for part in commands[child][:2]):
            found.append(child)
    return found


def lives(pid):
    """Does this process run (a zombie does not)?"""
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in "ZX"
    except OSError:
        return False


def descendant(pid, word, number=0):
    """The number-th of them, waited for. None: the process has ended meanwhile."""
    deadline = time.time() + PATIENCE
    while time.time() < deadline and lives(pid):
        found = descendants(pid, word)
        if number < len(found):
            return found[number]
        time.sleep(0.05)
    check(not lives(pid), f"no process '{word}' below {pid}")
    return None
