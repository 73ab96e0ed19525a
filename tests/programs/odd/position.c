/* Functions that look at their own position by other ways than calls: `syscall` leaves it in rcx, and the x87 unit's state has that of its last
 * instruction. Beside them one that keeps rcx over a system call, as it has to. */
#include "odd.h"

/* Each gives the distance of what it sees from a place that it names, and 13 more or in all. */
__asm__(".text\n"
        FUNCTION("by_system_call") "test $7,%dil\nje 2f\nmov $39,%eax\nsyscall\nlea by_system_call(%rip),%rax\nsub %rax,%rcx\nmov %rcx,%rax\nret\n"
        "2: mov $13,%eax\nret\n" END("by_system_call")
        FUNCTION("by_float_state") "sub $40,%rsp\n.cfi_adjust_cfa_offset 40\ntest $7,%dil\nje 2f\nfldz\nfnstenv (%rsp)\nmov 12(%rsp),%eax\n"
        "fstp %st\nlea by_float_state(%rip),%rcx\nsub %ecx,%eax\nadd $3,%eax\njmp 3f\n2: mov $13,%eax\n3: add $40,%rsp\n.cfi_adjust_cfa_offset -40\nret\n"
        END("by_float_state")
        FUNCTION("keeping") "test $7,%dil\nje 2f\nmov %rdi,%rcx\nmov %rcx,%rdx\nmov $39,%eax\nsyscall\nmov %rdx,%rcx\nlea (%rcx,%rcx),%rax\nret\n"
        "2: lea (%rdi,%rdi),%rax\nret\n" END("keeping"));

long by_system_call(long), by_float_state(long), keeping(long);

/* Processors that keep the address for exceptions only (AMD's) lose it where the thread is switched between the two instructions: once more. */
static long float_state(long i) {
    long seen = 0;
    for (int tries = 0; tries < 100 && seen != 13; tries++) seen = by_float_state(i);
    return seen;
}

static void one_round(unsigned round) {
    for (long i = 1; i < 200; i++) {
        CHECK(by_system_call(i) == 13);
        CHECK(float_state(i) == 13);
        CHECK(keeping(i) == 2 * i);
        usual((uint32_t)i, round);
    }
}

int main(int argc, char **argv) { return run_rounds(argc, argv, one_round); }
