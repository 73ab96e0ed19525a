//! `Records`: what a profile file says of one module, before it is matched with the module's code.

use restitch_address::Svma;
use restitch_profile::matching::{count_branch, count_run, is_not_understood, raise_blocks};
use restitch_profile::ways::fall_through_to;
use restitch_profile::{BranchSamples, ModuleSamples, Profile, Turns};
use restitch_program::{BlockId, CallId, CallTarget, EdgeKind, Program};
use std::collections::BTreeMap;

use crate::flow::{entries, fall_through_ranges};

/// How often a branch was taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Taken {
    /// Times taken.
    pub count: u64,
    /// Of these, mispredicted.
    pub mispredicted: u64,
}

/// Counts and samples of one module, by address. `None` is a place outside of the module, or unknown.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Records {
    /// Branches that were taken (jumps, calls, returns): branch instruction, target.
    pub branches: BTreeMap<(Option<Svma>, Option<Svma>), Taken>,
    /// Code that ran from a branch's target up to the next taken branch: target, branch instruction.
    pub ranges: BTreeMap<(Svma, Svma), u64>,
    /// Single steps from one block into the one behind it: last instruction of the one, start of the other.
    pub fall_throughs: BTreeMap<(Svma, Svma), u64>,
    /// Samples by instruction.
    pub ips: BTreeMap<Svma, u64>,
    /// Branches that were taken one after the other, and what ran at the same time; no text format has them.
    pub turns: Turns<Svma>,
}

/// What became of records when they met the program.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Matched {
    /// Branches that became an edge, a call or an entry.
    pub used_branches: u64,
    /// Branches that are none of these: returns, indirect jumps, addresses that are no branch of the program.
    pub other_branches: u64,
    /// Ranges and steps that follow the program's fall-throughs.
    pub used_ranges: u64,
    /// Ranges and steps that do not.
    pub broken_ranges: u64,
    /// Ranges in functions whose code is not understood.
    pub other_ranges: u64,
}

fn add(slot: &mut u64, count: u64) {
    *slot = slot.saturating_add(count);
}

impl Records {
    /// Adds a branch.
    pub fn add_branch(&mut self, from: Option<Svma>, to: Option<Svma>, count: u64, mispredicted: u64) {
        let taken = self.branches.entry((from, to)).or_default();
        add(&mut taken.count, count);
        add(&mut taken.mispredicted, mispredicted);
    }

    /// Adds a stack of branches, **newest first**, as the hardware gives it: the branches, and what ran
    /// between each two. `None` is a place outside of the module; it ends ranges. Everything counts `weight`
    /// times.
    pub fn add_stack(&mut self, stack: &[(Option<Svma>, Option<Svma>)], weight: u64) {
        for &(from, to) in stack.iter().filter(|(from, to)| from.is_some() || to.is_some()) {
            self.add_branch(from, to, weight, 0);
        }
        for pair in stack.windows(2) {
            if let ((Some(end), _), (_, Some(start))) = (pair[0], pair[1])
                && start <= end
            {
                self.add_range(start, end, weight);
            }
        }
        self.turns.add_stack(stack, weight);
    }

    /// Adds a range that ran without a taken branch.
    pub fn add_range(&mut self, from: Svma, to: Svma, count: u64) {
        add(self.ranges.entry((from, to)).or_default(), count);
    }

    /// Adds a step into the next block.
    pub fn add_fall_through(&mut self, from: Svma, to: Svma, count: u64) {
        add(self.fall_throughs.entry((from, to)).or_default(), count);
    }

    /// Adds samples of an instruction.
    pub fn add_ip(&mut self, at: Svma, count: u64) {
        add(self.ips.entry(at).or_default(), count);
    }

    /// Whether there is more than samples of instructions.
    pub fn has_branches(&self) -> bool {
        !self.branches.is_empty() || !self.ranges.is_empty() || !self.fall_throughs.is_empty()
    }

    /// The records of an imported `perf.data` file.
    pub fn of_samples(samples: &ModuleSamples) -> Self {
        let mut records = Self { ips: samples.ips.clone(), ..Self::default() };
        let BranchSamples { branches, ranges, turns } = &samples.branches;
        branches.iter().for_each(|(&(from, to), &n)| records.add_branch(Some(from), Some(to), n, 0));
        records.ranges.clone_from(ranges);
        records.turns.clone_from(turns);
        records
    }

    /// The records that a processor with endless branch records would give for `profile`, without returns and
    /// without what the profile does not know (targets of indirect calls and jumps are `None`). Block counts
    /// stay exact: [`to_profile`](Self::to_profile) gives the profile back where its counts agree with each
    /// other.
    pub fn of_profile(program: &Program, profile: &Profile) -> Self {
        let mut records = Self::default();
        for (edge, &count) in program.edges.iter().zip(&profile.edges) {
            if count > 0 && edge.kind != EdgeKind::FallThrough {
                let (from, to) = (program.block(edge.from).terminator_at(), program.block(edge.to).start);
                records.add_branch(Some(from), Some(to), count, 0);
            }
        }
        for (i, (call, &count)) in program.calls.iter().zip(&profile.calls).enumerate() {
            let target = match call.target {
                CallTarget::Direct(target) => Some(target),
                CallTarget::Indirect => None,
            };
            let mut rest = count;
            for (&to, &n) in profile.targets.get(&CallId(i as u32)).into_iter().flatten() {
                let n = n.min(rest);
                rest -= n;
                if n > 0 {
                    records.add_branch(Some(call.at), Some(to), n, 0);
                }
            }
            if rest > 0 {
                records.add_branch(Some(call.at), target, rest, 0);
            }
        }
        for (block, count) in entries(program, profile) {
            records.add_branch(None, Some(program.block(block).start), count, 0);
        }
        for ((first, last), count) in fall_through_ranges(program, profile) {
            let end = program.block(last);
            let end = if end.terminator_len > 0 { end.terminator_at() } else { end.start };
            records.add_range(program.block(first).start, end, count);
        }
        records
    }

    /// The profile that the records make, without their instruction samples. A block counts as often as
    /// ranges run into its start, and at least as often as what goes in or out.
    pub fn to_profile(&self, program: &Program) -> (Profile, Matched) {
        let mut profile = Profile::empty(program);
        let mut entered = vec![0u64; program.blocks.len()];
        let mut report = Matched::default();
        for (&(from, to), taken) in &self.branches {
            let used = place_branch(program, &mut profile, &mut entered, from, to, taken.count);
            add(if used { &mut report.used_branches } else { &mut report.other_branches }, taken.count);
        }
        for (&(start, end), &count) in &self.ranges {
            let used = count_run(program, &mut profile, start, end, count);
            let slot = match used {
                true => &mut report.used_ranges,
                false if is_not_understood(program, start) => &mut report.other_ranges,
                false => &mut report.broken_ranges,
            };
            add(slot, count);
        }
        for (&(from, to), &count) in &self.fall_throughs {
            let edge = program.block_at(from).and_then(|b| fall_through_to(program, b, to));
            if let Some(edge) = edge {
                add(&mut profile.edges[edge.index()], count);
            }
            add(if edge.is_some() { &mut report.used_ranges } else { &mut report.broken_ranges }, count);
        }
        // Ranges tell how often a function's first block ran; without them, its entries do.
        if !self.ranges.is_empty() {
            entered.fill(0);
        }
        raise_blocks(program, &mut profile, &entered);
        profile.paths = self.turns.paths(program);
        profile.temporal_affinity = self.turns.temporal_affinity(program);
        (profile, report)
    }

    /// Records with every count multiplied by `factor`, rounded; those that become zero are dropped.
    pub fn scaled(&self, factor: f64) -> Self {
        let scale = |n: u64| (n as f64 * factor).round() as u64;
        let table = |t: &BTreeMap<(Svma, Svma), u64>| {
            t.iter().map(|(k, n)| (*k, scale(*n))).filter(|(_, n)| *n > 0).collect()
        };
        let taken = |t: &Taken| Taken { count: scale(t.count), mispredicted: scale(t.mispredicted) };
        Self {
            branches: self
                .branches
                .iter()
                .map(|(k, t)| (*k, taken(t)))
                .filter(|(_, t)| t.count > 0)
                .collect(),
            ranges: table(&self.ranges),
            fall_throughs: table(&self.fall_throughs),
            ips: self.ips.iter().map(|(k, n)| (*k, scale(*n))).filter(|(_, n)| *n > 0).collect(),
            turns: self.turns.scaled(scale),
        }
    }
}

/// Counts a branch; false if it is no edge, call or entry of the program.
fn place_branch(
    program: &Program,
    profile: &mut Profile,
    entered: &mut [u64],
    from: Option<Svma>,
    to: Option<Svma>,
    count: u64,
) -> bool {
    let is_call = |from| program.calls.binary_search_by_key(&from, |c| c.at).is_ok();
    let used = from.is_some_and(|from| count_branch(program, profile, from, to, count));
    // An edge is no entry; a call may be one.
    if used && !from.is_some_and(is_call) {
        return true;
    }
    let entry = to.and_then(|to| function_entry(program, to));
    if let Some(entry) = entry {
        add(&mut entered[entry.index()], count);
    }
    used || entry.is_some()
}

/// The block at `at`, if a function begins there.
fn function_entry(program: &Program, at: Svma) -> Option<BlockId> {
    let block = program.block_starting_at(at)?;
    (program.entry_block(program.block(block).function) == Some(block)).then_some(block)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use restitch_profile::testing::{RandomProgram, TWO_FUNCTIONS, walk};

    #[test]
    fn records_become_counts() {
        let program = Program::from_text(TWO_FUNCTIONS).unwrap();
        let at = |a| Some(Svma::new(a));
        let mut records = Records::default();
        records.add_branch(at(0x102e), at(0x1000), 4, 1);
        records.add_branch(at(0x1014), at(0x1040), 2, 0);
        records.add_branch(None, at(0x1000), 1, 0);
        records.add_branch(at(0x104f), at(0x1019), 2, 0);
        records.add_branch(at(0x100e), at(0x1020), 3, 0);
        records.add_fall_through(Svma::new(0x100e), Svma::new(0x1010), 2);
        records.add_fall_through(Svma::new(0x1014), Svma::new(0x1020), 2);
        records.add_fall_through(Svma::new(0x1014), Svma::new(0x1030), 2);
        let (profile, matched) = records.to_profile(&program);
        assert_eq!(profile.edges, [2, 3, 2, 0, 4]);
        assert_eq!((profile.calls.clone(), profile.blocks.clone()), (vec![2], vec![5, 2, 5, 0, 2]));
        let expected = Matched {
            used_branches: 10,
            other_branches: 2,
            used_ranges: 4,
            broken_ranges: 2,
            other_ranges: 0,
        };
        assert_eq!(matched, expected);
    }

    #[test]
    fn targets_of_indirect_calls_come_back() {
        let text = TWO_FUNCTIONS.replace("call 0x1014 +5 -> 0x1040", "call 0x1014 +2 indirect");
        let program = Program::from_text(&text).unwrap();
        let mut profile = Profile::empty(&program);
        profile.blocks = vec![9, 9, 0, 9, 7];
        profile.edges[0] = 9;
        profile.calls = vec![9];
        profile.add_target(CallId(0), Svma::new(0x1040), 7);
        let records = Records::of_profile(&program, &profile);
        let at = |a| Some(Svma::new(a));
        assert_eq!(records.branches[&(at(0x1014), at(0x1040))].count, 7);
        assert_eq!(records.branches[&(at(0x1014), None)].count, 2);
        assert!(!records.branches.contains_key(&(None, at(0x1040))), "each entry is known");
        let (back, _) = records.to_profile(&program);
        assert_eq!((back.targets, back.calls), (profile.targets, profile.calls));
    }

    proptest! {
        #[test]
        fn a_consistent_profile_comes_back(seed: u64) {
            let program = RandomProgram::new(seed).program;
            let profile = walk(&program, seed, 20, 0.0);
            let (back, matched) = Records::of_profile(&program, &profile).to_profile(&program);
            prop_assert_eq!(matched.broken_ranges, 0);
            prop_assert_eq!(&back.edges, &profile.edges);
            prop_assert_eq!(&back.calls, &profile.calls);
            prop_assert_eq!(&back.blocks, &profile.blocks);
        }
    }
}
