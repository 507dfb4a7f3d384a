"""Split learning: a server, clients that dial it, turns; what is equal to what, and what a client cannot do."""
import atexit
import functools
import json
import os
import pathlib
import random
import re
import signal
import socket
import ssl
import struct
import subprocess
import sys
import time

import jobs
from jobs import aqpipe, check, launch, losses, manifest, metrics, no_workers, raw
from kit import ROOT
from resume import flip

CODED = {"edges.forward.codec": "aqsgd", "edges.forward.bits": 4, "edges.backward.codec": "directq", "edges.backward.bits": 8}
PLAIN = {**raw(), **raw("backward")}
STAGES = "[{layers: 0-1, dials: true}, {layers: 2-11}, {layers: 12-13, dials: true}]"


@functools.lru_cache(None)
def around(base):
    """Bytes by chance become values around that one."""
    return bytes(max(0, min(255, base - 60 + each * 120 // 256)) for each in range(256))


def records(name, count, seed, classes=10, coarse=None):
    """CIFAR-10's records, of classes that a small network can tell apart; CIFAR-100's where `coarse` gives a label's coarse one."""
    draw, out = random.Random(seed), bytearray()
    for _ in range(count):
        label = draw.randrange(classes)
        out += bytes([label] if coarse is None else [coarse(label), label])
        for channel in range(3):
            out += draw.randbytes(1024).translate(around((label * 25 + channel * 40) % 256))
    path = ROOT / f"{name}.bin"
    path.write_bytes(out)
    return path


def job(name, **changes):
    gpt2 = dict.fromkeys(("model.blocks", "model.heads", "model.channels", "model.context", "model.tied", "train.T",
                          "train.warmup_steps", "data.train_samples_max", "data.heldout_samples_max"))
    return manifest(name, **{**gpt2, "model.kind": "pyramid", "model.width": 8, "model.levels": 4, "data.kind": "cifar10",
                             "data.train": str(ROOT / "a.bin"), "data.heldout": str(ROOT / "test.bin"), "train.batch": 20,
                             "train.micro_batch": 10, "train.optimizer": "sgd", "train.momentum": 0.9, "train.lr": 0.02,
                             "train.decay": "constant", "pipeline.stages": 3, "checkpoint.every": "1 epoch", **changes})


def split(name, rounds=3, epochs=2, clients=1, **changes):
    keys = {"split.clients": clients, "split.server": f"127.0.0.1:{jobs.lasting_port()}", "split.rounds": rounds, "split.epochs": epochs,
            "split.wait": "3s", "pipeline.stages": STAGES, "security.keys": str(ROOT / "keys"), **changes}
    return job(name, **keys)


STARTED = []


@atexit.register
def end_all():
    """A failed check leaves none of them."""
    for process in STARTED:
        if process.poll() is None:
            process.kill()


class Server:
    """A split-server of that manifest; `port` once it listens."""

    def __init__(self, path, *arguments, at=(), out=None):
        self.path, self.log = path, ROOT / f"{path.stem}.server.log"
        port_file = ROOT / f"{path.stem}.port"
        port_file.unlink(missing_ok=True)
        self.process = subprocess.Popen([*at, jobs.BIN / "aqpipe", "split-server", path, "--port-file", port_file, *arguments],
                                        stdout=out, stderr=self.log.open("a"), stdin=subprocess.DEVNULL)
        STARTED.append(self.process)
        deadline = time.time() + jobs.PATIENCE
        while not port_file.exists() or not port_file.read_text().strip():
            check(time.time() < deadline and self.process.poll() is None, f"no port: {self.log.read_text()}")
            time.sleep(0.02)
        self.port = int(port_file.read_text())

    def text(self):
        return self.log.read_text()

    def end(self, want=0):
        code = self.process.wait(jobs.PATIENCE)
        check(code == want, f"the server ended with {code}, wanted {want}: {self.text()[-3000:]}")

    def await_text(self, wanted, count=1, patience=jobs.PATIENCE):
        deadline = time.time() + patience
        while self.text().count(wanted) < count:
            check(time.time() < deadline and self.process.poll() is None, f"'{wanted}' is not said: {self.text()[-3000:]}")
            time.sleep(0.02)


    def await_joined(self, name, count):
        """Until that client has joined so many times: one that was killed and started again is here."""
        deadline = time.time() + jobs.PATIENCE
        while len(re.findall(rf"\b{name} \([^)]*\) has joined", self.text())) < count:
            check(time.time() < deadline and self.process.poll() is None, f"{name} has not joined {count} times: {self.text()[-3000:]}")
            time.sleep(0.02)


class Client:
    """A split-client of that server. `stops`: after these steps its first worker stops until it is released (jobs.Hold)."""

    def __init__(self, server, name, *arguments, data=None, folder=None, keys=None, path=None, kind="bin", at=(), host="127.0.0.1", stops=(), environment=None):
        self.name, self.holds = name, {}
        for step in stops:
            self.holds[step] = jobs.Hold(step + 1, folder=next((hold.folder for hold in self.holds.values()), None))
        environment = environment or next((hold.environment() for hold in self.holds.values()), {})
        command = [*at, jobs.BIN / "aqpipe", "split-client", path or server.path, "--id", name, "--data", ROOT / f"{data or name}.{kind}",
                   "--set", f"split.server='{host}:{server.port}'", "--set", f"security.keys={ROOT}/{keys or 'keys-' + name}",
                   "--set", f"output.path={folder or ROOT / (server.path.stem + '-' + name)}", "--patience", "20", *arguments]
        self.out = None  # what it printed
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE if "--json" in arguments else None, stderr=subprocess.PIPE, text=True,
                                        stdin=subprocess.DEVNULL, env={**os.environ, **environment})
        STARTED.append(self.process)

    def release(self):
        for hold in self.holds.values():
            hold.release()

    def end(self, want=0):
        self.out, said = self.process.communicate(timeout=jobs.PATIENCE)
        check(self.process.returncode == want, f"{self.name} ended with {self.process.returncode}, wanted {want}: {said[-3000:]}")
        return said

    def kill(self):
        self.process.kill()
        return self.process.communicate()[1]


def begin(*names):
    """Data, keys, and one bundle a client."""
    for seed, (name, count) in enumerate({"a": 60, "b": 45, "test": 40}.items()):
        records(name, count, seed)
    check(aqpipe("keys", "init", ROOT / "keys", "--job", "split", "--stages", 3).returncode == 0, "keys init")
    for name in names:
        done = aqpipe("keys", "enroll", ROOT / "keys", "--site", name, "--out", ROOT / f"keys-{name}")
        check(done.returncode == 0 and f"site-{name}.pem" in done.stdout, done.stderr)


def whole(path, *names, **options):
    """Server and clients, to the end."""
    server = Server(path)
    clients = [Client(server, name, **options) for name in names]
    for client in clients:
        client.end()
    server.end()
    return server


def of_client(server, name, event="step"):
    return metrics(f"{server}/clients/{name}", event)


def lost(server, name="a"):
    """The losses of a client's steps."""
    return [line["loss"] for line in of_client(server, name)]


def report(server):
    return json.loads((ROOT / server / "report.json").read_text())


def tensors(path):
    """Names, and the bytes of each tensor of a safetensors file."""
    blob = path.read_bytes()
    size = int.from_bytes(blob[:8], "little")
    head = json.loads(blob[8:8 + size])
    return {name: blob[8 + size + about["data_offsets"][0]:8 + size + about["data_offsets"][1]]
            for name, about in head.items() if name != "__metadata__"}


def scenario_split():
    """One client is the unsplit run bit for bit; with AQ-SGD it is the run of three stages; two clients take turns."""
    begin("a", "b")
    launch(job("one", **{**PLAIN, "train.epochs": 6, "pipeline.stages": 1}))
    server = whole(split("plain", **PLAIN, **{"split.collect": "true"}), "a")
    check(losses("one") == [line["loss"] for line in of_client("plain", "a")], f"losses differ: {server.text()}")
    check(tensors(ROOT / "one" / "model.safetensors") == tensors(ROOT / "plain" / "model.safetensors"), "weights differ")
    ours, theirs = metrics("one", "eval"), of_client("plain", "a", "eval")
    check([line["accuracy"] for line in ours] == [line["accuracy"] for line in theirs], "accuracies differ")

    three = STAGES.replace(", dials: true", "")
    launch(job("three", **{**CODED, "train.epochs": 6, "pipeline.stages": three}))
    whole(split("coded", **CODED), "a")
    check(losses("three") == [line["loss"] for line in of_client("coded", "a")], "with codecs the losses differ")

    # A decoder is cut alike: its tokens and targets stay with the client.
    text = {**PLAIN, "train.decay": "constant"}
    launch(manifest("decoder-one", **{**text, "train.epochs": 4, "pipeline.stages": 1}))
    turns = {"split.clients": 1, "split.server": "127.0.0.1:0", "split.rounds": 2, "split.epochs": 2,
             "security.keys": str(ROOT / "keys")}
    whole(manifest("decoder", **{**text, **turns, "pipeline.stages": STAGES.replace("2-11", "2-3").replace("12-13", "4-5")}),
          "a", data="train", kind="txt")
    check(losses("decoder-one") == [line["loss"] for line in of_client("decoder", "a")], "of a decoder losses differ")

    server = whole(split("two", clients=2, **CODED), "a", "b")
    for name, steps in (("a", 18), ("b", 18)):
        lines = of_client("two", name)
        check([line["step"] for line in lines] == list(range(1, steps + 1)), f"{name}: {len(lines)} steps")
        check(sum(sum(line["keyframes"]) for line in lines[6:]) == 0, f"{name}: its second turn begins with keyframes")
    said = report("two")
    check([line["turns"] for line in said["clients"]] == [3, 3] and said["rounds"] == 3, f"{said}")
    check(0 <= said["accuracy"] <= 1 and said["sent_bytes"] > 0, f"{said}")
    sent = sum(sum(line["forward_bytes"]) + sum(line["backward_bytes"]) for name in "ab" for line in of_client("two", name))
    check(0.5 * sent < said["sent_bytes"] <= sent, f"{said['sent_bytes']} bytes, and steps say {sent}")
    order = [line.split(": ")[2].split()[0] for line in server.text().splitlines() if " trains steps " in line]
    check(sorted(order) == ["a"] * 3 + ["b"] * 3, f"turns: {order}")
    again = whole(split("again", clients=2, **CODED), "b", "a")
    check([line["loss"] for line in of_client("again", "b")] == [line["loss"] for line in of_client("two", "b")],
          "who joins first changes the run")
    check(again.text().count(" trains steps ") == 6, again.text())
    no_workers("split")


def scenario_split_quic():
    """Two clients over QUIC, in turns and with global sampling, and one that is killed and comes back: the losses of TCP, bit for bit."""
    begin("a", "b")
    path = split("quic", rounds=2, clients=2, **CODED, **{"link.protocol": "quic", "checkpoint.every": "2 steps", "split.wait": "60s"})
    done = aqpipe("plan", path)
    if "built without QUIC" in done.stderr:
        print("skipped: built without QUIC")
        sys.exit(77)
    whole(split("tcp", rounds=2, clients=2, **CODED), "a", "b")
    server = Server(path)
    clients = {name: Client(server, name, stops=(3,) if name == "a" else ()) for name in ("a", "b")}
    stopped(server, clients["a"], 3)
    clients["a"].kill()
    clients["a"] = Client(server, "a")
    for client in clients.values():
        client.end()
    server.end()
    for name in ("a", "b"):
        check([line["loss"] for line in of_client("quic", name)] == [line["loss"] for line in of_client("tcp", name)], f"{name}: over QUIC the losses differ")
    for name, protocol in (("global-tcp", "tcp"), ("global-quic", "quic")):
        whole(split(name, rounds=1, clients=2, **CODED, **{"split.mode": "global", "link.protocol": protocol, "split.wait": "60s"}), "a", "b")
    ours, theirs = ([line.get("loss") for name in "ab" for line in of_client(run, name)] for run in ("global-quic", "global-tcp"))
    check(ours == theirs and len(ours) > 4, f"global sampling over QUIC: {ours}, over TCP {theirs}")
    no_workers("split_quic")


def scenario_split_leaves():
    """Clients and servers that are killed: what was trained stands, and where all take part the run is the undisturbed one."""
    begin("a", "b")
    keys = {**CODED, "split.wait": "60s", "checkpoint.every": "2 steps"}
    whole(split("whole", rounds=2, clients=2, **keys), "a", "b")
    wanted = {name: [line["loss"] for line in of_client("whole", name)] for name in ("a", "b")}

    whole(split("alone", rounds=1, clients=1, **keys), "a")
    alone = [line["loss"] for line in of_client("alone", "a")]

    server = Server(split("killed", rounds=2, clients=2, **keys))
    clients = {name: Client(server, name, stops=(3,)) for name in ("a", "b")}
    for name, then in (("b", ()), ("a", (8,))):  # b has the first turn: each is killed in its first, after a checkpoint
        stopped(server, clients[name], 3)
        clients[name].kill()
        clients[name] = Client(server, name, stops=then)
    stopped(server, clients["a"], 8)
    server.process.kill()
    server.process.wait()
    clients["a"].release()
    again = Server(server.path, "--set", f"split.server='127.0.0.1:{server.port}'")
    for client in clients.values():
        client.end()
    again.end()
    for name, losses_of in wanted.items():
        check([line["loss"] for line in of_client("killed", name)] == losses_of, f"{name}: not the run that would have been")

    # A turn whose launcher is killed continues, and its cause is not the last line that the launcher wrote.
    server = Server(split("orphan", rounds=1, clients=1, **keys))
    client = Client(server, "a", stops=(3,))
    stopped(server, client, 3)
    os.kill(jobs.descendants(server.process.pid, "split-turn")[0], signal.SIGKILL)
    server.await_text("round 1: a: its launcher was killed by signal 9; its turn continues from its checkpoint")
    client.release()
    client.end()
    server.end()
    check([line["loss"] for line in of_client("orphan", "a")] == alone, "a turn whose launcher is killed makes another run")

    # It is killed, returns with a full disk, fails and leaves, and returns with room: two tries from one checkpoint, not three.
    server = Server(split("full", rounds=1, clients=1, **keys))
    client = Client(server, "a", stops=(3,))
    stopped(server, client, 3)
    client.kill()
    said = Client(server, "a", at=("bash", "-c", 'ulimit -f 4; exec "$@"', "-")).end(1)
    client.release()
    check("File too large" in said, said)
    server.await_text("has left: its disk is full, or cannot be written")
    Client(server, "a").end()
    server.end()
    check([line["missed"] for line in report("full")["clients"]] == [0], server.text())
    check(lost("full") == alone, "a turn whose client had a full disk makes another run")

    # One that does not come back costs its turn's rest alone.
    server = Server(split("lost", rounds=2, clients=2, **{**keys, "split.wait": "1s"}))
    clients = {name: Client(server, name, stops=(3,) if name == "a" else ()) for name in ("a", "b")}
    stopped(server, clients["a"], 3)
    clients["a"].kill()
    clients["b"].end()
    server.end()
    said = {line["name"]: line for line in report("lost")["clients"]}
    check((said["b"]["turns"], said["b"]["missed"]) == (2, 0), f"{said}: {server.text()}")
    check((said["a"]["turns"], said["a"]["missed"]) == (0, 2) and said["a"]["late"] == 2, f"{said}: {server.text()}")
    no_workers("split_leaves")


def stopped(server, client, step):
    """Wait until the client's worker stops after that step, which the server has written down."""
    client.holds[step].reached(client.process)
    await_step(server, client.name, step)


def await_step(server, name, step):
    path, deadline = ROOT / server.path.stem / "clients" / name / "metrics.jsonl", time.time() + jobs.PATIENCE
    while not path.exists() or f'"step":{step},' not in path.read_text().replace(" ", ""):
        check(time.time() < deadline and server.process.poll() is None, f"no step {step} of {name}: {server.text()[-3000:]}")
        time.sleep(0.01)


def answered(stream):
    """All that comes until the end; a connection that is reset has none."""
    out = b""
    try:
        while piece := stream.recv(65536):
            out += piece
    except OSError:
        pass
    return out


def stranger(server, name, line):
    """What a holder of that certificate hears who says this."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.load_cert_chain(ROOT / f"{name}.pem")
    with socket.create_connection(("127.0.0.1", server.port)) as plain, context.wrap_socket(plain) as secure:
        secure.sendall(line)
        return answered(secure).decode()


def scenario_split_refused():
    """Strangers, other plans, other data, bad files, expired and revoked certificates: one line at both ends, and the others go on."""
    begin("a", "b", "c")
    records("c", 45, 9)
    server = Server(split("doors", rounds=3, **{**CODED, "split.clients": 2, "split.wait": "1s"}))

    def refused(what, ends, at_server, want=1, **options):
        client = Client(server, **options)
        said = client.end(want)
        check(ends in said, f"{what}: the client says {said}")
        if at_server:
            check(at_server in server.text(), f"{what}: the server says {server.text()}")

    refused("another codec", "edges.list.0.forward.bits: 4 there, 2 here", "c (127.0.0.1:", name="c",
            path=job("other", **{**CODED, "split.clients": 2, "pipeline.stages": STAGES, "split.rounds": 3, "split.epochs": 2,
                                 "security.keys": "x", "edges.forward.bits": 2}))
    refused("another cut", "pipeline.stages.0.layers", "has another plan", name="c",
            path=job("cut", **{**CODED, "split.clients": 2, "split.rounds": 3, "split.epochs": 2, "security.keys": "x",
                               "pipeline.stages": STAGES.replace("0-1", "0-2").replace("2-11", "3-11")}))
    (ROOT / "c.bin").write_bytes((ROOT / "c.bin").read_bytes()[:-7])
    refused("images of the wrong size", "c.bin", None, 2, name="c")
    broken = bytearray(records("c", 45, 9).read_bytes())
    broken[3073] = 77
    (ROOT / "c.bin").write_bytes(broken)
    refused("a label out of range", "label", None, 2, name="c")
    records("c", 45, 9)
    aqpipe("keys", "init", ROOT / "others", "--job", "split", "--stages", 3)
    aqpipe("keys", "enroll", ROOT / "others", "--site", "c", "--out", ROOT / "keys-others")
    refused("another authority's", "split", None, name="c", keys="keys-others")
    check("refused" in stranger(server, "keys-c/site-c", b'{"op":"ends","rank":0}\n'), "a first line that is no join")
    check("while it joins" in server.text(), server.text())
    long = json.dumps({"op": "join", "protocol": 1, "id": "c" * 5000}).encode() + b"\n"
    check(stranger(server, "keys-c/site-c", long) == "", "a first line of more than 4 KiB is answered")
    check(stranger(server, "keys/stage-0", b'{"op":"join"}\n') == "", "a stage's certificate is answered")
    check("aqpipe: a (" not in server.text(), server.text())  # an authority's digits may end in a
    with socket.create_connection(("127.0.0.1", server.port)) as bare:
        bare.sendall(b"GET / HTTP/1.1\r\n\r\n" * 100)
        check(b"joined" not in answered(bare), "who speaks no TLS is answered")
    check(aqpipe("keys", "revoke", ROOT / "keys", "site-c").returncode == 0, "revoke")
    done = Client(server, "c", "--patience", "1")
    _, said = done.process.communicate(timeout=jobs.PATIENCE)
    check(done.process.returncode == 1, f"a revoked client ended with {done.process.returncode}: {said}")
    check("joined" not in said, said)
    said = Client(server, "c", "--patience", "1", "--set", "split.server=127.0.0.1:1").process.communicate(timeout=jobs.PATIENCE)[1]
    check(said.count("waits for the split-server at 127.0.0.1:1, up to 1 s (--patience)") == 1, f"a client without a server: {said}")
    launched = aqpipe("launch", server.path)
    check(launched.returncode == 2 and "split-server" in launched.stderr, launched.stderr)

    clients = {name: Client(server, name, stops=(2,) if name == "a" else ()) for name in ("a", "b")}
    stopped(server, clients["a"], 2)  # revoked in mid-run: it is gone within seconds, and b goes on
    check(aqpipe("keys", "revoke", ROOT / "keys", "site-a").returncode == 0, "revoke a")
    clients["b"].end()
    server.end()
    clients["a"].release()
    said = clients["a"].end(1)
    check("its certificate is no longer valid" in server.text() or "revoked" in server.text(), server.text())
    lines = {line["name"]: line for line in report("doors")["clients"]}
    check(lines["b"]["turns"] == 3 and lines["a"]["turns"] < 3, f"{lines}: {said}")
    no_workers("split_refused")


EXAMPLES = pathlib.Path(__file__).resolve().parents[2] / "examples"


def example(name, asked, *short):
    """Its `run`, of two clients and one round."""
    run = EXAMPLES / name / "run"
    done = subprocess.run([run, *asked, "--clients", "2", "--out", ROOT / name, "--",
                           *(word for key in ("split.rounds=1", "split.epochs=1", "pipeline.threads=1", *short) for word in ("--set", key))],
                          env={**os.environ, "AQPIPE": str(jobs.BIN / "aqpipe")}, capture_output=True, text=True, timeout=jobs.PATIENCE)
    check(done.returncode == 0, f"{name}: run ended with {done.returncode}: {done.stderr[-3000:]}")
    said = report(f"{name}/server")
    check(said["rounds"] == 1 and [line["turns"] for line in said["clients"]] == [1, 1], f"{name}: {said}")
    check("## What you should see" in (run.parent / "README.md").read_text(), f"{name}: its README does not say what to see")
    return said


def scenario_split_privacy():
    """Clip and noise at the cuts: off they change no bit, noise is never the same twice, and both ends agree on them."""
    begin("a", "b")
    few = {**CODED, "split.rounds": 1, "split.epochs": 2}

    def run(name, **keys):
        server = whole(split(name, **{**few, **keys}), "a")
        return server, [line["loss"] for line in of_client(name, "a")]

    _, plain = run("bare")
    wide = {"split.privacy.clip": 1e9, "split.privacy.gradient_clip": 1e9}
    _, same = run("wide", **wide)
    check(same == plain, "a clip that no sample reaches changes losses")
    clipped = {"split.privacy.clip": 0.5, "split.privacy.gradient_clip": 0.01}
    tight = [run(f"tight-{i}", **clipped)[1] for i in range(2)]
    check(tight[0] == tight[1] and tight[0][0] != plain[0], f"clipped: {tight}, not: {plain}")
    for key in ("clip", "gradient_clip"):
        check(run(f"one-{key}", **{f"split.privacy.{key}": clipped[f"split.privacy.{key}"]})[1] not in (plain, tight[0]),
              f"split.privacy.{key} alone does nothing")
    for key in ("", "gradient_"):
        wanted = {**clipped, f"split.privacy.{key}noise": 0.1}
        noisy = [run(f"noisy-{key}{i}", **wanted)[1] for i in range(2)]
        check(noisy[0] != noisy[1] and tight[0] not in noisy, f"{key}noise is the same twice: {noisy}")
        said = report(f"noisy-{key}0")["privacy"]
        check({name: round(said[name.split(".")[-1]], 6) for name in wanted} == wanted, f"{said}")
    check(report("bare")["privacy"] is None, report("bare"))
    logs = "".join(path.read_text() for path in (ROOT / "tight-0-a").rglob("*.log"))
    check(logs.count("were clipped") == 2 and "activations that left" in logs and "gradients that left" in logs, logs[-2000:])

    server = Server(split("other", **{**few, **clipped}))
    other = Client(server, "a", path=split("loud", **{**few, **clipped, "split.privacy.noise": 1})).end(1)
    check("split.privacy.noise: " in other, other)
    Client(server, "b").end()
    server.end()
    for keys, text in (({"split.privacy.noise": 1}, "split.privacy.noise: needs split.privacy.clip"),
                       ({"split.privacy.gradient_noise": 1}, "needs split.privacy.gradient_clip"),
                       ({"split.privacy.clip": 1, "split.clients": 0}, "set split.clients")):
        done = aqpipe("plan", split("bad", **{**few, **keys}))
        check(done.returncode == 2 and text in done.stderr, f"{keys}: {done.returncode}, {done.stderr}")
    no_workers("split_privacy")


def scenario_split_privacy_frozen():
    """Before a cut that nothing trains before, a sample is sent once; one that both ends have lost is made again, clipped as before."""
    begin("a")
    os.environ["AQ_CPU"] = "plain"  # whose sums do not depend on how many samples a product has
    keys = {**PLAIN, "split.epochs": 1, "train.freeze": "patch 0", "split.seal": "false", "split.privacy.clip": 5}
    whole(split("kept", **{**keys, "split.rounds": 2}), "a")
    whole(split("lost", **{**keys, "split.rounds": 1}), "a")
    for seed, slab in enumerate((ROOT / "lost-a/run/cache/stage-0/slab", ROOT / "lost/clients/a/cache/stage-1/slab")):
        flip(slab, 4096, 1000, seed)
    whole(split("lost", **{**keys, "split.rounds": 2}), "a")
    logs = "".join(path.read_text() for path in (ROOT / "lost-a").rglob("stage-0.log"))
    check("lost at both ends: computed again" in logs, f"nothing was computed again: {logs[-2000:]}")
    mine, wanted = ([line["loss"] for line in of_client(name, "a")] for name in ("lost", "kept"))
    check(mine == wanted and len(mine) == 6, f"losses {mine}, where nothing was lost {wanted}")
    no_workers("split_privacy_frozen")


def seen(folder, flags=0, cut=False):
    """(kind, rows, columns, step, sample, values) of each record that a server wrote of a client, by docs/FORMAT.md. flags: of the files' heads. cut: the last record may be a part, because its writer is writing it."""
    found = []
    for path in sorted((ROOT / folder / "seen").glob("*.bin"), key=lambda path: int(path.stem)):
        data, at = path.read_bytes(), 16
        if cut and len(data) < at:
            continue
        check(data[:16] == b"aqpipe seen 2\n" + bytes([flags, 0]), f"{path} begins with {data[:16]}")
        while at < len(data):
            kind, rows, columns, zero, step, sample = struct.unpack("<IIIIQQ", data[at:at + 32].ljust(32, b"\0"))
            record_end = at + 32 + 4 * rows * columns
            if cut and record_end > len(data):
                break
            check(zero == 0 and record_end <= len(data), f"{path}: byte {at}")
            found.append((kind, rows, columns, step, sample, struct.unpack_from(f"<{rows * columns}f", data, at + 32)))
            at = record_end
    return found


def scenario_split_wipe():
    """The server's cache of a client is gone a while after its turn, on request, and at the end; losses are those of a run that kept it."""
    begin("a", "b")
    slow = {**CODED, "split.rounds": 2, "split.epochs": 1, "split.clients": 2, "split.wait": "60s"}
    whole(split("kept", **slow), "a", "b")
    wanted = {name: [line["loss"] for line in of_client("kept", name)] for name in "ab"}
    check(all((ROOT / f"kept/clients/{name}/cache/stage-1/slab").exists() for name in "ab"), "caches are wiped unasked")
    # Each cache outlives its turn by a second: the next turn stops until it is wiped.
    server = Server(split("gone", **{**slow, "split.cache_ttl": "1s"}))
    clients = {name: Client(server, name, stops=(0, 3)) for name in "ab"}
    for turn in range(4):
        server.await_text(" trains steps ", turn + 1)
        order = [line.split(": ")[2].split()[0] for line in server.text().splitlines() if " trains steps " in line]
        hold = clients[order[turn]].holds[3 * (turn // 2)]
        hold.reached(clients[order[turn]].process)
        server.await_text("is wiped", sum(one != after for one, after in zip(order, order[1:])))  # who has two turns in a row keeps it
        hold.release()
    for client in clients.values():
        client.end()
    server.end()
    said = server.text()
    check(said.count("is wiped") >= 3, f"not between turns and at the end: {said}")
    for name in "ab":
        check([line["loss"] for line in of_client("gone", name)] == wanted[name], f"{name}: a wiped cache changes losses")
        check(not (ROOT / f"gone/clients/{name}/cache/stage-1").exists(), f"{name}: a cache is left")
        check(list((ROOT / f"gone-{name}").rglob("cache/stage-0")), f"{name}: its own cache is gone")
    done = aqpipe("cache", "wipe", ROOT / "kept/clients/a")
    check(done.returncode == 0 and "wiped" in done.stdout and not (ROOT / "kept/clients/a/cache/stage-1").exists(), done.stderr)
    # One cache's bytes at most: the one whose turn comes last goes. 1 byte: none outlives its turn.
    one = sum(path.stat().st_size for path in (ROOT / "kept/clients/b/cache/stage-1").glob("*"))
    for name, most in (("some", 3 * one // 2), ("none", 1)):
        server = whole(split(name, **{**slow, "split.cache_max": most}), "a", "b")
        left = [each for each in "ab" if (ROOT / f"{name}/clients/{each}/cache/stage-1").exists()]
        check(len(left) <= (1 if name == "some" else 0) and "is wiped" in server.text(), f"{name}: {left} are left: {server.text()}")
        for each in "ab":
            check([line["loss"] for line in of_client(name, each)] == wanted[each], f"{name}: {each}: losses differ")
    longer = Server(split("kept", **{**slow, "split.rounds": 3}))
    clients = [Client(longer, name) for name in "ab"]
    for client in clients:
        client.end()
    longer.end()
    check(len(of_client("kept", "a")) == 9, "with a cache that was wiped on request it does not go further")
    no_workers("split_wipe")


def scenario_split_audit():
    """What the server's stage sees is written down where both ends ask for it, and audited; clips hold in it, and noise hides what a run without leaks."""
    begin("a")
    audit = pathlib.Path(__file__).resolve().parents[2] / "tools" / "split-audit"
    python = "/usr/bin/python3" if subprocess.run(["/usr/bin/python3", "-c", "import numpy"], capture_output=True).returncode == 0 else None

    def tool(*arguments):
        return subprocess.run([python or "python3", "-B", audit, *map(str, arguments)], capture_output=True, text=True, timeout=jobs.PATIENCE)

    records("a", 260, 3)
    records("others", 130, 4)
    if python:
        made = tool("--data", ROOT / "a.bin", "--make", ROOT / "others.bin", ROOT / "test.bin")
        check(made.returncode == 0 and "130 records" in made.stdout, made.stderr)
    heldout = (ROOT / "test.bin").stat().st_size // 3073
    few = {**PLAIN, "split.rounds": 2, "split.epochs": 1, "split.capture": "64MiB"}
    whole(split("seen", **few), "a")
    got = seen("seen/clients/a")
    count = {kind: sum(line[0] == kind for line in got) for kind in (1, 2, 3)}
    check(count == {1: 520, 2: 520, 3: 2 * heldout}, f"{count}")
    check({line[4] for line in got if line[0] == 1} == set(range(260)) and {line[3] for line in got if line[0] == 2} == set(range(26)),
          "samples or steps are not all there")
    check(not (ROOT / "seen-a" / "seen").exists(), "the client writes, too")
    norms = sorted(sum(value * value for value in line[5]) ** 0.5 for line in got if line[0] == 1)
    clip = norms[len(norms) // 2]
    limits = {"split.privacy.clip": clip, "split.privacy.gradient_clip": 0.05}
    whole(split("clipped", **{**few, **limits}), "a")
    for kind, *_, step, _, values in (line[:1] + line[3:] for line in seen("clipped/clients/a")):
        limit = 0.05 / 20 if kind == 2 else clip
        check(sum(value * value for value in values) ** 0.5 <= limit * (1 + 1e-6), f"step {step}, kind {kind}: beyond its clip")
    server = whole(split("full", **{**few, "split.capture": "100KiB"}), "a")
    check(sum(path.stat().st_size for path in (ROOT / "full/clients/a/seen").glob("*")) <= 2 * 102400, server.text())
    refused = Server(split("asks", **few))
    other = Client(refused, "a", path=split("unasked", **{**few, "split.capture": 0})).end(1)
    check("split.capture" in other, other)
    refused.process.terminate()
    refused.process.wait()
    bad = aqpipe("plan", split("bad", **{**few, "split.labels": "server", "pipeline.stages": "[{layers: 0-1, dials: true}, {layers: 2-13}]"}))
    check(bad.returncode == 2 and "split.capture" in bad.stderr, bad.stderr)
    if python:
        wanted = ("--data", ROOT / "a.bin", "--heldout", ROOT / "test.bin", "--json")
        done = tool(ROOT / "seen/clients/a", *wanted)
        said = {line["attack"]: line for line in map(json.loads, done.stdout.splitlines())}
        check(done.returncode == 1 and len(said) == 5, f"{done.returncode}: {done.stdout}{done.stderr}")
        check(said["inversion"]["verdict"] == said["membership"]["verdict"] == "leaks", f"{said}")
        # What the client writes of its samples is what the tool reads by itself, but for the scale of pixels.
        done = aqpipe("split-client", ROOT / "seen.yaml", "--id", "a", "--data", ROOT / "a.bin", "--samples", ROOT / "a.samples")
        check(done.returncode == 0, done.stderr)
        before = (ROOT / "a.bin").read_bytes()
        done = aqpipe("split-client", ROOT / "seen.yaml", "--id", "a", "--data", ROOT / "a.bin", "--samples", ROOT / "a.bin")
        check(done.returncode != 0 and "no file of samples" in done.stderr and (ROOT / "a.bin").read_bytes() == before, f"the data as --samples: {done.returncode} {done.stderr}")
        done = tool(ROOT / "seen/clients/a", "--samples", ROOT / "a.samples", "--json")
        again = {line["attack"]: line for line in map(json.loads, done.stdout.splitlines())}
        check(all(abs(again[attack][key] - line[key]) < 1e-3 for attack, line in said.items() for key in ("value", "positive")), f"{said}, with --samples {again}{done.stderr}")
        loud = {**limits, "split.privacy.noise": 1, "split.privacy.gradient_noise": 1}
        whole(split("loud", **{**few, **loud}), "a")
        done = tool(ROOT / "loud/clients/a", *wanted)
        check(done.returncode == 0 and done.stdout.count('"not found"') == 5, f"{done.returncode}: {done.stdout}{done.stderr}")
        damaged = ROOT / "seen/clients/a/seen/13.bin"
        damaged.write_bytes(damaged.read_bytes()[:16] + b"\xff" * 64)
        check(tool(ROOT / "seen/clients/a", *wanted).returncode == 2, "a damaged file is taken")
    no_workers("split_audit")


def scenario_split_example():
    """examples/split-cifar10, split-text and split-images, of two clients, one round and mostly a smaller network; with data, and with what they make."""
    small = ("model.depth=18", "model.filters=16", "train.batch=32", "train.micro_batch=16",
             "pipeline.stages=[{layers: 0-1, dials: true}, {layers: 2-8}, {layers: 9-10, dials: true}]")
    said = example("split-cifar10", ("--train", records("many", 120, 1), "--heldout", records("test", 20, 2)), *small)
    check(sum(line["samples"] for line in said["clients"]) == 120, f"{said}")
    (ROOT / "split-cifar10").rename(ROOT / "split-cifar10-given")
    subprocess.run([EXAMPLES / "split-cifar10/make-data", ROOT / "split-cifar10/made", "--train", "80", "--test", "20"], check=True, stdout=subprocess.DEVNULL)
    said = example("split-cifar10", (), *small)  # finds the records that are there, and makes none
    check(sum(line["samples"] for line in said["clients"]) == 80, f"{said}")
    lines = ROOT / "lines.txt"
    lines.write_text((ROOT / "train.txt").read_text().replace(" the ", "\nthe "))
    example("split-text", ("--train", lines, "--heldout", ROOT / "heldout.txt"), "model.channels=32", "model.head_dim=8", "model.mlp=48", "train.T=32",
            "model.context=32", "train.batch=8", "lora.rank=2")
    left = {path.name for path in (ROOT / "split-text/server").iterdir()}
    check({"adapter", "model.safetensors", "config.json"} <= left, f"split-text leaves {sorted(left)}")
    run = pathlib.Path(__file__).resolve().parents[2] / "examples/split-images/run"
    words = ("split.rounds=1", "split.epochs=1", "pipeline.threads=1", "data.heldout_samples_max=40")
    done = subprocess.run([run, "--clients", "2", "--images", "24", "--out", ROOT / "pictures", "--", *(word for key in words for word in ("--set", key))],
                          env={**os.environ, "AQPIPE": str(jobs.BIN / "aqpipe")}, capture_output=True, text=True, timeout=jobs.PATIENCE)
    check(done.returncode == 0, f"split-images: run ended with {done.returncode}: {done.stderr[-3000:]}")
    said = report("pictures/server")
    check(said["rounds"] == 1 and [line["samples"] for line in said["clients"]] == [24, 24], f"split-images: {said}")
    no_workers("split_example")


def scenario_split_reports():
    """examples/split-reports: texts, tokenizer and weights that it makes; of two clients and one round, made-up reports and CoLA's form; `compare` of one seed."""
    few = ("data.train_samples_max=64", "data.heldout_samples_max=16", "lora.rank=2")
    stale = ROOT / "split-reports/data/client-007.tsv"  # of a run with more clients
    stale.parent.mkdir(parents=True)
    stale.write_text("text\tlabel\nof another run\t0\n")
    example("split-reports", ("--sentences", "150"), *few)
    other = subprocess.run([EXAMPLES / "split-reports/run", "--prepare", "--sentences", "151", "--out", ROOT / "split-reports"], capture_output=True, text=True, check=False)
    check(other.returncode == 2 and "name another --out" in other.stderr, f"other sentences: {other.returncode} {other.stderr}")
    left = {path.name for path in (ROOT / "split-reports/server").iterdir()}
    check({"adapter", "model.safetensors", "config.json", "tokenizer.json"} <= left, f"split-reports leaves {sorted(left)}")
    (ROOT / "cola").mkdir()
    for name, count in (("train", 40), ("dev", 20)):
        (ROOT / f"cola/in_domain_{name}.tsv").write_text("".join(f"gj04\t{i % 2}\t{'' if i % 2 else '*'}\tThe sailors rode {'' if i % 2 else 'the '}breeze {name} {i}.\n"
                                                                for i in range(count)))
    words = [word for word in jobs.text(7, 4000).split() if word.isalpha()]
    (ROOT / "english.txt").write_text("".join(f"{' '.join(words[at:at + 6]).capitalize()}.\n" for at in range(0, len(words) - 6, 6)))
    asked = ("--cola", ROOT / "cola", "--text", ROOT / "english.txt", "--sentences", "150")
    environment = {**os.environ, "AQPIPE": str(jobs.BIN / "aqpipe")}
    command = [EXAMPLES / "split-reports/compare", *asked, "--clients", "2", "--seeds", "1", "--out", ROOT / "compared", "--",
               *(word for key in (*few, "split.rounds=1", "pipeline.threads=1") for word in ("--set", key))]
    first = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=jobs.PATIENCE)
    check(first.returncode == 0, f"compare ended with {first.returncode}: {first.stderr[-3000:]}")
    rows = [line for line in first.stdout.splitlines() if line.startswith("| 1 |")]
    check(len(rows) == 3 and "| +0.0000 |" in rows[0], first.stdout)
    losses_ = [json.loads((ROOT / "compared/seed-1" / each / "figures.json").read_text())["loss"] for each in ("one-place-fp32", "split-fp32", "split-fw2-5-bw4")]
    check(abs(losses_[1] / losses_[0] - 1) < 1e-5 and losses_[2] != losses_[0], f"global without codecs is not the run in one place: {rows}")
    def states():
        return {path: path.stat().st_mtime_ns for path in (ROOT / "compared").rglob("metrics.jsonl")}
    trained = states()
    again = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=jobs.PATIENCE)
    check(again.stdout.splitlines()[-6:] == first.stdout.splitlines()[-6:] and trained and states() == trained, f"asked again: {again.stdout}")
    few_words = subprocess.run([EXAMPLES / "split-reports/make-data", ROOT / "bad", "--cola", ROOT / "cola"], capture_output=True, text=True, check=False)
    check(few_words.returncode == 1 and "0 sentences to learn the language from" in few_words.stderr, few_words.stderr)
    done = subprocess.run([EXAMPLES / "split-reports/make-data", ROOT / "bad", "--cola", ROOT], capture_output=True, text=True, check=False)
    check(done.returncode == 1 and "No such file" in done.stderr, done.stderr)
    no_workers("split_reports")
