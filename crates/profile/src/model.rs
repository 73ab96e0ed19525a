//! The counts.

use restitch_program::{BlockId, CallId, EdgeId, Program};

/// Execution counts of one module, parallel to the tables of its [`Program`].
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Profile {
    /// Executions of each block, by [`BlockId`].
    pub blocks: Vec<u64>,
    /// Traversals of each edge, by [`EdgeId`].
    pub edges: Vec<u64>,
    /// Executions of each call site, by [`CallId`]. Equal to the block's count unless calls do not return.
    pub calls: Vec<u64>,
}

impl Profile {
    /// A profile of `program` in which nothing ran.
    pub fn empty(program: &Program) -> Self {
        Self {
            blocks: vec![0; program.blocks.len()],
            edges: vec![0; program.edges.len()],
            calls: vec![0; program.calls.len()],
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
    /// Executions of `call`.
    pub fn call(&self, call: CallId) -> u64 {
        self.calls[call.index()]
    }
}
