//! Functions that are better off where they are.
//!
//! **Problem.** A function that is called through pointers (methods in tables, callbacks) is entered at its
//! old address for ever, and from there through a redirect: one more taken branch each time, in a line and a
//! page with five useful bytes. In python3 that was 7 % of all taken branches. A short function that hardly
//! branches gains less by a new order than it loses by this. The same goes for the labels of computed gotos,
//! whose addresses are in the program's memory: half of all redirects that PostgreSQL ran through with mixed
//! SQL were those of one function, `ExecInterpExpr`.
//!
//! **Idea.** Compare both. A function that stays has no copy and no redirect; calls from copies go to it
//! directly, and in output files its own direct calls and jumps lead straight to copies (`restitch_emit`,
//! retargets). What it costs to stay is known from the profile: its taken branches in the original order
//! against those in the new one, and the lines that its executed code is spread over against those that it
//! would fill.
//!
//! Which blocks a version holds is free to choose (state equivalence), so this needs no proof.

use restitch_profile::Profile;
use restitch_program::{BlockAttrs, BlockId, CallTarget, EdgeKind, FuncId, Program, Terminator};

use crate::graph::NONE;
use crate::model::Layout;
use crate::score::LINE;

/// How code that stays reaches copies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reaching {
    /// Its direct calls and jumps lead there, and so do addresses of labels: output files.
    Straight,
    /// Its direct calls and jumps lead there: overlays.
    ByBranches,
    /// Only through the redirects at old entries: processes.
    Redirected,
}

/// What one more line costs each time that a function is called, in taken branches: a part of them miss.
const LINE_COST: f64 = 0.25;
/// A function stays if that saves more than this for each time that it is called, in taken branches.
const LEAST: f64 = 0.1;
/// Blocks that run less than once in this many calls do not count for lines.
const SELDOM: u64 = 16;

/// Takes the functions out of `layout` that are better off where they are; in address order. `retargeted`:
/// sorted functions of which pointers lead to the copy, so that nothing comes to it by a redirect.
pub fn leave_in_place(
    program: &Program,
    profile: &Profile,
    reaching: Reaching,
    retargeted: &[FuncId],
    layout: &mut Layout,
) -> Vec<FuncId> {
    let place = Placement::of(program, layout);
    let mut costs = Costs::of(program, profile, &place, reaching);
    retargeted.iter().for_each(|f| costs.redirected[f.index()] = 0.0);
    let placed = |f: &FuncId| program.entry_block(*f).is_some_and(|entry| place.is_placed(entry));
    let left: Vec<FuncId> =
        program.function_ids().filter(placed).filter(|f| costs.saved(program, profile, *f) > LEAST).collect();
    let mut stays = vec![false; program.functions.len()];
    left.iter().for_each(|f| stays[f.index()] = true);
    for fragments in [&mut layout.hot, &mut layout.cold] {
        for fragment in fragments.iter_mut() {
            fragment.blocks.retain(|b| !stays[program.block(*b).function.index()]);
        }
        fragments.retain(|fragment| !fragment.blocks.is_empty());
    }
    left
}

/// For each function how often it was entered by other ways than the direct calls and jumps of its module:
/// through pointers and from other modules.
pub fn called_through_pointers(program: &Program, profile: &Profile) -> Vec<f64> {
    let nothing_moves = Placement::of(program, &Layout::default());
    Costs::of(program, profile, &nothing_moves, Reaching::Straight).redirected
}

/// Which blocks a layout holds, and which one stands behind each.
struct Placement {
    placed: Vec<bool>,
    next: Vec<u32>,
}

impl Placement {
    fn of(program: &Program, layout: &Layout) -> Self {
        let mut out =
            Self { placed: vec![false; program.blocks.len()], next: vec![NONE; program.blocks.len()] };
        for fragment in layout.hot.iter().chain(&layout.cold) {
            fragment.blocks.iter().for_each(|b| out.placed[b.index()] = true);
            fragment.blocks.windows(2).for_each(|pair| out.next[pair[0].index()] = pair[1].0);
        }
        out
    }

    fn is_placed(&self, block: BlockId) -> bool {
        self.placed[block.index()]
    }
}

/// By function.
struct Costs {
    /// Executions of the entry that come through its redirect.
    redirected: Vec<f64>,
    /// By block: executions of a label that come through its redirect, from indirect jumps whose targets are
    /// in no table of the code.
    labels: Vec<u64>,
    /// Taken branches that staying adds to those of the layout; less than 0 if it saves some.
    added: Vec<f64>,
}

impl Costs {
    fn of(program: &Program, profile: &Profile, place: &Placement, reaching: Reaching) -> Self {
        let entries = program.function_ids().map(|f| profile.entries(program, f) as f64);
        let labels = if reaching == Reaching::Straight {
            vec![0; program.blocks.len()]
        } else {
            gotos(program, profile, place)
        };
        let mut out =
            Self { redirected: entries.collect(), labels, added: vec![0.0; program.functions.len()] };
        out.branches(program, profile, place, reaching);
        out.calls(program, profile, place, reaching);
        out
    }

    fn branches(&mut self, program: &Program, profile: &Profile, place: &Placement, reaching: Reaching) {
        for (edge, &count) in program.edges.iter().zip(&profile.edges) {
            let (source, target) = (program.block(edge.from), program.block(edge.to));
            let (from, to, count) = (source.function, target.function, count as f64);
            let straight = place.next[edge.from.index()] == edge.to.0 && edge.kind != EdgeKind::Table;
            let taken = edge.kind != EdgeKind::FallThrough;
            if place.is_placed(edge.from) {
                self.added[from.index()] += count * (f64::from(taken) - f64::from(!straight));
            }
            if from == to && program.entry_block(to) != Some(edge.to) {
                continue;
            }
            if program.entry_block(to) == Some(edge.to) {
                if place.is_placed(edge.from) || reaching != Reaching::Redirected {
                    self.redirected[to.index()] -= count;
                }
                // What runs on into the function's copy has to jump if that is gone.
                self.added[to.index()] += if from != to && straight { count } else { 0.0 };
            }
            let short_way =
                reaching != Reaching::Redirected && matches!(source.terminator, Terminator::Jump(_));
            if from != to && place.is_placed(edge.to) && !short_way {
                self.added[from.index()] += count;
            }
        }
    }

    fn calls(&mut self, program: &Program, profile: &Profile, place: &Placement, reaching: Reaching) {
        for (call, &count) in program.calls.iter().zip(&profile.calls) {
            let CallTarget::Direct(target) = call.target else { continue };
            let Some(entry) = program.block_starting_at(target) else { continue };
            let (caller, callee) = (program.block(call.block).function, program.block(entry).function);
            if place.is_placed(call.block) || reaching != Reaching::Redirected {
                self.redirected[callee.index()] -= count as f64;
            }
            if reaching == Reaching::Redirected && caller != callee && place.is_placed(entry) {
                self.added[caller.index()] += count as f64;
            }
        }
    }

    /// What staying saves for each call of the function, in taken branches.
    fn saved(&self, program: &Program, profile: &Profile, f: FuncId) -> f64 {
        let calls = profile.entries(program, f);
        let labels: u64 = program.blocks_of(f).map(|b| self.labels[b.index()]).sum();
        let redirected = self.redirected[f.index()].max(0.0) + labels as f64;
        if calls == 0 || redirected <= 0.0 {
            return 0.0;
        }
        let taken = (redirected - self.added[f.index()]) / calls as f64;
        taken - LINE_COST * self.more_lines(program, profile, f, calls)
    }

    /// How many lines more the function's code is spread over where it is than if it stood close, with the
    /// lines of its redirects.
    fn more_lines(&self, program: &Program, profile: &Profile, f: FuncId, calls: u64) -> f64 {
        let often = |count: u64| count.saturating_mul(SELDOM) >= calls;
        let (mut lines, mut redirects, mut bytes) = (Vec::new(), Vec::new(), 0);
        for b in program.blocks_of(f).filter(|b| often(profile.block(*b))) {
            let block = program.block(b);
            bytes += u64::from(block.len);
            lines.extend(block.start.get() / LINE..block.end().get().div_ceil(LINE));
            if Some(b) == program.entry_block(f)
                || self.labels[b.index()] > 0 && often(self.labels[b.index()])
            {
                redirects.push(block.start.get() / LINE);
            }
        }
        for all in [&mut lines, &mut redirects] {
            all.sort_unstable();
            all.dedup();
        }
        (lines.len() as f64 - bytes as f64 / LINE as f64 - redirects.len() as f64).max(0.0)
    }
}

/// By block: how often a label that `place` holds is reached by no edge that is known: from computed gotos.
fn gotos(program: &Program, profile: &Profile, place: &Placement) -> Vec<u64> {
    let mut known = vec![0u64; program.blocks.len()];
    for (edge, &count) in program.edges.iter().zip(&profile.edges) {
        known[edge.to.index()] = known[edge.to.index()].saturating_add(count);
    }
    let executions = |b: BlockId| {
        let attrs = program.block(b).attrs;
        let is_label = attrs.contains(BlockAttrs::INDIRECT) && !attrs.contains(BlockAttrs::ENTRY);
        if is_label && place.is_placed(b) { profile.block(b).saturating_sub(known[b.index()]) } else { 0 }
    };
    program.block_ids().map(executions).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::across::ExtTspAcross;
    use crate::model::LayoutAlgorithm;
    use restitch_profile::testing::{RandomProgram, Shape, walk};

    /// `plain` and `caller` are straight, `twisted` has its usual way behind a branch; all three are called
    /// through pointers. `direct` is called by `caller` only.
    const PROGRAM: &str = "\
function 0x1000..0x1010 plain movable
  0x1000 +16 entry return/1
function 0x1040..0x1050 caller movable
  0x1040 +16 entry return/1
    call 0x1044 +5 -> 0x1080
function 0x1080..0x1090 direct movable
  0x1080 +16 entry return/1
function 0x10c0..0x1100 twisted movable
  0x10c0 +16 entry cond(5)/2 -> 0x10e0
  0x10d0 +16 - return/1
  0x10e0 +12 target cond(5)/2 -> 0x10f0
  0x10ec +4 - stop/2
  0x10f0 +16 target return/1
";
    const COUNTS: &str = "\
block 0x1000 = 100
block 0x1040 = 100
call 0x1044 = 100
block 0x1080 = 100
block 0x10c0 = 100
block 0x10e0 = 100
block 0x10f0 = 100
edge 0x10c0 taken 0x10e0 = 100
edge 0x10e0 taken 0x10f0 = 100
";

    fn left(reaching: Reaching) -> (Vec<u64>, Layout) {
        let program = Program::from_text(PROGRAM).expect("a program");
        let profile = Profile::from_text(COUNTS, &program).expect("a profile");
        let mut layout = ExtTspAcross::default().layout(&program, &profile);
        let left = leave_in_place(&program, &profile, reaching, &[], &mut layout);
        layout.validate(&program).expect("a layout");
        (left.iter().map(|f| program.function(*f).range.start.get()).collect(), layout)
    }

    #[test]
    fn straight_functions_that_pointers_call_stay() {
        let (left, layout) = left(Reaching::Straight);
        assert_eq!(left, [0x1000, 0x1040]);
        assert_eq!(layout.blocks().count(), 5 + 1, "all of `direct` and `twisted`: {layout:?}");
    }

    #[test]
    fn in_a_process_calls_of_copies_go_through_a_redirect() {
        assert_eq!(left(Reaching::Redirected).0, [0x1000]);
    }

    #[test]
    fn functions_that_pointers_lead_to_do_not_stay() {
        let program = Program::from_text(PROGRAM).expect("a program");
        let profile = Profile::from_text(COUNTS, &program).expect("a profile");
        assert_eq!(called_through_pointers(&program, &profile), [100.0, 100.0, 0.0, 100.0]);
        let mut layout = ExtTspAcross::default().layout(&program, &profile);
        let left = leave_in_place(&program, &profile, Reaching::Straight, &[FuncId(0)], &mut layout);
        assert_eq!(left, [FuncId(1)], "`caller` only");
    }

    /// What is not known to be code has no blocks: `data` at the end, `island` in front of `direct`, whose
    /// counts are not its own.
    #[test]
    fn functions_without_blocks_are_entered_by_nobody() {
        let text =
            PROGRAM.replace("function 0x1080", "function 0x1050..0x1080 island undecodable\nfunction 0x1080");
        let text = text + "function 0x1200..0x1280 data undecodable\n";
        let program = Program::from_text(&text).expect("a program");
        let profile = Profile::from_text(COUNTS, &program).expect("a profile");
        assert_eq!(called_through_pointers(&program, &profile), [100.0, 100.0, 0.0, 0.0, 100.0, 0.0]);
        for algorithm in crate::registry::algorithms() {
            let mut layout = algorithm.layout(&program, &profile);
            for reaching in [Reaching::Straight, Reaching::ByBranches, Reaching::Redirected] {
                leave_in_place(&program, &profile, reaching, &[], &mut layout);
            }
            layout.validate(&program).expect("a layout");
        }
    }

    /// `run` goes from label to label by addresses in memory, which a table knows in `table`. Both have their
    /// usual way behind a branch.
    const GOTOS: &str = "\
function 0x1000..0x1080 run movable
  0x1000 +16 entry indirect/2
  0x1010 +16 indirect indirect/2
  0x1020 +16 indirect cond(5)/2 -> 0x1040
  0x1030 +16 - return/1
  0x1040 +16 target cond(5)/2 -> 0x1060
  0x1050 +16 - return/1
  0x1060 +16 target return/1
function 0x1080..0x1100 table movable
  0x1080 +16 entry table(0)/2
  0x1090 +16 indirect table(1)/2
  0x10a0 +16 indirect cond(5)/2 -> 0x10c0
  0x10b0 +16 - return/1
  0x10c0 +16 target cond(5)/2 -> 0x10e0
  0x10d0 +16 - return/1
  0x10e0 +16 target return/1
table 0x108e load 0x108e at 0x3000 base 0x0 absolute8 copyable: 0x1090 0x10a0
table 0x109e load 0x109e at 0x3000 base 0x0 absolute8 copyable: 0x1090 0x10a0
";
    const GOTO_COUNTS: &str = "\
block 0x1000 = 100
block 0x1010 = 1000
block 0x1020 = 100
block 0x1040 = 100
block 0x1060 = 100
edge 0x1020 taken 0x1040 = 100
edge 0x1040 taken 0x1060 = 100
block 0x1080 = 100
block 0x1090 = 1000
block 0x10a0 = 100
block 0x10c0 = 100
block 0x10e0 = 100
edge 0x1080 table 0x1090 = 100
edge 0x1090 table 0x1090 = 900
edge 0x1090 table 0x10a0 = 100
edge 0x10a0 taken 0x10c0 = 100
edge 0x10c0 taken 0x10e0 = 100
";

    #[test]
    fn what_is_reached_by_addresses_of_its_labels_stays_unless_these_change() {
        let program = Program::from_text(GOTOS).expect("a program");
        let profile = Profile::from_text(GOTO_COUNTS, &program).expect("a profile");
        let left = |reaching, retargeted: &[FuncId]| {
            let mut layout = ExtTspAcross::default().layout(&program, &profile);
            leave_in_place(&program, &profile, reaching, retargeted, &mut layout)
        };
        for reaching in [Reaching::Redirected, Reaching::ByBranches] {
            assert_eq!(left(reaching, &[]), [FuncId(0)], "{reaching:?}: `run` only");
            assert_eq!(
                left(reaching, &[FuncId(0)]),
                [FuncId(0)],
                "pointers to its entry are retargeted, its labels are not"
            );
        }
        assert_eq!(left(Reaching::Straight, &[]), []);
    }

    proptest::proptest! {
        /// Whole functions are taken out, and nothing else changes.
        #[test]
        fn the_rest_keeps_its_order(seed in 0u64..500, straight in proptest::bool::ANY) {
            let shape = Shape { functions: 8, blocks: 10, unmovable: 0.1 };
            let program = RandomProgram::shaped(seed, shape).program;
            let profile = walk(&program, seed, 60, 0.01);
            let before = ExtTspAcross::default().layout(&program, &profile);
            let mut after = before.clone();
            let reaching = if straight { Reaching::ByBranches } else { Reaching::Redirected };
            let left = leave_in_place(&program, &profile, reaching, &[], &mut after);
            proptest::prop_assert!(after.validate(&program).is_ok());
            let stays = |b: &BlockId| left.contains(&program.block(*b).function);
            let rest: Vec<BlockId> = before.blocks().filter(|b| !stays(b)).collect();
            proptest::prop_assert_eq!(after.blocks().collect::<Vec<_>>(), rest);
            proptest::prop_assert!(left.is_sorted());
        }
    }
}
