"""The disk of a simulated world after a loss of power: what was synced, with the odd seeds also a part of what was only written.

    power_on.py LIBRARY FOLDER HOST SEED      prints the new store (e2e/power.py, kit/power_loss.c)
"""
import ctypes
import os
import pathlib
import random
import sys

sys.dont_write_bytecode = True
tests = pathlib.Path(__file__).resolve().parent.parent
sys.path[:0] = [str(tests), str(tests / "e2e")]
import power  # noqa: E402

library, folder, host, seed = sys.argv[1:]
disk = power.Power.__new__(power.Power)
disk.folder, disk.store = pathlib.Path(folder), pathlib.Path(os.environ[f"POWER_STORE_{host}"])
disk.number, disk.rng = int(disk.store.name.rpartition("-")[2]), random.Random(int(seed))
disk.library, disk.calls = library, ctypes.CDLL(library, use_errno=True)
disk.on(int(seed) % 2 == 1)
print(disk.store)
