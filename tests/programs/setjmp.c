/* Control that returns twice or elsewhere: setjmp and longjmp through frames, sigsetjmp out of a signal handler with the
 * mask restored, and coroutines with getcontext, makecontext and swapcontext that live over many switches. */
#include "check.h"
#include <setjmp.h>
#include <signal.h>
#include <ucontext.h>

static jmp_buf target;

NOINLINE static int dive(int depth, int value) {
    volatile char space[24];
    space[depth & 7] = (char)value;
    if (depth == 0) longjmp(target, value);
    return dive(depth - 1, value) + space[0];
}

NOINLINE static int land(int depth, int value) {
    volatile int times = 0;
    int got = setjmp(target);
    times++;
    if (got == 0) dive(depth, value);
    return got * 10 + times;
}

/* One setjmp, many returns: a loop made of longjmp. */
NOINLINE static int returns_often(int count) {
    static jmp_buf again;
    volatile int sum = 0;
    int n = setjmp(again);
    sum += n;
    if (n < count) longjmp(again, n + 1);
    return sum;
}

static sigjmp_buf out;
static void handler(int signal) { siglongjmp(out, signal); }

NOINLINE static void out_of_handler(void) {
    volatile int before = 1;
    int got = sigsetjmp(out, 1);
    if (got == 0) {
        before = 2;
        raise(SIGUSR1);
        CHECK(0);
    }
    CHECK(got == SIGUSR1 && before == 2);
    sigset_t mask;
    sigprocmask(SIG_BLOCK, NULL, &mask);
    CHECK(!sigismember(&mask, SIGUSR1));
}

#define COROUTINES 4
static ucontext_t main_context, contexts[COROUTINES];
static char stacks[COROUTINES][64 * 1024];
static uint64_t produced[COROUTINES];

static void generator(int self, int steps) {
    uint64_t a = 0, b = (uint64_t)self + 1;
    for (int i = 0; i < steps; i++) {
        uint64_t next = a + b;
        a = b, b = next;
        produced[self] = a;
        CHECK(swapcontext(&contexts[self], &main_context) == 0);
    }
    produced[self] = 0;
}

NOINLINE static void coroutines(void) {
    enum { STEPS = 30 };
    for (int i = 0; i < COROUTINES; i++) {
        CHECK(getcontext(&contexts[i]) == 0);
        contexts[i].uc_stack.ss_sp = stacks[i];
        contexts[i].uc_stack.ss_size = sizeof stacks[i];
        contexts[i].uc_link = &main_context;
        makecontext(&contexts[i], (void (*)(void))generator, 2, i, STEPS);
    }
    uint64_t a = 0, b = 1;
    for (int step = 0; step <= STEPS; step++) {
        uint64_t next = a + b;
        a = b, b = next;
        for (int i = 0; i < COROUTINES; i++) {
            CHECK(swapcontext(&main_context, &contexts[i]) == 0);
            CHECK(produced[i] == (step == STEPS ? 0 : a * ((uint64_t)i + 1)));
        }
    }
}

/* getcontext returns a second time through setcontext. */
NOINLINE static void second_return(void) {
    ucontext_t here;
    volatile int visits = 0;
    CHECK(getcontext(&here) == 0);
    if (++visits < 5) setcontext(&here);
    CHECK(visits == 5);
}

static void one_round(unsigned round) {
    (void)round;
    for (int i = 1; i < 100; i++) {
        CHECK(land(i, i) == i * 10 + 2);
        CHECK(returns_often(i) == i * (i + 1) / 2);
        out_of_handler();
        coroutines();
        second_return();
    }
}

int main(int argc, char **argv) {
    signal(SIGUSR1, handler);
    return run_rounds(argc, argv, one_round);
}
