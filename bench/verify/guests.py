#!/usr/bin/env python3
"""Proves that guests do what they are asked to and are counted exactly, with each stock kernel: the tests of crate guest for all kernel lines, and for each
programs that pass bytes through pipes on two processors at once, whose sums have to be right, and a redis server in a root image, whose kernel execution is
counted in a marked window without a step that cannot be explained. ONLY names some of the kernels. It needs apt, gcc and some minutes a kernel."""

import os
import re
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
KERNELS = ("6.1", "6.12", "7.3")
PIPES = """
for worker in 1 2 3 4; do
    (seq 1 20000 | cat | cat | awk '{ sum += $1 } END { print sum }' >/tmp/sum.$worker) &
done
wait
cat /tmp/sum.*
"""
REDIS = """
redis-server --port 7000 --bind 127.0.0.1 --save '' --daemonize yes --logfile /tmp/log >/dev/null
until redis-cli -p 7000 ping 2>/dev/null | grep -q PONG; do sleep 1; done
load() { redis-benchmark -p 7000 -n "$1" -c 10 -t set,get --csv >/tmp/load || exit 1; }
load 500
window begin
load 2000
window end
wc -l </tmp/load
redis-cli -p 7000 shutdown nosave
"""


class Failed(Exception):
    """It is not true."""


def run(command, **more):
    result = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **more)
    if result.returncode:
        raise Failed(f"{' '.join(command[:4])} ...: {result.stdout[-3000:]}{result.stderr[-3000:]}")
    return result


def guest(kernel, script, *options):
    program = os.path.join(ROOT, "target/debug/restitch-guest")
    return run([program, "run", "--kernel", kernel, *options, "--", "sh", "-c", script])


def tests(kernel):
    environment = {**os.environ, "RESTITCH_GUEST_KERNEL": kernel, "RESTITCH_NO_SKIP": "1"}
    run(["cargo", "test", "-q", "-p", "restitch-guest", "--test", "boot"], env=environment)


def two_processors(kernel):
    sums = guest(kernel, PIPES, "--processors", "2").stdout.split()
    if sums != ["200010000"] * 4:
        raise Failed(f"sums of four workers: {sums}")


def server(kernel):
    result = guest(kernel, REDIS, "--exact", "--count", "--append", "nokaslr", "--packages", "redis-server,redis-tools")
    print(result.stderr, end="")
    if not re.search(r"steps without explanation +0\n", result.stderr):
        raise Failed(f"the window of redis: {result.stderr}")
    # A heading and two commands.
    if result.stdout.split()[-1:] != ["3"]:
        raise Failed(f"redis-benchmark did not report: {result.stdout}")


def main():
    only = os.environ.get("ONLY", "").split()
    run(["cargo", "build", "-q", "-p", "restitch-guest"])
    bad = []
    for kernel in KERNELS:
        for proof in (tests, two_processors, server) if not only or kernel in only else ():
            try:
                proof(kernel)
                print(f"{kernel}: {proof.__name__}: ok", flush=True)
            except Failed as problem:
                bad.append(f"{kernel}: {proof.__name__}")
                print(f"{bad[-1]}: FAILED: {problem}", file=sys.stderr, flush=True)
    if bad:
        sys.exit(1)
    print("ok")


if __name__ == "__main__":
    main()
