"""Compares `attach` of two builds of restitch, A and B: restitch's own work (all phases but those that watch the target) and the time until the new
layout is active, with one profile that A has recorded before (given) and with two seconds of counting (counted). Both attach to the same process under
load, in turn and in changing order, with a revert after each. Medians of ratios B/A, and their range; with --phases those of each phase, too."""

import argparse
import statistics

from . import pauses
from .machine import Machine
from .restitch import Restitch

WAYS = ("given", "counted")
MEASURED = {"own work": lambda a: sum(p["ms"] for p in a["phases"] if p["name"] not in pauses.WATCHING), "active after": lambda a: a["apply"]["in_force_ms"]}


def ratios(a, b):
    """The median of the ratios of rounds, the least and the largest."""
    all_ratios = sorted(y / x for x, y in zip(a, b))
    return statistics.median(all_ratios), all_ratios[0], all_ratios[-1]


def compare(load, builds, rounds, log, ways=WAYS):
    """What was measured of each attach, by way and build."""
    _, start = pauses.LOADS[load]
    seen = {}
    with Machine(log) as machine:
        restitchs = [Restitch(path, False, log) for path in builds]
        pid, work, tree = start(machine, restitchs[0])
        with pauses.under_load(work):
            # One for both: what two recordings of one load hold differs, and so does the work that they give.
            profile = machine.path("profile")
            restitchs[0].call(["record", "-p", str(pid), "--duration", "2", "-o", profile, *(["--tree"] if tree else [])], machine)
            for number in range(rounds):
                for way in ways:
                    for which in ((0, 1), (1, 0))[number % 2]:
                        how = ["--profile", profile] if way == "given" else ["--duration", "2"]
                        attached = pauses.one_round(restitchs[which], machine, pid, tree, how)["attach"]
                        seen.setdefault((way, which), []).append(attached)
    return seen


def phases(attaches):
    """What is measured of each phase that took all of them some time, in the order of the first one."""
    names = [p["name"] for p in attaches[0]["phases"] if p["name"] not in pauses.WATCHING]
    common = [n for n in dict.fromkeys(names) if all(any(p["name"] == n and p["ms"] > 0 for p in a["phases"]) for a in attaches)]
    return {n: lambda a, n=n: sum(p["ms"] for p in a["phases"] if p["name"] == n) for n in common}


def rows(load, seen, by_phase=False):
    """Lines of a table: what was measured, medians of A and B in ms, the ratio with its range."""
    for way in dict.fromkeys(way for way, _ in seen):
        measured = MEASURED | (phases(seen[way, 0] + seen[way, 1]) if by_phase else {})
        for what, of in measured.items():
            a, b = ([of(attached) for attached in seen[way, which]] for which in range(2))
            middle, least, largest = ratios(a, b)
            yield f"| {load}, {way} | {what} | {statistics.median(a):.0f} | {statistics.median(b):.0f} | {middle:.3f} | {least:.3f} to {largest:.3f} |"


def main(argv):
    parser = argparse.ArgumentParser(prog="bench/bench attaches", description=__doc__)
    parser.add_argument("a", help="a release build of restitch")
    parser.add_argument("b", help="the other one")
    parser.add_argument("loads", nargs="*", choices=[[], *pauses.LOADS], help="all of `pause` by default")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--way", choices=WAYS, help="one of the two; both by default")
    parser.add_argument("--phases", action="store_true", help="each phase of the work, too")
    options = parser.parse_args(argv)
    print("| load | measured | A, ms | B, ms | B/A | range |\n|---|---|---|---|---|---|")
    for load in options.loads or pauses.LOADS:
        for row in rows(load, compare(load, (options.a, options.b), options.rounds, lambda *_: None, [options.way] if options.way else WAYS), options.phases):
            print(row, flush=True)
    return 0
