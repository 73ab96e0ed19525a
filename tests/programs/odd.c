/* Work in a process that is unusual: with `--leader 1` its first thread has ended, with `--reserve N` it has reserved N GiB of addresses that it never touches but for a few pages,
 * with `--restricted 1` all its code is sealed, with 2 no memory may become executable, with 3 it can open no more files; with
 * `--vfork N` a thread has a vfork child most of the time, which waits N milliseconds before it executes its program. */
#include "check.h"
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#ifdef PADDED
/* Fills the last page of a static program's code. */
#define TEXT(x) #x
#define FILL(n) __asm__(".pushsection filler, \"ax\"\n.rept " TEXT(n) "\nret\n.endr\n.popsection")
FILL(PADDED);
#endif

static int arguments;
static char **argument;

NOINLINE static uint32_t mixed(uint32_t x) {
    OPAQUE(x);
    if (x % 3 == 0) return x / 3 ^ 0x55;
    if (x % 5 == 0) return x * 7 + 1;
    return x << 1 | x >> 31;
}

NOINLINE static uint32_t step(uint32_t x, unsigned way) {
    switch (way % 6) {
    case 0: return mixed(x);
    case 1: return x + 11;
    case 2: return mixed(x ^ way);
    case 3: return x * 31;
    case 4: return x & 1 ? mixed(x) : ~x;
    default: return x ^ x >> 3;
    }
}

static void one_round(unsigned round) {
    uint32_t state = round % 16 + 1, first = 0, again = 0;
    for (int twice = 0; twice < 2; twice++) {
        uint32_t x = 1;
        state = round % 16 + 1;
        for (unsigned i = 0; i < 20000; i++) x = step(x, next_random(&state));
        *(twice ? &again : &first) = x;
    }
    CHECK(first == again);
}

static void *work(void *unused) {
    (void)unused;
    exit(run_rounds(arguments, argument, one_round));
}

static void reserve(size_t gigabytes) {
    size_t bytes = gigabytes << 30;
    char *start = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    CHECK(start != MAP_FAILED);
    for (size_t i = 0; i < 100; i++) start[i * (bytes / 100)] = 1;
}

static void *make_children(void *milliseconds) {
    for (;;) {
        int status = 0;
        pid_t child = vfork();
        if (child == 0) {
            usleep((useconds_t)(uintptr_t)milliseconds * 1000);
            execl("/bin/true", "true", (char *)NULL);
            _exit(1);
        }
        CHECK(waitpid(child, &status, 0) == child && status == 0);
        usleep(50000);
    }
    return NULL;
}

/* Not every C library has these yet. */
#define MSEAL 462
#define MEMORY_DENY_WRITE_EXECUTE 65

/* Nobody can map, unmap or protect the code anew. */
static int seal_code(void) {
    char line[512], access[8];
    unsigned long start, end;
    int failed = 0;
    FILE *maps = fopen("/proc/self/maps", "r");
    CHECK(maps != NULL);
    while (fgets(line, sizeof line, maps)) {
        int is_code = sscanf(line, "%lx-%lx %7s", &start, &end, access) == 3 && access[2] == 'x';
        if (is_code && !strstr(line, "vsyscall")) failed |= syscall(MSEAL, start, end - start, 0) != 0;
    }
    fclose(maps);
    return failed;
}

/* Ends the program with 77 where the kernel does not have it. */
static void restrict_as(long kind) {
    struct rlimit none = {0, 0};
    int failed = 0;
    if (kind == 1) failed = seal_code();
    if (kind == 2) failed = prctl(MEMORY_DENY_WRITE_EXECUTE, 1, 0, 0, 0);
    if (kind == 3) failed = setrlimit(RLIMIT_NOFILE, &none);
    if (failed) _exit(77);
}

int main(int argc, char **argv) {
    restrict_as(option(argc, argv, "--restricted", 0));
    arguments = argc;
    argument = argv;
    size_t gigabytes = (size_t)option(argc, argv, "--reserve", 0);
    if (gigabytes) reserve(gigabytes);
    pthread_t thread;
    uintptr_t milliseconds = (uintptr_t)option(argc, argv, "--vfork", 0);
    if (milliseconds) CHECK(pthread_create(&thread, NULL, make_children, (void *)milliseconds) == 0);
    if (option(argc, argv, "--leader", 0) == 0) return run_rounds(argc, argv, one_round);
    CHECK(pthread_create(&thread, NULL, work, NULL) == 0);
    pthread_exit(NULL);
}
