//! The order by counts (Tamches and Miller, *Dynamic kernel code optimization*, section 2.2).
//!
//! A block is hot if it was executed more often than a share of the calls of its root. The hot blocks of a
//! function make chains by how often each way between them is taken, which follows from counts of blocks; in
//! place of the paper's traversal, chains are those of extended TSP. The chain with the entry comes first,
//! the others by executed bytes per byte. Functions follow those that call them most often (C3). Cold blocks
//! keep their order, far behind.

use crate::convert::{BlockWay, Converted, ConvertedBlock, leads_to};
use crate::counts::Counts;
use crate::indirect::IndirectCall;
use restitch_address::Svma;
use restitch_kernel::{Code, EdgeCount, FunctionId, edge_counts, live_edges};
use restitch_layout::{Arc, Node, Way, block_chains, call_chain_order};
use std::cmp::Reverse;
use std::collections::HashMap;

/// Bytes that C3 puts together at most: as `restitch-layout` has it for functions of programs.
const CLUSTER: u64 = 16 * restitch_address::PAGE;

/// Blocks that are executed more often than `threshold` are hot, and so are entries of functions with one.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Heating<'c> {
    pub(crate) counts: &'c Counts,
    pub(crate) threshold: u64,
    /// Calls that no branch names.
    pub(crate) indirect: &'c [IndirectCall],
}

/// The blocks of a function in their new order, by number.
#[derive(Debug, Clone, Default)]
pub(crate) struct Ordered {
    pub(crate) hot: Vec<usize>,
    pub(crate) cold: Vec<usize>,
    /// Into how many chains the hot ones fell.
    pub(crate) chains: usize,
}

impl Heating<'_> {
    /// Whether a function has a hot block.
    pub(crate) fn is_hot(&self, function: &Converted) -> bool {
        function.blocks.iter().any(|block| self.counts.at(block.address()) > self.threshold)
    }

    /// Says of a function's blocks and the ways between them how often they are executed.
    pub(crate) fn weigh(&self, function: &mut Converted) {
        for block in &mut function.blocks {
            block.count = self.counts.at(block.made.block.address);
        }
        let blocks = &function.code.blocks;
        let edges = live_edges(&function.code);
        let counts = edge_counts(&self.block_counts(&function.code), &edges);
        let start = |block: Option<usize>| Some(blocks[block?].range.start);
        let way = |(edge, count): (&restitch_kernel::FlowEdge, EdgeCount)| {
            let is_only = edges.iter().filter(|other| other.from == edge.from).count() == 1;
            Some(BlockWay { from: start(edge.from)?, to: start(edge.to)?, count: count.number(), is_only })
        };
        function.ways = edges.iter().zip(counts).filter_map(way).collect();
    }

    /// The order of a function's blocks, which is entered at `entry`.
    pub(crate) fn order(&self, function: &Converted, entry: Svma) -> Ordered {
        let is_counted = |block: &ConvertedBlock| block.count > self.threshold;
        let enters = function.is_led || function.blocks.iter().any(is_counted);
        let is_hot = |number: &usize| {
            let block = &function.blocks[*number];
            block.address() == entry && enters || is_counted(block)
        };
        let (hot, cold): (Vec<usize>, Vec<usize>) = (0..function.blocks.len()).partition(is_hot);
        let mut chains = Self::chains(function, &hot);
        let begins = |chain: &Vec<usize>| chain.iter().any(|n| function.blocks[*n].address() == entry);
        chains
            .sort_by_cached_key(|chain| (!begins(chain), Reverse(Self::density(function, chain)), chain[0]));
        let count = chains.len();
        let mut hot = chains.concat();
        if let Some(at) = hot.iter().position(|n| function.blocks[*n].address() == entry) {
            // What stands in front of the entry in its chain follows the chain.
            let end = chains[0].len();
            hot[..end].rotate_left(at);
        }
        Ordered { hot, cold, chains: count }
    }

    /// Executed bytes per byte.
    fn density(function: &Converted, chain: &[usize]) -> u64 {
        let node = Self::node(function, chain);
        node.weight / node.size.max(1)
    }

    fn node(function: &Converted, blocks: &[usize]) -> Node {
        let mut node = Node::default();
        for block in blocks.iter().map(|number| &function.blocks[*number]) {
            node.size += block.len();
            node.weight = node.weight.saturating_add(block.len().saturating_mul(block.count));
        }
        node
    }

    /// Chains of hot blocks.
    fn chains(function: &Converted, hot: &[usize]) -> Vec<Vec<usize>> {
        let numbers: HashMap<Svma, usize> =
            hot.iter().enumerate().map(|(node, number)| (function.blocks[*number].address(), node)).collect();
        let sizes: Vec<u64> = hot.iter().map(|n| function.blocks[*n].len()).collect();
        let way = |way: &BlockWay| {
            let node = |at| numbers.get(&at).copied();
            let BlockWay { count, is_only, .. } = *way;
            Some(Way { from: node(way.from)?, to: node(way.to)?, count, is_only })
        };
        let ways: Vec<Way> = function.ways.iter().filter_map(way).collect();
        let chains = block_chains(&sizes, &ways).into_iter();
        chains.map(|chain| chain.into_iter().map(|node| hot[node]).collect()).collect()
    }

    fn block_counts(&self, code: &Code) -> Vec<u64> {
        code.blocks.iter().map(|block| self.counts.at(block.range.start)).collect()
    }

    /// The order of functions whose blocks are `ordered`, as a permutation of their indices.
    pub(crate) fn functions(&self, functions: &[Converted], ordered: &[Ordered]) -> Vec<usize> {
        let owners: HashMap<Svma, usize> = functions
            .iter()
            .enumerate()
            .flat_map(|(index, function)| function.blocks.iter().map(move |block| (block.address(), index)))
            .collect();
        let nodes: Vec<Node> = functions
            .iter()
            .zip(ordered)
            .map(|(function, ordered)| Self::node(function, &ordered.hot))
            .collect();
        let mut arcs = Vec::new();
        for (from, function) in functions.iter().enumerate() {
            for block in &function.blocks {
                let count = block.count;
                let to = leads_to(&block.made.block).filter_map(|to| owners.get(&to).copied());
                let arc = |to| Arc { from, to, count, offset: 0 };
                arcs.extend(to.filter(|to| *to != from && count > 0).map(arc));
            }
        }
        let place = |id: FunctionId| functions.iter().position(|function| function.id == id);
        arcs.extend(self.indirect.iter().filter_map(|call| {
            let (from, to) = (place(call.caller)?, place(call.function()?)?);
            (from != to).then_some(Arc { from, to, count: call.count, offset: 0 })
        }));
        call_chain_order(&nodes, &arcs, CLUSTER)
    }
}
