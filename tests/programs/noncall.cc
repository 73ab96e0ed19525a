/* Exceptions thrown by a handler of SIGSEGV, from the instruction that faulted: caught in the very function that it belongs to,
 * and in callers, past destructors.
 * flags: -fnon-call-exceptions -std=c++14 */
#include "check.h"
#include <csignal>

namespace {

struct Fault {
    uint32_t number;
};

volatile uint32_t number;
volatile uint32_t one = 1;
volatile uint32_t *volatile nowhere;
uint32_t alive;

struct Guard {
    Guard() { alive++; }
    ~Guard() { alive--; }
};

void handler(int) { throw Fault{number}; }

NOINLINE uint32_t here(volatile uint32_t *at, uint32_t n) {
    uint32_t sum = n;
    for (uint32_t i = 0; i < (n & 31); i++) {
        OPAQUE(sum);
        sum = sum & 1 ? sum * 3 + 1 : sum >> 1;
    }
    try {
        return sum + *at;
    } catch (const Fault &fault) {
        return sum - fault.number;
    }
}

NOINLINE uint32_t deep(volatile uint32_t *at, uint32_t n) {
    Guard guard;
    uint32_t sum = 0;
    for (uint32_t i = 0; i < n; i++) {
        OPAQUE(sum);
        sum += i & 3 ? i : 2;
    }
    return n ? deep(at, n - 1) + sum : *at;
}

NOINLINE uint32_t there(volatile uint32_t *at, uint32_t n) {
    try {
        return deep(at, n);
    } catch (const Fault &fault) {
        CHECK(alive == 0);
        return fault.number + 1;
    }
}

void one_round(unsigned round) {
    for (uint32_t i = 0; i < 200; i++) {
        number = round + i;
        uint32_t right = here(&one, i) - 1;
        CHECK(here(nowhere, i) == right - number);
        CHECK(there(nowhere, i & 7) == number + 1);
    }
}

} // namespace

int main(int argc, char **argv) {
    struct sigaction action = {};
    action.sa_handler = handler;
    action.sa_flags = SA_NODEFER;
    CHECK(sigaction(SIGSEGV, &action, nullptr) == 0);
    return run_rounds(argc, argv, one_round);
}
