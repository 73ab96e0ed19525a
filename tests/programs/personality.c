/* Exceptions of a language whose personality routine reads its tables itself and knows only what LLVM writes: no base of
 * landing pads, call sites in uleb128 or udata4. It ends the program at anything else, as Crystal's does. The function
 * that catches is written in assembly, so that its table names the routine.
 * flags: -fexceptions -fasynchronous-unwind-tables */
#include "check.h"
#include <unwind.h>

static NOINLINE uint64_t number(const unsigned char **at) {
    uint64_t value = 0;
    for (int shift = 0;; shift += 7) {
        unsigned char byte = *(*at)++;
        value |= (uint64_t)(byte & 0x7f) << shift;
        if (!(byte & 0x80)) return value;
    }
}

static NOINLINE uint64_t field(const unsigned char **at, int encoding) {
    if (encoding == 1) return number(at);
    uint32_t value;
    memcpy(&value, *at, 4);
    *at += 4;
    return value;
}

_Unwind_Reason_Code own_personality(int version, _Unwind_Action actions, uint64_t class, struct _Unwind_Exception *exception,
                                    struct _Unwind_Context *context) {
    (void)version, (void)class;
    const unsigned char *at = (const unsigned char *)_Unwind_GetLanguageSpecificData(context);
    uintptr_t start = _Unwind_GetRegionStart(context), thrown = _Unwind_GetIP(context) - 1 - start;
    CHECK(*at++ == 0xff);
    if (*at++ != 0xff) number(&at);
    int encoding = *at++;
    CHECK(encoding == 1 || encoding == 3);
    uint64_t length = number(&at);
    for (const unsigned char *end = at + length; at < end;) {
        uint64_t from = field(&at, encoding), len = field(&at, encoding), pad = field(&at, encoding);
        number(&at);
        if (pad == 0 || thrown < from || thrown >= from + len) continue;
        if (actions & _UA_SEARCH_PHASE) return _URC_HANDLER_FOUND;
        CHECK(actions & _UA_HANDLER_FRAME);
        _Unwind_SetGR(context, __builtin_eh_return_data_regno(0), (uintptr_t)exception);
        _Unwind_SetIP(context, start + pad);
        return _URC_INSTALL_CONTEXT;
    }
    return _URC_CONTINUE_UNWIND;
}

static void dispose(_Unwind_Reason_Code reason, struct _Unwind_Exception *exception) { (void)reason, free(exception); }

/* Throws every third number. */
int may_throw(int n) {
    if (n % 3) return n + 1;
    struct _Unwind_Exception *exception = calloc(1, sizeof *exception);
    exception->exception_cleanup = dispose;
    memcpy(&exception->exception_class, "OWNLANG", 8);
    _Unwind_RaiseException(exception);
    CHECK(!"somebody catches");
    return 0;
}

int caught(struct _Unwind_Exception *exception, int n) {
    _Unwind_DeleteException(exception);
    return 2 * n;
}

/* `may_throw(n)`, and `caught` if that throws. */
int guarded(int n);
__asm__(".text\n"
        ".globl guarded\n"
        ".type guarded, @function\n"
        "guarded:\n"
        ".cfi_startproc\n"
        ".cfi_personality 0x9b, own_reference\n"
        ".cfi_lsda 0x1b, .Lguarded_table\n"
        "    push %rbx\n"
        ".cfi_def_cfa_offset 16\n"
        ".cfi_offset %rbx, -16\n"
        "    mov %edi, %ebx\n"
        "1:  call may_throw\n"
        "2:  xor %ebx, %eax\n"
        "    test $1, %bl\n"
        "    je 3f\n"
        "    add $7, %eax\n"
        "3:  pop %rbx\n"
        ".cfi_remember_state\n"
        ".cfi_def_cfa_offset 8\n"
        "    ret\n"
        ".cfi_restore_state\n"
        "4:  mov %rax, %rdi\n"
        "    mov %ebx, %esi\n"
        "    call caught\n"
        "    pop %rbx\n"
        ".cfi_def_cfa_offset 8\n"
        "    ret\n"
        ".cfi_endproc\n"
        ".size guarded, . - guarded\n"
        ".section .gcc_except_table, \"a\", @progbits\n"
        ".Lguarded_table:  .byte 0xff, 0xff, 1\n"
        "    .uleb128 6f - 5f\n"
        "5:  .uleb128 1b - guarded\n"
        "    .uleb128 2b - 1b\n"
        "    .uleb128 4b - guarded\n"
        "    .uleb128 0\n"
        "6:\n"
        ".section .data.rel.local, \"aw\", @progbits\n"
        ".balign 8\n"
        "own_reference: .quad own_personality\n"
        ".text\n");

/* Work without exceptions. */
static NOINLINE unsigned plain(unsigned n) {
    unsigned sum = 0;
    for (unsigned i = 0; i < 200; i++) sum = (n + i) % 5 ? sum * 31 + i : sum ^ (n << (i & 7));
    return sum;
}

static void one_round(unsigned round) {
    unsigned sum = 0;
    for (int n = 0; n < 300; n++) {
        unsigned before = sum;
        sum += plain(n + round);
        CHECK(sum - before == plain(n + round));
        CHECK(guarded(n) == (n % 3 ? ((n + 1) ^ n) + (n & 1 ? 7 : 0) : 2 * n));
    }
}

int main(int argc, char **argv) { return run_rounds(argc, argv, one_round); }
