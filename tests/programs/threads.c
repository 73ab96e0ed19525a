/* A storm of threads: they are created and end all the time, joined and detached, while others compute, so that a tool
 * that stops all threads meets births and deaths. Each thread's result is checked.
 * flags: -pthread */
#include "check.h"
#include <pthread.h>
#include <stdatomic.h>

#define SPAWNERS 3
#define PER_ROUND 40

static atomic_int detached_running, detached_done;
static __thread uint32_t thread_sum;

NOINLINE static uint32_t mix(uint32_t x, unsigned op) {
    switch (op % 6) {
    case 0: OPAQUE(x); return x * 17 + 1;
    case 1: OPAQUE(x); return x ^ (x >> 7);
    case 2: OPAQUE(x); return x - 12345;
    case 3: OPAQUE(x); return x << 3 | x >> 29;
    case 4: OPAQUE(x); return ~x;
    default: OPAQUE(x); return x ^ 0xa5a5a5a5u;
    }
}

static uint32_t mix_formula(uint32_t x, unsigned op) {
    uint32_t results[6] = {x * 17 + 1, x ^ (x >> 7), x - 12345, x << 3 | x >> 29, ~x, x ^ 0xa5a5a5a5u};
    return results[op % 6];
}

NOINLINE static uint32_t compute(uint32_t seed, uint32_t (*step)(uint32_t, unsigned)) {
    uint32_t x = seed;
    for (unsigned i = 0; i < 3000; i++) x = step(x, x >> 5);
    return x;
}

static void *joined(void *argument) {
    uint32_t seed = (uint32_t)(uintptr_t)argument;
    thread_sum += compute(seed, mix);
    return (void *)(uintptr_t)thread_sum;
}

static void *detached(void *argument) {
    uint32_t seed = (uint32_t)(uintptr_t)argument;
    CHECK(compute(seed, mix) == compute(seed, mix_formula));
    atomic_fetch_add(&detached_done, 1);
    atomic_fetch_sub(&detached_running, 1);
    return NULL;
}

static void *spawner(void *argument) {
    uint32_t seed = (uint32_t)(uintptr_t)argument;
    for (uint32_t i = 0; i < PER_ROUND; i++) {
        pthread_t thread, free_thread;
        void *result;
        void *its_seed = (void *)(uintptr_t)(seed + i);
        CHECK(pthread_create(&thread, NULL, joined, its_seed) == 0);
        if (atomic_load(&detached_running) < 8) {
            atomic_fetch_add(&detached_running, 1);
            CHECK(pthread_create(&free_thread, NULL, detached, its_seed) == 0);
            CHECK(pthread_detach(free_thread) == 0);
        }
        CHECK(pthread_join(thread, &result) == 0);
        CHECK((uint32_t)(uintptr_t)result == compute(seed + i, mix_formula));
    }
    return NULL;
}

static void one_round(unsigned round) {
    pthread_t spawners[SPAWNERS];
    for (unsigned i = 0; i < SPAWNERS; i++)
        CHECK(pthread_create(&spawners[i], NULL, spawner, (void *)(uintptr_t)(round * 1000 + i * 100 + 1)) == 0);
    for (unsigned i = 0; i < SPAWNERS; i++) CHECK(pthread_join(spawners[i], NULL) == 0);
    CHECK(thread_sum == 0);
}

int main(int argc, char **argv) {
    int result = run_rounds(argc, argv, one_round);
    while (atomic_load(&detached_running) > 0) usleep(1000);
    CHECK(atomic_load(&detached_done) > 0);
    return result;
}
