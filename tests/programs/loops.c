/* Instructions and shapes that compilers hardly make: loop, loope and jrcxz (short only), rep string instructions,
 * a branch into the middle of an instruction (past a lock prefix), functions of one to four bytes next to each other,
 * functions separated by int3 and by multi-byte nops, code without unwind information, a function that falls into the
 * next, a call that does not return at the very end of a function, and data between functions. */
#include "check.h"
#include <setjmp.h>

#define FUNCTION(name) ".globl " #name "\n.type " #name ", @function\n" #name ":\n"
#define END(name) ".size " #name ", . - " #name "\n"

__asm__(
    ".pushsection .text.odd, \"ax\", @progbits\n"
    /* Small functions without any alignment between them. */
    FUNCTION(tiny_identity) ".cfi_startproc\nmov %edi, %eax\nret\n.cfi_endproc\n" END(tiny_identity)
    FUNCTION(tiny_nothing) ".cfi_startproc\nret\n.cfi_endproc\n" END(tiny_nothing)
    FUNCTION(tiny_zero) ".cfi_startproc\nxor %eax, %eax\nret\n.cfi_endproc\n" END(tiny_zero)
    FUNCTION(tiny_double) ".cfi_startproc\nlea (%rdi,%rdi), %eax\nret\n.cfi_endproc\n" END(tiny_double)
    "int3\nint3\nint3\n"
    /* An entry that falls into the next function. */
    FUNCTION(falls_in) ".cfi_startproc\nadd $5, %edi\n.cfi_endproc\n" END(falls_in)
    FUNCTION(fallen_into) ".cfi_startproc\nlea 1(%rdi), %eax\nret\n.cfi_endproc\n" END(fallen_into)
    ".byte 0x66, 0x2e, 0x0f, 0x1f, 0x84, 0, 0, 0, 0, 0\n"
    /* Sum of 1..n by loop. */
    FUNCTION(sum_by_loop) ".cfi_startproc\nmov %rdi, %rcx\nxor %eax, %eax\njrcxz 2f\n1: add %rcx, %rax\nloop 1b\n2: ret\n"
    ".cfi_endproc\n" END(sum_by_loop)
    ".quad 0xfeeb0b0f0f0b1234\n"
    /* First index whose byte differs from sil, at most rdx, by loope. */
    FUNCTION(find_by_loope) ".cfi_startproc\nmov %rdx, %rcx\nmov $-1, %rax\njrcxz 2f\n1: inc %rax\ncmp %sil, (%rdi,%rax)\n"
    "loope 1b\n2: ret\n.cfi_endproc\n" END(find_by_loope)
    ".p2align 5, 0xcc\n"
    /* Adds with or without the lock prefix: the branch goes past the prefix, into the instruction. */
    FUNCTION(maybe_locked) ".cfi_startproc\ntest %edx, %edx\nje 1f\n.byte 0xf0\n1: addl %esi, (%rdi)\nmov (%rdi), %eax\nret\n"
    ".cfi_endproc\n" END(maybe_locked)
    /* The same, but somebody else branches to the prefix. */
    FUNCTION(locked_by_two) ".cfi_startproc\ncmp $2, %edx\nje 2f\ntest %edx, %edx\nje 1f\n2: .byte 0xf0\n1: addl %esi, (%rdi)\n"
    "mov (%rdi), %eax\nret\n.cfi_endproc\n" END(locked_by_two)
    /* An immediate that holds instructions: xor %eax, %eax and ret. */
    FUNCTION(into_immediate) ".cfi_startproc\ntest %edi, %edi\nje 1f\n.byte 0xb8\n1: .byte 0x31, 0xc0, 0xc3, 0x90\nmovzbl %al, %eax\nret\n"
    ".cfi_endproc\n" END(into_immediate)
    /* No unwind information at all. */
    ".p2align 4\n" FUNCTION(no_unwind) "imul $3, %edi, %eax\ncmp $100, %edi\nja 1f\nadd $7, %eax\n1: ret\n" END(no_unwind)
    /* Ends with a call that never returns: the return address is behind the function. */
    ".p2align 4\n" FUNCTION(last_call) ".cfi_startproc\nsub $8, %rsp\n.cfi_adjust_cfa_offset 8\nmov %edi, %eax\n"
    "test %edi, %edi\njs 1f\nadd $8, %rsp\n.cfi_adjust_cfa_offset -8\nret\n.cfi_adjust_cfa_offset 8\n1: call give_up\n"
    ".cfi_endproc\n" END(last_call)
    FUNCTION(after_last_call) ".cfi_startproc\nmov $77, %eax\nret\n.cfi_endproc\n" END(after_last_call)
    ".popsection\n");

uint32_t tiny_identity(uint32_t);
void tiny_nothing(void);
uint32_t tiny_zero(void);
uint32_t tiny_double(uint32_t);
uint32_t falls_in(uint32_t);
uint32_t fallen_into(uint32_t);
uint64_t sum_by_loop(uint64_t);
int64_t find_by_loope(const unsigned char *bytes, unsigned char value, uint64_t most);
uint32_t maybe_locked(uint32_t *place, uint32_t add, int locked);
uint32_t locked_by_two(uint32_t *place, uint32_t add, int locked);
uint32_t into_immediate(uint32_t);
uint32_t no_unwind(uint32_t);
int last_call(int);
int after_last_call(void);

__attribute__((noreturn, used)) void give_up(void);
static jmp_buf escape;
void give_up(void) { longjmp(escape, 1); }

NOINLINE static int gives_up(void) {
    if (setjmp(escape) == 0) return last_call(-1);
    return 42;
}

NOINLINE static size_t length(const char *text) {
    size_t left = (size_t)-1;
    __asm__ volatile("repne scasb" : "+D"(text), "+c"(left) : "a"(0) : "memory", "cc");
    return (size_t)-2 - left;
}

NOINLINE static void copy(void *to, const void *from, size_t n) {
    __asm__ volatile("rep movsb" : "+D"(to), "+S"(from), "+c"(n) : : "memory");
}

NOINLINE static void fill(void *to, unsigned char value, size_t n) {
    __asm__ volatile("rep stosb" : "+D"(to), "+c"(n) : "a"(value) : "memory");
}

NOINLINE static int equal(const void *a, const void *b, size_t n) {
    unsigned char result;
    __asm__ volatile("cmp %%eax, %%eax\n\trepe cmpsb\n\tsete %3" : "+D"(a), "+S"(b), "+c"(n), "=q"(result) : : "memory", "cc");
    return result;
}

/* A loop of short branches only, inside ordinary code. */
NOINLINE static uint64_t count_bits(uint64_t x) {
    uint64_t count = 0;
    __asm__ volatile("1: jrcxz 3f\n\tlea -1(%1), %%rdx\n\tand %%rdx, %1\n\tinc %0\n\tjmp 1b\n\t.byte 0x0f, 0x1f, 0x00\n3:"
                     : "+r"(count), "+c"(x) : : "rdx", "cc");
    return count;
}

static void one_round(unsigned round) {
    uint32_t state = round + 1;
    for (int i = 0; i < 3000; i++) {
        uint32_t r = next_random(&state), n = r % 200;
        tiny_nothing();
        CHECK(tiny_identity(r) == r && tiny_zero() == 0 && tiny_double(r) == r * 2);
        CHECK(falls_in(r) == r + 6 && fallen_into(r) == r + 1);
        CHECK(sum_by_loop(n) == (uint64_t)n * (n + 1) / 2);
        CHECK(no_unwind(n) == n * 3 + (n > 100 ? 0 : 7));
        CHECK(last_call((int)n) == (int)n && after_last_call() == 77);
        CHECK(gives_up() == 42);
        uint32_t place = r;
        CHECK(maybe_locked(&place, n, i & 1) == r + n && place == r + n);
        CHECK(locked_by_two(&place, n, i % 3) == r + 2 * n && into_immediate(i & 1) == (i & 1 ? 0x31 : 0));
        CHECK(count_bits(r) == (uint64_t)__builtin_popcount(r));

        char a[256], b[256];
        fill(a, 'a', n);
        a[n] = 0;
        copy(b, a, n + 1);
        CHECK(length(b) == n && equal(a, b, n + 1));
        b[n / 2] ^= 1;
        CHECK(!equal(a, b, n + 1));
        if (n > 1) CHECK(find_by_loope((unsigned char *)b, 'a', n) == n / 2);
    }
}

int main(int argc, char **argv) { return run_rounds(argc, argv, one_round); }
