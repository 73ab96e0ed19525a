//! What cannot be an image is refused with a text that says what to do.

use restitch_image::{Image, ImageError};

/// A minimal executable: two segments, no sections.
fn minimal() -> Vec<u8> {
    let mut d = vec![0u8; 0x200];
    d[..8].copy_from_slice(b"\x7fELF\x02\x01\x01\0");
    d[16..18].copy_from_slice(&2u16.to_le_bytes());
    d[18..20].copy_from_slice(&62u16.to_le_bytes());
    d[24..32].copy_from_slice(&0x400100u64.to_le_bytes());
    d[32..40].copy_from_slice(&64u64.to_le_bytes());
    d[54..56].copy_from_slice(&56u16.to_le_bytes());
    d[56..58].copy_from_slice(&2u16.to_le_bytes());
    load(&mut d, 0, 5, 0, 0x400000, 0x180, 0x180);
    load(&mut d, 1, 6, 0x180, 0x401180, 0x80, 0x1000);
    d
}

fn load(d: &mut [u8], index: usize, flags: u32, offset: u64, address: u64, file_len: u64, memory_len: u64) {
    let p = &mut d[64 + index * 56..][..56];
    p[0..4].copy_from_slice(&1u32.to_le_bytes());
    p[4..8].copy_from_slice(&flags.to_le_bytes());
    for (at, value) in [(8, offset), (16, address), (24, address), (32, file_len), (40, memory_len)] {
        p[at..at + 8].copy_from_slice(&value.to_le_bytes());
    }
}

fn refused(data: Vec<u8>) -> (ImageError, String) {
    let error = Image::parse(data).expect_err("must be refused");
    let text = error.to_string();
    assert!(text.starts_with("cannot read the image: "), "{text}");
    (error, text)
}

fn with(change: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut data = minimal();
    change(&mut data);
    data
}

#[test]
fn the_minimal_file_itself_is_accepted() {
    let image = Image::parse(minimal()).unwrap();
    assert_eq!(image.segments().len(), 2);
    assert_eq!(image.entry().get(), 0x400100);
    assert!(image.sections().is_empty() && image.symbols().is_empty() && image.is_static());
}

#[test]
fn what_is_not_elf() {
    for data in [&b""[..], b"\x7fEL", b"#!/bin/sh\n"] {
        let (error, text) = refused(data.to_vec());
        assert_eq!(error, ImageError::NotElf);
        assert!(text.contains("not an ELF file") && text.contains("not of a script"), "{text}");
    }
}

#[test]
fn other_classes_orders_and_machines() {
    let (error, text) = refused(with(|d| d[4] = 1));
    assert_eq!(error, ImageError::ThirtyTwoBit);
    assert!(text.contains("32-bit") && text.contains("-m64"), "{text}");
    let (error, text) = refused(with(|d| d[5] = 2));
    assert_eq!(error, ImageError::BigEndian);
    assert!(text.contains("big-endian"), "{text}");
    let (error, text) = refused(with(|d| d[18] = 183));
    assert_eq!(error, ImageError::ForeignMachine { machine: 183 });
    assert!(text.contains("machine 183 (AArch64)") && text.contains("only x86-64"), "{text}");
    assert!(matches!(refused(with(|d| d[4] = 9)).0, ImageError::Malformed { .. }));
    assert!(matches!(refused(with(|d| d[5] = 9)).0, ImageError::Malformed { .. }));
}

#[test]
fn other_file_types() {
    let (error, text) = refused(with(|d| d[16] = 1));
    assert_eq!(error, ImageError::Relocatable);
    assert!(text.contains("relocatable object") && text.contains("link it first"), "{text}");
    let (error, text) = refused(with(|d| d[16] = 4));
    assert_eq!(error, ImageError::CoreDump);
    assert!(text.contains("core dump") && text.contains("program that dumped it"), "{text}");
    let (error, text) = refused(with(|d| d[16..18].copy_from_slice(&0xff01u16.to_le_bytes())));
    assert_eq!(error, ImageError::UnknownType { kind: 0xff01 });
    assert!(text.contains("0xff01"), "{text}");
}

#[test]
fn every_truncation() {
    let whole = minimal();
    for len in 4..whole.len() {
        let (error, text) = refused(whole[..len].to_vec());
        assert!(
            matches!(error, ImageError::Truncated { have, .. } if have == len as u64),
            "{len}: {error:?}"
        );
        assert!(text.contains("truncated") && text.contains("copy or install it again"), "{text}");
    }
    let (error, _) = refused(whole[..0x1ff].to_vec());
    assert_eq!(error, ImageError::Truncated { what: "a loadable segment", need: 0x200, have: 0x1ff });
}

#[test]
fn nothing_to_load() {
    for data in [with(|d| d[56] = 0), with(|d| d[32..40].fill(0)), with(|d| (d[64], d[120]) = (4, 4))] {
        let (error, text) = refused(data);
        assert_eq!(error, ImageError::NoProgramHeaders);
        assert!(text.contains("no program headers") && text.contains("debug file"), "{text}");
    }
}

#[test]
fn impossible_segments() {
    let (error, text) = refused(with(|d| load(d, 1, 6, 0x180, 0x40017f, 0x80, 0x80)));
    assert!(matches!(error, ImageError::OverlappingSegments { .. }));
    assert!(text.contains("0x400000..0x400180 and 0x40017f..0x4001ff overlap"), "{text}");
    let (_, text) = refused(with(|d| load(d, 1, 6, 0x180, 0x401180, 0x80, 0x7f)));
    assert!(text.contains("more bytes in the file than in memory"), "{text}");
    let (_, text) = refused(with(|d| load(d, 1, 6, 0x180, u64::MAX - 0x10, 0x10, 0x80)));
    assert!(text.contains("wraps around"), "{text}");
    let (error, _) = refused(with(|d| load(d, 1, 6, u64::MAX - 8, 0x401180, 0x80, 0x80)));
    assert!(matches!(error, ImageError::Truncated { .. }));
    assert!(matches!(refused(with(|d| d[54] = 32)).0, ImageError::Malformed { .. }));
    // Neighbours that touch are fine.
    Image::parse(with(|d| load(d, 1, 6, 0x180, 0x400180, 0x80, 0x80))).unwrap();
}

#[test]
fn damaged_section_headers_count_as_absent() {
    let image = Image::parse(with(|d| {
        d[40..48].copy_from_slice(&0x1f0u64.to_le_bytes());
        d[58] = 64;
        d[60] = 5;
    }));
    assert!(image.unwrap().sections().is_empty());
}
