#!/usr/bin/env python3
"""Proves that web servers answer every request, plain and through TLS, while all their processes are moved between layouts
(--tree) and while they reload their configuration as their users do: Apache forgets all its modules and opens them again, HAProxy
executes itself anew, Varnish compiles its configuration to a library and opens that. Each answer has the right status and
content. ONLY names some of the servers; what is not installed is left out and said. nginx has a program of its own."""

import glob
import gzip
import http.client
import re
import signal
import ssl

from common import *  # noqa: F403
from harness.machine import free_port

SECONDS = int(os.environ.get("SECONDS_EACH", "40"))
MODULES = "/usr/lib/apache2/modules"
APACHE = """
ServerName localhost
Listen 127.0.0.1:{port}
Listen 127.0.0.1:{tls}
PidFile {folder}/pid
ErrorLog {folder}/error.log
User {user}
Group {user}
{modules}
StartServers 2
DocumentRoot {www}
<Directory {www}>
  Require all granted
</Directory>
SetOutputFilter DEFLATE
RewriteEngine on
RewriteRule ^/r/([a-z]+)/([0-9]+)$ /$1$2.txt
RewriteOptions InheritDown
# A worker that ends closes connections that do nothing just when another one asks through them again: without this some requests are lost without restitch, too.
ProxyPass /p/ http://127.0.0.1:{port}/ disablereuse=on
<VirtualHost 127.0.0.1:{tls}>
  SSLEngine on
  RewriteEngine on
  SSLCertificateFile {folder}/pem
</VirtualHost>
"""
APACHE_MODULES = "authz_core filter deflate rewrite proxy proxy_http socache_shmcb ssl http2".split()
LIGHTTPD = """
server.modules = ("mod_rewrite", "mod_deflate", "mod_openssl", "mod_proxy")
server.document-root = "{www}"
server.bind = "127.0.0.1"
server.port = {port}
server.errorlog = "{folder}/error.log"
deflate.mimetypes = ("text/", "application/octet-stream")
url.rewrite-once = ("^/r/([a-z]+)/([0-9]+)$" => "/$1$2.txt")
$HTTP["url"] =~ "^/p/" {{
  proxy.server = ("" => (("host" => "127.0.0.1", "port" => {port})))
  proxy.header = ("map-urlpath" => ("/p/" => "/"))
}}
$SERVER["socket"] == "127.0.0.1:{tls}" {{
  ssl.engine = "enable"
  ssl.pemfile = "{folder}/pem"
}}
"""
HAPROXY = """
global
  maxconn 200
  nbthread 2
defaults
  mode http
  timeout client 20s
  timeout server 20s
  timeout connect 20s
  # A worker that is about to end closes connections that do nothing; clients are told, as here, and ask again.
  option httpclose
  compression algo gzip
  compression type text/plain application/octet-stream
frontend all
  bind 127.0.0.1:{port}
  bind 127.0.0.1:{tls} ssl crt {folder}/pem alpn h2,http/1.1
  http-request replace-path ^/r/([a-z]+)/([0-9]+)$ /\\1\\2.txt
  http-request replace-path ^/p/(.*)$ /\\1
  default_backend behind
backend behind
  server one 127.0.0.1:{behind}
"""
VARNISH = """
vcl 4.0;
backend behind {{ .host = "127.0.0.1"; .port = "{behind}"; }}
sub vcl_recv {{
  set req.url = regsub(req.url, "^/r/([a-z]+)/([0-9]+)$", "/\\1\\2.txt");
  set req.url = regsub(req.url, "^/p/", "/");
  if (req.url ~ "[02468].txt$") {{ return (pass); }}
}}
sub vcl_deliver {{ set resp.http.X-Number = "{number}"; }}
sub vcl_backend_response {{ set beresp.ttl = 1s; set beresp.do_gzip = true; }}
"""


class Server:
    """A server of its own folder: `process` is the one to attach to. `reload` is called now and then, and must not lose a request."""

    tls = None
    every = 5

    def __init__(self, machine, www, behind):
        self.machine, self.www, self.behind = machine, www, behind
        self.user = machine.user("www-data")
        self.folder = machine.own_folder(self.user, f"{type(self).__name__}{len(os.listdir(machine.folder))}")
        self.port = free_port()
        self.start()

    def run(self, *command, **options):
        self.process = self.machine.start(list(command), core=os.sched_getaffinity(0), **options)

    def written(self, text, **names):
        """A configuration file of this text, with a certificate beside it."""
        self.tls = free_port()
        machine, pem = self.machine, f"{self.folder}/pem"
        machine.run([find("openssl"), "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "9", "-subj", "/CN=localhost", "-keyout", f"{pem}.key", "-out", f"{pem}.crt"])
        with open(pem, "w") as out:
            for part in ("crt", "key"):
                with open(f"{pem}.{part}") as f:
                    out.write(f.read())
        user = self.user.pw_name if self.user else ""
        with open(f"{self.folder}/conf", "w") as f:
            f.write(text.format(folder=self.folder, port=self.port, tls=self.tls, www=self.www, behind=self.behind, user=user, **names))
        return f"{self.folder}/conf"


class Lighttpd(Server):
    def start(self):
        # Its graceful restart closes its ports for a moment, by which requests are lost without restitch, too.
        self.run(find("lighttpd"), "-D", "-f", self.written(LIGHTTPD), user=self.user)

    def reload(self):
        """Its log is opened anew."""
        os.kill(self.process.pid, signal.SIGHUP)


class Apache(Server):
    mpm = "event"
    # As with HAProxy, below.
    every = 13

    def start(self):
        modules = "\n".join(f"LoadModule {m}_module {MODULES}/mod_{m}.so" for m in [f"mpm_{self.mpm}", *APACHE_MODULES] if os.path.exists(f"{MODULES}/mod_{m}.so"))
        self.run(find("apache2"), "-D", "FOREGROUND", "-f", self.written(APACHE, modules=modules))

    def reload(self):
        os.kill(self.process.pid, signal.SIGUSR1)


class ApachePrefork(Apache):
    mpm = "prefork"


class HAProxy(Server):
    # Its workers end with their configuration: an attach, which takes some seconds, is to find one that lasts.
    every = 13

    def start(self):
        self.run(find("haproxy"), "-W", "-S", f"{self.folder}/master", "-f", self.written(HAPROXY))

    def reload(self):
        with socket.socket(socket.AF_UNIX) as s:
            s.connect(f"{self.folder}/master")
            s.sendall(b"reload\n")
            while s.recv(1000):
                pass


class Varnish(Server):
    def start(self):
        self.number = 0
        self.options = ["-n", f"{self.folder}/state"]
        self.run(find("varnishd"), "-F", *self.options, "-a", f"127.0.0.1:{self.port}", "-f", self.vcl(), "-s", "malloc,40M", "-j", "none")

    def vcl(self):
        path = f"{self.folder}/{self.number}.vcl"
        with open(path, "w") as f:
            f.write(VARNISH.format(behind=self.behind, number=self.number))
        return path

    def reload(self):
        self.number += 1
        admin = lambda *words: self.machine.run([find("varnishadm"), *self.options, *words])
        admin("vcl.load", f"v{self.number}", self.vcl())
        admin("vcl.use", f"v{self.number}")
        if self.number > 2:
            admin("vcl.discard", f"v{self.number - 2}")


SERVERS = [Apache, ApachePrefork, Lighttpd, HAProxy, Varnish]


def content(number):
    return f"line of file {number}\n".encode() * (number * 50 + 3)


def client(server, number, answered):
    """Asks in turns for files, rewritten names and through the proxy; every tenth time a new connection, which TLS has to agree on."""
    insecure = ssl.create_default_context()
    insecure.check_hostname, insecure.verify_mode = False, ssl.CERT_NONE
    n, connection = number, None
    while answered(0):
        n += 1
        if connection is None or n % 10 == 0:
            if server.tls and n % 20 < 10:
                connection = http.client.HTTPSConnection("127.0.0.1", server.tls, timeout=30, context=insecure)
            else:
                connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
        file = n % 20
        for url in (f"/file{file}.txt", f"/r/file/{file}", f"/p/file{file}.txt"):
            status, text = asked(connection, url)
            if (status, text) != (200, content(file)):
                raise ValueError(f"{connection.port}{url}: status {status}, or other content: {text[:200]}")
            answered()


def asked(connection, url):
    """Status and content. A server may close a connection between two requests, as the protocol lets it (RFC 9112, 9.3.1); who meets that asks again, once, on a new one."""
    for last in (False, True):
        old = connection.sock is not None
        try:
            connection.request("GET", url, headers={"Accept-Encoding": "gzip"} if url.startswith("/r/") else {})
            answer = connection.getresponse()
            text = answer.read()
            return answer.status, gzip.decompress(text) if answer.getheader("Content-Encoding") == "gzip" else text
        except (http.client.RemoteDisconnected, ConnectionResetError, BrokenPipeError):
            connection.close()
            if last or not old:
                raise


def one(machine, kind, www, behind):
    server = kind(machine, www, behind)
    new = lambda: http.client.HTTPConnection("127.0.0.1", server.port, timeout=5)
    wait_for(kind.__name__, lambda: asked(new(), "/file1.txt") == (200, content(1)))
    reloads = 0

    def reload(second):
        nonlocal reloads
        if second % server.every == server.every // 2:
            server.reload()
            reloads += 1

    clients = [lambda answered, n=n: client(server, n, answered) for n in range(4)]
    try:
        answers = ask_while_toggling(machine, server.process.pid, clients, SECONDS, each=reload, tree=True, seconds=3, renewed=server.every > Server.every)
        alive(server.process.pid, kind.__name__)
    finally:
        # A worker that crashed may be the reason why a request was not answered.
        said = []
        for log_file in glob.glob(f"{server.folder}/error.log"):
            with open(log_file, errors="replace") as f:
                said = [line for line in f if re.search("exit signal|Segmentation|AH01102|error reading", line)]
        if said:
            log("".join(said[-5:]))
    if any("signal" in line or "Segmentation" in line for line in said):
        raise Failed("a worker crashed")
    log(f"  {kind.__name__}: {answers} requests while attaching, reverting and reloading ({reloads} times), each with its right answer")
    revert(machine, server.process.pid, True, allowed=(0, 7))


def main(machine):
    www = machine.own_folder(None, "www")
    os.chmod(machine.path(), 0o755)
    for n in range(20):
        with open(f"{www}/file{n}.txt", "wb") as f:
            f.write(content(n))
    behind = Lighttpd(machine, www, None).port
    kinds = {kind.__name__: kind for kind in SERVERS}
    each(kinds, lambda name: one(machine, kinds[name], www, behind))


program(main)
