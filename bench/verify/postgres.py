#!/usr/bin/env python3
"""Proves that PostgreSQL computes the same while it is moved between layouts: its own regression tests give the same
results in a plain run and while a loop attaches to all server processes, attaches again, and reverts, every few seconds;
and pgbench (-S and TPC-B) loses no transaction meanwhile. Prints the throughput before and after attaching, interleaved.

PG_REGRESS_DIR names a built src/test/regress of the same version as the server (from the distribution's source package:
./configure; make -C src/interfaces/libpq; make -C src/test/regress); without it the regression tests are left out."""

import re
import shutil
import signal

from common import *  # noqa: F403

CONFIG = """
listen_addresses = ''
unix_socket_directories = '{folder}'
shared_buffers = 256MB
max_prepared_transactions = 2
fsync = off
restart_after_crash = off
max_wal_size = 4GB
"""
ROUNDS = int(os.environ.get("ROUNDS", "5"))
SECONDS = int(os.environ.get("SECONDS_EACH", "30"))
REPEATS = int(os.environ.get("REPEATS", "2"))


def main(machine):
    server = Server(machine)
    try:
        regression(server)
        benchmark(server)
        alive(server.child.pid, "postgres")
    finally:
        server.crashes()


class Server:
    def __init__(self, machine):
        self.machine, self.bin = machine, os.path.dirname(find("/usr/lib/postgresql/*/bin/postgres", "postgres"))
        self.user = machine.user("postgres")
        self.folder = machine.own_folder(self.user, "server")
        data = os.path.join(self.folder, "data")
        self.run("initdb", "-D", data, "-U", "postgres", "-A", "trust", "-N", "--locale=C", "-E", "UTF8")
        with open(os.path.join(data, "postgresql.conf"), "a") as f:
            f.write(CONFIG.format(folder=self.folder))
        self.log = os.path.join(self.folder, "log")
        start = f"ulimit -c unlimited; exec {self.bin}/postgres -D {data} 2>{self.log}"
        self.child = machine.start(["sh", "-c", start], user=self.user, stop=signal.SIGINT, core=os.sched_getaffinity(0))
        wait_for("postgres", lambda: self.run("psql", "-h", self.folder, "-U", "postgres", "-c", "select 1"))

    def run(self, name, *arguments):
        return self.machine.run([f"{self.bin}/{name}", *arguments], user=self.user)

    def bench(self, *arguments):
        return self.run("pgbench", "-h", self.folder, "-U", "postgres", *arguments)

    def crashes(self):
        """Says what the server's log says of processes that ended by a signal, and keeps the log and the cores."""
        with open(self.log, errors="replace") as f:
            lines = [l for l in f if "was terminated by signal" in l or "PANIC" in l]
        if lines:
            kept = "/tmp/restitch-verify-postgres"
            shutil.rmtree(kept, ignore_errors=True)
            shutil.copytree(self.folder, kept, ignore=lambda d, names: [n for n in names if n.startswith(".s.")])
            raise Failed(f"server processes crashed (kept in {kept}):\n{''.join(lines[:20])}")


def regression(server):
    tests = os.environ.get("PG_REGRESS_DIR")
    if not tests:
        log("  regression tests left out: PG_REGRESS_DIR is not set")
        return
    plain = regress(server, tests, "plain")
    log(f"  plain run: {summary(plain)}")
    for number in range(REPEATS):
        with Toggling(server.machine, server.child.pid, tree=True, seconds=2):
            moved = regress(server, tests, f"moved{number}")
        log(f"  moved run: {summary(moved)}")
        other = sorted(t for t in plain.keys() | moved.keys() if plain.get(t) != moved.get(t))
        if other:
            kept = f"/tmp/restitch-verify-regress{number}"
            shutil.rmtree(kept, ignore_errors=True)
            shutil.copytree(server.machine.path("server", f"moved{number}"), kept)
            raise Failed(f"other results (in {kept}): " + ", ".join(f"{t}: {plain.get(t)} -> {moved.get(t)}" for t in other))


def regress(server, tests, name):
    """{test: passed}"""
    out = server.machine.own_folder(server.user, "server", name)
    if server.user:
        server.run("psql", "-h", server.folder, "-U", "postgres", "-c", "drop database if exists regression")
    command = [os.path.join(tests, "pg_regress"), f"--bindir={server.bin}", f"--dlpath={tests}", f"--inputdir={tests}", f"--outputdir={out}",
               f"--schedule={tests}/parallel_schedule", "--max-connections=8", f"--host={server.folder}", "--user=postgres"]
    who = server.machine.who(server.user, None) | {"cwd": out}
    start = time.monotonic()
    text = subprocess.run(command, capture_output=True, text=True, errors="replace", **who).stdout
    log(f"  {name}: {time.monotonic() - start:.0f} s")
    # "test boolean ... ok 12 ms", "     name ... FAILED 30 ms"
    found = {m[1]: m[2] == "ok" for m in re.finditer(r"^\s*(?:test )?(\w+)\s+\.\.\. (ok|FAILED)", text, re.M)}
    if len(found) < 100:
        raise Failed(f"pg_regress did not run:\n{text[-2000:]}")
    return found


def summary(results):
    failed = sorted(t for t, ok in results.items() if not ok)
    return f"{len(results)} tests, {len(failed)} fail" + (f" ({', '.join(failed)})" if failed else "")


def benchmark(server):
    server.bench("-i", "-q", "-s", "10", "postgres")
    for script, options in (("-S", ["-S"]), ("TPC-B", ["-b", "tpcb-like"])):
        with Toggling(server.machine, server.child.pid, tree=True, seconds=1.5):
            done = transactions(server, options, SECONDS)
        log(f"  pgbench {script} while attaching and reverting: {done} transactions, none failed")
        # The load of an attach is longer than the attach: what is forked after its beginning is not sampled.
        busy = lambda: transactions(server, options, 20)
        alternate(server.machine, server.child.pid, ROUNDS, lambda: transactions(server, options, 4), busy, tree=True)


def transactions(server, options, seconds):
    text = server.bench("-n", *options, "-c", "2", "-j", "1", "-T", str(seconds), "postgres")
    failed = re.search(r"number of failed transactions: (\d+)", text)
    if not failed or failed[1] != "0":
        raise Failed(f"pgbench lost transactions:\n{text}")
    return int(re.search(r"actually processed: (\d+)", text)[1])


program(main)
