"""nginx with small files over the loopback interface, live."""

import os
import re
import urllib.request

from harness.machine import Failed, children, find, free_port, wait_for
from harness.rounds import interleave, serve_and_count

CONFIG = """
daemon off;
pid {folder}/pid;
error_log {folder}/error.log;
worker_processes 1;
{user}
events {{ worker_connections 256; }}
http {{
    access_log off;
    client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy; fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi; scgi_temp_path {folder}/scgi;
    keepalive_requests 1000000;
    open_file_cache max=1000;
    server {{ listen 127.0.0.1:{port}; root {folder}/html; }}
}}
"""


def run(context):
    machine = context.machine
    program, client = find("nginx"), find("ab")
    user = machine.user("www-data")
    servers = {}
    for side in ("original", "optimized"):
        folder, port = machine.own_folder(user, side), free_port()
        os.makedirs(f"{folder}/html")
        with open(f"{folder}/html/index.html", "w") as f:
            f.write("<p>" + "small " * 100)
        with open(f"{folder}/nginx.conf", "w") as f:
            f.write(CONFIG.format(folder=folder, port=port, user=f"user {user.pw_name};" if user else ""))
        child = machine.start([program, "-p", folder, "-c", f"{folder}/nginx.conf"])
        url = f"http://127.0.0.1:{port}/index.html"
        wait_for("nginx", lambda: urllib.request.urlopen(url, timeout=2).read())
        servers[side] = (child.pid, url)

    def requests(side, count):
        text = machine.client([client, "-q", "-k", "-c", "16", "-n", str(count), servers[side][1]])
        if re.search(r"Failed requests:\s+0\b", text) is None or "Non-2xx" in text:
            raise Failed(f"ab had failures:\n{text}")
        return count

    for side in servers:
        requests(side, context.amount(20_000))
    attach = context.restitch.attach(machine, {side: servers[side][0] for side in servers}, lambda side: requests(side, 20_000), tree=True)
    count = context.short(150_000)
    measure = lambda side: serve_and_count(context.events, children(servers[side][0]), lambda: requests(side, count))
    rounds = interleave(context.short_rounds(), measure, context.log)
    return [{"title": "nginx, small files, keep-alive, live", "unit": "request", "rounds": rounds, "attach": attach}]
