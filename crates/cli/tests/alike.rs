//! Versions whose code is the same bytes at different places, and so are their images: each is known by a map
//! of its own.

mod common;

use common::{Restitch, Target, code, linked, look};
use restitch_testkit::{find_program, require, scratch};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// Nearly all time is spent in one function that refers to nothing outside itself. Its loop is one block, so
/// its copies have one order: of a loop of several blocks two rotations can be equally good, and which one is
/// taken depends on the last count.
const LIBRARY: &str = r#"
#include <cstdint>
extern "C" uint32_t alone(uint32_t x, unsigned n) {
    if (n > 5000000) return x * 7;
    for (unsigned i = 0; i < n; i++) {
        x = (x * 1664525u + 1013904223u) ^ (x >> 9);
        x += x % 13 == 1 ? 0x9e3779b9u : i;
        __asm__ volatile("" : "+r"(x));
    }
    return x;
}
"#;

const PROGRAM: &str = r#"
#include "check.h"
uint32_t alone(uint32_t, unsigned);
static void one_round(unsigned n) {
    uint32_t first = alone(n, 4000000);
    for (unsigned i = 0; i < 5; i++) CHECK(alone(n, 4000000) == first);
}
int main(int argc, char **argv) { return run_rounds(argc, argv, one_round); }
"#;

fn attach(restitch: &Restitch, target: &mut Target) {
    restitch.attach(target.pid(), &["--align", "off", "--keep-in-place", "off"]).expect(code::DONE);
    assert!(!look::differences(target.pid()).is_empty());
    target.assert_computing("in the new layout");
}

/// Files in the state directory of versions of the library with this ending.
fn of_library(restitch: &Restitch, ending: &str) -> Vec<PathBuf> {
    let is_one = |name: &str| name.starts_with("liblibrary.so.") && name.ends_with(ending);
    restitch
        .files()
        .into_iter()
        .filter(|p| is_one(&p.file_name().unwrap_or_default().to_string_lossy()))
        .collect()
}

fn images(restitch: &Restitch) -> BTreeSet<Vec<u8>> {
    let read = |path: &Path| std::fs::read(path).expect("readable");
    of_library(restitch, ".restitch-version").iter().map(|p| read(p)).collect()
}

#[track_caller]
fn end(restitch: &Restitch, target: &mut Target) {
    target.assert_goes_back(restitch);
    target.assert_computing("after revert");
    target.stop();
}

#[test]
fn equal_versions_over_one_another_have_maps_of_their_own() {
    require!(find_program("g++"), "g++");
    let (folder, restitch) = (scratch(), Restitch::new());
    let mut target = Target::start(&linked(folder.path(), ("library.cc", LIBRARY), PROGRAM, &[]));
    let mut seen = BTreeSet::new();
    for _ in 0..3 {
        attach(&restitch, &mut target);
        seen.extend(images(&restitch));
    }
    // Otherwise this would test nothing.
    assert_eq!(seen.len(), 1, "copies of the function differ");
    // The thread, which is in it nearly all the time, is moved out, and nothing stays.
    end(&restitch, &mut target);
}

#[test]
fn processes_with_equal_versions_have_maps_and_records_of_their_own() {
    require!(find_program("g++"), "g++");
    let (folder, restitch) = (scratch(), Restitch::new());
    let program = linked(folder.path(), ("library.cc", LIBRARY), PROGRAM, &[]);
    let mut targets: Vec<Target> = (0..3).map(|_| Target::start(&program)).collect();
    targets.iter_mut().for_each(|target| attach(&restitch, target));
    assert_eq!(images(&restitch).len(), 1, "copies of the function differ");
    assert_eq!(of_library(&restitch, ".restitch-record").len(), targets.len());
    targets.iter_mut().for_each(|target| end(&restitch, target));
    assert_eq!(restitch.files(), Vec::<PathBuf>::new());
}
