"""Split learning of samples of several lengths: tables of texts with labels, and conversations."""
import json
import re
import time

import jobs
from chats import CHATML, SPECIALS, tokenizer
from jobs import aqpipe, check, launch, losses, manifest, metrics, no_workers, raw
from kit import ROOT
from split import Client, Server, begin, lost, of_client, report, seen, stopped, tensors, whole
from split_hostile import Between
from tables import CODECS, job, table

STEADY = {"train.decay": "constant", "train.warmup_steps": 0}
PLAIN = {**raw(), **raw("backward"), **STEADY}
CODED = {**CODECS, **STEADY}
STAGES = "[{layers: 0-1, dials: true}, {layers: 2-3}, {layers: 4-5, dials: true}]"


def turns(mode="relay", **changes):
    return {"split.clients": 1, "split.server": "127.0.0.1:0", "split.rounds": 2, "split.epochs": 2, "split.mode": mode, "split.wait": "3s",
            "security.keys": str(ROOT / "keys"), "pipeline.stages": STAGES, "split.collect": "true", "checkpoint.every": "1 epoch", **changes}


def tables(*clients):
    begin(*clients)
    table("train.tsv", 3, 22)
    table("heldout.tsv", 4, 9)
    table("b.tsv", 9, 17)


def text_ends(name):
    """Tokens at which texts of the model end; None: the data have no answers."""
    path = ROOT / name / "generation_config.json"
    return json.loads(path.read_text())["eos_token_id"] if path.exists() else None


def same(name, one, collected=True):
    """Losses, held-out figures and the model that is left, bit for bit."""
    check(losses(one) == lost(name), f"{name}: losses {lost(name)}, not {losses(one)}")
    ours, theirs = of_client(name, "a", "eval"), metrics(one, "eval")
    for key in ("loss", "accuracy", "targets"):
        check([line.get(key) for line in ours] == [line.get(key) for line in theirs], f"{name}: held-out {key} differs")
    if collected:
        ours, theirs = (tensors(ROOT / run / "model.safetensors") for run in (name, one))
        check(ours == theirs, f"{name}: the model that is left differs in {[n for n in theirs if ours.get(n) != theirs[n]]}")
        ours, theirs = (text_ends(run) for run in (name, one))
        check(ours == theirs, f"{name}: generated texts end at {ours}, not at {theirs}")


def once(server, wanted):
    """The server prints it after it has told the client."""
    deadline = time.time() + jobs.PATIENCE
    while not (found := re.findall(wanted, server.text())):
        check(time.time() < deadline, f"'{wanted}' is not printed: {server.text()}")
        time.sleep(0.02)
    check(len(found) == 1, f"'{wanted}' more than once: {server.text()}")


def scenario_split_tables():
    """A table of texts with labels: one client is the unsplit run bit for bit in every mode; padding counts in no norm."""
    tables("a")
    launch(job("one", **{**PLAIN, "pipeline.stages": 1}))
    for mode in ("relay", "splitfed1", "global"):
        server = whole(job(mode, **{**PLAIN, **turns(mode)}), "a", data="train", kind="tsv")
        same(mode, "one")
        check(server.text().count("a has sent the lengths of its samples, of ") == 1, server.text())
    served = {"split.labels": "server", "pipeline.stages": "[{layers: 0-1, dials: true}, {layers: 2-5}]"}
    whole(job("served", **{**PLAIN, **turns(), **served}), "a", data="train", kind="tsv")
    same("served", "one")
    launch(job("three", **{**CODED, "pipeline.stages": STAGES.replace(", dials: true", "")}))
    whole(job("coded", **{**CODED, **turns()}), "a", data="train", kind="tsv")
    same("coded", "three")

    # The same texts, none longer than 13, with more padding: clips are of the same vectors.
    for name in ("train", "heldout"):
        head, *rows = (line.split("\t") for line in (ROOT / f"{name}.tsv").read_text().splitlines())
        short = [[row[0], row[1][:3 + i % 11], row[2]] for i, row in enumerate(rows)]
        (ROOT / f"{name}.tsv").write_text("".join("\t".join(row) + "\n" for row in [head, *short]))
    clips = {"split.privacy.clip": 1, "split.privacy.gradient_clip": 0.05}
    for T in (16, 32):
        whole(job(f"clipped-{T}", **{**PLAIN, **turns(), **clips, "train.T": T}), "a", data="train", kind="tsv")
    whole(job("loose", **{**PLAIN, **turns(), "train.T": 16}), "a", data="train", kind="tsv")
    check(lost("clipped-16") == lost("clipped-32") != lost("loose"), f"{lost('clipped-16')}, {lost('clipped-32')}, {lost('loose')}")
    no_workers("split_tables")


def scenario_split_tables_kinds():
    """Encoders, numbers instead of classes, adapters and a frozen front: one client is the unsplit run; two clients end together."""
    tables("a", "b")
    for kind in ("bert", "modernbert", "deberta"):
        keys = {**PLAIN, "model.kind": kind, **({"model.tied": "untied", "model.buckets": 8} if kind == "deberta" else {"model.tied": None})}
        launch(job(f"{kind}-one", **{**keys, "pipeline.stages": 1}))
        cut = {"pipeline.stages": STAGES.replace("4-5", "4-6"), "split.collect": "false"}
        whole(job(kind, **{**keys, **turns(), **cut}), "a", data="train", kind="tsv")
        same(kind, f"{kind}-one", collected=False)
    for name in ("train", "heldout"):
        head, *rows = (line.split("\t") for line in (ROOT / f"{name}.tsv").read_text().splitlines())
        (ROOT / f"{name}-numbers.tsv").write_text("".join("\t".join(row) + "\n" for row in [head, *([a, b, str(len(b) / 10)] for a, b, _ in rows)]))
    numbers = {"model.task": "regression", "data.labels": None, "data.train": str(ROOT / "train-numbers.tsv"), "data.heldout": str(ROOT / "heldout-numbers.tsv")}
    for tag, keys in (("numbers", numbers), ("lora", {"lora.rank": 3, "lora.alpha": 6, "train.lr": 0.01}), ("freeze", {"train.freeze": "'embedding, block 0'"})):
        launch(job(f"{tag}-one", **{**PLAIN, **keys, "pipeline.stages": 1}))
        whole(job(tag, **{**PLAIN, **keys, **turns()}), "a", data="train-numbers" if tag == "numbers" else "train", kind="tsv")
        same(tag, f"{tag}-one")
    wrong = {"split.labels": "server", "pipeline.stages": "[{layers: 0-1, dials: true}, {layers: 2-5}]"}
    done = aqpipe("plan", job("wrong", **{**PLAIN, **numbers, **turns(), **wrong}))
    check(done.returncode == 2 and "the labels of model.task: regression are numbers" in done.stderr, done.stderr)
    done = aqpipe("plan", job("unknown", **{**PLAIN, **turns(), **wrong, "model.kind": "resnett"}))  # of a kind without a task
    check(done.returncode == 2 and "resnett is unknown" in done.stderr, done.stderr)

    # What every client would refuse is refused by the plan, so that no server waits for it.
    tied = {"model.kind": "deberta", "model.tied": "exact", "model.buckets": 8, "split.privacy.clip": 1, "pipeline.stages": STAGES.replace("4-5", "4-6")}
    still = {"train.freeze": "'embedding, block 0'", "split.privacy.distance_correlation": 1, "train.micro_batch": 8}
    for tag, keys, wanted in (("tied", tied, "split.privacy.clip: not possible with a tensor that the first and the last stage share"),
                              ("still", still, "split.privacy.distance_correlation: nothing trains before the first cut")):
        done = aqpipe("plan", job(tag, **{**PLAIN, **turns(), **keys}))
        check(done.returncode == 2 and wanted in done.stderr, f"{tag}: {done.returncode}, {done.stderr}")

    for mode in ("splitfed1", "global"):
        server = Server(job(f"two-{mode}", **{**CODED, **turns(mode), "split.clients": 2}))
        clients = [Client(server, "a", data="train", kind="tsv"), Client(server, "b", kind="tsv")]
        for client in clients:
            client.end()
        server.end()
        check([line["turns"] for line in report(f"two-{mode}")["clients"]] == [2, 2], f"{mode}: {server.text()}")
    no_workers("split_tables_kinds")


def scenario_split_tables_leaves():
    """Clients and a server that are killed in mid-turn, with lengths: the run is the undisturbed one."""
    tables("a", "b")
    keys = {**CODED, **turns(**{"split.wait": "60s", "checkpoint.every": "2 steps", "split.clients": 2})}

    def start(server, name, **options):
        return Client(server, name, data="train" if name == "a" else "b", kind="tsv", **options)
    server = Server(job("whole", **keys))
    for client in [start(server, name) for name in "ab"]:
        client.end()
    server.end()

    server = Server(job("killed", **keys))
    clients = {name: start(server, name, stops=(3,)) for name in "ab"}
    server.await_text(" trains steps 1 to ")
    first = re.search(r"(\w) trains steps", server.text()).group(1)
    other = "b" if first == "a" else "a"
    stopped(server, clients[first], 3)
    clients[first].kill()
    clients[other].release()
    clients[first] = start(server, first, stops=(8,))
    stopped(server, clients[first], 8)
    server.process.kill()
    server.process.wait()
    clients[first].release()
    again = Server(server.path, "--set", f"split.server='127.0.0.1:{server.port}'")
    for client in clients.values():
        client.end()
    again.end()
    for name in "ab":
        check(lost("killed", name) == lost("whole", name), f"{name}: {lost('killed', name)}, not {lost('whole', name)}")
    no_workers("split_tables_leaves")


def scenario_split_talks():
    """Conversations, packed or not: one client is the unsplit run bit for bit; two clients end together."""
    begin("a", "b")
    for name, seed, count in (("train", 1, 40), ("heldout", 2, 9), ("b", 3, 30)):
        words = jobs.text(seed, 8 * count).split()
        rows = [{"prompt": " ".join(words[8 * i:8 * i + 1 + i % 2]) + " ", "response": " ".join(words[8 * i + 2:8 * i + 3 + i % 3])}
                for i in range(count)]
        (ROOT / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    keys = {"data.kind": "instruct", "data.train": str(ROOT / "train.jsonl"), "data.heldout": str(ROOT / "heldout.jsonl"),
            "data.train_samples_max": 0, "data.heldout_samples_max": 0, "train.T": 48, "model.context": 48}
    lora = {"model.kind": "llama", "model.kv_heads": 2, "model.head_dim": 16, "model.mlp": 64, "lora.rank": 3, "lora.alpha": 6, "train.lr": 0.01}
    for tag, changes in (("packed", {}), ("whole", {"data.pack": "false"}), ("seen", {"data.pack_mask": "false"}), ("lora", lora)):
        launch(manifest(f"{tag}-one", **{**PLAIN, **keys, **changes, "pipeline.stages": 1}))
        whole(manifest(tag, **{**PLAIN, **keys, **changes, **turns()}), "a", data="train", kind="jsonl")
        same(tag, f"{tag}-one")

    # The server has no data, and its model still ends texts at the token that ended the client's answers.
    talk = [{"messages": [{"role": "user", "content": f"q{i}"}, {"role": "assistant", "content": "yes" if i % 2 else "no"}]} for i in range(24)]
    (ROOT / "chat.jsonl").write_text("".join(json.dumps(row) + "\n" for row in talk))
    template = tokenizer(ROOT / "template")
    (template / "chat_template.jinja").write_text(CHATML)
    chat = {**keys, "data.train": str(ROOT / "chat.jsonl"), "data.heldout": None, "data.heldout_samples_max": None, "data.tokenizer": "huggingface",
            "data.tokenizer_path": str(template), "data.chat_template": str(template), "train.T": 64, "model.context": 64}
    launch(manifest("chat-one", **{**PLAIN, **chat, "pipeline.stages": 1}))
    whole(manifest("chat", **{**PLAIN, **chat, **turns()}), "a", data="chat", kind="jsonl")
    same("chat", "chat-one")
    check(text_ends("chat") == 256 + SPECIALS.index("<|im_end|>"), f"its texts end at {text_ends('chat')}")
    server = Server(manifest("two", **{**CODED, **keys, **turns("splitfed1"), "split.clients": 2}))
    clients = [Client(server, "a", data="train", kind="jsonl"), Client(server, "b", kind="jsonl")]
    for client in clients:
        client.end()
    server.end()
    check([line["turns"] for line in report("two")["clients"]] == [2, 2], server.text())
    no_workers("split_talks")


def scenario_split_lengths():
    """Lengths that lie, or change between rounds: one line at both ends, and the other client has the run without them."""
    tables("a", "b", "c")
    keys = {**CODED, "split.clients": 1, "control.silence_max": "2s"}
    whole(job("clean", **{**keys, **turns("splitfed1", **{"split.rounds": 1, "split.wait": "60s"})}), "b", kind="tsv")

    def change(how):
        def rule(who, line, send):
            return how(line) if who == "client" and line.get("op") in ("join", "lengths") else line
        return rule

    def of_lengths(text):
        return change(lambda line: {**line, "lengths": text(line["lengths"])} if line["op"] == "lengths" else line)

    lies = {"other": (of_lengths(lambda text: ("1" if text[0] == "0" else "0") + text[1:]), "its lengths are refused: .*they are not those that the job was planned with"),
            "fewer": (of_lengths(lambda text: text[:-3]), "its lengths are refused: .*they are not of 31 samples and parts"),
            "letters": (of_lengths(lambda text: "~" + text[1:]), "its lengths are refused: .*a character that lengths never have"),
            "mean": (change(lambda line: {**line, "lengths_mean": 31} if line["op"] == "join" else line), "its lengths are refused: .*their mean is not 31 tokens"),
            "zero": (change(lambda line: {**line, "lengths_mean": 0} if line["op"] == "join" else line), "sends 'join' whose 'lengths_mean' is not a whole number from 1 to"),
            "none": (change(lambda line: {"op": "lengths"} if line["op"] == "lengths" else line), "sends 'lengths' without 'lengths'"),
            "again": (change(lambda line: {**line, "op": "labels"} if line["op"] == "lengths" else line), "sends 'labels' while it sends the lengths of its samples")}
    server = Server(job("lies", **{**keys, **turns("splitfed1", **{"split.rounds": 1, "split.clients": 2})}))
    for name, (rule, wanted) in lies.items():
        said = Client(Between(server, "c", rule), "c", data="train", kind="tsv").end(1)
        check(len(re.findall(wanted, said)) == 1, f"{name}: the client says {said}")
        once(server, wanted)

    # One that never sends them costs its own turn.
    mute = Client(Between(server, "c", lambda who, line, send: None if line.get("op") == "lengths" else line), "c", "--patience", "1", data="train", kind="tsv")
    clients = [Client(server, "a", data="train", kind="tsv"), Client(server, "b", kind="tsv")]
    for client in clients:
        client.end()
    server.end()
    mute.process.communicate(timeout=jobs.PATIENCE)
    lines = {line["name"]: line for line in report("lies")["clients"]}
    check((lines["b"]["turns"], lines["c"]["turns"]) == (1, 0), f"{lines}: {server.text()}")
    check(lost("lies", "b") == lost("clean", "b"), f"another's lies change the run: {lost('lies', 'b')}, not {lost('clean', 'b')}")

    # As many samples of other lengths in the next round, also after the server was started again. The right ones are taken.
    rows, more = (ROOT / "b.tsv").read_text(), ("--set", "split.rounds=2")
    server = Server(ROOT / "clean.yaml", *more)
    (ROOT / "b.tsv").write_text(rows.replace("\tshort\n", "xy\tshort\n"))
    said = Client(server, "b", *more, kind="tsv").end(1)
    wanted = "it comes with samples of other lengths than it began with"
    check(said.count(wanted) == 1, f"the client says {said}")
    once(server, wanted)
    (ROOT / "b.tsv").write_text(rows)
    Client(server, "b", *more, kind="tsv").end()
    server.end()
    check([line["turns"] for line in report("clean")["clients"]] == [2], f"{report('clean')}")
    no_workers("split_lengths")


def scenario_split_lengths_again():
    """A client whose lengths were refused may come with other data; one whose lengths were taken may not."""
    tables("a", "b")
    server = Server(job("again", **{**CODED, **turns("splitfed1", **{"split.clients": 2, "split.rounds": 1})}))
    def wrong(who, line, send):
        return {**line, "lengths": line["lengths"][:-3]} if line.get("op") == "lengths" else line
    Client(Between(server, "a", wrong), "a", data="b", kind="tsv").end(1)
    once(server, "a .* has left: its lengths are refused: ")
    first = Client(server, "a", data="train", kind="tsv")
    once(server, "a has sent the lengths of its samples")
    first.kill()
    server.await_text("a (127.0.0.1", 4)  # joined, refused, joined, left
    said = Client(server, "a", data="b", kind="tsv").end(1)
    check("it comes with other data than it began with" in said, f"the client says {said}")
    clients = [Client(server, "a", data="train", kind="tsv"), Client(server, "b", kind="tsv")]
    for client in clients:
        client.end()
    server.end()
    check([line["turns"] for line in report("again")["clients"]] == [1, 1], server.text())
    no_workers("split_lengths_again")


def sizes(name, client="a"):
    """How many different sizes steps of as many samples have behind the first epoch, both ways over both cuts: of the count with most."""
    seen = {}
    for line in of_client(name, client):
        if line["epoch"] > 0:
            seen.setdefault(line["samples"], set()).add(sum(line["forward_bytes"]) + sum(line["backward_bytes"]))
    return max(len(each) for each in seen.values())


def talks(name, seed, count):
    words = jobs.text(seed, 8 * count).split()
    rows = [{"prompt": " ".join(words[8 * i:8 * i + 1 + i % 2]) + " ", "response": " ".join(words[8 * i + 2:8 * i + 3 + i % 3])} for i in range(count)]
    (ROOT / name).write_text("".join(json.dumps(row) + "\n" for row in rows))


def scenario_split_pad():
    """split.pad: the server is told no lengths and no frame's size follows them; one client is the unsplit run bit for bit."""
    tables("a", "b")
    talks("train.jsonl", 1, 40)
    talks("heldout.jsonl", 2, 9)
    pad = {"split.pad": "true"}
    llama = {"model.kind": "llama", "model.kv_heads": 2, "model.head_dim": 16, "model.mlp": 64, "model.tied": None}
    answers = {"data.kind": "instruct", "data.train": str(ROOT / "train.jsonl"), "data.heldout": str(ROOT / "heldout.jsonl"),
               "data.train_samples_max": 0, "data.heldout_samples_max": 0, "train.T": 48, "model.context": 48}
    each, packed = {**answers, "data.pack": "false"}, {**answers, "data.pack_mask": "false"}
    cases = (("classes", job, {}, "tsv", ("relay", "splitfed1", "global")), ("llama", job, llama, "tsv", ("relay",)),
             ("bf16", job, {"model.precision": "bf16"}, "tsv", ("relay",)), ("residual", job, {"model.precision": "bf16", "model.residual": "bf16"}, "tsv", ("relay",)),
             ("lora", job, {**llama, "lora.rank": 3, "lora.alpha": 6}, "tsv", ("relay",)),
             ("talks", manifest, each, "jsonl", ("relay",)), ("packed", manifest, packed, "jsonl", ("splitfed1",)),
             ("frozen", job, {"train.freeze": "'embedding, block 0'"}, "tsv", ("relay",)), ("tied", manifest, {**each, "model.tied": "exact"}, "jsonl", ("relay",)))
    for tag, make, keys, kind, modes in cases:
        launch(make(f"{tag}-one", **{**PLAIN, **keys, "pipeline.stages": 1}))
        for mode in modes:
            name = f"{tag}-{mode}"
            server = whole(make(name, **{**PLAIN, **keys, **turns(mode), **pad}), "a", data="train", kind=kind)
            check("lengths" not in server.text() and not (ROOT / name / "lengths").exists(), f"{name}: {server.text()}")
            check(losses(f"{tag}-one") == lost(name), f"{name}: losses {lost(name)}, not {losses(f'{tag}-one')}")
            ours, theirs = of_client(name, "a", "eval"), metrics(f"{tag}-one", "eval")
            told = [line["targets"] for line in theirs] if kind == "tsv" else [None] * len(theirs)  # of answers: how many tokens they have
            check([(line["loss"], line.get("targets")) for line in ours] == [*zip([line["loss"] for line in theirs], told)], f"{name}: {ours}")
            check(abs(report(name)["loss"] - ours[-1]["loss"]) < 1e-9, f"{name}: {report(name)}")
            ours, theirs = (tensors(ROOT / run / "model.safetensors") for run in (name, f"{tag}-one"))
            check(ours == theirs, f"{name}: the model that is left differs")
            check(sizes(name) == 1, f"{name}: {sizes(name)} sizes of steps")

    # With codecs, uneven batches, staleness: the run that sends lengths, and more bytes. A clip takes padding's rows, too.
    for tag, keys in (("coded", {}), ("stale", {"train.staleness": 1}), ("odd", {"train.batch": 6, "train.micro_batch": 3})):
        whole(job(f"{tag}-sent", **{**CODED, **keys, **turns()}), "a", data="train", kind="tsv")
        whole(job(tag, **{**CODED, **keys, **turns(), **pad}), "a", data="train", kind="tsv")
        check(lost(tag) == lost(f"{tag}-sent"), f"{tag}: {lost(tag)}, not {lost(f'{tag}-sent')}")
        if tag != "stale":  # there frames of two steps are under way at once, and count for either
            check(sizes(tag) == 1 < sizes(f"{tag}-sent"), f"{tag}: {sizes(tag)} sizes of steps")

    # Two clients, one of which is killed in mid-turn.
    keys = {**CODED, **turns("splitfed1", **{"split.wait": "60s", "checkpoint.every": "2 steps", "split.clients": 2}), **pad}
    for name, stops in (("calm", ()), ("killed", (3,))):
        server = Server(job(name, **keys))
        clients = {"a": Client(server, "a", data="train", kind="tsv", stops=stops), "b": Client(server, "b", kind="tsv")}
        if stops:
            stopped(server, clients["a"], 3)
            clients["a"].kill()
            clients["a"].release()
            clients["a"] = Client(server, "a", data="train", kind="tsv")
        for client in clients.values():
            client.end()
        server.end()
    check([lost("killed", name) for name in "ab"] == [lost("calm", name) for name in "ab"], "a killed client changes the run")

    # What it does not hide from a server that reads the values: gradients of padding are zero, without noise.
    noise = {"split.privacy.gradient_clip": 1, "split.privacy.gradient_noise": 0.01}
    lengths = table("train.tsv", 3, 22)
    for tag, keys in (("bare", {}), ("noised", noise)):
        whole(job(f"seen-{tag}", **{**PLAIN, **turns(), **pad, **keys, "split.capture": "64MiB"}), "a", data="train", kind="tsv")
        found = {}
        for kind, rows, columns, _, sample, values in seen(f"seen-{tag}/clients/a", flags=1):
            check(rows == 32, f"{tag}: sample {sample} has {rows} rows")
            if kind == 2:
                found[sample] = sum(any(values[row * columns:(row + 1) * columns]) for row in range(rows))
        wanted = {i: length if tag == "bare" else 32 for i, length in enumerate(lengths)}
        check(found == wanted, f"{tag}: rows that are not zero {found}, not {wanted}")

    # What cannot be hidden is refused by the plan.
    served = {"split.labels": "server", "pipeline.stages": "[{layers: 0-1, dials: true}, {layers: 2-5}]"}
    longer = {"pipeline.stages": STAGES.replace("4-5", "4-6")}
    wrongs = (("bert", job, {"model.kind": "bert", "model.tied": None, **longer}, "needs a decoder: the server's layers of bert see"),
              ("modernbert", job, {"model.kind": "modernbert", "model.tied": None, **longer}, "needs a decoder: "),
              ("deberta", job, {"model.kind": "deberta", "model.tied": "untied", "model.buckets": 8, **longer}, "needs a decoder: "),
              ("masks", manifest, answers, "does not go with data.pack_mask: "), ("served", job, served, "does not go with split.labels: server"),
              ("zstd", job, {"link.entropy": "zstd"}, "does not go with link.entropy: zstd"), ("text", manifest, {}, "all samples of data.kind: text are alike"),
              ("ec", job, {"edges.forward.codec": "ec", "edges.forward.bits": None, "edges.forward.rate": 3}, "the codec of edges.forward makes bodies whose size follows"),
              ("ec-back", job, {"edges.backward.codec": "ec", "edges.backward.bits": None, "edges.backward.rate": 3}, "the codec of edges.backward makes"),
              ("keyframe", job, {"edges.forward.keyframe": "ec"}, "the codec of edges.forward makes"),
              ("alone", job, {"split.clients": 0}, "split.pad: applies only to split learning"))
    for tag, make, changes, wanted in wrongs:
        done = aqpipe("plan", make(f"no-{tag}", **{**CODED, **turns(), **pad, **changes}))
        check(done.returncode == 2 and wanted in done.stderr, f"{tag}: {done.returncode}, {done.stderr}")

    # Lengths that nobody asked for: one line at both ends, and the right client is taken.
    (ROOT / "a.txt").write_text(jobs.text(1, 4000))
    text = {"data.train": str(ROOT / "a.txt"), "data.heldout": None, "data.heldout_samples_max": None}
    more = {"lengths_digest": "0000000000000007", "lengths_mean": 9}
    cases = (("hidden", job, {**pad}, "tsv", "train", "which split.pad hides"), ("alike", manifest, text, "txt", "a", "all samples of data.kind: text are alike"))
    for tag, make, changes, kind, data, wanted in cases:
        server = Server(make(f"more-{tag}", **{**CODED, **turns(), "split.rounds": 1, **changes}))
        said = Client(Between(server, "a", lambda who, line, send: {**line, **more} if line.get("op") == "join" else line), "a", data=data, kind=kind).end(1)
        check(said.count("has lengths of its samples to send") == 1 and wanted in said, f"{tag}: the client says {said}")
        once(server, f"a .* is refused: it has lengths of its samples to send.*{wanted}")
        Client(server, "a", data=data, kind=kind).end()
        server.end()
    no_workers("split_pad")
