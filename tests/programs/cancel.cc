/* Thread cancellation: blocked in a system call, at a test point deep in frames with destructors and cleanup handlers,
 * through a catch block that must rethrow, with cancellation disabled for a while, and pthread_exit. The forced unwind
 * must run each cleanup exactly once.
 * flags: -pthread */
#include "check.h"
#include <atomic>
#include <pthread.h>

namespace {

/* A cancelled reader leaves its pipe open, so all rounds share one: otherwise a long run ends at the limit of descriptors. */
int ends[2];

std::atomic<int> constructed, destroyed, cleanups, catches, reached;

struct Guard {
    Guard() { constructed++; }
    ~Guard() { destroyed++; }
};

extern "C" void cleanup(void *) { cleanups++; }

NOINLINE void wait_here(int how) {
    Guard guard;
    reached++;
    switch (how) {
    case 0:
        for (;;) pause();
    case 1:
        for (;;) pthread_testcancel(), sched_yield();
    case 2: {
        char byte;
        CHECK(read(ends[0], &byte, 1) == 1 && false);
        break;
    }
    case 3: pthread_exit(PTHREAD_CANCELED);
    default: {
        int old;
        CHECK(pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &old) == 0);
        usleep(200);
        pthread_testcancel();
        reached++;
        CHECK(pthread_setcancelstate(old, nullptr) == 0);
        for (;;) pthread_testcancel(), usleep(10);
    }
    }
}

NOINLINE void descend(int depth, int how) {
    Guard guard;
    if (depth == 0) return wait_here(how);
    pthread_cleanup_push(cleanup, nullptr);
    if (depth == 3) {
        try {
            descend(depth - 1, how);
        } catch (...) {
            catches++;
            throw;
        }
    } else {
        descend(depth - 1, how);
    }
    pthread_cleanup_pop(0);
}

void *body(void *how) {
    descend(6, static_cast<int>(reinterpret_cast<intptr_t>(how)));
    return nullptr;
}

void one_round(unsigned) {
    for (int how = 0; how < 5; how++) {
        constructed = destroyed = cleanups = catches = reached = 0;
        pthread_t thread;
        void *result;
        CHECK(pthread_create(&thread, nullptr, body, reinterpret_cast<void *>(static_cast<intptr_t>(how))) == 0);
        while (reached == 0) sched_yield();
        if (how != 3) CHECK(pthread_cancel(thread) == 0);
        CHECK(pthread_join(thread, &result) == 0 && result == PTHREAD_CANCELED);
        CHECK(constructed == 8 && destroyed == 8 && cleanups == 6 && catches == 1);
        CHECK(reached == (how == 4 ? 2 : 1));
    }
}

} // namespace

int main(int argc, char **argv) {
    CHECK(pipe(ends) == 0);
    return run_rounds(argc, argv, one_round);
}
