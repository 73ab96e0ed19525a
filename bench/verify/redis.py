#!/usr/bin/env python3
"""Proves that redis answers every request while it is moved between layouts: two writers count up and read back their own
keys through a loop of attach, attach again and revert, every answer is the expected one, a background save (fork) ends well. Prints redis-benchmark's requests a CPU second before and after attaching, interleaved."""

import csv
import io

from common import *  # noqa: F403

ROUNDS = int(os.environ.get("ROUNDS", "5"))
SECONDS = int(os.environ.get("SECONDS_EACH", "40"))


def main(machine):
    folder = machine.own_folder(None, "server")
    path = os.path.join(folder, "s")
    server = machine.start(
        [find("redis-server"), "--port", "0", "--unixsocket", path, "--save", "", "--dir", folder, "--daemonize", "no"], core=os.sched_getaffinity(0)
    )
    prove(machine, server.pid, path)


def prove(machine, pid, path):
    """All of it, of the server `pid` that listens at `path`."""
    wait_for("redis", lambda: os.path.exists(path))

    def save():
        # BGSAVE forks: a child with a version in force has to end well, too.
        if request(path, "BGSAVE").startswith("-"):
            raise Failed("BGSAVE refused")
        time.sleep(2)
        if "rdb_last_bgsave_status:ok" not in request(path, "INFO", "persistence"):
            raise Failed("BGSAVE failed")

    clients = [lambda answered, n=n: client(path, n, answered) for n in (0, 1)]
    answers = ask_while_toggling(machine, pid, clients, SECONDS, then=save, seconds=1.5)
    log(f"  {answers} requests while attaching and reverting, each with its right answer")
    bench = find("redis-benchmark")

    def requests():
        tests = ("set", "get", "lpush", "lrange_100", "hset", "zadd")
        text = machine.client([bench, "-s", path, "-t", ",".join(tests), "-n", "60000", "-c", "20", "-P", "8", "--csv", "-r", "10000"])
        rows = list(csv.DictReader(io.StringIO(text)))
        if len(rows) < len(tests):
            raise Failed(f"redis-benchmark did not finish:\n{text}")
        return 60000 * len(rows)

    alternate(machine, pid, ROUNDS, requests)
    alive(pid, "redis-server")


def client(path, number, answered):
    with connected(path) as f:
        n = 0
        while answered(0):
            n += 1
            expected = [
                (("INCR", f"n{number}"), f":{n}\r\n"),
                (("SET", f"k{number}:{n % 1000}", f"v{n}"), "+OK\r\n"),
                (("GET", f"k{number}:{n % 1000}"), f"v{n}"),
                (("HSET", f"h{number}", "f", str(n)), f":{1 if n == 1 else 0}\r\n"),
                (("EVAL", "return redis.call('incrby', KEYS[1], ARGV[1])", "1", f"l{number}", "2"), f":{2 * n}\r\n"),
            ]
            for command, answer in expected:
                got = ask(f, command)
                if got != answer:
                    raise ValueError(f"{command}: {got!r} instead of {answer!r}")
                answered()


def ask(f, command):
    f.write(b"*%d\r\n" % len(command) + b"".join(b"$%d\r\n%s\r\n" % (len(c), c.encode()) for c in command))
    f.flush()
    line = f.readline().decode()
    if line.startswith("$") and line != "$-1\r\n":
        return f.read(int(line[1:]) + 2)[:-2].decode()
    if not line:
        raise ValueError("the connection was closed")
    return line


def request(path, *command):
    with connected(path) as f:
        return ask(f, command)


if __name__ == "__main__":
    program(main)
