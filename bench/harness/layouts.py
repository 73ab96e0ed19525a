"""Every layout of the field on the same programs, from the same profile: what each leaves of the misses of the original.

For each program: an instrumented copy runs the training input (`restitch instrument`), one profile is made of what it counted,
and each layout of it becomes a file. All files must give the same output on the test input, which does other things. Then
original and files run the test input under valgrind's simulations of Haswell's caches and TLBs (one processor; user code; libraries
included). Addresses and hash seeds are fixed, so the numbers do not depend on the machine's load; the original runs twice, and
the difference is shown. Then the processor: each file runs the test input (a longer one of its kind, where that is hardly more than the program's start) beside the original, at the same time on one processor
(*twins*, bench/bench variants), --rounds times on fresh copies; all of them also in a memory file system of large pages, the original too. The tables go to bench/results.
"""

import json
import os
import time
from concurrent.futures import ThreadPoolExecutor
from statistics import geometric_mean, median

from . import report
from .layout_inputs import LOADS
from .machine import Failed, Machine, Missing, copy_as_written
from .pairs import folder, in_pairs, large_folder
from .restitch import Restitch
from .simulated import cachegrind, callgrind, fixed
from .stats import interval
from .tables import ROOT, Table

# Names of restitch, and of the Codestitcher paper.
LAYOUTS = {"ph": "PH", "c3": "C3", "ph.bb": "PH.BB", "codestitcher": "CS", "codestitcher+po": "CS+PO", "ext-tsp-across+search": "ours (default)", "stitch": "ours, by heat"}
EVENTS = {
    "l1i": "L1i misses", "l2": "L2 code misses", "itlb": "iTLB misses", "itlb_large": "the same, large pages", "walks": "page walks", "walks_large": "the same, large pages",
    "mispredicted": "mispredicted branches", "taken": "taken branches", "instructions": "instructions",
}


# Behind the name of a side: the same with its code in large pages.
LARGE = "+large"
ORIGINAL_LARGE = "original" + LARGE


def train(load, machine, restitch):
    """The exact profile of the training input."""
    name = os.path.basename(load.file)
    counting, profile = machine.path("counting"), machine.path("profile")
    os.makedirs(counting)
    counts = os.path.join(counting, "counts")
    restitch.call(["instrument", load.file, "-o", os.path.join(counting, name), "--counts", counts], machine)
    # Servers count as users of their own.
    os.chmod(counting, 0o777)
    os.chmod(counts, 0o666)
    load.run(os.path.join(counting, name), "training", fixed())
    restitch.call(["record", "--from-counts", counts, "-o", profile], machine)
    return profile


def prepare(load, machine, restitch, layouts):
    """The files to run by side ("original", "again", the names of layouts), each in a place of its own under the program's name. Those of layouts are there twice: also
    for large pages."""
    name = os.path.basename(load.file)
    made = [(layout, layout + suffix, pages) for layout in layouts for suffix, pages in (("", "off"), (LARGE, "on"))]
    files = {"original": load.file} | {side: machine.path(side, f"{name}-{side}") for side in ("again", *(side for _, side, _ in made))}
    os.makedirs(machine.path("again"))
    copy_as_written(load.file, files["again"])
    profile = train(load, machine, restitch)
    for layout, side, pages in made:
        os.makedirs(machine.path(side))
        raw = machine.path(side, "raw")
        restitch.call(["optimize", load.file, "--profile", profile, "-o", raw, "--layout", layout, "--huge-pages", pages], machine)
        copy_as_written(raw, files[side])
        os.remove(raw)
    return files


def compare(load, files, which="test"):
    """All files give what the original gives."""
    expected = load.run(files["original"], which)[0]
    for side, file in files.items():
        found = load.run(file, which)[0]
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


def timed(load, files, rounds, log):
    """{side: [[its processor seconds, those of the original beside it] of each round]}. Sides in large pages are left out where there are none."""
    with folder() as small, large_folder() as large:
        if not large:
            log("  no memory file system of large pages could be mounted (root?): nothing is timed in large pages")
        sides = {side: (file, large if side.endswith(LARGE) else small) for side, file in files.items() if side != "original"} | {ORIGINAL_LARGE: (files["original"], large)}
        sides = {side: (file, place) for side, (file, place) in sides.items() if place}
        return in_pairs(load, sides, (files["original"], small), rounds, sorted(os.sched_getaffinity(0)))


def measure(name, options, log):
    row = earlier(name) if options.saved or options.only else {}
    if options.saved:
        if not row:
            raise Missing(f"{saved(name)} is not there")
        return row
    with Machine(log) as machine:
        restitch = Restitch(options.restitch, False, log)
        load = LOADS[name](machine, log)
        start = time.monotonic()
        done = lambda what: log(f"  {what} ({time.monotonic() - start:.0f} s)")
        files = prepare(load, machine, restitch, options.layouts)
        for which in sorted({"test", load.timed}):
            compare(load, files, which)
        done(f"{len(options.layouts)} layouts, all with the output of the original")
        if options.quick:
            return log("  runs")
        row |= {"load": name, "title": load.title, "restitch": restitch.version(), "file_bytes": os.path.getsize(load.file)}
        if options.only != "times":
            with ThreadPoolExecutor(options.jobs) as pool:
                waiting = {side: pool.submit(simulate, load, machine, side, file) for side, file in files.items() if not side.endswith(LARGE)}
                row["sides"] = {side: future.result() for side, future in waiting.items()}
            done("simulated")
        if options.only != "simulations":
            row["seconds"] = timed(load, files, options.rounds, log)
            done(f"{options.rounds} rounds")
        with open(saved(name), "w") as f:
            json.dump(row, f, indent=1)
        if "sides" not in row:
            raise Missing(f"simulations for {name}: they were not made yet (--only simulations)")
        return row


def earlier(name):
    """The row of a load that was saved last; empty if there is none."""
    if not os.path.exists(saved(name)):
        return {}
    with open(saved(name)) as f:
        return json.load(f)


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


def time_table(rows, layouts, suffix, title):
    """Processor time by layout, original = 1, with its interval; the least of each row is marked."""
    body, medians = [], {l: [] for l in layouts}
    for row in rows:
        ratios = {l: against_original(row, l + suffix) for l in layouts}
        least = min(layouts, key=lambda l: median(ratios[l]))
        cells = []
        for l in layouts:
            medians[l].append(median(ratios[l]))
            cells.append(f"{'**' * (l == least)}{medians[l][-1]:.3f}{'**' * (l == least)} {bounds(ratios[l])}")
        body.append([row["title"], *cells])
    body.append(["geometric mean", *(show(geometric_mean(v)) for v in medians.values())])
    return lines_of([title, *(LAYOUTS[l] for l in layouts)], body)


def against_original(row, side):
    """A side over the original, of each pair."""
    return [own / original for own, original in row["seconds"][side]]


def bounds(values):
    low, high, _ = interval(values)
    return f"[{low:.3f}, {high:.3f}]"


def times(rows, layouts):
    """What the clock says, if it was asked."""
    rows = [row for row in rows if row.get("seconds")]
    if not rows:
        return []
    large = all(ORIGINAL_LARGE in row["seconds"] for row in rows)
    body = []
    for row in rows:
        originals = [original for _, original in row["seconds"]["again"]]
        cells = [f"{median(v := against_original(row, side)):.3f} {bounds(v)}" for side in ("again", *([ORIGINAL_LARGE] * large))]
        body.append([row["title"], f"{median(originals):.2f} s", *cells, str(len(originals))])
    text = ["Processor time, user and system, of the test input or a longer one of its kind. First how long it takes the original, and of its time (original = 1) the same file once more" + ", and in large pages:" * large + ":" * (not large), ""]
    text += [*lines_of(["program and load", "processor time", "the same file", *(["in large pages"] * large), "pairs"], body), "", "Each layout, original = 1: median of the pairs' ratios with its interval; the least of each row is bold.", ""]
    for suffix, title in (("", "processor time"), *([(LARGE, "processor time, all code in large pages (the original's not)")] * large)):
        text += [*time_table(rows, layouts, suffix, title), ""]
    return text


def page(rows, options):
    where = f"{report.processor().get('model name', '')}, {time.strftime('%Y-%m-%d', time.gmtime())}, {rows[0]['restitch']}"
    layouts = [l for l in options.layouts if l in rows[0]["sides"]]
    text = [f"The original programs; events for 1,000 instructions of the test input. Simulated on: {where}.", "", *originals(rows), ""]
    text += ["Each layout, original = 1; the least of each row is bold.", ""]
    for event in EVENTS:
        title = {"itlb_large": "iTLB misses, hot code in large pages", "walks_large": "page walks, hot code in large pages"}.get(event, EVENTS[event])
        table = event_table(rows, event, layouts)
        text += [table[0].replace(f"| {EVENTS[event]} |", f"| {title} |"), *table[1:], ""]
    text += times(rows, layouts)
    return "\n".join(text)


def add(parser):
    parser.add_argument("--layouts", default=",".join(LAYOUTS), help="names, separated by commas; default %(default)s")
    parser.add_argument("--saved", action="store_true", help="make the tables of the last results in out/bench, measure nothing")
    parser.add_argument("--only", choices=["simulations", "times"], help="measure one of the two; the other stays as it was measured last")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)), help="simulations at the same time; default: one a core")


def settle(options):
    options.layouts = options.layouts.split(",")
    unknown = [l for l in options.layouts if l not in LAYOUTS]
    if unknown:
        raise SystemExit(f"bench/bench layouts: unknown layouts: {', '.join(unknown)}")


def main(argv):
    return Table("bench/bench layouts", __doc__, LOADS, measure, page, "layouts-of-the-field", None, 11, 1, "layouts.json").main(argv, add, settle)
