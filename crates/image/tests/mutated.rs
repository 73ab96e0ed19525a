//! Whatever the bytes are, nothing panics, and what is accepted keeps the invariants.

mod common;

use common::{built, without_sections};
use proptest::prelude::*;
use restitch_address::Svma;
use restitch_image::Image;
use std::time::{Duration, Instant};

/// Asks an image everything.
fn exercise(data: Vec<u8>) -> bool {
    let len = data.len() as u64;
    let Ok(image) = Image::parse(data) else { return false };
    assert!(image.segments().windows(2).all(|w| w[0].range.end <= w[1].range.start));
    assert!(image.segments().iter().all(|s| s.file_len == 0 || s.file_offset.get() + s.file_len <= len));
    assert!(image.symbols().windows(2).all(|w| w[0].range.start < w[1].range.start));
    assert!(image.relocations().windows(2).all(|w| w[0].at <= w[1].at));
    assert!(image.plt_slots().windows(2).all(|w| w[0].stub.start < w[1].stub.start));
    assert!(image.executable_ranges().windows(2).all(|w| w[0].end <= w[1].start));
    let ends = image.segments().iter().flat_map(|s| [s.range.start, s.range.end, s.file_backed().end]);
    for at in ends.flat_map(|a| [a - 1, a, a + 1]).chain([Svma::new(0), Svma::new(u64::MAX)]) {
        let _ = (image.read(at, 1), image.read(at, usize::MAX), image.read_u64(at), image.read_i32(at));
        let _ = (image.is_executable(at), image.is_writable(at), image.file_offset(at));
        let _ = (image.symbol_containing(at), image.plt_slot_at(at), image.function_name(at));
        if image.read(at, 1).is_some() {
            assert!(
                image
                    .file_offset(at)
                    .is_some_and(|o| image.data()[o.get() as usize] == image.read(at, 1).unwrap()[0])
            );
        }
    }
    if let Some(range) = image.eh_frame() {
        assert!(image.read(range.start, range.len() as usize).is_some());
    }
    let _ = (image.relro(), image.soname(), image.interpreter(), format!("{image:?}"));
    true
}

/// xorshift64*: the same numbers in every run.
struct Random(u64);
impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) as usize % n
    }
}

/// Places whose bytes decide most: headers, and the tables that they point to.
fn interesting(data: &[u8]) -> Vec<usize> {
    let image = Image::parse(data.to_vec()).unwrap();
    let mut at: Vec<usize> = (0..64 + 56 * image.program_headers().len()).collect();
    for p in image.program_headers().iter().filter(|p| matches!(p.kind, 2 | 4 | 0x6474_e550)) {
        at.extend(p.offset.get() as usize..(p.offset.get() + p.file_len.min(512)) as usize);
    }
    at.extend(data.len().saturating_sub(64 * 32)..data.len());
    for name in [".gnu.hash", ".relr.dyn", ".symtab", ".gnu_debugdata"] {
        let Some(s) = image.section(name) else { continue };
        at.extend(s.file_offset.get() as usize..(s.file_offset.get() + s.range.len().min(1024)) as usize);
    }
    at.retain(|&i| i < data.len());
    at
}

#[test]
fn mutated_files() {
    let kinds: [&[&str]; 3] =
        [&["-pie", "-fPIE", "-Wl,-z,pack-relative-relocs"], &["-no-pie"], &["-shared", "-fPIC"]];
    let mut seeds: Vec<Vec<u8>> = kinds.iter().filter_map(|flags| built(flags)).collect();
    if seeds.is_empty() {
        restitch_testkit::skip!("gcc is not available");
    }
    seeds.push(without_sections(seeds[0].clone()));
    seeds.extend(common::with_mini_debuginfo(true).map(|(data, _)| data));
    let places: Vec<_> = seeds.iter().map(|s| interesting(s)).collect();
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    let (start, mut accepted, mut tried) = (Instant::now(), 0, 0);
    while start.elapsed() < Duration::from_millis(1500) || tried < 200 {
        let which = random.below(seeds.len());
        let mut data = seeds[which].clone();
        for _ in 0..1 + random.below(4) {
            let at = places[which][random.below(places[which].len())];
            data[at] = match random.below(4) {
                0 => 0xff,
                1 => 0,
                2 => data[at] ^ (1 << random.below(8)),
                _ => random.below(256) as u8,
            };
        }
        if random.below(8) == 0 {
            data.truncate(random.below(data.len()));
        }
        accepted += usize::from(exercise(data));
        tried += 1;
    }
    println!("{accepted} of {tried} mutated files accepted");
    assert!(accepted > 0 && accepted < tried);
}

proptest! {
    #[test]
    fn random_bytes_behind_a_good_start(tail in prop::collection::vec(any::<u8>(), 0..600)) {
        let mut data = b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0\x03\0\x3e\0".to_vec();
        data.extend(tail);
        exercise(data);
    }

    #[test]
    fn random_bytes(data in prop::collection::vec(any::<u8>(), 0..200)) {
        prop_assert!(!exercise(data));
    }
}
