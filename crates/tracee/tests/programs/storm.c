/* Threads that start threads that start threads: each link of a chain adds to a checksum, starts the next and ends. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { CHAINS = 6 };
static atomic_ulong sum, finished;
static unsigned long links;

static void *run_link(void *argument) {
    unsigned long number = (unsigned long)argument, x = number;
    for (int i = 0; i < 2000; i++)
        x = x * 6364136223846793005ul + 1442695040888963407ul;
    atomic_fetch_add(&sum, x);
    if (number + CHAINS >= links) {
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

int main(int argc, char **argv) {
    links = strtoul(argv[1], 0, 10) * CHAINS;
    printf("ready\n");
    fflush(stdout);
    unsigned long expected = 0;
    for (unsigned long number = 0; number < links; number++) {
        unsigned long x = number;
        for (int i = 0; i < 2000; i++)
            x = x * 6364136223846793005ul + 1442695040888963407ul;
        expected += x;
    }
    pthread_t thread;
    for (unsigned long chain = 0; chain < CHAINS; chain++) {
        pthread_create(&thread, 0, run_link, (void *)chain);
        pthread_detach(thread);
    }
    while (atomic_load(&finished) != CHAINS)
        usleep(1000);
    printf("%s\n", sum == expected ? "ok" : "wrong checksum");
    return sum != expected;
}
