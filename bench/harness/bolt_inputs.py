"""What bench/bench bolt builds, and what it trains and tests with. Training and test do different things with the same program.

A load names what is built (`package`, a Debian source package, or `texts`, files of our own; `build`, commands in the folder `b`;
`program`, what they make). An instance has `folder`, where the files that are compared have to stand, and `run(file, which, prefix)`,
which runs "training" or "test" from the same state every time, with `prefix` before the command.
"""

import os
import shutil
import signal
import socket
import subprocess
import tempfile
from typing import NamedTuple

from . import layout_inputs, verilog
from .layout_inputs import ENVIRONMENT
from .machine import Failed, end, wait_for
from loads.postgres import CONFIG, MIXED

# As llvm-bolt's own documentation asks for: parts that gcc splits off are what it cannot take.
WHOLE = "-fno-reorder-blocks-and-partition"


class Ran(NamedTuple):
    """What a run printed (output, and what valgrind said), and the processor time of the program in seconds: user and system, of which the kernel knows the sum exactly."""

    text: str
    errors: str
    seconds: float


def ran(command, stdin="", **options):
    """Runs a command that must succeed."""
    with tempfile.TemporaryFile("w+") as given, tempfile.TemporaryFile("w+", errors="replace") as out, tempfile.TemporaryFile("w+", errors="replace") as errors:
        given.write(stdin)
        given.seek(0)
        child = subprocess.Popen(command, stdin=given, stdout=out, stderr=errors, **options)
        return ended(child, command, out, errors)


def ended(child, command, out, errors):
    """Waits for the end of a program that writes to two files."""
    _, status, used = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    texts = []
    for file in (out, errors):
        file.seek(0)
        texts.append(file.read())
    if child.returncode != 0:
        raise Failed(f"{' '.join(command)} ended with {child.returncode}:\n{''.join(texts)[-2000:]}")
    return Ran(*texts, used.ru_utime + used.ru_stime)


SCHEMA = """
create table item(id integer primary key, name text, price real, kind integer);
create table sale(id integer primary key, item integer, amount integer, day integer, note text);
create index sale_item on sale(item);
"""
FILL = """
with recursive n(i) as (select 1 union all select i + 1 from n where i < {items})
insert into item select i, 'item ' || (i * 7919 % 10007), (i * 31 % 977) / 7.0, i % 17 from n;
with recursive n(i) as (select 1 union all select i + 1 from n where i < {sales})
insert into sale select i, 1 + i * 6007 % {items}, i % 9, i % 365, hex(i * 2654435761) from n;
"""
SQL_TRAINING = SCHEMA + FILL.format(items=4000, sales=60000) + """
select kind, count(*), sum(amount * price) from sale join item on item.id = sale.item group by kind order by 3 desc;
select day, max(price) from sale join item on item.id = sale.item where amount > 3 group by day having count(*) > 2 limit 20;
update item set price = price * 1.1 where kind in (3, 5, 7);
delete from sale where day between 100 and 120;
select name, (select count(*) from sale where sale.item = item.id) c from item order by c desc, name limit 30;
select substr(note, 1, 3), count(*) from sale where note like '%A7%' group by 1 order by 2 desc limit 10;
"""
SQL_TEST = SCHEMA + FILL.format(items=9000, sales=90000) + """
begin;
insert into sale(item, amount, day, note) select item, amount + 1, day, lower(note) from sale where id % 3 = 0;
commit;
create index sale_day on sale(day, amount);
select a.day, count(distinct a.item), avg(b.price) from sale a join item b on b.id = a.item where a.day < 200 group by a.day order by 2 desc limit 15;
with best(kind, p) as (select kind, max(price) from item group by kind)
select item.name, best.p from best join item on item.kind = best.kind and item.price = best.p order by 1;
select day, sum(amount) over (order by day rows between 3 preceding and current row) from (select day, sum(amount) amount from sale group by day) limit 40;
select count(*) from sale where note glob '*9F*' or replace(note, '1', '') like '22%';
"""

PY_TRAINING = """
import re
class Node:
    def __init__(self, n): self.n, self.kids = n, []
def tree(d):
    node = Node(d)
    node.kids = [tree(d - 1) for _ in range(3)] if d else []
    return node
def size(t): return 1 + sum(size(k) for k in t.kids)
for _ in range(2):
    t = size(tree(8))
    words = re.findall(r"[a-z]+", " ".join("x" * (i % 7) + str(i * 1.5) + "yz" for i in range(20000)))
    d = {}
    for w in words: d[w] = d.get(w, 0) + 1
print(t, len(words), sorted(d)[:3])
"""
PY_TEST = """
def sieve(n):
    marks = bytearray([1]) * n
    for i in range(2, int(n ** 0.5) + 1):
        if marks[i]: marks[i * i::i] = bytes(len(range(i * i, n, i)))
    return [i for i in range(2, n) if marks[i]]
class Account:
    total = 0
    def __init__(self, owner): self.owner, self.balance = owner, 0
    def pay(self, amount):
        if amount < 0: raise ValueError(amount)
        self.balance += amount
        Account.total += amount
accounts = {name: Account(name) for name in ("a%d" % i for i in range(200))}
for n, p in enumerate(sieve(600000)):
    for k in range(4):
        try: accounts["a%d" % ((n * 7 + k) % 210)].pay(p % 13 - 1)
        except (KeyError, ValueError) as e: Account.total -= len(str(e))
text = "\\n".join(f"{a.owner:>8}|{a.balance:08.2f}" for a in sorted(accounts.values(), key=lambda a: (-a.balance, a.owner)))
print(Account.total, len(text), hash(tuple(map(int, (x.split("|")[1].split(".")[0] for x in text.split("\\n"))))) != 0)
def words(s): yield from (w.strip("0").upper() for w in s.replace("|", " ").split())
print(len(set(words(text * 20))))
"""


class Script:
    """A program that executes a file. `training` and `test` are name and text of the files."""

    # Whether it finds what it needs by where it stands; whether it is a server with clients.
    beside = has_clients = False
    # The input that clocks measure.
    timed = "test"

    def __init__(self, machine, place):
        self.machine, self.place = machine, place
        self.folder = place if self.beside else machine.path("run")
        os.makedirs(self.folder, exist_ok=True)
        for name, text in (self.training, self.test):
            with open(machine.path(name), "w") as f:
                f.write(text)

    def run(self, file, which, prefix=()):
        script = self.machine.path(getattr(self, which)[0])
        return ran([*prefix, *self.command(file, script)], env=ENVIRONMENT | self.environment(), cwd=self.folder)


class Sqlite(Script):
    title, package = "sqlite3 shell, SQL script", "sqlite3"
    training, test = ("training.sql", SQL_TRAINING), ("test.sql", SQL_TEST)
    program = "sqlite3"
    build = [
        "../configure --disable-tcl --disable-readline",
        "make sqlite3.c shell.c",
        "gcc -O2 -DSQLITE_THREADSAFE=0 -DSQLITE_OMIT_LOAD_EXTENSION -Wl,-q shell.c sqlite3.c -o sqlite3 -lm",
    ]

    def command(self, program, script):
        return [program, "-batch", "-init", script, ":memory:", ".quit"]

    def environment(self):
        return {"HOME": "/nonexistent"}


class Python(Script):
    title, package = "python3.11, script", "python3.11"
    training, test = ("training.py", PY_TRAINING), ("test.py", PY_TEST)
    program, beside = "python", True
    build = ["../configure --without-ensurepip CFLAGS=-O2 LDFLAGS=-Wl,-q", "make -j2 python"]

    def command(self, program, script):
        return [program, "-S", "-s", "-B", script]

    def environment(self):
        return {"PYTHONPATH": os.path.join(os.path.dirname(self.place), "Lib"), "PYTHONHASHSEED": "0"}


class PythonTrained(Python):
    """As Debian builds its own: with a profile of its tests, and optimized when it is linked."""

    title = "python3.11 with a profile of its own and link-time optimization, script"
    # The tests that its makers train it with; without libexpat one of them fails, and make would stop there.
    texts = {"profiled.py": 'import subprocess, sys\n\nsubprocess.call([sys.executable, "-m", "test", "--pgo"])\n'}
    build = [
        f'../configure --without-ensurepip --enable-optimizations --with-lto CFLAGS="-O2 {WHOLE}" LDFLAGS="-Wl,-q {WHOLE}"',
        "make -s -j2 PROFILE_TASK=profiled.py",
    ]


class Postgres(layout_inputs.Postgres):
    """One backend without a server around it; what `bench/bench layouts` asks of Debian's."""

    package = "postgresql-15"
    program = "install/bin/postgres"
    rounds = 300
    build = [
        f'../configure --prefix="$PWD/install" --without-readline --without-zlib CFLAGS="-O2 {WHOLE}" LDFLAGS=-Wl,-q',
        "make -j2 -s",
        "make -s install",
    ]

    def __init__(self, machine, place):
        # It finds its files by where it stands; the user that it runs as may not be let into the folders of the build.
        shutil.copytree(os.path.join(place, "install"), machine.path("install"), symlinks=True)
        self.folder = machine.path("install", "bin")
        self.prepare(machine, os.path.join(self.folder, "postgres"))

    def finished(self, command, stdin, **options):
        return ran(command, stdin, **options)


class PostgresServer(Postgres):
    """A server and its clients, as bench/bench run has them: pgbench with queries of many kinds (training has half of them)."""

    title = "postgres server, pgbench, mixed SQL"
    # The same build.
    built, timed = "postgres", "test"
    has_clients = True
    transactions = {"training": 1500, "test": 3000}

    def prepare(self, machine, file):
        self.machine, self.user, self.file = machine, machine.user("postgres"), file
        self.bin = os.path.dirname(file)
        folder = machine.own_folder(self.user, "pg")
        self.state = os.path.join(folder, "state")
        machine.run([self.tool("initdb"), "-D", self.state, "-U", "bench", "-A", "trust", "-N", "--locale=C", "-E", "UTF8"], user=self.user)
        with open(os.path.join(self.state, "postgresql.conf"), "a") as f:
            f.write(CONFIG.format(folder=folder))
        self.scripts = []
        for number, query in enumerate(MIXED):
            self.scripts.append(machine.path(f"mixed{number}.sql"))
            with open(self.scripts[-1], "w") as f:
                f.write("\\set aid random(1, 490000)\n\\set delta random(-500, 500)\n" + query + "\n")
        self.serve(file, self.state, lambda: self.client(self.state, "pgbench", "-i", "-q", "-s", "5"), ())

    def tool(self, name):
        return os.path.join(self.bin, name)

    def client(self, data, name, *options):
        return self.machine.client([self.tool(name), "-h", data, "-U", "bench", *options, "postgres"])

    def serve(self, file, data, work, prefix):
        """What `work` gives, and what the server used for it."""
        # Several may be simulated at the same time: each has its own socket.
        command = [*prefix, file, "-D", data, "-k", data]
        options = self.machine.who(self.user, self.machine.server_core)
        with tempfile.TemporaryFile("w+", errors="replace") as out, tempfile.TemporaryFile("w+", errors="replace") as errors:
            server = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=errors, env=ENVIRONMENT, start_new_session=True, **options)
            try:
                wait_for("postgres", lambda: server.poll() is not None or self.client(data, "psql", "-c", "select 1"), 120)
                text = work()
                server.send_signal(signal.SIGINT)
                return ended(server, command, out, errors)._replace(text=text)
            finally:
                if server.returncode is None:
                    end(server, signal.SIGINT)

    def work(self, data, which, prefix):
        scripts = self.scripts[: len(MIXED) // 2] if which == "training" else self.scripts
        seed = {"training": 1, "test": 2}[which]
        # A simulated server is fifty times slower.
        count = self.transactions[which] // (20 if any("valgrind" in word for word in prefix) else 1)
        files = [word for script in scripts for word in ("-f", script)]
        said = self.client(data, "pgbench", "-n", "-M", "simple", "-c", "2", "-j", "2", "-t", str(count), f"--random-seed={seed}", *files)
        if f"actually processed: {2 * count}/{2 * count}" not in said:
            raise Failed(f"pgbench lost transactions:\n{said}")
        queries = [q.replace("now()", "timestamp '2024-03-05 10:00'").replace(":aid", "4711").replace(":delta", "7") for q in MIXED]
        sums = ["select sum(abalance) from pgbench_accounts;", "select count(*), sum(delta) from pgbench_history;"]
        return self.client(data, "psql", *(word for query in queries + sums for word in ("-c", query)))

    def run(self, file, which, prefix=()):
        data = f"{self.state}-{which}-{os.path.basename(file)}"
        self.machine.run(["cp", "-a", self.state, data], user=self.user)
        try:
            return self.serve(file, data, lambda: self.work(data, which, prefix), prefix)
        finally:
            shutil.rmtree(data, ignore_errors=True)


class Verilator:
    title, package, timed = "Verilator model, 48 units", None, "test"
    has_clients = False
    texts = {"top.v": verilog.design(), "main.cpp": verilog.BENCH}
    program = "obj_dir/Vtop"
    build = [f'verilator --cc --exe --build -O3 --x-assign fast -CFLAGS "-O2 {WHOLE}" -LDFLAGS -Wl,-q -Wno-lint -Wno-style --top-module top top.v main.cpp']
    arguments = {"training": ["1", "12000", "9"], "test": ["77", "10000", "13"]}

    def __init__(self, machine, _):
        self.machine, self.folder = machine, machine.path("run")
        os.makedirs(self.folder)

    def run(self, file, which, prefix=()):
        return ran([*prefix, file, *self.arguments[which]], env=ENVIRONMENT, cwd=self.folder)


class Redis:
    """A server with one client after the other: redis-benchmark of the same build, and a script whose replies are compared."""

    title, package, timed = "redis-server, redis-benchmark and a script", "redis", "test"
    has_clients = True
    program = "redis-server"
    build = [
        f'make -s -C ../src -j2 MALLOC=libc USE_SYSTEMD=no CFLAGS={WHOLE} LDFLAGS=-Wl,-q redis-server redis-benchmark redis-cli',
        "cp ../src/redis-server ../src/redis-benchmark ../src/redis-cli .",
    ]
    # Tests of redis-benchmark. Keys are always the same: what it draws at random cannot be repeated.
    tests = {"training": "set,get,incr,lpush,rpush,lpop,rpop,sadd,hset", "test": "set,get,lpush,lpop,hset,spop,zadd,zpopmin,lrange_100,mset"}
    requests = 30000

    def __init__(self, machine, place):
        self.machine, self.place, self.folder = machine, place, machine.path("run")
        os.makedirs(self.folder)

    def commands(self, which):
        """Commands whose replies depend on nothing but what came before."""
        for i in range(1500):
            key, n = f"k{i * 7919 % 211}", i * 31 % 977
            yield f"SET s:{key} value-{n}"
            yield f"GET s:k{n % 211}"
            yield f"INCRBY n:{key} {n}"
            yield f"RPUSH l:{key} a{n} b{i}"
            yield f"HSET h:{key} f{n % 13} {i} g {n}"
            yield f"SADD t:{key} m{n % 37} m{i % 11}"
            if which == "training":
                continue
            yield f"ZADD z:{n % 7} {n} {key} {i}.5 x{i % 90}"
            yield f"ZRANGEBYSCORE z:{i % 7} 100 400 WITHSCORES LIMIT 2 9"
            yield f"APPEND s:{key} -{i}"
            yield f"SETRANGE s:{key} 3 {n}"
            yield f"LRANGE l:k{n % 211} -5 -1"
            yield f"HMGET h:k{n % 211} f1 f7 g nothing"
            yield f"EXPIRE n:{key} 100000" if i % 3 else f"DEL n:{key}"
            yield f"OBJECT ENCODING h:{key}"
            if i % 20 == 0:
                yield f"SORT t:{key} ALPHA LIMIT 0 20"
                yield f"ZUNIONSTORE zz 3 z:0 z:{n % 7} z:3 WEIGHTS 1 2 3"
                yield f"EVAL return{{redis.call('STRLEN',KEYS[1]),#ARGV[1]..ARGV[1]}} 1 s:{key} {n}"
                yield f"SINTERCARD 2 t:{key} t:k{n % 211}"
                yield f"BITCOUNT s:{key}"
                yield f"XADD x {i + 1}-1 n {n} key {key}"
                yield f"XRANGE x {max(i - 60, 1)} {i + 1} COUNT 3"

    def run(self, file, which, prefix=()):
        path = self.machine.path(f"{which}-{os.path.basename(file)}.sock")
        command = [*prefix, file, "--port", "0", "--unixsocket", path, "--save", "", "--appendonly", "no", "--dir", self.folder, "--loglevel", "warning"]
        with tempfile.TemporaryFile("w+", errors="replace") as out, tempfile.TemporaryFile("w+", errors="replace") as errors:
            server = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=errors, env=ENVIRONMENT, cwd=self.folder, start_new_session=True)
            try:
                wait_for("redis-server", lambda: server.poll() is not None or os.path.exists(path), 60)
                text = self.ask(path, which)
                return ended(server, command, out, errors)._replace(text=text)
            finally:
                if server.returncode is None:
                    end(server, 9)

    def ask(self, path, which):
        """All requests, and the end: the replies of the script, and how often each command ran."""
        try:
            self.machine.run([os.path.join(self.place, "redis-benchmark"), "-s", path, "-n", str(self.requests), "-c", "1", "-P", "16", "-t", self.tests[which], "-q"])
            with socket.socket(socket.AF_UNIX) as s:
                s.connect(path)
                replies = self.answers(s, "FLUSHALL", *self.commands(which))
                stats = self.answers(s, "INFO commandstats")
                s.sendall(b"SHUTDOWN NOSAVE\r\n")
                s.recv(1)
        except OSError as problem:
            raise Failed(f"redis-server: {problem}") from problem
        calls = sorted(line.split(",")[0] for line in stats.split("\r\n") if line.startswith("cmdstat_"))
        return replies + "\n".join(calls)

    @staticmethod
    def encoded(words):
        """A command in Redis's protocol. (Its lines for people have quotes of their own.)"""
        return f"*{len(words)}\r\n" + "".join(f"${len(w)}\r\n{w}\r\n" for w in words)

    @staticmethod
    def answers(s, *commands):
        """The replies to some commands, as they came, up to that of an ECHO behind them."""
        mark, received = "the-end-of-it", b""
        for at in range(0, len(commands), 100):
            part = [*commands[at : at + 100], f"ECHO {mark}"]
            s.sendall("".join(Redis.encoded(c.split(" ")) for c in part).encode())
            wanted = received.count(mark.encode()) + 1
            while received.count(mark.encode()) < wanted:
                more = s.recv(1 << 16)
                if not more:
                    raise Failed("redis-server closed the connection")
                received += more
        return received.decode("utf-8", "replace")


LOADS = {"sqlite": Sqlite, "python": Python, "python-trained": PythonTrained, "postgres": Postgres, "postgres-server": PostgresServer, "verilator": Verilator, "redis": Redis}
