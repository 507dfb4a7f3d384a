"""Split learning: the server's cache of a client is sealed under a key that the client keeps."""
import json
import stat

from jobs import aqpipe, check, no_workers
from kit import ROOT
from split import CODED, Client, Server, begin, of_client, split, stopped, whole
from split_codecs import VIEWS


def slab(folder):
    return next((ROOT / folder).rglob("cache/stage-*/slab"))


def pieces(path):
    """32 bytes of each block that holds some: what a search for messages finds them by."""
    data = path.read_bytes()
    return {data[at:at + 32] for at in range(4096, len(data), 4096)} - {bytes(32)}


def run(server, clients):
    for client in clients:
        client.end()
    server.end()


def killed(server):
    """Both clients and then the server are killed in mid-turn, and all of it is trained. The server that ended it."""
    clients = {who: Client(server, who, stops=(2,)) for who in "ab"}
    for who, then in (("b", ()), ("a", (4,))):
        stopped(server, clients[who], 2)
        clients[who].kill()
        clients[who] = Client(server, who, stops=then)
    stopped(server, clients["a"], 4)
    server.process.kill()
    server.process.wait()
    clients["a"].release()
    last = Server(server.path, "--set", f"split.server='127.0.0.1:{server.port}'")
    run(last, clients.values())
    return last


def scenario_split_seal():
    """Sealed, the server's disk holds no message and the losses are the same: whole, killed, with a forged cache, and with a lost key."""
    begin("a", "b")
    keys = {**CODED, "split.rounds": 3, "split.epochs": 1, "split.clients": 2, "checkpoint.every": "2 steps"}
    whole(split("clear", **{**keys, "split.seal": "false"}), "a", "b")
    wanted = {name: [line["loss"] for line in of_client("clear", name)] for name in "ab"}

    def same(name):
        for who in "ab":
            check([line["loss"] for line in of_client(name, who)] == wanted[who], f"{name}: losses of {who} differ")

    # Server and clients are killed in mid-turn: the run that was not.
    killed(Server(split("sealed", **keys)))
    same("sealed")

    # Both ends hold the same messages; the server's disk shows them in the clear alone.
    for who in "ab":
        mine = pieces(slab(f"clear-{who}"))
        check(len(mine) > 20 and len(mine & pieces(slab(f"clear/clients/{who}"))) > len(mine) // 2, f"{who}: the search finds nothing")
        check(not pieces(slab(f"sealed-{who}")) & pieces(slab(f"sealed/clients/{who}")), f"{who}: a message lies on the server's disk")
    key = ROOT / "sealed-a/seal.key"
    check(key.stat().st_size == 32 and stat.S_IMODE(key.stat().st_mode) == 0o600, f"{key.stat()}")
    check(key.read_bytes() != (ROOT / "sealed-b/seal.key").read_bytes() and not (ROOT / "clear-a/seal.key").exists(), "keys")
    for path in (ROOT / "sealed").rglob("*"):
        check(not path.is_file() or key.read_bytes() not in path.read_bytes(), f"the key is in {path}")

    # Tools say what they can.
    folder = ROOT / "sealed/clients/a"
    done = aqpipe("cache", "stat", folder, "--json")
    check(done.returncode == 0 and json.loads(done.stdout)["sealed"] is True, f"{done.stdout}{done.stderr}")
    check("sealed" in aqpipe("cache", "stat", folder).stdout, "stat")
    for verb in ("verify", "compact"):
        done = aqpipe("cache", verb, folder)
        check(done.returncode == 1 and "is sealed under a key that only its client has" in done.stderr, f"{verb}: {done.stderr}")
    check(aqpipe("cache", "verify", ROOT / "clear/clients/a").returncode == 0, "a cache in the clear is verified")

    # A forged cache (of a) and a lost key (b's) cost bytes alone.
    whole(split("forged", **{**keys, "split.rounds": 2}), "a", "b")
    path = slab("forged/clients/a")
    data = bytearray(path.read_bytes())
    for at in range(4096, len(data), 4096):
        data[at + 5] ^= 1
    path.write_bytes(data)
    (ROOT / "forged-b/seal.key").unlink()
    server = Server(split("forged", **keys))
    run(server, [Client(server, who) for who in "ab"])
    same("forged")
    logs = {who: "".join(path.read_text() for path in (ROOT / f"forged/clients/{who}").rglob("*.log")) for who in "ab"}
    check("its encryption check failed" in logs["a"] and "sealed under another key" not in logs["a"], logs["a"][-3000:])
    check(logs["b"].count("is sealed under another key") == 1 and "starts empty" in logs["b"], logs["b"][-3000:])

    # A key that others may read, and one that is none: refused, one line, nothing is sent.
    server = Server(split("shut", **{**keys, "split.rounds": 1}))
    (ROOT / "shut-a").mkdir()
    for data, mode, word, code in ((bytes(32), 0o644, "chmod 600", 1), (bytes(31), 0o600, "31 bytes", 2)):
        (ROOT / "shut-a/seal.key").write_bytes(data)
        (ROOT / "shut-a/seal.key").chmod(mode)
        said = Client(server, "a").end(code)
        check(word in said and said.count("seal.key") >= 1 and len(said.splitlines()) == 1, said)
    # Both ends must say the same of it.
    said = Client(server, "b", "--set", "split.seal=false").end(1)
    check("split.seal: true there, none here" in said, said)
    server.process.terminate()
    server.process.wait()
    no_workers("split_seal")


def scenario_split_together():
    """Labels at the server, crops and flips, statistics that stay at clients, a penalty on what activations tell, and a sealed cache that is wiped: killed, it is the run in the clear that was not."""
    begin("a", "b")
    keys = {**CODED, **VIEWS, "split.labels": "server", "pipeline.stages": "[{layers: 0-1, dials: true}, {layers: 2-13}]",
            "split.statistics": "local", "split.privacy.distance_correlation": 0.1, "split.mode": "splitfed2", "split.rounds": 3,
            "split.epochs": 1, "split.clients": 2, "checkpoint.every": "2 steps", "split.wait": "30s"}
    whole(split("clear", **{**keys, "split.seal": "false"}), "a", "b")
    server = killed(Server(split("sealed", **{**keys, "split.cache_ttl": "1s"})))
    for who in "ab":
        wanted, got = ([line["loss"] for line in of_client(name, who)] for name in ("clear", "sealed"))
        check(wanted and got == wanted, f"{who}: {got} is not {wanted}")
    check(server.text().count("is wiped") >= 2, f"no cache was wiped: {server.text()}")
    no_workers("split_together")
