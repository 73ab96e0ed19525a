//! Votes of indirect calls: a correct counting version is accepted, and whatever is changed in its code, its
//! map or its table is noticed.

mod common;

use common::Module;
use restitch_check::{CheckReport, check};
use restitch_emit::{Counted, CounterRequest, CounterWidth, PieceKind, Request, Version, emit};
use restitch_image::ImageKind;
use restitch_layout::Layout;
use restitch_layout::testing::{half, shuffled, whole};
use restitch_program::{CallId, CallTarget};

fn modules() -> [Module; 2] {
    [&include_bytes!("data/promoted.elf")[..], &include_bytes!("data/promoted-fixed.elf")[..]]
        .map(|bytes| Module::parse(bytes.to_vec()))
}

/// All indirect calls.
fn all(m: &Module) -> Vec<CallId> {
    let calls = m.program.calls.iter().enumerate().filter(|(_, c)| c.target == CallTarget::Indirect);
    calls.map(|(i, _)| CallId(i as u32)).collect()
}

/// A counting version in which every other block, or none, has a counter.
fn version(m: &Module, layout: &Layout, width: CounterWidth, blocks: bool, votes: &[CallId]) -> Version {
    let below = m.image.span().start.align_down(4096).offset(-0x1000_0000);
    let above = m.image.span().end.align_up(4096) + 0x20_0000;
    let start = if m.image.kind() == ImageKind::Executable { above } else { below };
    let mut counted: Vec<Counted> = layout.blocks().step_by(2).map(Counted::Block).collect();
    counted.truncate(if blocks { usize::MAX } else { 1 });
    emit(&Request {
        counters: Some(CounterRequest {
            area_start: start.offset(-0x400_0000),
            width,
            counted: &counted,
            votes,
        }),
        ..m.request(layout, start)
    })
    .unwrap()
}

/// With both widths and numbers of counters, so that votes begin at places of all kinds.
fn versions(m: &Module, layout: &Layout) -> Vec<Version> {
    let forms = [(CounterWidth::Bits32, true), (CounterWidth::Bits32, false), (CounterWidth::Bits64, true)];
    forms.map(|(width, blocks)| version(m, layout, width, blocks, &all(m))).into()
}

fn layouts(m: &Module) -> Vec<Layout> {
    let mut cold = whole(&m.program);
    cold.cold = cold.hot.split_off(1);
    vec![whole(&m.program), cold, shuffled(&m.program, 3), shuffled(&m.program, 8)]
}

fn report(m: &Module, layout: &Layout, version: Version) -> CheckReport {
    *check(&m.image, &m.program, layout, version, None)
        .unwrap_or_else(|e| panic!("{:#?}", e.findings))
        .report()
}

#[test]
fn calls_of_most_forms_vote() {
    for m in modules() {
        assert_eq!(all(&m).len(), 14);
        for layout in layouts(&m) {
            for v in versions(&m, &layout) {
                // Not those that read below the stack pointer or with an index from it, and not the one with
                // a prefix.
                assert_eq!(report(&m, &layout, v).votes, 11);
            }
        }
        for seed in 1..40 {
            let layout = half(&m.program, seed);
            let votes = all(&m).into_iter().step_by(1 + seed as usize % 3).collect::<Vec<_>>();
            let v = version(&m, &layout, CounterWidth::Bits32, seed % 2 == 0, &votes);
            assert!(report(&m, &layout, v).votes <= votes.len() as u64);
        }
    }
}

#[test]
fn every_flipped_bit_of_text_is_found() {
    for m in modules() {
        for layout in &layouts(&m)[1..3] {
            let v = version(&m, layout, CounterWidth::Bits32, true, &all(&m));
            let filler = report(&m, layout, v.clone()).filler;
            let from = v.text.start.offset_from(v.range.start) as usize;
            let mut accepted = 0;
            for at in from..from + v.text.len() as usize {
                let survives = (0..8).map(|bit| 1 << bit).chain([0xff]).any(|mask: u8| {
                    let mut changed = v.clone();
                    changed.bytes[at] ^= mask;
                    check(&m.image, &m.program, layout, changed, None).is_ok()
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
        let v = version(&m, &layout, CounterWidth::Bits64, true, &all(&m));
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
            }
            let kinds = [PieceKind::Linear, PieceKind::Branch, PieceKind::Added, PieceKind::Inserted];
            for kind in kinds.into_iter().filter(|k| *k != piece.kind && piece.kind == PieceKind::Opaque) {
                assert!(refused(&|v| v.map.pieces[i].kind = kind), "{piece:?} as {kind:?}");
            }
        }
        for i in 0..v.map.places.len() {
            let moved = refused(&|v| v.map.places[i].version = v.map.places[i].version + 1);
            assert!(moved, "{:?}", v.map.places[i]);
        }
    }
}

#[test]
fn every_change_of_the_table_is_found() {
    for m in modules() {
        let layout = whole(&m.program);
        let v = version(&m, &layout, CounterWidth::Bits32, true, &all(&m));
        let refused = |change: &dyn Fn(&mut restitch_emit::CounterTable)| {
            let mut changed = v.clone();
            change(changed.counters.as_mut().unwrap());
            check(&m.image, &m.program, &layout, changed, None).is_err()
        };
        // Of the calls one behind the other those in the middle have no votes.
        let found = (0..all(&m).len() - 1).filter(|i| refused(&|t| t.votes.swap(*i, i + 1))).count();
        assert_eq!(found, 11);
        assert!(refused(&|t| t.votes.clear()));
        assert!(refused(&|t| t.votes.truncate(3)));
        assert!(refused(&|t| t.area.end = t.area.end.offset(-8)));
        assert!(refused(&|t| t.area.start = t.area.start + 8));
    }
}

/// What is moved between versions goes by the map: a thread at the original call votes once more, whoever
/// returns behind it does not.
#[test]
fn the_map_leads_in_front_of_the_vote_and_behind_the_call() {
    for m in modules() {
        let layout = whole(&m.program);
        for v in versions(&m, &layout) {
            for call in
                m.program.calls.iter().filter(|c| m.program.function_at(c.at).is_some_and(|f| f.0 == 0))
            {
                let there = v.to_version(call.at).unwrap();
                assert_eq!(v.map.to_original(there), Some(call.at));
                let behind = call.at + u64::from(call.len);
                let back = v.to_version(behind).unwrap();
                assert_eq!(v.map.to_original(back), Some(behind));
            }
        }
    }
}
