//! Hot and cold chunks of a group of functions (Tamches and Miller, *Dynamic kernel code optimization*,
//! section 2.2).
//!
//! A block is hot if it runs more than 5 % as often as the root function is called. The group is the
//! functions with a hot block. Each function's hot blocks make a chunk that begins with its entry; then come
//! its chains, the one with most branches from those before it first. All hot chunks stand in front of all
//! cold ones, each in address order.
//!
//! The paper counts only what runs beneath the root. A profile does not tell; without a root, each function's
//! blocks are measured by its own entry.

use restitch_profile::Profile;
use restitch_program::{BlockAttrs, BlockId, FuncId, Program};

use crate::chains::greedy_chains;
use crate::graph::{HotGraph, Links};
use crate::model::{Fragment, Layout, LayoutAlgorithm};
use crate::ph_bb::functions;

/// Hot and cold chunks of a function group.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct HotColdChunks {
    /// The function that is to run fast; `None` for each for itself.
    pub root: Option<FuncId>,
    /// A block is hot above this share of the root's calls.
    pub threshold: f64,
}

impl Default for HotColdChunks {
    fn default() -> Self {
        Self { root: None, threshold: 0.05 }
    }
}

impl LayoutAlgorithm for HotColdChunks {
    fn name(&self) -> &'static str {
        "hot-cold"
    }

    fn meaning(&self) -> &'static str {
        "Hot chunks of functions in front, cold ones behind (Tamches and Miller)"
    }

    fn layout(&self, program: &Program, profile: &Profile) -> Layout {
        let mut hot = self.hot_blocks(program, profile);
        let in_group = |f: FuncId, hot: &[bool]| program.blocks_of(f).any(|b| hot[b.index()]);
        let group: Vec<FuncId> = program.function_ids().filter(|&f| in_group(f, &hot)).collect();
        for &function in &group {
            if let Some(entry) = program.entry_block(function) {
                hot[entry.index()] = program.is_movable(entry);
            }
        }
        let graph = HotGraph::new(program, profile, &hot, Links::WithinFunctions);
        let chunks = functions(program, profile, &graph, greedy_chains(program, &graph));
        let entry_first = |mut blocks: Vec<BlockId>| {
            let entry = program.entry_block(program.block(blocks[0]).function);
            if let Some(at) = blocks.iter().position(|&b| Some(b) == entry) {
                blocks[..=at].rotate_right(1);
            }
            Fragment { blocks, align: 16 }
        };
        let rest = |b: &BlockId| {
            !hot[b.index()]
                && program.is_movable(*b)
                && !program.block(*b).attrs.contains(BlockAttrs::PADDING)
        };
        let cold = group.iter().map(|&f| program.blocks_of(f).filter(rest).collect::<Vec<_>>());
        let cold = cold.filter(|blocks| !blocks.is_empty()).map(|blocks| Fragment { blocks, align: 1 });
        Layout {
            hot: chunks.into_iter().map(entry_first).collect(),
            cold: cold.collect(),
            ..Layout::default()
        }
    }
}

impl HotColdChunks {
    fn hot_blocks(&self, program: &Program, profile: &Profile) -> Vec<bool> {
        let calls = |f: FuncId| profile.entries(program, f) as f64;
        let root = self.root.map(calls);
        let hot = |b: BlockId| {
            let block = program.block(b);
            let limit = self.threshold * root.unwrap_or_else(|| calls(block.function));
            program.is_movable(b) && profile.block(b) > 0 && profile.block(b) as f64 > limit
        };
        program.block_ids().map(hot).collect()
    }
}
