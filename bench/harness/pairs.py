"""Files of a program against each other, in pairs: each pair copied anew, and run as twins.

Where a file's pages lie in memory is luck that lasts as long as they do, worth a percent or two; so each pair runs on fresh copies. They are in memory, where no copy gets large pages, or each does
that can (`large_folder`): on a file system that has them, which of two equal files gets them is luck as well.
"""

import contextlib
import os
import shutil
import subprocess
import tempfile

from .machine import copy_as_written
from .twins import all_of, in_child, twins

# Where copies stand if nothing else is said.
MEMORY = "/dev/shm"


@contextlib.contextmanager
def folder(parent=MEMORY):
    """A folder for copies, which servers with users of their own may enter."""
    place = tempfile.mkdtemp(dir=parent)
    try:
        os.chmod(place, 0o755)
        yield place
    finally:
        shutil.rmtree(place, ignore_errors=True)


@contextlib.contextmanager
def large_folder(parent=MEMORY):
    """As `folder`, in a memory file system of its own in which files stand in large pages; None where it cannot be mounted. Its path is as long as the other's."""
    with folder(parent) as place:
        mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "huge=always,mode=0755", "none", place], capture_output=True).returncode == 0
        try:
            yield place if mounted else None
        finally:
            if mounted:
                subprocess.run(["umount", "--lazy", place], check=True)


def beside_each_other(load, sides, cpu):
    """Two sides, each a file and the folder for its copy, run as twins: the processor seconds of each. Their paths are as long as each other's: a longer one moves the stack."""
    name, paths = os.path.basename(load.file), []
    try:
        for number, (file, place) in enumerate(sides):
            paths.append(os.path.join(place, f"{name}-{cpu:03}-{number}"))
            copy_as_written(file, paths[-1])
        return twins([lambda path=path: load.cpu_seconds(path, load.timed) for path in paths], cpu)
    finally:
        for path in paths:
            with contextlib.suppress(FileNotFoundError):
                os.remove(path)


def in_pairs(load, sides, other, rounds, cpus):
    """{name: [[its processor seconds, those of `other` beside it] of each round]}. A side is a file and a folder for its copies. Which of two is started first changes; each processor has
    its own part of the pairs."""
    pairs = [(number, name) for number in range(rounds) for name in sides]

    def share(index):
        found = []
        for number, name in pairs[index :: len(cpus)]:
            step = 1 if number % 2 == 0 else -1
            found.append([name, beside_each_other(load, [sides[name], other][::step], cpus[index])[::step]])
        return found

    result = {name: [] for name in sides}
    for found in all_of([in_child(lambda index=index: share(index)) for index in range(len(cpus))]):
        for name, both in found:
            result[name].append(both)
    return result
