# Indirect calls of all forms, with and without exception tables. Made into promoted.elf (loaded anywhere) and promoted-fixed.elf, which
# the tests read, by:
#   as promoted.s -o promoted.o && ld --eh-frame-hdr -shared -Bsymbolic -z noseparate-code -s promoted.o -o promoted.elf &&
#   ld --eh-frame-hdr -e calls -z noseparate-code -s promoted.o -o promoted-fixed.elf && rm promoted.o
        .text
        .globl  calls, target, reads, last
        .type   calls, @function
        .type   target, @function
        .type   reads, @function
        .type   last, @function

        .p2align 4
calls:  .cfi_startproc
        .cfi_personality 0x9b, slot
        .cfi_lsda 0x1b, exceptions
        push    %rbx
        .cfi_def_cfa_offset 16
        .cfi_offset 3, -16
        sub     $32, %rsp
        .cfi_def_cfa_offset 48
.Lfirst:
        call    *%rax
        call    *16(%rbx)
        call    *%r11
.Lfirst_end:
        call    *(%r10,%r11,8)
        call    *pointer(%rip)
        call    *8(%rsp)
        pushq   $3
        .cfi_adjust_cfa_offset 8
.Lsecond:
        call    *0x12345(%rbp,%rsi,2)
.Lsecond_end:
        add     $8, %rsp
        .cfi_adjust_cfa_offset -8
        test    %eax, %eax
        je      .Lend
        call    *(%rdi)
.Lend:  call    *-8(%rsp)
        call    *(%rsp,%rax,8)
        notrack call *%rax
        call    *%rdx
        add     $32, %rsp
        .cfi_def_cfa_offset 16
        pop     %rbx
        .cfi_def_cfa_offset 8
        ret
        .cfi_def_cfa_offset 48
.Lpad:  mov     %rax, %rdi
        call    *%rcx
        ud2
        .cfi_endproc
        .size   calls, .-calls

# A usual target.
        .p2align 4
target: .cfi_startproc
        endbr64
        lea     (%rdi,%rsi), %eax
        ret
        .cfi_endproc
        .size   target, .-target

# Its caller hands something over in the carry flag.
        .p2align 4
reads:  .cfi_startproc
        sbb     %eax, %eax
        ret
        .cfi_endproc
        .size   reads, .-reads

# The call does not return: nothing stands behind it.
        .p2align 4
last:   .cfi_startproc
        push    %rax
        .cfi_def_cfa_offset 16
        call    *%rdi
        .cfi_endproc
        .size   last, .-last

        .section .gcc_except_table, "a"
exceptions:
        .byte   0xff, 0x9b
        .uleb128 .Ltypes-.Ltypes_from
.Ltypes_from:
        .byte   1
        .uleb128 .Lsites_end-.Lsites
.Lsites:
        .uleb128 .Lfirst-calls, .Lfirst_end-.Lfirst, .Lpad-calls, 1
        .uleb128 .Lsecond-calls, .Lsecond_end-.Lsecond, 0, 0
.Lsites_end:
        .byte   1, 0
        .p2align 2
        .long   info-.
.Ltypes:
        .data
pointer: .quad  42
slot:   .quad   0
info:   .quad   0
        .section .note.GNU-stack, "", @progbits
