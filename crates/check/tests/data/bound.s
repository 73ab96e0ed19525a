# A library that goes through its global offset table in every way. Made with
#   gcc -nostdlib -shared -Wl,-z,now -Wl,-z,ibtplt -Wl,-z,relro -Wl,--build-id=none -Wl,--hash-style=gnu -Wl,-z,noseparate-code -Wl,-s -o bound.elf bound.s
        .text
        .globl  ours
        .type   ours, @function
ours:   .cfi_startproc
        endbr64
        lea     1(%rdi), %rax
        ret
        .cfi_endproc
        .size   ours, .-ours

        .globl  calls
        .type   calls, @function
calls:  .cfi_startproc
        push    %rbx
        .cfi_adjust_cfa_offset 8
        .cfi_offset %rbx, -16
        mov     %edi, %ebx
        call    there@plt
        test    %eax, %eax
        jne     1f
        call    *data@GOTPCREL(%rip)
        call    ours@plt
1:      call    *ours@GOTPCREL(%rip)
        call    *elsewhere@GOTPCREL(%rip)
        mov     data@GOTPCREL(%rip), %rax
        add     (%rax), %ebx
        mov     %ebx, %eax
        pop     %rbx
        .cfi_adjust_cfa_offset -8
        ret
        .cfi_endproc
        .size   calls, .-calls

        .globl  tails
        .type   tails, @function
tails:  .cfi_startproc
        cmp     $3, %edi
        je      there@plt
        cmp     $5, %edi
        jl      ours@plt
        cmp     $7, %edi
        je      2f
        cmp     $9, %edi
        je      3f
        cmp     $11, %edi
        je      4f
        jmp     *elsewhere@GOTPCREL(%rip)
2:      jmp     there@plt
3:      jmp     ours@plt
4:      jmp     *ours@GOTPCREL(%rip)
        .cfi_endproc
        .size   tails, .-tails
        .section .note.GNU-stack,"",@progbits
