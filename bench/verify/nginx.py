#!/usr/bin/env python3
"""Proves that nginx answers every request while its master and worker processes are moved between layouts (--tree), and
through a reload (new workers are forked from a master that has a version in force): each answer has the right status and
length. Prints ab's requests a CPU second before and after attaching, interleaved."""

import re
import signal
import urllib.request

from common import *  # noqa: F403
from harness.machine import free_port

CONFIG = """
worker_processes 2;
pid {folder}/pid;
error_log {folder}/error.log;
events {{ worker_connections 256; }}
http {{
  access_log off;
  client_body_temp_path {folder}/a; proxy_temp_path {folder}/b; fastcgi_temp_path {folder}/c; uwsgi_temp_path {folder}/d; scgi_temp_path {folder}/e;
  gzip on; gzip_min_length 100; gzip_types text/plain; default_type text/plain;
  server {{
    listen 127.0.0.1:{port};
    root {folder}/www;
    rewrite ^/r/([a-z]+)/(\\d+)$ /$1$2.txt;
    location /p/ {{ proxy_pass http://127.0.0.1:{port}/; }}
  }}
}}
"""
ROUNDS = int(os.environ.get("ROUNDS", "5"))
SECONDS = int(os.environ.get("SECONDS_EACH", "40"))


def main(machine):
    folder, port = machine.own_folder(machine.user("www-data"), "server"), free_port()
    os.makedirs(f"{folder}/www")
    for n in range(20):
        with open(f"{folder}/www/file{n}.txt", "w") as f:
            f.write(f"line of file {n}\n" * (n * 50 + 3))
    with open(f"{folder}/conf", "w") as f:
        f.write(CONFIG.format(folder=folder, port=port))
    server = machine.start([find("nginx"), "-p", folder, "-c", f"{folder}/conf", "-e", f"{folder}/error.log", "-g", "daemon off;"], core=os.sched_getaffinity(0))
    base = f"http://127.0.0.1:{port}"
    wait_for("nginx", lambda: fetch(f"{base}/file1.txt"))

    def reload(second):
        # (Not at the end: who closes connections then resets those of the next load.)
        if second % 12 == 3 and second + 5 < SECONDS:
            os.kill(server.pid, signal.SIGHUP)

    clients = [lambda answered, n=n: client(base, n, answered) for n in (0, 1)]
    answers = ask_while_toggling(machine, server.pid, clients, SECONDS, each=reload, tree=True, seconds=4, renewed=True)
    with open(f"{folder}/error.log") as f:
        crashed = [l for l in f if "exited on signal" in l]
    if crashed:
        raise Failed("\n".join(crashed))
    log(f"  {answers} requests while attaching, reverting and reloading, each with its right answer")

    def requests():
        text = machine.client([find("ab"), "-q", "-k", "-n", "30000", "-c", "8", "-H", "Accept-Encoding: gzip", f"{base}/r/file/5"])
        if re.search(r"Failed requests:\s+(\d+)", text)[1] != "0" or "Non-2xx" in text:
            raise Failed(f"ab had failed requests:\n{text}")
        return int(re.search(r"Complete requests:\s+(\d+)", text)[1])

    alternate(machine, server.pid, ROUNDS, requests, tree=True)
    alive(server.pid, "nginx")


def fetch(url):
    with urllib.request.urlopen(url, timeout=20) as answer:
        return answer.read()


def client(base, number, answered):
    n = number
    while answered(0):
        n += 1
        file = n % 20
        expected = f"line of file {file}\n".encode() * (file * 50 + 3)
        for url in (f"/file{file}.txt", f"/r/file/{file}", f"/p/file{file}.txt"):
            if fetch(base + url) != expected:
                raise ValueError(f"{url}: other content")
            answered()


program(main)
