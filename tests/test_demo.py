#!/usr/bin/env python3
"""test_demo: the rate, epochs and steps that tools/demo chooses from what it has measured. Nothing is trained."""
import pathlib
import subprocess

tool = pathlib.Path(__file__).resolve().parent.parent / "tools/demo"
BYTES = 1575992  # fp32 activations of a step of the demo's model on a link: 16 x 128 x 192 values, and their frames


def choose(*words):
    done = subprocess.run([tool, "--choose", *map(str, words)], capture_output=True, text=True)
    return done.returncode, [float(word) for word in done.stdout.split()], done.stderr


for step in (0.02, 0.05, 0.15, 0.4, 1, 3):
    for count in (BYTES, BYTES // 4):
        code, (rate, epochs, steps), said = choose(step, count)
        assert code == 0 and not said, said
        # The last of 4 gradients has come down 3 links after 9 micro-batches one after the other: three steps' time.
        links = 9 / 4 * count * 8 / (rate * 1e6)
        assert abs(links / step - 3) < 0.15, f"{step} s, {count} bytes: {rate} Mbit/s are {links:.3f} s"
        assert 4 <= epochs <= 12 and 40 <= steps <= 2000, f"{step} s: {epochs} epochs, {steps} steps"
        # A step over links takes three and a little; of the two compressed runs 1.3, and 2 while keyframes are sent.
        seconds = step * (steps + 20 * (epochs * (3.3 + 2 * 1.3) + 2 * 0.7))
        assert step > 0.2 or seconds < 230, f"{step} s: the demo takes {seconds:.0f} s"
assert choose(0.15, BYTES)[1] == [63, 8, 386], choose(0.15, BYTES)
assert choose(0.1, BYTES)[1][0] > choose(0.2, BYTES)[1][0], "a slower machine, slower links"
for words in (("", BYTES), (0, BYTES), (0.1, 0), (-1, 5), (0.1,), (0.1, 1, 2)):
    code, chosen, said = choose(*words)
    assert code == 2 and not chosen and "needs seconds and bytes" in said, f"{words}: {code} {chosen} {said}"
print("test_demo: ok")
