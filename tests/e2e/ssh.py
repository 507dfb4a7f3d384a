"""`aqpipe launch --on ssh`, with a program called ssh first in PATH that runs the command on this machine, as far from its caller as ssh
would: two pipes, and an end of its own. What a host, or a program there, can lack."""
import json
import os
import re
import signal
import stat
import sys

from kit import BIN, ROOT, check, losses, marked, metrics, no_workers, start, weights
import jobs
from jobs import aqpipe, manifest

SSH = r'''#!{python}
import json, os, subprocess, sys, threading
rest = sys.argv[1:]
target, command = rest[rest.index("--") + 1:]
with open({log!r}, "a") as log:
    log.write(json.dumps(rest) + "\n")
if target == "away":
    sys.exit(print("Pseudo-terminal will not be allocated\nssh: connect to host away port 22: Connection refused", file=sys.stderr) or 255)
path = {programs!r}.get(target, {here!r})
agent = subprocess.Popen(["/bin/sh", "-c", command], stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd="/",
                         env={{**os.environ, "PATH": path + ":/usr/bin:/bin"}}, start_new_session=True)
def carry(read, to):
    try:
        while data := read(65536):
            to.write(data), to.flush()
        to.close()
    except OSError:
        pass
if target == "chatty":
    os.write(1, b"Welcome to chatty!\n")
threading.Thread(target=carry, args=(lambda n: os.read(0, n), agent.stdin), daemon=True).start()
carry(agent.stdout.read1, os.fdopen(1, "wb", closefd=False))
sys.exit(agent.wait())
'''
# Of an older version, which has no --stdio; of another, which answers; that ends at once.
PROGRAMS = {
    "older": "#!/bin/sh\necho \"aqpiped: '--stdio' is no option (aqpiped --help)\" >&2; exit 2\n",
    "other": "#!/bin/sh\nread open\necho '{\"event\":\"opened\",\"pid\":1,\"beats\":false,\"version\":\"0.0.1\"}'\nread start\n",
    "broken": "#!/bin/sh\necho 'error while loading shared libraries: libcrypto.so.3' >&2; exit 1\n",
    "bare": None,
}


def program(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


def asked():
    log = ROOT / "ssh.log"
    return [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []


def install():
    for name, text in PROGRAMS.items():
        (ROOT / name).mkdir()
        if text:
            program(ROOT / name / "aqpiped", text)
    places = {name: str(ROOT / name) for name in PROGRAMS}
    program(ROOT / "bin/ssh", SSH.format(python=sys.executable, log=str(ROOT / "ssh.log"), programs=places, here=str(BIN)))
    os.environ["PATH"] = f"{ROOT / 'bin'}:{os.environ['PATH']}"


def refused(pattern, want, *arguments):
    done = aqpipe("launch", manifest("wrong", pipeline__stages=2), "--no-progress", "--restarts", 0, *arguments)
    check(done.returncode == want, f"{arguments} ended with {done.returncode}, wanted {want}: {done.stderr}")
    lines = done.stderr.strip().splitlines()
    check(len(lines) == 1 and re.search(pattern, lines[0]), f"{arguments}: wanted /{pattern}/ in one line: {done.stderr}")
    no_workers("refused")


def hosts(*names):
    listed = ", ".join("{host: \"ssh://%s\"}" % name for name in names)
    return "--on", "ssh", "--set", f"pipeline.stages=[{listed}]"


def wrong():
    good = "localhost"
    refused(r"ssh cannot reach ssh://away \(ssh: connect to host away port 22: Connection refused\).*must work", 1, *hosts(good, "away"))
    refused(r"no program aqpiped at ssh://bare .*not found.*AQPIPE_SSH_DAEMON", 1, *hosts("bare", good))
    refused(r"aqpiped at ssh://older is of another version, without --stdio .*install aqpipe", 1, *hosts(good, "older"))
    refused(r"aqpiped at ssh://other is version 0\.0\.1, this aqpipe", 1, *hosts("other", good))
    refused(r"aqpiped at ssh://broken ended with code 1: error while loading shared libraries", 1, *hosts("broken", good))
    refused(r"the output of ssh://chatty is not an agent's: .*must print nothing .*Welcome", 1, *hosts("chatty", good))
    count = len(asked())
    refused(r"stages\.0\.host: 'ssh://-oProxyCommand=x' is not a host", 2, *hosts("-oProxyCommand=x", good))
    refused(r"3 hosts are given \(--host, --hosts\), but the job has 2 workers \(2 stages x 1 replicas\)", 2, "--on", "ssh", "--hosts", "a,b,c")
    refused(r"--hosts: '-oX' is not a host", 2, "--on", "ssh", "--hosts", "a,-oX")
    refused(r"--on ssh: stage 0 has no host: .*--hosts A,B", 2, "--on", "ssh")
    refused(r"security\.keys: is not set", 2, "--on", "ssh", "--hosts", "node1.example,node2.example")
    check(len(asked()) == count, "ssh ran for a job that is refused")
    away, os.environ["PATH"] = os.environ["PATH"], str(ROOT / "bare")
    try:
        refused(r"there is no ssh here for ssh://localhost: install openssh-client", 1, *hosts(good, good))
        done = aqpipe("launch", manifest("wrong", pipeline__stages=2), *hosts(good, good)[2:], "--copy")
        check(done.returncode == 1 and "there is no rsync here: install it, or copy " in done.stderr, done.stderr)
    finally:
        os.environ["PATH"] = away
    (ROOT / "images.csv").write_text("file,label\n" + "".join(f"i{i}.npy,{i % 2}\n" for i in range(8)))
    for i in range(8):
        head = b"{'descr': '|u1', 'fortran_order': False, 'shape': (4, 4), }\n"
        (ROOT / f"i{i}.npy").write_bytes(b"\x93NUMPY\1\0" + bytes([len(head), 0]) + head + bytes([i] * 16))
    gpt2 = dict.fromkeys(("model.blocks", "model.heads", "model.channels", "model.context", "model.tied", "train.T", "data.heldout"))
    images = manifest("wrong-images", **{**gpt2, "model.kind": "resnet", "model.depth": 10, "model.filters": 4, "model.norm_groups": 2, "model.side": 8,
                                         "data.train": str(ROOT / "images.csv"), "train.batch": 4, "train.micro_batch": 2, "pipeline.stages": 2})
    done = aqpipe("launch", images, *hosts(good, good)[2:], "--copy")
    check(done.returncode == 1 and "--copy brings the table of data.kind: image_files, but not its images" in done.stderr, done.stderr)


def killed(path):
    """An agent's ssh is killed: the stage is lost, and the run begins again from its checkpoint, with the same losses; or ends."""
    for restarts, code in (("3", 0), ("0", 1)):
        hold = jobs.Hold(5)
        process = start(path, "--restarts", restarts, "--on", "ssh", "--hosts", "localhost,127.0.0.1", "--fresh",
                        environment=hold.environment(), lines=False)
        hold.reached(process)
        marked(path, 4)
        victim = jobs.descendants(process.pid, "/bin/ssh")[0]
        os.kill(victim, signal.SIGKILL)
        hold.release()
        error = process.stderr.read()
        check(process.wait() == code, f"--restarts {restarts} ended with {process.returncode}: {error}")
        check(code == 0 or re.search(rf"the agent of ssh://localhost \(pid {victim}\) was killed by signal 9", error), error)
        no_workers("killed")
    check(aqpipe("resume", ROOT / path.stem, "--no-progress").returncode == 0, "resume starts the agents again")


def scenario_ssh():
    install()
    few = {"pipeline__stages": 2, "train__epochs": 2}
    jobs.launch(manifest("here", **few))
    jobs.launch(manifest("there", **few), "--on", "ssh", "--hosts", "localhost,me@127.0.0.1:2222")
    check(losses("there") == losses("here") and weights("there") == weights("here"), "agents train something else")
    told = ["-T", "-o", "BatchMode=yes", "-o", "ConnectTimeout=10", "-o", "ServerAliveInterval=15"]
    check(asked() == [[*told, "--", "localhost", "exec aqpiped --stdio"], [*told, "-p", "2222", "--", "me@127.0.0.1", "exec aqpiped --stdio"]],
          f"ssh was asked {asked()}")
    no_workers("there")
    jobs.launch(manifest("short", **few), "--host", "localhost,127.0.0.1")  # both are this machine: no ssh
    check(losses("short") == losses("here") and len(asked()) == 2, f"--host of this machine: {asked()}")
    wrong()
    quiet = {"pipeline__stages": 2, "checkpoint__every": "'2 steps'"}
    jobs.launch(manifest("quiet", **quiet))
    killed(manifest("killed", **quiet))
    check(losses("killed") == losses("quiet") and weights("killed") == weights("quiet"), "the losses are not those of the undisturbed run")
    check(metrics("killed", "end"), "no end")
