//! Calls and jumps through the global offset table that became direct ones: a correct version is accepted,
//! and whatever is changed in it, or in what it assumes, is noticed.

mod common;

use common::Module;
use restitch_address::Svma;
use restitch_check::{CheckReport, Problem, check};
use restitch_emit::{BoundSlot, Request, Version, emit};
use restitch_image::RelocationKind;
use restitch_layout::Layout;
use restitch_layout::testing::{shuffled, whole};
use restitch_program::Terminator;

/// Where other modules' functions are: in reach of the version, and of nothing else that matters.
const THERE: Svma = Svma::new(0x2000_0000);

fn module() -> Module {
    Module::parse(include_bytes!("data/bound.elf").to_vec())
}

/// Each slot, as a loader would bind it.
fn bound(m: &Module) -> Vec<BoundSlot> {
    let mut n = 0;
    let one = |r: &restitch_image::DynamicRelocation| {
        n += 0x100;
        let own = match &r.kind {
            RelocationKind::JumpSlot { definition, .. } | RelocationKind::Symbolic { definition, .. } => {
                *definition
            }
            _ => None,
        };
        BoundSlot { slot: r.at, target: own.unwrap_or(THERE + n) }
    };
    m.image.relocations().iter().map(one).collect()
}

fn version(m: &Module, layout: &Layout, bound: &[BoundSlot]) -> Version {
    made(m, layout, bound, false)
}

/// Calls and jumps of stubs go through the stubs' slots.
fn by_slots(m: &Module, layout: &Layout) -> Version {
    made(m, layout, &[], true)
}

fn made(m: &Module, layout: &Layout, bound: &[BoundSlot], by_slots: bool) -> Version {
    let start = m.image.span().start.offset(-0x1000_0000);
    emit(&Request {
        image: &m.image,
        program: &m.program,
        unwind: &m.unwind,
        layout,
        start,
        bias: m.bias(),
        number: 1,
        bound_slots: bound,
        by_slots,
        promote: &[],
        pointers: None,
        large_pages: false,
        counters: None,
    })
    .unwrap()
}

fn layouts(m: &Module) -> Vec<Layout> {
    let mut cold = whole(&m.program);
    cold.cold = cold.hot.split_off(1);
    let mut without_ours = whole(&m.program);
    without_ours.hot.remove(0);
    vec![whole(&m.program), cold, without_ours, shuffled(&m.program, 3), shuffled(&m.program, 8)]
}

fn report(m: &Module, layout: &Layout, version: Version) -> CheckReport {
    *check(&m.image, &m.program, layout, version, m.bias())
        .unwrap_or_else(|e| panic!("{:#?}", e.findings))
        .report()
}

#[test]
fn calls_and_jumps_through_bound_slots_go_straight_to_their_targets() {
    let m = module();
    for layout in layouts(&m) {
        let bound = bound(&m);
        assert_eq!(bound.len(), 4);
        let v = version(&m, &layout, &bound);
        assert_eq!(v.assumes, bound);
        assert_eq!(v, version(&m, &layout, &bound), "same request, same bytes");
        let direct = report(&m, &layout, v.clone()).direct;
        // Of the conditional jump that falls into its target nothing is left.
        assert!(direct == 11 || direct == 10, "{direct}");
        // Nothing in the text goes through a slot any more.
        let plain = version(&m, &layout, &[]);
        assert_eq!(report(&m, &layout, plain.clone()).direct, 0);
        assert!(v.text.len() <= plain.text.len());
        assert_eq!(count(&plain, [0xff, 0x15]) + count(&plain, [0xff, 0x25]), 5);
        assert_eq!(count(&v, [0x67, 0xe8]) + count(&v, [0x67, 0xe9]), 5);
    }
}

/// How often these two bytes stand in the text.
fn count(v: &Version, what: [u8; 2]) -> usize {
    let from = v.text.start.offset_from(v.range.start) as usize;
    v.bytes[from..from + v.text.len() as usize].windows(2).filter(|w| *w == what).count()
}

#[test]
fn calls_and_jumps_of_stubs_go_through_their_slots() {
    let m = module();
    for layout in layouts(&m) {
        let v = by_slots(&m, &layout);
        let plain = version(&m, &layout, &[]);
        assert_eq!(v, by_slots(&m, &layout), "same request, same bytes");
        assert!(v.assumes.is_empty());
        let (now, before) = (report(&m, &layout, v.clone()), report(&m, &layout, plain.clone()));
        assert_eq!((now.direct, before.by_slot), (0, 0));
        // Both calls, and both jumps. (Jumps on a condition have no such form, unless they are followed by a
        // jump.)
        let added = |what| count(&v, what) - count(&plain, what);
        let (calls, jumps) = (added([0xff, 0x15]), added([0xff, 0x25]));
        assert!(calls == 2 && (2..=4).contains(&jumps), "{calls} {jumps}");
        assert!(now.by_slot >= 4, "{now:?}");
        assert_eq!(now.call_sites, before.call_sites);
        // What is bound goes straight there as before.
        let (bound, direct) = (bound(&m), |v: Version| report(&m, &layout, v).direct);
        assert_eq!(made(&m, &layout, &bound, true), version(&m, &layout, &bound));
        assert!(direct(version(&m, &layout, &bound)) >= 10);
    }
}

/// A program at a fixed address may have a stub for a function's address, and a slot that holds it.
#[test]
fn slots_that_are_bound_to_a_stub_lead_there() {
    let m = module();
    for layout in layouts(&m) {
        for stub in m.image.plt_slots() {
            let own = |b: BoundSlot| BoundSlot { target: stub.stub.start, ..b };
            let bound: Vec<BoundSlot> =
                bound(&m).into_iter().filter(|b| b.slot != stub.slot).map(own).collect();
            report(&m, &layout, made(&m, &layout, &bound, true));
        }
    }
}

#[test]
fn a_return_address_behind_a_call_through_a_slot_has_its_equivalent() {
    let m = module();
    for layout in layouts(&m) {
        let v = by_slots(&m, &layout);
        let calls = m.program.calls.iter().filter(|c| c.len == 5);
        let mut seen = 0;
        for call in calls {
            let Some(at) = v.to_version(call.at) else { continue };
            let from = at.offset_from(v.range.start) as usize;
            assert_eq!(v.bytes[from..from + 2], [0xff, 0x15]);
            assert_eq!(v.map.to_original(at), Some(call.at));
            // Behind it by its last byte, as one looks for a call, and nowhere else within it.
            assert_eq!(v.map.to_original(at + 5), Some(call.at + 4));
            assert!((1..5).all(|i| v.map.to_original(at + i).is_none()));
            // Another block may stand elsewhere.
            if m.program.block(call.block).range().contains(call.at + 5) {
                assert_eq!(v.to_version(call.at + 5), Some(at + 6));
            }
            seen += 1;
        }
        assert_eq!(seen, 2);
    }
}

#[test]
fn targets_out_of_reach_are_called_as_before() {
    let m = module();
    let layout = whole(&m.program);
    let far: Vec<BoundSlot> =
        bound(&m).into_iter().map(|b| BoundSlot { target: Svma::new(1 << 40), ..b }).collect();
    let v = version(&m, &layout, &far);
    assert_eq!(v, version(&m, &layout, &[]));
    assert!(v.assumes.is_empty());
}

#[test]
fn every_flipped_bit_of_text_is_found() {
    let m = module();
    let made = |layout| [version(&m, layout, &bound(&m)), by_slots(&m, layout)];
    for (layout, v) in layouts(&m).iter().flat_map(|layout| made(layout).map(|v| (layout.clone(), v))) {
        let filler = report(&m, &layout, v.clone()).filler;
        let from = v.text.start.offset_from(v.range.start) as usize;
        let mut accepted = 0;
        for at in from..from + v.text.len() as usize {
            let survives = (0..8).map(|bit| 1 << bit).chain([0xff]).any(|mask: u8| {
                let mut changed = v.clone();
                changed.bytes[at] ^= mask;
                check(&m.image, &m.program, &layout, changed, m.bias()).is_ok()
            });
            accepted += u64::from(survives);
        }
        assert_eq!(accepted, filler);
    }
}

#[test]
fn every_change_of_what_is_assumed_is_found() {
    let m = module();
    for layout in layouts(&m) {
        let v = version(&m, &layout, &bound(&m));
        let refused = |change: &dyn Fn(&mut Vec<BoundSlot>)| {
            let mut changed = v.clone();
            change(&mut changed.assumes);
            check(&m.image, &m.program, &layout, changed, m.bias()).is_err()
        };
        for i in 0..v.assumes.len() {
            assert!(
                refused(&|a| {
                    a.remove(i);
                }),
                "slot {i} forgotten"
            );
            assert!(refused(&|a| a[i].target = a[i].target + 1), "target {i}");
            assert!(refused(&|a| a[i].slot = a[i].slot + 8), "slot {i}");
            assert!(refused(&|a| a.insert(i, a[i])), "slot {i} twice");
        }
        assert!(refused(&|a| a.clear()));
        assert!(refused(&|a| a.reverse()));
    }
}

#[test]
fn slots_that_can_change_or_hold_no_code_are_not_believed() {
    let m = module();
    let layout = whole(&m.program);
    let mut v = version(&m, &layout, &bound(&m));
    // Behind the read-only part.
    let relro = m.image.relro().unwrap();
    v.assumes.push(BoundSlot { slot: relro.end.align_up(8), target: THERE });
    let error = check(&m.image, &m.program, &layout, v.clone(), m.bias()).unwrap_err();
    assert!(error.findings.iter().all(|f| matches!(f.problem, Problem::Bound(_))), "{error}");
    // In it, but the loader writes nothing there.
    v.assumes.pop();
    v.assumes.insert(0, BoundSlot { slot: relro.start.align_up(8), target: THERE });
    assert!(check(&m.image, &m.program, &layout, v, m.bias()).is_err());
}

#[test]
fn nobody_is_sent_into_the_middle_of_a_block() {
    // A redirect might cover it.
    let m = module();
    let layout = whole(&m.program);
    let inside =
        m.program.blocks.iter().find(|b| matches!(b.terminator, Terminator::Return)).unwrap().end() - 1;
    let odd: Vec<BoundSlot> = bound(&m).into_iter().map(|b| BoundSlot { target: inside, ..b }).collect();
    let v = version(&m, &layout, &odd);
    assert_eq!(v, version(&m, &layout, &[]));
    assert_eq!(report(&m, &layout, v).direct, 0);
}
