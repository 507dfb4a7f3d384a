"""Tests inside tools/wanlab: the script runs again in the lab, its lines change, and daemons at its ends live on."""
import os
import pathlib
import subprocess
import sys
import threading
import time

import jobs

WANLAB = pathlib.Path(__file__).resolve().parent.parent / "tools/wanlab"


def works(*command):
    """None if the command succeeds here, else its first line."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, stdin=subprocess.DEVNULL)
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    lines = done.stderr.strip().splitlines()
    return None if done.returncode == 0 else lines[0] if lines else f"{command[0]} ended with {done.returncode}"


def tell(*settings):
    """Change the lab. Answers why not, or None."""
    return works(str(WANLAB), "set", *map(str, settings))


def in_the_lab(ends, *settings, limit_s=None):
    """This script again, as the command of a lab of so many ends (settings: more of tools/wanlab's); its exit status. None: it is there."""
    if os.environ.get("AQPIPE_WANLAB"):
        return None
    reason = works(str(WANLAB), "2", "--", "true")
    if reason:
        print(f"skipped: {reason}")
        return 77
    command = [str(WANLAB), str(ends), "--rate", "100", "--rtt", "0.2", *map(str, settings), "--", sys.executable, *sys.argv]
    return subprocess.run(command, stdin=subprocess.DEVNULL, timeout=limit_s).returncode


def scenario_in_the_lab(ends, *settings, limit_s=1000):
    """True: this scenario is in the lab. False: it was not, and has run there, to a good end. Skips where no lab can be made (root)."""
    code = in_the_lab(ends, *settings, limit_s=limit_s)
    if code == 77:
        sys.exit(77)
    jobs.check(code in (None, 0), f"in the lab: {code}")
    return code is None


def host(end):
    return f"10.79.0.{end + 1}"


class Keeper:
    """A daemon at each end of the lab, started again whenever it ends, as a service manager does. The job has so many ranks."""

    def __init__(self, root, job, ends, ranks, environment=None):
        self.root, self.daemons, self.over, self.environment = root, {}, False, {**os.environ, **(environment or {})}
        done = jobs.aqpipe("keys", "init", root / "keys", "--job", job, "--stages", ranks, "--hosts", ",".join(map(host, range(ends))))
        jobs.check(done.returncode == 0, done.stderr)
        for end in range(ends):
            self.begin(end)
        self.thread = threading.Thread(target=self.keep, daemon=True)
        self.thread.start()
        for end in range(ends):
            jobs.await_file(root / f"port-{end}")

    def begin(self, end):
        (self.root / f"port-{end}").unlink(missing_ok=True)
        with open(self.root / f"daemon-{end}.log", "ab") as log:
            self.daemons[end] = subprocess.Popen(
                [str(WANLAB), "exec", str(end), str(jobs.BIN / "aqpiped"), "--listen", f"{host(end)}:7700", "--keys", str(self.root / "keys"),
                 "--host", host(end), "--port-file", str(self.root / f"port-{end}")], stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=self.environment)

    def keep(self):
        while not self.over:
            for end, daemon in self.daemons.items():
                if daemon.poll() is not None and not self.over:
                    self.begin(end)
            time.sleep(0.1)

    def whole(self):
        """Until every daemon listens: a launch that begins wants all of them."""
        while any(daemon.poll() is not None for daemon in self.daemons.values()):
            time.sleep(0.05)
        for end in self.daemons:
            jobs.await_file(self.root / f"port-{end}")

    def workers(self, end):
        return jobs.descendants(self.daemons[end].pid, "worker")

    def close(self):
        self.over = True
        self.thread.join()
        for daemon in self.daemons.values():
            daemon.kill()
            daemon.wait()
