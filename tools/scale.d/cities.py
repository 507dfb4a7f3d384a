"""Round trips between cities (share/cities.csv), and a walk through them."""
import csv
import pathlib

ROOT = pathlib.Path(__file__).resolve().parents[2]


def cities():
    """Round trips by pair, and a walk that goes to the nearest city that is left each time."""
    trips = {}
    with open(ROOT / "share" / "cities.csv", encoding="utf-8") as file:
        for row in csv.DictReader(line for line in file if not line.startswith("#")):
            trips[row["from"], row["to"]] = trips[row["to"], row["from"]] = float(row["rtt_ms"])
    names = list(dict.fromkeys(a for a, _ in trips))
    walk = names[:1]
    while len(walk) < len(names):
        walk.append(min((n for n in names if n not in walk), key=lambda n: trips[walk[-1], n]))
    return trips, walk


TRIPS, WALK = cities()


def trip_of(stages, e, place):
    """Of the link from stage e to the next one."""
    if place != "cities":
        return float(place)
    a, b = (WALK[s * len(WALK) // stages] for s in (e, e + 1))
    return TRIPS[a, b] if a != b else 1.0
