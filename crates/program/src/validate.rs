//! Checks the invariants that the head of this crate states.

use crate::edges::{by_search, implied_edges};
use crate::model::{Program, Terminator};
use crate::{BlockAttrs, BlockId};

impl Program {
    /// Checks every invariant of the tables; each broken one gives a sentence that names the object and its
    /// address.
    pub fn validate(&self) -> Result<(), Vec<String>> {
        let mut wrong = Vec::new();
        self.check_functions(&mut wrong);
        self.check_blocks(&mut wrong);
        self.check_edges(&mut wrong);
        self.check_calls(&mut wrong);
        self.check_tables(&mut wrong);
        if wrong.is_empty() { Ok(()) } else { Err(wrong) }
    }

    /// Functions are sorted and disjoint, and own consecutive blocks that tile their ranges.
    fn check_functions(&self, wrong: &mut Vec<String>) {
        for pair in self.functions.windows(2) {
            if pair[1].range.start < pair[0].range.end {
                wrong.push(format!(
                    "function {} does not lie behind function {}",
                    pair[1].range, pair[0].range
                ));
            }
        }
        let mut owned = 0usize;
        for (id, function) in self.functions.iter().enumerate() {
            let at = function.range;
            if function.range.end <= function.range.start {
                wrong.push(format!("function {at} is empty"));
            }
            let Some(first) = function.entry_block() else { continue };
            if first.index() != owned {
                wrong.push(format!("function {at} begins with block {}, expected {owned}", first.0));
            }
            owned = function.blocks.indices().end;
            let Some(blocks) = self.blocks.get(function.blocks.indices()) else {
                wrong.push(format!("function {at} has more blocks than there are"));
                return;
            };
            let mut next = function.range.start;
            for block in blocks {
                if block.function.index() != id {
                    wrong.push(format!("block {} does not name its function {at}", block.start));
                }
                if block.start != next {
                    wrong.push(format!("block {} leaves a gap or overlaps: expected {next}", block.start));
                }
                if block.attrs.contains(BlockAttrs::ENTRY) != (block.start == function.range.start) {
                    wrong.push(format!("block {}: ENTRY does not agree with function {at}", block.start));
                }
                next = block.end();
            }
            if next != function.range.end {
                wrong.push(format!("the blocks of function {at} end at {next}"));
            }
        }
        if owned != self.blocks.len() {
            wrong.push(format!("{} blocks belong to no function", self.blocks.len().saturating_sub(owned)));
        }
    }

    /// Blocks are not empty, sorted, and not shorter than their terminators.
    fn check_blocks(&self, wrong: &mut Vec<String>) {
        for pair in self.blocks.windows(2) {
            if pair[1].start < pair[0].end() {
                wrong.push(format!("block {} does not lie behind block {}", pair[1].start, pair[0].start));
            }
        }
        for block in &self.blocks {
            if block.len == 0 || u32::from(block.terminator_len) > block.len {
                wrong.push(format!("block {} is empty or shorter than its terminator", block.start));
            }
            let falls = block.terminator == Terminator::FallThrough;
            if falls != (block.terminator_len == 0) {
                wrong.push(format!("block {}: terminator and its length disagree", block.start));
            }
        }
    }

    /// Edges are exactly those that the terminators imply.
    fn check_edges(&self, wrong: &mut Vec<String>) {
        let mut expected = Vec::new();
        for (index, block) in self.blocks.iter().enumerate() {
            let first = expected.len();
            implied_edges(&self.blocks, &self.tables, index, &by_search, &mut expected);
            let count = expected.len() - first;
            if block.first_edge.index() != first || block.edge_count as usize != count {
                wrong.push(format!(
                    "block {}: its edges are {}+{}, its terminator implies {first}+{count}",
                    block.start, block.first_edge.0, block.edge_count
                ));
            }
        }
        if expected != self.edges {
            wrong.push("the edges are not those that the terminators imply, in order".to_owned());
        }
    }

    /// Calls are sorted, lie in the blocks that they name, and the blocks list them.
    fn check_calls(&self, wrong: &mut Vec<String>) {
        for pair in self.calls.windows(2) {
            if pair[1].at <= pair[0].at {
                wrong.push(format!("call {} is not behind call {}", pair[1].at, pair[0].at));
            }
        }
        let mut listed = 0usize;
        for (id, block) in self.blocks.iter().enumerate() {
            if block.call_count == 0 {
                continue;
            }
            if block.first_call.index() != listed {
                wrong.push(format!("block {}: its first call is not number {listed}", block.start));
            }
            listed = block.first_call.index() + block.call_count as usize;
            let Some(calls) = self.calls.get(block.first_call.index()..listed) else {
                wrong.push(format!("block {} has more calls than there are", block.start));
                return;
            };
            for call in calls {
                let inside = call.at >= block.start && call.at + u64::from(call.len) <= block.terminator_at();
                if !inside || call.block != BlockId::from_index(id) || call.len == 0 {
                    wrong.push(format!("call {} does not lie in block {}", call.at, block.start));
                }
            }
        }
        if listed != self.calls.len() {
            wrong.push(format!("{} calls belong to no block", self.calls.len().saturating_sub(listed)));
        }
    }

    /// Tables are sorted, used by exactly the jump that they name, and their targets are blocks.
    fn check_tables(&self, wrong: &mut Vec<String>) {
        for pair in self.tables.windows(2) {
            if pair[1].jump_at <= pair[0].jump_at {
                wrong.push(format!("table of {} is not behind that of {}", pair[1].jump_at, pair[0].jump_at));
            }
        }
        let mut used = vec![0u32; self.tables.len()];
        for block in &self.blocks {
            if let Terminator::Table(id) = block.terminator {
                match self.tables.get(id.index()) {
                    Some(table) if table.jump_at == block.terminator_at() => used[id.index()] += 1,
                    _ => wrong.push(format!("block {} jumps through a table of another jump", block.start)),
                }
            }
        }
        for (table, used) in self.tables.iter().zip(used) {
            if used != 1 {
                wrong.push(format!("the table of the jump at {} has {used} jumps", table.jump_at));
            }
            for &target in &table.targets {
                if self.block_starting_at(target).is_none() && !self.is_unreachable_entry(target) {
                    wrong.push(format!("table of {}: target {target} starts no block", table.jump_at));
                }
            }
        }
    }
}
