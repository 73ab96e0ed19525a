# Maps a shared counts file over the counters of a counting version, before anything else of the module runs.
#
# Entered by the loader: at the program's entry point (rsp points to argc, rdx is a function that the program will
# register) or as DT_INIT (a call). All registers and flags are given back. System calls: only those that the dynamic
# loader has made just before, so that whoever filters them has allowed them. If a step fails, the counters stay in the
# module's own private memory.
#
# Assembled into the bytes of startup.rs; the test `the_bytes_are_those_of_the_source` compares.

    .text
startup:
    endbr64
    pushfq
    cld
    push    %rax
    push    %rcx
    push    %rdx
    push    %rbx
    push    %rsi
    push    %rdi
    push    %r8
    push    %r9
    push    %r10
    push    %r11
    sub     $64, %rsp
    # openat(AT_FDCWD, path, O_RDWR | O_NOCTTY | O_NONBLOCK | O_CLOEXEC)
    mov     $257, %eax
    mov     $-100, %edi
    lea     path(%rip), %rsi
    mov     $0x80902, %edx
    xor     %r10d, %r10d
    syscall
    test    %eax, %eax
    js      done
    mov     %eax, %ebx
    # Does the file begin with this version's identity?
    mov     $17, %eax
    mov     %ebx, %edi
    mov     %rsp, %rsi
    mov     $64, %edx
    xor     %r10d, %r10d
    syscall
    cmp     $64, %rax
    jne     close
    lea     identity(%rip), %rsi
    mov     %rsp, %rdi
    mov     $8, %ecx
    repe cmpsq
    jne     close
    # Does it end where it should? pread64(fd, rsp, 2, length - 1) gives one byte then.
    mov     $17, %eax
    mov     %ebx, %edi
    mov     %rsp, %rsi
    mov     $2, %edx
    mov     last(%rip), %r10
    syscall
    cmp     $1, %rax
    jne     close
    # mmap(area, length, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, offset)
    mov     $9, %eax
    lea     startup(%rip), %rdi
    add     area(%rip), %rdi
    mov     length(%rip), %rsi
    mov     $3, %edx
    mov     $0x11, %r10d
    mov     %ebx, %r8d
    mov     offset(%rip), %r9
    syscall
    cmp     %rdi, %rax
    je      close
    # A map that failed may have unmapped what was there: private memory again (MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED).
    mov     $9, %eax
    mov     $0x32, %r10d
    mov     $-1, %r8
    xor     %r9d, %r9d
    syscall
close:
    mov     $3, %eax
    mov     %ebx, %edi
    syscall
done:
    add     $64, %rsp
    pop     %r11
    pop     %r10
    pop     %r9
    pop     %r8
    pop     %rdi
    pop     %rsi
    pop     %rbx
    pop     %rdx
    pop     %rcx
    pop     %rax
    popfq
    # Here follow five bytes: a jump to where the loader would have gone, or a return.
end:
    .skip   5, 0xcc
    .balign 8, 0xcc
area:   .quad 0
length: .quad 0
offset: .quad 0
last:   .quad 0
identity: .skip 64
path:
