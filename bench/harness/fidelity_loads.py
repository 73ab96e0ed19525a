"""What bench/bench fidelity profiles: commands that end, and processes that do the same for ever."""

import glob
import os
import pwd
import shutil
import subprocess
import time

from .tables import ROOT

PROGRAMS = os.path.join(ROOT, "tests/programs")

CXX = """
#include <map>
#include <string>
#include <vector>
#include <regex>
std::map<std::string, std::vector<int>> m;
int f(int n) { m[std::to_string(n)].push_back(n); return std::regex_match(std::to_string(n), std::regex("a+b*(c|d)")); }
"""
PYTHON = """
import json, re
class Node:
    def __init__(self, n): self.n, self.kids = n, []
def tree(d):
    node = Node(d)
    node.kids = [tree(d - 1) for _ in range(3)] if d else []
    return node
def size(t): return 1 + sum(size(k) for k in t.kids)
for _ in range(12):
    t = size(tree(8))
    words = re.findall(r"[a-z]+", json.dumps({str(i): ["x" * (i % 7), i * 1.5] for i in range(20000)}))
    d = {}
    for w in words: d[w] = d.get(w, 0) + 1
print(t, len(words), sorted(d)[:3])
"""
PERL = """
for my $round (1..60) { my %h; for my $i (1..9000) { my $k = "k" . ($i * 7919 % 4001); $h{$k} .= chr(97 + $i % 26); }
  my $s = join ',', map { my $v = $h{$_}; $v =~ s/([aeiou])/<$1>/g; "$_=$v" } sort keys %h; my @f = split /,/, $s; print scalar(@f), length $s, "\\n"; }
"""
SQL = """
with recursive n(i) as (select 1 union all select i + 1 from n where i < 400000) select count(*), sum(i * 7 % 13) from n;
create table t(a integer primary key, b text, c real);
with recursive n(i) as (select 1 union all select i + 1 from n where i < 120000) insert into t select i, 'x' || (i * 7919 % 10007), i / 3.0 from n;
create index u on t(b);
select b, count(*), avg(c) from t where b like 'x1%' group by b order by 2 desc, 1 limit 5;
select count(*) from t x join t y on x.b = y.b where x.a < 20000;
"""
PG = """
create table t as select i as a, 'x' || (i * 7919 % 10007) as b, i / 3.0 as c from generate_series(1, 150000) i;
create index u on t(b);
select b, count(*), avg(c) from t where b like 'x1%' group by b order by 2 desc, 1 limit 5;
select count(*) from t x join t y on x.b = y.b where x.a < 60000;
select sum(length(md5(b)) + a % 7) from t, generate_series(1, 4);
"""


def write(folder, name, text):
    path = os.path.join(folder, name)
    with open(path, "w") as f:
        f.write(text)
    return path


def found(name):
    path = shutil.which(name)
    return os.path.realpath(path) if path else None


def cc1plus(folder):
    program = subprocess.check_output(["g++", "-print-prog-name=cc1plus"], text=True).strip()
    source = os.path.join(folder, "input.ii")
    subprocess.run(["g++", "-E", "-x", "c++", "-", "-o", source], input=CXX, text=True, check=True)
    return [program, "-fpreprocessed", "-quiet", "-O2", source, "-o", "/dev/null"], None


def postgres(folder):
    postgres = found("postgres")
    user = pwd.getpwnam("postgres")
    data = os.path.join(folder, "data")
    os.mkdir(data)
    for path in (folder, data):
        os.chown(path, user.pw_uid, user.pw_gid)
    as_user = [found("setpriv"), f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups"]
    initdb = os.path.join(os.path.dirname(postgres), "initdb")
    initdb = initdb if os.path.exists(initdb) else found("initdb")
    subprocess.run([*as_user, initdb, "-D", data, "-A", "trust", "-N", "--locale=C"], check=True, capture_output=True, cwd=folder)
    # In single-user mode a command ends with an empty line.
    text = "drop table if exists t;\n\n" + PG.strip().replace(";\n", ";\n\n") + "\n\n"
    return [postgres, "--single", "-j", "-D", data, "postgres"], write(folder, "input", text), as_user


def python3(folder):
    return [os.path.realpath("/usr/bin/python3"), "-I", write(folder, "work.py", PYTHON)], None


def perl(folder):
    return [found("perl"), write(folder, "work.pl", PERL)], None


def sqlite3(folder):
    return [found("sqlite3"), ":memory:"], write(folder, "work.sql", SQL)


def xz(folder):
    data = os.path.join(folder, "input")
    subprocess.run(f"cat {ROOT}/crates/*/src/*.rs {PROGRAMS}/* > {data}", shell=True, check=True)
    return [found("xz"), "-9e", "-k", "-c", data], None


def compiled(source, compiler, flags):
    def load(folder):
        program = os.path.join(folder, os.path.splitext(source)[0])
        subprocess.run([compiler, "-O2", "-g", *flags, "-o", program, os.path.join(PROGRAMS, source)], check=True)
        return [program, "--seconds", "4"], None

    return load


LOADS = {
    "cc1plus": cc1plus,
    "postgres": postgres,
    "python3": python3,
    "perl": perl,
    "sqlite3": sqlite3,
    "xz": xz,
    "virt (virtual calls)": compiled("virt.cc", "g++", []),
    "threads": compiled("threads.c", "gcc", ["-pthread"]),
}


def endless(*command):
    """A process that does the same for ever."""

    def serve(folder):
        arguments = [write(folder, "work", a[1:]) if a.startswith("@") else a for a in command]
        return subprocess.Popen(arguments, stdout=subprocess.DEVNULL, start_new_session=True), lambda process: process.pid

    return serve


def pgbench(folder):
    """One server process of postgres that answers pgbench's selects."""
    user = pwd.getpwnam("postgres")
    data = os.path.join(folder, "data")
    os.mkdir(data)
    for path in (folder, data):
        os.chown(path, user.pw_uid, user.pw_gid)
    as_user = [found("setpriv"), f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups"]
    binaries = os.path.dirname(found("postgres") or sorted(glob.glob("/usr/lib/postgresql/*/bin/postgres"))[-1])
    run = lambda *c: subprocess.run([*as_user, *c], check=True, capture_output=True, cwd=folder)
    run(f"{binaries}/initdb", "-D", data, "-A", "trust", "-N", "--locale=C")
    server = subprocess.Popen([*as_user, f"{binaries}/postgres", "-D", data, "-k", folder, "-h", "", "-c", "fsync=off"], stderr=subprocess.DEVNULL, start_new_session=True)
    to = ["-h", folder, "-U", "postgres", "postgres"]
    for _ in range(100):
        time.sleep(0.2)
        if subprocess.run([f"{binaries}/pg_isready", *to[:4]], capture_output=True).returncode == 0:
            break
    run(f"{binaries}/pgbench", "-i", "-s", "2", *to)
    subprocess.Popen([*as_user, f"{binaries}/pgbench", "-S", "-c", "1", "-T", "3600", *to], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=folder)

    def backend(_):
        for _ in range(100):
            time.sleep(0.2)
            told = subprocess.run(["pgrep", "-P", str(server.pid), "-f", "postgres: postgres postgres"], capture_output=True, text=True)
            if told.stdout.strip():
                return int(told.stdout.split()[0])
        raise RuntimeError("no server process of postgres")

    return server, backend


DASH = "i=0; while :; do i=$((i+1)); case $i in *7) set -- a b c;; *3*) x=${x#y}z;; *) x=y$i;; esac; done"
SERVING = {
    "dash (loop)": endless("dash", "-c", DASH),
    "perl (loop)": endless("perl", "@while (1) {" + PERL.replace("print scalar(@f), length $s, \"\\n\";", "") + "}"),
    "python3 (loop)": endless(os.path.realpath("/usr/bin/python3"), "-I", "@" + PYTHON.replace("for _ in range(12)", "while True")),
    "postgres (pgbench -S)": pgbench,
}
