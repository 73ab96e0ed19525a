/* A program that works in code which it has made itself, as just-in-time compilers and translators (valgrind, qemu-user)
 * do: nothing that it has mapped from a file runs but for one call in a tenth of a second. With --blocked all signals are
 * blocked meanwhile, as valgrind blocks them. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

/* mov rax, rdi; 1: lea rdx, [rax + rax * 2 + 1]; test al, 1; cmovne rax, rdx; shr rax, 1; inc rax; dec rdi; jne 1b; ret */
static const unsigned char CODE[] = {0x48, 0x89, 0xf8, 0x48, 0x8d, 0x54, 0x40, 0x01, 0xa8, 0x01, 0x48, 0x0f, 0x45, 0xc2,
                                     0x48, 0xd1, 0xe8, 0x48, 0xff, 0xc0, 0x48, 0xff, 0xcf, 0x75, 0xea, 0xc3};

int main(int count, char **arguments) {
    double seconds = 1;
    for (int i = 1; i < count; i++) {
        if (!strcmp(arguments[i], "--seconds") && i + 1 < count) seconds = atof(arguments[++i]);
        if (!strcmp(arguments[i], "--blocked")) {
            sigset_t all;
            sigfillset(&all);
            sigprocmask(SIG_BLOCK, &all, NULL);
        }
    }
    void *place = mmap(NULL, 4096, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (place == MAP_FAILED) return 1;
    memcpy(place, CODE, sizeof CODE);
    unsigned long (*compute)(unsigned long) = (unsigned long (*)(unsigned long))place;
    struct timespec start, now;
    clock_gettime(CLOCK_MONOTONIC, &start);
    unsigned long sum = 0;
    do {
        sum += compute(50000000);
        clock_gettime(CLOCK_MONOTONIC, &now);
    } while ((double)(now.tv_sec - start.tv_sec) < seconds);
    return sum ? 42 : 1;
}
