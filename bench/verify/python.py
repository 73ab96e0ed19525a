#!/usr/bin/env python3
"""Proves that CPython passes its own tests while it is moved between layouts: the chosen tests of its test suite give the
same results in a plain process, under `restitch run`, and through a loop of attach, attach again and revert. Prints the
speed of a mixed loop before and after attaching, interleaved. Wants Debian's libpython3-testsuite (or any `-m test`)."""

import xml.etree.ElementTree

from common import *  # noqa: F403

TESTS = """test_list test_dict test_set test_tuple test_json test_re test_generators test_exceptions test_coroutines test_contextlib test_descr test_class
test_functools test_collections test_deque test_heapq test_bisect test_sort test_string test_unicode test_bytes test_format test_fstring
test_float test_int test_long test_complex test_math test_struct test_array test_pickle test_copy test_enum test_dataclasses test_typing test_inspect
test_traceback test_sys_settrace test_scope test_raise test_with test_super test_opcodes test_patma test_grammar test_syntax test_ast
test_decimal test_hashlib test_zlib test_csv test_threading test_thread test_queue test_gc
test_operator test_iter test_range test_slice test_sqlite3 test_ctypes test_memoryview test_userdict test_userlist test_textwrap test_difflib""".split()
WORK = """
import sys, json, re, time
class Account:
    def __init__(self, name): self.name, self.total, self.log = name, 0, []
    def add(self, n):
        if n % 7 == 3: raise ValueError(n)
        self.total += n; self.log.append((n, str(n)))
def work():
    accounts = {}
    for i in range(4000):
        a = accounts.setdefault('a%d' % (i % 97), Account(i))
        try: a.add(i)
        except ValueError as e: a.total -= e.args[0]
    text = json.dumps({k: [a.total, a.log[:5]] for k, a in accounts.items()})
    return sum(len(m) for m in re.findall(r'[0-9]+', text)) + sum(x * x for x in sorted(json.loads(text)[k][0] for k in accounts))
first = work()
while True:
    assert work() == first
    print(flush=True)
"""
ROUNDS = int(os.environ.get("ROUNDS", "5"))


def main(machine):
    python = find("/usr/bin/python3")
    tests = available(machine, python)
    plain = suite(machine, [python], tests, None)
    log(f"  plain run: {summary(plain)}")
    run = [RESTITCH, "run", "--warm-up", "1.5", "--duration", "4", "--measure", "0", "--", python]
    compare(plain, suite(machine, run, tests, None), "under `restitch run`")
    compare(plain, suite(machine, [python], tests, lambda pid: Toggling(machine, pid, seconds=2)), "while attaching and reverting")
    speed(machine, python)


def available(machine, python):
    """The tests that are installed."""
    found = machine.run([python, "-c", "import test, os; print('\\n'.join(os.listdir(os.path.dirname(test.__file__))))"]).split()
    names = {f.removesuffix(".py") for f in found}
    if "test_list" not in names:
        raise Missing("the test suite of Python is not installed (libpython3-testsuite)")
    return [t for t in TESTS if t in names]


def suite(machine, prefix, tests, moving):
    """{test: how it ended}"""
    env = dict(os.environ, RESTITCH_STATE_DIR=machine.path("state"), PYTHONHASHSEED="1", PYTHONDONTWRITEBYTECODE="1")
    folder = machine.path(f"suite{len(os.listdir(machine.folder))}")
    os.makedirs(folder)
    results = f"{folder}/results.xml"
    start = time.monotonic()

    command = [*prefix, "-m", "test", "--tempdir", folder, "--junit-xml", results, *tests]
    with open(f"{folder}/log", "w") as out:
        child = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, env=env, cwd=folder)
        if moving:
            time.sleep(1.5)
            with moving(child.pid):
                code = child.wait()
        else:
            code = child.wait()
    with open(f"{folder}/log", errors="replace") as f:
        text = f.read()
    cases = {}
    if os.path.exists(results):
        for case in xml.etree.ElementTree.parse(results).iter("testcase"):
            bad = case.find("failure") is not None or case.find("error") is not None
            cases[case.get("name")] = "bad" if bad else case.get("result")
    log(f"    {time.monotonic() - start:.0f} s, exit code {code}")
    if code < 0 or code >= 128 or len(cases) < 1000:
        with open("/tmp/restitch-verify-python.log", "w") as f:
            f.write(text)
        raise Failed(f"the test suite ended with {code} after {len(cases)} cases (log in /tmp/restitch-verify-python.log):\n{text[-3000:]}")
    return cases


def summary(cases):
    bad = sorted(c for c, how in cases.items() if how == "bad")
    return f"{len(cases)} test cases, {len(bad)} fail" + (f" ({', '.join(bad[:5])})" if bad else "")


def compare(plain, moved, what):
    log(f"  {what}: {summary(moved)}")
    other = sorted(c for c in plain if moved.get(c) in ("bad", None) and plain[c] != moved.get(c))
    if other:
        raise Failed(f"other results {what}: " + ", ".join(f"{c}: {plain[c]} -> {moved.get(c)}" for c in other[:20]))


def speed(machine, python):
    script = machine.path("work.py")
    with open(script, "w") as f:
        f.write(WORK)
    child = subprocess.Popen([python, "-S", script], stdout=subprocess.PIPE, env={"PYTHONHASHSEED": "1"}, preexec_fn=lambda: os.sched_setaffinity(0, machine.server_core))
    count = [0]

    def read():
        for _ in child.stdout:
            count[0] += 1

    reader = threading.Thread(target=read)
    reader.start()

    def rounds():
        if child.poll() is not None:
            raise Failed(f"python ended with {child.returncode}")
        before = count[0]
        time.sleep(4)
        return count[0] - before

    try:
        wait_for("python", lambda: count[0] > 20)
        alternate(machine, child.pid, ROUNDS, rounds)
    finally:
        child.kill()
        reader.join()


program(main)
