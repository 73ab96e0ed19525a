//! The tables of a [`Program`] and how they refer to each other.

use bitflags::bitflags;
use restitch_address::{Svma, SvmaRange, typed_index};
use restitch_x86::Condition;

typed_index!(
    /// A function: one `.eh_frame` FDE range. A split function's `f.cold` part is a function of its own.
    FuncId
);
typed_index!(
    /// A basic block.
    BlockId
);
typed_index!(
    /// A control-flow edge between two blocks of the module.
    EdgeId
);
typed_index!(
    /// A call site.
    CallId
);
typed_index!(
    /// A recognised jump table.
    TableId
);

/// One module's code, analysed.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Program {
    /// Sorted by start address, disjoint.
    pub functions: Vec<Function>,
    /// Sorted by start address; a function's blocks are consecutive and tile its range.
    pub blocks: Vec<Block>,
    /// Sorted by source block, then kind. A block's `first_edge` and `edge_count` give the outgoing ones.
    pub edges: Vec<Edge>,
    /// Sorted by the address of the call instruction. Tail calls are not here: they are terminators.
    pub calls: Vec<CallSite>,
    /// Sorted by the address of the indirect jump.
    pub tables: Vec<JumpTable>,
}

/// One FDE range.
#[derive(Debug, Clone, PartialEq)]
pub struct Function {
    /// The bytes that the function covers.
    pub range: SvmaRange,
    /// From a symbol, if the file has any for this address.
    pub name: Option<Box<str>>,
    /// Its blocks. None if it is not known to be code throughout.
    pub blocks: BlockRange,
    /// Whether its blocks may be copied into a version, and if not, why.
    pub movability: Movability,
    /// Whether the entry (behind its marker) can take a redirect: no branch target, landing pad or indirect
    /// target lies in the bytes behind the first one that the redirect would cover, and the function is long
    /// enough.
    pub redirectable: bool,
}

/// Why a function's blocks may or may not be copied.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Movability {
    /// Its blocks may be copied.
    Movable,
    /// Its bytes do not decode as instructions to its end, or a branch goes into the middle of an instruction
    /// or to where the module has no code (where a version may come to lie).
    Undecodable,
    /// A restartable sequence (`rseq`) or its abort handler.
    RestartableSequence,
    /// Its unwind information describes a signal frame, or cannot be expressed for a copy.
    OddUnwindInfo,
    /// The run time compares program counters with addresses inside it (glibc's cancellation points).
    ComparedByRuntime,
    /// What unwinders ask for the tables of a program counter: its entry belongs to the hook of live
    /// processes.
    UnwinderLookup,
    /// A procedure linkage table: stubs that are reached through their slots.
    Linkage,
    /// The loader writes into its bytes (text relocations): the file's are not those that run.
    WrittenByLoader,
    /// Its compiler has noted a place in it that is made to be written to while the program runs
    /// ([`Image::patch_points`](restitch_image::Image::patch_points)): a copy would not be changed.
    PatchPoint,
    /// Its bytes are writable, so the program may change them: a copy would not be changed.
    WritableCode,
    /// Its bytes in the process differ from the file (breakpoints, hooks): a copy would lose that.
    ChangedInMemory,
    /// It calls code that changes its return address, or reads what stands behind the call, which may be no
    /// code.
    ReturnsElsewhere,
    /// Its unwind range, or its last instruction, overlaps another function's.
    Overlapping,
    /// The module's run time looks code addresses up in tables of its own
    /// ([`Image::run_time`](restitch_image::Image::run_time)).
    RunTime,
    /// Addresses in the middle of it are known outside of it, and it is no target of computed jumps: who
    /// knows them compares program counters with them (handlers of faults), or reads data there.
    KnownLabels,
    /// A jump goes to an address in it with something computed added: into the middle of an unrolled loop,
    /// say. Any of its instructions may be the target.
    ComputedTargets,
    /// It looks at the program counter: at rcx behind a system call, at what its calls have left below the
    /// stack pointer, or by storing the state of the x87 unit.
    OwnPosition,
    /// Its handler of exceptions is not known to read what a copy's tables have: landing pads in front of the
    /// code that leads to them.
    UnknownPersonality,
    /// Not all of its bytes are known to be code: something reads them, or nothing leads to them and they are
    /// no clean code.
    DataInside,
    /// The user wants it to stay.
    Skipped,
}

/// Consecutive blocks: those of one function. It may be empty, and then there is no first one to ask for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Hash)]
pub struct BlockRange {
    first: BlockId,
    count: u32,
}

impl BlockRange {
    /// The `count` blocks from `first` on.
    pub fn new(first: BlockId, count: u32) -> Self {
        Self { first, count }
    }
    /// The first one, if there is any.
    pub fn first(self) -> Option<BlockId> {
        (self.count > 0).then_some(self.first)
    }
    /// How many there are.
    pub fn len(self) -> usize {
        self.count as usize
    }
    /// One more behind them.
    pub(crate) fn grow(&mut self) {
        self.count += 1;
    }
    /// Whether there is none.
    pub fn is_empty(self) -> bool {
        self.count == 0
    }
    /// Their indices in [`Program::blocks`].
    pub fn indices(self) -> std::ops::Range<usize> {
        self.first.index()..self.first.index() + self.len()
    }
}

impl Function {
    /// The block that it is entered by, if it has blocks.
    pub fn entry_block(&self) -> Option<BlockId> {
        self.blocks.first()
    }
}

bitflags! {
    /// Facts about a block.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Hash)]
    pub struct BlockAttrs: u8 {
        /// First block of its function.
        const ENTRY = 1;
        /// An exception landing pad according to the function's LSDA.
        const LANDING_PAD = 2;
        /// Can be reached by an indirect jump that no copied jump table serves: a computed-goto label, an
        /// address taken, an entry of a table that cannot be copied, the return point behind a pinned call.
        const INDIRECT = 4;
        /// Is the target of a direct branch or call from anywhere in the module.
        const BRANCH_TARGET = 8;
        /// Nothing but padding (`nop`, `int3`) that no branch reaches.
        const PADDING = 16;
        /// The status flags are live on entry: something may read them before it writes them.
        const FLAGS_LIVE_IN = 32;
        /// Stays in the original code although its function is movable: it calls something that looks at its
        /// return address or resumes it in odd ways (`setjmp`, `vfork`, `dlsym`, a position by `call` and
        /// `pop`, `__morestack`). Jumps to it go to the original code.
        const PINNED = 64;
        /// Control comes here in no way that is known: it may be data that decodes. Neither copied nor
        /// written over.
        const UNREACHED = 128;
    }
}

/// A basic block: entered at its start only, left at its end only (calls inside it return to it).
#[derive(Debug, Clone, PartialEq)]
pub struct Block {
    /// Address of the first instruction.
    pub start: Svma,
    /// Length in bytes, terminator included.
    pub len: u32,
    /// Length in bytes of the terminator instruction; 0 where the block just falls through.
    pub terminator_len: u8,
    /// Facts.
    pub attrs: BlockAttrs,
    /// The function that it belongs to.
    pub function: FuncId,
    /// How it ends.
    pub terminator: Terminator,
    /// First outgoing edge in [`Program::edges`].
    pub first_edge: EdgeId,
    /// Number of outgoing edges.
    pub edge_count: u32,
    /// First call site in [`Program::calls`].
    pub first_call: CallId,
    /// Number of call sites in the block.
    pub call_count: u32,
}

impl Block {
    /// The bytes of the block.
    pub fn range(&self) -> SvmaRange {
        SvmaRange::new(self.start, u64::from(self.len))
    }
    /// First address behind the block.
    pub fn end(&self) -> Svma {
        self.start + u64::from(self.len)
    }
    /// Address of the terminator instruction (= `end()` where the block just falls through).
    pub fn terminator_at(&self) -> Svma {
        self.end() - u64::from(self.terminator_len)
    }
}

/// How a block ends. Addresses are those of the original code; [`Program::block_starting_at`] finds the
/// block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Terminator {
    /// No branch: control goes on at `end()`.
    FallThrough,
    /// `jmp target`. The target may lie outside the module's known blocks.
    Jump(Svma),
    /// `jcc target`; else control goes on at `end()`.
    Conditional(Condition, Svma),
    /// `loop`, `loope`, `loopne`, `jrcxz`, `jecxz`: conditional, but with one 8-bit encoding only (a copy
    /// keeps the original bytes up to the displacement).
    ShortConditional(Svma),
    /// `jmp` through a table that was recognised.
    Table(TableId),
    /// An indirect jump that is not understood, or an indirect tail call. Needs no understanding to be
    /// copied.
    IndirectJump,
    /// `ret` and its relatives.
    Return,
    /// A trap: `ud2`, `ud1`, `hlt`, `int3`. Control goes on only where a signal handler makes it, as a rule
    /// at `end()`. It has no edge.
    Stop,
}

/// [`Program::behind_trap`] of block number `index` of `blocks`.
pub(crate) fn behind_trap(blocks: &[Block], index: usize) -> Option<usize> {
    let trap = blocks.get(index).filter(|block| block.terminator == Terminator::Stop)?;
    let next = blocks.get(index + 1)?;
    (next.start == trap.end() && next.function == trap.function).then_some(index + 1)
}

/// What kind of edge.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum EdgeKind {
    /// The branch is not taken, or there is no branch.
    FallThrough,
    /// The direct branch is taken.
    Taken,
    /// Through a recognised jump table (one edge a distinct target).
    Table,
}

/// A control-flow edge. It may cross functions (`f` to `f.cold`, tail calls).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Edge {
    /// Source block.
    pub from: BlockId,
    /// Kind.
    pub kind: EdgeKind,
    /// Target block.
    pub to: BlockId,
}

/// Where a call goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum CallTarget {
    /// `call target` to code of this module (also to its PLT).
    Direct(Svma),
    /// Through a register or memory.
    Indirect,
}

/// A `call` instruction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct CallSite {
    /// Address of the call instruction.
    pub at: Svma,
    /// Its length in bytes; `at + len` is the return address.
    pub len: u8,
    /// The block that holds it.
    pub block: BlockId,
    /// Where it goes.
    pub target: CallTarget,
}

/// How a table's entries encode their targets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum TableEncoding {
    /// 8-byte absolute addresses: `jmp *table(,%reg,8)` or load and jump.
    Absolute8,
    /// 4-byte signed offsets: `movslq (%base,%i,4),%r; add %base,%r; jmp *%r`.
    Relative4,
}

/// A recognised jump table: the register that holds its address at the load is known to hold it on every
/// path.
///
/// A version dispatches through a copy of the table. Registers keep their original values: the copy's entries
/// are relative to the *original* table ([`TableEncoding::Relative4`]) or absolute, and only the displacement
/// of the instruction at `load_at` changes, by the distance between the tables. Between the load and the jump
/// one register holds a version address; a thread must not be moved there.
#[derive(Debug, Clone, PartialEq)]
pub struct JumpTable {
    /// The indirect jump that uses it.
    pub jump_at: Svma,
    /// The instruction that loads the entry: `movslq (base,index,4),r`, `mov table(,index,8),r`, or the jump
    /// itself. In the same block as the jump.
    pub load_at: Svma,
    /// Address of its first entry, in data that does not change. (The load may name one further on.)
    pub table: Svma,
    /// Address that is added to a [`TableEncoding::Relative4`] entry (the table itself for GCC and Clang).
    pub base: Svma,
    /// Encoding of the entries.
    pub encoding: TableEncoding,
    /// Targets in table order, as far as the table is believed to go. All are block starts of the same
    /// module, or the end of a function, where no code is: what the compiler knows to be unreachable. The
    /// latter make no edges.
    pub targets: Vec<Svma>,
    /// Further entries behind them that still look like targets. They make no edges, but a copy holds them
    /// too: a copy that is too short is a crash, one that is too long is not.
    pub tail: Vec<Svma>,
    /// Whether a version may use a copy. If not, the copied jump goes through the original table to the
    /// original code.
    pub copyable: bool,
}

impl JumpTable {
    /// Where its entries are, those included that only look like such.
    pub fn range(&self) -> SvmaRange {
        let entry = match self.encoding {
            TableEncoding::Absolute8 => 8,
            TableEncoding::Relative4 => 4,
        };
        SvmaRange::new(self.table, entry * (self.targets.len() + self.tail.len()) as u64)
    }
}

impl Program {
    /// The block of this index.
    pub fn block(&self, id: BlockId) -> &Block {
        &self.blocks[id.index()]
    }
    /// The function of this index.
    pub fn function(&self, id: FuncId) -> &Function {
        &self.functions[id.index()]
    }
    /// All block indices, in address order.
    pub fn block_ids(&self) -> impl DoubleEndedIterator<Item = BlockId> + use<> {
        (0..self.blocks.len() as u32).map(BlockId)
    }
    /// All function indices, in address order.
    pub fn function_ids(&self) -> impl DoubleEndedIterator<Item = FuncId> + use<> {
        (0..self.functions.len() as u32).map(FuncId)
    }
    /// The blocks of a function, in address order.
    pub fn blocks_of(&self, function: FuncId) -> impl DoubleEndedIterator<Item = BlockId> + use<> {
        self.function(function).blocks.indices().map(BlockId::from_index)
    }
    /// The block that a function is entered by, if it has blocks.
    pub fn entry_block(&self, function: FuncId) -> Option<BlockId> {
        self.function(function).entry_block()
    }
    /// Outgoing edges of a block, with their indices.
    pub fn out_edges(&self, block: BlockId) -> impl DoubleEndedIterator<Item = (EdgeId, &Edge)> {
        let b = self.block(block);
        let first = b.first_edge.0;
        (first..first + b.edge_count).map(|e| (EdgeId(e), &self.edges[e as usize]))
    }
    /// Call sites of a block, in address order.
    pub fn calls_of(&self, block: BlockId) -> &[CallSite] {
        let b = self.block(block);
        &self.calls[b.first_call.index()..][..b.call_count as usize]
    }
    /// The function whose range holds `at`.
    pub fn function_at(&self, at: Svma) -> Option<FuncId> {
        let i = self.functions.partition_point(|f| f.range.start <= at).checked_sub(1)?;
        self.functions[i].range.contains(at).then_some(FuncId(i as u32))
    }
    /// The block whose range holds `at`.
    pub fn block_at(&self, at: Svma) -> Option<BlockId> {
        let i = self.blocks.partition_point(|b| b.start <= at).checked_sub(1)?;
        self.blocks[i].range().contains(at).then_some(BlockId(i as u32))
    }
    /// The block that starts exactly at `at`.
    pub fn block_starting_at(&self, at: Svma) -> Option<BlockId> {
        self.blocks.binary_search_by_key(&at, |b| b.start).ok().map(|i| BlockId(i as u32))
    }
    /// The block behind a trap, where a handler that steps over it goes on: in the same function.
    pub fn behind_trap(&self, block: BlockId) -> Option<BlockId> {
        behind_trap(&self.blocks, block.index()).map(BlockId::from_index)
    }
    /// Whether a function ends at `at` and no block starts there: no execution of a jump table's entry leads
    /// there.
    pub fn is_unreachable_entry(&self, at: Svma) -> bool {
        let before = self.functions.partition_point(|f| f.range.start < at);
        before > 0 && self.functions[before - 1].range.end == at && self.block_starting_at(at).is_none()
    }
    /// Whether the block may be copied: its function is movable, and the block is neither pinned nor padding,
    /// and something leads to it.
    pub fn is_movable(&self, block: BlockId) -> bool {
        let b = self.block(block);
        self.function(b.function).movability == Movability::Movable
            && !b.attrs.intersects(BlockAttrs::PINNED | BlockAttrs::PADDING | BlockAttrs::UNREACHED)
    }
    /// The block that control falls through to, where the terminator allows it and such a block exists.
    pub fn fall_through(&self, block: BlockId) -> Option<BlockId> {
        let b = self.block(block);
        match b.terminator {
            Terminator::FallThrough | Terminator::Conditional(..) | Terminator::ShortConditional(_) => {
                self.block_starting_at(b.end())
            }
            _ => None,
        }
    }
    /// The jump table of this index.
    pub fn table(&self, id: TableId) -> &JumpTable {
        &self.tables[id.index()]
    }
    /// Forbids copies of jump tables: versions jump by the original ones, to blocks of the original code,
    /// which are marked as reached so ([`BlockAttrs::INDIRECT`]).
    pub fn keep_tables(&mut self) {
        let targets = self.tables.iter().flat_map(|table| &table.targets);
        let targets: Vec<BlockId> = targets.filter_map(|to| self.block_starting_at(*to)).collect();
        for block in targets {
            self.blocks[block.index()].attrs |= BlockAttrs::INDIRECT;
        }
        self.tables.iter_mut().for_each(|table| table.copyable = false);
    }
}
