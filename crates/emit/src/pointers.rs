//! Functions whose address may be that of their copy: everything that makes it is known.
//!
//! **Problem.** What calls a function through a pointer comes to its old entry and goes on by the redirect
//! there: a line of the instruction cache with five useful bytes, each time.
//!
//! **Idea.** In a position-independent file the address of a function is made in a few ways only: by relative
//! relocations, by the dynamic symbol table, through which all modules get it, and by `lea`. If all of them
//! make the address of the copy, programs that compare such addresses find equal what was equal and different
//! what was different. So either all of a function's makers are changed, or none.
//!
//! **Left out** are functions that something else might know: what the loader enters by a header or asks for
//! an address (IFUNCs, IRELATIVE), an address that is also a label's or an object's, operands that read a
//! function's bytes or lead into its middle (code that is measured or compared with a program counter),
//! addresses that something is computed from (the large code model's way to the global offset table), entries
//! of tables of offsets, symbols with addends, data directly in front of the entry (which is found through
//! the function's address), and in code that is not understood any four bytes that could be such a
//! displacement.
//!
//! **Limits.** Arithmetic whose parts nobody can see (offsets from an unknown base) makes the old address:
//! what is called through it does what it did, but it differs from the address that all others make. A
//! function that also marks where some part of the code begins cannot be told from others where no symbol
//! says so.

use crate::function_alignment::FunctionAlignment;
use crate::model::RetargetKind;
use crate::possible_operands::possible_operands;
use restitch_address::{Svma, SvmaRange};
use restitch_image::{Image, ImageKind, RelocationKind};
use restitch_program::{BlockAttrs, BlockId, FuncId, Movability, Program, Terminator, follow_address};
use restitch_x86::elf::is_of_objects_alone;
use restitch_x86::possible::{WIDE_LEA, is_wide_lea};
use restitch_x86::{decode_one, relocate_field};
use std::collections::HashMap;

/// Length in bytes of `lea displacement(%rip),register`.
pub(crate) const LEA: u64 = WIDE_LEA as u64;
/// Bytes of the longest instruction, of a branch over a prefix and that instruction.
const LONGEST: usize = restitch_x86::LONGEST + 2;
/// An address is followed through at most this many instructions.
const FOLLOWED: usize = 512;
/// More bytes than this in front of an entry that are no padding are something else.
const GAP: u64 = 4096;

/// The functions of a file of which every maker of the address is known, with these.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Pointers {
    /// Sorted.
    functions: Vec<FuncId>,
    /// Sorted by function.
    makers: Vec<Maker>,
    alignment: FunctionAlignment,
}

/// A place that makes the address of a function.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Maker {
    function: FuncId,
    /// The displacement, the relocated word or the symbol's value.
    pub at: Svma,
    /// What it is.
    pub kind: RetargetKind,
}

impl Pointers {
    /// Finds them. None in a program at fixed addresses, where any number might be an address.
    pub fn of(image: &Image, program: &Program) -> Self {
        let mut search = Search::new(image, program);
        if search.is_possible() {
            search.entered_by_others();
            search.relocations();
            search.symbols();
            search.code();
            search.offsets();
            search.surroundings();
            search.finish()
        } else {
            Self::default()
        }
    }

    /// Leaves those for which `wanted` holds.
    pub fn keep(&mut self, wanted: impl Fn(FuncId) -> bool) {
        self.functions.retain(|f| wanted(*f));
        let kept = &self.functions;
        self.makers.retain(|m| kept.binary_search(&m.function).is_ok());
    }

    /// The functions, sorted.
    pub fn functions(&self) -> &[FuncId] {
        &self.functions
    }

    /// What a copy of this entry has to be aligned to, in bytes: low bits of pointers may hold something
    /// else.
    pub(crate) fn alignment_of(&self, entry: Svma) -> u32 {
        self.alignment.at(entry)
    }

    /// All that makes the address of one of them.
    pub(crate) fn makers_of(&self, function: FuncId) -> &[Maker] {
        let from = self.makers.partition_point(|m| m.function < function);
        let to = self.makers.partition_point(|m| m.function <= function);
        &self.makers[from..to]
    }
}

struct Search<'a> {
    image: &'a Image,
    program: &'a Program,
    /// Functions that have a chance, by their entry.
    entries: HashMap<Svma, FuncId>,
    /// Those that have lost it, by function.
    lost: Vec<bool>,
    makers: Vec<Maker>,
    /// From the first function to the last one.
    span: SvmaRange,
}

impl<'a> Search<'a> {
    fn new(image: &'a Image, program: &'a Program) -> Self {
        let movable = |f: &FuncId| {
            let function = program.function(*f);
            function.movability == Movability::Movable && !function.blocks.is_empty()
        };
        let entries: HashMap<Svma, FuncId> =
            program.function_ids().filter(movable).map(|f| (program.function(f).range.start, f)).collect();
        let start = program.functions.iter().map(|f| f.range.start).min().unwrap_or_default();
        let end = program.functions.iter().map(|f| f.range.end).max().unwrap_or_default();
        let lost = vec![false; program.functions.len()];
        Self { image, program, entries, lost, makers: Vec::new(), span: SvmaRange::between(start, end) }
    }

    /// Whether the loader and the kinds of relocations are such that makers can be told.
    fn is_possible(&self) -> bool {
        let segments = self.image.segments();
        let code = |at: Svma| segments.iter().any(|s| s.executable && s.range.contains(at));
        self.image.kind() != ImageKind::Executable
            && !self.image.dynamic().text_relocations
            && !segments.iter().any(|s| s.executable && s.writable)
            && self.image.relocations().iter().all(|r| match r.kind {
                RelocationKind::Other(kind) => is_of_objects_alone(kind) && !code(r.at),
                _ => !code(r.at),
            })
    }

    /// Something else knows what is at `at`.
    fn lose(&mut self, at: Svma) {
        if let Some(f) = self.entries.get(&at) {
            self.lost[f.index()] = true;
        }
    }

    fn made(&mut self, function: FuncId, at: Svma, kind: RetargetKind) {
        self.makers.push(Maker { function, at, kind });
    }

    /// What the loader or the kernel enters, and what is no function's name.
    fn entered_by_others(&mut self) {
        let image = self.image;
        let dynamic = image.dynamic();
        let headers = [Some(image.entry()), dynamic.init, dynamic.fini];
        headers.into_iter().flatten().for_each(|at| self.lose(at));
        image.labels().into_iter().for_each(|at| self.lose(at));
        let others =
            image.symbols_with_aliases().iter().filter(|s| s.kind != restitch_image::SymbolKind::Function);
        others.for_each(|s| self.lose(s.range.start));
    }

    fn relocations(&mut self) {
        let relocations = self.image.relocations();
        for r in relocations {
            match r.kind {
                RelocationKind::Relative { target } => {
                    if let Some(&f) = self.entries.get(&target) {
                        self.made(f, r.at, RetargetKind::Function);
                    }
                }
                RelocationKind::Symbolic { definition: Some(at), addend, .. } if addend != 0 => {
                    self.lose(at);
                    self.lose(at.offset(addend));
                }
                RelocationKind::IRelative { resolver } => self.lose(resolver),
                _ => {}
            }
        }
        for pair in relocations.windows(2).filter(|pair| pair[1].at.offset_from(pair[0].at) < 8) {
            for r in pair {
                if let RelocationKind::Relative { target } = r.kind {
                    self.lose(target);
                }
            }
        }
    }

    fn symbols(&mut self) {
        for symbol in self.image.exported() {
            match self.entries.get(&symbol.value) {
                Some(&f) if symbol.is_function() => {
                    self.made(f, symbol.entry + restitch_image::ExportedSymbol::VALUE, RetargetKind::Symbol);
                }
                _ => self.lose(symbol.value),
            }
        }
    }

    /// Looks at every four bytes of code that could be the displacement of an operand, whether they are known
    /// to be one or not.
    fn code(&mut self) {
        possible_operands(self.image, |field, targets| {
            for target in targets {
                if self.span.contains(target) || target == self.span.end {
                    self.operand(field, target);
                }
            }
        });
    }

    /// At `field` stand four bytes that would lead to `target`.
    fn operand(&mut self, field: Svma, target: Svma) {
        let (is_lea, leads_to) = self.instruction(field).map_or((false, None), |(lea, to)| (lea, Some(to)));
        match self.entries.get(&target) {
            Some(&f) if leads_to == Some(target) && is_lea && self.is_only_kept(field, target) => {
                self.made(f, field, RetargetKind::Lea);
            }
            Some(_) if leads_to.is_none_or(|to| to == target) => self.lose(target),
            Some(_) => {}
            None if leads_to == Some(target) => self.lose_around(target),
            None => {}
        }
    }

    /// Whether the address of the entry `target`, which the `lea` with its displacement at `field` makes, is
    /// copied, kept, passed on, called and asked for equality only; and not made in that function itself,
    /// which knows where it is.
    fn is_only_kept(&self, field: Svma, target: Svma) -> bool {
        let at = field.offset(4 - LEA as i64);
        let decode = |at: Svma| {
            let bytes = self.image.read_tail(at)?;
            decode_one(&bytes[..bytes.len().min(LONGEST)], at)
        };
        let range = self.program.function_at(at).map(|f| self.program.function(f).range);
        let (Some(range), Some(made)) = (range, decode(at)) else { return false };
        let uses = follow_address(&decode, range, &[], &made, FOLLOWED);
        !range.contains(target) && !uses.computed && !uses.lost && uses.accessed.is_empty()
    }

    /// Something leads into a function, or to its end: its code may be measured, or compared with program
    /// counters.
    fn lose_around(&mut self, at: Svma) {
        let functions = &self.program.functions;
        let i = functions.partition_point(|f| f.range.start < at);
        if functions.get(i).is_some_and(|f| f.range.start == at) {
            return;
        }
        if let Some(i) = i.checked_sub(1).filter(|&i| at <= functions[i].range.end) {
            self.lost[i] = true;
        }
    }

    /// The instruction whose displacement is at `field`: whether it is a `lea` into a register of 64 bits,
    /// and what it leads to.
    fn instruction(&self, field: Svma) -> Option<(bool, Svma)> {
        let block = self.program.block(self.block_around(field)?);
        let bytes = self.image.read(block.start, block.len as usize)?;
        let mut at = 0usize;
        while at < bytes.len() {
            let (insn, rip) = relocate_field(&bytes[at..], block.start + at as u64)?;
            let len = usize::from(insn.len).max(1);
            if block.start + (at + len) as u64 > field {
                let rip = rip.filter(|rip| block.start + (at as u64 + u64::from(rip.offset)) == field)?;
                return Some((is_wide_lea(&bytes[at..at + len]), rip.target));
            }
            at += len;
        }
        None
    }

    /// The block that holds `at`.
    fn block_around(&self, at: Svma) -> Option<BlockId> {
        let blocks = &self.program.blocks;
        let i = blocks.partition_point(|b| b.start <= at).checked_sub(1)?;
        blocks[i].range().contains(at).then_some(BlockId(i as u32))
    }

    /// Offsets that lead from their own place to an entry, and tables of jumps.
    fn offsets(&mut self) {
        let image = self.image;
        let code = image.executable_ranges();
        let unwind = [image.eh_frame(), image.eh_frame_hdr()];
        let mut at_entry = Vec::new();
        for segment in image.segments() {
            let backed = segment.file_backed();
            let bytes = image.read(backed.start, backed.len() as usize).unwrap_or_default();
            let lead = (4 - backed.start.get() % 4) % 4;
            for (i, word) in bytes.get(lead as usize..).unwrap_or_default().chunks_exact(4).enumerate() {
                let at = backed.start + (lead + 4 * i as u64);
                let target = at.offset(i32::from_le_bytes([word[0], word[1], word[2], word[3]]).into());
                if self.span.contains(target) && self.entries.contains_key(&target) {
                    let skipped = code.iter().chain(unwind.iter().flatten()).any(|range| range.contains(at));
                    at_entry.extend((!skipped).then_some(target));
                }
            }
        }
        let tables = self.program.tables.iter().flat_map(|t| t.targets.iter().chain(&t.tail).copied());
        at_entry.into_iter().chain(tables).for_each(|at| self.lose(at));
    }

    /// Leaves out functions that have something directly in front of their entry, or an entry that gets no
    /// copy of its own.
    fn surroundings(&mut self) {
        let code = self.image.executable_ranges();
        for (&entry, &f) in &self.entries {
            let Some(block) = self.program.entry_block(f).map(|b| self.program.block(b)) else { continue };
            let only_jumps =
                matches!(block.terminator, Terminator::Jump(_)) && block.start == block.terminator_at();
            let alone = block.start == entry && !only_jumps && !block.attrs.contains(BlockAttrs::PINNED);
            if !alone || !self.is_padding_in_front(entry, &code) {
                self.lost[f.index()] = true;
            }
        }
    }

    /// Whether in front of `entry` there is code, or padding behind code or at the start of one of the ranges
    /// that hold `code`.
    fn is_padding_in_front(&self, entry: Svma, code: &[SvmaRange]) -> bool {
        let blocks = &self.program.blocks;
        let before = blocks.partition_point(|b| b.start < entry).checked_sub(1);
        let start = code.partition_point(|range| range.start <= entry).checked_sub(1);
        let start = start.map_or(entry, |i| code[i].start);
        let mut at = before.map_or(start, |i| blocks[i].end().max(start));
        if at >= entry {
            return true;
        }
        let gap = SvmaRange::between(at, entry);
        let Some(bytes) = self.image.read(at, gap.len() as usize).filter(|_| gap.len() <= GAP) else {
            return false;
        };
        if bytes.iter().all(|b| *b == 0) {
            return true;
        }
        while at < entry {
            let rest = &bytes[at.offset_from(gap.start) as usize..];
            match decode_one(rest, at) {
                Some(found) if found.insn.padding => at = found.insn.end(),
                _ => return false,
            }
        }
        true
    }

    fn finish(mut self) -> Pointers {
        self.makers.sort_unstable();
        let before = self.makers.len();
        self.makers.dedup_by_key(|m| (m.function, m.at));
        debug_assert_eq!(before, self.makers.len());
        let lost = self.lost;
        let mut functions: Vec<FuncId> = self.makers.iter().map(|m| m.function).collect();
        functions.dedup();
        functions.retain(|f| !lost[f.index()]);
        self.makers.retain(|m| !lost[m.function.index()]);
        let alignment = FunctionAlignment::of(self.program);
        Pointers { functions, makers: self.makers, alignment }
    }
}
