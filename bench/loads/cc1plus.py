"""GCC's C++ compiler as a file: every moved frame, exceptions and all, and output that can be compared."""

from harness.machine import Failed, find
from harness.rounds import interleave_inputs, run_and_count

# Headers of the C++ library with something that instantiates them. The first one is the training input of the profile.
SOURCES = {
    "containers": ("map vector string algorithm unordered_map", "std::map<std::string, std::vector<int>> m; int f(int n) { m[std::to_string(n)].push_back(n); std::unordered_map<int, std::string> u; u[n] = \"x\"; return m.size() + u.size(); }"),
    "text": ("regex iostream sstream", "bool f(const std::string& s) { std::ostringstream o; o << s; return std::regex_match(o.str(), std::regex(\"a+b*(c|d)\")); }"),
    "ranges": ("ranges vector numeric", "int f(std::vector<int> v) { int n = 0; for (int i : v | std::views::filter([](int i) { return i % 3; }) | std::views::transform([](int i) { return i * i; })) n += i; return n; }"),
    "threads": ("thread future mutex condition_variable", "int f(int n) { auto a = std::async([=] { return n; }); std::mutex m; std::lock_guard<std::mutex> g(m); return a.get(); }"),
    "functional": ("functional variant optional memory any", "struct V { int operator()(int i) { return i; } int operator()(double d) { return d; } }; int f(std::variant<int, double> v) { std::function<int()> g = [=] { return std::visit(V(), v); }; return g() + *std::make_shared<int>(3); }"),
    "filesystem": ("filesystem chrono random", "double f(const char* p) { std::mt19937 g(1); return std::uniform_real_distribution<>()(g) + std::filesystem::path(p).string().size(); }"),
}
LEVELS = (["-O0"], ["-O2"], ["-O3", "-g"])


def run(context):
    machine = context.machine
    compiler = find("g++")
    program = find(machine.run([compiler, "-print-prog-name=cc1plus"]).strip())
    inputs = preprocess(machine, compiler)
    programs = {side: machine.path(f"cc1plus-{side[:8]}") for side in ("original", "optimized")}
    training = command(program, inputs["containers"], ["-O2"], machine.path("training.s"))
    made = context.restitch.optimize(machine, program, training, programs, cwd=machine.folder)
    measured = list(inputs.values())[: 2 if context.quick else None]
    compared = compare(machine, programs, measured)
    context.log(f"  {compared} pairs of outputs are identical")

    def measure(side, source):
        return run_and_count(context.events, [command(programs[side], source, ["-O2"], machine.path("out.s"))], cwd=machine.folder)

    rounds = interleave_inputs(context.rounds, measured, measure, context.log)
    return [{"title": f"cc1plus -O2 as a file, {len(measured)} inputs", "unit": "input", "rounds": rounds, "attach": None, "optimize": made, "identical_outputs": compared}]


def command(program, source, level, output):
    return [program, "-fpreprocessed", "-quiet", "-std=c++20", *level, source, "-o", output]


def preprocess(machine, compiler):
    inputs = {}
    for name, (headers, body) in SOURCES.items():
        text = "".join(f"#include <{h}>\n" for h in headers.split()) + body + "\n"
        inputs[name] = machine.path(f"{name}.ii")
        machine.run([compiler, "-std=c++20", "-E", "-x", "c++", "-", "-o", inputs[name]], stdin=text)
    return inputs


def compare(machine, programs, inputs):
    """Both write the same assembly for every input at every level; how many pairs there were."""
    pairs = 0
    for source in inputs:
        for level in LEVELS:
            texts = []
            for program in programs.values():
                output = machine.path("compare.s")
                machine.run(command(program, source, level, output))
                with open(output, "rb") as f:
                    texts.append(f.read())
            if texts[0] != texts[1]:
                raise Failed(f"the optimized cc1plus writes other assembly for {source} at {' '.join(level)}")
            pairs += 1
    return pairs
