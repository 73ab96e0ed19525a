"""How much a layout gains, by where its profile comes from: original against optimized, as in bench/run, for each source.

cc1plus as a file: an exact count, and branch records (trace, burst) and instruction samples (ip) at the same budgets, of one and the same training run.
postgres and MariaDB live: `restitch attach --source` for as many seconds with each. The columns tell how much the profile knows (of what is executed; by samples, of the time), and how long the recorded run took against the
plain one. See docs/profiling.md.
"""

import json
import time
from statistics import median

from . import counters, report
from .machine import Machine, copy_as_written
from .main import Context
from .restitch import Restitch
from .stats import interval
from .tables import Table
from loads import cc1plus, mariadb, postgres

BEGIN, END = "<!-- effect:begin -->", "<!-- effect:end -->"
BUDGETS = ("1%", "5%", "20%")
FILE = ("count", *(f"{source} {budget}" for source in ("trace", "burst", "ip") for budget in BUDGETS))
LIVE = ("count", "trace 1%", "burst 1%", "ip 1%")
# Programs under load that are attached to are watched for so long.
SECONDS = 12
PROGRAMS = {
    "cc1plus": (FILE, cc1plus.run),
    "postgres": (LIVE, lambda context: [postgres.measure(context, *postgres.LOADS[0])]),
    "mariadb": (LIVE, lambda context: mariadb.run(context)[:1]),
}
LOADS = {f"{program}: {source}": (program, source, run) for program, (sources, run) in PROGRAMS.items() for source in sources}


class Sourced(Restitch):
    """restitch with another source of profiles."""

    def __init__(self, path, source, log):
        super().__init__(path, False, log)
        self.source, self.cost, self.coverage = source, None, None

    def of_source(self):
        """The options for `record` and `attach`."""
        kind, *budget = self.source.split()
        return ["--source", kind] + (["--overhead", budget[0]] if budget else [])

    def attach(self, machine, pids, load, tree=False, seconds=None):
        if self.source == "count":
            return super().attach(machine, pids, load, tree, SECONDS)
        return super().attach(machine, pids, load, tree, SECONDS, self.of_source())

    def optimize(self, machine, program, training, outputs, **options):
        copy_as_written(program, outputs["original"])
        profile, told = machine.path("profile"), machine.path("record.json")
        start = time.monotonic()
        machine.run(training)
        plain, start = time.monotonic() - start, time.monotonic()
        self.call(["record", *self.of_source(), "--json", told, "-o", profile, "--", *training], machine, **options)
        self.cost = (time.monotonic() - start) / plain
        with open(told) as file:
            result = json.load(file)
        self.coverage = (result.get("branch_records") or result.get("samples") or {}).get("coverage")
        self.optimize_one(machine, program, profile, outputs["optimized"], [])


def measure(name, options, log):
    program, source, run = LOADS[name]
    events, deciding, how = counters.choose()
    with Machine(log) as machine:
        restitch = Sourced(options.restitch, source, log)
        rows = run(Context(machine, restitch, events, options, log))
        values = [r["optimized"][deciding] / r["original"][deciding] for r in rows[0]["rounds"]]
        log(f"  {median(values):.3f}")
        return {"program": rows[0]["title"], "source": source, "values": values, "cost": restitch.cost, "coverage": restitch.coverage, "measured": how, "restitch": restitch.version()}


def text(rows, options):
    where = f"{report.here()}, {rows[0]['restitch']}"
    lines = [f"{options.rounds} rounds each: optimized against original, median of the ratios (interval); {rows[0]['measured']}. {where}.", ""]
    lines += ["| program | source | coverage % | ratio | recorded run, with restitch's own work, against the plain one |", "|---|---|---|---|---|"]
    for row in rows:
        low, high, _ = interval(row["values"])
        cost = f"{row['cost']:.2f}" if row["cost"] else ""
        known = f"{100 * row['coverage']:.0f}" if row["coverage"] else ""
        lines.append(f"| {row['program']} | {row['source']} | {known} | {median(row['values']):.3f} ({low:.3f} to {high:.3f}) | {cost} |")
    return "\n".join(lines) + "\n"


def main(argv):
    return Table("bench/effect", __doc__, LOADS, measure, text, "profiling.md", (BEGIN, END), 7, 2, "effect.json").main(argv)
