//! A branch over the `lock` prefix of the next instruction: both are copied as one, and whatever is changed
//! in them or between them is noticed, in versions with and without counters and in tracing versions.

mod common;

use common::Module;
use restitch_address::{LoadBias, SvmaRange};
use restitch_check::check;
use restitch_emit::window::{TABLE, window_len};
use restitch_emit::{BurstRequest, PieceKind, Version, emit_burst};
use restitch_image::ImageKind;
use restitch_layout::Layout;
use restitch_layout::testing::{shuffled, whole};
use restitch_program::Movability;
use restitch_testkit::{compile, program, skipped};

const BITS: u8 = 12;
/// What is flipped of each lock skip: the branch, the prefix, the opcode and the operand's form.
const FLIPPED: usize = 6;

fn module() -> Option<Module> {
    match compile(&program("locked.c"), &["-O2"]) {
        Ok(path) => Some(Module::parse(std::fs::read(path).unwrap())),
        Err(error) => {
            skipped(&error.to_string());
            None
        }
    }
}

fn tracing(module: &Module) -> Version {
    let below = module.image.span().start.align_down(4096).offset(-0x4000_0000);
    let above = module.image.span().end.align_up(4096) + 0x20_0000;
    let at = if module.image.kind() == ImageKind::Executable { above } else { below };
    let window = SvmaRange::new(at, window_len(BITS));
    let (image, program, blocks) = (&module.image, &module.program, &vec![true; module.program.blocks.len()]);
    let bias = LoadBias::default();
    let (start, table) = (window.end, bias.to_actual(window.start) + TABLE);
    let request =
        BurstRequest { image, program, blocks, start, number: 1, window, table, bits: BITS, first: 7, bias };
    emit_burst(&request).unwrap()
}

/// A name, a layout to check against, a version.
fn versions(module: &Module) -> Vec<(&'static str, Layout, Version)> {
    let orders = [("in order", whole(&module.program)), ("shuffled", shuffled(&module.program, 5))];
    let mut out = Vec::new();
    for (name, layout) in orders {
        for counted in [Vec::new(), module.everything(&layout)] {
            let version = module.version(&layout, &counted);
            out.push((name, layout.clone(), version));
        }
    }
    out.push(("tracing", Layout::default(), tracing(module)));
    out
}

/// Offsets in the text of branches over a prefix.
fn lock_skips(version: &Version) -> Vec<usize> {
    let from = version.text.start.offset_from(version.range.start) as usize;
    let text = &version.bytes[from..][..version.text.len() as usize];
    let is_lock_skip = |w: &[u8]| matches!(w, [0x70..=0x7f, 1, 0xf0]);
    text.windows(3).enumerate().filter(|(_, w)| is_lock_skip(w)).map(|(i, _)| from + i).collect()
}

#[test]
fn each_is_copied_whole_and_every_changed_bit_is_found() {
    let Some(module) = module() else { return };
    assert!(module.program.functions.iter().all(|f| f.movability != Movability::Undecodable));
    for (name, layout, version) in versions(&module) {
        let is_equal =
            |version| check(&module.image, &module.program, &layout, version, module.bias()).is_ok();
        assert!(is_equal(version.clone()), "{name}");
        let skips = lock_skips(&version);
        assert!(skips.len() >= 6, "{name}: {}", skips.len());
        for at in skips {
            for bit in 0..8 * FLIPPED {
                let mut version = version.clone();
                version.bytes[at + bit / 8] ^= 1 << (bit % 8);
                assert!(!is_equal(version), "{name}: bit {bit} of the lock skip at {at:#x}");
            }
        }
    }
}

/// A thread may stand in front of the prefix or behind it: the map leads both ways there.
#[test]
fn the_map_leads_into_them() {
    let Some(module) = module() else { return };
    for (name, layout, version) in versions(&module) {
        for at in lock_skips(&version) {
            for inside in [0, 2, 3].map(|i| version.range.start + at as u64 + i) {
                let original = version.map.to_original(inside).unwrap_or_else(|| panic!("{name}: {inside}"));
                let delta =
                    original.offset_from(version.map.to_original(version.range.start + at as u64).unwrap());
                let expected = inside.offset_from(version.range.start + at as u64);
                assert_eq!(delta, expected, "{name}: {inside}");
                // A piece that ends in front of it is not the whole of it.
                let mut cut = version.clone();
                let i = cut.map.pieces.partition_point(|p| p.version <= inside) - 1;
                let piece = cut.map.pieces[i];
                assert_eq!(piece.kind, PieceKind::Linear, "{name}: {inside}");
                if expected == 3 {
                    cut.map.pieces[i].len = inside.offset_from(piece.version) as u32;
                    let checked = check(&module.image, &module.program, &layout, cut, module.bias());
                    assert!(checked.is_err(), "{name}: {inside}");
                }
            }
        }
    }
}

/// Something between the branch and the prefix, or between the prefix and the rest.
#[test]
fn nothing_may_stand_inside() {
    let Some(module) = module() else { return };
    for (name, layout, version) in versions(&module) {
        let at = lock_skips(&version)[0];
        for inside in [at + 2, at + 3] {
            let mut longer = version.clone();
            let text = SvmaRange::between(longer.text.start, longer.text.end);
            let end = text.end.offset_from(longer.range.start) as usize;
            // A byte that does nothing; what follows moves, and the last byte of the text is lost.
            longer.bytes[inside..end].rotate_right(1);
            longer.bytes[inside] = 0x90;
            let checked = check(&module.image, &module.program, &layout, longer, module.bias());
            assert!(checked.is_err(), "{name}");
        }
    }
}
