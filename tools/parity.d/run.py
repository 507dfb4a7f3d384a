"""run.py FOLDER_RUN json|table ONLY [keep] [speed] [short]: runs the cases of every family beside this file; see tools/parity.

A family is a file with CASES, a list of functions of one argument (a kit.Place: where to write, how to run ours), each of which
yields (case, value, unit, limit), with `names`, the cases that it yields: kit.language_model makes both for language models. A
value beyond its limit (None: there is none) is a failure. A case with the attribute `long` is left out with short.
"""
import fnmatch
import gc
import importlib
import json
import pathlib
import shutil
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parents[1] / "tests")]
from torch_process import leave  # noqa: E402

import kit  # noqa: E402


def families():
    """Modules beside this one that have CASES, or, asked for speed, SPEED."""
    attribute = "SPEED" if "speed" in sys.argv[4:] else "CASES"
    for path in sorted(HERE.glob("*.py")):
        if path.stem in ("run", "kit"):
            continue
        yield from getattr(importlib.import_module(path.stem), attribute, [])


def main():
    only, as_json, failed = sys.argv[3], sys.argv[2] == "json", 0
    if "short" not in sys.argv[4:]:
        gc.enable()  # torch_process switches it off: models of published sizes must not pile up
    root = pathlib.Path(tempfile.mkdtemp(prefix="aqpipe-parity-"))
    for number, case in enumerate(families()):
        if "short" in sys.argv[4:] and getattr(case, "long", False):
            continue
        if not any(fnmatch.fnmatch(name, only) for name in case.names):
            continue
        place = kit.Place(root / str(number), pathlib.Path(sys.argv[1]))
        try:
            for name, value, unit, limit in case(place):
                if not fnmatch.fnmatch(name, only):
                    continue
                if limit is not None and not value <= limit:
                    print(f"{name}: {value:.3g} is above {limit:g}", file=sys.stderr)
                    failed = 1
                print(json.dumps({"case": name, "value": value, "unit": unit}) if as_json else f"{name:36} {value:10.3g} {unit}",
                      flush=True)
        except kit.Failed as error:
            print(f"{case.names[0]}: {error}", file=sys.stderr)
            failed = 1
    if "keep" in sys.argv[4:]:
        print(f"kept: {root}", file=sys.stderr)
    else:
        shutil.rmtree(root, ignore_errors=True)
    return failed


if __name__ == "__main__":
    leave(main())
