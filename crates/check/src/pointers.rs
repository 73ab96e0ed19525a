//! Retargeted functions, of which pointers lead to the copy.
//!
//! A program may compare addresses of functions, so it must get the same one wherever it asks. For each
//! retargeted function, all that makes its address in the original is looked for anew: relative
//! relocations, dynamic symbols, every four bytes in code that could be a displacement. The version has to
//! change exactly these, each to the copy of the entry; two functions never get one address; and what knows
//! an address in another way must not be there at all.

use crate::computed::{instruction_at, is_computed_with};
use crate::finding::Problem;
use crate::walk::Walk;
use iced_x86::{Code, Decoder, DecoderOptions, Instruction, Mnemonic};
use restitch_address::{Svma, SvmaRange};
use restitch_emit::{Retarget, RetargetKind, RetargetedFunction};
use restitch_image::{ImageKind, RelocationKind, SymbolKind};
use restitch_program::{BlockAttrs, FuncId};
use std::collections::{BTreeSet, HashMap};

/// Types of relocations that do not make addresses of functions: COPY, DTPMOD64, DTPOFF64, TPOFF64, TLSDESC.
const WITHOUT_FUNCTIONS: [u32; 5] = [5, 16, 17, 18, 36];
/// `st_value` in a symbol.
const VALUE: u64 = 8;
/// Length in bytes of a redirect.
const PATCH: u64 = 5;
/// Length in bytes of a `lea` relative to the program counter.
const LEA: u64 = 7;
/// Programs may use the low four bits of pointers.
const ALIGNED: u32 = 4;

/// What has to be changed: place, kind, which function.
type Makers = BTreeSet<(Svma, RetargetKind, Svma)>;
/// What must not be there: the function and why.
type Obstacle = (Svma, &'static str);

impl Walk<'_, '_> {
    /// Checks all of them; the walk has to be over.
    pub fn pointers(&mut self) {
        let version = self.s.version;
        let made = |s: &&Retarget| !s.kind.is_optional();
        if version.retargeted.is_empty() && !version.retargets.iter().any(|s| made(&s)) {
            return;
        }
        let mut wrong: Vec<Obstacle> = self.where_they_lead();
        let (wanted, obstacles) = self.makers();
        wrong.extend(obstacles);
        let changed: Makers =
            version.retargets.iter().filter(made).map(|s| (s.at, s.kind, s.original)).collect();
        let left = "something still makes the old address of a function";
        wrong.extend(wanted.difference(&changed).map(|maker| (maker.0, left)));
        let else_changed = "something is changed that does not make the function's address";
        wrong.extend(changed.difference(&wanted).map(|maker| (maker.0, else_changed)));
        for retarget in version.retargets.iter().filter(made) {
            if self.s.retargeted.get(&retarget.original) != Some(&retarget.to) {
                wrong.push((retarget.at, "it does not lead to the copy of the function's entry"));
            }
        }
        self.report.retargeted += version.retargeted.len() as u64;
        for (at, why) in wrong {
            self.findings.at(version.text.start, at, Problem::Pointer(why));
        }
    }

    fn where_they_lead(&self) -> Vec<Obstacle> {
        let s = self.s;
        let retargeted = &s.version.retargeted;
        let mut wrong = Vec::new();
        if s.image.kind() == ImageKind::Executable || s.bias.is_some() || s.version.counters.is_some() {
            wrong.push((Svma::default(), "pointers lead to copies in position-independent files only"));
        }
        if retargeted.windows(2).any(|pair| pair[0].original >= pair[1].original) {
            wrong.push((Svma::default(), "the functions are not sorted, or one is there twice"));
        }
        let mut copies: Vec<Svma> = retargeted.iter().map(|l| l.to).collect();
        copies.sort_unstable();
        if copies.windows(2).any(|pair| pair[0] == pair[1]) {
            wrong.push((Svma::default(), "two functions get the same address"));
        }
        wrong.extend(retargeted.iter().filter_map(|l| Some((l.original, self.retargeted(l).err()?))));
        wrong
    }

    fn retargeted(&self, copied: &RetargetedFunction) -> Result<(), &'static str> {
        let s = self.s;
        let place =
            s.copy_at(copied.to, copied.original).ok_or("it does not lead to the copy of an entry")?;
        let blocks = &s.version.blocks;
        let block = s.program.blocks.get(blocks[place].block.index()).ok_or("there is no such block")?;
        let function = s.program.functions.get(block.function.index()).ok_or("there is no such function")?;
        if function.range.start != copied.original || !block.attrs.contains(BlockAttrs::ENTRY) {
            return Err("it is no entry of a function");
        }
        if blocks[place].version.is_empty() {
            return Err("the copy of its entry is empty: another function may stand there");
        }
        let alignment = copied.original.get().trailing_zeros().min(ALIGNED);
        if copied.to.get().trailing_zeros() < alignment {
            return Err("the copy of its entry is not aligned as the entry is");
        }
        let same = |b: &&restitch_emit::PlacedBlock| {
            s.program.blocks.get(b.block.index()).is_some_and(|b| b.function == block.function)
        };
        let mut end = blocks[place].version.end;
        for next in blocks[place + 1..].iter().take_while(same) {
            if next.version.start != end {
                break;
            }
            end = next.version.end;
        }
        if copied.to + copied.len != end {
            return Err("its length is not that of its code there");
        }
        if self.is_data_in_front(copied.original) {
            Err("something stands directly in front of it")
        } else {
            Ok(())
        }
    }

    /// Whether what is in front of an entry is neither code nor padding.
    fn is_data_in_front(&self, entry: Svma) -> bool {
        let blocks = &self.s.program.blocks;
        let before = blocks.partition_point(|b| b.start < entry).checked_sub(1).map(|i| blocks[i].end());
        let code = self.s.image.executable_ranges().into_iter().find(|range| range.contains(entry));
        let start = code.map_or(entry, |range| range.start);
        let from = before.filter(|end| *end > start).unwrap_or(start);
        if from >= entry {
            return false;
        }
        let Some(bytes) = self.s.image.read(from, SvmaRange::between(from, entry).len() as usize) else {
            return true;
        };
        let mut decoder = Decoder::with_ip(64, bytes, from.get(), DecoderOptions::NONE);
        let mut padding = decoder.iter().map(|i| matches!(i.mnemonic(), Mnemonic::Nop | Mnemonic::Int3));
        bytes.iter().any(|b| *b != 0) && !padding.all(|is_padding| is_padding)
    }

    /// Everything that makes the addresses of the retargeted functions, and what must not know them.
    fn makers(&self) -> (Makers, Vec<Obstacle>) {
        let (mut makers, mut obstacles) = (Makers::new(), Vec::new());
        self.of_the_loader(&mut makers, &mut obstacles);
        self.of_code(&mut makers, &mut obstacles);
        self.of_offsets(&mut obstacles);
        (makers, obstacles)
    }

    fn of_the_loader(&self, makers: &mut Makers, obstacles: &mut Vec<Obstacle>) {
        let (image, retargeted) = (self.s.image, &self.s.retargeted);
        let mut lost = |at: Svma, why| obstacles.extend(retargeted.contains_key(&at).then_some((at, why)));
        let dynamic = image.dynamic();
        for at in [Some(image.entry()), dynamic.init, dynamic.fini].into_iter().flatten() {
            lost(at, "the loader enters it by its address in a header");
        }
        image.labels().into_iter().for_each(|at| lost(at, "it is also a label"));
        for symbol in image.symbols_with_aliases().iter().filter(|s| s.kind != SymbolKind::Function) {
            lost(symbol.range.start, "it is also something else than a function");
        }
        for symbol in image.exported() {
            if !symbol.is_function() {
                lost(symbol.value, "it is also something else than a function");
            } else if retargeted.contains_key(&symbol.value) {
                makers.insert((symbol.entry + VALUE, RetargetKind::Symbol, symbol.value));
            }
        }
        for r in image.relocations() {
            match r.kind {
                RelocationKind::Relative { target } if retargeted.contains_key(&target) => {
                    makers.insert((r.at, RetargetKind::Function, target));
                }
                RelocationKind::Symbolic { definition: Some(at), addend, .. } if addend != 0 => {
                    lost(at, "a relocation adds something to it");
                    lost(at.offset(addend), "a relocation makes it with an addend");
                }
                RelocationKind::IRelative { resolver } => {
                    lost(resolver, "the loader calls it to resolve something")
                }
                _ => {}
            }
        }
        let segments = image.segments();
        let relocated = |at: Svma| segments.iter().any(|s| s.executable && s.range.contains(at));
        let unknown = |kind: &RelocationKind| matches!(kind, RelocationKind::Other(k) if !WITHOUT_FUNCTIONS.contains(k));
        if dynamic.text_relocations
            || segments.iter().any(|s| s.executable && s.writable)
            || image.relocations().iter().any(|r| relocated(r.at) || unknown(&r.kind))
        {
            obstacles
                .push((Svma::default(), "the loader may write addresses of functions in an unknown way"));
        }
    }

    /// Every four bytes behind a ModRM byte that says "relative to the program counter".
    fn of_code(&self, makers: &mut Makers, obstacles: &mut Vec<Obstacle>) {
        let s = self.s;
        let mut inside: Vec<SvmaRange> =
            s.version.retargeted.iter().filter_map(|l| self.function_range(l.original)).collect();
        inside.sort_unstable_by_key(|range| range.start);
        let into_one = |at: Svma| {
            let i = inside.partition_point(|range| range.start < at).checked_sub(1)?;
            (at <= inside[i].end && !self.is_function(at)).then_some(inside[i].start)
        };
        self.possible_operands(|field, target| {
            let is_retargeted = s.retargeted.contains_key(&target);
            let around = if is_retargeted { None } else { into_one(target) };
            if !is_retargeted && around.is_none() {
                return;
            }
            match self.instruction_of(field) {
                Some(i) if Svma::new(i.ip_rel_memory_address()) != target => {}
                Some(_) if around.is_some() => {
                    obstacles
                        .push((field, "an instruction makes an address inside of a retargeted function"));
                }
                Some(i) if i.code() == Code::Lea_r64_m && i.len() as u64 == LEA => {
                    if self.is_computed_with(target, &i) {
                        obstacles.push((field, "something is computed from a function's address"));
                    }
                    let lasts = !self.is_overwritten(field);
                    makers.extend(lasts.then_some((field, RetargetKind::Lea, target)));
                }
                Some(_) => obstacles.push((field, "an instruction reads the bytes of a function")),
                None if is_retargeted => {
                    obstacles.push((field, "code that is not known may make the old address"))
                }
                None => {}
            }
        });
    }

    /// Calls `see` with the place of every four bytes of code that could be a displacement relative to the
    /// program counter, and each address that they could make.
    pub(crate) fn possible_operands(&self, mut see: impl FnMut(Svma, Svma)) {
        for segment in self.s.image.segments().iter().filter(|s| s.executable) {
            let range = segment.file_backed();
            let bytes = self.s.image.read(range.start, range.len() as usize).unwrap_or_default();
            for i in (1..bytes.len().saturating_sub(3)).filter(|i| bytes[i - 1] & 0xc7 == 5) {
                let displacement = i32::from_le_bytes([bytes[i], bytes[i + 1], bytes[i + 2], bytes[i + 3]]);
                let field = range.start + i as u64;
                // Behind it there may be a number of so many bytes.
                [4u64, 5, 6, 8].into_iter().for_each(|b| see(field, (field + b).offset(displacement.into())));
            }
        }
    }

    /// Whether a `lea` of the function at `entry` makes its address to compute something, or in that function
    /// itself.
    fn is_computed_with(&self, entry: Svma, lea: &Instruction) -> bool {
        let at = Svma::new(lea.ip());
        let i = self.s.program.functions.partition_point(|f| f.range.start <= at).checked_sub(1);
        let range = i.map(|i| self.s.program.functions[i].range);
        range.is_none_or(|range| {
            range.contains(entry) || is_computed_with(&|at| instruction_at(self.s.image, at), range, lea)
        })
    }

    /// The instruction of the program that has its displacement relative to the program counter at `field`.
    pub(crate) fn instruction_of(&self, field: Svma) -> Option<Instruction> {
        let block = &self.s.program.blocks[self.s.program.block_at(field)?.index()];
        let bytes = self.s.image.read(block.start, block.len as usize)?;
        let mut decoder = Decoder::with_ip(64, bytes, block.start.get(), DecoderOptions::NONE);
        while decoder.can_decode() {
            let i = decoder.decode();
            if i.is_invalid() || i.ip() > field.get() {
                return None;
            }
            if i.next_ip() > field.get() {
                let at = decoder.get_constant_offsets(&i).displacement_offset() as u64;
                return (i.is_ip_rel_memory_operand() && i.ip() + at == field.get()).then_some(i);
            }
        }
        None
    }

    /// Whether a redirect overwrites a part of the `lea` with its displacement at `field`: nothing executes
    /// that again.
    fn is_overwritten(&self, field: Svma) -> bool {
        let lea = SvmaRange::between(field + 4 - LEA, field + 4);
        self.s.version.redirects.iter().any(|r| SvmaRange::new(r.at, PATCH).overlaps(&lea))
    }

    fn function_range(&self, entry: Svma) -> Option<SvmaRange> {
        let block = self.s.program.block_starting_at(entry)?;
        let function: FuncId = self.s.program.blocks.get(block.index())?.function;
        self.s.program.functions.get(function.index()).map(|f| f.range)
    }

    /// Whether a function begins at `at`; those that stay whole have no blocks.
    fn is_function(&self, at: Svma) -> bool {
        self.s.program.functions.binary_search_by_key(&at, |function| function.range.start).is_ok()
    }

    /// Words that lead from their own place to an entry, and tables of jumps.
    fn of_offsets(&self, obstacles: &mut Vec<Obstacle>) {
        let (image, retargeted): (_, &HashMap<Svma, Svma>) = (self.s.image, &self.s.retargeted);
        let mut known = image.executable_ranges();
        known.extend(image.eh_frame());
        known.extend(image.eh_frame_hdr());
        for segment in image.segments() {
            let range = segment.file_backed();
            let bytes = image.read(range.start, range.len() as usize).unwrap_or_default();
            let first = range.start.get().next_multiple_of(4) - range.start.get();
            for offset in (first..range.len().saturating_sub(3)).step_by(4) {
                let i = offset as usize;
                let word = i32::from_le_bytes([bytes[i], bytes[i + 1], bytes[i + 2], bytes[i + 3]]);
                let at = range.start + offset;
                if retargeted.contains_key(&at.offset(word.into()))
                    && !known.iter().any(|range| range.contains(at))
                {
                    obstacles.push((at, "an offset in data leads to a function"));
                }
            }
        }
        let tables = self.s.program.tables.iter().flat_map(|t| t.targets.iter().chain(&t.tail));
        obstacles.extend(
            tables.filter(|t| retargeted.contains_key(t)).map(|t| (*t, "a table of jumps leads to it")),
        );
    }
}
