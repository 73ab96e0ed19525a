"""How much of the footprint of the kernel's hot path goes, per request, when the hottest functions are in force as one group.

A stock kernel in exact guests of QEMU, which emulates: one processor, a clock that counts instructions. A server works for a closed loop of ten connections
(tests/guest/requests.c, which compares each reply) over loopback TCP. A plugin counts what the kernel executes for so many requests. The first guest gives the
counts of the stock kernel, of which `restitch kernel position --hottest` makes the group, here on the host, and proves it. The second guest counts twice: as the
kernel is, and with the group in force.

Lines of 64 bytes and pages of 4 KiB are those on which 90, 99 and 99.9 % of the kernel's execution lies. Misses are those of a model: 32 KiB in 8 ways for
lines; for translations 64 pages of 4 KiB in 8 ways, and 8 of 2 MiB, by which the kernel's image is mapped and modules are not. Programs use the model, too.

With --rebuilt, the kernel is one that clang built (rebuilt_kernels.py), and beside its copies in force the table has the same kernel built once more by clang's
AutoFDO, with the profile of what the group was made of: what the first guest executed. A build takes half an hour of processor time; there are one, and one a load.

With --live, restitch itself runs in a guest, which is not exact, and finds the group by tracing calls and counting: the time of each step is told.
It needs apt and gcc, and some minutes a load. See bench/README.md.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import tempfile

from . import rebuilt_kernels
from .machine import Failed, find
from .tables import ROOT, Table

BEGIN = """
DEVICE=/dev/restitch-kernel
at() { echo "$* ($(cut -d ' ' -f 1 /proc/uptime) s)"; }
failed() { echo "FAILED: $*"; cat $DEVICE /said /complaints 2>/dev/null; exit 1; }
insmod /control.ko || failed 'the control module is not taken'
. /server.sh
begin_server || failed 'the server does not begin'
counted() { /requests $PROTOCOL $PORT 10 2000 $REQUESTS || failed 'a request'; at "$*"; }
"""
COUNT = "counted 'stock'\n"
COMPARE = """
counted 'stock'
insmod /group.ko || failed 'the group is not taken'
name=$(cut -d ' ' -f 1 $DEVICE)
exec 3<>$DEVICE
echo "enable $name" >&3 || failed 'it does not come into force'
cat $DEVICE
counted 'copies in force'
exec 3>&-
# Who sleeps in copies keeps the module; no calls are led to it.
grep -q " enabled " $DEVICE && failed 'it is in force still'
at 'given back'
"""
# The load runs while restitch looks at it, and stands while restitch computes, which is slow here.
LIVE = """
/requests $PROTOCOL $PORT 10 2000 0 &
load=$!
within() { n=$(($1 * 10)); shift; until "$@"; do n=$((n - 1)); [ $n -gt 0 ] && kill -0 $owner || return 1; sleep 0.1; done; }
traces() { [ -e /sys/kernel/tracing/instances/restitch_* ]; }
is_traced() { ! traces; }
enabled() { grep -q ' enabled ' $DEVICE; }
/program kernel position --hottest $HOTTEST --count-for $COUNT_FOR --anyway >/said 2>/complaints &
owner=$!
within 600 traces || failed 'calls are not traced'
at 'tracing begins'
within 600 is_traced || failed 'tracing does not end'
kill -STOP $load
at 'calls are traced'
within 3600 enabled || failed 'nothing is counted'
at 'counting begins'
kill -CONT $load && sleep $COUNT_FOR && kill -STOP $load
within 3600 grep -q '^in force' /said || failed 'nothing is in force'
at 'in force'
cat /said
kill -CONT $load && sleep 2 && kill -STOP $load
kill -TERM $owner
wait $owner
code=$?
# 6: tasks sleep in copies, so the module stays for them.
[ $code = 143 ] || [ $code = 6 ] || failed "restitch has ended with $code"
at 'given back'
grep -q ' enabled ' $DEVICE && failed 'a group is in force still'
kill -CONT $load; kill $load; wait $load
[ $? = 143 ] || failed 'a request'
"""
# How each server begins, and what it is asked.
SERVERS = {
    "redis": """
PROTOCOL=redis PORT=7000
begin_server() { redis-server --port $PORT --bind 127.0.0.1 --save '' --daemonize yes --logfile /tmp/log >/dev/null; sleep 1; }
""",
    "nginx": """
PROTOCOL=http PORT=7000
begin_server() {
    mkdir -p /tmp/www /var/log/nginx /var/lib/nginx && chmod 755 /tmp/www && head -c 1024 /dev/zero | tr '\\0' x >/tmp/www/file
    cat >/tmp/nginx.conf <<END
user www-data;
worker_processes 1;
pid /tmp/nginx.pid;
events { worker_connections 256; }
http {
    access_log off; error_log /tmp/log; keepalive_requests 1000000; sendfile on; tcp_nopush on;
    server { listen 127.0.0.1:$PORT; root /tmp/www; }
}
END
    nginx -c /tmp/nginx.conf
}
""",
    "memcached": """
PROTOCOL=memcached PORT=7000
begin_server() { memcached -u memcache -l 127.0.0.1 -p $PORT -t 1 -d && sleep 1; }
""",
    "postgres": """
PROTOCOL=postgres PORT=7000
begin_server() {
    bin=/usr/lib/postgresql/15/bin
    mkdir -p /var/lib/postgresql/data /run/postgresql && chown -R postgres /var/lib/postgresql /run/postgresql
    as() { setpriv --reuid postgres --regid postgres --clear-groups env HOME=/var/lib/postgresql LC_ALL=C "$@"; }
    cd /var/lib/postgresql
    as $bin/initdb -A trust -D data >/tmp/log 2>&1 || return 1
    as $bin/pg_ctl -D data -w -l server.log -o "-p $PORT -c autovacuum=off -c listen_addresses=127.0.0.1 -c unix_socket_directories= -c jit=off" start >>/tmp/log || { cat server.log; return 1; }
    as $bin/pgbench -h 127.0.0.1 -p $PORT -i -q postgres >>/tmp/log 2>&1
}
""",
}
PACKAGES = "redis-server,memcached,nginx-light,postgresql-15,postgresql-client-15,postgresql-contrib,kmod,util-linux"
GUEST = os.path.join(ROOT, "target/release/restitch-guest")
# Of the issue: at most so much of the stock kernel's.
AIMS = {"lines at 99 %": 0.70, "taken branches": 0.70, "pages at 99 %": 0.30, "instructions": 1.00}


def run(command, **more):
    result = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **more)
    if result.returncode:
        raise Failed(f"{' '.join(command[:4])} ...: {result.stdout[-3000:]}{result.stderr[-3000:]}")
    return result


class Lab:
    """Guests of one kernel, a view of it, and what they get."""

    def __init__(self, options, folder):
        self.options, self.folder = options, folder
        self.program = GUEST
        self.control = run([self.program, "module", "--kernel", options.kernel]).stdout.strip()
        self.release = re.search(r"control-(.*)-[0-9a-f]{16}/", self.control).group(1)
        run([find("gcc"), "-O2", "-static", "-Wall", "-Wextra", "-Werror", "-o", self.path("requests"), "tests/guest/requests.c"])

    def path(self, *names):
        return os.path.join(self.folder, *names)

    def view(self):
        """What the kernel says of itself, at the addresses of exact guests; made once."""
        view = self.path("view")
        if not os.path.exists(view):
            run([self.program, "view", "--kernel", self.options.kernel, "--append", "nokaslr", "--to", view])
            # From it come the checksums of what groups ask of the control module.
            modules = os.path.join(view, "lib/modules", self.release)
            os.makedirs(modules, exist_ok=True)
            shutil.copy(self.control, os.path.join(modules, "restitch-kernel.ko"))
        return view

    def guest(self, load, script, files=(), options=()):
        """Runs a script in a guest that has the server of a load."""
        o = self.options
        with open(self.path("server.sh"), "w") as f:
            f.write(f"{SERVERS[load]}REQUESTS={o.requests} HOTTEST={o.hottest} COUNT_FOR={o.count_for}\n")
        with open(self.path("script"), "w") as f:
            f.write(BEGIN + script)
        into = [(self.path("requests"), "/requests"), (self.path("server.sh"), "/server.sh"), (self.control, "/control.ko"), *files]
        command = [self.program, "run", "--kernel", o.kernel, "--memory", "1536", "--append", "nokaslr", "--packages", PACKAGES, "--time-limit", "7200"]
        return run([*command, *options, *(word for host, guest in into for word in ("--in", f"{host}:{guest}")), "--script", self.path("script")])

    def counted(self, load, script, files=(), options=()):
        result = self.guest(load, script, files, ["--exact", "--count", *options])
        return result.stdout, windows(result.stderr)

    def group(self, load):
        """The group of the hottest functions, by what the stock kernel executes for the load; how it was made, in words."""
        self.counted(load, COUNT, options=["--to", self.path(load)])
        counts = self.path(load, "window-0", "instructions")
        command = [self.options.restitch, "kernel", "position", "--hottest", self.options.hottest, "--view", self.view(), "--counts", counts]
        command += ["--no-inline"] if self.options.no_inline else []
        result = run([*command, "--write", self.path("group.ko"), "--json", self.path("group.json")])
        with open(self.path("group.json")) as f:
            return json.load(f), result.stdout

    def live(self, load):
        """restitch finds the group by itself, in a guest; the time of each step, in words."""
        run([find("strip"), "-o", self.path("program"), self.options.restitch])
        # As DKMS installs it; restitch learns from it what modules are like. The C library is the image's.
        installed = f"/usr/lib/modules/{self.release}/updates/dkms/restitch-kernel.ko"
        return self.guest(load, LIVE, [(self.path("program"), "/program"), (self.control, installed)]).stdout


def windows(text):
    """What the guest's table says of each window: the name of a figure, and its numbers."""
    found = []
    for line in text.splitlines():
        if line.startswith("window "):
            found.append({})
        figure = re.match(r"  (\S.*?) {2,}([0-9 of]+)$", line)
        if found and figure:
            found[-1][figure.group(1)] = [int(number) for number in re.findall(r"\d+", figure.group(2))]
    return found


def figures(window, requests):
    """The figures of a window; what grows with the requests, for each of them."""
    (instructions,), (taken,) = window["instructions"], window["taken branches"]
    lines, pages = window["lines for 90, 99, 99.9 %"], window["pages for 90, 99, 99.9 %"]
    each = {"instructions": instructions, "taken branches": taken, "L1i misses": window["L1i misses (model)"][0], "iTLB misses": window["iTLB misses (model)"][0]}
    of = {name: count / requests for name, count in each.items()}
    for at, share in enumerate(("90 %", "99 %", "99.9 %")):
        of[f"lines at {share}"], of[f"pages at {share}"] = lines[at], pages[at]
    if window["steps without explanation"] != [0]:
        raise Failed(f"the plugin cannot explain {window['steps without explanation'][0]} steps")
    return of


def tell(log, text):
    log("".join(f"  {line}\n" for line in text.splitlines()).rstrip())


def kernels(options):
    """Where kernels are that were built; they stay, as a build takes long."""
    return os.path.join(ROOT, "out", "kernels") if not options.keep else os.path.abspath(options.keep)


def build(options, name, profile=None):
    """A kernel that clang builds of the distribution's source, with a profile or without."""
    image = run([GUEST, "fetch"]).stdout.split()[-1]
    return rebuilt_kernels.build(rebuilt_kernels.source(kernels(options)), kernels(options), image.replace("vmlinuz", "config"), name, profile)


def with_autofdo(load, lab, options):
    """The figures of the same kernel, built with a profile of what it executes for the load."""
    profile = rebuilt_kernels.autofdo_profile(lab.path(load, "window-0"), os.path.join(options.kernel, "build", "vmlinux"), lab.path(f"{load}.autofdo"))
    options = argparse.Namespace(**{**vars(options), "kernel": build(options, f"autofdo-{load}", profile)})
    with tempfile.TemporaryDirectory() as temporary:
        _, (window,) = Lab(options, temporary).counted(load, COUNT)
    return figures(window, options.requests)


def measure(name, options, log):
    run(["cargo", "build", "-q", "--release", "-p", "restitch-guest"])
    if options.rebuilt:
        options.kernel = build(options, "clang")
    with tempfile.TemporaryDirectory() as temporary:
        lab = Lab(options, options.keep or temporary)
        if options.live:
            tell(log, lab.live(name))
            return None
        group, _ = lab.group(name)
        said, found = lab.counted(name, COMPARE, [(lab.path("group.ko"), "/group.ko")], ["--to", lab.path(f"{name}-compared")])
        other = {"autofdo": with_autofdo(name, lab, options)} if options.rebuilt else {}
    tell(log, said)
    if len(found) != 2:
        raise Failed(f"{len(found)} windows were counted, not 2: {said}")
    before, after = (figures(window, options.requests) for window in found)
    functions = group["functions"]
    shape = {"functions": len(functions), "roots": sum(f["is_root"] for f in functions), "hot_bytes": sum(f["hot_bytes"] for f in functions)}
    return {"load": name, "kernel": lab.release, "before": before, "after": after, "group": shape, **other}


def text(rows, options):
    names = list(rows[0]["before"])
    lines = [f"Kernel {rows[0]['kernel']}, `--hottest {options.hottest}`, {options.requests} requests; stock, with copies in force, and their ratio. Aims: " + ", ".join(f"{name} {aim:.2f}" for name, aim in AIMS.items()) + "; where one is met, the ratio is **bold**.", ""]
    if "autofdo" in rows[0]:
        lines[0] += f" Behind the semicolon: built by clang {rebuilt_kernels.CLANG} with AutoFDO of the same counts, and its ratio to the first."
    group = lambda row: f"{row['load']} {row['group']['functions']} functions, {row['group']['roots']} of them led to, {row['group']['hot_bytes']:,} bytes of hot code"
    lines += ["Groups: " + "; ".join(map(group, rows)) + ".", ""]
    lines += ["| kernel code, per request or as a whole | " + " | ".join(row["load"] for row in rows) + " |", "|---" * (len(rows) + 1) + "|"]
    for name in names:
        cells = []
        for row in rows:
            before, after = row["before"][name], row["after"][name]
            # Of next to nothing, a ratio says nothing.
            ratio = f"{after / before:.3f}" if before >= 0.1 else "-"
            met = name in AIMS and ratio != "-" and round(after / before, 3) <= AIMS[name]
            number = lambda value: f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
            cell = f"{number(before)}, {number(after)}: {'**' + ratio + '**' if met else ratio}"
            if "autofdo" in row:
                rebuilt = row["autofdo"][name]
                cell += f"; {number(rebuilt)}: {rebuilt / before:.3f}" if before >= 0.1 else f"; {number(rebuilt)}"
            cells.append(cell)
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def main(argv):
    def add(parser):
        parser.add_argument("--kernel", default="6.1", help="6.1 (default), 6.12 or 7.3")
        parser.add_argument("--hottest", default="99.9%", help="what restitch is asked for; default 99.9%%")
        parser.add_argument("--no-inline", action="store_true", help="callees are called, and do not stand in place of their calls")
        parser.add_argument("--requests", type=int, default=4000, help="counted ones; default 4000")
        parser.add_argument("--rebuilt", action="store_true", help="with a kernel of line 6.1 that clang built, and beside it the same with AutoFDO")
        parser.add_argument("--keep", metavar="FOLDER", help="keep the view, counts and groups there, and take a view that is there")
        parser.add_argument("--live", action="store_true", help="have restitch find the group in the guest, and tell the time of each step")
        parser.add_argument("--count-for", default="5", help="with --live: seconds for which restitch counts; default 5")

    loads = {name: name for name in SERVERS}
    def settle(options):
        if options.live:
            options.quick = True

    return Table("bench/bench kernel", __doc__, loads, measure, text, "kernel-footprint", None, 1, raw="kernel.json", kind="simulated").main(argv, add, settle)
