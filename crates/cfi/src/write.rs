//! Writing an `.eh_frame` for new code.
//!
//! Idea: a run's rows are full states; the call frame program is the list of differences between neighbours.
//! The rules of [`FrameState`] are sorted, so a difference is a merge of two lists. A state that comes back
//! (the body after an early return) is remembered and recalled where that is shorter, as compilers do.

use crate::error::CfiError;
use crate::memory::{PCREL_SDATA4, put_pcrel, put_sleb, put_uleb};
use crate::records::Personality;
use crate::registers::Register;
use crate::state::{Cfa, FrameState, RegisterRule, Row};
use restitch_address::{Svma, SvmaRange};
use rustc_hash::FxHashMap;
use std::cmp::Ordering;
use std::collections::HashMap;

pub(crate) const WHAT: &str = ".eh_frame";
/// Records are padded to this; x86-64 unwinders read them at any address.
const RECORD_ALIGN: usize = 4;
/// States remembered at one time. Compilers rarely nest; gimli gives up at about four.
const MAX_REMEMBERED: usize = 2;

/// One contiguous run of new code and its unwind information, in new addresses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Run {
    /// The code. Not empty, shorter than 2 GiB.
    pub range: SvmaRange,
    /// The states: sorted, the first starts where the range does, all have one return-address column.
    pub rows: Vec<Row>,
    /// Exception handling routine.
    pub personality: Option<Personality>,
    /// Address of the run's own LSDA: see [`write_lsda`](crate::write_lsda).
    pub lsda: Option<Svma>,
    /// The rows describe a signal frame.
    pub signal_frame: bool,
}

/// A written or relocated `.eh_frame`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct EhFrame {
    /// The bytes of the section.
    pub bytes: Vec<u8>,
    /// (start of the code, address of the FDE), for [`write_eh_frame_hdr`](crate::write_eh_frame_hdr).
    pub entries: Vec<(Svma, Svma)>,
}

/// Writes the `.eh_frame` of `runs` for the address `at` (best a multiple of 4), zero terminator included.
///
/// CIEs are shared among runs. All pointers are PC-relative with 32 bits.
///
/// # Errors
/// If something is more than 2 GiB away, or a run breaks what [`Run`] asks for.
pub fn write_eh_frame(at: Svma, runs: &[Run]) -> Result<EhFrame, CfiError> {
    let mut writer = EhFrameWriter::new(at);
    for run in runs {
        writer.run(run)?;
    }
    Ok(writer.finish())
}

/// What a CIE says; runs that agree in it share one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Shape {
    personality: Option<Personality>,
    lsda: bool,
    signal_frame: bool,
    /// The CIE establishes the state at a function's entry; else nothing.
    entry_state: bool,
    data_align: i64,
    return_address: Register,
}

impl Shape {
    fn of(run: &Run) -> Result<Self, CfiError> {
        check(run)?;
        let return_address = run.rows[0].state.return_address;
        let always_known = run.rows.iter().all(|row| row.state.rule(return_address).is_some());
        let whole_words = run.rows.iter().all(|row| factored_offsets(&row.state).all(|o| o % 8 == 0));
        Ok(Self {
            personality: run.personality,
            lsda: run.lsda.is_some(),
            signal_frame: run.signal_frame,
            entry_state: always_known,
            data_align: if whole_words { -8 } else { -1 },
            return_address,
        })
    }

    /// The rules that the CIE establishes.
    fn initial(&self) -> (Option<Cfa>, Vec<(Register, RegisterRule)>) {
        if !self.entry_state {
            return (None, Vec::new());
        }
        let FrameState { cfa, .. } = FrameState::at_entry();
        (Some(cfa), vec![(self.return_address, RegisterRule::Offset(-8))])
    }
}

/// The offsets of a state that are written divided by the data alignment factor.
fn factored_offsets(state: &FrameState) -> impl Iterator<Item = i64> {
    let cfa = match state.cfa {
        Cfa::RegisterOffset { offset, .. } if offset < 0 => Some(offset),
        _ => None,
    };
    let rules = state.registers.iter().filter_map(|(_, rule)| match rule {
        RegisterRule::Offset(offset) | RegisterRule::ValOffset(offset) => Some(*offset),
        _ => None,
    });
    cfa.into_iter().chain(rules)
}

/// Whether `run` is what [`Run`] asks for.
fn check(run: &Run) -> Result<(), CfiError> {
    let fail = |why| Err(CfiError::Inexpressible { what: WHAT, at: run.range.start, why });
    let Some(first) = run.rows.first() else { return fail("there is no unwind state") };
    if run.range.is_empty() || run.range.len() > i32::MAX as u64 {
        return fail("the range is empty or longer than 2 GiB");
    }
    if first.start != run.range.start {
        return fail("the first unwind state does not start with the range");
    }
    if run.rows.windows(2).any(|pair| pair[1].start.offset_from(pair[0].start) <= 0)
        || run.rows.iter().any(|row| !run.range.contains(row.start))
    {
        return fail("the unwind states are not sorted or lie outside the range");
    }
    for row in &run.rows {
        if row.state.return_address != first.state.return_address {
            return fail("the return-address column changes");
        }
        let registers = &row.state.registers;
        if registers.windows(2).any(|pair| pair[0].0 >= pair[1].0) || registers.iter().any(|(r, _)| r.0 > 255)
        {
            return fail("the register rules are not sorted or name unknown registers");
        }
    }
    Ok(())
}

/// Writes an `.eh_frame` run by run, so that what there is to say of much code need not be in memory at one
/// time: see [`write_eh_frame`].
#[derive(Debug)]
pub struct EhFrameWriter {
    at: Svma,
    out: EhFrame,
    /// Offset of the CIE of each shape.
    cies: HashMap<Shape, usize>,
}

impl EhFrameWriter {
    /// Begins one for the address `at` (best a multiple of 4).
    pub fn new(at: Svma) -> Self {
        Self { at, out: EhFrame::default(), cies: HashMap::new() }
    }

    /// Ends it with the zero terminator.
    pub fn finish(mut self) -> EhFrame {
        self.out.bytes.extend([0; 4]);
        self.out
    }

    /// Adds a run.
    ///
    /// # Errors
    /// If something is more than 2 GiB away, or the run breaks what [`Run`] asks for.
    pub fn run(&mut self, run: &Run) -> Result<(), CfiError> {
        let shape = Shape::of(run)?;
        let cie = match self.cies.get(&shape) {
            Some(cie) => *cie,
            None => {
                let cie = self.cie(&shape, run.range.start)?;
                self.cies.insert(shape, cie);
                cie
            }
        };
        let start = self.begin();
        let back = u32::try_from(start + 4 - cie);
        let too_large =
            CfiError::Inexpressible { what: WHAT, at: run.range.start, why: "the table exceeds 4 GiB" };
        let out = &mut self.out.bytes;
        out.extend(back.map_err(|_| too_large)?.to_le_bytes());
        put_pcrel(WHAT, out, self.at, run.range.start)?;
        out.extend((run.range.len() as u32).to_le_bytes());
        match run.lsda {
            None => out.push(0),
            Some(lsda) => {
                out.push(4);
                put_pcrel(WHAT, out, self.at, lsda)?;
            }
        }
        out.extend(program(run, &shape)?);
        self.end(start);
        self.out.entries.push((run.range.start, self.at + start as u64));
        Ok(())
    }

    fn cie(&mut self, shape: &Shape, code: Svma) -> Result<usize, CfiError> {
        let start = self.begin();
        let out = &mut self.out.bytes;
        out.extend([0; 4]);
        out.push(1);
        out.push(b'z');
        out.extend(shape.personality.is_some().then_some(b'P'));
        out.extend(shape.lsda.then_some(b'L'));
        out.push(b'R');
        out.extend(shape.signal_frame.then_some(b'S'));
        out.push(0);
        put_uleb(out, 1);
        put_sleb(out, shape.data_align);
        out.push(shape.return_address.0 as u8);
        out.push(if shape.personality.is_some() { 5 } else { 0 } + u8::from(shape.lsda) + 1);
        if let Some(Personality { indirect, address }) = shape.personality {
            out.push(PCREL_SDATA4 | if indirect { 0x80 } else { 0 });
            put_pcrel(WHAT, out, self.at, address)?;
        }
        out.extend(shape.lsda.then_some(PCREL_SDATA4));
        out.push(PCREL_SDATA4);
        let (cfa, registers) = shape.initial();
        let mut delta = Delta { out, data_align: shape.data_align, initial: &[], code };
        delta.between(None, &[], cfa.as_ref(), &registers)?;
        self.end(start);
        Ok(start)
    }

    /// Opens a record; returns its offset.
    fn begin(&mut self) -> usize {
        let start = self.out.bytes.len();
        self.out.bytes.extend([0; 4]);
        start
    }

    /// Pads the record and fills in its length.
    fn end(&mut self, start: usize) {
        let out = &mut self.out.bytes;
        out.resize(out.len().next_multiple_of(RECORD_ALIGN), 0);
        // Fits: one record is far below 4 GiB, its run's code being below 2 GiB.
        let len = (out.len() - start - 4) as u32;
        out[start..start + 4].copy_from_slice(&len.to_le_bytes());
    }
}

/// The call frame program of a run.
fn program(run: &Run, shape: &Shape) -> Result<Vec<u8>, CfiError> {
    let (initial_cfa, initial) = shape.initial();
    let code = run.range.start;
    let differences =
        |out: &mut Vec<u8>, from: (Option<&Cfa>, &[(Register, RegisterRule)]), to: &FrameState| {
            let mut delta = Delta { out, data_align: shape.data_align, initial: &initial, code };
            delta.between(from.0, from.1, Some(&to.cfa), &to.registers)
        };
    let (first, mut out) = (&run.rows[0].state, Vec::new());
    differences(&mut out, (initial_cfa.as_ref(), &initial), first)?;
    args_size(&mut out, 0, first.args_size);
    // Unwinders disagree whether recalling a state also recalls the size of arguments (libgcc: no, LLVM:
    // yes).
    let may_recall = run.rows.iter().all(|row| row.state.args_size == 0);
    let next_same = if may_recall { next_same(&run.rows) } else { vec![None; run.rows.len()] };
    // Rows that will recall what was remembered, innermost last.
    let mut recallers: Vec<usize> = Vec::new();
    for i in 1..run.rows.len() {
        let (from, to) = (&run.rows[i - 1].state, &run.rows[i].state);
        if let Some(again) = next_same[i - 1]
            && again > i
            && recallers.len() < MAX_REMEMBERED
            && recallers.last().is_none_or(|outer| again < *outer)
        {
            let before = &run.rows[again - 1].state;
            let mut plain = Vec::new();
            differences(&mut plain, (Some(&before.cfa), &before.registers), &run.rows[again].state)?;
            // Remember and recall take a byte each.
            if plain.len() > 2 {
                out.push(0x0a);
                recallers.push(again);
            }
        }
        advance(&mut out, run.rows[i].start.offset_from(run.rows[i - 1].start) as u64);
        if recallers.last() == Some(&i) {
            recallers.pop();
            out.push(0x0b);
        } else {
            differences(&mut out, (Some(&from.cfa), &from.registers), to)?;
        }
        args_size(&mut out, from.args_size, to.args_size);
    }
    Ok(out)
}

/// For each row the next one with the same rules.
fn next_same(rows: &[Row]) -> Vec<Option<usize>> {
    let mut later = FxHashMap::default();
    let mut next = vec![None; rows.len()];
    for (i, row) in rows.iter().enumerate().rev() {
        next[i] = later.insert((&row.state.cfa, &row.state.registers), i);
    }
    next
}

fn advance(out: &mut Vec<u8>, delta: u64) {
    match delta {
        0..=0x3f => out.push(0x40 | delta as u8),
        0x40..=0xff => out.extend([0x02, delta as u8]),
        0x100..=0xffff => {
            out.push(0x03);
            out.extend((delta as u16).to_le_bytes());
        }
        _ => {
            out.push(0x04);
            out.extend((delta as u32).to_le_bytes());
        }
    }
}

fn args_size(out: &mut Vec<u8>, from: u64, to: u64) {
    if from != to {
        out.push(0x2e);
        put_uleb(out, to);
    }
}

/// Writes the instructions that lead from one state to another.
struct Delta<'a> {
    out: &'a mut Vec<u8>,
    data_align: i64,
    /// The CIE's rules, which `DW_CFA_restore` goes back to.
    initial: &'a [(Register, RegisterRule)],
    /// For error texts.
    code: Svma,
}

impl Delta<'_> {
    fn between(
        &mut self,
        from_cfa: Option<&Cfa>,
        from: &[(Register, RegisterRule)],
        to_cfa: Option<&Cfa>,
        to: &[(Register, RegisterRule)],
    ) -> Result<(), CfiError> {
        if let Some(cfa) = to_cfa
            && from_cfa != to_cfa
        {
            self.cfa(from_cfa, cfa)?;
        }
        let (mut i, mut j) = (0, 0);
        while i < from.len() || j < to.len() {
            let order = match (from.get(i), to.get(j)) {
                (Some((a, _)), Some((b, _))) => a.cmp(b),
                (Some(_), None) => Ordering::Less,
                _ => Ordering::Greater,
            };
            match order {
                Ordering::Less => self.rule(from[i].0, None)?,
                Ordering::Equal if from[i].1 == to[j].1 => {}
                _ => self.rule(to[j].0, Some(&to[j].1))?,
            }
            i += usize::from(order != Ordering::Greater);
            j += usize::from(order != Ordering::Less);
        }
        Ok(())
    }

    fn cfa(&mut self, from: Option<&Cfa>, to: &Cfa) -> Result<(), CfiError> {
        let (register, offset) = match to {
            Cfa::RegisterOffset { register, offset } => (*register, *offset),
            Cfa::Expression(bytes) => {
                self.out.push(0x0f);
                self.block(bytes);
                return Ok(());
            }
        };
        let (same_register, same_offset) = match from {
            Some(Cfa::RegisterOffset { register: r, offset: o }) => (*r == register, *o == offset),
            _ => (false, false),
        };
        if same_offset {
            self.opcode(0x0d, Some(register));
            return Ok(());
        }
        let register = (!same_register).then_some(register);
        match u64::try_from(offset) {
            Ok(offset) => {
                self.opcode(if same_register { 0x0e } else { 0x0c }, register);
                put_uleb(self.out, offset);
            }
            Err(_) => {
                self.opcode(if same_register { 0x13 } else { 0x12 }, register);
                let factored = self.factored(offset)?;
                put_sleb(self.out, factored);
            }
        }
        Ok(())
    }

    fn rule(&mut self, register: Register, rule: Option<&RegisterRule>) -> Result<(), CfiError> {
        let initial = self.initial.iter().find(|(r, _)| *r == register).map(|(_, rule)| rule);
        if rule == initial {
            match register.0 {
                0..=63 => self.out.push(0xc0 | register.0 as u8),
                _ => self.opcode(0x06, Some(register)),
            }
            return Ok(());
        }
        match rule {
            // `entry_state` is only chosen if each row has a rule for all that the CIE has one for.
            None => return Err(self.inexpressible("a rule of the CIE cannot be removed")),
            Some(RegisterRule::Undefined) => self.opcode(0x07, Some(register)),
            Some(RegisterRule::SameValue) => self.opcode(0x08, Some(register)),
            Some(RegisterRule::Register(from)) => {
                self.opcode(0x09, Some(register));
                put_uleb(self.out, from.0.into());
            }
            Some(RegisterRule::Offset(offset)) => self.offset(register, *offset)?,
            Some(RegisterRule::ValOffset(offset)) => {
                let factored = self.factored(*offset)?;
                self.opcode(if factored < 0 { 0x15 } else { 0x14 }, Some(register));
                self.number(factored);
            }
            Some(RegisterRule::Expression(bytes)) => {
                self.opcode(0x10, Some(register));
                self.block(bytes);
            }
            Some(RegisterRule::ValExpression(bytes)) => {
                self.opcode(0x16, Some(register));
                self.block(bytes);
            }
        }
        Ok(())
    }

    fn offset(&mut self, register: Register, offset: i64) -> Result<(), CfiError> {
        let factored = self.factored(offset)?;
        match (factored >= 0, register.0) {
            (true, 0..=63) => self.out.push(0x80 | register.0 as u8),
            (true, _) => self.opcode(0x05, Some(register)),
            (false, _) => self.opcode(0x11, Some(register)),
        }
        self.number(factored);
        Ok(())
    }

    fn opcode(&mut self, opcode: u8, register: Option<Register>) {
        self.out.push(opcode);
        if let Some(register) = register {
            put_uleb(self.out, register.0.into());
        }
    }

    /// A factored offset; the opcode before has chosen the signed form for a negative one.
    fn number(&mut self, factored: i64) {
        match u64::try_from(factored) {
            Ok(value) => put_uleb(self.out, value),
            Err(_) => put_sleb(self.out, factored),
        }
    }

    fn block(&mut self, bytes: &[u8]) {
        put_uleb(self.out, bytes.len() as u64);
        self.out.extend(bytes);
    }

    fn factored(&self, offset: i64) -> Result<i64, CfiError> {
        // `data_align` was chosen to divide all offsets.
        offset.checked_div(self.data_align).ok_or_else(|| self.inexpressible("an offset is too large"))
    }

    fn inexpressible(&self, why: &'static str) -> CfiError {
        CfiError::Inexpressible { what: WHAT, at: self.code, why }
    }
}
