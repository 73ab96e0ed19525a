//! `UnwindInfo`: all unwind entries of a module.

use crate::error::CfiError;
use crate::memory::{Cursor, Memory};
use crate::program::{Held, Machine, RegisterRules};
use crate::records::{Cie, Fde, Personality, Record, Records};
use crate::registers::Register;
use crate::state::{FrameAddress, FrameState, Row};
use restitch_address::{Svma, SvmaRange};
use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

/// The unwind entry (FDE) of one contiguous piece of code.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FrameEntry {
    /// The code that it describes. Never empty; of entries that are disputed, the longest one's.
    pub range: SvmaRange,
    /// Exception handling routine, if the function has one.
    pub personality: Option<Personality>,
    /// The function's language-specific data: see [`Lsda`](crate::Lsda).
    pub lsda: Option<Svma>,
    /// The "caller" was interrupted at its exact program counter, not behind a call.
    pub signal_frame: bool,
    /// Another FDE with this start says something else (how long the code is, how to unwind it): unwinders
    /// differ in which one they take.
    pub disputed: bool,
    /// Address of the FDE itself.
    pub fde: Svma,
    cie: u32,
    program: (u32, u32),
}

impl FrameEntry {
    /// Notes what `other`, which has the same start, says about it.
    fn take_in(&mut self, other: &Self, eh_frame: &[u8]) {
        let program = |entry: &Self| eh_frame.get(entry.program.0 as usize..entry.program.1 as usize);
        let same = self.range == other.range && self.lsda == other.lsda && program(self) == program(other);
        self.disputed |= !same;
        self.range.end = self.range.end.max(other.range.end);
    }
}

/// Records that a walk left out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Dropped {
    /// FDEs of no code: an empty range.
    pub empty: usize,
    /// FDEs with the start address of an earlier one.
    pub duplicate: usize,
    /// FDEs whose CIE or pointer encoding is not understood.
    pub unsupported: usize,
}

/// All unwind entries of a module, sorted by start address.
#[derive(Debug, Clone)]
pub struct UnwindInfo {
    bytes: Vec<u8>,
    at: Svma,
    cies: Vec<Cie>,
    entries: Vec<FrameEntry>,
    dropped: Dropped,
}

impl UnwindInfo {
    /// Reads the `.eh_frame` whose bytes are stored at address `at`: a linear walk up to the zero terminator
    /// or the end of the bytes.
    ///
    /// # Errors
    /// If the chain of records is broken. A record that is not understood is dropped and counted instead.
    pub fn parse(eh_frame: &[u8], at: Svma) -> Result<Self, CfiError> {
        if u32::try_from(eh_frame.len()).is_err() {
            return Err(CfiError::Malformed { what: ".eh_frame", at, why: "it is larger than 4 GiB" });
        }
        let mut walk = Walk { bytes: eh_frame, at, ..Walk::default() };
        let mut records = Records::new(eh_frame, at);
        while let Some(record) = records.next()? {
            if let Some(cie) = record.cie {
                walk.fde(&record, cie);
            }
        }
        let Walk { cies, mut entries, mut dropped, .. } = walk;
        // Stable: of two FDEs with one start the first in the section wins.
        entries.sort_by_key(|entry| entry.range.start);
        let before = entries.len();
        entries.dedup_by(|other, kept| {
            let same_start = kept.range.start == other.range.start;
            if same_start {
                kept.take_in(other, eh_frame);
            }
            same_start
        });
        dropped.duplicate = before - entries.len();
        Ok(Self { bytes: eh_frame[..records.position()].to_vec(), at, cies, entries, dropped })
    }

    /// Reads the `.eh_frame` at address `at` of a module whose section headers are gone: as
    /// [`parse`](Self::parse), up to the zero terminator.
    ///
    /// # Errors
    /// If `at` is not in the module, or the chain of records is broken.
    pub fn parse_at<'m>(memory: &impl Memory<'m>, at: Svma) -> Result<Self, CfiError> {
        let bytes = memory.bytes_from(at).ok_or(CfiError::Unmapped { what: ".eh_frame", at })?;
        Self::parse(&bytes[..bytes.len().min(u32::MAX as usize)], at)
    }

    /// All entries, sorted by start address; no two have the same start.
    pub fn entries(&self) -> &[FrameEntry] {
        &self.entries
    }

    /// What the walk left out.
    pub fn dropped(&self) -> Dropped {
        self.dropped
    }

    /// The entry whose range holds `at`.
    pub fn find(&self, at: Svma) -> Option<&FrameEntry> {
        let behind = self.entries.partition_point(|entry| entry.range.start <= at);
        // A range that wraps around the top of the address space is the last one.
        let candidate = behind.checked_sub(1).map_or(self.entries.last(), |i| self.entries.get(i))?;
        Some(candidate).filter(|entry| entry.range.contains(at))
    }

    /// The full unwind state at every address of `entry`, which must be one of [`entries`](Self::entries):
    /// sorted rows, the first at the start of the range, neighbours different.
    ///
    /// # Errors
    /// If the entry's call frame program does not decode, or makes no sense.
    pub fn rows(&self, entry: &FrameEntry) -> Result<Vec<Row>, CfiError> {
        let mut rows: Vec<Row> = Vec::new();
        self.run::<Vec<_>>(entry, |return_address, held| {
            let same = rows.last().is_some_and(|row| {
                row.state.cfa == *held.cfa
                    && row.state.registers == *held.registers
                    && row.state.args_size == held.args_size
            });
            if !same {
                let state = FrameState {
                    cfa: held.cfa.clone(),
                    registers: held.registers.clone(),
                    args_size: held.args_size,
                    return_address,
                };
                rows.push(Row { start: held.start, state: Arc::new(state) });
            }
        })?;
        Ok(rows)
    }

    /// The canonical frame address at every address of `entry`, as [`rows`](Self::rows) has it, and with the
    /// same errors: much faster, where the registers are not asked for.
    ///
    /// # Errors
    /// As [`rows`](Self::rows).
    pub fn frame_addresses(&self, entry: &FrameEntry) -> Result<Vec<FrameAddress>, CfiError> {
        let mut rows: Vec<FrameAddress> = Vec::new();
        self.run::<()>(entry, |_, held| {
            if rows.last().is_none_or(|row| row.cfa != *held.cfa) {
                rows.push(FrameAddress { start: held.start, cfa: held.cfa.clone() });
            }
        })?;
        Ok(rows)
    }

    /// Runs the programs of `entry`; `sink` also gets the column of the return address.
    fn run<R: RegisterRules>(
        &self,
        entry: &FrameEntry,
        mut sink: impl FnMut(Register, Held<'_, R>),
    ) -> Result<(), CfiError> {
        let unknown = CfiError::Malformed {
            what: ".eh_frame",
            at: entry.fde,
            why: "the entry belongs to another file",
        };
        let cie = self.cies.get(entry.cie as usize).ok_or(unknown)?;
        let program = |range: Range<usize>| Cursor::over("call frame program", &self.bytes, self.at, range);
        let mut machine = Machine::<R>::new(cie.factors, entry.range);
        machine.run_initial(program(cie.program.clone())?)?;
        let column = cie.factors.return_address;
        machine.run(program(entry.program.0 as usize..entry.program.1 as usize)?, |held| sink(column, held))
    }

    /// The state that holds at address `at`; `None` if no entry covers it.
    ///
    /// # Errors
    /// As [`rows`](Self::rows).
    pub fn row_at(&self, at: Svma) -> Result<Option<Row>, CfiError> {
        let Some(entry) = self.find(at) else { return Ok(None) };
        Ok(row_at(&self.rows(entry)?, at).cloned())
    }
}

/// The row among `rows` (those of one entry or run) that holds at `at`; `None` before the first one. The last
/// one holds to the end of the entry, which the rows do not know.
pub fn row_at(rows: &[Row], at: Svma) -> Option<&Row> {
    let first = rows.first()?.start;
    let behind = rows.partition_point(|row| row.start.offset_from(first) <= at.offset_from(first));
    rows.get(behind.checked_sub(1)?)
}

#[derive(Default)]
struct Walk<'a> {
    bytes: &'a [u8],
    at: Svma,
    cies: Vec<Cie>,
    /// Index into `cies` by offset; `None` for one that is not understood.
    known: HashMap<usize, Option<u32>>,
    /// The last one looked up: neighbours mostly share theirs.
    recent: Option<(usize, Option<u32>)>,
    entries: Vec<FrameEntry>,
    dropped: Dropped,
}

impl Walk<'_> {
    fn cie(&mut self, start: usize) -> Option<u32> {
        if let Some((at, index)) = self.recent
            && at == start
        {
            return index;
        }
        let index = *self.known.entry(start).or_insert_with(|| {
            let cie = Cie::parse(self.bytes, self.at, start).ok()?;
            self.cies.push(cie);
            Some(self.cies.len() as u32 - 1)
        });
        self.recent = Some((start, index));
        index
    }

    fn fde(&mut self, record: &Record, cie_start: usize) {
        let Some(index) = self.cie(cie_start) else {
            self.dropped.unsupported += 1;
            return;
        };
        let cie = &self.cies[index as usize];
        let Ok(fde) = Fde::parse(self.bytes, self.at, record, cie) else {
            self.dropped.unsupported += 1;
            return;
        };
        if fde.range.is_empty() {
            self.dropped.empty += 1;
            return;
        }
        self.entries.push(FrameEntry {
            range: fde.range,
            personality: cie.personality,
            lsda: fde.lsda,
            signal_frame: cie.signal_frame,
            disputed: false,
            fde: self.at + record.start as u64,
            cie: index,
            program: (fde.program.start as u32, fde.program.end as u32),
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `.eh_frame` at 0x1000 with an FDE for each (start, length, byte of its call frame program).
    fn tables(entries: &[(u32, u32, u8)]) -> UnwindInfo {
        // CIE: version 1, "zR", factors 1 and -8, return address 16, absolute 4-byte addresses,
        // DW_CFA_def_cfa rsp+8.
        let mut bytes =
            vec![20, 0, 0, 0, 0, 0, 0, 0, 1, b'z', b'R', 0, 1, 0x78, 16, 1, 3, 0x0c, 7, 8, 0x90, 1, 0, 0];
        for (start, len, byte) in entries {
            let cie = bytes.len() as u32 + 4;
            for word in [16, cie, *start, *len] {
                bytes.extend(word.to_le_bytes());
            }
            bytes.extend([0, *byte, 0, 0]);
        }
        UnwindInfo::parse(&bytes, Svma::new(0x1000)).expect("tables")
    }

    #[test]
    fn entries_with_one_start_that_differ_are_disputed() {
        // 0x41: DW_CFA_advance_loc by 1.
        let info =
            tables(&[(0x10, 4, 0), (0x10, 9, 0), (0x20, 4, 0), (0x20, 4, 0), (0x30, 4, 0), (0x30, 4, 0x41)]);
        let found: Vec<_> =
            info.entries().iter().map(|e| (e.range.start.get(), e.range.len(), e.disputed)).collect();
        assert_eq!(found, [(0x10, 9, true), (0x20, 4, false), (0x30, 4, true)]);
        assert_eq!(info.dropped().duplicate, 3);
    }
}
