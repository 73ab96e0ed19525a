"""Do two builds of restitch make the same bytes?

For each program BASE records one profile (exact counts of its training). Then both builds make from it: files (`optimize`, with
each set of options below), a counting copy (`instrument`), and versions, as `attach --profile` puts them into a process: into two equal
processes, one for each build, with no randomized addresses, the same numbers in memory as far as the program allows, and a real-time clock
that stands still (restitch takes the chance by which it chooses a version's place from the clock). What is compared byte by byte: the files,
the versions with their address maps, and all executable memory of the two processes: redirects, hooks, patched code.

It is for changes that are to change nothing that is made. The exit code is 0 only if nothing differs and nothing was left out.
"""

import argparse
import contextlib
import os
import shlex
import signal
import subprocess
import sys
import time

from .layout_inputs import ENVIRONMENT, LOADS
from .machine import Failed, Machine, Missing, find, wait_for
from .restitch import Restitch

# Sets of options of `optimize`, each with the name of the file.
FILES = {
    "file": "",
    "file-all": "--promote-calls on --duplicate on --prefetch on --huge-pages on",
    "file-none": "--layout c3 --pointers off --copy-tables off --direct-calls off",
    "file-codestitcher": "--layout codestitcher+po",
}
SIDES = ("base", "new")
# A clock for restitch alone: LD_PRELOAD does not get into the process that is attached to.
CLOCK = """
#define _GNU_SOURCE
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
int clock_gettime(clockid_t id, struct timespec *at) {
    if (id != CLOCK_REALTIME) return syscall(SYS_clock_gettime, id, at);
    at->tv_sec = 1700000000;
    at->tv_nsec = 0;
    return 0;
}
"""
# How often both processes are started anew where the two versions were put at different places.
TRIES = 3


class Case:
    """A program: what trains it, and a process of it that waits."""

    def __init__(self, name, machine, log):
        self.name, self.machine = name, machine
        # The C library is profiled in python3, which is there wherever it is wanted.
        self.load = LOADS["python" if name == "libc" else name](machine, log)
        self.file = self.load.file
        self.module = libc_of(self.file) if name == "libc" else os.path.realpath(self.file)

    def train(self, prefix):
        self.load.run(self.file, "training", prefix)

    def waiting(self):
        """A process of the program that waits for its input for ever, with the same addresses each time."""
        who = {"cwd": self.machine.folder}
        if self.name == "cc1plus":
            command = [self.file, "-quiet", "-O2", "-", "-o", "/dev/null"]
        elif self.name == "postgres":
            data = self.load.state
            command = [self.file, "--single", "-c", "jit=off", "-c", "shared_buffers=64MB", "-D", data, "postgres"]
            who = self.machine.who(self.load.user, None)
        else:
            command = [self.file, "-S", "-B", "-c", "import sys; sys.stdin.read()"]
        env = dict(ENVIRONMENT, PYTHONHASHSEED="1")
        null = subprocess.DEVNULL
        setarch = [find("setarch"), "-R"]
        return subprocess.Popen([*setarch, *command], stdin=subprocess.PIPE, stdout=null, stderr=null, env=env, **who)


def libc_of(program):
    """The C library that a program is linked with."""
    listed = subprocess.run([find("ldd"), program], capture_output=True, text=True, check=True).stdout
    paths = [word for word in listed.split() if os.path.basename(word) == "libc.so.6" and word.startswith("/")]
    if not paths:
        raise Missing(f"{program} has no libc.so.6")
    return os.path.realpath(paths[0])


def asleep(pid):
    """Whether a process waits in a system call (it reads its input), and is past its start."""
    with open(f"/proc/{pid}/stat") as f:
        state = f.read().rpartition(")")[2].split()[0]
    with open(f"/proc/{pid}/syscall") as f:
        # Reading: of what it waits for in this file, and nothing else in its start, takes long.
        return state == "S" and f.read().split()[:2] == ["0", "0x0"]


def executable(pid):
    """{start: bytes} of the executable memory of a process, but for what the kernel puts there."""
    parts = {}
    with open(f"/proc/{pid}/maps") as maps, open(f"/proc/{pid}/mem", "rb") as memory:
        for line in maps:
            span, permissions, *rest = line.split()
            if "x" not in permissions or rest[-1] in ("[vsyscall]", "[vdso]"):
                continue
            start, end = (int(word, 16) for word in span.split("-"))
            memory.seek(start)
            parts[start] = memory.read(end - start)
    return parts


def difference(one, other):
    """Where two byte strings differ, in words; None if they are equal."""
    if one == other:
        return None
    length = min(len(one), len(other))
    at = [n for n in range(length) if one[n] != other[n]]
    sizes = "" if len(one) == len(other) else f"sizes {len(one)} and {len(other)}; "
    if not at:
        return f"{sizes}the shorter one is the longer one's beginning"
    return f"{sizes}{len(at)} of {length} bytes, from 0x{at[0]:x} to 0x{at[-1]:x}"


def compare(label, base, new):
    """Lines on what of two sets {name: bytes} is not the same."""
    lines = []
    for name in sorted(base.keys() | new.keys()):
        shown = f"{name:#x}" if isinstance(name, int) else name
        if name not in base or name not in new:
            lines.append(f"{label} {shown}: only {'base' if name in base else 'new'} has it")
        elif text := difference(base[name], new[name]):
            lines.append(f"{label} {shown}: {text}")
    return lines


def read(path):
    with open(path, "rb") as f:
        return f.read()


def made(case, builds, profile, name, command):
    """What both builds make of the module by `command` (a function of the output's path): lines on differences, size."""
    # One name for both: it may stand in the file.
    bytes_of, out = {}, case.machine.path(f"{case.name}-{name}")
    for side, build in builds.items():
        build.call(command(out), case.machine)
        bytes_of[side] = {"": read(out)}
        os.remove(out)
    return compare(f"{case.name} {name}", *bytes_of.values()), len(bytes_of["base"][""])


def attached(case, build, side, profile, clock):
    """What `attach` of one build makes of a process: (versions and maps by module, executable memory)."""
    state = case.machine.path(f"state-{case.name}-{side}")
    subprocess.run(["rm", "-rf", state], check=True)
    os.mkdir(state, 0o755)
    process = case.waiting()
    try:
        wait_for(f"{case.name} that waits", lambda: asleep(process.pid))
        env = dict(os.environ, LD_PRELOAD=clock, RESTITCH_STATE_DIR=state)
        command = [build.path, "attach", str(process.pid), "--profile", profile, "--measure", "0"]
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", env=env)
        if done.returncode != 0:
            raise Failed(f"{shlex.join(command)} ended with {done.returncode}:\n{(done.stdout + done.stderr)[-2000:]}")
        files = [f for f in sorted(os.listdir(state)) if f.endswith(("restitch-version", "restitch-map"))]
        if not files:
            raise Failed(f"attach to {case.name} made no version:\n{done.stdout[-2000:]}")
        # Between module and ending stands a sum of the contents.
        named = {".".join([*f.split(".")[:-2], f.split(".")[-1]]): read(os.path.join(state, f)) for f in files}
        return named, executable(process.pid)
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(signal.SIGKILL)
        process.wait()
        process.stdin.close()


def versions(case, builds, profile, clock, log):
    """Lines on differences of versions, and their size."""
    for attempt in range(TRIES):
        (files, memory), (new_files, new_memory) = (attached(case, b, side, profile, clock) for side, b in builds.items())
        if memory.keys() == new_memory.keys():
            break
        log(f"  {case.name}: the versions lie at different places" + (", tried again" if attempt + 1 < TRIES else ""))
    lines = compare(f"{case.name} version", files, new_files) + compare(f"{case.name} memory at", memory, new_memory)
    return lines, sum(map(len, files.values())), sum(map(len, memory.values()))


def check(name, builds, options, log):
    """All comparisons of one program: lines on differences."""
    start, lines = time.monotonic(), []
    with Machine(log) as machine:
        case = Case(name, machine, log)
        profile, clock = machine.path("profile"), machine.path("clock.so")
        source = machine.path("clock.c")
        with open(source, "w") as f:
            f.write(CLOCK)
        machine.run([find("gcc"), "-O2", "-shared", "-fPIC", "-o", clock, source])
        os.mkdir(machine.path("profiles"))
        # Servers run as users of their own.
        os.chmod(machine.path("profiles"), 0o777)
        recorded = machine.path("profiles", "profile")
        case.train([builds["base"].path, "record", "-o", recorded, "--"])
        os.rename(recorded, profile)
        for kind, more in FILES.items():
            command = lambda out: ["optimize", case.module, "--profile", profile, "-o", out, *shlex.split(more)]
            found, size = made(case, builds, profile, kind, command)
            lines += found
            log(f"  {kind} {more}: {size} bytes, {'DIFFER' if found else 'the same'} ({time.monotonic() - start:.0f} s)")
        counts = machine.path("counts")

        def counting(out):
            with contextlib.suppress(FileNotFoundError):
                os.remove(counts)
            return ["instrument", case.module, "-o", out, "--counts", counts]

        found, size = made(case, builds, profile, "counting copy", counting)
        lines += found
        log(f"  counting copy: {size} bytes, {'DIFFER' if found else 'the same'} ({time.monotonic() - start:.0f} s)")
        if not options.files:
            found, size, memory = versions(case, builds, profile, clock, log)
            lines += found
            told = f"{size} bytes, executable memory {memory} bytes"
            log(f"  versions with maps: {told}, {'DIFFER' if found else 'the same'} ({time.monotonic() - start:.0f} s)")
    return lines


PROGRAMS = ["cc1plus", "postgres", "python", "libc"]


def main(argv):
    parser = argparse.ArgumentParser(prog="bench/bench identical", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("base", metavar="BASE", help="the restitch of before, which also records the profiles")
    parser.add_argument("new", metavar="NEW", help="the restitch of now")
    parser.add_argument("loads", nargs="*", metavar="PROGRAM", help=f"all, if none is named: {', '.join(PROGRAMS)}")
    parser.add_argument("--files", action="store_true", help="files only, no versions: attaches to nothing")
    options = parser.parse_args(argv)
    unknown = sorted(set(options.loads) - set(PROGRAMS))
    if unknown:
        parser.error(f"no such program: {', '.join(unknown)}; there are {', '.join(PROGRAMS)}")
    for path in (options.base, options.new):
        if not os.access(path, os.X_OK):
            parser.error(f"{path} is no program; build one: cargo build --release -p restitch")
    log = lambda text: print(text, file=sys.stderr, flush=True)
    builds = {side: Restitch(path, False, log) for side, path in zip(SIDES, (options.base, options.new))}
    differing, undone = [], []
    for name in options.loads or PROGRAMS:
        log(name)
        try:
            differing += check(name, builds, options, log)
        except (Missing, Failed) as problem:
            undone.append(name)
            log(f"  not compared: {problem}")
    for line in differing:
        print(line)
    if undone:
        print(f"not compared: {', '.join(undone)}")
    if not differing and not undone:
        print("everything is the same")
    return 1 if differing or undone else 0
