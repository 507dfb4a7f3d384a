"""What `aqpipe doctor` finds of a machine and of a job, well and not well; nothing of it stays behind."""
import json
import os
import socket

from kit import ROOT, check, serve
from jobs import aqpipe, manifest

MACHINE = {"clock", "cores", "memory", "GPU", "io_uring", "congestion"}


def findings(*arguments, want):
    done = aqpipe("doctor", "--json", *arguments)
    check(done.returncode == want, f"doctor {arguments} ended with {done.returncode}, wanted {want}: {done.stdout}{done.stderr}")
    check(not done.stderr, f"doctor {arguments} says on standard error: {done.stderr}")
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    for line in lines:
        check(set(line) == {"check", "state", "found", "remedy"} and line["state"] in ("well", "doubtful", "bad"), f"{line}")
        check(line["found"] and (line["state"] == "well") <= (line["remedy"] is None), f"{line}")
    check(MACHINE <= {line["check"] for line in lines}, f"not all of the machine: {lines}")
    return lines


def of(lines, check_name, state):
    return [line["found"] for line in lines if line["check"] == check_name and line["state"] == state]


def scenario_doctor():
    findings(want=0)
    here = set(os.listdir(ROOT))
    job = manifest("fit")
    lines = findings(job, want=0)
    for name in "job memory", "disk room", "disk speed":
        check(of(lines, name, "well") or name == "disk speed" and of(lines, name, "doubtful"), f"no {name}: {lines}")
    check(not of(lines, "port", "well"), "the system chooses the ports of this one")

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        lines = findings(job, "--set", f"link.port_first={port - 1}", want=1)
    # Others on this machine may have the ports beside it.
    check(any(f":{port}:" in bad for bad in of(lines, "port", "bad")), f"a port that is taken: {lines}")

    lines = findings(job, "--set", "train.micro_batch=1", "--set", "cache.path=/proc/caches", want=1)
    check(of(lines, "disk speed", "bad"), f"a folder that nobody can write to: {lines}")

    keys = ROOT / "keys"
    done = aqpipe("keys", "init", keys, "--job", "fit", "--stages", 4, "--days", 3)
    check(done.returncode == 0, done.stderr)
    lines = findings(job, "--set", f"security.keys={keys}", want=0)
    check(len(of(lines, "certificate", "doubtful")) >= 4, f"certificates that end in three days: {lines}")
    (keys / "stage-1.pem").write_text("no certificate")
    lines = findings(job, "--set", f"security.keys={keys}", want=1)
    check(len(of(lines, "certificate", "bad")) == 1 and "stage-1.pem" in of(lines, "certificate", "bad")[0], f"{lines}")

    daemon, port = serve()
    try:
        stages = [f"pipeline.stages.{s}.host=tcp://127.0.0.1:{port}" for s in range(2)]
        layout = ["--set", "pipeline.stages=[{layers: 0-2}, {layers: 3-5}]"] + [x for s in stages for x in ("--set", s)]
        lines = findings(job, *layout, want=0)
        check(len(of(lines, "daemon", "well")) == 1, f"a daemon of two stages is looked at once: {lines}")
    finally:
        daemon.terminate()
        daemon.wait()
    lines = findings(job, *layout, want=1)
    check(of(lines, "daemon", "bad"), f"a daemon that is not there: {lines}")

    check(aqpipe("doctor", "/nonexistent.yaml").returncode == 2, "a manifest that is not there")
    check(aqpipe("doctor", "--set", "a=1").returncode == 2, "--set without a manifest")
    said = aqpipe("doctor", job).stdout
    check("remedy:" in said and " well, " in said.splitlines()[-1], f"for people: {said}")
    left = set(os.listdir(ROOT)) - here - {"fit.yaml", "keys", "port"}
    check(not left, f"left behind: {left}")
