#!/usr/bin/env python3
"""Proves that the C library's own self tests (of strings, wide characters, long jumps and numbers: where its hand-written assembly is) have the same results
when they are recorded, when they run with an optimized libc.so.6, and while their process is attached to and reverted.

The tests are made from the source package of the installed version (package sources are to be enabled; half an hour on two processors), or GLIBC names a folder in which they
were made. ONLY names some of them (`string/test-memcpy`); LONGEST: what takes more seconds is left out, as others do the same (60)."""

import glob
import re

from common import *  # noqa: F403

PARTS = ("string", "wcsmbs", "setjmp", "stdlib")
LIBRARY = os.path.realpath("/usr/lib/x86_64-linux-gnu/libc.so.6")
# What a test says when it has passed, or cannot run here (what takes too long is taken for one).
PASSED, UNSUPPORTED = 0, 77
LONGEST = float(os.environ.get("LONGEST", "60"))
# Tests that are to be attached to have to take so long, in seconds.
LONG_ENOUGH = 1.5


def main(machine):
    build = os.environ.get("GLIBC") or made(machine)
    tests = [name for part in PARTS for name in sorted(tests_of(build, part))]
    counts = {"recorded": 0, "optimized": 0, "attached": 0, "attaches": 0}
    each(tests, lambda name: one(machine, build, name, counts))
    log("  " + ", ".join(f"{what} {number}" for what, number in counts.items()))
    if not os.environ.get("ONLY") and not all(counts.values()):
        raise Failed("something was not tried")


def made(machine):
    """The folder in which glibc and its tests were made."""
    version = machine.run(["dpkg-query", "-W", "-f", "${source:Package}=${source:Version}", "libc6"])
    sources, build = machine.path("sources"), machine.path("build")
    for folder in (sources, build):
        os.makedirs(folder)
    at = lambda folder, *command: machine.run(["env", "-C", folder, *command])
    at(sources, "apt-get", "-q", "source", version)
    at(build, f"{os.path.dirname(glob.glob(f'{sources}/*/configure')[0])}/configure", "--prefix=/usr", "--disable-werror", "CFLAGS=-O2")
    at(build, "make", f"-j{os.cpu_count()}")
    try:
        at(build, "make", "-k", f"-j{os.cpu_count()}", f"subdirs={' '.join(PARTS)}", "check", "run-built-tests=no")
    except Failed as problem:
        log(f"  some tests were not made: {str(problem)[-300:]}")
    return build


def tests_of(build, part):
    """The programs that are tests, as they are named: dynamic ones of the installed C library."""
    for path in glob.glob(f"{build}/{part}/*"):
        name = os.path.basename(path)
        if not re.fullmatch(r"[a-z0-9_-]*(test|tst|bug|inl)[a-z0-9_-]*", name) or name.endswith("static") or not os.access(path, os.X_OK):
            continue
        with open(path, "rb") as f:
            if f.read(4) == b"\x7fELF":
                yield f"{part}/{name}"


def one(machine, build, name, counts):
    folder = machine.path(name.replace("/", "-"))
    os.makedirs(folder)
    # `--direct`: in one process, where it has a driver that starts another one.
    command = [f"{build}/{name}", "--direct"]
    start = time.monotonic()
    plain = result(folder, command)
    took = time.monotonic() - start
    if plain[0] != PASSED:
        raise Missing(f"{name} ({plain[0]})")
    again = result(folder, command)
    same = lambda got, how: compared(plain, again, got, f"{name} {how}")
    profile = f"{folder}/profile"
    # By way of a file: what restitch says itself is none of the test's output.
    own = ["sh", "-c", 'exec "$@" >own 2>&1', "sh", *command]
    code, _ = result(folder, [RESTITCH, "record", "-o", profile, "--", *own])
    with open(f"{folder}/own", "rb") as f:
        same((code, f.read()), "recorded")
    counts["recorded"] += 1
    code, _, _ = restitch(machine, "optimize", LIBRARY, "--profile", profile, "-o", f"{folder}/libc.so.6", allowed=(0, 7))
    if code == 0:
        same(result(folder, command, LD_LIBRARY_PATH=folder), "optimized")
        counts["optimized"] += 1
    if took >= LONG_ENOUGH:
        same(attached(machine, folder, command, counts), "attached")


def attached(machine, folder, command, counts):
    with open(f"{folder}/out", "w+b") as out, subprocess.Popen(command, cwd=folder, stdin=subprocess.DEVNULL, stdout=out, stderr=out) as process:
        try:
            toggling = Toggling(machine, process.pid, seconds=0.4, pause=0.1)
            try:
                with toggling:
                    process.wait(timeout=20 * LONGEST)
            except Failed as problem:
                if toggling.problem:
                    raise
                log(f"  {command[0]}: {problem}")
        finally:
            process.kill()
        counts["attaches"] += toggling.codes.get(0, 0)
        counts["attached"] += toggling.codes.get(0, 0) > 0
        out.seek(0)
        return process.returncode, out.read()


def result(folder, command, **environment):
    """Exit code and what was said; 77 for what takes too long."""
    env = dict(os.environ, **environment, RESTITCH_STATE_DIR=f"{folder}/state", RESTITCH_CACHE_DIR=f"{folder}/cache")
    limit = LONGEST if command[0] != RESTITCH else 20 * LONGEST
    try:
        done = subprocess.run(command, cwd=folder, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=env, timeout=limit)
    except subprocess.TimeoutExpired:
        return UNSUPPORTED, b""
    return done.returncode, done.stdout


def compared(plain, again, got, how):
    """Where two plain runs say the same, the third has to."""
    if got[0] != plain[0] or plain[1] == again[1] != got[1]:
        raise Failed(f"{how}: ended with {got[0]} instead of {plain[0]}:\n{got[1][-1500:].decode(errors='replace')}")


program(main)
