/* A 64-bit program that calls 32-bit code by far jumps, half of its time, as programs that run others'
 * 32-bit code do (Wine), and checks what that computes. With an argument a thread of it is in 32-bit code all
 * the time, and others are not. "no 32-bit code": it cannot be called here. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* Below 4 GiB: code, the way back, and two words for the 64-bit side. */
enum { CODE = 0x100000, BACK = 0x100800, WORDS = 0x200000, PAGE = 4096, STEPS = 100000 };

/* Kernel's selectors of user code: __USER32_CS and __USER_CS (arch/x86/include/asm/segment.h). */
static struct {
    uint32_t offset;
    uint16_t selector;
} __attribute__((packed)) far = {CODE, 0x23};

static void *fixed(uintptr_t at, int protection) {
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE;
    return mmap((void *)at, PAGE, protection, flags, -1, 0);
}

/* lea (eax,eax*4), eax; inc eax; dec ecx; jnz; ljmp 0x33:BACK. There: jmp *WORDS. */
static int place(void) {
    static const uint8_t code[] = {0x8d, 0x04, 0x80, 0x40, 0x49, 0x75, 0xf9, 0xea, 0, 8, 0x10, 0, 0x33, 0};
    static const uint8_t back[] = {0xff, 0x24, 0x25, 0, 0, 0x20, 0};
    uint8_t *memory = fixed(CODE, PROT_READ | PROT_WRITE);
    if (memory != (void *)CODE || fixed(WORDS, PROT_READ | PROT_WRITE) != (void *)WORDS) {
        return 0;
    }
    memcpy(memory, code, sizeof code);
    memcpy(memory + (BACK - CODE), back, sizeof back);
    return mprotect(memory, PAGE, PROT_READ | PROT_EXEC) == 0;
}

/* Registers may lose their upper halves on the way: rsp and rbp are kept in memory. */
static uint32_t call32(uint32_t value, uint32_t steps) {
    uint64_t rax = value, rcx = steps;
    __asm__ volatile(
        "movq %%rsp, 0x200008\n movq %%rbp, 0x200010\n lea 1f(%%rip), %%rbx\n movq %%rbx, 0x200000\n"
        "ljmp *%[far]\n1: movq 0x200008, %%rsp\n movq 0x200010, %%rbp\n"
        : "+a"(rax), "+c"(rcx)
        : [far] "m"(far)
        : "rbx", "rdx", "rsi", "rdi", "r8", "r9", "r10", "r11", "r12", "r13", "r14", "r15", "cc", "memory");
    return (uint32_t)rax;
}

static uint32_t compute(uint32_t value, uint32_t steps) {
    while (steps--) {
        value = value * 5 + 1;
        __asm__ volatile("" : "+r"(value));
    }
    return value;
}

static void *stay(void *unused) {
    for (;;) {
        call32(1, UINT32_MAX);
    }
    return unused;
}

static void *work(void *unused) {
    for (;;) {
        compute(1, STEPS);
    }
    return unused;
}

/* Until the input ends. */
static int beside_others(void) {
    pthread_t threads[3];
    for (int i = 0; i < 3; i++) {
        if (pthread_create(&threads[i], NULL, i == 1 ? stay : work, NULL) != 0) {
            return 1;
        }
    }
    puts("ready");
    fflush(stdout);
    char byte;
    while (read(0, &byte, 1) > 0) {
    }
    puts("ok");
    return 0;
}

int main(int argc, char **argv) {
    (void)argv;
    if (!place()) {
        puts("no 32-bit code");
        return 0;
    }
    if (argc > 1) {
        return beside_others();
    }
    uint32_t value = 1;
    int is_ready = 0;
    char byte;
    fcntl(0, F_SETFL, O_NONBLOCK);
    /* Until the input ends. */
    while (read(0, &byte, 1) != 0) {
        uint32_t expected = compute(value, STEPS);
        uint32_t found = call32(value, STEPS);
        found = call32(found, STEPS);
        expected = compute(expected, STEPS);
        if (found != expected) {
            printf("%x in place of %x\n", found, expected);
            return 1;
        }
        if (!is_ready) {
            puts("ready");
            fflush(stdout);
            is_ready = 1;
        }
        value = value * 3 + 7;
    }
    puts("ok");
    return 0;
}
