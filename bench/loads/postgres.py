"""PostgreSQL under three loads of pgbench, live: its read-only script, its TPC-B, and queries of many kinds."""

import os
import signal

from harness.machine import Failed, find, wait_for
from harness.rounds import interleave, serve_and_count

# Name, title, options of pgbench, and transactions of each of two clients in a round.
LOADS = (
    ("select", "postgres, pgbench -S, live", ["-S"], 50_000),
    ("tpcb", "postgres, pgbench TPC-B, live", ["-b", "tpcb-like"], 12_000),
    ("mixed", "postgres, mixed SQL, live", [], 8_000),
)

# One of them a transaction, drawn at random: what planner, executor and functions of reports and forms do.
MIXED = (
    "select a.bid, count(*), avg(a.abalance), max(length(a.filler)) from pgbench_accounts a where a.aid between :aid and :aid + 80 group by a.bid order by 2 desc;",
    "select t.tid, b.bbalance, a.abalance from pgbench_tellers t join pgbench_branches b using (bid) join pgbench_accounts a on a.aid = t.tid * 1000 where t.tid > 5 order by a.abalance, t.tid limit 20;",
    "with r as (select aid, abalance, row_number() over (partition by aid % 7 order by abalance, aid) n from pgbench_accounts where aid between :aid and :aid + 60) select aid % 7, sum(abalance) from r where n < 20 group by 1;",
    "select upper(md5(aid::text)), to_char(now() - aid * interval '1 minute', 'YYYY-MM-DD HH24:MI'), substr(filler || 'x', 1, 5), regexp_replace(aid::text, '[0-4]', 'a', 'g') from pgbench_accounts where aid between :aid and :aid + 20;",
    "select count(*) from pgbench_accounts where aid between :aid and :aid + 60 and (filler like '%a%' or abalance::numeric * 1.07 > 3 or aid in (select tid * 11 from pgbench_tellers));",
    "select jsonb_agg(jsonb_build_object('id', aid, 'b', abalance)) -> 3 ->> 'id', array_agg(aid order by abalance desc, aid) from pgbench_accounts where aid between :aid and :aid + 25;",
    "update pgbench_accounts set abalance = abalance + :delta where aid between :aid and :aid + 3; insert into pgbench_history(tid, bid, aid, delta, mtime) select tid, bid, :aid, :delta, now() from pgbench_tellers where tid < 4;",
    "select relname, pg_size_pretty(relpages * 8192::bigint), a.attname, format_type(a.atttypid, a.atttypmod) from pg_class c join pg_attribute a on a.attrelid = c.oid where c.relkind = 'r' and a.attnum > 0 and c.relname like 'pgbench%' order by 1, 3;",
)

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


def start(machine, side, program=None):
    """A server (the installed one, if no other program is named): its process, and what makes it work (transactions of each of two clients; with which options of pgbench)."""
    bin = os.path.dirname(os.path.realpath(program or find("/usr/lib/postgresql/*/bin/postgres", "postgres")))
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

    scripts = []
    for number, query in enumerate(MIXED):
        path = os.path.join(folder, f"mixed{number}.sql")
        with open(path, "w") as f:
            f.write("\\set aid random(1, 490000)\n\\set delta random(-500, 500)\n" + query + "\n")
        scripts += ["-f", path]

    def transactions(count, options=("-S",)):
        work = [*base, "-n", "-M", "simple", "-c", "2", "-j", "1", "-t", str(count), "--random-seed=1", *(options or scripts), "postgres"]
        text = machine.client(work)
        if f"actually processed: {2 * count}/{2 * count}" not in text:
            raise Failed(f"pgbench lost transactions:\n{text}")
        return 2 * count

    return child.pid, transactions


def run(context):
    return [measure(context, *load) for load in LOADS]


def measure(context, name, title, options, full):
    """One load, with two fresh servers (they idle until the end: an idle server costs nothing)."""
    machine = context.machine
    servers = {side: start(machine, f"{side}-{name}") for side in ("original", "optimized")}
    transactions = lambda side, count: servers[side][1](count, options)
    for side in servers:
        transactions(side, context.amount(full))
    count = context.short(full)
    # Connections that last for some seconds, as those of servers at work do.
    attach = context.restitch.attach(machine, {side: servers[side][0] for side in servers}, lambda side: transactions(side, full), tree=True)
    work = lambda side: serve_and_count(context.events, [servers[side][0]], lambda: transactions(side, count))
    rounds = interleave(context.short_rounds(), work, context.log)
    return {"title": title, "unit": "transaction", "rounds": rounds, "attach": attach}
