"""What recording branches costs a program at work: the demo workload, with and without `restitch record`, in turns.

The unit is work for each second of wall time, because a thread that is held uses no processor time: the cost is how much longer the same work takes. Once with one thread
for several budgets (`--overhead`), once for a budget of one percent with 1 to 64 threads. Bursts: with the time in which code is sampled and tracing versions are made.
The table also has what restitch says of itself: the overhead, what it consists of, and branches a second. `after` compares work after the recordings with work before the
first one: what is not recorded costs nothing. See bench/README.md.
"""

import json
import os
import time
from statistics import median

from . import report
from .machine import Machine, wait_for
from .restitch import Restitch
from .stats import interval
from .tables import Table
from loads import demo

BUDGETS = ("0.5", "1", "2", "5")
THREADS = (2, 4, 8, 16, 32, 64)
SETTINGS = [(source, budget, 1) for source in ("trace", "burst") for budget in BUDGETS] + [(source, "1", n) for source in ("trace", "burst") for n in THREADS]
LOADS = {f"{source}-{budget}-{threads}": (source, budget, threads) for source, budget, threads in SETTINGS}


class Workload:
    def __init__(self, machine, restitch, threads):
        self.progress = machine.path("progress")
        command = [restitch.path, "demo-workload", "--", "--seconds", "86400", "--threads", str(threads), "--progress", self.progress]
        self.child = machine.start(command, core=os.sched_getaffinity(0))
        wait_for("the demo workload", lambda: demo.finished(self.progress) > 1000)

    def rate(self, during):
        """Finished requests a second while `during` runs."""
        start, before = time.monotonic(), demo.finished(self.progress)
        result = during()
        return (demo.finished(self.progress) - before) / (time.monotonic() - start), result


def recording(machine, restitch, pid, source, budget, seconds):
    told = machine.path("record.json")
    arguments = ["record", "-p", str(pid), "--source", source, "--overhead", f"{budget}%", "--duration", str(seconds), "-o", machine.path("profile"), "--json", told]
    restitch.call(arguments, machine)
    with open(told) as f:
        return json.load(f)["branch_records"]


def measure(name, options, log):
    source, budget, threads = LOADS[name]
    with Machine(log) as machine:
        restitch = Restitch(options.restitch, False, log)
        workload = Workload(machine, restitch, threads)
        pause = lambda: time.sleep(options.seconds / 2)
        workload.rate(pause)
        rounds, off = [], [workload.rate(pause)[0]]
        for _ in range(options.rounds):
            on, told = workload.rate(lambda: recording(machine, restitch, workload.child.pid, source, budget, options.seconds))
            off.append(workload.rate(pause)[0])
            # Against the mean of what was before and what comes after.
            rounds.append({"slower": (off[-2] + off[-1]) / 2 / on - 1, "told": told})
        log(f"  {100 * median(r['slower'] for r in rounds):.2f} % slower")
        return {"source": source, "budget": budget, "threads": threads, "rounds": rounds, "off": off, "restitch": restitch.version()}


def cells(row):
    told = [r["told"] for r in row["rounds"]]
    middle = lambda value: median(value(t) for t in told)
    share = lambda key: 100 * middle(lambda t: t[key] / max(t["cpu_ms"], 1e-9))
    low, high, _ = interval([r["slower"] for r in row["rounds"]])
    slower = 100 * median(r["slower"] for r in row["rounds"])
    after = median(row["off"][1:]) / row["off"][0]
    return [
        row["source"], row["budget"], str(row["threads"]), f"{slower:.2f} ({100 * low:.2f} to {100 * high:.2f})", f"{100 * middle(lambda t: t['overhead']):.2f}",
        f"{share('held_ms') - share('looking_ms'):.2f}", f"{share('looking_ms'):.2f}", f"{share('recording_ms'):.2f}",
        f"{middle(lambda t: t['records'] / max(t['cpu_ms'], 1e-9) * 1e3):.1f}", f"{middle(lambda t: t['branches'] / max(t['cpu_ms'], 1e-9) * 1e3):,.0f}", f"{after:.3f}",
    ]


def text(rows, options):
    kind = " (a quick run: shows that it runs)" if options.quick else ""
    where = f"{report.here()}, {rows[0]['restitch']}"
    lines = [f"{options.rounds} recordings of {options.seconds:g} s each{kind}: median (interval); {where}.", ""]
    head = ["source", "asked %", "threads", "slower %", "seen %", "held: stops %", "held: looking ahead %", "recording % (estimated)", "records a CPU second", "branches a CPU second", "work after / before"]
    lines += ["| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
    lines += ["| " + " | ".join(cells(row)) + " |" for row in rows]
    return "\n".join(lines) + "\n"


def main(argv):
    def add(parser):
        parser.add_argument("--seconds", type=float, help="of a recording (default 8; 4 with --quick)")

    def settle(options):
        options.seconds = options.seconds or (4 if options.quick else 8)

    return Table("bench/bench tracing", __doc__, LOADS, measure, text, "overhead-of-branch-records", None, 3, 1, "tracing.json").main(argv, add, settle)
