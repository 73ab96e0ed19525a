//! Tables of real files against the decoder, and damaged tables.

use proptest::prelude::*;
use restitch_address::Svma;
use restitch_branch_table::{Kind, Table, TableError, build};
use restitch_cfi::UnwindInfo;
use restitch_image::Image;
use restitch_program::{Program, analyze};
use restitch_testkit::{find_program, skipped};
use restitch_x86::{Flow, scan};
use std::path::Path;

fn load(path: &Path) -> (Image, Program) {
    let image = Image::parse(std::fs::read(path).unwrap()).unwrap();
    let at = image.eh_frame().unwrap();
    let unwind = UnwindInfo::parse(image.read(at.start, at.len() as usize).unwrap(), at.start).unwrap();
    let program = analyze(&image, &unwind).unwrap();
    (image, program)
}

fn files() -> Vec<std::path::PathBuf> {
    let libc = Path::new("/lib/x86_64-linux-gnu/libc.so.6");
    let mut found: Vec<_> =
        ["dash", "perl", "python3", "gzip"].iter().filter_map(|name| find_program(name)).collect();
    found.extend(libc.exists().then(|| libc.to_path_buf()));
    if found.is_empty() {
        skipped("none of the usual programs");
    }
    found
}

/// Whether the table says what the decoder's flow says.
fn agrees(kind: Kind, flow: Flow) -> bool {
    match (kind, flow) {
        (Kind::Jump(a), Flow::Jump(b)) | (Kind::Call(a), Flow::Call(b)) => a == b,
        (Kind::Conditional(x, a), Flow::Conditional(y, b)) => (x, a) == (y, b),
        (Kind::Counting(_, a), Flow::ShortConditional(b)) => a == b,
        (Kind::JumpTo(_), Flow::IndirectJump) | (Kind::CallTo(_), Flow::IndirectCall) => true,
        (Kind::Return(_), Flow::Return) => true,
        (Kind::Unknown, Flow::Stop | Flow::Unsupported) => true,
        _ => false,
    }
}

#[test]
fn the_next_branch_of_each_instruction_is_that_of_the_decoder() {
    for path in files() {
        let (image, program) = load(&path);
        let bytes = build(&image, &program);
        let table = Table::new(&bytes).unwrap();
        let (mut compared, mut functions) = (0u64, 0);
        for function in program.functions.iter().filter(|f| !f.blocks.is_empty()) {
            let code = image.read(function.range.start, function.range.len() as usize).unwrap();
            let mut waiting: Vec<Svma> = Vec::new();
            let _ = scan(code, function.range.start, |insn| {
                waiting.push(insn.at);
                if insn.flow == Flow::Next {
                    return;
                }
                for at in waiting.drain(..) {
                    let found = table.next(at).unwrap();
                    assert_eq!((found.at, found.len), (insn.at, insn.len), "{} from {at}", path.display());
                    assert!(agrees(found.kind, insn.flow), "{found:?} {insn:?}");
                    compared += 1;
                }
            });
            functions += 1;
        }
        let per_code = bytes.len() as f64 / table.range().len() as f64;
        println!(
            "{}: {functions} functions, {compared} instructions, {} branches, table {:.2} of the code's size",
            path.display(),
            table.count(),
            per_code
        );
        assert!(compared > 1000 && per_code < 0.75);
        assert_eq!(table.next(table.range().end), None);
        assert_eq!(table.next(table.range().start - 1), None);
    }
}

#[test]
fn foreign_bytes_are_refused() {
    assert_eq!(Table::new(b"RSTB").unwrap_err(), TableError::NotATable);
    let bytes = build(&load(&files()[0]).0, &Program::default());
    let mut newer = bytes.clone();
    newer[8] = 9;
    assert_eq!(Table::new(&newer).unwrap_err(), TableError::Version { found: 9 });
    for cut in [9, 20, 47, 60, bytes.len() - 1] {
        assert!(matches!(Table::new(&bytes[..cut]), Err(TableError::Damaged { .. })), "{cut}");
    }
}

#[test]
fn damaged_tables_never_panic() {
    let Some(path) = find_program("dash") else { return skipped("no dash") };
    let (image, program) = load(&path);
    let bytes = build(&image, &program);
    let range = Table::new(&bytes).unwrap().range();
    let config = ProptestConfig { cases: 400, ..ProptestConfig::default() };
    proptest!(config, |(damage in proptest::collection::vec((any::<proptest::sample::Index>(), any::<u8>()), 1..12), from in 0u64..0x10000)| {
        let mut damaged = bytes.clone();
        for (at, byte) in damage {
            // Half of the damage to the header and the index.
            let span = if byte & 1 == 0 { 400 } else { damaged.len() };
            damaged[at.index(span)] = byte;
        }
        if let Ok(table) = Table::new(&damaged) {
            for i in 0..200 {
                let _ = table.next(range.start + from + i * 7);
            }
        }
    });
}
