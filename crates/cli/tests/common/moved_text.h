/* Included before a test program: it moves its code into anonymous memory, as node --use-largepages and iodlr do, at
 * its start or once the file that RESTITCH_TEST_MOVE names is there. */
#ifndef MOVED_TEXT_H
#define MOVED_TEXT_H

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static void moved_text_move(void) {
    unsigned long from, to, here = (unsigned long)moved_text_move;
    char line[512], *code = NULL;
    size_t len = 0;
    FILE *maps = fopen("/proc/self/maps", "r");
    if (!maps) _exit(5);
    while (fgets(line, sizeof line, maps))
        if (sscanf(line, "%lx-%lx", &from, &to) == 2 && from <= here && here < to) code = (char *)from, len = to - from;
    fclose(maps);
    char *copy = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (!code || copy == MAP_FAILED) _exit(6);
    memcpy(copy, code, len);
    if (mprotect(copy, len, PROT_READ | PROT_EXEC)) _exit(7);
    if (mremap(copy, len, len, MREMAP_MAYMOVE | MREMAP_FIXED, code) != code) _exit(8);
}

static void *moved_text_wait(void *file) {
    while (access((const char *)file, F_OK)) usleep(10000);
    moved_text_move();
    return NULL;
}

__attribute__((constructor)) static void moved_text(void) {
    const char *file = getenv("RESTITCH_TEST_MOVE");
    pthread_t thread;
    if (!file || access(file, F_OK) == 0) moved_text_move();
    else if (pthread_create(&thread, NULL, moved_text_wait, (void *)file)) _exit(9);
}

#endif
