/* Included before a test program: makes the process a special one before `main`, as RESTITCH_TEST_SPECIAL says. */
#ifndef SPECIAL_H
#define SPECIAL_H

#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <unistd.h>

static unsigned long special_number(const char *file, const char *key) {
    char line[4096];
    unsigned long value = 0;
    FILE *f = fopen(file, "r");
    while (f && fgets(line, sizeof line, f))
        if (strncmp(line, key, strlen(key)) == 0) value = strtoul(line + strlen(key), NULL, 10);
    if (f) fclose(f);
    return value;
}

static unsigned long special_lines(const char *file) {
    unsigned long lines = 0;
    FILE *f = fopen(file, "r");
    for (int c; f && (c = getc(f)) != EOF;) lines += c == '\n';
    if (f) fclose(f);
    return lines;
}

static void special_limit(int what, unsigned long bytes) {
    struct rlimit limit = {bytes, bytes};
    if (setrlimit(what, &limit)) _exit(3);
}

/* As many mappings as leave `left` of what the kernel permits. */
static void special_mappings(unsigned long left) {
    unsigned long most = special_number("/proc/sys/vm/max_map_count", ""), page = 4096;
    unsigned long wanted = most - left - special_lines("/proc/self/maps");
    char *memory = mmap(NULL, wanted * page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) _exit(3);
    for (unsigned long i = 0; i < wanted; i += 2) mprotect(memory + i * page, page, PROT_READ);
}

/* Nothing free within 2 GiB of this program's code. */
static void special_full(void) {
    uintptr_t here = (uintptr_t)&special_full & ~(uintptr_t)4095, step = 1 << 20;
    for (int pass = 0; pass < 2; pass++, step = 4096) {
        uintptr_t reach = (uintptr_t)5 << 30, low = here > reach ? here - reach : 65536;
        for (uintptr_t at = low & ~(step - 1); at < here + reach; at += step)
            if (pass == 0) mmap((void *)at, step, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE, -1, 0);
    }
    /* What is left between them is filled page by page, as the memory map tells. */
    char line[4096];
    for (int again = 0; again < 4; again++) {
        unsigned long last = 0, from, to;
        FILE *f = fopen("/proc/self/maps", "r");
        while (f && fgets(line, sizeof line, f)) {
            if (sscanf(line, "%lx-%lx", &from, &to) != 2) continue;
            if (last && from > last && from - last < ((unsigned long)1 << 32))
                mmap((void *)last, from - last, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE, -1, 0);
            last = to;
        }
        if (f) fclose(f);
    }
}

__attribute__((constructor)) static void special(void) {
    const char *what = getenv("RESTITCH_TEST_SPECIAL");
    unsigned long number = 0;
    if (what && strchr(what, ':')) number = strtoul(strchr(what, ':') + 1, NULL, 10);
    if (!what) return;
    if (strcmp(what, "nobody") == 0) {
        if (setgid(65534) || setuid(65534) || prctl(PR_SET_DUMPABLE, 1)) _exit(3);
    } else if (strcmp(what, "ordinary") == 0) {
    } else if (strncmp(what, "locked", 6) == 0) {
        if (mlockall(MCL_CURRENT | MCL_FUTURE)) _exit(3);
    } else if (strncmp(what, "lock-limit", 10) == 0) {
        if (mlockall(MCL_CURRENT | MCL_FUTURE)) _exit(3);
        special_limit(RLIMIT_MEMLOCK, (special_number("/proc/self/status", "VmLck:") << 10) + number);
        /* The limit does not hold for root. */
        if (setgid(65534) || setuid(65534) || prctl(PR_SET_DUMPABLE, 1)) _exit(3);
    } else if (strncmp(what, "address-space", 13) == 0) {
        special_limit(RLIMIT_AS, (special_number("/proc/self/status", "VmSize:") << 10) + number);
    } else if (strncmp(what, "mappings", 8) == 0) {
        special_mappings(number);
    } else if (strncmp(what, "full", 4) == 0) {
        special_full();
    } else if (strncmp(what, "undumpable", 10) == 0) {
        if (prctl(PR_SET_DUMPABLE, 0)) _exit(3);
    } else {
        _exit(3);
    }
}

#endif
