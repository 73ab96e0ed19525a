/* Code that cannot be understood, and what it does with functions that can: code without unwind information reads their bytes and
 * enters them behind their first instruction; so does code behind a jump by a table that stands in the code. */
#include "odd.h"

uint64_t read_once(uint64_t x, uint64_t n), reads(void), entered(uint64_t x, uint64_t n), enters(uint64_t x, uint64_t n);
uint64_t read_behind(uint64_t x, uint64_t n), behind_table(uint64_t x, uint64_t n), late(uint64_t x), indexed(uint64_t n);
uint64_t pointed(uint64_t x, uint64_t n), next_to_it(uint64_t x, uint64_t n);

/* mov %rdi,%rax; lea 7(%rax,%rsi,4),%rax; one bit decides what follows */
#define BODY(name) \
    FUNCTION(name) " mov %rdi, %rax\n" name "_second: lea 7(%rax,%rsi,4), %rax\n test $1, %sil\n je 1f\n ret\n1: not %rax\n ret\n" END(name)
/* A function that no unwind table entry is of. */
#define WITHOUT(name, code) ".p2align 4\n.globl " name "\n.type " name ",@function\n" name ": " code ".size " name ",.-" name "\n"

__asm__(
    ".pushsection .text\n"
    BODY("read_once") BODY("entered") BODY("read_behind")
    /* Without filler in between: the end of one is the address of the other, which reads its own bytes. */
    BODY("pointed")
    ".globl next_to_it\n.type next_to_it,@function\nnext_to_it: .cfi_startproc\n mov next_to_it(%rip), %eax\n add %rdi, %rax\n ret\n" END("next_to_it")
    WITHOUT("reads", "mov read_once(%rip), %eax\n ret\n")
    WITHOUT("enters", "lea 5(%rdi), %rax\n jmp entered_second\n")
    FUNCTION("behind_table")
    " mov %esi, %ecx\n and $1, %ecx\n lea 5f(%rip), %rdx\n movslq (%rdx,%rcx,4), %rcx\n add %rdx, %rcx\n jmp *%rcx\n"
    "5: .long 6f-5b, 7f-5b\n"
    "6: not %rdi\n jmp 8f\n"
    "7: neg %rdi\n jmp 8f\n"
    "8: mov read_behind(%rip), %eax\n add %rdi, %rax\n ret\n"
    END("behind_table")
    /* Its entry has it begin behind its first instruction: it reads bytes of both parts. */
    ".p2align 4\n.globl late, indexed\n.type late,@function\n"
    "late: mov %rdi, %rax\n .cfi_startproc\n mov late+1(%rip), %ecx\n add %rcx, %rax\n ret\n .cfi_endproc\n.size late,.-late\n"
    ".p2align 4\n.type indexed,@function\n"
    "indexed: endbr64\n .cfi_startproc\n lea indexed(%rip), %rdx\n and $7, %edi\n movzbl (%rdx,%rdi), %eax\n ret\n .cfi_endproc\n"
    ".size indexed,.-indexed\n"
    ".popsection\n");

static uint64_t body(uint64_t x, uint64_t n) { return n & 1 ? x + 4 * n + 7 : ~(x + 4 * n + 7); }

static void one_round(unsigned round) {
    static const unsigned char start[8] = {0xf3, 0x0f, 0x1e, 0xfa, 0x48, 0x8d, 0x15, 0xf5};
    uint64_t x = round;
    for (uint64_t n = 0; n < 50; n++) {
        uint32_t moved = usual((uint32_t)x, (unsigned)n);
        CHECK(moved == unusual((uint32_t)x, (unsigned)n));
        CHECK(read_once(x, n) == body(x, n));
        CHECK(reads() == 0x48f88948);
        CHECK(entered(x, n) == body(x, n));
        CHECK(enters(x, n) == body(x + 5, n));
        CHECK(read_behind(x, n) == body(x, n));
        CHECK(behind_table(x, n) == 0x48f88948 + (n & 1 ? -x : ~x));
        CHECK(late(x) == x + 0x0d8bf889);
        CHECK(indexed(n) == start[n & 7]);
        uint64_t (*function)(uint64_t, uint64_t) = pointed;
        OPAQUE(function);
        CHECK(function(x, n) == body(x, n));
        function = next_to_it;
        OPAQUE(function);
        CHECK((uint32_t)(function(x, n) - x) << 16 == 0x058b0000);
        x += moved;
    }
}

int main(int argc, char **argv) { return run_rounds(argc, argv, one_round); }
