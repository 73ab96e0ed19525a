//! Round trips over the unwind tables of programs as distributions ship them (and of this test itself).

use object::{Object, ObjectSection, ObjectSegment};
use restitch_address::{Svma, SvmaRange};
use restitch_cfi::*;
use std::time::Instant;

const FILES: [&str; 8] = [
    "/usr/lib/gcc/x86_64-linux-gnu/12/cc1plus",
    "/usr/lib/postgresql/15/bin/postgres",
    "/usr/lib/x86_64-linux-gnu/libstdc++.so.6",
    "/usr/lib/x86_64-linux-gnu/libc.so.6",
    "/usr/lib64/ld-linux-x86-64.so.2",
    "/usr/lib/x86_64-linux-gnu/libcrypto.so.3",
    "/usr/bin/python3",
    "/usr/bin/gdb",
];

/// A module on disk.
struct Module {
    name: String,
    data: &'static [u8],
    segments: Vec<(Svma, &'static [u8])>,
    eh_frame: (Svma, &'static [u8]),
    eh_frame_hdr: Option<Svma>,
}

impl Module {
    fn open(path: &str) -> Option<Self> {
        let Ok(data) = std::fs::read(path) else {
            println!("SKIPPED: {path} is not installed");
            return None;
        };
        let data: &'static [u8] = Vec::leak(data);
        let file = object::File::parse(data).expect("an ELF file");
        let segments = file.segments().map(|s| (Svma::new(s.address()), s.data().unwrap())).collect();
        let Some(section) = file.section_by_name(".eh_frame") else {
            println!("SKIPPED: {path} has no .eh_frame");
            return None;
        };
        let eh_frame = (Svma::new(section.address()), section.data().unwrap());
        let eh_frame_hdr = file.section_by_name(".eh_frame_hdr").map(|s| Svma::new(s.address()));
        Some(Self { name: path.to_owned(), data, segments, eh_frame, eh_frame_hdr })
    }

    fn memory(&self) -> impl Memory<'static> + '_ {
        |at: Svma| {
            self.segments.iter().find_map(|(start, data)| {
                let offset = at.offset_from(*start);
                data.get(usize::try_from(offset).ok()?..).filter(|rest| !rest.is_empty())
            })
        }
    }

    fn info(&self) -> UnwindInfo {
        UnwindInfo::parse(self.eh_frame.1, self.eh_frame.0).expect(&self.name)
    }
}

fn modules() -> impl Iterator<Item = Module> {
    let own = std::env::current_exe().unwrap().to_str().unwrap().to_owned();
    FILES.iter().map(|path| path.to_string()).chain([own]).filter_map(|path| Module::open(&path))
}

/// Rows without the sharing of states, moved by a distance.
fn moved(rows: &[Row], by: i64) -> Vec<Row> {
    rows.iter().map(|row| Row { start: row.start.offset(by), state: row.state.clone() }).collect()
}

/// The same rows according to gimli. It does not tell "undefined" from "no rule".
fn assert_gimli_agrees(frame: &[u8], at: Svma, expected: &[(SvmaRange, Vec<Row>)]) {
    use gimli::UnwindSection;
    let section = gimli::EhFrame::new(frame, gimli::LittleEndian);
    let bases = gimli::BaseAddresses::default().set_eh_frame(at.get());
    let mut entries = section.entries(&bases);
    let mut context = gimli::UnwindContext::new();
    let mut wanted = expected.iter();
    while let Some(entry) = entries.next().unwrap() {
        let gimli::CieOrFde::Fde(fde) = entry else { continue };
        let fde = fde.parse(gimli::EhFrame::cie_from_offset).unwrap();
        let (range, rows) = wanted.next().expect("as many FDEs as were written");
        assert_eq!((fde.initial_address(), fde.len()), (range.start.get(), range.len()));
        let mut table = fde.rows(&section, &bases, &mut context).unwrap();
        let mut theirs: Vec<(u64, String)> = Vec::new();
        while let Some(row) = table.next_row().unwrap() {
            let text = gimli_text(row, &section);
            if theirs.last().is_none_or(|(_, last)| *last != text) {
                theirs.push((row.start_address(), text));
            }
        }
        let mut ours: Vec<(u64, String)> = Vec::new();
        for row in rows {
            let text = our_text(&row.state);
            if ours.last().is_none_or(|(_, last)| *last != text) {
                ours.push((row.start.get(), text));
            }
        }
        assert_eq!(theirs, ours, "{range}");
    }
    assert!(wanted.next().is_none());
}

type Section<'a> = gimli::EhFrame<gimli::EndianSlice<'a, gimli::LittleEndian>>;

fn gimli_text(row: &gimli::UnwindTableRow<usize>, section: &Section<'_>) -> String {
    let expression = |e: &gimli::UnwindExpression<usize>| format!("{:?}", e.get(section).unwrap().0.slice());
    let cfa = match row.cfa() {
        gimli::CfaRule::RegisterAndOffset { register, offset } => format!("{}{offset:+}", register.0),
        gimli::CfaRule::Expression(e) => expression(e),
    };
    let mut rules: Vec<(u16, String)> = row
        .registers()
        .map(|(register, rule)| {
            let text = match rule {
                gimli::RegisterRule::SameValue => "same".into(),
                gimli::RegisterRule::Offset(o) => format!("at {o}"),
                gimli::RegisterRule::ValOffset(o) => format!("is {o}"),
                gimli::RegisterRule::Register(r) => format!("in {}", r.0),
                gimli::RegisterRule::Expression(e) => format!("at {}", expression(e)),
                gimli::RegisterRule::ValExpression(e) => format!("is {}", expression(e)),
                other => panic!("{other:?}"),
            };
            (register.0, text)
        })
        .collect();
    rules.sort();
    format!("{cfa} {rules:?}")
}

fn our_text(state: &FrameState) -> String {
    let cfa = match &state.cfa {
        Cfa::RegisterOffset { register, offset } => format!("{}{offset:+}", register.0),
        Cfa::Expression(e) => format!("{e:?}"),
    };
    let rules: Vec<(u16, String)> = state
        .registers
        .iter()
        .filter_map(|(register, rule)| {
            let text = match rule {
                RegisterRule::Undefined => return None,
                RegisterRule::SameValue => "same".into(),
                RegisterRule::Offset(o) => format!("at {o}"),
                RegisterRule::ValOffset(o) => format!("is {o}"),
                RegisterRule::Register(r) => format!("in {}", r.0),
                RegisterRule::Expression(e) => format!("at {e:?}"),
                RegisterRule::ValExpression(e) => format!("is {e:?}"),
            };
            Some((register.0, text))
        })
        .collect();
    format!("{cfa} {rules:?}")
}

#[test]
fn every_fde_survives_reading_and_writing() {
    for module in modules() {
        let began = Instant::now();
        let info = module.info();
        let read = began.elapsed();
        assert_eq!(info.dropped().unsupported, 0, "{}", module.name);
        let all: Vec<(SvmaRange, Vec<Row>)> =
            info.entries().iter().map(|entry| (entry.range, info.rows(entry).unwrap())).collect();
        let rows_in = began.elapsed() - read;
        assert_read_like_gimli(&module, &info, &all);
        let runs: Vec<Run> = info
            .entries()
            .iter()
            .zip(&all)
            .map(|(entry, (range, rows))| Run {
                range: *range,
                rows: rows.clone(),
                personality: entry.personality,
                lsda: entry.lsda,
                signal_frame: entry.signal_frame,
            })
            .collect();
        let at = module.eh_frame.0.offset(0x123_4560);
        let began = Instant::now();
        let written = write_eh_frame(at, &runs).unwrap();
        let wrote = began.elapsed();
        println!(
            "{}: {} FDEs, {} rows; parse {read:?}, rows {rows_in:?}, write {wrote:?}; {} -> {} bytes; {:?}",
            module.name,
            all.len(),
            all.iter().map(|(_, rows)| rows.len()).sum::<usize>(),
            module.eh_frame.1.len(),
            written.bytes.len(),
            info.dropped(),
        );
        let again = UnwindInfo::parse(&written.bytes, at).unwrap();
        assert_same(&info, &again, &written.entries);
        assert_gimli_agrees(&written.bytes, at, &all);
        let hdr_at = at.offset(-0x80_0000);
        let hdr = write_eh_frame_hdr(hdr_at, at, &written.entries).unwrap();
        let hdr = read_eh_frame_hdr(&Bytes { at: hdr_at, bytes: &hdr }, hdr_at).unwrap();
        let wanted: Vec<_> = again.entries().iter().map(|entry| (entry.range.start, entry.fde)).collect();
        assert_eq!((hdr.eh_frame, hdr.entries), (at, wanted));
    }
}

/// What we read from the original bytes is what gimli reads.
fn assert_read_like_gimli(module: &Module, info: &UnwindInfo, all: &[(SvmaRange, Vec<Row>)]) {
    if info.dropped() != Dropped::default() {
        println!("{}: not compared with gimli, entries were dropped", module.name);
        return;
    }
    let mut by_fde: Vec<_> =
        info.entries().iter().zip(all).map(|(entry, rows)| (entry.fde, rows.clone())).collect();
    by_fde.sort_by_key(|(fde, _)| *fde);
    let expected: Vec<_> = by_fde.into_iter().map(|(_, rows)| rows).collect();
    assert_gimli_agrees(module.eh_frame.1, module.eh_frame.0, &expected);
}

fn assert_same(a: &UnwindInfo, b: &UnwindInfo, entries_of_b: &[(Svma, Svma)]) {
    assert_eq!(a.entries().len(), b.entries().len());
    let mut listed = entries_of_b.to_vec();
    listed.sort();
    for ((x, y), listed) in a.entries().iter().zip(b.entries()).zip(&listed) {
        assert_eq!(
            (x.range, x.personality, x.lsda, x.signal_frame),
            (y.range, y.personality, y.lsda, y.signal_frame)
        );
        assert_eq!(a.rows(x).unwrap(), b.rows(y).unwrap());
        assert_eq!(*listed, (y.range.start, y.fde));
    }
}

#[test]
fn a_relocated_section_says_the_same() {
    for module in modules() {
        let info = module.info();
        for by in [0x4000_0008, -0x2000_0000] {
            let at = module.eh_frame.0.offset(by);
            let relocated = relocate_eh_frame(module.eh_frame.1, module.eh_frame.0, at).unwrap();
            let again = UnwindInfo::parse(&relocated.bytes, at).unwrap();
            if info.dropped().duplicate == 0 {
                assert_same(&info, &again, &relocated.entries);
            }
            // A written table can follow it.
            let run = Run {
                range: SvmaRange::new(at.offset(0x100_0000), 16),
                rows: moved(&info.rows(&info.entries()[0]).unwrap()[..1], 0),
                personality: None,
                lsda: None,
                signal_frame: false,
            };
            let mut run = run;
            run.rows[0].start = run.range.start;
            let behind = at + relocated.bytes.len() as u64;
            let more = write_eh_frame(behind, std::slice::from_ref(&run)).unwrap();
            let joined = [relocated.bytes, more.bytes].concat();
            let joined = UnwindInfo::parse(&joined, at).unwrap();
            assert_eq!(joined.entries().len(), info.entries().len() + 1);
            let found = joined.find(run.range.start).unwrap();
            assert_eq!((found.fde, joined.rows(found).unwrap()), (more.entries[0].1, run.rows));
        }
        let far = module.eh_frame.0.offset(0x1_0000_0000);
        assert!(matches!(
            relocate_eh_frame(module.eh_frame.1, module.eh_frame.0, far),
            Err(CfiError::OutOfReach { .. })
        ));
    }
}

#[test]
fn the_search_table_of_the_linker_lists_what_the_walk_finds() {
    for module in modules() {
        let Some(at) = module.eh_frame_hdr else { continue };
        let hdr = read_eh_frame_hdr(&module.memory(), at).unwrap();
        assert_eq!(hdr.eh_frame, module.eh_frame.0);
        let by_address = UnwindInfo::parse_at(&module.memory(), hdr.eh_frame).unwrap();
        let walked: Vec<_> = by_address.entries().iter().map(|e| (e.range.start, e.fde)).collect();
        if !hdr.entries.is_empty() {
            assert_eq!(hdr.entries, walked, "{}", module.name);
        }
    }
}

#[test]
fn every_lsda_survives_reading_and_writing() {
    let mut seen = 0;
    for module in modules() {
        let memory = module.memory();
        let (mut count, mut sites, mut filters, mut types, mut outside) = (0, 0, 0, 0, 0);
        for entry in module.info().entries() {
            let Some(at) = entry.lsda else { continue };
            let lsda = Lsda::parse(&memory, at, entry.range)
                .unwrap_or_else(|e| panic!("{} {}: {e}", module.name, entry.range));
            count += 1;
            sites += lsda.call_sites.len();
            filters += usize::from(!lsda.filters.is_empty());
            types += lsda.types.len();
            outside += lsda.landing_pads().filter(|pad| !entry.range.contains(*pad)).count();
            // To another address, with the code where it was and moved (pads below the run).
            let new_at = at.offset(-0x111_0001);
            for by in [0, 0x200_0000] {
                let run = SvmaRange::new(entry.range.start.offset(by), entry.range.len());
                let call_sites: Vec<LsdaCallSite> = lsda
                    .call_sites
                    .iter()
                    .map(|s| LsdaCallSite {
                        range: SvmaRange::new(s.range.start.offset(by), s.range.len()),
                        ..*s
                    })
                    .collect();
                let bytes = write_lsda(new_at, run.start, &call_sites, &lsda).unwrap();
                let again = Lsda::parse(&Bytes { at: new_at, bytes: &bytes }, new_at, run).unwrap();
                let has_table = !(lsda.types.is_empty() && lsda.filters.is_empty());
                let indirect_types = lsda.indirect_types && has_table;
                assert_eq!(again, Lsda { call_sites, indirect_types, ..lsda.clone() });
            }
        }
        println!(
            "{}: {count} LSDAs, {sites} call sites, {types} types, {filters} with specifications, {outside} pads outside",
            module.name
        );
        seen += count;
    }
    assert!(seen > 0, "this test itself has landing pads");
}

#[test]
fn readelf_counts_as_many_fdes() {
    let own = std::env::current_exe().unwrap();
    let module = Module::open(own.to_str().unwrap()).unwrap();
    let Ok(output) = std::process::Command::new("readelf").arg("--debug-dump=frames").arg(&own).output()
    else {
        println!("SKIPPED: readelf is not installed");
        return;
    };
    assert!(!module.data.is_empty());
    let text = String::from_utf8_lossy(&output.stdout);
    let section = text.split("Contents of the .eh_frame section").nth(1).expect("the section is dumped");
    let section = section.split("Contents of the").next().unwrap();
    let theirs = section.lines().filter(|line| line.contains(" FDE cie=")).count();
    let info = module.info();
    let dropped = info.dropped();
    assert_eq!(theirs, info.entries().len() + dropped.empty + dropped.duplicate + dropped.unsupported);
}
