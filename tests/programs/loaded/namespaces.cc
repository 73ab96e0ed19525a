/* The C library several times, each with its own functions for unwinders: dlmopen loads a library into a namespace of its own.
 * Exceptions are thrown all the time. */
#include "../check.h"
#include <dlfcn.h>

static double (*root)(double);

NOINLINE static unsigned thrown(unsigned i) {
    OPAQUE(i);
    if (i % 7 == 0) throw i;
    return i * 3;
}

NOINLINE static unsigned caught(unsigned i) {
    try {
        return thrown(i);
    } catch (unsigned value) {
        return value + 1;
    }
}

static void one_round(unsigned) {
    for (unsigned i = 0; i < 2000; i++) {
        CHECK(caught(i) == (i % 7 == 0 ? i + 1 : i * 3));
        CHECK(root(double(i) * double(i)) == double(i));
    }
}

int main(int argc, char **argv) {
    void *library = dlmopen(LM_ID_NEWLM, "libm.so.6", RTLD_NOW);
    CHECK(library);
    root = reinterpret_cast<double (*)(double)>(dlsym(library, "sqrt"));
    CHECK(root);
    return run_rounds(argc, argv, one_round);
}
