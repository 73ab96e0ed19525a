//! The unwinders' lookup functions are found by symbol, and in stripped static programs by shape.

use restitch_cfi::UnwindInfo;
use restitch_image::Image;
use restitch_program::{UnwinderLookups, main_range, unwinder_lookups};
use restitch_testkit::{
    Error, compile, compile_rust_with_musl, compile_with, compile_with_llvm_runtime, program, scratch,
    skipped, strip,
};
use std::path::{Path, PathBuf};

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

/// Asserts that `dl_iterate_phdr` is found without symbols where it is with them. Without the tools it skips.
#[track_caller]
fn same_iterate(made: Result<PathBuf, Error>) {
    let path = match made {
        Ok(path) => path,
        Err(error @ Error::Missing { .. }) => return skipped(&error.to_string()),
        Err(error) => panic!("{error}"),
    };
    let lookups = |path: &Path| {
        let (image, unwind) = read(path);
        unwinder_lookups(&image, &unwind)
    };
    let named = lookups(&path);
    assert!(named.iterate.is_some(), "{} has it", path.display());
    assert_eq!(lookups(&strip(&path).unwrap()).iterate, named.iterate, "{}", path.display());
}

#[test]
fn llvms_unwinder_in_static_programs_leads_to_glibcs_dl_iterate_phdr() {
    for flags in [["-O2", "-static"].as_slice(), &["-O2", "-static-pie", "-fPIE"]] {
        same_iterate(compile_with_llvm_runtime(&program("throw.cc"), flags));
    }
}

#[test]
fn llvms_unwinder_in_static_rust_programs_leads_to_musls_dl_iterate_phdr() {
    same_iterate(compile_rust_with_musl(&program("panics.rs")));
}

/// musl as Debian and Alpine build it: without unwind tables.
fn with_musl(text: &str, flags: &[&str]) -> Result<PathBuf, Error> {
    let folder = scratch();
    let source = folder.path().join("musl.c");
    std::fs::write(&source, text).unwrap();
    compile_with("musl-gcc", &source, flags)
}

/// A program that looks for a kind of program header.
fn walker(kind: &str) -> String {
    let text = r"
#include <link.h>
#include <stdlib.h>
static int each(struct dl_phdr_info *info, size_t size, void *data) {
    for (int i = 0; i < info->dlpi_phnum; i++)
        if (info->dlpi_phdr[i].p_type == KIND) return 7;
    return size < 64 || *(int *)data;
}
static int compare(const void *a, const void *b) { return *(int *)a - *(int *)b; }
int main(int argc, char **argv) {
    int numbers[] = {argc, 3, 2};
    qsort(numbers, 3, sizeof *numbers, compare);
    return dl_iterate_phdr(each, numbers);
}
";
    format!("#define _GNU_SOURCE\n{}", text.replace("KIND", kind))
}

#[test]
fn code_without_unwind_tables_is_followed() {
    for flags in [["-O2", "-static"].as_slice(), &["-O2", "-static", "-fPIE"], &["-Os", "-static"]] {
        same_iterate(with_musl(&walker("PT_GNU_EH_FRAME"), flags));
    }
}

#[test]
fn callbacks_that_look_for_other_headers_prove_nothing() {
    let path = match with_musl(&walker("PT_TLS"), &["-O2", "-static"]) {
        Ok(path) => path,
        Err(error) => return skipped(&error.to_string()),
    };
    let (image, unwind) = read(&strip(&path).unwrap());
    assert_eq!(unwinder_lookups(&image, &unwind), UnwinderLookups::default());
}
