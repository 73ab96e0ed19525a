/* Functions that are called through pointers and use data. Built for the large code model, they compute where the global offset
 * table is from their own address; `step_by_parts` does the like with the address of another function. */
#include "odd.h"

static uint64_t counters[8] = {1, 2, 3, 4, 5, 6, 7, 8};

NOINLINE static uint64_t twice(uint64_t x) {
    counters[x & 7]++;
    return x % 3 ? x * 2 + counters[1] : x - 1;
}
NOINLINE static uint64_t thrice(uint64_t x) {
    counters[x & 3] += 2;
    return x % 5 ? x * 3 + counters[2] : x + 9;
}

static uint64_t (*volatile steps[])(uint64_t) = {twice, thrice};

/* The address of a function, as data that it has: a distance from it to a variable. */
uint64_t near_twice(void);
__asm__(".pushsection .text\n" FUNCTION("near_twice")
        " lea twice(%rip), %rax\n movabs $(counted_far-twice), %rcx\n add %rcx, %rax\n mov (%rax), %rax\n ret\n"
        END("near_twice") ".popsection\n"
        ".pushsection .data\n.p2align 3\ncounted_far: .quad 0x1234567812345678\n.popsection\n");

static void one_round(unsigned round) {
    uint64_t x = round, mirror[8];
    memcpy(mirror, counters, sizeof mirror);
    for (uint64_t n = 0; n < 50; n++) {
        uint32_t moved = usual((uint32_t)x, (unsigned)n);
        CHECK(moved == unusual((uint32_t)x, (unsigned)n));
        uint64_t expected;
        if (x >> 1 & 1) {
            mirror[x & 3] += 2;
            expected = x % 5 ? x * 3 + mirror[2] : x + 9;
        } else {
            mirror[x & 7]++;
            expected = x % 3 ? x * 2 + mirror[1] : x - 1;
        }
        CHECK(steps[x >> 1 & 1](x) == expected);
        CHECK(memcmp(mirror, counters, sizeof mirror) == 0);
        CHECK(near_twice() == 0x1234567812345678);
        x = expected + moved;
    }
}

int main(int argc, char **argv) { return run_rounds(argc, argv, one_round); }
