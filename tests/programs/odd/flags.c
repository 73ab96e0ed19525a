/* Flags that one function leaves and the next one reads, or the code behind the call: for callers that can be understood, for one with
 * a table among its code, and for one without unwind information. */
#include "odd.h"

uint64_t both(uint64_t x, uint64_t n), both_beside_table(uint64_t x, uint64_t n), both_without(uint64_t x, uint64_t n);
uint64_t behind(uint64_t x, uint64_t n), behind_thunk(uint64_t x, uint64_t n), behind_without(uint64_t x, uint64_t n);
uint64_t behind_word(uint64_t x, uint64_t n);

/* Of each a copy of its own, as one caller that is understood is enough for its callees. */
#define LEAVES(name) \
    FUNCTION(name) " cmp %rsi, %rdi\n je 1f\n lea 1(%rdx), %rdx\n1: lea 2(%rdx), %rdx\n ret\n" END(name)
#define TAKES(name) FUNCTION(name) " js 1f\n lea 5(%rdx), %rax\n ret\n1: lea 9(%rdx), %rax\n ret\n" END(name)
/* A function that no unwind table entry is of. */
#define WITHOUT(name, code) ".p2align 4\n.globl " name "\n.type " name ",@function\n" name ": " code ".size " name ",.-" name "\n"

__asm__(
    ".pushsection .text\n"
    FUNCTION("both") " lea 1(%rdi), %rdx\n call leaves_1\n call takes_1\n ret\n" END("both")
    LEAVES("leaves_1") TAKES("takes_1")
    FUNCTION("both_beside_table")
    " mov %esi, %ecx\n and $1, %ecx\n lea 5f(%rip), %rdx\n movslq (%rdx,%rcx,4), %rcx\n add %rdx, %rcx\n jmp *%rcx\n"
    "5: .long 6f-5b, 7f-5b\n"
    "6: lea 1(%rdi), %rdx\n jmp 8f\n"
    "7: lea 3(%rdi), %rdx\n jmp 8f\n"
    "8: call leaves_2\n call takes_2\n ret\n" END("both_beside_table")
    LEAVES("leaves_2") TAKES("takes_2")
    WITHOUT("both_without", "lea 1(%rdi), %rdx\n call leaves_3\n call takes_3\n ret\n")
    LEAVES("leaves_3") TAKES("takes_3")
    FUNCTION("behind") " lea 1(%rdi), %rdx\n call leaves_4\n js 1f\n lea 5(%rdx), %rax\n ret\n1: lea 9(%rdx), %rax\n ret\n" END("behind")
    LEAVES("leaves_4")
    FUNCTION("behind_thunk") " lea 1(%rdi), %rdx\n call thunk\n js 1f\n lea 5(%rdx), %rax\n ret\n1: lea 9(%rdx), %rax\n ret\n" END("behind_thunk")
    FUNCTION("thunk") " lea 3(%rdx), %rdx\n jmp leaves_5\n" END("thunk")
    LEAVES("leaves_5")
    FUNCTION("behind_without") " lea 1(%rdi), %rdx\n call thunk_without\n js 1f\n lea 5(%rdx), %rax\n ret\n1: lea 9(%rdx), %rax\n ret\n"
    END("behind_without")
    WITHOUT("thunk_without", "lea 3(%rdx), %rdx\n jmp leaves_6\n")
    LEAVES("leaves_6")
    /* A call that returns behind a word: who decodes on at the word sees no call in what follows. */
    WITHOUT("behind_word",
        " mov %rdi, %rax\n call take_word\n .long 0x40\n add %rcx, %rax\n lea 1(%rdi), %rdx\n call leaves_7\n call takes_7\n ret\n")
    FUNCTION("take_word") " mov (%rsp), %rcx\n mov (%rcx), %ecx\n addq $4, (%rsp)\n ret\n" END("take_word")
    LEAVES("leaves_7") TAKES("takes_7")
    ".popsection\n");

static void one_round(unsigned round) {
    uint64_t x = round;
    for (uint64_t n = 0; n < 50; n++) {
        uint32_t moved = usual((uint32_t)x, (unsigned)n);
        CHECK(moved == unusual((uint32_t)x, (unsigned)n));
        uint64_t small = x % 50, right = small + 3 + (small != n) + (small < n ? 9 : 5);
        CHECK(both(small, n) == right);
        CHECK(both_beside_table(small, n) == right + (n & 1 ? 2 : 0));
        CHECK(both_without(small, n) == right);
        CHECK(behind(small, n) == right);
        CHECK(behind_thunk(small, n) == right + 3);
        CHECK(behind_without(small, n) == right + 3);
        CHECK(behind_word(small, n) == right);
        x += moved;
    }
}

int main(int argc, char **argv) { return run_rounds(argc, argv, one_round); }
