"""Another folder at the path of one, for a process and those that it starts: two runs of a command write to the same paths at the same time, and not to the same files."""

import ctypes
import os

from .machine import Missing

# <linux/sched.h>, <linux/mount.h>
CLONE_NEWNS, CLONE_NEWUSER = 0x20000, 0x10000000
MS_BIND, MS_REC, MS_PRIVATE = 0x1000, 0x4000, 0x40000
LIBC = ctypes.CDLL(None, use_errno=True)


def checked(result):
    if result != 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))


def own_mounts():
    """Mounts of this process's own, by a user namespace where that takes one. Raises OSError if neither is permitted."""
    try:
        checked(LIBC.unshare(CLONE_NEWNS))
    except PermissionError:
        user, group = os.getuid(), os.getgid()
        checked(LIBC.unshare(CLONE_NEWNS | CLONE_NEWUSER))
        for name, text in (("setgroups", "deny"), ("uid_map", f"{user} {user} 1"), ("gid_map", f"{group} {group} 1")):
            with open(f"/proc/self/{name}", "w") as f:
                f.write(text)
    # What is mounted from here on is nobody else's.
    checked(LIBC.mount(None, b"/", None, MS_REC | MS_PRIVATE, None))


def stand_in(folder, copy):
    """From now on this process finds `copy` at the path of `folder`, and so does what it starts."""
    try:
        own_mounts()
        checked(LIBC.mount(os.fsencode(copy), os.fsencode(folder), None, MS_BIND, None))
    except OSError as error:
        raise Missing(f"a folder that stands in for another one needs mounts of its own ({error.strerror}): run as root, or allow user namespaces") from None


def is_possible():
    """Whether a process may have mounts of its own here."""
    pid = os.fork()
    if pid == 0:
        try:
            own_mounts()
        except OSError:
            os._exit(1)
        os._exit(0)
    return os.waitpid(pid, 0)[1] == 0
