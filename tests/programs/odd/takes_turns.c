/* Two programs that execute each other, `takes_turns ROUNDS OTHER` (with OTHER built with -DOTHER): linked
 * statically to fixed addresses, so that code of the one lies where the other has other code. Each works for
 * some milliseconds. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

__attribute__((noinline)) static unsigned work(int n) {
    volatile unsigned x = 1;
    for (int i = 0; i < n; i++) {
#ifdef OTHER
        x = x * 5 + 1;
        if (x & 8) x ^= 5;
        if (x & 16) x ^= 99;
#else
        x = x * 3 + 1;
#endif
        if (x & 4) x += 3;
    }
    return x;
}

int main(int argc, char **argv) {
    if (argc != 3) return 2;
    int rounds = atoi(argv[1]);
    work(1000000);
    if (rounds == 0) return 42;
    char text[20], own[4096];
    snprintf(text, sizeof text, "%d", rounds - 1);
    ssize_t len = readlink("/proc/self/exe", own, sizeof own - 1);
    if (len < 0) return 3;
    own[len] = 0;
    execl(argv[2], argv[2], text, own, (char *)NULL);
    return 4;
}
