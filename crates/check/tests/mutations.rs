//! A checker that cannot fail is worthless: correct versions of a small module are corrupted in every place,
//! and the checker has to notice. What it may not notice is listed, with the reason.

mod common;

use common::Module;
use restitch_address::{Svma, SvmaRange};
use restitch_check::{CheckError, CheckReport, Problem, check};
use restitch_emit::{Counted, PieceKind, Version};
use restitch_layout::testing::{duplicated, fetching, half, shuffled, whole};
use restitch_layout::{Fragment, Layout};
use std::collections::BTreeMap;

/// A version under test.
struct Case {
    name: &'static str,
    module: Module,
    layout: Layout,
    version: Version,
}

impl Case {
    fn check(&self, version: Version) -> Result<CheckReport, CheckError> {
        let m = &self.module;
        check(&m.image, &m.program, &self.layout, version, m.bias()).map(|checked| *checked.report())
    }
    fn accepts(&self, change: impl FnOnce(&mut Version)) -> bool {
        let mut version = self.version.clone();
        change(&mut version);
        self.check(version).is_ok()
    }
    fn offset(&self, at: Svma) -> usize {
        at.offset_from(self.version.range.start) as usize
    }
}

fn small() -> Module {
    Module::parse(include_bytes!("data/small.elf").to_vec())
}

fn cases() -> Vec<Case> {
    let forwards = |m: &Module| whole(&m.program);
    let backwards = |m: &Module| {
        let fragment = |b| Fragment { blocks: vec![b], align: 4 };
        Layout { hot: m.program.block_ids().rev().map(fragment).collect(), ..Layout::default() }
    };
    let make = |name, layout: &dyn Fn(&Module) -> Layout, counted: bool| {
        let module = small();
        let layout = layout(&module);
        let counted = if counted { module.everything(&layout) } else { Vec::new() };
        let version = module.version(&layout, &counted);
        Case { name, module, layout, version }
    };
    vec![
        make("in order", &forwards, false),
        make("backwards", &backwards, false),
        make("shuffled", &|m| shuffled(&m.program, 99), false),
        make("duplicated", &|m| duplicated(&m.program, whole(&m.program), 1), false),
        make("duplicated, shuffled", &|m| duplicated(&m.program, shuffled(&m.program, 99), 2), false),
        make("fetching", &|m| fetching(&m.program, whole(&m.program), 1), false),
        make("fetching, shuffled", &|m| fetching(&m.program, shuffled(&m.program, 5), 2), false),
        make(
            "fetching, duplicated",
            &|m| fetching(&m.program, duplicated(&m.program, shuffled(&m.program, 99), 2), 3),
            false,
        ),
        make("counted", &forwards, true),
        make("counted, shuffled", &|m| shuffled(&m.program, 7), true),
    ]
}

#[test]
fn what_was_not_changed_is_equal() {
    for case in cases() {
        let report =
            case.check(case.version.clone()).unwrap_or_else(|e| panic!("{}: {:#?}", case.name, e.findings));
        assert_eq!(report.blocks, case.version.blocks.len() as u64);
        if case.layout.tails.is_empty() {
            // Five entries, and the zero behind them: it leads to the table itself, which stands at the end
            // of the last function.
            assert_eq!((report.tables, report.table_entries, report.call_sites), (1, 6, 3), "{}", case.name);
        } else {
            assert!(report.duplicates >= 10, "{}: {report:?}", case.name);
        }
        assert_eq!(report.prefetches, case.layout.prefetches.len() as u64, "{}", case.name);
        assert_eq!(case.name.starts_with("fetching"), report.prefetches >= 5, "{}", case.name);
        assert_eq!(report.redirects, 5, "three entries, an indirect target and a landing pad");
        let counters = case.version.counters.as_ref().map_or(0, |c| c.counted.len() - c.missing.len());
        assert_eq!(report.counters, counters as u64);
        assert!(case.version.counters.is_none() || counters > 20);
    }
}

/// Flips every bit of `range` in turn, and the whole byte; gives the offsets where a flip was accepted, with
/// the masks.
fn survivors(case: &Case, range: SvmaRange) -> BTreeMap<usize, Vec<u8>> {
    let mut out: BTreeMap<usize, Vec<u8>> = BTreeMap::new();
    let from = case.offset(range.start);
    for at in from..from + range.len() as usize {
        for mask in (0..8).map(|bit| 1 << bit).chain([0xff]) {
            if case.accepts(|v| v.bytes[at] ^= mask) {
                out.entry(at).or_default().push(mask);
            }
        }
    }
    out
}

#[test]
fn every_flipped_bit_of_text_is_found_but_in_filler() {
    for case in cases() {
        let filler = case.check(case.version.clone()).unwrap().filler;
        let accepted = survivors(&case, case.version.text);
        // Filler is what no piece of the map speaks of; nothing runs it.
        let in_piece = |at: usize| {
            case.version
                .map
                .pieces
                .iter()
                .any(|p| (case.offset(p.version)..case.offset(p.version) + p.len as usize).contains(&at))
        };
        let outside: Vec<_> = accepted.iter().filter(|(at, _)| in_piece(**at)).collect();
        assert!(outside.is_empty(), "{}: not noticed: {outside:x?}", case.name);
        assert_eq!(accepted.len() as u64, filler, "{}", case.name);
        assert!(filler < 200 && case.version.text.len() > 100);
    }
}

#[test]
fn what_is_fetched_ahead_is_what_the_layout_asks_for() {
    let module = small();
    let layout = fetching(&module.program, whole(&module.program), 1);
    let checked = |layout: &Layout, version: Version| {
        check(&module.image, &module.program, layout, version, module.bias()).map(|c| c.report().prefetches)
    };
    let version = module.version(&layout, &[]);
    for i in 0..layout.prefetches.len() {
        let mut other = layout.clone();
        other.prefetches.remove(i);
        assert!(checked(&other, version.clone()).is_err(), "one more than the layout has");
        assert!(checked(&layout, module.version(&other, &[])).is_err(), "one less than the layout has");
        other = layout.clone();
        other.prefetches[i].offset ^= 1;
        let same = module.version(&other, &[]).bytes == version.bytes;
        assert!(same || checked(&other, version.clone()).is_err(), "another byte");
    }
    // Counting versions fetch nothing, nor is anything fetched that was not placed.
    assert_eq!(checked(&layout, module.version(&layout, &module.everything(&layout))), Ok(0));
    for seed in 1..60 {
        let layout = fetching(&module.program, half(&module.program, seed), seed);
        let placed = layout.blocks().collect::<std::collections::HashSet<_>>();
        let there = layout.prefetches.iter().filter(|p| placed.contains(&p.target)).count();
        assert_eq!(checked(&layout, module.version(&layout, &[])), Ok(there as u64));
    }
}

#[test]
fn every_flipped_bit_of_a_jump_table_is_found() {
    for case in cases() {
        // Behind the last entry may be padding.
        let entries = SvmaRange::new(case.version.tables.start, 5 * 4);
        assert!(case.version.tables.covers(&entries));
        assert_eq!(survivors(&case, entries), BTreeMap::new(), "{}", case.name);
    }
}

#[test]
fn every_flipped_bit_of_the_search_table_is_found() {
    for case in cases() {
        assert_eq!(survivors(&case, case.version.eh_frame_hdr), BTreeMap::new(), "{}", case.name);
    }
}

/// What may change in unwind tables without a change of meaning: padding (`DW_CFA_nop` at the end of an entry
/// may become another instruction that changes nothing before the end), the high bits of advances that reach
/// the end of the entry's range anyway; and exception tables: those of stretches of code that holds no call
/// (nobody asks them; many in small shuffled code), unused type-table offsets, and call sites' lengths where
/// they end in inserted code or filler.
#[test]
fn nearly_every_flipped_bit_of_unwind_and_exception_tables_is_found() {
    for case in cases() {
        for (name, range, limit) in
            [("eh_frame", case.version.eh_frame, 0.15), ("lsda", case.version.lsda, 0.6)]
        {
            let accepted: usize = survivors(&case, range).values().map(Vec::len).sum();
            let share = accepted as f64 / (range.len() as f64 * 9.0);
            println!("{}: {name}: {share:.3} of {} bytes", case.name, range.len());
            assert!(share < limit, "{}: {name}: {share}", case.name);
        }
    }
}

#[test]
fn a_changed_image_header_is_found_where_the_loader_or_the_unwinder_reads_it() {
    for case in cases().into_iter().take(1) {
        // e_ident up to the version, e_type, e_machine, e_version; e_phoff; the sizes; then both program
        // headers but for p_paddr and p_align, which nobody reads.
        let phoff = 64;
        let mut read: Vec<usize> = (0..7).chain(16..24).chain(32..40).chain(52..58).collect();
        for header in 0..2 {
            read.extend((0..24).chain(32..40).map(|i| phoff + 56 * header + i));
        }
        for at in read {
            let ignored = at == phoff + 56 + 4; // Flags of PT_GNU_EH_FRAME.
            let ignored = ignored
                || (phoff + 56 + 4..phoff + 56 + 8).contains(&at)
                || (phoff + 56 + 32..phoff + 56 + 40).contains(&at);
            let ignored = ignored || (phoff + 56 * 2..).contains(&at);
            assert!(ignored || !case.accepts(|v| v.bytes[at] ^= 0xff), "byte {at}");
        }
    }
}

#[test]
fn every_change_of_the_map_is_found() {
    for case in cases() {
        let name = case.name;
        let map = &case.version.map;
        for i in 0..map.pieces.len() {
            let tell = |what: &str| format!("{name}: piece {i} {:?}: {what}", map.pieces[i]);
            assert!(
                !case.accepts(|v| {
                    v.map.pieces.remove(i);
                }),
                "{}",
                tell("removed")
            );
            for by in [-1, 1, 3] {
                // Inside a counter there is no equivalent, whatever address is written down.
                let opaque = map.pieces[i].kind == PieceKind::Opaque;
                let moved = case.accepts(|v| v.map.pieces[i].original = v.map.pieces[i].original.offset(by));
                assert!(opaque || !moved, "{}", tell("original"));
                assert!(
                    !case.accepts(|v| v.map.pieces[i].version = v.map.pieces[i].version.offset(by)),
                    "{}",
                    tell("version")
                );
                assert!(!case.accepts(|v| v.map.pieces[i].len = v.map.pieces[i].len.wrapping_add_signed(by as i32)), "{}", tell("length"));
            }
            let others = [
                PieceKind::Linear,
                PieceKind::Branch,
                PieceKind::Added,
                PieceKind::Inserted,
                PieceKind::Opaque,
            ];
            for kind in others.into_iter().filter(|k| *k != map.pieces[i].kind) {
                let accepted = case.accepts(|v| v.map.pieces[i].kind = kind);
                assert!(!accepted || equal_kinds(&case, i, kind), "{}", tell(&format!("{kind:?}")));
            }
        }
        for i in 0..map.places.len() {
            let tell = |what: &str| format!("{name}: place {i} {:?}: {what}", map.places[i]);
            assert!(
                !case.accepts(|v| v.map.places[i].version = v.map.places[i].version.offset(1)),
                "{}",
                tell("version")
            );
            assert!(
                !case.accepts(|v| v.map.places[i].original = v.map.places[i].original.offset(0x10_0000)),
                "{}",
                tell("original")
            );
        }
    }
}

/// A piece of one instruction says the same as several kinds; and between a table's load and its jump, an
/// address may be known or not.
fn equal_kinds(case: &Case, i: usize, kind: PieceKind) -> bool {
    use PieceKind as K;
    let piece = case.version.map.pieces[i];
    let window = case.module.program.tables.iter().any(|t| {
        let o = piece.original;
        o.offset_from(t.load_at) >= 0 && o.offset_from(t.jump_at) <= 0
    });
    match (piece.kind, kind) {
        (K::Branch, K::Linear) | (K::Added, K::Branch) => true,
        // A one-instruction run.
        (K::Linear, K::Branch) => piece.len <= 15,
        (K::Opaque, K::Linear | K::Inserted) | (K::Linear, K::Opaque) => window || kind == K::Inserted,
        _ => false,
    }
}

#[test]
fn every_change_of_blocks_symbols_redirects_and_counters_is_found() {
    for case in cases() {
        let name = case.name;
        for i in 0..case.version.blocks.len() {
            assert!(
                !case.accepts(|v| {
                    v.blocks.remove(i);
                }),
                "{name}: block {i} removed"
            );
            assert!(!case.accepts(|v| v.blocks[i].block.0 ^= 1), "{name}: block {i} renamed");
            assert!(!case.accepts(|v| v.blocks[i].duplicate ^= true), "{name}: block {i} another copy");
            if !case.version.blocks[i].version.is_empty() {
                assert!(
                    !case.accepts(|v| v.blocks[i].version.start = v.blocks[i].version.start.offset(1)),
                    "{name}: start {i}"
                );
                assert!(
                    !case.accepts(|v| v.blocks[i].version.end = v.blocks[i].version.end.offset(-1)),
                    "{name}: end {i}"
                );
            }
        }
        assert!(!case.accepts(|v| v.symbols.clear()), "{name}");
        assert!(!case.accepts(|v| v.symbols[0].name.clear()), "{name}");
        for i in 0..case.version.redirects.len() {
            for by in [-4, -1, 1, 4] {
                assert!(
                    !case.accepts(|v| v.redirects[i].at = v.redirects[i].at.offset(by)),
                    "{name}: redirect {i} from {by}"
                );
                let at = case.version.redirects[i];
                let marked = case.module.image.read(at.at - 4, 4) == Some(&[0xf3, 0x0f, 0x1e, 0xfa]);
                // To the marker's copy or behind it: it does nothing. (A counter between them must not be
                // skipped.)
                let lone = case.module.program.block_starting_at(at.at).is_some();
                let skips_endbr = marked && by == if lone { 4 } else { -4 };
                let accepted = case.accepts(|v| v.redirects[i].to = v.redirects[i].to.offset(by));
                assert!(!accepted || skips_endbr, "{name}: redirect {i} to {by}");
            }
            assert!(!case.accepts(|v| v.redirects.push(v.redirects[i])), "{name}: redirect {i} twice");
        }
        let Some(counters) = &case.version.counters else { continue };
        for i in 0..counters.counted.len() {
            assert!(
                !case.accepts(|v| {
                    table(v).counted.remove(i);
                }),
                "{name}: counter {i} removed"
            );
            let next = (i + 1) % counters.counted.len();
            assert!(
                !case.accepts(|v| table(v).counted.swap(i, next)),
                "{name}: counters {i} and {next} swapped"
            );
            let missing = counters.missing.contains(&(i as u32));
            assert!(
                missing || !case.accepts(|v| table(v).missing = vec![i as u32]),
                "{name}: {i} said to be missing"
            );
        }
        assert!(!case.accepts(|v| v.counters = None), "{name}");
    }
}

fn table(version: &mut Version) -> &mut restitch_emit::CounterTable {
    version.counters.as_mut().unwrap()
}

#[test]
fn a_plain_counter_where_flags_are_live_is_found_as_such() {
    // The block at the `js` behind the `je`: its flags are live on entry, so its counter keeps them or stands
    // elsewhere. A plain one in front of the setb-like readers is what a wrong liveness analysis would emit;
    // claim that they are dead.
    let mut module = small();
    let mut live = 0;
    for block in &mut module.program.blocks {
        live += u32::from(block.attrs.contains(restitch_program::BlockAttrs::FLAGS_LIVE_IN));
        block.attrs.remove(restitch_program::BlockAttrs::FLAGS_LIVE_IN);
    }
    assert!(live >= 2);
    let layout = whole(&module.program);
    let counted: Vec<Counted> = module.everything(&layout);
    let version = module.version(&layout, &counted);
    let error = check(&module.image, &module.program, &layout, version, module.bias()).unwrap_err();
    assert!(error.findings.iter().any(|f| f.problem == Problem::FlagsLive), "{error}");
}

#[test]
fn versions_of_another_program_or_layout_are_refused() {
    let all = cases();
    let (a, b) = (&all[0], &all[2]);
    assert!(a.check(b.version.clone()).is_err());
    assert!(b.check(a.version.clone()).is_err());
    let mut nonsense = a.version.clone();
    nonsense.bytes.truncate(100);
    assert!(a.check(nonsense).is_err());
    let mut empty = a.version.clone();
    empty.text = SvmaRange::new(Svma::new(u64::MAX - 5), u64::MAX);
    assert!(a.check(empty).is_err());
}

#[test]
fn findings_say_where_and_what() {
    let case = &cases()[0];
    let mut version = case.version.clone();
    let version_block = version.blocks[0].block;
    let at = case.offset(version.blocks[0].version.start);
    version.bytes[at] ^= 1;
    let error = case.check(version).unwrap_err();
    let text = error.to_string();
    let original = format!("original {}", case.module.program.block(version_block).start);
    assert!(text.contains(&original) && text.contains("differs from the original"), "{text}");
    assert!(text.contains("it was not applied"), "{text}");
}

#[test]
fn random_garbage_is_refused_without_a_panic() {
    let cases = cases();
    let mut state = 0x1234_5678u64;
    let mut random = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    let end = std::time::Instant::now() + std::time::Duration::from_secs(1);
    while std::time::Instant::now() < end {
        let case = &cases[random() as usize % cases.len()];
        let mut version = case.version.clone();
        let from = random() as usize % version.bytes.len();
        let len = 1 + random() as usize % 64;
        for byte in version.bytes.iter_mut().skip(from).take(len) {
            *byte = random() as u8;
        }
        if random() % 4 == 0 {
            let i = random() as usize % version.map.pieces.len();
            version.map.pieces[i].len = random() as u32;
            version.map.pieces[i].version = Svma::new(random());
            version.blocks[0].version = SvmaRange::new(Svma::new(random()), random());
            version.redirects[0].at = Svma::new(random());
            version.map.places[0].len = random() as u32;
        }
        let _ = case.check(version);
    }
}
