/* Included before a test program: makes the process a hostile one before `main`, as RESTITCH_TEST_HOSTILE says. */
#ifndef HOSTILE_H
#define HOSTILE_H

#include <errno.h>
#include <fcntl.h>
#include <link.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* A user that nobody is. */
#define HOSTILE_USER 65533
/* Where a file is mapped whose name says that it is restitch's: below what restitch would choose. */
#define HOSTILE_PLACE ((void *)0x7e0000000000)

static int hostile_victim, hostile_count;

/* Puts the victim in place of each memory file of restitch's, as soon as there is one, and writes down how often. */
static void *hostile_exchange(void *unused) {
    char name[64], leads_to[256];
    long count = 0;
    (void)unused;
    for (;;)
        for (int fd = 0; fd < 32; fd++) {
            if (fd == hostile_victim || fd == hostile_count) continue;
            snprintf(name, sizeof name, "/proc/self/fd/%d", fd);
            ssize_t len = readlink(name, leads_to, sizeof leads_to - 1);
            if (len < 0) continue;
            leads_to[len] = 0;
            if (!strstr(leads_to, "memfd:") || !strstr(leads_to, "restitch-")) continue;
            if (dup2(hostile_victim, fd) == fd && pwrite(hostile_count, &count, sizeof count, 0) > 0) count++;
        }
}

static volatile sig_atomic_t hostile_workers;

static void hostile_reload(int signal) {
    (void)signal;
    hostile_workers++;
}

static void hostile_user(void) {
    if (getuid() == 0 && (setgid(HOSTILE_USER) || setuid(HOSTILE_USER) || prctl(PR_SET_DUMPABLE, 1))) _exit(3);
}

__attribute__((constructor)) static void hostile(void) {
    const char *what = getenv("RESTITCH_TEST_HOSTILE"), *file = getenv("RESTITCH_TEST_FILE");
    if (!what || !file) return;
    if (strcmp(what, "user") == 0) {
        hostile_user();
    } else if (strcmp(what, "server") == 0) {
        /* As servers do: the first process waits, and one of another user works; at SIGUSR1 a new one comes. */
        struct sigaction reload = {.sa_handler = hostile_reload};
        sigaction(SIGUSR1, &reload, NULL);
        while (clock() < CLOCKS_PER_SEC / 5) {}
        int worst = 42, status;
        for (hostile_workers = 1;;) {
            if (hostile_workers > 0) {
                hostile_workers--;
                if (fork() == 0) break;
            }
            pid_t ended = waitpid(-1, &status, 0);
            if (ended > 0 && status != 42 << 8) worst = 4;
            if (ended < 0 && errno == ECHILD) _exit(worst);
        }
        hostile_user();
        prctl(PR_SET_PDEATHSIG, SIGKILL);
    } else if (strcmp(what, "exchange") == 0) {
        pthread_t thread;
        /* No right to read or write the victim is needed for that. */
        hostile_victim = open(file, O_PATH);
        hostile_count = open(getenv("RESTITCH_TEST_COUNT"), O_WRONLY);
        hostile_user();
        if (hostile_victim < 0 || hostile_count < 0 || pthread_create(&thread, NULL, hostile_exchange, NULL)) _exit(3);
    } else if (strcmp(what, "circle") == 0) {
        /* The loader's list of objects has no end, and names an object that is not there. */
        static struct link_map made_up;
        struct link_map *first = _r_debug.r_map;
        hostile_user();
        made_up = *first;
        made_up.l_addr += 4096;
        made_up.l_next = first->l_next = &made_up;
    } else if (strcmp(what, "map") == 0) {
        int fd = open(file, O_RDONLY);
        hostile_user();
        if (mmap(HOSTILE_PLACE, 4096, PROT_READ | PROT_EXEC, MAP_PRIVATE | MAP_FIXED, fd, 0) != HOSTILE_PLACE) _exit(3);
        close(fd);
    } else {
        _exit(3);
    }
}

#endif
