"""The built-in workload of `restitch demo`, live."""

import os
import signal
import struct
import time

from harness.machine import wait_for
from harness.rounds import interleave, serve_and_count

SIDES = ("original", "optimized")


def run(context):
    machine, servers = context.machine, {}
    for side in SIDES:
        progress = machine.path(f"progress-{side}")
        command = [context.restitch.path, "demo-workload", "--", "--seconds", "86400", "--progress", progress]
        child = machine.start(command)
        wait_for("the demo workload", lambda: finished(progress) > 1000)
        servers[side] = (child.pid, progress)
        os.kill(child.pid, signal.SIGSTOP)
    second = 0.2 if context.quick else 0.25

    def work(side):
        os.kill(servers[side][0], signal.SIGCONT)
        time.sleep(0.2)

    attach = context.restitch.attach(machine, {side: servers[side][0] for side in SIDES}, work)
    for pid, _ in servers.values():
        os.kill(pid, signal.SIGSTOP)

    def measure(side):
        pid, progress = servers[side]

        def load():
            before = finished(progress)
            os.kill(pid, signal.SIGCONT)
            time.sleep(second)
            os.kill(pid, signal.SIGSTOP)
            return finished(progress) - before

        return serve_and_count(context.events, [pid], load)

    rounds = interleave(context.short_rounds(), measure, context.log)
    return [{"title": "demo workload, live", "unit": "request", "rounds": rounds, "attach": attach}]


def finished(progress):
    """Requests that are finished; the file is at most 2 ms old."""
    with open(progress, "rb") as f:
        data = f.read(8)
    return struct.unpack("<Q", data)[0] if len(data) == 8 else 0
