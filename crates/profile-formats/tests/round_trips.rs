//! What a format can hold comes back from it, and damaged files are errors, not panics.

use proptest::prelude::*;
use restitch_address::Svma;
use restitch_profile::Profile;
use restitch_profile::testing::{Random, RandomProgram, walk};
use restitch_profile_formats::{
    BoltBlocks, Format, Names, Records, autofdo, bolt_yaml, fdata, order, preaggregated, propeller,
};
use restitch_program::{BlockId, Program};
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

fn names_of(program: &Program) -> Names {
    // Blanks and backslashes are what fdata has to escape.
    let name = |at: Svma| format!("f {:x}\\x", at.get());
    let pairs: Vec<(Svma, String)> =
        program.functions.iter().map(|f| (f.range.start, name(f.range.start))).collect();
    Names::of(pairs.iter().map(|(at, name)| (*at, name.as_str())))
}

/// A random program and random executions of it.
fn setting(seed: u64) -> (Program, Profile, Names, BoltBlocks) {
    let program = RandomProgram::new(seed).program;
    let profile = walk(&program, seed, 30, 0.0);
    let (names, blocks) = (names_of(&program), BoltBlocks::of_program(&program));
    (program, profile, names, blocks)
}

/// Counts of edges between blocks of different BOLT blocks; a branch to the next block and falling into it
/// are one to fdata.
fn seen_by_bolt(
    program: &Program,
    profile: &Profile,
    blocks: &BoltBlocks,
) -> BTreeMap<(BlockId, BlockId), u64> {
    let mut sums = BTreeMap::new();
    for (edge, &count) in program.edges.iter().zip(&profile.edges) {
        if count > 0 && blocks.is_leader(edge.to) {
            *sums.entry((edge.from, edge.to)).or_default() += count;
        }
    }
    sums
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    #[test]
    fn pre_aggregated_text_holds_everything(seed: u64) {
        let (program, profile, ..) = setting(seed);
        let records = Records::of_profile(&program, &profile);
        let text = preaggregated::write(&records);
        let read = preaggregated::read(&text).unwrap();
        prop_assert_eq!(&read, &records);
        let (back, _) = read.to_profile(&program);
        prop_assert_eq!(back, profile);
        if !text.is_empty() {
            prop_assert_eq!(Format::detect(text.as_bytes()), Ok(Format::PreAggregated));
        }
    }

    #[test]
    fn fdata_holds_the_edges_that_bolt_sees(seed: u64) {
        let (program, profile, names, blocks) = setting(seed);
        let records = Records::of_profile(&program, &profile);
        let text = fdata::write(&records, &program, &names, &blocks);
        let read = fdata::read(&text, &names, &program, &blocks).unwrap();
        prop_assert!(read.unknown.is_empty(), "{:?}", read.unknown);
        let (back, matched) = read.records.to_profile(&program);
        prop_assert_eq!(matched.broken_ranges, 0);
        prop_assert_eq!(seen_by_bolt(&program, &back, &blocks), seen_by_bolt(&program, &profile, &blocks));
        prop_assert_eq!(&back.calls, &profile.calls);
        // Written again, it is the same text.
        prop_assert_eq!(fdata::write(&read.records, &program, &names, &blocks), text);
    }

    #[test]
    fn edges_that_bolt_does_not_see_follow_from_the_others(seed: u64) {
        let (program, mut profile, names, blocks) = setting(seed);
        // The random executions do not go into what they call, so calls and entries do not agree.
        profile.calls.fill(0);
        let text = fdata::write(&Records::of_profile(&program, &profile), &program, &names, &blocks);
        let (back, _) = fdata::read(&text, &names, &program, &blocks).unwrap().records.to_profile(&program);
        let total = |p: &Profile| p.edges.iter().sum::<u64>();
        prop_assert_eq!(total(&back), total(&profile));
    }

    #[test]
    fn samples_of_no_lbr_come_back(seed: u64) {
        let (program, profile, names, blocks) = setting(seed);
        let samples = fdata::block_samples(&program, &profile, &blocks);
        let text = fdata::write_no_lbr(&samples, "cycles", &program, &names);
        prop_assert_eq!(Format::detect(text.as_bytes()), Ok(Format::FdataNoLbr));
        prop_assert_eq!(fdata::read(&text, &names, &program, &blocks).unwrap().records.ips, samples);
    }

    #[test]
    fn yaml_holds_the_edges_that_bolt_sees(seed: u64) {
        let (program, profile, names, blocks) = setting(seed);
        let about = bolt_yaml::About { file: "/bin/it's", build_id: Some("00ff") };
        let text = bolt_yaml::write(&about, &program, &profile, &names, &blocks);
        prop_assert_eq!(Format::detect(text.as_bytes()), Ok(Format::BoltYaml));
        let read = bolt_yaml::read(&text, &program, &names, &blocks).unwrap();
        prop_assert!(read.notes.is_empty(), "{:?}", read.notes);
        let (back, _) = read.records.to_profile(&program);
        prop_assert_eq!(&back.calls, &profile.calls);
        // Edges of one BOLT block to another: our blocks within it do not matter, and neither does whether it
        // fell.
        let sums = |p: &Profile| {
            let mut sums: BTreeMap<(usize, BlockId), u64> = BTreeMap::new();
            for (edge, &count) in program.edges.iter().zip(&p.edges) {
                let (from, to) = (program.block(edge.from).function, program.block(edge.to).function);
                let group = blocks.groups(&program, from).iter().position(|g| g.contains(&edge.from)).unwrap();
                let group = from.index() << 16 | group;
                if count > 0 && from == to && blocks.is_leader(edge.to) {
                    *sums.entry((group, edge.to)).or_default() += count;
                }
            }
            sums
        };
        prop_assert_eq!(sums(&back), sums(&profile));
    }

    #[test]
    fn autofdo_holds_entries(seed: u64) {
        let (program, profile, names, _) = setting(seed);
        let text = autofdo::write(&program, &profile, &names);
        let read = autofdo::read(&text, &names).unwrap();
        prop_assert!(read.notes.is_empty(), "{:?}", read.notes);
        let (back, _) = read.records.to_profile(&program);
        for function in &program.functions {
            if let Some(entry) = function.entry_block() {
                prop_assert_eq!(back.block(entry), profile.block(entry));
            }
        }
    }

    #[test]
    fn orders_come_back(symbols in prop::collection::hash_set("[A-Za-z_][A-Za-z0-9_.$@]{0,20}", 0..20)) {
        let symbols: Vec<String> = symbols.into_iter().collect();
        let text = order::write(symbols.iter().map(String::as_str));
        prop_assert_eq!(order::read(&text).unwrap(), symbols);
    }
}

/// Changes some bytes: to others, to nothing, to copies of what stands elsewhere.
fn damaged(text: &str, random: &mut Random) -> String {
    let mut bytes = text.as_bytes().to_vec();
    for _ in 0..1 + random.below(6) {
        if bytes.is_empty() {
            break;
        }
        let at = random.below(bytes.len());
        match random.below(4) {
            0 => bytes[at] = random.bits() as u8,
            1 => bytes[at] = *b" \n:0[{-}]\\f1!'".get(random.below(14)).unwrap_or(&b' '),
            2 => drop(bytes.drain(at..(at + random.below(20)).min(bytes.len()))),
            _ => {
                let from = random.below(bytes.len());
                let copy = bytes[from..(from + random.below(40)).min(bytes.len())].to_vec();
                bytes.splice(at..at, copy);
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[test]
fn damaged_files_never_panic() {
    let (program, profile, names, blocks) =
        (0..).map(setting).find(|s| s.1.edges.iter().sum::<u64>() > 100).unwrap();
    let records = Records::of_profile(&program, &profile);
    let about = bolt_yaml::About { file: "x", build_id: None };
    let samples = fdata::block_samples(&program, &profile, &blocks);
    let texts = [
        preaggregated::write(&records),
        fdata::write(&records, &program, &names, &blocks),
        fdata::write_no_lbr(&samples, "cycles", &program, &names),
        bolt_yaml::write(&about, &program, &profile, &names, &blocks),
        autofdo::write(&program, &profile, &names),
        "main:184019:0\n 4: 534\n".into(),
        "v1\nf main\nc0 1 2\nf foo\nc3\n!bar/baz\n!!0 1\n".into(),
        order::write(["main", "_ZN3fooEv"]),
    ];
    let found: BTreeSet<Format> = texts.iter().flat_map(|text| Format::detect(text.as_bytes())).collect();
    let others: Vec<Format> = Format::ALL.into_iter().filter(|format| !found.contains(format)).collect();
    assert_eq!(others, [Format::Store, Format::PerfData], "only these are no text");
    let mut random = Random::new(5);
    let until = Instant::now() + Duration::from_millis(1500);
    let mut rounds = 0;
    while rounds < 300 || Instant::now() < until {
        rounds += 1;
        // Each reader gets each text: what was not recognised may be any other.
        let text = damaged(&texts[random.below(texts.len())], &mut random);
        let _ = Format::detect(text.as_bytes());
        let read = [
            preaggregated::read(&text),
            fdata::read(&text, &names, &program, &blocks).map(|r| r.records),
            bolt_yaml::read(&text, &program, &names, &blocks).map(|r| r.records),
            autofdo::read(&text, &names).map(|r| r.records),
        ];
        for result in read {
            match result {
                Ok(records) => {
                    let (profile, _) = records.to_profile(&program);
                    assert!(profile.is_parallel_to(&program));
                    let _ = fdata::write(&records, &program, &names, &blocks);
                }
                Err(error) => assert!(error.to_string().contains("; "), "no next step: {error}"),
            }
        }
        let _ = (order::read(&text), propeller::read_functions(&text));
    }
}
