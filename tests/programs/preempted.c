/* User threads that a timer preempts: the handler of its signal switches to another one, so that what it has interrupted rests
 * at whatever instruction that was, in a frame of the kernel's on a stack that no thread is on. The functions are short, and
 * most of their time is spent at their beginnings. */
#include "check.h"
#include <signal.h>
#include <sys/time.h>
#include <ucontext.h>

enum { THREADS = 64, STACK = 64 * 1024, STEPS = 400, INTERVAL_US = 500 };

static char stacks[THREADS][STACK] __attribute__((aligned(4096)));
static ucontext_t contexts[THREADS];
static volatile int current;
static volatile uint64_t rounds[THREADS];

/* It begins with one long instruction, between whose bytes nobody rests: there is always a place to be redirected. */
NOINLINE static uint64_t mixed(uint64_t a) { return a ^ 0x9e3779b97f4a7c15ull; }

/* A division, behind short instructions, is where most interruptions are seen. */
NOINLINE static uint64_t quotient(uint64_t a, uint64_t b) {
    __asm__ volatile("");
    return a / b;
}

NOINLINE static uint64_t leaf(uint64_t a, uint64_t b, uint64_t c) {
    return quotient(a | 1ull << 63, b | 1) + quotient(b | 1ull << 62, c | 1);
}

NOINLINE static uint64_t four(uint64_t a, uint64_t b, uint64_t c, uint64_t d) {
    uint64_t x = leaf(a, b, c), y = leaf(b, c, d), z = leaf(c, d, a), w = leaf(d, a, b);
    return x + y * 3 + z * 5 + w * 7 + a + b + c + d;
}

NOINLINE static uint64_t work(uint64_t seed) {
    uint64_t a = seed;
    for (unsigned i = 0; i < STEPS; i++) a = mixed(four(a, a + 1, a + 2, seed) + four(seed, a, i, 3));
    return a;
}

static uint64_t expected[THREADS];

static void mask(int how) {
    sigset_t alarm;
    sigemptyset(&alarm);
    sigaddset(&alarm, SIGALRM);
    CHECK(sigprocmask(how, &alarm, NULL) == 0);
}

static void body(int number) {
    mask(SIG_UNBLOCK);
    for (;;) {
        CHECK(work((uint64_t)number) == expected[number]);
        rounds[number]++;
    }
}

static void preempt(int signal) {
    (void)signal;
    int last = current;
    current = (last + 1) % THREADS;
    swapcontext(&contexts[last], &contexts[current]);
}

static void one_round(unsigned round) {
    (void)round;
    CHECK(work(0) == expected[0]);
    rounds[0]++;
}

int main(int argc, char **argv) {
    for (int i = 0; i < THREADS; i++) expected[i] = work((uint64_t)i);
    /* A context takes its mask before its registers: with the signal let through, the handler would begin between both. */
    mask(SIG_BLOCK);
    for (int i = 1; i < THREADS; i++) {
        CHECK(getcontext(&contexts[i]) == 0);
        contexts[i].uc_stack.ss_sp = stacks[i];
        contexts[i].uc_stack.ss_size = STACK;
        makecontext(&contexts[i], (void (*)(void))body, 1, i);
    }
    struct sigaction action = {.sa_handler = preempt, .sa_flags = SA_RESTART};
    CHECK(sigaction(SIGALRM, &action, NULL) == 0);
    struct itimerval interval = {{0, INTERVAL_US}, {0, INTERVAL_US}};
    CHECK(setitimer(ITIMER_REAL, &interval, NULL) == 0);
    mask(SIG_UNBLOCK);
    return run_rounds(argc, argv, one_round);
}
