"""trace_rules: is a trace what Perfetto's importer of Chrome's JSON takes without a complaint? By its rules: complete events and metadata
alone, numbers where numbers belong, names of processes and threads once, and on each track slices that lie within each other or apart
(of two that overlap in part it drops one and counts an error)."""
import json

ROUNDING_US = 0.0015  # times are in microseconds with three digits


class Broken(Exception):
    """Which event, and what is wrong with it."""


def number(value):
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def check(text):
    """How many slices there are, by (process, track)."""
    events = json.loads(text, parse_constant=lambda word: (_ for _ in ()).throw(Broken(f"{word} is no JSON")))
    if not isinstance(events, list) or not events:
        raise Broken("a list of events")
    tracks, names, processes = {}, {}, set()
    for event in events:
        if not isinstance(event.get("name"), str) or not isinstance(event.get("pid"), int) or event.get("ph") not in ("X", "M"):
            raise Broken(f"{event}: name, pid or ph")
        key = (event["pid"], event.get("tid"))
        if event["ph"] == "M":
            if event["name"] in ("thread_name", "process_name"):
                name = (event["name"], *key[:1 if event["name"] == "process_name" else 2])
                if not isinstance(event["args"]["name"], str) or names.setdefault(name, event["args"]["name"]) != event["args"]["name"]:
                    raise Broken(f"{event}: another name")
            processes.add(event["pid"])
            continue
        if not isinstance(key[1], int) or not number(event.get("ts")) or not number(event.get("dur")) or event["ts"] < 0 or event["dur"] < 0:
            raise Broken(f"{event}: tid, ts or dur")
        if not isinstance(event.get("args", {}), dict):
            raise Broken(f"{event}: args")
        tracks.setdefault(key, []).append(event)
    for key, slices in tracks.items():
        if ("thread_name", *key) not in names or ("process_name", key[0]) not in names:
            raise Broken(f"{key}: a track without a name")
        around = []
        for event in sorted(slices, key=lambda e: (e["ts"], -e["dur"])):
            end = event["ts"] + event["dur"]
            while around and around[-1] <= event["ts"] + ROUNDING_US:
                around.pop()
            if around and end > around[-1] + ROUNDING_US:
                raise Broken(f"{event}: overlaps in part with the one before on {key}")
            around.append(end)
    return {key: len(slices) for key, slices in tracks.items()}
