/* A jump table in the code, behind its jump; a switch that jumps by numbers in the code; the last function of the text has its
 * constants behind its code. */
#include "odd.h"

uint64_t in_code(uint64_t x, uint64_t n), by_numbers(uint64_t x, uint64_t n), last_of_all(uint64_t x, uint64_t n);

__asm__(
    ".pushsection .text\n"
    FUNCTION("in_code")
    " mov %esi, %ecx\n and $3, %ecx\n lea 5f(%rip), %rdx\n movslq (%rdx,%rcx,4), %rax\n add %rdx, %rax\n jmp *%rax\n"
    " .p2align 2\n5: .long 6f-5b, 7f-5b, 8f-5b, 6f-5b\n"
    "6: lea 11(%rdi), %rax\n ret\n7: lea 12(%rdi,%rdi), %rax\n ret\n8: mov %rdi, %rax\n neg %rax\n ret\n"
    END("in_code")
    FUNCTION("by_numbers")
    " lea 5f(%rip), %rdx\n and $1, %esi\n movzbl (%rdx,%rsi), %eax\n add %rdx, %rax\n jmp *%rax\n"
    "5: .byte 6f-5b, 7f-5b\n"
    "6: lea 3(%rdi), %rax\n ret\n7: lea 4(%rdi,%rdi,2), %rax\n ret\n"
    END("by_numbers")
    ".popsection\n.pushsection .text.zzz,\"ax\",@progbits\n"
    FUNCTION("last_of_all")
    " lea 1f(%rip), %rdx\n and $3, %esi\n mov (%rdx,%rsi,4), %eax\n add %rdi, %rax\n ret\n"
    "1: .long 0x06060606, 0x16161616, 0x27272727, 0x60606060\n"
    END("last_of_all")
    ".popsection\n");

static void one_round(unsigned round) {
    static const uint32_t words[] = {0x06060606, 0x16161616, 0x27272727, 0x60606060};
    uint64_t x = round;
    for (uint64_t n = 0; n < 50; n++) {
        uint32_t moved = usual((uint32_t)x, (unsigned)n);
        CHECK(moved == unusual((uint32_t)x, (unsigned)n));
        uint64_t switched[] = {x + 11, 2 * x + 12, -x, x + 11};
        CHECK(in_code(x, n) == switched[n & 3]);
        CHECK(by_numbers(x, n) == (n & 1 ? 3 * x + 4 : x + 3));
        CHECK(last_of_all(x, n) == x + words[n & 3]);
        x += moved;
    }
}

int main(int argc, char **argv) { return run_rounds(argc, argv, one_round); }
