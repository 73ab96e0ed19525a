/* A program that changes its own code for short, a constant in an instruction, as code that is writable lets it: with `--open 1` it makes two
 * pages writable at the start, else they have to be. */
#include "odd.h"
#include <sys/mman.h>

#define PAGE 4096
/* The last of its pages is not used by others. */
__asm__(".text\n.p2align 12\n" FUNCTION("constant") "mov $0x11111111,%eax\ntest $1,%dil\nje 1f\nadd %edi,%eax\n1: xor %edi,%eax\nret\n" END("constant")
        ".p2align 12\n");
uint32_t constant(uint32_t);
/* The compiler is not to know what is written to. */
static uint32_t (*volatile where)(uint32_t) = constant;

static void set(uint32_t value) { memcpy((uint8_t *)where + 1, &value, 4); }

NOINLINE static void call_all(uint32_t x, unsigned n, uint32_t value) {
    for (unsigned i = 0; i < n; i++, x = x * 1664525u + 1013904223u) CHECK(constant(x) == ((x & 1 ? value + x : value) ^ x));
}

static void one_round(unsigned round) {
    call_all(usual(round, 7), 2000, 0x11111111);
    if (round % 2048 == 0) {
        set(0x22222222);
        call_all(round, 50, 0x22222222);
        set(0x11111111);
    }
}

int main(int argc, char **argv) {
    if (option(argc, argv, "--open", 0) != 0) CHECK(mprotect((void *)where, PAGE, PROT_READ | PROT_WRITE | PROT_EXEC) == 0);
    return run_rounds(argc, argv, one_round);
}
