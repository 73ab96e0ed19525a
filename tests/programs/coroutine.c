/* Coroutines with a switch of their own, as fast as they can: many stacks in one array, and one in a local array of main's. Each
 * goes down and up through many frames and switches in every one, so that most return addresses of the program are on stacks that
 * no thread is on, and are used a moment later. */
#include "check.h"
#include <sys/mman.h>

/* With RESTING, the first stacks can only be read while nobody is on them. */
#ifdef RESTING
enum { RESTS = 3 };
#else
enum { RESTS = 0 };
#endif

void switch_stacks(void **from, void *to);
__asm__(".text\n"
        ".globl switch_stacks\n"
        ".type switch_stacks, @function\n"
        "switch_stacks:\n"
        "    push %rbp\n    push %rbx\n    push %r12\n    push %r13\n    push %r14\n    push %r15\n"
        "    mov %rsp, (%rdi)\n"
        "    mov %rsi, %rsp\n"
        "    pop %r15\n    pop %r14\n    pop %r13\n    pop %r12\n    pop %rbx\n    pop %rbp\n"
        "    ret\n"
        ".size switch_stacks, .-switch_stacks\n");

enum { COROUTINES = 16, STACK = 32 * 1024, DEPTH = 24 };

static char stacks[COROUTINES - 1][STACK] __attribute__((aligned(4096)));
static void *main_stack, *saved[COROUTINES];
static uint64_t results[COROUTINES], seed;
static int current, done[COROUTINES], switching;

NOINLINE static void yield(void) {
    if (switching) switch_stacks(&saved[current], main_stack);
}

typedef uint64_t step(unsigned depth, uint64_t value);
static step odd, even, third;
static step *const steps[3] = {odd, even, third};

/* Through a pointer, directly, and in a loop: all kinds of calls, frames of all sizes. */
NOINLINE static uint64_t odd(unsigned depth, uint64_t value) {
    volatile uint64_t kept = value;
    if (depth == 0) return value * 3 + 1;
    yield();
    uint64_t got = steps[value % 3](depth - 1, value * 5 + depth);
    yield();
    return got ^ kept;
}

NOINLINE static uint64_t even(unsigned depth, uint64_t value) {
    volatile unsigned char space[300];
    space[value % 300] = (unsigned char)value;
    yield();
    uint64_t got = depth == 0 ? value : odd(depth - 1, value + 7);
    for (unsigned i = 0; i < 3; i++) {
        yield();
        got = got * 31 + i;
    }
    return got + space[value % 300];
}

NOINLINE static uint64_t third(unsigned depth, uint64_t value) {
    if (depth == 0) return value ^ 0x5555;
    yield();
    return steps[(value >> 3) % 3](depth - 1, value + 1);
}

static void body(void) {
    for (;;) {
        results[current] = odd(DEPTH, seed + (uint64_t)current);
        done[current] = 1;
        switch_stacks(&saved[current], main_stack);
    }
}

/* A stack on which `switch_stacks` returns into `body`, whose caller is nobody. */
static void prepare(int which, char *stack) {
    uint64_t *top = (uint64_t *)(stack + STACK);
    *--top = 0;
    *--top = (uint64_t)body;
    saved[which] = top - 6;
    memset(saved[which], 0, 48);
}

/* Opens a coroutine's stack, or closes it. */
static void protect(int which, int protection) {
    if (which < RESTS) CHECK(mprotect(stacks[which], STACK, protection) == 0);
}

static void one_round(unsigned round) {
    seed = round * 977u;
    memset(done, 0, sizeof done);
    for (int left = COROUTINES; left > 0;) {
        for (current = 0; current < COROUTINES; current++) {
            if (done[current]) continue;
            switching = 1;
            protect(current, PROT_READ | PROT_WRITE);
            switch_stacks(&main_stack, saved[current]);
            protect(current, PROT_READ);
            switching = 0;
            left -= done[current];
        }
    }
    for (int i = 0; i < COROUTINES; i++) CHECK(results[i] == odd(DEPTH, seed + (uint64_t)i));
}

int main(int argc, char **argv) {
    char local[STACK] __attribute__((aligned(64)));
    for (int i = 0; i < COROUTINES - 1; i++) prepare(i, stacks[i]);
    prepare(COROUTINES - 1, local);
    for (int i = 0; i < RESTS; i++) protect(i, PROT_READ);
    return run_rounds(argc, argv, one_round);
}
