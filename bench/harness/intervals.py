"""What software branch tracing costs at fixed distances between records: Table 1 and Figure 3 of "Break Dancing" in form.

Records of 16 taken branches, each so many taken branches, by restitch's way of following the code ahead (it evaluates it) and by the paper's (breakpoints at all branches that the instruction alone does not decide).
No machine here counts taken branches for alarms, so a distance is given as the processor time in which the program takes so many: what it takes is counted exactly, and divided by what it uses.

Two costs are told: what restitch sees (the time for which threads are held, for each second of their processor time), and how much longer the program takes from its beginning to its end than in the runs beside it. See bench/README.md.
"""

import json
import math
import os
import subprocess
import tempfile
from statistics import median

from . import report
from .fidelity import Subject
from .fidelity_loads import LOADS
from .machine import Missing
from .tables import Table

# Taken branches between two records.
INTERVALS = (500_000, 1_000_000, 2_000_000, 4_000_000, 5_000_000)
# The one of which it is told what the cost consists of.
SHOWN = 1_000_000
DEPTH = 16
WAYS = {"evaluate": "evaluated", "fixed": "as in the paper"}
# Those that do the same work however long it takes.
NAMES = ("cc1plus", "postgres", "python3", "perl", "sqlite3", "xz")
# Of the paper: geometric means over SPEC CPU 2006.
PAPER = {"the paper, geometric mean, Xeon E5-2690": (13.65, 7.45, 3.71, 2.98, 1.65), "the paper, geometric mean, EPYC 7B12": (11.78, 6.17, 3.73, 1.97, 1.49)}
# Nanoseconds before and after the program.
TIMED = 'date +%s%N > "$0"; "$@"; code=$?; date +%s%N >> "$0"; exit $code'


class Timed(Subject):
    """A command that writes down when it begins and ends."""

    def __init__(self, load, folder, options):
        super().__init__(load, folder, options)
        self.times = os.path.join(folder, "times")
        with open(self.times, "w"):
            os.chmod(self.times, 0o666)
        self.told = os.path.join(folder, "told.json")
        self.program = self.command

    def elapsed(self):
        """Seconds that the program took in the last run."""
        with open(self.times) as f:
            began, ended = f.read().split()
        return (int(ended) - int(began)) / 1e9

    def plain(self):
        """Seconds on the wall, and of the processor."""
        command = ["sh", "-c", TIMED, self.times, *self.program]
        _, used = self.execute(command)
        return self.elapsed(), used

    def recorded(self, how, timed=True):
        """What `restitch record` says in its JSON form."""
        self.command = ["sh", "-c", TIMED, self.times, *self.program] if timed else self.program
        self.record([*how, "--json", self.told], os.path.join(self.folder, "profile"))
        with open(self.told) as f:
            return json.load(f)


def taken_branches(subject):
    """Branches that the program and its libraries take in one run."""
    told = subject.recorded(["--source", "count"], timed=False)
    return sum(module["counting"]["taken_branches"] for module in told["modules"] if module.get("counting"))


def one(subject, interval, way, rate):
    """What records at this distance cost in one run, the program being slower than `wall` seconds."""
    period = round(interval / rate * 1e6)
    told = subject.recorded(["--source", "trace", "--depth", str(DEPTH), "--period", f"{period}us", "--look-ahead", way])["branch_records"]
    share = lambda key: told[key] / max(told["cpu_ms"], 1e-9)
    return {
        "wall": subject.elapsed(), "seen": told["overhead"] or 0.0, "stops": share("held_ms") - share("looking_ms"), "looking": share("looking_ms"),
        "records": told["records"], "branches": told["branches"], "breakpoints": told["breakpoints"], "per_second": told["records"] / max(told["cpu_ms"], 1e-9) * 1e3,
    }


def measure(name, options, log):
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        try:
            subject = Timed(LOADS[name](folder), folder, options)
            branches = taken_branches(subject)
            subject.plain()
            seconds = median(subject.plain()[1] for _ in range(3))
            rate = branches / seconds
            log(f"  {branches / 1e6:,.0f} million taken branches in {seconds:.2f} s")
            runs = []
            for number in range(options.rounds):
                for way in WAYS:
                    for interval in options.intervals:
                        before = subject.plain()[0]
                        run = one(subject, interval, way, rate)
                        beside = (before + subject.plain()[0]) / 2
                        runs.append({"interval": interval, "way": way, "slower": run["wall"] / beside - 1, **run})
                log(f"  round {number + 1} of {options.rounds}")
            return {"program": name, "rate": rate, "seconds": seconds, "runs": runs}
        except (OSError, KeyError, TypeError, subprocess.SubprocessError) as problem:
            raise Missing(f"{type(problem).__name__}: {problem}") from None


def middle(row, way, interval, key):
    return median(run[key] for run in row["runs"] if run["way"] == way and run["interval"] == interval)


def million(interval):
    return f"{interval / 1e6:g} M"


def means(rows, way, intervals):
    """Geometric means of what is seen, in percent."""
    logs = lambda interval: [math.log(max(100 * middle(row, way, interval, "seen"), 1e-3)) for row in rows]
    return [math.exp(sum(logs(interval)) / len(rows)) for interval in intervals]


def text(rows, options):
    intervals = options.intervals
    lines = [f"Records of {DEPTH} taken branches, {options.rounds} runs each: median of what is seen in percent, and in brackets of how much longer the program took. {report.here()}.", ""]
    lines += ["| program | code ahead | " + " | ".join(f"each {million(i)}" for i in intervals) + " |", "|---" * (len(intervals) + 2) + "|"]
    for row in rows:
        for way, words in WAYS.items():
            cells = [f"{100 * middle(row, way, i, 'seen'):.2f} ({100 * middle(row, way, i, 'slower'):+.1f})" for i in intervals]
            lines.append(f"| {row['program']} | {words} | {' | '.join(cells)} |")
    for way, words in WAYS.items():
        lines.append(f"| geometric mean of what is seen | {words} | " + " | ".join(f"{value:.2f}" for value in means(rows, way, intervals)) + " |")
    if tuple(intervals) == INTERVALS:
        lines += [f"| {who} | | {' | '.join(f'{value:.2f}' for value in values)} |" for who, values in PAPER.items()]
    shown = SHOWN if SHOWN in intervals else intervals[0]
    lines += ["", f"Of them, a record each {million(shown)} taken branches, in shares of the program's processor time:", ""]
    lines += ["| program | million taken branches a second | code ahead | records a second | branches for each breakpoint | stops and breakpoints % | looking ahead % | one record, us |", "|---" * 8 + "|"]
    for row in rows:
        for way, words in WAYS.items():
            of = lambda key: middle(row, way, shown, key)
            useful = of("branches") / max(of("breakpoints"), 1)
            each = 1e6 * of("seen") / max(of("per_second"), 1e-9)
            lines.append(
                f"| {row['program']} | {row['rate'] / 1e6:,.0f} | {words} | {of('per_second'):.0f} | {useful:.1f} | {100 * of('stops'):.2f} | {100 * of('looking'):.2f} | {each:.0f} |"
            )
    return "\n".join(lines) + "\n"


def main(argv):
    def settle(options):
        options.intervals = INTERVALS[1:3] if options.quick else INTERVALS

    loads = {name: name for name in NAMES}
    return Table("bench/bench intervals", __doc__, loads, measure, text, "cost-of-records-at-distances", None, 3, quick=1, raw="intervals.json").main(argv, settle=settle)
