/* Reads clocks and the processor's number through the vdso, again and again, in several threads; a timer's handler reads one, too,
 * and walks the stack from wherever it has interrupted the thread, the vdso included. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "check.h"
#include <link.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/auxv.h>
#include <sys/time.h>
#include <unwind.h>

/* Tests that end programs from outside read the clock in their own way, with a system call. */
#undef clock_gettime

static char *volatile outermost;
static int vdso_has_tables = 0;

/* Whether the C library tells unwinders of the vdso: a static one may not. */
static int is_vdso(struct dl_phdr_info *info, size_t size, void *data) {
    (void)size;
    (void)data;
    for (int i = 0; i < info->dlpi_phnum; i++)
        if (info->dlpi_phdr[i].p_type == PT_LOAD && info->dlpi_addr + info->dlpi_phdr[i].p_vaddr == getauxval(AT_SYSINFO_EHDR))
            vdso_has_tables = 1;
    return 0;
}

static _Unwind_Reason_Code frame(struct _Unwind_Context *context, void *highest) {
    uintptr_t at = _Unwind_GetCFA(context);
    if (at > *(uintptr_t *)highest) *(uintptr_t *)highest = at;
    return _URC_NO_REASON;
}

static void on_tick(int number) {
    (void)number;
    struct timespec now;
    CHECK(clock_gettime(CLOCK_MONOTONIC, &now) == 0);
    uintptr_t highest = 0;
    if (vdso_has_tables) {
        _Unwind_Backtrace(frame, &highest);
        CHECK(highest > (uintptr_t)outermost);
    }
}

NOINLINE static uint32_t work(uint32_t state, unsigned n) {
    uint32_t sum = 0;
    for (unsigned i = 0; i < n; i++) {
        uint32_t r = next_random(&state);
        if (r & 0x80000000u) sum += r >> 7;
        else if (r & 0x400000) sum ^= r;
        else sum += 3;
    }
    return sum;
}

static int is_later(struct timespec a, struct timespec b) {
    return b.tv_sec > a.tv_sec || (b.tv_sec == a.tv_sec && b.tv_nsec >= a.tv_nsec);
}

NOINLINE static void reads(uint32_t state, unsigned n) {
    uint32_t expected = work(state, 40);
    for (unsigned i = 0; i < n; i++) {
        struct timespec first, second, coarse;
        struct timeval day;
        unsigned cpu = ~0u, node = ~0u;
        CHECK(clock_gettime(CLOCK_MONOTONIC, &first) == 0);
        CHECK(work(state, 40) == expected);
        CHECK(clock_gettime(CLOCK_MONOTONIC, &second) == 0 && is_later(first, second));
        CHECK(clock_gettime(CLOCK_MONOTONIC_COARSE, &coarse) == 0 && first.tv_sec - coarse.tv_sec <= 1);
        CHECK(gettimeofday(&day, 0) == 0 && day.tv_usec < 1000000 && time(0) + 1 >= day.tv_sec);
        CHECK(getcpu(&cpu, &node) == 0 && cpu < 1u << 20 && node < 1u << 20);
    }
}

static void *other(void *data) {
    reads(*(uint32_t *)data, 2000);
    return 0;
}

static void one_round(unsigned round) {
    uint32_t state = round + 1;
    pthread_t thread;
    /* One round in eight has two threads. */
    int two = round % 8 == 7;
    sigset_t mask, before;
    sigemptyset(&mask);
    sigaddset(&mask, SIGPROF);
    pthread_sigmask(SIG_BLOCK, &mask, &before);
    /* It inherits the mask: the handler's walk is one of the first thread's stack. */
    if (two) CHECK(pthread_create(&thread, 0, other, &state) == 0);
    pthread_sigmask(SIG_SETMASK, &before, 0);
    reads(state, 4000);
    if (two) CHECK(pthread_join(thread, 0) == 0);
}

int main(int argc, char **argv) {
    char here;
    outermost = &here;
    dl_iterate_phdr(is_vdso, 0);
    struct sigaction action = {.sa_handler = on_tick, .sa_flags = SA_RESTART};
    CHECK(sigaction(SIGPROF, &action, 0) == 0);
    struct itimerval timer = {{0, 3000}, {0, 3000}};
    CHECK(setitimer(ITIMER_PROF, &timer, 0) == 0);
    return run_rounds(argc, argv, one_round);
}
