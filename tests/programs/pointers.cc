/* flags: -rdynamic -ldl
 * Addresses of functions from everywhere that makes them: tables in data, instructions, dlsym, pointers to members, virtual tables. They have to be equal where they
 * name one function, different elsewhere, and low bits that are free in one have to be free in all. */
#include "check.h"
#include <dlfcn.h>

typedef uint32_t (*Step)(uint32_t);

#define STEP(name, expression)                                                                   \
    extern "C" __attribute__((aligned(4))) NOINLINE uint32_t name(uint32_t x) {                  \
        OPAQUE(x);                                                                               \
        return expression;                                                                       \
    }
/* Some branches, so that each has several blocks; two low bits of their addresses are free without optimization as well. */
STEP(step_add, x % 3 ? x + 1 : x * 5)
STEP(step_mix, x & 1 ? (x >> 1) ^ 0x9e3779b9u : x >> 1)
STEP(step_twist, x > 1000 ? step_add(x ^ 77) : step_mix(x))
STEP(step_same_1, x * 3)
STEP(step_same_2, x * 3)
extern "C" uint32_t step_other_name(uint32_t) __attribute__((alias("step_mix")));
/* Their entries are not of the same alignment. */
__attribute__((aligned(1))) static NOINLINE uint32_t packed_1(uint32_t x) { OPAQUE(x); return x ? x - 1 : 9; }
__attribute__((aligned(64))) static NOINLINE uint32_t packed_2(uint32_t x) { OPAQUE(x); return x + 17; }

static const struct { const char *name; Step step; } TABLE[] = {
    {"step_add", step_add}, {"step_mix", step_mix}, {"step_twist", step_twist},
    {"step_same_1", step_same_1}, {"step_same_2", step_same_2}, {"step_other_name", step_other_name},
    {nullptr, packed_1}, {nullptr, packed_2},
};
enum { STEPS = sizeof TABLE / sizeof *TABLE };

/* As an instruction makes them. */
static NOINLINE Step made(int i) {
    switch (i) {
    case 0: return step_add;
    case 1: return step_mix;
    case 2: return step_twist;
    case 3: return step_same_1;
    case 4: return step_same_2;
    case 5: return step_other_name;
    case 6: return packed_1;
    default: return packed_2;
    }
}

static NOINLINE void lookups() {
    for (int i = 0; i < STEPS; i++) {
        CHECK(made(i) == TABLE[i].step);
        for (int j = 0; j < STEPS; j++) {
            bool same = i == j || (i == 1 && j == 5) || (i == 5 && j == 1);
            CHECK((made(i) == TABLE[j].step) == same);
        }
        /* A static program has no symbols to look for. */
        if (!TABLE[i].name || !dlsym(RTLD_DEFAULT, "step_add")) continue;
        CHECK((Step)dlsym(RTLD_DEFAULT, TABLE[i].name) == made(i));
        Dl_info info;
        CHECK(dladdr((void *)made(i), &info) != 0 && info.dli_saddr == (void *)made(i));
    }
    CHECK(((uintptr_t)made(7) & 15) == 0);
}

/* The low bits of a pointer hold a number. */
static NOINLINE uint32_t tagged(uint32_t x) {
    uintptr_t words[3] = {(uintptr_t)step_add | 1, (uintptr_t)step_twist | 2, (uintptr_t)packed_2 | 3};
    for (unsigned i = 0; i < 3; i++) {
        uintptr_t word = words[i];
        OPAQUE(word);
        CHECK((word & 3) == i + 1);
        x = ((Step)(word & ~(uintptr_t)3))(x);
    }
    return x;
}

static int up(const void *a, const void *b) {
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return x < y ? -1 : x > y;
}
static int down(const void *a, const void *b) { return -up(a, b); }
static int (*volatile const ORDERS[])(const void *, const void *) = {up, down};

struct Base {
    uint32_t seed = 3;
    virtual ~Base() {}
    virtual uint32_t next(uint32_t x) { return x + seed; }
    NOINLINE uint32_t plain(uint32_t x) { OPAQUE(x); return x % 2 ? x + 1 : x ^ seed; }
    NOINLINE uint32_t other(uint32_t x) { OPAQUE(x); return x - seed; }
};
struct Derived : Base {
    uint32_t next(uint32_t x) override { return x % 7 ? x * 2 : x + 100; }
};
typedef uint32_t (Base::*Member)(uint32_t);
static const Member MEMBERS[] = {&Base::plain, &Base::other, &Base::next};

static NOINLINE Member member(unsigned i) {
    if (i == 0) return &Base::plain;
    return i == 1 ? &Base::other : &Base::next;
}

static void one_round(unsigned round) {
    lookups();
    uint32_t x = round + 1;
    for (unsigned i = 0; i < 4000; i++) {
        const auto &row = TABLE[next_random(&x) % STEPS];
        uint32_t direct = made(&row - TABLE)(x);
        CHECK(row.step(x) == direct);
        x = direct | 1;
    }
    CHECK(tagged(5) == packed_2(step_twist(step_add(5))));
    uint32_t numbers[64];
    for (unsigned i = 0; i < 64; i++) numbers[i] = next_random(&x);
    for (unsigned order = 0; order < 2; order++) {
        qsort(numbers, 64, sizeof *numbers, ORDERS[order]);
        CHECK(ORDERS[order] == (order ? down : up));
        for (unsigned i = 1; i < 64; i++) CHECK(order ? numbers[i - 1] >= numbers[i] : numbers[i - 1] <= numbers[i]);
    }
    Base base;
    Derived derived;
    for (unsigned i = 0; i < 300; i++) {
        Base *object = i % 3 ? &base : &derived;
        unsigned which = i % 3;
        CHECK(member(which) == MEMBERS[which] && member(which) != MEMBERS[(which + 1) % 3]);
        uint32_t want = which == 0 ? object->plain(i) : which == 1 ? object->other(i) : object->next(i);
        CHECK((object->*MEMBERS[which])(i) == want && (object->*member(which))(i) == want);
    }
}

int main(int argc, char **argv) { return run_rounds(argc, argv, one_round); }
