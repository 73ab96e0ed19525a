"""Tests of the harness itself: python3 -B -m unittest discover -s bench"""

import contextlib
import io
import json
import os
import struct
import subprocess
import sys
import tempfile
import unittest
from types import SimpleNamespace
from unittest import mock

from harness import attaches, bolt_inputs, commands, continuous, counters, counting_live, identical, kernel, layout_inputs, layouts, models, overlays, pairs, pauses, rebuilt_kernels, report, side_by_side, simulated, stand_in, stats, variants, verilog, works
from harness.machine import Failed, Machine, Missing, find, wait_for
from harness.main import LOADS, Context, parse
from harness.rounds import in_turns, interleave, interleave_inputs
from harness.stats import between
from harness.tables import Table


class Commands(unittest.TestCase):
    def test_every_command_describes_itself(self):
        entry = os.path.join(os.path.dirname(os.path.abspath(__file__)), "bench")
        listed = subprocess.run([entry, "--help"], capture_output=True, text=True, check=True).stdout
        for name, command in commands.COMMANDS.items():
            self.assertIn(f"  {name} ", listed)
            self.assertIn(command.question, listed)
            with contextlib.redirect_stdout(io.StringIO()) as out, self.assertRaises(SystemExit) as end:
                commands.main([*name.split(), "--help"])
            self.assertEqual(end.exception.code, 0)
            self.assertTrue(out.getvalue().startswith(f"usage: bench/bench {name} "), out.getvalue())

    def test_a_name_of_two_words_comes_first(self):
        self.assertEqual(commands.find(["counting", "--live", "postgres"]), (commands.COMMANDS["counting --live"], ["postgres"]))
        self.assertEqual(commands.find(["counting", "dash", "--live"]), (commands.COMMANDS["counting"], ["dash", "--live"]))

    def test_a_wrong_command_is_refused(self):
        for argv in ([], ["gone"], ["Run"]):
            with self.assertRaisesRegex(SystemExit, "Commands: run, bar, .*bench/bench --help"):
                commands.main(argv)

    def test_the_readme_has_the_same_table(self):
        with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "README.md")) as f:
            table = f.read().split("## Commands")[1].split("## ")[0]
        rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines() if line.startswith("| ")]
        told = {row[1].strip("`"): (row[0], row[4]) for row in rows[1:]}
        self.assertEqual(told, {name: (command.question, command.needs) for name, command in commands.COMMANDS.items()})


class Kernel(unittest.TestCase):
    WINDOW = """window {}, kernel code:
  instructions                         {:>15}
  (of programs)                         25169661
  taken branches                        14373160
  lines for 90, 99, 99.9 %      919    1245    1389  of 2809
  pages for 90, 99, 99.9 %      104     166     188  of 358
  lines fetched (model)                 18384062
  L1i misses (model)                    10356465
  iTLB misses (model)                          8
  interruptions                               31
  steps without explanation            {:>15}
"""

    def test_what_the_plugin_counted_becomes_figures_of_a_request(self):
        found = kernel.windows("something else\n" + self.WINDOW.format(0, 4000, 0) + self.WINDOW.format(1, 2000, 1))
        of = kernel.figures(found[0], 1000)
        self.assertEqual([of[name] for name in ("instructions", "L1i misses", "lines at 99 %", "pages at 99.9 %")], [4, 10356.465, 1245, 188])
        with self.assertRaisesRegex(Failed, "cannot explain 1 steps"):
            kernel.figures(found[1], 1000)

    def test_only_aims_that_are_met_are_bold(self):
        before = kernel.figures(kernel.windows(self.WINDOW.format(0, 4000, 0))[0], 1000)
        after = {**before, "lines at 99 %": 872, "pages at 99 %": 49}
        row = {"load": "redis", "kernel": "6.1", "before": before, "after": after, "group": {"functions": 3, "roots": 1, "hot_bytes": 2000}}
        lines = kernel.text([row], SimpleNamespace(hottest="99%", requests=1000)).splitlines()
        cell = lambda name: next(line for line in lines if line.startswith(f"| {name} |"))
        self.assertEqual(cell("pages at 99 %"), "| pages at 99 % | 166, 49: **0.295** |")
        self.assertEqual(cell("lines at 99 %"), "| lines at 99 % | 1,245, 872: **0.700** |")
        self.assertEqual(cell("taken branches"), "| taken branches | 14,373, 14,373: 1.000 |")
        self.assertTrue(cell("iTLB misses").endswith(": - |"))

        beside = kernel.text([{**row, "autofdo": before}], SimpleNamespace(hottest="99%", requests=1000))
        self.assertIn("AutoFDO", beside)
        self.assertIn("; 4: 1.000", beside)

    def test_what_was_executed_is_a_profile_of_straight_runs(self):
        # A loop of two instructions that ends with a branch, what follows it, and code elsewhere.
        executed = [(0x100, 4, 10), (0x104, 2, 10), (0x106, 3, 1), (0x109, 1, 1), (0x200, 1, 1)]
        self.assertEqual(rebuilt_kernels.straight_runs(executed, {0x104}), [(0x100, 0x104, 10), (0x106, 0x109, 1), (0x200, 0x200, 1)])

    def test_the_order_of_sections_is_changed_once_and_not_in_a_header_that_is_not_known(self):
        known = ("#define TEXT_MAIN .text\n#define TEXT_TEXT \\\n\t\t*(.text.hot .text.hot.*)\t\\\n\t\t*(TEXT_MAIN .text.fixup)\t\\\n"
                 "\t\t*(.text.unlikely .text.unlikely.*)\t\\\n\t\t*(.text.unknown .text.unknown.*)\t\\\n")
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "header")
            with open(path, "w") as f:
                f.write(known)
            rebuilt_kernels.part_text(path)
            with open(path) as f:
                text = f.read()
            self.assertLess(text.index(".text.split"), text.index(".text.hot"))
            self.assertLess(text.index(".text.hot"), text.index("TEXT_MAIN .text.fixup"))
            with self.assertRaises(Failed):
                rebuilt_kernels.part_text(path)


class Identical(unittest.TestCase):
    def test_differences_are_named_with_their_place(self):
        self.assertEqual(identical.compare("x", {"a": b"abcd"}, {"a": b"abcd"}), [])
        self.assertEqual(identical.compare("x", {"a": b"abcd"}, {"a": b"aXcY"}), ["x a: 2 of 4 bytes, from 0x1 to 0x3"])
        self.assertEqual(identical.compare("x", {16: b"ab"}, {16: b"abc"}), ["x 0x10: sizes 2 and 3; the shorter one is the longer one's beginning"])
        self.assertEqual(identical.compare("x", {"a": b"", "b": b""}, {"a": b"", "c": b""}), ["x b: only base has it", "x c: only new has it"])

    def test_what_could_not_be_compared_is_not_the_same(self):
        for found, code in (([], 0), (["x"], 1), (Missing("gone"), 1)):
            effect = found if isinstance(found, Exception) else [found]
            with mock.patch.object(identical, "check", side_effect=effect), contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
                self.assertEqual(identical.main(["/bin/true", "/bin/true", "libc"]), code)


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


    def test_user_time_is_its_share_of_the_processor_time(self):
        counting = counters.Counting(counters.CLOCK)
        counting.values = {"cpu_time_ns": 1000.0}
        counting.split(3, 1)
        self.assertEqual(counting.values, {"cpu_time_ns": 1000.0, counters.USER: 750.0})
        counting.values = {"cycles": 5.0}
        counting.split(3, 1)
        self.assertEqual(counting.values, {"cycles": 5.0})

    def test_descendants_count_and_others_do_not(self):
        busy = "import time\nwhile time.process_time() < 0.2: pass"
        shell = subprocess.Popen(["sh", "-c", f"'{sys.executable}' -c '{busy}'; echo; read end"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        try:
            shell.stdout.readline()
            self.assertGreaterEqual(sum(counters.times([shell.pid])), 0.15 * os.sysconf("SC_CLK_TCK"))
        finally:
            shell.communicate(b"end\n")
        self.assertEqual(counters.times([shell.pid]), (0, 0))


class Overlays(unittest.TestCase):
    """Commands on several sides, which are told by their environment here."""

    def run_round(self, line, turn=0, sides=(overlays.WARM, "1")):
        if not stand_in.is_possible():
            self.skipTest("mounts of its own are not permitted here")
        with tempfile.TemporaryDirectory() as place:
            folders = [os.path.join(place, name) for name in ("folder", "a", "b")]
            for folder in folders:
                os.mkdir(folder)
            environments = {side: dict(os.environ, SIDE=side) for side in (overlays.PLAIN, *sides)}
            command = ["sh", "-c", line, "sh", folders[0]]
            cpu = min(os.sched_getaffinity(0))
            runs = overlays.one_round(folders[0], {cpu: folders[1:]}, [("a", command), ("b", command)], environments, turn)
            return runs, [os.listdir(folder) for folder in folders]

    def test_each_command_runs_on_all_sides(self):
        runs, written = self.run_round('i=0; while [ $i -lt 20000 ]; do i=$((i + 1)); done; echo done > "$1/out"')
        self.assertEqual([(run["kind"], *run) for run in runs], [(kind, "kind", "plain", side) for kind in "ab" for side in ("warm", "1")])
        for run in runs:
            for side in set(run) - {"kind"}:
                self.assertGreater(run[side]["cpu"], 0)
                self.assertAlmostEqual(run[side]["cpu"], run[side]["user"] + run[side]["system"])
        # Each has written to a folder of its own, and to the same path.
        self.assertEqual(written, [[], ["out"], ["out"]])

    def test_which_copy_is_whose_changes(self):
        for turn in range(2):
            with tempfile.TemporaryDirectory() as log:
                self.run_round(f'stat -c %i "$1" > {log}/$$.$SIDE', turn, [overlays.WARM])
                inodes = {}
                for name in sorted(os.listdir(log), key=lambda name: int(name.split(".")[0])):
                    with open(os.path.join(log, name)) as f:
                        inodes.setdefault(name.split(".")[1], []).append(f.read())
            self.assertEqual(sorted(inodes), ["plain", "warm"])
            for seen in inodes.values():
                self.assertEqual(len(set(seen)), 2, inodes)

    def test_what_differs_or_fails_is_no_figure(self):
        forgets = '[ "$SIDE" = warm ] || echo done > "$1/out"'
        for line in ('echo "$SIDE"', 'echo "$SIDE" > "$1/out"', forgets, "exit 3"):
            with self.assertRaises(Failed):
                self.run_round(line)

    def test_ratios_are_of_whole_rounds(self):
        run = lambda plain, warm: {"kind": "a", "plain": {"cpu": plain}, "warm": {"cpu": warm}}
        rounds = [[run(1.0, 0.5), run(3.0, 3.0)], [run(10.0, 9.0)], [run(2.0, 1.4), run(2.0, 1.4)]]
        self.assertEqual(overlays.ratio(rounds, "warm", "cpu"), "0.875 (0.700 to 0.900)")
        self.assertEqual(overlays.ratio(rounds, "plain", "cpu", "warm"), "1.143 (1.111 to 1.429)")


class Works(unittest.TestCase):
    """Whole works beside themselves."""

    def work(self, machine, writes):
        folder = machine.path("work")
        os.mkdir(folder)
        # What would be `restitch batch` says what it used, and runs the command.
        batch = lambda cache, result: ["sh", "-c", f'echo \'{{"own_seconds": 0.5, "sampling_seconds": 0.25}}\' > "$0"; SIDE=first; {writes}', result]
        return SimpleNamespace(machine=machine, folder=folder, command=["sh", "-c", writes], batch=batch)

    def rounds(self, writes):
        if not stand_in.is_possible():
            self.skipTest("mounts of its own are not permitted here")
        with Machine(print) as machine:
            work = self.work(machine, f'cd "{machine.path("work")}"; i=0; while [ $i -lt 20000 ]; do i=$((i + 1)); done; {writes}')
            pristine = machine.path("pristine")
            os.mkdir(pristine)
            with contextlib.redirect_stdout(io.StringIO()):
                found = works.rounds_of(work, pristine, {}, [works.PLAIN, works.FIRST], 3, lambda _: None)
            return found, os.listdir(work.folder)

    def test_both_run_in_copies(self):
        rounds, left = self.rounds("[ ! -e out ] && echo done > out")
        self.assertEqual([list(r) for r in rounds], [[works.PLAIN, works.FIRST]] * 3)
        self.assertEqual(left, [])
        self.assertGreater(min(run["cpu"] for r in rounds for both in r.values() for run in both), 0)
        self.assertEqual([set(both[1]) - set(both[0]) for both in rounds[0].values()], [set(), {"own", "sampling"}])

    def test_other_files_are_no_figure(self):
        with self.assertRaises(Failed):
            self.rounds('echo "$SIDE" > out')

    def test_ratios_are_of_pairs(self):
        run = lambda cpu, **more: {"cpu": cpu, **more}
        rounds = [{"first": [run(2.0), run(2.1, own=0.1)]}, {"first": [run(4.0), run(4.0, own=0.1)]}, {"first": [run(1.0), run(0.9, own=0.1)]}]
        self.assertEqual(works.ratio(rounds, "first"), "1.000 (0.900 to 1.050)")
        self.assertEqual(works.share(rounds, "first", "own"), "5.0 %")
        self.assertEqual(works.share(rounds, "first", "sampling"), "-")


class Rounds(unittest.TestCase):
    def test_sides_alternate(self):
        order = []
        rounds = interleave(3, lambda side: order.append(side) or {"c": len(order)}, lambda _: None)
        self.assertEqual(order, ["original", "optimized", "optimized", "original", "original", "optimized"])
        self.assertEqual(rounds[1], {"original": {"c": 4}, "optimized": {"c": 3}})

    def test_sides_alternate_at_each_input(self):
        order = []
        measure = lambda side, each: order.append((side[:2], each)) or {"c": each * (1 if side == "original" else 10)}
        rounds = interleave_inputs(2, [1, 3], measure, lambda _: None)
        both = lambda first, each: [(side, each) for side in (("or", "op") if first == "or" else ("op", "or"))]
        self.assertEqual(order, both("or", 1) + both("op", 3) + both("op", 1) + both("or", 3))
        self.assertEqual(rounds, [{"original": {"c": 2.0}, "optimized": {"c": 20.0}}] * 2)

    def test_three_sides_take_turns(self):
        order = []
        rounds = in_turns(4, ("a", "b", "c"), lambda side: order.append(side) or len(order))
        self.assertEqual("".join(order), "abc" "acb" "cab" "cba")
        self.assertEqual(rounds[1], {"a": 4, "c": 5, "b": 6})
        self.assertEqual(between([{"a": {"x": 2.0}, "b": {"x": 4.0}}] * 6, "x", "a", "b"), "0.500 [0.500, 0.500]")
        self.assertEqual(between([{"a": {"x": 2.0}, "b": {}}], "x", "a", "b"), "-")

    def test_short_rounds_do_the_same_work(self):
        of = lambda quick, rounds: Context(None, None, None, SimpleNamespace(quick=quick, rounds=rounds), None)
        long, quick = of(False, 11), of(True, None)
        self.assertEqual(long.short_rounds() * long.short(8000), long.rounds * long.amount(8000))
        self.assertEqual((quick.short_rounds(), quick.short(8000), of(False, 3).short(3)), (3, 800, 1))


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

    def test_models_are_compared_with_what_was_measured(self):
        self.assertEqual(models.ranks([30, 10, 20, 10]), [3, 0.5, 2, 0.5])
        sides = [models.ORIGINAL, *models.FUNCTIONS, *models.BLOCKS]
        model = {side: {event: float(n) for event in (*models.EVENTS, models.COST)} for n, side in enumerate(sides)}
        # What is measured follows the models, but for taken branches, which are all the same, and page walks, which go the other way.
        measured = lambda n: {"l1i": 10 + 2 * n, "l2": 1 + n * n, "itlb": n + 1, "walks": 100 - n, "taken": 7}
        row = {"title": "x", "restitch": "restitch 1", "models": {m: {"walk": model, "records": model} for m in (models.HASWELL, models.THIS)}}
        row |= {"simulated": {side: measured(n) for n, side in enumerate(sides)}, "times": {side: 1 - n / 100 for n, side in enumerate(sides)}}
        text = models.page([row], None)
        self.assertIn("nothing was compared with counters", text)
        self.assertIn("| x | L1i misses | simulation | 1.000 to 3.600 | 1.000 (1.00) | 1.000 (1.00) | 1.000 (1.00) | 1.000 (1.00) |", text)
        self.assertRegex(text, r"L2 code misses \| simulation \| [^|]* \| 0\.9\d\d \(1\.00\)")
        self.assertIn("| page walks | simulation | 0.870 to 1.000 | -1.000 (-1.00) |", text)
        self.assertIn("| taken branches | simulation | 1.000 to 1.000 | - | - | - | - |", text)
        self.assertIn("| processor time | clock | 0.870 to 1.000 | -1.000 (-1.00) |", text)
        counted = {side: {"cycles": 1000 + n, "l1i_misses": 5 + n, "taken_branches": 50 - n} for n, side in enumerate(sides)}
        text = models.page([row | {"counted": counted}], None)
        self.assertNotIn("no PMU", text)
        self.assertIn("| x | cycles | counter | 1.000 to 1.013 | 1.000 (1.00) |", text)
        self.assertIn("| x | taken branches | counter | 0.740 to 1.000 | -1.000 (-1.00) |", text)

    def test_attaches_of_two_builds_are_compared_round_by_round(self):
        def attach(own, active):
            return {"phases": [{"name": "layout", "ms": own}, {"name": "counting", "ms": 2000}], "apply": {"in_force_ms": active}}

        seen = {(way, 0): [attach(10, 100), attach(20, 200), attach(40, 100)] for way in attaches.WAYS}
        seen |= {(way, 1): [attach(20, 100), attach(20, 100), attach(20, 100)] for way in attaches.WAYS}
        rows = list(attaches.rows("redis", seen))
        self.assertEqual(rows[0], "| redis, given | own work | 20 | 20 | 1.000 | 0.500 to 2.000 |")
        self.assertEqual(rows[3], "| redis, counted | active after | 100 | 100 | 1.000 | 0.500 to 1.000 |")
        by_phase = list(attaches.rows("redis", seen, by_phase=True))
        self.assertEqual(by_phase[2], "| redis, given | layout | 20 | 20 | 1.000 | 0.500 to 2.000 |")
        self.assertEqual([row for row in by_phase if "layout" not in row], rows)

    def test_pauses_become_tables(self):
        parts = [{"name": n, "us": us} for n, us in ((pauses.COUNTING, 2000), (pauses.LAYOUT, 1000), (pauses.PART + "stopping threads", 700), (pauses.HELD, 300))]
        attach = {
            "apply": {"in_force_ms": 8200, "pause_us": 3000, "pause_parts": parts, "patches": 5000},
            "target": {"threads": 4},
            "modules": [{"code_bytes": 1 << 20}],
            "phases": [{"name": "sampling", "ms": 2000}, {"name": "layout", "ms": 40}, {"name": "check", "ms": 60}],
            "peak_memory_bytes": 10 << 20,
        }
        rows = [{"title": "demo", "rounds": [{"attach": attach, "given": {"apply": {"in_force_ms": 600}}, "revert_us": 500.0}] * 3}]
        paused, planned = pauses.pause_table(rows)[2], pauses.plan_table(rows)
        self.assertIn("| 1.00 (1.00 to 1.00) | 2.00 (2.00 to 2.00) | stopping threads 0.70 | 0.50", paused)
        self.assertNotIn("sampling", planned[0])
        self.assertIn("| 1.0 | 8.2 (8.2 to 8.2) | 0.6 (0.6 to 0.6) | 100 (100 to 100) | 40 | 60 | 10 (10 to 10) |", planned[2])

    def test_counting_is_compared_with_before_and_after(self):
        rounds = lambda ratio: [{"original": {"c": 2.0}, "optimized": {"c": 2.0 * ratio}}] * 6
        counted = [{"blocks": 100, "counters_per_block": 0.5}, {"blocks": 300, "counters_per_block": 0.25}]
        phases = dict(zip(counting_live.PHASES, map(rounds, (1.0, 1.2, 1.1, 1.01))))
        row = {"title": "x", "restitch": "restitch 1", "measured": "how", "deciding": "c", "phases": phases, "counted": counted}
        text = counting_live.table([row], SimpleNamespace(rounds=3, quick=False))
        self.assertIn("| x | 1.000 (1.000 to 1.000, 6) | 1.200 (1.200 to 1.200, 6) | 1.100 (1.100 to 1.100, 6) | 1.010 (1.010 to 1.010, 6) | 400 | 0.312 |", text)

    def test_a_table_has_its_options(self):
        made = Table("p", "about", {"a": 1, "b": 2}, None, None, "question", ("x", "y"), 11, 2)
        self.assertEqual((made.options([]).rounds, made.options(["--quick"]).rounds, made.options(["--rounds", "3", "a"]).rounds), (11, 2, 3))
        self.assertFalse(Table("p", "about", {}, None, None, "question", ("x", "y"), 11).options([]).quick)

    def test_a_table_goes_to_its_page_and_its_rows_are_kept_as_they_come(self):
        with tempfile.TemporaryDirectory() as root, mock.patch("harness.tables.ROOT", root):
            os.mkdir(os.path.join(root, "docs"))
            os.makedirs(os.path.join(root, "bench", "results"))
            page, raw = os.path.join(root, "docs", "benchmarks.md"), os.path.join(root, "out", "bench", "p.json")
            with open(page, "w") as f:
                f.write("head\n<x>\nold\n<y>\ntail\n")

            def measure(name, options, log):
                if name == "second":
                    with open(raw) as f:
                        self.assertEqual(json.load(f), ["first"])
                return name

            made = Table("p", "about", {"first": 1, "second": 2}, measure, lambda rows, options: f"{rows}\n", "question", ("<x>", "<y>"), 1, raw="p.json")
            with mock.patch("sys.stderr", io.StringIO()):
                self.assertEqual(made.main([]), 0)
            with open(page) as f:
                self.assertEqual(f.read(), "head\n<x>\n['first', 'second']\n<y>\ntail\n")
            with open(raw) as f:
                self.assertEqual(json.load(f), ["first", "second"])
            written = os.listdir(os.path.join(root, "bench", "results"))
            self.assertRegex(" ".join(written), r"^\d{4}-\d\d-\d\d-\w+-question.md$")
            with open(os.path.join(root, "bench", "results", written[0])) as f:
                self.assertEqual(f.read(), "# about\n\nMade by `p`.\n\n['first', 'second']\n")

    def test_lines_of_prose_are_broken_and_rows_are_not(self):
        row, words = "| " + "x " * 100 + "|", "word " * 40
        lines = report.wrapped(f"{words.strip()}\n\n{row}\n").split("\n")
        self.assertEqual([len(line) <= 118 for line in lines], [True, True, True, False, True])
        self.assertEqual(lines[3:], [row, ""])

    def test_a_result_is_never_written_over(self):
        with tempfile.TemporaryDirectory() as folder:
            paths = [report.write_result(folder, "q", "Title", "bench/x", text) for text in ("old\n", "new\n")]
            self.assertEqual(paths[1], paths[0].replace(".md", "-2.md"))
            with open(paths[0]) as f:
                self.assertEqual(f.read(), "# Title\n\nMade by `bench/x`.\n\nold\n")

    def test_both_tools_get_a_row(self):
        caches = {side: {"I1": n, "I": 10 * n} for side, n in zip(side_by_side.SIDES, (100, 50, 40))}
        row = {
            "title": "x", "made": {s: (1.5, 1 << 20) for s in side_by_side.SIDES[1:]}, "caches": {"training": caches, "test": caches},
            "rounds": [{"restitch": 0.9, "llvm-bolt": 0.8, side_by_side.AGAINST: 1.125}] * 6, "sizes": dict.fromkeys(side_by_side.SIDES, 2 << 20),
        }
        lines = side_by_side.table([row])
        self.assertIn("restitch | 0.500 | 0.500 | 0.500 | 0.900 [0.900, 0.900] | 1.125 [1.125, 1.125] | 1.50 s | 1 MiB | 2.0 MiB", lines[2])
        self.assertIn("llvm-bolt | 0.400", lines[3])

    def test_what_is_compared_with_llvm_bolt_can_be_repeated(self):
        self.assertEqual(len({len(name) for name in side_by_side.FILES.values()}), 1)
        for name, load in bolt_inputs.LOADS.items():
            self.assertTrue(load.package or load.texts, name)
            self.assertTrue(any("-Wl,-q" in step for step in load.build), name)
        redis = bolt_inputs.Redis.__new__(bolt_inputs.Redis)
        made = {which: list(redis.commands(which)) for which in ("training", "test")}
        self.assertEqual(made["test"], list(redis.commands("test")))
        self.assertLess(set(c.split()[0] for c in made["training"]), set(c.split()[0] for c in made["test"]))
        self.assertEqual(redis.encoded(["GET", "a'b"]), "*2\r\n$3\r\nGET\r\n$3\r\na'b\r\n")

    def test_a_built_program_is_not_built_again(self):
        with tempfile.TemporaryDirectory() as folder:
            load = SimpleNamespace(package=None, texts={"a.c": "x"}, program="made", build=["cp a.c made; echo >> times"])
            places = [side_by_side.build(load, folder) for _ in range(2)]
            self.assertEqual(places, [os.path.join(folder, "b")] * 2)
            with open(os.path.join(folder, "b", "times")) as f:
                self.assertEqual(f.read(), "\n")
            load = SimpleNamespace(package=None, program="other", build=["exit 3"])
            self.assertRaises(Failed, side_by_side.build, load, folder)

    def test_cpu_time_and_output_are_those_of_the_program(self):
        ran = bolt_inputs.ran(["sh", "-c", "cat; echo e >&2; i=0; while [ $i -lt 20000 ]; do i=$((i + 1)); done"], "text")
        self.assertEqual((ran.text, ran.errors), ("text", "e\n"))
        self.assertGreater(ran.seconds, 0)
        self.assertRaisesRegex(Failed, "ended with 3", bolt_inputs.ran, ["sh", "-c", "exit 3"])

    def test_functions_that_llvm_bolt_cannot_take_are_left_out(self):
        says = "BOLT-ERROR: no address in function {}. Consider adding this function to --skip-funcs=..."
        script = 'case "$*" in *one,two*) exit 0;; *one*) echo "' + says.format("two(*2)") + '";; *) echo "' + says.format("one") + '";; esac; exit 1'
        *finished, left_out = side_by_side.bolted(["sh", "-c", script, "bolt"], "/")
        self.assertEqual((len(finished), left_out), (2, ["one", "two"]))
        with self.assertRaises(Failed):
            side_by_side.bolted(["sh", "-c", 'echo "some other error"; exit 1'], "/")

    def test_no_results_are_no_error(self):
        self.assertEqual(report.table("nowhere", LOADS), "No results yet.\n")


class Continuous(unittest.TestCase):
    class Stays:
        """Optimizes whenever it has been asked so often."""

        def __init__(self, *after):
            self.after, self.asked = after, 0

        def rounds(self):
            self.asked += 1
            return [at for at in self.after if self.asked >= at]

    def settled(self, stays):
        seconds = iter(range(0, 10_000, 20))
        with mock.patch.object(continuous.time, "monotonic", lambda: next(seconds)):
            return continuous.settle(stays, lambda: None, False)

    def test_what_is_being_optimized_is_waited_for(self):
        self.assertEqual(self.settled(self.Stays(1)), 1)
        self.assertEqual(self.settled(self.Stays(1, 3)), 2)
        self.assertEqual(self.settled(self.Stays(10)), 1)
        # Who never comes to an end is measured as he is.
        self.assertLess(self.settled(self.Stays(*range(1, 1000, 2))), 30)
        with self.assertRaises(Failed):
            self.settled(self.Stays())

    def test_page(self):
        events = {"cpu_time_ns": 4.0}
        rounds = [{"original": events, "attached once": {"cpu_time_ns": 3.0}, "continuous": {"cpu_time_ns": 2.0}}] * 6
        told = {"rounds": [{"at_seconds": 0.0, "why": "the session began", "error": None}, {"at_seconds": 9.0, "why": "no", "error": "idle"}], "sample_sets": 7, "seconds": 90.0}
        row = {"title": "x", "restitch": "restitch 1", "how": "CPU time", "phases": [{"way": "reads", "layouts": 1, "after": 1, "rounds": rounds}], "told": told, "seconds": 2.0}
        text = continuous.page([row], None)
        self.assertIn("| x, reads | 1 | CPU time | 0.750 [0.750, 0.750] | 0.500 [0.500, 0.500] | 0.667 [0.667, 0.667] |", text)
        self.assertIn("x: restitch itself took 2.0 s of 90 s, 7 sets of samples included. Optimized at 0 s, the session began.", text)


class Simulated(unittest.TestCase):
    def test_branches_are_told_by_their_bytes(self):
        kinds = {
            "always": ["eb10", "e900000000", "e800000000", "c3", "f3c3", "c20800", "ffd0", "41ffe2", "ff2500000000", "3effe0", "f2e900000000", "ff24c5"],
            "maybe": ["7410", "0f8500000000", "2e7410", "e310"],
            None: ["90", "0f1f4000", "4889c3", "ffc0", "ff30", "660f6fc0", "", "41", "e6"],
        }
        for kind, codes in kinds.items():
            for code in codes:
                self.assertEqual(simulated.branch_kind(bytes.fromhex(code)), kind, code)

    def test_callgrind_output_is_read(self):
        text = """events: Ir Dr I1mr ILmr
ob=(1) /bin/a
fn=(1) f
0x1000 5 0 1 1
+3 5
jcnd=2/5 +40
*
+2 3 0 2
cob=(2) /lib/b
cfn=(2) g
calls=3 0x500
* 100 0 9 9
jump=3 -5
*
ob=(2)
fn=(2)
0x500 3
-16 1 1
ob=(1)
0x1003 1
"""
        a = {0x1000: [5, 1, 1, 0], 0x1003: [6, 0, 0, 2], 0x1005: [3, 2, 0, 3]}
        self.assertEqual(simulated.read_callgrind(text.splitlines(True)), {"/bin/a": a, "/lib/b": {0x500: [3, 0, 0, 0], 0x4F0: [1, 0, 0, 0]}})

    def test_misses_outside_of_added_code_are_left_with_large_pages(self):
        with tempfile.TemporaryDirectory() as folder:
            # At 0x1000 a conditional branch and a return; what is added, at 0x200000 (with a second large page), a jump.
            segments = [(0x1000, b"\x74\x01\x90\xc3"), (0x200000, b"\xeb\xfe" + bytes(LARGE := 2 << 20))]
            for name, count in (("old", 1), ("new", 2)):
                write_elf(f"{folder}/{name}", segments[:count])
            counts = {f"{folder}/new": {0x1000: [10, 4, 1, 7], 0x1002: [3, 0, 0, 0], 0x1003: [10, 0, 0, 0]}, "???": {0x108000 + 0x200000: [6, 50, 20, 0]}}
            counts["???"][0x108000 + 0x1000] = [2, 0, 0, 1]
            total = simulated.summed(counts, f"{folder}/new", f"{folder}/old")
            self.assertEqual(total, {"taken": 7 + 10 + 6 + 1, "itlb": 54, "walks": 21, "itlb_large": 6, "walks_large": 3})
            counts["???"][0x108000 + 0x900000] = [1000, 0, 0, 0]
            self.assertRaises(Failed, simulated.summed, counts, f"{folder}/new", f"{folder}/old")
            self.assertEqual(LARGE, simulated.LARGE_PAGE)
            # Counts without a name that are of other files throughout.
            counts["???"] = {bias + 0x1002: [1, 0, 0, 1] for bias in (0x108000, 0x400000)}
            counts[f"{folder}/new"][0x1000][0] = 5000
            self.assertEqual(simulated.summed(counts, f"{folder}/new", f"{folder}/old")["taken"], 7 + 10)

    def test_tables_have_the_least_in_bold(self):
        events = dict.fromkeys(layouts.EVENTS, 100) | {"instructions": 1000}
        half = {e: v / 2 for e, v in events.items()}
        row = {"title": "x", "restitch": "restitch 1", "sides": {"original": events, "again": events, "ph": events, "c3": half}}
        text = layouts.page([row], SimpleNamespace(layouts=["ph", "c3"]))
        self.assertIn("| L1i misses | PH | C3 |\n|---|---|---|\n| x | 1.000 | **0.500** |\n| geometric mean | 1.000 | 0.500 |", text)
        self.assertIn("| x | 0.0 | 100 | 100 |", text)
        self.assertNotIn("processor time", text)
        beside = lambda *own: [[seconds, 2.0] for seconds in own]
        seconds = {"again": beside(2, 2.2, 2), "ph": beside(2, 2, 2), "c3": beside(1, 1.2, 1)}
        text = layouts.page([row | {"seconds": seconds}], SimpleNamespace(layouts=["ph", "c3"]))
        self.assertIn("the same file once more:", text)
        self.assertIn("| x | 2.00 s | 1.000 [1.000, 1.100] | 3 |", text)
        self.assertIn("| x | 1.000 [1.000, 1.000] | **0.500** [0.500, 0.600] |\n| geometric mean | 1.000 | 0.500 |", text)
        self.assertNotIn("in large pages (", text)
        seconds |= {"ph+large": beside(1.8, 1.8, 1.8), "c3+large": beside(2, 2, 2), "original+large": beside(1.9, 1.9, 1.9)}
        text = layouts.page([row | {"seconds": seconds}], SimpleNamespace(layouts=["ph", "c3"]))
        self.assertIn("| x | 2.00 s | 1.000 [1.000, 1.100] | 0.950 [0.950, 0.950] | 3 |", text)
        self.assertIn("| x | **0.900** [0.900, 0.900] | 1.000 [1.000, 1.000] |", text)

    def test_layouts_run_beside_the_original(self):
        sides = {"original": "o", "again": "a", "ph": "p", "ph+large": "q"}
        asked, said = [], []
        for mounted in (None, "/huge"):
            with mock.patch.object(layouts, "folder", lambda: contextlib.nullcontext("/small")), mock.patch.object(layouts, "large_folder", lambda: contextlib.nullcontext(mounted)):
                with mock.patch.object(layouts, "in_pairs", lambda load, sides, other, rounds, cpus: asked.append((sides, other))):
                    layouts.timed(None, sides, 2, said.append)
        small = {"again": ("a", "/small"), "ph": ("p", "/small")}
        self.assertEqual(asked[0], (small, ("o", "/small")))
        self.assertEqual(asked[1], (small | {"ph+large": ("q", "/huge"), "original+large": ("o", "/huge")}, ("o", "/small")))
        self.assertEqual(len(said), 1)

    def test_training_and_test_differ_and_are_the_same_every_time(self):
        self.assertEqual(verilog.design(4, 5, 4), verilog.design(4, 5, 4))
        for kind, make in ((layout_inputs.Postgres, "queries"), (layout_inputs.MariaDb, "statements"), (layout_inputs.Apache, "requests")):
            made = lambda which: getattr(kind, make)(kind.__new__(kind), which)
            self.assertEqual(made("test"), made("test"))
            self.assertNotEqual(made("test"), made("training"))


class Variants(unittest.TestCase):
    """Files that say themselves how long they take."""

    class Load:
        file, timed = "/x/program", "test"

        def cpu_seconds(self, path, which):
            with open(path) as f:
                seconds = float(f.read())
            if seconds < 0:
                raise Failed("it ends badly")
            return seconds

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.place = os.path.join(folder.name, "place")
        os.mkdir(self.place)
        self.files = {}
        for side, seconds in (("original", 4), ("default", 2), ("slow", 3), ("bad", -1)):
            self.files[side] = os.path.join(folder.name, side)
            with open(self.files[side], "w") as f:
                f.write(str(seconds))
        self.cpus = sorted(os.sched_getaffinity(0))

    def test_twins_are_told_apart_and_leave_nothing(self):
        both = lambda side: [(self.files[side], self.place), (self.files["default"], self.place)]
        self.assertEqual(pairs.beside_each_other(self.Load(), both("slow"), self.cpus[0]), [3.0, 2.0])
        self.assertEqual(os.listdir(self.place), [])
        with mock.patch("sys.stderr", io.StringIO()):
            self.assertRaises(Failed, pairs.beside_each_other, self.Load(), both("bad"), self.cpus[0])
        self.assertEqual(os.listdir(self.place), [])
        self.assertEqual(sorted(os.sched_getaffinity(0)), self.cpus, "the harness itself stays where it was")

    def test_each_side_has_the_default_beside_it(self):
        files = {side: path for side, path in self.files.items() if side != "bad"}
        found = variants.timed(self.Load(), self.place, files, 3, self.cpus[:2])
        self.assertEqual(found, {"original": [[4, 2]] * 3, "default": [[2, 2]] * 3, "slow": [[3, 2]] * 3})

    def test_page(self):
        seconds = {"original": [[4.0, 2.0], [4.4, 2.0]], "default": [[2.0, 2.0], [2.0, 2.0]], "slow": [[3.0, 2.0], [3.0, 2.0]], "build": [[2.5, 2.0], [2.5, 2.0]]}
        row = {"title": "x", "restitch": "r 1", "options": {"slow": "--slow", "build": ""}, "seconds": seconds}
        text = variants.page([row], SimpleNamespace(rounds=2))
        self.assertIn("| x | 4.20 s | 0.477 [0.455, 0.500] | 0 % |", text)
        self.assertIn("| none | 1.000 [1.000, 1.000] | 1.000 |\n| `--slow` | 1.500 [1.500, 1.500] | 1.500 |\n| none, by another build | 1.250 [1.250, 1.250] | 1.250 |", text)

    def test_sides(self):
        def sides(side, build=None):
            options = SimpleNamespace(side=side, build=build)
            variants.settle(options)
            return options.sides

        self.assertEqual(sides(["a=--layout c3"]), {"a": "--layout c3"})
        self.assertEqual(sides(["a=--layout c3"], "/old"), {"a": "--layout c3", "build": ""})
        self.assertEqual(sides([], "/old"), {"build": ""})
        self.assertEqual(sides([]), variants.SIDES)
        for wrong in ("a", "default=--x", "build=--x"):
            self.assertRaises(SystemExit, sides, [wrong])

    def test_another_build_makes_its_own_side(self):
        class Build:
            def __init__(self, name):
                self.name, self.calls = name, []

            def call(self, arguments, _):
                self.calls.append(arguments)

        own, other, machine = Build("own"), Build("other"), SimpleNamespace(path=lambda name: name)
        load = SimpleNamespace(file="/bin/x")
        with mock.patch.object(variants, "train", return_value="p"):
            files = variants.prepare(load, machine, own, {"a": "--layout c3", "build": ""}, False, other)
        self.assertEqual(files, {"original": "/bin/x", "default": "made-default", "a": "made-a", "build": "made-build"})
        self.assertEqual([c[-2:] for c in own.calls], [["-o", "made-default"], ["--layout", "c3"]])
        self.assertEqual([c[-2:] for c in other.calls], [["-o", "made-build"]])


def write_elf(path, segments):
    """A file of nothing but executable segments, each (address, bytes)."""
    header, body = 64 + 56 * len(segments), b""
    table = b""
    for address, code in segments:
        table += struct.pack("<IIQQQQQQ", 1, 5, header + len(body), address, address, len(code), len(code), 4096)
        body += code
    with open(path, "wb") as f:
        f.write(b"\x7fELF\x02\x01" + bytes(26) + struct.pack("<Q", 64) + bytes(14) + struct.pack("<HH", 56, len(segments)) + bytes(6) + table + body)


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
