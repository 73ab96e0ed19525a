/* Processes in special states. The first argument says which. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

__asm__(".text; .balign 16; .globl padding; padding: .skip 128, 0xcc");
extern char padding[];

static void ready(void) {
    printf("ready %p\n", (void *)padding);
    fflush(stdout);
}
/* Whether the main thread has ended. */
static int alone(void) {
    char text[512] = {0};
    FILE *stat = fopen("/proc/self/stat", "r");
    if (!stat || !fgets(text, sizeof text, stat)) exit(1);
    fclose(stat);
    char *state = strrchr(text, ')');
    return state && state[2] == 'Z';
}
static void *goes_on(void *unused) {
    while (!alone()) usleep(1000);
    ready();
    char byte;
    if (read(0, &byte, 1) != 0) exit(1);
    printf("ok\n");
    exit(0);
    return unused;
}
/* Three pages that a userfaultfd watches without anybody who serves it: one that is there, one that is missing, and
   one that is there and may not be written. Says where they are. */
static void watched(void) {
    char *pages = mmap(0, 3 * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    int watcher = syscall(SYS_userfaultfd, O_CLOEXEC);
    struct uffdio_api api = {.api = UFFD_API, .features = UFFD_FEATURE_PAGEFAULT_FLAG_WP};
    struct uffdio_register range = {.range = {(unsigned long)pages, 3 * 4096},
                                    .mode = UFFDIO_REGISTER_MODE_MISSING | UFFDIO_REGISTER_MODE_WP};
    struct uffdio_writeprotect protect = {.range = {(unsigned long)pages + 2 * 4096, 4096},
                                          .mode = UFFDIO_WRITEPROTECT_MODE_WP};
    pages[0] = pages[2 * 4096] = 7;
    if (watcher < 0 || ioctl(watcher, UFFDIO_API, &api) || ioctl(watcher, UFFDIO_REGISTER, &range) ||
        ioctl(watcher, UFFDIO_WRITEPROTECT, &protect)) {
        printf("skipped\n");
        exit(0);
    }
    printf("ready %p\n", (void *)pages);
    fflush(stdout);
}
/* Works in the same memory, and is no thread. */
static int sharer(void *unused) {
    (void)unused;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    for (;;) pause();
    return 0;
}
static void wake(int signal) { (void)signal; }
/* At each SIGUSR1 such a child comes, or goes again, until the input ends. */
static int shares(void) {
    static char stack[16384] __attribute__((aligned(16)));
    struct sigaction waking = {.sa_handler = wake};
    char byte;
    pid_t child = 0;
    sigaction(SIGUSR1, &waking, NULL);
    ready();
    while (read(0, &byte, 1) < 0) {
        if (child > 0) {
            if (kill(child, SIGKILL) || waitpid(child, 0, 0) != child) return 1;
            child = 0;
        } else if ((child = clone(sharer, stack + sizeof stack, CLONE_VM | SIGCHLD, 0)) < 0) {
            return 1;
        }
    }
    return 0;
}
int main(int argc, char **argv) {
    char byte;
    if (argc < 2) return 2;
    if (strcmp(argv[1], "leaderless") == 0) {
        pthread_t thread;
        pthread_create(&thread, 0, goes_on, 0);
        pthread_exit(0);
    } else if (strcmp(argv[1], "waiting") == 0) {
        ready();
        if (read(0, &byte, 1) != 0) return 1;
    } else if (strcmp(argv[1], "watched") == 0) {
        watched();
        if (read(0, &byte, 1) != 0) return 1;
    } else if (strcmp(argv[1], "shares") == 0) {
        if (shares() != 0) return 1;
    } else if (strcmp(argv[1], "vfork") == 0) {
        /* The child lives until a file is there. It says that the program is ready: the parent waits then, or is about to. */
        if (vfork() == 0) {
            ready();
            while (access(argv[2], F_OK) != 0) usleep(1000);
            _exit(0);
        }
        if (read(0, &byte, 1) != 0) return 1;
    }
    printf("ok\n");
    return 0;
}
