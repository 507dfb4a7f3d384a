"""What may be claimed of a gap that was measured with several seeds: its interval, and whether that is on one side of a bound."""
import math
import statistics

SEEDS_LEAST = 5
# Student's t, two-sided 95 %, by degrees of freedom from 1 on; beyond them the last, which is larger than the right one.
T95 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101,
       2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042)


def interval(values):
    """Mean, and the 95 % interval of the mean by Student's t; of one value it is infinite."""
    mean = statistics.mean(values)
    if len(values) < 2:
        return mean, -math.inf, math.inf
    half = T95[min(len(values) - 1, len(T95)) - 1] * statistics.stdev(values) / math.sqrt(len(values))
    return mean, mean - half, mean + half


def claim(values, bound, lost=0):
    """(may it be claimed, the sentence) for gaps in percent, of which `lost` seeds have none because they diverged."""
    if lost:
        return False, f"no claim: {lost} of {len(values) + lost} seeds diverged"
    if len(values) < SEEDS_LEAST:
        return False, f"no claim: {len(values)} seeds, {SEEDS_LEAST} are needed"
    if not all(math.isfinite(value) for value in values):
        return False, "no claim: a gap is no number"
    mean, low, high = (round(one, 2) for one in interval(values))  # as it is printed
    said = f"{mean:+.2f} % [{low:+.2f}, {high:+.2f}], {len(values)} seeds"
    if high < bound:
        return True, f"below {bound:g} %: {said}"
    if low > bound:
        return True, f"above {bound:g} %: {said}"
    return False, f"no claim: the interval crosses {bound:g} %: {said}"
