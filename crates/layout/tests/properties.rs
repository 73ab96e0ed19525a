//! Properties that every layout has, and how good the default one is.

use proptest::prelude::*;
use restitch_layout::{
    Codestitcher, Distances, DuplicateLimits, Duplicated, ExtTsp, ExtTspAcross, Fragment, Grouping,
    HotChains, Layout, LayoutAlgorithm, LayoutChoice, OriginalOrder, Prefetch, Score, Stitch, Tail,
    TemporalAffinity, duplicate_tails,
};
use restitch_profile::Profile;
use restitch_profile::testing::{RandomProgram, Shape, best_of_all, walk};
use restitch_program::{BlockId, EdgeId, FuncId, Program};

fn algorithms() -> Vec<Box<dyn LayoutAlgorithm>> {
    let mut all = restitch_layout::algorithms();
    all.push(Box::new(HotChains { grouping: Grouping::Chains, align: 1, ..HotChains::default() }));
    all
}

fn movable(seed: u64, functions: usize, blocks: usize) -> (Program, Profile) {
    let program = RandomProgram::shaped(seed, Shape { functions, blocks, unmovable: 0.0 }).program;
    let profile = walk(&program, seed, 60, 0.01);
    (program, profile)
}

const LOOP: &str = "\
function 0x1000..0x1060 main movable
  0x1000 +16 entry jump/2 -> 0x1040
  0x1010 +16 target cond(4)/2 -> 0x1030
  0x1020 +16 - stop/2
  0x1030 +16 target fall
  0x1040 +16 target cond(5)/2 -> 0x1010
  0x1050 +16 - return/1
    call 0x1052 +5 -> 0x1060
function 0x1060..0x1070 helper movable
  0x1060 +16 entry return/1
function 0x1070..0x1080 unused movable
  0x1070 +16 entry return/1
";

fn counts(program: &Program) -> Profile {
    let text = "\
block 0x1000 = 1
block 0x1010 = 100
block 0x1030 = 100
block 0x1040 = 101
block 0x1050 = 1
block 0x1060 = 1
edge 0x1000 taken 0x1040 = 1
edge 0x1010 taken 0x1030 = 100
edge 0x1030 fall 0x1040 = 100
edge 0x1040 taken 0x1010 = 100
edge 0x1040 fall 0x1050 = 1
call 0x1052 = 1
";
    Profile::from_text(text, program).unwrap()
}

/// With random pairs of edges behind half of the edges.
fn with_paths(program: &Program, mut profile: Profile, seed: u64) -> Profile {
    for (i, edge) in program.edges.iter().enumerate().filter(|(i, _)| seed >> (i % 64) & 1 == 1) {
        for (n, (out, _)) in program.out_edges(edge.to).enumerate() {
            profile.paths.insert((EdgeId(i as u32), out), (seed >> ((n + i) % 50)) & 0xff);
        }
    }
    profile
}

/// With random pairs of blocks, some of which never ran or cannot be moved.
fn with_affinity(program: &Program, mut profile: Profile, seed: u64) -> Profile {
    let last = program.blocks.len() as u32;
    for a in 0..last {
        let b = a + 1 + (seed >> (a % 60)) as u32 % 5;
        if b < last {
            profile.temporal_affinity.insert((BlockId(a), BlockId(b)), seed.rotate_left(a) % 1000);
        }
    }
    profile
}

/// Functions of one block of 16 bytes each, of which every fourth runs in the same windows; all as often,
/// called by nobody known.
#[test]
fn what_runs_together_shares_lines() {
    const FUNCTIONS: u32 = 64;
    let text = (0..FUNCTIONS).map(|n| 0x1000 + 16 * n).map(|at| {
        format!("function {at:#x}..{:#x} f{at:x} movable\n  {at:#x} +16 entry return/1\n", at + 16)
    });
    let program = Program::from_text(&text.collect::<String>()).unwrap();
    let mut profile = Profile::empty(&program);
    profile.blocks.fill(100);
    for a in 0..FUNCTIONS {
        let same = (a + 1..FUNCTIONS).filter(|b| (b - a) % 4 == 0);
        profile.temporal_affinity.extend(same.map(|b| ((BlockId(a), BlockId(b)), 10)));
    }
    // Lines that the windows of all four kinds take together: as few as there are bytes, or four times as
    // many.
    let lines = |layout: &Layout| -> usize {
        let order: Vec<BlockId> = layout.blocks().collect();
        let line_of =
            |kind: u32| order.iter().enumerate().filter(move |(_, b)| b.0 % 4 == kind).map(|(i, _)| i / 4);
        (0..4).map(|kind| line_of(kind).collect::<std::collections::BTreeSet<_>>().len()).sum()
    };
    assert_eq!(lines(&ExtTspAcross::default().layout(&program, &profile)), FUNCTIONS as usize);
    assert!(lines(&TemporalAffinity::default().layout(&program, &profile)) <= FUNCTIONS as usize / 4 + 4);
    profile.temporal_affinity.clear();
    assert_eq!(lines(&TemporalAffinity::default().layout(&program, &profile)), FUNCTIONS as usize);
}

/// A fall-through, be it one that happens once, is worth more than a line that is shared a few times.
#[test]
fn what_runs_together_does_not_part_what_follows_each_other() {
    let program = Program::from_text(LOOP).unwrap();
    let mut profile = counts(&program);
    profile.temporal_affinity.insert((BlockId(1), BlockId(5)), 4);
    profile.temporal_affinity.insert((BlockId(3), BlockId(6)), 4);
    let (with, without) = (
        TemporalAffinity::default().layout(&program, &profile),
        ExtTspAcross::default().layout(&program, &profile),
    );
    let falls = |layout| Score::of(&program, &profile, layout).fall_through;
    assert_eq!(falls(&with), falls(&without));
}

#[test]
fn a_loop_is_straightened() {
    let program = Program::from_text(LOOP).unwrap();
    let profile = counts(&program);
    let layout = HotChains { align: 1, ..HotChains::default() }.layout(&program, &profile);
    let expected = "\
hot align 1: 0x1000
hot align 1: 0x1010 0x1030 0x1040 0x1050
hot align 1: 0x1060
cold align 1: 0x1020
";
    assert_eq!(layout.to_text(&program), expected);
    let (before, after) = (Score::of_original(&program, &profile), Score::of(&program, &profile, &layout));
    assert_eq!((before.taken, before.fall_through), (201, 101));
    assert_eq!((after.taken, after.fall_through), (101, 201));
    assert!(after.ext_tsp > before.ext_tsp && after.lines.all == 2);
    assert_eq!(Layout::from_text(expected, &program).unwrap(), layout);
}

/// The loop's condition is copied to its end, where the jump to it was; turned round, so that the hot way
/// needs no jump either.
#[test]
fn a_hot_jump_gives_way_to_a_duplicate() {
    let program = Program::from_text(LOOP).unwrap();
    let profile = counts(&program);
    let text = "hot align 1: 0x1000 0x1040 0x1010 0x1030 0x1050\nhot align 1: 0x1060\ncold align 1: 0x1020\n";
    let mut layout = Layout::from_text(text, &program).unwrap();
    let none = duplicate_tails(&program, &profile, &mut layout, &DuplicateLimits::default());
    assert_eq!(
        (none, layout.duplicates()),
        (Duplicated::default(), 0),
        "one block is more than three of hundred bytes"
    );
    // What is saved is an instruction a round: the loop's end branches back where it jumped.
    let limits = DuplicateLimits { growth: 0.2, price: 0.02, ..DuplicateLimits::default() };
    let done = duplicate_tails(&program, &profile, &mut layout, &limits);
    let expected = text.replace("0x1030 0x1050", "0x1030 +0x1040 0x1050");
    assert_eq!(layout.to_text(&program), expected);
    assert_eq!((done.blocks, done.bytes), (1, 16));
    assert!(done.taken > 0, "{done:?}");
    assert_eq!(layout.validate(&program), Ok(()));
    assert_eq!(Layout::from_text(&expected, &program).unwrap(), layout);
    let price = DuplicateLimits { price: 100.0, ..limits };
    assert_eq!(duplicate_tails(&program, &profile, &mut layout, &price), Duplicated::default());
    assert!(layout.tails.is_empty());
}

const REPEATED: &str = "\
function 0x1000..0x1060 f movable
  0x1000 +16 entry cond(4)/2 -> 0x1020
  0x1010 +16 - jump/2 -> 0x1030
  0x1020 +16 target fall
  0x1030 +16 target cond(4)/2 -> 0x1050
  0x1040 +16 - return/1
  0x1050 +16 target return/1
";

const REPEATED_COUNTS: &str = "\
block 0x1000 = 100
block 0x1010 = 50
block 0x1020 = 50
block 0x1030 = 100
block 0x1040 = 50
block 0x1050 = 50
edge 0x1000 fall 0x1010 = 50
edge 0x1000 taken 0x1020 = 50
edge 0x1010 taken 0x1030 = 50
edge 0x1020 fall 0x1030 = 50
edge 0x1030 fall 0x1040 = 50
edge 0x1030 taken 0x1050 = 50
";

/// `if (a) ..; if (a) ..`: by edges, the second branch goes either way wherever control came from.
#[test]
fn a_branch_that_repeats_another_goes_its_way_in_the_duplicate() {
    let program = Program::from_text(REPEATED).unwrap();
    let text = "hot align 1: 0x1000 0x1010 0x1020 0x1030 0x1040 0x1050\n";
    let limits = DuplicateLimits { growth: 1.0, price: 0.02, ..DuplicateLimits::default() };
    let taken = |paths: &str| {
        let mut layout = Layout::from_text(text, &program).unwrap();
        let profile = Profile::from_text(&(REPEATED_COUNTS.to_owned() + paths), &program).unwrap();
        let done = duplicate_tails(&program, &profile, &mut layout, &limits);
        assert_eq!(layout.validate(&program), Ok(()));
        (done.taken, layout.to_text(&program))
    };
    // Either way, the first branch is taken half of the time.
    let same = "path 0x1010 taken 0x1030 taken 0x1050 = 50\npath 0x1020 fall 0x1030 fall 0x1040 = 50\n";
    assert_eq!(taken(same), (100, text.replace("0x1010", "0x1010 +0x1030 +0x1050")));
    let other = "path 0x1010 taken 0x1030 fall 0x1040 = 50\npath 0x1020 fall 0x1030 taken 0x1050 = 50\n";
    let (saved, layout) = taken(other);
    assert!(layout.contains("0x1010 +0x1030 +0x1040"), "{layout}");
    assert!(saved >= 50);
    assert!(taken("").0 < 100);
    assert!(!taken("").1.contains("+0x1050"));
}

#[test]
fn faults_of_tails_are_named() {
    let program = Program::from_text(LOOP).unwrap();
    let base = "hot align 1: 0x1000 0x1040 0x1010";
    for (text, fault) in [
        ("hot align 1: 0x1000 +0x1040 0x1010\n", "in no fragment"),
        (
            "hot align 1: 0x1000 0x1040 +0x1040 0x1010\n",
            "cannot fall from block 0x1040 into a duplicate of 0x1040",
        ),
        ("hot align 1: 0x1010 +0x1030! 0x1030\n", "in no conditional branch"),
        (
            "hot align 1: 0x1000 +0x1040 0x1040\nhot align 1: 0x1060\ncold align 1: 0x1010 +0x1060\n",
            "cannot fall",
        ),
    ] {
        let layout = Layout::from_text(text, &program).unwrap();
        let wrong = layout.validate(&program).unwrap_err().join("; ");
        assert!(wrong.contains(fault), "{text}: {wrong}");
    }
    for text in ["hot align 1: +0x1000", "hot align 1: 0x1000 +0x1040! +0x1010", "hot align 1: 0x1000!"] {
        assert!(Layout::from_text(text, &program).is_err(), "{text}");
    }
    let mut unsorted = Layout::from_text(base, &program).unwrap();
    let tail = |behind, block| Tail { behind: BlockId(behind), blocks: vec![BlockId(block)], turned: false };
    unsorted.tails = vec![tail(4, 1), tail(0, 4)];
    assert!(unsorted.validate(&program).unwrap_err().join("; ").contains("not sorted"));
    unsorted.tails = vec![Tail { behind: BlockId(99), blocks: vec![], turned: false }];
    assert!(unsorted.validate(&program).unwrap_err().join("; ").contains("is empty"));
}

#[test]
fn the_baseline_and_counting_order_is_by_address() {
    let program = Program::from_text(LOOP).unwrap();
    let layout = OriginalOrder.layout(&program, &counts(&program));
    assert_eq!(layout.hot.len(), 2);
    assert_eq!(layout, OriginalOrder::of_functions(&program, &[FuncId(1), FuncId(0), FuncId(0)]));
    assert!(layout.blocks().is_sorted());
}

#[test]
fn a_hot_threshold_and_alignment_are_options() {
    let program = Program::from_text(LOOP).unwrap();
    let layout = HotChains { threshold: 1, ..HotChains::default() }.layout(&program, &counts(&program));
    assert_eq!(
        layout.to_text(&program),
        "hot align 16: 0x1010 0x1030 0x1040\ncold align 1: 0x1000 0x1020 0x1050\n"
    );
}

fn fetch(at: u32, target: u32) -> Prefetch {
    Prefetch { at: BlockId(at), target: BlockId(target), offset: 70 }
}

#[test]
fn what_is_fetched_ahead_can_be_written_and_read() {
    let program = Program::from_text(LOOP).unwrap();
    let text =
        "hot align 16: 0x1000 0x1010 0x1020\nprefetch at 0x1010: 0x1000+70\nprefetch at 0x1020: 0x1010+70\n";
    let layout = Layout::from_text(text, &program).unwrap();
    assert_eq!(layout.prefetches, [fetch(1, 0), fetch(2, 1)]);
    assert_eq!((layout.prefetch_at(BlockId(2)), layout.prefetch_at(BlockId(0))), (Some(&fetch(2, 1)), None));
    assert_eq!((layout.to_text(&program), layout.validate(&program)), (text.to_owned(), Ok(())));
    for bad in
        ["0x1010: 0x1000+70", "at 0x1010", "at 0x1010: 0x1000", "at 0x1010: 0x1000+x", "at 0x1011: 0x1000+1"]
    {
        assert_eq!(Layout::from_text(&format!("prefetch {bad}"), &program).unwrap_err().line, 1, "{bad}");
    }
}

#[test]
fn faults_and_unreadable_lines_are_named() {
    let program = Program::from_text(&LOOP.replace("helper movable", "helper odd-unwind-info")).unwrap();
    let bad = Layout {
        hot: vec![
            Fragment { blocks: vec![BlockId(0), BlockId(6)], align: 3 },
            Fragment { blocks: vec![], align: 1 },
        ],
        cold: vec![Fragment { blocks: vec![BlockId(0), BlockId(99)], align: 1 }],
        tails: vec![],
        prefetches: vec![fetch(6, 0), fetch(0, 3)],
    };
    let wrong = bad.validate(&program).unwrap_err().join("; ");
    for fault in [
        "no power of two",
        "0x1060 is not movable",
        "1 is empty",
        "0x1000 occurs twice",
        "no block 99",
        "the prefetches are not sorted",
        "block number 3 fetches ahead, or is fetched, and is in no fragment",
    ] {
        assert!(wrong.contains(fault), "{fault}: {wrong}");
    }
    for text in ["warm align 1: 0x1000", "hot: 0x1000", "hot align x: 0x1000", "hot align 1: 0x1001", "hot"] {
        assert_eq!(Layout::from_text(&format!("\n{text}"), &program).unwrap_err().line, 2, "{text}");
    }
}

/// The best that a score can be of all orders of these blocks.
fn best_score(program: &Program, profile: &Profile, blocks: &[BlockId], of: impl Fn(Score) -> f64) -> f64 {
    best_of_all(blocks, &|order| {
        let fragment = Fragment { blocks: order.to_vec(), align: 1 };
        of(Score::of(program, profile, &Layout { hot: vec![fragment], ..Layout::default() }))
    })
}

#[test]
fn ext_tsp_is_near_the_optimum_and_no_worse_than_greedy_chains() {
    let options = HotChains { align: 1, ..HotChains::default() };
    let (mut reached, mut possible) = (0.0, 0.0);
    for seed in 0..150 {
        let (program, profile) = movable(seed, 1, 6);
        let layout = ExtTsp { options }.layout(&program, &profile);
        let hot: Vec<BlockId> = program.block_ids().filter(|&b| profile.block(b) > 0).collect();
        let best = best_score(&program, &profile, &hot, |score| score.ext_tsp);
        let score = Score::of(&program, &profile, &layout).ext_tsp;
        assert!(score <= best * (1.0 + 1e-9) && score >= best * 0.7, "seed {seed}: {score} of {best}");
        reached += score;
        possible += best;
    }
    assert!(reached > 0.98 * possible, "{reached} of {possible}");
    let (mut ext, mut greedy) = (0.0, 0.0);
    for seed in 0..40 {
        let (program, profile) = movable(seed, 4, 60);
        let score = |layout| Score::of(&program, &profile, &layout).ext_tsp;
        ext += score(ExtTsp { options }.layout(&program, &profile));
        greedy += score(options.layout(&program, &profile));
    }
    eprintln!(
        "ext-TSP score: {:.4} of the optimum, {:.4} of greedy chains",
        reached / possible,
        ext / greedy
    );
    assert!(ext > 0.98 * greedy, "{ext} against {greedy}");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn layouts_are_permutations_and_deterministic(seed: u64) {
        let program = RandomProgram::new(seed).program;
        let profile = walk(&program, seed, 50, 0.02);
        let nothing_known = TemporalAffinity::default().layout(&program, &profile);
        prop_assert_eq!(nothing_known, ExtTspAcross::default().layout(&program, &profile));
        let profile = with_affinity(&program, profile, seed);
        for algorithm in algorithms() {
            let layout = algorithm.layout(&program, &profile);
            prop_assert_eq!(layout.validate(&program), Ok(()));
            let mut placed: Vec<BlockId> = layout.blocks().collect();
            placed.sort_unstable();
            let hot_function = |f: FuncId| {
                program.blocks_of(f).any(|b| program.is_movable(b) && profile.block(b) > 0)
            };
            let expected: Vec<BlockId> = program.block_ids()
                .filter(|&b| program.is_movable(b) && hot_function(program.block(b).function)).collect();
            prop_assert_eq!(&placed, &expected, "{}", algorithm.name());
            let text = layout.to_text(&program);
            prop_assert_eq!(&algorithm.layout(&program.clone(), &profile.clone()).to_text(&program), &text);
            prop_assert_eq!(Layout::from_text(&text, &program).unwrap(), layout);
        }
    }

    #[test]
    fn duplicates_are_valid_bounded_and_deterministic(seed: u64, growth in 0.0f64..0.5, price in 0.0f64..1.0) {
        let program = RandomProgram::new(seed).program;
        let profile = walk(&program, seed, 50, 0.02);
        let profile = with_paths(&program, profile, seed);
        let limits = DuplicateLimits { growth, price, ..DuplicateLimits::default() };
        for algorithm in [&ExtTspAcross::default() as &dyn LayoutAlgorithm, &OriginalOrder] {
            let plain = algorithm.layout(&program, &profile);
            let mut layout = plain.clone();
            let done = duplicate_tails(&program, &profile, &mut layout, &limits);
            prop_assert_eq!(layout.validate(&program), Ok(()));
            prop_assert_eq!((&layout.hot, &layout.cold), (&plain.hot, &plain.cold));
            let hot = plain.hot.iter().flat_map(|f| &f.blocks).map(|b| f64::from(program.block(*b).len)).sum::<f64>();
            // A jump that goes, and jumps that come: up to five bytes a duplicate less than what it is long.
            prop_assert!(done.bytes as f64 <= growth * hot + 6.0 * (layout.tails.len() + done.blocks as usize) as f64);
            prop_assert_eq!(done.blocks as usize, layout.duplicates());
            let mut again = layout.clone();
            prop_assert_eq!(duplicate_tails(&program, &profile, &mut again, &limits), done);
            prop_assert_eq!(&again, &layout);
            prop_assert_eq!(Layout::from_text(&layout.to_text(&program), &program).unwrap(), layout);
        }
    }

    #[test]
    fn chains_fall_through_at_least_as_often_as_the_original(seed: u64) {
        let (program, profile) = movable(seed, 6, 12);
        let layout = HotChains::default().layout(&program, &profile);
        let (before, after) = (Score::of_original(&program, &profile), Score::of(&program, &profile, &layout));
        prop_assert!(after.fall_through >= before.fall_through, "{after:?} {before:?}");
        prop_assert_eq!(after.taken + after.fall_through, before.taken + before.fall_through);
        prop_assert_eq!(after.executed_bytes, before.executed_bytes);
    }

    #[test]
    fn chains_reach_half_of_the_optimum(seed: u64) {
        let (program, profile) = movable(seed, 1, 6);
        let layout = HotChains { align: 1, ..HotChains::default() }.layout(&program, &profile);
        let hot: Vec<BlockId> = program.block_ids().filter(|&b| profile.block(b) > 0).collect();
        let best = best_score(&program, &profile, &hot, |score| score.fall_through as f64) as u64;
        let reached = Score::of(&program, &profile, &layout).fall_through;
        prop_assert!(2 * reached >= best && reached <= best, "{reached} of {best}");
    }
}

#[test]
fn a_large_program_is_laid_out() {
    let program = RandomProgram::shaped(7, Shape { functions: 20_000, blocks: 20, unmovable: 0.01 }).program;
    assert!(program.blocks.len() > 190_000);
    let profile = walk(&program, 7, 100_000, 0.0);
    let layout = HotChains::default().layout(&program, &profile);
    assert_eq!(layout.validate(&program), Ok(()));
    let (before, after) = (Score::of_original(&program, &profile), Score::of(&program, &profile, &layout));
    assert!(after.taken < before.taken && after.lines.all < before.lines.all, "{before:?} {after:?}");
}

#[test]
fn names_choose_algorithms_and_unknown_ones_are_refused_with_the_list() {
    let names = restitch_layout::names();
    let mut distinct = names.clone();
    distinct.sort_unstable();
    distinct.dedup();
    assert_eq!(distinct.len(), names.len());
    let (program, profile) = movable(3, 4, 12);
    let pages = include_str!("../../../docs/layout.md");
    for (name, algorithm) in names.iter().zip(restitch_layout::algorithms()) {
        assert!(pages.contains(&format!("\n### `{name}`: ")), "docs/layout.md has no page of {name}");
        assert!((20..100).contains(&algorithm.meaning().len()), "{name}: {}", algorithm.meaning());
        let choice: LayoutChoice = name.parse().unwrap();
        assert_eq!(choice.name(), *name);
        assert_eq!(choice.layout(&program, &profile), algorithm.layout(&program, &profile), "{name}");
    }
    assert_eq!(LayoutChoice::default().name(), restitch_layout::DEFAULT_LAYOUT);
    let error = "nonsense".parse::<LayoutChoice>().unwrap_err().to_string();
    assert!(error.contains("nonsense") && error.contains("codestitcher+po"), "{error}");
}

/// Section 2.2.1 of the Codestitcher paper: M calls A 100 times; A0 goes to A1 80 times and to A2 20 times;
/// A1 calls B, A2 calls C.
const PAPER: &str = "\
function 0x1000..0x1010 M movable
  0x1000 +16 entry return/1
    call 0x1002 +5 -> 0x2000
function 0x2000..0x2030 A movable
  0x2000 +16 entry cond(4)/2 -> 0x2020
  0x2010 +16 - return/1
    call 0x2012 +5 -> 0x3000
  0x2020 +16 target return/1
    call 0x2022 +5 -> 0x4000
function 0x3000..0x3010 B movable
  0x3000 +16 entry return/1
function 0x4000..0x4010 C movable
  0x4000 +16 entry return/1
";

#[test]
fn the_papers_example_gets_the_papers_layout() {
    let program = Program::from_text(PAPER).unwrap();
    let text = "\
block 0x1000 = 100
block 0x2000 = 100
block 0x2010 = 80
block 0x2020 = 20
block 0x3000 = 80
block 0x4000 = 20
edge 0x2000 fall 0x2010 = 80
edge 0x2000 taken 0x2020 = 20
call 0x1002 = 100
call 0x2012 = 80
call 0x2022 = 20
";
    let profile = Profile::from_text(text, &program).unwrap();
    let stitcher = Codestitcher { align: 1, distances: "32:64".parse().unwrap(), ..Codestitcher::default() };
    let order: Vec<u64> =
        stitcher.layout(&program, &profile).blocks().map(|b| program.block(b).start.get()).collect();
    let at = |start: u64| order.iter().position(|&s| s == start).unwrap();
    // Layout 2: M A0 A1 B stand together, and A2 with C, not between A1 and B as in Layout 1.
    assert_eq!(at(0x2000), at(0x1000) + 1, "{order:x?}");
    assert_eq!(at(0x2010), at(0x2000) + 1, "{order:x?}");
    assert_eq!(at(0x3000), at(0x2010) + 1, "{order:x?}");
    assert_eq!(at(0x4000).abs_diff(at(0x2020)), 1, "{order:x?}");
}

#[test]
fn rarely_executed_blocks_stand_behind_the_hot_ones() {
    let program = Program::from_text(LOOP).unwrap();
    let profile = counts(&program);
    let layout = Stitch { hot_share: 0.9, align: 1, ..Stitch::default() }.layout(&program, &profile);
    let hot = layout.hot.iter().flat_map(|f| &f.blocks).map(|&b| profile.block(b)).collect::<Vec<_>>();
    assert_eq!(&hot[..3], &[100, 100, 101]);
    assert_eq!(hot.len(), 6);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn distances_are_free_and_any_list_gives_a_valid_layout(
        seed: u64,
        levels in prop::collection::vec(1u64..1 << 22, 0..5),
        partial_order: bool,
    ) {
        let (program, profile) = movable(seed, 8, 20);
        let distances = Distances::of_levels(&levels);
        let stitcher = Codestitcher { distances, partial_order, ..Codestitcher::default() };
        let layout = stitcher.layout(&program, &profile);
        prop_assert_eq!(layout.validate(&program), Ok(()));
        prop_assert_eq!(&stitcher.layout(&program, &profile), &layout);
        let score = Score::of(&program, &profile, &layout);
        prop_assert!(score.fall_through >= Score::of_original(&program, &profile).fall_through / 2);
        let stitch = Stitch { distances, ..Stitch::default() }.layout(&program, &profile);
        prop_assert_eq!(stitch.validate(&program), Ok(()));
    }
}
