"""What a person sees of a run: the live line on a narrow terminal, its trace, and the logs of a run that goes well."""
import fcntl
import json
import os
import pty
import re
import struct
import subprocess
import termios

import trace_rules
from kit import BIN, ROOT, check
from jobs import aqpipe, launch, manifest


def on_terminal(columns, *arguments):
    """What `aqpipe` writes to a terminal so wide, line by line; a line that was written over is one as well."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.environ.pop("COLUMNS", None)
        fcntl.ioctl(1, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        os.execv(BIN / "aqpipe", ["aqpipe", *map(str, arguments)])
    said = b""
    while True:
        try:
            piece = os.read(terminal, 65536)
        except OSError:  # the other end is closed
            break
        said += piece
    os.close(terminal)
    check(os.waitpid(pid, 0)[1] == 0, f"aqpipe {arguments}: {said.decode(errors='replace')}")
    return [line.replace("\033[K", "") for line in re.split("[\r\n]+", said.decode())]


def scenario_seen():
    """One job of two stages on a terminal of 80 columns; its logs; then every command that prints: width, JSON, a full disk."""
    job = manifest("one", **{"pipeline.stages": 2, "train.evaluate_every": "1 epoch", "checkpoint.every": "5 steps", "output.trace": "true"})
    lines = on_terminal(80, "launch", job)
    live = [line for line in lines if re.search(r"step \d+/12 .* left \d+:\d\d$", line)]
    check(live, f"no line of progress with what is left: {lines}")
    early = [line for line in lines if re.search(r"(starts a daemon|\d ready\)) \d:\d\d$", line)]  # a fast start shows not all
    check(early, f"nothing is said before the first step: {lines}")
    for line in live + early:
        check(len(line) < 80, f"{len(line)} columns of 80: {line}")

    slices = trace_rules.check((ROOT / "one" / "trace.json").read_text())
    check({process for process, _ in slices} == {0, 1} and sum(slices.values()) > 100, slices)

    for rank in range(2):
        log = (ROOT / "one" / "logs" / f"stage-{rank}.log").read_text().splitlines()
        for line in log:
            check(re.match(rf"20\d\d-[01]\d-[0-3]\dT\d\d:\d\d:\d\d\.\d{{3}}Z rank {rank} info \w+: ", line), f"no line of a log: {line}")
        for words in (f"stage {rank} of 2, replica 0 of 1: layers", "on cpu:", "at 127.0.0.1:" if rank == 0 else "connected",
                      "trains: steps 1 to 12", "step 1, the first, took", "step 3: evaluated in", "step 5: its checkpoint is on disk",
                      "step 12: its checkpoint is on disk", "done after step 12"):
            check(any(words in line for line in log), f"the log of rank {rank} does not say '{words}': {log}")

    launch(manifest("two", **{"pipeline.stages": 2, "train.optimizer": "lion"}))
    one, two = ROOT / "one", ROOT / "two"
    for columns in 60, 80, 120:
        for command in (("report", one, two), ("plan", job), ("top", "--once", one), ("status", one)):
            for line in on_terminal(columns, *command):
                words = line.split()  # a word that is longer than a line stays whole
                check(len(line) <= columns or len(max(words, key=len)) + 8 > columns, f"{command}: {len(line)} columns: {line}")
                check("nan" not in words, f"{command}: {line}")
    tells = "\n".join(on_terminal(120, "report", one, two))
    check(re.search(r"\none +AQ-SGD fw4 bw8 +adamw +- +2 x 1", tells) and re.search(r"\ntwo +AQ-SGD fw4 bw8 +lion +- +2 x 1", tells), tells)

    def none(name):
        raise ValueError(f"{name} is no JSON")

    prints = [("report", one, two, "--json"), ("status", one, "--json"), ("top", "--once", "--json", one), ("plan", job, "--json")]
    for command in prints:
        done = aqpipe(*command)
        check(isinstance(json.loads(done.stdout, parse_constant=none), dict), f"{command}: {done.stdout}")
    with open("/dev/full", "w", encoding="utf-8") as full:
        for program, *command in [*(("aqpipe", *map(str, command)) for command in prints), ("aqpipe", "report", one),
                                  ("aqpipe", "report", "--tsv", one), ("aqpipe", "status", one), ("aqpipe", "top", one),
                                  ("aqpipe", "plan", job), ("aqpipe", "logs", one), ("aqpipe", "help"), ("aqpipe", "help", "keys"),
                                  ("aqpipe", "cache", "stat", one / "cache"), ("aqpiped", "--help"), ("aqpiped", "--version")]:
            done = subprocess.run([BIN / program, *command], stdout=full, stderr=subprocess.PIPE, text=True, check=False)
            check(done.returncode == 1 and "cannot write the output" in done.stderr, f"{program} {command}: {done}")
