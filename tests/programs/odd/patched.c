/* Functions that are changed while the program runs, at the places that tables in the file name: a sled of XRay (as clang -fxray-instrument
 * makes it), a `nop` of -mrecord-mcount, and two of -fpatchable-function-entry, one of them in front of its function. They are changed by way
 * of /proc/self/mem, for short: a version that is made while they are not must not keep them as they were. */
#include "odd.h"
#include <fcntl.h>

#ifdef __clang__
#define PATCHABLE(all, before) __attribute__((noinline, patchable_function_entry(all, before)))
#else
#define PATCHABLE(all, before) __attribute__((noipa, patchable_function_entry(all, before)))
#endif

/* As of LLVM 10 and before, with -DABSOLUTE. */
#ifdef ABSOLUTE
#define ENTRY ".quad .Lsled, with_sled\n.byte 0,1,1\n"
#define SLED ((uintptr_t)__start_xray_instr_map->at)
#else
#define ENTRY ".quad .Lsled-.Lat, with_sled-.Lat-8\n.byte 0,1,2\n"
#define SLED ((uintptr_t)__start_xray_instr_map + (uintptr_t)__start_xray_instr_map->at)
#endif

/* With `nop`s of five bytes for a call at the start: x * 3 + 7 if x is odd, else x / 2. */
#define BODY "mov %edi,%eax\ntest $1,%dil\nje 1f\nlea 7(%rax,%rax,2),%eax\nret\n1: shr %eax\nret\n"
__asm__(".text\n" FUNCTION("with_sled") ".Lsled: .byte 0xeb,9,0x66,0x0f,0x1f,0x84,0,0,2,0,0\n" BODY END("with_sled")
        FUNCTION("with_nop") ".Lnop: .byte 0x0f,0x1f,0x44,0,0\n" BODY END("with_nop")
        FUNCTION("hook") "lock incq hooked(%rip)\nret\n" END("hook")
        ".pushsection xray_instr_map,\"aw\",@progbits\n.p2align 3\n.Lat:" ENTRY ".zero 13\n.popsection\n"
        ".pushsection __mcount_loc,\"aw\",@progbits\n.p2align 3\n.quad .Lnop\n.popsection\n");

uint32_t with_sled(uint32_t), with_nop(uint32_t);
void hook(void);
volatile uint64_t hooked;

struct sled {
    int64_t at, function;
    uint8_t kind, always, version, filler[13];
};
extern const struct sled __start_xray_instr_map[];
extern const uintptr_t __start___mcount_loc[], __start___patchable_function_entries[];

static inline uint32_t expected(uint32_t x) { return x & 1 ? x * 3 + 7 : x / 2; }

PATCHABLE(5, 0) uint32_t at_start(uint32_t x) {
    OPAQUE(x);
    return expected(x);
}
PATCHABLE(16, 14) uint32_t in_front(uint32_t x) {
    OPAQUE(x);
    return expected(x);
}
NOINLINE __attribute__((used)) uint32_t instead(uint32_t x) {
    OPAQUE(x);
    return ~x;
}

static int memory;
static void put(uintptr_t at, const void *bytes, size_t n) { CHECK(pwrite(memory, bytes, n, (off_t)at) == (ssize_t)n); }

/* A call or a jump. */
static void branch(uintptr_t at, uint8_t opcode, const void *to) {
    uint8_t bytes[5] = {opcode};
    int32_t distance = (int32_t)((intptr_t)to - (intptr_t)at - 5);
    memcpy(bytes + 1, &distance, 4);
    put(at, bytes, 5);
}

static void change(int on) {
    static const uint8_t nop[5] = {0x0f, 0x1f, 0x44, 0, 0}, over[2] = {0xeb, 9}, back[2] = {0xeb, 0xf0}, nops[5] = {0x90, 0x90, 0x90, 0x90, 0x90};
    static const uint8_t number[6] = {0x41, 0xba, 1, 0, 0, 0}, filler[9] = {0x66, 0x0f, 0x1f, 0x84, 0, 0, 2, 0, 0};
    uintptr_t sled = SLED, call = *__start___mcount_loc;
    const uintptr_t *entries = __start___patchable_function_entries;
    int first = entries[0] != (uintptr_t)at_start;
    uintptr_t start = entries[first], front = entries[!first];
    if (on) {
        branch(sled + 6, 0xe8, (const void *)hook);
        put(sled, number, 6);
        branch(call, 0xe8, (const void *)hook);
        branch(start, 0xe9, (const void *)instead);
        branch(front, 0xe9, (const void *)instead);
        put(front + 14, back, 2);
    } else {
        put(sled + 2, filler, 9);
        put(sled, over, 2);
        put(call, nop, 5);
        put(start, nops, 5);
        put(front + 14, nops, 2);
        put(front, nops, 5);
    }
}

/* Calls each of them `n` times. */
NOINLINE static void call_all(uint32_t x, unsigned n, int on) {
    uint64_t before = hooked;
    for (unsigned i = 0; i < n; i++, x = x * 1664525u + 1013904223u) {
        CHECK(with_sled(x) == expected(x));
        CHECK(with_nop(x) == expected(x));
        CHECK(at_start(x) == (on ? ~x : expected(x)));
        CHECK(in_front(x) == (on ? ~x : expected(x)));
    }
    CHECK(hooked - before == (on ? 2 * n : 0));
}

static void one_round(unsigned round) {
    call_all(usual(round, 7), 2000, 0);
    if (round % 2048 == 0) {
        change(1);
        call_all(round, 50, 1);
        change(0);
    }
}

int main(int argc, char **argv) {
    memory = open("/proc/self/mem", O_RDWR | O_CLOEXEC);
    CHECK(memory >= 0);
    return run_rounds(argc, argv, one_round);
}
