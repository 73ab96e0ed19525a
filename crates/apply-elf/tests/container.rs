//! The file format: the way back, refusals, damaged input.

mod common;

use common::{IN_PLACE, MOVED, Order, image, output, plan, version, version_at};
use proptest::prelude::*;
use restitch_address::Svma;
use restitch_apply::Applier;
use restitch_apply_elf::{
    ElfError, ElfFile, Mismatch, is_restitch_output, original_bytes, place, plan_output, verify,
};
use restitch_image::Image;
use restitch_testkit::{compile, program, strip, without_section_headers};
use std::time::{Duration, Instant};

fn compiled(flags: &[&str]) -> Image {
    image(&compile(&program("throw.cc"), flags).expect("compiles"))
}
fn pie() -> Image {
    compiled(&["-O2", "-pie", "-fPIE"])
}

#[test]
fn outputs_turn_back_into_exactly_the_input() {
    for flags in [
        &["-O2", "-pie", "-fPIE"][..],
        &["-O0", "-no-pie", "-g"],
        &["-O2", "-static"],
        &["-O2", "-static-pie"],
    ] {
        let whole = compile(&program("switch.c"), flags).expect("compiles");
        let bare = without_section_headers(&whole).expect("a copy");
        // Without sections, GCC's static programs at fixed addresses have no unwind tables.
        let bare = if flags[1].starts_with("-static") { whole.clone() } else { bare };
        for file in [&whole, &strip(&whole).expect("strip"), &bare] {
            let input = image(file);
            for options in [IN_PLACE, MOVED] {
                let out = Image::parse(output(&input, Order::Reversed, &options)).unwrap();
                let note = is_restitch_output(&out).expect("recognised");
                assert_eq!((note.number, note.format), (3, 1));
                assert_eq!(note.build_id.as_ref(), input.build_id());
                assert!(original_bytes(&out).unwrap() == input.data());
            }
        }
    }
}

#[test]
fn the_same_input_gives_the_same_bytes() {
    let input = pie();
    let first = output(&input, Order::Random(4), &IN_PLACE);
    assert!(first == output(&input, Order::Random(4), &IN_PLACE));
    assert!(first != output(&input, Order::Random(5), &IN_PLACE));
}

#[test]
fn all_original_bytes_stay_but_headers_redirects_and_branches_of_what_stays() {
    let input = pie();
    let version = version(&input, Order::Original, &IN_PLACE);
    let plan = plan_output(&input, &version, &IN_PLACE).unwrap();
    let out = plan.write();
    let is_retarget = |at: Svma| version.retargets.iter().any(|s| at.get().wrapping_sub(s.at.get()) < 4);
    let text = input.section(".text").unwrap().range;
    let changed = (0..text.len()).filter(|i| {
        let at = text.start + *i;
        let offset = input.file_offset(at).unwrap().get() as usize;
        out[offset] != input.data()[offset]
            && !is_retarget(at)
            && !plan.redirects().iter().any(|w| at.get().wrapping_sub(w.at.get()) < 5)
    });
    assert_eq!(changed.count(), 0);
    let data = input.section(".rodata").unwrap();
    let range = data.file_offset.get() as usize..(data.file_offset.get() + data.range.len()) as usize;
    assert!(out[range.clone()] == input.data()[range]);
    assert!(!plan.redirects().is_empty());
}

#[test]
fn own_output_is_refused() {
    let out = Image::parse(output(&pie(), Order::Original, &IN_PLACE)).unwrap();
    let again = version(&out, Order::Original, &IN_PLACE);
    let refused = plan_output(&out, &again, &IN_PLACE);
    assert!(matches!(refused, Err(ElfError::AlreadyRestitched { number: 3 })));
    assert!(matches!(original_bytes(&pie()), Err(ElfError::NotRestitched)));
}

#[test]
fn a_version_elsewhere_is_refused() {
    let input = pie();
    let start = place(&input, 4096, &IN_PLACE).unwrap();
    // Below the module, which a live process allows, and where a moved table would meet the file's own bytes.
    let below = version_at(&input, Order::Original, Svma::new(0).offset(-0x10_0000));
    assert!(matches!(plan_output(&input, &below, &IN_PLACE), Err(ElfError::Misplaced { .. })));
    let low = version_at(&input, Order::Original, start);
    if place(&input, 4096, &MOVED).unwrap() != start {
        assert!(matches!(plan_output(&input, &low, &MOVED), Err(ElfError::Misplaced { .. })));
    }
    // Higher up is fine.
    let high = version_at(&input, Order::Original, start + 0x10_0000);
    let plan = plan_output(&input, &high, &IN_PLACE).unwrap();
    verify(&plan, &Image::parse(plan.write()).unwrap()).unwrap();
}

#[test]
fn a_version_of_another_file_is_refused() {
    let other = version(
        &image(&compile(&program("virt.cc"), &["-O2", "-static"]).unwrap()),
        Order::Original,
        &IN_PLACE,
    );
    let refused = plan_output(&pie(), &other, &IN_PLACE);
    assert!(matches!(refused, Err(ElfError::BadRedirect { .. })), "{:?}", refused.err());
}

#[test]
fn a_place_out_of_reach_is_refused() {
    assert!(matches!(place(&pie(), 1 << 31, &IN_PLACE), Err(ElfError::OutOfReach { .. })));
}

/// If the registration of its unwind tables cannot be found, a static program's exceptions would not pass
/// moved code.
#[test]
fn a_static_program_with_unknown_registration_is_refused() {
    let good = compiled(&["-O2", "-static"]);
    let frames = good.eh_frame().unwrap();
    let mut data = good.data().to_vec();
    // As if the compiler had used another register: mov $tables,%edi becomes mov $tables,%ebp.
    for range in good.executable_ranges() {
        let code = good.read(range.start, range.len() as usize).unwrap();
        for i in 0..code.len() - 5 {
            let value = u32::from_le_bytes(code[i + 1..i + 5].try_into().unwrap());
            if code[i] == 0xbf && frames.contains(Svma::new(value.into())) {
                data[good.file_offset(range.start + i as u64).unwrap().get() as usize] = 0xbd;
            }
        }
    }
    let odd = Image::parse(data).unwrap();
    let refused = plan(&odd, Order::Original, &IN_PLACE);
    assert!(matches!(refused, Err(ElfError::UnreachableUnwindTables)));
}

#[test]
fn verification_finds_changed_bytes() {
    let input = pie();
    let plan = plan(&input, Order::Original, &IN_PLACE).unwrap();
    let good = plan.write();
    let damaged = |at: usize| {
        let mut bytes = good.clone();
        bytes[at] ^= 0x55;
        verify(&plan, &Image::parse(bytes).unwrap())
    };
    let offset = |at| input.file_offset(at).unwrap().get() as usize;
    let redirect = &plan.redirects()[0];
    assert!(matches!(damaged(offset(redirect.at) + 2), Err(Mismatch::Patch(at)) if at == redirect.at));
    let added = good.len() - 64 * 64;
    assert!(damaged(input.data().len().next_multiple_of(4096) + 0x200).is_err());
    assert!(damaged(offset(input.section(".rodata").unwrap().range.start)).is_err());
    assert!(damaged(added).is_ok(), "section headers are not part of what runs");
}

#[test]
fn the_contract_is_kept() {
    let input = pie();
    let version = version(&input, Order::Reversed, &IN_PLACE);
    let mut file = ElfFile::new(input.clone(), IN_PLACE);
    assert!(matches!(file.plan(&[]), Err(ElfError::VersionCount(0))));
    let plan = file.plan(&[&version]).unwrap();
    file.can_apply(&plan).unwrap();
    assert!(file.describe(&plan).contains("version 3 at"), "{}", file.describe(&plan));
    let applied = file.apply(plan.clone()).unwrap();
    file.verify(&applied).unwrap();
    assert!(matches!(file.can_apply(&plan), Err(ElfError::AlreadyRestitched { number: 3 })));
    file.revert(applied).unwrap();
    assert!(file.image().data() == input.data());
    assert!(file.verify(&plan).is_err());
}

/// The note and the undo record are foreign data: damage gives an error or the right bytes, never a panic.
#[test]
fn damaged_outputs_never_turn_into_wrong_originals() {
    let input = pie();
    let good = output(&input, Order::Original, &IN_PLACE);
    let note = is_restitch_output(&Image::parse(good.clone()).unwrap()).unwrap();
    let added = input.data().len().next_multiple_of(4096);
    let undo = added + note.undo.start.offset_from(note.code.start) as usize;
    let end = Instant::now() + Duration::from_secs(1);
    let mut state = 1u64;
    let mut next = |below: usize| {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 33) as usize % below
    };
    while Instant::now() < end {
        let mut bytes = good.clone();
        for _ in 0..1 + next(4) {
            let at = match next(4) {
                0 => next(bytes.len()),
                1 => added + next(256),
                2 => undo + next(note.undo.len() as usize),
                _ => next(1024),
            };
            bytes[at] = if next(2) == 0 { next(256) as u8 } else { bytes[at] ^ (1 << next(8)) };
        }
        if next(8) == 0 {
            bytes.truncate(next(bytes.len()));
        }
        let Ok(damaged) = Image::parse(bytes) else { continue };
        let _ = is_restitch_output(&damaged);
        if let Ok(restored) = original_bytes(&damaged) {
            assert!(restored == input.data());
        }
    }
}

/// Planning on damaged files: an error or a file, never a panic.
#[test]
fn damaged_inputs_never_panic() {
    let input = pie();
    let version = version(&input, Order::Original, &IN_PLACE);
    let sections = u64::from_le_bytes(input.data()[40..48].try_into().unwrap()) as usize;
    let end = Instant::now() + Duration::from_secs(1);
    let mut state = 2u64;
    let mut next = |below: usize| {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 33) as usize % below
    };
    while Instant::now() < end {
        let mut bytes = input.data().to_vec();
        for _ in 0..1 + next(3) {
            let at = match next(3) {
                0 => next(0x400),
                1 => sections + next(bytes.len() - sections),
                _ => next(bytes.len()),
            };
            bytes[at] = next(256) as u8;
        }
        let Ok(damaged) = Image::parse(bytes) else { continue };
        let _ = place(&damaged, 4096, &MOVED);
        for options in [IN_PLACE, MOVED] {
            if let Ok(plan) = plan_output(&damaged, &version, &options) {
                let out = plan.write();
                if let Ok(out) = Image::parse(out) {
                    assert!(original_bytes(&out).unwrap() == damaged.data());
                }
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn foreign_bytes_are_not_recognised(bytes in proptest::collection::vec(any::<u8>(), 0..2048)) {
        let mut data = pie().data().to_vec();
        let len = data.len();
        let from = len - bytes.len().min(len);
        data[from..].copy_from_slice(&bytes[..len - from]);
        if let Ok(image) = Image::parse(data) {
            prop_assert!(is_restitch_output(&image).is_none());
        }
    }
}
