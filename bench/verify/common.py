"""What the programs in this folder share: the harness of bench/bench run, restitch by its command line, a watchdog, the end.

Every program here proves one thing about one real program and exits with 0 only if it is true. They need root (or the
right to trace the servers they start), use unix sockets and the loopback interface only, and stop what they start.
RESTITCH names the restitch to use (default: target/release/restitch).
"""

import contextlib
import os
import socket
import statistics
import subprocess
import sys
import threading
import time

sys.dont_write_bytecode = True
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "bench"))

from harness.machine import Failed, Machine, Missing, children, find, wait_for  # noqa: E402,F401

RESTITCH = os.path.abspath(os.environ.get("RESTITCH", os.path.join(ROOT, "target/release/restitch")))
VERBOSE = bool(os.environ.get("VERBOSE"))


def log(text):
    print(text, file=sys.stderr, flush=True)


def program(body):
    """Runs `body(machine)`; the exit code says whether it was true."""
    try:
        if not os.access(RESTITCH, os.X_OK):
            raise Missing(f"{RESTITCH} is not there; build it, or name it with RESTITCH")
        with Machine(log) as machine:
            body(machine)
    except Missing as missing:
        log(f"left out: {missing}")
        sys.exit(2)
    except Failed as failed:
        log(f"FAILED: {failed}")
        sys.exit(1)
    print("ok")


def each(names, one):
    """Runs `one(name)` for all names, or for those that the environment's ONLY has. All are tried; what is not installed is left out and said."""
    only, bad, absent = os.environ.get("ONLY", "").split(), [], []
    for name in names:
        if only and name not in only:
            continue
        try:
            one(name)
        except Missing as missing:
            absent.append(str(missing))
        except Failed as problem:
            bad.append(name)
            log(f"  {name}: FAILED: {problem}")
    if absent:
        log(f"  left out: {'; '.join(absent)}")
    if bad:
        raise Failed(f"different or failed: {' '.join(bad)}")


def restitch(machine, *arguments, allowed=(0,), **options):
    """Runs restitch with a journal of its own; (exit code, output or else what went wrong, seconds). Fails on an exit code that is not allowed."""
    env = dict(os.environ, RESTITCH_STATE_DIR=machine.path("state"))
    start = time.monotonic()
    done = subprocess.run([RESTITCH, *map(str, arguments)], capture_output=True, text=True, errors="replace", env=env, **options)
    if done.returncode not in allowed:
        text = (done.stdout + done.stderr)[-3000:]
        raise Failed(f"restitch {' '.join(map(str, arguments))} ended with {done.returncode}:\n{text}")
    if VERBOSE and done.returncode:
        log(done.stderr)
    return done.returncode, done.stdout or done.stderr, time.monotonic() - start


@contextlib.contextmanager
def connected(path):
    """A connection to the unix socket at `path`: a file for requests and answers, flushed by whoever writes."""
    with socket.socket(socket.AF_UNIX) as s:
        s.connect(path)
        with s.makefile("rwb") as f:
            yield f


def attach(machine, pid, tree=False, seconds=3, allowed=(0,)):
    more = ["--tree"] if tree else []
    return restitch(machine, "attach", pid, *more, "--duration", seconds, "--measure", 0, allowed=allowed)


def revert(machine, pid, tree=False, allowed=(0,)):
    """Reverts, and compares all code in memory with the files that it was mapped from."""
    restitch(machine, "revert", pid, *(["--tree"] if tree else []), allowed=allowed)
    for process in children(pid) if tree else [pid]:
        changed = changed_code(process)
        if changed:
            raise Failed(f"process {process} has other code than its files after a revert:\n" + "\n".join(changed))


def changed_code(pid):
    """Where the executable mappings of a process differ from their files; nothing for a process that is gone. Jumps into code without a
    file do not count: while a version stays mapped, the unwinders' lookup functions lead to the hook."""
    changed = []
    try:
        with open(f"/proc/{pid}/mem", "rb", 0) as memory, open(f"/proc/{pid}/maps") as maps:
            lines = list(maps)
            for line in lines:
                fields = line.split(None, 5)
                path = fields[5].strip() if len(fields) == 6 else ""
                # Retired versions may stay mapped for a while; nothing leads there.
                if "x" not in fields[1] or not path.startswith("/") or "restitch" in os.path.basename(path):
                    continue
                start, end = (int(n, 16) for n in fields[0].split("-"))
                with open(path, "rb") as f:
                    f.seek(int(fields[2], 16))
                    stated = f.read(end - start)
                memory.seek(start)
                actual = bytearray(memory.read(end - start)[: len(stated)])
                leave_out_hook(lines, start, actual, stated)
                if actual != stated:
                    first = next(n for n, pair in enumerate(zip(actual, stated)) if pair[0] != pair[1])
                    changed.append(f"{path} at {start + first:#x}: {actual[first:first + 5].hex()} instead of {stated[first:first + 5].hex()}")
    except (OSError, ValueError, StopIteration):
        pass
    return changed


def leave_out_hook(maps, start, actual, stated):
    """Gives the bytes of jumps into executable memory without a file their stated values."""
    anonymous = [
        [int(n, 16) for n in fields[0].split("-")] for fields in map(str.split, maps) if "x" in fields[1] and len(fields) == 5
    ]
    at = actual.find(b"\xe9")
    while at >= 0:
        to = start + at + 5 + int.from_bytes(actual[at + 1 : at + 5], "little", signed=True)
        if any(low <= to < high for low, high in anonymous):
            actual[at : at + 5] = stated[at : at + 5]
        at = actual.find(b"\xe9", at + 1)


class Toggling:
    """Attaches to a process and reverts it, again and again, between enter and exit. With `renewed` the one that works may end and be followed by another one."""

    # 4: it has ended meanwhile; 6: cannot be changed safely now; 7: had too little to do. The last two leave it as it was.
    ALLOWED = (0, 4, 6, 7)

    def __init__(self, machine, pid, tree=False, seconds=2, pause=1.0, renewed=False):
        self.renewed = renewed
        self.machine, self.pid, self.tree, self.seconds, self.pause = machine, pid, tree, seconds, pause
        self.codes, self.problem, self.stop = {}, None, threading.Event()

    def __enter__(self):
        self.thread = threading.Thread(target=self.loop)
        self.thread.start()
        return self

    def loop(self):
        try:
            while not self.stop.is_set():
                code, text, took = attach(self.machine, self.pid, self.tree, self.seconds, self.ALLOWED)
                if code == 4 and not self.renewed:
                    alive(self.pid, f"the process ({text.strip()})", wanted=False)
                    return
                self.codes[code] = self.codes.get(code, 0) + 1
                if VERBOSE:
                    log(f"    attach: exit code {code} after {took:.1f} s\n{text}")
                self.stop.wait(self.pause)
                if self.codes.get(0, 0) % 3 != 2:  # every third time one version follows another
                    # 7: the attach was refused, so there is nothing to take back.
                    revert(self.machine, self.pid, self.tree, allowed=(0, 4, 7))
                    self.stop.wait(self.pause / 2)
        except Failed as problem:
            self.problem = problem

    def __exit__(self, kind, *_):
        self.stop.set()
        self.thread.join()
        log(f"  attached: {self.codes.get(0, 0)} times; refused as documented: {sum(n for c, n in self.codes.items() if c)}")
        if kind is None:
            if self.problem:
                raise self.problem
            if not self.codes.get(0):
                raise Failed("no attach was successful")
        elif self.problem:
            log(f"  and: {self.problem}")


def ask_while_toggling(machine, pid, clients, duration, each=lambda second: None, then=lambda: None, **toggling):
    """How many requests were answered while `pid` was attached to and reverted again and again, for `duration` seconds. Each of
    `clients` runs in a thread of its own: it asks while the function that it is given says so, which it calls once for each right
    answer, and raises what is wrong. `each` is called every second, `then` at the end, both with the clients at work."""
    counts, problems, stop = [0] * len(clients), [], threading.Event()

    def run(number, client):
        def answered(count=1):
            counts[number] += count
            return not stop.is_set()

        try:
            client(answered)
        except Exception as problem:  # a thread: it is reported by the one that waits
            problems.append(f"client {number}: {problem!r}")

    threads = [threading.Thread(target=run, args=pair) for pair in enumerate(clients)]
    for thread in threads:
        thread.start()
    try:
        with Toggling(machine, pid, **toggling):
            for second in range(duration):
                time.sleep(1)
                each(second)
                if problems:
                    raise Failed("\n".join(problems))
            then()
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    if problems:
        raise Failed("\n".join(problems))
    return sum(counts)


def alternate(machine, pid, rounds, work, busy=None, tree=False, seconds=4):
    """Work done for each second of processor time that `pid` and its children use, original and attached, interleaved.
    `work()` makes the process do some and returns how much; `busy()` (default: the same) keeps it busy while attaching.
    Processor time, because other programs share this machine's cores and caches."""

    def rate():
        before = cpu_seconds(pid)
        amount = work()
        return amount / (cpu_seconds(pid) - before)

    ratios = []
    for number in range(rounds):
        original = rate()
        with Busy(busy or work):
            # The load may just be starting: 7 says that there was too little of it.
            for wait in (1, 3, 0):
                code, _, _ = attach(machine, pid, tree, seconds, allowed=(0, 7) if wait else (0,))
                if code == 0:
                    break
                time.sleep(wait)
        attached = rate()
        revert(machine, pid, tree)
        ratios.append(attached / original)
        log(f"  round {number + 1}: {original:.0f} original, {attached:.0f} attached, a CPU second: {ratios[-1]:.3f}")
    ratios.sort()
    log(f"  ratio: median {statistics.median(ratios):.3f}, from {ratios[0]:.3f} to {ratios[-1]:.3f} in {rounds} rounds")


def cpu_seconds(pid):
    """Processor time of a process, its ended children and its living descendants."""
    ticks = 0
    for process in children(pid):
        try:
            with open(f"/proc/{process}/stat") as f:
                fields = f.read().rsplit(")", 1)[1].split()
        except OSError:
            continue
        ticks += sum(map(int, fields[11:15]))
    return ticks / os.sysconf("SC_CLK_TCK")


class Busy:
    """Calls `work` again and again between enter and exit."""

    def __init__(self, work):
        self.work, self.stop, self.problem = work, threading.Event(), None

    def __enter__(self):
        def loop():
            try:
                while not self.stop.is_set():
                    self.work()
            except Failed as problem:
                self.problem = problem

        self.thread = threading.Thread(target=loop)
        self.thread.start()
        time.sleep(1)

    def __exit__(self, kind, *_):
        self.stop.set()
        self.thread.join()
        if kind is None and self.problem:
            raise Failed(f"the load failed during the attach: {self.problem}")


def alive(pid, what, wanted=True):
    """Fails if the process is gone (or, if it is not wanted, still there)."""
    try:
        with open(f"/proc/{pid}/stat") as f:
            there = f.read().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        there = False
    if there != wanted:
        raise Failed(f"{what} is {'gone' if wanted else 'there, but restitch says that it has ended'}")


__all__ = [name for name in globals() if not name.startswith("_")]
