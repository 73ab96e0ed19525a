"""What the programs in this folder share: the harness of bench/run, restitch by its command line, a watchdog, the end.

Every program here proves one thing about one real program and exits with 0 only if it is true. They need root (or the
right to trace the servers they start), use unix sockets and the loopback interface only, and stop what they start.
RESTITCH names the restitch to use (default: target/release/restitch).
"""

import os
import statistics
import subprocess
import sys
import threading
import time

sys.dont_write_bytecode = True
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "bench"))

from harness.machine import Failed, Machine, Missing, find, wait_for  # noqa: E402,F401

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


def restitch(machine, *arguments, allowed=(0,), **options):
    """Runs restitch with a journal of its own; (exit code, output, seconds). Fails on an exit code that is not allowed."""
    env = dict(os.environ, RESTITCH_STATE_DIR=machine.path("state"))
    start = time.monotonic()
    done = subprocess.run([RESTITCH, *map(str, arguments)], capture_output=True, text=True, errors="replace", env=env, **options)
    if done.returncode not in allowed:
        text = (done.stdout + done.stderr)[-3000:]
        raise Failed(f"restitch {' '.join(map(str, arguments))} ended with {done.returncode}:\n{text}")
    return done.returncode, done.stdout, time.monotonic() - start


def attach(machine, pid, tree=False, seconds=3, allowed=(0,)):
    more = ["--tree"] if tree else []
    return restitch(machine, "attach", pid, *more, "--duration", seconds, "--measure", 0, allowed=allowed)


def revert(machine, pid, tree=False, allowed=(0,)):
    return restitch(machine, "revert", pid, *(["--tree"] if tree else []), allowed=allowed)


class Toggling:
    """Attaches to a process and reverts it, again and again, between enter and exit."""

    # 6: cannot be changed safely now; 7: had nothing to do. Both leave the process as it was.
    ALLOWED = (0, 6, 7)

    def __init__(self, machine, pid, tree=False, seconds=2, pause=1.0):
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
                self.codes[code] = self.codes.get(code, 0) + 1
                if VERBOSE:
                    log(f"    attach: exit code {code} after {took:.1f} s\n{text}")
                self.stop.wait(self.pause)
                if self.codes.get(0, 0) % 3 != 2:  # every third time one version follows another
                    # 7: the attach was refused, so there is nothing to take back.
                    revert(self.machine, self.pid, self.tree, allowed=(0, 7))
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


def alternate(machine, pid, rounds, rate, tree=False, seconds=4):
    """Rates (work a second) of original and attached code, interleaved: `rate()` measures one. The load runs while attaching."""
    original, attached = [], []
    for number in range(rounds):
        original.append(rate())
        with Busy(rate):
            attach(machine, pid, tree, seconds)
        attached.append(rate())
        revert(machine, pid, tree)
        log(f"  round {number + 1}: {original[-1]:.0f} /s original, {attached[-1]:.0f} /s attached: {attached[-1] / original[-1]:.3f}")
    ratios = sorted(a / o for a, o in zip(attached, original))
    log(f"  ratio: median {statistics.median(ratios):.3f}, from {ratios[0]:.3f} to {ratios[-1]:.3f} in {rounds} rounds")
    return ratios


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

    def __exit__(self, kind, *_):
        self.stop.set()
        self.thread.join()
        if kind is None and self.problem:
            raise Failed(f"the load failed during the attach: {self.problem}")


def alive(pid, what):
    try:
        os.kill(pid, 0)
        with open(f"/proc/{pid}/stat") as f:
            if f.read().rsplit(")", 1)[1].split()[0] != "Z":
                return
    except OSError:
        pass
    raise Failed(f"{what} is gone")


__all__ = [name for name in globals() if not name.startswith("_")]
