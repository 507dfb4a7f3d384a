"""What the attacks share: how they are called, what they count, and how they say it.

An attack file (tests/attack/<room>.py) has functions under @attack("name") that take (run, rng, count) and call

    run.survived()        nothing happened that should not
    run.refused("why")    it was turned away with a clear error, as promised
    run.wrong("what")     a wrong bit, a right given to nobody, a promise broken
    run.hung("what")      nothing came within the deadline
    run.lost("what")      data of a user is gone

once for each try, `count` times in all or as often as it has cases. Each file is run by itself:

    tests/attack/folders.py --bin build/test/bin [--long] [--seed N] [--only NAME]

and by tests/attack/run, which adds up. The last line is one JSON object: tried, survived, refused, wrong, hung, lost.
Exit 0: wrong, hung and lost are 0. Exit 77: nothing could be tried here, with the reason.
"""
import argparse
import json
import pathlib
import random
import shutil
import sys
import traceback

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
import jobs  # noqa: E402

ATTACKS = []
KINDS = ("survived", "refused", "wrong", "hung", "lost")


class Run:
    """The tally of one file; prints what went through as it is found."""

    def __init__(self, seed):
        self.count = dict.fromkeys(KINDS, 0)
        self.name, self.seed, self.skipped = "", seed, []

    def note(self, kind, text):
        self.count[kind] += 1
        if kind in ("wrong", "hung", "lost"):
            print(f"{self.name}: {kind.upper()}: {text}", flush=True)

    def survived(self):
        self.note("survived", "")

    def refused(self, text=""):
        self.note("refused", text)

    def wrong(self, text):
        self.note("wrong", text)

    def hung(self, text):
        self.note("hung", text)

    def lost(self, text):
        self.note("lost", text)

    def skip(self, reason):
        self.skipped.append(f"{self.name}: {reason}")
        print(f"{self.name}: skipped: {reason}", flush=True)


def attack(name, short=1, long=None):
    """Registers a function; count is `short`, or `long` with --long."""
    def register(function):
        ATTACKS.append((name, function, short, short if long is None else long))
        return function
    return register


def main(room):
    parser = argparse.ArgumentParser(description=sys.modules["__main__"].__doc__ or room)
    parser.add_argument("--bin", default="build/test/bin", help="where aqpipe and aqpiped are")
    parser.add_argument("--long", action="store_true", help="the long form; CI runs the short one")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default="", help="the attack of this name, or those whose name begins so")
    parser.add_argument("--list", action="store_true", help="print the names of the attacks")
    parser.add_argument("--keep", action="store_true", help="leave the folder")
    options = parser.parse_args()
    names = [name for name, *_ in ATTACKS]
    if options.list:
        print("\n".join(names))
        sys.exit(0)
    again = f"tests/attack/{room}.py --seed {options.seed}" + (" --long" if options.long else "")
    root = jobs.begin(options.bin, f"attack-{room}", again, disk=room == "daemon")  # a confined worker may write to /dev/shm
    run = Run(options.seed)
    for name, function, short, long in ATTACKS:
        if name != options.only if options.only in names else not name.startswith(options.only):
            continue
        run.name, before = name, dict(run.count)
        try:
            function(run, random.Random(f"{options.seed} {name}"), long if options.long else short)
        except SystemExit as error:  # jobs.check and jobs.launch end so
            run.wrong(str(error))
        except Exception:  # an attack that breaks has shown nothing
            run.wrong(traceback.format_exc())
        tried = {kind: run.count[kind] - before[kind] for kind in KINDS}
        print(f"{name}: " + ", ".join(f"{n} {kind}" for kind, n in tried.items() if n), flush=True)
    bad = run.count["wrong"] + run.count["hung"] + run.count["lost"]
    if not options.keep and not bad:
        shutil.rmtree(root, ignore_errors=True)
    tried = sum(run.count.values())
    if bad:
        print(f"run it again: {again}   (files are in {root})")
    print(json.dumps({"attack": room, "seed": options.seed, "tried": tried, **run.count}), flush=True)
    sys.exit(1 if bad else 77 if not tried else 0)
