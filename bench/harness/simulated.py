"""Front-end events of a run, counted by valgrind's simulations: the same numbers on a loaded machine, and without a PMU.

Two runs of a command give them. cachegrind simulates the instruction cache, a second-level cache that data shares, and branch
predictors. callgrind simulates TLBs, as caches whose lines are pages, and says how often every instruction ran and every
conditional branch was taken; with the bytes of the instructions that makes the taken branches.
"""

import os
import re
import struct
import subprocess

from .machine import Failed, find

# Haswell: 32 KiB and 256 KiB; 128 and 64 entries of 4 KiB pages, behind them 1,024 for instructions and data.
CACHES = ["--I1=32768,8,64", "--D1=32768,8,64", "--LL=262144,8,64"]
TLBS = ["--I1=524288,4,4096", "--D1=262144,4,4096", "--LL=4194304,8,4096"]
LARGE_PAGE = 2 << 20
# Where valgrind loads the program, if it is position-independent (added to its addresses in places that valgrind has no name for).
BIASES = (0, 0x108000, 0x400000, 0x4000000)
PREFIXES = {0x26, 0x2E, 0x36, 0x3E, 0x64, 0x65, 0x66, 0x67, 0xF0, 0xF2, 0xF3}


class Code:
    """The loaded bytes of an ELF file, by their addresses in the file."""

    def __init__(self, path):
        with open(path, "rb") as f:
            self.bytes = f.read()
        if self.bytes[:6] != b"\x7fELF\x02\x01":
            raise Failed(f"{path} is no 64-bit little-endian ELF file")
        start, = struct.unpack_from("<Q", self.bytes, 32)
        size, count = struct.unpack_from("<HH", self.bytes, 54)
        # Of each executable segment: its address, its place in the file, its length there.
        self.segments = []
        for i in range(count):
            kind, flags, offset, address, _, length = struct.unpack_from("<IIQQQQ", self.bytes, start + i * size)
            if kind == 1 and flags & 1:
                self.segments.append((address, offset, length))

    def at(self, address):
        """15 bytes at an address; nothing where no code is."""
        for begin, offset, length in self.segments:
            if begin <= address < begin + length:
                return self.bytes[offset + address - begin : offset + min(address - begin + 15, length)]
        return b""

    def added_to(self, original):
        """Address and end of the executable segments that another version of the file does not have."""
        old = {address for address, _, _ in original.segments}
        return [(address, address + length) for address, _, length in self.segments if address not in old]


def branch_kind(code):
    """"always" of an instruction that always goes elsewhere (jump, call, return), "maybe" of a conditional branch, else None."""
    i = 0
    while i < len(code) and (code[i] in PREFIXES or 0x40 <= code[i] <= 0x4F):
        i += 1
    opcode, following = (code[i : i + 2] + b"\0\0")[:2]
    if 0x70 <= opcode <= 0x7F or 0xE0 <= opcode <= 0xE3 or (opcode == 0x0F and 0x80 <= following <= 0x8F):
        return "maybe"
    if opcode in (0xE8, 0xE9, 0xEB, 0xC2, 0xC3) or (opcode == 0xFF and (following >> 3) & 7 in (2, 4)):
        return "always"
    return None


def read_callgrind(lines):
    """{object: {address: [executions, first-level and second-level misses of its page, times a conditional branch there was
    taken]}} of a callgrind output with the positions "instr"."""
    names, result, costs = {}, {}, ["Ir", "I1mr", "ILmr"]
    columns, here, at, skip = [], None, 0, None
    for line in lines:
        first = line[0]
        if first in "+-*0":
            place, *numbers = line.split()
            at = at if place == "*" else at + int(place) if first in "+-" else int(place, 16)
            if skip is None:
                values = here.setdefault(at, [0, 0, 0, 0])
                for i, column in enumerate(columns):
                    if column < len(numbers):
                        values[i] += int(numbers[column])
            elif skip:
                here.setdefault(at, [0, 0, 0, 0])[3] += skip
            skip = None
        elif line.startswith("calls="):
            # A jump into another function counts as a call; where its instruction is conditional, it was taken so often.
            skip = int(line[6:].split()[0])
        elif line.startswith("jcnd="):
            skip = int(line[5:].split("/")[0])
        elif line.startswith("jump="):
            skip = 0
        elif line.startswith(("ob=", "cob=")):
            number, _, name = line.partition("=")[2].strip().partition(" ")
            if name:
                names[number] = name
            if first == "o":
                here = result.setdefault(names[number], {})
        elif line.startswith("events:"):
            events = line.split()[1:]
            columns = [events.index(c) for c in costs]
    return result


def bias_of(code, counts, named):
    """Which of the known load addresses is the one that makes branches of what branched. Counts without a file's name hold a few
    instructions of other files as well; None if they hold no more than that."""
    sources = [a for a, values in counts.items() if values[3]]
    fitting = {bias: sum(1 for a in sources if branch_kind(code.at(a - bias))) for bias in BIASES}
    best = max(fitting, key=fitting.get)
    wrong = sum(1 for a in sources if code.at(a - best) and not branch_kind(code.at(a - best)))
    if not named and wrong > fitting[best]:
        return None
    if wrong > max(3, fitting[best] // 100):
        raise Failed(f"the counts of callgrind do not fit the bytes of the program: {wrong} of {len(sources)} places that branched hold no branch")
    return best


def summed(objects, program, original):
    """Taken branches and page misses over all objects; of the latter also those that would be left if what was added to the
    original lay in large pages: misses of the rest (each is one at most: what is no longer there takes no place from it) and one
    for each large page."""
    main = Code(program)
    added = main.added_to(Code(original)) if original else []
    total = {"taken": 0, "itlb": 0, "walks": 0, "itlb_large": 0, "walks_large": 0}
    executed, unknown = 0, 0
    for name, counts in objects.items():
        ours = name == "???" or os.path.realpath(name) == os.path.realpath(program)
        code = main if ours else Code(name)
        bias = bias_of(code, counts, name != "???") if ours else 0
        for address, (times, first, second, conditional) in counts.items():
            bytes_ = b"" if bias is None else code.at(address - bias)
            kind = branch_kind(bytes_)
            executed += times
            unknown += 0 if bytes_ else times
            total["taken"] += times if kind == "always" else conditional if kind else 0
            total["itlb"] += first
            total["walks"] += second
            if not (ours and bias is not None and any(begin <= address - bias < end for begin, end in added)):
                total["itlb_large"] += first
                total["walks_large"] += second
    if unknown * 1000 > executed:
        raise Failed(f"{unknown} of {executed} instructions were executed where no file of the program has code")
    for begin, end in added:
        pages = -(-end // LARGE_PAGE) - begin // LARGE_PAGE
        total["itlb_large"] = min(total["itlb_large"] + pages, total["itlb"])
        total["walks_large"] = min(total["walks_large"] + pages, total["walks"])
    return total


def cachegrind():
    """What to put before a command, and what makes {event: number} of the text that it then prints to standard error."""
    tool = [find("valgrind"), "--tool=cachegrind", "--cache-sim=yes", "--branch-sim=yes", "--vgdb=no", "--fair-sched=try", *CACHES, "--cachegrind-out-file=/dev/null"]

    def read(text):
        found = dict(re.findall(r"(I +refs|I1 +misses|LLi misses|Branches|Mispredicts): +([\d,]+)", text))
        if len(found) != 5:
            raise Failed(f"cachegrind did not end as it should:\n{text[-2000:]}")
        number = lambda name: int(next(n for k, n in found.items() if k.split() == name.split()).replace(",", ""))
        return {"instructions": number("I refs"), "l1i": number("I1 misses"), "l2": number("LLi misses"), "branches": number("Branches"), "mispredicted": number("Mispredicts")}

    return [*fixed(), *tool], read


def callgrind(output, program, original):
    """The same for callgrind, which writes to the file `output`. `original`: the file that `program` was made from, if it is another."""
    tool = [find("valgrind"), "--tool=callgrind", "--cache-sim=yes", "--dump-instr=yes", "--dump-line=no", "--collect-jumps=yes", "--vgdb=no", "--fair-sched=try", *TLBS]

    def read(text):
        if not os.path.exists(output):
            raise Failed(f"callgrind wrote nothing:\n{text[-2000:]}")
        with open(output, errors="replace") as f:
            objects = read_callgrind(line for line in f if line.strip())
        os.remove(output)
        return summed(objects, program, original)

    return [*fixed(), *tool, f"--callgrind-out-file={output}"], read


def fixed():
    """Switches the randomization of addresses off."""
    return [find("setarch"), "-R"]


def end_of(command, text, code):
    if code != 0:
        raise Failed(f"{' '.join(command)} ended with {code}:\n{text[-2000:]}")


def finished(command, stdin=None, **options):
    """Standard output and standard error of a command that must succeed."""
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", input=stdin, **options)
    end_of(command, done.stdout + done.stderr, done.returncode)
    return done.stdout, done.stderr
