/* Computes until a file of the name that is given first is there. Then it executes what is given behind it, or
   ends if that is nothing. */
#include <unistd.h>

static volatile unsigned result;

__attribute__((noinline)) static unsigned step(unsigned x, unsigned i) {
    switch ((x ^ i) & 7) {
    case 0: return x * 3 + 1;
    case 1: return x ^ x >> 5;
    case 2: return x + 0x9e3779b9u;
    case 3: return x << 9 | x >> 23;
    case 4: return ~x;
    case 5: return x * 5 - 3;
    case 6: return x ^ i;
    default: return x - i;
    }
}

int main(int argc, char **argv) {
    if (argc < 2) return 2;
    while (access(argv[1], F_OK) != 0)
        for (unsigned i = 0; i < 200000; i++) result = step(result, i);
    if (argc > 2) {
        execv(argv[2], argv + 2);
        return 1;
    }
    return 42;
}
