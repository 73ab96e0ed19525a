//! What a profile implies without saying it: entries from outside, and runs without a taken branch.

use restitch_profile::Profile;
use restitch_program::{BlockId, CallTarget, EdgeKind, Program, Terminator};
use std::collections::BTreeMap;

/// How often each block was entered by something that is no edge and no known call of the program: other
/// indirect calls, calls from other modules, indirect jumps, unwinding. Blocks without such entries are left
/// out.
pub fn entries(program: &Program, profile: &Profile) -> Vec<(BlockId, u64)> {
    let mut inward = vec![0u64; program.blocks.len()];
    for (edge, &count) in program.edges.iter().zip(&profile.edges) {
        inward[edge.to.index()] = inward[edge.to.index()].saturating_add(count);
    }
    for (call, &count) in program.calls.iter().zip(&profile.calls) {
        if let CallTarget::Direct(target) = call.target
            && let Some(block) = program.block_starting_at(target)
        {
            inward[block.index()] = inward[block.index()].saturating_add(count);
        }
    }
    for (&to, &count) in profile.targets.values().flatten() {
        if let Some(block) = program.block_starting_at(to) {
            inward[block.index()] = inward[block.index()].saturating_add(count);
        }
    }
    let missing = |block: BlockId| profile.block(block).saturating_sub(inward[block.index()]);
    program.block_ids().map(|b| (b, missing(b))).filter(|(_, n)| *n > 0).collect()
}

/// The runs without a taken branch that `profile` consists of: first and last block, count. Each execution of
/// a block is in exactly one run. Where counts do not agree, runs are cut, so that fall-through edges keep
/// their counts.
pub fn fall_through_ranges(program: &Program, profile: &Profile) -> BTreeMap<(BlockId, BlockId), u64> {
    let mut ranges = BTreeMap::new();
    // Runs that are open in front of the block: where they began, how many. The youngest ends first.
    let mut open: Vec<(BlockId, u64)> = Vec::new();
    for block in program.block_ids() {
        let arrived: u64 = open.iter().map(|(_, n)| *n).sum();
        let count = profile.block(block).max(arrived);
        if count > arrived {
            open.push((block, count - arrived));
        }
        let goes_on = steps_on(program, profile, block).min(count);
        close(&mut open, count - goes_on, block, &mut ranges);
    }
    ranges
}

/// Executions of `block` that go on into the block behind it.
fn steps_on(program: &Program, profile: &Profile, block: BlockId) -> u64 {
    if matches!(program.block(block).terminator, Terminator::Jump(_)) {
        return 0;
    }
    let next = BlockId(block.0 + 1);
    let on = program.out_edges(block).find(|(_, e)| e.kind == EdgeKind::FallThrough && e.to == next);
    on.map_or(0, |(edge, _)| profile.edge(edge))
}

fn close(
    open: &mut Vec<(BlockId, u64)>,
    mut count: u64,
    last: BlockId,
    ranges: &mut BTreeMap<(BlockId, BlockId), u64>,
) {
    while count > 0 {
        let Some((first, n)) = open.last_mut() else { return };
        let ended = count.min(*n);
        *ranges.entry((*first, last)).or_default() += ended;
        count -= ended;
        *n -= ended;
        if *n == 0 {
            open.pop();
        }
    }
}
