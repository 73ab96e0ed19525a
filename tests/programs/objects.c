/* Reads the headers of all objects that dl_iterate_phdr reports, again and again, and those that were not there at the start for longer: a version
 * that is unmapped while its headers are read ends the program. In several threads. `--reads N` says how often (400): with many, somebody reads at
 * any time.
 * flags: -pthread -w */
#define _GNU_SOURCE
#include "check.h"
#include <link.h>
#include <pthread.h>

enum { THREADS = 2, MOST_OBJECTS = 64 };

static uintptr_t known[MOST_OBJECTS];
static int objects, most_reads;
static volatile int over;

struct walk {
    uint32_t sum;
    int objects;
};

static int note(struct dl_phdr_info *info, size_t size, void *data) {
    CHECK(objects < MOST_OBJECTS);
    known[objects++] = info->dlpi_addr;
    return 0;
}

static int is_known(uintptr_t base) {
    for (int i = 0; i < objects; i++)
        if (known[i] == base) return 1;
    return 0;
}

NOINLINE static uint32_t read_headers(const struct dl_phdr_info *info) {
    uint32_t sum = 0;
    for (int i = 0; i < info->dlpi_phnum; i++) {
        const volatile ElfW(Phdr) *p = &info->dlpi_phdr[i];
        sum = sum * 31 + p->p_type;
        if (p->p_flags & PF_X) sum ^= (uint32_t)p->p_memsz;
        else sum += (uint32_t)p->p_vaddr;
    }
    return sum;
}

static int each(struct dl_phdr_info *info, size_t size, void *data) {
    struct walk *w = data;
    uint32_t first = read_headers(info);
    int reads = is_known(info->dlpi_addr) ? 4 : most_reads;
    for (int i = 0; i < reads; i++) CHECK(read_headers(info) == first);
    w->sum ^= first;
    w->objects++;
    return 0;
}

/* Some work that needs no headers. */
NOINLINE static uint32_t work(uint32_t seed) {
    uint32_t sum = 0;
    for (int i = 0; i < 2000; i++) {
        uint32_t r = next_random(&seed);
        if (r % 3 == 0) sum += r;
        else if (r % 5 == 0) sum ^= r;
        else sum -= i;
    }
    return sum;
}

static void one_round(unsigned round) {
    struct walk w = {0};
    CHECK(dl_iterate_phdr(each, &w) == 0);
    CHECK(w.objects >= objects);
    uint32_t sum = work(round + 1);
    OPAQUE(sum);
}

static void *thread(void *data) {
    for (unsigned round = 0; !over; round++) one_round(round);
    return NULL;
}

int main(int argc, char **argv) {
    most_reads = (int)option(argc, argv, "--reads", 400);
    dl_iterate_phdr(note, NULL);
    pthread_t threads[THREADS];
    for (int i = 0; i < THREADS; i++) CHECK(pthread_create(&threads[i], NULL, thread, NULL) == 0);
    int status = run_rounds(argc, argv, one_round);
    over = 1;
    for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
    return status;
}
