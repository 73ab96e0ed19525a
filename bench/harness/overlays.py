"""What the overlays of a warm cache save in each command of a work: the commands that a build or a loop consists of, one after the other, each several
times: as it is (*plain*), and with the overlays that `restitch batch --export` has written (*warm*). With --curve there are more: overlays whose profiles
were counted in 1, 2, 5 and 10 runs, and in all (OCOLOS, Figure 10); with --layouts, other layouts of the same profile. Which is first changes from command to command and from round to round.

Processor time is exact (the kernel's account of the ended command and its descendants, user and system), and what is compared
ran within seconds: a machine whose speed drifts by a tenth, on which whole builds tell nothing (`bench/batch`), tells some percent here. What is *not* in
it is restitch's own work beside a build: sampling, counting, laying out. `bench/batch` has that.

All have to say the same and write the same files. One command at a time: a compiler takes about a minute a round, with --curve four.
"""

import hashlib
import os
import shlex
import shutil
import subprocess
import time
from statistics import median

from . import report
from .batches import CURVE, LOADS, Work, markdown
from .machine import Failed, Machine
from .stats import interval
from .tables import Table

BEGIN, END = "<!-- overlays:begin -->", "<!-- overlays:end -->"
LIMIT = 600
PLAIN, WARM, ALL = "plain", "warm", "all"


def one_command(command, environment):
    """Processor seconds (user, system) and page faults of a command and its descendants, and what it said."""
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environment) as child:
        said = child.stdout.read()
        _, status, used = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode != 0:
        raise Failed(f"{' '.join(command)} ended with {child.returncode}:\n{said.decode(errors='replace')[-2000:]}")
    return {"user": used.ru_utime, "system": used.ru_stime, "cpu": used.ru_utime + used.ru_stime, "faults": used.ru_minflt}, said


def files(folder):
    """When each file was made or changed."""
    paths = (os.path.join(place, name) for place, _, names in os.walk(folder) for name in names)
    return {path: (state.st_ino, state.st_mtime_ns) for path in paths for state in [os.stat(path)]}


def written(folder, before):
    """A hash of each file that is not what it was `before`: what a command leaves as another side has made it is none of its own."""
    result = {}
    for path, state in files(folder).items():
        if before.get(path) != state:
            with open(path, "rb") as f:
                result[path] = hashlib.sha256(f.read()).hexdigest()
    return result


def one_round(work, parts, environments, turn):
    """Each command on all sides: [{"kind", "plain": {...}, "warm": {...}}]."""
    runs, sides = [], list(environments)
    for number, (kind, command) in enumerate(parts):
        run, seen = {"kind": kind}, []
        first = (number + turn) % len(sides)
        order = sides[first:] + sides[:first]
        for side in order if turn % 2 == 0 else order[::-1]:
            before = files(work.folder)
            run[side], said = one_command(command, environments[side])
            seen.append((said, written(work.folder, before)))
        if any(other != seen[0] for other in seen):
            raise Failed(f"{' '.join(command)} did not say or write the same in overlays")
        runs.append(run)
    return runs


def exported(work, cache, folder):
    """The overlays of a cache, in a folder of their own."""
    command = [work.restitch.path, "batch", "--quiet", "--cache", cache, "--trials", "off", "--export", folder, "--finish", "later", "--", "true"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT)
    if done.returncode != 0:
        raise Failed(f"{' '.join(command)} ended with {done.returncode}: {done.stderr[-2000:]}")


def prepare(name, work, options):
    """A folder of overlays for each side but the plain one: {side: folder}."""
    place = os.path.join(options.overlays or work.machine.folder, f"overlays-{name}")
    sides = [WARM, *([*map(str, CURVE), ALL] if options.curve else []), *options.layouts]
    folders = {side: os.path.join(place, side) for side in sides}
    for side, folder in folders.items():
        if os.path.isdir(folder):
            continue
        cache = os.path.join(place, f"cache-{side}")
        shutil.rmtree(cache, ignore_errors=True)
        if side in options.layouts:
            shutil.copytree(os.path.join(place, f"cache-{WARM}"), cache, symlinks=True)
            work.prepare(cache, *options.with_, "--layout", side)
        elif side == ALL:
            work.prepare_all(cache)
        else:
            work.prepare(cache, *options.with_, *(["--profile-runs", side] if side != WARM else []))
        exported(work, cache, folder)
    return folders


def measure(name, options, log):
    with Machine(log) as machine:
        work = Work(name, options, machine, log)
        folders = prepare(name, work, options)
        # The folders that single commands write to are there afterwards.
        work.run("all of it", work.command)
        plain = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
        environments = {PLAIN: plain}
        for side, folder in folders.items():
            environments[side] = dict(plain, LD_PRELOAD=os.path.join(folder, "librestitch-$PLATFORM.so"))
        parts, rounds = work.parts(), []
        for number in range(options.rounds):
            start = time.monotonic()
            rounds.append(one_round(work, parts, environments, number))
            said = ", ".join(f"{side} {ratio([rounds[-1]], side, 'cpu')}" for side in folders)
            log(f"  round {number + 1} of {options.rounds}: {said} ({time.monotonic() - start:.0f} s)")
        return {"title": work.title, "restitch": work.restitch.version(), "rounds": rounds, "sides": list(folders)}


def total(runs, side, what):
    return sum(run[side][what] for run in runs)


def ratio(rounds, side, what, base=PLAIN):
    """A side over another one, of each round's whole work: below 1 is better."""
    values = [total(runs, side, what) / total(runs, base, what) for runs in rounds if total(runs, base, what) > 0]
    if not values:
        return "-"
    low, high, _ = interval(values)
    return f"{median(values):.3f}" + (f" ({low:.3f} to {high:.3f})" if len(values) > 1 else "")


def rows_of(row):
    """All commands, and those of each kind where there are several."""
    kinds = list(dict.fromkeys(run["kind"] for run in row["rounds"][0]))
    for kind in [None, *kinds] if len(kinds) > 1 else kinds:
        rounds = [[run for run in runs if kind in (None, run["kind"])] for runs in row["rounds"]]
        seconds = median(total(runs, PLAIN, "cpu") for runs in rounds)
        share = median(total(runs, PLAIN, "system") / max(total(runs, PLAIN, "cpu"), 1e-9) for runs in rounds)
        yield [row["title"], f"{kind or 'all'} ({len(rounds[0])})", f"{seconds:.2f} s", f"{100 * share:.0f} %",
               *(ratio(rounds, WARM, what) for what in ("cpu", "user", "system", "faults"))]


def against_warm(row):
    """Processor time of the other sides over that of the overlays as they are by default."""
    return ", ".join(f"{side} {ratio(row['rounds'], side, 'cpu', WARM)}" for side in row["sides"] if side != WARM)


def page(rows, quick):
    kind = " (a quick run: shows that it runs)" if quick else ""
    machine = f"{report.processor().get('model name', '')}, {len(os.sched_getaffinity(0))} cores, Linux {os.uname().release}"
    head = (f"{len(rows[0]['rounds'])} rounds{kind}; {machine}, {time.strftime('%Y-%m-%d', time.gmtime())}, {rows[0]['restitch']}. "
            "With overlays against without, median (interval) of the rounds: below 1 is better.")
    columns = ["work", "commands", "plain", "of it in the kernel", "processor time", "user", "system", "page faults"]
    lines = [head, "", *markdown(columns, [cells for row in rows for cells in rows_of(row)]), ""]
    others = [row for row in rows if len(row["sides"]) > 1]
    if others:
        sides = others[0]["sides"]
        body = [[row["title"], *(ratio(row["rounds"], side, "cpu") for side in sides)] for row in others]
        lines += ["Processor time with profiles of so many runs (*warm*: as many as `batch` wants), or with other layouts of the same profile:", "",
                  *markdown(["work", *sides], body), ""]
        lines += [f"Against *warm*: {'; '.join(against_warm(row) for row in others)}.", ""]
    return "\n".join(lines)


def main(argv):
    text = lambda rows, options: page(rows, options.quick)
    return Table("bench/overlays", __doc__, LOADS, measure, text, "batch.md", (BEGIN, END), 6, 1, "overlays.json").main(argv, add_options)


def add_options(parser):
    parser.add_argument("--curve", action="store_true", help="also with profiles of 1, 2, 5 and 10 runs, and of all")
    parser.add_argument("--layouts", metavar="NAMES", type=lambda names: names.split(","), default=[], help="also with these layouts of the same profile, with commas between them")
    parser.add_argument("--with", dest="with_", metavar="OPTIONS", type=shlex.split, default=[], help="more options for the batches that make the overlays")
    parser.add_argument("--overlays", metavar="FOLDER", help="keep overlays there, and use those that an earlier run has kept, whatever --with says")
