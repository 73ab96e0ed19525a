/* A process under system call filters. Each argument is one: NUMBER:ACTION forbids a call (ACTION is what the filter returns for it),
 * `no-writable-code` what systemd's MemoryDenyWriteExecute= does, `strict` is strict seccomp. With `thread` a second thread stays without.
 * It waits for the end of its input, by poll with a timeout, which a stop interrupts. */
#define _GNU_SOURCE
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <pthread.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

__asm__(".text; .balign 16; .globl padding; padding: .skip 128, 0xcc");
extern char padding[];

static void install(struct sock_filter *filter, size_t len) {
    struct sock_fprog program = {len, filter};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0) exit(3);
}
#define NUMBER BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr))
#define THIRD BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[2]))
#define ALLOW BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)
#define KILL BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS)
#define EQUALS(k, jt, jf) BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, k, jt, jf)
#define AND(k) BPF_STMT(BPF_ALU | BPF_AND | BPF_K, k)

static void forbid(unsigned number, unsigned action) {
    struct sock_filter filter[] = {NUMBER, EQUALS(number, 0, 1), BPF_STMT(BPF_RET | BPF_K, action), ALLOW};
    install(filter, 4);
}
static void no_writable_code(void) {
    struct sock_filter filter[] = {
        NUMBER, EQUALS(SYS_mmap, 0, 3), THIRD, AND(PROT_WRITE | PROT_EXEC), EQUALS(PROT_WRITE | PROT_EXEC, 4, 5),
        EQUALS(SYS_mprotect, 0, 4), THIRD, AND(PROT_EXEC), EQUALS(PROT_EXEC, 0, 1), KILL, ALLOW,
    };
    install(filter, 11);
}
static void *wait_for_ever(void *unused) {
    for (;;) pause();
    return unused;
}
int main(int argc, char **argv) {
    pthread_t thread;
    for (int i = 1; i < argc; i++) {
        unsigned number, action;
        if (strcmp(argv[i], "thread") == 0) pthread_create(&thread, 0, wait_for_ever, 0);
        else if (strcmp(argv[i], "no-writable-code") == 0) no_writable_code();
        else if (strcmp(argv[i], "strict") == 0) {
            printf("ready %p\n", (void *)padding);
            fflush(stdout);
            char byte;
            if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_STRICT) != 0) return 3;
            syscall(SYS_read, 0, &byte, 1);
            syscall(SYS_write, 1, "ok\n", 3);
            syscall(SYS_exit, 0);
        } else if (sscanf(argv[i], "%u:%x", &number, &action) == 2) forbid(number, action);
        else return 2;
    }
    /* No call behind this but those of waiting, reading, writing and ending. */
    static char text[64];
    int len = snprintf(text, sizeof text, "ready %p\n", (void *)padding);
    if (write(1, text, len) != len) return 1;
    struct pollfd input = {0, POLLIN, 0};
    if (poll(&input, 1, 600000) != 1) return 1;
    char byte;
    if (read(0, &byte, 1) != 0 || write(1, "ok\n", 3) != 3) return 1;
    _exit(0);
}
