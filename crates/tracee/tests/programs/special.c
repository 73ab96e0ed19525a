/* Processes in special states. The first argument says which. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <unistd.h>

__asm__(".text; .balign 16; .globl padding; padding: .skip 128, 0xcc");
extern char padding[];

static void ready(void) {
    printf("ready %p\n", (void *)padding);
    fflush(stdout);
}
static void *goes_on(void *unused) {
    usleep(50000); /* The main thread has ended by now. */
    ready();
    char byte;
    if (read(0, &byte, 1) != 0) exit(1);
    printf("ok\n");
    exit(0);
    return unused;
}
int main(int argc, char **argv) {
    char byte;
    if (argc < 2) return 2;
    if (strcmp(argv[1], "leaderless") == 0) {
        pthread_t thread;
        pthread_create(&thread, 0, goes_on, 0);
        pthread_exit(0);
    } else if (strcmp(argv[1], "seccomp") == 0) {
        struct sock_filter allow = BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
        struct sock_fprog program = {1, &allow};
        if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0) return 3;
        ready();
        if (read(0, &byte, 1) != 0) return 1;
    } else if (strcmp(argv[1], "vfork") == 0) {
        ready();
        int milliseconds = atoi(argv[2]);
        if (vfork() == 0) {
            usleep((unsigned)milliseconds * 1000);
            _exit(0);
        }
        if (read(0, &byte, 1) != 0) return 1;
    }
    printf("ok\n");
    return 0;
}
