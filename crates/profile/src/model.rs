//! The counts.

use restitch_address::Svma;
use restitch_program::{BlockId, CallId, EdgeId, Program};
use std::collections::BTreeMap;

use crate::{PathCounts, TogetherCounts};

/// What one call site called in its own module, with counts. The rest of the site's count went elsewhere, or is unknown.
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
    /// What indirect calls called, as far as it is known and in this module; call sites of which nothing is known are left out.
    pub targets: BTreeMap<CallId, CallTargets>,
    /// Ways through blocks whose branch depends on how control came, where branch records have shown it.
    pub paths: PathCounts,
    /// Blocks that run at the same time, where branch records have shown it.
    pub together: TogetherCounts,
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
            together: TogetherCounts::new(),
        }
    }
    /// Executions of `block`.
    pub fn block(&self, block: BlockId) -> u64 {
        self.blocks[block.index()]
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
    /// Executions of `call`.
    pub fn call(&self, call: CallId) -> u64 {
        self.calls[call.index()]
    }
}
