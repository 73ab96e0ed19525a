/* Computed gotos: an interpreter with a constant table of label addresses, one with a table of label differences, and a
 * direct-threaded one that writes label addresses into its code, which stays in data between calls. The three and a
 * plain loop must agree on every program. */
#include "check.h"

enum { PUSH, ADD, MUL, XOR, DUP, SWAP, ROT, NOT, LOOP, HALT, OPS };
#define LENGTH 64

struct instruction {
    unsigned op;
    uint32_t value;
};

#define INTERPRETER_BODY(NEXT, OP, VALUE)                                     \
    do_push: stack[++top & 15] = VALUE; NEXT;                                 \
    do_add: stack[top & 15] += VALUE; NEXT;                                   \
    do_mul: stack[top & 15] *= VALUE | 1; NEXT;                               \
    do_xor: stack[top & 15] ^= stack[(top - 1) & 15]; NEXT;                   \
    do_dup: stack[(top + 1) & 15] = stack[top & 15]; top++; NEXT;             \
    do_swap: t = stack[top & 15]; stack[top & 15] = stack[(top - 1) & 15];    \
        stack[(top - 1) & 15] = t; NEXT;                                      \
    do_rot: t = stack[top & 15]; stack[top & 15] = t << 7 | t >> 25; NEXT;    \
    do_not: stack[top & 15] = ~stack[top & 15]; NEXT;                         \
    do_loop: if (left-- > 0) pc = -1; NEXT;                                   \
    do_halt: for (int i = 0; i < 16; i++) sum = sum * 31 + stack[i];          \
        return sum;

#define STATE                                      \
    uint32_t stack[16] = {0}, t, sum = 0;          \
    int top = 0, left = 20, pc = -1;

NOINLINE static uint32_t by_table(const struct instruction *code) {
    static const void *const labels[OPS] = {&&do_push, &&do_add, &&do_mul, &&do_xor,  &&do_dup,
                                            &&do_swap, &&do_rot, &&do_not, &&do_loop, &&do_halt};
    STATE
#define NEXT do { pc++; goto *labels[code[pc].op]; } while (0)
    NEXT;
    INTERPRETER_BODY(NEXT, code[pc].op, code[pc].value)
#undef NEXT
}

NOINLINE static uint32_t by_offset(const struct instruction *code) {
    static const int offsets[OPS] = {&&do_push - &&do_push, &&do_add - &&do_push,  &&do_mul - &&do_push,
                                     &&do_xor - &&do_push,  &&do_dup - &&do_push,  &&do_swap - &&do_push,
                                     &&do_rot - &&do_push,  &&do_not - &&do_push,  &&do_loop - &&do_push,
                                     &&do_halt - &&do_push};
    STATE
#define NEXT do { pc++; goto *(&&do_push + offsets[code[pc].op]); } while (0)
    NEXT;
    INTERPRETER_BODY(NEXT, code[pc].op, code[pc].value)
#undef NEXT
}

struct threaded {
    const void *label;
    uint32_t value;
};

/* With `into`, translates `code`; without, runs `threaded`. */
NOINLINE static uint32_t threaded(const struct instruction *code, struct threaded *into, const struct threaded *run) {
    static const void *const labels[OPS] = {&&do_push, &&do_add, &&do_mul, &&do_xor,  &&do_dup,
                                            &&do_swap, &&do_rot, &&do_not, &&do_loop, &&do_halt};
    STATE
    if (into) {
        for (int i = 0; i < LENGTH; i++) into[i] = (struct threaded){labels[code[i].op], code[i].value};
        return 0;
    }
#define NEXT do { pc++; goto *run[pc].label; } while (0)
    NEXT;
    INTERPRETER_BODY(NEXT, 0, run[pc].value)
#undef NEXT
}

NOINLINE static uint32_t plain(const struct instruction *code) {
    STATE
    for (;;) {
        uint32_t value = code[++pc].value, *a = &stack[top & 15], *b = &stack[(top - 1) & 15];
        unsigned op = code[pc].op;
        if (op == PUSH) stack[++top & 15] = value;
        else if (op == ADD) *a += value;
        else if (op == MUL) *a *= value | 1;
        else if (op == XOR) *a ^= *b;
        else if (op == DUP) stack[++top & 15] = *a;
        else if (op == SWAP) t = *a, *a = *b, *b = t;
        else if (op == ROT) *a = *a << 7 | *a >> 25;
        else if (op == NOT) *a = ~*a;
        else if (op == LOOP) pc = left-- > 0 ? -1 : pc;
        else break;
    }
    for (int i = 0; i < 16; i++) sum = sum * 31 + stack[i];
    return sum;
}

/* Translated in the first round, run in all: label addresses outlive calls. */
static struct threaded kept[LENGTH];
static struct instruction kept_code[LENGTH];

static void make(struct instruction *code, uint32_t seed) {
    for (int i = 0; i < LENGTH - 2; i++) {
        code[i].op = next_random(&seed) % LOOP;
        code[i].value = next_random(&seed);
    }
    code[LENGTH - 2] = (struct instruction){LOOP, 0};
    code[LENGTH - 1] = (struct instruction){HALT, 0};
}

static void one_round(unsigned round) {
    if (round == 0) {
        make(kept_code, 12345);
        threaded(kept_code, kept, NULL);
    }
    for (unsigned i = 0; i < 300; i++) {
        struct instruction code[LENGTH];
        struct threaded fresh[LENGTH];
        make(code, round * 1000 + i + 1);
        threaded(code, fresh, NULL);
        uint32_t expected = plain(code);
        CHECK(by_table(code) == expected);
        CHECK(by_offset(code) == expected);
        CHECK(threaded(NULL, NULL, fresh) == expected);
        CHECK(threaded(NULL, NULL, kept) == plain(kept_code));
    }
}

int main(int argc, char **argv) { return run_rounds(argc, argv, one_round); }
