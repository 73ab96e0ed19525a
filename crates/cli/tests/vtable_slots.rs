//! Slots of v-tables that lead into versions: virtual calls go on being right, methods whose addresses are
//! compared are left out, and what a slot held keeps the version that it led into, wherever the program has
//! put it.

mod common;

use common::{PATIENCE, Restitch, Target, code, linked, look};
use restitch_testkit::{TempDir, find_program, require, scratch, wait_until};
use std::path::Path;

/// Two classes with an interface each (one of which needs thunks), exceptions through virtual calls, and
/// pointers that are made of slots.
const LIBRARY: &str = r#"
#include <cstdint>
#include <cstdlib>
#include <cstring>
struct Shape {
    uint32_t salt = 7;
    virtual uint32_t mix(uint32_t x);
    virtual uint32_t named(uint32_t x);
    virtual uint32_t thrown(uint32_t x);
    virtual ~Shape();
};
struct Second {
    uint32_t more = 9;
    virtual uint32_t turned(uint32_t x);
    virtual ~Second();
};
struct Both : Shape, Second {
    uint32_t mix(uint32_t x) override;
    uint32_t turned(uint32_t x) override;
    ~Both() override;
};
uint32_t Shape::mix(uint32_t x) { return x * 3 + salt; }
uint32_t Shape::named(uint32_t x) { return x ^ (x >> 5) ^ salt; }
uint32_t Shape::thrown(uint32_t x) { if (x % 61 == 7) throw (int)salt; return x << 9 | x >> 23; }
Shape::~Shape() {}
uint32_t Second::turned(uint32_t x) { return x + more; }
Second::~Second() {}
uint32_t Both::mix(uint32_t x) { return x * 5 + salt + more; }
uint32_t Both::turned(uint32_t x) { return (x ^ salt) * more; }
Both::~Both() {}

typedef uint32_t (*Plain)(Shape *, uint32_t);
static Plain slot(Shape *shape, int number) {
    Plain *table;
    memcpy(&table, shape, sizeof table);
    return table[number];
}
static Shape *shapes[2] = {new Shape, new Both};
static Second *seconds[2] = {new Second, static_cast<Both *>(shapes[1])};
static Plain *held = new Plain(slot(shapes[0], 0));
/* Not to be foreseen by the compiler. */
static volatile unsigned which;

extern "C" {
/* What the slot holds now, kept on the heap until the next time. */
void hold(void) { *held = slot(shapes[0], 0); }
/* What a slot held once is called, after a while during which it is on the stack and nowhere else. */
__attribute__((noinline)) uint32_t later(uint32_t x, unsigned steps) {
    Shape *shape = shapes[which];
    volatile Plain mix = slot(shape, 0);
    /* No register has it any more. */
    __asm__ volatile("xor %%eax, %%eax; xor %%ecx, %%ecx; xor %%edx, %%edx" : : : "rax", "rcx", "rdx", "cc");
    for (volatile unsigned i = 0; i < steps; i++) {}
    return mix(shape, x);
}
uint32_t work(uint32_t x) {
    for (unsigned i = 0; i < 100; i++) {
        Shape *shape = shapes[(which + i) & 1];
        x = shape->mix(x);
        x = shape->named(x);
        try { x = shape->thrown(x); } catch (int salt) { x += (uint32_t)salt; }
        x = seconds[(which + i) & 1]->turned(x);
        x = (*held)(shapes[0], x);
    }
    /* A pointer of the extension of GNU to the language: it is equal to what the slot holds, always. */
    Plain named = (Plain)&Shape::named;
    __asm__ volatile("" : "+r"(named));
    if (slot(shapes[which], 1) != named) abort();
    return x;
}
}
"#;

/// The same once more without calls, to compare with.
const PROGRAM: &str = r#"
#include "check.h"
uint32_t work(uint32_t), later(uint32_t, unsigned);
void hold(void);
static uint32_t plain(uint32_t x) {
    for (unsigned i = 0; i < 100; i++) {
        x = i & 1 ? x * 5 + 16 : x * 3 + 7;
        x = x ^ (x >> 5) ^ 7;
        x = x % 61 == 7 ? x + 7 : x << 9 | x >> 23;
        x = i & 1 ? (x ^ 7) * 9 : x + 9;
        x = x * 3 + 7;
    }
    return x;
}
static void one_round(unsigned n) {
    const char *take = getenv("TAKE");
    if (take && access(take, F_OK) == 0) {
        hold();
        unlink(take);
    }
    uint32_t x = n;
    for (unsigned i = 0; i < 5000; i++) {
        uint32_t y = work(x);
        CHECK(y == plain(x));
        x = y;
    }
    CHECK(later(x, 20000000) == x * 3 + 7);
}
int main(int argc, char **argv) { return run_rounds(argc, argv, one_round); }
"#;

const ON: [&str; 6] = ["--slots", "on", "--keep-in-place", "off", "--align", "off"];

fn started(folder: &Path, flags: &[&str]) -> Target {
    let flags = [&["-Wl,-z,relro", "-Wl,-z,now", "-Wno-pmf-conversions"], flags].concat();
    let program = linked(folder, ("library.cc", LIBRARY), PROGRAM, &flags);
    Target::start_in(&program, &[("TAKE", folder.join("take").to_str().expect("a name"))])
}

/// The program keeps what the slot holds now.
#[track_caller]
fn take(folder: &Path) {
    let file = folder.join("take");
    std::fs::write(&file, "").expect("the folder is writable");
    wait_until(PATIENCE, || (!file.exists()).then_some(())).expect("it goes on");
}

fn words(pid: u32) -> usize {
    look::words_into_versions(pid, "liblibrary.so")
}

/// The library's functions call each other through slots of v-tables only.
#[track_caller]
fn cycle(flags: &[&str]) {
    require!(find_program("g++"), "g++");
    let folder: TempDir = scratch();
    let restitch = Restitch::new();
    let mut target = started(folder.path(), flags);
    let pid = target.pid();
    for round in 0..3 {
        restitch.attach(pid, &ON).expect(code::DONE);
        // As many as were seen at work in a moment.
        assert!(words(pid) > 0, "{flags:?}, round {round}");
        target.assert_computing("in the new layout");
        restitch.attach(pid, &["--keep-in-place", "off"]).expect(code::DONE);
        assert_eq!(words(pid), 0, "{flags:?}, round {round}");
        target.assert_computing("in a layout that no slot leads into");
        restitch.attach(pid, &ON).expect(code::DONE);
        target.assert_goes_back(&restitch);
        target.assert_computing("after revert");
    }
    target.stop();
}

#[test]
fn virtual_calls_lead_into_versions() {
    cycle(&[]);
}

/// Here the address that is compared is made by an instruction, in place of a slot of the global offset
/// table.
#[test]
fn methods_of_which_code_makes_the_address_are_left_out() {
    cycle(&["-Wl,-Bsymbolic"]);
}

#[test]
fn what_a_slot_held_keeps_the_version() {
    require!(find_program("g++"), "g++");
    let folder: TempDir = scratch();
    let restitch = Restitch::new();
    let mut target = started(folder.path(), &[]);
    let pid = target.pid();
    restitch.attach(pid, &ON).expect(code::DONE);
    take(folder.path());
    for attempt in 0..3 {
        let reverted = restitch.revert(pid);
        let said = reverted.stdout;
        assert_eq!(words(pid), 0, "{attempt}: {said}");
        assert!(said.contains("stays mapped"), "{attempt}: {said}");
        assert!(!look::ours(pid).is_empty(), "{attempt}: the pointer leads to where nothing is: {said}");
        target.assert_computing("with a pointer into a version");
    }
    // Over a version that has to stay.
    restitch.attach(pid, &ON).expect(code::DONE);
    target.assert_computing("with a pointer into a former version");
    restitch.revert(pid).expect(code::DONE);
    take(folder.path());
    target.assert_goes_back(&restitch);
    target.stop();
}
