/* Indirect calls: virtual functions through multiple and virtual inheritance (thunks), pointers to members, function
 * pointers that are compared, hashed and kept in data, std::function, dynamic_cast and type names. A code pointer must
 * mean the same function wherever it comes from. */
#include "check.h"
#include <functional>
#include <map>
#include <memory>
#include <typeinfo>
#include <vector>

namespace {

struct Shape {
    virtual ~Shape() {}
    virtual uint32_t area(uint32_t x) const = 0;
    virtual const Shape *self() const { return this; }
    virtual int id() const { return 0; }
};
struct Named {
    uint64_t tag = 0x1234;
    virtual ~Named() {}
    virtual uint32_t name(uint32_t x) const { return x + 1; }
};

template <int N> struct Concrete : Named, virtual Shape {
    uint32_t factor = N * 2 + 1;
    uint32_t area(uint32_t x) const override { return x * factor + N; }
    uint32_t name(uint32_t x) const override { return x ^ (N * 0x01010101u); }
    const Concrete *self() const override { return this; }
    int id() const override { return N; }
    NOINLINE uint32_t plain(uint32_t x) const { return x + factor; }
};

template <int N> struct Maker {
    static void add(std::vector<std::unique_ptr<Shape>> &all) {
        Maker<N - 1>::add(all);
        all.emplace_back(new Concrete<N>);
    }
};
template <> struct Maker<0> {
    static void add(std::vector<std::unique_ptr<Shape>> &) {}
};

typedef uint32_t (*Function)(uint32_t);
template <int N> NOINLINE uint32_t function(uint32_t x) {
    OPAQUE(x);
    return x * (N + 5u) + N;
}
Function table[] = {function<0>, function<1>, function<2>, function<3>, function<4>, function<5>, function<6>, function<7>};

/* The other way to get the same addresses: relative to the program counter, not from relocated data. */
NOINLINE Function pick(unsigned n) {
    switch (n) {
    case 0: return function<0>;
    case 1: return function<1>;
    case 2: return function<2>;
    case 3: return function<3>;
    case 4: return function<4>;
    case 5: return function<5>;
    case 6: return function<6>;
    default: return function<7>;
    }
}

/* Branches on the value of a pointer, as devirtualised code does. */
NOINLINE uint32_t guess(Function f, uint32_t x) {
    if (f == function<3>) return x * 8 + 3;
    return f(x);
}

/* Kept over rounds: pointers taken before a change must equal those taken after it. */
std::map<Function, unsigned> known;

void one_round(unsigned round) {
    std::vector<std::unique_ptr<Shape>> shapes;
    Maker<32>::add(shapes);
    uint32_t x = round | 1;
    for (int i = 0; i < 2000; i++) {
        const Shape &shape = *shapes[(x >> 8) % shapes.size()];
        uint32_t n = static_cast<uint32_t>(shape.id());
        CHECK(n == (x >> 8) % 32 + 1);
        CHECK(shape.area(x) == x * (n * 2 + 1) + n);
        CHECK(shape.self() == &shape);
        const Named *named = dynamic_cast<const Named *>(&shape);
        CHECK(named && named->tag == 0x1234 && named->name(x) == (x ^ (n * 0x01010101u)));
        CHECK((dynamic_cast<const Concrete<7> *>(&shape) != nullptr) == (n == 7));
        CHECK((typeid(shape) == typeid(Concrete<9>)) == (n == 9));
        x = shape.area(x) + static_cast<uint32_t>(i);
    }

    typedef uint32_t (Concrete<5>::*Member)(uint32_t) const;
    Member members[] = {&Concrete<5>::plain, &Concrete<5>::area, &Concrete<5>::name};
    Concrete<5> five;
    CHECK((five.*members[0])(x) == x + 11 && (five.*members[1])(x) == x * 11 + 5);
    CHECK(members[0] == &Concrete<5>::plain && members[1] != members[2]);

    for (unsigned i = 0; i < 8; i++) {
        Function f = pick(i);
        CHECK(f == table[i]);
        CHECK(f(x) == x * (i + 5) + i && guess(table[i], x) == f(x));
        if (round == 0) known[f] = i;
        CHECK(known.count(f) == 1 && known[f] == i);
        std::function<uint32_t(uint32_t)> wrapped = f;
        CHECK(wrapped(x) == f(x) && *wrapped.target<Function>() == table[i]);
    }
}

} // namespace

int main(int argc, char **argv) { return run_rounds(argc, argv, one_round); }
