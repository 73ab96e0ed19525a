//! Calls and jumps through the global offset table that became direct ones: a correct version is accepted, and whatever is
//! changed in it, or in what it assumes, is noticed.

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
    let start = m.image.span().start.offset(-0x1000_0000);
    emit(&Request {
        image: &m.image,
        program: &m.program,
        unwind: &m.unwind,
        layout,
        start,
        bias: m.bias(),
        number: 1,
        bound,
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
        let text = |v: &Version| {
            let from = v.text.start.offset_from(v.range.start) as usize;
            v.bytes[from..from + v.text.len() as usize].to_vec()
        };
        let count = |bytes: &[u8], what: [u8; 2]| bytes.windows(2).filter(|w| *w == what).count();
        assert_eq!(count(&text(&plain), [0xff, 0x15]) + count(&text(&plain), [0xff, 0x25]), 5);
        assert_eq!(count(&text(&v), [0x67, 0xe8]) + count(&text(&v), [0x67, 0xe9]), 5);
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
    for layout in layouts(&m) {
        let v = version(&m, &layout, &bound(&m));
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
