//! Counts from branch records (LBR and its relatives), whatever made them.

use std::collections::BTreeMap;

use restitch_address::Svma;
use restitch_program::Program;

use crate::matching::{count_branch, count_run, is_not_understood, raise_blocks};
use crate::model::Profile;
use crate::paths::Turns;

/// Aggregated branch records of one module, in canonical coordinates.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct BranchSamples {
    /// Taken branches (jumps, calls, returns): address of the branch instruction, target.
    pub branches: BTreeMap<(Svma, Svma), u64>,
    /// What ran without a taken branch between two records: the target of the older one, and the branch
    /// instruction of the newer one.
    pub ranges: BTreeMap<(Svma, Svma), u64>,
    /// Branches that were taken one after the other.
    pub turns: Turns<Svma>,
}

/// What became of branch records.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct BranchReport {
    /// Records that became an edge or a call.
    pub used_branches: u64,
    /// Records that are neither: returns, un-understood indirect jumps, addresses that are no branch of the
    /// program.
    pub other_branches: u64,
    /// Ranges that follow the program's fall-throughs.
    pub used_ranges: u64,
    /// Ranges that do not: they would pass a branch that always goes elsewhere, or leave the known code.
    pub broken_ranges: u64,
    /// Ranges in functions whose code is not understood.
    pub other_ranges: u64,
}

impl BranchSamples {
    /// Adds one stack of records (branch instruction, target), **newest first**, as the hardware and `perf`
    /// give it. `None` is a place outside of the module; it ends ranges.
    pub fn add_stack(&mut self, stack: &[(Option<Svma>, Option<Svma>)]) {
        for record in stack {
            if let (Some(from), Some(to)) = *record {
                *self.branches.entry((from, to)).or_default() += 1;
            }
        }
        for pair in stack.windows(2) {
            if let ((Some(end), _), (_, Some(start))) = (pair[0], pair[1])
                && start <= end
            {
                *self.ranges.entry((start, end)).or_default() += 1;
            }
        }
        self.turns.add_stack(stack, 1);
    }

    /// The profile that the records make. A block counts as often as ranges run into its start, and at least
    /// as often as its edges on either side.
    pub fn to_profile(&self, program: &Program) -> (Profile, BranchReport) {
        let mut profile = Profile::empty(program);
        let mut report = BranchReport::default();
        for (&(from, to), &count) in &self.branches {
            let used = count_branch(program, &mut profile, from, Some(to), count);
            add(if used { &mut report.used_branches } else { &mut report.other_branches }, count);
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
        raise_blocks(program, &mut profile, &[]);
        profile.paths = self.turns.paths(program);
        profile.temporal_affinity = self.turns.temporal_affinity(program);
        (profile, report)
    }
}

fn add(slot: &mut u64, count: u64) {
    *slot = slot.saturating_add(count);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::TWO_FUNCTIONS;

    fn at(address: u64) -> Option<Svma> {
        Some(Svma::new(address))
    }

    #[test]
    fn pairs_of_records_give_fall_throughs() {
        let program = Program::from_text(TWO_FUNCTIONS).unwrap();
        let mut samples = BranchSamples::default();
        // Newest first: back to the start; return of g; call of g; back to the start (from elsewhere in the
        // past).
        let stack = [
            (at(0x102e), at(0x1000)),
            (at(0x104f), at(0x1019)),
            (at(0x1014), at(0x1040)),
            (at(0x102e), at(0x1000)),
            (None, at(0x1020)),
        ];
        samples.add_stack(&stack);
        samples.add_stack(&stack);
        let (profile, report) = samples.to_profile(&program);
        // 0->1, 0->2 taken, 1->2, 2->3, 2->0 taken
        assert_eq!(profile.edges, [2, 0, 2, 0, 4]);
        assert_eq!(profile.calls, [2]);
        assert_eq!(profile.blocks, [4, 2, 4, 0, 2]);
        let expected =
            BranchReport { used_branches: 6, other_branches: 2, used_ranges: 8, ..BranchReport::default() };
        assert_eq!(report, expected);
    }

    #[test]
    fn impossible_ranges_are_dropped() {
        let program = Program::from_text(TWO_FUNCTIONS).unwrap();
        let mut samples = BranchSamples::default();
        samples.ranges.insert((Svma::new(0x1030), Svma::new(0x104f)), 5);
        samples.ranges.insert((Svma::new(0x10), Svma::new(0x1000)), 1);
        samples.branches.insert((Svma::new(0x1003), Svma::new(0x1000)), 1);
        let (profile, report) = samples.to_profile(&program);
        assert_eq!(profile, Profile::empty(&program));
        assert_eq!((report.broken_ranges, report.other_branches), (6, 1));
    }

    #[test]
    fn ranges_in_code_that_is_not_understood_are_no_sign_of_another_build() {
        let text = format!("{TWO_FUNCTIONS}\nfunction 0x2000..0x2100 data undecodable\n");
        let program = Program::from_text(&text).unwrap();
        let mut samples = BranchSamples::default();
        samples.ranges.insert((Svma::new(0x2010), Svma::new(0x2020)), 3);
        samples.ranges.insert((Svma::new(0x3000), Svma::new(0x3010)), 1);
        let (_, report) = samples.to_profile(&program);
        assert_eq!((report.broken_ranges, report.other_ranges), (1, 3));
    }
}
