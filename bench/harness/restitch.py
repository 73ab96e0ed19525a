"""The program under test, by its command line."""

import json
import os
import subprocess
import threading

from .machine import Failed


class Restitch:
    def __init__(self, path, same, log):
        """`same`: change nothing, so that original is measured against original (how large is the noise?)."""
        self.path, self.same, self.log = os.path.abspath(path), same, log

    def version(self):
        if self.same:
            return "none (original against original)"
        return self.call(["--version"]).strip()

    def call(self, arguments, **options):
        done = subprocess.run([self.path, *arguments], capture_output=True, text=True, errors="replace", **options)
        if done.returncode != 0:
            text = (done.stdout + done.stderr)[-2000:]
            raise Failed(f"restitch {' '.join(arguments)} ended with {done.returncode}:\n{text}")
        return done.stdout

    def attach(self, machine, pid, load, tree=False, seconds=6):
        """Attaches while `load` (called again and again) keeps the target busy; the JSON result."""
        if self.same:
            return None
        stop, problems = threading.Event(), []

        def busy():
            try:
                while not stop.is_set():
                    load()
            except Exception as problem:  # it is reported by the thread that waits
                problems.append(problem)

        thread = threading.Thread(target=busy)
        thread.start()
        result = machine.path("attach.json")
        try:
            arguments = ["attach", str(pid), "--duration", str(seconds), "--measure", "0", "--json", result]
            self.call(arguments + (["--tree"] if tree else []))
        finally:
            stop.set()
            thread.join()
        if problems:
            raise Failed(f"the load failed during the attach: {problems[0]}")
        with open(result) as f:
            return json.load(f)

    def optimize(self, machine, program, training, output, **options):
        """Records each training command, merges nothing: the first one is the profile. The JSON result of optimize."""
        if self.same:
            from .machine import copy_as_written

            copy_as_written(program, output)
            return None
        profile, raw, result = machine.path("profile"), machine.path("raw"), machine.path("optimize.json")
        self.call(["record", "-o", profile, "--", *training], **options)
        self.call(["optimize", program, "--profile", profile, "-o", raw, "--json", result])
        from .machine import copy_as_written

        copy_as_written(raw, output)
        with open(result) as f:
            return json.load(f)
