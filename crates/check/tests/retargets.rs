//! Retargets into a version: what the emitter says is accepted, every change of it is found.

mod common;

use common::Module;
use restitch_check::{CheckReport, check};
use restitch_emit::{RetargetKind, Version, emit};
use restitch_layout::Layout;
use restitch_layout::testing::{half, whole};

fn module() -> Module {
    Module::parse(include_bytes!("data/small.elf").to_vec())
}

/// A version for a file, not for a process.
fn version(m: &Module, layout: &Layout) -> Version {
    let start = m.image.span().end.align_up(4096) + 0x20_0000;
    emit(&m.request(layout, start)).unwrap()
}

fn report(m: &Module, layout: &Layout, version: Version) -> Option<CheckReport> {
    check(&m.image, &m.program, layout, version, None).ok().map(|checked| *checked.report())
}

/// Layouts of some functions, with the retargets that they get.
fn cases(m: &Module) -> Vec<(Layout, Version)> {
    let layouts = (1..41).map(|seed| half(&m.program, seed)).chain([whole(&m.program)]);
    layouts.map(|layout| (version(m, &layout), layout)).map(|(version, layout)| (layout, version)).collect()
}

#[test]
fn what_the_emitter_says_is_accepted() {
    let m = module();
    let mut all = 0;
    for (layout, version) in cases(&m) {
        let wanted = version.retargets.len() as u64;
        let report = report(&m, &layout, version).expect("accepted");
        assert_eq!(report.retargets, wanted);
        all += wanted;
    }
    assert!(all > 0, "no layout has retargets: nothing is tested here");
}

#[test]
fn any_subset_is_accepted() {
    let m = module();
    for (layout, mut version) in cases(&m) {
        let mut keep = false;
        version.retargets.retain(|_| {
            keep = !keep;
            keep
        });
        assert!(report(&m, &layout, version.clone()).is_some());
        version.retargets.clear();
        assert!(report(&m, &layout, version).is_some());
    }
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
        for i in 0..good.retargets.len() {
            for by in [-4, -1, 1, 4] {
                refused(&|v| v.retargets[i].at = v.retargets[i].at.offset(by), "place");
                refused(&|v| v.retargets[i].to = v.retargets[i].to.offset(by), "target");
                refused(&|v| v.retargets[i].original = v.retargets[i].original.offset(by), "original target");
            }
            refused(&|v| v.retargets.insert(i, v.retargets[i]), "twice");
            refused(
                &|v| {
                    v.retargets[i].kind = match v.retargets[i].kind {
                        RetargetKind::Displacement => RetargetKind::Pointer,
                        _ => RetargetKind::Displacement,
                    }
                },
                "kind",
            );
        }
    }
}
