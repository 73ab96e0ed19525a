"""The list of benchmarks, and the one entry to them."""

import importlib
from dataclasses import dataclass


@dataclass(frozen=True)
class Command:
    """A benchmark: the module that has its `main`, the question it answers, what it needs on the machine."""

    module: str
    question: str
    needs: str


COMMANDS = {
    "run": Command("main", "what do stock programs gain, live and as files?", "Debian's servers, `perf`, root"),
    "bar": Command("bar", "how near does a live layout come to llvm-bolt's file?", "network (Debian sources), bolt-19, root"),
    "bolt": Command("side_by_side", "the same, as files", "network (Debian sources), bolt-19, valgrind"),
    "pause": Command("pauses", "how long is a process held, and what does restitch itself take?", "servers, root"),
    "attaches": Command("attaches", "is one build's attach slower than another one's?", "two release builds, servers, root"),
    "counting": Command("counting", "what does counting cost, and how exact is it?", "g++, python3"),
    "counting --live": Command("counting_live", "the same in servers at work", "servers, root"),
    "tracing": Command("tracing", "what does recording branches cost?", "root"),
    "intervals": Command("intervals", "what do records at fixed distances cost? (Table 1 of *Break Dancing*)", "root"),
    "fidelity": Command("fidelity", "how far do sampled profiles agree with exact ones?", "`perf`, root"),
    "effect": Command("effect", "how much is gained, by where the profile comes from?", "servers, root"),
    "layouts": Command("layouts", "what does each layout of the field leave of the misses? (tables of Codestitcher)", "valgrind, servers"),
    "models": Command("models", "do the laboratory's models say what happens?", "valgrind, servers"),
    "variants": Command("variants", "what is each option of `optimize` worth?", "servers"),
    "continuous": Command("continuous", "what becomes of a layout when the load changes?", "servers, root"),
    "identical": Command("identical", "do two builds of restitch make the same files and versions, byte by byte?", "gcc, g++, python3, postgres; root"),
    "kernel": Command("kernel", "how much of the kernel's hot path's footprint goes, per request?", "apt, gcc; `--rebuilt`: clang-19"),
    "batch": Command("batches", "what does `batch` save in wall time?", "g++, clang, googletest"),
    "works": Command("works", "what does it save and cost in processor time?", "g++, clang, googletest; root or user namespaces"),
    "overlays": Command("overlays", "what does it save in each command?", "g++, clang, googletest; root or user namespaces"),
}

USAGE = "usage: bench/bench COMMAND [OPTION]... [LOAD]..."


def listing():
    """What `--help` prints: each command with its question and what it needs."""
    width = max(map(len, COMMANDS)) + 2
    text = [USAGE, "", "Each command measures one thing; bench/bench COMMAND --help tells its loads and options.", ""]
    for name, command in COMMANDS.items():
        text += [f"  {name:{width}}{command.question}", f"  {'':{width}}needs {command.needs}"]
    return "\n".join(text)


def find(argv):
    """The command that `argv` begins with (the longest name of some words) and its arguments; None if there is none."""
    for words in (2, 1):
        command = COMMANDS.get(" ".join(argv[:words]))
        if command and len(argv) >= words:
            return command, argv[words:]
    return None


def main(argv):
    if argv and argv[0] in ("-h", "--help"):
        print(listing())
        return 0
    found = find(argv)
    if found is None:
        wrong = f"bench/bench: no such command: {argv[0]}" if argv else "bench/bench: which command?"
        raise SystemExit(f"{wrong}\n{USAGE}\nCommands: {', '.join(COMMANDS)}. bench/bench --help says what each one asks.")
    command, arguments = found
    return importlib.import_module(f".{command.module}", __package__).main(arguments)
