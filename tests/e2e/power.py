"""Loss of power, simulated: what of a folder was synced is kept by power_loss.c; see there. For scenario power of e2e."""
import ctypes
import os
import random
import shutil

import jobs


class Power:
    """Watches `folder`; off() and on() are a loss of power and the first look at the disk after it."""

    def __init__(self, folder, seed):
        self.folder, self.store, self.number = folder, None, 0
        self.rng = random.Random(seed)
        self.library = folder.with_name("libpower_loss.so")  # beside the store: workers that are confined may read and write there (/dev/shm)
        if not self.library.exists():  # else this process has it open
            shutil.copy(jobs.BIN / self.library.name, self.library)
        self.calls = ctypes.CDLL(str(self.library), use_errno=True)
        folder.mkdir()
        self.settle()

    def environment(self):
        return {"LD_PRELOAD": str(self.library), "POWER_LOSS_ROOT": str(self.folder),
                "POWER_LOSS_STORE": str(self.store)}

    def off(self):
        """From here on nothing gets safe; kill everything after it."""
        (self.store / "off").touch()

    def on(self, mixed):
        """The folder as the disk has it: what was synced, and (mixed) a part of what was only written."""
        aside = self.folder.with_name(f"{self.folder.name}-lost-{self.number}")
        self.folder.rename(aside)
        self.folder.mkdir()
        self.lost_bytes = 0
        self.build(self.identity(aside), aside, self.folder, self.paths(aside), mixed)
        shutil.rmtree(aside)
        self.settle()

    def settle(self):
        """All that is here is safe: a new store that says so."""
        old, self.number = self.store, self.number + 1
        self.store = self.folder.with_name(f"{self.folder.name}-store-{self.number}")
        self.store.mkdir()
        os.environ["POWER_LOSS_STORE"] = str(self.store)
        for path in [self.folder, *self.folder.rglob("*")]:
            fd = os.open(path, os.O_RDONLY)
            jobs.check(self.calls.power_loss_keep(fd) == 0, f"{path} cannot be kept")
            os.close(fd)
        del os.environ["POWER_LOSS_STORE"]
        if old:
            shutil.rmtree(old)

    def identity(self, path):
        out = ctypes.create_string_buffer(80)
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
        jobs.check(self.calls.power_loss_id(fd, out, len(out)) == 0, f"{path} has no identity")
        os.close(fd)
        return out.value.decode()

    def paths(self, folder):
        return {self.identity(path): path for path in folder.rglob("*")}

    def build(self, identity, live, to, paths, mixed):
        names = {}
        if (self.store / identity).exists():
            for line in (self.store / identity).read_text().splitlines():
                names[line.split(" ", 1)[1]] = line.split(" ", 1)[0]
        if mixed and live and self.rng.random() < 0.5:
            names = {path.name: self.identity(path) for path in live.iterdir()}
        for name, below in sorted(names.items()):
            if below[0] == "d":
                (to / name).mkdir(mode=0o700)
                self.build(below, paths.get(below), to / name, paths, mixed)
            else:
                (to / name).write_bytes(self.bytes_of(below, paths.get(below), mixed))

    def bytes_of(self, identity, live, mixed):
        kept = self.store / identity
        safe = kept.read_bytes() if kept.exists() else b""
        written = live.read_bytes() if live else safe
        self.lost_bytes += sum(safe[i:i + 4096] != written[i:i + 4096] for i in range(0, len(written), 4096)) * 4096
        if not mixed or safe == written:
            return safe
        size = len(self.rng.choice((safe, written)))
        blocks = [self.rng.choice((safe, written))[at:at + 4096].ljust(4096, b"\0") for at in range(0, size, 4096)]
        return b"".join(blocks)[:size]
