//! Promoted calls: a correct version is accepted, and whatever is changed in its code or its map is noticed.

mod common;

use common::Module;
use restitch_address::Svma;
use restitch_check::{CheckReport, Problem, check};
use restitch_emit::{PieceKind, Promotion, Request, Version, emit};
use restitch_image::ImageKind;
use restitch_layout::Layout;
use restitch_layout::testing::{half, shuffled, whole};
use restitch_program::{CallId, CallTarget};

fn modules() -> [Module; 2] {
    [&include_bytes!("data/promoted.elf")[..], &include_bytes!("data/promoted-fixed.elf")[..]]
        .map(|bytes| Module::parse(bytes.to_vec()))
}

/// The start of function number `n`: `calls`, `target`, `reads`, `last`.
fn function(m: &Module, n: usize) -> Svma {
    m.program.functions[n].range.start
}

/// All indirect calls, with one target.
fn all(m: &Module, target: Svma) -> Vec<Promotion> {
    let calls = m.program.calls.iter().enumerate().filter(|(_, c)| c.target == CallTarget::Indirect);
    calls.map(|(i, _)| Promotion { call: CallId(i as u32), target }).collect()
}

fn version(m: &Module, layout: &Layout, promote: &[Promotion]) -> Version {
    let below = m.image.span().start.align_down(4096).offset(-0x1000_0000);
    let above = m.image.span().end.align_up(4096) + 0x20_0000;
    let start = if m.image.kind() == ImageKind::Executable { above } else { below };
    emit(&Request { promote, ..m.request(layout, start) }).unwrap()
}

fn layouts(m: &Module) -> Vec<Layout> {
    let mut cold = whole(&m.program);
    cold.cold = cold.hot.split_off(1);
    let mut without_target = whole(&m.program);
    without_target.hot.remove(1);
    vec![whole(&m.program), cold, without_target, shuffled(&m.program, 3), shuffled(&m.program, 8)]
}

fn report(m: &Module, layout: &Layout, version: Version) -> CheckReport {
    *check(&m.image, &m.program, layout, version, None)
        .unwrap_or_else(|e| panic!("{:#?}", e.findings))
        .report()
}

#[test]
fn calls_of_most_forms_are_promoted() {
    for m in modules() {
        for layout in layouts(&m) {
            let promote = all(&m, function(&m, 1));
            assert_eq!(promote.len(), 14);
            let v = version(&m, &layout, &promote);
            assert_eq!(v, version(&m, &layout, &promote), "same request, same bytes");
            // Not those that read below the stack pointer or with an index from it, and not the one with a
            // prefix.
            assert_eq!(report(&m, &layout, v).promoted, 11);
        }
        for seed in 1..40 {
            let layout = half(&m.program, seed);
            let v = version(&m, &layout, &all(&m, function(&m, 1)));
            report(&m, &layout, v);
        }
    }
}

#[test]
fn what_is_no_function_or_reads_flags_is_not_called_directly() {
    for m in modules() {
        let layout = whole(&m.program);
        let plain = version(&m, &layout, &[]);
        for target in [function(&m, 1) + 4, function(&m, 2), Svma::new(1 << 40), m.image.span().end + 0x1000]
        {
            assert_eq!(version(&m, &layout, &all(&m, target)), plain, "{target}");
        }
    }
}

#[test]
fn a_target_that_reads_flags_is_found() {
    for mut m in modules() {
        // What a wrong liveness analysis would lead to.
        for block in &mut m.program.blocks {
            block.attrs.remove(restitch_program::BlockAttrs::FLAGS_LIVE_IN);
        }
        let layout = whole(&m.program);
        let v = version(&m, &layout, &all(&m, function(&m, 2)));
        let error = check(&m.image, &m.program, &layout, v, None).unwrap_err();
        assert!(error.findings.iter().all(|f| f.problem == Problem::FlagsLive), "{error}");
    }
}

#[test]
fn every_flipped_bit_of_text_is_found() {
    for m in modules() {
        for layout in layouts(&m) {
            let v = version(&m, &layout, &all(&m, function(&m, 1)));
            let filler = report(&m, &layout, v.clone()).filler;
            let from = v.text.start.offset_from(v.range.start) as usize;
            let mut accepted = 0;
            for at in from..from + v.text.len() as usize {
                let survives = (0..8).map(|bit| 1 << bit).chain([0xff]).any(|mask: u8| {
                    let mut changed = v.clone();
                    changed.bytes[at] ^= mask;
                    check(&m.image, &m.program, &layout, changed, None).is_ok()
                });
                accepted += u64::from(survives);
            }
            assert_eq!(accepted, filler);
        }
    }
}

#[test]
fn every_change_of_the_map_is_found() {
    for m in modules() {
        let layout = shuffled(&m.program, 3);
        let v = version(&m, &layout, &all(&m, function(&m, 1)));
        let refused = |change: &dyn Fn(&mut Version)| {
            let mut changed = v.clone();
            change(&mut changed);
            check(&m.image, &m.program, &layout, changed, None).is_err()
        };
        for (i, piece) in v.map.pieces.iter().enumerate() {
            assert!(
                refused(&|v| {
                    v.map.pieces.remove(i);
                }),
                "{piece:?} removed"
            );
            for by in [-1, 1, 3] {
                let moved = refused(&|v| v.map.pieces[i].original = v.map.pieces[i].original.offset(by));
                assert!(moved || piece.kind == PieceKind::Opaque, "{piece:?} by {by}");
                let longer = |v: &mut Version| {
                    v.map.pieces[i].len = v.map.pieces[i].len.wrapping_add_signed(by as i32)
                };
                assert!(refused(&longer), "{piece:?} longer by {by}");
            }
            let kinds = [
                PieceKind::Linear,
                PieceKind::Branch,
                PieceKind::Added,
                PieceKind::Inserted,
                PieceKind::Opaque,
            ];
            for kind in kinds.into_iter().filter(|k| *k != piece.kind) {
                let same = match (piece.kind, kind) {
                    (PieceKind::Branch, PieceKind::Linear) | (PieceKind::Added, PieceKind::Branch) => true,
                    (PieceKind::Linear, PieceKind::Branch) => piece.len <= 15,
                    _ => false,
                };
                assert!(same || refused(&|v| v.map.pieces[i].kind = kind), "{piece:?} as {kind:?}");
            }
        }
    }
}

/// What is moved between versions goes by the map: a thread at the original call, and whoever returns behind
/// it.
#[test]
fn the_map_leads_in_front_of_the_comparison_and_behind_the_call() {
    for m in modules() {
        let layout = whole(&m.program);
        let v = version(&m, &layout, &all(&m, function(&m, 1)));
        let calls = m.program.calls.iter().filter(|c| m.program.function_at(c.at).is_some_and(|f| f.0 == 0));
        for call in calls {
            let there = v.to_version(call.at).unwrap();
            assert_eq!(v.map.to_original(there), Some(call.at));
            let behind = call.at + u64::from(call.len);
            let back = v.to_version(behind).unwrap();
            assert_eq!(v.map.to_original(back), Some(behind));
        }
    }
}
