//! Small programs in every linking style, each also stripped and without section headers.

mod common;

use common::{built, parse, without_sections};
use object::{Object, ObjectSymbol, ObjectSymbolTable};
use restitch_address::{FileOffset, Svma};
use restitch_image::{Binding, Image, ImageKind, RelocationKind, SymbolKind};
use restitch_testkit::require;
use std::collections::BTreeSet;

const RELR: &[&str] = &["-pie", "-fPIE", "-Wl,-z,pack-relative-relocs"];

fn name_at(image: &Image, name: &str) -> Svma {
    image.symbols_named(name).next().unwrap_or_else(|| panic!("no symbol {name}")).range.start
}

#[test]
fn kinds() {
    let cases: [(&[&str], ImageKind, bool); 5] = [
        (&["-no-pie"], ImageKind::Executable, false),
        (&["-pie", "-fPIE"], ImageKind::Pie, false),
        (&["-static"], ImageKind::Executable, true),
        (&["-static-pie", "-fPIE"], ImageKind::Pie, true),
        (&["-shared", "-fPIC", "-Wl,-soname,libprogram.so.1"], ImageKind::SharedObject, false),
    ];
    for (flags, kind, is_static) in cases {
        let data = require!(built(flags), "gcc with {flags:?}");
        for data in [data.clone(), without_sections(data)] {
            let image = parse(data);
            assert_eq!((image.kind(), image.is_static()), (kind, is_static), "{flags:?}");
            assert_eq!(image.soname().is_some(), kind == ImageKind::SharedObject);
            if !is_static {
                assert_eq!(image.needed(), ["libc.so.6"]);
            }
            assert!(kind == ImageKind::SharedObject || image.is_executable(image.entry()));
        }
    }
}

#[test]
fn symbols_agree_with_another_reader() {
    for flags in [&["-no-pie"][..], &["-static"], &["-shared", "-fPIC"]] {
        let data = require!(built(flags), "gcc");
        let other = object::File::parse(&*data).unwrap();
        let expected: BTreeSet<(u64, String)> = other
            .symbols()
            .chain(other.dynamic_symbol_table().into_iter().flat_map(|t| t.symbols()))
            .filter(|s| !s.is_undefined() && s.section_index().is_some())
            .filter(|s| {
                let object::SymbolFlags::Elf { st_info, .. } = s.flags() else { unreachable!() };
                matches!(st_info & 15, 1 | 2 | 10)
            })
            .map(|s| (s.address(), s.name().unwrap().split('@').next().unwrap().to_owned()))
            .collect();
        let image = parse(data.clone());
        let found = image.symbols_with_aliases().iter().map(|s| (s.range.start.get(), s.name.to_string()));
        assert_eq!(found.collect::<BTreeSet<_>>(), expected, "{flags:?}");
    }
}

#[test]
fn names_of_functions() {
    let image = parse(require!(built(&["-no-pie"]), "gcc"));
    let twice = name_at(&image, "twice");
    assert_eq!(name_at(&image, "exported_alias"), twice);
    assert_eq!(image.function_name(twice), Some("exported_alias"));
    assert_eq!(image.function_name(twice + 1), None);
    assert_eq!(image.symbol_containing(twice + 1).unwrap().range.start, twice);
    let helper = image.symbols_named("local_helper").next().unwrap();
    assert_eq!((helper.kind, helper.binding), (SymbolKind::Function, Binding::Local));
    let table = image.symbols_named("table").next().unwrap();
    assert_eq!((table.kind, table.range.len()), (SymbolKind::Object, 256));
    assert_eq!(image.function_name(table.range.start), None);
    assert!(image.symbols().windows(2).all(|w| w[0].range.start < w[1].range.start));
}

#[test]
fn bytes_and_permissions() {
    let data = require!(built(&["-pie", "-fPIE"]), "gcc");
    let image = parse(data.clone());
    let (main, table) = (name_at(&image, "main"), name_at(&image, "table"));
    let message = image.symbols_named("message").next().unwrap().range;
    assert_eq!(image.read(message.start, 8), Some(&b"counted\0"[..]));
    assert_eq!(image.read_u32(message.start), Some(u32::from_le_bytes(*b"coun")));
    assert_eq!(image.read_u64(message.start), Some(u64::from_le_bytes(*b"counted\0")));
    assert_eq!(image.read(table, 1), None, "zero-filled memory is not in the file");
    assert!(image.is_writable(table) && !image.is_executable(table));
    assert!(image.is_executable(main) && !image.is_writable(main));
    assert!(!image.is_executable(message.start) && !image.is_writable(message.start));
    let last = image.segments().last().unwrap().file_backed().end;
    assert!(image.read(last - 1, 1).is_some() && image.read(last - 1, 2).is_none());
    let offset = image.file_offset(main).unwrap();
    assert_eq!(image.read(main, 4).unwrap(), &data[offset.get() as usize..][..4]);
    assert_eq!(image.address_of(offset), Some(main));
    assert_eq!(image.address_of(FileOffset::new(u64::MAX)), None);
    assert!(image.relro().is_some_and(|r| image.segment_at(r.start).is_some_and(|s| s.writable)));
}

#[test]
fn code_ranges_follow_sections_where_there_are_some() {
    let data = require!(built(&["-no-pie", "-Wl,-z,noseparate-code"]), "gcc");
    let message = name_at(&parse(data.clone()), "message");
    assert!(!parse(data.clone()).is_executable(message), "read-only data beside code is no code");
    assert!(parse(without_sections(data)).is_executable(message), "without sections nobody can tell");
}

/// Places and targets of the relative relocations.
fn relative(image: &Image) -> Vec<(Svma, Svma)> {
    let relocations = image.relocations().iter();
    relocations
        .filter_map(|r| match r.kind {
            RelocationKind::Relative { target } => Some((r.at, target)),
            _ => None,
        })
        .collect()
}

#[test]
fn relocations_of_a_pie() {
    for flags in [&["-pie", "-fPIE"][..], RELR, &["-static-pie", "-fPIE"]] {
        let data = require!(built(flags), "gcc with {flags:?}");
        let image = parse(data.clone());
        let pointers = name_at(&image, "pointers");
        for (place, function) in [(pointers, "twice"), (pointers + 8, "local_helper")] {
            let target = name_at(&image, function);
            let relocation = image.relocation_at(place).unwrap();
            assert_eq!(relocation.kind, RelocationKind::Relative { target }, "{flags:?}");
        }
        assert_eq!(image.relocation_at(pointers + 4), None);
        let range = image.symbols_named("pointers").next().unwrap().range;
        assert_eq!(image.relocations_in(range).len(), 2);
        assert!(image.relocations().windows(2).all(|w| w[0].at <= w[1].at));
        assert_eq!(relative(&parse(without_sections(data))), relative(&image), "{flags:?}");
    }
    // The program alone, without the C library's share, has the same places packed and not packed.
    let plain = relative(&parse(require!(built(&["-pie", "-fPIE"]), "gcc"))).len();
    assert_eq!(relative(&parse(require!(built(RELR), "ld -z pack-relative-relocs"))).len(), plain);
}

#[test]
fn symbolic_relocations_of_a_shared_object() {
    let image = parse(require!(built(&["-shared", "-fPIC"]), "gcc"));
    let relocation = image.relocation_at(name_at(&image, "pointers")).unwrap();
    let definition = Some(name_at(&image, "twice"));
    assert_eq!(relocation.kind, RelocationKind::Symbolic { name: "twice".into(), addend: 0, definition });
    assert!(image.relocations().iter().any(|r| matches!(&r.kind,
        RelocationKind::JumpSlot { name, definition: None } if &**name == "malloc")));
}

#[test]
fn plt_stubs() {
    let cases: [&[&str]; 6] = [
        &["-no-pie"],
        &["-pie", "-fPIE"],
        &["-pie", "-fPIE", "-Wl,-z,now"],
        &["-pie", "-fPIE", "-fcf-protection=full", "-Wl,-z,ibtplt"],
        &["-pie", "-fPIE", "-fuse-ld=lld"],
        &["-shared", "-fPIC", "-fcf-protection=full", "-Wl,-z,ibtplt"],
    ];
    for flags in cases {
        let Some(data) = built(flags) else {
            restitch_testkit::skipped(&format!("gcc with {flags:?} is not available"));
            continue;
        };
        for (data, sections) in [(data.clone(), true), (without_sections(data), false)] {
            let image = parse(data);
            let names: BTreeSet<_> = image.plt_slots().iter().filter_map(|s| s.name.as_deref()).collect();
            assert!(
                ["malloc", "printf"].iter().all(|n| names.contains(n)),
                "{flags:?} {sections}: {names:?}"
            );
            for slot in image.plt_slots() {
                assert!(
                    image.is_writable(slot.slot) && image.is_executable(slot.stub.start),
                    "{flags:?} {slot:?}"
                );
                assert_eq!(image.plt_slot_at(slot.stub.start + 3), Some(slot));
            }
            assert!(image.plt_slots().windows(2).all(|w| w[0].stub.end <= w[1].stub.start), "{flags:?}");
        }
    }
}

#[test]
fn a_static_program_has_irelative_slots() {
    for flags in [&["-static"][..], &["-static-pie", "-fPIE"]] {
        let image = parse(require!(built(flags), "static glibc"));
        let resolvers = image.relocations().iter().filter_map(|r| match r.kind {
            RelocationKind::IRelative { resolver } => Some(resolver),
            _ => None,
        });
        let resolvers: Vec<_> = resolvers.collect();
        assert!(resolvers.len() > 3 && resolvers.iter().all(|r| image.is_executable(*r)), "{flags:?}");
        assert!(resolvers.iter().any(|r| {
            image
                .symbols_named("memcpy")
                .any(|s| s.range.start == *r && s.kind == SymbolKind::IndirectFunction)
        }));
        assert!(image.plt_slots().len() >= resolvers.len() / 2, "{flags:?}");
    }
}

#[test]
fn unwind_tables_and_build_id() {
    for flags in [&["-no-pie"][..], &["-pie", "-fPIE"], &["-shared", "-fPIC"], &["-static-pie", "-fPIE"]] {
        let data = require!(built(&[flags, &["-Wl,--build-id=0x00ffa5"]].concat()), "gcc");
        let (full, bare) = (parse(data.clone()), parse(without_sections(data)));
        assert_eq!(full.eh_frame_hdr(), bare.eh_frame_hdr());
        let (section, guess) = (full.eh_frame().unwrap(), bare.eh_frame().unwrap());
        assert_eq!(section.start, guess.start, "{flags:?}");
        assert!(guess.covers(&section));
        assert_eq!(full.build_id().unwrap().to_string(), "00ffa5");
        assert_eq!(full.build_id(), bare.build_id());
    }
}

#[test]
fn stripping_keeps_what_is_needed() {
    let directory = tempfile::tempdir().unwrap();
    let file = require!(common::build(directory.path(), "program", &["-shared", "-fPIC"]), "gcc");
    let before = parse(std::fs::read(&file).unwrap());
    if !common::run("strip", &[file.to_str().unwrap()]) {
        restitch_testkit::skip!("strip is not available");
    }
    let after = parse(std::fs::read(&file).unwrap());
    assert_eq!(after.symbols_named("local_helper").count(), 0);
    assert_eq!(name_at(&after, "twice"), name_at(&before, "twice"));
    assert_eq!(after.relocations(), before.relocations());
    assert_eq!(after.plt_slots(), before.plt_slots());
    assert_eq!(after.executable_ranges(), before.executable_ranges());
    let bare = parse(without_sections(std::fs::read(&file).unwrap()));
    assert_eq!(bare.symbols(), after.symbols());
    assert_eq!(bare.relocations(), before.relocations());
}

#[test]
fn mini_debuginfo() {
    for real_xz in [true, false] {
        let (data, before) = require!(common::with_mini_debuginfo(real_xz), "binutils or xz");
        let helper = name_at(&before, "local_helper");
        assert_eq!(parse(data.clone()).function_name(helper), Some("local_helper"), "real xz: {real_xz}");
        // A damaged section costs the names, not the image.
        let (mut damaged, section) = (data.clone(), parse(data));
        let section = section.section(".gnu_debugdata").unwrap();
        damaged[section.file_offset.get() as usize + 20] ^= 0xff;
        assert_eq!(parse(damaged).function_name(helper), None);
    }
}

#[test]
fn parsing_is_deterministic() {
    let data = require!(built(&["-static"]), "static glibc");
    let (a, b) = (parse(data.clone()), parse(data));
    assert_eq!(a.symbols_with_aliases(), b.symbols_with_aliases());
    assert_eq!(a.relocations(), b.relocations());
    assert_eq!(a.sections(), b.sections());
}
