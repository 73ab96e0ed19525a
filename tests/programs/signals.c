/* Timer signals at a high rate while computing: each handler takes a backtrace, which must reach the frames below main
 * from wherever the signal hit, and the interrupted computation must not notice.
 * flags: -funwind-tables */
#include "check.h"
#include <execinfo.h>
#include <signal.h>
#include <sys/time.h>

#define MOST 64

extern char _DYNAMIC[] __attribute__((weak));

static void *bottom[2];
static volatile sig_atomic_t armed, hits;

/* In a static program the frames below main belong to the program itself, whose own code may have been moved. */
static void handler(int signal) {
    (void)signal;
    void *frames[MOST];
    int n = backtrace(frames, MOST);
    CHECK(n >= 4 && n < MOST);
    if (armed && _DYNAMIC) CHECK(frames[n - 1] == bottom[1] && frames[n - 2] == bottom[0]);
    hits++;
}

NOINLINE static uint32_t leaf(uint32_t x, uint32_t n) {
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

NOINLINE static uint32_t branch(uint32_t x, int depth) {
    if (depth == 0) return leaf(x, x >> 7);
    uint32_t a = branch(x + 1, depth - 1);
    return a & 1 ? leaf(a, x) : branch(a, depth - 1) + 1;
}

NOINLINE static uint32_t work(uint32_t seed) {
    uint32_t sum = 0;
    for (uint32_t i = 0; i < 40; i++) sum = sum * 31 + branch(seed + i, 8);
    return sum;
}

static void set_timer(long microseconds) {
    struct itimerval interval = {{0, microseconds}, {0, microseconds}};
    CHECK(setitimer(ITIMER_REAL, &interval, NULL) == 0);
}

static void one_round(unsigned round) {
    uint32_t expected = work(round);
    int before = hits;
    armed = 1;
    set_timer(100);
    for (int i = 0; i < 20 || hits == before; i++) CHECK(work(round) == expected);
    set_timer(0);
    armed = 0;
}

int main(int argc, char **argv) {
    void *frames[MOST];
    int n = backtrace(frames, MOST); /* also loads the unwinder, which a handler must not do */
    CHECK(n >= 3);
    memcpy(bottom, &frames[n - 2], sizeof bottom);
    struct sigaction action = {.sa_handler = handler, .sa_flags = SA_RESTART};
    CHECK(sigaction(SIGALRM, &action, NULL) == 0);
    int result = run_rounds(argc, argv, one_round);
    CHECK(hits > 0);
    return result;
}
