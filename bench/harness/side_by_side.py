"""restitch and llvm-bolt side by side: the same programs, the same exact profile, the same inputs.

Fetches Debian sources, builds programs with their relocations kept (which llvm-bolt needs for its best options; restitch does
not), makes one exact profile of the training input (`restitch instrument`, `restitch record --from-counts`), gives it to both (to
llvm-bolt as fdata, by `restitch profile convert`), and measures the three files on an input that neither has seen:
instruction-cache misses under cachegrind, CPU time of two files at a time. Time and peak memory are those from the
profile to the finished file. The table goes to bench/results. What was built stays in out/bolt.
"""

import os
import re
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from statistics import median

from . import report
from .bolt_inputs import LOADS
from .machine import Failed, Machine, copy_as_written, find
from .simulated import fixed
from .stats import interval
from .tables import ROOT, Table
from .twins import twins

SIDES = ("original", "restitch", "llvm-bolt")
# Names of one length: a longer path moves the stack.
AGAINST = "against"
FILES = {"original": "x-o", "restitch": "x-r", "llvm-bolt": "x-b"}
BOLT = ["-reorder-blocks=ext-tsp", "-reorder-functions=cdsort", "-split-functions", "-split-strategy=cdsplit", "-split-eh", "-split-all-cold"]
CACHES = ["--cache-sim=yes", "--I1=32768,8,64", "--D1=32768,8,64", "--LL=1048576,8,64"]
SOURCES = "deb-src [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] http://deb.debian.org/debian {suite} main\n"


def run(command, **options):
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", **options)
    if done.returncode != 0:
        raise Failed(f"{' '.join(command)} ended with {done.returncode}:\n{(done.stdout + done.stderr)[-2000:]}")
    return done.stdout


def fetch(package, folder):
    """The Debian source of a package, with package lists of our own: the system's need not have sources."""
    with open("/etc/os-release") as f:
        suite = re.search(r"VERSION_CODENAME=(\w+)", f.read())[1]
    lists = os.path.join(folder, "lists")
    os.makedirs(os.path.join(lists, "partial"), exist_ok=True)
    with open(os.path.join(folder, "sources.list"), "w") as f:
        f.write(SOURCES.format(suite=suite))
    options = [f"Dir::Etc::sourcelist={folder}/sources.list", "Dir::Etc::sourceparts=-", f"Dir::State::lists={lists}", "APT::Sandbox::User=root"]
    apt = ["apt-get", "-qq", *(x for o in options for x in ("-o", o))]
    run([*apt, "update"])
    run([*apt, "source", package], cwd=folder)


def build(load, folder):
    """The folder in which the program stands; built if it is not there yet."""
    os.makedirs(folder, exist_ok=True)
    tree = folder
    if load.package:
        trees = lambda: sorted(e.path for e in os.scandir(folder) if e.is_dir() and e.name.startswith(load.package))
        if not trees():
            fetch(load.package, folder)
        tree = trees()[0]
    place = os.path.join(tree, "b")
    os.makedirs(place, exist_ok=True)
    if not os.path.exists(os.path.join(place, load.program)):
        for name, text in getattr(load, "texts", {}).items():
            with open(os.path.join(place, name), "w") as f:
                f.write(text)
        try:
            for step in load.build:
                run(["sh", "-c", step], cwd=place)
        except Failed:
            # A first stage of the build must not pass for the program.
            if os.path.exists(os.path.join(place, load.program)):
                os.remove(os.path.join(place, load.program))
            raise
    return place


def finished(command, **options):
    """Runs to the end: seconds, and the most memory that it had resident, in bytes."""
    start = time.monotonic()
    child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", **options)
    with child.stdout as out:
        text = out.read()
    _, status, used = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode != 0:
        raise Failed(f"{' '.join(command)} ended with {child.returncode}:\n{text[-2000:]}")
    return time.monotonic() - start, used.ru_maxrss * 1024


def bolted(command, place):
    """As `finished`, of llvm-bolt, without the functions that it cannot take; and which these are."""
    left = []
    while True:
        try:
            return *finished(command + ([f"-skip-funcs={','.join(left)}"] if left else []), cwd=place), left
        except Failed as problem:
            found = re.findall(r"in function (\S+?)(?:\(\*\d+\))?\. Consider adding this function to --skip-funcs", str(problem))
            if not found or found[-1] in left:
                raise
            left.append(found[-1])


def cachegrind(load, file, which):
    """{what: number} of instructions and instruction-cache misses."""
    tool = [*fixed(), find("valgrind"), "--tool=cachegrind", "--vgdb=no", *CACHES, "--cachegrind-out-file=/dev/null"]
    errors = load.run(file, which, tool).errors
    found = {}
    # Of all processes, if it is a server that forks them.
    for name, number in re.findall(r"(I +refs|I1 +misses|LLi misses): +([\d,]+)", errors):
        found[name.split()[0]] = found.get(name.split()[0], 0) + int(number.replace(",", ""))
    if len(found) < 3:
        raise Failed(f"cachegrind did not end as it should:\n{errors[-2000:]}")
    return found


def profiled(load, original, place, options):
    """The one exact profile of the training input, and the same as fdata."""
    at = lambda file: os.path.join(place, file)
    counting, counts = os.path.join(load.folder, "x-c"), load.machine.path("counts")
    run([options.restitch, "instrument", original, "-o", counting, "--counts", counts])
    # Servers count as users of their own.
    os.chmod(counts, 0o666)
    load.run(counting, "training", fixed())
    os.remove(counting)
    run([options.restitch, "record", "--from-counts", counts, "-o", at("x.profile")])
    run([options.restitch, "profile", "convert", at("x.profile"), "--program", original, "-o", at("x.fdata")])
    return at("x.profile"), at("x.fdata")


def compare(load, files):
    """All files print what the original prints."""
    for which in ("training", "test"):
        texts = {side: load.run(file, which, fixed()).text for side, file in files.items()}
        for side in SIDES[1:]:
            if texts[side] != texts["original"]:
                at = len(os.path.commonprefix([texts[side], texts["original"]]))
                near = [t[max(at - 40, 0) : at + 80] for t in (texts[side], texts["original"])]
                raise Failed(f"{side}: the program prints something else than its original does: {near[0]!r} for {near[1]!r}")


def simulate(load, files, jobs):
    """Misses by input and side."""
    with ThreadPoolExecutor(jobs) as pool:
        waiting = {which: {side: pool.submit(cachegrind, load, file, which) for side, file in files.items()} for which in ("training", "test")}
        return {which: {side: future.result() for side, future in sides.items()} for which, sides in waiting.items()}


def timed(load, files, rounds):
    """Processor time on an input that training has not seen: of each tool's file against the original's, and against the other tool's. Two programs run at the same time and share a processor
    (`twins`); two servers, whose clients need another one, one after the other. All files are copied anew for each round: where a file's pages lie is luck that lasts as long as they do."""
    pairs = {side: (side, "original") for side in SIDES[1:]} | {AGAINST: SIDES[1:]}
    cpu, found = min(load.machine.server_core), []
    for number in range(rounds):
        for path in files.values():
            os.rename(path, path + "~")
            copy_as_written(path + "~", path)
            os.remove(path + "~")
        step = 1 if number % 2 == 0 else -1
        ratios = {}
        for name, sides in pairs.items():
            works = [lambda side=side: load.run(files[side], load.timed).seconds for side in sides][::step]
            one, other = ([work() for work in works] if load.has_clients else twins(works, cpu))[::step]
            ratios[name] = one / other
        found.append(ratios)
    return found


def measure(name, options, log):
    kind = LOADS[name]
    bolt = find("llvm-bolt-19", "llvm-bolt")
    start = time.monotonic()
    done = lambda what: log(f"  {what} ({time.monotonic() - start:.0f} s)")
    place = build(kind, os.path.join(ROOT, "out", "bolt", getattr(kind, "built", name)))
    done("built")
    with Machine(log) as machine:
        load = kind(machine, place)
        at = lambda file: os.path.join(place, file)
        original = at(kind.program)
        profile, fdata = profiled(load, original, place, options)
        done("profiled")
        ours = [options.restitch, "optimize", original, "--profile", profile, "-o", at("x.restitch")]
        *theirs, left_out = bolted([bolt, original, "-o", at("x.llvm-bolt"), f"-data={fdata}", *BOLT], place)
        made = {"restitch": finished(ours, cwd=place), "llvm-bolt": theirs}
        files = {side: os.path.join(load.folder, name) for side, name in FILES.items()}
        for side in SIDES:
            copy_as_written(original if side == "original" else at(f"x.{side}"), files[side])
        compare(load, files)
        if left_out:
            log(f"  llvm-bolt cannot take {', '.join(left_out)}")
        done("both files print what the original prints")
        if options.quick:
            return None
        caches = simulate(load, files, options.jobs)
        done("simulated")
        rounds = timed(load, files, options.rounds)
        done(f"{options.rounds} rounds")
        return {"title": kind.title, "left_out": left_out, "made": made, "caches": caches, "rounds": rounds, "sizes": {s: os.path.getsize(files[s]) for s in SIDES}}


def table(rows):
    head = ["program", "tool", "I1 misses, training input", "I1 misses, test input", "instructions, test input", "CPU time, unseen input [interval]", "against the other", "time to the file", "peak memory", "file"]
    lines = ["| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
    for row in rows:
        for side in SIDES[1:]:
            ratio = lambda which, what: f"{row['caches'][which][side][what] / row['caches'][which]['original'][what]:.3f}"
            seconds, memory = row["made"][side]
            cells = [row["title"], side, ratio("training", "I1"), ratio("test", "I1"), ratio("test", "I")]
            cells.append(with_interval([r[side] for r in row["rounds"]]))
            cells.append(with_interval([r[AGAINST] for r in row["rounds"]]) if side == SIDES[1] else "")
            cells += [f"{seconds:.2f} s", f"{memory / 2**20:.0f} MiB", f"{row['sizes'][side] / 2**20:.1f} MiB"]
            lines.append("| " + " | ".join(cells) + " |")
    return lines


def with_interval(values):
    low, high, _ = interval(values)
    return f"{median(values):.3f} [{low:.3f}, {high:.3f}]"


def page(rows, options):
    version = run([find("llvm-bolt-19", "llvm-bolt"), "--version"])
    version = re.search(r"LLVM version (\S+)", version)[1]
    where = report.here()
    text = [f"Original = 1, less is better; {options.rounds} rounds of pairs; llvm-bolt {version} with `{' '.join(BOLT)}`; {where}.", ""]
    left = [f"llvm-bolt cannot take `{'`, `'.join(r['left_out'])}` of {r['title']}: left as they were." for r in rows if r["left_out"]]
    return "\n".join([*text, *table(rows), *(["", *left] if left else []), ""])


def add(parser):
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)), help="simulations at the same time; default: one a core")


def main(argv):
    return Table("bench/bench bolt", __doc__, LOADS, measure, page, "restitch-and-llvm-bolt", None, 21, 1, "bolt.json").main(argv, add)
