"""The program under test, by its command line."""

import json
import os
import subprocess
import threading

from .machine import Failed, copy_as_written


class Restitch:
    def __init__(self, path, same, log, added=None):
        """`same`: change nothing, so that original is measured against original (how large is the noise?). `added`: options of `attach` and `optimize`
        that only one side gets; then the other one is optimized as well, without them."""
        self.path, self.same, self.log, self.added = os.path.abspath(path), same, log, added

    def version(self):
        if self.same:
            return "none (original against original)"
        version = self.call(["--version"]).strip()
        return f"{version}, {' '.join(self.added)} against without" if self.added else version

    def call(self, arguments, machine=None, **options):
        # The journals of a load's processes end with the load.
        env = dict(os.environ, RESTITCH_STATE_DIR=machine.path("state")) if machine else None
        command = [self.path, *arguments]
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", env=env, **options)
        if done.returncode != 0:
            text = (done.stdout + done.stderr)[-2000:]
            raise Failed(f"restitch {' '.join(arguments)} ended with {done.returncode}:\n{text}")
        return done.stdout

    def attach(self, machine, pids, load, tree=False, seconds=None, more=()):
        """Attaches to the optimized side (`pids`: side to process) while load("optimized") is called again and again to keep
        it busy; then the original side gets as many calls, so that both begin the rounds with the same past (warm
        buffers, allocated memory). The JSON result; None if nothing was to be changed."""
        if self.same:
            for side in ("optimized", "original"):
                for _ in range(3):
                    load(side)
            return None
        options = (["--duration", str(seconds)] if seconds else []) + (["--tree"] if tree else []) + list(more)
        if self.added:
            self.attach_one(machine, pids["original"], lambda: load("original"), options)
        result, calls = self.attach_one(machine, pids["optimized"], lambda: load("optimized"), options + list(self.added or ()))
        for _ in range(0 if self.added else calls):
            load("original")
        return result

    def attach_one(self, machine, pid, load, options):
        """The JSON result of attaching to `pid`, and how often `load` was called meanwhile."""
        load()  # it works before it is looked at
        stop, calls, problems = threading.Event(), [None], []

        def busy():
            try:
                while not stop.is_set():
                    load()
                    calls.append(None)
            except Exception as problem:  # it is reported by the thread that waits
                problems.append(problem)

        thread = threading.Thread(target=busy)
        thread.start()
        result = machine.path("attach.json")
        try:
            self.call(["attach", str(pid), *options, "--measure", "0", "--json", result], machine)
        finally:
            stop.set()
            thread.join()
        if problems:
            raise Failed(f"the load failed during the attach: {problems[0]}")
        with open(result) as f:
            return json.load(f), len(calls)

    def optimize(self, machine, program, training, outputs, **options):
        """Records the training command and writes the programs of both sides (`outputs`: side to file); the JSON result of `optimize`."""
        profile, result = machine.path("profile"), machine.path("optimize.json")
        if self.same or not self.added:
            copy_as_written(program, outputs["original"])
        if self.same:
            copy_as_written(program, outputs["optimized"])
            return None
        self.call(["record", "-o", profile, "--", *training], machine, **options)
        if self.added:
            self.optimize_one(machine, program, profile, outputs["original"], [])
        self.optimize_one(machine, program, profile, outputs["optimized"], ["--json", result, *(self.added or ())])
        with open(result) as f:
            return json.load(f)

    def optimize_one(self, machine, program, profile, output, options):
        raw = machine.path("raw")
        self.call(["optimize", program, "--profile", profile, "-o", raw, *options], machine)
        copy_as_written(raw, output)
