"""A load that changes: a server that was attached to once, in its first way of working, and one that restitch stays with (`attach --continuous`), against the original.

Three servers of the stock program run side by side. Both attaches begin under the first way of working. Then the way of working changes to the second one, back to the first, and to the second again. After each
change the server that restitch stays with gets that load until nothing new has been put in force for a while; then the servers take turns in short rounds. Nothing that is measured writes, so that all have the same data. What restitch takes of
the processors itself is said beside the table; what its samples cost the server is part of the server's figures.
"""

import json
import os
import signal
import subprocess
import time

from . import counters, report
from .machine import Failed, Machine
from .main import Context
from .restitch import Restitch
from .rounds import in_turns, serve_and_count
from .stats import between
from .tables import Table
from loads import mariadb, postgres

ORIGINAL, ONCE, CONTINUOUS = "original", "attached once", "continuous"
SIDES = (ORIGINAL, ONCE, CONTINUOUS)
# Which way of working, after which number of changes.
PHASES = (0, 1, 0, 1)
# Seconds: between two layouts; without anything new until it is measured (an attach takes less); and until it is measured in any case.
REST, SETTLED, LONGEST = 10, 75, 240


class Postgres:
    """Single rows by key; and aggregates, joins, window functions and expressions."""

    title, tree = "postgres", True
    # The part of its mixed SQL that writes nothing.
    READING = [query for query in postgres.MIXED if not query.startswith("update")]
    ways = {"pgbench -S": (50_000, ["-S"]), "reports": (8_000, None)}

    def start(self, machine, side):
        pid, transactions = postgres.start(machine, side)
        scripts = []
        for number, query in enumerate(self.READING):
            path = machine.path(side, f"reading{number}.sql")
            with open(path, "w") as f:
                f.write("\\set aid random(1, 490000)\n" + query + "\n")
            scripts += ["-f", path]
        return pid, lambda options, count: transactions(count, options or scripts)


class Mariadb:
    """Single rows by key; and ranges of them."""

    title, tree = "MariaDB", False
    ways = {"oltp_point_select": (100_000, "oltp_point_select"), "select_random_ranges": (20_000, "select_random_ranges")}

    def start(self, machine, side):
        return mariadb.start(machine, side)


LOADS = {"postgres": Postgres(), "mariadb": Mariadb()}


class Stays:
    """restitch beside a process until it is asked to end."""

    def __init__(self, restitch, machine, pid, options):
        self.result, self.log = machine.path("continuous.json"), machine.path("continuous.log")
        command = [restitch.path, "attach", str(pid), "--continuous", "--rest", str(REST), "--measure", "0", "--json", self.result, *options]
        with open(self.log, "wb") as log:
            self.child = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, env=dict(os.environ, RESTITCH_STATE_DIR=machine.path("state")))
        machine.stack.callback(self.child.kill)

    def rounds(self):
        """The optimizations that came to something, so far."""
        if self.child.poll() is not None:
            with open(self.log, errors="replace") as log:
                raise Failed(f"restitch attach --continuous ended with {self.child.returncode}:\n{log.read()[-2000:]}")
        try:
            with open(self.result) as f:
                rounds = json.load(f)["continuous"]["rounds"]
        except FileNotFoundError:
            return []
        return [r for r in rounds if r["error"] is None]

    def end(self):
        """What it says in the end, and the processor time that it took itself, in seconds."""
        self.rounds()
        self.child.send_signal(signal.SIGINT)
        _, status, used = os.wait4(self.child.pid, 0)
        self.child.returncode = os.waitstatus_to_exitcode(status)
        if self.child.returncode != 0:
            self.rounds()
        with open(self.result) as f:
            return json.load(f)["continuous"], used.ru_utime + used.ru_stime


def settle(stays, work, quick):
    """Keeps the server at work until nothing new has been put in force for a while; how many optimizations there are then."""
    begun = time.monotonic()
    rounds, since = len(stays.rounds()), begun
    while True:
        work()
        now = time.monotonic()
        if len(stays.rounds()) != rounds:
            rounds, since = len(stays.rounds()), now
        if rounds and (now - since > (10 if quick else SETTLED) or now - begun > LONGEST):
            return rounds
        if now - begun > 2 * LONGEST:
            raise Failed("nothing was optimized")


def measure(name, options, log):
    load, begun = LOADS[name], time.monotonic()
    events, deciding, how = counters.choose()
    done = lambda what: log(f"  {what} ({time.monotonic() - begun:.0f} s)")
    ways = list(load.ways.items())
    with Machine(log) as machine:
        restitch = Restitch(options.restitch, False, log)
        context = Context(machine, restitch, events, options, log)
        servers = {side: load.start(machine, side.replace(" ", "-")) for side in SIDES}
        works = lambda side, way, short=False: servers[side][1](way[1][1], (context.short if short else context.amount)(way[1][0]))
        for side in SIDES:
            works(side, ways[0])
        more = ["--tree"] if load.tree else []
        restitch.attach_one(machine, servers[ONCE][0], lambda: servers[ONCE][1](ways[0][1][1], ways[0][1][0]), more)
        done("attached once")
        stays = Stays(restitch, machine, servers[CONTINUOUS][0], more)
        phases = []
        for way in (ways[number] for number in PHASES):
            layouts = settle(stays, lambda: works(CONTINUOUS, way), options.quick)
            for side in (ORIGINAL, ONCE):
                works(side, way)
            rounds = in_turns(context.short_rounds(), SIDES, lambda side: serve_and_count(events, [servers[side][0]], lambda: works(side, way, True)))
            phases.append({"way": way[0], "layouts": layouts, "after": len(stays.rounds()), "rounds": rounds})
            done(f"{way[0]}: {layouts} optimizations, {len(rounds)} rounds")
        told, seconds = stays.end()
        return {"title": load.title, "restitch": restitch.version(), "how": how, "deciding": deciding, "phases": phases, "told": told, "seconds": seconds}


def page(rows, options):
    where = report.here()
    phase = rows[0]["phases"][0]
    text = [f"{len(phase['rounds'])} rounds each; {rows[0]['restitch']}; {where}; {rows[0]['how']}. Ratios, below 1 is better: median [interval].", ""]
    lines = ["| load | optimizations until then | counter | attached once / original | continuous / original | continuous / attached once |", "|---" * 6 + "|"]
    for row in rows:
        for phase in row["phases"]:
            for what in phase["rounds"][0][ORIGINAL]:
                cells = [between(phase["rounds"], what, *sides) for sides in ((ONCE, ORIGINAL), (CONTINUOUS, ORIGINAL), (CONTINUOUS, ONCE))]
                lines.append("| " + " | ".join([f"{row['title']}, {phase['way']}", str(phase["layouts"]), counters.NAMES[what], *cells]) + " |")
    for row in rows:
        told = row["told"]
        whys = "; ".join(f"at {r['at_seconds']:.0f} s, {r['why']}" for r in told["rounds"] if r["error"] is None)
        lines += ["", f"{row['title']}: restitch itself took {row['seconds']:.1f} s of {told['seconds']:.0f} s, {told['sample_sets']} sets of samples included. Optimized {whys}."]
    return "\n".join([*text, *lines, ""])


def main(argv):
    return Table("bench/bench continuous", __doc__, LOADS, measure, page, "loads-that-change", None, 5, 1, "continuous.json").main(argv)
