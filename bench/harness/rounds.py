"""Interleaved rounds: in each, both sides do the same work, one directly after the other, in alternating order."""

from .counters import Counting


def interleave(count, measure, log):
    """`measure(side)` gives {counter: value a unit of work} for "original" or "optimized"."""
    rounds = []
    for number in range(count):
        order = ("original", "optimized") if number % 2 == 0 else ("optimized", "original")
        values = {side: measure(side) for side in order}
        rounds.append({side: values[side] for side in ("original", "optimized")})
        log(f"  round {number + 1} of {count}")
    return rounds


def interleave_inputs(count, inputs, measure, log):
    """As `interleave`, where the sides take turns at each input; `measure(side, input)` is for one of them. A round is the mean of all inputs."""
    rounds = []
    for number in range(count):
        sums = {"original": {}, "optimized": {}}
        for index, each in enumerate(inputs):
            for side in list(sums) if (number + index) % 2 == 0 else list(sums)[::-1]:
                for counter, value in measure(side, each).items():
                    sums[side][counter] = sums[side].get(counter, 0) + value
        rounds.append({side: {counter: value / len(inputs) for counter, value in total.items()} for side, total in sums.items()})
        log(f"  round {number + 1} of {count}")
    return rounds


def in_turns(count, sides, measure):
    """Rounds of more than two sides; each begins with another one, and every other one goes round the other way."""
    rounds = []
    for number in range(count):
        first = number % len(sides)
        order = sides[first:] + sides[:first]
        rounds.append({side: measure(side) for side in (order if number % 2 == 0 else order[::-1])})
    return rounds


def serve_and_count(events, pids, load):
    """Counts in the server processes `pids` while `load()` runs, which returns the units of work it had done."""
    with Counting(events, pids) as counting:
        units = load()
    return {counter: value / units for counter, value in counting.values.items()}


def run_and_count(events, commands, **options):
    """Runs commands to their ends; counters summed over them. Raises RuntimeError if one fails."""
    total = {}
    for command in commands:
        counting = Counting(events)
        status = counting.command(command, **options)
        if status != 0:
            raise RuntimeError(f"{' '.join(command)} ended with {status}")
        for counter, value in counting.values.items():
            total[counter] = total.get(counter, 0) + value
    return {counter: value / len(commands) for counter, value in total.items()}
