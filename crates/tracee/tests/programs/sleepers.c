/* One thread for each way to wait. None of them may ever see EINTR, because no signal handler runs. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ipc.h>
#include <sys/mman.h>
#include <sys/select.h>
#include <sys/sem.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
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
/* Ways to move a byte through a socket: from one that is empty, into one that is full. Each has a thread of its
 * own: one that is stopped again and again begins to wait anew, so that calls behind it would never come. */
static int empty, full, into_pipe, out_of_pipe, file;
static char byte;
static struct iovec bytes = {&byte, 1};
static long from_read(void) { return read(empty, &byte, 1); }
static long from_recv(void) { return recv(empty, &byte, 1, 0); }
static long from_preadv2(void) { return preadv2(empty, &bytes, 1, -1, 0); }
static long from_splice(void) { return splice(empty, 0, into_pipe, 0, 1, 0); }
static long into_write(void) { return write(full, &byte, 1); }
static long into_pwritev2(void) { return pwritev2(full, &bytes, 1, -1, 0); }
static long into_splice(void) { return splice(out_of_pipe, 0, full, 0, 1, 0); }
static long into_sendfile(void) {
    off_t from = 0;
    return sendfile(full, file, &from, 1);
}
static const struct { const char *name; long (*call)(void); } moves[] = {
    {"read", from_read}, {"recv", from_recv}, {"preadv2", from_preadv2}, {"splice from a socket", from_splice},
    {"write", into_write}, {"pwritev2", into_pwritev2}, {"splice to a socket", into_splice}, {"sendfile", into_sendfile},
};
static void prepare_sockets(void) {
    int sockets[2], ends[2], other_ends[2];
    struct timeval limit = {0, 30000};
    socketpair(AF_UNIX, SOCK_STREAM, 0, sockets);
    empty = full = sockets[0];
    setsockopt(empty, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    setsockopt(full, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
    while (send(full, &byte, 1, MSG_DONTWAIT) == 1) {}
    file = memfd_create("file", 0);
    if (pipe(ends) || pipe(other_ends) || write(other_ends[1], &byte, 1) != 1 || ftruncate(file, 4096))
        check("preparing", -1, 0, 0);
    into_pipe = ends[1], out_of_pipe = other_ends[0];
}
static void *moves_bytes(void *number) {
    long which = (long)number;
    while (!stop) check(moves[which].name, moves[which].call(), -1, EAGAIN);
    return 0;
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
    static void *(*const bodies[])(void *) = {epolls, epoll_pwaits, nanosleeps, sigtimedwaits, semaphores, futexes, polls, busy};
    enum { WAITS = sizeof bodies / sizeof *bodies, COUNT = WAITS + sizeof moves / sizeof *moves };
    pthread_t threads[COUNT];
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGUSR2);
    sigprocmask(SIG_BLOCK, &set, 0);
    prepare_sockets();
    for (long i = 0; i < COUNT; i++)
        pthread_create(&threads[i], 0, i < WAITS ? bodies[i] : moves_bytes, (void *)(i - WAITS));
    printf("ready %p\n", (void *)padding);
    fflush(stdout);
    check("read of a pipe", read(0, &byte, 1), 0, 0);
    stop = 1;
    for (int i = 0; i < COUNT; i++) pthread_join(threads[i], 0);
    printf("%s\n", wrong ? "wrong" : "ok");
    return wrong != 0;
}
