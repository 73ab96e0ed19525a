/* Traps in the middle of functions, and handlers that step over them: `int3`, which the kernel reports from behind, and `ud2`,
 * `ud1`, `hlt`, which it reports from where they are. */
#define _GNU_SOURCE
#include "odd.h"
#include <signal.h>
#include <ucontext.h>

static volatile unsigned traps;

static void behind(int signal) {
    (void)signal;
    traps++;
}

/* Steps over a trap of two bytes; over `ud1` with a register, which has three. */
static void over(int signal, siginfo_t *info, void *context) {
    greg_t *rip = &((ucontext_t *)context)->uc_mcontext.gregs[REG_RIP];
    const uint8_t *at = (const uint8_t *)*rip;
    (void)signal, (void)info;
    traps++;
    *rip += at[0] == 0xf4 ? 1 : at[1] == 0xb9 ? 3 : 2;
}

/* A loop with a trap in it now and then, and the same without. */
#define STEPS(name, trap) \
    NOINLINE static uint32_t name(uint32_t x, unsigned *seen) { \
        for (unsigned n = 0; n < 300; n++) { \
            x = usual(x, n); \
            if ((x & 63) == 0) { \
                trap; \
                ++*seen; \
            } \
            x = x * 2654435761u + n; \
        } \
        return x; \
    }
STEPS(plain, OPAQUE(x))
STEPS(by_int3, __asm__ volatile("int3" ::: "memory"))
STEPS(by_ud2, __asm__ volatile("ud2" ::: "memory"))
STEPS(by_ud1, __asm__ volatile("ud1 %%eax, %%eax" ::: "memory"))
STEPS(by_hlt, __asm__ volatile("hlt" ::: "memory"))

/* A trap within the first five bytes of a function, flags that live on over a trap, and one behind another. */
uint32_t early(uint32_t x);
uint32_t flags_over(uint32_t x);
uint32_t pair(uint32_t x);
__asm__(".text\n"
        ".p2align 4\n.type early, @function\nearly:\n.cfi_startproc\n"
        "  ud2\n  lea 1(%rdi,%rdi), %eax\n  cmp $1000, %eax\n  jb 1f\n  sub $7, %eax\n1: ret\n.cfi_endproc\n.size early, .-early\n"
        ".p2align 4\n.type flags_over, @function\nflags_over:\n.cfi_startproc\n"
        "  mov %edi, %eax\n  test $1, %edi\n  jmp 2f\n  nop\n2: int3\n  jz 1f\n  imul $3, %eax, %eax\n1: ret\n.cfi_endproc\n.size flags_over, .-flags_over\n"
        ".p2align 4\n.type pair, @function\npair:\n.cfi_startproc\n"
        "  lea 5(%rdi), %eax\n  int3\n  int3\n  hlt\n  nop\n  lea 3(%rax,%rax), %eax\n  ret\n.cfi_endproc\n.size pair, .-pair\n");

static void one_round(unsigned round) {
    uint32_t (*const all[])(uint32_t, unsigned *) = {by_int3, by_ud2, by_ud1, by_hlt};
    unsigned expected = 0, seen = 0;
    uint32_t result = plain(round, &expected);
    for (unsigned i = 0; i < 4; i++) {
        traps = seen = 0;
        CHECK(all[i](round, &seen) == result);
        CHECK(traps == seen && seen == expected);
    }
    traps = 0;
    uint32_t wanted = 2 * round + 1;
    CHECK(early(round) == (wanted < 1000 ? wanted : wanted - 7));
    CHECK(flags_over(round) == (round & 1 ? round * 3 : round));
    CHECK(pair(round) == 2 * (round + 5) + 3);
    CHECK(traps == 5);
}

int main(int argc, char **argv) {
    signal(SIGTRAP, behind);
    struct sigaction action = {.sa_sigaction = over, .sa_flags = SA_SIGINFO};
    sigaction(SIGILL, &action, NULL);
    sigaction(SIGSEGV, &action, NULL);
    return run_rounds(argc, argv, one_round);
}
