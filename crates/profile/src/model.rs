//! The counts.

use restitch_address::Svma;
use restitch_program::{BlockId, CallId, EdgeId, EdgeKind, FuncId, Program, Terminator};
use std::collections::BTreeMap;

use crate::paths::PathCounts;
use crate::temporal_affinity::AffinityCounts;

/// What one call site called in its own module, with counts. The rest of the site's count went elsewhere, or
/// is unknown.
pub type CallTargets = BTreeMap<Svma, u64>;

/// Execution counts of one module, parallel to the tables of its [`Program`].
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Profile {
    /// Executions of each block, by [`BlockId`].
    pub blocks: Vec<u64>,
    /// Traversals of each edge, by [`EdgeId`].
    pub edges: Vec<u64>,
    /// Executions of each call site, by [`CallId`]. Equal to the block's count unless calls do not return.
    pub calls: Vec<u64>,
    /// What indirect calls called, as far as it is known and in this module; call sites of which nothing is
    /// known are left out.
    pub targets: BTreeMap<CallId, CallTargets>,
    /// Ways through blocks whose branch depends on how control came, where branch records have shown it.
    pub paths: PathCounts,
    /// Blocks that run at the same time, where branch records have shown it.
    pub temporal_affinity: AffinityCounts,
}

impl Profile {
    /// A profile of `program` in which nothing ran.
    pub fn empty(program: &Program) -> Self {
        Self {
            blocks: vec![0; program.blocks.len()],
            edges: vec![0; program.edges.len()],
            calls: vec![0; program.calls.len()],
            targets: BTreeMap::new(),
            paths: PathCounts::new(),
            temporal_affinity: AffinityCounts::new(),
        }
    }
    /// Executions of `block`.
    pub fn block(&self, block: BlockId) -> u64 {
        self.blocks[block.index()]
    }
    /// Executions of the first block of `function`; 0 if it has none.
    pub fn entries(&self, program: &Program, function: FuncId) -> u64 {
        program.entry_block(function).map_or(0, |entry| self.block(entry))
    }
    /// Traversals of `edge`.
    pub fn edge(&self, edge: EdgeId) -> u64 {
        self.edges[edge.index()]
    }
    /// Adds `count` executions of the indirect call `call` that called `to`, in the same module.
    pub fn add_target(&mut self, call: CallId, to: Svma, count: u64) {
        let slot = self.targets.entry(call).or_default().entry(to).or_default();
        *slot = slot.saturating_add(count);
    }
    /// Branches that were taken: jumps, calls and returns. (Those that leave the module count where they are;
    /// what other modules' code did does not.)
    pub fn taken_branches(&self, program: &Program) -> u64 {
        use Terminator::{Conditional, IndirectJump, Jump, Return, ShortConditional, Table};
        let always = program
            .blocks
            .iter()
            .zip(&self.blocks)
            .filter(|(block, _)| matches!(block.terminator, Jump(_) | Table(_) | IndirectJump | Return));
        let sometimes = program.edges.iter().zip(&self.edges).filter(|(edge, _)| {
            let from = &program.block(edge.from).terminator;
            edge.kind == EdgeKind::Taken && matches!(from, Conditional(..) | ShortConditional(_))
        });
        let counts = always.map(|(_, n)| n).chain(sometimes.map(|(_, n)| n)).chain(&self.calls);
        counts.fold(0, |sum, n| sum.saturating_add(*n))
    }
    /// Executions of `call`.
    pub fn call(&self, call: CallId) -> u64 {
        self.calls[call.index()]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn taken_branches_are_those_that_leave_the_line() {
        let program = Program::from_text(
            "\
function 0x1000..0x1060 f movable
  0x1000 +16 entry cond(4)/2 -> 0x1030
  0x1010 +16 - fall
    call 0x1014 +5 -> 0x2000
  0x1020 +16 - jump/2 -> 0x3000
  0x1030 +16 target cond(5)/2 -> 0x1000
  0x1040 +16 - indirect/2
  0x1050 +16 target return/1
",
        );
        let program = program.expect("it is one");
        let mut profile = Profile::empty(&program);
        // Ten times in; seven on to the call, of which five come back and jump away; the others go round
        // three times.
        profile.blocks = vec![13, 7, 5, 6, 3, 2];
        profile.calls = vec![7];
        for (edge, n) in program.edges.iter().zip(&mut profile.edges) {
            let taken = edge.kind == EdgeKind::Taken;
            *n = match (edge.from.0, taken) {
                (0, true) => 6,
                (0, false) => 7,
                (1, _) => 5,
                (3, taken) => 3 * u64::from(taken) + 3 * u64::from(!taken),
                _ => 0,
            };
        }
        // Six and three conditional ones, the call, the jump out of the module, the indirect one, the return.
        assert_eq!(profile.taken_branches(&program), 6 + 3 + 7 + 5 + 3 + 2);
    }
}
