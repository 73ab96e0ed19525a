//! Unwind rows of the original and of the version, read with gimli and made comparable.
//!
//! The version's tables are read as an unwinder reads them: the entry is found through the binary search
//! table. Each entry is evaluated once. A row, its CIE's facts and its expressions become one number, equal
//! for equal rows.

use crate::lsda::{self, Lsda};
use gimli::{
    BaseAddresses, CallFrameInstruction, CieOrFde, CommonInformationEntry, EhFrame, EndianSlice,
    FrameDescriptionEntry, LittleEndian, Pointer, UnwindSection,
};
use restitch_address::{Svma, SvmaRange};
use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::hash::{BuildHasherDefault, Hasher};
use std::rc::Rc;

type Bytes<'a> = EndianSlice<'a, LittleEndian>;

/// Number of a distinct unwind state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct RowId(u32);

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Cfa {
    None,
    Register(u16, i64),
    Expression(Box<[u8]>),
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Rule {
    Undefined,
    SameValue,
    Offset(i64),
    ValOffset(i64),
    Register(u16),
    Expression(Box<[u8]>),
    ValExpression(Box<[u8]>),
}

/// The facts of a CIE that matter to an unwinder: return-address column, signal frame, personality
/// (indirect?, address).
type Frame = (u16, bool, Option<(bool, u64)>);

/// What an unwinder finds at an instruction.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Row {
    frame: Frame,
    state: Rules,
    args_size: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Rules {
    cfa: Cfa,
    rules: BTreeMap<u16, Rule>,
}

/// DWARF number of rsp.
const RSP: u16 = 7;

/// A hash that multiplies words: rows are many, and what they hold is of restitch's own making or the file's
/// that it was asked to work on.
#[derive(Default)]
struct Words(u64);

impl Words {
    fn add(&mut self, word: u64) {
        // 2^64 divided by the golden ratio: Knuth's multiplicative hashing.
        self.0 = (self.0.rotate_left(26) ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }
}

impl Hasher for Words {
    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.add(u64::from_le_bytes(word));
        }
    }
    fn write_u8(&mut self, n: u8) {
        self.add(n.into());
    }
    fn write_u16(&mut self, n: u16) {
        self.add(n.into());
    }
    fn write_u64(&mut self, n: u64) {
        self.add(n);
    }
    fn write_usize(&mut self, n: usize) {
        self.add(n as u64);
    }
    fn finish(&self) -> u64 {
        self.0 ^ self.0 >> 32
    }
}

/// Gives equal rows equal numbers.
#[derive(Default)]
pub(crate) struct Interner {
    ids: HashMap<Rc<Row>, RowId, BuildHasherDefault<Words>>,
    rows: Vec<Rc<Row>>,
    shifted: HashMap<(RowId, u32), RowId>,
}

impl Interner {
    fn id(&mut self, row: &Row) -> RowId {
        if let Some(id) = self.ids.get(row) {
            return *id;
        }
        let id = RowId(self.rows.len() as u32);
        let row = Rc::new(row.clone());
        self.rows.push(Rc::clone(&row));
        self.ids.insert(row, id);
        id
    }
    /// The row of the same frame while `rsp` is lower by `bytes`.
    pub fn lowered(&mut self, id: RowId, bytes: u32) -> RowId {
        if bytes == 0 {
            return id;
        }
        if let Some(id) = self.shifted.get(&(id, bytes)) {
            return *id;
        }
        let mut row = Row::clone(&self.rows[id.0 as usize]);
        if let Cfa::Register(RSP, offset) = &mut row.state.cfa {
            *offset = offset.wrapping_add(i64::from(bytes));
        }
        let new = self.id(&row);
        self.shifted.insert((id, bytes), new);
        new
    }
    /// The row in words.
    pub fn text(&self, id: Option<RowId>) -> String {
        match id {
            None => "none".to_owned(),
            Some(id) => self.rows[id.0 as usize].to_string(),
        }
    }
}

impl Row {
    /// Whether this is the row of a signal frame without a size: the CFA is one byte above the stack pointer,
    /// and of each of these registers, which ascend, it says the value of an expression (`true`), or where it
    /// is stored.
    pub fn is_exactly<'b>(&self, registers: impl ExactSizeIterator<Item = (u16, bool, &'b [u8])>) -> bool {
        let same = |((register, rule), (number, is_value, bytes)): ((&u16, &Rule), (u16, bool, &[u8]))| {
            let rule = match rule {
                Rule::ValExpression(found) if is_value => found,
                Rule::Expression(found) if !is_value => found,
                _ => return false,
            };
            *register == number && **rule == *bytes
        };
        self.frame == (16, true, None)
            && self.args_size == 0
            && self.state.cfa == Cfa::Register(RSP, 1)
            && self.state.rules.len() == registers.len()
            && self.state.rules.iter().zip(registers).all(same)
    }
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Row { state: Rules { cfa, rules }, args_size, frame } = self;
        write!(f, "CFA {cfa:?}, {rules:?}, args {args_size}, frame {frame:?}")
    }
}

/// The rows of one FDE, in order: where each begins, and what it says.
type Rows = Vec<(Svma, RowId)>;

/// One FDE in a table.
pub(crate) struct Entry {
    pub range: SvmaRange,
    pub lsda: Option<Svma>,
    /// Its offset in the section.
    offset: usize,
    /// What its program gives, once somebody has asked: most functions of a large file have no copy, so
    /// nobody asks.
    rows: Option<Result<Rows, String>>,
}

/// Those that overlap no other one.
fn apart(mut entries: Vec<Entry>) -> Vec<Entry> {
    entries.sort_by_key(|entry| entry.range.start);
    let mut alone = vec![true; entries.len()];
    let mut furthest: Option<(usize, Svma)> = None;
    for (i, entry) in entries.iter().enumerate() {
        if let Some((before, end)) = furthest
            && entry.range.start < end
        {
            alone[i] = false;
            alone[before] = false;
        }
        if furthest.is_none_or(|(_, end)| end < entry.range.end) {
            furthest = Some((i, entry.range.end));
        }
    }
    let mut alone = alone.into_iter();
    entries.retain(|_| alone.next() == Some(true));
    entries
}

/// The entries of one `.eh_frame`.
pub(crate) struct Table<'a> {
    reader: Reader<'a>,
    /// Sorted by start, disjoint.
    entries: Vec<Entry>,
    /// Indices of the entry and of its row that were asked for last.
    last: (usize, usize),
}

impl<'a> Table<'a> {
    /// No entries.
    pub fn empty() -> Self {
        Self { reader: Reader::new(&[], Svma::new(0)), entries: Vec::new(), last: (0, 0) }
    }

    /// Reads all entries, in whatever order they stand. Those that overlap are left out: no copy may be made
    /// of what they describe, since nobody knows which one holds there.
    pub fn linear(eh_frame: &'a [u8], at: Svma) -> Result<Self, String> {
        let reader = Reader::new(eh_frame, at);
        let mut iter = reader.section.entries(&reader.bases);
        let mut found = Vec::new();
        while let Some(entry) = iter.next().map_err(text)? {
            if let CieOrFde::Fde(partial) = entry {
                let fde = partial.parse(EhFrame::cie_from_offset).map_err(text)?;
                if fde.len() != 0 {
                    found.push(reader.entry(&fde));
                }
            }
        }
        Self::assemble(reader, apart(found))
    }

    /// Reads the entries that the binary search table `hdr` at `hdr_at` lists. Version 1, encodings 1b 03 3b.
    pub fn indexed(eh_frame: &'a [u8], at: Svma, hdr: &[u8], hdr_at: Svma) -> Result<Self, String> {
        let word =
            |i: usize| -> Option<i32> { Some(i32::from_le_bytes(hdr.get(i..i + 4)?.try_into().ok()?)) };
        if hdr.get(..4) != Some(&[1, 0x1b, 0x03, 0x3b]) {
            return Err(".eh_frame_hdr is not of version 1 with encodings 1b 03 3b".to_owned());
        }
        let (Some(pointer), Some(count)) = (word(4), word(8)) else { return Err("cut short".to_owned()) };
        if (hdr_at + 4).offset(pointer.into()) != at {
            return Err(".eh_frame_hdr does not point to .eh_frame".to_owned());
        }
        let reader = Reader::new(eh_frame, at);
        let mut found = Vec::new();
        let mut before = i32::MIN;
        for i in 0..count as u32 as usize {
            let (Some(start), Some(fde_at)) = (word(12 + 8 * i), word(16 + 8 * i)) else {
                return Err("the search table is cut short".to_owned());
            };
            if i > 0 && start <= before {
                return Err(format!("entry {i} of the search table is not behind the one before it"));
            }
            before = start;
            let offset = hdr_at.offset(fde_at.into()).offset_from(at);
            let offset =
                usize::try_from(offset).map_err(|_| format!("entry {i} points outside .eh_frame"))?;
            let fde = reader.fde(offset)?;
            if Svma::new(fde.initial_address()) != hdr_at.offset(start.into()) {
                return Err(format!("entry {i} of the search table has another start than its FDE"));
            }
            found.push(reader.entry(&fde));
        }
        Self::assemble(reader, found)
    }

    fn assemble(reader: Reader<'a>, mut entries: Vec<Entry>) -> Result<Self, String> {
        entries.sort_by_key(|entry| entry.range.start);
        for pair in entries.windows(2) {
            if pair[0].range.overlaps(&pair[1].range) {
                return Err(format!("the entries for {} and {} overlap", pair[0].range, pair[1].range));
            }
        }
        Ok(Self { reader, entries, last: (0, 0) })
    }

    /// The ranges of the entries, in order.
    pub fn ranges(&self) -> impl Iterator<Item = SvmaRange> {
        self.entries.iter().map(|e| e.range)
    }

    /// Whether no entry has an exception table.
    pub fn has_no_handlers(&self) -> bool {
        self.entries.iter().all(|e| e.lsda.is_none())
    }

    /// The entry that holds `at`: its index and itself.
    pub fn entry(&mut self, at: Svma) -> Option<(usize, &Entry)> {
        let i = self.index(at)?;
        Some((i, &self.entries[i]))
    }

    fn index(&mut self, at: Svma) -> Option<usize> {
        let (last, _) = self.last;
        if self.entries.get(last).is_some_and(|e| e.range.contains(at)) {
            return Some(last);
        }
        let i = self.entries.partition_point(|e| e.range.start <= at).checked_sub(1)?;
        self.entries.get(i).filter(|e| e.range.contains(at))?;
        self.last = (i, 0);
        Some(i)
    }

    /// The row that holds at `at`; an error if the program of the entry there is none.
    pub fn row(&mut self, at: Svma, ids: &mut Interner) -> Result<Option<RowId>, String> {
        let Some(i) = self.index(at) else { return Ok(None) };
        let entry = &mut self.entries[i];
        let rows = entry.rows.get_or_insert_with(|| self.reader.numbered(entry.offset, ids));
        let rows = rows.as_ref().map_err(String::clone)?;
        let hint = self.last.1;
        for h in [hint, hint + 1] {
            if rows.get(h).is_some_and(|r| r.0 <= at) && rows.get(h + 1).is_none_or(|next| next.0 > at) {
                self.last.1 = h;
                return Ok(Some(rows[h].1));
            }
        }
        let Some(row) = rows.partition_point(|(start, _)| *start <= at).checked_sub(1) else {
            return Ok(None);
        };
        self.last.1 = row;
        Ok(Some(rows[row].1))
    }

    /// Evaluates all entries that have not been.
    ///
    /// # Errors
    /// That of the first entry whose program is none.
    pub fn evaluate(&mut self, ids: &mut Interner) -> Result<(), String> {
        for entry in &mut self.entries {
            let rows = entry.rows.get_or_insert_with(|| self.reader.numbered(entry.offset, ids));
            rows.as_ref().map_err(String::clone)?;
        }
        Ok(())
    }

    /// Shows all rows of all entries with where they hold, from low to high addresses, without keeping any:
    /// those of a large tracing version would take gigabytes.
    ///
    /// # Errors
    /// That of the first entry whose program is none.
    pub fn each(&mut self, mut show: impl FnMut(SvmaRange, &Row)) -> Result<(), String> {
        self.entries.iter().try_for_each(|entry| self.reader.rows(entry.offset, &mut show))
    }
}

fn section(eh_frame: &[u8]) -> EhFrame<Bytes<'_>> {
    let mut section = EhFrame::new(eh_frame, LittleEndian);
    section.set_address_size(8);
    section
}

fn text(error: gimli::Error) -> String {
    error.to_string()
}

fn pointer(p: Pointer) -> (bool, u64) {
    match p {
        Pointer::Direct(at) => (false, at),
        Pointer::Indirect(at) => (true, at),
    }
}

/// The ranges of all entries that are in `eh_frame`, sorted; what they say is not looked at.
pub(crate) fn ranges_in(eh_frame: &[u8], at: Svma) -> Result<Vec<SvmaRange>, String> {
    let section = section(eh_frame);
    let bases = BaseAddresses::default().set_eh_frame(at.get());
    let mut iter = section.entries(&bases);
    let mut found = Vec::new();
    while let Some(entry) = iter.next().map_err(text)? {
        if let CieOrFde::Fde(partial) = entry {
            let fde = partial.parse(EhFrame::cie_from_offset).map_err(text)?;
            found.push(SvmaRange::new(Svma::new(fde.initial_address()), fde.len()));
        }
    }
    found.sort_by_key(|range| range.start);
    Ok(found)
}

/// Reads entries and runs call frame programs.
struct Reader<'a> {
    section: EhFrame<Bytes<'a>>,
    /// Where the section begins.
    at: Svma,
    bases: BaseAddresses,
    /// What each CIE's initial instructions leave, by its offset.
    frames: HashMap<usize, Rules>,
}

/// States that a program may remember at once.
const MAX_REMEMBERED: usize = 64;

impl<'a> Reader<'a> {
    fn new(eh_frame: &'a [u8], at: Svma) -> Self {
        let bases = BaseAddresses::default().set_eh_frame(at.get());
        Self { section: section(eh_frame), at, bases, frames: HashMap::new() }
    }

    fn fde(&self, offset: usize) -> Result<FrameDescriptionEntry<Bytes<'a>>, String> {
        let offset = gimli::EhFrameOffset(offset);
        self.section.fde_from_offset(&self.bases, offset, EhFrame::cie_from_offset).map_err(text)
    }

    /// What an entry says of itself; its program is not run.
    fn entry(&self, fde: &FrameDescriptionEntry<Bytes<'a>>) -> Entry {
        // A raw 0 is null in a relative encoding too; gimli makes it the address of the field itself.
        let lsda = fde.lsda().map(|p| Svma::new(pointer(p).1));
        let lsda = lsda.filter(|at| at.get() != 0 && !self.own_bytes(fde).contains(*at));
        Entry { range: range_of(fde), lsda, offset: fde.offset(), rows: None }
    }

    /// Where the entry itself stands. (A file without section headers has the exception tables in the same
    /// range of bytes as the entries, so the section's range would tell nothing.)
    fn own_bytes(&self, fde: &FrameDescriptionEntry<Bytes<'a>>) -> SvmaRange {
        // The length does not count its own field, 4 bytes, or 12 for 64-bit entries; one too many does no
        // harm.
        SvmaRange::new(self.at + fde.offset() as u64, fde.entry_len() as u64 + 4)
    }

    /// The rows of the entry at `offset`, as numbers.
    fn numbered(&mut self, offset: usize, ids: &mut Interner) -> Result<Rows, String> {
        let mut rows = Rows::new();
        self.rows(offset, |range, row| rows.push((range.start, ids.id(row))))?;
        Ok(rows)
    }

    /// Shows the rows of the entry at `offset`, and where each holds.
    fn rows(&mut self, offset: usize, mut show: impl FnMut(SvmaRange, &Row)) -> Result<(), String> {
        let fde = self.fde(offset)?;
        let cie = fde.cie();
        let range = range_of(&fde);
        let initial = match self.frames.get(&cie.offset()) {
            Some(initial) => initial.clone(),
            None => {
                let mut machine = Machine::new(cie, Rules { cfa: Cfa::None, rules: BTreeMap::new() });
                let mut program = cie.instructions(&self.section, &self.bases);
                while let Some(instruction) = program.next().map_err(text)? {
                    machine.step(instruction, &self.section)?;
                }
                self.frames.insert(cie.offset(), machine.row.state.clone());
                machine.row.state
            }
        };
        let mut machine = Machine::new(cie, initial);
        let mut at = range.start;
        let mut program = fde.instructions(&self.section, &self.bases);
        loop {
            let instruction = program.next().map_err(text)?;
            let next = match instruction {
                Some(CallFrameInstruction::AdvanceLoc { delta }) => {
                    at + u64::from(delta).wrapping_mul(cie.code_alignment_factor())
                }
                Some(CallFrameInstruction::SetLoc { address }) => Svma::new(address),
                Some(other) => {
                    machine.step(other, &self.section)?;
                    continue;
                }
                None => range.end,
            };
            if next.offset_from(at) < 0 {
                return Err(format!("the program of the entry for {range} goes backwards"));
            }
            if next != at {
                show(SvmaRange::between(at, next), &machine.row);
                at = next;
            }
            if instruction.is_none() || !range.contains(at) {
                return Ok(());
            }
        }
    }
}

fn range_of(fde: &FrameDescriptionEntry<Bytes<'_>>) -> SvmaRange {
    SvmaRange::new(Svma::new(fde.initial_address()), fde.len())
}

struct Machine {
    data_align: i64,
    initial: Rules,
    row: Row,
    /// The offset that was stated last, which outlives an expression (as in libgcc's execute_cfa_program).
    offset: i64,
    remembered: Vec<(Rules, i64)>,
}

impl Machine {
    fn new(cie: &CommonInformationEntry<Bytes<'_>>, initial: Rules) -> Self {
        let frame = (
            cie.return_address_register().0,
            cie.is_signal_trampoline(),
            cie.personality_with_encoding().map(|(_, p)| pointer(p)),
        );
        let row = Row { frame, state: initial.clone(), args_size: 0 };
        let offset = if let Cfa::Register(_, offset) = initial.cfa { offset } else { 0 };
        Self { data_align: cie.data_alignment_factor(), initial, row, offset, remembered: Vec::new() }
    }
    fn set(&mut self, register: gimli::Register, rule: Rule) {
        self.row.state.rules.insert(register.0, rule);
    }
    fn unsigned(&self, factored: u64) -> i64 {
        (factored as i64).wrapping_mul(self.data_align)
    }
    fn signed(&self, factored: i64) -> i64 {
        factored.wrapping_mul(self.data_align)
    }

    fn step(
        &mut self,
        instruction: CallFrameInstruction<usize>,
        section: &EhFrame<Bytes<'_>>,
    ) -> Result<(), String> {
        use CallFrameInstruction as I;
        let bytes = |e: gimli::UnwindExpression<usize>| -> Result<Box<[u8]>, String> {
            Ok(e.get(section).map_err(text)?.0.slice().into())
        };
        match instruction {
            I::DefCfa { register, offset } => self.cfa(register, offset as i64),
            I::DefCfaSf { register, factored_offset } => self.cfa(register, self.signed(factored_offset)),
            I::DefCfaRegister { register } => match self.row.state.cfa {
                Cfa::None => {
                    return Err("a frame address without a register gets another register".to_owned());
                }
                _ => self.cfa(register, self.offset),
            },
            I::DefCfaOffset { offset } => self.cfa_offset(offset as i64)?,
            I::DefCfaOffsetSf { factored_offset } => self.cfa_offset(self.signed(factored_offset))?,
            I::DefCfaExpression { expression } => self.row.state.cfa = Cfa::Expression(bytes(expression)?),
            I::Undefined { register } => self.set(register, Rule::Undefined),
            I::SameValue { register } => self.set(register, Rule::SameValue),
            I::Offset { register, factored_offset } => {
                self.set(register, Rule::Offset(self.unsigned(factored_offset)));
            }
            I::OffsetExtendedSf { register, factored_offset } => {
                self.set(register, Rule::Offset(self.signed(factored_offset)));
            }
            I::ValOffset { register, factored_offset } => {
                self.set(register, Rule::ValOffset(self.unsigned(factored_offset)));
            }
            I::ValOffsetSf { register, factored_offset } => {
                self.set(register, Rule::ValOffset(self.signed(factored_offset)));
            }
            I::Register { dest_register, src_register } => {
                self.set(dest_register, Rule::Register(src_register.0));
            }
            I::Expression { register, expression } => {
                self.set(register, Rule::Expression(bytes(expression)?));
            }
            I::ValExpression { register, expression } => {
                self.set(register, Rule::ValExpression(bytes(expression)?));
            }
            I::Restore { register } => match self.initial.rules.get(&register.0).cloned() {
                Some(rule) => self.set(register, rule),
                None => drop(self.row.state.rules.remove(&register.0)),
            },
            I::RememberState if self.remembered.len() < MAX_REMEMBERED => {
                self.remembered.push((self.row.state.clone(), self.offset));
            }
            I::RememberState => return Err("states are remembered too deeply".to_owned()),
            I::RestoreState => {
                (self.row.state, self.offset) =
                    self.remembered.pop().ok_or("a state is restored that was not remembered")?;
            }
            I::ArgsSize { size } => self.row.args_size = size,
            I::Nop => {}
            _ => return Err("an instruction that x86-64 does not have".to_owned()),
        }
        Ok(())
    }

    fn cfa(&mut self, register: gimli::Register, offset: i64) {
        self.offset = offset;
        self.row.state.cfa = Cfa::Register(register.0, offset);
    }

    fn cfa_offset(&mut self, new: i64) -> Result<(), String> {
        self.offset = new;
        match &mut self.row.state.cfa {
            Cfa::Register(_, offset) => *offset = new,
            Cfa::Expression(_) => {}
            Cfa::None => return Err("a frame address without an offset gets another offset".to_owned()),
        }
        Ok(())
    }
}

/// The exception tables of one module's entries, read when they are first needed.
#[derive(Default)]
pub(crate) struct Lsdas {
    read: HashMap<usize, Option<Result<Lsda, String>>>,
}

impl Lsdas {
    /// What the table of the entry around `at` says, if there is one.
    pub fn lookup<'a>(
        &mut self,
        table: &mut Table<'_>,
        at: Svma,
        memory: impl Fn(Svma) -> Option<&'a [u8]>,
        chains: &mut lsda::Chains,
    ) -> Result<lsda::Handling, String> {
        let Some((i, entry)) = table.entry(at) else { return Ok(lsda::Handling::NoTable) };
        let start = entry.range.start;
        let lsda =
            self.read.entry(i).or_insert_with(|| entry.lsda.map(|at| lsda::read(at, start, memory, chains)));
        match lsda {
            None => Ok(lsda::Handling::NoTable),
            Some(Ok(lsda)) => Ok(lsda.handling(at)),
            Some(Err(why)) => Err(why.clone()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// `zR` with pcrel sdata4; one function of 16 bytes at 0x2000: push at offset 1, pop at 8.
    fn table() -> Vec<u8> {
        let mut t =
            vec![20, 0, 0, 0, 0, 0, 0, 0, 1, b'z', b'R', 0, 1, 0x78, 16, 1, 0x1b, 0x0c, 7, 8, 0x90, 1, 0, 0];
        t.extend([24, 0, 0, 0, 28, 0, 0, 0]);
        t.extend((0x2000i32 - 0x1020).to_le_bytes());
        t.extend([16, 0, 0, 0, 0, 0x41, 0x0e, 16, 0x86, 2, 0x47, 0x0e, 8, 0xc6, 0, 0]);
        t.extend([0; 4]);
        t
    }

    #[test]
    fn rows_are_numbered_by_what_they_say() {
        let mut ids = Interner::default();
        let bytes = table();
        let mut read = Table::linear(&bytes, Svma::new(0x1000)).unwrap();
        let mut row = |at| read.row(Svma::new(at), &mut ids).unwrap();
        assert_eq!(row(0x1fff), None);
        assert_eq!(row(0x2010), None);
        assert!(row(0x2000).is_some() && row(0x2000) == row(0x2008) && row(0x2008) == row(0x200f));
        assert!(row(0x2001) == row(0x2007) && row(0x2001) != row(0x2000));
        // Pushed without saving rbp is another row than the function's own after its push.
        let (own, pushed) = (row(0x2000).unwrap(), row(0x2001).unwrap());
        let lowered = ids.lowered(own, 8);
        assert!(lowered != pushed && lowered != own);
        assert_eq!(ids.lowered(own, 8), lowered);
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(at in any::<prop::sample::Index>(), bytes in prop::collection::vec(any::<u8>(), 1..12)) {
            let mut t = table();
            let at = at.index(t.len());
            for (old, new) in t[at..].iter_mut().zip(bytes) {
                *old = new;
            }
            let _ = Table::linear(&t, Svma::new(0x1000)).and_then(|mut read| read.each(|_, _| {}));
            let _ = ranges_in(&t, Svma::new(0x1000));
            let _ = Table::indexed(&t, Svma::new(0x1000), &t, Svma::new(0x1000)).and_then(|mut read| read.each(|_, _| {}));
        }
    }
}
