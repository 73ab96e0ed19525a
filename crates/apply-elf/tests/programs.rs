//! The test programs, laid out again and run: the exit status says that their own checks held.

mod common;

use common::{IN_PLACE, MOVED, ORDERS, Order, available, image, install, output, runs_alone, version_with};
use restitch_address::Svma;
use restitch_apply_elf::{original_bytes, place, plan_output};
use restitch_emit::{Promotion, RetargetKind};
use restitch_image::{DynamicRelocation, Image, RelocationKind};
use restitch_program::{CallId, CallTarget, Program};
use restitch_testkit::{
    SUCCESS, compile, compile_with, programs, require, run, scratch, strip, without_section_headers,
};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

const PT_GNU_PROPERTY: u32 = 0x6474_e553;
const LIMIT: Duration = Duration::from_secs(120);

/// Compiles each test program with `flags` and runs its output under `layouts`.
fn each_program(flags: &[&str], layouts: &[Order], variant: impl Fn(&Path) -> std::path::PathBuf) {
    let folder = scratch();
    for source in programs().into_iter().filter(|p| runs_alone(p)) {
        let compiled = require!(available(compile(&source, flags)), "no compiler");
        let image = image(&variant(&compiled));
        for order in layouts {
            let bytes = output(&image, *order, &IN_PLACE);
            let file = install(folder.path(), "out", &bytes);
            println!("{} {flags:?} {order:?}", source.display());
            run(&mut Command::new(&file), LIMIT).expect(SUCCESS);
        }
    }
}

#[test]
fn position_independent_programs_run_in_every_order() {
    each_program(&["-O2", "-pie", "-fPIE"], &ORDERS, Path::to_path_buf);
}

/// Control falls into second copies of blocks everywhere; exceptions, signals, coroutines and jump tables
/// among them.
#[test]
fn programs_with_duplicates_run() {
    let orders: Vec<Order> = (11..15).map(Order::Random).collect();
    each_program(&["-O2", "-pie", "-fPIE"], &orders, Path::to_path_buf);
    each_program(&["-O1", "-no-pie"], &orders[..1], Path::to_path_buf);
}

#[test]
fn programs_at_fixed_addresses_run() {
    each_program(&["-O2", "-no-pie"], &[Order::Reversed], |p| strip(p).expect("strip"));
}

/// Functions that stay call those that moved straight, and the other way round.
#[test]
fn programs_of_which_half_moves_run() {
    each_program(&["-O2", "-pie", "-fPIE"], &[Order::Half], Path::to_path_buf);
}

#[test]
fn labels_and_calls_that_stay_lead_straight_into_the_version() {
    let folder = scratch();
    let source = restitch_testkit::program("goto.c");
    let compiled = require!(available(compile(&source, &["-O2", "-pie", "-fPIE"])), "no compiler");
    let image = image(&compiled);
    let (mut labels, mut branches) = (0, 0);
    for order in [Order::Reversed, Order::Half] {
        for options in [IN_PLACE, MOVED] {
            let version = common::version_at(&image, order, common::place_of(&image, &options));
            let bytes = output(&image, order, &options);
            let out = Image::parse(bytes.clone()).expect("an image");
            for retarget in &version.retargets {
                match retarget.kind {
                    RetargetKind::Pointer | RetargetKind::Function => {
                        let says = out.relocation_at(retarget.at).map(|r| r.kind.clone());
                        assert_eq!(says, Some(RelocationKind::Relative { target: retarget.to }));
                        labels += u32::from(retarget.kind == RetargetKind::Pointer);
                    }
                    RetargetKind::Displacement | RetargetKind::Lea => {
                        let displacement = out.read_i32(retarget.at).expect("in the file");
                        assert_eq!((retarget.at + 4).offset(displacement.into()), retarget.to);
                        branches += u32::from(retarget.kind == RetargetKind::Displacement);
                    }
                    RetargetKind::Symbol => {}
                }
            }
            assert!(original_bytes(&out).expect("turns back") == image.data());
            run(&mut Command::new(install(folder.path(), "out", &bytes)), LIMIT).expect(SUCCESS);
        }
    }
    assert!(labels > 0 && branches > 0, "{labels} labels, {branches} branches");
}

/// Each indirect call compares with a function that some pointer in the file's data leads to, chosen at
/// random: right or wrong, often called or never, the program has to do what it did.
#[test]
fn programs_with_promoted_calls_run() {
    let folder = scratch();
    for name in [
        "virt.cc",
        "throw.cc",
        "personality.c",
        "setjmp.c",
        "signals.c",
        "threads.c",
        "coroutine.c",
        "fork.c",
    ] {
        let source = restitch_testkit::program(name);
        for (seed, flags) in [&["-O2", "-pie", "-fPIE"][..], &["-O1", "-pie", "-fPIE"], &["-O2", "-no-pie"]]
            .into_iter()
            .cycle()
            .take(6)
            .enumerate()
        {
            let image = image(&require!(available(compile(&source, flags)), "no compiler"));
            let start = place(&image, 1 << 20, &IN_PLACE).expect("a place");
            let version = version_with(&image, Order::Random(seed as u64 + 1), start, |program| {
                promote_at_random(&image, program, seed as u64)
            });
            assert!(name != "virt.cc" || version.report().promoted > 10, "{}", version.report().promoted);
            let plan = plan_output(&image, &version, &IN_PLACE).expect("planned");
            let file = install(folder.path(), "out", &plan.write());
            println!("{name} {flags:?} {seed}: {} promoted", version.report().promoted);
            run(&mut Command::new(&file), LIMIT).expect(SUCCESS);
        }
    }
}

fn promote_at_random(image: &Image, program: &Program, mut seed: u64) -> Vec<Promotion> {
    let pointed_to = |r: &DynamicRelocation| match r.kind {
        RelocationKind::Relative { target } => Some(target),
        _ => None,
    };
    let mut targets: Vec<Svma> = image.relocations().iter().filter_map(pointed_to).collect();
    let starts: Vec<Svma> = program.functions.iter().map(|f| f.range.start).collect();
    targets.retain(|t| starts.contains(t));
    if targets.is_empty() {
        targets = starts;
    }
    let indirect = program.calls.iter().enumerate().filter(|(_, c)| c.target == CallTarget::Indirect);
    let mut promote: Vec<Promotion> = Vec::new();
    for (i, _) in indirect {
        seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        let target = targets[(seed >> 33) as usize % targets.len()];
        promote.push(Promotion { call: CallId(i as u32), target });
    }
    promote
}

/// Unwind tables of these are registered by a call in crtbeginT.o.
#[test]
fn static_programs_run() {
    each_program(&["-O2", "-static"], &[Order::Reversed], Path::to_path_buf);
}

#[test]
fn static_position_independent_programs_run() {
    each_program(&["-O2", "-static-pie"], &[Order::Random(3)], |p| strip(p).expect("strip"));
}

#[test]
fn programs_without_section_headers_run() {
    let folder = scratch();
    for name in ["switch.c", "goto.c", "tail.c", "loops.c"] {
        let whole = require!(
            available(compile(&restitch_testkit::program(name), &["-O2", "-pie", "-fPIE"])),
            "no compiler"
        );
        let bare = image(&without_section_headers(&whole).expect("a copy"));
        assert!(bare.sections().is_empty());
        let file = install(folder.path(), "out", &output(&bare, Order::Reversed, &IN_PLACE));
        run(&mut Command::new(&file), LIMIT).expect(SUCCESS);
    }
}

/// The kernel reports the table's place (AT_PHDR), the loaders compute the load bias from it.
#[test]
fn a_moved_program_header_table_is_found() {
    let folder = scratch();
    for flags in
        [&["-O2", "-pie", "-fPIE"][..], &["-O2", "-no-pie"], &["-O2", "-static"], &["-O2", "-static-pie"]]
    {
        let compiled =
            require!(available(compile(&restitch_testkit::program("throw.cc"), flags)), "no compiler");
        let bytes = output(&image(&compiled), Order::Reversed, &MOVED);
        let file = install(folder.path(), "out", &bytes);
        run(&mut Command::new(&file), LIMIT).expect(SUCCESS);
    }
}

const LIBRARY: &str = r#"
#include <stdexcept>
#include <string>
struct Guard { int &n; ~Guard() { n++; } };
int cleanups;
int thrower(int depth) {
    Guard g{cleanups};
    if (depth == 0) throw std::runtime_error("deep");
    return thrower(depth - 1) + 1;
}
int through(int (*f)(int), int n) {
    Guard g{cleanups};
    try { return f(n); } catch (const std::logic_error &) { return -1; }
}
"#;
const USER: &str = r#"
#include <stdexcept>
int thrower(int); int through(int (*)(int), int); extern int cleanups;
static int again(int n) { return through(thrower, n); }
int main() {
    int caught = 0;
    for (int i = 0; i < 100; i++)
        try { through(again, i % 7); } catch (const std::runtime_error &e) { caught += e.what()[0] == 'd'; }
    return caught == 100 && cleanups > 300 ? 42 : 1;
}
"#;

/// Frames of moved code in two modules, exceptions thrown across both. The library has a short table of
/// program headers, or none to spare, depending on `flags`.
fn exceptions_cross_modules(flags: &[&str]) {
    let folder = scratch();
    let (library, user) = (folder.path().join("lib.cc"), folder.path().join("user.cc"));
    std::fs::write(&library, LIBRARY).unwrap();
    std::fs::write(&user, USER).unwrap();
    let shared: Vec<_> =
        ["-O2", "-shared", "-fPIC", "-Wl,-soname,libthrow.so"].iter().chain(flags).copied().collect();
    let library = require!(available(compile_with("g++", &library, &shared)), "no compiler");
    let (outputs, originals) = (folder.path().join("new"), folder.path().join("old"));
    let stripped_outputs = folder.path().join("stripped");
    std::fs::create_dir(&outputs).unwrap();
    std::fs::create_dir(&stripped_outputs).unwrap();
    std::fs::create_dir(&originals).unwrap();
    let original = std::fs::read(&library).unwrap();
    let linked = install(&originals, "libthrow.so", &original);
    let user =
        require!(available(compile_with("g++", &user, &["-O2", linked.to_str().unwrap()])), "no compiler");
    for order in ORDERS {
        let input = image(&library);
        let bytes = output(&input, order, &IN_PLACE);
        let new = Image::parse(bytes.clone()).unwrap();
        // The table is where `strip` expects it, whether a header was taken or there was room for one more.
        assert!(bytes[32..40] == input.data()[32..40]);
        let spare = input.program_headers().iter().any(|h| h.kind == PT_GNU_PROPERTY);
        assert_eq!(new.program_headers().len(), input.program_headers().len() + usize::from(!spare));
        assert!(original_bytes(&Image::parse(bytes.clone()).unwrap()).unwrap() == original);
        let file = install(&outputs, "libthrow.so", &bytes);
        // `strip` lays the library out again.
        let stripped = std::fs::read(require!(available(strip(&file)), "no strip")).unwrap();
        assert!(stripped.len() < bytes.len());
        install(&stripped_outputs, "libthrow.so", &stripped);
        let file = install(folder.path(), "user", &output(&image(&user), order, &IN_PLACE));
        for (program, libraries) in [(&file, &outputs), (&user, &outputs), (&file, &stripped_outputs)] {
            run(Command::new(program).env("LD_LIBRARY_PATH", libraries), LIMIT).expect(SUCCESS);
        }
    }
}

#[test]
fn exceptions_cross_moved_code_of_two_modules() {
    exceptions_cross_modules(&[]);
}

/// Their hash table moves away, so that the table of program headers can grow where it is.
#[test]
fn a_library_without_a_header_to_spare_gets_room() {
    for hash in ["-Wl,--hash-style=gnu", "-Wl,--hash-style=sysv", "-Wl,--hash-style=both"] {
        exceptions_cross_modules(&["-Wl,-z,noexecstack", hash]);
    }
}

const COMPARED_LIBRARY: &str = r#"
extern "C" {
int lib_step(int x) { return x % 3 ? x + 1 : x * 7; }
int lib_other(int x) { return x % 5 ? x - 1 : x * 3; }
int lib_again(int x) __attribute__((alias("lib_step")));
__attribute__((visibility("hidden"))) int lib_hidden(int x) { return x & 8 ? x ^ 5 : x + 9; }
typedef int (*step)(int);
/* Relocated by name, and relative. */
step lib_table[] = {lib_step, lib_other, lib_hidden};
step lib_made(int which) { return which == 0 ? lib_step : which == 1 ? lib_other : lib_hidden; }
int lib_is_other(step s) { return s == lib_other; }
int lib_is_hidden(step s) { return s == lib_hidden; }
int lib_call(step s, int n) { int x = 1; for (int i = 0; i < n; i++) x = s(x) & 0xfff; return x; }
}
"#;
const COMPARING_PROGRAM: &str = r#"
#include <dlfcn.h>
#include <stdint.h>
extern "C" {
typedef int (*step)(int);
int lib_step(int); int lib_other(int); int lib_again(int);
extern step lib_table[];
step lib_made(int); int lib_is_other(step); int lib_is_hidden(step); int lib_call(step, int);
int main_step(int x) { return x % 9 ? x + 4 : x / 2; }
/* Preempts the library's own. */
int lib_other(int x) { return x % 6 ? x + 2 : x ^ 3; }
}
static step own[] = {lib_step, lib_other, main_step};
static step volatile expected = main_step;
int main() {
    if (own[0] != lib_table[0] || own[0] != lib_made(0) || lib_step != lib_again) return 1;
    if (own[1] != lib_table[1] || lib_made(1) != lib_other || !lib_is_other(lib_other)) return 2;
    if (lib_table[2] != lib_made(2) || !lib_is_hidden(lib_table[2]) || lib_is_hidden(own[0])) return 3;
    if ((step)dlsym(RTLD_DEFAULT, "lib_step") != own[0] || (step)dlsym(RTLD_DEFAULT, "lib_other") != own[1]) return 4;
    if (expected != own[2] || (step)dlsym(RTLD_DEFAULT, "main_step") != expected) return 5;
    step next = (step)dlsym(RTLD_NEXT, "lib_other");
    if (next == lib_other || next == own[0] || next(10) != 30) return 6;
    Dl_info info;
    if (!dladdr((void *)own[0], &info) || info.dli_saddr != (void *)own[0]) return 7;
    if (!dladdr((char *)own[0] + 1, &info) || info.dli_saddr != (void *)own[0]) return 8;
    if (lib_call(expected, 100) == 0 || lib_call(lib_table[2], 100) == 0) return 9;
    return 42;
}
"#;

/// The addresses of one function are equal in all modules, however each of them came to it, whichever of them
/// was laid out again.
#[test]
fn addresses_are_equal_across_modules() {
    let folder = scratch();
    let (library, user) = (folder.path().join("lib.cc"), folder.path().join("user.cc"));
    std::fs::write(&library, COMPARED_LIBRARY).unwrap();
    std::fs::write(&user, COMPARING_PROGRAM).unwrap();
    // A header to spare or none; addresses of own functions through symbols, or relative; packed relocations.
    let variants: [&[&str]; 4] =
        [&[], &["-Wl,-z,noexecstack"], &["-Wl,-Bsymbolic-functions"], &["-Wl,-z,pack-relative-relocs"]];
    let mut kinds = std::collections::BTreeMap::new();
    for (variant, flags) in variants.into_iter().enumerate() {
        let bound = flags.contains(&"-Wl,-Bsymbolic-functions");
        let shared = ["-O2", "-shared", "-fPIC", "-Wl,-soname,libsteps.so"];
        let shared: Vec<_> = shared.iter().chain(flags).copied().collect();
        let library = require!(available(compile_with("g++", &library, &shared)), "no compiler");
        let (outputs, originals) = (format!("new{variant}"), format!("old{variant}"));
        let (outputs, originals) = (folder.path().join(outputs), folder.path().join(originals));
        [&outputs, &originals].into_iter().for_each(|f| std::fs::create_dir(f).unwrap());
        let linked = install(&originals, "libsteps.so", &std::fs::read(&library).unwrap());
        let whole = ["-O2", "-pie", "-fPIE", "-rdynamic", linked.to_str().unwrap(), "-ldl"];
        let user = require!(available(compile_with("g++", &user, &whole)), "no compiler");
        for order in [Order::Original, Order::Reversed, Order::Half] {
            let input = image(&library);
            let version = common::version(&input, order, &IN_PLACE);
            assert!(version.retargeted.len() >= 2, "{:?}", version.retargeted);
            version.retargets.iter().for_each(|s| *kinds.entry(s.kind).or_insert(0) += 1);
            let bytes = output(&input, order, &IN_PLACE);
            assert!(original_bytes(&Image::parse(bytes.clone()).unwrap()).unwrap() == input.data());
            let file = install(&outputs, "libsteps.so", &bytes);
            let program = install(folder.path(), "user", &output(&image(&user), order, &IN_PLACE));
            let status = |program: &Path, libraries: &Path| {
                let out = run(Command::new(program).env("LD_LIBRARY_PATH", libraries), LIMIT);
                out.status.code()
            };
            // Bound to itself, the library differs from the program in its own function: before and after.
            let expected = status(&user, &originals);
            assert_eq!(expected, Some(if bound { 2 } else { SUCCESS }));
            for (program, libraries) in [(&program, &outputs), (&user, &outputs), (&program, &originals)] {
                assert_eq!(status(program, libraries), expected, "{} {flags:?} {order:?}", file.display());
            }
        }
    }
    assert!(
        [RetargetKind::Function, RetargetKind::Lea, RetargetKind::Symbol]
            .iter()
            .all(|k| kinds.contains_key(k)),
        "{kinds:?}"
    );
}
