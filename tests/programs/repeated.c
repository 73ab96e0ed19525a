/* Branches that go as one before them did: the same question asked twice with a join between, and an interpreter's operation
 * that is always followed by the same kind of operation. The join says little of the way on, the way into it says all. */
#include "check.h"

/* Too long for the compiler to have it twice. */
static inline __attribute__((always_inline)) uint32_t joined(uint32_t y, uint32_t x) {
    y += x >> 3;
    OPAQUE(y);
    y ^= y << 5;
    OPAQUE(y);
    y += x >> 7;
    OPAQUE(y);
    return y ^ y >> 9;
}

/* Each side of the first `if` ends in the second. */
NOINLINE uint32_t asks_twice(uint32_t x, uint32_t n) {
    uint32_t y = x;
    OPAQUE(n);
    if (n & 1) { y = y * 7 + 1; OPAQUE(y); } else { y = y ^ 99; OPAQUE(y); }
    y = joined(y, x);
    OPAQUE(y);
    OPAQUE(n);
    if (n & 1) { y = y - n; OPAQUE(y); } else { y = y + n; OPAQUE(y); }
    return y * 3;
}

/* A stack machine of two kinds of operations, told apart by a branch at one place. */
NOINLINE uint32_t interprets(const unsigned char *code, uint32_t length, uint32_t x) {
    uint32_t kept = 1;
    for (uint32_t at = 0; at < length; at++) {
        uint32_t operation = code[at];
        OPAQUE(operation);
        if (operation & 1) { kept = kept * 5 + x; OPAQUE(kept); } else { x = x + kept; OPAQUE(x); }
    }
    return x;
}

static void one_round(unsigned round) {
    uint32_t x = round, want = round;
    for (uint32_t n = 0; n < 20000; n++) {
        x = asks_twice(x, n * 2654435761u >> 16);
        uint32_t m = n * 2654435761u >> 16, y = m & 1 ? want * 7 + 1 : want ^ 99;
        y = joined(y, want);
        want = 3 * (m & 1 ? y - m : y + m);
        CHECK(x == want);
    }
    unsigned char code[64];
    for (unsigned i = 0; i < sizeof code; i++) code[i] = (unsigned char)(i & 1);
    for (unsigned n = 0; n < 500; n++) {
        uint32_t kept = 1, y = n;
        for (unsigned i = 0; i < sizeof code; i++) {
            if (i & 1) kept = kept * 5 + y; else y = y + kept;
        }
        CHECK(interprets(code, sizeof code, n) == y);
    }
}

int main(int argc, char **argv) { return run_rounds(argc, argv, one_round); }
