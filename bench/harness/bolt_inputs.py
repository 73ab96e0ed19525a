"""What bench/bolt builds, and what it trains and tests with. Training and test do different things with the same program."""

import os

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


class Sqlite:
    title, package = "sqlite3 shell, SQL script", "sqlite3"
    training, test = ("training.sql", SQL_TRAINING), ("test.sql", SQL_TEST)
    program = "sqlite3"
    build = [
        "../configure --disable-tcl --disable-readline",
        "make sqlite3.c shell.c",
        "gcc -O2 -DSQLITE_THREADSAFE=0 -DSQLITE_OMIT_LOAD_EXTENSION -Wl,-q shell.c sqlite3.c -o sqlite3 -lm",
    ]

    @staticmethod
    def command(program, script, _):
        return [program, "-batch", "-init", script, ":memory:", ".quit"]

    @staticmethod
    def environment(_):
        return {"HOME": "/nonexistent"}


class Python:
    title, package = "python3.11, script", "python3.11"
    training, test = ("training.py", PY_TRAINING), ("test.py", PY_TEST)
    program = "python"
    build = ["../configure --without-ensurepip CFLAGS=-O2 LDFLAGS=-Wl,-q", "make -j2 python"]

    @staticmethod
    def command(program, script, _):
        return [program, "-S", "-s", "-B", script]

    @staticmethod
    def environment(build):
        return {"PYTHONPATH": os.path.join(os.path.dirname(build), "Lib"), "PYTHONHASHSEED": "0"}


LOADS = {"sqlite": Sqlite, "python": Python}
