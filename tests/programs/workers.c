/* Processes in the manner of a server with one for each client: the first one only waits, the others work. Three of them live as long as the
 * program; one more ends after some rounds, and another one takes its place. Each compares its results with those of other
 * code, and the first one looks at how each has ended. */
#include "check.h"
#include <errno.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#define LASTING 3
/* Rounds of one that does not last: some tenths of a second. */
#define ROUNDS 300

NOINLINE static uint32_t step(uint32_t x, unsigned n) {
    switch (n & 7) {
    case 0: OPAQUE(x); return x * 3 + 1;
    case 1: OPAQUE(x); return x ^ (x >> 5);
    case 2: OPAQUE(x); return x + 0x9e3779b9u;
    case 3: OPAQUE(x); return x << 9 | x >> 23;
    case 4: OPAQUE(x); return ~x;
    case 5: OPAQUE(x); return x * 5 - 3;
    case 6: OPAQUE(x); return x ^ n;
    default: OPAQUE(x); return x - n;
    }
}

NOINLINE static uint32_t plain(uint32_t x, unsigned n) {
    uint32_t results[8] = {x * 3 + 1, x ^ (x >> 5), x + 0x9e3779b9u, x << 9 | x >> 23, ~x, x * 5 - 3, x ^ n, x - n};
    return results[n & 7];
}

NOINLINE static void one_round(uint32_t seed) {
    uint32_t x = seed, y = seed;
    for (unsigned i = 0; i < 20000; i++) x = step(x, x ^ i), y = plain(y, y ^ i);
    CHECK(x == y);
}

/* Works until the time is over, or for a number of rounds, and ends. */
static pid_t worker(double end, unsigned most) {
    pid_t child = fork();
    if (child != 0) return child;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    unsigned round = 0;
    do one_round((uint32_t)getpid() + round++);
    while (seconds_now() < end && round < most);
    _exit(SUCCESS);
}

int main(int argc, char **argv) {
    double end = seconds_now() + option(argc, argv, "--seconds", 0);
    pid_t passing = 0;
    for (int i = 0; i < LASTING; i++) CHECK(worker(end, UINT32_MAX) > 0);
    CHECK((passing = worker(end, ROUNDS)) > 0);
    for (int left = LASTING + 1; left > 0;) {
        int status;
        pid_t ended = wait(&status);
        if (ended < 0 && errno == EINTR) continue;
        CHECK(ended > 0 && WIFEXITED(status) && WEXITSTATUS(status) == SUCCESS);
        if (ended == passing && seconds_now() < end) {
            CHECK((passing = worker(end, ROUNDS)) > 0);
        } else {
            left--;
        }
    }
    return SUCCESS;
}
