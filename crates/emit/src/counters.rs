//! Where the counters of a counting version go, and in which form.
//!
//! The cheap form, one `incq`, overwrites the status flags. A block's counter may stand at any instruction
//! boundary before its first call where they are dead; only where there is none, and on edges into blocks
//! that read the flags, the form that keeps them is used. It lowers the stack for a moment, which the unwind
//! tables have to be able to say.

use crate::counter_area::CounterWidth;
use crate::ends::{copied_len, tail_frame};
use crate::entry;
use crate::error::EmitError;
use crate::model::{Counted, CounterTable};
use crate::request::{CounterRequest, Request};
use crate::select::{NONE, Selection};
use restitch_address::{Svma, SvmaRange};
use restitch_program::{Block, BlockAttrs, BlockId, EdgeId, EdgeKind, Terminator};
use restitch_x86::entry::entry_marker;
use restitch_x86::{ALL_FLAGS, Flow, encode, relocate_field};

/// A counter in the code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Counter {
    /// Which word of the area.
    pub number: u32,
    /// The form that keeps the flags.
    pub keeps: bool,
    /// How wide the word is.
    pub width: CounterWidth,
}

impl Counter {
    /// Bytes of code.
    pub fn len(self) -> u32 {
        match (self.keeps, self.width) {
            (true, _) => encode::KEEPING_COUNT,
            (false, CounterWidth::Bits64) => encode::COUNT,
            (false, CounterWidth::Bits32) => encode::COUNT_NARROW,
        }
    }
}

/// All counters of a version.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    area: Option<Svma>,
    /// By block: offset in the block, and the counter. Empty if nothing is counted.
    blocks: Vec<Option<(u32, Counter)>>,
    /// By edge. Empty if nothing is counted.
    edges: Vec<Option<Counter>>,
    missing: Vec<u32>,
}

impl Counters {
    /// The block's own counter and its offset.
    pub fn in_block(&self, block: BlockId) -> Option<(u32, Counter)> {
        self.blocks.get(block.index()).copied().flatten()
    }
    /// The counter on an edge.
    pub fn on_edge(&self, edge: EdgeId) -> Option<Counter> {
        self.edges.get(edge.index()).copied().flatten()
    }
    /// Address of a counter's word.
    pub fn word(&self, counter: Counter) -> Svma {
        self.area.unwrap_or_default() + counter.width.bytes() * u64::from(counter.number)
    }
    /// What the version says about them.
    pub fn table(self, request: &Request<'_>) -> Option<CounterTable> {
        let asked = request.counters?;
        Some(CounterTable {
            area: area(&asked),
            width: asked.width,
            counted: asked.counted.to_vec(),
            missing: self.missing,
            votes: asked.votes.to_vec(),
        })
    }
}

fn area(asked: &CounterRequest<'_>) -> SvmaRange {
    SvmaRange::new(asked.area_start, asked.area_len())
}

/// Finds a place for each counter.
pub(crate) fn place(request: &Request<'_>, selection: &Selection<'_>) -> Result<Counters, EmitError> {
    let Some(asked) = request.counters else { return Ok(Counters::default()) };
    let program = request.program;
    let area = area(&asked);
    if !selection.reach.covers(area.start) || !selection.reach.covers(area.end) {
        return Err(EmitError::CountersOutOfReach { area: area.start, code: request.start });
    }
    let mut counters = Counters {
        area: Some(area.start),
        blocks: vec![None; program.blocks.len()],
        edges: vec![None; program.edges.len()],
        missing: Vec::new(),
    };
    let mut seen = Seen::new(request);
    for (index, &counted) in asked.counted.iter().enumerate() {
        seen.note(index, counted)?;
        let number = index as u32;
        let placed = match counted {
            Counted::Block(id) => {
                let spot = block_spot(request, selection, id, number);
                counters.blocks[id.index()] = spot;
                spot.is_some()
            }
            Counted::Edge(id) => {
                let counter = edge_counter(request, selection, id, number)?;
                counters.edges[id.index()] = counter;
                counter.is_some()
            }
        };
        if !placed {
            counters.missing.push(number);
        }
    }
    Ok(counters)
}

/// What has been asked for so far.
struct Seen {
    blocks: Vec<bool>,
    edges: Vec<bool>,
}

impl Seen {
    fn new(request: &Request<'_>) -> Self {
        Self {
            blocks: vec![false; request.program.blocks.len()],
            edges: vec![false; request.program.edges.len()],
        }
    }
    fn note(&mut self, index: usize, counted: Counted) -> Result<(), EmitError> {
        let seen = match counted {
            Counted::Block(id) => self.blocks.get_mut(id.index()),
            Counted::Edge(id) => self.edges.get_mut(id.index()),
        };
        match seen {
            None => Err(EmitError::UnknownCounted(index)),
            Some(true) => Err(EmitError::CountedTwice(index)),
            Some(seen) => {
                *seen = true;
                Ok(())
            }
        }
    }
}

fn flags_live_in(request: &Request<'_>, block: BlockId) -> bool {
    request.program.block(block).attrs.contains(BlockAttrs::FLAGS_LIVE_IN)
}

/// Whether the form that keeps the flags can be described to unwinders at `at`.
fn may_lower_stack(selection: &Selection<'_>, block: &Block, at: Svma) -> bool {
    let state = selection.frames_of(block.function).state_at(at);
    encode::keeping_count().stack.iter().all(|(_, bytes)| state.shifted_stack(i64::from(*bytes)).is_some())
}

fn width(request: &Request<'_>) -> CounterWidth {
    request.counters.map(|c| c.width).unwrap_or_default()
}

fn edge_counter(
    request: &Request<'_>,
    selection: &Selection<'_>,
    id: EdgeId,
    number: u32,
) -> Result<Option<Counter>, EmitError> {
    let width = width(request);
    let edge = request.program.edges[id.index()];
    if edge.kind == EdgeKind::Table {
        return Err(EmitError::TableEdge(id));
    }
    if selection.slot_of[edge.from.index()] == NONE {
        return Ok(None);
    }
    let keeps = flags_live_in(request, edge.to);
    let block = request.program.block(edge.from);
    let possible = !keeps || may_lower_stack(selection, block, tail_frame(request.program, block));
    Ok(possible.then_some(Counter { number, keeps, width }))
}

/// Where in the block its counter stands: offset and form.
fn block_spot(
    request: &Request<'_>,
    selection: &Selection<'_>,
    id: BlockId,
    number: u32,
) -> Option<(u32, Counter)> {
    let width = width(request);
    if selection.slot_of[id.index()] == NONE {
        return None;
    }
    let block = request.program.block(id);
    let bytes = request.image.read(block.start, block.len as usize)?;
    // Redirects lead behind `endbr64`, which leaves the flags alone.
    let first = entry_marker(bytes) as u32;
    let plain = |at| Some((at, Counter { number, keeps: false, width }));
    // A redirect behind the first instructions of a function must not pass it by, and shall be possible where
    // the counter costs no more.
    if let Some(at) = behind_the_redirect(request, selection, id, bytes) {
        return plain(at);
    }
    if !flags_live_in(request, id) {
        return plain(first);
    }
    if let Some(at) = dead_flags(request, id, bytes, first) {
        return plain(at);
    }
    may_lower_stack(selection, block, block.start + u64::from(first))
        .then_some((first, Counter { number, keeps: true, width }))
}

/// Where an entry's counter may be as cheap as anywhere behind the place of the redirect.
fn behind_the_redirect(
    request: &Request<'_>,
    selection: &Selection<'_>,
    id: BlockId,
    bytes: &[u8],
) -> Option<u32> {
    let block = request.program.block(id);
    if block.start != request.program.function(block.function).range.start {
        return None;
    }
    let at =
        entry::behind_the_first(request, &selection.lookup, block.function).first()?.offset_from(block.start);
    let at = u32::try_from(at).ok()?;
    // What is dead at the start is dead until something is written.
    let still_dead = !flags_live_in(request, id) && writes_no_flags(&bytes[..at as usize], block.start);
    if still_dead { Some(at) } else { dead_flags(request, id, bytes, at) }
}

/// Whether none of the instructions that make up `bytes` writes a status flag.
fn writes_no_flags(mut bytes: &[u8], mut at: Svma) -> bool {
    while !bytes.is_empty() {
        match relocate_field(bytes, at) {
            Some((insn, _)) if insn.flags_written == 0 => {
                bytes = bytes.get(usize::from(insn.len)..).unwrap_or_default();
                at = at + u64::from(insn.len);
            }
            _ => return false,
        }
    }
    true
}

/// The first instruction boundary from `first` on, before the first call, at which the flags are dead.
fn dead_flags(request: &Request<'_>, id: BlockId, bytes: &[u8], first: u32) -> Option<u32> {
    let program = request.program;
    let block = program.block(id);
    // (offset, flags read, flags written) of the instructions before the first call or the load of a table's
    // entry.
    let mut straight: Vec<(u32, u8, u8)> = Vec::new();
    let mut offset = first;
    let mut end = copied_len(block);
    if let Terminator::Table(table) = block.terminator {
        end = end.min(program.table(table).load_at.offset_from(block.start).max(0) as u32);
    }
    let mut live = None;
    while offset < end {
        let (insn, _) = relocate_field(bytes.get(offset as usize..)?, block.start + u64::from(offset))?;
        match insn.flow {
            Flow::Next => straight.push((offset, insn.flags_read, insn.flags_written)),
            // By the calling convention dead at calls, unless the callee reads them.
            Flow::Call(target) => {
                let reads = match program.block_starting_at(target) {
                    Some(block) => flags_live_in(request, block),
                    // What a function without blocks reads is not known.
                    None => program.function_at(target).is_some(),
                };
                live = Some(if reads { ALL_FLAGS } else { 0 });
                break;
            }
            _ => {
                live = Some(ALL_FLAGS);
                break;
            }
        }
        offset += u32::from(insn.len);
    }
    let mut live = live.unwrap_or_else(|| live_at(request, id, bytes, offset));
    let mut best = (live == 0).then_some(offset);
    for (at, reads, writes) in straight.into_iter().rev() {
        live = reads | (live & !writes);
        if live == 0 {
            best = Some(at);
        }
    }
    best
}

/// The flags that are live at `offset`, where the straight part of the block ends without a call.
fn live_at(request: &Request<'_>, id: BlockId, bytes: &[u8], offset: u32) -> u8 {
    let program = request.program;
    let block = program.block(id);
    let over_edges = |expected: u32| {
        let unknown = block.edge_count < expected;
        let live = unknown || program.out_edges(id).any(|(_, edge)| flags_live_in(request, edge.to));
        if live { ALL_FLAGS } else { 0 }
    };
    let (reads, out) = match block.terminator {
        Terminator::FallThrough | Terminator::Jump(_) => (0, over_edges(1)),
        Terminator::Conditional(..) | Terminator::ShortConditional(_) => {
            let at = block.len - u32::from(block.terminator_len);
            let insn = relocate_field(&bytes[at as usize..], block.terminator_at());
            (insn.map_or(ALL_FLAGS, |(insn, _)| insn.flags_read), over_edges(2))
        }
        // From the load of the entry on; what stands between it and the jump may read or write flags.
        Terminator::Table(_) => (ALL_FLAGS, 0),
        Terminator::IndirectJump | Terminator::Return | Terminator::Stop => (ALL_FLAGS, 0),
    };
    debug_assert!(offset <= block.len);
    reads | out
}
