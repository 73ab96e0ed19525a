/* Atomic operations as glibc makes them: a branch over the lock prefix of the next instruction while there is one thread.
 * In hot loops, with every kind of operand, with flags that are read before and behind, in signal handlers, and with
 * threads that would lose counts without the prefix. */
#include "check.h"
#include <pthread.h>
#include <signal.h>
#include <sys/time.h>

/* Whether there is more than one thread. */
static int many;
static uint32_t shared;
/* Of each thread: two may handle a signal at the same time. */
static __thread uint32_t handled;
static uint64_t wide;

/* `je` over the prefix, relative to the program counter, flags of the operation used. */
NOINLINE static int add_is_zero(uint32_t add) {
    uint8_t zero;
    __asm__ volatile("cmpl $0, %2\n\tje 0f\n\tlock\n0:\taddl %3, %0\n\tsete %1"
                     : "+m"(shared), "=q"(zero) : "m"(many), "r"(add) : "cc", "memory");
    return zero;
}

/* `jne`, through a register, with the comparison's other sense. */
NOINLINE static void count_up(uint64_t *place) {
    __asm__ volatile("cmpl $1, %1\n\tjb 0f\n\tlock\n0:\tincq %0" : "+m"(*place) : "m"(many) : "cc", "memory");
}

NOINLINE static uint32_t exchange_add(uint32_t *place, uint32_t add) {
    __asm__ volatile("cmpl $0, %2\n\tje 0f\n\tlock\n0:\txaddl %0, %1"
                     : "+r"(add), "+m"(*place) : "m"(many) : "cc", "memory");
    return add;
}

/* Compare and exchange until it succeeds: the unit in a loop, its flags decide the branch behind it. */
NOINLINE static uint32_t raise_to(uint32_t *place, uint32_t least) {
    uint32_t old = *place;
    while (old < least) {
        uint8_t done;
        __asm__ volatile("cmpl $0, %3\n\tje 0f\n\tlock\n0:\tcmpxchgl %4, %1\n\tsete %2"
                         : "+a"(old), "+m"(*place), "=q"(done) : "m"(many), "r"(least) : "cc", "memory");
        if (done) return old;
    }
    return old;
}

/* The locked instruction reads the carry that the comparison in front of the branch has set. */
NOINLINE static uint32_t add_with_carry(uint32_t *place, uint32_t add, uint32_t a, uint32_t b) {
    __asm__ volatile("cmpl %3, %2\n\tjne 0f\n\tlock\n0:\tadcl %1, %0"
                     : "+m"(*place) : "r"(add), "r"(a), "r"(b) : "cc", "memory");
    return *place;
}

/* A function that is little more than that, and begins with the branch. */
__asm__(".pushsection .text\n.globl entered_at_it\n.type entered_at_it, @function\nentered_at_it:\n.cfi_startproc\n"
        "je 0f\nlock\n0: addl %esi, (%rdi)\nmov (%rdi), %eax\nret\n.cfi_endproc\n.size entered_at_it, . - entered_at_it\n.popsection\n");
uint32_t entered_at_it(uint32_t *place, uint32_t add);

static void handler(int signal) {
    (void)signal;
    uint32_t before = handled;
    CHECK(exchange_add(&handled, 1) == before && handled == before + 1);
}

#define THREADS 3
#define TIMES 4000
static void *counts(void *unused) {
    for (int i = 0; i < TIMES; i++) {
        add_is_zero(1);
        count_up(&wide);
    }
    return unused;
}

static void with_threads(void) {
    pthread_t threads[THREADS];
    uint32_t before = shared;
    uint64_t wide_before = wide;
    many = 1;
    for (int i = 0; i < THREADS; i++) CHECK(pthread_create(&threads[i], NULL, counts, NULL) == 0);
    for (int i = 0; i < THREADS; i++) CHECK(pthread_join(threads[i], NULL) == 0);
    many = 0;
    CHECK(shared == before + THREADS * TIMES && wide == wide_before + THREADS * TIMES);
}

static void one_round(unsigned round) {
    uint32_t random = round * 2654435761u + 1;
    if (round % 64 == 0) with_threads();
    many = round % 3 == 1;
    uint32_t place = random, expected = random, sum = 0;
    uint64_t ticks = 0;
    for (unsigned i = 0; i < 400; i++) {
        uint32_t r = next_random(&random);
        CHECK(exchange_add(&place, r) == expected);
        expected += r;
        CHECK(add_with_carry(&place, r, i, 200) == (expected += r + (i < 200)));
        uint32_t before = place;
        CHECK(raise_to(&place, r) == before);
        expected = place;
        CHECK(place == (before < r ? r : before));
        CHECK(entered_at_it(&sum, i) == i * (i + 1) / 2);
        CHECK(add_is_zero(-shared) && !add_is_zero(1));
        count_up(&ticks);
    }
    CHECK(ticks == 400);
    many = 0;
}

int main(int argc, char **argv) {
    struct sigaction action = {.sa_handler = handler, .sa_flags = SA_RESTART};
    CHECK(sigaction(SIGALRM, &action, NULL) == 0);
    struct itimerval every = {{0, 2000}, {0, 2000}};
    CHECK(setitimer(ITIMER_REAL, &every, NULL) == 0);
    return run_rounds(argc, argv, one_round);
}
