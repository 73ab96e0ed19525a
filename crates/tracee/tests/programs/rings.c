/* Asks io_uring again and again to open a pipe, which waits for somebody who writes in a thread that the kernel has made for it, and has a thread of the
 * kernel poll a second ring. Ends with its input; says then whether every answer was right. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/io_uring.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

struct ring {
    int fd;
    unsigned *sq_tail, *sq_mask, *sq_array, *cq_head, *cq_tail, *cq_mask;
    struct io_uring_sqe *sqes;
    struct io_uring_cqe *cqes;
};

static void *shared(int fd, size_t len, off_t at) {
    void *memory = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, at);
    if (memory == MAP_FAILED) exit(4);
    return memory;
}

static struct ring ring(unsigned flags) {
    struct io_uring_params p = {.flags = flags, .sq_thread_idle = 100};
    struct ring r = {.fd = syscall(SYS_io_uring_setup, 8, &p)};
    if (r.fd < 0) {
        puts("no io_uring");
        exit(0);
    }
    char *sq = shared(r.fd, p.sq_off.array + p.sq_entries * sizeof(unsigned), IORING_OFF_SQ_RING);
    char *cq = shared(r.fd, p.cq_off.cqes + p.cq_entries * sizeof(struct io_uring_cqe), IORING_OFF_CQ_RING);
    r.sqes = shared(r.fd, p.sq_entries * sizeof(struct io_uring_sqe), IORING_OFF_SQES);
    r.sq_tail = (void *)(sq + p.sq_off.tail), r.sq_mask = (void *)(sq + p.sq_off.ring_mask), r.sq_array = (void *)(sq + p.sq_off.array);
    r.cq_head = (void *)(cq + p.cq_off.head), r.cq_tail = (void *)(cq + p.cq_off.tail), r.cq_mask = (void *)(cq + p.cq_off.ring_mask);
    r.cqes = (void *)(cq + p.cq_off.cqes);
    return r;
}

static void ask(struct ring *r, struct io_uring_sqe sqe, unsigned enter) {
    unsigned tail = *r->sq_tail, i = tail & *r->sq_mask;
    r->sqes[i] = sqe;
    r->sq_array[i] = i;
    __atomic_store_n(r->sq_tail, tail + 1, __ATOMIC_RELEASE);
    syscall(SYS_io_uring_enter, r->fd, 1, 0, enter, NULL, 0);
}

static int answer(struct ring *r) {
    while (*r->cq_head == __atomic_load_n(r->cq_tail, __ATOMIC_ACQUIRE)) usleep(50);
    int result = r->cqes[*r->cq_head & *r->cq_mask].res;
    __atomic_store_n(r->cq_head, *r->cq_head + 1, __ATOMIC_RELEASE);
    return result;
}

static volatile int over;

static void *until_the_end(void *unused) {
    char c;
    while (read(0, &c, 1) > 0) {}
    over = 1;
    return unused;
}

int main(int count, char **arguments) {
    const char *pipe = count > 1 ? arguments[1] : "";
    if (mkfifo(pipe, 0600)) return 4;
    struct ring workers = ring(0), polled = ring(IORING_SETUP_SQPOLL);
    struct io_uring_sqe open_it = {.opcode = IORING_OP_OPENAT, .fd = AT_FDCWD, .addr = (unsigned long)pipe, .open_flags = O_RDONLY, .flags = IOSQE_ASYNC};
    struct io_uring_sqe nothing = {.opcode = IORING_OP_NOP};
    pthread_t thread;
    pthread_create(&thread, NULL, until_the_end, NULL);
    int rounds = 0, wrong = 0, last = 0;
    for (; !over; rounds++) {
        ask(&workers, open_it, 0);
        ask(&polled, nothing, IORING_ENTER_SQ_WAKEUP);
        if (answer(&polled) != 0) wrong++;
        /* The kernel's threads are there. */
        if (rounds == 0) puts("ready"), fflush(stdout);
        usleep(3000);
        int writes;
        /* Without anybody who reads, it fails. */
        while ((writes = open(pipe, O_WRONLY | O_NONBLOCK)) < 0 && errno == ENXIO && *workers.cq_head == *(volatile unsigned *)workers.cq_tail) usleep(50);
        int reads = answer(&workers);
        if (reads < 0) wrong++, last = reads;
        else close(reads);
        if (writes >= 0) close(writes);
    }
    if (wrong) printf("%d of %d answers are wrong, the last one is %d\n", wrong, rounds, last);
    else printf("ok, %d rounds\n", rounds);
    return wrong != 0;
}
