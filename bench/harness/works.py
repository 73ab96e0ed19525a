"""What `restitch batch` saves in processor time: whole works (`bench/bench batch` has them) beside themselves without it. Variants: a batch with an empty cache (*first*), with a warm one,
and with a profile of all runs from the beginning (*bound*).

The two are *twins* (`bench/bench variants`): they run at the same time on one processor, which gives each some milliseconds in turn, so that the machine's speed, which drifts by a tenth from one build to
the next, is the same for both. Each writes to a copy of the work's folder that stands at its path (so this takes mounts of its own: root, or user namespaces). Processor time is that
of everything that was started, in user and system, restitch included: its sampling, counting and laying out as well. What cannot be told so is wall time: `bench/bench batch` has that, and what batches do on cores that are idle.

All have to write the same files, to the byte. A compiler takes about three minutes a round on two processors.
"""

import json
import os
import shutil
import time
from statistics import median

from . import report
from .batches import LOADS, Work, markdown, one_run
from .machine import Failed, Machine, Missing
from .stand_in import is_possible, stand_in
from .stats import interval
from .tables import Table
from .twins import all_of, in_child, twins

BEGIN, END = "<!-- works:begin -->", "<!-- works:end -->"
PLAIN, FIRST, WARM, BOUND = "plain", "first", "warm", "bound"
VARIANTS = (PLAIN, FIRST, WARM, BOUND)


def beside_plain(work, pristine, caches, variant, cpu, plain_first):
    """[plain, variant], at the same time on one processor: what `one_run` measures of each, and how much of it is restitch's own."""
    sides = [PLAIN, variant][:: 1 if plain_first else -1]
    copies = [work.machine.path(f"copy-{cpu}-{number}") for number in range(2)]

    def one(side, copy):
        command, result = work.command, f"{copy}.json"
        if side != PLAIN:
            command = work.batch(caches[variant], result=result)
        stand_in(work.folder, copy)
        run = one_run(command, lambda: None, work.folder, work.machine)
        if side != PLAIN:
            with open(result) as f:
                told = json.load(f)
            run["own"], run["sampling"] = told["own_seconds"], told["sampling_seconds"]
        return run

    for copy in copies:
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(pristine, copy, symlinks=True)
    runs = twins([lambda side=side, copy=copy: one(side, copy) for side, copy in zip(sides, copies)], cpu)
    if runs[0].pop("files") != runs[1].pop("files"):
        raise Failed(f"{variant}: files differ from those of the work without restitch")
    return runs if plain_first else runs[::-1]


def rounds_of(work, pristine, prepared, variants, count, log):
    """[{variant: [plain, variant]} of each round]; each processor has its own part of the pairs, and its own caches."""
    pairs = [(number, variant) for number in range(count) for variant in variants]
    cpus = sorted(os.sched_getaffinity(0))

    def share(index):
        caches = {name: work.machine.path(f"{name}-{index}") for name in variants}
        for name, source in prepared.items():
            shutil.copytree(source, caches[name], symlinks=True)
        found = []
        for at in range(index, len(pairs), len(cpus)):
            number, variant = pairs[at]
            if variant not in prepared:
                shutil.rmtree(caches[variant], ignore_errors=True)
            both = beside_plain(work, pristine, caches, variant, cpus[index], (number + index) % 2 == 0)
            log(f"  round {number + 1} of {count}: {variant} {both[1]['cpu'] / both[0]['cpu']:.3f} ({both[0]['cpu']:.1f} s plain)")
            found.append([number, variant, both])
        return found

    result = [{} for _ in range(count)]
    for found in all_of([in_child(lambda index=index: share(index)) for index in range(len(cpus))]):
        for number, variant, both in found:
            result[number][variant] = both
    return result


def measure(name, options, log):
    if not is_possible():
        raise Missing("the sides run at the same time, each in mounts of its own, which are not permitted: run as root, or allow user namespaces")
    with Machine(log) as machine:
        work = Work(name, options, machine, log)
        work.run("plain, to fill the page cache", work.command)
        prepared = {}
        if WARM in options.variants:
            prepared[WARM] = machine.path("warm")
            work.prepare(prepared[WARM])
        if BOUND in options.variants:
            prepared[BOUND] = machine.path("bound")
            work.prepare_all(prepared[BOUND])
        work.fresh()
        pristine = machine.path("pristine")
        shutil.copytree(work.folder, pristine, symlinks=True)
        rounds = rounds_of(work, pristine, prepared, options.variants, options.rounds, log)
        return {"title": work.title, "restitch": work.restitch.version(), "rounds": rounds, "variants": options.variants}


def ratio(rounds, variant):
    """Processor time of a variant over that of plain beside it: below 1 is better. Plain over plain says what the rest is worth."""
    values = [r[variant][1]["cpu"] / r[variant][0]["cpu"] for r in rounds]
    low, high, _ = interval(values)
    return f"{median(values):.3f} ({low:.3f} to {high:.3f})"


def share(rounds, variant, what):
    """In hundredths of plain's processor time."""
    values = [r[variant][1][what] / r[variant][0]["cpu"] for r in rounds if what in r[variant][1]]
    return f"{100 * median(values):.1f} %" if values else "-"


def page(rows, quick):
    kind = " (a quick run: shows that it runs)" if quick else ""
    machine = report.machine()
    head = f"{len(rows[0]['rounds'])} rounds{kind}; {machine}, {time.strftime('%Y-%m-%d', time.gmtime())}, {rows[0]['restitch']}. Processor time over that of the same work without restitch beside it; median (interval): below 1 is better."
    body = []
    for row in rows:
        rounds = row["rounds"]
        plain = median(both[0]["cpu"] for r in rounds for both in r.values())
        body += [[row["title"], f"{plain:.1f} s", variant, ratio(rounds, variant), share(rounds, variant, "own"), share(rounds, variant, "sampling")] for variant in row["variants"]]
    return "\n".join([head, "", *markdown(["work", "plain", "variant", "processor time", "of it restitch's own", "samples, in the work"], body), ""])


def add(parser):
    parser.add_argument("--variants", metavar="NAMES", type=lambda names: names.split(","), default=list(VARIANTS), help=f"with commas between them; default {','.join(VARIANTS)}, the first of which says how far equal works differ")


def settle(options):
    wrong = [name for name in options.variants if name not in VARIANTS]
    if wrong:
        raise SystemExit(f"bench/bench works: --variants takes {', '.join(VARIANTS)}, not {', '.join(wrong)}")


def main(argv):
    text = lambda rows, options: page(rows, options.quick)
    return Table("bench/bench works", __doc__, LOADS, measure, text, "batch-whole-works", (BEGIN, END), 6, 1, "works.json").main(argv, add, settle)
