//! The judge of written tables is the C++ run time itself: a program's unwind tables are all written anew
//! (each function cut into several runs), it is pointed to them, and must go on throwing and catching.

use object::{Object, ObjectSection, ObjectSegment};
use restitch_address::{Svma, SvmaRange};
use restitch_cfi::*;
use std::path::{Path, PathBuf};
use std::process::Command;

const MARKER: &[u8] = b"restitch test reserve \x7f\x01";
const RESERVE: usize = 1 << 20;
const PT_GNU_EH_FRAME: u32 = 0x6474_e550;

/// Compiles `throwing.cc`; `None` if there is no compiler.
fn compile(directory: &Path, flags: &[&str]) -> Option<PathBuf> {
    let program = directory.join("throwing");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/throwing.cc");
    let status = Command::new("g++")
        .args(["-std=c++14", "-w"])
        .args(flags)
        .arg(source)
        .arg("-o")
        .arg(&program)
        .status();
    let Ok(status) = status else {
        println!("SKIPPED: g++ is not installed");
        return None;
    };
    assert!(status.success(), "g++ {flags:?}");
    Some(program)
}

struct Target {
    data: Vec<u8>,
    segments: Vec<(Svma, Vec<u8>)>,
    info: UnwindInfo,
    reserve_at: Svma,
    reserve_offset: usize,
}

impl Target {
    fn open(program: &Path) -> Self {
        let data = std::fs::read(program).unwrap();
        let file = object::File::parse(&*data).unwrap();
        let segments: Vec<_> =
            file.segments().map(|s| (Svma::new(s.address()), s.data().unwrap().to_vec())).collect();
        let section = file.section_by_name(".eh_frame").unwrap();
        let info = UnwindInfo::parse(section.data().unwrap(), Svma::new(section.address())).unwrap();
        let reserve_offset = data.windows(MARKER.len()).position(|w| w == MARKER).unwrap();
        let segment = file.segments().find(|s| {
            let (offset, len) = s.file_range();
            (offset..offset + len).contains(&(reserve_offset as u64))
        });
        let segment = segment.unwrap();
        let reserve_at = Svma::new(segment.address() + reserve_offset as u64 - segment.file_range().0);
        Self { data, segments, info, reserve_at, reserve_offset }
    }

    /// Puts `tables` into the reserve and makes `header_at` the program's `.eh_frame_hdr`.
    fn install(&mut self, tables: &[u8], header_at: Svma) {
        assert!(tables.len() <= RESERVE);
        self.data[self.reserve_offset..][..tables.len()].copy_from_slice(tables);
        let header_offset = self.reserve_offset as u64 + (header_at - self.reserve_at.get()).get();
        let u16_at = |data: &[u8], at: usize| usize::from(u16::from_le_bytes([data[at], data[at + 1]]));
        let phoff = u64::from_le_bytes(self.data[32..40].try_into().unwrap()) as usize;
        let (size, count) = (u16_at(&self.data, 54), u16_at(&self.data, 56));
        for header in self.data[phoff..][..size * count].chunks_exact_mut(size) {
            if header[..4] == PT_GNU_EH_FRAME.to_le_bytes() {
                header[8..16].copy_from_slice(&header_offset.to_le_bytes());
                header[16..24].copy_from_slice(&header_at.get().to_le_bytes());
                header[24..32].copy_from_slice(&header_at.get().to_le_bytes());
            }
        }
    }
}

/// Cuts the entry at each start of a row and of a call site: all of those are instruction boundaries.
fn pieces(entry: &FrameEntry, rows: &[Row], sites: &[LsdaCallSite]) -> Vec<SvmaRange> {
    let mut cuts: Vec<Svma> = rows.iter().map(|row| row.start).collect();
    cuts.extend(sites.iter().map(|site| site.range.start));
    cuts.push(entry.range.end);
    cuts.sort();
    cuts.dedup();
    cuts.windows(2).map(|pair| SvmaRange::between(pair[0], pair[1])).collect()
}

/// The rows of `piece`, the first one at its start.
fn rows_of(piece: SvmaRange, rows: &[Row]) -> Vec<Row> {
    let first = row_at(rows, piece.start).unwrap();
    let mut out = vec![Row { start: piece.start, state: first.state.clone() }];
    out.extend(rows.iter().filter(|row| piece.contains(row.start) && row.start != piece.start).cloned());
    out
}

/// The call sites within `piece`.
fn sites_of(piece: SvmaRange, sites: &[LsdaCallSite]) -> Vec<LsdaCallSite> {
    let clipped = sites.iter().filter(|site| site.range.overlaps(&piece)).map(|site| {
        let range = SvmaRange::between(site.range.start.max(piece.start), site.range.end.min(piece.end));
        LsdaCallSite { range, ..*site }
    });
    clipped.collect()
}

/// Writes LSDAs, `.eh_frame` and `.eh_frame_hdr` for the whole program, in pieces, into the reserve.
fn rewrite(target: &mut Target) {
    let memory = |at: Svma| {
        target.segments.iter().find_map(|(start, data)| {
            data.get(usize::try_from(at.offset_from(*start)).ok()?..).filter(|rest| !rest.is_empty())
        })
    };
    let mut tables = Vec::new();
    let mut runs = Vec::new();
    for entry in target.info.entries() {
        let rows = target.info.rows(entry).unwrap();
        let lsda = entry.lsda.map(|at| Lsda::parse(&memory, at, entry.range).unwrap());
        let sites = lsda.as_ref().map_or(&[][..], |lsda| &lsda.call_sites);
        for range in pieces(entry, &rows, sites) {
            let written = lsda.as_ref().map(|lsda| {
                let at = target.reserve_at + tables.len() as u64;
                let sites = sites_of(range, sites);
                tables.extend(write_lsda(at, range.start, &sites, lsda).unwrap());
                at
            });
            runs.push(Run {
                range,
                rows: rows_of(range, &rows),
                personality: entry.personality,
                lsda: written,
                signal_frame: entry.signal_frame,
            });
        }
    }
    assert!(runs.len() > target.info.entries().len() * 2);
    tables.resize(tables.len().next_multiple_of(8), 0);
    let frame_at = target.reserve_at + tables.len() as u64;
    let frame = write_eh_frame(frame_at, &runs).unwrap();
    tables.extend(frame.bytes);
    tables.resize(tables.len().next_multiple_of(8), 0);
    let header_at = target.reserve_at + tables.len() as u64;
    tables.extend(write_eh_frame_hdr(header_at, frame_at, &frame.entries).unwrap());
    println!(
        "{} functions, {} runs, {} bytes of tables",
        target.info.entries().len(),
        runs.len(),
        tables.len()
    );
    target.install(&tables, header_at);
}

fn exit_code(program: &Path, bytes: &[u8]) -> Option<i32> {
    std::fs::write(program, bytes).unwrap();
    Command::new(program).stderr(std::process::Stdio::null()).status().unwrap().code()
}

#[test]
fn the_c_plus_plus_run_time_accepts_written_tables() {
    for flags in
        [&["-O2"][..], &["-O0", "-fno-omit-frame-pointer"], &["-O2", "-no-pie", "-fno-pie"], &["-Os"]]
    {
        let directory = tempfile::tempdir().unwrap();
        let Some(program) = compile(directory.path(), flags) else { continue };
        let mut target = Target::open(&program);
        assert_eq!(exit_code(&program, &target.data), Some(42), "{flags:?}: the unchanged program");
        let original = target.data.clone();
        rewrite(&mut target);
        assert_eq!(exit_code(&program, &target.data), Some(42), "{flags:?}: with written tables");
        // With an empty table it must fail, else the tables above were not in use.
        target.data = original;
        let at = target.reserve_at;
        let empty = write_eh_frame_hdr(at, at.offset(64), &[(at, at.offset(64))]).unwrap();
        target.install(&empty, at);
        assert_ne!(exit_code(&program, &target.data), Some(42), "{flags:?}: with an empty table");
    }
}
