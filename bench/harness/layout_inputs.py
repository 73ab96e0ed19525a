"""What bench/bench layouts runs: stock programs, what they are trained with, and what they are tested with (something else).

A program is made once for its machine (`__init__` makes what all its runs need) and has `file`, what is optimized, and
`run(file, which, prefix)`, which runs "training" or "test" from the same state every time, with `prefix` before the command, and
gives what the run produced and what it printed to standard error. Where `run` has processes of its own before that, `ready()` says when they are done.
"""

import contextlib
import http.client
import os
import random
import re
import resource
import shutil
import signal
import subprocess

from . import verilog
from .machine import Failed, Missing, copy_as_written, end, find, free_port, wait_for
from .simulated import finished
from .tables import ROOT
from loads.postgres import MIXED
from loads.python import TRAINED, UNSEEN

# Nothing of the caller's environment: where the stack begins depends on its size.
ENVIRONMENT = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C", "TZ": "UTC"}


class Load:
    """What all have. `timed` is the input that clocks measure: "test", or a longer one where that is hardly more than the program's start; `recorded` that
    of which branch records are taken: "training", or a longer one of the same kind."""

    timed, recorded = "test", "training"
    # Whether it is a server with clients.
    has_clients = False

    # What this process's children had used when the program was about to begin.
    since = resource.getrusage(resource.RUSAGE_CHILDREN)

    def ready(self):
        self.since = resource.getrusage(resource.RUSAGE_CHILDREN)

    def cpu_seconds(self, file, which):
        """Processor time of a run, the kernel's part included: their sum is exact, and how it is parted is what the kernel sees at each tick."""
        self.ready()
        self.run(file, which)
        now = resource.getrusage(resource.RUSAGE_CHILDREN)
        return now.ru_utime + now.ru_stime - self.since.ru_utime - self.since.ru_stime


class Cc1plus(Load):
    title, timed = "cc1plus -O2", "long"
    inputs = {
        "training": "#include <map>\n#include <string>\n#include <vector>\nstd::map<std::string, std::vector<int>> m;\nint f(int n) { m[std::to_string(n)].push_back(n); return m.size(); }\n",
        "test": "template <class T> void exchange(T& a, T& b) { T c = a; a = b; b = c; }\nstruct A { virtual ~A(); virtual int g(int) const = 0; };\ntemplate <class T> struct B : A { T t[9]; int g(int n) const override { int s = 0; for (auto& x : t) s += x * n; return s; } };\n"
        "template <class F> int each(int* v, int n, F f) { for (int i = 1; i < n; i++) if (f(v[i], v[i - 1])) exchange(v[i], v[i - 1]); return v[0]; }\n"
        "int f(int n) { A* a = n > 3 ? (A*)new B<int>() : new B<double>(); int v[7] = {n, 2, 3}; each(v, 7, [n](int x, int y) { return x < y + n; }); switch (v[n & 3]) { case 1: return 5; case 7: return a->g(1); default: return a->g(v[2]); } }\n",
        "long": "#include <functional>\n#include <iostream>\n#include <list>\n#include <set>\n#include <unordered_map>\n#include <variant>\nusing V = std::variant<int, std::string, std::list<double>>;\n"
        "struct P { std::string operator()(int i) { return std::to_string(i); } std::string operator()(const std::string& s) { return s; } std::string operator()(const std::list<double>& l) { return std::to_string(l.size()); } };\n"
        "template <class T> struct Tree { std::set<T> s; std::list<std::function<T(T)>> q; T all(T x) { for (auto& f : q) x = f(x); s.insert(x); return *s.begin(); } };\nstd::unordered_map<std::string, Tree<double>> t;\n"
        "int main() { t[\"a\"].q.push_back([](double d) { return d * 2; }); V v = 3; std::cout << t[\"a\"].all(3) << std::visit(P(), v); }\n",
    }

    def __init__(self, machine, _):
        self.machine, compiler = machine, find("g++")
        self.file = find(machine.run([compiler, "-print-prog-name=cc1plus"]).strip())
        for which, text in self.inputs.items():
            machine.run([compiler, "-std=c++17", "-E", "-x", "c++", "-", "-o", machine.path(f"{which}.ii")], stdin=text)

    def run(self, file, which, prefix=()):
        out = self.machine.path(os.path.basename(file) + ".s")
        options = ["-fpreprocessed", "-quiet", "-std=c++17", "-O2"]
        _, errors = finished([*prefix, file, *options, self.machine.path(f"{which}.ii"), "-o", out], env=ENVIRONMENT, cwd=self.machine.folder)
        with open(out) as f:
            return f.read(), errors


class Python(Load):
    title, timed = "python3, script", "long"

    def __init__(self, machine, _):
        self.machine, self.file = machine, find("/usr/bin/python3")
        for which, text, count in (("training", TRAINED, 100_000), ("test", UNSEEN, 100_000), ("long", UNSEEN, 1_000_000), ("trained", TRAINED, 500_000)):
            with open(machine.path(f"{which}.py"), "w") as f:
                f.write(text.replace("COUNT", str(count)))

    def run(self, file, which, prefix=()):
        env = dict(ENVIRONMENT, PYTHONHASHSEED="1", PYTHONHOME="/usr")
        return finished([*prefix, file, "-S", "-B", self.machine.path(f"{which}.py")], env=env, cwd=self.machine.folder)


class Postgres(Load):
    """A backend without a server around it (`postgres --single`), which reads a query a line."""

    title, timed, recorded = "postgres, TPC-B and mixed SQL", "long", "long-training"
    accounts, rounds, long_rounds, selects = 20000, 60, 1500, 30000

    def __init__(self, machine, _):
        self.prepare(machine, os.path.realpath(find("/usr/lib/postgresql/*/bin/postgres", "postgres")))

    def prepare(self, machine, file):
        """Makes the tables that all runs begin with."""
        self.machine, self.user, self.file = machine, machine.user("postgres"), file
        initdb = find(os.path.join(os.path.dirname(self.file), "initdb"))
        folder = machine.own_folder(self.user, "pg")
        self.state = os.path.join(folder, "state")
        machine.run([initdb, "-D", self.state, "-U", "bench", "-A", "trust", "-N", "--locale=C", "-E", "UTF8"], user=self.user)
        fill = [
            "create table pgbench_branches(bid int primary key, bbalance int, filler char(88));",
            "create table pgbench_tellers(tid int primary key, bid int, tbalance int, filler char(84));",
            "create table pgbench_accounts(aid int primary key, bid int, abalance int, filler char(84));",
            "create table pgbench_history(tid int, bid int, aid int, delta int, mtime timestamp, filler char(22));",
            "insert into pgbench_branches select i, 0, '' from generate_series(1, 5) i;",
            "insert into pgbench_tellers select i, 1 + i % 5, 0, '' from generate_series(1, 50) i;",
            f"insert into pgbench_accounts select i, 1 + i % 5, 0, '' from generate_series(1, {self.accounts}) i;",
            "analyze;",
        ]
        self.single(self.file, self.state, fill, ())

    def single(self, file, data, lines, prefix):
        options = ["-c", "fsync=off", "-c", "jit=off", "-c", "max_parallel_workers_per_gather=0", "-c", "shared_buffers=64MB", "-D", data]
        return self.finished([*prefix, file, "--single", *options, "postgres"], stdin="\n".join(lines) + "\n", env=ENVIRONMENT, **self.machine.who(self.user, None))

    def finished(self, command, stdin, **options):
        """Runs a command to its end."""
        return finished(command, stdin, **options)

    def queries(self, which):
        """TPC-B's transactions and, in between, queries of many kinds: half of them in training, all of them in the test. `selects`: what pgbench -S asks, alone."""
        choose, lines = random.Random(which), []
        if which == "selects":
            return [f"select abalance from pgbench_accounts where aid = {choose.randrange(1, self.accounts - 100)};" for _ in range(self.selects)]
        mixed = [m.replace("now()", "timestamp '2024-03-05 10:00'") for m in MIXED]
        for number in range(self.long_rounds if which.startswith("long") else self.rounds):
            aid, delta = choose.randrange(1, self.accounts - 100), choose.randrange(-500, 500)
            tid, bid = choose.randrange(1, 51), choose.randrange(1, 6)
            lines += [
                "begin;", f"update pgbench_accounts set abalance = abalance + {delta} where aid = {aid};",
                f"select abalance from pgbench_accounts where aid = {aid};",
                f"update pgbench_tellers set tbalance = tbalance + {delta} where tid = {tid};",
                f"update pgbench_branches set bbalance = bbalance + {delta} where bid = {bid};",
                f"insert into pgbench_history(tid, bid, aid, delta, mtime) values ({tid}, {bid}, {aid}, {delta}, timestamp '2024-03-05 10:00');", "end;",
            ]
            query = mixed[number % (len(mixed) // 2 if which.endswith("training") else len(mixed))]
            lines += query.replace(":aid", str(aid)).replace(":delta", str(delta)).replace("; ", ";\n").split("\n")
        return lines

    def run(self, file, which, prefix=()):
        data = f"{self.state}-{which}-{os.path.basename(file)}"
        self.machine.run(["cp", "-a", self.state, data], user=self.user)
        self.ready()
        try:
            return self.single(file, data, self.queries(which), prefix)
        finally:
            shutil.rmtree(data, ignore_errors=True)


class MariaDb(Load):
    """A server that executes statements from its standard input and ends (`mariadbd --bootstrap`)."""

    title, timed = "mariadbd, SQL", "long"
    items, rounds, long_rounds = 600, 48, 600

    def __init__(self, machine, _):
        self.machine, self.user, self.file = machine, machine.user("mysql"), find("mariadbd")
        folder = machine.own_folder(self.user, "maria")
        self.state = os.path.join(folder, "state")
        install = [find("mariadb-install-db"), "--no-defaults", f"--datadir={self.state}", "--auth-root-authentication-method=normal", "--skip-test-db"]
        machine.run([*install, "--innodb-log-file-size=4M"], user=self.user)
        fill = [
            "create database b;", "use b;",
            "create table item(id int primary key auto_increment, k int, c varchar(120), price decimal(8,2), key(k)) engine=innodb;",
            "create table sale(id int primary key, item int, amount int, day int, note varchar(40), key(item)) engine=innodb;",
            f"insert into item select seq, seq * 7919 % 1009, concat('item ', sha1(seq)), seq * 31 % 977 / 7 from seq_1_to_{self.items};",
            f"insert into sale select seq, 1 + seq * 6007 % {self.items}, seq % 9, seq % 365, hex(seq * 2654435761) from seq_1_to_{2 * self.items};",
        ]
        self.bootstrap(self.file, self.state, fill, ())

    def bootstrap(self, file, data, lines, prefix):
        options = ["--no-defaults", "--bootstrap", f"--datadir={data}", "--innodb-log-file-size=4M", "--innodb-buffer-pool-size=32M", "--loose-innodb-buffer-pool-size-max=64M", "--skip-log-bin", "--secure-file-priv="]
        options += ["--innodb-flush-log-at-trx-commit=0", "--innodb-flush-method=nosync", "--innodb-use-native-aio=0", "--innodb-read-io-threads=1", "--innodb-write-io-threads=1", "--innodb-buffer-pool-load-at-startup=0", "--innodb-buffer-pool-dump-at-shutdown=0"]
        return finished([*prefix, file, *options], stdin="\n".join(lines) + "\n", env=ENVIRONMENT, **self.machine.who(self.user, None))

    def statements(self, which):
        """Point selects, ranges and updates; the test has joins, sorts, texts and subqueries as well, of which training has half."""
        choose, lines = random.Random(which), ["use b;", "create table r(n int primary key auto_increment, v text) engine=myisam;"]
        complex_ = [
            "insert into r(v) select concat_ws(',', kind, count(*), sum(amount * price)) from (select k % 17 kind, id, price from item) i join sale on i.id = sale.item where amount > {a} group by kind order by 1 limit 5;",
            "insert into r(v) select concat(c, price) from item where k between {k} and {k} + 30 order by price desc, id limit 4;",
            "insert into r(v) select json_object('d', day, 'n', count(distinct item)) from sale where item between {i} and {i} + 100 group by day having count(*) > 1 order by day limit 6;",
            "update sale set amount = amount + 1, note = lower(note) where item between {i} and {i} + 5;",
            "insert into r(v) select (select max(amount) from sale where sale.item = item.id) from item where id between {i} and {i} + 20 and c like '%a{a}%';",
            "insert into r(v) select sum(amount) over (partition by day % 5 order by id) from sale where item between {i} and {i} + 40 limit 7;",
            "delete from sale where item = {i}; insert into sale select 100000 + {n}, {i}, 3, 7, upper(left(sha1({n}), 12));",
            "insert into r(v) select regexp_replace(c, '[0-4]+', date_format('2024-03-05' + interval id day, '%W %j')) from item where id between {i} and {i} + 6;",
        ]
        half = complex_[: len(complex_) // 2] if which == "training" else complex_
        for n in range(self.long_rounds if which == "long" else self.rounds):
            i, k, a = choose.randrange(1, self.items - 110), choose.randrange(980), choose.randrange(8)
            lines += [f"insert into r(v) select c from item where id = {i};", f"insert into r(v) select sum(k) from item where id between {i} and {i} + 100;"]
            lines += ["begin;", f"update item set k = k + 1 where id = {i};", f"update item set c = concat('x', {n}) where id = {i + 1};", "commit;"]
            lines.append(half[n % len(half)].format(i=i, k=k, a=a, n=n).replace("; ", ";\n"))
        return [*lines, "select * from r into outfile 'out.txt';"]

    def run(self, file, which, prefix=()):
        data = f"{self.state}-{os.path.basename(file)}"
        self.machine.run(["cp", "-a", self.state, data], user=self.user)
        self.ready()
        try:
            _, errors = self.bootstrap(file, data, self.statements(which), prefix)
            with open(os.path.join(data, "b", "out.txt")) as f:
                return f.read(), errors
        finally:
            shutil.rmtree(data, ignore_errors=True)


class Apache(Load):
    """One process of a web server (`apache2 -X`): pages with includes, listings, files in parts, what is not there."""

    title, timed = "apache2, includes and files", "long"
    asked, long_asked = 300, 3000
    modules = "mpm_prefork authz_core authz_host auth_basic authn_core authn_file authz_user alias dir mime autoindex include env setenvif headers expires rewrite negotiation deflate filter reqtimeout status"
    config = """
ServerName bench
ServerRoot {root}
PidFile {root}/pid-{port}
Mutex file:{root}
ErrorLog {root}/errors-{port}
LogFormat "%h %t \\"%r\\" %>s %b \\"%{{User-Agent}}i\\"" common
CustomLog {root}/access-{port} common
Listen 127.0.0.1:{port}
User {user}
Group {group}
MaxKeepAliveRequests 0
KeepAliveTimeout 60
StartServers 1
DocumentRoot {root}/www
TypesConfig /dev/null
AddType text/html .html .shtml
AddType text/css .css
AddOutputFilter INCLUDES .shtml
AddOutputFilterByType DEFLATE text/html
RewriteEngine on
RewriteRule ^/old/([0-9]+)$ /page$1.shtml [PT]
RewriteCond %{{HTTP_USER_AGENT}} robot
RewriteRule ^/page - [F]
SetEnvIf Request_URI "\\.css$" style
Header set X-Style yes env=style
ExpiresActive on
ExpiresByType text/css "access plus 1 day"
<Directory {root}/www>
  Options +Indexes +Includes +MultiViews
  IndexOptions FancyIndexing
  AllowOverride All
  Require all granted
</Directory>
"""

    def __init__(self, machine, _):
        self.machine, self.file, self.user = machine, find("apache2"), machine.user("www-data")
        where = "/usr/lib/apache2/modules"
        needed = [f"{where}/mod_{m}.so" for m in self.modules.split()]
        for path in needed:
            if not os.path.exists(path):
                raise Missing(f"{path} is not there")
        self.loads = "".join(f"LoadModule {m}_module {p}\n" for m, p in zip(self.modules.split(), needed))
        self.root = machine.own_folder(self.user, "web")
        self.pages()
        shutil.chown(os.path.join(self.root, "www"), self.user.pw_uid if self.user else None)

    def pages(self):
        choose = random.Random(5)
        words = lambda n: " ".join(f"w{choose.randrange(999)}" for _ in range(n))
        text = {"head.html": "<h1>" + words(5) + "</h1>", "style.css": "a { color: red }\n" * 40, "doc.html.en": words(50), "doc.html.de": words(50), "sub/.htaccess": "Header set X-Sub 1\n"}
        for i in range(12):
            text[f"page{i}.shtml"] = f'<!--#include virtual="/head.html" -->\n<!--#set var="x" value="{i}" -->\n<!--#if expr="$x = /[369]/" -->{words(60)}<!--#else --><!--#echo var="x" --><!--#endif -->\n{words(200)}'
            text[f"sub/file{i}.html"] = words(100 * i)
        for name, content in text.items():
            path = os.path.join(self.root, "www", name)
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "w") as f:
                f.write(content)
            os.utime(path, (1700000000, 1700000000))
        os.utime(os.path.join(self.root, "www", "sub"), (1700000000, 1700000000))

    def requests(self, which):
        """Path and headers of each request. Training asks for some kinds of things, the test for more."""
        choose, found = random.Random(which), []
        kinds = [
            lambda i: (f"/page{i}.shtml", {}), lambda i: (f"/sub/file{i}.html", {}), lambda i: ("/style.css", {"If-Modified-Since": "Mon, 20 Nov 2023 10:00:00 GMT"}),
            lambda i: (f"/old/{i}", {"User-Agent": "a browser"}), lambda i: (f"/nothing{i}", {}),
            lambda i: (f"/sub/file{i}.html", {"Range": "bytes=10-90,200-240"}), lambda i: ("/sub/", {}), lambda i: ("/doc", {"Accept-Language": "de, en;q=0.5"}),
            lambda i: (f"/page{i}.shtml", {"User-Agent": "robot"}), lambda i: (f"/page{i}.shtml?a=%20b", {"Accept-Encoding": "gzip"}),
        ]
        for _ in range(self.long_asked if which == "long" else self.asked):
            kind = choose.choice(kinds[:5] if which == "training" else kinds)
            found.append(kind(choose.randrange(12)))
        return found

    def run(self, file, which, prefix=()):
        port = free_port()
        names = {"user": self.user.pw_name if self.user else "nobody", "group": "nogroup", "root": self.root, "port": port}
        path = os.path.join(self.root, f"config-{port}")
        with open(path, "w") as f:
            f.write(self.loads + self.config.format(**names))
        errors = self.machine.path(f"errors-{port}")
        with open(errors, "w") as f:
            child = subprocess.Popen([*prefix, file, "-X", "-f", path], stderr=f, stdin=subprocess.DEVNULL, env=ENVIRONMENT, start_new_session=True, **self.machine.who(self.user, None))
        try:
            # The file of its number is there when it is about to listen; a connection before the first request would be one of its own.
            wait_for("apache2", lambda: child.poll() is not None or listens(port), 120)
            answers = self.ask(port, which)
            child.send_signal(signal.SIGTERM)
            code = child.wait(60)
        except (ConnectionError, http.client.HTTPException, subprocess.TimeoutExpired) as problem:
            code = f"the client: {problem}"
        finally:
            end(child, signal.SIGTERM)
        with open(errors, errors="replace") as f:
            text = f.read()
        if code != 0:
            raise Failed(f"apache2 ended with {code}:\n{text[-2000:]}")
        return answers, text

    def ask(self, port, which):
        answers = []
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=60)) as connection:
            for path, headers in self.requests(which):
                connection.request("GET", path, headers=dict({"Host": "bench", "User-Agent": "bench"}, **headers))
                answer = connection.getresponse()
                body = answer.read().decode("latin-1")
                # The time of day, and what separates parts: random, and not always as long.
                parts = answer.getheader("Content-Type", "").startswith("multipart/")
                body = re.sub(r"--[0-9a-f]{8,}", "--", body)
                kept = [(k, re.sub(r"boundary=\w+", "", v)) for k, v in answer.getheaders() if k not in ("Date", "Expires") and not (parts and k == "Content-Length")]
                answers.append(f"{path} {answer.status} {kept} {body}")
        return "\n".join(answers)


def listens(port):
    """Whether a socket listens there, seen without connecting to it."""
    with open("/proc/net/tcp") as f:
        return any(f":{port:04X} 00000000:0000 0A" in line for line in f)


class Verilator(Load):
    title = "Verilator model, 48 units"

    def __init__(self, machine, log):
        self.machine, verilator = machine, find("verilator")
        place = os.path.join(ROOT, "out", "layouts", "verilator")
        self.file = os.path.join(place, "obj_dir", "Vtop")
        texts = {"top.v": verilog.design(), "main.cpp": verilog.BENCH}
        if not os.path.exists(self.file) or any(not same(os.path.join(place, n), t) for n, t in texts.items()):
            log("  building the model")
            shutil.rmtree(place, ignore_errors=True)
            os.makedirs(place)
            for name, text in texts.items():
                with open(os.path.join(place, name), "w") as f:
                    f.write(text)
            finished([verilator, "--cc", "--exe", "--build", "-O3", "--x-assign", "fast", "-CFLAGS", "-O2", "-Wno-lint", "-Wno-style", "--top-module", "top", "top.v", "main.cpp"], cwd=place)
        copied = machine.path("Vtop")
        copy_as_written(self.file, copied)
        self.file = copied

    def run(self, file, which, prefix=()):
        arguments = ["1", "12000", "9"] if which == "training" else ["77", "10000", "13"]
        return finished([*prefix, file, *arguments], env=ENVIRONMENT, cwd=self.machine.folder)


def same(path, text):
    with contextlib.suppress(OSError), open(path) as f:
        return f.read() == text
    return False


LOADS = {"cc1plus": Cc1plus, "mariadb": MariaDb, "postgres": Postgres, "python": Python, "apache": Apache, "verilator": Verilator}
