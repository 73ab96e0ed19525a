"""The command line: which loads, how long, where the results go."""

import argparse
import importlib
import json
import os
import shlex
import sys
import time

from . import counters, report
from .machine import Failed, Machine, Missing, find
from .restitch import Restitch
from .stats import ratios

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
LOADS = ["demo", "cc1plus", "python", "postgres", "mariadb", "redis", "nginx"]


# So many short rounds do what one long one would: the speed of a shared machine changes within seconds, and the median of many ratios is surer.
SHORT = 8


class Context:
    """What a load gets: the machine, restitch, the counters, and how much it is to do."""

    def __init__(self, machine, restitch, events, arguments, log):
        self.machine, self.restitch, self.events, self.log = machine, restitch, events, log
        self.quick = arguments.quick
        self.rounds = arguments.rounds or (3 if arguments.quick else 11)

    def amount(self, full):
        """A number of units of work; a tenth of it for --quick."""
        return max(full // 10, 1) if self.quick else full

    def short_rounds(self):
        """How many short rounds are made."""
        return self.rounds if self.quick else self.rounds * SHORT

    def short(self, full):
        """The part of this work that is done in a short round."""
        return self.amount(full) if self.quick else max(full // SHORT, 1)


def parse(argv):
    parser = argparse.ArgumentParser(
        prog="bench/bench run",
        description="Measures original against optimized programs and writes the table to docs/benchmarks.md and to a new file of bench/results; raw values go to out/bench/*.json.",
        epilog="loads: " + ", ".join(LOADS),
    )
    parser.add_argument("loads", nargs="*", metavar="LOAD", help="what to measure (default: everything that is installed)")
    parser.add_argument("--rounds", type=int, help=f"interleaved rounds a load (default 11; 3 with --quick); live loads and python make {SHORT} times as many short ones")
    parser.add_argument("--quick", action="store_true", help="little work: shows that it runs, not what it gains")
    parser.add_argument("--same", action="store_true", help="original against original: how large is the noise?")
    parser.add_argument("--with", dest="added", metavar="OPTIONS", type=shlex.split, help="restitch with these options of attach and optimize against restitch without them; prints the table")
    parser.add_argument("--restitch", default=os.path.join(ROOT, "target/release/restitch"), help="the program (default: target/release/restitch)")
    parser.add_argument("--no-page", action="store_true", help="print the table instead of writing docs/benchmarks.md")
    arguments = parser.parse_args(argv)
    unknown = sorted(set(arguments.loads) - set(LOADS))
    if unknown:
        parser.error(f"no such load: {', '.join(unknown)}; there are {', '.join(LOADS)}")
    if arguments.rounds is not None and arguments.rounds < 1:
        parser.error("--rounds needs at least 1")
    return arguments


def main(argv):
    arguments = parse(argv)
    log = lambda text: print(text, file=sys.stderr, flush=True)
    try:
        find("perf")
        if not os.access(arguments.restitch, os.X_OK):
            raise Missing(f"{arguments.restitch} is not there; build it: cargo build --release -p restitch")
    except Missing as missing:
        log(f"bench/bench run: {missing}")
        return 2
    events, deciding, how = counters.choose()
    log(f"counting {how}")
    # Results of --same, --with and --quick are not of restitch against the original: they stay apart and never get on the page.
    folder = os.path.join(ROOT, "out", "bench-same" if arguments.same else "bench-with" if arguments.added else "bench-quick" if arguments.quick else "bench")
    os.makedirs(folder, exist_ok=True)
    failed = []
    for name in arguments.loads or LOADS:
        log(f"{name}:")
        try:
            rows = measure(name, arguments, events, log)
        except Missing as missing:
            log(f"  left out: {missing}")
            if arguments.loads:
                failed.append(name)
            continue
        except (Failed, RuntimeError, OSError) as problem:
            log(f"  FAILED: {problem}")
            failed.append(name)
            continue
        with open(os.path.join(folder, f"{name}.json"), "w") as f:
            json.dump(report.record(name, rows, deciding, how, arguments), f, indent=1)
    table = report.table(folder, LOADS)
    if arguments.same or arguments.added or arguments.quick or arguments.no_page:
        print(table)
    else:
        page = os.path.join(ROOT, "docs", "benchmarks.md")
        report.insert(page, table)
        command = shlex.join(["bench/bench", "run", *argv])
        result = report.write_result(os.path.join(ROOT, "bench", "results"), "stock-programs", "Stock programs, original against optimized", command, table)
        log(f"written to {os.path.relpath(page)} and {os.path.relpath(result)}")
    if failed:
        log(f"failed: {', '.join(failed)}")
    return 1 if failed else 0


def measure(name, arguments, events, log):
    """All rows of one load, each with its summary."""
    load = importlib.import_module(f"loads.{name}")
    start = time.monotonic()
    with Machine(log) as machine:
        restitch = Restitch(arguments.restitch, arguments.same, log, arguments.added)
        context = Context(machine, restitch, events, arguments, log)
        rows = load.run(context)
        for row in rows:
            row["summary"] = ratios(row["rounds"])
            row["restitch"] = restitch.version()
    log(f"  {time.monotonic() - start:.0f} s")
    return rows
