"""How long restitch holds programs that are at work, and how long its own work takes.

Each round attaches to a server under load and reverts it: three stops (to the counting version, to the new layout, back to
the original code); and once more for a profile that was recorded before the rounds (`attach --profile`: two stops). The tables have the median and the extremes over the rounds.
"""

import contextlib
import json
import os
import re
import threading
import time
from statistics import median

from . import report
from .machine import Failed, Machine, Missing, wait_for
from .restitch import Restitch
from .tables import Table
from loads import demo, mariadb, postgres, redis

COUNTING, LAYOUT, HELD = "to the counting version", "to the new layout", "before it: one thread held"
PART = "of that: "
# What the target waits for, not restitch: left out of the time from samples to a plan.
WATCHING = {"sampling", "counting", "measuring", "before", "after"}


def demo_with(threads):
    def start(machine, restitch):
        progress = machine.path("progress")
        command = [restitch.path, "demo-workload", "--", "--seconds", "86400", "--threads", str(threads), "--progress", progress]
        child = machine.start(command, core=os.sched_getaffinity(0))
        wait_for("the demo workload", lambda: demo.finished(progress) > 1000)
        return child.pid, lambda: time.sleep(0.2), False

    return start


def start_redis(machine, _):
    pid, requests = redis.start(machine, "server")
    return pid, lambda: requests(20_000), False


def start_postgres(machine, _):
    pid, transactions = postgres.start(machine, "server")
    return pid, lambda: transactions(20_000), True


def start_mariadb(machine, _):
    pid, transactions = mariadb.start(machine, "server")
    return pid, lambda: transactions("oltp_point_select", 5_000), False


def start_large_redis(machine, _):
    # More private memory than former states looked through (4 GiB).
    with open("/proc/meminfo") as f:
        available = int(re.search(r"MemAvailable: *([0-9]+)", f.read())[1]) << 10
    if available < 9 << 30:
        raise Missing("9 GiB of free memory are not there")
    pid, requests = redis.start(machine, "server", more=("--enable-debug-command", "yes"))
    redis.populate(machine, "server", 5_000_000)
    return pid, lambda: requests(20_000, keep=True), False


def start_mariadb_with_threads(machine, _):
    pid, transactions = mariadb.start(machine, "server", connections=1_000)
    # So many that most rounds end before they are done and the connections are made anew.
    return pid, lambda: transactions("oltp_point_select", 400_000), False


LOADS = {
    "demo-1": ("demo workload, 1 thread", demo_with(1)),
    "demo-16": ("demo workload, 16 threads", demo_with(16)),
    "demo-64": ("demo workload, 64 threads", demo_with(64)),
    "redis": ("redis, redis-benchmark", start_redis),
    "postgres": ("postgres, pgbench -S (all processes)", start_postgres),
    "mariadb": ("mariadbd, oltp_point_select", start_mariadb),
    "redis-large": ("redis with 5,000,000 keys of 1 kB", start_large_redis),
    "mariadb-threads": ("mariadbd, oltp_point_select, 1,000 connections", start_mariadb_with_threads),
}


@contextlib.contextmanager
def under_load(work):
    """Calls `work` again and again beside the body; a failure of it is raised at the end."""
    stop, problems = threading.Event(), []

    def busy():
        try:
            while not stop.is_set():
                work()
        except Exception as problem:  # it is raised by the thread that waits
            problems.append(problem)

    thread = threading.Thread(target=busy)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
    if problems:
        raise Failed(f"the load failed: {problems[0]}")


def one_round(restitch, machine, pid, tree, how):
    """The attach's JSON result, and the pause of the revert in microseconds."""
    result, more = machine.path("attach.json"), ["--tree"] if tree else []
    restitch.call(["attach", str(pid), *how, "--measure", "0", "--json", result, *more], machine)
    with open(result) as f:
        attached = json.load(f)
    text = restitch.call(["revert", str(pid), *more], machine)
    pause = re.search(r"pause (\d+) us", text)
    if not pause:
        raise Failed(f"restitch revert did not say how long its pause was:\n{text}")
    return {"attach": attached, "revert_us": float(pause[1])}


def measure(name, options, log):
    title, start = LOADS[name]
    with Machine(log) as machine:
        restitch = Restitch(options.restitch, False, log)
        pid, work, tree = start(machine, restitch)
        rounds = []
        with under_load(work):
            duration, profile = ["--duration", "2"] if options.quick else [], machine.path("given.profile")
            restitch.call(["record", "-p", str(pid), *duration, "-o", profile, *(["--tree"] if tree else [])], machine)
            for number in range(options.rounds):
                rounds.append(one_round(restitch, machine, pid, tree, duration))
                rounds[-1]["given"] = one_round(restitch, machine, pid, tree, ["--profile", profile])["attach"]
                log(f"  round {number + 1} of {options.rounds}")
        return {"title": title, "restitch": restitch.version(), "rounds": rounds}


def parts(round_):
    return {p["name"]: p["us"] for p in round_["attach"]["apply"]["pause_parts"]}


def spread(values, unit, digits=2):
    """Median and extremes."""
    show = lambda value: f"{value / unit:.{digits}f}"
    values = list(values)
    return f"{show(median(values))} ({show(min(values))} to {show(max(values))})"


def pause_table(rows):
    head = ["program and load", "threads", "redirects", "to counting, ms", "to the layout, ms", "a 10,000 redirects, ms", "its largest parts, median ms", "back, ms", "one thread held before, ms"]
    lines = ["| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
    for row in rows:
        rounds, each = row["rounds"], [parts(r) for r in row["rounds"]]
        applied = [r["attach"]["apply"] for r in rounds]
        names = [n for n in each[0] if n.startswith(PART)]
        largest = sorted(((median(p[n] for p in each), n) for n in names), reverse=True)[:3]
        cells = [
            row["title"],
            f"{median(r['attach']['target']['threads'] for r in rounds):.0f}",
            f"{median(a['patches'] for a in applied):.0f}",
            spread((p[COUNTING] for p in each), 1000),
            spread((p[LAYOUT] for p in each), 1000),
            spread((p[LAYOUT] / max(a["patches"], 1) * 10_000 for p, a in zip(each, applied)), 1000),
            ", ".join(f"{n.removeprefix(PART)} {us / 1000:.2f}" for us, n in largest),
            spread((r["revert_us"] for r in rounds), 1000),
            spread((p[HELD] for p in each), 1000),
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def plan_table(rows):
    names = []
    for row in rows:
        names += [p["name"] for p in row["rounds"][0]["attach"]["phases"] if p["name"] not in names + list(WATCHING)]
    head = ["program and load", "code, MiB", "active after, s", "by `--profile`, s", "all of these, ms", *(f"{n}, ms" for n in names), "peak memory, MiB"]
    lines = ["| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
    for row in rows:
        results = [r["attach"] for r in row["rounds"]]
        phases = [{p["name"]: p["ms"] for p in r["phases"] if p["name"] not in WATCHING} for r in results]
        in_force = spread((r["apply"]["in_force_ms"] for r in results), 1000, 1)
        given = spread((r["given"]["apply"]["in_force_ms"] for r in row["rounds"]), 1000, 1)
        cells = [row["title"], f"{sum(m['code_bytes'] for m in results[0]['modules']) / 2**20:.1f}", in_force, given, spread((sum(p.values()) for p in phases), 1, 0)]
        cells += [f"{median(p.get(n, 0) for p in phases):.0f}" for n in names]
        cells.append(spread((r["peak_memory_bytes"] for r in results), 2**20, 0))
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def page(rows, quick):
    kind = " (a quick run: shows that it runs)" if quick else ""
    where = f"{report.here()}, {rows[0]['restitch']}"
    text = [f"{len(rows[0]['rounds'])} rounds each{kind}: median (least to most). {where}.", "", *pause_table(rows), ""]
    text += ["restitch's own work in the same rounds, without the time for which it only watched the target:", "", *plan_table(rows), ""]
    return "\n".join(text)


def main(argv):
    text = lambda rows, options: page(rows, options.quick)
    return Table("bench/bench pause", __doc__, LOADS, measure, text, "pauses", None, 11, 2, "pause.json").main(argv)
