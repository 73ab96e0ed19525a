//! The executed code as a graph: blocks, and every way in which control moves between them.
//!
//! Branches come from the program's edges. Calls go from behind the call instruction to the callee's entry. A
//! return goes from the callee's most executed return to the instruction behind the call: the profile does
//! not say which return served which call, and the hottest is right for most. Indirect calls have no known
//! callee and make no links.

use crate::nodes::Node;
use restitch_profile::Profile;
use restitch_program::{BlockId, CallTarget, EdgeKind, Program, Terminator};

/// No node, chain or link.
pub(crate) const NONE: u32 = u32::MAX;

/// What moves control.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LinkKind {
    /// A branch that can be made a fall-through.
    Branch,
    /// A jump through a table, or the taken side of a branch that cannot be inverted.
    Fixed,
    /// A direct call.
    Call,
    /// The way back from a direct call.
    Return,
    /// No way at all: both run at the same time. From the start of the one to its end (`leaves`), and of the
    /// other (`arrives`).
    Affinity,
}

/// Control moves from one node to another.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Link {
    pub from: u32,
    pub to: u32,
    /// How often.
    pub weight: f64,
    /// Bytes from the start of `from` to where control leaves.
    pub leaves: u32,
    /// Bytes from the start of `to` to where control arrives.
    pub arrives: u32,
    pub kind: LinkKind,
    /// A branch that is the only way out of `from`: a jump, or nothing at all where `to` stands behind it.
    pub only: bool,
}

/// Nodes in address order, and links sorted by source and target.
#[derive(Debug, Clone, Default)]
pub(crate) struct HotGraph {
    /// The block of each node.
    pub blocks: Vec<BlockId>,
    /// Bytes of each node.
    pub sizes: Vec<u64>,
    /// Executions of each node.
    pub counts: Vec<u64>,
    pub links: Vec<Link>,
}

/// Which links a graph holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Links {
    /// Branches only.
    Branches,
    /// Branches within a function.
    WithinFunctions,
    /// Branches, calls and returns.
    All,
}

impl HotGraph {
    /// Size and executed bytes of a sequence of nodes.
    pub fn weigh(&self, sequence: &[u32]) -> Node {
        sequence.iter().fold(Node::default(), |sum, &n| {
            let (size, count) = (self.sizes[n as usize], self.counts[n as usize]);
            Node { size: sum.size + size, weight: sum.weight.saturating_add(count.saturating_mul(size)) }
        })
    }

    /// The graph of the blocks that are marked in `hot`.
    pub fn new(program: &Program, profile: &Profile, hot: &[bool], links: Links) -> Self {
        let blocks: Vec<BlockId> = program.block_ids().filter(|b| hot[b.index()]).collect();
        let mut node = vec![NONE; program.blocks.len()];
        blocks.iter().enumerate().for_each(|(n, b)| node[b.index()] = n as u32);
        let mut graph = Self {
            sizes: blocks.iter().map(|&b| u64::from(program.block(b).len)).collect(),
            counts: blocks.iter().map(|&b| profile.block(b)).collect(),
            blocks,
            links: Vec::new(),
        };
        // More than there will be; what is not used takes no memory.
        graph.links.reserve_exact(program.edges.len() + 2 * program.calls.len());
        graph.add_branches(program, profile, &node, links == Links::WithinFunctions);
        if links == Links::All {
            graph.add_calls(program, profile, &node);
        }
        graph.links = sorted_links(graph.blocks.len(), &graph.links);
        graph
    }

    /// A graph of nodes that are no blocks of a program.
    pub fn of_links(sizes: &[u64], links: &[Link]) -> Self {
        Self { sizes: sizes.to_vec(), links: sorted_links(sizes.len(), links), ..Self::default() }
    }

    /// The graph with links between nodes that ran at the same time.
    pub fn with_affinity(mut self, program: &Program, profile: &Profile) -> Self {
        let node = |block: &BlockId| self.blocks.binary_search(block).ok().map(|n| n as u32);
        let link = |(pair, count): (&(BlockId, BlockId), &u64)| {
            let (from, to) = (node(&pair.0)?, node(&pair.1)?);
            let (leaves, arrives) = (program.block(pair.0).len, program.block(pair.1).len);
            let (weight, kind) = (*count as f64, LinkKind::Affinity);
            Some(Link { from, to, weight, leaves, arrives, kind, only: false })
        };
        let links: Vec<Link> = profile.temporal_affinity.iter().filter_map(link).collect();
        self.links.extend(links);
        self.links = sorted_links(self.blocks.len(), &self.links);
        self
    }

    /// Number of nodes.
    pub fn len(&self) -> usize {
        self.blocks.len()
    }

    /// Chains of nodes as chains of blocks.
    pub fn to_blocks(&self, chains: Vec<Vec<u32>>) -> Vec<Vec<BlockId>> {
        chains.into_iter().map(|c| c.into_iter().map(|n| self.blocks[n as usize]).collect()).collect()
    }

    fn add_branches(&mut self, program: &Program, profile: &Profile, node: &[u32], within: bool) {
        for (edge, &count) in program.edges.iter().zip(&profile.edges) {
            let (from, to) = (node[edge.from.index()], node[edge.to.index()]);
            let other = program.block(edge.from).function != program.block(edge.to).function;
            if count == 0 || from == NONE || to == NONE || from == to || (within && other) {
                continue;
            }
            let short = matches!(program.block(edge.from).terminator, Terminator::ShortConditional(_));
            let fixed = edge.kind == EdgeKind::Table || (short && edge.kind == EdgeKind::Taken);
            let kind = if fixed { LinkKind::Fixed } else { LinkKind::Branch };
            let only =
                matches!(program.block(edge.from).terminator, Terminator::Jump(_) | Terminator::FallThrough);
            let weight = count as f64;
            self.links.push(Link {
                from,
                to,
                weight,
                leaves: program.block(edge.from).len,
                arrives: 0,
                kind,
                only,
            });
        }
    }

    fn add_calls(&mut self, program: &Program, profile: &Profile, node: &[u32]) {
        let returns = hottest_returns(program, profile, node);
        for (call, &count) in program.calls.iter().zip(&profile.calls) {
            let CallTarget::Direct(target) = call.target else { continue };
            let from = node[call.block.index()];
            if count == 0 || from == NONE {
                continue;
            }
            let Some(callee) = program.block_starting_at(target) else { continue };
            let to = node[callee.index()];
            if to == NONE || from == to {
                continue;
            }
            let behind = (call.at.get() - program.block(call.block).start.get()) as u32 + u32::from(call.len);
            let weight = count as f64;
            let (leaves, kind) = (behind, LinkKind::Call);
            self.links.push(Link { from, to, weight, leaves, arrives: 0, kind, only: false });
            let back = returns[program.block(callee).function.index()];
            if back != NONE && back != from {
                let leaves = self.sizes[back as usize] as u32;
                let kind = LinkKind::Return;
                let (from, to) = (back, from);
                self.links.push(Link { from, to, weight, leaves, arrives: behind, kind, only: false });
            }
        }
    }
}

/// The links by source and target, those between the same nodes in the order that they had. O(n + m): a node
/// has few links.
fn sorted_links(nodes: usize, links: &[Link]) -> Vec<Link> {
    let mut behind = vec![0u32; nodes + 1];
    links.iter().for_each(|l| behind[l.from as usize + 1] += 1);
    (1..behind.len()).for_each(|n| behind[n] += behind[n - 1]);
    let mut order = vec![0u32; links.len()];
    for (number, link) in links.iter().enumerate() {
        let place = &mut behind[link.from as usize];
        order[*place as usize] = number as u32;
        *place += 1;
    }
    let mut sorted: Vec<Link> = order.iter().map(|&number| links[number as usize]).collect();
    sorted.chunk_by_mut(|a, b| a.from == b.from).for_each(|same| same.sort_by_key(|l| l.to));
    sorted
}

/// For each function the node of its most executed return, the first of several.
fn hottest_returns(program: &Program, profile: &Profile, node: &[u32]) -> Vec<u32> {
    let hottest = |function| {
        let returns = program
            .blocks_of(function)
            .filter(|b| node[b.index()] != NONE && program.block(*b).terminator == Terminator::Return);
        returns.rev().max_by_key(|&b| profile.block(b)).map_or(NONE, |b| node[b.index()])
    };
    program.function_ids().map(hottest).collect()
}
