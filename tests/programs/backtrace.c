/* Looks moved code up as unwinders other than libgcc's do: each frame's program counter has to be in an object that
 * dl_iterate_phdr reports, and in the unwind table of that object. The list itself has to keep its promises: the program comes first,
 * one count of changes in a walk, an end when the callback wants it. With `--nongnu 1` the backtraces of nongnu libunwind (libunwind.so.8)
 * have to be as deep as the calls are. In several threads.
 * flags: -pthread -ldl -w -fasynchronous-unwind-tables -Wl,--eh-frame-hdr */
#define _GNU_SOURCE
#include "check.h"
#include <dlfcn.h>
#include <link.h>
#include <pthread.h>
#include <unwind.h>

enum { THREADS = 2, DEEPEST = 24, MOST_FRAMES = 256 };

static int (*nongnu_backtrace)(void **, int);
static volatile int over;

/* What one walk over the objects finds for a program counter. */
struct lookup {
    uintptr_t pc;
    uintptr_t base, header;
    int objects, stop_after, unordered;
    int has_table, has_interpreter;
    unsigned long long adds;
};

static int each(struct dl_phdr_info *info, size_t size, void *data) {
    struct lookup *l = data;
    if (l->objects == 0) {
        l->adds = info->dlpi_adds;
        l->unordered = 1;
    }
    if (size < sizeof *info || info->dlpi_adds != l->adds || info->dlpi_phnum == 0) l->unordered = 2;
    l->objects++;
    int holds = 0;
    uintptr_t header = 0;
    for (int i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *p = &info->dlpi_phdr[i];
        uintptr_t start = info->dlpi_addr + p->p_vaddr;
        if (p->p_type == PT_LOAD && l->pc >= start && l->pc - start < p->p_memsz) holds = 1;
        if (l->objects == 1 && (uintptr_t)&over - start < p->p_memsz && p->p_type == PT_LOAD) l->unordered &= ~1;
        if (p->p_type == PT_GNU_EH_FRAME) header = start;
        if (p->p_type == PT_INTERP) l->has_interpreter = 1;
    }
    if (holds) l->base = info->dlpi_addr, l->header = header, l->has_table = 1;
    if (l->stop_after && l->objects == l->stop_after) return 7 + l->objects;
    return 0;
}

/* Whether the .eh_frame_hdr at `header` leads to an FDE that covers `pc` (LSB core, Exception Frames). */
static int covered(uintptr_t header, uintptr_t pc) {
    const unsigned char *h = (const unsigned char *)header;
    if (h[0] != 1 || h[1] != 0x1b || h[2] != 0x03 || h[3] != 0x3b) return 0;
    uint32_t count;
    memcpy(&count, h + 8, 4);
    const int32_t *table = (const int32_t *)(h + 12);
    uint32_t low = 0, high = count;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (header + table[2 * middle] <= pc) low = middle + 1;
        else high = middle;
    }
    if (low == 0) return 0;
    uintptr_t fde = header + table[2 * (low - 1) + 1];
    int32_t to_start;
    uint32_t len;
    memcpy(&to_start, (void *)(fde + 8), 4);
    memcpy(&len, (void *)(fde + 12), 4);
    uintptr_t start = fde + 8 + to_start;
    return pc >= start && pc - start < len;
}

struct trace {
    int frames;
    uint32_t seed;
};

static _Unwind_Reason_Code frame(struct _Unwind_Context *context, void *data) {
    struct trace *t = data;
    int before;
    uintptr_t pc = _Unwind_GetIPInfo(context, &before) - 1;
    if (pc + 1 == 0) return _URC_NO_REASON; /* below the first function of a thread */
    struct lookup l = {.pc = pc};
    CHECK(dl_iterate_phdr(each, &l) == 0);
    CHECK(l.unordered == 0);
    CHECK(l.has_table);
    /* Static programs that are not position-independent have no such table of their own. */
    if (l.header) CHECK(covered(l.header, pc));
    struct lookup some = {.pc = pc, .stop_after = 1 + (int)(next_random(&t->seed) % 2)};
    if (some.stop_after <= l.objects) CHECK(dl_iterate_phdr(each, &some) == 7 + some.stop_after);
    t->frames++;
    return t->frames < MOST_FRAMES ? _URC_NO_REASON : _URC_END_OF_STACK;
}

struct walk {
    uint32_t seed;
    /* Frames that stand below the first `descend`. */
    int base, nongnu_base;
};

/* The depth is as it was at the first look. */
NOINLINE static int look(struct walk *w, int depth) {
    struct trace t = {.seed = w->seed};
    _Unwind_Backtrace(frame, &t);
    if (w->base == 0) w->base = t.frames - depth;
    CHECK(t.frames == w->base + depth);
    if (nongnu_backtrace) {
        void *found[MOST_FRAMES];
        int frames = nongnu_backtrace(found, MOST_FRAMES);
        if (w->nongnu_base == 0) w->nongnu_base = frames - depth;
        CHECK(frames == w->nongnu_base + depth);
    }
    return depth;
}

NOINLINE static int descend_b(struct walk *w, int left, int depth);

NOINLINE static int descend_a(struct walk *w, int left, int depth) {
    volatile char space[40];
    space[depth % 40] = (char)depth;
    int result = left == 0           ? look(w, depth)
                 : next_random(&w->seed) & 1 ? descend_b(w, left - 1, depth + 1)
                                             : descend_a(w, left - 1, depth + 1);
    OPAQUE(result);
    return result + (space[depth % 40] != (char)depth);
}

NOINLINE static int descend_b(struct walk *w, int left, int depth) {
    volatile long words[9];
    words[depth % 9] = depth;
    int result = left == 0           ? look(w, depth)
                 : next_random(&w->seed) & 1 ? descend_a(w, left - 1, depth + 1)
                                             : descend_b(w, left - 1, depth + 1);
    OPAQUE(result);
    return result + (words[depth % 9] != depth);
}

/* Some work between two looks. */
NOINLINE static uint32_t work(struct walk *w) {
    uint32_t sum = 0;
    for (int i = 0; i < 20000; i++) {
        uint32_t r = next_random(&w->seed);
        if (r % 3 == 0) sum += r;
        else if (r % 5 == 0) sum ^= r;
        else sum -= i;
    }
    return sum;
}

NOINLINE static void one(struct walk *w) {
    int left = (int)(next_random(&w->seed) % DEEPEST);
    CHECK(descend_a(w, left, 1) == left + 1);
    uint32_t sum = work(w);
    OPAQUE(sum);
}

static void *thread(void *data) {
    struct walk w = {.seed = 77 + (uint32_t)(uintptr_t)data};
    while (!over) one(&w);
    return NULL;
}

static struct walk main_walk = {.seed = 4711};

static void one_round(unsigned round) { one(&main_walk); }

int main(int argc, char **argv) {
    struct lookup l = {0};
    dl_iterate_phdr(each, &l);
    CHECK(l.objects >= 1 && l.unordered == 0);
    if (option(argc, argv, "--nongnu", 0) != 0) {
        CHECK(l.has_interpreter);
        void *library = dlopen("libunwind.so.8", RTLD_NOW);
        CHECK(library != NULL);
        nongnu_backtrace = (int (*)(void **, int))dlsym(library, "unw_backtrace");
        CHECK(nongnu_backtrace != NULL);
    }
    pthread_t threads[THREADS];
    for (long i = 0; i < THREADS; i++) CHECK(pthread_create(&threads[i], NULL, thread, (void *)i) == 0);
    int status = run_rounds(argc, argv, one_round);
    over = 1;
    for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
    return status;
}
