"""Every layout of the field on the same programs, from the same profile: what each leaves of the misses of the original.

For each program: an instrumented copy runs the training input (`restitch instrument`), one profile is made of what it counted,
and each layout of it becomes a file. All files must give the same output on the test input, which does other things. Then
original and files run the test input under valgrind's simulations of Haswell's caches and TLBs (one processor; user code; libraries
included). Addresses and hash seeds are fixed, so the numbers do not depend on the machine's load; the original runs twice, and
the difference is shown. The tables go to docs/layout-results.md.
"""

import json
import os
import time
from concurrent.futures import ThreadPoolExecutor
from statistics import geometric_mean

from . import report
from .layout_inputs import LOADS
from .machine import Failed, Machine, Missing, copy_as_written
from .restitch import Restitch
from .simulated import cachegrind, callgrind, fixed
from .tables import ROOT, Table

BEGIN, END = "<!-- layouts:begin -->", "<!-- layouts:end -->"
# Names of restitch, and of the Codestitcher paper.
LAYOUTS = {"ph": "PH", "c3": "C3", "ph.bb": "PH.BB", "codestitcher": "CS", "codestitcher+po": "CS+PO", "ext-tsp-across": "ours (default)", "stitch": "ours, by heat"}
EVENTS = {
    "l1i": "L1i misses", "l2": "L2 code misses", "itlb": "iTLB misses", "itlb_large": "the same, large pages", "walks": "page walks", "walks_large": "the same, large pages",
    "mispredicted": "mispredicted branches", "taken": "taken branches", "instructions": "instructions",
}


def prepare(load, machine, restitch, layouts):
    """The files to run by side ("original", "again", the names of layouts), each in a place of its own under the program's name."""
    name = os.path.basename(load.file)
    files = {"original": load.file} | {side: machine.path(side, f"{name}-{side}") for side in ("again", *layouts)}
    os.makedirs(machine.path("again"))
    copy_as_written(load.file, files["again"])
    counting, profile = machine.path("counting"), machine.path("profile")
    os.makedirs(counting)
    counts = os.path.join(counting, "counts")
    restitch.call(["instrument", load.file, "-o", os.path.join(counting, name), "--counts", counts], machine)
    # Servers count as users of their own.
    os.chmod(counting, 0o777)
    os.chmod(counts, 0o666)
    load.run(os.path.join(counting, name), "training", fixed())
    restitch.call(["record", "--from-counts", counts, "-o", profile], machine)
    for layout in layouts:
        os.makedirs(machine.path(layout))
        raw = machine.path(layout, "raw")
        restitch.call(["optimize", load.file, "--profile", profile, "-o", raw, "--layout", layout, "--huge-pages", "off"], machine)
        copy_as_written(raw, files[layout])
        os.remove(raw)
    return files


def compare(load, files):
    """All files give what the original gives."""
    expected = load.run(files["original"], "test")[0]
    for side, file in files.items():
        found = load.run(file, "test")[0]
        if found != expected:
            at = len(os.path.commonprefix([found, expected]))
            near = [text[max(at - 40, 0) : at + 80] for text in (found, expected)]
            raise Failed(f"{side}: the program gives something else than its original does: {near[0]!r} for {near[1]!r}")


def simulate(load, machine, side, file):
    """{event: number} of the test input."""
    events = {}
    original = None if side in ("original", "again") else load.file
    folder = machine.path(f"run-{side}")
    os.makedirs(folder)
    os.chmod(folder, 0o777)
    # The same names and lengths of names for all sides: a stack that begins elsewhere is another run.
    for prefix, read in (cachegrind(), callgrind(os.path.join(folder, "callgrind"), file, original)):
        events |= read(load.run(file, "test", prefix)[1])
    return events


def measure(name, options, log):
    if options.saved:
        if not os.path.exists(saved(name)):
            raise Missing(f"{saved(name)} is not there")
        with open(saved(name)) as f:
            return json.load(f)
    with Machine(log) as machine:
        restitch = Restitch(options.restitch, False, log)
        load = LOADS[name](machine, log)
        start = time.monotonic()
        files = prepare(load, machine, restitch, options.layouts)
        compare(load, files)
        log(f"  {len(files) - 2} layouts, all with the output of the original ({time.monotonic() - start:.0f} s)")
        if options.quick:
            return log("  runs")
        with ThreadPoolExecutor(options.jobs) as pool:
            waiting = {side: pool.submit(simulate, load, machine, side, file) for side, file in files.items()}
            sides = {side: future.result() for side, future in waiting.items()}
        log(f"  simulated ({time.monotonic() - start:.0f} s)")
        row = {"load": name, "title": load.title, "restitch": restitch.version(), "file_bytes": os.path.getsize(load.file), "sides": sides}
        with open(saved(name), "w") as f:
            json.dump(row, f, indent=1)
        return row


def saved(name):
    """The file that keeps the row of a load."""
    folder = os.path.join(ROOT, "out", "bench", "layouts")
    os.makedirs(folder, exist_ok=True)
    return os.path.join(folder, f"{name}.json")


def ratio(row, side, event):
    original = row["sides"]["original"][event.removesuffix("_large")]
    return row["sides"][side][event] / original if original else None


def show(value):
    return "-" if value is None else f"{value:.3f}"


def lines_of(head, body):
    return ["| " + " | ".join(head) + " |", "|---" * len(head) + "|", *("| " + " | ".join(cells) + " |" for cells in body)]


def originals(rows):
    """What the original programs do, for 1,000 instructions, and how well a second run repeats it."""
    each = [e for e in EVENTS if e != "instructions" and not e.endswith("_large")]
    body = []
    for row in rows:
        events = row["sides"]["original"]
        apart = max(abs(ratio(row, "again", e) - 1) for e in EVENTS if not e.endswith("_large") and events[e])
        body.append([row["title"], f"{events['instructions'] / 1e6:,.1f}", *(f"{1000 * events[e] / events['instructions']:.3g}" for e in each), f"{100 * apart:.2g} %"])
    return lines_of(["program and load", "instructions, million", *(EVENTS[e] for e in each), "second run, largest difference"], body)


def best(rows, event, layouts):
    """The layouts with the fewest events in each row."""
    return [min((l for l in layouts), key=lambda l: ratio(row, l, event) or 0) for row in rows]


def event_table(rows, event, layouts):
    """A row for each program, a column for each layout; the least of each row is marked."""
    body = []
    for row, least in zip(rows, best(rows, event, layouts)):
        body.append([row["title"], *(f"**{show(ratio(row, l, event))}**" if l == least else show(ratio(row, l, event)) for l in layouts)])
    values = {l: [v for row in rows if (v := ratio(row, l, event))] for l in layouts}
    body.append(["geometric mean", *(show(geometric_mean(v) if v else None) for v in values.values())])
    return lines_of([EVENTS[event], *(LAYOUTS[l] for l in layouts)], body)


def page(rows, options):
    where = f"{report.processor().get('model name', '')}, {time.strftime('%Y-%m-%d', time.gmtime())}, {rows[0]['restitch']}"
    layouts = [l for l in options.layouts if l in rows[0]["sides"]]
    text = [f"The original programs; events for 1,000 instructions of the test input. Simulated on: {where}.", "", *originals(rows), ""]
    text += ["Each layout, original = 1; the least of each row is bold.", ""]
    for event in EVENTS:
        title = {"itlb_large": "iTLB misses, hot code in large pages", "walks_large": "page walks, hot code in large pages"}.get(event, EVENTS[event])
        table = event_table(rows, event, layouts)
        text += [table[0].replace(f"| {EVENTS[event]} |", f"| {title} |"), *table[1:], ""]
    return "\n".join(text)


def add(parser):
    parser.add_argument("--layouts", default=",".join(LAYOUTS), help="names, separated by commas; default %(default)s")
    parser.add_argument("--saved", action="store_true", help="make the tables of the last results in out/bench, measure nothing")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)), help="simulations at the same time; default: one a core")


def settle(options):
    options.layouts = options.layouts.split(",")
    unknown = [l for l in options.layouts if l not in LAYOUTS]
    if unknown:
        raise SystemExit(f"bench/layouts: unknown layouts: {', '.join(unknown)}")


def main(argv):
    return Table("bench/layouts", __doc__, LOADS, measure, page, "layout-results.md", (BEGIN, END), 1, 1, "layouts.json").main(argv, add, settle)
