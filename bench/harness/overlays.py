"""What the overlays of a warm cache save in each command of a work: the commands that a build or a loop consists of, each as it is (*plain*) beside itself
with the overlays that `restitch batch --export` has written (*warm*). With --curve there are more sides: overlays whose profiles
were counted in 1, 2, 5 and 10 runs, and in all (OCOLOS, Figure 10); with --layouts, other layouts of the same profile.

The two are *twins* (`bench/bench variants`): they run at the same time on one processor, which gives each some milliseconds in turn, so that a machine whose speed drifts by a tenth, on
which whole builds tell nothing (`bench/bench batch`), tells less than a percent. Each writes to a copy of the work's folder that stands at its path (so this takes mounts of its own: root, or user namespaces). What is compared is
exact processor time (the kernel's account of the ended command and its descendants, user and system). What is *not* in
it is restitch's own work beside a build: sampling, counting, laying out. `bench/bench batch` has that.

All have to say the same and write the same files. A compiler takes about a minute a round on two processors, with --curve six.
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
from .machine import Failed, Machine, Missing
from .stand_in import is_possible, stand_in
from .stats import interval
from .tables import Table
from .twins import all_of, in_child, twins

LIMIT = 600
# Pairs that run at the same time, each on a processor of its own and with copies of its own.
AT_ONCE = 4
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
    """A hash of each file that is not what it was `before`, by its path within the folder: what a command leaves as another one has made it is none of its own."""
    result = {}
    for path, state in files(folder).items():
        if before.get(path) != state:
            with open(path, "rb") as f:
                result[os.path.relpath(path, folder)] = hashlib.sha256(f.read()).hexdigest()
    return result


def apart(folder, copy, command, environment):
    """As `one_command`, with `copy` at the path of `folder`. For a process of its own."""
    stand_in(folder, copy)
    used, said = one_command(command, environment)
    return used, hashlib.sha256(said).hexdigest()


def beside_each_other(folder, copies, command, environments, cpu):
    """A command in two environments at the same time, each with one of the copies for its folder: what `one_command` measures of each."""
    before = [files(copy) for copy in copies]
    works = [lambda copy=copy, environment=environment: apart(folder, copy, command, environment) for copy, environment in zip(copies, environments)]
    runs, said = zip(*twins(works, cpu))
    if said[0] != said[1] or written(copies[0], before[0]) != written(copies[1], before[1]):
        raise Failed(f"{' '.join(command)} did not say or write the same in overlays")
    return runs


def one_round(folder, copies, parts, environments, turn):
    """Each command on all sides, beside plain: [{"kind", "plain": {...}, "warm": {...}}], one for each command and side. `copies`: two of the folder for each processor."""
    jobs = [(kind, command, side) for kind, command in parts for side in environments if side != PLAIN]
    cpus = list(copies)

    def share(index):
        runs = []
        for number in range(index, len(jobs), len(cpus)):
            kind, command, side = jobs[number]
            # Which one is started first changes.
            step = 1 if (number // len(cpus) + turn) % 2 == 0 else -1
            both = [environments[name] for name in (PLAIN, side)][::step]
            plain, warm = beside_each_other(folder, copies[cpus[index]], command, both, cpus[index])[::step]
            runs.append([number, {"kind": kind, PLAIN: plain, side: warm}])
        return runs

    found = all_of([in_child(lambda index=index: share(index)) for index in range(len(cpus))])
    return [run for _, run in sorted((run for runs in found for run in runs), key=lambda run: run[0])]


def copied(machine, folder):
    """{processor: two copies of the folder}, as it is now."""
    cpus = sorted(os.sched_getaffinity(0))[:AT_ONCE]
    result = {cpu: [machine.path(f"copy-{cpu}-{number}") for number in range(2)] for cpu in cpus}
    for copies in result.values():
        for copy in copies:
            shutil.copytree(folder, copy, symlinks=True)
    return result


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
    if not is_possible():
        raise Missing("the sides run at the same time, each in mounts of its own, which are not permitted: run as root, or allow user namespaces")
    with Machine(log) as machine:
        work = Work(name, options, machine, log)
        folders = prepare(name, work, options)
        # The folders that single commands write to are there afterwards.
        work.run("all of it", work.command)
        plain = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
        environments = {PLAIN: plain}
        for side, folder in folders.items():
            environments[side] = dict(plain, LD_PRELOAD=os.path.join(folder, "librestitch-$PLATFORM.so"))
        copies, parts, rounds = copied(machine, work.folder), work.parts(), []
        for number in range(options.rounds):
            start = time.monotonic()
            rounds.append(one_round(work.folder, copies, parts, environments, number))
            said = ", ".join(f"{side} {ratio([rounds[-1]], side, 'cpu')}" for side in folders)
            log(f"  round {number + 1} of {options.rounds}: {said} ({time.monotonic() - start:.0f} s)")
        return {"title": work.title, "restitch": work.restitch.version(), "rounds": rounds, "sides": list(folders)}


def total(runs, side, what, beside):
    """The sum of a side in the runs that have both."""
    return sum(run[side][what] for run in runs if side in run and beside in run)


def ratio(rounds, side, what, base=PLAIN):
    """A side over another one, of each round's whole work: below 1 is better. Both are compared with what ran beside them."""

    def over_plain(runs, side):
        below = total(runs, PLAIN, what, side)
        return 1 if side == PLAIN else total(runs, side, what, PLAIN) / below if below > 0 else None

    pairs = [(over_plain(runs, side), over_plain(runs, base)) for runs in rounds]
    values = [own / other for own, other in pairs if own is not None and other]
    if not values:
        return "-"
    low, high, _ = interval(values)
    return f"{median(values):.3f}" + (f" ({low:.3f} to {high:.3f})" if len(values) > 1 else "")


def rows_of(row):
    """All commands, and those of each kind where there are several."""
    kinds = list(dict.fromkeys(run["kind"] for run in row["rounds"][0]))
    for kind in [None, *kinds] if len(kinds) > 1 else kinds:
        rounds = [[run for run in runs if WARM in run and kind in (None, run["kind"])] for runs in row["rounds"]]
        seconds = median(total(runs, PLAIN, "cpu", WARM) for runs in rounds)
        share = median(total(runs, PLAIN, "system", WARM) / max(total(runs, PLAIN, "cpu", WARM), 1e-9) for runs in rounds)
        yield [row["title"], f"{kind or 'all'} ({len(rounds[0])})", f"{seconds:.2f} s", f"{100 * share:.0f} %",
               *(ratio(rounds, WARM, what) for what in ("cpu", "user", "system", "faults"))]


def against_warm(row):
    """Processor time of the other sides over that of the overlays as they are by default."""
    return ", ".join(f"{side} {ratio(row['rounds'], side, 'cpu', WARM)}" for side in row["sides"] if side != WARM)


def page(rows, quick):
    kind = " (a quick run: shows that it runs)" if quick else ""
    machine = report.machine()
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
    return Table("bench/bench overlays", __doc__, LOADS, measure, text, "batch-by-command", None, 6, 1, "overlays.json").main(argv, add_options)


def add_options(parser):
    parser.add_argument("--curve", action="store_true", help="also with profiles of 1, 2, 5 and 10 runs, and of all")
    parser.add_argument("--layouts", metavar="NAMES", type=lambda names: names.split(","), default=[], help="also with these layouts of the same profile, with commas between them")
    parser.add_argument("--with", dest="with_", metavar="OPTIONS", type=shlex.split, default=[], help="more options for the batches that make the overlays")
    parser.add_argument("--overlays", metavar="FOLDER", help="keep overlays there, and use those that an earlier run has kept, whatever --with says")
