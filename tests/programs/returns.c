/* Code that looks at its return address, as hand-written assembly does: positions by `call` and `pop` and by thunks, data behind calls, of
 * lengths that make other instructions of what follows, callees that come back elsewhere, by `ret` or by a jump, and C that asks who called. */
#include "check.h"

/* Ends an assembly function. */
#define END(name) "    .cfi_endproc\n    .size " #name ", .-" #name "\n"
/* Begins one. */
#define BEGIN(name) "    .globl " #name "\n    .type " #name ", @function\n    .p2align 4\n" #name ":\n    .cfi_startproc\n"

#define DECLARE(name) uint64_t name(uint64_t x) __attribute__((visibility("hidden")))
DECLARE(by_pop);
DECLARE(by_thunk);
DECLARE(by_jump);
DECLARE(by_wrapper);
DECLARE(by_number);
DECLARE(by_text);
DECLARE(by_popped);
DECLARE(by_next);
DECLARE(by_skip);
DECLARE(by_body);
DECLARE(by_thrown);
DECLARE(by_pointer);
DECLARE(by_below);
DECLARE(by_given);
DECLARE(by_kept);

__asm__(".text\n"
        /* The position by call and pop; the unwind information says what happens. */
        BEGIN(by_pop)
        "    call 1f\n    .cfi_adjust_cfa_offset 8\n"
        "1:  pop %rax\n    .cfi_adjust_cfa_offset -8\n"
        "    add $pop_data - 1b, %rax\n    mov (%rax), %eax\n    add %rdi, %rax\n    ret\n" END(by_pop)
        /* By a function that has nothing else to do. */
        BEGIN(position)
        "    mov (%rsp), %rcx\n    ret\n" END(position)
        BEGIN(by_thunk)
        "    call position\n1:  add $pop_data - 1b, %rcx\n    mov (%rcx), %eax\n    add %rdi, %rax\n    ret\n" END(by_thunk)
        /* By one that does not return by `ret`, and does not say what it does to the stack. */
        BEGIN(position_by_jump)
        "    pop %rcx\n    test %rdi, %rdi\n    je 1f\n    nop\n1:  jmp *%rcx\n" END(position_by_jump)
        BEGIN(by_jump)
        "    call position_by_jump\n1:  add $pop_data - 1b, %rcx\n    mov (%rcx), %eax\n    add %rdi, %rax\n    ret\n" END(by_jump)
        /* By one that jumps to it. */
        BEGIN(wrapper)
        "    test %rdi, %rdi\n    jmp position\n" END(wrapper)
        BEGIN(by_wrapper)
        "    call wrapper\n1:  add $pop_data - 1b, %rcx\n    mov (%rcx), %eax\n    add %rdi, %rax\n    ret\n" END(by_wrapper)
        /* A number behind the call. */
        BEGIN(take_number)
        "    mov (%rsp), %rcx\n    mov (%rcx), %eax\n    add %rdi, %rax\n    addq $4, (%rsp)\n    ret\n" END(take_number)
        BEGIN(by_number)
        "    call take_number\n    .long 0x90c3c031\n    test $1, %dil\n    je 1f\n    inc %rax\n1:  ret\n" END(by_number)
        /* A text of three bytes, which would begin a longer instruction. */
        BEGIN(take_text)
        "    push %rbx\n    .cfi_adjust_cfa_offset 8\n    mov 8(%rsp), %rbx\n    xor %eax, %eax\n"
        "1:  movzbl (%rbx), %ecx\n    inc %rbx\n    lea (%rax,%rcx), %rax\n    test %ecx, %ecx\n    jne 1b\n"
        "    mov %rbx, 8(%rsp)\n    add %rdi, %rax\n    pop %rbx\n    .cfi_adjust_cfa_offset -8\n    ret\n" END(take_text)
        BEGIN(by_text)
        "    call take_text\n    .byte 0x48, 0xb8, 0\n    test $1, %dil\n    je 1f\n    inc %rax\n1:  ret\n" END(by_text)
        /* The same by a callee that gives its return address up. */
        BEGIN(take_popped)
        "    pop %rdx\n    mov (%rdx), %eax\n    add %rdi, %rax\n    lea 4(%rdx), %rdx\n    jmp *%rdx\n" END(take_popped)
        BEGIN(by_popped)
        "    call take_popped\n    .long 0x90c3c031\n    test $1, %dil\n    je 1f\n    inc %rax\n1:  ret\n" END(by_popped)
        /* Data that the call jumps over. */
        BEGIN(by_next)
        "    call 1f\n    .long 0x1234567\n1:  pop %rdx\n    mov (%rdx), %eax\n    add %rdi, %rax\n    ret\n" END(by_next)
        /* A callee that comes back behind the instruction there, and one that calls what is there (as __morestack does). */
        BEGIN(skip)
        "    incq (%rsp)\n    mov %rdi, %rax\n    ret\n" END(skip)
        BEGIN(by_skip)
        "    xor %eax, %eax\n    call skip\n    ret\n    add $7, %rax\n    test $1, %dil\n    je 1f\n    inc %rax\n1:  ret\n" END(by_skip)
        BEGIN(call_body)
        "    push %rbp\n    .cfi_adjust_cfa_offset 8\n    mov %rsp, %rbp\n    .cfi_def_cfa_register %rbp\n"
        "    mov 8(%rbp), %r10\n    inc %r10\n    call *%r10\n    shl %rax\n    pop %rbp\n    .cfi_def_cfa %rsp, 8\n    ret\n" END(call_body)
        BEGIN(by_body)
        "    test $3, %dil\n    jne 1f\n    call call_body\n    ret\n1:  lea 5(%rdi), %rax\n    test $1, %dil\n    je 2f\n    inc %rax\n2:  ret\n" END(by_body)
        /* What jumps by `ret` writes over its return address without having read it. */
        BEGIN(by_thrown)
        "    lea 3f(%rip), %rcx\n    call 2f\n1:  pause\n    lfence\n    jmp 1b\n2:  mov %rcx, (%rsp)\n    ret\n"
        "3:  lea 9(%rdi), %rax\n    test $1, %dil\n    je 4f\n    inc %rax\n4:  ret\n" END(by_thrown)
        /* Through a register. */
        BEGIN(by_pointer)
        "    mov pointer(%rip), %rax\n    call *%rax\n1:  add $pop_data - 1b, %rcx\n    mov (%rcx), %eax\n    add %rdi, %rax\n    ret\n" END(by_pointer)
        /* What the call has left below the stack pointer. */
        BEGIN(nothing)
        "    ret\n" END(nothing)
        BEGIN(by_below)
        "    call nothing\n    mov -8(%rsp), %rax\n    lea by_below(%rip), %rdx\n    sub %rdx, %rax\n    add %rdi, %rax\n    ret\n" END(by_below)
        /* The callee tells where its return address is, or keeps that in memory. */
        BEGIN(give)
        "    mov %rsp, %rax\n    ret\n" END(give)
        BEGIN(by_given)
        "    call give\n    mov (%rax), %rax\n    lea by_given(%rip), %rdx\n    sub %rdx, %rax\n    add %rdi, %rax\n    ret\n" END(by_given)
        BEGIN(keep)
        "    mov %rsp, kept(%rip)\n    ret\n" END(keep)
        BEGIN(by_kept)
        "    call keep\n    mov kept(%rip), %rax\n    mov (%rax), %rax\n    lea by_kept(%rip), %rdx\n    sub %rdx, %rax\n    add %rdi, %rax\n    ret\n" END(by_kept)
        "    .p2align 3\npop_data: .long 0x7654321\n"
        "    .data\n    .p2align 3\npointer: .quad position\nkept: .quad 0\n    .text\n");

/* Of C: whether the caller is one that may. */
NOINLINE static uintptr_t caller(void) { return (uintptr_t)__builtin_return_address(0); }
NOINLINE static uintptr_t asked(uint64_t x) {
    OPAQUE(x);
    uintptr_t at = caller();
    OPAQUE(at);
    return at;
}

/* A frame that is aligned has a copy of the return address where it expects it; nobody looks at that. */
NOINLINE static uint64_t aligned(uint64_t x) {
    volatile uint64_t room[8] __attribute__((aligned(64)));
    room[x & 7] = x;
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
    return room[x & 7] + ((uintptr_t)room & 63);
}

NOINLINE static void positions(uint64_t x) {
    CHECK(by_pop(x) == 0x7654321 + x);
    CHECK(by_thunk(x) == 0x7654321 + x);
    CHECK(by_jump(x) == 0x7654321 + x);
    CHECK(by_wrapper(x) == 0x7654321 + x);
    CHECK(by_next(x) == 0x1234567 + x);
    CHECK(by_pointer(x) == 0x7654321 + x);
    /* So long is a call. */
    CHECK(by_below(x) == 5 + x);
    CHECK(by_given(x) == 5 + x);
    CHECK(by_kept(x) == 5 + x);
}

NOINLINE static void elsewhere(uint64_t x) {
    CHECK(by_number(x) == 0x90c3c031 + x + (x & 1));
    CHECK(by_popped(x) == 0x90c3c031 + x + (x & 1));
    CHECK(by_text(x) == 0x100 + x + (x & 1));
    CHECK(by_skip(x) == 7 + x + (x & 1));
    CHECK(by_body(x) == (5 + x + (x & 1)) << ((x & 3) == 0));
    CHECK(by_thrown(x) == 9 + x + (x & 1));
}

static void one_round(unsigned round) {
    uint32_t random = round * 77u + 1;
    uintptr_t first = asked(0);
    CHECK(first - (uintptr_t)asked < 256);
    for (unsigned i = 0; i < 20000; i++) {
        uint64_t x = next_random(&random);
        positions(x);
        elsewhere(x);
        CHECK(asked(x) == first);
        CHECK(aligned(x) == x);
    }
}

int main(int argc, char **argv) { return run_rounds(argc, argv, one_round); }
