"""PostgreSQL under pgbench's read-only script, live."""

import os
import signal

from harness.machine import find, wait_for
from harness.rounds import interleave, serve_and_count

CONFIG = """
listen_addresses = ''
unix_socket_directories = '{folder}'
shared_buffers = 512MB
fsync = off
autovacuum = off
checkpoint_timeout = 1h
max_wal_size = 4GB
max_parallel_workers_per_gather = 0
jit = off
"""


def start(machine, side):
    """A server: its process, and what makes it work (transactions of each of two clients)."""
    bin = os.path.dirname(os.path.realpath(find("/usr/lib/postgresql/*/bin/postgres", "postgres")))
    user = machine.user("postgres")
    folder = machine.own_folder(user, side)
    data = os.path.join(folder, "data")
    machine.run([f"{bin}/initdb", "-D", data, "-U", "bench", "-A", "trust", "-N", "--locale=C", "-E", "UTF8"], user=user)
    with open(os.path.join(data, "postgresql.conf"), "a") as f:
        f.write(CONFIG.format(folder=folder))
    # A fast shutdown: clients that are still there are cut off.
    child = machine.start([f"{bin}/postgres", "-D", data], user=user, stop=signal.SIGINT)
    base = [f"{bin}/pgbench", "-h", folder, "-U", "bench"]
    sql = [f"{bin}/psql", "-h", folder, "-U", "bench", "-d", "postgres"]
    wait_for("postgres", lambda: machine.run([*sql, "-c", "select 1"]))
    machine.run([*base, "-i", "-q", "-s", "5", "postgres"])
    # All of table and index into the buffers: what is read from a file during a round would be noise.
    machine.run([*sql, "-c", "select sum(abalance) from pgbench_accounts", "-c", "set enable_seqscan = off", "-c", "select count(*) from pgbench_accounts"])

    def transactions(count):
        machine.client([*base, "-n", "-S", "-M", "simple", "-c", "2", "-j", "1", "-t", str(count), "--random-seed=1", "postgres"])
        return 2 * count

    return child.pid, transactions


def run(context):
    machine = context.machine
    servers = {side: start(machine, side) for side in ("original", "optimized")}
    transactions = lambda side, count: servers[side][1](count)
    for side in servers:
        transactions(side, context.amount(20_000))
    attach = context.restitch.attach(machine, servers["optimized"][0], lambda side: transactions(side, 10_000), tree=True)
    count = context.amount(50_000)
    measure = lambda side: serve_and_count(context.events, [servers[side][0]], lambda: transactions(side, count))
    rounds = interleave(context.rounds, measure, context.log)
    return [{"title": "postgres, pgbench -S, live", "unit": "transaction", "rounds": rounds, "attach": attach}]
