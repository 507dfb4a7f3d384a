"""docs/TWO-OFFICES.md as it is printed: from a model folder and a JSONL file to a LoRA adapter, between two network namespaces.

Office B is a namespace with a disk of its own: what stands in the office's folder there came by the page's commands. Programs named hf, ssh
and rsync come first in PATH: hf copies a small published folder, ssh enters office B, rsync copies through ssh."""
import json
import os
import pathlib
import re
import subprocess
import sys

import chats
import jobs
from jobs import check
from kit import BIN, ROOT

TOOL = str(pathlib.Path(__file__).resolve().parents[2] / "tools/wanlab")
PAGE = pathlib.Path(__file__).resolve().parents[2] / "docs/TWO-OFFICES.md"
A, B = "10.79.0.1", "10.79.0.2"
COMMANDS = 6

HF = "#!/bin/sh\n# hf download NAME --local-dir FOLDER\ncp -r '{model}' \"$4\"\n"
# The last two words are the host and the command; there the office's folder is the other disk's.
SSH = """#!/bin/sh
while [ $# -gt 2 ]; do shift; done
case $1 in {B}|--) ;; *) echo "ssh: connect to host $1 port 22: Connection refused" >&2; exit 255 ;; esac
echo "$2" >> '{root}/ssh.log'
exec '{tool}' exec 1 unshare -m sh -c 'mount --bind "$1" "$2" && cd / && exec sh -c "$3"' office '{root}/disk-b' '{root}/office' "$2"
"""
RSYNC = """#!{python}
import subprocess, sys
words = sys.argv[1:]
shell, sources, to = words[words.index("-e") + 1], words[words.index("--") + 1:-1], words[-1]
open({root!r} + "/rsync.log", "a").write(" ".join(words) + "\\n")
if ":" in sources[0]:  # from there: one file
    target, path = sources[0].split(":", 1)
    there = subprocess.run([*shell.split(), target, "test -e '" + path + "'"]).returncode == 0
    if not there and "--ignore-missing-args" in words:
        sys.exit(0)
    with open(to + path.rsplit("/", 1)[1], "wb") as file:
        sys.exit(subprocess.run([*shell.split(), target, "cat '" + path + "'"], stdout=file).returncode)
path, (target, folder) = words[words.index("--rsync-path") + 1], to.split(":", 1)
packed = subprocess.run(["tar", "-ch", *[part for source in sources for part in ("-C", source.rsplit("/", 1)[0], source.rsplit("/", 1)[1])]],
                        check=True, stdout=subprocess.PIPE).stdout
sys.exit(subprocess.run([*shell.split(), target, path[:-len("rsync")] + "tar -C '" + folder + "' -xf -"], input=packed).returncode)
"""


def page_commands():
    """Those of the page's first section, in order; comments are no part of them."""
    text = PAGE.read_text(encoding="utf-8")
    block = re.search(r"^## Six commands\n.*?^```\n(.*?)^```", text, re.M | re.S).group(1)
    return [re.sub(r"\s+#.*", "", line) for line in block.splitlines() if line.strip() and not line.startswith("#")]


def program(name, text):
    path = ROOT / "bin" / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)


def walk():
    office, other = ROOT / "office", ROOT / "disk-b"
    office.mkdir()
    other.mkdir()
    model = chats.base("model", chat_template=chats.CHATML)
    program("hf", HF.format(model=model))
    program("ssh", SSH.format(B=B, root=ROOT, tool=TOOL))
    program("rsync", RSYNC.format(python=sys.executable, root=str(ROOT)))
    rows = [{"messages": [{"role": "user", "content": f"{i}+{i}?"}, {"role": "assistant", "content": str(2 * i)}]} for i in range(24)]
    (office / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    environment = {**os.environ, "PATH": f"{ROOT / 'bin'}:{BIN}:{os.environ['PATH']}"}
    commands = page_commands()
    check(len(commands) == COMMANDS, f"{PAGE.name} has {len(commands)} commands, not {COMMANDS}: {commands}")
    said = []
    for command in commands:
        real = re.sub(r"\bA,B\b", f"{A},{B}", command)
        done = subprocess.run(real, shell=True, cwd=office, env=environment, capture_output=True, text=True, stdin=subprocess.DEVNULL,
                              timeout=jobs.PATIENCE)
        check(done.returncode == 0, f"{command}: ended with {done.returncode}\n{done.stdout[-1000:]}{done.stderr[-2000:]}")
        said.append(done.stdout + done.stderr)
    made, launched = said[1], next(text for text, command in zip(said, commands) if command.startswith("aqpipe launch"))
    check("data.kind: instruct" in made, made)
    for command in commands[2:4]:  # what init prints is what the page goes on with
        check(re.sub(r"\bA,B\b", f"{A},{B}", command) in made, f"init does not print '{command}':\n{made}")
    check(f"copies keys, model and data to {B}" in launched, launched)
    adapter = office / "run/adapter"
    check((adapter / "adapter_model.safetensors").is_file() and (adapter / "adapter_config.json").is_file(), f"{list((office / 'run').iterdir())}")
    names = {str(path.relative_to(other)) for path in other.rglob("*") if path.is_file()}
    check({"Qwen3-0.6B/model.safetensors", "train.jsonl", "keys/authority.pem", "keys/stage-1.pem"} <= names, f"B has {sorted(names)}")
    secrets = {name for name in names if "authority-key" in name or "launcher" in name or "stage-0.pem" in name}
    check(not secrets, f"B has keys that are not its own: {secrets}")
    check((other / "keys/stage-1.pem").stat().st_mode & 0o77 == 0, "others can read B's key")
    check((office / "run/logs/stage-0.log").is_file() and "run/logs/stage-1.log" in names, f"stages ran elsewhere: {sorted(names)}")


def scenario_offices():
    os.environ["AQPIPE_BIN"] = str(BIN)
    if not os.environ.get("AQPIPE_WANLAB"):
        tried = subprocess.run([TOOL, "2", "--", "true"], capture_output=True, text=True, timeout=jobs.PATIENCE)
        if tried.returncode != 0:
            print(f"skipped: {tried.stderr.strip()}")
            sys.exit(77)
        sys.exit(subprocess.run([TOOL, "2", "--rate", "100", "--rtt", "20", "--", TOOL, "exec", "0", sys.executable, *sys.argv],
                                timeout=900).returncode)
    walk()
