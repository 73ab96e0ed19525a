//! Counts from branch records (LBR and its relatives), whatever made them.

use std::collections::BTreeMap;

use restitch_address::Svma;
use restitch_program::{BlockId, EdgeKind, Program, Terminator};

use crate::Profile;

/// Aggregated branch records of one module, in canonical coordinates.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct BranchSamples {
    /// Taken branches (jumps, calls, returns): address of the branch instruction, target.
    pub branches: BTreeMap<(Svma, Svma), u64>,
    /// What ran without a taken branch between two records: the target of the older one, and the branch instruction of
    /// the newer one.
    pub ranges: BTreeMap<(Svma, Svma), u64>,
}

/// What became of branch records.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct BranchReport {
    /// Records that became an edge or a call.
    pub used_branches: u64,
    /// Records that are neither: returns, un-understood indirect jumps, addresses that are no branch of the program.
    pub other_branches: u64,
    /// Ranges that follow the program's fall-throughs.
    pub used_ranges: u64,
    /// Ranges that do not: they would pass a branch that always goes elsewhere, or leave the known code.
    pub broken_ranges: u64,
}

impl BranchSamples {
    /// Adds one stack of records (branch instruction, target), **newest first**, as the hardware and `perf` give it.
    /// `None` is a place outside of the module; it ends ranges.
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
    }

    /// The profile that the records make. A block counts as often as ranges run into its start, and at least as often as
    /// its edges on either side.
    pub fn to_profile(&self, program: &Program) -> (Profile, BranchReport) {
        let mut profile = Profile::empty(program);
        let mut report = BranchReport::default();
        for (&(from, to), &count) in &self.branches {
            let slot = slot_of(program, &mut profile, from, to);
            add(if slot.is_some() { &mut report.used_branches } else { &mut report.other_branches }, count);
            if let Some(slot) = slot {
                add(slot, count);
            }
        }
        for (&(start, end), &count) in &self.ranges {
            let used = add_range(program, &mut profile, start, end, count);
            add(if used { &mut report.used_ranges } else { &mut report.broken_ranges }, count);
        }
        raise_blocks(program, &mut profile);
        (profile, report)
    }
}

fn add(slot: &mut u64, count: u64) {
    *slot = slot.saturating_add(count);
}

/// The count that a taken branch belongs to.
fn slot_of<'p>(program: &Program, profile: &'p mut Profile, from: Svma, to: Svma) -> Option<&'p mut u64> {
    let block = program.block_at(from)?;
    if let Ok(call) = program.calls.binary_search_by_key(&from, |c| c.at) {
        return profile.calls.get_mut(call);
    }
    if program.block(block).terminator_at() != from {
        return None;
    }
    let taken = |kind| kind != EdgeKind::FallThrough;
    let edge = program.out_edges(block).find(|(_, e)| taken(e.kind) && program.block(e.to).start == to);
    edge.map(|(id, _)| &mut profile.edges[id.index()])
}

/// Counts the blocks and fall-through edges from `start` to the branch at `end`; false if there is no such way.
fn add_range(program: &Program, profile: &mut Profile, start: Svma, end: Svma, count: u64) -> bool {
    let (Some(first), Some(last)) = (program.block_at(start), program.block_at(end)) else { return false };
    let way: Option<Vec<_>> =
        (first.0..last.0).map(|b| fall_through_edge(program, BlockId(b), BlockId(b + 1))).collect();
    let Some(way) = way else { return false };
    way.into_iter().for_each(|edge| add(&mut profile.edges[edge], count));
    // A range that begins inside a block is the continuation behind a call: the block was counted before.
    let entered = if program.block(first).start == start { first.0 } else { first.0 + 1 };
    (entered..=last.0).for_each(|b| add(&mut profile.blocks[b as usize], count));
    true
}

fn fall_through_edge(program: &Program, from: BlockId, to: BlockId) -> Option<usize> {
    if matches!(program.block(from).terminator, Terminator::Jump(_)) {
        return None;
    }
    let falls = |kind| kind == EdgeKind::FallThrough;
    program.out_edges(from).find(|(_, e)| falls(e.kind) && e.to == to).map(|(id, _)| id.index())
}

fn raise_blocks(program: &Program, profile: &mut Profile) {
    let (mut inward, mut outward) = (vec![0u64; program.blocks.len()], vec![0u64; program.blocks.len()]);
    for (edge, &count) in program.edges.iter().zip(&profile.edges) {
        add(&mut outward[edge.from.index()], count);
        add(&mut inward[edge.to.index()], count);
    }
    for (block, count) in profile.blocks.iter_mut().enumerate() {
        *count = (*count).max(inward[block]).max(outward[block]);
    }
    for (call, count) in program.calls.iter().zip(&profile.calls) {
        let block = &mut profile.blocks[call.block.index()];
        *block = (*block).max(*count);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "\
function 0x1000..0x1040 f movable
  0x1000 +16 entry cond(4)/2 -> 0x1020
  0x1010 +16 - fall
    call 0x1014 +5 -> 0x1040
  0x1020 +16 target cond(5)/2 -> 0x1000
  0x1030 +16 - return/1
function 0x1040..0x1050 g movable
  0x1040 +16 entry return/1
";

    fn at(address: u64) -> Option<Svma> {
        Some(Svma::new(address))
    }

    #[test]
    fn pairs_of_records_give_fall_throughs() {
        let program = Program::from_text(TEXT).unwrap();
        let mut samples = BranchSamples::default();
        // Newest first: back to the start; return of g; call of g; back to the start (from elsewhere in the past).
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
        let expected = BranchReport { used_branches: 6, other_branches: 2, used_ranges: 8, broken_ranges: 0 };
        assert_eq!(report, expected);
    }

    #[test]
    fn impossible_ranges_are_dropped() {
        let program = Program::from_text(TEXT).unwrap();
        let mut samples = BranchSamples::default();
        samples.ranges.insert((Svma::new(0x1030), Svma::new(0x104f)), 5);
        samples.ranges.insert((Svma::new(0x10), Svma::new(0x1000)), 1);
        samples.branches.insert((Svma::new(0x1003), Svma::new(0x1000)), 1);
        let (profile, report) = samples.to_profile(&program);
        assert_eq!(profile, Profile::empty(&program));
        assert_eq!((report.broken_ranges, report.other_branches), (6, 1));
    }
}
