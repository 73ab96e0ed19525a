//! The models on programs whose numbers can be worked out by hand, and properties on random ones.

use proptest::prelude::*;
use restitch_address::Svma;
use restitch_lab::{
    Counts, Geometry, How, Machine, Occupancy, Placement, PrefetchLimits, RecordedBranch, Step, Trace,
    choose_prefetches, compare, comparison_svg, occupancy_svg, simulate,
};
use restitch_layout::{Fragment, HotChains, Layout, LayoutAlgorithm, LayoutChoice, Prefetch};
use restitch_profile::Profile;
use restitch_profile::testing::{RandomProgram, Shape, walk};
use restitch_program::{BlockId, Program, Terminator};

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
";

fn looping() -> (Program, Profile) {
    let program = Program::from_text(LOOP).unwrap();
    let counts = "\
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
    let profile = Profile::from_text(counts, &program).unwrap();
    (program, profile)
}

#[test]
fn a_walk_follows_branches_calls_and_returns() {
    let (program, profile) = looping();
    let trace = Trace::walk(&program, &profile, 1000, 3);
    assert_eq!(trace.steps.len(), 1000);
    let name = |s: &Step| program.block(s.block).start.get();
    for pair in trace.steps.windows(2) {
        let expected: &[u64] = match (name(&pair[0]), pair[0].to) {
            (0x1000, _) | (0x1030, _) => &[0x1040],
            (0x1010, _) => &[0x1030],
            (0x1040, _) => &[0x1010, 0x1050],
            (0x1050, Step::END) => &[0x1000],
            (0x1050, _) => &[0x1060],
            (0x1060, _) => &[0x1050],
            other => panic!("{other:?}"),
        };
        assert!(expected.contains(&name(&pair[1])), "{pair:?}");
    }
    let (call, back) = (trace.steps.iter().find(|s| s.to == 7), trace.steps.iter().find(|s| s.from == 7));
    assert!(call.is_some() && back.is_some_and(|s| name(s) == 0x1050 && s.to == Step::END));
}

/// The branches of a trace, oldest first, as a processor would record them, and the runs between them that
/// end in a branch.
fn as_records(program: &Program, steps: &[Step]) -> (Vec<RecordedBranch>, Vec<Vec<Step>>) {
    let (mut records, mut runs) = (Vec::new(), vec![Vec::new()]);
    for pair in steps.windows(2) {
        let block = program.block(pair[0].block);
        let to = program.block(pair[1].block).start + u64::from(pair[1].from);
        let (end, from) = match pair[0].to {
            Step::END => (block.end(), (block.terminator_len > 0).then(|| block.terminator_at())),
            inside => {
                let end = block.start + u64::from(inside);
                let call = program.calls_of(pair[0].block).iter().find(|c| c.at + u64::from(c.len) == end);
                (end, call.map(|c| c.at))
            }
        };
        runs.last_mut().unwrap().push(pair[0]);
        // A jump to the next instruction is a taken branch all the same.
        let jumps = pair[0].to == Step::END && matches!(block.terminator, Terminator::Jump(_));
        if pair[0].how == How::Taken || to != end || jumps {
            if from.is_none() {
                runs.pop();
            }
            records.push((from, Some(to)));
            runs.push(Vec::new());
        }
    }
    (records, runs)
}

#[test]
fn records_of_another_program_make_no_trace() {
    let (program, _) = looping();
    let at = |a| Some(Svma::new(a));
    // Into unknown code, backwards, and over a jump that always goes elsewhere.
    let stack = [
        (at(0x10), at(0x20)),
        (at(0x30), at(0x1050)),
        (at(0x1042), at(0x1000)),
        (at(0x101e), at(0x1040)),
        (at(0x104e), None),
    ];
    let trace = Trace::of_records(&program, [&stack[..]], 100);
    let blocks: Vec<u64> = trace.steps.iter().map(|s| program.block(s.block).start.get()).collect();
    assert_eq!(blocks, [0x1040]);
    assert_eq!(Trace::of_records(&program, [&stack[..], &stack[..]], 1).steps.len(), 1);
}

#[test]
fn a_straightened_loop_takes_half_of_the_branches_and_saves_its_jumps() {
    let (program, profile) = looping();
    let machine: Machine = "zen4".parse().unwrap();
    let trace = Trace::walk(&program, &profile, 100_000, 1);
    let before = simulate(&program, &trace, &Placement::original(&program), &machine);
    let layout = HotChains { align: 1, ..HotChains::default() }.layout(&program, &profile);
    let after = simulate(&program, &trace, &Placement::of(&program, &layout), &machine);
    assert_eq!(before.bytes, after.bytes);
    assert!((after.taken as f64) < 0.55 * before.taken as f64, "{before:?} {after:?}");
    assert_eq!((before.l1i, before.itlb, after.itlb), (2, 1, 1));
}

/// Functions of one block of 50 bytes, each in a line of its own, and one execution of them in turn, again
/// and again; a machine whose L2 is smaller than they are.
fn in_turn(functions: u64) -> (Program, Layout, Trace, Machine) {
    let text: String = (0..functions)
        .map(|i| {
            let at = 0x1000 + 64 * i;
            format!("function {at:#x}..{:#x} f{i} movable\n  {at:#x} +50 entry return/1\n", at + 50)
        })
        .collect();
    let program = Program::from_text(&text).unwrap();
    let fragment = |block| Fragment { blocks: vec![block], align: 64 };
    let layout = Layout { hot: program.block_ids().map(fragment).collect(), ..Layout::default() };
    let step = |block| Step { block, from: 0, to: Step::END, how: How::Taken };
    let steps = (0..50).flat_map(|_| program.block_ids().map(step)).collect();
    let zen4: Machine = "zen4".parse().unwrap();
    let machine = Machine { l1i: Geometry { sets: 1, ways: 2 }, l2: Geometry { sets: 1, ways: 32 }, ..zen4 };
    (program, layout, Trace { steps }, machine)
}

#[test]
fn lines_that_are_always_missed_are_fetched_in_time() {
    let (program, mut layout, trace, machine) = in_turn(40);
    let run = |layout: &Layout| simulate(&program, &trace, &Placement::of(&program, layout), &machine);
    let before = run(&layout);
    assert_eq!(
        (before.l2, before.prefetches),
        (40 * 50, 0),
        "least recently used: each is gone when its turn comes"
    );
    // Half of the L2 holds 16 functions: what is fetched more than 800 bytes ahead is gone before its turn.
    // All distances save as much.
    let limits = PrefetchLimits { growth: 1.0, sites: 1, ..PrefetchLimits::default() };
    layout.prefetches = choose_prefetches(&program, &trace, &layout, &machine, &limits);
    assert_eq!(layout.validate(&program), Ok(()));
    assert_eq!(
        layout,
        Layout {
            prefetches: choose_prefetches(&program, &trace, &layout, &machine, &limits),
            ..layout.clone()
        }
    );
    let after = run(&layout);
    assert!(after.l2 * 20 < before.l2, "{after:?}");
    assert_eq!((after.bytes, after.prefetches), (before.bytes, 50 * layout.prefetches.len() as u64));
    // The nearest site that is early enough.
    for Prefetch { at, target, .. } in &layout.prefetches {
        let distance = (40 + target.0 - at.0) % 40 * 50;
        assert!((200..=250).contains(&distance), "{distance}");
    }
}

#[test]
fn what_is_fetched_late_for_nothing_or_for_too_much_is_no_gain() {
    let (program, mut layout, trace, machine) = in_turn(40);
    let run = |layout: &Layout| simulate(&program, &trace, &Placement::of(&program, layout), &machine);
    let before = run(&layout);
    // The next one: it is missed before it is there.
    let next = |at: u32, by: u32| Prefetch { at: BlockId(at), target: BlockId((at + by) % 40), offset: 0 };
    layout.prefetches = (0..40).map(|at| next(at, 1)).collect();
    assert_eq!(run(&layout).l2, before.l2);
    layout.prefetches = (0..40).map(|at| next(at, 8)).collect();
    assert!(run(&layout).l2 * 20 < before.l2);
    layout.prefetches.clear();
    for limits in [
        PrefetchLimits { growth: 0.0, ..PrefetchLimits::default() },
        PrefetchLimits { accuracy: 1.5, ..PrefetchLimits::default() },
        PrefetchLimits { misses: 51, ..PrefetchLimits::default() },
        PrefetchLimits { cost: 41.0, ..PrefetchLimits::default() },
    ] {
        assert_eq!(choose_prefetches(&program, &trace, &layout, &machine, &limits), [], "{limits:?}");
    }
}

#[test]
fn a_comparison_can_be_read_drawn_and_repeated() {
    let (program, profile) = looping();
    let layout =
        |name: &'static str| (name, name.parse::<LayoutChoice>().unwrap().layout(&program, &profile));
    let layouts = [layout("c3"), layout("ext-tsp")];
    let trace = Trace::walk(&program, &profile, 10_000, 7);
    let run = || compare(&program, &profile, "haswell".parse().unwrap(), &layouts, &trace, Some(7));
    let comparison = run();
    assert_eq!(comparison, run());
    let names: Vec<&str> = comparison.entries.iter().map(|e| e.name.as_str()).collect();
    assert_eq!(names, ["as it is", "c3", "ext-tsp"]);
    let text = comparison.to_text();
    assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
    for column in ["cost", "L1i", "used", "L2", "iTLB", "sTLB", "BTB", "taken", "falls", "pages", "conflicts"]
    {
        let is_head = |line: &&str| line.starts_with("layout") && line.contains(column);
        assert_eq!(text.lines().filter(is_head).count(), 1, "{text}");
    }
    let json: serde_json::Value = serde_json::from_str(&comparison.to_json().unwrap()).unwrap();
    assert_eq!(json["entries"][1]["name"], "c3");
    for svg in [comparison_svg(&comparison).unwrap(), occupancy_svg(&comparison).unwrap()] {
        assert!(svg.starts_with("<svg") && svg.trim_end().ends_with("</svg>") && svg.contains("ext-tsp"));
    }
}

#[test]
fn hot_code_in_large_pages_misses_the_tlb_once_for_each() {
    let (program, profile) = looping();
    let trace = Trace::walk(&program, &profile, 10_000, 1);
    let layout = HotChains { align: 4096, ..HotChains::default() }.layout(&program, &profile);
    let placement = Placement::of(&program, &layout);
    assert!(placement.hot.start < placement.hot.end);
    for name in ["haswell", "zen4"] {
        let machine: Machine = name.parse().unwrap();
        let small = simulate(&program, &trace, &placement, &machine);
        let large = simulate(&program, &trace, &placement, &machine.clone().with_large_pages());
        assert!(large.itlb <= small.itlb && large.itlb >= 1, "{small:?} {large:?}");
        assert_eq!(Counts { itlb: 0, stlb: 0, ..small }, Counts { itlb: 0, stlb: 0, ..large });
        // What stays in the original code has the pages that it had.
        let original = Placement::original(&program);
        let before = simulate(&program, &trace, &original, &machine);
        assert_eq!(before, simulate(&program, &trace, &original, &machine.with_large_pages()));
    }
}

#[test]
fn occupancy_counts_lines_by_set() {
    let (program, profile) = looping();
    let machine: Machine = "zen4".parse().unwrap();
    let all = Occupancy::of(&program, &profile, &Placement::original(&program), &machine, 1.0);
    assert_eq!((all.total(), all.excess(), all.lines[0], all.lines[1]), (2, 0, 1, 1));
    let hottest = Occupancy::of(&program, &profile, &Placement::original(&program), &machine, 0.5);
    assert_eq!((hottest.total(), hottest.lines[0]), (1, 1));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn placements_do_not_overlap(seed: u64) {
        let program = RandomProgram::shaped(seed, Shape { functions: 5, blocks: 12, unmovable: 0.1 }).program;
        let profile = walk(&program, seed, 50, 0.02);
        for layout in restitch_layout::algorithms() {
            let placement = Placement::of(&program, &layout.layout(&program, &profile));
            let mut ranges: Vec<(u64, u64)> =
                program.block_ids().map(|b| (placement.starts[b.index()], placement.end(b))).collect();
            ranges.sort_unstable();
            prop_assert!(ranges.windows(2).all(|w| w[0].1 <= w[1].0), "{}", layout.name());
        }
    }

    #[test]
    fn the_records_of_a_walk_are_the_walk(seed: u64) {
        let program = RandomProgram::shaped(seed, Shape { functions: 5, blocks: 12, unmovable: 0.1 }).program;
        let profile = walk(&program, seed, 50, 0.02);
        let steps = Trace::walk(&program, &profile, 3000, seed).steps;
        let (records, runs) = as_records(&program, &steps);
        let again = Trace::of_records(&program, [&records[..]], usize::MAX);
        // What ran before the first branch and behind the last one is in no record.
        let between: Vec<Step> = runs.get(1..runs.len() - 1).unwrap_or_default().concat();
        let differs = between.iter().zip(&again.steps).position(|(a, b)| (a.block, a.from, a.to) != (b.block, b.from, b.to));
        prop_assert_eq!((again.steps.len(), differs), (between.len(), None));
        // A walk without a counted way on leaves by a jump as by a return; everything else is of the same
        // kind.
        let direct = |s: &Step| matches!(program.block(s.block).terminator, Terminator::Jump(_) | Terminator::Conditional(..) | Terminator::ShortConditional(_));
        let differs = between.iter().zip(&again.steps).find(|(a, b)| a.how != b.how && !direct(a));
        prop_assert_eq!(differs, None);
    }

    #[test]
    fn walks_only_use_what_ran_and_all_layouts_run_the_same_bytes(seed: u64) {
        let program = RandomProgram::shaped(seed, Shape { functions: 5, blocks: 12, unmovable: 0.1 }).program;
        let profile = walk(&program, seed, 50, 0.02);
        let trace = Trace::walk(&program, &profile, 3000, seed);
        prop_assert!(trace.steps.iter().all(|s| profile.block(s.block) > 0));
        let machine: Machine = "neoverse-n1".parse().unwrap();
        let before = simulate(&program, &trace, &Placement::original(&program), &machine);
        let layout = HotChains::default().layout(&program, &profile);
        prop_assert_eq!(before.bytes, simulate(&program, &trace, &Placement::of(&program, &layout), &machine).bytes);
    }
}
