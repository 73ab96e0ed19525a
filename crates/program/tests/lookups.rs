//! The unwinders' lookup functions are found by symbol, and in stripped static programs by shape.

use restitch_cfi::UnwindInfo;
use restitch_image::Image;
use restitch_program::{UnwinderLookups, main_range, unwinder_lookups};
use restitch_testkit::{compile, program, skipped, strip};
use std::path::Path;

fn read(path: &Path) -> (Image, UnwindInfo) {
    let image = Image::parse(std::fs::read(path).unwrap()).unwrap();
    let at = image.eh_frame().unwrap();
    let unwind = UnwindInfo::parse(image.read(at.start, at.len() as usize).unwrap(), at.start).unwrap();
    (image, unwind)
}

/// The lookups of a static C++ program, with and without symbols.
fn both(flags: &[&str]) -> Option<(UnwinderLookups, UnwinderLookups)> {
    let path = match compile(&program("throw.cc"), flags) {
        Ok(path) => path,
        Err(error) => {
            skipped(&format!("throw.cc {flags:?}: {error}"));
            return None;
        }
    };
    let (image, unwind) = read(&path);
    let named = unwinder_lookups(&image, &unwind);
    let (bare, bare_unwind) = read(&strip(&path).unwrap());
    if let Some(at) = named.find_object {
        let symbol = image.symbols_named("_dlfo_main").next().map(|s| s.range.start);
        assert_eq!(main_range(&image, &unwind, at), symbol, "{flags:?}");
    }
    Some((named, unwinder_lookups(&bare, &bare_unwind)))
}

#[test]
fn static_programs_are_hooked_without_symbols() {
    for flags in [&["-O2", "-static"][..], &["-O2", "-static-pie"], &["-O0", "-static"]] {
        let Some((named, by_shape)) = both(flags) else { return };
        if named.find_object.is_none() {
            return skipped("this C library has no _dl_find_object");
        }
        assert_eq!(named.find_object, by_shape.find_object, "{flags:?}");
    }
}

#[test]
fn a_dynamic_program_defines_neither() {
    let Some((named, by_shape)) = both(&["-O2"]) else { return };
    assert_eq!(named, UnwinderLookups::default());
    assert_eq!(by_shape, UnwinderLookups::default());
}
