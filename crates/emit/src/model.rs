//! What a version is.

use crate::counter_area::{CounterWidth, votes_offset};
pub use crate::window::BurstTable;
use restitch_address::{PAGE, Svma, SvmaRange};
pub use restitch_profile::{Counted, Promotion, Vote, VoteArea};
use restitch_program::{BlockId, CallId, FuncId};

/// A code version of one module, ready to be checked and applied.
///
/// All addresses are canonical: a version has a fixed place relative to its module, so RIP-relative operands
/// do not depend on where the module is loaded.
#[derive(Debug, Clone, PartialEq)]
pub struct Version {
    /// Number of the version, from 1.
    pub number: u32,
    /// Place and size of `bytes`; page-aligned start. What is mapped is [`Version::loaded`].
    pub range: SvmaRange,
    /// A complete ELF image (ET_DYN, one R+X PT_LOAD with offset = address = 0 relative to `range.start`,
    /// PT_GNU_EH_FRAME, then unloaded section headers and symbols behind `loaded_len`).
    pub bytes: Vec<u8>,
    /// How many bytes of `bytes` are mapped (a multiple of the page size); symbols and section headers
    /// follow.
    pub loaded_len: u64,
    /// How many bytes from the start are to be mapped by large pages: a multiple of
    /// [`LARGE_PAGE`](crate::LARGE_PAGE), 0 for none, not more than `loaded_len`.
    pub large: u64,
    /// The instructions, hot and cold (stubs included).
    pub text: SvmaRange,
    /// The hot part of `text`.
    pub hot_text: SvmaRange,
    /// Copies of jump tables.
    pub tables: SvmaRange,
    /// The version's `.eh_frame`.
    pub eh_frame: SvmaRange,
    /// The version's `.eh_frame_hdr`: version 1, encodings 1b 03 3b, sorted.
    pub eh_frame_hdr: SvmaRange,
    /// Translated LSDAs.
    pub lsda: SvmaRange,
    /// Where each block went, sorted by `version`. A block that only jumped to its successor has an empty
    /// range.
    pub blocks: Vec<PlacedBlock>,
    /// Instruction-exact map between version and original addresses.
    pub map: AddressMap,
    /// 5-byte jumps that make the original code go to this version.
    pub redirects: Vec<Redirect>,
    /// Places of the module, outside of the version, that may lead straight into it in an output file. Sorted
    /// by address. Any subset of those whose kind [is optional](RetargetKind::is_optional); the others all
    /// together.
    pub retargets: Vec<Retarget>,
    /// Functions of which every pointer leads to the copy, sorted by original entry: all of the retargets
    /// that make these addresses are made, or the file is wrong. The version's own code relies on it.
    pub retargeted: Vec<RetargetedFunction>,
    /// Named pieces for symbol tables: `f`, `f.cold`-like, in address order.
    pub symbols: Vec<VersionSymbol>,
    /// What the version takes for granted of the process, sorted by slot: it is equal to the module only
    /// where these slots hold these addresses, for good.
    pub assumes: Vec<BoundSlot>,
    /// What the counters count, if this is a counting version.
    pub counters: Option<CounterTable>,
    /// What a tracing version records, if it is one ([`emit_burst`](crate::emit_burst)). Its map has no
    /// places.
    pub burst: Option<BurstTable>,
    /// What was asked for and left in the original code, with the reason.
    pub skipped: Vec<Skipped>,
}

impl Version {
    /// The addresses that are mapped.
    pub fn loaded(&self) -> SvmaRange {
        SvmaRange::new(self.range.start, self.loaded_len)
    }

    /// What is mapped for it beside [`Version::loaded`], for it to write: counters, or windows of records.
    pub fn written(&self) -> Option<SvmaRange> {
        self.counters.as_ref().map(|c| c.area).or(self.burst.as_ref().map(|b| b.window))
    }

    /// Bytes that it takes of a process's memory: code and tables, and what it writes, in whole pages.
    pub fn mapped_len(&self) -> u64 {
        self.loaded_len + self.written().map_or(0, |area| area.len().next_multiple_of(PAGE))
    }

    /// Where execution goes on in the version if it stands at `original`, an instruction boundary of the
    /// original code. `None` if that instruction was not copied. For a jump that the new order made
    /// superfluous, where it leads to.
    pub fn to_version(&self, original: Svma) -> Option<Svma> {
        self.map.to_version(original)
    }
}

/// A slot of the module's global offset table, and the address that it holds in the process for as long as
/// the module is loaded: the loader has filled it and made its page read-only. Both in the module's
/// coordinates.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BoundSlot {
    /// The slot's address, a multiple of 8.
    pub slot: Svma,
    /// What it holds, minus the module's load bias; mostly an address in another module.
    pub target: Svma,
}

/// One block's copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PlacedBlock {
    /// Which block.
    pub block: BlockId,
    /// A second copy, into which control only falls: the map's way back, redirects and all branches know the
    /// other one.
    pub duplicate: bool,
    /// Where its copy is: body, terminator in its new form, inserted code.
    pub version: SvmaRange,
}

/// A patch of the original code: `jmp to` over the 5 bytes at `at`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Redirect {
    /// Address in the original code of the first patched byte: behind `endbr64`, if there is one; of an entry
    /// behind the first instructions, where there is room.
    pub at: Svma,
    /// Address in the version: the equivalent of `at`.
    pub to: Svma,
    /// Whether it redirects a function entry, or another block that is reached from outside the version.
    pub kind: RedirectKind,
}

/// What a redirect is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum RedirectKind {
    /// The entry of a moved function.
    Entry,
    /// A landing pad, or a block that computed gotos or unrecognised jump tables reach.
    Landing,
}

/// A place of the module that may lead into the version instead of to the original code: not needed, but
/// shorter than the way through a redirect.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Retarget {
    /// What is written: the displacement of a branch or `lea`, the address that the loader relocates, or the
    /// value of a symbol.
    pub at: Svma,
    /// Where it leads in the original module.
    pub original: Svma,
    /// The equivalent in the version.
    pub to: Svma,
    /// What it is.
    pub kind: RetargetKind,
}

/// What leads into the version.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum RetargetKind {
    /// The last 4 bytes of a direct call (`e8`) or jump (`e9`) in code that is not copied.
    Displacement,
    /// 8 bytes with a relative relocation: the address of a label.
    Pointer,
    /// 8 bytes with a relative relocation: the address of a function.
    Function,
    /// The 4 bytes of displacement of a `lea` that makes the address of a function.
    Lea,
    /// The value of a dynamic symbol, 8 bytes; its size follows.
    Symbol,
}

impl RetargetKind {
    /// Whether the file is right without it. What makes the address of a function has to go with all others
    /// that do.
    pub fn is_optional(self) -> bool {
        matches!(self, Self::Displacement | Self::Pointer)
    }
    /// Bytes of what is written.
    pub fn bytes(self) -> u64 {
        match self {
            Self::Displacement | Self::Lea => 4,
            Self::Pointer | Self::Function => 8,
            Self::Symbol => 16,
        }
    }
}

/// A function of which every pointer is retargeted: it leads to the copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RetargetedFunction {
    /// Its entry in the original code.
    pub original: Svma,
    /// The copy of its entry, aligned as the entry is, up to 16 bytes.
    pub to: Svma,
    /// Bytes from there to the end of the function's code that stands there in one piece.
    pub len: u64,
}

/// A named range of the version.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VersionSymbol {
    /// `f`, or `f.cold`, or an invented `sub_401000` for a nameless function.
    pub name: String,
    /// What it names.
    pub range: SvmaRange,
}

/// The map between a version's addresses and the original's: piecewise linear, because instructions are
/// copied whole.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct AddressMap {
    /// Sorted by `version`, disjoint. Filler between fragments belongs to no piece. Several pieces may have
    /// the same original addresses (duplicates).
    pub pieces: Vec<MapPiece>,
    /// The way back: sorted by `original`. Where two places have the same `original`, the first one is where
    /// control comes in (a counter), the second the copied instruction.
    pub places: Vec<Place>,
}

/// Where original instructions went.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// First original address.
    pub original: Svma,
    /// Where control goes on in the version, in the same state.
    pub version: Svma,
    /// Length in bytes of the stretch in which the two correspond byte for byte; 1 for a single boundary.
    pub len: u32,
}

/// One piece of the map.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MapPiece {
    /// First address in the version.
    pub version: Svma,
    /// The equivalent original address.
    pub original: Svma,
    /// Length in bytes in the version.
    pub len: u32,
    /// How addresses inside the piece correspond.
    pub kind: PieceKind,
}

/// How addresses inside a piece correspond.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum PieceKind {
    /// Byte for byte: `original + (pc - version)`. Holds for each instruction boundary in it.
    Linear,
    /// The piece is one instruction that was written anew, a branch or the load of a jump-table entry; only
    /// its first byte is a boundary.
    Branch,
    /// A branch added for the new order: being at its start equals being at `original` (its target).
    Added,
    /// Inserted code that leaves the state alone (a counter, the comparison in front of a promoted call, and
    /// all but the last byte of its direct call): being at its start, or at any boundary in it that is listed
    /// as a piece of its own, equals being at `original`.
    Inserted,
    /// Inside inserted code where registers or stack hold temporary values: no equivalent. A thread that
    /// stands here has to be stepped on.
    Opaque,
}

/// What each counter of a counting version counts. Counter `i` is the little-endian word of
/// [`CounterTable::width`] at that many bytes times `i` of a writable area at [`CounterTable::area`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CounterTable {
    /// Where the area is, in canonical coordinates (it moves with the module): counters, then the words of
    /// votes.
    pub area: SvmaRange,
    /// How wide a counter is.
    pub width: CounterWidth,
    /// What each counter counts, in counter order: exactly what was asked for.
    pub counted: Vec<Counted>,
    /// Counters that nothing increments, sorted: their block was not placed, or the flags are live and the
    /// unwind state does not allow for temporary values on the stack. Take them as unknown, not as 0.
    pub missing: Vec<u32>,
    /// The indirect calls that have words for votes, sorted: exactly what was asked for.
    pub votes: Vec<CallId>,
}

impl CounterTable {
    /// Bytes of the counters.
    pub fn counters_len(&self) -> u64 {
        self.width.bytes() * self.counted.len() as u64
    }
    /// Where in the area the words of votes begin, in bytes.
    pub fn votes_offset(&self) -> u64 {
        votes_offset(self.width, self.counted.len())
    }
    /// Where in the words of votes each one is.
    pub fn vote_area(&self) -> VoteArea {
        VoteArea { calls: self.votes.len() }
    }
}

/// Something that stays in the original code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Skipped {
    /// Its function.
    pub function: FuncId,
    /// The block, where it concerns only one.
    pub block: Option<BlockId>,
    /// Why.
    pub why: SkipReason,
}

/// Why something stays in the original code.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum SkipReason {
    /// The function is not movable.
    NotMovable,
    /// An instruction cannot be re-expressed at the new address (operand out of 32-bit reach).
    OutOfReach,
    /// The entry cannot take a redirect.
    NotRedirectable,
    /// Its unwind information cannot be translated.
    Unwind,
    /// A jump table may not be copied; its jump goes to the original code.
    TableNotCopied,
    /// A cold block with a static probe: tracers find it where it is.
    StaticProbe,
}

impl AddressMap {
    /// The version's equivalent of `original`, an instruction boundary: see [`Version::to_version`].
    pub fn to_version(&self, original: Svma) -> Option<Svma> {
        let i = self.places.partition_point(|p| p.original <= original).checked_sub(1)?;
        let mut place = &self.places[i];
        if place.original == original && i > 0 && self.places[i - 1].original == original {
            place = &self.places[i - 1];
        }
        let delta = original.offset_from(place.original) as u64;
        (delta < u64::from(place.len)).then(|| place.version + delta)
    }

    /// The original address that is equivalent to standing at `version`, if it is an instruction boundary
    /// with one. (For [`PieceKind::Linear`] the caller vouches for the boundary.)
    pub fn to_original(&self, version: Svma) -> Option<Svma> {
        // Distances, not addresses: a version below a module may wrap around the top of the address space.
        let first = self.pieces.first()?.version;
        let distance = |at: Svma| at.get().wrapping_sub(first.get());
        let i = self.pieces.partition_point(|p| distance(p.version) <= distance(version)).checked_sub(1)?;
        let piece = &self.pieces[i];
        let delta = version.offset_from(piece.version) as u64;
        match piece.kind {
            _ if delta >= u64::from(piece.len) => None,
            PieceKind::Linear => Some(piece.original + delta),
            PieceKind::Branch | PieceKind::Added | PieceKind::Inserted => {
                (delta == 0).then_some(piece.original)
            }
            PieceKind::Opaque => None,
        }
    }
}
