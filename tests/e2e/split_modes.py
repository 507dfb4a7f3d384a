"""Split learning's modes: what a round of SplitFed makes of its turns, who takes part, and who is late."""
import array
import base64
import ctypes
import ctypes.util
import json
import os
import signal
import time

import jobs
from jobs import aqpipe, check, launch, losses, manifest, metrics, no_workers
from kit import ROOT
from split_hostile import Between
from split import CODED, PLAIN, STAGES, Client, Server, begin, job, of_client, report, split, stopped, tensors, whole


def averaged(parts):
    """Of [(samples, bytes of floats)]: sums in double, one after the other, as runtime/split/split_weights.c has it."""
    total, out = None, None
    for samples, values in parts:
        products = [float(samples) * value for value in array.array("f", values)]
        out = products if out is None else [a + b for a, b in zip(out, products)]
        total = samples if total is None else total + samples
    return array.array("f", [value / total for value in out]).tobytes()


def rewrite(path, values):
    """A checkpoint's file with other values, and their digest: what every tensor's bytes chain to."""
    library = ctypes.CDLL(ctypes.util.find_library("xxhash"))
    library.XXH3_64bits_withSeed.restype = ctypes.c_uint64
    library.XXH3_64bits_withSeed.argtypes = [ctypes.c_char_p, ctypes.c_size_t, ctypes.c_uint64]
    blob = path.read_bytes()
    size = int.from_bytes(blob[:8], "little")
    head = json.loads(blob[8:8 + size])
    digest, body = 0, bytearray(blob[8 + size:])
    for name, about in sorted(((n, a) for n, a in head.items() if n != "__metadata__"), key=lambda item: item[1]["data_offsets"][0]):
        first, last = about["data_offsets"]
        body[first:last] = values[name]
        digest = library.XXH3_64bits_withSeed(values[name], last - first, digest)
    was = head["__metadata__"]["digest"].encode()
    assert blob[:8 + size].count(was) == 1
    path.write_bytes(blob[:8 + size].replace(was, b"%016x" % digest) + bytes(body))


def together(folder):
    """The three stages' tensors as one stage has them: the optimizer's arrays one behind the other."""
    out = {}
    for rank in range(3):
        for name, values in tensors(folder / f"stage-{rank}.safetensors").items():
            out[name] = out.get(name, b"") + values if name.startswith("optimizer.") else values
    return out


def newest(server):
    state = json.loads((ROOT / server / "split.json").read_text())
    return ROOT / server / "weights" / str(state["weights"])


def averaged_rounds(samples, plain):
    """SplitFed v1, run "fed", is FedAvg of the unsplit runs bit for bit: losses, and all that a stage's file has."""
    steps = {"a": 3, "b": 3}
    for name in samples:
        launch(job(f"alone-{name}", **{**plain, "pipeline.stages": 1, "data.train": str(ROOT / f"{name}.bin"), "train.epochs": 1}))
    whole(split("fed", rounds=2, epochs=1, clients=2, **{**plain, "split.mode": "splitfed1", "split.collect": "true"}), "a", "b")
    for turn in (1, 2):
        files = {name: ROOT / f"alone-{name}/checkpoint/{turn * steps[name]}/stage-0.safetensors" for name in samples}
        ours = {name: tensors(path) for name, path in files.items()}
        mean = {tensor: averaged([(samples[name], ours[name][tensor]) for name in sorted(ours)]) for tensor in ours["a"]}
        for name, path in files.items():
            rewrite(path, mean)
        if turn == 1:
            for name in samples:
                launch(job(f"alone-{name}", **{**plain, "pipeline.stages": 1, "data.train": str(ROOT / f"{name}.bin"), "train.epochs": 2}),
                       "--resume")
    for name in samples:
        check(losses(f"alone-{name}") == [line["loss"] for line in of_client("fed", name)], f"{name}: not FedAvg's losses")
    check(together(newest("fed")) == mean, "not FedAvg's weights")
    return mean


def scenario_split_fed():
    """SplitFed v1 is FedAvg of the unsplit runs bit for bit, statistics and momenta too; one client is the unsplit run; v2 is neither."""
    begin("a", "b")
    samples = {"a": 60, "b": 45}
    mean = averaged_rounds(samples, PLAIN)
    model = tensors(ROOT / "fed/model.safetensors")
    check(all(values == mean[name] for name, values in model.items()), "the model that is left is another")
    check(not list((ROOT / "fed/round").glob("*/*")), "turns that were averaged are kept")

    for mode in ("splitfed1", "splitfed2"):  # of one client both are the run that was not split
        whole(split(f"one-{mode}", rounds=2, epochs=1, **{**PLAIN, "split.mode": mode}), "a")
    launch(job("unsplit", **{**PLAIN, "pipeline.stages": 1, "train.epochs": 2}))
    for mode in ("splitfed1", "splitfed2"):
        check(losses("unsplit") == [line["loss"] for line in of_client(f"one-{mode}", "a")], f"{mode}: one client is another run")

    # v2: the middle goes from turn to turn, the ends from round to round.
    server = whole(split("two", rounds=2, epochs=1, clients=2, **{**PLAIN, "split.mode": "splitfed2"}), "a", "b")
    order = [line.split(": ")[2].split()[0] for line in server.text().splitlines() if " trains steps " in line]
    last = {name: tensors(ROOT / f"two/clients/{name}/checkpoint/6/stage-1.safetensors") for name in samples}
    check(tensors(newest("two") / "stage-1.safetensors") == last[order[3]] and last["a"] != last["b"], "v2's middle is not the last turn's")
    ends = {name: tensors(ROOT / f"two-{name}/run/checkpoint/6/stage-0.safetensors") for name in samples}
    mean = {tensor: averaged([(samples[name], ends[name][tensor]) for name in sorted(ends)]) for tensor in ends["a"]}
    check(tensors(newest("two") / "stage-0.safetensors") == mean, "v2's first stage is not averaged")
    first, second = order[:2]
    check(of_client("two", first)[0]["loss"] == of_client("fed", first)[0]["loss"], "v2's first turn begins with other weights")
    check(of_client("two", second)[0]["loss"] != of_client("fed", second)[0]["loss"], "v2's second turn has not the first one's middle")
    check(report("two")["mode"] == "splitfed2", report("two"))
    no_workers("split_fed")


def scenario_split_stale():
    """train.staleness 1: one client is the unsplit run, SplitFed v1 is FedAvg, and the next client of a relay goes on with both versions of the weights."""
    begin("a", "b")
    stale = {**PLAIN, "train.staleness": 1}
    mean = averaged_rounds({"a": 60, "b": 45}, stale)
    check({"optimizer.previous", "optimizer.predicted"} <= mean.keys(), f"of a turn there is {sorted(mean)}")
    launch(job("unsplit", **{**stale, "pipeline.stages": 1, "train.epochs": 4}))
    launch(job("fresh", **{**PLAIN, "pipeline.stages": 1, "train.epochs": 4}))
    check(losses("unsplit")[1:] != losses("fresh")[1:], "staleness changes nothing: no test")
    whole(split("one", rounds=2, epochs=2, **{**stale, "split.collect": "true"}), "a")
    check(losses("unsplit") == [line["loss"] for line in of_client("one", "a")], "one client is another run")
    check(tensors(ROOT / "unsplit" / "model.safetensors") == tensors(ROOT / "one" / "model.safetensors"), "weights differ")

    # Two clients of the same images, in the same order: what the second trains is the second epoch of one.
    (ROOT / "b.bin").write_bytes((ROOT / "a.bin").read_bytes())
    for tag, keys in (("", {}), ("-asked", {"train.prediction": "false"})):
        same = {**stale, **keys, "train.shuffle": "false"}
        launch(job(f"twice{tag}", **{**same, "pipeline.stages": 1, "train.epochs": 2}))
        server = whole(split(f"relay{tag}", rounds=1, epochs=1, clients=2, **same), "a", "b")
        order = [line.split(": ")[2].split()[0] for line in server.text().splitlines() if " trains steps " in line]
        check(losses(f"twice{tag}") == [line["loss"] for name in order for line in of_client(f"relay{tag}", name)],
              f"{order}: not the losses of two epochs")

    # Killed in mid-turn, with codecs, in several steps at once: the losses of the run that was not.
    slow = {**CODED, "train.staleness": 1, "split.wait": "60s", "checkpoint.every": "2 steps"}
    whole(split("whole", rounds=2, clients=2, **slow), "a", "b")
    server = Server(split("killed", rounds=2, clients=2, **slow))
    clients = {name: Client(server, name, stops=(3,) if name == "b" else ()) for name in ("a", "b")}
    stopped(server, clients["b"], 3)
    clients["b"].kill()
    clients["b"] = Client(server, "b")
    for client in clients.values():
        client.end()
    server.end()
    for name in clients:
        check([line["loss"] for line in of_client("killed", name)] == [line["loss"] for line in of_client("whole", name)],
              f"{name}: killed, it is another run")
    no_workers("split_stale")


def scenario_split_statistics():
    """Statistics of batch norms that stay with each client: one client is the unsplit run, SplitFed v1 is FedAvg of all else; no file that goes round has them."""
    begin("a", "b")
    norms = {**PLAIN, "pipeline.stages": STAGES.replace("0-1", "0-2").replace("2-11", "3-9").replace("12-13", "10-13")}
    local = {**norms, "split.statistics": "local"}
    whole(split("local", rounds=2, epochs=1, **local), "a")
    launch(job("unsplit", **{**PLAIN, "pipeline.stages": 1, "train.epochs": 2}))
    check(losses("unsplit") == [line["loss"] for line in of_client("local", "a")], "one client with its own statistics is another run")
    evals = {run: [line["accuracy"] for line in lines] for run, lines in (("one", metrics("unsplit", "eval")), ("split", of_client("local", "a", "eval")))}
    check(evals["one"][-1] == evals["split"][-1], f"{evals}")

    samples, steps = {"a": 60, "b": 45}, 3

    def alone(name, epochs, *arguments):
        launch(job(f"alone-{name}", **{**PLAIN, "pipeline.stages": 1, "data.train": str(ROOT / f"{name}.bin"), "train.epochs": epochs}), *arguments)
    for name in samples:
        alone(name, 1)
    files = {name: ROOT / f"alone-{name}/checkpoint/{steps}/stage-0.safetensors" for name in samples}
    ours = {name: tensors(path) for name, path in files.items()}
    for name, path in files.items():
        rewrite(path, {tensor: own if ".running_" in tensor else averaged([(samples[each], ours[each][tensor]) for each in sorted(ours)])
                       for tensor, own in ours[name].items()})
        alone(name, 2, "--resume")
    whole(split("fed", rounds=2, epochs=1, clients=2, **{**local, "split.mode": "splitfed1"}), "a", "b")
    for name in samples:
        check(losses(f"alone-{name}") == [line["loss"] for line in of_client("fed", name)], f"{name}: not FedAvg with statistics of its own")
    for rank in (0, 2):
        for tensor, values in tensors(newest("fed") / f"stage-{rank}.safetensors").items():
            begins = array.array("f", values) if ".running_" in tensor else []
            check(all(value == (1 if tensor.endswith("var") else 0) for value in begins), f"stage {rank}: the server has {tensor} of a client")
    its = tensors(ROOT / "fed-a/run/checkpoint/6/stage-0.safetensors")
    check(any(any(array.array("f", values)) for tensor, values in its.items() if tensor.endswith("running_mean")), "a keeps no statistics")
    check(report("fed")["statistics"] == "local", report("fed"))
    whole(split("both", rounds=2, epochs=1, clients=2, **norms), "a", "b")
    check(report("both")["statistics"] == "averaged", report("both"))
    second = {run: [line["loss"] for line in of_client(run, "a")][steps:] for run in ("fed", "both")}
    check(second["fed"] != second["both"], "local is averaged")

    server = Server(split("agreed", rounds=1, epochs=1, **norms))
    said = Client(server, "a", path=split("mine", rounds=1, epochs=1, **local)).end(1)
    check("split.statistics: " in said and "a (127.0.0.1" in server.text(), f"{said}: {server.text()}")
    Client(server, "b").end()
    server.end()
    for keys, text in (({"split.statistics": "group"}, "group needs a model without batch norms"),
                       ({"split.statistics": "local", "split.collect": "true"}, "does not go with split.statistics: local"),
                       ({"split.statistics": "local", "split.clients": 0}, "set split.clients")):
        done = aqpipe("plan", split("bad", **{**PLAIN, **keys}))
        check(done.returncode == 2 and text in done.stderr, f"{keys}: {done.returncode}, {done.stderr}")
    no_workers("split_statistics")


def killed(path, names, when):
    """The same job again; its server is killed when that turn has begun, and started again."""
    server = Server(path)
    clients = {name: Client(server, name, stops=[step for who, step in when if who == name]) for name in names}
    for name, step in when:
        stopped(server, clients[name], step)
        server.process.kill()
        server.process.wait()
        clients[name].holds[step].release()
        server = Server(path, "--set", f"split.server='127.0.0.1:{server.port}'")
    for client in clients.values():
        client.end()
    server.end()
    return server


LIMIT = {"split.wait": "60s", "split.round_deadline": "600s"}


def nearly_over(server):
    """The server begins again, and its round has had almost all of its 600 s: however long its turns took, they are not late."""
    path = ROOT / server.path.stem / "split.json"
    deadline = time.time() + jobs.PATIENCE
    while not path.exists() or json.loads(path.read_text())["round"] == 0:
        check(time.time() < deadline and server.process.poll() is None, f"no round begins: {server.text()}")
        time.sleep(0.02)
    server.process.terminate()
    server.end(3)
    path.write_text(json.dumps({**json.loads(path.read_text()), "round_seconds": 598}))
    return Server(server.path)


def scenario_split_rounds():
    """Turns at once are turns one after the other; a killed server changes nothing; who takes part is drawn; a straggler is late."""
    names = ("a", "b", "c", "d")
    begin(*names, "e")
    for name, of in ("ca", "db", "eb"):
        (ROOT / f"{name}.bin").write_bytes((ROOT / f"{of}.bin").read_bytes())
    slow = {**CODED, "checkpoint.every": "2 steps", "split.wait": "60s"}
    wanted = {}
    for mode in ("splitfed1", "splitfed2"):
        keys = {**slow, "split.mode": mode}
        whole(split(f"whole-{mode}", rounds=2, epochs=1, clients=3, **keys), *names[:3])
        wanted[mode] = {name: [line["loss"] for line in of_client(f"whole-{mode}", name)] for name in names[:3]}
        weights = {rank: tensors(newest(f"whole-{mode}") / f"stage-{rank}.safetensors") for rank in range(3)}
        at_once = {"split.parallel": 3} if mode == "splitfed1" else {}
        server = killed(split(f"killed-{mode}", rounds=2, epochs=1, clients=3, **{**keys, **at_once}), names[:3],
                        [("c", 2), ("b", 5)] if mode == "splitfed1" else [("a", 2), ("a", 4)])
        for name in names[:3]:
            check([line["loss"] for line in of_client(f"killed-{mode}", name)] == wanted[mode][name],
                  f"{mode}: {name} has another run when the server is killed: {server.text()}")
        for rank in range(3):
            check(tensors(newest(f"killed-{mode}") / f"stage-{rank}.safetensors") == weights[rank], f"{mode}: other weights of stage {rank}")
    lines = (ROOT / "killed-splitfed1.server.log").read_text().splitlines()
    done = next(at for at, line in enumerate(lines) if "has trained up to" in line)
    check(sum(" trains steps " in line for line in lines[:done]) >= 3, f"not at once: {lines}")
    check(wanted["splitfed1"] != wanted["splitfed2"], "v1 is v2")

    drawn, five = [], (*names, "e")  # two fifths of five are two, though not as floats
    for run in ("part", "again"):
        server = whole(split(run, rounds=4, epochs=1, clients=5, **{**CODED, "split.mode": "splitfed1", "split.participation": 0.4}),
                       *(five if run == "part" else reversed(five)))
        drawn.append([tuple(line.split(": ")[1:3]) for line in server.text().splitlines() if " trains steps " in line])
        said = report(run)["clients"]
        check(sum(line["turns"] for line in said) == 8 and all(line["turns"] + line["rested"] == 4 for line in said), f"{said}")
    check(drawn[0] == drawn[1] and len({tuple(sorted(name for _, name in drawn[0][i:i + 2])) for i in range(0, 8, 2)}) > 1, f"{drawn}")

    server = Server(split("late", rounds=1, epochs=2, clients=2, **{**CODED, **LIMIT, "split.mode": "splitfed1", "split.parallel": 2}))
    clients = [Client(server, "a"), Client(server, "b", stops=(1,))]
    clients[1].holds[1].reached(clients[1].process)
    server.await_text("a has trained up to")
    server = nearly_over(server)
    said = [client.end() for client in clients]
    server.end()
    lines = {line["name"]: line for line in report("late")["clients"]}
    check((lines["a"]["turns"], lines["a"]["late"]) == (1, 0) and (lines["b"]["missed"], lines["b"]["late"]) == (1, 1), f"{lines}")
    check("it is late" in said[1] and "b misses its turn: it is late" in server.text(), f"{said[1]}: {server.text()}")
    no_workers("split_rounds")


def scenario_split_lora():
    """Adapters alone travel: relay is the unsplit run, SplitFed is FedAvg's average, a frozen front crosses the cut once; the model that is left has both."""
    begin("a", "b")
    turns = {"split.clients": 1, "split.server": "127.0.0.1:0", "split.rounds": 2, "split.epochs": 2, "security.keys": str(ROOT / "keys"),
             "pipeline.stages": "[{layers: 0-1, dials: true}, {layers: 2-3}, {layers: 4-5, dials: true}]", "split.collect": "true",
             "checkpoint.every": "1 epoch"}
    common = {**PLAIN, "train.decay": "constant", "train.warmup_steps": 0}
    for tag, changed in (("lora", {"lora.rank": 3, "lora.alpha": 6, "train.lr": 0.01}), ("freeze", {"train.freeze": "'embedding, block 0'"})):
        keys = {**common, **changed}
        launch(manifest(f"{tag}-one", **{**keys, "train.epochs": 4, "pipeline.stages": 1}))
        for mode in ("relay", "splitfed1"):
            whole(manifest(f"{tag}-{mode}", **{**keys, **turns, "split.mode": mode}), "a", data="train", kind="txt")
            check(losses(f"{tag}-one") == [line["loss"] for line in of_client(f"{tag}-{mode}", "a")], f"{tag}, {mode}: losses differ")
            ours, theirs = (tensors(ROOT / run / "model.safetensors") for run in (f"{tag}-{mode}", f"{tag}-one"))
            check(ours == theirs, f"{tag}, {mode}: the model that is left differs in {[n for n in theirs if ours.get(n) != theirs[n]]}")
    adapters = [name for rank in range(3) for name in tensors(newest("lora-relay") / f"stage-{rank}.safetensors") if not name.startswith("optimizer.")]
    check(adapters and all(".lora_" in name for name in adapters), f"more than adapters travels: {adapters}")
    check((ROOT / "lora-relay/adapter/adapter_model.safetensors").exists(), "no folder of the adapters is left")
    no_workers("split_lora")


def scenario_split_tied():
    """Embedding and head at the client are one tensor: the unsplit run bit for bit, and nothing of it crosses a link."""
    begin("a", "b")
    (ROOT / "b.txt").write_text(jobs.text(5, 300))
    turns = {"split.clients": 1, "split.server": "127.0.0.1:0", "split.rounds": 2, "split.epochs": 2, "security.keys": str(ROOT / "keys"),
             "pipeline.stages": "[{layers: 0-1, dials: true}, {layers: 2-3}, {layers: 4-5, dials: true}]", "split.collect": "true",
             "checkpoint.every": "1 epoch"}
    keys = {**PLAIN, "train.decay": "constant", "train.warmup_steps": 0, "model.tied": "exact"}
    launch(manifest("tied-one", **{**keys, "train.epochs": 4, "pipeline.stages": 1}))
    for mode in ("relay", "splitfed1", "splitfed2"):
        path = manifest(f"tied-{mode}", **{**keys, **turns, "split.mode": mode})
        check("both at the client: nothing of it crosses a link" in aqpipe("plan", path).stdout, f"{mode}: plan does not say so")
        whole(path, "a", data="train", kind="txt")
        lines = of_client(f"tied-{mode}", "a")
        check(losses("tied-one") == [line["loss"] for line in lines], f"{mode}: losses differ")
        check(not any("tied_bytes" in line for line in lines), f"{mode}: the table crossed a link")
        ours, theirs = (tensors(ROOT / run / "model.safetensors") for run in (f"tied-{mode}", "tied-one"))
        check(ours == theirs, f"{mode}: the model that is left differs in {[n for n in theirs if ours.get(n) != theirs[n]]}")
    for mode in ("relay", "splitfed1", "global"):  # what one leaves another goes on from
        name = f"two-{mode}"
        more = {"split.mode": mode, "split.clients": 2}
        server = Server(manifest(name, **{**keys, **turns, **more}))
        clients = [Client(server, "a", data="train", kind="txt"), Client(server, "b", kind="txt")]
        for client in clients:
            client.end()
        server.end()
        first, last = (tensors(newest(name) / f"stage-{rank}.safetensors") for rank in (0, 2))
        check(first["wte.weight"] == last["lm_head.weight"], f"{name}: two tensors are left")
        check("lm_head.weight" not in tensors(ROOT / name / "model.safetensors"), f"{name}: the head has a tensor")
    no_workers("split_tied")


def scenario_split_restart():
    """A server that was killed averages what it had kept with nobody there, leaves the model, and gives a round no more time than it had left."""
    begin("a", "b")
    keys = {**PLAIN, "split.mode": "splitfed1", "split.parallel": 2, "split.collect": "true"}
    server = Server(split("alone", rounds=1, epochs=1, clients=2, **{**keys, "split.wait": "60s", "split.round_deadline": "600s"}))
    a, b = Client(server, "a"), Client(server, "b", stops=(1,))  # one is done, the other has begun
    b.holds[1].reached(b.process)
    server.await_text("a has trained up to")
    server.process.kill()
    server.process.wait()
    for client in (a, b):
        client.kill()
    state = json.loads((ROOT / "alone/split.json").read_text())
    check([line["kept"] for line in state["clients"] if line["name"] == "a"] == [True], f"{state}")
    ours = {rank: tensors(ROOT / f"alone/round/a/stage-{rank}.safetensors") for rank in range(3)}
    again = Server(server.path, "--set", "split.wait=1s")  # nobody comes
    again.end()
    for rank, wanted in ours.items():
        check(tensors(newest("alone") / f"stage-{rank}.safetensors") == wanted, f"stage {rank}: not the average of the one turn")
    lines = {line["name"]: line for line in report("alone")["clients"]}
    check((lines["a"]["turns"], lines["b"]["missed"]) == (1, 1), f"{lines}: {again.text()}")
    check((ROOT / "alone/model.safetensors").exists(), "no model is left")

    # What a round has had of its time is kept: 600 s of which none are left.
    server = Server(split("late", rounds=1, epochs=1, clients=2, **{**keys, "split.wait": "60s", "split.round_deadline": "600s"}))
    clients = [Client(server, "a"), Client(server, "b", stops=(1,))]
    clients[1].holds[1].reached(clients[1].process)
    server.await_text("a has trained up to")
    server.process.kill()
    server.process.wait()
    for client in clients:
        client.kill()
    path = ROOT / "late/split.json"
    state = json.loads(path.read_text())
    check(0 < state["round_seconds"] < 600, f"a round of {state['round_seconds']} s")
    path.write_text(json.dumps({**state, "round_seconds": 599.9}))
    again = Server(server.path)
    again.end()
    lines = {line["name"]: line for line in report("late")["clients"]}
    check((lines["a"]["turns"], lines["b"]["turns"], lines["b"]["missed"]) == (1, 0, 1), f"{lines}: {again.text()}")
    check("it is late: the round's time is over" in again.text(), again.text())
    turnless = [{**line, "turns": 0} for line in state["clients"]]
    for wrong in ({"round_seconds": -1}, {"clients": turnless}):
        path.write_text(json.dumps({**state, **wrong}))
        broken = aqpipe("split-server", server.path)
        check(broken.returncode == 2 and "is damaged" in broken.stderr, f"{broken.returncode}: {broken.stderr}")
    no_workers("split_restart")


def scenario_split_noise_fed():
    """Noise at the cut and SplitFed v1: turns at once and averages go on as without; no run is like another; the report says both."""
    begin("a", "b")
    keys = {**CODED, "split.mode": "splitfed1", "split.parallel": 2, "split.privacy.clip": 5, "split.privacy.gradient_clip": 0.05}
    noise = {"split.privacy.noise": 0.01, "split.privacy.gradient_noise": 0.01}
    runs = {}
    for run, more in (("quiet-0", {}), ("quiet-1", {}), ("loud-0", noise), ("loud-1", noise)):
        server = whole(split(run, rounds=2, epochs=1, clients=2, **{**keys, **more}), "a", "b")
        runs[run] = {name: [line["loss"] for line in of_client(run, name)] for name in "ab"}
        check(all(len(of) == 6 and all(0 < loss < 20 for loss in of) for of in runs[run].values()), f"{run}: {runs[run]}: {server.text()}")
        check(server.text().count("the turns of 2 clients are averaged") == 2, server.text())
    check(runs["quiet-0"] == runs["quiet-1"], "clips alone are not repeatable")
    for name in "ab":
        check(runs["loud-0"][name] != runs["loud-1"][name] and runs["loud-0"][name] != runs["quiet-0"][name], f"{name}: no noise, or the same twice")
    said = report("loud-0")
    check(said["mode"] == "splitfed1" and round(said["privacy"]["noise"], 6) == 0.01 and [line["turns"] for line in said["clients"]] == [2, 2], f"{said}")
    # What is averaged is what the turns left: finite, and of both.
    averages = [tensors(newest(run) / "stage-0.safetensors") for run in ("loud-0", "quiet-0")]
    check(averages[0] != averages[1] and averages[0].keys() == averages[1].keys(), "the noised turns are not in the average")
    check(all(abs(value) < 1e6 for values in averages[0].values() for value in array.array("f", values)), "an average that is no number")
    no_workers("split_noise_fed")


def scenario_split_mixed():
    """One cut for all clients of a job: another one is refused by name at both ends, whatever the mode, and costs the others nothing."""
    begin("a", "b", "c")
    (ROOT / "c.bin").write_bytes((ROOT / "b.bin").read_bytes())
    for mode in ("relay", "splitfed1", "splitfed2"):
        server = Server(split(mode, rounds=1, epochs=1, clients=2, **{**CODED, "split.mode": mode}))
        for place, stages in (("first", STAGES.replace("0-1", "0-2").replace("2-11", "3-11")), ("second", STAGES.replace("2-11", "2-10").replace("12-13", "11-13"))):
            other = split(f"{mode}-{place}", rounds=1, epochs=1, clients=2, **{**CODED, "split.mode": mode, "pipeline.stages": stages})
            said = Client(server, "c", path=other).end(1)
            check("pipeline.stages." in said and "has another plan" in said, f"{mode}, the {place} cut: the client says {said}")
            check(server.text().count("c (127.0.0.1") == (1 if place == "first" else 2), f"{mode}: the server says {server.text()}")
        clients = [Client(server, name) for name in "ab"]
        for client in clients:
            client.end()
        server.end()
        check(sorted(line["name"] for line in report(mode)["clients"]) == ["a", "b"], f"who was refused is in the report: {report(mode)}")
    no_workers("split_mixed")


def scenario_split_labels():
    """Labels at the server: one client is the unsplit run, SplitFed v1 is the one with labels at the clients; labels that are not right are refused, and the others go on."""
    names = ("a", "b")
    begin(*names, "c")
    (ROOT / "c.bin").write_bytes((ROOT / "b.bin").read_bytes())
    served = {**PLAIN, "split.labels": "server", "pipeline.stages": "[{layers: 0-1, dials: true}, {layers: 2-13}]"}
    launch(job("unsplit", **{**PLAIN, "pipeline.stages": 1, "train.epochs": 4}))
    whole(split("one", rounds=2, epochs=2, **{**served, "split.collect": "true"}), "a")
    check(losses("unsplit") == [line["loss"] for line in of_client("one", "a")], "one client is another run")
    check(tensors(ROOT / "unsplit/model.safetensors") == tensors(ROOT / "one/model.safetensors"), "weights differ")
    check([line["accuracy"] for line in metrics("unsplit", "eval")] == [line["accuracy"] for line in of_client("one", "a", "eval")], "accuracies differ")
    for name, data in (("train", "a"), ("heldout", "test")):
        labels = (ROOT / f"{data}.bin").read_bytes()[::3073]
        wanted = b"aqpipe labels 1\n" + b"".join(label.to_bytes(4, "little") for label in labels)
        check((ROOT / f"one/labels/a/{name}").read_bytes() == wanted, f"the server's {name} labels are not {data}'s")
    check(report("one")["labels"] == "server", report("one"))
    fed = {"split.mode": "splitfed1"}
    whole(split("fed", rounds=2, epochs=1, clients=2, **{**served, **fed}), *names)
    whole(split("fed-u", rounds=2, epochs=1, clients=2, **{**PLAIN, **fed}), *names)
    for name in names:
        check([line["loss"] for line in of_client("fed", name)] == [line["loss"] for line in of_client("fed-u", name)], f"{name}: not the run with labels at the clients")
    check(report("fed-u")["labels"] == "client", report("fed-u"))

    whole(split("clean", rounds=2, epochs=1, clients=2, **served), *names)
    server = Server(split("lies", rounds=2, epochs=1, clients=2, **{**served, "split.wait": "1s"}))

    def lies(change, wanted):
        """A client whose lines of labels are changed on the way."""
        def rule(who, line, send):
            if who != "client" or line.get("op") != "labels":
                return line
            return change(line, send)
        said = Client(Between(server, "c", rule), "c").end(1)
        check(wanted in said, f"'{wanted}': the client says {said}")
        server.await_text(wanted)

    def label(line, value, rank=0):
        if line["rank"] != rank:
            return line
        data = bytearray(base64.b64decode(line["data"]))
        data[16:20] = value.to_bytes(4, "little")
        return {**line, "data": base64.b64encode(data).decode()}
    lies(lambda line, send: label(line, 10, rank=1), "a label of a held-out sample is 10: the job has classes 0 to 9")
    check(not (ROOT / "lies/labels/c/train").exists(), "half of what was refused is kept")
    lies(lambda line, send: label(line, 10), "a label of a training sample is 10: the job has classes 0 to 9")
    lies(lambda line, send: label(line, 1 << 31), "has label 2147483648")
    lies(lambda line, send: {**line, "of": line["of"] + 4}, "sends 'labels' whose 'of' is not a whole number from 0 to 196")
    lies(lambda line, send: {**line, "rank": line["rank"] + 1}, "sends labels that are not those of its")
    lies(lambda line, send: {**line, "data": line["data"][:-8]}, "bytes of a file where 196 are due")
    lies(lambda line, send: {**line, "data": base64.b64encode(bytes(line["of"])).decode()}, "is not a file of labels")
    first = (ROOT / "c.bin").read_bytes()[0]
    lies(lambda line, send: send("server", line) or send("server", {**line, "offset": 0}) or None if line["rank"] else line, "sends 'labels' while it waits for its turn")
    lies(lambda line, send: label(line, (first + 1) % 10), "it comes with other labels than it began with")
    clients = [Client(server, name) for name in names]
    for client in clients:
        client.end()
    server.end()
    for name in names:
        check([line["loss"] for line in of_client("lies", name)] == [line["loss"] for line in of_client("clean", name)], f"{name}: lies of another change its run")
    for keys, text in (({"pipeline.stages": STAGES}, "2 (a client's first and the server's, which has the labels)"),
                       ({"split.privacy.clip": 1, "split.privacy.gradient_clip": 1}, "with split.labels: server there is no second cut")):
        done = aqpipe("plan", split("bad", **{**served, **keys}))
        check(done.returncode == 2 and text in done.stderr, f"{keys}: {done.returncode}, {done.stderr}")
    decoder = {"split.clients": 1, "split.labels": "server", "security.keys": str(ROOT / "keys"), "pipeline.stages": "[{layers: 0-1, dials: true}, {layers: 2-5}]"}
    done = aqpipe("plan", manifest("text", **{**PLAIN, **decoder}))
    check(done.returncode == 2 and "server needs samples with one label each" in done.stderr, f"{done.returncode}: {done.stderr}")
    no_workers("split_labels")


def scenario_split_labels_owed():
    """A client whose labels never come costs a few tries of its turn and not the others' run; one whose labels come after its round is in the next one."""
    names = ("a", "b")
    begin(*names, "c")
    (ROOT / "c.bin").write_bytes((ROOT / "b.bin").read_bytes())
    served = {**PLAIN, "split.labels": "server", "pipeline.stages": "[{layers: 0-1, dials: true}, {layers: 2-13}]"}
    whole(split("clean", rounds=1, epochs=1, clients=2, **served), *names)
    server = Server(split("owed", rounds=1, epochs=1, clients=3, **{**served, "split.wait": "2s", "control.silence_max": "2s"}))
    mute = Between(server, "c", lambda who, line, send: None if line.get("op") == "labels" else line)
    clients = [Client(server, name) for name in names]
    owing = Client(mute, "c", "--patience", "1")
    for client in clients:
        client.end()
    server.end()
    owing.process.communicate(timeout=jobs.PATIENCE)
    lines = {line["name"]: line for line in report("owed")["clients"]}
    check(lines["c"]["turns"] == 0 and lines["c"]["missed"] == 1, f"{lines['c']}: {server.text()}")
    for name in names:
        check([line["loss"] for line in of_client("owed", name)] == [line["loss"] for line in of_client("clean", name)], f"{name}: who owes labels changes its run")

    server = Server(split("late", rounds=2, epochs=1, clients=1, **{**served, **LIMIT, "control.silence_max": "60s"}))

    def late(who, line, send):
        while line.get("op") == "labels" and "c misses its turn: it is late" not in server.text():
            time.sleep(0.05)
        return line
    client = Client(Between(server, "c", late), "c")
    server.await_joined("c", 1)
    server = nearly_over(server)
    client.end()
    server.end()
    line = report("late")["clients"][0]
    check(line["turns"] == 1 and line["missed"] == 1, f"{line}: {server.text()}")
    no_workers("split_labels_owed")
