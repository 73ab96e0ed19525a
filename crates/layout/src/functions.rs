//! Whole functions as nodes: what the function-ordering algorithms order.

use restitch_profile::Profile;
use restitch_program::{BlockId, CallTarget, FuncId, Program};

use crate::graph::NONE;
use crate::model::{Fragment, Layout};
use crate::nodes::{Arc, Node};

/// The functions of which a movable block ran, in address order, and the transfers between them.
#[derive(Debug, Clone, Default)]
pub(crate) struct FunctionGraph {
    pub functions: Vec<FuncId>,
    /// Size of the movable blocks, and executed bytes.
    pub nodes: Vec<Node>,
    /// How often each is entered, or its hottest block runs if that is less: what papers call samples.
    pub entries: Vec<u64>,
    pub arcs: Vec<Arc>,
}

impl FunctionGraph {
    pub fn new(program: &Program, profile: &Profile) -> Self {
        let ran = |f: &FuncId| program.blocks_of(*f).any(|b| program.is_movable(b) && profile.block(b) > 0);
        let functions: Vec<FuncId> = program.function_ids().filter(ran).collect();
        let mut number = vec![NONE; program.functions.len()];
        functions.iter().enumerate().for_each(|(n, f)| number[f.index()] = n as u32);
        let nodes = functions.iter().map(|&f| node_of(program, profile, f)).collect();
        let arcs = arcs(program, profile, |b| number[program.block(b).function.index()]);
        let mut entries: Vec<u64> = functions.iter().map(|&f| profile.entries(program, f)).collect();
        for arc in &arcs {
            entries[arc.to] = entries[arc.to].max(arc.count);
        }
        Self { functions, nodes, entries, arcs }
    }

    /// Nodes that weigh what they are entered instead of what they execute.
    pub fn by_entries(&self) -> Vec<Node> {
        self.nodes.iter().zip(&self.entries).map(|(n, &weight)| Node { size: n.size, weight }).collect()
    }

    /// The layout with whole functions in this order, their blocks in address order.
    pub fn layout(&self, program: &Program, order: Vec<usize>, align: u32) -> Layout {
        let fragment = |n: usize| {
            let blocks = program.blocks_of(self.functions[n]).filter(|&b| program.is_movable(b));
            Fragment { blocks: blocks.collect::<Vec<BlockId>>(), align }
        };
        Layout { hot: order.into_iter().map(fragment).collect(), ..Layout::default() }
    }
}

fn node_of(program: &Program, profile: &Profile, function: FuncId) -> Node {
    let movable = program.blocks_of(function).filter(|&b| program.is_movable(b));
    movable.fold(Node::default(), |sum, b| {
        let len = u64::from(program.block(b).len);
        Node { size: sum.size + len, weight: sum.weight.saturating_add(profile.block(b).saturating_mul(len)) }
    })
}

/// Calls, and branches between groups, as arcs between the groups that `group` names.
pub(crate) fn arcs(program: &Program, profile: &Profile, group: impl Fn(BlockId) -> u32) -> Vec<Arc> {
    let mut arcs = Vec::new();
    let mut arc = |from: BlockId, to: BlockId, count: u64, within: u64| {
        let (a, b) = (group(from), group(to));
        if count > 0 && a != b && a != NONE && b != NONE {
            let start = program.function(program.block(from).function).range.start;
            let offset = program.block(from).start.get() - start.get() + within;
            arcs.push(Arc { from: a as usize, to: b as usize, count, offset });
        }
    };
    for (edge, &count) in program.edges.iter().zip(&profile.edges) {
        arc(edge.from, edge.to, count, u64::from(program.block(edge.from).len));
    }
    for (call, &count) in program.calls.iter().zip(&profile.calls) {
        if count > 0
            && let CallTarget::Direct(target) = call.target
            && let Some(callee) = program.block_starting_at(target)
        {
            arc(call.block, callee, count, call.at.get() - program.block(call.block).start.get());
        }
    }
    arcs
}
