/* A loop that is never left, in which a thread stands often between the load of a jump table's entry and the jump. */
#include "../check.h"
#include <pthread.h>

struct run {
    uint64_t is_over, steps;
};

/* Until it is over: x = x * 5 + 3, and by two bits of it 11, 22, 33 or 44 more. Gives x, and the number of steps. */
uint64_t dispatch(volatile struct run *run);
#define SLOW " imul %r8, %r8\n imul %r8, %r8\n imul %r8, %r8\n imul %r8, %r8\n"
__asm__(
    ".text\n.p2align 4\n.type dispatch,@function\ndispatch:\n.cfi_startproc\n"
    " mov $1, %eax\n mov $3, %r8d\n xor %r9d, %r9d\n"
    "1: inc %r9\n lea 3(%rax,%rax,4), %rax\n mov %eax, %ecx\n shr $8, %ecx\n and $3, %ecx\n"
    " lea 9f(%rip), %rdx\n movslq (%rdx,%rcx,4), %rcx\n" SLOW " add %rdx, %rcx\n jmp *%rcx\n"
    "3: add $11, %rax\n jmp 2f\n4: add $22, %rax\n jmp 2f\n5: add $33, %rax\n jmp 2f\n6: add $44, %rax\n"
    "2: cmpq $0, (%rdi)\n je 1b\n mov %r9, 8(%rdi)\n ret\n"
    ".cfi_endproc\n.size dispatch,.-dispatch\n"
    ".section .rodata\n.p2align 2\n9: .long 3b-9b, 4b-9b, 5b-9b, 6b-9b\n.text\n");

static volatile struct run run;
static double end;

static void *wait_for_the_end(void *nothing) {
    while (seconds_now() < end) nanosleep(&(struct timespec){.tv_nsec = 20000000}, NULL);
    run.is_over = 1;
    return nothing;
}

int main(int argc, char **argv) {
    pthread_t waiting;
    end = seconds_now() + option(argc, argv, "--seconds", 0);
    CHECK(pthread_create(&waiting, NULL, wait_for_the_end, NULL) == 0);
    uint64_t found = dispatch(&run), x = 1;
    for (uint64_t step = 0; step < run.steps; step++) {
        x = x * 5 + 3;
        x += 11 * (1 + (x >> 8 & 3));
    }
    CHECK(x == found);
    return SUCCESS;
}
