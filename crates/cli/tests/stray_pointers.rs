//! Programs at low fixed addresses whose data hold numbers that look like addresses where their versions
//! would lie: a version gets another place, and nothing keeps it mapped after a revert.

mod common;

use common::target::stoppable;
use common::{Restitch, Target, code, look};
use restitch_testkit::{find_program, require};

/// Where the linker puts such programs.
const START: u64 = 0x40_0000;

/// A number for each page from `from` to the program: where its versions come to lie.
fn places(from: u64) -> Vec<(u64, u64)> {
    let header = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/common/numbers.h");
    let (from, to) = (format!("-DNUMBERS_FROM={from:#x}ul"), format!("-DNUMBERS_TO={START:#x}ul"));
    let flags = ["-O2", "-no-pie", "-fcf-protection=none", &from, &to, "-include", header];
    let program = stoppable("switch.c", &flags).expect("gcc makes programs at fixed addresses");
    let restitch = Restitch::new();
    let mut target = Target::start(&program);
    let mut places = Vec::new();
    for _ in 0..2 {
        // The second one comes to lie elsewhere than the first.
        restitch.attach(target.pid(), &[]).expect(code::DONE);
        let maps = look::maps(target.pid());
        assert!(maps.iter().any(|m| m.start == START), "{maps:?}");
        let low = maps.iter().filter(|m| m.is_ours() && m.start < 1 << 32);
        places.extend(low.map(|m| (m.start, m.end)));
        target.assert_computing("in the new layout");
        target.assert_goes_back(&restitch);
    }
    target.stop();
    assert!(!places.is_empty(), "nothing of the program was laid out anew");
    places
}

#[test]
fn versions_lie_where_no_number_points() {
    require!(find_program("gcc"), "gcc");
    // Half of the room below the program. Into the other half small numbers point that others have in memory,
    // more or fewer of them.
    let from = 0x20_0000;
    let places = places(from);
    assert!(places.iter().all(|(start, end)| *end <= from || *start >= START), "{places:x?}");
}

#[test]
fn where_numbers_point_everywhere_below_versions_lie_above() {
    require!(find_program("gcc"), "gcc");
    let places = places(0);
    assert!(places.iter().all(|(start, _)| (START..1 << 31).contains(start)), "{places:x?}");
}
