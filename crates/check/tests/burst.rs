//! Tracing versions of whole files, and of what happens to them when bytes change.

mod common;

use common::Module;
use iced_x86::{Decoder, DecoderOptions, Instruction};
use restitch_address::{Avma, LoadBias, Svma, SvmaRange};
use restitch_check::check;
use restitch_emit::window::{TABLE, WORDS_LEN, window_len};
use restitch_emit::{BurstRequest, Version, burst_bound, emit_burst};
use restitch_image::ImageKind;
use restitch_layout::Layout;
use restitch_program::{BlockAttrs, BlockId};
use restitch_testkit::{compile, program, skipped};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::time::{Duration, Instant};

const BITS: u8 = 20;

/// Where a version of the module finds room: with its window in front of it.
fn place(module: &Module) -> Svma {
    let below = module.image.span().start.align_down(4096).offset(-0x4000_0000);
    let above = module.image.span().end.align_up(4096) + 0x20_0000;
    if module.image.kind() == ImageKind::Executable { above } else { below }
}

fn version(module: &Module, blocks: &[bool]) -> Version {
    let window = SvmaRange::new(place(module), window_len(BITS));
    let bias = module.bias().unwrap_or_default();
    version_with(module, blocks, window, bias.to_actual(window.start) + TABLE)
}

fn version_with(module: &Module, blocks: &[bool], window: SvmaRange, table: Avma) -> Version {
    let (image, program, bias) = (&module.image, &module.program, module.bias().unwrap_or_default());
    let start = window.end;
    let request =
        BurstRequest { image, program, blocks, start, number: 1, window, table, bits: BITS, first: 7, bias };
    emit_burst(&request).unwrap()
}

fn files() -> Vec<PathBuf> {
    let more = std::env::var("RESTITCH_TEST_FILES").unwrap_or_default();
    let more = more.split(':').filter(|p| !p.is_empty()).map(PathBuf::from);
    std::iter::once(std::env::current_exe().unwrap()).chain(more).collect()
}

#[test]
fn tracing_versions_of_whole_files_are_equal() {
    for path in files() {
        let module = Module::parse(std::fs::read(&path).unwrap());
        let n = module.program.blocks.len();
        let half: Vec<bool> = (0..n).map(|b| (b ^ b >> 3) & 1 == 0).collect();
        for blocks in [vec![true; n], half] {
            let version = version(&module, &blocks);
            assert!(version.loaded_len < burst_bound(&module.program, &blocks));
            let clock = Instant::now();
            let checked = check(&module.image, &module.program, &Layout::default(), version, module.bias());
            let checked = checked.unwrap_or_else(|error| panic!("{}: {error}", path.display()));
            println!("{}: {:?}: {:?}", path.display(), clock.elapsed(), checked.report());
            assert!(checked.report().instructions > 1000);
        }
    }
}

/// The vdso of the kernel that runs this, as it is in memory: its code reads data in front of the image.
#[test]
fn a_tracing_version_of_the_vdso_is_equal() {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let Some(line) = maps.lines().find(|line| line.ends_with("[vdso]")) else { return skipped("no vdso") };
    let ends = line.split([' ', '-']).map(|end| u64::from_str_radix(end, 16));
    let [start, end] = ends.take(2).collect::<Result<Vec<_>, _>>().unwrap()[..] else { panic!("{line}") };
    let mut bytes = vec![0; (end - start) as usize];
    std::fs::File::open("/proc/self/mem").unwrap().read_exact_at(&mut bytes, start).unwrap();
    let module = Module::parse(bytes);
    let n = module.program.blocks.len();
    let half: Vec<bool> = (0..n).map(|b| (b ^ b >> 3) & 1 == 0).collect();
    for blocks in [vec![true; n], half] {
        let version = version(&module, &blocks);
        let checked = check(&module.image, &module.program, &Layout::default(), version, module.bias());
        let report = *checked.unwrap_or_else(|error| panic!("{error}")).report();
        println!("{n} blocks: {report:?}");
        assert!(report.instructions > 100);
    }
}

/// What `setjmp` remembers is a return address, and that is the original's: its calls need not stay in the
/// original code.
#[test]
fn calls_that_return_twice_are_copied() {
    let path = match compile(&program("setjmp.c"), &["-O2"]) {
        Ok(path) => path,
        Err(error) => return skipped(&error.to_string()),
    };
    let module = Module::parse(std::fs::read(path).unwrap());
    let version = version(&module, &vec![true; module.program.blocks.len()]);
    let is_pinned = |id: BlockId| module.program.block(id).attrs.contains(BlockAttrs::PINNED);
    let pinned = module.program.block_ids().filter(|id| is_pinned(*id)).count();
    assert!(pinned >= 3, "{pinned}");
    assert_eq!(version.blocks.iter().filter(|placed| is_pinned(placed.block)).count(), pinned);
    check(&module.image, &module.program, &Layout::default(), version, module.bias()).unwrap();
}

/// Each bit of the text, in turn, as far as a few seconds reach, but a hundred of them at least.
#[test]
fn every_changed_bit_is_found() {
    let path = match compile(&program("switch.c"), &["-O2"]) {
        Ok(path) => path,
        Err(error) => return skipped(&error.to_string()),
    };
    let module = Module::parse(std::fs::read(path).unwrap());
    let version = version(&module, &vec![true; module.program.blocks.len()]);
    let is_equal = |version: Version| {
        check(&module.image, &module.program, &Layout::default(), version, module.bias()).is_ok()
    };
    assert!(is_equal(version.clone()));
    let starts: Vec<(usize, Instruction)> = decoded(&version).collect();
    let text = version.text.start.offset_from(version.range.start) as usize;
    let bits = 8 * version.text.len() as usize;
    let end = Instant::now() + Duration::from_secs(2);
    let mut changed = 0;
    // A stride that is prime to any length walks over all of it.
    for i in (0..bits).map(|i| i * 7919 % bits) {
        let mut version = version.clone();
        version.bytes[text + i / 8] ^= 1 << (i % 8);
        let (start, before) = starts[starts.partition_point(|s| s.0 <= i / 8) - 1];
        // Bits without a meaning; and the reason of a way out, which is told but not relied on.
        let same = decoded_at(&version, start).is_some_and(|now| now == before && now.len() == before.len());
        let found = !is_equal(version.clone());
        assert!(found || same || is_reason(&version, text + i / 8), "bit {i} of the text, in {before:?}");
        changed += 1;
        // A slow machine takes as long as it needs for some of them.
        if changed > 100 && Instant::now() > end {
            break;
        }
    }
    assert!(changed > 100, "{changed}");
}

/// Bytes of the unwind tables: another row is found, or the table says the same in other words (padding,
/// lengths in two forms).
#[test]
fn changed_unwind_tables_are_found() {
    let path = match compile(&program("switch.c"), &["-O2"]) {
        Ok(path) => path,
        Err(error) => return skipped(&error.to_string()),
    };
    let module = Module::parse(std::fs::read(path).unwrap());
    let version = version(&module, &vec![true; module.program.blocks.len()]);
    let from = version.eh_frame_hdr.start.offset_from(version.range.start) as usize;
    let to = version.eh_frame.end.offset_from(version.range.start) as usize;
    let (changed, mut found) = (40, 0);
    for i in (0..changed).map(|i| i * 7919 % (8 * (to - from))) {
        let mut version = version.clone();
        version.bytes[from + i / 8] ^= 1 << (i % 8);
        let checked = check(&module.image, &module.program, &Layout::default(), version, module.bias());
        found += usize::from(checked.is_err());
    }
    assert!(10 * found > 9 * changed, "{found} of {changed}");
}

/// Look-ups find the table by its address, in the whole window of one module.
#[test]
fn look_ups_search_the_table_that_the_version_names() {
    let path = match compile(&program("switch.c"), &["-O2", "-fPIE", "-pie"]) {
        Ok(path) => path,
        Err(error) => return skipped(&error.to_string()),
    };
    let module = Module::parse(std::fs::read(path).unwrap());
    let blocks = vec![true; module.program.blocks.len()];
    let checks = |version: Version| {
        check(&module.image, &module.program, &Layout::default(), version, module.bias()).is_ok()
    };
    let words = SvmaRange::new(place(&module), WORDS_LEN);
    let elsewhere = Avma::new(0x7f12_3456_7000);
    assert!(checks(version_with(&module, &blocks, words, elsewhere)));
    let mut other = version_with(&module, &blocks, words, elsewhere);
    other.burst.as_mut().unwrap().table = elsewhere + 16;
    assert!(!checks(other));
    // Who has a table uses it, and no window is in between.
    let whole = SvmaRange::new(place(&module), window_len(BITS));
    assert!(!checks(version_with(&module, &blocks, whole, elsewhere)));
    let between = SvmaRange::new(place(&module), WORDS_LEN + 4096);
    assert!(!checks(version_with(&module, &blocks, between, elsewhere)));
}

/// Another process has its window elsewhere.
#[test]
fn tables_of_another_process_are_refused() {
    let path = match compile(&program("switch.c"), &["-O2", "-fPIE", "-pie"]) {
        Ok(path) => path,
        Err(error) => return skipped(&error.to_string()),
    };
    let module = Module::parse(std::fs::read(path).unwrap());
    let version = version(&module, &vec![true; module.program.blocks.len()]);
    let bias = module.bias().unwrap_or_default();
    let there = Some(LoadBias::between(Svma::new(0), bias.to_actual(Svma::new(0x1000))));
    assert!(check(&module.image, &module.program, &Layout::default(), version, there).is_err());
}

fn decoded_at(version: &Version, offset: usize) -> Option<Instruction> {
    let text = version.text.start.offset_from(version.range.start) as usize;
    let bytes = version.bytes.get(text + offset..)?;
    let at = version.text.start.get().wrapping_add(offset as u64);
    Some(Decoder::with_ip(64, bytes, at, DecoderOptions::NONE).decode())
}

/// The instructions of the text with their offsets.
fn decoded(version: &Version) -> impl Iterator<Item = (usize, Instruction)> + '_ {
    let mut offset = 0;
    std::iter::from_fn(move || {
        let at = offset;
        let instruction = decoded_at(version, at).filter(|_| at < version.text.len() as usize)?;
        offset += instruction.len();
        Some((at, instruction))
    })
}

/// Whether the byte is the low byte of the state that a way out stores.
fn is_reason(version: &Version, at: usize) -> bool {
    at >= 6 && version.bytes[at - 6..].starts_with(&[0xc7, 0x05]) && version.bytes[at + 4] == 0xe9
}
