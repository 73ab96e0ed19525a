// Throws in all ways that need tables. Exit code 42: everything was caught where it should be.
#include <cstdlib>
#include <exception>
#include <stdexcept>
#include <string>
#include <vector>
#include <unistd.h>

// Room for the tables that the test writes.
extern "C" __attribute__((used)) const char restitch_reserve[1 << 20] = "restitch test reserve \x7f\x01";

struct A { virtual ~A() {} int value = 1; };
struct B : A { B() { value = 2; } };
struct C {};

static int alive;
struct Guard { Guard() { ++alive; } ~Guard() { --alive; } };

volatile int zero;
#define NOINLINE __attribute__((noinline))

NOINLINE int thrower(int n) {
    Guard guard;
    switch (n % 6) {
    case 0: throw A();
    case 1: throw B();
    case 2: throw C();
    case 3: throw std::runtime_error("text " + std::to_string(n));
    case 4: throw n;
    default: return n + zero;
    }
}

NOINLINE int deep(int depth, int n) {
    Guard guard;
    std::string text(depth * 7 + 1, 'x');
    if (depth == 0) return thrower(n) + int(text.size());
    volatile char *stack = static_cast<volatile char *>(alloca(16 + n % 50));
    stack[0] = 1;
    return deep(depth - 1, n) + stack[0];
}

NOINLINE int filtered(int n) throw(A, int) { return deep(3, n); }
NOINLINE int nothing_gets_out(int n) noexcept {
    try { return deep(2, n); } catch (...) { return -1; }
}

static void unexpected() { throw A(); }

NOINLINE int catches(int n) {
    try {
        try { return deep(n % 9, n); }
        catch (const B &b) { Guard guard; if (b.value != 2) abort(); throw; }
        catch (const std::exception &e) { return std::string(e.what()).size() > 5 ? 300 : 301; }
    }
    catch (const A &a) { return 100 + a.value; }
    catch (int i) { return i == n ? 400 : (abort(), 0); }
    catch (...) { return 200; }
}

int main() {
    std::set_unexpected(unexpected);
    for (int n = 0; n < 3000; n++) {
        int got = catches(n), want[] = {101, 102, 200, 300, 400, 0};
        if (n % 6 != 5 && got != want[n % 6]) return 1;
        if (nothing_gets_out(n) != -1 && n % 6 != 5) return 2;
        try {
            filtered(n);
            if (n % 6 != 5) return 3;
        }
        catch (const A &a) { if (n % 6 == 4) return 4; }
        catch (int) { if (n % 6 != 4) return 5; }
        if (alive != 0) return 6;
    }
    return 42;
}
