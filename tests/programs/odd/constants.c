/* Constants in the code, inside of the unwind information's range of functions: read by name, through an address, by another
 * function, by one that gets the address; some decode as instructions, as branches, or as padding. */
#include "odd.h"

uint64_t with_constants(uint64_t x, uint64_t n), of_table(uint64_t x, uint64_t n), summed(const uint32_t *table);
uint64_t by_helper(uint64_t x, uint64_t n), in_front(uint64_t x, uint64_t n), last_words(uint64_t x, uint64_t n);

__asm__(
    ".pushsection .text\n"
    FUNCTION("with_constants")
    " lea 5f(%rip), %rdx\n mov %esi, %ecx\n and $3, %ecx\n mov %rdi, %rax\n xor (%rdx,%rcx,8), %rax\n"
    " test $4, %sil\n je 1f\n add 6f(%rip), %rax\n ret\n"
    "1: sub 8+6f(%rip), %rax\n ret\n"
    "5: .quad 0x9090909090909090, 0x0000004800000048, 0x90c3c0ffc8ffc0ff, 0x1f0f66001f0f6600\n"
    "6: .quad 0xfffffff7e8909090, 0xcccccccccccccccc\n"
    END("with_constants")
    /* The table has the type and the range of a function. */
    FUNCTION("table_of_words")
    " .long 0x5a827999, 0x6ed9eba1, 0x8f1bbcdc, 0xca62c1d6, 0x90909090, 0x90909090, 0x90909090, 0xc3909090\n"
    END("table_of_words")
    FUNCTION("of_table")
    " lea table_of_words(%rip), %rdx\n and $7, %esi\n mov (%rdx,%rsi,4), %eax\n add %rdi, %rax\n ret\n"
    END("of_table")
    FUNCTION("by_helper")
    " push %rdi\n .cfi_adjust_cfa_offset 8\n lea 7f(%rip), %rdi\n call summed\n pop %rdi\n .cfi_adjust_cfa_offset -8\n"
    " add %rdi, %rax\n ret\n"
    "7: .long 1, 0x00c3c031, 0x9090c3f3, 0xe9909090\n"
    END("by_helper")
    FUNCTION("in_front")
    " jmp 2f\n"
    "8: .quad 0x0102030405060708, 0xc3c3c3c3c3c3c3c3\n"
    "2: mov %rdi, %rax\n lea 8b(%rip), %rdx\n test $1, %sil\n jne 3f\n xor (%rdx), %rax\n ret\n"
    "3: xor 8(%rdx), %rax\n ret\n"
    END("in_front")
    /* Words behind the address, which is one behind them all. */
    FUNCTION("last_words")
    " lea 9f(%rip), %rdx\n mov %rdi, %rax\n add -16(%rdx), %rax\n xor -8(%rdx), %rax\n ret\n"
    " .quad 0xc3c0314890909090, 0x90909090c3909090\n"
    "9:\n"
    END("last_words")
    ".popsection\n");

NOINLINE uint64_t summed(const uint32_t *table) { return table[0] + 2ull * table[1] + 3ull * table[2] + 4ull * table[3]; }

static void one_round(unsigned round) {
    static const uint64_t wide[] = {0x9090909090909090, 0x0000004800000048, 0x90c3c0ffc8ffc0ff, 0x1f0f66001f0f6600};
    static const uint32_t words[] = {0x5a827999, 0x6ed9eba1, 0x8f1bbcdc, 0xca62c1d6,
                                     0x90909090, 0x90909090, 0x90909090, 0xc3909090};
    static const uint32_t given[] = {1, 0x00c3c031, 0x9090c3f3, 0xe9909090};
    uint64_t x = round;
    for (uint64_t n = 0; n < 50; n++) {
        uint32_t moved = usual((uint32_t)x, (unsigned)n);
        CHECK(moved == unusual((uint32_t)x, (unsigned)n));
        uint64_t expected = x ^ wide[n & 3];
        expected = n & 4 ? expected + 0xfffffff7e8909090 : expected - 0xcccccccccccccccc;
        CHECK(with_constants(x, n) == expected);
        CHECK(of_table(x, n) == words[n & 7] + x);
        CHECK(by_helper(x, n) == x + summed(given));
        CHECK(in_front(x, n) == (x ^ (n & 1 ? 0xc3c3c3c3c3c3c3c3 : 0x0102030405060708)));
        CHECK(last_words(x, n) == ((x + 0xc3c0314890909090) ^ 0x90909090c3909090));
        x += moved;
    }
}

int main(int argc, char **argv) { return run_rounds(argc, argv, one_round); }
