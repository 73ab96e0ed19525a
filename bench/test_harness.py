"""Tests of the harness itself: python3 -B -m unittest discover -s bench"""

import json
import os
import tempfile
import unittest
from types import SimpleNamespace

from harness import counters, counting_live, pauses, report, side_by_side, stats
from harness.machine import Failed, Machine, Missing, find, wait_for
from harness.main import LOADS, parse
from harness.rounds import interleave
from harness.tables import Table


class Stats(unittest.TestCase):
    def test_interval_is_made_of_order_statistics(self):
        self.assertEqual(stats.interval(list(range(11))), (1, 9, 1 - 2 * 12 / 2**11))
        low, high, reached = stats.interval([3, 1, 2])
        self.assertEqual((low, high), (1, 3))
        self.assertAlmostEqual(reached, 0.75)
        self.assertEqual(stats.interval([5])[:2], (5, 5))
        self.assertEqual(stats.interval([5])[2], 0.0)

    def test_ratios_are_taken_within_rounds(self):
        rounds = [{"original": {"c": a}, "optimized": {"c": a * 0.9}} for a in (1.0, 100.0, 10.0, 50.0, 3.0, 7.0)]
        summary = stats.ratios(rounds)["c"]
        self.assertAlmostEqual(summary["ratio"], 0.9)
        self.assertEqual(summary["rounds"], 6)
        self.assertEqual(stats.verdict(summary), "faster")

    def test_verdict_needs_the_whole_interval(self):
        self.assertEqual(stats.verdict({"low": 0.9, "high": 1.01, "confidence": 0.97}), "unclear")
        self.assertEqual(stats.verdict({"low": 1.01, "high": 1.1, "confidence": 0.97}), "slower")
        self.assertEqual(stats.verdict({"low": 0.8, "high": 0.9, "confidence": 0.75}), "too few rounds")

    def test_a_counter_that_read_nothing_is_left_out(self):
        rounds = [{"original": {"c": 1.0, "d": 0.0}, "optimized": {"c": 1.0, "d": 3.0}}]
        self.assertEqual(list(stats.ratios(rounds)), ["c"])


class Counters(unittest.TestCase):
    def test_perf_output_is_read(self):
        text = "# started\n\n0.72,msec,task-clock,716371,100.00,0.007,CPUs utilized\n<not supported>,,cycles:u,0,100.00,,\n12,,rc4:u,1,100.00,,\n"
        events = {"cpu_time_ns": "task-clock", "cycles": "cycles:u", "taken_branches": "rc4:u"}
        self.assertEqual(counters.parse(text, events), {"cpu_time_ns": 720000.0, "taken_branches": 12.0})

    def test_no_more_events_than_a_guest_counts(self):
        for events in (counters.AMD, counters.INTEL, counters.OTHER, counters.CLOCK):
            self.assertLessEqual(len(events), 5)
            self.assertLessEqual(set(events), set(counters.NAMES))


class Rounds(unittest.TestCase):
    def test_sides_alternate(self):
        order = []
        rounds = interleave(3, lambda side: order.append(side) or {"c": len(order)}, lambda _: None)
        self.assertEqual(order, ["original", "optimized", "optimized", "original", "original", "optimized"])
        self.assertEqual(rounds[1], {"original": {"c": 4}, "optimized": {"c": 3}})


class Report(unittest.TestCase):
    def test_results_become_a_table_between_the_markers(self):
        arguments = SimpleNamespace(quick=False, same=False)
        rounds = [{"original": {"cycles": 10.0, "l1i_misses": 4.0}, "optimized": {"cycles": 9.0, "l1i_misses": 1.0}}] * 6
        row = {"title": "x, live", "unit": "request", "rounds": rounds, "summary": stats.ratios(rounds), "restitch": "restitch 1"}
        row["attach"] = {"apply": {"pause_us": 1500, "in_force_ms": 2500}, "phases": [{"name": "a", "ms": 2000}, {"name": "b", "ms": 500}]}
        with tempfile.TemporaryDirectory() as folder:
            with open(f"{folder}/redis.json", "w") as f:
                json.dump(report.record("redis", [row], "cycles", "how", arguments), f)
            table = report.table(folder, LOADS)
            self.assertIn("| x, live | 6 | 0.900 [0.900, 0.900] | 0.250 | faster | 1.5 ms | 2.5 s |", table)
            page = f"{folder}/page.md"
            with open(page, "w") as f:
                f.write(f"a\n{report.BEGIN}\nold\n{report.END}\nb\n")
            report.insert(page, table)
            report.insert(page, table)
            with open(page) as f:
                self.assertEqual(f.read(), f"a\n{report.BEGIN}\n{table}{report.END}\nb\n")
            with open(page, "w") as f:
                f.write("no markers")
            self.assertRaises(OSError, report.insert, page, table)

    def test_pauses_become_tables(self):
        parts = [{"name": n, "us": us} for n, us in ((pauses.COUNTING, 2000), (pauses.LAYOUT, 1000), (pauses.PART + "stopping threads", 700), (pauses.HELD, 300))]
        attach = {
            "apply": {"in_force_ms": 8200, "pause_us": 3000, "pause_parts": parts, "patches": 5000},
            "target": {"threads": 4},
            "modules": [{"code_bytes": 1 << 20}],
            "phases": [{"name": "sampling", "ms": 2000}, {"name": "layout", "ms": 40}, {"name": "check", "ms": 60}],
            "peak_memory_bytes": 10 << 20,
        }
        rows = [{"title": "demo", "rounds": [{"attach": attach, "revert_us": 500.0}] * 3}]
        paused, planned = pauses.pause_table(rows)[2], pauses.plan_table(rows)
        self.assertIn("| 1.00 (1.00 to 1.00) | 2.00 (2.00 to 2.00) | stopping threads 0.70 | 0.50", paused)
        self.assertNotIn("sampling", planned[0])
        self.assertIn("| 1.0 | 8.2 (8.2 to 8.2) | 100 (100 to 100) | 40 | 60 | 10 (10 to 10) |", planned[2])

    def test_counting_is_compared_with_before_and_after(self):
        rounds = lambda ratio: [{"original": {"c": 2.0}, "optimized": {"c": 2.0 * ratio}}] * 6
        counted = [{"blocks": 100, "counters_per_block": 0.5}, {"blocks": 300, "counters_per_block": 0.25}]
        phases = dict(zip(counting_live.PHASES, map(rounds, (1.0, 1.1, 1.01))))
        row = {"title": "x", "restitch": "restitch 1", "measured": "how", "deciding": "c", "phases": phases, "counted": counted}
        text = counting_live.table([row], SimpleNamespace(rounds=3, quick=False))
        self.assertIn("| x | 1.000 (1.000 to 1.000, 6) | 1.100 (1.100 to 1.100, 6) | 1.010 (1.010 to 1.010, 6) | 400 | 0.312 |", text)

    def test_a_table_has_its_options(self):
        made = Table("p", "about", {"a": 1, "b": 2}, None, None, "p.md", ("x", "y"), 11, 2)
        self.assertEqual((made.options([]).rounds, made.options(["--quick"]).rounds, made.options(["--rounds", "3", "a"]).rounds), (11, 2, 3))
        self.assertFalse(Table("p", "about", {}, None, None, "p.md", ("x", "y"), 11).options([]).quick)

    def test_both_tools_get_a_row(self):
        caches = {side: {"I1": n, "I": 10 * n} for side, n in zip(side_by_side.SIDES, (100, 50, 40))}
        row = {
            "title": "x", "made": {s: (1.5, 1 << 20) for s in side_by_side.SIDES[1:]}, "caches": {"training": caches, "test": caches},
            "rounds": [{"restitch": 0.9, "llvm-bolt": 0.8}] * 6, "sizes": dict.fromkeys(side_by_side.SIDES, 2 << 20),
        }
        lines = side_by_side.table([row])
        self.assertIn("restitch | 0.500 | 0.500 | 0.500 | 0.900 [0.900, 0.900] | 1.50 s | 1 MiB | 2.0 MiB", lines[2])
        self.assertIn("llvm-bolt | 0.400", lines[3])

    def test_functions_that_llvm_bolt_cannot_take_are_left_out(self):
        says = "BOLT-ERROR: no address in function {}. Consider adding this function to --skip-funcs=..."
        script = 'case "$*" in *one,two*) exit 0;; *one*) echo "' + says.format("two(*2)") + '";; *) echo "' + says.format("one") + '";; esac; exit 1'
        *finished, left_out = side_by_side.bolted(["sh", "-c", script, "bolt"], "/")
        self.assertEqual((len(finished), left_out), (2, ["one", "two"]))
        with self.assertRaises(Failed):
            side_by_side.bolted(["sh", "-c", 'echo "some other error"; exit 1'], "/")

    def test_no_results_are_no_error(self):
        self.assertEqual(report.table("nowhere", LOADS), "No results yet.\n")


class OnThisMachine(unittest.TestCase):
    def test_nothing_outlives_its_machine(self):
        with Machine(print) as machine:
            folder = machine.folder
            child = machine.start(["sh", "-c", "trap '' TERM; sleep 100 & touch ready; wait; wait"], stop=9)
            wait_for("sh", lambda: os.path.exists(machine.path("ready")))
            self.assertRaises(Failed, machine.run, ["sh", "-c", "exit 3"])
        self.assertFalse(os.path.exists(folder))
        self.assertRaises(ProcessLookupError, os.kill, child.pid, 0)

    def test_what_is_missing_has_a_name(self):
        self.assertRaisesRegex(Missing, "no-such-program is not installed", find, "no-such-program")

    def test_every_load_has_its_file(self):
        folder = os.path.join(os.path.dirname(os.path.abspath(__file__)), "loads")
        self.assertEqual(sorted(LOADS), sorted(n[:-3] for n in os.listdir(folder) if n.endswith(".py") and n != "__init__.py"))
        self.assertEqual(parse(["redis", "--quick"]).loads, ["redis"])


if __name__ == "__main__":
    unittest.main()
