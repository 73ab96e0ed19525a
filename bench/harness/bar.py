"""The bar for live layouts: servers with restitch attached against the file that llvm-bolt makes of the same program with an exact profile, off line.

The program is built with its relocations kept, which llvm-bolt needs for its best options. Three servers run it: as it is, llvm-bolt's file of it, and a stripped copy that restitch attaches to while
its load runs, as `bench/bench run` has it; that one is started as it is and gets no help from relocations or symbols. llvm-bolt's profile is an exact count (`restitch instrument`) of the same load that is measured, so neither sees anything that it was not trained on.

Rounds are short and sides take turns; the clients have another core. What is compared is processor time for a unit of work, of which the part in user mode is what a layout can change; with a PMU, user cycles.
What was built stays in out/bolt.
"""

import os
import re
import shutil
import time

from . import bolt_inputs, counters, report
from .machine import Machine, copy_as_written, find
from .main import Context
from .restitch import Restitch
from .rounds import in_turns, serve_and_count
from .side_by_side import BOLT, bolted, build, run
from .stats import between
from .tables import ROOT, Table
from loads import postgres, redis

BEGIN, END = "<!-- bar:begin -->", "<!-- bar:end -->"
ORIGINAL, BOLTED, LIVE = "original", "llvm-bolt", "live"
SIDES = (ORIGINAL, BOLTED, LIVE)


class Postgres:
    """One of the loads that `bench/bench run` has."""

    kind, folder, program, tree = bolt_inputs.Postgres, "postgres", "install/bin/postgres", True

    def __init__(self, load):
        _, self.title, self.options, self.full = load

    def placed(self, place, program, folder):
        """It finds its files by where it stands, and its user may not be let into the folders of the build."""
        shutil.copytree(os.path.join(place, "install"), folder, symlinks=True)
        path = os.path.join(folder, "bin", "postgres")
        os.remove(path)
        copy_as_written(program, path)
        return path

    def start(self, machine, side, program):
        pid, transactions = postgres.start(machine, side, program)
        return pid, lambda count: transactions(count, self.options)


class Redis:
    """As `bench/bench run` has it."""

    kind, folder, program, tree = bolt_inputs.Redis, "redis", "redis-server", False
    title, full = f"redis, {len(redis.TESTS)} commands, -P8, live", 100_000

    def placed(self, place, program, folder):
        os.mkdir(folder)
        path = os.path.join(folder, "redis-server")
        copy_as_written(program, path)
        return path

    def start(self, machine, side, program):
        return redis.start(machine, side, program)


LOADS = {f"postgres-{load[0]}": Postgres(load) for load in postgres.LOADS} | {"redis": Redis()}


def trained(load, context, place, original, log):
    """llvm-bolt's file, from an exact count of the load."""
    counting, counts, profile, fdata, made = (context.machine.path(name) for name in ("counting", "counts", "exact", "x.fdata", "bolted"))
    run([context.restitch.path, "instrument", original, "-o", counting, "--counts", counts])
    # Servers count as users of their own.
    os.chmod(counts, 0o666)
    with Machine(log) as machine:
        _, work = load.start(machine, "counting", load.placed(place, counting, machine.path("tree")))
        work(context.amount(load.full))
    run([context.restitch.path, "record", "--from-counts", counts, "-o", profile])
    run([context.restitch.path, "profile", "convert", profile, "--program", original, "-o", fdata])
    *_, left = bolted([find("llvm-bolt-19", "llvm-bolt"), original, "-o", made, f"-data={fdata}", *BOLT], context.machine.folder)
    return made, left


def measure(name, options, log):
    load, begun = LOADS[name], time.monotonic()
    place = build(load.kind, os.path.join(ROOT, "out", "bolt", load.folder))
    original = os.path.join(place, load.program)
    events, deciding, how = counters.choose()
    with Machine(log) as machine:
        restitch = Restitch(options.restitch, False, log)
        context = Context(machine, restitch, events, options, log)
        files = {ORIGINAL: original, LIVE: machine.path("stripped")}
        run(["strip", "--strip-all", "-o", files[LIVE], original])
        files[BOLTED], left = trained(load, context, place, original, log)
        log(f"  made ({time.monotonic() - begun:.0f} s)")
        # Paths of one length: a longer one moves the stack.
        servers = {side: load.start(machine, side, load.placed(place, files[side], machine.path(f"tree{number}"))) for number, side in enumerate(SIDES)}
        # All begin the rounds with the same past.
        for pid, work in servers.values():
            work(context.amount(load.full))
        pid, work = servers[LIVE]
        _, calls = restitch.attach_one(machine, pid, lambda: work(load.full), ["--tree"] if load.tree else [])
        for side in (ORIGINAL, BOLTED):
            for _ in range(calls):
                servers[side][1](load.full)
        log(f"  attached ({time.monotonic() - begun:.0f} s)")
        count = context.short(load.full)
        rounds = in_turns(context.short_rounds(), SIDES, lambda side: serve_and_count(events, [servers[side][0]], lambda: servers[side][1](count)))
        log(f"  {len(rounds)} rounds ({time.monotonic() - begun:.0f} s)")
        return {"title": load.title, "restitch": restitch.version(), "left": left, "how": how, "deciding": deciding, "rounds": rounds}


def page(rows, options):
    version = re.search(r"LLVM version (\S+)", run([find("llvm-bolt-19", "llvm-bolt"), "--version"]))[1]
    where = report.here()
    text = [f"{len(rows[0]['rounds'])} rounds; llvm-bolt {version}; {rows[0]['restitch']}; {where}; {rows[0]['how']}. Ratios, below 1 is better: median [interval].", ""]
    lines = ["| load | counter | llvm-bolt / original | live / original | live / llvm-bolt |", "|---" * 5 + "|"]
    for row in rows:
        for what in row["rounds"][0][ORIGINAL]:
            cells = [between(row["rounds"], what, *sides) for sides in ((BOLTED, ORIGINAL), (LIVE, ORIGINAL), (LIVE, BOLTED))]
            lines.append("| " + " | ".join([row["title"], counters.NAMES[what], *cells]) + " |")
    return "\n".join([*text, *lines, ""])


def main(argv):
    return Table("bench/bench bar", __doc__, LOADS, measure, page, "live-and-llvm-bolt", (BEGIN, END), 11, 1, "bar.json").main(argv)
