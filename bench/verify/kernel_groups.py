#!/usr/bin/env python3
"""Proves that group modules do what the kernel's own code does, in stock kernels with one and with two processors: the poll path, reads and writes of pipes,
what arrives over loopback TCP, and reads of ext4 files, all blocks reversed, all groups at once. Programs that know every result run meanwhile; the groups
come into force and out of it, with event tracing and the function tracer going on and off; holders of groups are killed at random moments; probes, the
tracer and stacks name original and copy; who sleeps in a copy keeps its module. Rules of the packet filter come and go; the kernel warns in a copy; live patches
of a copied function are refused while it is in force, and work before and after. In the end the kernel's memory is as it was. A module of another boot is
refused. No result may be wrong, and the kernel may not complain but by those warnings. ONLY names some of the kernels, FORMS some of the runs (0, 1, 2);
SECONDS says how long groups are toggled, KILLS how many holders are killed. It needs apt, gcc and some minutes a kernel."""

import glob
import hashlib
import os
import shutil
import struct
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BUILT = os.path.join(ROOT, "target/debug")
KERNELS = ("6.1", "6.12", "7.3")
# Load (none if it is -), and root under its names in different kernels; what it calls is copied as well.
GROUPS = (
    ("poll", "do_sys_poll"),
    ("pipe", "pipe_write anon_pipe_write"),
    ("pipe", "pipe_read anon_pipe_read"),
    ("tcp", "tcp_v4_rcv"),
    ("file", "ext4_file_read_iter"),
    # Where the packet filter's static keys are.
    ("tcp", "ip_rcv"),
    ("tcp", "ip_local_deliver"),
    ("tcp", "__ip_local_out"),
    # What the modules of kernel/trials have warn, and patch.
    ("-", "sysfs_create_file_ns"),
    ("-", "cmdline_proc_show"),
)
# How often the script has sysfs_create_file_ns warn.
WARNINGS = 3
# Processors, and options of the control module: the last has it redirect as live patches do, which any kernel can.
RUNS = ((1, ""), (2, ""), (2, "registers=1"))
SECONDS, KILLS = int(os.environ.get("SECONDS", "30")), int(os.environ.get("KILLS", "30"))


class Failed(Exception):
    """It is not true."""


def finish(command, **more):
    result = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **more)
    if result.returncode:
        raise Failed(f"{' '.join(command[:6])} ...: {result.stdout[-3000:]}{result.stderr[-3000:]}")
    return result


def run(command, **more):
    return finish(command, **more).stdout


def guest(action, kernel, *options):
    return run([os.path.join(BUILT, "restitch-guest"), action, "--kernel", kernel, *options])


def warnings_alone(said):
    """The kernel complained as often as it was made to, and by nothing else."""
    complaints = [line for line in said.splitlines() if "the kernel complained: " in line]
    if len(complaints) != WARNINGS or not all("WARNING: " in line and "fs/sysfs/file.c:" in line for line in complaints):
        raise Failed(f"the kernel complained: {complaints}")


def program(folder, name):
    """A program of tests/guest that needs no library."""
    to = os.path.join(folder, name)
    run(["gcc", "-O2", "-static", "-Wall", "-Wextra", "-Werror", "-o", to, f"tests/guest/{name}.c"])
    return to


def copies(module):
    """The functions that a group module has copies of."""
    end = ".restitch"
    return {line.split()[-1][:-len(end)] for line in run(["nm", module]).splitlines() if line.endswith(end)}


class View:
    """What a kernel has said of itself."""

    def __init__(self, folder):
        self.folder = folder
        self.symbols = {}
        with open(os.path.join(folder, "proc/kallsyms"), encoding="ascii") as lines:
            for line in lines:
                words = line.split()
                if len(words) == 3:
                    self.symbols.setdefault(words[2], set()).add(int(words[0], 16))
        self.places = sorted({place for places in self.symbols.values() for place in places})

    def has(self, name):
        """Whether there is one function of that name."""
        return len(self.symbols.get(name, ())) == 1

    def extent(self, name):
        """Address and length of a function, filler included."""
        (start,) = self.symbols[name]
        return start, next(place for place in self.places if place > start) - start

    def memory(self, address, length):
        with open(os.path.join(self.folder, "proc/kcore"), "rb") as core:
            head = core.read(64)
            (at,), (count,) = struct.unpack_from("<Q", head, 32), struct.unpack_from("<H", head, 56)
            for number in range(count):
                core.seek(at + 56 * number)
                kind, _, offset, start, _, size = struct.unpack("<IIQQQQ", core.read(40))
                if kind == 1 and start <= address and address + length <= start + size:
                    core.seek(offset + address - start)
                    return core.read(length)
        raise Failed(f"{address:x} is not in the view")


class Bench:
    """A kernel, and what its guests get."""

    def __init__(self, kernel, folder):
        self.kernel, self.folder = kernel, folder
        self.control = guest("module", kernel).strip()
        self.trials = guest("trials", kernel).strip()
        self.programs = {name: program(folder, name) for name in ("loads", "groups")}

    def view(self, processors):
        folder = os.path.join(self.folder, f"view-{processors}")
        if os.path.exists(folder):
            return View(folder)
        guest("view", self.kernel, "--append", "nokaslr", "--processors", str(processors), "--to", folder)
        # Checksums of what it exports are among what a module has to say.
        (modules,) = glob.glob(os.path.join(folder, "lib/modules/*"))
        shutil.copy(self.control, os.path.join(modules, "restitch-kernel.ko"))
        return View(folder)

    def group(self, view, root):
        """Writes the group module of a function and of what it calls; its name and its file."""
        name = f"restitch_{root}"
        to = os.path.join(view.folder, f"{name}.ko")
        command = [os.path.join(BUILT, "restitch"), "kernel", "position", root, "--view", view.folder]
        command += ["--callees", "1", "--order", "reversed", "--write", to]
        said = run(command, env={**os.environ, "RUST_BACKTRACE": "0"})
        print(f"  {self.kernel}: {root}: {said.strip()}", flush=True)
        return name, to

    def text(self, name, text):
        to = os.path.join(self.folder, name)
        with open(to, "w", encoding="ascii") as file:
            file.write(text)
        return to

    def files(self, view):
        """Options of a guest that has all groups: files and where they go."""
        files = [(self.control, "/control.ko"), (self.programs["loads"], "/loads"), (self.programs["groups"], "/groups/programs")]
        files += [(os.path.join(self.trials, name), f"/trials/{name}") for name in ("trial_patch.ko", "trial_warning.ko")]
        roots, copied = "", set()
        for load, names in GROUPS:
            root = next(name for name in names.split() if view.has(name))
            name, file = self.group(view, root)
            files.append((file, f"/groups/{name}.ko"))
            roots += f"{name} {root} {load}\n"
            copied |= copies(file)
        memory = ""
        for function in sorted(filter(view.has, copied)):
            address, length = view.extent(function)
            memory += f"{address:x} {length} {hashlib.sha256(view.memory(address, length)).hexdigest()} {function}\n"
        files += [(self.text("roots", roots), "/roots"), (self.text("memory", memory), "/memory")]
        return [word for host, there in files for word in ("--in", f"{host}:{there}")]

    def prove(self, processors, control):
        files = self.files(self.view(processors))
        with open(os.path.join(ROOT, "tests/guest/groups.sh"), encoding="ascii") as lines:
            script = self.text("script", f"SECONDS={SECONDS} KILLS={KILLS} CONTROL={control} TRIALS=1\n{lines.read()}")
        command = [os.path.join(BUILT, "restitch-guest"), "run", "--kernel", self.kernel, "--append", "nokaslr", "--processors", str(processors)]
        command += ["--packages", "kmod,nftables", "--modules", "nf_tables", "--allow-complaints", *files, "--script", script]
        done = finish(command)
        said = done.stdout
        print("".join(f"  {line}\n" for line in said.splitlines()), end="", flush=True)
        if said.splitlines()[-1:] != ["all held"]:
            raise Failed("it did not come to its end")
        warnings_alone(done.stderr)
        return files

    def refuse(self, files):
        """With the kernel at another address, its memory is elsewhere."""
        script = "insmod /control.ko && insmod /groups/restitch_do_sys_poll.ko 2>&1; cat /dev/restitch-kernel; echo end"
        said = guest("run", self.kernel, *files, "--", "sh", "-c", script)
        if not said.endswith("invalid module format\nend\n"):
            raise Failed(f"a module of another boot is taken: {said}")


def prove(kernel):
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(kernel, folder)
        runs = [RUNS[int(form)] for form in os.environ.get("FORMS", "0 1 2").split()]
        for processors, control in runs:
            files = bench.prove(processors, control)
            print(f"{kernel}: {processors} processor{'s'[:processors - 1]} {control}: ok", flush=True)
        bench.refuse(files)
        print(f"{kernel}: a module of another boot is refused: ok", flush=True)


def main():
    only = os.environ.get("ONLY", "").split()
    run(["cargo", "build", "-q", "-p", "restitch-guest", "-p", "restitch", "--bins"])
    bad = []
    for kernel in KERNELS:
        if only and kernel not in only:
            continue
        try:
            prove(kernel)
        except Failed as problem:
            bad.append(kernel)
            print(f"{kernel}: FAILED: {problem}", file=sys.stderr, flush=True)
    if bad:
        sys.exit(1)
    print("ok")


if __name__ == "__main__":
    main()
