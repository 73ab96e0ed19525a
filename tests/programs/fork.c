/* Processes: children made by fork go on computing in the parent's code, children made by vfork and posix_spawn execute
 * this program again (`--child SEED`); the parent computes meanwhile and checks every exit status. */
#include "check.h"
#include <spawn.h>
#include <sys/wait.h>

extern char **environ;

NOINLINE static uint32_t mix(uint32_t x) {
    switch (x >> 3 & 7) {
    case 0: OPAQUE(x); return x * 17 + 1;
    case 1: OPAQUE(x); return x ^ (x >> 7);
    case 2: OPAQUE(x); return x - 12345;
    case 3: OPAQUE(x); return x << 3 | x >> 29;
    case 4: OPAQUE(x); return ~x;
    case 5: OPAQUE(x); return x + 99;
    case 6: OPAQUE(x); return x * 3;
    default: OPAQUE(x); return x ^ 0xa5a5a5a5u;
    }
}

NOINLINE static uint32_t compute(uint32_t seed) {
    uint32_t x = seed;
    for (unsigned i = 0; i < 20000; i++) x = mix(x) + i;
    return x;
}

/* What a child tells: six bits of its result, and that it got there. */
static int status_of(uint32_t result) { return 64 + (int)(result % 64); }

static void expect(pid_t child, uint32_t seed) {
    int status;
    CHECK(child > 0 && waitpid(child, &status, 0) == child);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == status_of(compute(seed)));
}

NOINLINE static pid_t by_fork(uint32_t seed) {
    pid_t child = fork();
    if (child == 0) _exit(status_of(compute(seed)));
    return child;
}

/* A child that forks again: its result must come through. */
NOINLINE static pid_t by_two_forks(uint32_t seed) {
    pid_t child = fork();
    if (child == 0) {
        expect(by_fork(seed + 1), seed + 1);
        _exit(status_of(compute(seed)));
    }
    return child;
}

NOINLINE static pid_t by_vfork(char **arguments) {
    pid_t child = vfork();
    if (child == 0) {
        execv("/proc/self/exe", arguments);
        _exit(1);
    }
    return child;
}

static void one_round(unsigned round) {
    for (uint32_t i = 0; i < 5; i++) {
        uint32_t seed = round * 10 + i;
        char text[16];
        snprintf(text, sizeof text, "%u", seed);
        char *arguments[] = {(char *)"child", (char *)"--child", text, NULL};
        pid_t spawned, forked = by_fork(seed), twice = by_two_forks(seed), vforked = by_vfork(arguments);
        CHECK(posix_spawn(&spawned, "/proc/self/exe", NULL, NULL, arguments, environ) == 0);
        uint32_t here = compute(seed);
        expect(vforked, seed);
        expect(twice, seed);
        expect(spawned, seed);
        expect(forked, seed);
        CHECK(compute(seed) == here);
    }
}

int main(int argc, char **argv) {
    double seed = option(argc, argv, "--child", -1);
    if (seed >= 0) return status_of(compute((uint32_t)seed));
    return run_rounds(argc, argv, one_round);
}
