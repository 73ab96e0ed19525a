#!/usr/bin/env python3
"""Proves that MariaDB goes on without an error while it is moved between layouts: sysbench oltp_point_select, oltp_read_only
and oltp_read_write run through a loop of attach, attach again and revert, the tables pass CHECK TABLE afterwards, and the
server has not restarted. Prints the transactions a CPU second before and after attaching, interleaved."""

import re

from common import *  # noqa: F403

SCRIPTS = ("oltp_point_select", "oltp_read_only", "oltp_read_write")
ROUNDS = int(os.environ.get("ROUNDS", "5"))
SECONDS = int(os.environ.get("SECONDS_EACH", "30"))


def main(machine):
    server = Server(machine)
    for script in SCRIPTS:
        with Toggling(machine, server.child.pid, seconds=2):
            done = server.sysbench(script, SECONDS)
        log(f"  {script} while attaching and reverting: {done} transactions, no error")
        alternate(machine, server.child.pid, ROUNDS, lambda: server.sysbench(script, 4))
    tables = ", ".join(f"sbtest.sbtest{n}" for n in range(1, 5))
    checked = server.sql(f"check table {tables} extended")
    if checked.count("\tOK") != 4:
        raise Failed(f"damaged tables:\n{checked}")
    alive(server.child.pid, "mariadbd")
    server.crashes()


class Server:
    def __init__(self, machine):
        self.machine, user = machine, machine.user("mysql")
        self.folder = machine.own_folder(user, "server")
        options = ["--no-defaults", f"--datadir={self.folder}/data"]
        machine.run([find("mariadb-install-db"), *options, "--auth-root-authentication-method=normal", "--skip-test-db"], user=user)
        self.child = machine.start(
            [find("mariadbd"), *options, "--skip-networking", f"--socket={self.folder}/s", f"--pid-file={self.folder}/pid", f"--log-error={self.folder}/log.err",
             "--innodb-buffer-pool-size=256M", "--innodb-flush-log-at-trx-commit=0", "--skip-log-bin"],
            user=user, core=os.sched_getaffinity(0),
        )
        wait_for("mariadbd", lambda: self.sql("select 1"))
        self.sql("create database sbtest; create user bench; grant all on sbtest.* to bench")
        self.base = [find("sysbench"), "--db-driver=mysql", f"--mysql-socket={self.folder}/s", "--mysql-user=bench", "--tables=4", "--table-size=20000"]
        machine.run([*self.base, "oltp_read_only", "prepare"])

    def sql(self, text):
        return self.machine.run([find("mariadb"), "--no-defaults", f"--socket={self.folder}/s", "-u", "root", "-e", text])

    def sysbench(self, script, seconds):
        """How many transactions. sysbench ignores deadlocks and counts them; in read-only scripts there are none."""
        try:
            text = self.machine.run([*self.base, script, "--threads=2", f"--time={seconds}", "run"])
        except Failed:
            self.crashes()
            raise
        ignored, lost = re.search(r"ignored errors:\s+(\d+)", text), re.search(r"reconnects:\s+(\d+)", text)
        if not ignored or not lost or lost[1] != "0" or (script != "oltp_read_write" and ignored[1] != "0"):
            raise Failed(f"sysbench {script} had errors:\n{text}")
        return int(re.search(r"transactions:\s+(\d+)", text)[1])

    def crashes(self):
        with open(f"{self.folder}/log.err", errors="replace") as f:
            text = f.read()
        if "got signal" in text or "Assertion" in text:
            with open("/tmp/restitch-verify-mariadb.log", "w") as f:
                f.write(text)
            raise Failed(f"mariadbd crashed (log in /tmp/restitch-verify-mariadb.log):\n{text[text.find('got signal'):][:3000]}")


program(main)
