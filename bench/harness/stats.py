"""Medians of ratios with an interval. No assumption about the distribution of the noise."""

from math import comb
from statistics import median

# The interval holds the true median ratio with at least this probability, where there are rounds enough.
CONFIDENCE = 0.95


def interval(values, confidence=CONFIDENCE):
    """(low, high, confidence reached): order statistics around the median (the sign test turned round).

    The widest interval is all values; with fewer than six it reaches less than 0.95, and the number says so.
    """
    ordered, n = sorted(values), len(values)
    reached = lambda k: 1 - 2 * sum(comb(n, i) for i in range(k + 1)) / 2**n
    k = 0
    while k + 1 < n / 2 and reached(k + 1) >= confidence:
        k += 1
    return ordered[k], ordered[n - 1 - k], max(reached(k), 0.0)


def ratios(rounds):
    """{counter: summary} of rounds, each {"original": {counter: value a unit}, "optimized": {...}}."""
    summary = {}
    for counter in rounds[0]["original"]:
        pairs = [(r["original"].get(counter), r["optimized"].get(counter)) for r in rounds]
        pairs = [(a, b) for a, b in pairs if a and b is not None]
        if not pairs:
            continue
        values = [b / a for a, b in pairs]
        low, high, reached = interval(values)
        summary[counter] = {
            "original": median(a for a, _ in pairs),
            "optimized": median(b for _, b in pairs),
            "ratio": median(values),
            "low": low,
            "high": high,
            "confidence": reached,
            "rounds": len(pairs),
        }
    return summary


def between(rounds, counter, side, base):
    """One side's values against another one's, within each round: median and interval in words; a dash where nothing was counted."""
    values = [r[side][counter] / r[base][counter] for r in rounds if r[side].get(counter) and r[base].get(counter)]
    if not values:
        return "-"
    low, high, _ = interval(values)
    return f"{median(values):.3f} [{low:.3f}, {high:.3f}]"


def verdict(summary):
    """In words: the whole interval on one side of 1, or not."""
    if summary["confidence"] < CONFIDENCE:
        return "too few rounds"
    if summary["high"] < 1:
        return "faster"
    return "slower" if summary["low"] > 1 else "unclear"
