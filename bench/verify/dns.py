#!/usr/bin/env python3
"""Proves that name servers (BIND, Knot, Unbound) answer every query while they are moved between layouts and while they read their zones anew: addresses,
texts and names that do not exist, by datagrams and by connections; each answer is for its query and has the right content. No query is
asked twice: one that is lost is a failure. ONLY names some of the servers; what is not installed is left out and said."""

import itertools
import signal
import struct

from common import *  # noqa: F403
from harness.machine import free_port

SECONDS = int(os.environ.get("SECONDS_EACH", "40"))
NAMES = 500
A, TXT, NO_SUCH_NAME = 1, 16, 3
BIND = """
options {{
  directory "{folder}"; pid-file "{folder}/pid"; session-keyfile "{folder}/key";
  listen-on port {port} {{ 127.0.0.1; }}; listen-on-v6 {{ none; }};
  recursion no; dnssec-validation no; querylog no;
}};
controls {{ }};
zone "example" {{ type primary; file "{folder}/zone"; }};
"""
KNOT = """
server:
  rundir: "{folder}"
  listen: 127.0.0.1@{port}
database:
  storage: "{folder}/db"
template:
  - id: default
    storage: "{folder}"
    zonefile-sync: -1
zone:
  - domain: example
    file: "{folder}/zone"
"""
UNBOUND = """
server:
  directory: "{folder}"
  chroot: ""
  username: ""
  pidfile: "{folder}/pid"
  interface: 127.0.0.1@{port}
  num-threads: 2
  do-daemonize: no
  use-syslog: no
  module-config: "iterator"
  access-control: 127.0.0.0/8 allow
auth-zone:
  name: "example"
  zonefile: "{folder}/zone"
  for-downstream: yes
  for-upstream: no
remote-control:
  control-enable: no
"""
# How each is started, and the signal by which it reads its zones anew. (Unbound closes its sockets for that.)
SERVERS = {
    "named": (BIND, ["-f", "-c", "{conf}", "-n", "2"], signal.SIGHUP),
    "knotd": (KNOT, ["-c", "{conf}"], signal.SIGHUP),
    "unbound": (UNBOUND, ["-d", "-c", "{conf}"], None),
}


def address(n):
    return f"10.{n % 7}.{n // 256}.{n % 256}"


def text(n):
    return f"text of {n} " * (n % 9 + 1)


def zone():
    lines = ["$ORIGIN example.", "$TTL 300", "@ IN SOA ns hostmaster 1 3600 600 86400 300", "@ IN NS ns", "ns IN A 127.0.0.1"]
    for n in range(NAMES):
        lines += [f"h{n} IN A {address(n)}", f't{n} IN TXT "{text(n)}"']
    return "\n".join(lines) + "\n"


def query(number, name, kind):
    """RFC 1035, 4.1."""
    labels = b"".join(bytes([len(part)]) + part.encode() for part in name.split("."))
    return struct.pack(">6H", number, 0x0100, 1, 0, 0, 0) + labels + b"\0" + struct.pack(">2H", kind, 1)


def content(asked, answer):
    """Response code and data of the records in the answer section, which are for what was asked."""
    number, flags, _, answers, _, _ = struct.unpack(">6H", answer[:12])
    at = len(asked)
    # Servers may write the name in another case; ours keep it.
    if number != struct.unpack(">H", asked[:2])[0] or not flags & 0x8000 or answer[12:at] != asked[12:]:
        raise ValueError("an answer to another query")
    found = []
    for _ in range(answers):
        while answer[at] and answer[at] < 0xC0:
            at += answer[at] + 1
        at += 2 if answer[at] else 1
        kind, _, _, size = struct.unpack(">2HIH", answer[at : at + 10])
        found.append((kind, answer[at + 10 : at + 10 + size]))
        at += 10 + size
    return flags & 15, found


def expected(n):
    """Queries and their answers, in turns."""
    n %= NAMES
    yield f"h{n}.example", A, (0, [(A, socket.inet_aton(address(n)))])
    yield f"t{n}.example", TXT, (0, [(TXT, bytes([len(text(n))]) + text(n).encode())])
    yield f"x{n}.example", A, (NO_SUCH_NAME, [])


def ask(port, asked, connected_by):
    """One query by a datagram, or by a connection of its own."""
    with socket.socket(socket.AF_INET, connected_by) as s:
        s.settimeout(20)
        s.connect(("127.0.0.1", port))
        if connected_by == socket.SOCK_DGRAM:
            s.send(asked)
            return s.recv(4096)
        s.sendall(struct.pack(">H", len(asked)) + asked)
        with s.makefile("rb") as f:
            return f.read(struct.unpack(">H", f.read(2))[0])


def client(port, number, answered):
    for n in itertools.count(number):
        if not answered(0):
            return
        for name, kind, right in expected(n * 7):
            asked = query(n & 0xFFFF, name, kind)
            got = content(asked, ask(port, asked, socket.SOCK_STREAM if n % 10 == 0 else socket.SOCK_DGRAM))
            if got != right:
                raise ValueError(f"{name}: {got} instead of {right}")
            answered()


def one(machine, name):
    text_of, arguments, again = SERVERS[name]
    port, folder = free_port(), machine.own_folder(None, name)
    os.mkdir(f"{folder}/db")
    with open(f"{folder}/zone", "w") as f:
        f.write(zone())
    with open(f"{folder}/conf", "w") as f:
        f.write(text_of.format(folder=folder, port=port))
    server = machine.start([find(name), *(a.format(conf=f"{folder}/conf") for a in arguments)], core=os.sched_getaffinity(0))
    first = query(1, "h1.example", A)
    wait_for(name, lambda: content(first, ask(port, first, socket.SOCK_STREAM))[0] == 0)

    def read_anew(second):
        if again and second % 5 == 3:
            os.kill(server.pid, again)

    clients = [lambda answered, n=n: client(port, n, answered) for n in range(4)]
    answers = ask_while_toggling(machine, server.pid, clients, SECONDS, each=read_anew, seconds=3)
    alive(server.pid, name)
    log(f"  {name}: {answers} queries while attaching and reverting, each with its right answer")


def main(machine):
    each(SERVERS, lambda name: one(machine, name))


program(main)
