"""What each option of `restitch optimize` is worth on the processor: files of one profile, made with different options, against the one with none.

For each program: an instrumented copy runs the training input, one profile is made of what it counted, and each side becomes a file of it. All give the same output on
the test input, which does other things. Then *twins* run it: two sides at the same time on one processor, which the scheduler gives to each for some milliseconds in turn. So whatever else the
machine does meets both alike, where runs one after the other differ by a tenth for that reason alone (the table says how much they did); they also take the caches from each other,
so both begin each turn a little cold. The processor time of each is the kernel's, user and system together, which it counts in nanoseconds; which of the two a tick falls into is a guess.

Where a file's pages lie in memory is luck that lasts as long as they do, worth a percent or two; so each pair runs on fresh copies. They are in memory (--place), where no side gets
large pages unless another place is named: on a file system that has them, which of two equal files gets them is luck as well.

--side NAME=OPTIONS adds sides of its own in place of the default ones: bench/bench variants cc1plus --side stitch='--layout stitch'
--build PATH is a side that another build of restitch makes of the same profile: what has changed since.
"""

import os
import shlex
import time
from statistics import geometric_mean, median

from . import report
from .layout_inputs import LOADS
from .layouts import lines_of, train
from .machine import Failed, Machine
from .pairs import MEMORY, folder, in_pairs
from .restitch import Restitch
from .stats import interval
from .tables import Table

ORIGINAL, DEFAULT, BUILD = "original", "default", "build"
# Runs of which branch records are taken.
RECORDED = 5
SIDES = {
    "prefetch": "--prefetch on", "duplicate": "--duplicate on", "align": "--align off", "turn": "--invert-branches off", "copy-tables": "--copy-tables off",
    "stay": "--keep-in-place off", "no-search": "--layout ext-tsp-across", "together": "--layout together", "stitch": "--layout stitch", "codestitcher": "--layout codestitcher", "ext-tsp": "--layout ext-tsp", "hot-chains": "--layout hot-chains", "ph.bb": "--layout ph.bb", "c3": "--layout c3",
}
def with_records(load, machine, restitch, counts):
    """`counts` and branch records of more runs of the training input, merged: these say what runs at the same time."""
    folder = machine.path("records")
    os.mkdir(folder)
    # Servers run as users of their own.
    os.chmod(folder, 0o777)
    parts = [os.path.join(folder, str(number)) for number in range(RECORDED)]
    for part in parts:
        load.run(load.file, load.recorded, [restitch.path, "record", "--source", "burst", "--overhead", "30%", "--format", "restitch", "-o", part, "--"])
    records, both = machine.path("all-records"), machine.path("both")
    restitch.call(["profile", "merge", "--sum", *parts, "--format", "restitch", "-o", records], machine)
    restitch.call(["profile", "merge", counts, records, "--format", "restitch", "-o", both], machine)
    return both


def prepare(load, machine, restitch, sides, records, build=None):
    """The files to copy from: {side: path}. `build` makes the side of that name."""
    profile = train(load, machine, restitch)
    if records:
        profile = with_records(load, machine, restitch, profile)
    files = {ORIGINAL: load.file}
    for side, options in ({DEFAULT: ""} | sides).items():
        files[side] = machine.path(f"made-{side}")
        maker = build if side == BUILD else restitch
        maker.call(["optimize", load.file, "--profile", profile, "-o", files[side], *shlex.split(options)], machine)
    return files


def timed(load, place, files, rounds, cpus):
    """{side: [[its processor seconds, those of the default beside it] of each round]}."""
    return in_pairs(load, {side: (file, place) for side, file in files.items()}, (files[DEFAULT], place), rounds, cpus)


def compare(load, files):
    """All files give what the original gives."""
    expected = load.run(files[ORIGINAL], load.timed)[0]
    for side, file in files.items():
        if load.run(file, load.timed)[0] != expected:
            raise Failed(f"{side}: the program gives something else than its original does")


def measure(name, options, log):
    with Machine(log) as machine:
        restitch, load = Restitch(options.restitch, False, log), LOADS[name](machine, log)
        load.timed = options.input or load.timed
        start = time.monotonic()
        build = options.build and Restitch(options.build, False, log)
        files = prepare(load, machine, restitch, options.sides, options.records, build)
        compare(load, files)
        log(f"  {len(files)} files, all with the output of the original ({time.monotonic() - start:.0f} s)")
        with folder(options.place) as place:
            seconds = timed(load, place, files, options.rounds, sorted(os.sched_getaffinity(0)))
        log(f"  {options.rounds} rounds ({time.monotonic() - start:.0f} s)")
        title = f"{load.title}, input {options.input}" if options.input else load.title
        return {"title": title, "restitch": restitch.version(), "options": options.sides, "records": options.records, "seconds": seconds}


def ratios(row, side):
    """A side over the default, of each pair."""
    return [own / default for own, default in row["seconds"][side]]


def out_of_turn(row):
    """How far runs of the default differ that were not beside each other: the middle half of them, over their median."""
    seconds = sorted(default for pairs in row["seconds"].values() for _, default in pairs)
    return (seconds[len(seconds) * 3 // 4] - seconds[len(seconds) // 4]) / median(seconds)


def cell(values):
    low, high, _ = interval(values)
    return f"{median(values):.3f} [{low:.3f}, {high:.3f}]"


def page(rows, options):
    machine = f"{report.processor().get('model name', '')}, {len(os.sched_getaffinity(0))} processors, Linux {os.uname().release}"
    text = [f"{options.rounds} pairs each; {machine}, {time.strftime('%Y-%m-%d', time.gmtime())}, {rows[0]['restitch']}. Processor time, user and system; median of the pairs' ratios [interval].", ""]
    text += lines_of(["program and load", "the original's time", "default / original", "runs out of turn differ by"],
                     [[row["title"], f"{median(own for own, _ in row['seconds'][ORIGINAL]):.2f} s", cell([1 / r for r in ratios(row, ORIGINAL)]), f"{100 * out_of_turn(row):.0f} %"] for row in rows])
    text += ["", "Each option against the file without it (default = 1; less is better; the first row is the same file twice):", ""]
    body = []
    for side in [DEFAULT, *rows[0]["options"]]:
        values = [ratios(row, side) for row in rows]
        label = {DEFAULT: "none", BUILD: "none, by another build"}.get(side, f"`{rows[0]['options'].get(side)}`")
        body.append([label, *map(cell, values), f"{geometric_mean([median(v) for v in values]):.3f}"])
    text += lines_of(["options", *(row["title"] for row in rows), "geometric mean"], body)
    return "\n".join(text)


def add(parser):
    parser.add_argument("--side", metavar="NAME=OPTIONS", action="append", default=[], help=f"options of `restitch optimize` that make a side; default: {', '.join(f'{name} ({options})' for name, options in SIDES.items())}")
    parser.add_argument("--build", metavar="PATH", help="another restitch, which makes a side of its own")
    parser.add_argument("--records", action="store_true", help="add branch records of training to the profile, which `--layout together` wants")
    parser.add_argument("--input", metavar="NAME", help="measure this input of the program in place of the unseen one (training; python also has trained, a longer run of its training script, and postgres selects, what pgbench -S asks)")
    parser.add_argument("--place", metavar="FOLDER", default=MEMORY, help="where copies run; default %(default)s")


def settle(options):
    pairs = [side.partition("=") for side in options.side]
    wrong = [name for name, equals, _ in pairs if not equals or name in (ORIGINAL, DEFAULT, BUILD)]
    if wrong:
        raise SystemExit(f"bench/bench variants: --side takes NAME=OPTIONS with a name of its own, not {', '.join(wrong)}")
    own = {name: text for name, _, text in pairs} | ({BUILD: ""} if options.build else {})
    options.sides = own or SIDES


def main(argv):
    return Table("bench/bench variants", __doc__, LOADS, measure, page, "options-of-optimize", None, 15, 1, "variants.json").main(argv, add, settle)
