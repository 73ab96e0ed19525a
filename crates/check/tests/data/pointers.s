# Functions whose addresses are made in every way, and some that something else knows. Built by:
#   as -o pointers.o pointers.s && ld -s -shared -Bsymbolic -z now -z noseparate-code --hash-style=sysv --build-id=none -o pointers.elf pointers.o
    .text
    .macro begin name
    .p2align 4
    .type \name, @function
\name:
    .cfi_startproc
    .endm
    .macro finish name
    .cfi_endproc
    .size \name, .-\name
    .endm

    .globl exported, again, makes, resolved
    .type again, @function
    .set again, exported

begin exported
    test %edi, %edi
    je 1f
    lea 1(%rdi), %eax
    ret
1:  lea table(%rip), %rax
    ret
finish exported
begin local
    test %edi, %edi
    jne 1f
    xor %eax, %eax
    ret
1:  lea local(%rip), %rax
    lea exported(%rip), %rdx
    cmp %rax, %rdx
    sete %al
    ret
finish local
begin makes
    lea local(%rip), %rax
    test %edi, %edi
    je 1f
    lea exported(%rip), %rax
    cmp $1, %edi
    jne 1f
    lea distant(%rip), %r9
    mov %r9, %rax
1:  ret
finish makes
begin distant
    test %edi, %edi
    je 1f
    call local
    ret
1:  mov $7, %eax
    ret
finish distant
# Its bytes are read.
begin measured
    mov $3, %eax
    test %edi, %edi
    je 1f
    add measured(%rip), %eax
1:  ret
finish measured
# An address inside of it is made.
begin entered
    test %edi, %edi
    je 1f
    lea 1f(%rip), %rax
    jmp *%rax
1:  ret
finish entered
# An offset in data leads to it.
begin offset
    test %edi, %edi
    je 1f
    inc %edi
1:  mov %edi, %eax
    ret
finish offset
# Data stands in front of it.
    .p2align 4
    .quad 0x123456789abcdef
    .quad 0xfedcba987654321
begin prefixed
    test %edi, %edi
    je 1f
    inc %edi
1:  mov %edi, %eax
    ret
finish prefixed
    .type resolved, @gnu_indirect_function
begin resolver
    lea local(%rip), %rax
    test %edi, %edi
    je 1f
    lea exported(%rip), %rax
1:  ret
finish resolver
    .set resolved, resolver
begin uses
    sub $8, %rsp
    .cfi_adjust_cfa_offset 8
    call *table(%rip)
    call *table+8(%rip)
    lea table(%rip), %rax
    test %eax, %eax
    je 1f
    call *16(%rax)
1:  add $8, %rsp
    .cfi_adjust_cfa_offset -8
    ret
finish uses

    .section .rodata
    .p2align 2
    .long offset - .

    .data
    .p2align 3
    .hidden uses
    .globl table
    .hidden table
table:
    .quad local, distant, distant, measured, entered, offset, prefixed, uses, resolver, exported
