/* Threads that start threads that start threads: each link of a chain adds to a checksum, starts the next and ends,
 * until the standard input does. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { CHAINS = 6 };
static atomic_ulong sum, finished;
static atomic_int stop;
static unsigned long last[CHAINS];

static unsigned long share_of(unsigned long number) {
    unsigned long x = number;
    for (int i = 0; i < 2000; i++)
        x = x * 6364136223846793005ul + 1442695040888963407ul;
    return x;
}

static void *run_link(void *argument) {
    unsigned long number = (unsigned long)argument;
    atomic_fetch_add(&sum, share_of(number));
    if (stop) {
        last[number % CHAINS] = number;
        atomic_fetch_add(&finished, 1);
        return 0;
    }
    pthread_t next;
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    while (pthread_create(&next, &attributes, run_link, (void *)(number + CHAINS)) != 0)
        usleep(100);
    return 0;
}

int main(void) {
    printf("ready\n");
    fflush(stdout);
    pthread_t thread;
    for (unsigned long chain = 0; chain < CHAINS; chain++) {
        pthread_create(&thread, 0, run_link, (void *)chain);
        pthread_detach(thread);
    }
    while (getchar() != EOF) {}
    stop = 1;
    while (atomic_load(&finished) != CHAINS)
        usleep(1000);
    unsigned long expected = 0;
    for (unsigned long chain = 0; chain < CHAINS; chain++)
        for (unsigned long number = chain; number <= last[chain]; number += CHAINS)
            expected += share_of(number);
    printf("%s\n", sum == expected ? "ok" : "wrong checksum");
    return sum != expected;
}
