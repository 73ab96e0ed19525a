/* Functions at multiples of 64, whose pointers hold something else in the six bits that are free. */
#include "odd.h"

#define STEP(n) \
    __attribute__((aligned(64))) NOINLINE static uint64_t step_##n(uint64_t x) { \
        return x % (n + 2) ? x * (2 * n + 1) + n : x / 2 + n; \
    }
STEP(0) STEP(1) STEP(2) STEP(3) STEP(4) STEP(5) STEP(6) STEP(7)

typedef uint64_t (*step_fn)(uint64_t);
static step_fn volatile steps[] = {step_0, step_1, step_2, step_3, step_4, step_5, step_6, step_7};
#define STEPS (sizeof steps / sizeof *steps)

static void one_round(unsigned round) {
    uint64_t x = round;
    for (uint64_t n = 0; n < 100; n++) {
        uintptr_t tag = (n * 9 + 1) & 63, tagged = (uintptr_t)steps[x % STEPS] + tag;
        uint64_t by = x % STEPS;
        CHECK((tagged & 63) == tag);
        uint64_t expected = x % (by + 2) ? x * (2 * by + 1) + by : x / 2 + by;
        CHECK(((step_fn)(tagged & ~(uintptr_t)63))(x) == expected);
        x = expected + usual((uint32_t)expected, (unsigned)n);
    }
}

int main(int argc, char **argv) { return run_rounds(argc, argv, one_round); }
