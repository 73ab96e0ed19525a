/* Jump tables: dense, sparse and nested switches, tables with a negative base, with holes that go to the default, with
 * fall-through between cases, without a bounds check (all 256 values of a byte; an unreachable default), with 64-bit
 * selectors, two tables with one dispatch register, and cases that share a target. Each is compared with a formula. */
#include "check.h"

#define STEP(n) \
    OPAQUE(x); \
    x = x * (2u * (unsigned)(n) + 3u) + (unsigned)(n) * 7u;
#define CASE(n) case (n): STEP(n) break;
#define CASES4(n) CASE(n) CASE((n) + 1) CASE((n) + 2) CASE((n) + 3)
#define CASES16(n) CASES4(n) CASES4((n) + 4) CASES4((n) + 8) CASES4((n) + 12)
#define CASES64(n) CASES16(n) CASES16((n) + 16) CASES16((n) + 32) CASES16((n) + 48)

static uint32_t formula(uint32_t x, int n) { return x * (2u * (unsigned)n + 3u) + (unsigned)n * 7u; }

NOINLINE static uint32_t dense(uint32_t x, unsigned op) {
    switch (op) {
        CASES64(0)
    default: x ^= 0xdefa0001u;
    }
    return x;
}

NOINLINE static uint32_t negative_base(uint32_t x, int op) {
    switch (op) {
        CASES16(-20)
        CASES16(-4)
        CASES4(12)
    default: x ^= 0xdefa0002u;
    }
    return x;
}

NOINLINE static uint32_t holes(uint32_t x, int op) {
    switch (op) {
        CASES4(100) CASE(106) CASE(107) CASE(109) CASES4(112) CASE(119) CASE(120) CASES4(124)
    default: x ^= 0xdefa0003u;
    }
    return x;
}

static int in_holes(int op) {
    return (op >= 100 && op < 104) || op == 106 || op == 107 || op == 109 || (op >= 112 && op < 116) || op == 119 ||
           op == 120 || (op >= 124 && op < 128);
}

NOINLINE static uint32_t sparse(uint32_t x, int op) {
    switch (op) {
        CASE(1) CASE(10) CASE(100) CASE(1000) CASE(7777) CASE(-5000) CASE(123456) CASE(0x7fffffff)
    default: x ^= 0xdefa0004u;
    }
    return x;
}

/* No value is outside the table: compilers leave the comparison out. */
NOINLINE static uint32_t whole_byte(uint32_t x, unsigned char op) {
    switch (op) { CASES64(0) CASES64(64) CASES64(128) CASES64(192) }
    return x;
}

NOINLINE static uint32_t unreachable_default(uint32_t x, unsigned op) {
    switch (op) {
        CASES16(0)
    default: __builtin_unreachable();
    }
    return x;
}

NOINLINE static uint32_t nested(uint32_t x, unsigned op) {
    switch (op >> 4) {
    case 0:
        switch (op & 15) { CASES16(0) }
        break;
    case 1:
        switch (op & 15) {
            CASES4(3) CASES4(7)
        default: x += 11;
        }
        break;
    case 2: x ^= 5; /* fall through */
    case 3: STEP(3) break;
    case 4:
        for (unsigned i = 0; i < 3; i++)
            switch ((op + i) & 7) { CASES4(0) CASES4(4) }
        break;
    case 5: return x + 1;
    case 6: x = dense(x, op & 15); break;
    default: x ^= 0xdefa0005u;
    }
    return x;
}

static uint32_t nested_formula(uint32_t x, unsigned op) {
    unsigned low = op & 15, high = op >> 4;
    if (high == 0) return formula(x, (int)low);
    if (high == 1) return low >= 3 && low < 11 ? formula(x, (int)low) : x + 11;
    if (high == 2) return formula(x ^ 5, 3);
    if (high == 3) return formula(x, 3);
    if (high == 4) {
        for (unsigned i = 0; i < 3; i++) x = formula(x, (int)((op + i) & 7));
        return x;
    }
    if (high == 5) return x + 1;
    if (high == 6) return formula(x, (int)low);
    return x ^ 0xdefa0005u;
}

/* Falls from case to case: the entry decides how many steps are left (as in Duff's device). */
NOINLINE static uint32_t fall_through(uint32_t x, long long op) {
    switch (op) {
    case 0x100000007LL: STEP(7) /* fall through */
    case 0x100000006LL: STEP(6) /* fall through */
    case 0x100000005LL: STEP(5) /* fall through */
    case 0x100000004LL: STEP(4) /* fall through */
    case 0x100000003LL: STEP(3) /* fall through */
    case 0x100000002LL: STEP(2) /* fall through */
    case 0x100000001LL: STEP(1) break;
    default: x ^= 0xdefa0006u;
    }
    return x;
}

NOINLINE static uint32_t shared_targets(uint32_t x, unsigned op) {
    switch (op) {
    case 0: case 2: case 4: case 8: STEP(1) break;
    case 1: case 3: case 9: STEP(2) break;
    case 5: case 6: STEP(3) break;
    case 7: STEP(4) /* fall through */
    case 10: STEP(5) break;
    default: break;
    }
    return x;
}

static uint32_t shared_formula(uint32_t x, unsigned op) {
    static const signed char group[11] = {1, 2, 1, 2, 1, 3, 3, 4, 1, 2, 5};
    if (op > 10) return x;
    x = formula(x, group[op]);
    return group[op] == 4 ? formula(x, 5) : x;
}

static void one_round(unsigned round) {
    uint32_t state = round * 2654435761u | 1, x = 1;
    static const int rare[] = {1, 10, 100, 1000, 7777, -5000, 123456, 0x7fffffff, 0, 2, -1, 5000, 7778};
    for (int i = 0; i < 60000; i++) {
        unsigned r = next_random(&state);
        unsigned op = r % 80;
        CHECK(dense(x, op) == (op < 64 ? formula(x, (int)op) : (x ^ 0xdefa0001u)));
        int n = (int)(r % 50) - 25;
        CHECK(negative_base(x, n) == (n >= -20 && n < 16 ? formula(x, n) : (x ^ 0xdefa0002u)));
        int h = 95 + (int)(r % 40);
        CHECK(holes(x, h) == (in_holes(h) ? formula(x, h) : (x ^ 0xdefa0003u)));
        unsigned s = r % 13;
        CHECK(sparse(x, rare[s]) == (s < 8 ? formula(x, rare[s]) : (x ^ 0xdefa0004u)));
        CHECK(whole_byte(x, (unsigned char)r) == formula(x, (unsigned char)r));
        CHECK(unreachable_default(x, r & 15) == formula(x, (int)(r & 15)));
        CHECK(nested(x, r & 127) == nested_formula(x, r & 127));
        int depth = (int)(r % 9);
        uint32_t expected = x;
        for (int k = depth; k >= 1; k--) expected = formula(expected, k);
        if (depth == 0 || depth == 8) expected = x ^ 0xdefa0006u;
        CHECK(fall_through(x, 0x100000000LL + depth) == expected);
        CHECK(shared_targets(x, r % 13) == shared_formula(x, r % 13));
        x = dense(x, op) + r;
    }
}

int main(int argc, char **argv) { return run_rounds(argc, argv, one_round); }
