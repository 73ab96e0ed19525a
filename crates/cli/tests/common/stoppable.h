/* Included before a test program (gcc -include): the program's clock jumps ahead once the file that RESTITCH_TEST_STOP
 * names is there, so that `--seconds N` ends when the test is done with it, however slow the machine is. */
#ifndef STOPPABLE_H
#define STOPPABLE_H

#include <stdlib.h>
#include <time.h>
#include <unistd.h>

static inline int stoppable_clock_gettime(clockid_t clock, struct timespec *now) {
    const char *stop = getenv("RESTITCH_TEST_STOP");
    int result = clock_gettime(clock, now);
    if (stop && access(stop, F_OK) == 0) now->tv_sec += 1000000;
    return result;
}
#define clock_gettime stoppable_clock_gettime

#endif
