/* Queued signals that carry numbers, and timers: all must arrive, each once. */
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/time.h>
#include <unistd.h>

static atomic_ulong count, sum, alarms;

static void on_queued(int signal, siginfo_t *info, void *context) {
    (void)signal, (void)context;
    count++;
    sum += (unsigned long)info->si_value.sival_int;
    if (info->si_code != SI_QUEUE || info->si_pid != getpid()) sum += 1ul << 40;
}
static void on_alarm(int signal) { (void)signal, alarms++; }
static void *sends(void *argument) {
    unsigned long total = (unsigned long)argument;
    for (unsigned long i = 1; i <= total; i++) {
        union sigval value = {.sival_int = (int)i};
        while (sigqueue(getpid(), SIGRTMIN + (int)(i % 3), value) != 0) usleep(100);
        if (i % 4 == 0) usleep(50);
    }
    return 0;
}
static void *computes(void *unused) {
    volatile unsigned long n = 0;
    while (count < (unsigned long)unused) n++;
    return 0;
}
__asm__(".text; .balign 16; .globl padding; padding: .skip 128, 0xcc");
extern char padding[];

int main(int argc, char **argv) {
    unsigned long total = strtoul(argv[1], 0, 10);
    struct sigaction queued = {.sa_sigaction = on_queued, .sa_flags = SA_SIGINFO | SA_RESTART};
    for (int i = 0; i < 3; i++) sigaction(SIGRTMIN + i, &queued, 0);
    struct sigaction alarm_action = {.sa_handler = on_alarm, .sa_flags = SA_RESTART};
    sigaction(SIGALRM, &alarm_action, 0);
    struct itimerval every = {{0, 500}, {0, 500}};
    setitimer(ITIMER_REAL, &every, 0);
    pthread_t sender, worker;
    pthread_create(&worker, 0, computes, (void *)total);
    printf("ready %p\n", (void *)padding);
    fflush(stdout);
    pthread_create(&sender, 0, sends, (void *)total);
    pthread_join(sender, 0);
    pthread_join(worker, 0);
    // Ends when it is told to: an end that a tracer sees is one that its parent, the same process, does not.
    while (getchar() != EOF) {}
    unsigned long expected = total * (total + 1) / 2;
    int ok = count == total && sum == expected && alarms > 10;
    if (ok) printf("ok\n");
    else printf("count %lu of %lu, sum %lu of %lu, alarms %lu\n", count, total, sum, expected, alarms);
    return !ok;
}
