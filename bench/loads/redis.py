"""Redis under a mix of commands, pipelined, live."""

from harness.machine import find, wait_for
from harness.rounds import interleave, serve_and_count

TESTS = "set,get,incr,lpush,rpush,lpop,rpop,sadd,hset,spop,zadd,zpopmin,lrange_100,mset".split(",")


def start(machine, side, program=None, more=()):
    """A server (the installed one, if no other program is named): its process, and what makes it work (requests of each kind)."""
    program, client, admin = program or find("redis-server"), find("redis-benchmark"), find("redis-cli")
    socket = machine.path(f"{side}.sock")
    child = machine.start([program, "--port", "0", "--unixsocket", socket, "--save", "", "--appendonly", "no", "--dir", machine.folder, *more])
    wait_for("redis", lambda: "PONG" in machine.run([admin, "-s", socket, "ping"]))

    def requests(count, keep=False):
        # Both sides begin every round with the same data: none, unless what is there is to be kept.
        if not keep:
            machine.run([admin, "-s", socket, "flushall"])
        machine.client([client, "-s", socket, "-n", str(count), "-P", "8", "-c", "16", "-r", "10000", "-t", ",".join(TESTS), "-q"])
        return count * len(TESTS)

    return child.pid, requests


def populate(machine, side, keys):
    """Gives the server (started with the debug command permitted) so many keys with values of 1 kB."""
    machine.run([find("redis-cli"), "-s", machine.path(f"{side}.sock"), "debug", "populate", str(keys), "large", "1000"])


def run(context):
    machine = context.machine
    servers = {side: start(machine, side) for side in ("original", "optimized")}
    requests = lambda side, count: servers[side][1](count)

    for side in servers:
        requests(side, context.amount(20_000))
    attach = context.restitch.attach(machine, {side: servers[side][0] for side in servers}, lambda side: requests(side, 20_000), seconds=6)
    count = context.short(100_000)
    measure = lambda side: serve_and_count(context.events, [servers[side][0]], lambda: requests(side, count))
    rounds = interleave(context.short_rounds(), measure, context.log)
    return [{"title": f"redis, {len(TESTS)} commands, -P8, live", "unit": "command", "rounds": rounds, "attach": attach}]
