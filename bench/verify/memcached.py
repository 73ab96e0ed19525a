#!/usr/bin/env python3
"""Proves that memcached answers every request while it is moved between layouts: its four threads serve clients that write, count, append,
compare and swap, delete, and let items expire, through a loop of attach, attach again and revert; every answer is the expected one, and a client that
hangs up in the middle of a request harms nobody. Prints keys a CPU second before and after attaching, interleaved."""

from common import *  # noqa: F403

ROUNDS = int(os.environ.get("ROUNDS", "5"))
SECONDS = int(os.environ.get("SECONDS_EACH", "40"))
CLIENTS = 4
KEYS = 100


def main(machine):
    user = machine.user("memcache")
    folder = machine.own_folder(user, "server")
    path = os.path.join(folder, "s")
    server = machine.start([find("memcached"), "-s", path, "-t", "4", "-m", "64", "-U", "0"], user=user, core=os.sched_getaffinity(0))
    wait_for("memcached", lambda: os.path.exists(path))
    clients = [lambda answered, n=n: client(path, n, answered) for n in range(CLIENTS)]
    answers = ask_while_toggling(machine, server.pid, clients, SECONDS, each=lambda _: hang_up(path), seconds=1.5)
    log(f"  {answers} requests while attaching and reverting, each with its right answer")
    alternate(machine, server.pid, ROUNDS, lambda: batches(path, 5000))
    alive(server.pid, "memcached")


def client(path, number, answered):
    with connected(path) as f:
        n = 0
        while answered(0):
            n += 1
            for request, expected in conversation(number, n):
                f.write(request)
                f.flush()
                got = b"".join(f.readline() for _ in range(expected.count(b"\n")))
                if got != expected:
                    raise ValueError(f"{request!r}: {got!r} instead of {expected!r}")
                answered()
            if n % 100 == 0:
                compare_and_swap(f, number)


def conversation(number, n):
    """Requests and their answers: what a client says to its own keys in round `n`."""
    key, value = b"k%d:%d" % (number, n % KEYS), b"v%d" % n * (1 + n % 50)
    value_of = lambda key, value: b"VALUE %s 0 %d\r\n%s\r\nEND\r\n" % (key, len(value), value)
    yield b"set %s 0 0 %d\r\n%s\r\n" % (key, len(value), value), b"STORED\r\n"
    yield b"append %s 0 0 3\r\nend\r\n" % key, b"STORED\r\n"
    yield b"get %s\r\n" % key, value_of(key, value + b"end")
    yield b"add %s 0 0 1\r\nx\r\n" % key, b"NOT_STORED\r\n"
    counter = b"n%d" % number
    if n == 1:
        yield b"set %s 0 0 1\r\n0\r\n" % counter, b"STORED\r\n"
    yield b"incr %s 7\r\n" % counter, b"%d\r\n" % (7 * n)
    yield b"mg %s v\r\n" % key, b"VA %d\r\n%send\r\n" % (len(value) + 3, value)
    yield b"set gone%d 0 -1 1\r\nx\r\n" % number, b"STORED\r\n"
    yield b"get gone%d\r\n" % number, b"END\r\n"
    if n % 10 == 0:
        yield b"delete %s\r\n" % key, b"DELETED\r\n"
        yield b"get %s\r\n" % key, b"END\r\n"
    yield b"nonsense\r\n", b"ERROR\r\n"


def compare_and_swap(f, number):
    """A swap with the number that was read is made, one with it again is not."""
    key = b"c%d" % number
    for request in (b"set %s 0 0 1\r\na\r\n" % key, b"gets %s\r\n" % key):
        f.write(request)
    f.flush()
    lines = [f.readline() for _ in range(4)]
    unique = lines[1].split()[4]
    for expected in (b"STORED\r\n", b"EXISTS\r\n"):
        f.write(b"cas %s 0 0 1 %s\r\nb\r\n" % (key, unique))
        f.flush()
        got = f.readline()
        if got != expected:
            raise ValueError(f"compare and swap: {got!r} instead of {expected!r}")


def hang_up(path):
    """A client that goes away in the middle of a value."""
    with connected(path) as f:
        f.write(b"set half 0 0 1000\r\nonly this")


def batches(path, count):
    """Sets and gets of 100 keys at a time; how many keys were written and read."""
    with connected(path) as f:
        keys = [b"b%d" % n for n in range(KEYS)]
        for n in range(count):
            f.write(b"".join(b"set %s 0 0 8 noreply\r\n%08d\r\n" % (key, n) for key in keys))
            for _ in range(4):
                f.write(b"get " + b" ".join(keys) + b"\r\n")
            f.flush()
            expected = (b"".join(b"VALUE %s 0 8\r\n%08d\r\n" % (key, n) for key in keys) + b"END\r\n") * 4
            if f.read(len(expected)) != expected:
                raise Failed("memcached lost keys")
    return count * 5 * KEYS


program(main)
