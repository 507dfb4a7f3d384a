#!/usr/bin/env python3
"""Strangers at the doors of a daemon and of a worker, and daemons that are not who they should be.

Certificates of another authority, of another part of the same job, expired, revoked, of another host, malformed or huge; no TLS,
old TLS; lists of revoked certificates that are damaged while a daemon runs; addresses that only look like this machine's own.
"""
import hmac
import json
import os
import pathlib
import random
import shutil
import socket
import ssl
import string
import subprocess
import threading
import time

import kit
from kit import jobs

HOST = "127.0.0.1"
STAGES = 4


def keys(*arguments):
    done = jobs.aqpipe("keys", *arguments)
    jobs.check(done.returncode == 0, f"keys {arguments}: {done.stdout}{done.stderr}")
    return done


def folder(name, job="attack"):
    """A folder of keys with its authority, made once."""
    path = jobs.ROOT / name
    if not path.exists():
        keys("init", path, "--job", job, "--stages", STAGES, "--hosts", f"{HOST},other")
    return path


def forge(name, alternative, days="30", use="clientAuth,serverAuth", more="", signer=None):
    """Our authority signs what `aqpipe keys` would not: a certificate with these subject alternative names. None: no openssl here."""
    ours = folder("ours")
    key, request, extensions, made = (jobs.ROOT / f"{name}.{end}" for end in ("key", "csr", "ext", "crt"))
    ca, ca_key = signer or (ours / "authority.pem", ours / "authority-key.pem")
    extensions.write_text(f"basicConstraints=critical,CA:FALSE\nkeyUsage=critical,digitalSignature\nextendedKeyUsage={use}\n"
                          f"{'subjectAltName=' + alternative if alternative else ''}\n{more}\n")
    tool = shutil.which("openssl")
    if not tool:
        return None

    def openssl(*arguments):
        done = subprocess.run([tool, *map(str, arguments)], capture_output=True, text=True, timeout=jobs.PATIENCE)
        return done.returncode == 0
    made_all = (openssl("req", "-new", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-keyout", key, "-subj",
                        "/O=attack/CN=launcher", "-out", request) and
                openssl("x509", "-req", "-in", request, "-CA", ca, "-CAkey", ca_key, "-days", days, "-extfile", extensions,
                        "-set_serial", random.Random(name).getrandbits(120), "-out", made))
    if not made_all:
        return None
    both = jobs.ROOT / f"{name}.pem"
    both.write_bytes(made.read_bytes() + key.read_bytes())
    return both


def forged(run):
    """What no daemon and no worker may take, from the authority's own key."""
    launcher, stage = "URI:aqpipe://attack/launcher", "URI:aqpipe://attack/stage/0"
    wanted = {
        "expired": dict(alternative=f"{launcher}", days="-1"),
        "expired stage": dict(alternative=f"{stage}", days="-1"),
        "no name": dict(alternative=""),
        "name of a host": dict(alternative="DNS:localhost,IP:127.0.0.1"),
        "two names": dict(alternative=f"{launcher},{stage}"),
        "another job": dict(alternative="URI:aqpipe://attacks/launcher"),
        "prefix of a job": dict(alternative="URI:aqpipe://attac/launcher"),
        "longer role": dict(alternative="URI:aqpipe://attack/launchers"),
        "escape": dict(alternative="URI:aqpipe://attack/\033[2J\a/launcher"),
        "server alone": dict(alternative=launcher, use="serverAuth"),
        "e-mail alone": dict(alternative=launcher, use="emailProtection"),
        "unknown critical": dict(alternative=launcher, more="1.2.3.4=critical,ASN1:UTF8String:x"),
        "huge": dict(alternative=launcher + "".join(f",DNS:{i:04}{'x' * 50}.example" for i in range(1500))),
        # a stage is no authority: what it signs is worth nothing
        "signed by a stage": dict(alternative=launcher,
                                  signer=(folder("ours") / "stage-1.pem", folder("ours") / "stage-1.pem")),
    }
    made = {}
    for name, how in wanted.items():
        path = forge("forged " + name, **how)
        if path:
            made[name] = path
        elif name not in ("expired", "expired stage"):  # not every openssl makes those
            run.skip(f"no certificate '{name}' could be made")
    return made


def context(identity, server=False, newest=ssl.TLSVersion.TLSv1_3):
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if server else ssl.PROTOCOL_TLS_CLIENT)
    made.check_hostname = False
    made.verify_mode = ssl.CERT_NONE
    made.maximum_version = newest
    if identity:
        made.load_cert_chain(identity)
    return made


def knock(port, identity, newest=ssl.TLSVersion.TLSv1_3, first=b""):
    """What the other end says to this identity: b"" where it says nothing but TLS. None: it is silent for too long."""
    with socket.create_connection((HOST, port), timeout=120) as plain:
        try:
            with context(identity, newest=newest).wrap_socket(plain) as sealed:
                if first:
                    sealed.sendall(first)
                return sealed.recv(4096)
        except TimeoutError:
            return None
        except (ssl.SSLError, OSError):
            return b""


def resume(port, identity):
    """Is a session of before taken up again, with its certificate unseen?"""
    ours = context(identity)
    with socket.create_connection((HOST, port), timeout=120) as plain, ours.wrap_socket(plain) as sealed:
        sealed.recv(4096)
        earlier = sealed.session
    with socket.create_connection((HOST, port), timeout=120) as plain, ours.wrap_socket(plain, session=earlier) as sealed:
        return sealed.session_reused or (sealed.session is not None and sealed.session.has_ticket)


def greet(port, identity):
    """A connection that has proved itself (there is no token: its key is empty)."""
    sealed = context(identity).wrap_socket(socket.create_connection((HOST, port), timeout=120))
    theirs, ours = json.loads(sealed.recv(4096))["nonce"], "0" * 32
    proof = hmac.new(b"", f"aqpipe client 1 {theirs} {ours}".encode(), "sha256").hexdigest()
    sealed.sendall(json.dumps({"op": "hello", "protocol": 1, "version": "0", "nonce": ours, "proof": proof}).encode() + b"\n")
    jobs.check(json.loads(sealed.recv(4096))["event"] == "welcome", "a good launcher is not welcome")
    return sealed


def judge(run, what, said):
    if said is None:
        run.hung(f"{what}: silence for 20 s")
    elif said:
        run.wrong(f"{what}: was told {said[:80]!r}")
    else:
        run.refused(what)


class Daemon:
    """An aqpiped under TLS on loopback, its keys in a folder of its own."""

    def __init__(self, name):
        ours = folder("ours")
        self.keys, self.port_file, self.log = jobs.ROOT / f"{name}-keys", jobs.ROOT / f"{name}-port", jobs.ROOT / f"{name}.log"
        keys("bundle", ours, self.keys, "--host", HOST, "--stages", "0-1")
        with open(self.log, "wb") as log:
            self.process = subprocess.Popen([jobs.BIN / "aqpiped", "--listen", f"{HOST}:0", "--keys", self.keys, "--port-file",
                                             self.port_file], stdin=subprocess.DEVNULL, stderr=log, stdout=log)
        jobs.await_file(self.port_file)
        self.port = int(self.port_file.read_text())

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait(jobs.PATIENCE)

    def takes(self, identity):
        """Does it greet this one?"""
        return b'"hello"' in (knock(self.port, identity) or b"")


@kit.attack("daemon")
def daemon(run, rng, count):
    ours, stranger, elsewhere = folder("ours"), folder("stranger"), folder("elsewhere", "attack2")
    parts = [f"stage-{s}.pem" for s in range(STAGES)] + [f"daemon-{HOST}.pem", "daemon-other.pem"]
    wrong = {f"of our {part}": ours / part for part in parts}
    wrong |= {f"of a stranger's {part}": stranger / part for part in parts + ["launcher.pem"]}
    wrong |= {f"of another job's {part}": elsewhere / part for part in parts + ["launcher.pem"]}
    wrong |= forged(run)
    with Daemon("daemon") as met:
        for name, identity in wrong.items():
            judge(run, f"a daemon to a certificate {name}", knock(met.port, identity))
        judge(run, "a daemon to no certificate", knock(met.port, None))
        judge(run, "a daemon to TLS 1.2", knock(met.port, ours / "launcher.pem", ssl.TLSVersion.TLSv1_2))
        with socket.create_connection((HOST, met.port), timeout=120) as plain:
            plain.sendall(b'{"op":"hello","protocol":1,"nonce":"00","proof":""}\n')
            said = plain.recv(4096)
        judge(run, "a daemon to plain bytes", b"" if said[:1] in (b"\x15", b"") else said)
        resumed = resume(met.port, ours / "launcher.pem")
        run.wrong("a session is resumed: its certificate would not be looked at") if resumed else run.refused("resumption")
        if met.takes(ours / "launcher.pem"):
            run.survived()
        else:
            run.wrong("the launcher's own certificate is not taken after all these")
    text = met.log.read_bytes()
    if any(byte < 32 and byte != 10 or byte > 126 for byte in text):
        run.wrong("a certificate's name reached the log with control characters")


@kit.attack("poser")
def poser(run, rng, count):
    """Somebody else where the launcher dials its daemon."""
    ours, stranger = folder("ours"), folder("stranger")
    keys("revoke", ours, "stage-3")  # from now on there is a list
    revoked = jobs.ROOT / "revoked-daemon.pem"
    shutil.copy2(ours / f"daemon-{HOST}.pem", revoked)
    wrong = {"another host's": ours / "daemon-other.pem", "a stage's": ours / "stage-0.pem", "a launcher's": ours / "launcher.pem",
             "a stranger's": stranger / f"daemon-{HOST}.pem", "a revoked": revoked}
    old = forge("old daemon", "URI:aqpipe://attack/daemon")
    client_only = forge("client daemon", f"URI:aqpipe://attack/daemon/{HOST}", use="clientAuth")
    wrong |= {name: path for name, path in (("everybody's", old), ("a client's", client_only)) if path}
    keys("revoke", ours, revoked)
    keys("add-host", ours, HOST)
    for name, identity in {**wrong, "the daemon's own": ours / f"daemon-{HOST}.pem"}.items():
        heard = []
        with socket.create_server((HOST, 0)) as door:
            def serve():
                plain, _ = door.accept()
                with plain:
                    plain.settimeout(120)
                    try:
                        with context(identity, server=True).wrap_socket(plain, server_side=True) as sealed:
                            sealed.sendall(b'{"event":"hello","protocol":1,"version":"0","nonce":"' + b"0" * 32 + b'"}\n')
                            heard.append(sealed.recv(4096))
                    except (ssl.SSLError, OSError):
                        pass
            thread = threading.Thread(target=serve)
            thread.start()
            done = jobs.aqpipe("status", "--daemon", f"{HOST}:{door.getsockname()[1]}", "--keys", ours)
            thread.join()
        if name == "the daemon's own":
            jobs.check(heard and b'"proof"' in heard[0], f"the attack itself does not speak as a daemon: {heard} {done.stderr}")
            run.survived()
        elif heard and heard[0]:
            run.wrong(f"a launcher talks to {name} certificate: {heard[0][:80]!r}")
        elif done.returncode != 1 or "presents aqpipe://" not in done.stderr:
            run.wrong(f"{name} certificate: no line says what it presents: {done.stderr}")
        else:
            run.refused(name)


@kit.attack("list", short=10, long=600)
def damaged_list(run, rng, count):
    """A list that changes and breaks while a daemon runs: who is revoked never gets in, who is not does whenever the list is whole."""
    ours = folder("ours")
    keys("init", ours, "--renew", "--stages", STAGES)
    stolen = jobs.ROOT / "stolen"
    keys("bundle", ours, stolen, "--launcher")
    with Daemon("list") as met:
        if not met.takes(stolen / "launcher.pem"):
            run.wrong("a good launcher is refused")
        standing = greet(met.port, stolen / "launcher.pem")
        keys("revoke", ours, "launcher")
        keys("init", ours, "--renew", "--stages", STAGES)
        whole = (ours / "revoked.pem").read_bytes()
        earlier = (met.keys / "revoked.pem").read_bytes() if (met.keys / "revoked.pem").exists() else b""
        shutil.copy2(ours / "revoked.pem", met.keys / "revoked.pem")
        run.survived() if not met.takes(stolen / "launcher.pem") else run.wrong("a revoked launcher gets in")
        try:  # one that has proved itself may be silent for 120 s
            ended = standing.recv(4096)
            run.refused("a connection that stood") if not ended else run.wrong(f"a revoked launcher is told {ended[:80]!r}")
        except TimeoutError:
            run.wrong("a revoked launcher's connection stands for 20 s")
        except OSError:
            run.refused("a connection that stood")
        for i in range(count):
            bytes_, kind = bytearray(whole), rng.randrange(5)
            if kind == 0:
                del bytes_[rng.randrange(len(bytes_)):]
            elif kind == 1:
                bytes_[rng.randrange(len(bytes_))] ^= 1 << rng.randrange(8)
            elif kind == 2:
                bytes_ = bytearray(earlier)
            elif kind == 3:
                begin = rng.randrange(len(bytes_))
                bytes_[begin:begin + 64] = rng.randbytes(64)
            path = met.keys / "revoked.pem"
            if kind == 4:
                path.unlink(missing_ok=True)
            elif rng.random() < 0.5:
                path.write_bytes(bytes_)
            else:
                (met.keys / "new").write_bytes(bytes_)
                (met.keys / "new").rename(path)
            if met.takes(stolen / "launcher.pem"):
                run.wrong(f"a revoked launcher gets in with a list of kind {kind}, round {i}")
            else:
                run.refused("a bad list")
            path.write_bytes(whole)
            if not met.takes(ours / "launcher.pem"):
                run.wrong(f"a good launcher is refused with a whole list again, round {i}")


@kit.attack("door", short=1, long=8)
def door(run, rng, count):
    """Strangers at the door of a worker that trains: nobody gets a HELLO, and the run is the one without them."""
    ours, stranger = folder("ours"), folder("stranger")
    keys("init", ours, "--renew", "--stages", STAGES, "--hosts", HOST)
    revoked = jobs.ROOT / "revoked-stage-0.pem"
    shutil.copy2(ours / "stage-0.pem", revoked)
    keys("revoke", ours, revoked)
    keys("init", ours, "--renew", "--stages", STAGES)
    wrong = {"another stage": ours / "stage-2.pem", "the worker itself": ours / "stage-1.pem", "a launcher": ours / "launcher.pem",
             "a daemon": ours / f"daemon-{HOST}.pem", "a stranger": stranger / "stage-0.pem", "revoked": revoked} | forged(run)
    small = {"train.epochs": 60, "edges.forward.codec": "aqsgd", "edges.backward.bits": 6, "link.rate_mbps": 10}
    stages = "[{layers: '0-2'}, {layers: '3-5', address: '%s:%d'}]"
    jobs.launch(jobs.manifest("undisturbed", **{**small, "pipeline.stages": stages % (HOST, jobs.lasting_port())}))
    for i in range(count):
        port, name = jobs.lasting_port(), f"disturbed-{i}"
        path = jobs.manifest(name, **{**small, "pipeline.stages": stages % (HOST, port), "security.keys": str(ours)})
        job = subprocess.Popen([jobs.BIN / "aqpipe", "launch", path, "--no-progress"], stdin=subprocess.DEVNULL,
                               stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        deadline = time.time() + jobs.PATIENCE
        while job.poll() is None and time.time() < deadline:
            try:
                socket.create_connection((HOST, port), timeout=120).close()
                break
            except ConnectionRefusedError:
                time.sleep(0.005)
        met = 0
        for what, identity in rng.sample(sorted(wrong.items()), len(wrong)):
            if job.poll() is not None:
                break
            try:
                said = knock(port, identity, first=b"AQPF" + rng.randbytes(rng.randrange(200)))
            except OSError:  # the job has just ended
                break
            judge(run, f"a worker to {what}", said)
            met += 1
        said = job.communicate(timeout=jobs.PATIENCE)[1]
        if job.returncode != 0:
            run.lost(f"the job ended with {job.returncode}: {said[-800:]}")
        elif jobs.losses(name) != jobs.losses("undisturbed"):
            run.wrong("strangers at the door changed the run's losses")
        elif met == 0:
            run.wrong("the job was over before anybody knocked: nothing was shown")
        else:
            run.survived()


def listens_beyond(pid, port):
    """Does a socket of this port listen at an address that is not loopback?"""
    for table in ("tcp", "tcp6"):
        for line in pathlib.Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
            local, state = line.split()[1], line.split()[3]
            address, at = local.split(":")
            four = address if len(address) == 8 else address.removeprefix("0000000000000000FFFF0000")
            loopback = address == "00000000000000000000000001000000" or len(four) == 8 and four.endswith("7F")
            if state == "0A" and int(at, 16) == port and not loopback:
                return True
    return False


@kit.attack("address", short=20, long=800)
def address(run, rng, count):
    """aqpiped without keys at addresses that only look like loopback, or like addresses."""
    fixed = ["127.1:0", "0x7f000001:0", "2130706433:0", "127.0.0.1:99999", "127.0.0.1:65536", "127.0.0.1:-1", "127.0.0.1:", "",
             ":0", "0.0.0.0:0", "[::]:0", "*:0", "[::ffff:0.0.0.0]:0", "127.0.0.1 :0", "::1:0", "[::1%lo]:0", "unix:///tmp/x"]
    token = jobs.ROOT / "token"
    token.write_text("a token that is long enough\n")
    token.chmod(0o600)
    for i in range(max(count, len(fixed))):
        if i < len(fixed):
            text = fixed[i]
        else:
            text = list(rng.choice(["127.0.0.1:0", "[::1]:0", "localhost:0", "0.0.0.0:0", "[::ffff:127.0.0.1]:0"]))
            for _ in range(rng.randrange(1, 4)):
                at, letter = rng.randrange(len(text)), rng.choice(string.digits + "abx.:[]%@*- ")
                text[at:at + rng.randrange(2)] = letter
            text = "".join(text)
        port_file = jobs.ROOT / f"address-{i}"
        more = rng.choice([[], ["--token-file", token]])
        process = subprocess.Popen([jobs.BIN / "aqpiped", "--listen", text, "--port-file", port_file, *more],
                                   stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
                                   env={**os.environ, "RES_OPTIONS": "timeout:1 attempts:1"})
        deadline = time.time() + jobs.PATIENCE
        while process.poll() is None and not port_file.exists() and time.time() < deadline:
            time.sleep(0.005)
        if process.poll() is None and not port_file.exists():
            run.hung(f"aqpiped --listen '{text}'")
        elif process.poll() is None and listens_beyond(process.pid, int(port_file.read_text())):
            run.wrong(f"aqpiped --listen '{text}' without keys listens beyond loopback")
        elif process.poll() is None:
            run.survived() if i >= len(fixed) else run.wrong(f"aqpiped --listen '{text}' is taken")
        else:
            run.refused(text)
        process.kill()
        said = process.communicate(timeout=jobs.PATIENCE)[1]
        if process.returncode not in (1, 2, -9) or (process.returncode > 0 and len(said.splitlines()) != 1):
            run.wrong(f"aqpiped --listen '{text}' ends with {process.returncode} and says {said[-300:]!r}")


kit.main("keys")
