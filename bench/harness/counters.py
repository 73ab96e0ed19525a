"""What is counted, and how: perf stat with the events that this machine has."""

import os
import re
import resource
import signal
import subprocess
import tempfile

# Front-end events by processor. At most five at once: a sixth reads about zero on some guests, and perf does not say so.
# AMD, family 0x19 and 0x1a ("Processor Programming Reference", de_no_dispatch_per_slot, ic_refill, ex_ret_brn_tkn):
AMD = {
    "cycles": "cycles:u",
    "instructions": "instructions:u",
    "empty_slots": "r1000001a0:u",
    "l1i_misses": "r0764:u",
    "taken_branches": "rc4:u",
}
INTEL = {
    "cycles": "cycles:u",
    "instructions": "instructions:u",
    "empty_slots": "idq_uops_not_delivered.core:u",
    "l1i_misses": "L1-icache-load-misses:u",
    "taken_branches": "br_inst_retired.near_taken:u",
}
OTHER = {"cycles": "cycles:u", "instructions": "instructions:u"}
# Without a PMU: processor time, which the kernel accounts to the nanosecond.
CLOCK = {"cpu_time_ns": "task-clock"}
# The part of it in user mode, which alone a layout can change. Most kernels learn it by looking at every tick where the processor
# is, so it is known to a percent or two a round.
USER = "user_time_ns"

NAMES = {
    "cycles": "user cycles",
    "instructions": "instructions",
    "empty_slots": "slots left empty by the front end",
    "l1i_misses": "L1i line misses",
    "taken_branches": "taken branches",
    "cpu_time_ns": "CPU time",
    USER: "user CPU time",
}


def processor():
    """The fields of the first processor in /proc/cpuinfo."""
    with open("/proc/cpuinfo") as f:
        first = f.read().split("\n\n")[0]
    return dict(re.findall(r"^(.*?)\s*: (.*)$", first, re.M))


def parse(text, events):
    """{counter: value} from `perf stat -x,`; events that were not counted are left out."""
    names = {event: name for name, event in events.items()}
    values = {}
    for line in text.splitlines():
        fields = line.split(",")
        if len(fields) < 3 or fields[2] not in names or not re.fullmatch(r"[0-9.]+", fields[0]):
            continue
        value = float(fields[0])
        # perf prints task-clock in milliseconds.
        values[names[fields[2]]] = value * 1e6 if fields[1] == "msec" else value
    return values


def choose():
    """(events, the counter that decides, what the report says about it)."""
    cpu = processor()
    family = int(cpu.get("cpu family", 0))
    wanted = OTHER
    if cpu.get("vendor_id") == "AuthenticAMD" and family >= 0x19:
        wanted = AMD
    elif cpu.get("vendor_id") == "GenuineIntel":
        wanted = INTEL
    usable = {name: event for name, event in wanted.items() if counts(event)}
    if "cycles" in usable:
        return usable, "cycles", "user-mode cycles and front-end events per unit of work, from the PMU"
    return CLOCK, "cpu_time_ns", "CPU time (task-clock) per unit of work: this machine has no PMU"


def counts(event):
    command = ["perf", "stat", "-x,", "-e", event, "--", "true"]
    run = subprocess.run(command, capture_output=True, text=True)
    return run.returncode == 0 and bool(parse(run.stderr, {"x": event}))


class Counting:
    """Counts what a command, or running processes and all that they fork, do between enter and exit."""

    def __init__(self, events, pids=()):
        self.events, self.pids, self.values = events, list(pids), {}

    def command(self, command, **options):
        """Runs a command to its end under perf; its exit status."""
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        with tempfile.NamedTemporaryFile() as out:
            prefix = ["perf", "stat", "-x,", "-o", out.name, "-e", ",".join(self.events.values()), "--"]
            status = subprocess.run(prefix + command, **options).returncode
            self.values = parse(out.read().decode(), self.events)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        self.split(after.ru_utime - before.ru_utime, after.ru_stime - before.ru_stime)
        return status

    def split(self, user, system):
        """Adds the part of the CPU time in user mode, if CPU time is what is counted."""
        if "cpu_time_ns" in self.values and user + system > 0:
            self.values[USER] = self.values["cpu_time_ns"] * user / (user + system)

    def __enter__(self):
        self.before = times(self.pids)
        self.out = tempfile.NamedTemporaryFile()
        ready, ack = os.pipe(), os.pipe()
        command = ["perf", "stat", "-x,", "-o", self.out.name, "-e", ",".join(self.events.values()), "--delay=-1"]
        command += [f"--control=fd:{ready[0]},{ack[1]}", "-p", ",".join(map(str, self.pids))]
        self.perf = subprocess.Popen(command, pass_fds=(ready[0], ack[1]), stderr=subprocess.PIPE)
        os.close(ready[0])
        os.close(ack[1])
        os.write(ready[1], b"enable\n")
        answer = os.read(ack[0], 16)
        os.close(ready[1])
        os.close(ack[0])
        if not answer.startswith(b"ack"):
            raise RuntimeError(f"perf cannot count in {self.pids}: {self.perf.communicate()[1].decode().strip()}")
        return self

    def __exit__(self, *_):
        self.perf.send_signal(signal.SIGINT)
        self.perf.wait(30)
        self.values = parse(self.out.read().decode(), self.events)
        self.out.close()
        after = times(self.pids)
        self.split(*(b - a for a, b in zip(self.before, after)))


def times(pids):
    """(user, system) processor time, in ticks, of processes and their descendants, ended and living."""
    fields = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/stat") as f:
                # After the name, which may hold anything: state, parent, ...; times of itself and of the children that it waited for.
                fields[int(name)] = f.read().rpartition(")")[2].split()
        except OSError:
            continue
    wanted = set(pids)
    while found := {pid for pid, stat in fields.items() if int(stat[1]) in wanted} - wanted:
        wanted |= found
    of = lambda *columns: sum(int(fields[pid][c]) for pid in wanted if pid in fields for c in columns)
    return of(11, 13), of(12, 14)
