"""What profiling costs a server: samples, and a counting version while it is in force.

Two instances of a server with equal data do the same work in turns, in every other round in the opposite order: before, while `restitch attach --dry-run`
samples one of them, while `restitch record` counts in it, and after it has its original code back. The CPU time for each unit of work of that one, divided by the
other's in the same round, is taken together over all rounds. Before and after show what two instances differ by anyway.
"""

import json
import os
import subprocess
import time
from statistics import median

from . import report
from .counters import choose
from .machine import Failed, Machine, wait_for
from .restitch import Restitch
from .rounds import interleave, serve_and_count
from .stats import interval
from .tables import Table
from loads import mariadb, postgres, redis

SIDES = ("original", "optimized")
PHASES = ("before", "sampling", "counting", "after")
# Modules are analysed beside the first samples; after so many seconds nothing else goes on.
HEAD_START = 4


def start_redis(machine, side):
    pid, requests = redis.start(machine, side)
    return pid, lambda: requests(5_000), False


def start_postgres(machine, side):
    pid, transactions = postgres.start(machine, side)
    return pid, lambda: transactions(4_000), True


def start_mariadb(machine, side):
    pid, transactions = mariadb.start(machine, side)
    return pid, lambda: transactions("oltp_point_select", 4_000), False


LOADS = {
    "redis": ("redis, redis-benchmark", start_redis),
    "postgres": ("postgres, pgbench -S (all processes)", start_postgres),
    "mariadb": ("mariadbd, oltp_point_select", start_mariadb),
}


def in_force(restitch, machine, pid):
    """What `restitch status` says of the versions that are in force. (Retired ones may stay mapped, unused.)"""
    lines = restitch.call(["status", str(pid)], machine).splitlines()
    return [line for line in lines if line.startswith("  version ") and "retired" not in line]


class Recording:
    """`restitch record` at work on a process."""

    def __init__(self, restitch, machine, pid, tree, seconds):
        self.restitch, self.machine, self.pid = restitch, machine, pid
        self.result = machine.path("record.json")
        command = [restitch.path, "record", "-p", str(pid), "--duration", str(seconds), "-o", machine.path("profile"), "--json", self.result]
        env = dict(os.environ, RESTITCH_STATE_DIR=machine.path("state"))
        self.log = open(machine.path("record.log"), "w+")
        self.child = subprocess.Popen(command + (["--tree"] if tree else []), env=env, stdout=self.log, stderr=self.log)

    def is_counting(self):
        """Whether the counting version is in force now."""
        if self.child.poll() is not None:
            return False
        return any(": counting," in line for line in in_force(self.restitch, self.machine, self.pid))

    def finish(self):
        """What it has counted, as its JSON result says."""
        status = self.child.wait()
        self.log.seek(0)
        text = self.log.read()
        self.log.close()
        if status != 0:
            raise Failed(f"restitch record ended with {status}:\n{text[-2000:]}")
        with open(self.result) as f:
            return [m["counting"] for m in json.load(f)["modules"]]


def while_counting(recording, work, measure):
    """Rounds for as long as the counting version is in force. Until then the server is kept busy, so that there is something to sample."""
    while not recording.is_counting():
        if recording.child.poll() is not None:
            recording.finish()
            raise Failed("restitch record ended before anything was counted")
        work()
    rounds = []
    while True:
        one = interleave(1, measure, lambda _: None) if len(rounds) % 2 == 0 else flipped(measure)
        # A round counts if the version was in force to its end.
        if not recording.is_counting():
            return rounds
        rounds += one


def while_sampling(restitch, machine, pid, tree, seconds, work, measure):
    """Rounds for so many seconds, in which one server is sampled as `attach` does it."""
    # A third of the duration is sampling; it is ended before that is over.
    command = [restitch.path, "attach", str(pid), "--dry-run", "--duration", str(6 * (HEAD_START + seconds))]
    env = dict(os.environ, RESTITCH_STATE_DIR=machine.path("state"))
    child = subprocess.Popen(command + (["--tree"] if tree else []), env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        begun, rounds = time.monotonic(), []
        while time.monotonic() < begun + HEAD_START:
            work()
        while time.monotonic() < begun + HEAD_START + seconds:
            rounds += interleave(1, measure, lambda _: None) if len(rounds) % 2 == 0 else flipped(measure)
        if child.poll() is not None:
            raise Failed(f"restitch attach --dry-run ended with {child.returncode} while it was to sample")
        return rounds
    finally:
        child.terminate()
        child.wait()


def flipped(measure):
    values = {side: measure(side) for side in reversed(SIDES)}
    return [{side: values[side] for side in SIDES}]


def measure(name, options, log):
    title, start = LOADS[name]
    events, deciding, how = choose()
    with Machine(log) as machine:
        restitch = Restitch(options.restitch, False, log)
        servers = {side: start(machine, side) for side in SIDES}
        pid, work, tree = servers["optimized"]
        count = lambda side: serve_and_count(events, [servers[side][0]], servers[side][1])
        interleave(2, count, lambda _: None)
        phases, counted = {phase: [] for phase in PHASES}, None
        for number in range(options.rounds):
            phases["before"] += interleave(options.each, count, lambda _: None)
            phases["sampling"] += while_sampling(restitch, machine, pid, tree, options.seconds / 2, work, count)
            recording = Recording(restitch, machine, pid, tree, options.seconds)
            try:
                phases["counting"] += while_counting(recording, work, count)
                counted = recording.finish()
            finally:
                if recording.child.poll() is None:
                    recording.child.wait()
            wait_for("the original code", lambda: not in_force(restitch, machine, pid))
            phases["after"] += interleave(options.each, count, lambda _: None)
            log(f"  recording {number + 1} of {options.rounds}: {len(phases['counting'])} rounds so far")
        if not phases["counting"]:
            raise Failed("no round was finished while the counting version was in force")
        return {"title": title, "restitch": restitch.version(), "measured": how, "deciding": deciding, "phases": phases, "counted": counted}


def ratio(rounds, counter):
    values = [r["optimized"][counter] / r["original"][counter] for r in rounds]
    low, high, _ = interval(values)
    return f"{median(values):.3f} ({low:.3f} to {high:.3f}, {len(values)})"


def table(rows, options):
    kind = " (a quick run: shows that it runs)" if options.quick else ""
    where = f"{report.here()}, {rows[0]['restitch']}"
    lines = [f"{options.rounds} recordings each{kind}: median of the ratios (interval, rounds); {rows[0]['measured']}. {where}.", ""]
    head = ["program and load", "before", "while sampling", "while counting", "after", "blocks", "counters a block"]
    lines += ["| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
    for row in rows:
        blocks = sum(c["blocks"] for c in row["counted"])
        planned = sum(c["blocks"] * c["counters_per_block"] for c in row["counted"])
        cells = [row["title"], *(ratio(row["phases"][p], row["deciding"]) for p in PHASES), str(blocks), f"{planned / max(blocks, 1):.3f}"]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def main(argv):
    def sized(name, options, log):
        options.seconds, options.each = (20, 1) if options.quick else (30, 6)
        return measure(name, options, log)

    return Table("bench/bench counting --live", __doc__, LOADS, sized, table, "cost-of-counting", None, 3, 1, "counting-live.json").main(argv)
