#!/usr/bin/env python3
"""Attacks on the status page: slow connections that fill its places, old versions of TLS, keys that others can read, certificates for something else."""
import http.client
import random
import re
import signal
import socket
import ssl
import subprocess
import threading
import time

import kit
from kit import attack, jobs

TOKEN = "a-token-of-some-length-1234"
SOURCES = ("127.0.0.2", "127.0.0.3", "127.0.0.4")
MADE = {}


def openssl(*arguments):
    return subprocess.run(["openssl", *map(str, arguments)], capture_output=True, text=True, cwd=jobs.ROOT, timeout=300, stdin=subprocess.DEVNULL)


def certificate(name, *extensions, authority=None):
    """A key and a certificate of it, by itself or by an authority."""
    curve = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2")
    extra = [word for one in extensions for word in ("-addext", one)]
    signed = ("-CA", f"{authority}.pem", "-CAkey", f"{authority}.key") if authority else ()
    done = openssl("req", "-x509", *curve, "-keyout", f"{name}.key", "-out", f"{name}.pem", "-subj", f"/CN={name}", *extra, *signed)
    if done.returncode:
        raise AssertionError(done.stderr)
    (jobs.ROOT / f"{name}.key").chmod(0o600)


def made():
    if not MADE:
        (jobs.ROOT / "token").write_text(TOKEN + "\n")
        (jobs.ROOT / "token").chmod(0o600)
        certificate("server", "subjectAltName=IP:127.0.0.1")
        certificate("ca")
        certificate("good", "basicConstraints=critical,CA:FALSE", "extendedKeyUsage=clientAuth", authority="ca")
        certificate("bad", "basicConstraints=critical,CA:FALSE", "extendedKeyUsage=serverAuth", authority="ca")
        MADE["all"] = True
    return {"status.token_file": jobs.ROOT / "token"}


TLS = {"status.certificate": "server.pem", "status.key": "server.key", "status.client_authority": "ca.pem"}


class Page:
    def __init__(self, name, listen="127.0.0.1:0", **changes):
        path = jobs.manifest(name, **{"status.listen": listen, "pipeline.stages": 1, "train.epochs": 100000, "train.evaluate_every": 0,
                                      "data.heldout": None, "data.heldout_samples_max": None, **changes})
        self.process = subprocess.Popen([str(jobs.BIN / "aqpipe"), "launch", str(path), "--no-progress"], stderr=subprocess.PIPE, text=True,
                                        stdin=subprocess.DEVNULL)
        self.said = ""
        for line in self.process.stderr:
            self.said += line
            match = re.search(r"status page: https?://[^ ]*:(\d+)/", line)
            if match:
                self.port = int(match[1])
                break

    def get(self, context=None, timeout=5, source="127.0.0.1", **headers):
        kind = http.client.HTTPSConnection if context else http.client.HTTPConnection
        more = {"context": context} if context else {}
        connection = kind("127.0.0.1", self.port, timeout=timeout, source_address=(source, 0), **more)
        try:
            connection.request("GET", "/health", headers=headers)
            return connection.getresponse().status
        except OSError as error:
            return type(error).__name__
        finally:
            connection.close()

    def end(self):
        self.process.send_signal(signal.SIGINT)
        try:
            self.process.communicate(timeout=jobs.PATIENCE)
        except subprocess.TimeoutExpired:
            self.process.kill()


def drip(port, source, over, held, rng):
    """Connections that send a byte now and then, and come again where they are closed."""
    peers = []
    while not over.is_set():
        while len(peers) < 24:
            try:
                peer = socket.create_connection(("127.0.0.1", port), timeout=2, source_address=(source, 0))
                peer.sendall(b"GET / HTTP/1.1\r\nX: ")
                peers.append(peer)
            except OSError:
                break
        for peer in peers[:]:
            try:
                peer.send(bytes([rng.randrange(97, 122)]))
            except OSError:
                peers.remove(peer)
        held[source] = len(peers)
        over.wait(0.2)
    for peer in peers:
        peer.close()


@attack("slow connections", short=2, long=8)
def slow(run, rng, count):
    """72 of them from three addresses (or this one) that drip: who has the token is served, again and again."""
    for i in range(count):
        near = i % 2 == 1
        page = Page(f"slow{i}", listen="127.0.0.1:0" if near else "0.0.0.0:0", **made())
        over, held = threading.Event(), {}
        sources = ("127.0.0.1",) if near else SOURCES
        threads = [threading.Thread(target=drip, args=(page.port, source, over, held, random.Random(rng.random()))) for source in sources]
        for thread in threads:
            thread.start()
        end = time.monotonic() + 10
        while sum(held.values()) < 24 and time.monotonic() < end:
            time.sleep(0.05)
        served, tries = 0, 0
        for _ in range(10):
            for _ in range(40):  # behind the same address: at the latest some tries later
                tries += 1
                if page.get(Authorization=f"Bearer {TOKEN}") == 200:
                    served += 1
                    break
                time.sleep(0.05)
        over.set()
        for thread in threads:
            thread.join()
        page.end()
        if served == 10 and (near or tries <= 12):
            run.survived()
        else:
            run.wrong(f"{held} slow connections: the owner was served {served} of 10 times in {tries} tries")


@attack("tls and keys", short=1, long=1)
def tls_and_keys(run, rng, count):
    made()
    keys = {key: jobs.ROOT / name for key, name in TLS.items()}
    (jobs.ROOT / "server.key").chmod(0o644)
    page = Page("open-key", **keys)
    page.process.wait(jobs.PATIENCE)
    if page.process.returncode == 2 and "chmod 600" in page.said:
        run.refused()
    else:
        run.wrong(f"a key that others can read: {page.process.returncode} {page.said}")
    (jobs.ROOT / "server.key").chmod(0o600)
    page = Page("sealed", **keys)
    for version in ("tls1", "tls1_1", "tls1_2"):
        done = openssl("s_client", "-connect", f"127.0.0.1:{page.port}", f"-{version}", "-cipher", "ALL:@SECLEVEL=0")
        if re.search(r"Cipher is (?!\(NONE\))\S", done.stdout):
            run.wrong(f"{version} is taken: {re.search('Cipher is .*', done.stdout)[0]}")
        else:
            run.refused()
    for name, wanted in (("good", 200), ("bad", 401), (None, 401)):
        context = ssl.create_default_context(cafile=jobs.ROOT / "server.pem")
        if name:
            context.load_cert_chain(jobs.ROOT / f"{name}.pem", jobs.ROOT / f"{name}.key")
        got = page.get(context)
        if got == wanted:
            run.refused() if wanted == 401 else run.survived()
        else:
            run.wrong(f"the certificate {name}: {got} and not {wanted}")
    page.end()


if __name__ == "__main__":
    kit.main("page")
