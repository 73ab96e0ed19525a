"""The program under test, by its command line."""

import json
import os
import subprocess
import threading

from .machine import Failed, copy_as_written


class Restitch:
    def __init__(self, path, same, log):
        """`same`: change nothing, so that original is measured against original (how large is the noise?)."""
        self.path, self.same, self.log = os.path.abspath(path), same, log

    def version(self):
        if self.same:
            return "none (original against original)"
        return self.call(["--version"]).strip()

    def call(self, arguments, machine=None, **options):
        # The journals of a load's processes end with the load.
        env = dict(os.environ, RESTITCH_STATE_DIR=machine.path("state")) if machine else None
        command = [self.path, *arguments]
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", env=env, **options)
        if done.returncode != 0:
            text = (done.stdout + done.stderr)[-2000:]
            raise Failed(f"restitch {' '.join(arguments)} ended with {done.returncode}:\n{text}")
        return done.stdout

    def attach(self, machine, pid, load, tree=False, seconds=None, more=()):
        """Attaches to the optimized side, whose process is `pid`, while load("optimized") is called again and again to keep
        it busy; then the original side gets as many calls, so that both begin the rounds with the same past (warm
        buffers, allocated memory). The JSON result; None if nothing was to be changed."""
        if self.same:
            for side in ("optimized", "original"):
                for _ in range(3):
                    load(side)
            return None
        stop, calls, problems = threading.Event(), [], []

        def busy():
            try:
                while not stop.is_set():
                    load("optimized")
                    calls.append(None)
            except Exception as problem:  # it is reported by the thread that waits
                problems.append(problem)

        thread = threading.Thread(target=busy)
        thread.start()
        result = machine.path("attach.json")
        try:
            duration = ["--duration", str(seconds)] if seconds else []
            arguments = ["attach", str(pid), *duration, "--measure", "0", "--json", result]
            self.call(arguments + (["--tree"] if tree else []) + list(more), machine)
        finally:
            stop.set()
            thread.join()
        if problems:
            raise Failed(f"the load failed during the attach: {problems[0]}")
        for _ in calls:
            load("original")
        with open(result) as f:
            return json.load(f)

    def optimize(self, machine, program, training, output, **options):
        """Records the training command and writes the optimized program; the JSON result of `optimize`."""
        if self.same:
            copy_as_written(program, output)
            return None
        profile, raw, result = machine.path("profile"), machine.path("raw"), machine.path("optimize.json")
        self.call(["record", "-o", profile, "--", *training], machine, **options)
        self.call(["optimize", program, "--profile", profile, "-o", raw, "--json", result], machine)
        copy_as_written(raw, output)
        with open(result) as f:
            return json.load(f)
