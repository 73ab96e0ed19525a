//! Functions of which pointers lead to the copy: what the emitter says is accepted, every change of it is
//! found, and what something else knows is left out.

mod common;

use common::Module;
use restitch_address::Svma;
use restitch_check::{CheckReport, check};
use restitch_emit::{Pointers, Request, RetargetKind, Version, emit};
use restitch_image::RelocationKind;
use restitch_layout::Layout;
use restitch_layout::testing::{half, whole};

fn module() -> Module {
    Module::parse(include_bytes!("data/pointers.elf").to_vec())
}

fn version(m: &Module, layout: &Layout, pointers: Option<&Pointers>) -> Version {
    let start = m.image.span().end.align_up(4096) + 0x20_0000;
    emit(&Request { pointers, ..m.request(layout, start) }).unwrap()
}

fn report(m: &Module, layout: &Layout, version: Version) -> Option<CheckReport> {
    check(&m.image, &m.program, layout, version, None).ok().map(|checked| *checked.report())
}

fn cases(m: &Module) -> Vec<(Layout, Version)> {
    let pointers = Pointers::of(&m.image, &m.program);
    let layouts = (1..41).map(|seed| half(&m.program, seed)).chain([whole(&m.program)]);
    layouts.map(|layout| (version(m, &layout, Some(&pointers)), layout)).map(|(v, l)| (l, v)).collect()
}

/// Where the words of `table` lead, in order.
fn table(m: &Module) -> Vec<Svma> {
    let relative = |kind: &RelocationKind| match kind {
        RelocationKind::Relative { target } => Some(*target),
        _ => None,
    };
    m.image.relocations().iter().filter_map(|r| relative(&r.kind)).collect()
}

#[test]
fn functions_that_something_else_knows_are_left_out() {
    let m = module();
    let pointers = Pointers::of(&m.image, &m.program);
    let found: Vec<Svma> = pointers.functions().iter().map(|f| m.program.function(*f).range.start).collect();
    let [local, distant, _, measured, entered, offset, prefixed, uses, resolver, exported] = table(&m)[..]
    else {
        panic!("another table")
    };
    for known in [distant, uses, exported] {
        assert!(found.contains(&known), "{known}");
    }
    // (The first one makes its own address.)
    for left_out in [local, measured, entered, offset, prefixed, resolver] {
        assert!(!found.contains(&left_out), "{left_out}");
    }
}

#[test]
fn what_the_emitter_says_is_accepted() {
    let m = module();
    let (mut retargeted, mut kinds) = (0, std::collections::BTreeMap::new());
    for (layout, version) in cases(&m) {
        let wanted = version.retargeted.len() as u64;
        version.retargets.iter().for_each(|s| *kinds.entry(s.kind).or_insert(0) += 1);
        let report = check(&m.image, &m.program, &layout, version, None).map(|checked| *checked.report());
        assert_eq!(report.expect("accepted").retargeted, wanted);
        retargeted += wanted;
    }
    assert!(retargeted > 40, "{retargeted}");
    let made = [RetargetKind::Function, RetargetKind::Lea, RetargetKind::Symbol];
    assert!(made.iter().all(|k| kinds.contains_key(k)), "{kinds:?}");
}

#[test]
fn every_change_is_found() {
    let m = module();
    for (layout, good) in cases(&m) {
        let refused = |change: &dyn Fn(&mut Version), what: &str| {
            let mut changed = good.clone();
            change(&mut changed);
            assert!(report(&m, &layout, changed).is_none(), "{what}");
        };
        for i in (0..good.retargets.len()).filter(|i| !good.retargets[*i].kind.is_optional()) {
            for by in [-16, -4, -1, 1, 4, 16] {
                refused(&|v| v.retargets[i].at = v.retargets[i].at.offset(by), "place");
                refused(&|v| v.retargets[i].to = v.retargets[i].to.offset(by), "target");
                refused(&|v| v.retargets[i].original = v.retargets[i].original.offset(by), "original target");
            }
            refused(&|v| v.retargets.retain(|s| *s != good.retargets[i]), "one that is missing");
            refused(&|v| v.retargets.insert(i, v.retargets[i]), "twice");
            let kinds = [RetargetKind::Displacement, RetargetKind::Pointer, RetargetKind::Function];
            for kind in kinds.into_iter().chain([RetargetKind::Lea, RetargetKind::Symbol]) {
                if kind != good.retargets[i].kind {
                    refused(&|v| v.retargets[i].kind = kind, "kind");
                }
            }
        }
        for i in 0..good.retargeted.len() {
            for by in [-16, -1, 1, 16] {
                refused(&|v| v.retargeted[i].to = v.retargeted[i].to.offset(by), "copy");
                refused(&|v| v.retargeted[i].original = v.retargeted[i].original.offset(by), "function");
                refused(&|v| v.retargeted[i].len = v.retargeted[i].len.wrapping_add_signed(by), "length");
            }
            refused(&|v| v.retargeted.retain(|l| *l != good.retargeted[i]), "a function that is missing");
            refused(&|v| v.retargeted.insert(i, v.retargeted[i]), "a function that is there twice");
            if i > 0 {
                refused(&|v| v.retargeted.swap(0, i), "another order");
            }
        }
    }
}

/// The version's own instructions that make such an address make the new one.
#[test]
fn the_old_address_in_a_copy_is_found() {
    let m = module();
    let pointers = Pointers::of(&m.image, &m.program);
    let layout = whole(&m.program);
    let (retargeted, plain) = (version(&m, &layout, Some(&pointers)), version(&m, &layout, None));
    assert!(plain.retargeted.is_empty() && plain.retargets.iter().all(|s| s.kind.is_optional()));
    let made = |version: &Version| {
        let code = version.bytes.windows(7).enumerate().filter(|(_, b)| b[..3] == [0x48, 0x8d, 0x05]);
        let places = code.map(|(i, b)| (version.range.start + i as u64 + 7, [b[3], b[4], b[5], b[6]]));
        places.map(|(end, b)| (end, end.offset(i32::from_le_bytes(b).into()))).collect::<Vec<_>>()
    };
    let mut changed = 0;
    for (end, to) in made(&retargeted) {
        let Some(function) = retargeted.retargeted.iter().find(|l| l.to == to) else { continue };
        let mut old = retargeted.clone();
        let at = end.offset_from(retargeted.range.start) as usize - 4;
        let displacement = function.original.offset_from(end) as i32;
        old.bytes[at..at + 4].copy_from_slice(&displacement.to_le_bytes());
        assert!(report(&m, &layout, old).is_none());
        changed += 1;
    }
    assert!(changed >= 2, "{changed}");
    let old = plain.retargeted.len()
        + made(&plain).iter().filter(|(_, to)| retargeted.retargeted.iter().any(|l| l.to == *to)).count();
    assert_eq!(old, 0);
}

/// Functions that are said to be retargeted although something else knows them.
#[test]
fn what_must_not_be_led_to_is_refused() {
    let m = module();
    let layout = whole(&m.program);
    let good = version(&m, &layout, None);
    // The bytes of one of them are read, so it has no copy at all.
    let opaque = |at: Svma| m.program.block_starting_at(at).is_none();
    let targets: Vec<Svma> = table(&m)[3..9].iter().copied().filter(|at| !opaque(*at)).collect();
    assert_eq!(targets.len(), 5);
    for target in &targets {
        let mut wrong = good.clone();
        let placed = wrong.blocks.iter().find(|b| m.program.block(b.block).start == *target).expect("placed");
        let (to, len) = (placed.version.start, placed.version.len());
        wrong.retargeted.push(restitch_emit::RetargetedFunction { original: *target, to, len });
        assert!(report(&m, &layout, wrong).is_none(), "{target}");
    }
    assert!(report(&m, &layout, good).is_some());
}
