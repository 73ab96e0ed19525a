/* Tail calls: mutual recursion, tail calls through pointers and through a table, conditional tail calls, and functions
 * that are nothing but a jump. At -O0 they are ordinary calls, so depths stay moderate. */
#include "check.h"

#define DEPTH 3000

static uint32_t is_even(uint32_t n, uint32_t acc);
NOINLINE static uint32_t is_odd(uint32_t n, uint32_t acc) { return n == 0 ? acc * 2 : is_even(n - 1, acc + n); }
NOINLINE static uint32_t is_even(uint32_t n, uint32_t acc) { return n == 0 ? acc * 2 + 1 : is_odd(n - 1, acc ^ n); }

static uint32_t parity_formula(uint32_t n, uint32_t acc) {
    int even = 1;
    for (; n != 0; n--, even = !even) acc = even ? acc ^ n : acc + n;
    return acc * 2 + (uint32_t)even;
}

/* A state machine whose states are functions that end in a tail call through a table. */
typedef uint32_t (*state)(const unsigned char *input, uint32_t acc);
static const state states[4];
#define STATE(name, expression)                                                   \
    NOINLINE static uint32_t name(const unsigned char *input, uint32_t acc) {     \
        if (*input == 4) return acc;                                              \
        acc = (expression);                                                       \
        return states[*input](input + 1, acc);                                    \
    }
STATE(state_a, acc * 3 + 1)
STATE(state_b, acc ^ (acc >> 3))
STATE(state_c, acc + 0x9e3779b9u)
STATE(state_d, acc * 5 - *input)
static const state states[4] = {state_a, state_b, state_c, state_d};

static uint32_t states_formula(const unsigned char *input, uint32_t acc) {
    for (unsigned current = 0; *input != 4; current = *input++) {
        if (current == 0) acc = acc * 3 + 1;
        if (current == 1) acc = acc ^ (acc >> 3);
        if (current == 2) acc = acc + 0x9e3779b9u;
        if (current == 3) acc = acc * 5 - *input;
    }
    return acc;
}

NOINLINE static uint32_t leaf(uint32_t x) {
    OPAQUE(x);
    return x * 7 + 1;
}
NOINLINE static uint32_t other_leaf(uint32_t x) {
    OPAQUE(x);
    return x * 9 + 2;
}
/* `jmp leaf` and nothing else. */
NOINLINE static uint32_t forward(uint32_t x) { return leaf(x); }
/* Conditional tail calls: `jne other_leaf`. */
NOINLINE static uint32_t choose(uint32_t x, int which) {
    if (which) return other_leaf(x);
    return forward(x);
}
NOINLINE static uint32_t through(uint32_t (*f)(uint32_t), uint32_t x) { return f(x + 1); }

/* The C library as the target of a tail call through the PLT. */
NOINLINE static size_t length(const char *s) { return strlen(s + 1); }

static void one_round(unsigned round) {
    unsigned char input[DEPTH + 1];
    uint32_t random = round * 77u + 1;
    for (unsigned i = 0; i < 20; i++) {
        uint32_t n = DEPTH - i, acc = next_random(&random);
        CHECK(is_even(n, acc) == parity_formula(n, acc));
        for (int k = 0; k < DEPTH; k++) input[k] = next_random(&random) >> 9 & 3;
        input[DEPTH] = 4;
        CHECK(state_a(input, acc) == states_formula(input, acc));
        CHECK(choose(acc, 0) == acc * 7 + 1 && choose(acc, 1) == acc * 9 + 2);
        CHECK(through(forward, acc) == acc * 7 + 8 && through(other_leaf, acc) == acc * 9 + 11);
        char text[40];
        memset(text, 'x', sizeof text);
        text[20 + i % 16] = 0;
        CHECK(length(text) == 19 + i % 16);
    }
}

int main(int argc, char **argv) { return run_rounds(argc, argv, one_round); }
