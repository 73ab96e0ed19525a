"""A synthetic design: pipelined units that decode words of a program each cycle, every unit with cases of its own.

Large in code rather than clever: compiled, it walks through much more code in a cycle than an instruction cache holds, with
branches that depend on the data, as models of processors do.
"""

import random


def expression(choose, names, depth):
    """An expression of 32 bits over registers."""
    if depth == 0 or choose.random() < 0.15:
        return choose.choice(names) if choose.random() < 0.8 else f"32'd{choose.randrange(1 << 16)}"
    a, b = (expression(choose, names, depth - 1) for _ in "ab")
    forms = ["({} + {})", "({} - {})", "({} ^ {})", "({} & {})", "({} | {})", "(({0} >> ({1} & 15)) + {1})", "(({0} << 3) ^ {1})", "(({0} < {1}) ? {1} : {0})"]
    return choose.choice(forms).format(a, b)


def statement(choose, names, target, depth):
    """An assignment, or a decision between two of them."""
    if depth == 0:
        return f"{target} <= {expression(choose, names, 2)};"
    bit = choose.randrange(12)
    tests = [f"{choose.choice(names)}[{bit}]", f"{choose.choice(names)}[{bit + 2}:{bit}] == 3'd{choose.randrange(8)}", f"{choose.choice(names)} > {choose.choice(names)}"]
    then, other = (statement(choose, names, target, depth - 1) for _ in "ab")
    return f"if ({choose.choice(tests)}) begin {then} end else begin {other} end"


def unit(number, registers, cases):
    """A module: three stages, a register file, and a case for every operation."""
    choose = random.Random(number)
    names = [f"r{i}" for i in range(registers)] + ["held", "word", "feed"]
    lines = [f"module unit{number}(input clk, input reset, input [31:0] word_in, input [31:0] feed, output reg [31:0] result);"]
    lines += [f"  reg [31:0] {', '.join(names[:-1])};", "  always @(posedge clk) begin", "    word <= word_in; held <= word;", "    if (reset) begin"]
    lines += [f"      r{i} <= 32'd{choose.randrange(1 << 30)};" for i in range(registers)]
    lines += ["      result <= 0;", "    end else begin", f"    case (held[{(cases - 1).bit_length() - 1}:0])"]
    for case in range(cases):
        body = [statement(choose, names, f"r{i}", choose.choice((1, 2, 2, 3))) for i in choose.sample(range(registers), 3)]
        body.append(f"result <= result + {expression(choose, names, 2)};")
        lines.append(f"      {(cases - 1).bit_length()}'d{case}: begin {' '.join(body)} end")
    return lines + ["      default: ;", "    endcase", "    end", "  end", "endmodule"]


def design(units=48, registers=12, cases=32):
    """Verilog of the whole: the units in a ring, each fed by the result of the one before, and a checksum of all."""
    lines = ["module top(input clk, input reset, input [31:0] word, output [31:0] sum);"]
    for i in range(units):
        lines.append(f"  wire [31:0] q{i}; unit{i} u{i}(.clk(clk), .reset(reset), .word_in(word ^ (q{i} >> {5 + i % 7})), .feed(q{(i + 1) % units}), .result(q{i}));")
    lines += [f"  assign sum = {' ^ '.join(f'q{i}' for i in range(units))};", "endmodule"]
    for i in range(units):
        lines += unit(i, registers, cases)
    return "\n".join(lines) + "\n"


# Arguments: a seed, cycles, and how many low bits of the words vary (which operations there are).
BENCH = """
#include "Vtop.h"
#include "verilated.h"
#include <cstdio>
#include <cstdlib>
int main(int, char** argv) {
    VerilatedContext context;
    Vtop top(&context);
    unsigned state = atoi(argv[1]), sum = 0, mask = (1u << atoi(argv[3])) - 1;
    top.reset = 1;
    for (int cycle = 0; cycle < atoi(argv[2]); cycle++) {
        state = state * 1664525u + 1013904223u;
        top.word = (state >> 7) & (cycle % 61 < 40 ? mask : ~0u);
        top.clk = 0; top.eval();
        top.clk = 1; top.eval();
        top.reset = cycle < 2;
        sum = sum * 31 + top.sum;
        if (cycle % 100 == 0) printf("%d %08x\\n", cycle, sum);
    }
    printf("%08x\\n", sum);
}
"""
