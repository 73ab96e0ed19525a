/* Faults that are expected: a handler of SIGSEGV looks the program counter up among places that it knows, as safe fetches of virtual machines, traps of
 * WebAssembly code and copies from memory that may not be there do, and goes on elsewhere. It knows the places by two labels, by a table of addresses, by one of
 * distances (in a section of its own, like the kernel's __ex_table), and by the bounds of a section of code. The accesses lie behind a branch, so that there is something to move. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "check.h"
#include <signal.h>
#include <sys/mman.h>
#include <ucontext.h>

typedef long fetch(const volatile int *place, long otherwise);
extern fetch by_labels, by_table, by_distances, by_section;
extern const char labels_begin[], labels_end[], labels_failed[];
extern const char __start_fetch_code[], __stop_fetch_code[], section_failed[];
extern const struct row { const char *from, *to, *go_on; } fault_rows[];
extern const struct distances { int32_t from, go_on; } __start_fault_distances[], __stop_fault_distances[];

/* A function NAME that reads its first argument behind a branch, at LABELS_begin up to LABELS_end, and gives its second one if LABELS_failed is come to. */
#define FETCH(name, labels)                                                                                       \
    ".p2align 4\n.globl " name "\n.type " name ",@function\n" name ":\n.cfi_startproc\n"                          \
    "test $1, %sil\nje 1f\nsub $1, %rsi\njmp 2f\n1: add $1, %rsi\n2:\n"                                           \
    ".globl " labels "_begin\n" labels "_begin:\nmovslq (%rdi), %rax\n"                                           \
    ".globl " labels "_end\n" labels "_end:\nret\n"                                                               \
    ".globl " labels "_failed\n" labels "_failed:\nmov %rsi, %rax\nret\n.cfi_endproc\n.size " name ",.-" name "\n"

__asm__(".text\n" FETCH("by_labels", "labels") FETCH("by_table", "table") FETCH("by_distances", "distances")
        ".section fetch_code,\"ax\"\n" FETCH("by_section", "section")
        ".section .data.rel.ro,\"aw\"\n.p2align 3\n.globl fault_rows\nfault_rows: .quad table_begin, table_end, table_failed, 0, 0, 0\n"
        ".section fault_distances,\"a\"\n.p2align 2\n.long distances_begin - ., distances_failed - .\n.text\n");

static long faults;

/* Where a fault at `at` goes on; 0 if it was not expected. */
NOINLINE static const char *handled(const char *at) {
    if (at >= labels_begin && at < labels_end) return labels_failed;
    if (at >= __start_fetch_code && at < __stop_fetch_code) return section_failed;
    for (const struct row *row = fault_rows; row->from; row++)
        if (at >= row->from && at < row->to) return row->go_on;
    for (const struct distances *row = __start_fault_distances; row < __stop_fault_distances; row++)
        if (at == (const char *)&row->from + row->from) return (const char *)&row->go_on + row->go_on;
    return 0;
}

static void on_fault(int number, siginfo_t *info, void *context) {
    greg_t *at = &((ucontext_t *)context)->uc_mcontext.gregs[REG_RIP];
    const char *go_on = handled((const char *)*at);
    (void)number, (void)info;
    if (!go_on) {
        static const char text[] = "a fault where none was expected\n";
        (void)!write(2, text, sizeof text - 1);
        _exit(1);
    }
    *at = (greg_t)go_on;
    faults++;
}

static const int *hole;

static void one_round(unsigned round) {
    static fetch *const all[] = {by_labels, by_table, by_distances, by_section};
    static const int good[] = {5, -7, 11, 13};
    uint32_t random = round * 77u + 1;
    long before = faults, expected = 0;
    for (int i = 0; i < 20000; i++) {
        long otherwise = next_random(&random) >> 8 & 1023, with_failure = otherwise + (otherwise & 1 ? -1 : 1);
        int which = i & 3, fails = i % 509 < 4;
        const int *place = fails ? hole : &good[which];
        CHECK(all[which](place, otherwise) == (fails ? with_failure : good[which]));
        expected += fails;
    }
    CHECK(faults - before == expected);
}

int main(int argc, char **argv) {
    struct sigaction action = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO};
    CHECK(sigaction(SIGSEGV, &action, NULL) == 0);
    hole = mmap(NULL, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(hole != MAP_FAILED);
    return run_rounds(argc, argv, one_round);
}
