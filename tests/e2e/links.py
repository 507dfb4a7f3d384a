"""Links: cut, gone, paced, packed, dialled, under TLS."""
import contextlib
import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import time

import jobs
import rounds
from jobs import aqpipe, check, launch, losses, manifest, metrics, no_workers, weights
from kit import BIN, REPLICAS, RESTARTED, ROOT, end, marked, refused, same_run, start


def scenario_tls():
    """Links under mutual TLS change no bit; a worker with another stage's key, or of another authority, is refused by name."""
    keys = {"edges.forward.codec": "aqsgd", "edges.forward.bits": 3, "edges.backward.codec": "directq",
            "edges.backward.bits": 6}
    folder = ROOT / "keys"
    done = aqpipe("keys", "init", folder, "--job", "e2e", "--stages", 4)
    check(done.returncode == 0 and "aqpipe://e2e/stage/3" in done.stdout, f"keys init: {done.stdout}{done.stderr}")
    launch(manifest("plain", **keys))
    secure = {**keys, "security.tls": "on", "security.keys": str(folder)}
    launch(manifest("tls", **secure))
    check(losses("tls") == losses("plain"), f"losses under TLS {losses('tls')} are not {losses('plain')}")
    check(weights("tls") == weights("plain"), "model.safetensors differs under TLS")
    launch(manifest("tls-paced", **secure), "--set", "link.rate_mbps=200")
    check(losses("tls-paced") == losses("plain"), "losses under paced TLS differ")
    launch(manifest("tls-streams", **secure), "--set", "link.streams=4")
    check(losses("tls-streams") == losses("plain"), "losses over four connections a link differ")
    check(weights("tls-streams") == weights("plain"), "model.safetensors differs over four connections a link")

    def refused(name, want, words, **changes):
        done = launch(manifest(name, **{**secure, **changes}), want=want)
        logs = "".join(log.read_text() for log in (ROOT / name / "logs").glob("*")) if (ROOT / name / "logs").exists() else ""
        check(words in done.stderr + logs, f"{name}: nothing says '{words}':\n{done.stderr}\n{logs}")
        check(not metrics(name) if (ROOT / name / "metrics.jsonl").exists() else True, f"{name}: it has trained")

    stranger = ROOT / "stranger"
    aqpipe("keys", "init", stranger, "--job", "e2e", "--stages", 4)
    mine = (folder / "stage-2.pem").read_bytes()
    for name, pem, words in (("stage", (folder / "stage-1.pem").read_bytes(), "is the certificate of aqpipe://e2e/stage/1"),
                             ("authority", (stranger / "stage-2.pem").read_bytes(), "is not valid"),
                             ("damaged", mine[:300], "copy it again")):
        (folder / "stage-2.pem").write_bytes(pem)
        refused(name, 2, words)
    (folder / "stage-2.pem").write_bytes(mine)
    (folder / "stage-2.pem").chmod(0o644)
    refused("loose", 2, f"chmod 600 {folder}/stage-2.pem")
    check("chmod 600" in aqpipe("keys", "show", folder).stderr, "keys show takes a file that others may read")
    (folder / "stage-2.pem").chmod(0o600)
    refused("without", 2, "aqpipe keys init", **{"security.keys": "''"})
    refused("outside", 2, "security.tls: off", **{"security.tls": "auto", "security.keys": "''", "link.host": "0.0.0.0"})
    launch(manifest("outside-off", **{**keys, "security.tls": "off", "link.host": "0.0.0.0"}))
    check(losses("outside-off") == losses("plain"), "losses without TLS on all addresses differ")
    launch(manifest("outside-on", **{**secure, "security.tls": "auto", "link.host": "0.0.0.0"}))
    check(losses("outside-on") == losses("plain"), "losses with TLS by default differ")
    no_workers("tls")


def scenario_quic():
    """Links over QUIC change no bit, plain, under TLS and paced; keys of TCP beside it are refused by name."""
    keys = {"edges.forward.codec": "aqsgd", "edges.forward.bits": 3, "edges.backward.codec": "directq",
            "edges.backward.bits": 6}
    quic = {**keys, "link.protocol": "quic"}
    folder = ROOT / "keys"
    done = launch(manifest("both", **{**quic, "link.streams": 4}), want=2)
    if "built without QUIC" in done.stderr:
        print("quic: built without it, which was said in one line")
        return
    check("link.streams, link.copies and link.congestion are of tcp" in done.stderr, done.stderr)
    check(aqpipe("keys", "init", folder, "--job", "e2e", "--stages", 4).returncode == 0, "keys init")
    launch(manifest("tcp", **keys))
    for name, more in (("quic", {}), ("quic-tls", {"security.tls": "on", "security.keys": str(folder)}), ("quic-paced", {"link.rate_mbps": 200})):
        launch(manifest(name, **{**quic, **more}))
        check(losses(name) == losses("tcp"), f"losses over {name} {losses(name)} are not {losses('tcp')}")
        check(weights(name) == weights("tcp"), f"model.safetensors differs over {name}")
    both = {**REPLICAS, "train.staleness": 1, "link.rtt_ms": 40}  # with clipping; planned as far links
    for name, protocol in (("tcp-replicas", "tcp"), ("quic-replicas", "quic")):
        launch(manifest(name, **{**both, "link.protocol": protocol}))
    check(losses("quic-replicas") == losses("tcp-replicas") and weights("quic-replicas") == weights("tcp-replicas"), "replicas over quic are not those over tcp")
    launch(manifest("quic", **{**quic, "train.epochs": 4}), "--resume")  # a second call in the folder, longer
    no_workers("quic")


def scenario_tls_daemon():
    """Daemons under TLS: each takes its own host's keys; a launcher of another authority, or none, gets nothing."""
    folder, here, stranger = ROOT / "keys", ROOT / "host", ROOT / "stranger"
    for path in (folder, stranger):
        check(aqpipe("keys", "init", path, "--job", "e2e", "--stages", 2, "--hosts", "127.0.0.1,other").returncode == 0, "keys init")
    done = aqpipe("keys", "bundle", folder, here, "--host", "127.0.0.1", "--stages", 1)
    check(done.returncode == 0 and sorted(p.name for p in here.iterdir()) ==
          ["authority.pem", "daemon-127.0.0.1.pem", "stage-1.pem"], f"keys bundle: {done.stdout}{done.stderr}")
    (folder / "stage-1.pem").unlink()  # the launcher's host has no need of it
    done = subprocess.run([BIN / "aqpiped", "--listen", "0.0.0.0:0"], capture_output=True, text=True,
                          timeout=jobs.PATIENCE)
    check(done.returncode == 2 and "--keys DIR" in done.stderr, f"a daemon open to all has begun: {done.stderr}")
    log = open(ROOT / "daemon.log", "wb")
    daemon = subprocess.Popen([BIN / "aqpiped", "--listen", "0.0.0.0:0", "--keys", here, "--port-file", ROOT / "port"],
                              stdin=subprocess.DEVNULL, stderr=log, stdout=log)
    try:
        jobs.await_file(ROOT / "port")
        address = "127.0.0.1:" + (ROOT / "port").read_text().strip()

        def ask(*arguments):
            done = aqpipe("status", "--daemon", address, *arguments)
            return done.returncode, done.stdout + done.stderr
        code, said = ask("--keys", folder)
        check(code == 0 and "no job" in said, f"status under TLS: {said}")
        code, said = ask("--keys", stranger)
        check(code == 1 and "presents aqpipe://e2e/daemon/127.0.0.1, which is not valid" in said, f"another authority: {said}")
        shutil.copy2(folder / "authority.pem", stranger / "authority.pem")
        code, said = ask("--keys", stranger)
        check(code == 1 and "not valid" in said, f"a certificate that is not of the authority beside it: {said}")
        code, said = ask()
        check(code == 1 and "security.keys" in said, f"without keys: {said}")
        done = aqpipe("status", "--daemon", f"other@{address}", "--keys", folder)
        check(done.returncode == 1 and "presents aqpipe://e2e/daemon/127.0.0.1, expected aqpipe://e2e/daemon/other of" in done.stderr,
              f"another host's daemon: {done.stderr}")
        with socket.create_connection(("127.0.0.1", int(address.split(":")[1]))) as plain:
            plain.sendall(b'{"op":"hello","protocol":1}\n')
            plain.settimeout(jobs.PATIENCE)
            check(b"{" not in plain.recv(4096), "plain bytes were answered")
        two = {"train.epochs": 2, "edges.forward.codec": "aqsgd", "edges.backward.bits": 6}
        stages = "[{layers: '0-2'}, {layers: '3-5'%s}]"
        launch(manifest("plain", **{**two, "pipeline.stages": stages % ""}))
        stolen = ROOT / "stolen"
        aqpipe("keys", "bundle", folder, stolen, "--launcher")
        path = manifest("far", **{**two, "pipeline.stages": stages % f", host: 'tcp://{address}'",
                                  "security.tls": "on", "security.keys": str(folder)})
        launch(path)
        check(losses("far") == losses("plain"), f"losses {losses('far')} are not {losses('plain')}")
        done = aqpipe("keys", "revoke", folder, "launcher")
        check(done.returncode == 0 and "REVOKED" in done.stdout, f"keys revoke: {done.stdout}{done.stderr}")
        shutil.copy2(folder / "revoked.pem", here / "revoked.pem")  # the daemon runs on
        code, said = ask("--keys", stolen)
        check(code == 1 and "refuses our certificate aqpipe://e2e/launcher" in said, f"a revoked launcher: {said}")
        done = aqpipe("keys", "init", folder, "--renew", "--stages", 2)
        code, said = ask("--keys", folder)
        check(code == 0 and "no job" in said, f"the new launcher's certificate: {done.stderr}{said}")
        refused = launch(manifest("refused", **{**two, "pipeline.stages": stages % f", host: 'tcp://{address}'",
                                                "security.tls": "off"}), want=1)
        check("security.keys" in refused.stderr, f"a launcher without TLS: {refused.stderr}")
    finally:
        daemon.terminate()
        daemon.wait(jobs.PATIENCE)
    said = (ROOT / "daemon.log").read_text()
    check("the peer does not speak TLS, expected aqpipe://e2e/launcher" in said, f"the daemon's log: {said}")
    check("presents aqpipe://e2e/launcher, which was revoked on 20" in said, f"the daemon's log: {said}")
    no_workers("tls_daemon")


CUT = {"edges.forward.codec": "aqsgd", "edges.forward.bits": 3, "edges.backward.codec": "directq",
       "edges.backward.bits": 6, "checkpoint.every": "3 steps", "train.epochs": 6}


def scenario_outage():
    """Links that are cut again and again heal, and the losses are the undisturbed run's, bit for bit."""
    keys = CUT
    launch(manifest("whole", **keys))
    for seed, every, streams in ((1, 6000, 1), (2, 6000, 1), (3, 2500, 4)):  # of four connections one is cut at a time
        name = f"cut{seed}"
        with jobs.faults(links=f"seed={seed}&cut_every={every}"):
            launch(manifest(name, **keys), "--set", f"link.streams={streams}")
        heals = sum(metrics(name)[-1]["heals"])
        check(heals >= 50, f"{name}: only {heals} links were healed")
        check(losses(name) == losses("whole"), f"{name}: losses {losses(name)} are not {losses('whole')}")
        check(weights(name) == weights("whole"), f"{name}: model.safetensors differs")
        check(metrics(name, "end")[-1]["state"] == "done", f"{name}: {metrics(name, 'end')}")
        print(f"{name}: {heals} links healed")
    no_workers("outage")
    path = manifest("ends", **{**keys, "link.outage_max": 0})
    with jobs.faults(links="seed=1&cut_every=20000"):
        refused("outage_max 0", path, r"without a BYE|connection broke", 1)


def scenario_clock():
    """The time of day jumps by hours, forward and back, while links heal and certificates are looked at: nothing comes of it."""
    keys = {**CUT, "pipeline.stages": 2, "pipeline.replicas": 2, "security.tls": "on", "security.keys": str(ROOT / "keys")}
    done = aqpipe("keys", "init", ROOT / "keys", "--job", "e2e", "--stages", 4)  # one a rank
    check(done.returncode == 0, f"keys init: {done.stdout}{done.stderr}")
    launch(manifest("whole", **keys))
    os.environ["LD_PRELOAD"] = str(BIN / "libclock_jump.so")
    try:
        with jobs.faults(links="seed=1&cut_every=20000"):
            launch(manifest("jumps", **keys), "--set", "link.silence_max=2s", "--set", "link.outage_max=20s")
    finally:
        del os.environ["LD_PRELOAD"]
    check(losses("jumps") == losses("whole"), f"losses {losses('jumps')} are not {losses('whole')}")
    check(weights("jumps") == weights("whole"), "model.safetensors differs where the clock jumped")
    logs = "".join(log.read_text() for log in (ROOT / "jumps" / "logs").glob("*"))
    hours = {line[11:13] for line in logs.splitlines() if re.match(r"\d{4}-\d\d-\d\dT", line)}
    check(len(hours) > 3, f"the logs know of hours {hours} alone: did the clock jump?")
    for word in ("silen", "nothing came for", "stuck", "certificate", "not valid"):
        said = [line for line in logs.splitlines() if word in line]
        check(not said, f"the logs say: {said[:3]}")
    heals = sum(metrics("jumps")[-1]["heals"])
    check(heals > 3, f"only {heals} links were healed: certificates were hardly looked at")
    check(metrics("jumps", "end")[-1]["state"] == "done", f"{metrics('jumps', 'end')}")
    times = [line["time"] for event in ("step", "end") for line in metrics("jumps", event)]
    check(all(0 <= after - before < 60 for before, after in zip(times, times[1:])), f"the run's times jump: {times}")
    print(f"hours {sorted(hours)}, {heals} links healed")
    no_workers("clock")


def scenario_packed():
    """Packing changes no bit: losses and weights are those without, also where links are cut; the figures say what went out."""
    keys = {**CUT, **REPLICAS, "model.channels": 64, "reduce.codec": "q4", "link.entropy": "off"}
    launch(manifest("off", **keys))
    report = json.loads((ROOT / "off" / "report.json").read_text())["runs"][0]
    check(report["packed"] == 1 and report["packing_share"] == 0, f"off: packed to {report['packed']}")
    plain = report["bytes_per_step"]
    check(plain["forward"] == plain["forward_wire"] and plain["gradient"] == plain["gradient_wire"], f"off: {plain}")
    cases = {"zstd": {"link.entropy": "zstd"}, "auto": {"link.entropy": "auto", "link.rate_mbps": 200},
             "cut": {"link.entropy": "zstd"}}
    for name, changes in cases.items():
        with jobs.faults(links="seed=1&cut_every=20000") if name == "cut" else contextlib.nullcontext():
            launch(manifest(name, **{**keys, **changes}))
        check(losses(name) == losses("off"), f"{name}: losses {losses(name)} are not {losses('off')}")
        check(weights(name) == weights("off"), f"{name}: model.safetensors differs")
        fetched = sum(x or 0 for line in metrics(name) for x in line["fetched"])
        check(fetched == 0, f"{name}: {fetched} messages were fetched: the caches were not one")
        run = json.loads((ROOT / name / "report.json").read_text())["runs"][0]
        sent = run["bytes_per_step"]
        for way in ("forward", "backward", "gradient"):
            check(sent[way] == plain[way], f"{name}: {way} of {sent[way]} bytes before packing, without it {plain[way]}")
            check(sent[way + "_wire"] <= sent[way], f"{name}: {way}: {sent}")
        check(sent["gradient_wire"] < 0.9 * sent["gradient"] and run["packed"] < 0.95, f"{name}: nothing was packed: {sent}")
        check(run["packing_share"] > 0 and (name == "cut" or run["sent_wire_bytes"] < report["sent_wire_bytes"]),
              f"{name}: {run['sent_wire_bytes']} bytes went out, without packing {report['sent_wire_bytes']}")
        print(f"{name}: packed to {run['packed']:.3f}: {sent}")
    check(sum(sum(line["heals"]) for line in metrics("cut")[-1:]) >= 10, "the links were not cut")
    no_workers("packed")


def scenario_long_outage():
    """A link that stays away for longer than outage_max: the job stops, says which link, and its last checkpoint is whole."""
    keys = {**RESTARTED, "pipeline.stages": 2, "link.outage_max": "1s", "link.connect_max": "2s"}
    launch(manifest("whole", **{**RESTARTED, "pipeline.stages": 2}))
    down = ROOT / "down"
    os.environ.update(jobs.faulty(links=f"cut_while={down}"))

    def run(path, *arguments, back=False):
        """Launch; at step 8 the link goes down, for good or (back) until the launcher has given up waiting for it."""
        hold = jobs.Hold(9)
        process = start(path, *arguments, environment=hold.environment())
        hold.reached(process)
        marked(path, 8)
        down.touch()
        hold.release()
        for line in process.stdout:
            if json.loads(line).get("event") == "restart" and back:
                down.unlink()
        _, errors = process.communicate(timeout=jobs.PATIENCE)
        down.unlink(missing_ok=True)
        no_workers(path.stem)
        return process.returncode, errors

    for name, arguments in (("stops", ("--restarts", "0")), ("tries", ("--restarts", "1"))):
        path = manifest(name, **keys)
        code, errors = run(path, *arguments)
        check(code == 1, f"{name}: exit code {code}\n{errors}")
        check(re.search(r"stage \d failed: .*could not be restored for .* longer than outage_max \(1\.0 s\)", errors),
              f"{name}: not said:\n{errors}")
        check(metrics(name, "end")[-1]["state"] == "failed", f"{name}: {metrics(name, 'end')}")
        mark = json.loads((ROOT / name / "checkpoint" / "complete").read_text())["step"]
        check(mark >= 6 and mark % 3 == 0, f"{name}: the complete checkpoint is that of step {mark}")
        hint = re.search(rf"the checkpoint of step {mark} is kept; continue with: aqpipe (resume .*)", errors)
        check(hint, f"{name}: not said:\n{errors}")
        done = aqpipe(*shlex.split(hint[1]), "--no-progress")
        check(done.returncode == 0, f"{name}: {hint[0]}: {done.returncode}\n{done.stderr}")
        same_run(name, "whole")
        print(f"{name}: stopped with the checkpoint of step {mark}")
    path = manifest("back", **keys)
    code, errors = run(path, back=True)
    check(code == 0, f"back: exit code {code}\n{errors}")
    same_run("back", "whole")


def scenario_held():
    """Holds of tests (kit/faulty_worker.c): the run stands in that step and no later one, at every phase and rank, and is the undisturbed run."""
    keys = {**RESTARTED, "pipeline.stages": 3, "train.epochs": 4}
    launch(manifest("whole", **keys))
    path = manifest("held", **keys)
    first = jobs.Hold(2)
    holds = [first, *(jobs.Hold(step, phase, rank, first.folder) for step, phase, rank in
                      ((3, "forward", 1), (5, "backward", 2), (6, "end", 1), (6, "write", 2), (9, "begin", 2)))]
    process = start(path, environment=first.environment(), lines=False)
    workers = set()
    for hold in holds:
        workers.add(hold.reached(process))
        rank, step, phase = hold.asked.name.split(".")
        time.sleep(0.1)
        steps = [line["step"] for line in metrics("held")] if (ROOT / "held" / "metrics.jsonl").exists() else []
        check(not steps or max(steps) <= int(step) - (phase != "write") or phase == "write" and max(steps) < 9, f"{hold.asked.name}: it goes on: {steps}")
        check(phase != "write" or (ROOT / "held/checkpoint/6/stage-2.safetensors.partial").exists(), "no file is half written")
        hold.release()
    _, errors = process.communicate(timeout=jobs.PATIENCE)
    check(process.returncode == 0 and len(workers) == 3, f"held: {process.returncode}, workers {workers}: {errors[-2000:]}")
    same_run("held", "whole")
    no_workers("held")


def scenario_dials():
    """A stage that dials both its neighbours, as one behind NAT must: no bit changes, cut links heal, TLS holds."""
    keys = {**CUT, "pipeline.stages": "[{layers: 0-1}, {layers: 2-3}, {layers: 4-5}]"}
    dials = "[{layers: 0-1}, {layers: 2-3, dials: true}, {layers: 4-5}]"
    launch(manifest("listens", **keys))
    launch(manifest("dials", **{**keys, "pipeline.stages": dials}))
    same_run("dials", "listens")
    # One port a stage, for whoever comes: stage 0 and 2 listen, 1 does not; or 0 and 2 dial, and 1 listens for both.
    ports = [jobs.lasting_port() for _ in range(3)]
    at = "[{layers: 0-1, address: 127.0.0.1:%d}, {layers: 2-3, dials: true}, {layers: 4-5, address: 127.0.0.1:%d}]"
    launch(manifest("ports", **{**keys, "pipeline.stages": at % (ports[0], ports[2])}))
    same_run("ports", "listens")
    between = "[{layers: 0-1, dials: true}, {layers: 2-3, address: 127.0.0.1:%d}, {layers: 4-5, dials: true}]" % ports[1]
    launch(manifest("between", **{**keys, "pipeline.stages": between}))
    same_run("between", "listens")
    folder = ROOT / "keys"
    check(aqpipe("keys", "init", folder, "--job", "e2e", "--stages", 3).returncode == 0, "keys init")
    secure = {**keys, "security.tls": "on", "security.keys": str(folder)}
    for name, stages in (("dials", dials), ("between", between)):
        for tls, base in (("", keys), ("-tls", secure)):
            cut = f"{name}-cut{tls}"
            with jobs.faults(links="seed=3&cut_every=6000"):
                launch(manifest(cut, **{**base, "pipeline.stages": stages}))
            heals = sum(metrics(cut)[-1]["heals"])
            check(heals >= 30, f"{cut}: only {heals} links were healed")
            same_run(cut, "listens")
            print(f"{cut}: {heals} links healed")
    path = manifest("both", **{**keys, "pipeline.stages": "[{layers: 0-1}, {layers: 2-3, dials: true}, {layers: 4-5}]"})
    path.write_text(path.read_text().replace("{layers: 4-5}", "{layers: 4-5, dials: true}"))
    refused("both dial", path, r"both\.yaml:\d+:\d+: pipeline\.stages\.2\.dials: stage 1 dials too", 2)
    no_workers("dials")


@contextlib.contextmanager
def relay(port=0, *arguments, by=signal.SIGTERM):
    """`aqpiped --relay` on this machine: its port. `by`: the signal that ends it."""
    port_file = ROOT / "relay.port"
    port_file.unlink(missing_ok=True)
    with open(ROOT / "relay.txt", "ab") as log:
        process = subprocess.Popen([BIN / "aqpiped", "--relay", f"127.0.0.1:{port}", "--port-file", port_file, *arguments],
                                   stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    try:
        jobs.await_file(port_file)
        yield int(port_file.read_text())
    finally:
        process.send_signal(by)
        check(process.wait(jobs.PATIENCE) == 0, f"the relay ended with {process.returncode}")


def scenario_relay():
    """Neighbours that both dial meet at a relay: no bit changes, cut links heal, replicas too, a relay that is started again, a longer run in the same folder."""
    folder = ROOT / "keys"
    check(aqpipe("keys", "init", folder, "--job", "e2e", "--stages", 4).returncode == 0, "keys init")
    secure = {**CUT, "security.keys": str(folder)}
    all_dial = "[{layers: 0-1, dials: true}, {layers: 2-3, dials: true}, {layers: 4-5, dials: true}]"
    two_dial = "[{layers: 0-1, dials: true}, {layers: 2-3, dials: true}, {layers: 4-5}]"
    both = {**REPLICAS, "security.keys": str(folder)}
    launch(manifest("listens", **{**secure, "pipeline.stages": 3}))
    launch(manifest("near", **both))
    with relay() as port:
        met = {**secure, "link.relay": f"127.0.0.1:{port}"}
        for name, stages in (("all", all_dial), ("two", two_dial)):
            launch(manifest(name, **{**met, "pipeline.stages": stages}))
            same_run(name, "listens")
        launch(manifest("paced", **{**met, "pipeline.stages": all_dial, "link.rate_mbps": 100, "link.streams": 3}))
        same_run("paced", "listens")
        with jobs.faults(links="seed=3&cut_every=6000"):
            launch(manifest("cut", **{**met, "pipeline.stages": all_dial}))
        heals = sum(metrics("cut")[-1]["heals"])
        check(heals >= 10, f"cut: only {heals} links were healed")
        same_run("cut", "listens")
        print(f"cut: {heals} links healed over the relay")
        launch(manifest("replicas", **{**both, "link.relay": f"127.0.0.1:{port}", "pipeline.stages": "[{layers: 0-2, dials: true}, {layers: 3-5, dials: true}]"}))
        check(losses("replicas") == losses("near") and weights("replicas") == weights("near"), "replicas over a relay are not those without")
        texts = "".join(log.read_text() for log in (ROOT / "all" / "logs").glob("*"))
        check("waits at the relay" in texts and "room=" not in texts, f"a room's name is in a log, or no stage has waited:\n{texts[-2000:]}")
        plan = aqpipe("plan", ROOT / "all.yaml")
        relayed = [edge.get("relayed") for edge in json.loads(aqpipe("plan", ROOT / "two.yaml", "--json").stdout)["edges"]]
        check(relayed == [True, None], f"relayed edges of two.yaml: {relayed}")
        check(f"127.0.0.1:{port}" in plan.stdout, f"the plan does not name the relay:\n{plan.stdout}")
        probed = aqpipe("plan", ROOT / "all.yaml", "--probe")
        check(probed.returncode == 0 and f"the relay 127.0.0.1:{port}" in probed.stdout + probed.stderr, f"plan --probe: {probed.returncode}\n{probed.stdout}{probed.stderr}")
        check("can be reached" in aqpipe("doctor", ROOT / "all.yaml").stdout, "doctor does not look at the relay")
        shown = aqpipe("doctor", manifest("gone", **{**met, "pipeline.stages": all_dial, "link.relay": "127.0.0.1:1"}))
        check("cannot reach the relay 127.0.0.1:1" in shown.stdout and "the daemon at 127.0.0.1:1" not in shown.stdout + shown.stderr, f"doctor, no relay:\n{shown.stdout}{shown.stderr}")
        check("room=" not in (ROOT / "relay.txt").read_text(), "the relay logs rooms")
    healed = relay_that_dies(port, {**met, "pipeline.stages": all_dial})
    same_run("again", "listens")
    check(healed > 0, "the relay that was started again: no link has healed")
    longer = {"train.epochs": 8}
    with relay(port):
        launch(manifest("all", **{**met, **longer, "pipeline.stages": all_dial}), "--resume")  # a longer run in the folder
    launch(manifest("listens", **{**secure, **longer, "pipeline.stages": 3}), "--resume")
    same_run("all", "listens")
    path = manifest("bad", **{**met, "pipeline.stages": all_dial})
    refused("no relay there", path, r"start aqpiped --relay there", 1, "--set", "link.relay=127.0.0.1:1", "--set", "link.connect_max=3s")
    refused("quic", path, r"link\.relay: .*a relay carries TCP only", 2, "--set", "link.protocol=quic")
    refused("no keys", path, r"link\.relay: needs security\.keys", 2, "--set", "security.keys=''", "--set", "security.tls=off")
    refused("no port", path, r"link\.relay: 'relay\.example' is not an address", 2, "--set", "link.relay=relay.example")
    refused("without", path, r"pipeline\.stages\.1\.dials: stage 0 dials too.*link\.relay", 2, "--set", "link.relay=''")
    for arguments in (("--relay", "127.0.0.1:0", "--keys", str(folder)), ("--relay", "127.0.0.1:0", "--listen", "127.0.0.1:0"), ("--relay", "127.0.0.1:0", "--relay-rate", "x"),
                      ("--relay", "127.0.0.1:0", "--allow-data", str(folder)), ("--relay", "127.0.0.1:0", "--max-memory", "1G"), ("--relay", "127.0.0.1:0", "--without-landlock"),
                      ("--listen", "127.0.0.1:0", "--relay-rate", "5")):
        done = subprocess.run([BIN / "aqpiped", *arguments], capture_output=True, text=True, timeout=jobs.PATIENCE)
        check(done.returncode == 2, f"aqpiped {arguments}: {done.returncode} {done.stderr}")
    no_workers("relay")


def scenario_relay_rounds():
    """reduce.patience where all stages dial: the round ends without a lost replica; a stage that dials does not return by itself, so all start again from that round's checkpoint, over the relay. The bits are those of a return without one."""
    folder = ROOT / "keys"
    check(aqpipe("keys", "init", folder, "--job", "e2e", "--stages", 4).returncode == 0, "keys init")
    keys = {**rounds.ROUNDS, "security.keys": str(folder)}
    rounds.lose("near", keys, 3, 6)
    with relay() as port:
        path = manifest("far", **{**keys, "link.relay": f"127.0.0.1:{port}", "pipeline.stages": "[{layers: 0-2, dials: true}, {layers: 3-5, dials: true}]"})
        hold = jobs.Hold(6, "backward", 3)
        process = start(path, environment=hold.environment(), lines=False)
        end(hold.reached(process))
        hold.release()
        _, errors = process.communicate(timeout=jobs.PATIENCE)
    check(process.returncode == 0, f"far: {process.returncode}: {errors[-3000:]}")
    for name in ("near", "far"):
        check(rounds.rounds(name) == [(8, [0], [1])], f"{name}: {rounds.rounds(name)}")
    check(not metrics("near", "restart") and [line["step"] for line in metrics("far", "restart")] == [8], f"far: {metrics('far', 'restart')}")
    check(weights("far") == weights("near") and losses("far") == losses("near"), "far: other weights than without the relay")
    check((ROOT / "far" / "logs" / "stage-0.log").read_text().count("waits at the relay") == 2, "far: its links are not relayed")
    no_workers("relay_rounds")


def relay_that_dies(port, keys):
    """A relay that ends while a job runs, and comes back at its port: how many links healed."""
    path = manifest("again", **keys)
    hold = jobs.Hold(4)
    with relay(port, by=signal.SIGHUP):
        process = start(path, environment=hold.environment(), lines=False)
        hold.reached(process)
    with relay(port):
        hold.release()
        _, errors = process.communicate(timeout=jobs.PATIENCE)
    check(process.returncode == 0, f"again: {process.returncode}: {errors[-2000:]}")
    return sum(x or 0 for x in metrics("again")[-1]["heals"])
