//! Checks the invariant of a layout.

use restitch_program::{EdgeKind, Program, Terminator};

use crate::model::{Layout, Prefetch, Tail};

impl Layout {
    /// Checks that each block occurs at most once, exists and is movable, that no fragment is empty, and that
    /// alignments are powers of two; that what is fetched ahead is in a fragment, and a block with an
    /// instruction in front of its branch fetches it; that duplicates are sorted, of blocks that are in a
    /// fragment too, and such that control can fall into each from the one in front of it. Each fault gives a
    /// sentence.
    pub fn validate(&self, program: &Program) -> Result<(), Vec<String>> {
        let mut wrong = Vec::new();
        let mut seen = vec![false; program.blocks.len()];
        for (number, fragment) in self.hot.iter().chain(&self.cold).enumerate() {
            if fragment.blocks.is_empty() {
                wrong.push(format!("fragment {number} is empty"));
            }
            if !fragment.align.is_power_of_two() {
                wrong.push(format!("fragment {number}: alignment {} is no power of two", fragment.align));
            }
            for &block in &fragment.blocks {
                let Some(seen) = seen.get_mut(block.index()) else {
                    wrong.push(format!("fragment {number}: the program has no block {}", block.0));
                    continue;
                };
                let start = program.block(block).start;
                if std::mem::replace(seen, true) {
                    wrong.push(format!("block {start} occurs twice"));
                }
                if !program.is_movable(block) {
                    wrong.push(format!("block {start} is not movable"));
                }
            }
        }
        if self.tails.windows(2).any(|pair| pair[0].behind >= pair[1].behind) {
            wrong.push("the tails are not sorted by the block that they stand behind".to_owned());
        }
        wrong.extend(self.tails.iter().filter_map(|tail| tail_fault(tail, program, &seen)));
        if self.prefetches.windows(2).any(|pair| pair[0].at >= pair[1].at) {
            wrong.push("the prefetches are not sorted by the block that they stand in front of".to_owned());
        }
        wrong.extend(self.prefetches.iter().filter_map(|prefetch| prefetch_fault(prefetch, program, &seen)));
        if wrong.is_empty() { Ok(()) } else { Err(wrong) }
    }
}

/// What is wrong with a prefetch. `seen`: the blocks that are in a fragment.
fn prefetch_fault(prefetch: &Prefetch, program: &Program, seen: &[bool]) -> Option<String> {
    for block in [prefetch.at, prefetch.target] {
        if seen.get(block.index()) != Some(&true) {
            return Some(format!(
                "block number {} fetches ahead, or is fetched, and is in no fragment",
                block.0
            ));
        }
    }
    let at = program.block(prefetch.at);
    (at.terminator_at() == at.start)
        .then(|| format!("block {} fetches ahead and is nothing but a branch", at.start))
}

/// What is wrong with a tail. `seen`: the blocks that are in a fragment.
fn tail_fault(tail: &Tail, program: &Program, seen: &[bool]) -> Option<String> {
    let placed = |block: restitch_program::BlockId| seen.get(block.index()) == Some(&true);
    if tail.blocks.is_empty() {
        return Some(format!("the tail behind block number {} is empty", tail.behind.0));
    }
    let mut before = tail.behind;
    for &block in [tail.behind].iter().chain(&tail.blocks) {
        if !placed(block) {
            return Some(format!("block number {} is in a tail, and in no fragment", block.0));
        }
    }
    for &block in &tail.blocks {
        let source = program.block(before);
        let leads = |kind| kind == EdgeKind::FallThrough || kind == EdgeKind::Taken;
        let falls = program.out_edges(before).any(|(_, e)| e.to == block && leads(e.kind));
        if !falls || matches!(source.terminator, Terminator::ShortConditional(_)) {
            let start = program.block(block).start;
            return Some(format!(
                "control cannot fall from block {} into a duplicate of {start}",
                source.start
            ));
        }
        before = block;
    }
    let conditional = matches!(program.block(before).terminator, Terminator::Conditional(..));
    (tail.turned && !conditional).then(|| {
        format!(
            "block {} ends a tail turned round, and in no conditional branch",
            program.block(before).start
        )
    })
}
