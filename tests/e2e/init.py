"""`aqpipe init`: jobs that `plan` takes, from a model folder and data; its keys, bundles and commands; what it refuses."""
import json

import chats
from jobs import aqpipe, check
from kit import ROOT


def made(folder, *arguments, code=0):
    done = aqpipe("init", *arguments, "--dir", ROOT / folder)
    check(done.returncode == code, f"init {arguments} ended with {done.returncode}: {done.stderr}")
    return done.stdout if code == 0 else done.stderr


def planned(folder):
    done = aqpipe("plan", ROOT / folder / "job.yaml", "--json")
    check(done.returncode == 0, f"{folder}: plan: {done.stderr}")
    return (ROOT / folder / "job.yaml").read_text()


def names(folder):
    return {path.name for path in (ROOT / folder).iterdir()}


def scenario_init():
    model = chats.base("model", chat_template=chats.CHATML)
    talk, text = ROOT / "talk.jsonl", ROOT / "text.jsonl"
    talk.write_text('{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}\n' * 64)
    text.write_text(json.dumps({"text": "the pipeline " * 40}) + "\n")

    said = made("one", model, "--data", talk, "--lora", 4)
    job = planned("one")
    check("kind: instruct" in job and "rank: 4" in job and "stages: 2" in job and "security" not in job, job)
    check(names("one") == {"job.yaml"} and "aqpipe launch" in said and "--chat" in said, said)
    check("kind: text" in made("two", model, "--data", text, "--heldout", ROOT / "heldout.txt", "--kind", "text") + planned("two"), "two")

    said = made("three", model, "--data", text, "--hosts", "10.0.0.1,me@10.0.0.2")
    check(names("three") == {"job.yaml", "keys"} and "--host 10.0.0.1,me@10.0.0.2 --copy" in said, said)
    keys = {path.name for path in (ROOT / "three/keys").iterdir()}
    check({"authority.pem", "authority-key.pem", "launcher.pem", "stage-0.pem", "stage-1.pem"} <= keys, f"{keys}")
    planned("three")

    said = json.loads(made("four", model, "--data", text, "--hosts", "10.0.0.1,10.0.0.2", "--daemons", "--json"))
    check(names("four") == {"job.yaml", "keys", "for-10.0.0.1", "for-10.0.0.2"}, f"{names('four')}")
    check(names("four/for-10.0.0.2") == {"authority.pem", "stage-1.pem", "daemon-10.0.0.2.pem"}, f"{names('four/for-10.0.0.2')}")
    check([command["where"] for command in said["commands"]] == ["here", "10.0.0.1", "here", "10.0.0.2", "here", "here", "here"], f"{said}")
    check('host: "tcp://10.0.0.2:7070"' in planned("four"), "four")

    for name, line in (("talk.ndjson", talk.read_text()), ("pairs.csv", "prompt,response\na,b\n" * 9)):
        (ROOT / name).write_text(line)
        made(name.replace(".", "-"), model, "--data", ROOT / name)
        check("kind: instruct" in planned(name.replace(".", "-")), name)
    again = made("three", model, "--data", text, "--hosts", "10.0.0.1,10.0.0.2", code=2)
    check("exists: remove it" in again, again)
    (ROOT / "three/job.yaml").unlink()  # its keys are there: a refused init leaves no manifest
    again = made("three", model, "--data", text, "--hosts", "10.0.0.1,10.0.0.2", code=1)
    check("keys" in again and not (ROOT / "three/job.yaml").exists(), again)
    ported = json.loads(made("ported", model, "--data", text, "--hosts", "me@10.0.0.1:2222,10.0.0.2", "--daemons", "--json"))
    check("scp -rp -P 2222 " in ported["commands"][0]["command"] and "-P" not in ported["commands"][2]["command"], f"{ported}")
    check("exists: remove it" in made("one", model, "--data", talk, code=2), "a manifest was replaced")
    check("No such file" in made("five", model, "--data", ROOT / "none", code=2), "data that is not there")
    check("name two or more" in made("five", model, "--data", text, "--hosts", "a", code=2), "one host")
    check("is not a host" in made("five", model, "--data", text, "--hosts", "a,-oX", code=2), "an option of ssh")
    pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 988097824\n"
    cloned = chats.base("cloned", chat_template=chats.CHATML)
    (cloned / "model.safetensors").write_text(pointer)
    check("cloned/model.safetensors: is a Git LFS pointer, not the file itself: run `git lfs pull`" in made("five", cloned, "--data", text, code=2), "LFS")
    (ROOT / "lfs.jsonl").write_text(pointer)
    check("lfs.jsonl: is a Git LFS pointer" in made("five", model, "--data", ROOT / "lfs.jsonl", code=2), "data of LFS")
    check("none: there is no such folder" in made("five", ROOT / "none", "--data", text, code=2), "no model")
    text.write_text("no JSON\n")
    check("text.jsonl:1: is not a JSON object; name its --kind" in made("five", model, "--data", text, code=2), "no JSON")
    check(not (ROOT / "five/job.yaml").exists(), "a refused job left a manifest")
