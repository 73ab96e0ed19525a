"""Processes, users, folders: everything that a load starts ends with it."""

import contextlib
import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time


class Missing(Exception):
    """The load cannot run on this machine; the text says what is not there."""


class Failed(Exception):
    """The load ran and something went wrong; the text says what and shows its output."""


def find(*names):
    """The first of the programs that is installed (a name, or a path with a pattern). Links are not resolved: Debian's
    redis-server is a link to a program that looks at its own name."""
    import glob

    path = os.environ.get("PATH", "") + ":/usr/sbin:/sbin"
    for name in names:
        for candidate in sorted(glob.glob(name), reverse=True) if "/" in name else [shutil.which(name, path=path)]:
            if candidate and os.access(candidate, os.X_OK):
                return candidate
    raise Missing(f"{names[0]} is not installed")


class Machine:
    """What one load uses: a scratch folder, processes, cores. Use it with `with`."""

    def __init__(self, log):
        self.log, self.stack = log, contextlib.ExitStack()
        cores = sorted(os.sched_getaffinity(0))
        # The program and its clients do not share a core where there are two.
        self.server_core, self.client_core = {cores[0]}, {cores[-1]}

    def __enter__(self):
        folder = tempfile.mkdtemp(prefix="restitch-bench-")
        self.stack.callback(shutil.rmtree, folder, ignore_errors=True)
        os.chmod(folder, 0o755)
        self.folder = folder
        os.mkdir(self.path("state"), 0o755)
        return self

    def __exit__(self, *_):
        self.stack.close()

    def path(self, *parts):
        return os.path.join(self.folder, *parts)

    def user(self, name):
        """The user to run a server as: `name` if we are root and it exists, else nobody in particular (None: ourselves)."""
        if os.geteuid() != 0:
            return None
        for candidate in (name, "nobody"):
            with contextlib.suppress(KeyError):
                return pwd.getpwnam(candidate)
        return None

    def own_folder(self, user, *parts):
        """A new folder that belongs to `user`."""
        path = self.path(*parts)
        os.makedirs(path)
        if user:
            os.chown(path, user.pw_uid, user.pw_gid)
        return path

    def run(self, command, user=None, core=None, stdin=None, env=None):
        """Runs to the end; its output. Raises Failed with the output if it fails."""
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", input=stdin, env=env, **self.who(user, core))
        if done.returncode != 0:
            raise Failed(f"{' '.join(command)} ended with {done.returncode}:\n{(done.stdout + done.stderr)[-2000:]}")
        return done.stdout

    def client(self, command, **options):
        return self.run(command, core=self.client_core, **options)

    def start(self, command, user=None, env=None, stop=signal.SIGTERM, core=None):
        """Starts a server on the server's core; it is stopped at the end, hard if it must be."""
        log = open(self.path(f"log-{len(os.listdir(self.folder))}"), "wb")
        child = subprocess.Popen(
            command, stdout=log, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, env=env,
            start_new_session=True, **self.who(user, core or self.server_core),
        )
        log.close()
        self.stack.callback(end, child, stop)
        return child

    def who(self, user, core):
        options = {"cwd": self.folder}
        if user and os.geteuid() == 0:
            options |= {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
        if core:
            options["preexec_fn"] = lambda: os.sched_setaffinity(0, core)
        return options


def end(child, stop):
    """Ends a server and what it has started (it leads a session of its own)."""
    if child.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(child.pid, signal.SIGCONT)
            os.kill(child.pid, stop)
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(20)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()


def wait_for(what, check, seconds=30):
    """Polls until check() is true; exceptions of the system count as no."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError, Failed):
            if check():
                return
        time.sleep(0.05)
    raise Failed(f"{what} did not come up within {seconds} s")


def free_port():
    """A port of the loopback interface that is free now."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def children(pid):
    """The process and all its descendants; those that end meanwhile are left out."""
    found = [pid]
    try:
        for task in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{task}/children") as f:
                for child in f.read().split():
                    found += children(int(child))
    except (FileNotFoundError, ProcessLookupError):
        pass
    return found


def copy_as_written(source, target):
    """Copies a program by ordinary writes, so that original and optimized file get the same kind of page cache: a file
    written in one piece may be mapped with huge pages while its copy is not."""
    with open(source, "rb") as f, open(target, "wb") as g:
        while block := f.read(1 << 16):
            g.write(block)
    os.chmod(target, 0o755)
