#!/usr/bin/env python3
"""Proves that counts of kernel code are exact: block for block and edge for edge they equal what QEMU executes of the copies in the same run, in stock kernels,
for the closures of do_sys_poll, tcp_sendmsg and vfs_read (crates/guest/tests/exact_counts.rs). DEPTHS says how many calls deep, ONLY names some of the kernels.
The share of edges and of functions that follows from counts of blocks alone (Tamches and Miller, section 4.3: 99.6 % and 97.8 % of a whole kernel) is said too,
and what follows is true. It needs apt, gcc and some minutes a kernel."""

import os
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
KERNELS = ("6.1", "6.12", "7.3")
# The second is too much for counters of each processor's own: they are shared.
DEPTHS = os.environ.get("DEPTHS", "2 4").split()
TEST = ["cargo", "test", "-q", "-p", "restitch-guest", "--test", "exact_counts", "--", "--nocapture"]


def prove(kernel, depth):
    environment = {**os.environ, "RESTITCH_GUEST_KERNEL": kernel, "RESTITCH_COUNTED_CALLS": depth, "RESTITCH_NO_SKIP": "1"}
    result = subprocess.run(TEST, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if result.returncode:
        print(f"{kernel}, {depth} calls deep: FAILED: {result.stdout[-4000:]}{result.stderr[-4000:]}", file=sys.stderr, flush=True)
        return False
    for line in result.stdout.splitlines():
        if " functions, " in line:
            print(f"{kernel}: {line}", flush=True)
    return True


def main():
    only = os.environ.get("ONLY", "").split()
    proofs = [(kernel, depth) for kernel in KERNELS if not only or kernel in only for depth in DEPTHS]
    held = [prove(kernel, depth) for kernel, depth in proofs]
    if not held or not all(held):
        sys.exit(1)
    print("ok")


if __name__ == "__main__":
    main()
