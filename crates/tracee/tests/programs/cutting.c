/* Writes blocks of 1 MiB, each with one call, into a pipe whose reader takes its time, and computes for a while
 * between them. With "stuck" nobody reads. In the end it says how many calls returned early: without a signal
 * handler none does (pipe(7)). */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { BLOCK = 1 << 20 };
static int ends[2];
static volatile int has_ended;
static volatile long cut;

static double busy(void) {
    struct timespec time;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return (double)time.tv_sec + (double)time.tv_nsec / 1e9;
}

static void *take(void *unused) {
    static char buffer[65536];
    while (read(ends[0], buffer, sizeof buffer) > 0) {
        usleep(1000);
    }
    return unused;
}

static void *give(void *unused) {
    static char block[BLOCK];
    while (!has_ended) {
        for (double until = busy() + 0.02; busy() < until;) {
        }
        cut += write(ends[1], block, BLOCK) != BLOCK;
    }
    return unused;
}

int main(int argc, char **argv) {
    pthread_t thread;
    char byte;
    if (pipe(ends) != 0 || pthread_create(&thread, NULL, give, NULL) != 0) {
        return 1;
    }
    if (!(argc > 1 && strcmp(argv[1], "stuck") == 0) && pthread_create(&thread, NULL, take, NULL) != 0) {
        return 1;
    }
    puts("ready");
    fflush(stdout);
    /* Until the input ends. */
    while (read(0, &byte, 1) > 0) {
    }
    has_ended = 1;
    printf("%ld cut\nok\n", cut);
    fflush(stdout);
    _exit(0);
}
