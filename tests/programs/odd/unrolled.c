/* Jumps to places that are computed: into the middle of unrolled loops, by a base and an index. And a function that is so long that what it does with
 * its return address is far from its start. */
#include "odd.h"

#define ADD_THREE " lea 3(%rax), %rax\n"
#define EIGHT ADD_THREE ADD_THREE ADD_THREE ADD_THREE ADD_THREE ADD_THREE ADD_THREE ADD_THREE

/* x + 3 * (8 - n % 8): the first n % 8 of eight instructions of four bytes are left out. */
uint64_t by_index(uint64_t x, uint64_t n);
uint64_t by_sum(uint64_t x, uint64_t n);
uint64_t by_memory(uint64_t x, uint64_t n);
uint64_t by_blocks(uint64_t x, uint64_t n);
uint64_t by_displacement(uint64_t x, uint64_t n);
/* x + 3 * (n % 8): the same from behind. */
uint64_t from_the_end(uint64_t x, uint64_t n);
/* x + 4 - n % 4. */
uint64_t by_small_offsets(uint64_t x, uint64_t n);
/* The number behind its call. */
uint64_t behind_a_long_one(uint64_t x);

__asm__(".pushsection .text\n"
        FUNCTION("by_index")
        " mov %rdi, %rax\n and $7, %esi\n lea 1f(%rip), %rdx\n lea (%rdx,%rsi,4), %rdx\n jmp *%rdx\n"
        "1:\n" EIGHT " ret\n" END("by_index")
        FUNCTION("by_sum")
        " mov %rdi, %rax\n and $7, %esi\n shl $2, %esi\n lea 1f(%rip), %rdx\n add %rsi, %rdx\n jmp *%rdx\n"
        "1:\n" EIGHT " ret\n" END("by_sum")
        FUNCTION("by_memory")
        " mov %rdi, %rax\n and $7, %esi\n mov unrolled_base(%rip), %rdx\n lea (%rdx,%rsi,4), %rdx\n jmp *%rdx\n"
        "1:\n" EIGHT " ret\n" END("by_memory")
        ".pushsection .data\n.p2align 3\nunrolled_base: .quad 1b\n.popsection\n"
        FUNCTION("by_blocks")
        " mov %rdi, %rax\n and $7, %esi\n lea 1f(%rip), %rdx\n lea (%rdx,%rsi,4), %rdx\n test $1, %dil\n jne 2f\n"
        " jmp *%rdx\n2: jmp *%rdx\n"
        "1:\n" EIGHT " ret\n" END("by_blocks")
#ifndef __PIE__
        FUNCTION("by_displacement")
        " mov %rdi, %rax\n and $7, %esi\n lea 1f(,%rsi,4), %rdx\n jmp *%rdx\n"
        "1:\n" EIGHT " ret\n" END("by_displacement")
#endif
        FUNCTION("from_the_end")
        " mov %rdi, %rax\n and $7, %esi\n lea 1f(%rip), %rdx\n shl $2, %esi\n sub %rsi, %rdx\n jmp *%rdx\n"
        EIGHT "1: ret\n" END("from_the_end")
        FUNCTION("by_small_offsets")
        " mov %rdi, %rax\n and $3, %esi\n lea 1f(%rip), %rdx\n lea small_offsets(%rip), %rcx\n"
        " movzwl (%rcx,%rsi,2), %ecx\n add %rcx, %rdx\n jmp *%rdx\n"
        "1: inc %rax\n2: inc %rax\n3: inc %rax\n4: inc %rax\n ret\n" END("by_small_offsets")
        ".pushsection .rodata\n.p2align 1\nsmall_offsets: .word 1b-1b, 2b-1b, 3b-1b, 4b-1b\n.popsection\n"
        FUNCTION("reads_late")
        " .rept 5000\n add $1, %rdi\n .endr\n pop %rcx\n mov (%rcx), %rax\n add $8, %rcx\n jmp *%rcx\n" END("reads_late")
        FUNCTION("behind_a_long_one")
        " test $1, %dil\n je 2f\n add $2, %rdi\n2: call reads_late\n .quad 0x9090909090909012\n ret\n"
        END("behind_a_long_one")
        ".popsection\n");

static void one_round(unsigned round) {
    uint32_t x = round;
    for (unsigned n = 0; n < 50; n++) {
        uint32_t moved = usual(x, n);
        CHECK(moved == unusual(x, n));
        uint64_t forward = x + 3 * (8 - (moved & 7)), back = x + 3 * (moved & 7);
        CHECK(by_index(x, moved) == forward);
        CHECK(by_sum(x, moved) == forward);
        CHECK(by_memory(x, moved) == forward);
        CHECK(by_blocks(x, moved) == forward);
#ifndef __PIE__
        CHECK(by_displacement(x, moved) == forward);
#endif
        CHECK(from_the_end(x, moved) == back);
        CHECK(by_small_offsets(x, moved) == x + 4ull - (moved & 3));
        CHECK(behind_a_long_one(x) == 0x9090909090909012);
        x = moved;
    }
}

int main(int argc, char **argv) { return run_rounds(argc, argv, one_round); }
