//! A tool in the process that puts hooks of its own into linkage tables keeps what slots held, in code that
//! it makes: what that leads to has to stay.

mod common;

use common::{PATIENCE, Restitch, Target, code, linked, look};
use restitch_testkit::{find_program, require, scratch, wait_until};

/// A library whose functions call each other through slots. Told by SIGUSR2, it leads the slot of `mix` to
/// new code that jumps to what the slot held, as libraries for hooks do; whether the page is read-only
/// afterwards, LEAVE_WRITABLE says. From then on nobody calls it until SIGUSR1 comes.
const LIBRARY: &str = r#"
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <link.h>
#include <sys/mman.h>
#include <unistd.h>
extern "C" {
uint32_t mix(uint32_t x, unsigned n) {
    switch (n & 3) {
    case 0: return x * 3 + 1;
    case 1: return x ^ (x >> 5);
    case 2: return x + 0x9e3779b9u;
    default: return x << 9 | x >> 23;
    }
}
static volatile sig_atomic_t pauses;
uint32_t step(uint32_t x, unsigned n) {
    x ^= n;
    if (pauses) {
        uint32_t r[4] = {x * 3 + 1, x ^ (x >> 5), x + 0x9e3779b9u, x << 9 | x >> 23};
        return r[n >> 2 & 3] + n;
    }
    return mix(x, n >> 2) + n;
}
uint32_t work(uint32_t x) {
    for (unsigned i = 0; i < 200; i++) x = step(x, i);
    return x;
}
}

static uintptr_t *slot_of(const char *name) {
    static const char *wanted;
    static uintptr_t *found;
    wanted = name;
    dl_iterate_phdr([](dl_phdr_info *info, size_t, void *) {
        if (!strstr(info->dlpi_name, "liblibrary.so")) return 0;
        const ElfW(Dyn) *dynamic = nullptr;
        for (int i = 0; i < info->dlpi_phnum; i++)
            if (info->dlpi_phdr[i].p_type == PT_DYNAMIC) dynamic = (const ElfW(Dyn) *)(info->dlpi_addr + info->dlpi_phdr[i].p_vaddr);
        if (!dynamic) return 0; /* A version. */
        const ElfW(Rela) *slots = nullptr;
        const ElfW(Sym) *symbols = nullptr;
        const char *names = nullptr;
        size_t bytes = 0;
        for (; dynamic->d_tag != DT_NULL; dynamic++) {
            if (dynamic->d_tag == DT_JMPREL) slots = (const ElfW(Rela) *)dynamic->d_un.d_ptr;
            if (dynamic->d_tag == DT_PLTRELSZ) bytes = dynamic->d_un.d_val;
            if (dynamic->d_tag == DT_SYMTAB) symbols = (const ElfW(Sym) *)dynamic->d_un.d_ptr;
            if (dynamic->d_tag == DT_STRTAB) names = (const char *)dynamic->d_un.d_ptr;
        }
        for (size_t i = 0; i < bytes / sizeof *slots; i++)
            if (!strcmp(names + symbols[ELF64_R_SYM(slots[i].r_info)].st_name, wanted))
                found = (uintptr_t *)(info->dlpi_addr + slots[i].r_offset);
        return 1;
    }, nullptr);
    return found;
}

static void hook(int) {
    uintptr_t *slot = slot_of("mix");
    unsigned char *code = (unsigned char *)mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (!slot || code == MAP_FAILED) _exit(3);
    /* movabs $held,%rax; jmp *%rax */
    memcpy(code, "\x48\xb8", 2);
    memcpy(code + 2, slot, 8);
    memcpy(code + 10, "\xff\xe0", 2);
    mprotect(code, 4096, PROT_READ | PROT_EXEC);
    void *page = (void *)((uintptr_t)slot & -4096);
    mprotect(page, 4096, PROT_READ | PROT_WRITE);
    *slot = (uintptr_t)code;
    if (!getenv("LEAVE_WRITABLE")) mprotect(page, 4096, PROT_READ);
    pauses = 1;
}
static void go_on(int) { pauses = 0; }
__attribute__((constructor)) static void begin() {
    signal(SIGUSR2, hook);
    signal(SIGUSR1, go_on);
}
"#;

/// The same once more without calls, to compare with.
const PROGRAM: &str = r#"
#include "check.h"
uint32_t work(uint32_t);
NOINLINE static uint32_t plain(uint32_t x) {
    for (unsigned i = 0; i < 200; i++) {
        uint32_t y = x ^ i;
        uint32_t r[4] = {y * 3 + 1, y ^ (y >> 5), y + 0x9e3779b9u, y << 9 | y >> 23};
        x = r[i >> 2 & 3] + i;
    }
    return x;
}
static void one_round(unsigned n) {
    uint32_t x = n;
    for (unsigned i = 0; i < 200; i++) {
        uint32_t y = work(x);
        CHECK(y == plain(x));
        x = y;
    }
}
int main(int argc, char **argv) { return run_rounds(argc, argv, one_round); }
"#;

/// Bytes of code that is of no file: the hook's.
fn made_code(pid: u32) -> u64 {
    let made = |line: &&look::Line| line.permissions == "r-xp" && line.name.is_empty();
    look::maps(pid).iter().filter(made).map(|line| line.end - line.start).sum()
}

fn hooked(environment: &[(&str, &str)]) {
    require!(find_program("g++"), "g++");
    let folder = scratch();
    let program = linked(folder.path(), ("library.cc", LIBRARY), PROGRAM, &["-Wl,-z,relro", "-Wl,-z,now"]);
    let restitch = Restitch::new();
    let mut target = Target::start_in(&program, environment);
    let pid = target.pid();
    let attach =
        || restitch.attach(pid, &["--slots", "linkage", "--direct-calls", "off", "--keep-in-place", "off"]);
    attach().expect(code::DONE);
    let lead = look::words_into_versions(pid, "liblibrary.so");
    assert!(lead > 0, "slots lead into the version");
    let before = made_code(pid);
    let send = |signal: &str| {
        let sent = std::process::Command::new("kill").args([signal, &pid.to_string()]).status();
        assert!(sent.expect("kill").success());
    };
    send("-USR2");
    let done = || (made_code(pid) > before).then_some(());
    let put = wait_until(PATIENCE, || done().or((!target.is_running()).then_some(())));
    target.assert_running("while it puts its hook in place");
    put.expect("its hook is in place");
    target.assert_computing("with its hook");
    for again in [true, true, false] {
        common::target::linger(200);
        let reverted = restitch.revert(pid);
        reverted.expect(code::DONE);
        let said = format!("{}{}", reverted.stdout, reverted.stderr);
        assert!(said.contains("has taken what the slot"), "{said}");
        assert!(!look::ours(pid).is_empty(), "what the hook calls is gone: {said}");
        if again {
            attach().expect(code::DONE);
            target.assert_computing("attached again");
        }
    }
    send("-USR1");
    common::target::linger(300);
    target.assert_computing("when its hook is called");
    target.stop();
}

#[test]
fn what_a_hook_has_kept_goes_on_being_called() {
    hooked(&[]);
}

#[test]
fn so_it_does_where_the_table_is_left_writable() {
    hooked(&[("LEAVE_WRITABLE", "1")]);
}
