"""The status page of a launch: what it shows, who may look, and that nobody who looks holds a run up."""
import html.parser
import http.client
import json
import os
import pathlib
import pty
import re
import select
import signal
import socket
import ssl
import subprocess
import sys
import termios
import time
import urllib.parse

import jobs
import openmetrics
from kit import ROOT, check, end
from jobs import aqpipe, descendant, manifest, metrics

SHARE = pathlib.Path(__file__).resolve().parents[2] / "share"
NAME = '"<script>alert(1)</script> & co"'


class Page:
    """A launch with a page; `close` stops it with a checkpoint."""

    def __init__(self, name, tls=None, **changes):
        job = manifest(name, **{"job.name": NAME, "status.listen": "127.0.0.1:0", "pipeline.stages": 2, "train.epochs": 100000,
                                "train.evaluate_every": "50 steps", "checkpoint.every": "20 steps", **changes})
        self.process = subprocess.Popen([jobs.BIN / "aqpipe", "launch", job, "--no-progress"], stderr=subprocess.PIPE, text=True)
        line = self.process.stderr.readline()
        match = re.search(r"status page: (https?://\S+/)\n", line)
        if not match:
            _, more = self.process.communicate(timeout=jobs.PATIENCE)
            self.refusal = (self.process.returncode, line + more)
            return
        self.refusal, self.url, self.tls = None, urllib.parse.urlsplit(match[1]), tls

    def get(self, path, method="GET", timeout=jobs.PATIENCE, **headers):
        """Status, headers, text."""
        kind = (lambda *a, **k: http.client.HTTPSConnection(*a, context=self.tls, **k)) if self.tls else http.client.HTTPConnection
        connection = kind(self.url.hostname, self.url.port, timeout=timeout)
        try:
            connection.request(method, path, headers=headers)
            answer = connection.getresponse()
            return answer.status, dict(answer.getheaders()), answer.read().decode()
        finally:
            connection.close()

    def status(self):
        return json.loads(self.get("/status.json")[2])

    def until(self, what, good):
        """The status, as soon as it is `good`."""
        deadline = time.time() + jobs.PATIENCE
        while True:
            said = self.status()
            if good(said):
                return said
            check(time.time() < deadline and self.process.poll() is None, f"{what}: {said}")
            time.sleep(0.05)

    def close(self):
        self.process.send_signal(signal.SIGINT)
        _, errors = self.process.communicate(timeout=jobs.PATIENCE)
        check(self.process.returncode == 3, f"exit code {self.process.returncode}: {errors[-1000:]}")


class Tags(html.parser.HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.tags, self.words, self.outside = [], "", []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.outside += [value for key, value in attrs if key in ("src", "href") and re.match(r"(\w+:)?//", value or "")]

    def handle_data(self, data):
        self.words += data


def looks(page):
    """What it says while a job runs."""
    early = page.until("it waits and says for what", lambda said: said["state"] != "running" or said["step"] > 0)
    check(early["state"] == "running" or early["waits_for"] and early["remedy"], f"a state without a reason: {early}")
    said = page.until("steps, evaluation, checkpoint", lambda said: said["step"] > 55 and said["heldout_loss"] and said["checkpoint"] >= 20)
    check(said["job"] == NAME.strip('"') and said["state"] == "running" and len(said["ranks"]) == 2 and said["loss"] > 0, said)
    first, last = said["ranks"]
    check(first["bytes"]["forward"] > 0 and last["bytes"]["backward"] > 0 and first["cut"]["contraction"] > 0, said)
    status, headers, text = page.get("/")
    seen = Tags(text)
    check(status == 200 and "default-src 'none'" in headers["Content-Security-Policy"], headers)
    check(seen.tags.count("script") == 1 and not seen.outside and "<script>alert(1)" in seen.words, "HTML of others is text")
    check(seen.tags.count("svg") >= 4 and seen.tags.count("table") == 3 and "loss" in seen.words, seen.tags)
    check("<html" not in page.get("/body")[2] and page.get("/page.js")[0] == 200 and page.get("/page.css")[0] == 200, "parts")
    status, headers, text = page.get("/metrics")
    samples = openmetrics.read(text)
    check("application/openmetrics-text" in headers["Content-Type"], headers)
    job = ("job", NAME.strip('"'))
    check(samples[("aqpipe_state", (("aqpipe_state", "running"), job))] == 1 and samples[("aqpipe_loss", (job,))] > 0, text)
    check(samples[("aqpipe_sent_bytes_total", (job, ("replica", "0"), ("stage", "0"), ("way", "forward")))] > 0, text)
    there = {key[0] for key in samples} | {"aqpipe_state"}  # a run without evaluation, or with one stage, has fewer
    for file in SHARE.rglob("aqpipe*.*"):
        asked = set(re.findall(r"\baqpipe_[a-z_]+", file.read_text()))
        check(len(asked) > 5 and asked <= there, f"{file} asks for {asked - there}")
    check(json.loads((SHARE / "grafana/aqpipe.json").read_text())["panels"], "a dashboard")
    try:
        from prometheus_client.openmetrics import parser
        check(sum(len(family.samples) for family in parser.text_string_to_metric_families(text)) == len(samples), "prometheus_client")
    except ImportError:
        pass
    check(page.get("/health")[0] == 200 and page.get("/nothing")[0] == 404 and page.get("/", "HEAD")[2] == "", "paths")
    check(page.get("/", "POST")[0] == 405 and page.get("/", Host="evil.example")[0] == 403, "only GET, only this machine's names")
    check(page.get("/", Host=f"localhost:{page.url.port}")[0] == 200, "localhost")
    start = metrics("page", "start")[0]
    check(start["status_page"] == page.url.geturl(), start)


def watched(page):
    """aqpipe top in a terminal: where ranks run, what columns mean on `?`, and a terminal that is as before at the end."""
    ours, theirs = pty.openpty()
    before = termios.tcgetattr(theirs)
    top = subprocess.Popen([jobs.BIN / "aqpipe", "top", ROOT / "page", "--seconds", "200ms"], stdin=theirs, stdout=theirs, stderr=theirs)
    shown, deadline = "", time.time() + jobs.PATIENCE
    try:
        def until(word):
            nonlocal shown
            while word not in shown:
                check(time.time() < deadline and top.poll() is None, f"top shows no '{word}': {shown[-2000:]}")
                if select.select([ours], [], [], 0.2)[0]:
                    shown += os.read(ours, 65536).decode(errors="replace")
        until("? explains the columns")
        check(termios.tcgetattr(theirs)[3] & termios.ECHO == 0, "keys are shown")
        os.write(ours, b"?")
        until("waiting for a link or for the message cache")
        check("device" in shown and "memory" in shown and "cpu" in shown, shown)
        os.write(ours, b"q")
        check(top.wait(jobs.PATIENCE) == 0, "q ends it")
        check(termios.tcgetattr(theirs) == before, "the terminal is not as before")
    finally:
        top.kill()
        os.close(ours)
        os.close(theirs)
    jobs_of_a_shell()
    ranks = json.loads(aqpipe("top", ROOT / "page", "--once", "--json").stdout)["ranks"]
    check([rank["host"] for rank in ranks] == [None, None] and all(rank["memory_planned"] > 0 for rank in ranks), ranks)
    check(all(rank["device"].startswith("cpu: ") or rank["device"] in ("cpu", "auto") for rank in ranks), ranks)
    long, folder = ".".join(["gpu-node"] * 27) + ":7000", ROOT / "long"
    folder.mkdir()
    start = {**metrics("page", "start")[0], "hosts": [long, None], "devices": ["cuda:0 " + "N" * 90 + ", more", None]}
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in (start, metrics("page", "step")[0])))
    ranks = json.loads(aqpipe("top", folder, "--once", "--json").stdout)["ranks"]
    check(ranks[0]["host"] == long and ranks[0]["device"] == "cuda:0 " + "N" * 90, ranks)
    check(f" {long[:24]}... " in aqpipe("top", folder, "--once").stdout, "the table")


# What a shell does, in a terminal of its own: `top` in the foreground, Ctrl-Z, bg, fg, q; `top &`; `top --json`. After each it prints
# a word, whether the terminal shows keys, and `top`'s state in /proc.
SHELL = '''
import os, signal, subprocess, sys, termios, time
signal.signal(signal.SIGTTOU, signal.SIG_IGN)
def begin(front, *more):
    def own():
        os.setpgid(0, 0)
        if front: os.tcsetpgrp(0, os.getpgrp())
        signal.signal(signal.SIGTTOU, signal.SIG_DFL)
    return subprocess.Popen([*sys.argv[1:], *more], stderr=subprocess.DEVNULL, preexec_fn=own)
def await_all(top, what, echo, state):
    deadline = time.time() + 300
    while True:
        has = (bool(termios.tcgetattr(0)[3] & termios.ECHO), open(f"/proc/{top.pid}/stat").read().rsplit(")", 1)[1].split()[0])
        if has[0] == echo and has[1] in state: break
        if time.time() > deadline: sys.exit(f"<{what}: echo {has[0]}, state {has[1]}>")
        time.sleep(0.01)
    print(f"<{what}>", flush=True)
top = begin(True)
await_all(top, "front", False, "SR")
os.kill(top.pid, signal.SIGTSTP)
await_all(top, "stopped", True, "T")
os.tcsetpgrp(0, os.getpgrp())
os.kill(top.pid, signal.SIGCONT)
await_all(top, "back", True, "SR")
os.tcsetpgrp(0, top.pid)
os.kill(top.pid, signal.SIGCONT)
await_all(top, "front again", False, "SR")
print("<q>", flush=True)
code = top.wait(300)
os.tcsetpgrp(0, os.getpgrp())
print(f"<ended {code} {bool(termios.tcgetattr(0)[3] & termios.ECHO)}>", flush=True)
top = begin(False)
print("<keys>", flush=True)
time.sleep(0.5)
await_all(top, "background", True, "SR")
top.terminate()
top.wait(300)
top = begin(True, "--json")
print("<keys>", flush=True)
time.sleep(0.5)
await_all(top, "json", True, "SR")
top.terminate()
top.wait(300)
print("<done>", flush=True)
'''


def jobs_of_a_shell():
    """Ctrl-Z gives the terminal back and fg takes it again; neither `top &` nor `top --json` reads keys or changes the terminal."""
    pid, ours = pty.fork()
    if pid == 0:
        os.execv(sys.executable, [sys.executable, "-c", SHELL, str(jobs.BIN / "aqpipe"), "top", str(ROOT / "page"), "--seconds", "100ms"])
    shown, deadline, answered = "", time.time() + jobs.PATIENCE, 0
    try:
        while "<done>" not in shown:
            check(time.time() < deadline, f"top under a shell: {re.findall('<[a-z].*?>', shown)}")
            if select.select([ours], [], [], 0.2)[0]:
                try:
                    shown += os.read(ours, 65536).decode(errors="replace")
                except OSError:  # it has ended
                    break
            asked = shown.count("<q>") + shown.count("<keys>")
            if asked > answered:
                os.write(ours, b"q" if asked == 1 else b"q\n")
                answered = asked
        said = [word for word in re.findall("<[a-z].*?>", shown) if word != "<script>"]  # of the job's name
        check(said == ["<front>", "<stopped>", "<back>", "<front again>", "<q>", "<ended 0 True>", "<keys>", "<background>", "<keys>", "<json>", "<done>"], said)
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(ours)


def floods(page):
    """Browsers that hang and one that asks without end: the run goes on, and others are answered."""
    before, hanging = page.status()["step"], []
    for _ in range(60):
        try:
            one = socket.create_connection((page.url.hostname, page.url.port), timeout=5)
            one.sendall(b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Slow: ")
            hanging.append(one)
        except OSError:  # as many as may
            pass
    step = int(metrics("page")[-1]["step"])
    deadline = time.time() + jobs.PATIENCE
    while int(metrics("page")[-1]["step"]) < step + 20:
        check(time.time() < deadline, "browsers that hang hold the run up")
        time.sleep(0.05)
    for one in hanging:
        one.close()
    status, connection = None, http.client.HTTPConnection(page.url.hostname, page.url.port, timeout=jobs.PATIENCE)
    while status != 200:  # the closed ones are noticed soon
        check(time.time() < deadline, "no answer after browsers that hung")
        try:
            connection.request("GET", "/metrics")
            status = (answer := connection.getresponse()).status
            answer.read()
        except (OSError, http.client.HTTPException):
            connection.close()
            time.sleep(0.1)
    texts = set()
    for _ in range(300):
        connection.request("GET", "/metrics")
        texts.add(connection.getresponse().read())
    connection.close()
    check(len(texts) < 100, f"{len(texts)} documents were made for 300 questions")
    page.until("the run went on", lambda said: said["step"] > before + 20)


def restarts(page):
    """A stage that is killed: the page says so, and goes on with the run."""
    before = page.status()["checkpoint"]
    end(descendant(page.process.pid, "worker"))
    said = page.until("a restart", lambda said: said["restarts"] == 1 and said["state"] == "running" and said["step"] > before)
    check("killed" in said["cause"] and any("restarted" in finding["text"] for finding in said["findings"]), said)
    samples = openmetrics.read(page.get("/metrics")[2])
    check(samples[("aqpipe_restarts_total", (("job", said["job"]),))] == 1, "the counter")


def refusals(page):
    def refused(words, code=2, **changes):
        run = Page("refused", **changes)
        check(run.refusal and run.refusal[0] == code and words in run.refusal[1], f"{words}: {run.refusal}")
        check(len(run.refusal[1].strip().split("\n")) == 1 and not (ROOT / "refused").exists(), run.refusal)

    refused("the port is taken", 1, **{"status.listen": f"127.0.0.1:{page.url.port}"})
    refused("set status.token_file", **{"status.listen": "0.0.0.0:0"})
    refused("is not an address", **{"status.listen": "here"})
    (ROOT / "token").write_text('sixteen "characters" and more\n')
    (ROOT / "token").chmod(0o600)
    refused("a browser takes no token", **{"status.token_file": ROOT / "token"})
    (ROOT / "token").write_text("correct-horse-battery\n")
    (ROOT / "token").chmod(0o644)
    refused("token", 1, **{"status.token_file": ROOT / "token"})
    (ROOT / "token").chmod(0o600)
    done = aqpipe("plan", manifest("keys", **{"status.key": ROOT / "token"}))
    check(done.returncode == 2 and "status.key" in done.stderr and "status.listen" in done.stderr, done)


def guarded():
    """With a token, under TLS, and with a client's certificate."""
    def make(*arguments):
        subprocess.run(["openssl", *map(str, arguments)], check=True, capture_output=True, cwd=ROOT)

    curve = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2")
    for name in "server", "stranger", "ca":
        make("req", "-x509", *curve, "-keyout", f"{name}.key", "-out", f"{name}.pem", "-subj", f"/CN={name}", "-addext",
             "subjectAltName=IP:127.0.0.1")
    make("req", *curve[:-2], "-keyout", "client.key", "-out", "client.csr", "-subj", "/CN=client")
    make("x509", "-req", "-in", "client.csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-days", "2", "-out", "client.pem")
    trust = ssl.create_default_context(cafile=ROOT / "server.pem")
    page = Page("guarded", tls=trust, **{"status.token_file": ROOT / "token", "status.certificate": ROOT / "server.pem",
                                         "status.key": ROOT / "server.key", "status.client_authority": ROOT / "ca.pem"})
    check(not page.refusal, page.refusal)
    for path in "/", "/metrics", "/status.json", "/health", "/page.js", "/?token=wrong":
        status, headers, text = page.get(path)
        check(status == 401 and "WWW-Authenticate" in headers and "loss" not in text, f"{path} without a token: {status}")
    check(page.get("/", Authorization="Bearer wrong")[0] == 401 and page.get("/", Authorization="Bearer correct-horse-batter")[0] == 401, "wrong")
    check(page.get("/metrics", Authorization="Bearer correct-horse-battery")[0] == 200, "the token")
    status, headers, _ = page.get("/?token=correct-horse-battery")
    cookie = headers.get("Set-Cookie", "")
    check(status == 303 and headers["Location"] == "/" and "HttpOnly" in cookie and "Secure" in cookie and "Strict" in cookie, headers)
    check(page.get("/", Cookie=cookie.split(";")[0])[0] == 200 and page.get("/", Cookie="aqpipe_token=x")[0] == 401, "the cookie")
    trust.load_cert_chain(ROOT / "client.pem", ROOT / "client.key")
    check(page.get("/")[0] == 200, "a client's certificate")
    page.tls = ssl.create_default_context(cafile=ROOT / "server.pem")
    page.tls.load_cert_chain(ROOT / "stranger.pem", ROOT / "stranger.key")
    try:
        check(page.get("/")[0] == 401, "a certificate of somebody else's")
    except (OSError, http.client.HTTPException):
        pass  # refused before
    page.tls = ssl.create_default_context(cafile=ROOT / "server.pem")
    deadline = time.time() + jobs.PATIENCE
    while json.loads(page.get("/status.json", Authorization="Bearer correct-horse-battery")[2])["step"] < 1:
        check(time.time() < deadline, "no step")
        time.sleep(0.05)
    page.close()


def scenario_page():
    page = Page("page")
    if page.refusal and "without libmicrohttpd" in page.refusal[1]:
        check(page.refusal[0] == 1 and len(page.refusal[1].strip().split("\n")) == 1, page.refusal)
        print("page: built without libmicrohttpd, which was said in one line")
        sys.exit(77)
    check(not page.refusal, page.refusal)
    try:
        looks(page)
        watched(page)
        floods(page)
        restarts(page)
        refusals(page)
        page.close()
    finally:
        page.process.kill()
    guarded()
