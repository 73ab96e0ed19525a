//! What a version is made from.

use crate::counter_area::{CounterWidth, area_len};
use crate::model::{BoundSlot, Counted, Promotion};
use crate::pointers::Pointers;
use restitch_address::{LoadBias, Svma};
use restitch_cfi::UnwindForm;
use restitch_image::Image;
use restitch_layout::Layout;
use restitch_program::{CallId, Program};

/// What to emit, and where.
#[derive(Clone, Copy)]
pub struct Request<'a> {
    /// The module.
    pub image: &'a Image,
    /// Its code, made from `image`.
    pub program: &'a Program,
    /// What unwinders know of it: its unwind tables, read from `image`.
    pub unwind: &'a dyn UnwindForm,
    /// The order of the blocks.
    pub layout: &'a Layout,
    /// Where the version goes: page-aligned, within 2 GiB of the module; may be below it (an [`Svma`] wraps).
    pub start: Svma,
    /// `None` for an ELF file; known for a live process. Position-independent modules need it for copies of
    /// jump tables with absolute entries.
    pub bias: Option<LoadBias>,
    /// Number of the version, from 1.
    pub number: u32,
    /// Slots of the global offset table whose content is known and cannot change any more, sorted by slot.
    /// Calls and jumps through them become direct ones. Empty for an ELF file.
    pub bound_slots: &'a [BoundSlot],
    /// Calls and jumps to stubs of the procedure linkage table that do not become direct ones go through the
    /// stub's slot themselves.
    pub by_slots: bool,
    /// Indirect calls that become a comparison with their usual target and a direct call of it, sorted. What
    /// cannot become one stays as it is; a counting version has none.
    pub promote: &'a [Promotion],
    /// Functions of which pointers are to lead to the copy, as far as it has a place for that. `None` for a
    /// process, where pointers have been made already.
    pub pointers: Option<&'a Pointers>,
    /// The hot code is to be mapped by large pages: what is mapped covers the last one that holds hot code.
    /// `start` has to be a multiple of [`LARGE_PAGE`](crate::LARGE_PAGE) then, or it is in vain.
    pub large_pages: bool,
    /// Asks for a counting version.
    pub counters: Option<CounterRequest<'a>>,
}

/// What a counting version counts.
#[derive(Debug, Clone, Copy)]
pub struct CounterRequest<'a> {
    /// Where the writable counter area starts, which has the words of the votes behind the counters:
    /// 8-aligned, within 2 GiB of the version.
    pub area_start: Svma,
    /// How wide each counter is.
    pub width: CounterWidth,
    /// What is to be counted, each once. Not every one gets a counter: see
    /// [`CounterTable`](crate::CounterTable).
    pub counted: &'a [Counted],
    /// Indirect calls that vote for their usual target, sorted. Those of which it cannot be found out have
    /// words that stay zero.
    pub votes: &'a [CallId],
}

impl CounterRequest<'_> {
    /// Bytes of the area.
    pub fn area_len(&self) -> u64 {
        area_len(self.width, self.counted.len(), self.votes.len())
    }
}

/// How often code ran. Nothing of it changes what a version means; parts may be empty, and what is behind the
/// end of one counts as never executed.
#[derive(Debug, Clone, Copy, Default)]
pub struct Executions<'a> {
    /// By [`BlockId`](restitch_program::BlockId): to place hot code within cache lines by. Empty: it stands
    /// as it comes.
    pub blocks: &'a [u64],
    /// By [`EdgeId`](restitch_program::EdgeId): to turn conditional branches by. Empty: they keep their
    /// sense, unless what they lead to stands behind them.
    pub edges: &'a [u64],
}
