"""Whether the models of `restitch lab` say what happens.

For each program: an instrumented copy runs the training input, one profile is made of what it counted, and each layout of it becomes a file. All files must give the same output on the
test input, which does other things. The laboratory runs every layout through its models twice: by a walk of the profile, which knows nothing of the test input, and by branch records of
the original on an unseen input (the longer one, where the program has two). Then the unseen input runs in all files:

* (the shorter one) under valgrind's simulations of the processor that the models are asked for (Haswell: 32 KiB, 256 KiB; two TLBs), which execute all of the program's code, libraries included;
* (the longer one) on the processor, by counters where there is a PMU (the models are then asked for this machine, too), and by processor time: each file beside the original at the same time on one
  processor (*twins*, bench/bench variants), against what the laboratory says that its front end may lose.

The table has the correlation over the layouts (Pearson's r; Spearman's, of ranks, behind it): over all of them, and over those that order blocks, which differ less. The tables go to bench/results.
"""

import json
import os
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from statistics import StatisticsError, correlation, median

from . import counters, report
from .layout_inputs import LOADS
from .layouts import compare, lines_of, simulate, train
from .machine import Machine
from .pairs import MEMORY, folder, in_pairs
from .restitch import Restitch
from .tables import Table

ORIGINAL, AS_IT_IS = "original", "as it is"
FUNCTIONS, BLOCKS = ["ph", "c3", "hfsort+", "cdsort"], ["hot-cold", "ph.bb", "hot-chains", "ext-tsp", "codestitcher", "codestitcher+po", "stitch", "ext-tsp-across", "ext-tsp-across+search"]
# What the models count, what valgrind calls it, and the counter of the processor's that sees it.
EVENTS = {"l1i": ("L1i misses", "l1i", "l1i_misses"), "l2": ("L2 code misses", "l2", None), "itlb": ("iTLB misses", "itlb", None), "stlb": ("page walks", "walks", None), "taken": ("taken branches", "taken", "taken_branches")}
COST = "cost"
HASWELL, THIS = "haswell", "this machine"


def prepare(load, machine, restitch, layouts):
    """The profile, and {side: file}."""
    profile = train(load, machine, restitch)
    files = {ORIGINAL: load.file}
    for layout in layouts:
        os.makedirs(machine.path(layout))
        # Runs have folders and outputs that are called after their file.
        files[layout] = machine.path(layout, f"{os.path.basename(load.file)}-{layout}")
        restitch.call(["optimize", load.file, "--profile", profile, "-o", files[layout], "--layout", layout, "--huge-pages", "off"], machine)
    return profile, files


def predict(load, machine, restitch, profile, layouts, options):
    """{side: {event: number}} of the models; the number is for a byte of executed code, except the cost."""
    out = machine.path("lab.json")
    restitch.call(["lab", load.file, "--profile", profile, "--layouts", ",".join(layouts), "--json", out, *options], machine)
    with open(out) as f:
        entries = json.load(f)["entries"]
    side = lambda name: ORIGINAL if name == AS_IT_IS else name
    return {side(e["name"]): {event: e["counts"][event] / e["counts"]["bytes"] for event in EVENTS} | {COST: e["cost"]} for e in entries}


def predictions(load, machine, restitch, profile, layouts, steps):
    """Of a walk and of branch records, by the name of the machine that is modelled."""
    records = machine.path("records")
    os.makedirs(records)
    # Servers run as users of their own.
    os.chmod(records, 0o777)
    file = os.path.join(records, "test.perf.data")
    load.run(load.file, load.timed, [restitch.path, "record", "--source", "trace", "--depth", "1024", "--overhead", "50%", "-o", file, "--"])
    found = {}
    for name, machine_options in {HASWELL: ["--machine", HASWELL], THIS: []}.items():
        ways = {"walk": ["--steps", str(steps)], "records": ["--records", file]}
        found[name] = {way: predict(load, machine, restitch, profile, layouts, [*machine_options, *options]) for way, options in ways.items()}
    return found


def counted(load, files, events, rounds):
    """{side: {counter: median}} of the test input, by the processor's counters, in turns."""
    values = {side: [] for side in files}
    for _ in range(rounds):
        for side, file in files.items():
            with tempfile.NamedTemporaryFile() as out:
                load.run(file, load.timed, ["perf", "stat", "-x,", "-o", out.name, "-e", ",".join(events.values()), "--"])
                values[side].append(counters.parse(out.read().decode(), events))
    return {side: {name: median(v[name] for v in each) for name in events if all(name in v for v in each)} for side, each in values.items()}


def timed(load, files, rounds, cpus, parent):
    """{side: processor time over that of the original beside it}: medians."""
    with folder(parent) as place:
        sides = {side: (file, place) for side, file in files.items() if side != ORIGINAL}
        pairs = in_pairs(load, sides, (files[ORIGINAL], place), rounds, cpus)
    return {ORIGINAL: 1.0} | {side: median(own / original for own, original in both) for side, both in pairs.items()}


def measure(name, options, log):
    with Machine(log) as machine:
        restitch, load = Restitch(options.restitch, False, log), LOADS[name](machine, log)
        start = time.monotonic()
        done = lambda what: log(f"  {what} ({time.monotonic() - start:.0f} s)")
        layouts = [*FUNCTIONS, *BLOCKS]
        profile, files = prepare(load, machine, restitch, layouts)
        compare(load, files)
        done(f"{len(layouts)} layouts, all with the output of the original")
        models = predictions(load, machine, restitch, profile, layouts, 300_000 if options.quick else 5_000_000)
        done("models")
        row = {"title": load.title, "restitch": restitch.version(), "models": models}
        with ThreadPoolExecutor(options.jobs) as pool:
            waiting = {side: pool.submit(simulate, load, machine, side, file) for side, file in files.items()}
            row["simulated"] = {side: future.result() for side, future in waiting.items()}
        done("simulated")
        events = counters.choose()[0]
        if "cycles" in events:
            row["counted"] = counted(load, files, events, min(options.rounds, 3))
            done("counted")
        if options.rounds:
            row["times"] = timed(load, files, options.rounds, sorted(os.sched_getaffinity(0)), options.place)
            done(f"{options.rounds} rounds")
        return row


def ranks(values):
    """The place of each value in their order; equal ones share the middle of their places."""
    ordered = sorted(values)
    return [ordered.index(v) + (ordered.count(v) - 1) / 2 for v in values]


def correlations(model, measured, sides):
    """Pearson's and Spearman's correlation over `sides`, in words; a dash where one of the two is the same for all."""
    pairs = [(model[side], measured[side]) for side in sides if side in model and side in measured]
    x, y = zip(*pairs)
    try:
        return f"{correlation(x, y):.3f} ({correlation(ranks(x), ranks(y)):.2f})"
    except StatisticsError:
        return "-"


def comparisons(row):
    """What is compared: (of what, by what, the machine whose models, their event, {side: what was measured})."""
    yield from ((title, "simulation", HASWELL, event, {s: v[name] for s, v in row["simulated"].items()}) for event, (title, name, _) in EVENTS.items())
    found = row.get("counted", {})
    for event, (title, _, name) in EVENTS.items():
        if found and name and all(name in values for values in found.values()):
            yield title, "counter", THIS, event, {s: v[name] for s, v in found.items()}
    if found:
        yield "cycles", "counter", THIS, COST, {s: v["cycles"] for s, v in found.items()}
    if row.get("times"):
        yield "processor time", "clock", THIS, COST, row["times"]


def page(rows, _):
    machine = f"{report.processor().get('model name', '')}, {len(os.sched_getaffinity(0))} processors"
    pmu = "" if any(row.get("counted") for row in rows) else " This machine has no PMU, so nothing was compared with counters."
    text = [f"{machine}, {time.strftime('%Y-%m-%d', time.gmtime())}, {rows[0]['restitch']}; {len(FUNCTIONS) + len(BLOCKS)} layouts and the original.{pmu}", ""]
    body, blocks, everything = [], BLOCKS, [ORIGINAL, *FUNCTIONS, *BLOCKS]
    for row in rows:
        for title, by, machine, event, measured in comparisons(row):
            models = row["models"][machine]
            of = lambda way, sides: correlations({s: v[event] for s, v in models[way].items()}, measured, sides)
            low, high = min(measured.values()) / measured[ORIGINAL], max(measured.values()) / measured[ORIGINAL]
            body.append([row["title"], title, by, f"{low:.3f} to {high:.3f}", *(of(way, sides) for sides in (everything, blocks) for way in ("walk", "records"))])
    head = ["program and load", "of what", "by", "layouts, original = 1", "all: walk", "all: records", "of blocks: walk", "of blocks: records"]
    return "\n".join([*text, *lines_of(head, body)])


def add(parser):
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)), help="simulations at the same time; default: one a core")
    parser.add_argument("--place", metavar="FOLDER", default=MEMORY, help="where copies run that are timed; default %(default)s")


def main(argv):
    return Table("bench/bench models", __doc__, LOADS, measure, page, "models-and-reality", None, 9, 1, "models.json").main(argv, add)
