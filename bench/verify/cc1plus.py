#!/usr/bin/env python3
"""Proves that an optimized copy of GCC's C++ compiler writes the same assembly as the original, byte for byte: 24 inputs
at -O0, -O2 and -O3 -g, after a profile from three of them; and that `record` does not disturb the compiler that it counts.
Prints the user time of both (interleaved, one core), and what recording and optimizing cost."""

import resource

from common import *  # noqa: F403

HEADERS = """regex map iostream algorithm thread functional unordered_map set deque list sstream fstream iomanip chrono random future mutex
condition_variable filesystem optional variant any ranges numeric valarray complex string vector memory atomic tuple bitset queue stack locale
charconv span""".split()
# Something that each of these headers is for; the others get a template with loops and a dense switch.
BODIES = {
    "regex": "std::regex r(\"a(b|c)*d\"); bool f(const std::string& s) { std::smatch m; return std::regex_search(s, m, r); }",
    "map": "std::map<std::string, std::vector<int>> m; int f(const char* k) { m[k].push_back(3); int s = 0; for (auto& [a, b] : m) for (int x : b) s += x; return s; }",
    "algorithm": "void f(std::vector<std::string>& v) { std::sort(v.begin(), v.end()); std::stable_sort(v.begin(), v.end(), std::greater<>()); }",
    "thread": "int f() { std::vector<std::thread> t; std::atomic<int> n{0}; for (int i = 0; i < 4; i++) t.emplace_back([&] { n++; }); for (auto& x : t) x.join(); return n; }",
    "functional": "std::function<int(int)> g(std::function<int(int, int)> h, int a) { return std::bind(h, a, std::placeholders::_1); }",
    "set": "struct C { int a, b; auto operator<=>(const C&) const = default; }; std::set<C> s; bool f(int a) { return s.insert({a, a}).second; }",
    "variant": "template <class... T> struct O : T... { using T::operator()...; }; int f(std::variant<int, double, std::string>& v) { return std::visit(O{[](int a) { return a; }, [](double b) { return int(b); }, [](std::string& s) { return int(s.size()); }}, v); }",
    "ranges": "int f(std::vector<int>& v) { int s = 0; for (int x : v | std::views::filter([](int a) { return a & 1; }) | std::views::take(10)) s += x; return s; }",
    "sstream": "template <class... T> std::string j(T... t) { std::ostringstream o; ((o << t << ','), ...); return o.str(); } std::string f(int a) { try { if (a == 3) throw std::runtime_error(j(a, \"x\", 2.5)); return j(a); } catch (std::exception& e) { return e.what(); } }",
    "numeric": "template <int N> struct F { static constexpr long v = F<N - 1>::v + F<N - 2>::v; }; template <> struct F<0> { static constexpr long v = 0; }; template <> struct F<1> { static constexpr long v = 1; }; long k = F<80>::v;",
}
OTHER = """template <class T, int N> struct M {{ T a[N][N]; M operator*(const M& o) const {{ M r{{}}; for (int i = 0; i < N; i++) for (int j = 0; j < N; j++)
for (int k = 0; k < N; k++) r.a[i][j] += a[i][k] * o.a[k][j]; return r; }} }}; M<float, {0}> f(const M<float, {0}>& a) {{ return a * a * a; }}
int sw(int x) {{ switch (x) {{ case 1: return 5; case 2: return 17; case 3: return 9; case 4: return 1; case 5: return 77; default: return x * {0}; }} }}"""
COMMON = "vector string atomic stdexcept algorithm functional".split()
LEVELS = (["-O0"], ["-O2"], ["-O3", "-g"])
INPUTS, ROUNDS, TIMED = 24, 7, 4


def main(machine):
    compiler = find("g++")
    original = find(machine.run([compiler, "-print-prog-name=cc1plus"]).strip())
    inputs = [preprocess(machine, compiler, n) for n in range(INPUTS)]
    optimized = make(machine, original, inputs)
    same = 0
    for source in inputs:
        for level in LEVELS:
            texts = [compile(machine, p, source, level)[0] for p in (original, optimized)]
            if texts[0] != texts[1]:
                raise Failed(f"other assembly for {source} at {' '.join(level)}")
            same += 1
    log(f"  {same} outputs are identical, {sum(map(os.path.getsize, inputs)) >> 20} MiB of input")
    timing(machine, original, optimized, inputs)


def make(machine, original, inputs):
    """Records a run, compares its output, and optimizes."""
    profile, output = machine.path("profile"), machine.path("recorded.s")
    plain, plain_time = compile(machine, original, inputs[0], ["-O2"])
    before = user_time()
    _, _, seconds = restitch(machine, "record", "-o", profile, "--", *command(original, inputs[0], ["-O2"], output))
    with open(output, "rb") as f:
        if f.read() != plain:
            raise Failed("the recorded compiler wrote other assembly")
    log(f"  record: {seconds:.1f} s, user time {user_time() - before:.2f} s with analysis; the compiler alone takes {plain_time:.2f} s")
    optimized, memory = machine.path("cc1plus"), machine.path("optimize.json")
    _, text, seconds = restitch(machine, "optimize", original, "--profile", profile, "-o", optimized, "--json", memory)
    sizes = [os.path.getsize(p) / (1 << 20) for p in (original, optimized)]
    log(f"  optimize: {seconds:.1f} s, file {sizes[0]:.1f} -> {sizes[1]:.1f} MiB")
    log("".join(f"    {line}\n" for line in text.splitlines() if line.startswith(("memory", "time", "  version", "  checked"))).rstrip())
    return optimized


def timing(machine, original, optimized, inputs):
    ratios = []
    for number in range(ROUNDS):
        order = (original, optimized) if number % 2 else (optimized, original)
        times = {p: sum(compile(machine, p, i, ["-O2"])[1] for i in inputs[1 : 1 + TIMED]) for p in order}
        ratios.append(times[original] / times[optimized])
    ratios.sort()
    log(f"  user time original/optimized: median {statistics.median(ratios):.3f}, from {ratios[0]:.3f} to {ratios[-1]:.3f}; {ROUNDS} rounds, {TIMED} unseen inputs, -O2")


def command(program, source, level, output):
    return [program, "-fpreprocessed", "-quiet", "-std=c++20", *level, source, "-o", output]


def compile(machine, program, source, level):
    """(the assembly, user time)"""
    output, before = machine.path("out.s"), user_time()
    machine.run(command(program, source, level, output), core=machine.server_core)
    used = user_time() - before
    with open(output, "rb") as f:
        return f.read(), used


def user_time():
    return resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime


def preprocess(machine, compiler, n):
    header = HEADERS[n % len(HEADERS)]
    more = [HEADERS[(n * 7 + 3) % len(HEADERS)], HEADERS[(n * 5 + 11) % len(HEADERS)]]
    text = "".join(f"#include <{h}>\n" for h in [header, *COMMON, *more])
    text += f"namespace n{n} {{\n{BODIES.get(header) or OTHER.format(n + 2)}\n}}\n"
    path = machine.path(f"input{n}.ii")
    machine.run([compiler, "-std=c++20", "-E", "-x", "c++", "-", "-o", path], stdin=text)
    return path


program(main)
