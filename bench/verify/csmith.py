#!/usr/bin/env python3
"""Random C programs (csmith), compiled by gcc and clang at several levels, PIE and not, whose movable blocks are all laid out in random
order: each has to print the same checksum as before, and the file made from the new file has to be the original again.

N (default 200) programs from SEED on (default 1). Needs csmith, libcsmith-dev and the relayout example:
    cargo build --release -p restitch-apply-elf --example relayout
"""

import filecmp

from common import *  # noqa: F403

RELAYOUT = os.path.join(ROOT, "target/release/examples/relayout")
VARIANTS = [
    (compiler, level, kind)
    for compiler in ("gcc", "clang")
    for level in ("-O0", "-O1", "-O2", "-O3", "-Os")
    for kind in ("-pie -fPIE", "-no-pie", "-fcf-protection=none -fno-plt")
]


def main(machine):
    include = "/usr/include/csmith"
    if not os.path.exists(f"{include}/csmith.h"):
        raise Missing("libcsmith-dev is not installed")
    if not os.access(RELAYOUT, os.X_OK):
        raise Missing("target/release/examples/relayout is not there")
    compilers = {name: find(f"/usr/bin/{name}") for name in ("gcc", "clang")}
    first, count, same = int(os.environ.get("SEED", "1")), int(os.environ.get("N", "200")), 0
    for seed in range(first, first + count):
        source = machine.path("random.c")
        with open(source, "w") as f:
            generated = subprocess.run([find("/usr/bin/csmith"), "--seed", str(seed)], stdout=f)
        if generated.returncode != 0:
            continue
        compiler, level, kind = VARIANTS[seed % len(VARIANTS)]
        same += one(machine, [compilers[compiler], level, *kind.split(), "-w", "-I", include], source, seed)
    log(f"  {same} of {count} programs ran to their end within the limit and gave the same checksum in random order")
    if same == 0:
        raise Failed("no program ran")


def one(machine, compile_, source, seed):
    """Whether the program ended in time; raises Failed if anything differs."""
    paths = [machine.path(name) for name in ("plain", "moved", "back")]
    machine.run([*compile_, "-o", paths[0], source])
    plain = run(paths[0])
    if plain is None:
        return False
    machine.run([RELAYOUT, paths[0], paths[1], f"random:{seed}"])
    moved = run(paths[1])
    if moved != plain:
        raise Failed(f"seed {seed}, {' '.join(compile_)}: {plain} became {moved}")
    machine.run([RELAYOUT, paths[1], paths[2], "--restore"])
    if not filecmp.cmp(paths[0], paths[2], shallow=False):
        raise Failed(f"seed {seed}, {' '.join(compile_)}: the restored file is another one")
    return True


def run(path):
    """Output and exit code; None for one of the programs that do not end."""
    try:
        done = subprocess.run([path], capture_output=True, text=True, timeout=5)
    except subprocess.TimeoutExpired:
        return None
    return done.stdout, done.returncode


program(main)
