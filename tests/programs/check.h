/* Shared by the test programs: a program runs its self-check once, or, with `--seconds N`, again and again for N
 * seconds, or, with `--busy N`, until it has used so many seconds of processor time. It ends with status 42 if every check held, and with status 1 and a message at the first that did not. */
#ifndef CHECK_H
#define CHECK_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define SUCCESS 42
#define NOINLINE __attribute__((noinline))
/* Keeps the compiler from computing with `x` at compile time, and from merging code on both sides. */
#define OPAQUE(x) __asm__ volatile("" : "+r"(x))

#define CHECK(condition)                                                                         \
    do {                                                                                         \
        if (!(condition)) {                                                                      \
            fprintf(stderr, "%s:%d: check failed: %s\n", __FILE__, __LINE__, #condition);        \
            _exit(1);                                                                            \
        }                                                                                        \
    } while (0)

static inline double seconds_now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

/* Processor time that this process has used. */
static inline double busy_seconds(void) { return (double)clock() / CLOCKS_PER_SEC; }

/* The number behind `name` on the command line, or `otherwise`. */
static inline double option(int argc, char **argv, const char *name, double otherwise) {
    for (int i = 1; i + 1 < argc; i++)
        if (strcmp(argv[i], name) == 0) return atof(argv[i + 1]);
    return otherwise;
}

/* Runs rounds with rising numbers, at least one, until the time is over. */
static inline int run_rounds(int argc, char **argv, void (*one_round)(unsigned)) {
    double end = seconds_now() + option(argc, argv, "--seconds", 0), busy = option(argc, argv, "--busy", 0);
    unsigned round = 0;
    do one_round(round++);
    while (seconds_now() < end || (busy > 0 && busy_seconds() < busy));
    return SUCCESS;
}

/* A step of a pseudo-random sequence (xorshift32); never 0 if it was not 0. */
static inline uint32_t next_random(uint32_t *state) {
    *state ^= *state << 13;
    *state ^= *state >> 17;
    *state ^= *state << 5;
    return *state;
}

#endif
