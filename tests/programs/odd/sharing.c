/* Children that share the memory and are no threads (clone with CLONE_VM alone) come and go: for a moment each works in
 * the same code, on a stack of its own, while the process goes on. */
#define _GNU_SOURCE
#include "../check.h"
#include <sched.h>
#include <signal.h>
#include <sys/wait.h>

enum { STACK = 64 * 1024 };
static char stack[STACK] __attribute__((aligned(64)));
static volatile uint32_t of_child;

NOINLINE static uint32_t step(uint32_t x) {
    switch (x % 7) {
    case 0: return x * 3 + 1;
    case 1: return x ^ 0x5bd1e995u;
    case 2: return x + (x >> 3);
    case 3: return x * 5 + 7;
    case 4: return x - 0x1234567u;
    case 5: return (x << 7) | (x >> 25);
    default: return ~x;
    }
}

NOINLINE static uint32_t steps(uint32_t x, unsigned n) {
    while (n--) x = step(x);
    return x;
}

static int child(void *start) {
    of_child = steps((uint32_t)(uintptr_t)start, 400000);
    return 0;
}

static void one_round(unsigned round) {
    int status = 0;
    uint32_t start = round * 2654435761u;
    pid_t pid = clone(child, stack + STACK, CLONE_VM | SIGCHLD, (void *)(uintptr_t)start);
    CHECK(pid > 0);
    uint32_t own = steps(start, 400000);
    CHECK(waitpid(pid, &status, 0) == pid && status == 0);
    CHECK(of_child == own);
    /* Alone for a while, so that there are moments to be stopped in. */
    CHECK(steps(start, 100000) == steps(start, 100000));
}

int main(int argc, char **argv) { return run_rounds(argc, argv, one_round); }
