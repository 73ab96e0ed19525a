"""What `restitch batch` saves: the same work without it, in a first batch (empty cache), in a first one that is --eager, in a later
one (warm cache), and with a profile of all runs from the beginning (bound): more than that no profile of this work can give.

They take turns, every other round in the opposite order; wall time and processor time (user and system, of everything that was
started, restitch included) are compared within a round. Every file that the work writes has to be the same to the byte in all of them.

Then the curve over the number of profiled runs (OCOLOS, Figure 10): the same work from caches whose profiles were counted in 1, 2, 5, 10
and 20 runs.

A round of one compiler takes about five minutes on two cores that are otherwise idle, its curve about twenty: two hours and a half for
everything. --rounds 3 --no-curve gives a first impression in forty minutes, --quick shows in ten that it runs.
"""

import hashlib
import json
import os
import resource
import shutil
import subprocess
import time
from statistics import median

from . import report
from .machine import Failed, Machine, Missing, find
from .restitch import Restitch
from .stats import interval
from .tables import Table

BEGIN, END = "<!-- batch:begin -->", "<!-- batch:end -->"
VARIANTS = ("plain", "first", "eager", "warm", "bound")
CURVE = (1, 2, 5, 10, 20)
ALL_RUNS = 1000000
# Seconds that one run may take.
LIMIT = 3600
GOOGLETEST = "/usr/src/googletest"
SCRIPT = """
use strict; my %count; my @words = map { chr(97 + $_ % 26) x (1 + $_ % 5) . ($_ % 97) } 1 .. 20000;
for my $w (@words) { $count{$w}++; my $r = reverse $w; $count{$r} .= "x" if $w =~ /^([a-f]+)(\\d*)$/; }
print join(",", map { "$_=$count{$_}" } sort keys %count), "\\n";
"""


# The libraries, and about thirty of the tests, which take a compiler about a second to four each.
TARGETS = """gtest gtest_main gmock gmock_main gtest_unittest gtest-typed-test_test gtest_environment_test gtest_no_test_unittest
gtest_pred_impl_unittest gtest_premature_exit_test gtest_prod_test gtest_repeat_test gtest_skip_test gtest_sole_header_test gtest_stress_test
gtest-unittest-api_test googletest-death-test-test googletest-filepath-test googletest-listener-test googletest-message-test
googletest-options-test googletest-param-test-test googletest-port-test googletest-printers-test googletest-test-part-test
gmock-port_test gmock_link_test gmock_stress_test""".split()
FEW_TARGETS = ["gtest_main", "gtest_prod_test", "gtest_environment_test"]


def googletest(compiler):
    """A build of googletest and some of its tests by ninja, as a command and the folder that it writes to."""

    def prepare(machine, quick):
        if not os.path.isdir(GOOGLETEST):
            raise Missing(f"{GOOGLETEST} is not there (Debian package googletest)")
        folder = machine.path("build")
        environment = dict(os.environ, CXX=find(*compiler), CC=find("gcc"))
        options = ["-DCMAKE_BUILD_TYPE=Release", "-Dgtest_build_tests=ON", "-Dgmock_build_tests=ON"]

        def fresh():
            shutil.rmtree(folder, ignore_errors=True)
            command = [find("cmake"), "-S", GOOGLETEST, "-B", folder, "-G", "Ninja", *options]
            subprocess.run(command, check=True, capture_output=True, env=environment)

        targets = FEW_TARGETS if quick else TARGETS
        return [find("ninja"), "-C", folder, f"-j{len(os.sched_getaffinity(0))}", *targets], fresh, folder

    return prepare


def scripts(machine, quick):
    perl, folder = find("perl"), machine.path("out")
    with open(machine.path("script.pl"), "w") as f:
        f.write(SCRIPT)

    def fresh():
        shutil.rmtree(folder, ignore_errors=True)
        os.mkdir(folder)

    runs = 30 if quick else 150
    loop = f'for i in $(seq 1 {runs}); do "$0" "$1" > "$2/$i" || exit 1; done'
    return ["sh", "-c", loop, perl, machine.path("script.pl"), folder], fresh, folder


LOADS = {
    "gcc": ("googletest and tests of it, g++", googletest(["g++"])),
    "clang": ("googletest and tests of it, clang++", googletest(["clang++-19", "clang++"])),
    "perl": ("150 runs of a perl script", scripts),
}


def contents(folder):
    """A hash of all files, but for what ninja keeps of times."""
    result = {}
    for place, _, names in os.walk(folder):
        for name in names:
            if not name.startswith(".ninja"):
                path = os.path.join(place, name)
                with open(path, "rb") as f:
                    result[os.path.relpath(path, folder)] = hashlib.sha256(f.read()).hexdigest()
    return result


def one_run(command, fresh, folder, machine):
    """Wall and processor seconds of a command (restitch included), and what it has written. A hanging one is ended."""
    fresh()
    # What is there already is none of the command's: cmake's logs name temporary files.
    prepared = contents(folder)
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", stdin=subprocess.DEVNULL, timeout=LIMIT)
    except subprocess.TimeoutExpired:
        raise Failed(f"{' '.join(command)} took more than {LIMIT} s") from None
    wall = time.monotonic() - start
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode != 0:
        raise Failed(f"{' '.join(command)} ended with {done.returncode}:\n{(done.stdout + done.stderr)[-2000:]}")
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    written = {path: hash for path, hash in contents(folder).items() if prepared.get(path) != hash}
    return {"wall": wall, "cpu": cpu, "files": written}


class Work:
    """One load, and the ways to run it."""

    def __init__(self, name, options, machine, log):
        self.title, prepare = LOADS[name]
        self.machine, self.log = machine, log
        self.restitch = Restitch(options.restitch, False, log)
        self.command, self.fresh, self.folder = prepare(machine, options.quick)
        self.result = machine.path("batch.json")
        # What the work writes; whatever it runs in has to write the same.
        self.files = None

    def batch(self, cache, *more):
        # Nothing goes on in the background while something else is measured.
        options = ["--quiet", "--finish", "later", "--cache", cache, "--json", self.result, *more]
        return [self.restitch.path, "batch", *options, "--", *self.command]

    def run(self, name, command):
        run = one_run(command, self.fresh, self.folder, self.machine)
        files = run.pop("files")
        if self.files is None:
            self.files = files
        different = [p for p in self.files | files if self.files.get(p) != files.get(p)]
        if different:
            raise Failed(f"{name}: {len(different)} files differ, for example {different[:3]}")
        if command is not self.command:
            with open(self.result) as f:
                run["report"] = json.load(f)
            run["own"] = run["report"]["own_seconds"]
        self.log(f"    {name}: {run['wall']:.1f} s, {run['cpu']:.1f} s of processor time")
        return run

    def prepare(self, cache, *more):
        """A batch that ends with everything laid out that it has profiled."""
        command = self.batch(cache, "--eager", *more)
        command[command.index("later")] = "wait"
        return self.run("preparing", command)["report"]

    def rounds(self, count, commands):
        """`commands`: {name: function that gives the command of this round}. Every other round is in the opposite order."""
        rounds = []
        for number in range(count):
            self.log(f"  round {number + 1} of {count}")
            names = list(commands) if number % 2 == 0 else list(commands)[::-1]
            runs = {name: self.run(name, commands[name](number)) for name in names}
            rounds.append({name: runs[name] for name in commands})
        return rounds


def measure(name, options, log):
    with Machine(log) as machine:
        work = Work(name, options, machine, log)
        work.run("plain, to fill the page cache", work.command)
        warm, bound = machine.path("warm"), machine.path("bound")
        # The second one finds what the first one has come too late for.
        for _ in range(2):
            prepared = work.prepare(warm)
        work.prepare(bound, "--profile-runs", str(ALL_RUNS))

        def empty(number, *more):
            cache = machine.path("empty")
            shutil.rmtree(cache, ignore_errors=True)
            return work.batch(cache, *more)

        commands = {
            "plain": lambda _: work.command,
            "first": empty,
            "eager": lambda number: empty(number, "--eager"),
            "warm": lambda _: work.batch(warm),
            "bound": lambda _: work.batch(bound),
        }
        rounds = work.rounds(options.rounds, commands)
        curve = measure_curve(work, options, log) if options.curve_rounds else None
        return {"title": work.title, "restitch": work.restitch.version(), "rounds": rounds, "curve": curve,
                "files": len(work.files), "report": rounds[-1]["warm"]["report"], "prepared": prepared}


def measure_curve(work, options, log):
    log("  the curve over the number of profiled runs")
    for runs in CURVE:
        work.prepare(work.machine.path(f"curve{runs}"), "--profile-runs", str(runs))
    cached = {str(runs): (lambda _, runs=runs: work.batch(work.machine.path(f"curve{runs}"))) for runs in CURVE}
    return work.rounds(options.curve_rounds, {"plain": lambda _: work.command} | cached)


def ratio(rounds, variant, what):
    """Plain over variant: above 1 is faster."""
    values = [r["plain"][what] / r[variant][what] for r in rounds]
    low, high, _ = interval(values)
    return f"{median(values):.3f} ({low:.3f} to {high:.3f})"


def own_share(rounds, variant):
    """restitch's own processor time in hundredths of plain's."""
    return f"{100 * median(r[variant]['own'] / r['plain']['cpu'] for r in rounds):.1f} %"


def markdown(head, body):
    return ["| " + " | ".join(head) + " |", "|---" * len(head) + "|", *("| " + " | ".join(cells) + " |" for cells in body)]


def tables(rows):
    body, curves, shares = [], [], []
    for row in rows:
        rounds = row["rounds"]
        plain = f"{median(r['plain']['wall'] for r in rounds):.1f} s, {median(r['plain']['cpu'] for r in rounds):.1f} s"
        for variant in VARIANTS[1:]:
            body.append([row["title"], plain, variant, ratio(rounds, variant, "wall"), ratio(rounds, variant, "cpu"), own_share(rounds, variant)])
        if row["curve"]:
            curves.append([row["title"], *(ratio(row["curve"], str(runs), "cpu") for runs in CURVE)])
        modules = [f"{os.path.basename(m['path'])} ({m['profiled_runs']} runs)" for m in row["report"]["optimized"] if m["in_force"]][:8]
        left = [f"{os.path.basename(m['path'])} ({m['seconds']:.1f} s): {m['why']}" for m in row["report"]["left"]][:5]
        shares.append([row["title"], str(row["files"]), ", ".join(modules) or "none", "; ".join(left) or "nothing"])
    lines = markdown(["work", "plain: wall, CPU", "variant", "wall", "CPU", "restitch's own CPU"], body)
    if curves:
        lines += ["", "CPU over the number of profiled runs:", "", *markdown(["work", *map(str, CURVE)], curves)]
    return lines + ["", *markdown(["work", "files, all equal", "optimized, those that use most first", "left alone"], shares)]


def page(rows, quick):
    kind = " (a quick run: shows that it runs)" if quick else ""
    machine = f"{report.processor().get('model name', '')}, {len(os.sched_getaffinity(0))} cores, Linux {os.uname().release}"
    head = f"{len(rows[0]['rounds'])} rounds{kind}; {machine}, {time.strftime('%Y-%m-%d', time.gmtime())}, {rows[0]['restitch']}. Times as often as plain: above 1 is faster. Median (interval)."
    return "\n".join([head, "", *tables(rows), ""])


def main(argv):
    text = lambda rows, options: page(rows, options.quick)
    table = Table("bench/batch", __doc__, LOADS, measure, text, "batch.md", (BEGIN, END), 6, 1, "batch.json")
    return table.main(argv, add_curve, settle_curve)


def add_curve(parser):
    parser.add_argument("--curve-rounds", type=int, help="default 3; 1 with --quick")
    parser.add_argument("--no-curve", action="store_true", help="leave the curve over the number of profiled runs out")


def settle_curve(options):
    options.curve_rounds = 0 if options.no_curve else options.curve_rounds or (1 if options.quick else 3)
