/* What is hard for a tracer by breakpoints: signals that are blocked for a while, handlers that never return, handlers that
 * run the interrupted function, SIGURG used by the program itself, threads, exec.
 * flags: -pthread */
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#define SUCCESS 42
static sigjmp_buf back;
static volatile sig_atomic_t hits, urgent;

__attribute__((noinline)) static uint32_t work(uint32_t x, uint32_t n) {
    for (uint32_t i = 0; i < n; i++) x = x & 1 ? x * 3 + 1 : (x >> 1) ^ (i & 3 ? 0x9e3779b9u : i);
    return x;
}

static volatile uint32_t sink;
static void returns(int s) { (void)s; hits++; sink += work(hits, 50); }
static void leaves(int s) { (void)s; hits++; siglongjmp(back, 1); }
static void counts(int s) { (void)s; urgent++; }

static double now(void) { struct timespec t; clock_gettime(CLOCK_MONOTONIC, &t); return t.tv_sec + t.tv_nsec / 1e9; }

static void timer(void (*handler)(int), int us) {
    struct sigaction a;
    memset(&a, 0, sizeof a);
    a.sa_handler = handler;
    sigaction(SIGALRM, &a, 0);
    struct itimerval v = {{0, us}, {0, us}};
    setitimer(ITIMER_REAL, &v, 0);
}

static void *thread(void *p) { return (void *)(uintptr_t)work((uint32_t)(uintptr_t)p, 20000); }

int main(int argc, char **argv) {
    const char *mode = argc > 1 ? argv[1] : "";
    double end = now() + (argc > 2 ? atof(argv[2]) : 1);
    uint32_t expected = work(7, 1000);
    sigset_t all, old;
    sigfillset(&all);
    if (!strcmp(mode, "returns")) timer(returns, 300);
    if (!strcmp(mode, "leaves") && !sigsetjmp(back, 1)) timer(leaves, 300);
    if (!strcmp(mode, "urgent")) { struct sigaction a; memset(&a, 0, sizeof a); a.sa_handler = counts; sigaction(SIGURG, &a, 0); }
    int sent = 0;
    while (now() < end) {
        if (!strcmp(mode, "leaves")) sigsetjmp(back, 1);
        if (!strcmp(mode, "blocked")) sigprocmask(SIG_BLOCK, &all, &old);
        if (work(7, 1000) != expected) return 1;
        if (!strcmp(mode, "blocked")) sigprocmask(SIG_SETMASK, &old, 0);
        if (!strcmp(mode, "urgent")) { raise(SIGURG); sent++; }
        if (!strcmp(mode, "threads")) {
            pthread_t t[4];
            for (uintptr_t i = 0; i < 4; i++) pthread_create(&t[i], 0, thread, (void *)i);
            for (uintptr_t i = 0; i < 4; i++) {
                void *r;
                pthread_join(t[i], &r);
                if ((uint32_t)(uintptr_t)r != work((uint32_t)i, 20000)) return 2;
            }
        }
    }
    if (!strcmp(mode, "urgent") && urgent != sent) return 3;
    if (!strcmp(mode, "exec")) { execl("/proc/self/exe", argv[0], "plain", argc > 2 ? argv[2] : "1", (char *)0); return 4; }
    return SUCCESS;
}
