/* Flags that one function leaves and the next one reads: `call` behind `call`. */
#include "odd.h"

uint64_t both(uint64_t x, uint64_t n);

__asm__(
    ".pushsection .text\n"
    FUNCTION("both") " lea 1(%rdi), %rdx\n call leaves\n call takes\n ret\n" END("both")
    FUNCTION("leaves") " cmp %rsi, %rdi\n je 1f\n lea 1(%rdx), %rdx\n1: lea 2(%rdx), %rdx\n ret\n" END("leaves")
    FUNCTION("takes") " js 1f\n lea 5(%rdx), %rax\n ret\n1: lea 9(%rdx), %rax\n ret\n" END("takes")
    ".popsection\n");

static void one_round(unsigned round) {
    uint64_t x = round;
    for (uint64_t n = 0; n < 50; n++) {
        uint32_t moved = usual((uint32_t)x, (unsigned)n);
        CHECK(moved == unusual((uint32_t)x, (unsigned)n));
        uint64_t small = x % 50;
        CHECK(both(small, n) == small + 3 + (small != n) + (small < n ? 9 : 5));
        x += moved;
    }
}

int main(int argc, char **argv) { return run_rounds(argc, argv, one_round); }
