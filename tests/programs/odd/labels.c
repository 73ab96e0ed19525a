/* Addresses of labels in data, which code without unwind information makes, too, and compares with them. */
#include "odd.h"

uint64_t by_label(uint64_t x, uint64_t n), is_first(uint64_t n);

#define WITHOUT(name, code) ".p2align 4\n.globl " name "\n.type " name ",@function\n" name ": " code ".size " name ",.-" name "\n"

__asm__(
    ".pushsection .data.rel.ro,\"aw\"\n.p2align 3\nlabels: .quad .Lfirst, .Lsecond\n.popsection\n"
    ".pushsection .text\n"
    FUNCTION("by_label")
    " mov %esi, %ecx\n and $1, %ecx\n lea labels(%rip), %rdx\n jmp *(%rdx,%rcx,8)\n"
    ".Lfirst: lea 3(%rdi), %rax\n ret\n"
    ".Lsecond: lea 5(%rdi,%rdi), %rax\n ret\n" END("by_label")
    WITHOUT("is_first",
        " and $1, %edi\n lea labels(%rip), %rdx\n lea .Lfirst(%rip), %rcx\n xor %eax, %eax\n cmp (%rdx,%rdi,8), %rcx\n sete %al\n ret\n")
    ".popsection\n");

static void one_round(unsigned round) {
    uint64_t x = round;
    for (uint64_t n = 0; n < 50; n++) {
        uint32_t moved = usual((uint32_t)x, (unsigned)n);
        CHECK(moved == unusual((uint32_t)x, (unsigned)n));
        uint64_t small = x % 50;
        CHECK(by_label(small, n) == (n & 1 ? 2 * small + 5 : small + 3));
        CHECK(is_first(n) == !(n & 1));
        x += moved;
    }
}

int main(int argc, char **argv) { return run_rounds(argc, argv, one_round); }
