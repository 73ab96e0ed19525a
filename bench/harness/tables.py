"""What the commands that make a table share: which loads, how often, where the table goes."""

import argparse
import json
import os
import shlex
import sys

from . import report
from .machine import Failed, Missing

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


class Table:
    """A table. Each whole run writes it to a new file of bench/results, named after `question`; where there are
    `marks`, it also takes the place of what is between them in docs/benchmarks.md.

    `measure(name, options, log)` gives the row of one load (None if it was only to show that it runs), `text(rows, options)` the table. `rounds` is the default of --rounds;
    with `quick`, another default for --quick, which shows that the command runs and writes no table to a file. `raw` names the
    file in out/bench that keeps the rows; `kind` stands in place of the processor where that hardly matters."""

    def __init__(self, prog, about, loads, measure, text, question, marks, rounds, quick=None, raw=None, kind=None):
        self.prog, self.about, self.loads, self.measure, self.text = prog, about, loads, measure, text
        self.question, self.marks, self.rounds, self.quick, self.raw, self.kind = question, marks, rounds, quick, raw, kind

    def options(self, argv, add=lambda parser: None, settle=lambda options: None):
        parser = argparse.ArgumentParser(prog=self.prog, description=self.about, formatter_class=argparse.RawDescriptionHelpFormatter)
        parser.add_argument("loads", nargs="*", choices=[[], *self.loads], metavar="LOAD", help=f"all, if none is named: {', '.join(self.loads)}".replace("%", "%%"))
        quick = f"; {self.quick} with --quick" if self.quick else ""
        parser.add_argument("--rounds", type=int, help=f"default {self.rounds}{quick}")
        if self.quick:
            parser.add_argument("--quick", action="store_true", help="shows that it runs; prints the table")
        parser.add_argument("--no-page", action="store_true", help="print the table instead of writing it to bench/results")
        parser.add_argument("--restitch", default=os.path.join(ROOT, "target/release/restitch"))
        add(parser)
        options = parser.parse_args(argv)
        options.quick = bool(self.quick and options.quick)
        options.rounds = options.rounds or (self.quick if options.quick else self.rounds)
        options.restitch = os.path.abspath(options.restitch)
        settle(options)
        return options

    def main(self, argv, add=lambda parser: None, settle=lambda options: None):
        """The command; its exit code. `add` gives the parser more options, `settle` completes what was given."""
        options = self.options(argv, add, settle)
        log = lambda text: print(text, file=sys.stderr, flush=True)
        rows, failed = [], False
        for name in options.loads or self.loads:
            log(name)
            try:
                row = self.measure(name, options, log)
                rows += [row] if row else []
                self.keep(rows)
            except Missing as missing:
                log(f"  left out: {missing}")
            except Failed as problem:
                failed = True
                log(f"  failed: {problem}")
        if not rows and options.quick:
            return 1 if failed else 0
        if not rows:
            sys.exit("nothing was measured")
        text = self.text(rows, options)
        if options.quick or options.no_page or options.loads:
            print(text)
        else:
            self.write(text, shlex.join([*self.prog.split(), *argv]), log)
        return 1 if failed else 0

    def write(self, text, command, log):
        title = self.about.strip().split("\n")[0]
        log(f"written to {report.write_result(os.path.join(ROOT, 'bench', 'results'), self.question, title, command, text, self.kind)}")
        if self.marks:
            report.insert(os.path.join(ROOT, "docs", "benchmarks.md"), text, *self.marks)

    def keep(self, rows):
        """After each load: what was measured is not lost with a command that is ended before the last one."""
        if self.raw and rows:
            folder = os.path.join(ROOT, "out", "bench")
            os.makedirs(folder, exist_ok=True)
            with open(os.path.join(folder, self.raw), "w") as f:
                json.dump(rows, f, indent=1)
