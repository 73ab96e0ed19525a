"""Two servers at work at the same time, of which only one has something to do at a time.

Their clients are stopped (SIGSTOP) and continued in turns of some hundredths of a second, so that what else the machine does, and a speed that changes within
seconds, meets both sides alike. A turn is long beside a request (what is under way when a client is stopped is finished beside the other side's first one), and long beside the fraction of a
millisecond in which a server fills the caches again that the other one has used. When one side has done its work, the other one goes on without turns.
"""

import contextlib
import os
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor

# Seconds.
TURN = 0.025


class Turns:
    """Whose turn it is. Each side works in a thread of its own, and has at most one client at a time."""

    def __init__(self, turn=TURN):
        self.turn, self.lock, self.clients = turn, threading.Lock(), {}

    @contextlib.contextmanager
    def client(self, pid):
        """A client of this thread's side, for as long as it runs. It may have ended, but nobody has waited for it yet."""
        side, handle = threading.get_ident(), os.pidfd_open(pid)
        with self.lock:
            self.clients[side] = handle
        try:
            yield
        finally:
            with self.lock:
                del self.clients[side]
                os.close(handle)

    def alternate(self, works):
        """What each of the works gives, all done at the same time in turns."""
        with ThreadPoolExecutor(len(works)) as pool:
            futures, number = [pool.submit(work) for work in works], 0
            try:
                while not all(future.done() for future in futures):
                    self.give(number)
                    number += 1
                    time.sleep(self.turn)
            finally:
                self.stop_nobody()
            return [future.result() for future in futures]

    def give(self, number):
        """The turn goes to one of the clients that there are; the others stand still."""
        with self.lock:
            sides = sorted(self.clients)
            for index, side in enumerate(sides):
                send(self.clients[side], signal.SIGCONT if index == number % len(sides) else signal.SIGSTOP)

    def stop_nobody(self):
        with self.lock:
            for handle in self.clients.values():
                send(handle, signal.SIGCONT)


def send(handle, number):
    # One that has ended meanwhile needs no turn.
    with contextlib.suppress(ProcessLookupError):
        signal.pidfd_send_signal(handle, number)
