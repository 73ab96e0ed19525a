#!/usr/bin/env python3
"""Proves what redis.py proves of a redis-server in a container: started by runc in namespaces of its own, with a read-only root, no capabilities to speak of
and the system call filter that container engines use by default (Debian: golang-github-containers-common). restitch runs outside, as root."""

import json

import redis
from common import *  # noqa: F403

PROFILE = "/usr/share/containers/seccomp.json"
INSIDE = "/mnt"


def main(machine):
    runc, server, unshare = find("runc"), find("redis-server"), find("unshare")
    if not os.path.exists(PROFILE):
        raise Missing(f"{PROFILE} is not there")
    bundle, data, states = (machine.own_folder(None, name) for name in ("bundle", "server", "containers"))
    root = os.path.join(bundle, "root")
    os.mkdir(root)
    command = [server, "--port", "0", "--unixsocket", f"{INSIDE}/s", "--save", "", "--dir", INSIDE, "--daemonize", "no"]
    subprocess.run([runc, "spec"], cwd=bundle, check=True)
    path = os.path.join(bundle, "config.json")
    with open(path) as f:
        config = json.load(f)
    config["process"].update(args=command, terminal=False, rlimits=[])
    config["root"] = {"path": root, "readonly": True}
    config["mounts"].append({"destination": INSIDE, "type": "bind", "source": data, "options": ["bind", "rw"]})
    config["linux"].update(resources={}, seccomp=filters(config["process"]["capabilities"]["bounding"]))
    with open(path, "w") as f:
        json.dump(config, f)
    # The machine's own files, in mounts that are gone when nobody is in them any more.
    script = f"mount --bind / {root} && exec {runc} --root {states} run --bundle {bundle} restitch-verify"
    machine.start([unshare, "--mount", "--propagation", "private", "sh", "-c", script], core=os.sched_getaffinity(0))
    wait_for("redis", lambda: os.path.exists(os.path.join(data, "s")))
    state = subprocess.run([runc, "--root", states, "state", "restitch-verify"], capture_output=True, text=True, check=True)
    pid = json.loads(state.stdout)["pid"]
    with open(f"/proc/{pid}/status") as f:
        if "Seccomp:\t2" not in f.read():
            raise Failed(f"process {pid} is under no filter")
    redis.prove(machine, pid, os.path.join(data, "s"))


def filters(capabilities):
    """The engines' profile as runc wants it, for who has these capabilities (as the engines make it: github.com/containers/common, pkg/seccomp)."""
    with open(PROFILE) as f:
        profile = json.load(f)
    calls = []
    for rule in profile["syscalls"]:
        includes, excludes = rule.get("includes") or {}, rule.get("excludes") or {}
        applies = set(includes.get("caps") or []) <= set(capabilities) and not set(excludes.get("caps") or []) & set(capabilities)
        if applies and "amd64" in (includes.get("arches") or ["amd64"]) and "amd64" not in (excludes.get("arches") or []):
            calls.append({key: rule[key] for key in ("names", "action", "args", "errnoRet") if rule.get(key) is not None})
    made = {"defaultAction": profile["defaultAction"], "architectures": ["SCMP_ARCH_X86_64", "SCMP_ARCH_X86", "SCMP_ARCH_X32"], "syscalls": calls}
    if profile.get("defaultErrnoRet") is not None:
        made["defaultErrnoRet"] = profile["defaultErrnoRet"]
    return made


program(main)
