/* Included before a test program (gcc -include): its data hold one number for each page from NUMBERS_FROM to NUMBERS_TO, a kilobyte
 * behind the page's start. They look like addresses in whatever comes to lie there. */
#ifndef NUMBERS_H
#define NUMBERS_H

static volatile unsigned long numbers[(NUMBERS_TO - NUMBERS_FROM) / 4096];

__attribute__((constructor)) static void hold_numbers(void) {
    for (unsigned long i = 0; i < sizeof numbers / sizeof *numbers; i++) numbers[i] = NUMBERS_FROM + i * 4096 + 1024;
}

#endif
