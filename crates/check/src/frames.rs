//! Compares what an unwinder learns about the version with what it learns about the original.

use crate::finding::{Findings, Problem};
use crate::lsda::{Chains, Handling};
use crate::row::RowAt;
use crate::subject::Subject;
use crate::unwind::{Interner, Lsdas, RowId, Table, ranges_in};
use restitch_address::Svma;

/// Both sets of tables.
pub(crate) struct Frames<'a> {
    ids: Interner,
    original: Table<'a>,
    version: Table<'a>,
    original_lsdas: Lsdas,
    version_lsdas: Lsdas,
    chains: Chains,
}

impl<'a> Frames<'a> {
    /// Reads both tables; what cannot be read is a finding. Of the original, programs are run for what has
    /// copies only.
    pub fn read(s: &Subject<'a>, findings: &mut Findings) -> Self {
        let mut frames = Self {
            ids: Interner::default(),
            original: Table::empty(),
            version: Table::empty(),
            original_lsdas: Lsdas::default(),
            version_lsdas: Lsdas::default(),
            chains: Chains::default(),
        };
        if let Some(range) = s.image.eh_frame() {
            let bytes = s.image.read(range.start, range.len() as usize).unwrap_or_default();
            match Table::linear(bytes, range.start) {
                Ok(table) => frames.original = table,
                Err(why) => findings.add(None, None, Problem::Unwind { of: "the original's", why }),
            }
        }
        let version = s.version;
        let of = "the version's";
        let bytes = (s.bytes(version.eh_frame), s.bytes(version.eh_frame_hdr));
        let (Some(eh_frame), Some(hdr)) = bytes else {
            let why = "they are outside its image".to_owned();
            findings.add(None, None, Problem::Unwind { of, why });
            return frames;
        };
        let at = version.eh_frame.start;
        let indexed = Table::indexed(eh_frame, at, hdr, version.eh_frame_hdr.start);
        match indexed.and_then(|mut table| table.evaluate(&mut frames.ids).map(|()| table)) {
            Ok(table) => frames.version = table,
            Err(why) => findings.version(at, Problem::Unwind { of, why }),
        }
        // Debuggers read the entries one by one: they have to be the same.
        match ranges_in(eh_frame, at) {
            Ok(ranges) if ranges.iter().copied().eq(frames.version.ranges()) => {}
            Ok(_) => {
                let why = "the search table does not list the entries that are there".to_owned();
                findings.version(at, Problem::Unwind { of, why });
            }
            Err(why) => findings.version(at, Problem::Unwind { of, why }),
        }
        frames
    }

    /// Compares the rows at one instruction boundary.
    pub fn compare_row(&mut self, at: Svma, row: RowAt, findings: &mut Findings) {
        let found = self.version_row(at);
        let mut any = false;
        for original in row.originals.into_iter().flatten() {
            let Some(want) = self.original_row(at, original, findings) else { continue };
            any = true;
            if found == Some(self.ids.lowered(want, row.lowered)) {
                return;
            }
        }
        let Some(original) = row.originals.into_iter().flatten().next() else { return };
        // Code without unwind information is not moved; a branch to it has the row of where it stands.
        if !any && found.is_some() {
            return;
        }
        let want = self.original_row(at, original, findings);
        let want = want.map(|want| self.ids.lowered(want, row.lowered));
        let text = format!("is {}, and not {}", self.ids.text(found), self.ids.text(want));
        findings.at(at, original, Problem::Row(text));
    }

    /// The original's row at `o`, to be compared with that at `v`. A row that cannot be read is a finding.
    fn original_row(&mut self, v: Svma, o: Svma, findings: &mut Findings) -> Option<RowId> {
        self.original.row(o, &mut self.ids).unwrap_or_else(|why| {
            findings.at(v, o, Problem::Unwind { of: "the original's", why });
            None
        })
    }

    /// The version's row. (All its entries were evaluated when they were read.)
    fn version_row(&mut self, v: Svma) -> Option<RowId> {
        self.version.row(v, &mut self.ids).unwrap_or_default()
    }

    /// Compares what an exception meets that is thrown by the instruction of `len` bytes (in the version, in
    /// the original). A call is looked up as an unwinder does, by the last byte before its return address;
    /// any other instruction by its first byte, and only where the original handles exceptions (code compiled
    /// with `-fnon-call-exceptions`).
    pub fn compare_handling(
        &mut self,
        s: &Subject<'_>,
        v: Svma,
        o: Svma,
        len: (u32, u32),
        is_call: bool,
        findings: &mut Findings,
    ) {
        let last = |len: u32| if is_call { u64::from(len) - 1 } else { 0 };
        let (v, o) = (v + last(len.0), o + last(len.1));
        let memory = |at| s.image.read_tail(at);
        let original = match self.original_lsdas.lookup(&mut self.original, o, memory, &mut self.chains) {
            Ok(handling) => handling,
            Err(why) => return findings.at(v, o, Problem::Lsda(format!("of the original: {why}"))),
        };
        if !is_call && !matches!(original, Handling::Covered(Some(_), _)) {
            return;
        }
        let memory = |at: Svma| {
            let lsda = s.version.lsda;
            lsda.contains(at).then(|| s.bytes(restitch_address::Range { start: at, end: lsda.end }))?
        };
        let version = match self.version_lsdas.lookup(&mut self.version, v, memory, &mut self.chains) {
            Ok(handling) => handling,
            Err(why) => return findings.at(v, o, Problem::Lsda(format!("of the version: {why}"))),
        };
        // Landing pads included: they have to be those of the original code, because whoever keeps one must
        // not keep the version.
        if version != original {
            findings.at(v, o, Problem::Lsda(format!("gives {version:?}, and not {original:?}")));
        }
        if is_call {
            self.compare_call_row(v, o, findings);
        }
    }

    /// An unwinder evaluates a caller's row at the last byte of its call.
    fn compare_call_row(&mut self, v: Svma, o: Svma, findings: &mut Findings) {
        let (found, want) = (self.version_row(v), self.original_row(v, o, findings));
        if found != want {
            let text = format!("behind a call is {}, and not {}", self.ids.text(found), self.ids.text(want));
            findings.at(v, o, Problem::Row(text));
        }
    }
}
