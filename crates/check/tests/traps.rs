//! Behind the copy of a trap stands a jump to what a handler that steps over it comes to: without it, and
//! with any changed bit in it, a version is refused; and no redirect covers that place.

mod common;

use common::Module;
use restitch_check::check;
use restitch_emit::Version;
use restitch_layout::Layout;
use restitch_layout::testing::{shuffled, whole};
use restitch_program::Terminator;
use restitch_testkit::{compile, program, skipped};

/// `jmp` with a displacement of 4 bytes.
const JUMP: usize = 5;

fn module() -> Option<Module> {
    match compile(&program("odd/steps.c"), &["-O2"]) {
        Ok(path) => Some(Module::parse(std::fs::read(path).unwrap())),
        Err(error) => {
            skipped(&error.to_string());
            None
        }
    }
}

fn versions(module: &Module) -> Vec<(&'static str, Layout, Version)> {
    let orders = [("in order", whole(&module.program)), ("shuffled", shuffled(&module.program, 5))];
    let counted = |layout: &Layout| [Vec::new(), module.everything(layout)];
    let made = orders.into_iter().flat_map(|(name, layout)| {
        counted(&layout).map(|counted| (name, layout.clone(), module.version(&layout, &counted)))
    });
    made.collect()
}

/// Offsets in the version of the traps, which are one byte each here or `ud2`, and of the jumps behind them.
fn traps(version: &Version) -> Vec<(usize, usize)> {
    let from = version.text.start.offset_from(version.range.start) as usize;
    let text = &version.bytes[from..][..version.text.len() as usize];
    let trap = |w: &[u8]| match w {
        [0x0f, 0x0b, 0xe9] => Some(2),
        [0xcc | 0xf4, 0xe9, _] => Some(1),
        _ => None,
    };
    let found = text.windows(3).enumerate().filter_map(|(i, w)| Some((from + i, from + i + trap(w)?)));
    found.collect()
}

#[test]
fn the_jump_behind_each_trap_is_checked_bit_for_bit() {
    let Some(module) = module() else { return };
    for (name, layout, version) in versions(&module) {
        let is_equal =
            |version| check(&module.image, &module.program, &layout, version, module.bias()).is_ok();
        assert!(is_equal(version.clone()), "{name}");
        let traps = traps(&version);
        assert!(traps.len() >= 7, "{name}: {}", traps.len());
        for (trap, jump) in traps {
            for bit in 0..8 * (jump - trap + JUMP) {
                let mut version = version.clone();
                version.bytes[trap + bit / 8] ^= 1 << (bit % 8);
                assert!(!is_equal(version), "{name}: bit {bit} of the trap at {trap:#x}");
            }
            let mut version = version.clone();
            version.bytes[jump..][..JUMP].fill(0x90);
            assert!(!is_equal(version), "{name}: nothing behind the trap at {trap:#x}");
        }
    }
}

#[test]
fn no_redirect_covers_what_stands_behind_a_trap() {
    let Some(module) = module() else { return };
    let behind: Vec<_> = module
        .program
        .blocks
        .iter()
        .filter(|block| block.terminator == Terminator::Stop)
        .map(|block| block.end())
        .collect();
    assert!(behind.len() >= 7, "{behind:?}");
    for (name, _, version) in versions(&module) {
        assert!(!version.redirects.is_empty(), "{name}");
        for redirect in &version.redirects {
            let covered = behind.iter().find(|at| (1..JUMP as i64).contains(&at.offset_from(redirect.at)));
            assert_eq!(covered, None, "{name}: {redirect:?}");
        }
    }
}
