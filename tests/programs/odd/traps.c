/* A thread that is traced gets SIGTRAPs that nobody explains (`TRAP_BRKPT`, as a hypervisor makes of breakpoints whose cause it loses), which
 * would end it, and, with `--own 1`, its own: the handler sees each `int1`. */
#define _GNU_SOURCE
#include "../check.h"
#include <errno.h>
#include <signal.h>
#include <sys/syscall.h>
#include <ucontext.h>

static volatile unsigned handled;
/* Some hypervisors on processors of AMD leave the thread in front of the instruction. */
static void on_trap(int signal, siginfo_t *info, void *context) {
    greg_t *rip = &((ucontext_t *)context)->uc_mcontext.gregs[REG_RIP];
    (void)signal;
    (void)info;
    *rip += *(unsigned char *)*rip == 0xf1;
    handled++;
}

/* Whether somebody traces this thread. */
static int is_traced(void) {
    char line[256];
    int tracer = 0;
    FILE *status = fopen("/proc/thread-self/status", "r");
    CHECK(status != NULL);
    while (fgets(line, sizeof line, status) != NULL) sscanf(line, "TracerPid: %d", &tracer);
    fclose(status);
    return tracer != 0;
}

static void unexplained_trap(void) {
    siginfo_t info;
    memset(&info, 0, sizeof info);
    info.si_signo = SIGTRAP;
    info.si_code = TRAP_BRKPT;
    CHECK(syscall(SYS_rt_tgsigqueueinfo, getpid(), (pid_t)syscall(SYS_gettid), SIGTRAP, &info) == 0);
}

NOINLINE static uint32_t work(uint32_t x) {
    for (int i = 0; i < 3000; i++) x = x % 8 == 3 ? x * 3 + 1 : (x >> 1) ^ 0x5bd1e995u;
    OPAQUE(x);
    return x;
}

int main(int argc, char **argv) {
    int own = option(argc, argv, "--own", 0) != 0;
    uint32_t x = 1;
    while (!is_traced()) usleep(1000);
    struct sigaction action = {.sa_sigaction = on_trap, .sa_flags = SA_SIGINFO};
    if (own) CHECK(sigaction(SIGTRAP, &action, NULL) == 0);
    for (unsigned i = 0; i < 300; i++) {
        x ^= work(x);
        if (own) __asm__ volatile(".byte 0xf1" ::: "memory");
        else unexplained_trap();
    }
    CHECK(handled == (own ? 300 : 0));
    return SUCCESS;
}
