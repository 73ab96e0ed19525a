/* Code that is moved while odd functions beside it stay: a loop whose usual way is behind a branch. */
#ifndef ODD_H
#define ODD_H

#include "../check.h"

NOINLINE static uint32_t usual(uint32_t x, unsigned n) {
    for (unsigned i = 0; i < 400; i++) {
        if (__builtin_expect((x ^ i * n) % 8 == 3, 1))
            x = x * 3 + i;
        else
            x = (x >> 1) ^ 0x5bd1e995u;
        OPAQUE(x);
    }
    return x;
}

/* The same without a branch. */
static inline uint32_t unusual(uint32_t x, unsigned n) {
    for (unsigned i = 0; i < 400; i++) {
        uint32_t taken = -(uint32_t)((x ^ i * n) % 8 == 3);
        x = (taken & (x * 3 + i)) | (~taken & ((x >> 1) ^ 0x5bd1e995u));
    }
    return x;
}

#define FUNCTION(name) ".p2align 4\n.globl " name "\n.type " name ",@function\n" name ":\n.cfi_startproc\n"
#define END(name) ".cfi_endproc\n.size " name ",.-" name "\n"

#endif
