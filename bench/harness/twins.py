"""Two programs at the same time on one processor.

The scheduler gives each of them some milliseconds in turn. So whatever else the machine does, and a speed that changes within seconds, meets both alike: of twelve pairs of equal
programs the median is within half a percent of 1, where runs one after the other differ by a tenth and more. They take the caches from each other, so each begins its turns a little cold.
"""

import json
import os
import sys

from .machine import Failed


def in_child(work):
    """Does something in a child of its own: (pid, a descriptor with what it gives, as JSON)."""
    read, write = os.pipe()
    pid = os.fork()
    if pid:
        os.close(write)
        return pid, read
    status = 1
    try:
        result = work()
        with os.fdopen(write, "w") as f:
            json.dump(result, f)
        status = 0
    except BaseException as problem:  # A child must not go on as its parent.
        print(problem, file=sys.stderr)
    finally:
        os._exit(status)


def all_of(children):
    """What children give, when all have ended."""
    results, failed = [], False
    for pid, read in children:
        with os.fdopen(read) as f:
            results.append(f.read())
        failed |= os.waitpid(pid, 0)[1] != 0
    if failed:
        raise Failed("a run failed; see above")
    return [json.loads(text) for text in results]


def twins(works, cpu):
    """What each of the works gives, done at the same time on one processor."""

    def pinned(work):
        os.sched_setaffinity(0, {cpu})
        return work()

    return all_of([in_child(lambda work=work: pinned(work)) for work in works])
