/* Unwind entries that overlap, also two with one start, that begin in the middle of an instruction of another one, and that are
 * empty. (GNU ld makes no search table of such entries.) */
#include "odd.h"

uint64_t first(uint64_t x, uint64_t n), second(uint64_t x, uint64_t n), split(uint64_t x, uint64_t n), third(uint64_t x, uint64_t n);

__asm__(
    ".pushsection .text\n"
    "around:\n.globl first, second, split\n.type first,@function\n.type second,@function\n"
    "first: lea 81(%rdi), %rax\n test $1, %sil\n jne 8f\n ret\n8: neg %rax\n ret\n.size first,.-first\n"
    "second: lea 82(%rdi), %rax\n test $1, %sil\n jne 9f\n ret\n9: not %rax\n ret\n.size second,.-second\n"
    "around_end:\n"
    ".p2align 4\n.globl third\n.type third,@function\n"
    "third: lea 83(%rdi), %rax\n test $1, %sil\n jne third_end-4\nthird_part: ret\n neg %rax\n ret\nthird_end:\n.size third,.-third\n"
    /* The operand of the movabs is `mov %rdi,%rax; ret` and more. */
    ".p2align 4\n.type split,@function\n"
    "split: .byte 0x48, 0xb8\nwithin: .byte 0x48, 0x89, 0xf8, 0xc3, 0x90, 0x90, 0x90, 0x90\n add %rdi, %rax\n ret\n"
    "split_end:\n.size split,.-split\n"
    ".popsection\n"
    ".pushsection .eh_frame,\"a\",@unwind\n.p2align 3\n"
    "1: .long 3f-2f\n2: .long 0\n.byte 1\n.asciz \"zR\"\n.uleb128 1\n.sleb128 -8\n.uleb128 16\n.uleb128 1\n"
    ".byte 0x1b, 0x0c, 7, 8, 0x90, 1\n.p2align 3\n3:\n"
    ".macro ENTRY from to\n.long 9992f-9991f\n9991: .long 9991b-1b\n.long \\from-.\n.long \\to-\\from\n.uleb128 0\n"
    ".p2align 3\n9992:\n.endm\n"
    "ENTRY around around_end\nENTRY first second\nENTRY second around_end\nENTRY split within\nENTRY within split_end\n"
    "ENTRY third third_part\nENTRY third third_end\nENTRY around around\nENTRY usual_mark usual_mark\n"
    ".popsection\n"
    ".pushsection .text\nusual_mark:\n.popsection\n");

static void one_round(unsigned round) {
    uint64_t x = round;
    for (uint64_t n = 0; n < 50; n++) {
        uint32_t moved = usual((uint32_t)x, (unsigned)n);
        CHECK(moved == unusual((uint32_t)x, (unsigned)n));
        CHECK(first(x, n) == (n & 1 ? -(x + 81) : x + 81));
        CHECK(second(x, n) == (n & 1 ? ~(x + 82) : x + 82));
        CHECK(third(x, n) == (n & 1 ? -(x + 83) : x + 83));
        CHECK(split(x, n) == x + 0x90909090c3f88948);
        x += moved;
    }
}

int main(int argc, char **argv) { return run_rounds(argc, argv, one_round); }
