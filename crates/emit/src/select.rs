//! Which blocks are placed: decided before anything else, because whether a branch goes to a copy or to the
//! original code depends on it.

use crate::direct::{Direct, Form, STUB_CALL, with_direct_form};
use crate::ends::copied_len;
use crate::error::EmitError;
use crate::lookup::Lookup;
use crate::model::{BoundSlot, SkipReason, Skipped};
use crate::reach::Reach;
use crate::request::Request;
use crate::table_copy::may_copy;
use crate::upper_bound::upper_bound;
use restitch_address::{PAGE, Svma, SvmaRange};
use restitch_cfi::{FrameState, Lsda, Row, UnwindPiece};
use restitch_layout::{Fragment, PlacedCopy, Tail};
use restitch_program::{Block, BlockAttrs, BlockId, FuncId, Movability, Terminator};
use restitch_x86::{Flow, relocate_field};
use std::sync::Arc;

/// "No slot", in [`Selection::slot_of`].
pub(crate) const NONE: u32 = u32::MAX;
/// A 4-byte displacement in a copied instruction that has to be computed anew.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Fix {
    /// Offset in the block of the displacement.
    pub field: u32,
    /// Offset in the block of the end of the instruction, from which the displacement counts.
    pub end: u32,
    /// The original target.
    pub target: Svma,
    /// What it belongs to.
    pub form: Form,
}

/// A block that is placed.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Chosen {
    pub block: BlockId,
    /// 1 where it may stand anywhere.
    pub align: u32,
    /// Its fixes end here, and start where those of the one before end.
    pub fixes_end: u32,
    /// Its jump table gets a copy.
    pub copies_table: bool,
    /// A second copy: only the one in front of it leads to it.
    pub duplicate: bool,
    /// Its conditional branch is turned round.
    pub turned: bool,
}

/// A retargeted function: its address becomes that of its copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RetargetedEntry {
    /// Its original entry.
    pub entry: Svma,
    /// The copy of its first block.
    pub slot: u32,
    /// Which function.
    pub function: FuncId,
}

/// What unwinders know about a function.
pub(crate) struct Frames {
    pub piece: UnwindPiece,
    pub rows: Vec<Row>,
    pub lsda: Option<Lsda>,
}

impl Frames {
    /// Index of the row that holds at `at`, which lies in the function.
    pub fn row_at(&self, at: Svma) -> usize {
        self.rows.partition_point(|row| row.start <= at).saturating_sub(1)
    }
    /// The state at `at`.
    pub fn state_at(&self, at: Svma) -> &Arc<FrameState> {
        &self.rows[self.row_at(at)].state
    }
}

/// The blocks that are placed, in layout order, and what is known about them.
pub(crate) struct Selection<'a> {
    pub chosen: Vec<Chosen>,
    /// How many of `chosen` are hot: the first ones.
    pub hot: usize,
    pub fixes: Vec<Fix>,
    /// Index into `chosen` of the copy that is no duplicate, or [`NONE`], by block.
    pub slot_of: Vec<u32>,
    /// By function; `None` if nothing of it is placed.
    pub frames: Vec<Option<Frames>>,
    pub lookup: Lookup<'a>,
    pub reach: Reach,
    pub skipped: Vec<Skipped>,
    pub direct: Direct<'a>,
    /// Slots that direct calls and jumps in copied code rely on; some more than once.
    pub used: Vec<BoundSlot>,
    /// Retargeted functions, sorted by entry.
    pub retargeted: Vec<RetargetedEntry>,
}

impl<'a> Selection<'a> {
    /// The slot of the copy of the block that starts at `at`, if there is one.
    pub fn slot_at(&self, at: Svma) -> Option<u32> {
        let block = self.lookup.starting_at(at)?;
        Some(self.slot_of[block.index()]).filter(|slot| *slot != NONE)
    }
    /// The slot that pointers to the function at `at` lead to, if they do.
    pub fn retargeted_at(&self, at: Svma) -> Option<u32> {
        self.retargeted
            .binary_search_by_key(&at, |function| function.entry)
            .ok()
            .map(|i| self.retargeted[i].slot)
    }
    /// What unwinders know about the function of a placed block.
    pub fn frames_of(&self, function: FuncId) -> &Frames {
        // Blocks are only placed if their function's frames are known.
        self.frames[function.index()].as_ref().expect("a placed block has frames")
    }
    /// The fixes of slot number `slot`.
    pub fn fixes_of(&self, slot: usize) -> &[Fix] {
        let from = slot.checked_sub(1).map_or(0, |before| self.chosen[before].fixes_end as usize);
        &self.fixes[from..self.chosen[slot].fixes_end as usize]
    }
}

/// Decides which blocks of the layout are placed.
pub(crate) fn select<'a>(request: &Request<'a>) -> Result<Selection<'a>, EmitError> {
    if request.start.align_down(PAGE) != request.start {
        return Err(EmitError::Unaligned(request.start));
    }
    let program = request.program;
    let reach = Reach { range: SvmaRange::new(request.start, upper_bound(request)?) };
    let mut state = Select {
        request,
        functions: vec![Status::Unknown; program.functions.len()],
        out: Selection {
            chosen: Vec::with_capacity(program.blocks.len().min(1 << 20)),
            hot: 0,
            fixes: Vec::new(),
            slot_of: vec![NONE; program.blocks.len()],
            frames: program.functions.iter().map(|_| None).collect(),
            lookup: Lookup::new(program),
            reach,
            skipped: Vec::new(),
            direct: Direct::new(request, reach),
            used: Vec::new(),
            retargeted: Vec::new(),
        },
    };
    state.fragments(&request.layout.hot, false)?;
    state.out.hot = state.out.chosen.len();
    state.fragments(&request.layout.cold, true)?;
    let out = state.out;
    match out.chosen.iter().find(|c| out.slot_of[c.block.index()] == NONE) {
        Some(alone) => {
            Err(EmitError::DuplicateAlone { block: alone.block, at: program.block(alone.block).start })
        }
        None => Ok(out),
    }
}

#[derive(Clone, Copy, PartialEq)]
enum Status {
    Unknown,
    Good,
    Bad,
}

struct Select<'r, 'a> {
    request: &'r Request<'a>,
    functions: Vec<Status>,
    out: Selection<'a>,
}

impl Select<'_, '_> {
    fn fragments(&mut self, fragments: &[Fragment], cold: bool) -> Result<(), EmitError> {
        for fragment in fragments {
            let mut leads = true;
            for &block in &fragment.blocks {
                if cold && self.stays_for_a_probe(block) {
                    continue;
                }
                let align = if leads { fragment.align } else { 1 };
                if self.block(PlacedCopy { block, duplicate: false, turned: false }, align)? {
                    leads = false;
                    self.tail(block)?;
                }
            }
        }
        Ok(())
    }

    /// Whether a cold block stays where tracers look for the static probe that is in it: mostly the program
    /// goes there only while one does.
    fn stays_for_a_probe(&mut self, id: BlockId) -> bool {
        // A block that does not exist has been refused before.
        let block = self.request.program.block(id);
        let stays = !self.request.image.static_probes_in(block.range()).is_empty()
            // What a duplicate leads back to has to be there.
            && self.out.chosen.iter().all(|chosen| chosen.block != id);
        if stays {
            let why = SkipReason::StaticProbe;
            self.out.skipped.push(Skipped { function: block.function, block: Some(id), why });
        }
        stays
    }

    /// Takes the duplicates behind `block`, up to the first one that cannot be copied. A counting version has
    /// none.
    fn tail(&mut self, block: BlockId) -> Result<(), EmitError> {
        let tail = self.request.layout.tail_behind(block).filter(|_| self.request.counters.is_none());
        for copy in tail.into_iter().flat_map(Tail::copies) {
            if !self.block(copy, 1)? {
                break;
            }
        }
        Ok(())
    }

    /// Takes the block, or notes why not.
    fn block(&mut self, copy: PlacedCopy, align: u32) -> Result<bool, EmitError> {
        let id = copy.block;
        let block = self.request.program.block(id);
        if !copy.duplicate && self.out.slot_of[id.index()] != NONE {
            return Err(EmitError::BlockTwice { block: id, at: block.start });
        }
        if self.functions[block.function.index()] == Status::Unknown {
            self.functions[block.function.index()] = self.function(block.function);
        }
        if self.functions[block.function.index()] == Status::Bad {
            return Ok(false);
        }
        let noted = self.out.skipped.len();
        let taken = self.copy(copy, align)?;
        if copy.duplicate {
            // The block's other copy has the same fate, and says so.
            self.out.skipped.truncate(noted);
        }
        Ok(taken)
    }

    /// Takes a block of a function that can be copied, or notes why not.
    fn copy(&mut self, copy: PlacedCopy, align: u32) -> Result<bool, EmitError> {
        let PlacedCopy { block: id, duplicate, turned } = copy;
        let program = self.request.program;
        let block = program.block(id);
        let skipped = |why| Skipped { function: block.function, block: Some(id), why };
        if block.attrs.intersects(BlockAttrs::PINNED | BlockAttrs::PADDING | BlockAttrs::UNREACHED) {
            self.out.skipped.push(skipped(SkipReason::NotMovable));
            return Ok(false);
        }
        let bytes = self.request.image.read(block.start, block.len as usize);
        let bytes = bytes.ok_or(EmitError::Unreadable(block.start))?;
        let before = (self.out.fixes.len(), self.out.used.len());
        if !targets_in_reach(block, self.out.reach) || !scan(bytes, block, &mut self.out) {
            self.out.fixes.truncate(before.0);
            self.out.used.truncate(before.1);
            self.out.skipped.push(skipped(SkipReason::OutOfReach));
            return Ok(false);
        }
        let copies_table = match block.terminator {
            Terminator::Table(table) => {
                let copies = may_copy(self.request, block, program.table(table), self.out.reach);
                if !copies {
                    self.out.skipped.push(skipped(SkipReason::TableNotCopied));
                }
                copies
            }
            _ => false,
        };
        if !duplicate {
            self.out.slot_of[id.index()] = self.out.chosen.len() as u32;
        }
        let fixes_end = self.out.fixes.len() as u32;
        self.out.chosen.push(Chosen { block: id, align, fixes_end, copies_table, duplicate, turned });
        Ok(true)
    }

    /// Reads the function's unwind information.
    fn function(&mut self, id: FuncId) -> Status {
        let function = self.request.program.function(id);
        let why = if function.movability != Movability::Movable {
            SkipReason::NotMovable
        } else if let Some(frames) = frames(self.request, function.range) {
            self.out.frames[id.index()] = Some(frames);
            return Status::Good;
        } else {
            SkipReason::Unwind
        };
        self.out.skipped.push(Skipped { function: id, block: None, why });
        Status::Bad
    }
}

/// What unwinders know about the function, if a copy can say the same.
fn frames(request: &Request<'_>, function: SvmaRange) -> Option<Frames> {
    let piece = request.unwind.piece_at(function.start)?;
    if piece.signal_frame || !piece.range.covers(&function) {
        return None;
    }
    let rows = request.unwind.rows_of(&piece).ok()?;
    let first = rows.first()?;
    if first.start != piece.range.start
        || rows.iter().any(|row| {
            row.state.depends_on_position() || row.state.return_address != first.state.return_address
        })
    {
        return None;
    }
    let lsda = match (piece.personality, piece.lsda) {
        (Some(_), Some(at)) => Some(lsda(request, at, piece.range)?),
        _ => None,
    };
    Some(Frames { piece, rows, lsda })
}

fn lsda(request: &Request<'_>, at: Svma, code: SvmaRange) -> Option<Lsda> {
    let image = request.image;
    // A table that the loader relocates is not what the file says. (4096 bytes: as far as most of them
    // reach.)
    if image.is_writable(at) && !image.relocations_in(SvmaRange::new(at, 4096)).is_empty() {
        return None;
    }
    Lsda::parse(&|at: Svma| image.read_tail(at), at, code).ok()
}

/// Whether the block's branches can reach their original targets from everywhere.
fn targets_in_reach(block: &Block, reach: Reach) -> bool {
    match block.terminator {
        Terminator::FallThrough | Terminator::Stop => reach.covers(block.end()),
        Terminator::Jump(to) => reach.covers(to),
        Terminator::Conditional(_, to) => reach.covers(to) && reach.covers(block.end()),
        Terminator::ShortConditional(to) => {
            reach.covers(to) && reach.covers(block.end()) && block.terminator_len >= 2
        }
        Terminator::Table(_) | Terminator::IndirectJump | Terminator::Return => true,
    }
}

/// Decodes the part of the block that is copied and notes what has to be fixed. `false` if something cannot
/// be copied.
fn scan(bytes: &[u8], block: &Block, out: &mut Selection<'_>) -> bool {
    let len = copied_len(block);
    let mut offset = 0u32;
    while offset < len {
        let rest = &bytes[offset as usize..len as usize];
        let Some((insn, rip)) = relocate_field(rest, block.start + u64::from(offset)) else { return false };
        let end = offset + u32::from(insn.len);
        if let Some(rip) = rip {
            let fix =
                Fix { field: offset + u32::from(rip.offset), end, target: rip.target, form: Form::Operand };
            let transfer = with_direct_form(&rest[..usize::from(insn.len)]);
            match transfer.and_then(|t| Some((t, out.direct.slot(rip.target)?))) {
                Some((transfer, bound)) => {
                    out.used.push(bound);
                    out.fixes.push(Fix { target: bound.target, form: Form::Direct(transfer), ..fix });
                }
                None if out.reach.covers(rip.target) => out.fixes.push(fix),
                None => return false,
            }
        }
        let possible = match insn.flow {
            Flow::Next | Flow::IndirectCall | Flow::Stop => true,
            Flow::Call(target) => call(out, offset, end, target),
            Flow::IndirectJump | Flow::Return => end == len,
            Flow::Jump(_) | Flow::Conditional(..) | Flow::ShortConditional(_) | Flow::Unsupported => false,
        };
        if !possible {
            return false;
        }
        offset = end;
    }
    true
}

/// Notes a direct call from one offset to another. `false`: its target is out of reach.
fn call(out: &mut Selection<'_>, start: u32, end: u32, target: Svma) -> bool {
    let bound = out.direct.stub(target);
    out.used.extend(bound);
    let slot = out.direct.slot_of_stub(target).filter(|_| bound.is_none() && end - start == STUB_CALL);
    let target = bound.map_or(target, |b| b.target);
    let form = slot.map_or(Form::Call, Form::BySlot);
    out.fixes.push(Fix { field: end - 4, end, target, form });
    out.reach.covers(target)
}
