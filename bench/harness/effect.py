"""How much a layout gains, by where its profile comes from: an exact count, branch records (trace, burst), and instruction samples (ip), these at the same budgets.

*Files* (cc1plus, postgres --single): a training input is counted once, and recorded some times with each source and budget, which are merged; each profile becomes a file, which has to give what the original gives on another input,
and runs that beside the original as twins: at the same time on one processor (bench/bench variants). The table also says how far a profile agrees with the exact one.

*Live* (postgres under pgbench -S, MariaDB under point-select): `restitch attach --source`, for as many seconds with each; original and optimized in turns, as in bench/bench run. See bench/README.md.
"""

import json
import os
import shutil
import tempfile
from statistics import median

from . import counters, report
from .layout_inputs import LOADS as INPUTS
from .layouts import train
from .machine import Machine
from .main import Context
from .restitch import Restitch
from .stats import interval
from .tables import Table
from .variants import DEFAULT, ORIGINAL, compare, ratios, timed
from loads import mariadb, postgres

FILES = ("cc1plus", "postgres")
SOURCES = [f"{source} {budget}" for source in ("trace", "burst", "ip") for budget in ("1%", "5%", "20%")]
# Recordings of each source and budget.
RECORDINGS = 3
LIVE = ("count", "trace 1%", "burst 1%", "ip 1%")
# Programs under load that are attached to are watched for so long.
SECONDS = 12
SERVERS = {
    "postgres": lambda context: [postgres.measure(context, *postgres.LOADS[0])],
    "mariadb": lambda context: mariadb.run(context)[:1],
}
LOADS = {name: ("file", name) for name in FILES} | {f"{name}-live: {source}": ("live", name, source) for name in SERVERS for source in LIVE}


def options_of(source):
    """The options for `record` and `attach`."""
    kind, *budget = source.split()
    return ["--source", kind] + (["--overhead", budget[0]] if budget else [])


class Sourced(Restitch):
    """restitch with another source of profiles."""

    def __init__(self, path, source, log):
        super().__init__(path, False, log)
        self.source = source

    def attach(self, machine, pids, load, tree=False, seconds=None):
        return super().attach(machine, pids, load, tree, SECONDS, options_of(self.source) if self.source != "count" else ())


def recorded(load, machine, restitch, source):
    """The profile of some recordings of the training input."""
    folder = tempfile.mkdtemp(dir=machine.path(""))
    # Servers run as users of their own.
    os.chmod(folder, 0o777)
    parts = [os.path.join(folder, str(number)) for number in range(RECORDINGS)]
    for part in parts:
        load.run(load.file, load.recorded, [restitch.path, "record", *options_of(source), "--format", "restitch", "-o", part, "--"])
    merged = os.path.join(folder, "merged")
    restitch.call(["profile", "merge", "--sum", *parts, "--format", "restitch", "-o", merged], machine)
    return merged


def likeness(restitch, machine, exact, profile):
    """Overlap of edges in percent."""
    told = json.loads(restitch.call(["profile", "compare", "--movable", "--json", "-", exact, profile], machine))
    return 100 * told["edge_overlap"][0][1]


def of_file(name, options, log):
    with Machine(log) as machine:
        restitch, load = Restitch(options.restitch, False, log), INPUTS[name](machine, log)
        exact = train(load, machine, restitch)
        profiles = {"count": exact} | {source: recorded(load, machine, restitch, source) for source in options.sources}
        # What stands beside each side is the original here.
        files, alike = {DEFAULT: load.file}, {}
        for number, (source, profile) in enumerate(profiles.items()):
            files[source] = machine.path(f"made-{number}")
            restitch.call(["optimize", load.file, "--profile", profile, "-o", files[source]], machine)
            alike[source] = likeness(restitch, machine, exact, profile)
            log(f"  {source}: {alike[source]:.1f} % of the edges")
        place = tempfile.mkdtemp(dir=options.place)
        try:
            os.chmod(place, 0o755)
            compare(load, {ORIGINAL: load.file, **files})
            seconds = timed(load, place, files, options.rounds, sorted(os.sched_getaffinity(0)))
        finally:
            shutil.rmtree(place, ignore_errors=True)
        row = {"kind": "file", "program": load.title, "alike": alike, "seconds": seconds, "restitch": restitch.version()}
        for source in files:
            log(f"  {source}: {median(ratios(row, source)):.3f}")
        return row


def live(name, source, options, log):
    events, deciding, how = counters.choose()
    with Machine(log) as machine:
        restitch = Sourced(options.restitch, source, log)
        rows = SERVERS[name](Context(machine, restitch, events, options, log))
        values = [r["optimized"][deciding] / r["original"][deciding] for r in rows[0]["rounds"]]
        log(f"  {median(values):.3f}")
        return {"kind": "live", "program": rows[0]["title"], "source": source, "values": values, "measured": how, "restitch": restitch.version()}


def measure(name, options, log):
    kind, *what = LOADS[name]
    return of_file(*what, options, log) if kind == "file" else live(*what, options, log)


def cell(values):
    low, high, _ = interval(values)
    return f"{median(values):.3f} [{low:.3f}, {high:.3f}]"


def text(rows, options):
    lines = [f"{report.here()}, {rows[0]['restitch']}.", ""]
    files = [row for row in rows if row["kind"] == "file"]
    if files:
        lines += [f"Files, {options.rounds} pairs each: processor time over that of the original beside it, median [interval]; in front of it the percentage of edges by which the profile agrees with the exact one. Profiles of {RECORDINGS} recordings each.", ""]
        lines += ["| source | " + " | ".join(row["program"] for row in files) + " |", "|---" * (len(files) + 1) + "|"]
        for source in [DEFAULT, *files[0]["alike"]]:
            of = lambda row: cell(ratios(row, source)) if source == DEFAULT else f"{row['alike'][source]:.0f}: {cell(ratios(row, source))}"
            lines.append(f"| {'the original twice' if source == DEFAULT else source} | " + " | ".join(map(of, files)) + " |")
    lived = [row for row in rows if row["kind"] == "live"]
    if lived:
        lines += ["", f"Live, {SECONDS} seconds of profiling: optimized against original, in turns, median [interval]; {lived[0]['measured']}.", ""]
        programs = list(dict.fromkeys(row["program"] for row in lived))
        lines += ["| source | " + " | ".join(programs) + " |", "|---" * (len(programs) + 1) + "|"]
        for source in dict.fromkeys(row["source"] for row in lived):
            of = {row["program"]: cell(row["values"]) for row in lived if row["source"] == source}
            lines.append(f"| {source} | " + " | ".join(of.get(program, "") for program in programs) + " |")
    return "\n".join(lines) + "\n"


def main(argv):
    def add(parser):
        parser.add_argument("--place", metavar="FOLDER", default="/dev/shm", help="where copies of files run; default %(default)s")

    def settle(options):
        options.sources = SOURCES[::3] if options.quick else SOURCES

    return Table("bench/bench effect", __doc__, LOADS, measure, text, "gain-by-profile-source", None, 12, 1, "effect.json").main(argv, add, settle)
