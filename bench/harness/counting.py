"""What counting costs while it runs, and how much of the counts follows exactly.

Each program is copied (written in one piece, as restitch writes its own files), instrumented with all its functions, and
run on the same input in turns: original, counting, counting, original. Below is the median of the ratios of each round
with its interval, and then what `restitch record --from-counts` says of the counts. See bench/README.md.

`bench/bench counting --live`: what a counting version costs servers at work.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile

from .counters import choose
from .rounds import interleave, run_and_count
from .stats import ratios

CXX = """
#include <map>
#include <string>
#include <vector>
#include <algorithm>
#include <regex>
std::map<std::string, std::vector<int>> m;
int f(int n) { m[std::to_string(n)].push_back(n); return std::regex_match(std::to_string(n), std::regex("a+b*(c|d)")); }
"""
PYTHON = """
import json, re
class Node:
    def __init__(self, n): self.n, self.kids = n, []
def tree(d):
    node = Node(d)
    node.kids = [tree(d - 1) for _ in range(3)] if d else []
    return node
def size(t): return 1 + sum(size(k) for k in t.kids)
for _ in range(6):
    t = size(tree(9))
    words = re.findall(r"[a-z]+", json.dumps({str(i): ["x" * (i % 7), i * 1.5] for i in range(20000)}))
    d = {}
    for w in words: d[w] = d.get(w, 0) + 1
print(t, len(words), sorted(d)[:3])
"""
SHELL = """
i=0
while [ $i -lt 300000 ]; do
    i=$((i + 1))
    case $i in *7) x=a$x ;; *3) x=${x#a} ;; esac
done
echo $i ${#x}
"""


def real(program):
    found = shutil.which(program) or program
    return os.path.realpath(found) if os.path.exists(found) else None


def cc1plus(folder):
    """(program, arguments, files that the output is compared by)"""
    if not shutil.which("g++"):
        return None
    program = subprocess.check_output(["g++", "-print-prog-name=cc1plus"], text=True).strip()
    source = os.path.join(folder, "input.ii")
    subprocess.run(["g++", "-E", "-x", "c++", "-", "-o", source], input=CXX, text=True, check=True)
    return program, ["-fpreprocessed", "-quiet", "-O2", source, "-o", "out.s"], "out.s"


def python(folder):
    program = real("/usr/bin/python3")
    script = os.path.join(folder, "work.py")
    with open(script, "w") as f:
        f.write(PYTHON)
    return program and (program, ["-I", script], None)


def dash(folder):
    program = real("/bin/dash")
    script = os.path.join(folder, "work.sh")
    with open(script, "w") as f:
        f.write(SHELL)
    return program and (program, [script], None)


LOADS = {"cc1plus": cc1plus, "python3": python, "dash": dash}


def write_copy(source, target):
    with open(source, "rb") as f:
        data = f.read()
    with open(target, "wb") as f:
        f.write(data)
    os.chmod(target, 0o755)


def output(program, arguments, compared, folder):
    run = subprocess.run([program, *arguments], cwd=folder, capture_output=True, check=True)
    if compared is None:
        return run.stdout
    with open(os.path.join(folder, compared), "rb") as f:
        return f.read()


def one(name, options, events):
    with tempfile.TemporaryDirectory() as folder:
        load = LOADS[name](folder)
        if load is None:
            return print(f"{name}: not installed, left out")
        program, arguments, compared = load
        # A python that is run from elsewhere has to find its library: the copies keep the program's name.
        sides = {side: os.path.join(folder, side, os.path.basename(program)) for side in ("original", "optimized")}
        for path in sides.values():
            os.mkdir(os.path.dirname(path))
        write_copy(program, sides["original"])
        counts = os.path.join(folder, "counts")
        make = [options.restitch, "instrument", program, "-o", sides["optimized"], "--counts", counts, "--json", "-"]
        made = json.loads(subprocess.check_output(make + options.more))
        texts = [output(path, arguments, compared, folder) for path in sides.values()]
        if texts[0] != texts[1]:
            sys.exit(f"{name}: the counting copy does not do what its original does")
        measure = lambda side: run_and_count(events, [[sides[side], *arguments]], cwd=folder, stdout=subprocess.DEVNULL)
        rounds = interleave(options.rounds, measure, lambda _: None)
        for counter, s in ratios(rounds).items():
            print(f"{name:8} {counter:14} {s['ratio']:.3f} ({s['low']:.3f} to {s['high']:.3f}, {s['rounds']} rounds)")
        record = [options.restitch, "record", "--from-counts", counts, "-o", os.path.join(folder, "profile"), "--json", "-"]
        result = json.loads(subprocess.run(record, capture_output=True, check=True).stdout)
        c, v = result["modules"][0]["counting"], made["modules"][0]["version"]
        print(
            f"{name:8} {c['counters']} counters, {c['counters_per_block']:.3f} a block; {v['text_bytes']} bytes of code; "
            f"{c['functions_run']} functions ran, {c['edges']} edges; exact {c['exact_edge_share']:.4%} / {c['exact_function_share']:.4%}, "
            f"from blocks {c['block_edge_share']:.4%} / {c['block_function_share']:.4%}; "
            f"flow error in {c['flow_error_in']:.1e} out {c['flow_error_out']:.1e}",
            flush=True,
        )


def main(argv):
    parser = argparse.ArgumentParser(prog="bench/bench counting", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    parser.add_argument("loads", nargs="*", choices=[[], *LOADS], help="all, if none is named")
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--restitch", default=os.path.join(root, "target/release/restitch"))
    parser.add_argument("--more", action="append", default=[], help="an argument for `restitch instrument`")
    options = parser.parse_args(argv)
    options.restitch = os.path.abspath(options.restitch)
    events, _, about = choose()
    print(about)
    for name in options.loads or LOADS:
        one(name, options, events)
