//! Any sequence of rows survives being written and read, by our reader and by gimli; damaged input never
//! panics.

use proptest::prelude::*;
use restitch_address::{Svma, SvmaRange};
use restitch_cfi::*;
use std::sync::Arc;
use std::time::{Duration, Instant};

fn register() -> impl Strategy<Value = Register> {
    prop_oneof![8 => 0u16..17, 1 => 17u16..256].prop_map(Register)
}

fn offset() -> impl Strategy<Value = i64> {
    prop_oneof![6 => (-40i64..8).prop_map(|o| o * 8), 1 => -500i64..500, 1 => -(1i64 << 40)..1 << 40]
}

fn expression() -> impl Strategy<Value = ExpressionBytes> {
    proptest::collection::vec(any::<u8>(), 0..6).prop_map(Into::into)
}

fn rule() -> impl Strategy<Value = RegisterRule> {
    prop_oneof![
        1 => Just(RegisterRule::Undefined),
        1 => Just(RegisterRule::SameValue),
        6 => offset().prop_map(RegisterRule::Offset),
        1 => offset().prop_map(RegisterRule::ValOffset),
        1 => register().prop_map(RegisterRule::Register),
        1 => expression().prop_map(RegisterRule::Expression),
        1 => expression().prop_map(RegisterRule::ValExpression),
    ]
}

fn state() -> impl Strategy<Value = FrameState> {
    let cfa = prop_oneof![
        8 => (register(), offset()).prop_map(|(register, offset)| Cfa::RegisterOffset { register, offset }),
        1 => expression().prop_map(Cfa::Expression),
    ];
    let registers = proptest::collection::btree_map(register(), rule(), 0..6);
    let args = prop_oneof![9 => Just(0u64), 1 => 0u64..1 << 20];
    (cfa, registers, any::<bool>(), args).prop_map(|(cfa, mut registers, ordinary, args_size)| {
        if ordinary {
            registers.insert(Register::RIP, RegisterRule::Offset(-8));
        }
        let registers = registers.into_iter().collect();
        FrameState { cfa, registers, args_size, return_address: Register::RIP }
    })
}

/// A run of code whose states come from a small pool, so that they come back.
fn run() -> impl Strategy<Value = Run> {
    let advance = prop_oneof![6 => 1u64..64, 2 => 64u64..300, 1 => 300u64..70_000, 1 => 70_000u64..1 << 24];
    let rows = proptest::collection::vec((advance, any::<prop::sample::Index>()), 1..20);
    let pool = proptest::collection::vec(state(), 1..5);
    let personality = proptest::option::of((any::<bool>(), 0x1000u64..0x9000));
    (
        pool,
        rows,
        personality,
        proptest::option::of(0x1000u64..0x9000),
        any::<bool>(),
        -0x4000_0000i64..0x1000_0000,
    )
        .prop_map(|(pool, steps, personality, lsda, signal_frame, start)| {
            let pool: Vec<Arc<FrameState>> = pool.into_iter().map(Arc::new).collect();
            let start = Svma::new(0).offset(start);
            let mut at = start;
            let mut rows: Vec<Row> = Vec::new();
            for (advance, index) in steps {
                let state = index.get(&pool).clone();
                if rows.last().is_none_or(|row| row.state != state) {
                    rows.push(Row { start: at, state });
                }
                at = at + advance;
            }
            Run {
                range: SvmaRange::between(start, at),
                rows,
                personality: personality
                    .map(|(indirect, at)| Personality { indirect, address: Svma::new(at) }),
                lsda: lsda.map(Svma::new),
                signal_frame,
            }
        })
}

/// Starts of what gimli finds in the rows of each FDE; it must accept all that we write.
fn gimli_rows(bytes: &[u8], at: Svma) -> Vec<(u64, usize)> {
    use gimli::UnwindSection;
    let section = gimli::EhFrame::new(bytes, gimli::LittleEndian);
    let bases = gimli::BaseAddresses::default().set_eh_frame(at.get());
    let mut context = gimli::UnwindContext::new();
    let mut entries = section.entries(&bases);
    let mut found = Vec::new();
    while let Some(entry) = entries.next().unwrap() {
        let gimli::CieOrFde::Fde(fde) = entry else { continue };
        let fde = fde.parse(gimli::EhFrame::cie_from_offset).unwrap();
        let mut table = fde.rows(&section, &bases, &mut context).unwrap();
        let mut count = 0;
        while table.next_row().unwrap().is_some() {
            count += 1;
        }
        found.push((fde.initial_address(), count));
    }
    found
}

/// The frame addresses of rows.
fn frames_of(rows: &[Row]) -> Vec<FrameAddress> {
    let all = rows.iter().map(|row| FrameAddress { start: row.start, cfa: row.state.cfa.clone() });
    let mut all: Vec<FrameAddress> = all.collect();
    all.dedup_by(|b, a| a.cfa == b.cfa);
    all
}

proptest! {
    #[test]
    fn random_rows_survive(mut runs in proptest::collection::vec(run(), 1..5), at in 0u64..0x1000_0000) {
        let at = Svma::new(at);
        runs.sort_by_key(|run| run.range.start);
        runs.dedup_by_key(|run| run.range.start);
        let written = write_eh_frame(at, &runs).unwrap();
        let info = UnwindInfo::parse(&written.bytes, at).unwrap();
        prop_assert_eq!(info.dropped(), Dropped::default());
        prop_assert_eq!(info.entries().len(), runs.len());
        for ((run, entry), (start, fde)) in runs.iter().zip(info.entries()).zip(&written.entries) {
            prop_assert_eq!(run.range, entry.range);
            prop_assert_eq!((run.personality, run.lsda, run.signal_frame), (entry.personality, entry.lsda, entry.signal_frame));
            prop_assert_eq!(&run.rows, &info.rows(entry).unwrap());
            prop_assert_eq!(frames_of(&run.rows), info.frame_addresses(entry).unwrap());
            prop_assert_eq!((*start, *fde), (entry.range.start, entry.fde));
            let row = &run.rows[run.rows.len() / 2];
            prop_assert_eq!(row_at(&run.rows, row.start), Some(row));
            prop_assert_eq!(row_at(&run.rows, run.range.start.offset(-1)), None);
            let found = info.row_at(row.start).unwrap();
            // Random runs may overlap; then another one may be found.
            prop_assert!(runs.len() > 1 || found.as_ref() == Some(row));
        }
        let counted: Vec<_> = runs.iter().map(|run| (run.range.start.get(), run.rows.len())).collect();
        // gimli refuses ranges that wrap around zero.
        if runs.iter().all(|run| run.range.start < run.range.end) {
            prop_assert_eq!(gimli_rows(&written.bytes, at), counted);
        }
    }

    #[test]
    fn relocating_changes_no_meaning(run in run(), at in 0u64..0x1000_0000, by in -0x1000_0000i64..0x1000_0000) {
        let (at, to) = (Svma::new(at), Svma::new(at).offset(by));
        let written = write_eh_frame(at, std::slice::from_ref(&run)).unwrap();
        let moved = relocate_eh_frame(&written.bytes, at, to).unwrap();
        prop_assert_eq!(moved.bytes.len() + 4, written.bytes.len());
        let direct = write_eh_frame(to, &[run]).unwrap();
        prop_assert_eq!(&moved.bytes[..], &direct.bytes[..moved.bytes.len()]);
        prop_assert_eq!(moved.entries, direct.entries);
    }

    #[test]
    fn shifting_the_stack_there_and_back_changes_nothing(state in state(), by in -1000i64..1000) {
        if let Some(shifted) = state.shifted_stack(by) {
            prop_assert_eq!(&shifted.registers, &state.registers);
            prop_assert_eq!(shifted.shifted_stack(-by), Some(state));
        }
    }

    #[test]
    fn the_search_table_is_sorted_by_run_time_address(offsets in proptest::collection::vec(-0x1000_0000i64..0x1000_0000, 0..50)) {
        let at = Svma::new(0x100);
        let entries: Vec<_> = offsets.iter().map(|o| (at.offset(*o), at.offset(o / 2))).collect();
        let bytes = write_eh_frame_hdr(at, at.offset(64), &entries).unwrap();
        let hdr = read_eh_frame_hdr(&Bytes { at, bytes: &bytes }, at).unwrap();
        prop_assert_eq!(hdr.eh_frame, at.offset(64));
        let distances: Vec<i64> = hdr.entries.iter().map(|(start, _)| start.offset_from(at)).collect();
        let mut sorted = offsets;
        sorted.sort_unstable();
        prop_assert_eq!(distances, sorted);
    }
}

/// A small generator, so that a failure can be repeated: the seed is fixed, the number of rounds is not.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }
    fn below(&mut self, n: usize) -> usize {
        (self.next() % n.max(1) as u64) as usize
    }
}

/// Calls `reader` for about a second with mutated copies of `seed` and with noise.
fn fuzz(seed: &[u8], mut reader: impl FnMut(&[u8])) {
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    let began = Instant::now();
    while began.elapsed() < Duration::from_millis(700) {
        let mut bytes = seed.to_vec();
        for _ in 0..1 + random.below(6) {
            let at = random.below(bytes.len());
            match random.below(5) {
                0 => bytes[at] ^= 1 << random.below(8),
                1 => bytes[at] = random.next() as u8,
                2 => bytes.truncate(at.max(1)),
                3 => bytes.insert(at, [0, 0x7f, 0x80, 0xff][random.below(4)]),
                _ => {
                    let from = random.below(bytes.len());
                    bytes[at] = bytes[from];
                }
            }
        }
        reader(&bytes);
        let noise: Vec<u8> = (0..random.below(80)).map(|_| random.next() as u8).collect();
        reader(&noise);
    }
}

fn sample_run(start: u64) -> Run {
    let start = Svma::new(start);
    let mut pushed = FrameState::at_entry();
    pushed.cfa = Cfa::RegisterOffset { register: Register::RSP, offset: 16 };
    pushed.registers.insert(0, (Register::RBX, RegisterRule::Offset(-16)));
    let expression =
        FrameState { cfa: Cfa::Expression([0x77, 8, 0x80, 0, 0x22][..].into()), ..pushed.clone() };
    let states = [FrameState::at_entry(), pushed.clone(), expression, pushed, FrameState::at_entry()];
    let rows = states.into_iter().zip([0u64, 1, 70, 700, 70_000]);
    Run {
        range: SvmaRange::new(start, 80_000),
        rows: rows.map(|(state, at)| Row { start: start + at, state: Arc::new(state) }).collect(),
        personality: Some(Personality { indirect: true, address: Svma::new(0x5000) }),
        lsda: Some(Svma::new(0x6000)),
        signal_frame: false,
    }
}

#[test]
fn damaged_eh_frame_never_panics() {
    let at = Svma::new(0x10_0000);
    let seed = write_eh_frame(at, &[sample_run(0x1000), sample_run(0x40_0000)]).unwrap().bytes;
    fuzz(&seed, |bytes| {
        if let Ok(info) = UnwindInfo::parse(bytes, at) {
            for entry in info.entries() {
                let rows = info.rows(entry);
                let frames = info.frame_addresses(entry).map_err(|error| error.to_string());
                assert_eq!(frames, rows.as_deref().map(frames_of).map_err(|error| error.to_string()));
                let Ok(rows) = rows else { continue };
                assert_eq!(rows[0].start, entry.range.start);
                assert!(rows.iter().all(|row| entry.range.contains(row.start)));
                assert!(rows.windows(2).all(|pair| pair[0].start.offset_from(pair[1].start) < 0));
                for row in rows {
                    let regs = Registers::default().with(Register::RSP, 64).with(Register::RIP, 5);
                    let _ = step(&row.state, &regs, &mut |at| (at.get() % 3 != 0).then_some(at.get()));
                    let _ = (row.state.shifted_stack(8), row.state.depends_on_position());
                }
            }
        }
        let _ = relocate_eh_frame(bytes, at, at.offset(0x1000));
    });
}

#[test]
fn damaged_search_table_never_panics() {
    let at = Svma::new(0x10_0000);
    let entries: Vec<_> = (0..9).map(|i| (at.offset(i * 16), at.offset(-i))).collect();
    let seed = write_eh_frame_hdr(at, at.offset(9), &entries).unwrap();
    fuzz(&seed, |bytes| {
        let _ = read_eh_frame_hdr(&Bytes { at, bytes }, at);
    });
}

#[test]
fn damaged_lsda_never_panics() {
    let at = Svma::new(0x10_0000);
    let function = SvmaRange::new(Svma::new(0x1000), 0x100);
    let call_sites = [(0, 1), (16, 3), (32, 5), (48, 0)].map(|(offset, action)| LsdaCallSite {
        range: SvmaRange::new(function.start + offset, 16),
        landing_pad: Some(function.start + 0x80 + offset),
        action,
    });
    let original = Lsda {
        call_sites: call_sites.to_vec(),
        actions: vec![1, 0, 2, 0x7d, 0x7f, 0],
        types: vec![None, Some(TypeInfo { indirect: true, address: Svma::new(0x7000) })],
        filters: vec![1, 2, 0],
        indirect_types: true,
    };
    let seed = write_lsda(at, function.start, &call_sites, &original).unwrap();
    assert_eq!(Lsda::parse(&Bytes { at, bytes: &seed }, at, function).unwrap(), original);
    fuzz(&seed, |bytes| {
        if let Ok(lsda) = Lsda::parse(&Bytes { at, bytes }, at, function) {
            let _ = write_lsda(at, function.start, &lsda.call_sites, &lsda);
        }
    });
}

#[test]
fn a_run_that_cannot_be_expressed_is_an_error() {
    let good = sample_run(0x1000);
    let at = Svma::new(0x10_0000);
    let refused = |change: &dyn Fn(&mut Run)| {
        let mut run = good.clone();
        change(&mut run);
        matches!(write_eh_frame(at, &[run]), Err(CfiError::Inexpressible { .. }))
    };
    assert!(!refused(&|_| {}));
    assert!(refused(&|run| run.rows.clear()));
    assert!(refused(&|run| run.rows.swap(1, 2)));
    assert!(refused(&|run| run.rows[0].start = Svma::new(0x1001)));
    assert!(refused(&|run| run.range.end = Svma::new(0x1010)));
    assert!(refused(&|run| run.range.end = Svma::new(0x1_0000_0000)));
    let far = Run { lsda: Some(Svma::new(0x1_0000_0000)), ..good.clone() };
    let error = write_eh_frame(at, &[far]).unwrap_err();
    assert!(matches!(error, CfiError::OutOfReach { .. }));
    assert!(error.to_string().contains("nearer"), "{error}");
    assert!(write_eh_frame_hdr(at, at, &[(Svma::new(0x1_0000_0000), at)]).is_err());
}
