/* One thread for each way to wait. None of them may ever see EINTR, because no signal handler runs. */
#define _GNU_SOURCE
#include <errno.h>
#include <linux/futex.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ipc.h>
#include <sys/select.h>
#include <sys/sem.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static atomic_int stop;
static atomic_int wrong;
static const struct timespec short_time = {0, 30 * 1000 * 1000};

static void check(const char *what, long result, long expected, int error) {
    if (result != expected || (result < 0 && errno != error)) {
        printf("%s returned %ld, errno %d (%s)\n", what, result, errno, strerror(errno));
        fflush(stdout);
        atomic_fetch_add(&wrong, 1);
    }
}
static void *epolls(void *unused) {
    int fd = epoll_create1(0);
    struct epoll_event event;
    while (!stop) check("epoll_wait", epoll_wait(fd, &event, 1, 30), 0, 0);
    return unused;
}
static void *epoll_pwaits(void *unused) {
    int fd = epoll_create1(0);
    struct epoll_event event;
    sigset_t set;
    sigemptyset(&set);
    while (!stop) check("epoll_pwait", epoll_pwait(fd, &event, 1, 30, &set), 0, 0);
    return unused;
}
static void *nanosleeps(void *unused) {
    while (!stop) {
        struct timespec rest = {0, 0}, before, after;
        clock_gettime(CLOCK_MONOTONIC, &before);
        check("nanosleep", nanosleep(&short_time, &rest), 0, 0);
        clock_gettime(CLOCK_MONOTONIC, &after);
        long ns = (after.tv_sec - before.tv_sec) * 1000000000l + after.tv_nsec - before.tv_nsec;
        if (ns < short_time.tv_nsec) check("nanosleep too short", -1, 0, 0);
    }
    return unused;
}
static void *receives(void *unused) {
    int pair[2];
    socketpair(AF_UNIX, SOCK_STREAM, 0, pair);
    struct timeval limit = {0, 30000};
    setsockopt(pair[0], SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    char byte;
    while (!stop) {
        check("recv", recv(pair[0], &byte, 1, 0), -1, EAGAIN);
        check("read", read(pair[0], &byte, 1), -1, EAGAIN);
    }
    return unused;
}
static void *sigtimedwaits(void *unused) {
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGUSR2);
    while (!stop) check("sigtimedwait", sigtimedwait(&set, 0, &short_time), -1, EAGAIN);
    return unused;
}
static void *semaphores(void *unused) {
    int id = semget(IPC_PRIVATE, 1, 0600);
    struct sembuf down = {0, -1, 0};
    while (!stop) check("semtimedop", semtimedop(id, &down, 1, &short_time), -1, EAGAIN);
    semctl(id, 0, IPC_RMID);
    return unused;
}
static void *futexes(void *unused) {
    int word = 0;
    while (!stop)
        check("futex", syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, 0, &short_time, 0, 0), -1, ETIMEDOUT);
    return unused;
}
static void *polls(void *unused) {
    struct timeval limit;
    while (!stop) {
        check("poll", poll(0, 0, 30), 0, 0);
        check("ppoll", ppoll(0, 0, &short_time, 0), 0, 0);
        limit.tv_sec = 0, limit.tv_usec = 30000;
        check("select", select(0, 0, 0, 0, &limit), 0, 0);
    }
    return unused;
}
static void *busy(void *unused) {
    unsigned long n = 0;
    while (!stop) n++;
    if (!n) check("counting", -1, 0, 0);
    return unused;
}

__asm__(".text; .balign 16; .globl padding; padding: .skip 128, 0xcc");
extern char padding[];

int main(void) {
    static void *(*const bodies[])(void *) = {epolls, epoll_pwaits, nanosleeps, receives, sigtimedwaits, semaphores, futexes, polls, busy};
    enum { COUNT = sizeof bodies / sizeof *bodies };
    pthread_t threads[COUNT];
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGUSR2);
    sigprocmask(SIG_BLOCK, &set, 0);
    for (int i = 0; i < COUNT; i++) pthread_create(&threads[i], 0, bodies[i], 0);
    printf("ready %p\n", (void *)padding);
    fflush(stdout);
    char byte;
    check("read of a pipe", read(0, &byte, 1), 0, 0);
    stop = 1;
    for (int i = 0; i < COUNT; i++) pthread_join(threads[i], 0);
    printf("%s\n", wrong ? "wrong" : "ok");
    return wrong != 0;
}
