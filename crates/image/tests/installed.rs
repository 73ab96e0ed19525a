//! Programs and libraries as a distribution ships them.

mod common;

use common::{parse, without_sections};
use object::{Object, ObjectSection, ObjectSegment};
use restitch_image::{Image, ImageKind, RelocationKind};
use restitch_testkit::{find_program, require};
use std::path::Path;

/// Facts that hold for every linked file, checked against another reader where there is one.
fn check(image: &Image) {
    let other = object::File::parse(image.data()).unwrap();
    assert_eq!(image.entry().get(), other.entry());
    assert_eq!(image.build_id().map(|b| b.as_bytes()), other.build_id().unwrap());
    let segments: Vec<_> = other.segments().map(|s| (s.address(), s.size())).filter(|s| s.1 != 0).collect();
    let ours: Vec<_> = image.segments().iter().map(|s| (s.range.start.get(), s.range.len())).collect();
    assert_eq!(ours, segments);
    for section in other.sections().filter(|s| s.address() != 0) {
        let ours = image.section(section.name().unwrap()).unwrap();
        let mut same_name = image.sections().iter().filter(|s| s.name == ours.name);
        assert!(same_name.any(|s| s.range.start.get() == section.address()), "{}", ours.name);
        let data = section.data().unwrap();
        if !data.is_empty() && ours.kind != object::elf::SHT_NOBITS && same_name.next().is_none() {
            assert_eq!(image.read(ours.range.start, data.len()), Some(data), "{}", ours.name);
        }
    }
    if let Some(mut expected) = other.dynamic_relocations().map(|r| r.map(|(at, _)| at).collect::<Vec<_>>())
        && !image.relocations().is_empty()
        && image.section(".relr.dyn").is_none()
    {
        expected.sort();
        assert_eq!(image.relocations().iter().map(|r| r.at.get()).collect::<Vec<_>>(), expected);
    }
    let text = image.section(".text").unwrap().range;
    assert!(image.executable_ranges().iter().any(|r| r.covers(&text)));
    assert_eq!(image.eh_frame().unwrap(), image.section(".eh_frame").unwrap().range);
    for s in image.symbols().iter().filter(|s| s.is_function()) {
        assert_eq!(image.function_name(s.range.start), Some(&*s.name));
    }
    let slots = image.plt_slots();
    assert!(slots.iter().all(|s| image.is_executable(s.stub.start) && image.is_writable(s.slot)));
    let bound = image.relocations().iter().filter(|r| matches!(r.kind, RelocationKind::JumpSlot { .. }));
    for jump in bound {
        assert!(slots.iter().any(|s| s.slot == jump.at), "no stub for {jump:?}");
    }
}

/// Without section headers the same facts come out, as far as they do not need the headers.
fn check_bare(image: &Image) {
    let bare = parse(without_sections(image.data().to_vec()));
    assert_eq!(bare.kind(), image.kind());
    assert_eq!(bare.build_id(), image.build_id());
    assert_eq!(bare.dynamic(), image.dynamic());
    assert_eq!(bare.relocations(), image.relocations());
    assert_eq!(bare.eh_frame().unwrap().start, image.eh_frame().unwrap().start);
    for slot in image.plt_slots() {
        assert!(bare.plt_slots().contains(slot), "{slot:?}");
    }
    for symbol in bare.symbols_with_aliases() {
        assert!(image.symbols_with_aliases().contains(symbol), "{symbol:?}");
    }
    if image.kind() == ImageKind::SharedObject {
        assert!(!bare.symbols().is_empty());
    }
}

/// `file` is a path, or the name of a program.
fn installed(file: &str) {
    let path = if file.contains('/') { Some(file.into()) } else { find_program(file) };
    let path = require!(path.filter(|p| p.exists()), "{file}");
    let image = parse(std::fs::read(&path).unwrap());
    println!("{}: {image:?}", path.display());
    check(&image);
    check_bare(&image);
}

macro_rules! installed {
    ($($name:ident: $path:expr;)*) => { $(#[test] fn $name() { installed($path); })* };
}

installed! {
    cc1plus: "cc1plus";
    postgres: "postgres";
    mariadbd: "mariadbd";
    nginx: "nginx";
    redis: "redis-server";
    memcached: "memcached";
    ls: "ls";
    libc: "/lib/x86_64-linux-gnu/libc.so.6";
    libstdcxx: "/usr/lib/x86_64-linux-gnu/libstdc++.so.6";
    loader: "/lib64/ld-linux-x86-64.so.2";
    python: "python3";
    perl: "perl";
    perf: "perf";
    gdb: "gdb";
}

#[test]
fn the_c_library_defines_what_programs_call() {
    let path = Path::new("/lib/x86_64-linux-gnu/libc.so.6");
    if !path.exists() {
        restitch_testkit::skip!("{} is not installed", path.display());
    }
    let image = parse(std::fs::read(path).unwrap());
    assert_eq!(image.kind(), ImageKind::SharedObject);
    assert_eq!(image.soname(), Some("libc.so.6"));
    for name in
        ["_setjmp", "setjmp", "__sigsetjmp", "getcontext", "swapcontext", "vfork", "dlsym", "_dl_find_object"]
    {
        assert!(image.symbols_named(name).any(|s| s.is_function()), "{name}");
    }
}
