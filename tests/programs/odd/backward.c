/* Jump tables that are indexed from their middle, or backwards: by a number with sign that was moved down or negated behind its check, by one
 * that nobody checks, and with an entry in front of the middle that leads to code without unwind information. */
#include "odd.h"

/* The functions give x times an odd number by the case. */
#define CASE(name, n, by) name #n ": imul $" #by ", %esi, %eax\n ret\n"
#define CASES(name) \
    CASE(name, 0, 3) CASE(name, 1, 5) CASE(name, 2, 7) CASE(name, 3, 9) CASE(name, 4, 11) CASE(name, 5, 13) CASE(name, 6, 15) CASE(name, 7, 17)
#define OFFSET(name, n) ".long " name #n "-" name "table\n"
#define OFFSETS(name) \
    OFFSET(name, 0) OFFSET(name, 1) OFFSET(name, 2) OFFSET(name, 3) OFFSET(name, 4) OFFSET(name, 5) OFFSET(name, 6) OFFSET(name, 7)
/* The entry in rcx is an offset from the table. */
#define GO(name) "  lea " name "table(%rip), %rdx\n  add %rdx, %rcx\n  jmp *%rcx\n"
#define CHECKED "  cmp $7, %edi\n  ja 1f\n"
#define NOTHING "1: xor %eax, %eax\n  ret\n"

uint32_t moved(uint32_t n, uint32_t x);
uint32_t displaced(uint32_t n, uint32_t x);
uint32_t negated(uint32_t n, uint32_t x);
uint32_t between(int32_t n, uint32_t x);
uint32_t bytes(int64_t n, uint32_t x);
uint32_t unchecked(int64_t n, uint32_t x);
uint32_t hole(uint32_t n, uint32_t x);
__asm__(".text\n"
        FUNCTION("moved") CHECKED "  sub $4, %edi\n  movslq %edi, %rcx\n"
        "  lea mtable+16(%rip), %rdx\n  movslq (%rdx,%rcx,4), %rcx\n" GO("m") CASES("m") NOTHING END("moved")
        FUNCTION("displaced") CHECKED "  lea -4(%rdi), %ecx\n  movslq %ecx, %rcx\n"
        "  lea dtable(%rip), %rdx\n  movslq 16(%rdx,%rcx,4), %rcx\n" GO("d") CASES("d") NOTHING END("displaced")
        FUNCTION("negated") CHECKED "  mov %edi, %ecx\n  neg %rcx\n"
        "  lea gtable+28(%rip), %rdx\n  movslq (%rdx,%rcx,4), %rcx\n" GO("g") CASES("g") NOTHING END("negated")
        FUNCTION("between") "  cmp $-5, %edi\n  jle 1f\n  cmp $3, %edi\n  jg 1f\n  movslq %edi, %rcx\n"
        "  lea btable+16(%rip), %rdx\n  movslq (%rdx,%rcx,4), %rcx\n" GO("b") CASES("b") NOTHING END("between")
        FUNCTION("bytes") "  movsbq %dil, %rcx\n"
        "  lea ytable+16(%rip), %rdx\n  movslq (%rdx,%rcx,4), %rcx\n" GO("y") CASES("y") END("bytes")
        FUNCTION("unchecked") "  lea utable+16(%rip), %rdx\n  movslq (%rdx,%rdi,4), %rcx\n" GO("u") CASES("u") END("unchecked")
        FUNCTION("hole") CHECKED "  sub $4, %edi\n  movslq %edi, %rcx\n"
        "  lea htable+16(%rip), %rdx\n  movslq (%rdx,%rcx,4), %rcx\n" GO("h") CASES("h") NOTHING END("hole")
        ".section .text.without, \"ax\", @progbits\n  nop\nelsewhere: imul $19, %esi, %eax\n  ret\n"
        ".section .rodata\n.p2align 2\n.long 0x7fffffff\n"
        "mtable: " OFFSETS("m") ".long 0x7fffffff\ndtable: " OFFSETS("d") ".long 0x7fffffff\n"
        "gtable: " OFFSETS("g") ".long 0x7fffffff\nbtable: " OFFSETS("b") ".long 0x7fffffff\n"
        "ytable: " OFFSETS("y") ".long 0x7fffffff\nutable: " OFFSETS("u") ".long 0x7fffffff\n"
        "htable: " OFFSET("h", 0) ".long elsewhere-htable\n" OFFSET("h", 2) OFFSET("h", 3) OFFSET("h", 4)
        OFFSET("h", 5) OFFSET("h", 6) OFFSET("h", 7) ".long 0x7fffffff\n.text\n");

static void one_round(unsigned round) {
    uint32_t x = usual(round, 7) | 1;
    for (unsigned i = 0; i < 800; i++) {
        uint32_t n = (round + i) % 8, wanted = x * (2 * n + 3);
        CHECK(moved(n, x) == wanted);
        CHECK(displaced(n, x) == wanted);
        CHECK(negated(7 - n, x) == wanted);
        CHECK(between((int32_t)n - 4, x) == wanted);
        CHECK(bytes((int64_t)n - 4, x) == wanted);
        CHECK(unchecked((int64_t)n - 4, x) == wanted);
        CHECK(hole(n, x) == (n == 1 ? x * 19 : wanted));
        CHECK(moved(n + 8, x) == 0 && hole(n + 8, x) == 0);
        x += usual(x, i);
    }
}

int main(int argc, char **argv) { return run_rounds(argc, argv, one_round); }
