//! What is not hot, function by function.
//!
//! Which of the blocks that training hardly ran, or never, will run together with another input, counts
//! cannot tell; that those of one function do is the best guess. So they keep the order of functions that the
//! compiler gave them. Within a function those that ran come first, in extended-TSP chains, and what never
//! ran follows.

use std::collections::BTreeMap;

use restitch_profile::Profile;
use restitch_program::{BlockId, FuncId, Program};

use crate::ext_tsp::ext_tsp_chains;
use crate::graph::{HotGraph, Links};
use crate::hot_chains::cold_blocks;
use crate::model::Fragment;

/// All movable blocks of functions with an `executed` block that are not hot: the `warm` ones and what never
/// ran, one fragment a function.
pub(crate) fn rest_by_function(
    program: &Program,
    profile: &Profile,
    executed: &[bool],
    warm: &[bool],
) -> Vec<Fragment> {
    let graph = HotGraph::new(program, profile, warm, Links::WithinFunctions);
    let mut chains: BTreeMap<FuncId, Vec<Vec<BlockId>>> = BTreeMap::new();
    for chain in graph.to_blocks(ext_tsp_chains(&graph)) {
        let function = chain.first().map(|block| program.block(*block).function);
        if let Some(function) = function {
            chains.entry(function).or_default().push(chain);
        }
    }
    let mut fragments = Vec::new();
    for function in program.function_ids() {
        if !program.blocks_of(function).any(|b| executed[b.index()]) {
            continue;
        }
        let mut own = chains.remove(&function).unwrap_or_default();
        own.sort_unstable();
        let blocks: Vec<BlockId> =
            own.into_iter().flatten().chain(cold_blocks(program, function, executed)).collect();
        if !blocks.is_empty() {
            fragments.push(Fragment { blocks, align: 1 });
        }
    }
    fragments
}
