"""MariaDB under sysbench, live."""

import re

from harness.machine import Failed, find, wait_for
from harness.rounds import interleave, serve_and_count

# The script, and how many of its transactions make a round.
SCRIPTS = {"oltp_point_select": 100_000, "oltp_read_only": 5_000, "oltp_read_write": 4_000}


def start(machine, side, connections=2):
    """A server: its process, and what makes it work (transactions of a script, over so many connections)."""
    user = machine.user("mysql")
    program, install, sysbench = find("mariadbd"), find("mariadb-install-db"), find("sysbench")
    folder = machine.own_folder(user, side)
    options = ["--no-defaults", f"--datadir={folder}/data"]
    machine.run([install, *options, "--auth-root-authentication-method=normal", "--skip-test-db"], user=user)
    child = machine.start(
        [program, *options, "--skip-networking", f"--socket={folder}/s", f"--pid-file={folder}/pid",
         "--innodb-buffer-pool-size=256M", "--innodb-flush-log-at-trx-commit=0", "--skip-log-bin", f"--max-connections={connections + 149}"],
        user=user,
    )
    admin = [find("mariadb"), "--no-defaults", f"--socket={folder}/s", "-u", "root"]
    wait_for("mariadbd", lambda: machine.run([*admin, "-e", "select 1"]))
    machine.run([*admin, "-e", "create database sbtest; create user bench; grant all on sbtest.* to bench"])
    base = [sysbench, "--db-driver=mysql", f"--mysql-socket={folder}/s", "--mysql-user=bench", "--tables=4", "--table-size=20000", "--rand-seed=1"]
    machine.run([*base, "oltp_read_only", "prepare"])

    def transactions(script, count):
        text = machine.client([*base, script, f"--threads={connections}", "--time=0", f"--events={count}", "run"])
        errors = re.search(r"ignored errors:\s+(\d+)", text)
        # Deadlocks of read_write are ignored errors of sysbench; nothing else counts as one.
        if not errors or (script != "oltp_read_write" and errors[1] != "0"):
            raise Failed(f"sysbench {script} had errors:\n{text}")
        return count

    return child.pid, transactions


def run(context):
    machine = context.machine
    servers = {side: start(machine, side) for side in ("original", "optimized")}
    transactions = lambda side, script, count: servers[side][1](script, count)

    def mix(side):
        for script, count in SCRIPTS.items():
            transactions(side, script, count // 20)

    for side in servers:
        mix(side)
    attach = context.restitch.attach(machine, {side: servers[side][0] for side in servers}, mix, seconds=9)
    rows = []
    for script, full in SCRIPTS.items():
        count = context.short(full)
        measure = lambda side: serve_and_count(context.events, [servers[side][0]], lambda: transactions(side, script, count))
        rounds = interleave(context.short_rounds(), measure, context.log)
        rows.append({"title": f"MariaDB, sysbench {script}, live", "unit": "transaction", "rounds": rounds, "attach": attach})
    return rows
