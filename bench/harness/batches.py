"""What `restitch batch` saves: the same work without it, in a first batch (empty cache) and in a later one (warm cache).

The three take turns, every other round in the opposite order; wall time and processor time (user and system, of everything that was
started, restitch included) are compared within a round. Every file that the work writes has to be the same to the byte in all three.
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
VARIANTS = ("plain", "first", "warm")
GOOGLETEST = "/usr/src/googletest"
SCRIPT = """
use strict; my %count; my @words = map { chr(97 + $_ % 26) x (1 + $_ % 5) . ($_ % 97) } 1 .. 20000;
for my $w (@words) { $count{$w}++; my $r = reverse $w; $count{$r} .= "x" if $w =~ /^([a-f]+)(\\d*)$/; }
print join(",", map { "$_=$count{$_}" } sort keys %count), "\\n";
"""


def googletest(compiler):
    """A build of googletest with its tests by ninja, as a command and the folder that it writes to."""

    def prepare(machine):
        if not os.path.isdir(GOOGLETEST):
            raise Missing(f"{GOOGLETEST} is not there (Debian package googletest)")
        folder = machine.path("build")
        environment = dict(os.environ, CXX=find(compiler), CC=find("gcc"))
        options = ["-DCMAKE_BUILD_TYPE=Release", "-Dgtest_build_tests=ON", "-Dgmock_build_tests=ON"]

        def fresh():
            shutil.rmtree(folder, ignore_errors=True)
            command = [find("cmake"), "-S", GOOGLETEST, "-B", folder, "-G", "Ninja", *options]
            subprocess.run(command, check=True, capture_output=True, env=environment)

        return [find("ninja"), "-C", folder, "-j2"], fresh, folder

    return prepare


def scripts(machine):
    perl, folder = find("perl"), machine.path("out")
    with open(machine.path("script.pl"), "w") as f:
        f.write(SCRIPT)

    def fresh():
        shutil.rmtree(folder, ignore_errors=True)
        os.mkdir(folder)

    loop = 'for i in $(seq 1 150); do "$0" "$1" > "$2/$i" || exit 1; done'
    return ["sh", "-c", loop, perl, machine.path("script.pl"), folder], fresh, folder


LOADS = {
    "gcc": ("googletest and its tests, g++, ninja -j2", googletest("g++")),
    "clang": ("googletest and its tests, clang++, ninja -j2", googletest("clang++")),
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
    fresh()
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    done = subprocess.run(command, capture_output=True, text=True, errors="replace")
    wall = time.monotonic() - start
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode != 0:
        raise Failed(f"{' '.join(command)} ended with {done.returncode}:\n{(done.stdout + done.stderr)[-2000:]}")
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {"wall": wall, "cpu": cpu, "files": contents(folder)}


def measure(name, options, log):
    title, prepare = LOADS[name]
    with Machine(log) as machine:
        restitch = Restitch(options.restitch, False, log)
        work, fresh, folder = prepare(machine)
        warm, result = machine.path("warm"), machine.path("batch.json")
        batch = lambda cache: [restitch.path, "batch", "--quiet", "--cache", cache, "--json", result, "--", *work]
        # The warm cache: what earlier batches have left. Two, since the first one may end before everything is laid out.
        one_run(work, fresh, folder, machine)
        for _ in range(2):
            one_run(batch(warm), fresh, folder, machine)
        rounds, report_ = [], None
        for number in range(options.rounds):
            first = machine.path(f"first{number}")
            commands = {"plain": work, "first": batch(first), "warm": batch(warm)}
            order = VARIANTS if number % 2 == 0 else VARIANTS[::-1]
            runs = {}
            for variant in order:
                runs[variant] = one_run(commands[variant], fresh, folder, machine)
                if variant == "warm":
                    with open(result) as f:
                        report_ = json.load(f)
            shutil.rmtree(first, ignore_errors=True)
            plain = runs["plain"]["files"]
            for variant in VARIANTS[1:]:
                different = [p for p in plain if runs[variant]["files"].get(p) != plain[p]]
                if different or len(plain) != len(runs[variant]["files"]):
                    raise Failed(f"{variant}: {len(different)} files differ, for example {different[:3]}")
            log(f"  round {number + 1}: " + ", ".join(f"{v} {runs[v]['wall']:.1f} s" for v in VARIANTS))
            rounds.append({v: {k: runs[v][k] for k in ("wall", "cpu")} for v in VARIANTS} | {"files": len(plain)})
        return {"title": title, "restitch": restitch.version(), "rounds": rounds, "report": report_}


def ratio(rounds, variant, what):
    """Plain over variant: above 1 is faster."""
    values = [r["plain"][what] / r[variant][what] for r in rounds]
    low, high, _ = interval(values)
    return f"{median(values):.3f} ({low:.3f} to {high:.3f})"


def table(rows):
    head = ["work", "plain: wall, CPU", "first: wall", "first: CPU", "warm: wall", "warm: CPU", "files, all equal", "optimized modules"]
    lines = ["| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
    for row in rows:
        rounds = row["rounds"]
        modules = [os.path.basename(m["path"]) for m in row["report"]["optimized"] if m["in_force"]]
        plain = f"{median(r['plain']['wall'] for r in rounds):.1f} s, {median(r['plain']['cpu'] for r in rounds):.1f} s"
        cells = [row["title"], plain]
        cells += [ratio(rounds, v, what) for v in VARIANTS[1:] for what in ("wall", "cpu")]
        cells += [str(rounds[0]["files"]), ", ".join(modules) or "none"]
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def page(rows, quick):
    kind = " (a quick run: shows that it runs)" if quick else ""
    machine = f"{report.processor().get('model name', '')}, {len(os.sched_getaffinity(0))} cores, Linux {os.uname().release}"
    head = f"{len(rows[0]['rounds'])} rounds{kind}; {machine}, {time.strftime('%Y-%m-%d', time.gmtime())}, {rows[0]['restitch']}. Times as often as plain: above 1 is faster. Median (interval)."
    return "\n".join([head, "", *table(rows), ""])


def main(argv):
    text = lambda rows, options: page(rows, options.quick)
    return Table("bench/batch", __doc__, LOADS, measure, text, "batch.md", (BEGIN, END), 6, 1, "batch.json").main(argv)
