"""What is counted, and how: perf stat with the events that this machine has."""

import os
import re
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

NAMES = {
    "cycles": "user cycles",
    "instructions": "instructions",
    "empty_slots": "slots left empty by the front end",
    "l1i_misses": "L1i line misses",
    "taken_branches": "taken branches",
    "cpu_time_ns": "CPU time",
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
        with tempfile.NamedTemporaryFile() as out:
            prefix = ["perf", "stat", "-x,", "-o", out.name, "-e", ",".join(self.events.values()), "--"]
            status = subprocess.run(prefix + command, **options).returncode
            self.values = parse(out.read().decode(), self.events)
        return status

    def __enter__(self):
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
