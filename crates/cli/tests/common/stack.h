/* Included before a test program: its `main` runs where, and as, RESTITCH_TEST_STACK says. */
#ifndef STACK_H
#define STACK_H

#include <fcntl.h>
#include <link.h>
#include <linux/userfaultfd.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <ucontext.h>
#include <unistd.h>

#define STACK_LEN (1 << 20)
/* How much a thread needs to run, and the frame of a signal with the state of whatever processor this is; too little
 * for whoever wants to write more below such a frame. */
#define STACK_FEW (getauxval(AT_MINSIGSTKSZ) + 3072)
/* The pages with that. */
#define STACK_TOP ((STACK_FEW + 4095) & ~4095ul)
/* Not possible here. */
#define STACK_SKIPPED 77

int stack_program(int argc, char **argv);

static ucontext_t stack_back, stack_own;
static int stack_argc, stack_result;
static char **stack_argv;
static volatile char stack_selector = 1;

static void stack_run(void) { stack_result = stack_program(stack_argc, stack_argv); }

static int stack_begin(void (*run)(void), char *low, size_t len) {
    getcontext(&stack_own);
    stack_own.uc_stack.ss_sp = low;
    stack_own.uc_stack.ss_size = len;
    stack_own.uc_link = &stack_back;
    makecontext(&stack_own, run, 0);
    swapcontext(&stack_back, &stack_own);
    return stack_result;
}

static int stack_run_on(char *low, size_t len) { return stack_begin(stack_run, low, len); }

static char *stack_map(size_t len, int flags, int fd) {
    char *at = mmap(0, len, PROT_READ | PROT_WRITE, flags, fd, 0);
    if (at == MAP_FAILED) exit(3);
    return at;
}

/* Who touches what is missing waits for a handler that there is not. */
static void stack_watch(char *low, size_t len) {
    int watcher = syscall(SYS_userfaultfd, O_CLOEXEC);
    struct uffdio_api api = {.api = UFFD_API};
    struct uffdio_register range = {.range = {(unsigned long)low, len}, .mode = UFFDIO_REGISTER_MODE_MISSING};
    if (watcher < 0 || ioctl(watcher, UFFDIO_API, &api) || ioctl(watcher, UFFDIO_REGISTER, &range)) exit(STACK_SKIPPED);
}

/* The frames of those who have called `main` go where nobody can read them. They are not returned to. */
static char *stack_frames;

static void stack_hide(int unused) {
    (void)unused;
    stack_watch(stack_frames, 4096);
    if (madvise(stack_frames, 4096, MADV_DONTNEED)) _exit(3);
}

__attribute__((noinline)) static void stack_run_deep(void) {
    volatile char room[STACK_LEN / 8];
    room[0] = room[sizeof room - 1] = 1;
    if (strcmp(getenv("RESTITCH_TEST_STACK"), "watched-frames") == 0) stack_hide(0);
    else signal(SIGUSR1, stack_hide);
    stack_result = stack_program(stack_argc, stack_argv);
    for (;;) pause();
}

/* Near the end of what the first thread's stack is mapped for, which grows when it is touched. */
__attribute__((noinline)) static int stack_run_far_down(void) {
    volatile char room[STACK_LEN / 2];
    room[0] = room[sizeof room - 1] = 1;
    int result = stack_program(stack_argc, stack_argv);
    return result + room[0] - 1;
}

/* Calls from elsewhere than the C library are handed to the thread, which has no handler: it ends. */
static void stack_dispatch(void) {
    FILE *maps = fopen("/proc/self/maps", "r");
    char line[512];
    unsigned long low = 0, high = 0;
    while (maps && fgets(line, sizeof line, maps))
        if (strstr(line, "r-xp") && strstr(line, "libc.so")) sscanf(line, "%lx-%lx", &low, &high);
    if (!high || prctl(59 /* PR_SET_SYSCALL_USER_DISPATCH */, 1, low, high - low, &stack_selector)) exit(STACK_SKIPPED);
}

/* A millisecond off the small stack. */
static void stack_leave(int signal) {
    struct timespec begin, now;
    (void)signal;
    clock_gettime(CLOCK_MONOTONIC, &begin);
    do clock_gettime(CLOCK_MONOTONIC, &now);
    while ((now.tv_sec - begin.tv_sec) * 1000000000L + now.tv_nsec - begin.tv_nsec < 1000000);
}

static void stack_leave_often(void) {
    stack_t other = {.ss_sp = stack_map(STACK_LEN, MAP_PRIVATE | MAP_ANONYMOUS, -1), .ss_size = STACK_LEN};
    struct sigaction action = {.sa_handler = stack_leave, .sa_flags = SA_ONSTACK | SA_RESTART};
    struct itimerval often = {{0, 4000}, {0, 4000}};
    if (sigaltstack(&other, 0) || sigaction(SIGALRM, &action, 0) || setitimer(ITIMER_REAL, &often, 0)) exit(3);
}

/* Shares the memory, and is no thread. */
static int stack_sharer(void *unused) {
    (void)unused;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    for (;;) pause();
}

static void stack_share(int unused) {
    (void)unused;
    char *top = stack_map(STACK_LEN, MAP_PRIVATE | MAP_ANONYMOUS, -1) + STACK_LEN;
    if (clone(stack_sharer, top, CLONE_VM | SIGCHLD, 0) < 0) _exit(STACK_SKIPPED);
}

int main(int argc, char **argv) {
    const char *what = getenv("RESTITCH_TEST_STACK");
    stack_argc = argc;
    stack_argv = argv;
    if (!what) return stack_program(argc, argv);
    if (strcmp(what, "far-down") == 0) return stack_run_far_down();
    if (strcmp(what, "watched") == 0) {
        char *low = stack_map(STACK_LEN, MAP_PRIVATE | MAP_ANONYMOUS, -1);
        stack_watch(low, STACK_LEN - STACK_TOP);
        memset(low + STACK_LEN - STACK_TOP, 0, STACK_TOP);
        return stack_run_on(low, STACK_LEN - STACK_TOP + STACK_FEW);
    }
    if (strcmp(what, "shared") == 0) return stack_run_on(stack_map(STACK_LEN, MAP_SHARED | MAP_ANONYMOUS, -1), STACK_LEN);
    if (strcmp(what, "file") == 0) {
        int fd = open(getenv("RESTITCH_TEST_FILE"), O_RDWR);
        if (fd < 0 || ftruncate(fd, STACK_LEN)) return 3;
        return stack_run_on(stack_map(STACK_LEN, MAP_PRIVATE, fd), STACK_LEN);
    }
    if (strncmp(what, "small", 5) == 0) {
        char *low = stack_map(STACK_TOP + 4096, MAP_PRIVATE | MAP_ANONYMOUS, -1);
        if (mprotect(low, 4096, PROT_NONE)) return 3;
        if (strcmp(what, "small-often-left") == 0) stack_leave_often();
        return stack_run_on(low + 4096, STACK_FEW);
    }
    if (strncmp(what, "watched-frames", 14) == 0) {
        char *low = stack_map(STACK_LEN, MAP_PRIVATE | MAP_ANONYMOUS, -1);
        stack_frames = low + STACK_LEN - 4096;
        return stack_begin(stack_run_deep, low, STACK_LEN);
    }
    if (strcmp(what, "watched-modules") == 0) {
        /* The loader's list of objects. */
        char *low = stack_map(4096, MAP_PRIVATE | MAP_ANONYMOUS, -1);
        stack_watch(low, 4096);
        _r_debug.r_map = (struct link_map *)low;
    }
    if (strcmp(what, "dispatch") == 0) stack_dispatch();
    if (strcmp(what, "sharer") == 0) stack_share(0);
    if (strcmp(what, "sharer-later") == 0) signal(SIGUSR1, stack_share);
    return stack_program(argc, argv);
}
#define main stack_program

#endif
