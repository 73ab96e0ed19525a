/* Calls each generated function with changing arguments and prints a checksum of each. Needs no C library. */
typedef unsigned long word;
extern word (*const functions[])(word, word);
extern const word function_count;

static long call_system(long number, long a, long b, long c) {
    long result;
    __asm__ volatile("syscall" : "=a"(result) : "0"(number), "D"(a), "S"(b), "d"(c) : "rcx", "r11", "memory");
    return result;
}

static void print(word index, word sum) {
    char line[24];
    int at = 0;
    line[at++] = 'f';
    line[at++] = '0' + index / 10;
    line[at++] = '0' + index % 10;
    line[at++] = ' ';
    for (int shift = 60; shift >= 0; shift -= 4)
        line[at++] = "0123456789abcdef"[sum >> shift & 15];
    line[at++] = '\n';
    call_system(1, 1, (long)line, at);
}

static word number(const char *digit) {
    word value = 0;
    for (; *digit >= '0' && *digit <= '9'; digit++)
        value = value * 10 + (*digit - '0');
    return value;
}

static word checksum(word index, word rounds) {
    word sum = index;
    for (word i = 0; i < rounds; i++)
        sum = functions[index](sum, i) + (sum << 7 | sum >> 57);
    return sum;
}

/* Arguments: rounds a function, and how often all of it is done again. Later sums that differ from the first are printed, and end it with 3. */
__attribute__((used)) void run(word *stack) {
    static word first[100];
    word rounds = stack[0] > 1 ? number((const char *)stack[2]) : 1;
    word laps = stack[0] > 2 ? number((const char *)stack[3]) : 0;
    for (word index = 0; index < function_count; index++)
        print(index, first[index] = checksum(index, rounds));
    for (word lap = 0; lap < laps; lap++)
        for (word index = 0; index < function_count; index++) {
            word sum = checksum(index, rounds);
            if (sum == first[index])
                continue;
            print(index, sum);
            call_system(231, 3, 0, 0);
        }
    call_system(231, 0, 0, 0);
}

__asm__(".globl _start\n.type _start, @function\n_start:\n.cfi_startproc\n.cfi_undefined rip\n"
        "mov %rsp, %rdi\nand $-16, %rsp\ncall run\nhlt\n.cfi_endproc\n.size _start, . - _start\n"
        /* Room between functions, as other programs have it: a tracer needs a few bytes of code that nobody executes. */
        ".skip 64, 0x90\n");
