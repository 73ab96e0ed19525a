/* A coroutine works for a while, and then rests deep in its frames, on a stack where such are seldom: which one is set at compile
 * time. SIGUSR1 makes it rest, and the next one makes it come back; the process's name says which of both holds. */
#include "check.h"
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>

void switch_stacks(void **from, void *to);
__asm__(".text\n"
        ".globl switch_stacks\n"
        ".type switch_stacks, @function\n"
        "switch_stacks:\n"
        "    push %rbp\n    push %rbx\n    push %r12\n    push %r13\n    push %r14\n    push %r15\n"
        "    mov %rsp, (%rdi)\n"
        "    mov %rsi, %rsp\n"
        "    pop %r15\n    pop %r14\n    pop %r13\n    pop %r12\n    pop %rbx\n    pop %rbp\n"
        "    ret\n"
        ".size switch_stacks, .-switch_stacks\n");

enum { STACK = 32 * 1024, DEPTH = 3, WORK = 20000 };

static void *main_stack, *saved;
static uint64_t result, turns;
static double end;
static int waits;

NOINLINE static uint64_t leaf(uint64_t value) { return value * 31 + (value >> 7); }

NOINLINE static uint64_t middle(uint64_t value) {
    uint64_t a = leaf(value), b = leaf(value + 1), c = leaf(value + 2);
    return a ^ b ^ c;
}

NOINLINE static uint64_t deep(unsigned depth, uint64_t value, int rests) {
    if (depth == 0) {
        if (rests) switch_stacks(&saved, main_stack);
        return middle(value);
    }
    uint64_t before = middle(value), got = deep(depth - 1, value, rests);
    return got + before * 3 + middle(got);
}

NOINLINE static uint64_t work(int rests) {
    uint64_t sum = 0;
    for (unsigned i = 0; i < WORK; i++) sum += deep(DEPTH, i, 0);
    return sum + deep(DEPTH, 77, rests);
}

static void body(void) {
    for (;;) {
        result = work(1);
        turns++;
    }
}

/* A stack below `top` on which `switch_stacks` returns into `body`, whose caller is nobody. */
static void prepare(char *top) {
    uint64_t *words = (uint64_t *)top;
    *--words = 0;
    *--words = (uint64_t)body;
    saved = words - 6;
    memset(saved, 0, 48);
}

static char array[STACK] __attribute__((aligned(4096)));
#ifdef COPIED
/* The data are not aligned as words would be. */
static struct {
    unsigned len;
    char data[STACK];
} kept __attribute__((aligned(64)));
#endif

/* What is done before the coroutine comes back, and when it rests. */
static void open_stack(char *stack) {
#if defined CLOSED_FILE
    CHECK(mprotect(stack, STACK, PROT_READ | PROT_WRITE) == 0);
#elif defined COPIED
    memcpy(stack + STACK - kept.len, kept.data, kept.len);
#else
    (void)stack;
#endif
}

static void close_stack(char *stack) {
#if defined CLOSED_FILE
    CHECK(mprotect(stack, STACK, PROT_NONE) == 0);
#elif defined COPIED
    kept.len = (unsigned)(stack + STACK - (char *)saved);
    memcpy(kept.data, saved, kept.len);
    memset(stack, 0, STACK);
#else
    (void)stack;
#endif
}

static void name(const char *now) {
    int file = open("/proc/self/comm", O_WRONLY);
    CHECK(file >= 0 && write(file, now, strlen(now)) > 0);
    close(file);
}

/* Whether there was a signal since it was asked the last time, or all is to end. */
static int told(void) {
    sigset_t signals;
    struct timespec now = {0};
    sigemptyset(&signals);
    sigaddset(&signals, SIGUSR1);
    return !waits || sigtimedwait(&signals, NULL, &now) == SIGUSR1 || seconds_now() >= end;
}

static int rounds(int argc, char **argv) {
    char *stack = array;
#if defined UNALIGNED
    char *top = array + STACK - 12;
#elif defined SMALL
    char local[SMALL] __attribute__((aligned(64)));
    char *top = local + SMALL;
#elif defined CLOSED_FILE
    stack = mmap(NULL, STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE, open("/dev/zero", O_RDWR), 0);
    CHECK(stack != MAP_FAILED);
    /* No page of it has to be brought any more. */
    memset(stack, 0, STACK);
    char *top = stack + STACK;
#elif defined BELOW
    /* Far below all frames, in the thread's own stack, which grows by single pages. */
    volatile char *page = __builtin_frame_address(0);
    for (unsigned i = 0; i < 260; i++) *(page -= 1024) = 0;
    char *top = (char *)((uintptr_t)__builtin_frame_address(0) & ~63ul) - 200 * 1024 + STACK;
#else
    char *top = array + STACK;
#endif
    double seconds = option(argc, argv, "--seconds", 0);
    waits = seconds > 0;
    end = seconds_now() + seconds;
    uint64_t expected = work(0), other = 1;
    prepare(top);
    close_stack(stack);
    do {
        name("working");
        do {
            open_stack(stack);
            switch_stacks(&main_stack, saved);
            close_stack(stack);
            CHECK(turns == 0 || result == expected);
        } while (!told());
        name("resting");
        do other = other * 7 + middle(other);
        while (!told());
    } while (seconds_now() < end);
    OPAQUE(other);
    return SUCCESS;
}

#ifdef THREAD
static char **arguments;
static int count;

static void *thread(void *none) {
    (void)none;
    exit(rounds(count, arguments));
}
#endif

int main(int argc, char **argv) {
    sigset_t signals;
    sigemptyset(&signals);
    sigaddset(&signals, SIGUSR1);
    pthread_sigmask(SIG_BLOCK, &signals, NULL);
#ifdef THREAD
    pthread_t one;
    (count = argc, arguments = argv);
    CHECK(pthread_create(&one, NULL, thread, NULL) == 0);
    pthread_join(one, NULL);
    return 1;
#else
    return rounds(argc, argv);
#endif
}
