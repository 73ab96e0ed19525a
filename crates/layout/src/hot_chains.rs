//! Greedy chains over all hot blocks, also across functions, then C3 over their functions: the fastest of the
//! good ones.
//!
//! 1. A block is hot if it ran more often than the threshold. Hot movable blocks are joined to chains; tail
//!    calls and jumps between a function and its split-off cold part join chains as any branch does, calls do
//!    not.
//! 2. Chains are grouped by the function of their most executed block. The chain that holds that function's
//!    entry comes first in its group, the others follow by density.
//! 3. C3 orders the groups; arcs are calls, and branches between chains of different groups.
//! 4. The other movable blocks of functions with a hot block follow far behind, by function in address order.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use restitch_profile::Profile;
use restitch_program::{BlockAttrs, BlockId, FuncId, Program};

use crate::c3::{call_chain_order, denser_first};
use crate::chains::greedy_chains;
use crate::graph::{HotGraph, Links, NONE};
use crate::model::{Fragment, Layout, LayoutAlgorithm};
use crate::nodes::Node;

/// What C3 orders.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Grouping {
    /// All chains of a function together.
    #[default]
    Functions,
    /// Each chain for itself.
    Chains,
}

/// Greedy chains, ordered by call-chain clustering.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HotChains {
    /// A block is hot if its count is greater.
    pub threshold: u64,
    /// Alignment in bytes of the first fragment of each group, a power of two; 1 turns alignment off.
    pub align: u32,
    /// Largest size in bytes of a C3 cluster of several groups. The default of 16 pages is a guess that no
    /// measurement backs yet.
    pub cluster_limit: u64,
    /// What C3 orders.
    pub grouping: Grouping,
}

impl Default for HotChains {
    fn default() -> Self {
        Self { threshold: 0, align: 16, cluster_limit: 16 * 4096, grouping: Grouping::Functions }
    }
}

impl LayoutAlgorithm for HotChains {
    fn name(&self) -> &'static str {
        "hot-chains"
    }

    fn meaning(&self) -> &'static str {
        "Greedy chains of hot blocks, also across functions; functions as by c3"
    }

    fn layout(&self, program: &Program, profile: &Profile) -> Layout {
        let hot = self.hot_blocks(program, profile);
        let graph = HotGraph::new(program, profile, &hot, Links::Branches);
        let chains = graph.to_blocks(greedy_chains(program, &graph));
        self.arrange(program, profile, &hot, chains)
    }
}

impl HotChains {
    /// The movable blocks above the threshold, by [`BlockId`].
    pub(crate) fn hot_blocks(&self, program: &Program, profile: &Profile) -> Vec<bool> {
        let hot = |b: BlockId| program.is_movable(b) && profile.block(b) > self.threshold;
        program.block_ids().map(hot).collect()
    }

    /// Steps 2 to 4: the layout of given chains of hot blocks.
    pub(crate) fn arrange(
        &self,
        program: &Program,
        profile: &Profile,
        hot: &[bool],
        mut chains: Vec<Vec<BlockId>>,
    ) -> Layout {
        let groups = self.groups(program, profile, &chains);
        let order = order_groups(program, profile, &chains, &groups, self.cluster_limit);
        let mut fragments = Vec::with_capacity(chains.len());
        for group in order {
            for (i, &chain) in groups[group].iter().enumerate() {
                let align = if i == 0 { self.align } else { 1 };
                fragments.push(Fragment { blocks: std::mem::take(&mut chains[chain]), align });
            }
        }
        Layout { hot: fragments, cold: cold_fragments(program, hot), ..Layout::default() }
    }

    /// Indices of chains, group by group, each group in its final order.
    pub(crate) fn groups(
        &self,
        program: &Program,
        profile: &Profile,
        chains: &[Vec<BlockId>],
    ) -> Vec<Vec<usize>> {
        if self.grouping == Grouping::Chains {
            return (0..chains.len()).map(|c| vec![c]).collect();
        }
        let mut by_function: BTreeMap<FuncId, Vec<usize>> = BTreeMap::new();
        for (index, chain) in chains.iter().enumerate() {
            let hottest = chain.iter().min_by_key(|&&b| (Reverse(profile.block(b)), b));
            if let Some(&block) = hottest {
                by_function.entry(program.block(block).function).or_default().push(index);
            }
        }
        let mut groups = Vec::with_capacity(by_function.len());
        for (function, mut group) in by_function {
            let entry = program.entry_block(function);
            let rank = |c: usize| {
                (!entry.is_some_and(|entry| chains[c].contains(&entry)), node(program, profile, &chains[c]))
            };
            let mut ranked: Vec<_> = group.drain(..).map(|c| (rank(c), c)).collect();
            ranked.sort_by(|((a_rest, a), i), ((b_rest, b), j)| {
                a_rest.cmp(b_rest).then_with(|| denser_first(*a, *b)).then(i.cmp(j))
            });
            groups.push(ranked.into_iter().map(|(_, c)| c).collect());
        }
        groups
    }
}

/// Size and executed bytes of a run of blocks.
pub(crate) fn node(program: &Program, profile: &Profile, blocks: &[BlockId]) -> Node {
    blocks.iter().fold(Node::default(), |sum, &b| {
        let len = u64::from(program.block(b).len);
        Node { size: sum.size + len, weight: sum.weight.saturating_add(profile.block(b).saturating_mul(len)) }
    })
}

fn order_groups(
    program: &Program,
    profile: &Profile,
    chains: &[Vec<BlockId>],
    groups: &[Vec<usize>],
    limit: u64,
) -> Vec<usize> {
    let mut group_of = vec![NONE; program.blocks.len()];
    let mut nodes = Vec::with_capacity(groups.len());
    for (index, group) in groups.iter().enumerate() {
        let mut total = Node::default();
        for &chain in group {
            let one = node(program, profile, &chains[chain]);
            total.size += one.size;
            total.weight = total.weight.saturating_add(one.weight);
            chains[chain].iter().for_each(|b| group_of[b.index()] = index as u32);
        }
        nodes.push(total);
    }
    let arcs = crate::functions::arcs(program, profile, |b| group_of[b.index()]);
    call_chain_order(&nodes, &arcs, limit)
}

/// The movable blocks of a function that are not hot, in address order.
pub(crate) fn cold_blocks<'a>(
    program: &'a Program,
    function: FuncId,
    hot: &'a [bool],
) -> impl Iterator<Item = BlockId> + 'a {
    let is_code = |b: &BlockId| !program.block(*b).attrs.contains(BlockAttrs::PADDING);
    program.blocks_of(function).filter(move |b| !hot[b.index()] && program.is_movable(*b) && is_code(b))
}

/// The movable blocks that are not hot of functions with a hot block, one fragment a function.
pub(crate) fn cold_fragments(program: &Program, hot: &[bool]) -> Vec<Fragment> {
    let mut cold = Vec::new();
    for function in program.function_ids() {
        if !program.blocks_of(function).any(|b| hot[b.index()]) {
            continue;
        }
        let blocks: Vec<BlockId> = cold_blocks(program, function, hot).collect();
        if !blocks.is_empty() {
            cold.push(Fragment { blocks, align: 1 });
        }
    }
    cold
}
