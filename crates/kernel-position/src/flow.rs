//! A function of a kernel as a program of one function: what the product's placement of counters and its
//! derivation of counts work on. Blocks have the same numbers.

use crate::convert::Converted;
use crate::live_flags::LiveFlags;
use restitch_address::SvmaRange;
use restitch_kernel::{Block, Code, Edge, EdgeKind, End};
use restitch_program::{
    Block as ProgramBlock, BlockAttrs, BlockId, BlockRange, CallId, Condition, Edge as ProgramEdge, EdgeId,
    EdgeKind as Way, FuncId, Function, Movability, Program, Terminator,
};

/// A function's flow.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Flow {
    pub(crate) program: Program,
    /// What the edges of the program are, by their numbers.
    pub(crate) edges: Vec<Edge>,
}

impl Flow {
    /// Of the blocks of a function that are copied.
    pub(crate) fn of(function: &Converted, live: &LiveFlags) -> Self {
        let code = &function.code;
        let mut own = Self { program: Program::default(), edges: Vec::new() };
        own.program.functions.push(whole(code));
        let is_copied =
            |block: &Block| function.blocks.iter().any(|copied| copied.address() == block.range.start);
        for (number, block) in code.blocks.iter().enumerate() {
            let mut attrs = BlockAttrs::empty();
            attrs.set(BlockAttrs::FLAGS_LIVE_IN, live.at_start(number));
            attrs.set(BlockAttrs::PINNED, !is_copied(block));
            let entered = code.edges.iter().any(|edge| edge.from.is_none() && edge.to == Some(number));
            attrs.set(BlockAttrs::ENTRY, entered);
            own.push(code, number, attrs);
        }
        own
    }

    fn push(&mut self, code: &Code, number: usize, attrs: BlockAttrs) {
        let block = &code.blocks[number];
        let mut edges: Vec<Edge> =
            code.edges.iter().copied().filter(|edge| edge.from == Some(number)).collect();
        edges.retain(|edge| edge.to.is_some());
        edges.sort_by_key(|edge| way(edge.kind));
        let first_edge = EdgeId::from_index(self.edges.len());
        self.program.blocks.push(ProgramBlock {
            start: block.range.start,
            len: block.range.len() as u32,
            terminator_len: block.range.end.offset_from(block.branch) as u8,
            attrs,
            function: FuncId(0),
            terminator: terminator(code, block),
            first_edge,
            edge_count: edges.len() as u32,
            first_call: CallId(0),
            call_count: 0,
        });
        let from = BlockId::from_index(number);
        let program_edges = edges.iter().filter_map(|edge| {
            Some(ProgramEdge { from, kind: way(edge.kind), to: BlockId::from_index(edge.to?) })
        });
        self.program.edges.extend(program_edges);
        self.edges.extend(edges);
    }
}

fn whole(code: &Code) -> Function {
    let range = |[first, last]: [&Block; 2]| SvmaRange::between(first.range.start, last.range.end);
    let ends = code.blocks.first().zip(code.blocks.last());
    Function {
        range: ends.map_or_else(SvmaRange::default, |(first, last)| range([first, last])),
        name: None,
        blocks: BlockRange::new(BlockId(0), code.blocks.len() as u32),
        movability: Movability::Movable,
        redirectable: false,
    }
}

fn way(kind: EdgeKind) -> Way {
    match kind {
        EdgeKind::Fall => Way::FallThrough,
        EdgeKind::Taken | EdgeKind::Fault | EdgeKind::Entry | EdgeKind::Exit => Way::Taken,
    }
}

/// How a block ends, as far as the flow goes: by an instruction that may fault it goes one of two ways.
fn terminator(code: &Code, block: &Block) -> Terminator {
    let number = code.block_at(block.range.start);
    let fault = code.edges.iter().find(|edge| edge.from == number && edge.kind == EdgeKind::Fault);
    match block.end {
        End::Next => match fault {
            Some(fault) => {
                let to = fault.to.map_or(block.range.end, |to| code.blocks[to].range.start);
                Terminator::Conditional(Condition::Equal, to)
            }
            None => Terminator::FallThrough,
        },
        End::Jump(to) => Terminator::Jump(to),
        End::Conditional { condition, taken } => Terminator::Conditional(condition, taken),
        End::ShortConditional(taken) => Terminator::ShortConditional(taken),
        End::StaticKey { taken, .. } => Terminator::Conditional(Condition::Equal, taken),
        End::Return | End::IndirectJump(_) | End::StaticJump { .. } | End::TableJump => Terminator::Return,
        End::Trap | End::NoReturn => Terminator::Stop,
    }
}
