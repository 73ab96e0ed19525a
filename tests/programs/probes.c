/* Static probes as <sys/sdt.h> makes them: four bytes behind an entry, in hot code, and in code that is only executed while somebody looks.
 * What their functions compute is computed once more without them. */
#include "check.h"

#define NOTE(name, semaphore)                                                                       \
    "990: nop\n"                                                                                    \
    ".pushsection .note.stapsdt,\"\",\"note\"\n"                                                    \
    ".balign 4\n.4byte 992f-991f, 994f-993f, 3\n"                                                   \
    "991: .asciz \"stapsdt\"\n992: .balign 4\n"                                                     \
    "993: .8byte 990b, _.stapsdt.base, " semaphore "\n"                                             \
    ".asciz \"test\"\n.asciz \"" name "\"\n.asciz \"\"\n994: .balign 4\n.popsection\n"

__asm__(".section .stapsdt.base,\"a\",@progbits\n_.stapsdt.base: .space 1\n.previous\n");

/* How many look at test:looked. */
unsigned short looked_semaphore __attribute__((section(".probes"), used));

unsigned early(unsigned);
__asm__(".text\n.globl early\n.type early,@function\n.p2align 4\nearly: .cfi_startproc\n"
        "sub $8,%rsp\n.cfi_adjust_cfa_offset 8\n" NOTE("early", "0")
        "imul $1664525,%edi,%eax\nadd $1013904223,%eax\nadd $8,%rsp\n.cfi_adjust_cfa_offset -8\nret\n"
        ".cfi_endproc\n.size early, .-early\n");

unsigned (*volatile first)(unsigned) = early;

static inline __attribute__((always_inline)) unsigned mix(unsigned s, const unsigned v[40]) {
    for (int i = 0; i < 40; i++) {
        if (v[i] % 3) s += v[i] >> 3;
        else s ^= v[i];
    }
    switch (s % 7) {
    case 0: s += v[5]; break;
    case 1: s ^= v[9]; break;
    case 2: s -= v[2]; break;
    case 3: s *= 3; break;
    default: s++;
    }
    return s;
}

NOINLINE unsigned step(unsigned s) {
    unsigned v[40];
    for (int i = 0; i < 40; i++) v[i] = s = first(s);
    __asm__ volatile(NOTE("hot", "0"));
    if (__builtin_expect(*(volatile unsigned short *)&looked_semaphore, 0)) {
        __asm__ volatile(NOTE("looked", "looked_semaphore"));
    }
    return mix(s, v);
}

NOINLINE unsigned plain_step(unsigned s) {
    unsigned v[40];
    for (int i = 0; i < 40; i++) v[i] = s = s * 1664525 + 1013904223;
    return mix(s, v);
}

unsigned (*volatile way)(unsigned) = step;

static void one_round(unsigned round) {
    unsigned s = round, plain = round;
    for (int i = 0; i < 2000; i++) s = way(s);
    for (int i = 0; i < 2000; i++) plain = plain_step(plain);
    CHECK(s == plain);
}

int main(int argc, char **argv) { return run_rounds(argc, argv, one_round); }
