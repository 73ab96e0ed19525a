/* C++ exceptions: through many frames with destructors, in several threads (`--threads N`), rethrown, nested, caught by
 * base and by `...`, through noexcept(false) lambdas, function try blocks and exception specifications (negative type
 * filters), carried between threads, and through frames of C code (qsort's comparison function).
 * flags: -pthread -std=c++14 -Wno-deprecated */
#include "check.h"
#include <exception>
#include <functional>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace {

thread_local long alive, destroyed;

struct Guard {
    Guard() { alive++; }
    Guard(const Guard &) { alive++; }
    ~Guard() { alive--, destroyed++; }
};

struct Base {
    explicit Base(int n) : number(n) {}
    virtual ~Base() {}
    virtual int kind() const { return 0; }
    int number;
};
struct Left : virtual Base {
    explicit Left(int n) : Base(n) {}
    int kind() const override { return 1; }
};
struct Right : virtual Base {
    explicit Right(int n) : Base(n) {}
    int kind() const override { return 2; }
};
struct Both : Left, Right {
    explicit Both(int n) : Base(n), Left(n), Right(n) {}
    int kind() const override { return 3; }
};

NOINLINE int raise(int what, int n) {
    Guard guard;
    switch (what) {
    case 0: throw Left(n);
    case 1: throw Right(n);
    case 2: throw Both(n);
    case 3: throw n;
    case 4: throw std::runtime_error(std::to_string(n));
    case 5: throw std::string("text") + std::to_string(n);
    default: return n;
    }
}

/* Frames of different sizes, some with cleanups only, some with handlers that do not match. */
template <int Depth> struct Frames {
    NOINLINE static int call(int what, int n) {
        Guard guard, other;
        char space[Depth * 8 + 8];
        memset(space, n, sizeof space);
        char *keep = space;
        OPAQUE(keep);
        try {
            int result = Frames<Depth - 1>::call(what, n + 1);
            return result + keep[3] - keep[2];
        } catch (const char *) {
            return -1;
        } catch (std::logic_error &) {
            return -2;
        }
    }
};
template <> struct Frames<0> {
    NOINLINE static int call(int what, int n) { return raise(what, n); }
};

NOINLINE int catcher(int what, int n) {
    Guard guard;
    try {
        return Frames<24>::call(what, n);
    } catch (Right &e) {
        return 1000 + e.kind() * 100000 + e.number;
    } catch (Base &e) {
        return 2000 + e.kind() * 100000 + e.number;
    } catch (int e) {
        return 3000 + e;
    } catch (std::exception &e) {
        return 4000 + atoi(e.what());
    } catch (...) {
        return 5000;
    }
}

void test_frames(int n) {
    long before = alive, dead = destroyed;
    CHECK(catcher(0, n) == 2000 + 100000 + n + 24);
    CHECK(catcher(1, n) == 1000 + 200000 + n + 24);
    CHECK(catcher(2, n) == 1000 + 300000 + n + 24);
    CHECK(catcher(3, n) == 3000 + n + 24);
    CHECK(catcher(4, n) == 4000 + n + 24);
    CHECK(catcher(5, n) == 5000);
    CHECK(catcher(6, n) == n + 24);
    CHECK(alive == before);
    CHECK(destroyed - dead == 7 * (24 * 2 + 2));
}

NOINLINE int rethrows(int depth, int n) {
    Guard guard;
    try {
        return depth == 0 ? raise(2, n) : rethrows(depth - 1, n);
    } catch (Left &e) {
        e.number++;
        throw;
    }
}

NOINLINE void nests(int n) {
    try {
        raise(3, n);
    } catch (int) {
        std::throw_with_nested(std::logic_error("outer"));
    }
}

void test_rethrow(int n) {
    try {
        rethrows(10, n);
        CHECK(false);
    } catch (Base &e) {
        CHECK(e.number == n + 11 && e.kind() == 3);
    }
    try {
        nests(n);
        CHECK(false);
    } catch (std::logic_error &e) {
        try {
            std::rethrow_if_nested(e);
            CHECK(false);
        } catch (int inner) {
            CHECK(inner == n);
        }
    }
    CHECK(!std::uncaught_exception());
}

struct InConstructor {
    Guard guard;
    int number;
    explicit InConstructor(int n) try : number(raise(3, n)) {
    } catch (int e) {
        throw e + 1;
    }
};

NOINLINE int restricted(int what, int n) throw(int, Base) { return raise(what, n); }

NOINLINE void unexpected_handler() { throw 77; }

void test_specifications(int n) {
    int caught = 0;
    try {
        InConstructor object(n);
        CHECK(object.number == -1);
    } catch (int e) {
        caught = e;
    }
    CHECK(caught == n + 1);
    for (int what = 0; what < 6; what++) {
        try {
            restricted(what, n);
            CHECK(false);
        } catch (Base &e) {
            CHECK(what < 3 && e.number == n);
        } catch (int e) {
            CHECK(what == 3 ? e == n : e == 77);
        }
    }
    CHECK(restricted(6, n) == n);
}

void test_lambdas(int n) {
    auto throws = [n](int what) noexcept(false) { Guard guard; return raise(what, n); };
    auto never = [&](int what) noexcept {
        try {
            return throws(what);
        } catch (...) {
            return -n;
        }
    };
    CHECK(never(0) == -n && never(4) == -n && never(6) == n);
    std::function<int(int)> indirect = throws;
    try {
        indirect(1);
        CHECK(false);
    } catch (const Right &e) {
        CHECK(e.number == n);
    }
}

thread_local int comparisons;

extern "C" int compare(const void *a, const void *b) {
    Guard guard;
    if (++comparisons == 20) throw *static_cast<const int *>(a) + 0L;
    return *static_cast<const int *>(a) - *static_cast<const int *>(b);
}

void test_foreign_frames(int n) {
    int numbers[64];
    for (int i = 0; i < 64; i++) numbers[i] = n + (i * 37) % 64;
    comparisons = 0;
    long before = alive;
    try {
        qsort(numbers, 64, sizeof numbers[0], compare);
        CHECK(false);
    } catch (long value) {
        CHECK(value >= n && value < n + 64);
    }
    CHECK(alive == before);
}

void test_between_threads(int n) {
    std::exception_ptr carried;
    std::thread([&] {
        try {
            Frames<8>::call(2, n);
        } catch (...) {
            carried = std::current_exception();
        }
    }).join();
    try {
        std::rethrow_exception(carried);
    } catch (Left &e) {
        CHECK(e.number == n + 8);
    }
}

void all(unsigned round) {
    for (int i = 0; i < 40; i++) {
        int n = static_cast<int>(round % 1000) * 40 + i;
        test_frames(n);
        test_rethrow(n);
        test_specifications(n);
        test_lambdas(n);
        test_foreign_frames(n);
    }
    test_between_threads(static_cast<int>(round % 1000));
}

} // namespace

int main(int argc, char **argv) {
    std::set_unexpected(unexpected_handler);
    int count = static_cast<int>(option(argc, argv, "--threads", 3));
    std::vector<std::thread> threads;
    for (int i = 1; i < count; i++) threads.emplace_back([=] { run_rounds(argc, argv, all); });
    int result = run_rounds(argc, argv, all);
    for (auto &thread : threads) thread.join();
    return result;
}
