# A module with one of everything that a version has to get right. Made into small.elf, which the tests read, by:
#   as small.s -o small.o && ld --eh-frame-hdr -shared -Bsymbolic -z noseparate-code -s small.o -o small.elf && rm small.o
        .text
        .globl  f, g, h
        .type   f, @function
        .type   g, @function
        .type   h, @function

# A relative jump table, a load, calls with and without a landing pad, loop, conditional branches, a tail call.
        .p2align 4
f:      .cfi_startproc
        .cfi_personality 0x9b, slot
        .cfi_lsda 0x1b, exceptions
        push    %rbx
        .cfi_def_cfa_offset 16
        .cfi_offset 3, -16
        mov     %rdi, %rbx
        cmp     $4, %edi
        ja      .Ldefault
        mov     %edi, %eax
        lea     table(%rip), %rdx
        movslq  (%rdx,%rax,4), %rax
        add     %rdx, %rax
        notrack jmp *%rax
.L0:    mov     number(%rip), %eax
        jmp     .Lend
.Lcall: call    g
.Lcall_end:
        cmp     %eax, %ebx
        je      .Lend
.L2:    test    %ebx, %ebx
        jle     .L3
        add     $1, %eax
.L3:    mov     $3, %ecx
.Lloop: inc     %ebx
        loop    .Lloop
        cmp     %ebx, number(%rip)
        setb    %al
        jb      .Lend
        seto    %al
.Ldefault:
        xor     %eax, %eax
.Lend:  pop     %rbx
        .cfi_remember_state
        .cfi_def_cfa_offset 8
        ret
        .cfi_restore_state
.Lpad:  mov     %rax, %rdi
.Lcall2:
        call    g
.Lcall2_end:
        ud2
        .cfi_endproc
        .size   f, .-f

# A leaf with an endbr64, that ends in a tail call. Its flags are live on an edge.
        .p2align 4
g:      .cfi_startproc
        endbr64
        cmp     $7, %edi
        je      1f
        lea     1(%rdi), %rdi
        js      2f
        mov     %edi, %eax
        ret
1:      jmp     h
2:      mov     $-1, %eax
        ret
        .cfi_endproc
        .size   g, .-g

# A loop that begins right behind the function's endbr64, which is a block of its own therefore.
        .p2align 4
        .globl  k
        .type   k, @function
k:      .cfi_startproc
        endbr64
1:      imul    %rdi, %rax
        add     $-1, %rdi
        jne     1b
        ret
        .cfi_endproc
        .size   k, .-k

# A frame pointer, a call through a register, an indirect tail call.
        .p2align 4
h:      .cfi_startproc
        push    %rbp
        .cfi_def_cfa_offset 16
        .cfi_offset 6, -16
        mov     %rsp, %rbp
        .cfi_def_cfa_register 6
        call    *%rsi
        mov     number(%rip), %rax
        pop     %rbp
        .cfi_def_cfa 7, 8
        jmp     *%rax
        .cfi_endproc
        .size   h, .-h

        .section .rodata, "a"
        .p2align 2
table:  .long   .L0-table, .Lcall-table, .L2-table, .L3-table, .Ldefault-table
        .long   0
        .section .gcc_except_table, "a"
exceptions:
        .byte   0xff, 0x9b
        .uleb128 .Ltypes-.Ltypes_from
.Ltypes_from:
        .byte   1
        .uleb128 .Lsites_end-.Lsites
.Lsites:
        .uleb128 .Lcall-f, .Lcall_end-.Lcall, .Lpad-f, 1
        .uleb128 .Lcall2-f, .Lcall2_end-.Lcall2, 0, 0
.Lsites_end:
        .byte   1, 0
        .p2align 2
        .long   info-.
.Ltypes:
        .data
number: .quad   42
slot:   .quad   0
info:   .quad   0
        .section .note.GNU-stack, "", @progbits
