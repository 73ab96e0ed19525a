/* A program that notices when a register, a flag, a vector register, its stack, its signal mask or a result of a
   system call is not what it was. The first argument says what the main thread does: "vector", "sleep", "doze" or "read". */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <time.h>
#include <unistd.h>

static atomic_int stop, wrong;
static atomic_ulong rounds;
/* signal(7): epoll_wait may return EINTR after a stop. Only a tracer that lives long enough can hide that. */
static int tolerant;

static void fail(const char *what) {
    printf("wrong: %s, errno %d\n", what, errno);
    fflush(stdout);
    wrong = 1;
}

/* All general and vector registers hold known values for some thousand instructions, then are compared. */
static int vector_round(unsigned long seed) {
    unsigned char pattern[32], result[4][32];
    unsigned long a = seed * 3, b = seed * 5, c = seed * 7, d = seed * 11, loops = 2000;
    for (int i = 0; i < 32; i++) pattern[i] = (unsigned char)(seed + i * 9);
    int avx = __builtin_cpu_supports("avx2");
    if (avx)
        __asm__ volatile(
            "vmovdqu (%[p]), %%ymm0\n vmovdqa %%ymm0, %%ymm7\n vmovdqa %%ymm0, %%ymm11\n vmovdqa %%ymm0, %%ymm15\n"
            "mov %[a], %%r12\n mov %[b], %%r13\n mov %[c], %%rcx\n mov %[d], %%r11\n"
            "1: stc\n jnc 2f\n std\n cld\n dec %[n]\n jnz 1b\n jmp 3f\n 2: mov $0, %%r12\n 3:\n"
            "cmp %[a], %%r12\n jne 4f\n cmp %[b], %%r13\n jne 4f\n cmp %[c], %%rcx\n jne 4f\n cmp %[d], %%r11\n je 5f\n"
            "4: vpxor %%ymm0, %%ymm0, %%ymm0\n"
            "5: vmovdqu %%ymm0, (%[r])\n vmovdqu %%ymm7, 32(%[r])\n vmovdqu %%ymm11, 64(%[r])\n vmovdqu %%ymm15, 96(%[r])\n vzeroupper\n"
            : [n] "+r"(loops)
            : [p] "r"(pattern), [r] "r"(result), [a] "m"(a), [b] "m"(b), [c] "m"(c), [d] "m"(d)
            : "r12", "r13", "rcx", "r11", "xmm0", "xmm7", "xmm11", "xmm15", "memory", "cc");
    else
        for (int i = 0; i < 4; i++) memcpy(result[i], pattern, 32);
    for (int i = 0; i < 4; i++)
        if (memcmp(result[i], pattern, 32) != 0) return 0;
    /* The red zone and the stack below: a leaf function that uses them. */
    volatile unsigned long local[64];
    for (int i = 0; i < 64; i++) local[i] = seed ^ (unsigned long)i;
    for (int i = 0; i < 64; i++)
        if (local[i] != (seed ^ (unsigned long)i)) return 0;
    return 1;
}
static void check_mask(void) {
    sigset_t now;
    pthread_sigmask(SIG_BLOCK, 0, &now);
    for (int signal = 1; signal < 32; signal++)
        if (sigismember(&now, signal) != (signal == SIGUSR2)) return fail("signal mask");
}
static void *vectors(void *unused) {
    for (unsigned long i = 1; !stop; i++) {
        if (!vector_round(i * 0x9e3779b97f4a7c15ul)) fail("registers");
        if (i % 64 == 0) check_mask();
        rounds++;
    }
    return unused;
}
static void *sleeps(void *unused) {
    int fd = epoll_create1(0);
    struct epoll_event event;
    while (!stop) {
        struct timespec time = {0, 300000}, rest;
        errno = 0;
        if (nanosleep(&time, &rest) != 0) fail("nanosleep");
        if (poll(0, 0, 1) != 0) fail("poll");
        if (epoll_wait(fd, &event, 1, 1) != 0 && !(tolerant && errno == EINTR)) fail("epoll_wait");
        check_mask();
        rounds++;
    }
    return unused;
}
static void *reads(void *unused) {
    int fds[2];
    if (pipe(fds) != 0) return fail("pipe"), unused;
    fcntl(fds[1], F_SETPIPE_SZ, 4096);
    unsigned char byte = 0;
    for (unsigned i = 0; !stop; i++) {
        unsigned char out = (unsigned char)i;
        if (write(fds[1], &out, 1) != 1) fail("write");
        if (read(fds[0], &byte, 1) != 1 || byte != out) fail("read");
        if (i % 64 == 0) check_mask();
        rounds++;
    }
    return unused;
}
static void *ends_it(void *unused) {
    char byte;
    if (read(0, &byte, 1) != 0) fail("end of input");
    stop = 1;
    return unused;
}
__asm__(".text; .balign 16; .globl padding; padding: .skip 128, 0xcc");
extern char padding[];

int main(int argc, char **argv) {
    tolerant = strcmp(argv[1], "doze") == 0;
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGUSR2);
    sigprocmask(SIG_SETMASK, &set, 0);
    pthread_t ender, helper;
    pthread_create(&ender, 0, ends_it, 0);
    if (argc > 2) pthread_create(&helper, 0, vectors, 0);
    printf("ready %p\n", (void *)padding);
    fflush(stdout);
    if (strcmp(argv[1], "vector") == 0) vectors(0);
    else if (strcmp(argv[1], "sleep") == 0 || tolerant) sleeps(0);
    else reads(0);
    pthread_join(ender, 0);
    if (argc > 2) pthread_join(helper, 0);
    printf("%s %lu\n", wrong ? "wrong" : "ok", rounds);
    return wrong;
}
