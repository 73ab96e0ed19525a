"""How well sampled profiles agree with exact ones.

Each program runs once in a counting version (the exact profile), and then once for each source: branch records of `restitch record --source
trace` and `burst`, and instruction samples of `perf record`, once as many as there were records, and at two rates. Of instruction samples restitch derives
the edges in two ways: from the block counts as sampled (derived), and by flow repair. Programs that serve are recorded as processes, for --duration
seconds each, the exact profile last.

The table has the overlap of blocks and edges with the exact profile in percent (100: equal), of code that can be moved, all modules together. Agreement
does not suffer from a busy machine; costs do. See bench/README.md.
"""

import json
import os
import re
import resource
import signal
import subprocess
import tempfile

from .fidelity_loads import LOADS, SERVING
from .machine import Failed, Missing, end
from .tables import Table

# Seconds for one run.
LIMIT = 600
ENDINGS = (0, 42)


def sources(options):
    """Name, and the arguments of `restitch record`, the rate of `perf record`, or the name of the source that has as many records."""
    for overhead, depth in [("1%", 512), ("10%", 512), ("10%", 64)]:
        yield f"trace {overhead}, {depth} branches", ["--source", "trace", "--overhead", overhead, "--depth", str(depth)]
    for overhead, depth in [("1%", 4000), ("1%", 500)]:
        yield f"burst {overhead}, {depth} branches", ["--source", "burst", "--overhead", overhead, "--depth", str(depth)]
    yield "burst 1%, as many branches as suit it", ["--source", "burst", "--overhead", "1%"]
    yield "samples, as many", "trace 10%, 512 branches"
    yield "samples, 997 Hz", 997
    yield "samples, 9973 Hz", 9973


class Subject:
    """A command that ends (`process` is None), or a process that runs on."""

    def __init__(self, load, folder, options):
        self.folder, self.options = folder, options
        self.command, stdin, *prefix = load if isinstance(load, (tuple, list)) else (None, None)
        self.stdin, self.prefix, self.pid = stdin, prefix[0] if prefix else [], None

    def execute(self, command):
        """Its standard error, and the processor seconds of all that it started."""
        environment = dict(os.environ, RESTITCH_STATE_DIR=os.path.join(self.folder, "state"))
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        with open(self.stdin or os.devnull) as source:
            done = subprocess.run([*self.prefix, *command], stdin=source, capture_output=True, text=True, timeout=LIMIT, errors="replace", env=environment)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        if done.returncode not in ENDINGS:
            raise Failed(f"{' '.join(command)}: {done.returncode}: {done.stderr[-400:]}")
        return done.stderr, after.ru_utime - before.ru_utime

    def record(self, how, output):
        target = ["-p", str(self.pid), "--duration", str(self.options.duration)] if self.pid else ["--", *self.command]
        # The command comes last.
        return self.execute([self.options.restitch, "record", *how, "-o", output, *target])

    def samples(self, how, output):
        target = ["-p", str(self.pid), "--", "sleep", str(self.options.duration)] if self.pid else ["--", *self.command]
        self.execute(["perf", "record", "-q", "-e", "cpu-clock:u", *how, "-o", output, *target])
        shown = subprocess.run(["perf", "script", "-f", "-i", output, "-F", "ip"], capture_output=True, text=True)
        return len(shown.stdout.splitlines())


def told_by(said):
    """What `restitch record` says of its records: branches, records, overhead in percent, branches a breakpoint."""
    bursts = re.search(r"(\d+) branches in (\d+) bursts of (\d+).*overhead ([\d.]+) %", said)
    if bursts:
        return {"branches": int(bursts[1]), "records": int(bursts[2]), "overhead": float(bursts[4])}
    told = re.search(r"(\d+) branches in (\d+) records.*overhead ([\d.]+) %", said)
    if not told:
        raise Failed(f"restitch record does not say what it recorded: {said[-300:]}")
    useful = re.search(r"([\d.]+) branches for each breakpoint", said)
    return {"branches": int(told[1]), "records": int(told[2]), "overhead": float(told[3]), "useful": float(useful[1]) if useful else None}


def likeness(exact, output, options, edges="repaired"):
    """Overlap of blocks and edges in percent."""
    compare = [options.restitch, "profile", "compare", "--movable", "--edges", edges, "--json", "-", exact, output]
    done = subprocess.run(compare, capture_output=True, text=True)
    if done.returncode != 0:
        raise Failed(f"{' '.join(compare)}: {done.stderr[-400:]}")
    found = json.loads(done.stdout)
    return {"blocks": 100 * found["block_overlap"][0][1], "edges": 100 * found["edge_overlap"][0][1]}


def profiles(subject, options, log):
    """One entry a source: what it says of itself, and its file."""
    found, seconds = {}, options.duration
    for number, (name, how) in enumerate(sources(options)):
        output = os.path.join(subject.folder, f"{number}.{'profile' if isinstance(how, list) else 'perf.data'}")
        try:
            if isinstance(how, list):
                said, used = subject.record(how, output)
                found[name] = told_by(said)
                # The time that the program itself takes; tracing it costs more.
                seconds = seconds if subject.pid else min(used, seconds)
            else:
                like = found.get(how, {}).get("records", 0) if isinstance(how, str) else None
                if like == 0:
                    continue
                # Periods of the processor's clock are nanoseconds.
                rate = ["-c", str(int(1e9 * seconds / like))] if like else ["-F", str(how)]
                found[name] = {"samples": subject.samples(rate, output)}
            found[name]["file"] = output
            log(f"    {name}: {({k: v for k, v in found[name].items() if k != 'file'})}")
        except (Failed, subprocess.SubprocessError) as problem:
            log(f"    {name}: {problem}")
    return found


def compared(subject, exact, found, options):
    rows = []
    for name, profile in found.items():
        file = profile.pop("file")
        try:
            if "samples" in profile:
                rows.append({"source": f"{name}, derived", **profile, **likeness(exact, file, options, "derived")})
            rows.append({"source": f"{name}, repaired" if "samples" in profile else name, **profile, **likeness(exact, file, options)})
        except Failed as problem:
            rows.append({"source": name, **profile, "problem": str(problem)})
    return rows


def measure(name, options, log):
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        exact = os.path.join(folder, "exact.profile")
        process = None
        try:
            if name in LOADS:
                subject = Subject(LOADS[name](folder), folder, options)
                subject.record(["--source", "count"], exact)
                found = profiles(subject, options, log)
            else:
                process, find = SERVING[name](folder)
                subject = Subject(None, folder, options)
                subject.pid = find(process)
                found = profiles(subject, options, log)
                subject.record(["--source", "count"], exact)
            return {"program": name, "rows": compared(subject, exact, found, options)}
        except (OSError, KeyError, TypeError, RuntimeError, subprocess.SubprocessError) as problem:
            raise Missing(f"{type(problem).__name__}: {problem}") from None
        finally:
            if process:
                # PostgreSQL waits for its clients at any other signal.
                end(process, signal.SIGINT)


def text(programs, options):
    lines = ["| program | source | records or samples | branches | overhead % | branches a breakpoint | blocks % | edges % |", "|---|---|---|---|---|---|---|---|"]
    shown = lambda value, form: "" if value is None else format(value, form)
    for program in programs:
        for row in program["rows"]:
            cells = [program["program"], row["source"], str(row.get("records", row.get("samples", ""))), shown(row.get("branches"), "d"), shown(row.get("overhead"), ".2f"),
                     shown(row.get("useful"), ".1f"), shown(row.get("blocks"), ".1f"), shown(row.get("edges"), ".1f")]
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, ""])


def main(argv):
    def add(parser):
        parser.add_argument("--duration", type=float, default=20, help="seconds of recording a process (3 with --quick)")

    def settle(options):
        options.duration = 3 if options.quick else options.duration

    loads = {name.split()[0] if name in LOADS else name.split()[0] + "-serving": name for name in [*LOADS, *SERVING]}
    table = Table("bench/bench fidelity", __doc__, list(loads), lambda name, options, log: measure(loads[name], options, log), text, "sampled-and-exact-profiles", None, 1, quick=1, raw="fidelity.json")
    return table.main(argv, add, settle)
