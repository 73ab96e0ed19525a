//! Counters in the functions of a group: which, where, and their code.
//!
//! The product's own placement says which: as few as determine the count of each block and edge
//! (`restitch-profile`). A counter of a block stands where the flags are dead, if there is such a place in
//! front of the block's first call; one on an edge is a block of its own between the two.

use crate::block::{BlockMaker, Made};
use crate::convert::{Converted, ConvertedBlock};
use crate::counting::{Counting, CountingFunction};
use crate::error::{Obstacle, Why};
use crate::flow::Flow;
use crate::live_flags::{Convention, LiveFlags};
use crate::placed::{Placed, Spot};
use restitch_address::{Svma, SvmaRange};
use restitch_kernel::{Edge, EdgeKind, FunctionId};
use restitch_kernel_group as group;
use restitch_kernel_group::{CounterMemory, Counters, End, UnwindRow};
use restitch_profile::{Calls, Counted, CounterPlan, Weights, plan_counters, scope_of};
use restitch_program::{BlockId, EdgeId, FuncId};
use std::collections::BTreeSet;

/// Bytes of counters that each processor may have: half of what kernels keep for all modules
/// (`PERCPU_MODULE_RESERVE`). More are shared by all processors.
const OWN: usize = 4096;
/// Bytes of a counter.
const COUNTER: usize = 8;

/// What the counters of a group count, and where they are.
pub(crate) struct WithCounters {
    pub(crate) counting: Counting,
    pub(crate) counters: Counters,
}

/// Puts counters in all functions. Of those that are `odd`, calls and returns may hand on flags.
pub(crate) fn count(
    maker: BlockMaker<'_>,
    functions: &mut [Converted],
    odd: &BTreeSet<FunctionId>,
) -> Result<WithCounters, Refusal> {
    let (mut first, mut counted) = (0, Vec::new());
    let mut on_edges = 0;
    for function in functions.iter_mut() {
        let convention = if odd.contains(&function.id) { Convention::Unknown } else { Convention::Kept };
        let live = LiveFlags::of(maker.kernel, &function.code, convention);
        let Flow { program, edges } = Flow::of(function, &live);
        let scope = scope_of(&program, &[FuncId(0)]);
        let plan = plan_counters(&program, &scope, Weights::Static, Calls::Return);
        let mut putter = Putter { maker, live: &live, edges: &edges, first, on_edges };
        putter.put(function, &plan).map_err(|why| Refusal { function: function.id, why })?;
        on_edges = putter.on_edges;
        let own = maker.kernel.functions.get(function.id);
        let (name, address) = (own.name.clone(), own.start());
        let number = plan.counted.len() as u32;
        counted.push(CountingFunction { name, address, program, plan, first });
        first += number;
    }
    let is_own = first as usize * COUNTER <= OWN;
    let memory = if is_own { CounterMemory::PerProcessor } else { CounterMemory::Shared };
    let counters = Counters { memory, number: first };
    Ok(WithCounters { counting: Counting { memory, functions: counted }, counters })
}

/// A function that cannot have its counters.
#[derive(Debug)]
pub(crate) struct Refusal {
    pub(crate) function: FunctionId,
    pub(crate) why: Why,
}

/// Puts the counters of one function.
struct Putter<'p> {
    maker: BlockMaker<'p>,
    live: &'p LiveFlags,
    edges: &'p [Edge],
    /// The number of its first counter.
    first: u32,
    /// Counters on edges so far.
    on_edges: u32,
}

impl Putter<'_> {
    fn put(&mut self, function: &mut Converted, plan: &CounterPlan) -> Result<(), Why> {
        for (number, counted) in (self.first..).zip(&plan.counted) {
            if let Counted::Block(block) = *counted {
                self.in_block(function, block, number)?;
            }
        }
        for (number, counted) in (self.first..).zip(&plan.counted) {
            if let Counted::Edge(edge) = *counted {
                self.on_edge(function, edge, number)?;
            }
        }
        Ok(())
    }

    fn in_block(&self, function: &mut Converted, id: BlockId, number: u32) -> Result<(), Why> {
        let block = &function.code.blocks[id.index()];
        let at = block.range.start;
        let obstacle = || Why::Obstacle { obstacle: Obstacle::NoRoomForCounter, at };
        let spot = self.live.spot(block, id.index()).ok_or_else(obstacle)?;
        let made = self.maker.block(&function.code, block, Some(Placed { spot, number }))?;
        let own = function.blocks.iter_mut().find(|own| own.address() == at).ok_or_else(obstacle)?;
        own.made = made;
        Ok(())
    }

    fn on_edge(&mut self, function: &mut Converted, id: EdgeId, number: u32) -> Result<(), Why> {
        let edge = self.edges[id.index()];
        let blocks = &function.code.blocks;
        let ends =
            edge.from.zip(edge.to).map(|(from, to)| [blocks[from].range.start, blocks[to].range.start]);
        let Some([from, to]) = ends else { return Ok(()) };
        let obstacle = |obstacle| Why::Obstacle { obstacle, at: from };
        let row = self.maker.kernel.known.tables.unwind_at(to).ok_or(obstacle(Obstacle::NoUnwindRow))?.row;
        let spot = Spot { at: to, keeps_flags: self.live.at(&function.code, to) };
        let place = function.blocks.iter().position(|own| own.address() == from);
        let place = place.ok_or(obstacle(Obstacle::NoRoomForCounter))?;
        let stand_in = group::Block::on_edge(self.on_edges);
        self.on_edges += 1;
        lead(&mut function.blocks[place].made.block, edge.kind, to, stand_in)
            .ok_or(obstacle(Obstacle::NoRoomForCounter))?;
        let block = edge_block(Placed { spot, number }, stand_in, to, row);
        let is_parted = function.blocks[place].is_parted;
        let made = Made { block, entries: Vec::new() };
        let original = SvmaRange::between(to, to);
        let own = ConvertedBlock { made, is_parted, original, count: 0 };
        // What control falls into follows; what is branched to is out of the way.
        let at = if edge.kind == EdgeKind::Fall { place + 1 } else { function.blocks.len() };
        function.blocks.insert(at, own);
        Ok(())
    }
}

/// The block of a counter on an edge to `to`.
fn edge_block(placed: Placed, stand_in: Svma, to: Svma, row: [u8; UnwindRow::LEN]) -> group::Block {
    group::Block {
        address: stand_in,
        code: vec![0; placed.len() as usize],
        fixups: vec![placed.fixup(0)],
        end: End::Jump(to),
        unwind: placed.rows(0, row),
        exceptions: Vec::new(),
        warnings: Vec::new(),
    }
}

/// Has a block lead to `stand_in` where an edge of this kind leads to `to`; none if it has none.
fn lead(block: &mut group::Block, kind: EdgeKind, to: Svma, stand_in: Svma) -> Option<()> {
    let place = match (kind, &mut block.end) {
        (EdgeKind::Fault, _) => {
            let mut faults = block.exceptions.iter_mut();
            &mut faults.find(|exception| exception.fixup == to)?.fixup
        }
        (EdgeKind::Fall, End::Next(next) | End::Conditional { next, .. } | End::StaticKey { next, .. }) => {
            next
        }
        (
            EdgeKind::Taken,
            End::Jump(taken) | End::Conditional { taken, .. } | End::StaticKey { taken, .. },
        ) => taken,
        _ => return None,
    };
    (*place == to).then(|| *place = stand_in)
}
