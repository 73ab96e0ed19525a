//! One linear decoding pass over all functions, kept as eight bytes per instruction.
//!
//! A 22 MB text has 5.3 million instructions; everything after this pass works on the compact records and on
//! bit sets over text bytes, so that the bytes are decoded once.

use crate::address_set::{AddressSet, Ranked};
use crate::frame_doubt::{FrameDoubt, FrameWatch};
use crate::function_source::FunctionRange;
use restitch_address::{Svma, SvmaRange};
use restitch_cfi::{UnwindForm, UnwindPiece};
use restitch_image::{Image, ImageKind};
use restitch_x86::entry::entry_marker;
use restitch_x86::{Condition, Flow, Insn, Naming, scan_lock_skips};

/// What is read at an address in front of a function and an index is taken to reach so many bytes from the
/// address.
pub(crate) const INDEXED_BYTES: u64 = 16;

/// What kind of instruction, without its target.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Next,
    Jump,
    Conditional(Condition),
    ShortConditional,
    IndirectJump,
    Call,
    IndirectCall,
    Return,
    Stop,
    Unsupported,
    Padding,
}

impl Kind {
    /// Whether the instruction ends a basic block.
    pub fn ends_block(self) -> bool {
        use Kind::*;
        matches!(self, Jump | Conditional(_) | ShortConditional | IndirectJump | Return | Stop | Unsupported)
    }
}

/// One instruction.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Mini {
    /// Offset from [`Sweep::base`].
    pub at: u32,
    pub len: u8,
    pub kind: Kind,
    /// Status flags read and written, as in [`Insn`].
    pub reads: u8,
    pub writes: u8,
}

/// One function's instructions.
#[derive(Debug, Clone)]
pub(crate) struct Span {
    pub range: SvmaRange,
    /// What unwinders know of its start, if anything.
    pub unwind: Option<UnwindPiece>,
    /// Its records: `minis[first..first + count]`.
    pub first: usize,
    pub count: usize,
    /// Whether all bytes decode.
    pub decodable: bool,
    /// What it may do with its return address.
    pub doubt: FrameDoubt,
    /// Whether it is not known where its functions begin and end; it is not decoded then.
    pub overlapping: bool,
}

impl Span {
    /// Whether unwinders take it for what the kernel enters to handle a signal.
    pub fn is_signal_frame(&self) -> bool {
        self.unwind.is_some_and(|piece| piece.signal_frame)
    }
}

/// An address inside the text that an operand names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Named {
    /// Where the instruction is.
    pub at: Svma,
    /// What it names.
    pub to: Svma,
    /// What it does with that.
    pub naming: Naming,
    /// Bytes that it reads or writes there.
    pub accessed: u8,
}

/// The result of the pass.
pub(crate) struct Sweep {
    pub base: Svma,
    pub text: SvmaRange,
    pub spans: Vec<Span>,
    pub minis: Vec<Mini>,
    /// Direct branches and calls: (address, target), sorted by address.
    pub targets: Vec<(Svma, Svma)>,
    /// Indirect jumps and calls: indices of their records, in order.
    pub indirect: Vec<u32>,
    /// Addresses inside the text, or a few bytes in front of it, that an operand names, sorted by
    /// instruction.
    pub named: Vec<Named>,
    /// Instructions that no compiler writes, sorted.
    pub odd: Vec<Svma>,
    /// Addresses outside the text that an operand names (table candidates and GOT slots): (address of the
    /// instruction, named address), sorted.
    pub data_named: Vec<(Svma, Svma)>,
    /// Whether the file's addresses are fixed, so that numbers in its code may be addresses.
    fixed: bool,
    /// Instruction boundaries: those of `minis`.
    pub starts: Ranked,
    /// Addresses of `targets`.
    sources: Ranked,
    /// Starts of `spans`.
    heads: Ranked,
    /// Function starts with a marker of indirect branch targets.
    pub marked: AddressSet,
}

impl Sweep {
    /// Decodes each of `functions` (sorted, disjoint).
    pub fn run(image: &Image, unwind: &dyn UnwindForm, functions: &[FunctionRange]) -> Self {
        let text = match (functions.first(), functions.last()) {
            (Some(first), Some(last)) => SvmaRange::between(first.range.start, last.range.end),
            _ => SvmaRange::default(),
        };
        let mut sweep = Self {
            base: text.start,
            text,
            spans: Vec::with_capacity(functions.len()),
            minis: Vec::with_capacity((text.len() / 4) as usize),
            targets: Vec::with_capacity((text.len() / 20) as usize),
            indirect: Vec::new(),
            named: Vec::new(),
            odd: Vec::new(),
            fixed: image.kind() == ImageKind::Executable,
            data_named: Vec::new(),
            starts: Ranked::default(),
            sources: Ranked::default(),
            heads: Ranked::default(),
            marked: AddressSet::new(text),
        };
        let mut starts = AddressSet::new(text);
        for function in functions {
            sweep.decode(image, unwind, function);
            let minis = &sweep.minis[sweep.spans.last().map_or(0, |span| span.first)..];
            minis.iter().for_each(|mini| starts.insert(sweep.address(mini)));
        }
        sweep.starts = Ranked::of(starts);
        sweep.sources = Ranked::new(text, sweep.targets.iter().map(|t| t.0));
        sweep.heads = Ranked::new(text, sweep.spans.iter().map(|s| s.range.start));
        sweep
    }

    fn decode(&mut self, image: &Image, unwind: &dyn UnwindForm, function: &FunctionRange) {
        let &FunctionRange { range, overlapping } = function;
        let first = self.minis.len();
        let marks = (self.odd.len(), self.named.len(), self.data_named.len(), self.indirect.len());
        let bytes = image.read(range.start, range.len() as usize);
        if bytes.is_some_and(|bytes| entry_marker(bytes) > 0) {
            self.marked.insert(range.start);
        }
        let piece = unwind.piece_at(range.start);
        let frames = piece.and_then(|piece| unwind.frame_addresses_of(&piece).ok());
        let mut watch = FrameWatch::new(frames.unwrap_or_default());
        let see = |insn: Insn| {
            watch.see(&insn);
            self.note(&insn);
        };
        let decodable =
            !overlapping && bytes.is_some_and(|bytes| scan_lock_skips(bytes, range.start, see).is_ok());
        if !decodable {
            // Keep the branches that were seen as leaders elsewhere, but none of the instructions.
            self.minis.truncate(first);
            self.odd.truncate(marks.0);
            self.named.truncate(marks.1);
            self.data_named.truncate(marks.2);
            self.indirect.truncate(marks.3);
        }
        let (count, doubt) = (self.minis.len() - first, watch.finish());
        self.spans.push(Span { range, unwind: piece, first, count, decodable, doubt, overlapping });
    }

    fn note(&mut self, insn: &Insn) {
        let kind = match insn.flow {
            Flow::Next if insn.padding => Kind::Padding,
            Flow::Next => Kind::Next,
            Flow::Jump(_) => Kind::Jump,
            Flow::Conditional(cc, _) => Kind::Conditional(cc),
            Flow::ShortConditional(_) => Kind::ShortConditional,
            Flow::IndirectJump => Kind::IndirectJump,
            Flow::Call(_) => Kind::Call,
            Flow::IndirectCall => Kind::IndirectCall,
            Flow::Return => Kind::Return,
            Flow::Stop => Kind::Stop,
            Flow::Unsupported => Kind::Unsupported,
        };
        if let Flow::Jump(to) | Flow::Conditional(_, to) | Flow::ShortConditional(to) | Flow::Call(to) =
            insn.flow
        {
            self.targets.push((insn.at, to));
        }
        if let Some(named) = insn.names {
            let &Insn { at, naming, accessed, .. } = insn;
            let reach = INDEXED_BYTES.max(accessed.into());
            if self.text.contains(named) || self.text.contains(named + (reach - 1)) {
                if self.fixed || matches!(naming, Naming::Address | Naming::Access) {
                    self.named.push(Named { at, to: named, naming, accessed });
                }
            } else if insn.flow != Flow::Next || insn.len >= 7 {
                self.data_named.push((insn.at, named));
            }
        }
        if insn.odd {
            self.odd.push(insn.at);
        }
        if matches!(kind, Kind::IndirectJump | Kind::IndirectCall) {
            self.indirect.push(self.minis.len() as u32);
        }
        self.minis.push(Mini {
            at: insn.at.offset_from(self.base) as u32,
            len: insn.len,
            kind,
            reads: insn.flags_read,
            writes: insn.flags_written,
        });
    }

    /// Address of an instruction.
    pub fn address(&self, mini: &Mini) -> Svma {
        self.base + u64::from(mini.at)
    }
    /// The direct target of the branch or call at `at`.
    pub fn target_of(&self, at: Svma) -> Option<Svma> {
        self.sources.index_of(at).map(|i| self.targets[i].1)
    }
    /// The direct branches and calls of `range`.
    pub fn targets_in(&self, range: SvmaRange) -> &[(Svma, Svma)] {
        let from = self.sources.below(range.start);
        &self.targets[from..self.sources.below(range.end).max(from)]
    }
    /// The index of the record of the instruction that starts at `at`.
    pub fn mini_at(&self, at: Svma) -> Option<usize> {
        self.starts.index_of(at)
    }
    /// The indirect jumps and calls of a span: indices of their records.
    pub fn indirect_of(&self, span: &Span) -> &[u32] {
        let from = self.indirect.partition_point(|i| (*i as usize) < span.first);
        let behind = self.indirect[from..].partition_point(|i| (*i as usize) < span.first + span.count);
        &self.indirect[from..from + behind]
    }
    /// The text address or data address that the instruction at `at` names.
    pub fn named_by(&self, at: Svma) -> Option<Svma> {
        let in_text = self.named.binary_search_by_key(&at, |n| n.at).map(|i| self.named[i].to);
        let data = || self.data_named.binary_search_by_key(&at, |t| t.0).map(|i| self.data_named[i].1);
        in_text.or_else(|_| data()).ok()
    }
    /// The span that holds `at`.
    pub fn span_at(&self, at: Svma) -> Option<usize> {
        if !self.text.contains(at) {
            return None;
        }
        let i = self.heads.below(at + 1).checked_sub(1)?;
        self.spans[i].range.contains(at).then_some(i)
    }
    /// Whether a function starts at `at`.
    pub fn is_head(&self, at: Svma) -> bool {
        self.heads.contains(at)
    }
    /// Whether a function ends at `at`: in front of padding, or of the next one.
    pub fn is_end(&self, at: Svma) -> bool {
        let before = self.heads.below(at);
        before > 0 && self.spans[before - 1].range.end == at
    }
    /// The records of a span.
    pub fn minis_of(&self, span: &Span) -> &[Mini] {
        &self.minis[span.first..][..span.count]
    }
}
