/* What is hard for a tracer by breakpoints: signals that are blocked for a while, handlers that never return, handlers that
 * run the interrupted function, SIGURG used by the program itself, threads, exec, children, restartable sequences, code that
 * the program itself writes, the vdso and the vsyscall page.
 * flags: -pthread */
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <stddef.h>
#include <sys/mman.h>
#include <sys/rseq.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define SUCCESS 42
static sigjmp_buf back;
static volatile sig_atomic_t hits, urgent;

__attribute__((noinline)) static uint32_t work(uint32_t x, uint32_t n) {
    for (uint32_t i = 0; i < n; i++) x = x & 1 ? x * 3 + 1 : (x >> 1) ^ (i & 3 ? 0x9e3779b9u : i);
    return x;
}

static volatile uint32_t sink;
static void returns(int s) { (void)s; hits++; sink += work(hits, 50); }
static void leaves(int s) { (void)s; hits++; siglongjmp(back, 1); }
static void counts(int s) { (void)s; urgent++; }

static double now(void) { struct timespec t; clock_gettime(CLOCK_MONOTONIC, &t); return t.tv_sec + t.tv_nsec / 1e9; }

static void timer(void (*handler)(int), int us) {
    struct sigaction a;
    memset(&a, 0, sizeof a);
    a.sa_handler = handler;
    sigaction(SIGALRM, &a, 0);
    struct itimerval v = {{0, us}, {0, us}};
    setitimer(ITIMER_REAL, &v, 0);
}

static void *thread(void *p) { return (void *)(uintptr_t)work((uint32_t)(uintptr_t)p, 20000); }

/* Adds 1 in a restartable sequence with a loop in it; 0 if it was aborted. */
static int restartable(volatile uint64_t *value) {
    struct rseq *area = (struct rseq *)((char *)__builtin_thread_pointer() + __rseq_offset);
    __asm__ goto(
        ".pushsection __rseq_cs, \"aw\"\n"
        ".balign 32\n"
        "3: .long 0, 0\n .quad 1f, 2f - 1f, 4f\n"
        ".popsection\n"
        "leaq 3b(%%rip), %%rax\n"
        "movq %%rax, %[section]\n"
        "1: movq %[value], %%rcx\n"
        "movl $300, %%edx\n"
        "5: decl %%edx\n jnz 5b\n"
        "incq %%rcx\n"
        "movq %%rcx, %[value]\n"
        "2:\n"
        ".pushsection .text.abort, \"ax\"\n"
        ".long 0x53053053\n"
        "4: jmp %l[aborted]\n"
        ".popsection\n"
        : : [section] "m"(area->rseq_cs), [value] "m"(*value) : "rax", "rcx", "rdx", "memory", "cc" : aborted);
    return 1;
aborted:
    return 0;
}

static int restartables(double end) {
    volatile uint64_t value = 0;
    uint64_t done = 0;
    uint32_t expected = work(7, 20000);
    if (__rseq_size == 0) return SUCCESS;
    while (now() < end) {
        for (int i = 0; i < 100; i++) done += restartable(&value);
        if (value != done || work(7, 20000) != expected) return 5;
    }
    return SUCCESS;
}

/* A function that counts in a loop, whose constant is written anew each time. */
static int just_in_time(double end) {
    static const unsigned char code[] = {
        0x31, 0xc0, 0xb9, 0, 0, 0, 0,             /* xor eax, eax; mov ecx, n */
        0x83, 0xc0, 3, 0xff, 0xc9, 0x75, 0xf9,    /* add eax, 3; dec ecx; jne -7 */
        0xc3 };
    unsigned char *at = mmap(0, 4096, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED) return SUCCESS;
    memcpy(at, code, sizeof code);
    for (uint32_t n = 1; now() < end; n = n % 5000 + 1) {
        memcpy(at + 3, &n, 4);
        if (((uint32_t (*)(void))at)() != 3 * n) return 6;
    }
    return SUCCESS;
}

static int kernels_code(double end, int vsyscall) {
    time_t (*page)(time_t *) = (time_t (*)(time_t *))0xffffffffff600400;
    double last = now();
    while (last < end) {
        double next = now();
        if (next < last) return 7;
        if (vsyscall && page(0) < 1000) return 8;
        last = next;
    }
    return SUCCESS;
}

static int children(double end, const char *seconds) {
    (void)seconds;
    while (now() < end) {
        pid_t pid = fork();
        if (pid == 0) {
            double stop = now() + 0.1;
            uint32_t expected = work(9, 1000);
            while (now() < stop) if (work(9, 1000) != expected) _exit(1);
            if (work(1, 2) != 0) execl("/proc/self/exe", "odd", "plain", "0.2", (char *)0);
            _exit(2);
        }
        int status = 0;
        if (waitpid(pid, &status, 0) != pid || !WIFEXITED(status) || WEXITSTATUS(status) != SUCCESS) return 9;
    }
    return SUCCESS;
}

static double many_end;
static void *spin(void *p) {
    uint32_t n = (uint32_t)(uintptr_t)p, expected = work(n, 1000);
    while (now() < many_end) if (work(n, 1000) != expected) return p;
    return 0;
}

static int many(double end) {
    pthread_t t[64];
    many_end = end;
    for (uintptr_t i = 0; i < 64; i++) if (pthread_create(&t[i], 0, spin, (void *)(i + 1))) return 10;
    for (int i = 0; i < 64; i++) { void *r; pthread_join(t[i], &r); if (r) return 11; }
    return SUCCESS;
}

int main(int argc, char **argv) {
    const char *mode = argc > 1 ? argv[1] : "";
    double end = now() + (argc > 2 ? atof(argv[2]) : 1);
    if (!strcmp(mode, "rseq")) return restartables(end);
    if (!strcmp(mode, "jit")) return just_in_time(end);
    if (!strcmp(mode, "vdso") || !strcmp(mode, "vsyscall")) return kernels_code(end, mode[1] == 's');
    if (!strcmp(mode, "children")) return children(end, argv[2]);
    if (!strcmp(mode, "many")) return many(end);
    uint32_t expected = work(7, 1000);
    sigset_t all, old;
    sigfillset(&all);
    if (!strcmp(mode, "returns")) timer(returns, 300);
    /* Once only: a handler that jumps while the place is being written anew jumps nowhere. */
    if (!strcmp(mode, "leaves") && !sigsetjmp(back, 1)) timer(leaves, 300);
    if (!strcmp(mode, "urgent")) { struct sigaction a; memset(&a, 0, sizeof a); a.sa_handler = counts; sigaction(SIGURG, &a, 0); }
    int sent = 0;
    while (now() < end) {
        if (!strcmp(mode, "blocked")) sigprocmask(SIG_BLOCK, &all, &old);
        if (work(7, 1000) != expected) return 1;
        if (!strcmp(mode, "blocked")) sigprocmask(SIG_SETMASK, &old, 0);
        if (!strcmp(mode, "urgent")) { raise(SIGURG); sent++; }
        if (!strcmp(mode, "threads")) {
            pthread_t t[4];
            for (uintptr_t i = 0; i < 4; i++) pthread_create(&t[i], 0, thread, (void *)i);
            for (uintptr_t i = 0; i < 4; i++) {
                void *r;
                pthread_join(t[i], &r);
                if ((uint32_t)(uintptr_t)r != work((uint32_t)i, 20000)) return 2;
            }
        }
    }
    /* From here on nobody jumps back: main's frame is gone when `exit` runs. */
    if (!strcmp(mode, "leaves")) sigprocmask(SIG_BLOCK, &all, 0);
    if (!strcmp(mode, "urgent") && urgent != sent) return 3;
    if (!strcmp(mode, "exec")) { execl("/proc/self/exe", argv[0], "plain", argc > 2 ? argv[2] : "1", (char *)0); return 4; }
    return SUCCESS;
}
