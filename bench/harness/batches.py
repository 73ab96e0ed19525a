"""What `restitch batch` saves: the same work without it, in a first batch (empty cache), in a first one that is --eager, in a later
one (warm cache), and with a profile of all runs from the beginning (bound): more than that no profile of this work can give.

They take turns, every other round in the opposite order; wall time and processor time (user and system, of everything that was
started, restitch included) are compared within a round. Every file that the work writes has to be the same to the byte in all of them.

In the first of these rounds the same work also runs from caches whose profiles were counted in 1, 2, 5 and 10 runs: the curve over
the number of profiled runs (OCOLOS, Figure 10), which ends in the bound.

On two cores that are otherwise idle a compiler takes about half an hour, the scripts ten minutes: `bench/bench batch gcc clang` an hour. The time that
is left is said after each run. --rounds 3 --no-curve gives a first impression in half of that, --quick shows that it runs.
"""

import hashlib
import json
import os
import resource
import shlex
import shutil
import subprocess
import sys
import time
from statistics import median

from . import report
from .machine import Failed, Machine, Missing, find
from .restitch import Restitch
from .stats import interval
from .tables import Table

VARIANTS = ("plain", "first", "eager", "warm", "bound")
CURVE = (1, 2, 5, 10)
ALL_RUNS = 1000000
# Seconds that one run may take.
LIMIT = 3600
# Most runs that fill a cache.
PREPARATIONS = 4
GOOGLETEST = "/usr/src/googletest"
SCRIPT = """
use strict; my %count; my @words = map { chr(97 + $_ % 26) x (1 + $_ % 5) . ($_ % 97) } 1 .. 20000;
for my $w (@words) { $count{$w}++; my $r = reverse $w; $count{$r} .= "x" if $w =~ /^([a-f]+)(\\d*)$/; }
print join(",", map { "$_=$count{$_}" } sort keys %count), "\\n";
"""


# The libraries, and about twenty of the tests, which take a compiler one or two seconds each. Those that take longer add time, not information.
TARGETS = """gtest gtest_main gmock gmock_main gtest-typed-test_test gtest_environment_test gtest_no_test_unittest
gtest_premature_exit_test gtest_prod_test gtest_repeat_test gtest_skip_test gtest_sole_header_test gtest_stress_test
gtest-unittest-api_test googletest-filepath-test googletest-listener-test googletest-message-test
googletest-options-test googletest-test-part-test gmock-port_test""".split()
FEW_TARGETS = ["gtest_main", "gtest_prod_test", "gtest_environment_test"]


def googletest(compiler):
    """A build of googletest and some of its tests by ninja: a command, what makes its folder anew, the folder that it writes to, and a function that
    gives the commands that it runs, each with a word for its kind."""

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

        def parts():
            listed = subprocess.run([find("ninja"), "-C", folder, "-t", "commands", *targets], check=True, capture_output=True, text=True)
            return [("compiling" if " -c " in line else "archives and programs", ["sh", "-c", f"cd {shlex.quote(folder)} && {line}"]) for line in listed.stdout.splitlines()]

        return [find("ninja"), "-C", folder, f"-j{len(os.sched_getaffinity(0))}", *targets], fresh, folder, parts

    return prepare


def perl_script(machine, quick):
    perl, folder = find("perl"), machine.path("out")
    with open(machine.path("script.pl"), "w") as f:
        f.write(SCRIPT)

    def fresh():
        shutil.rmtree(folder, ignore_errors=True)
        os.mkdir(folder)

    runs = 30 if quick else 150
    loop = f'for i in $(seq 1 {runs}); do "$0" "$1" > "$2/$i" || exit 1; done'
    parts = lambda: [("perl", [perl, machine.path("script.pl")])] * 20
    return ["sh", "-c", loop, perl, machine.path("script.pl"), folder], fresh, folder, parts


PYTHON = """
import collections, json, re
words = [chr(97 + i % 26) * (1 + i % 5) + str(i % 97) for i in range(20000)]
count = collections.Counter(words)
found = {w: re.sub(r"([a-f]+)([0-9]*)$", r"\\2\\1", w) for w in count}
print(json.dumps({"count": sorted(count.items()), "found": sorted(found.items())}))
"""


def repository(folder):
    """A repository of forty commits, the same each time."""
    when = {"GIT_AUTHOR_DATE": "2020-01-01T00:00:00Z", "GIT_COMMITTER_DATE": "2020-01-01T00:00:00Z"}
    who = {f"GIT_{role}_{what}": "bench@example.org" for role in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    environment = dict(os.environ, **when, **who, GIT_CONFIG_GLOBAL="/dev/null", GIT_CONFIG_NOSYSTEM="1")
    git = lambda *arguments: subprocess.run([find("git"), "-C", folder, *arguments], check=True, capture_output=True, env=environment)
    os.makedirs(folder)
    git("init", "-q")
    for commit in range(40):
        for number in range(20):
            with open(os.path.join(folder, f"file{number}"), "w") as f:
                f.writelines(f"line {line} of {number}: {line * (commit + 1) % (number + 7)}\n" for line in range(400))
        git("add", ".")
        git("commit", "-q", "-m", f"commit {commit}")


def scripts(machine, quick):
    """A loop of a shell that runs a Python script and three commands of git."""
    folder, tree = machine.path("out"), machine.path("tree")
    with open(machine.path("script.py"), "w") as f:
        f.write(PYTHON)
    repository(tree)

    def fresh():
        shutil.rmtree(folder, ignore_errors=True)
        os.mkdir(folder)

    runs = 10 if quick else 60
    loop = f"""for i in $(seq 1 {runs}); do
        "$0" -I "$1" > "$4/python$i" && "$2" -C "$3" log -p --stat > "$4/log$i" &&
        "$2" -C "$3" diff --stat HEAD~20 > "$4/diff$i" && "$2" -C "$3" blame file7 > "$4/blame$i" || exit 1; done"""
    # The interpreter itself: what is found by name may be a script that looks for it.
    python = os.path.realpath(sys.executable)
    git = lambda *arguments: (f"git {arguments[0]}", [find("git"), "-C", tree, *arguments])
    parts = lambda: [("python3", [python, "-I", machine.path("script.py")]), git("log", "-p", "--stat"), git("diff", "--stat", "HEAD~20"),
                     git("blame", "file7")] * 10
    return ["sh", "-c", loop, python, machine.path("script.py"), find("git"), tree, folder], fresh, folder, parts


# Modules of Python's own test suite that say the same each time, and take no longer than a few seconds.
TESTS = """test_list test_dict test_set test_tuple test_json test_re test_generators test_exceptions test_contextlib test_descr test_functools
test_collections test_deque test_heapq test_bisect test_string test_bytes test_fstring test_float test_int test_long
test_math test_struct test_array test_copy test_enum test_dataclasses test_typing test_patma test_grammar test_csv test_textwrap test_difflib
test_random test_fractions test_itertools test_configparser test_argparse test_shlex test_html test_ordered_dict test_gettext""".split()


def test_suite(machine, quick):
    """A test suite: each module of it in a process of its own. What is compared is what they say, but for the times."""
    python, folder, place = find("/usr/bin/python3"), machine.path("out"), machine.path("place")
    if subprocess.run([python, "-c", "import test.test_list"], capture_output=True).returncode != 0:
        raise Missing("Python's test suite is not installed (Debian package libpython3.11-testsuite, or that of another version)")
    os.mkdir(place)

    def fresh():
        shutil.rmtree(folder, ignore_errors=True)
        os.mkdir(folder)

    modules = TESTS[:6] if quick else TESTS
    one = """PYTHONHASHSEED=1 PYTHONDONTWRITEBYTECODE=1 "$0" -m unittest -q test.$t 2>&1 | sed 's/ in [0-9.]*s$//'"""
    loop = f"""cd "$2" && for t in {" ".join(modules)}; do
        {one} > "$1/$t" || exit 1; done"""
    parts = lambda: [("python3", ["sh", "-c", f'cd "$2" && t={module}; {one}', python, folder, place]) for module in modules]
    return ["sh", "-c", loop, python, folder, place], fresh, folder, parts


LOADS = {
    "gcc": ("googletest and tests of it, g++", googletest(["g++"])),
    "clang": ("googletest and tests of it, clang++", googletest(["clang++-19", "clang++"])),
    "perl": ("150 runs of a perl script", perl_script),
    "tests": (f"{len(TESTS)} modules of Python's test suite, a process each", test_suite),
    "scripts": ("60 times a Python script and three commands of git", scripts),
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
        self.command, self.fresh, self.folder, self.parts = prepare(machine, options.quick)
        self.result = machine.path("batch.json")
        # What the work writes; whatever it runs in has to write the same.
        self.files = None

    def batch(self, cache, *more, result=None):
        # Nothing goes on in the background while something else is measured.
        options = ["--quiet", "--finish", "later", "--cache", cache, "--json", result or self.result, *more]
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
        """Batches that end with everything laid out that they have profiled, until there is nothing that one has come too late for."""
        command = self.batch(cache, "--eager", *more)
        command[command.index("later")] = "wait"
        for _ in range(PREPARATIONS):
            done = self.run("preparing", command)["report"]
            if not any("ended before" in left["why"] for left in done["left"]):
                break
        return done

    def prepare_all(self, cache):
        """A cache with a profile of all runs of the whole work. The first batches only find out what there is to count, and have the versions that
        count made; then one is counted from its beginning to its end."""
        everything = ["--eager", "--profile-runs", str(ALL_RUNS)]
        for _ in range(PREPARATIONS):
            self.run("preparing", self.batch(cache, *everything))
            optimize = [self.restitch.path, "cache", "optimize", "--cache", cache]
            done = subprocess.run(optimize, capture_output=True, text=True, timeout=LIMIT)
            if done.returncode != 0:
                raise Failed(f"{' '.join(optimize)} ended with {done.returncode}: {done.stderr[-2000:]}")
            if "its next runs count" not in done.stdout:
                break
        command = self.batch(cache, *everything)
        command[command.index("later")] = "wait"
        return self.run("preparing", command)["report"]

    def rounds(self, count, commands, curve, curve_count):
        """`commands`: {name: function that gives the command of this round}; those of `curve` are in the first `curve_count` rounds only, and
        compared with the same plain runs. Every other round is in the opposite order."""
        rounds, done, start = [], 0, time.monotonic()
        todo = count * len(commands) + min(count, curve_count) * len(curve)
        for number in range(count):
            self.log(f"  round {number + 1} of {count}")
            these = commands | curve if number < curve_count else commands
            runs = {}
            for name in list(these) if number % 2 == 0 else list(these)[::-1]:
                runs[name] = self.run(name, these[name](number))
                done += 1
                left = (time.monotonic() - start) / done * (todo - done)
                self.log(f"      about {left / 60:.0f} min of this work are left")
            rounds.append({name: runs[name] for name in these})
        return rounds


def measure(name, options, log):
    with Machine(log) as machine:
        work = Work(name, options, machine, log)
        work.run("plain, to fill the page cache", work.command)
        warm, bound = machine.path("warm"), machine.path("bound")
        prepared = work.prepare(warm)
        work.prepare_all(bound)

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
        curve = prepare_curve(work) if options.curve_rounds else {}
        rounds = work.rounds(options.rounds, commands, curve, options.curve_rounds)
        return {"title": work.title, "restitch": work.restitch.version(), "rounds": rounds,
                "files": len(work.files), "report": rounds[-1]["warm"]["report"], "prepared": prepared}


def prepare_curve(work):
    """The caches of the curve, as commands for Work.rounds."""
    for runs in CURVE:
        work.prepare(work.machine.path(f"curve{runs}"), "--profile-runs", str(runs))
    return {str(runs): (lambda _, runs=runs: work.batch(work.machine.path(f"curve{runs}"))) for runs in CURVE}


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
        both = [r for r in rounds if str(CURVE[0]) in r]
        if both:
            curves.append([row["title"], *(ratio(both, str(runs), "cpu") for runs in CURVE), ratio(both, "bound", "cpu")])
        modules = [f"{os.path.basename(m['path'])} ({m['profiled_runs']} runs)" for m in row["report"]["optimized"] if m["in_force"]][:8]
        left = [f"{os.path.basename(m['path'])} ({m['seconds']:.1f} s): {m['why']}" for m in row["report"]["left"]][:5]
        shares.append([row["title"], str(row["files"]), ", ".join(modules) or "none", "; ".join(left) or "nothing"])
    lines = markdown(["work", "plain: wall, CPU", "variant", "wall", "CPU", "restitch's own CPU"], body)
    if curves:
        lines += ["", "CPU over the number of profiled runs:", "", *markdown(["work", *map(str, CURVE), "all"], curves)]
    return lines + ["", *markdown(["work", "files, all equal", "optimized, those that use most first", "left alone"], shares)]


def page(rows, quick):
    kind = " (a quick run: shows that it runs)" if quick else ""
    machine = report.machine()
    head = f"{len(rows[0]['rounds'])} rounds{kind}; {machine}, {time.strftime('%Y-%m-%d', time.gmtime())}, {rows[0]['restitch']}. Times as often as plain: above 1 is faster. Median (interval)."
    return "\n".join([head, "", *tables(rows), ""])


def main(argv):
    text = lambda rows, options: page(rows, options.quick)
    table = Table("bench/bench batch", __doc__, LOADS, measure, text, "batch-savings", None, 6, 1, "batch.json")
    return table.main(argv, add_curve, settle_curve)


def add_curve(parser):
    parser.add_argument("--curve-rounds", type=int, help="default 3; 1 with --quick")
    parser.add_argument("--no-curve", action="store_true", help="leave the curve over the number of profiled runs out")


def settle_curve(options):
    options.curve_rounds = 0 if options.no_curve else options.curve_rounds or (1 if options.quick else 3)
