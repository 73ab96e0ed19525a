/* Jump tables of which it is hard to see how long they are: more entries than anybody would think, a comparison of something else with less,
 * and an entry in the middle that leads to code without unwind information. */
#include "odd.h"

/* The functions give x times an odd number by the case. */
#define CASES(name) \
    name "0: imul $3, %esi, %eax\n ret\n" name "1: imul $5, %esi, %eax\n ret\n" \
    name "2: imul $7, %esi, %eax\n ret\n" name "3: imul $9, %esi, %eax\n ret\n"
#define GO(name) \
    "  mov %edi, %ecx\n  lea " name "table(%rip), %rdx\n  movslq (%rdx,%rcx,4), %rcx\n  add %rdx, %rcx\n  jmp *%rcx\n"
#define FOUR(name) \
    ".long " name "0-" name "table, " name "1-" name "table, " name "2-" name "table, " name "3-" name "table\n"

uint32_t many(uint32_t n, uint32_t x);
uint32_t unrelated(uint32_t n, uint32_t x);
uint32_t hole(uint32_t n, uint32_t x);
__asm__(".text\n"
        FUNCTION("many") "  cmp $17999, %edi\n  ja 1f\n" GO("m") CASES("m") "1: xor %eax, %eax\n  ret\n" END("many")
        FUNCTION("unrelated") "  cmp $9, %esi\n  ja 1f\n  nop\n1:\n" GO("u") CASES("u") END("unrelated")
        FUNCTION("hole") "  cmp $7, %edi\n  ja 1f\n" GO("h") CASES("h") "1: xor %eax, %eax\n  ret\n" END("hole")
        ".section .text.without, \"ax\", @progbits\nelsewhere: imul $11, %esi, %eax\n  ret\n"
        ".section .rodata\n.p2align 2\n"
        "mtable: .rept 4500\n" FOUR("m") ".endr\n.long 0x7fffffff\n"
        "utable: .rept 300\n" FOUR("u") ".endr\n.long 0x7fffffff\n"
        "htable: " FOUR("h") ".long elsewhere-htable, h1-htable, h2-htable, h3-htable\n.long 0x7fffffff\n.text\n");

static void one_round(unsigned round) {
    uint32_t x = usual(round, 7) | 1;
    for (unsigned i = 0; i < 200; i++) {
        uint32_t n = (round * 200 + i) * 179 % 18000;
        CHECK(many(n, x) == x * (2 * (n % 4) + 3));
        CHECK(many(17999 - i, x) == x * (2 * ((17999 - i) % 4) + 3));
        CHECK(many(18000 + i, x) == 0);
        CHECK(unrelated(n % 1200, x) == x * (2 * (n % 4) + 3));
        CHECK(hole(n % 8, x) == x * (n % 8 == 4 ? 11 : 2 * (n % 4) + 3));
        x += usual(x, i);
    }
}

int main(int argc, char **argv) { return run_rounds(argc, argv, one_round); }
