//! Forms of unwind tables: what is asked of one, whatever it looks like.
//!
//! **Problem.** Analysis and emission ask what unwinders know of a place; how that is written down
//! (`.eh_frame`, a kernel's rows, frame pointers, nowhere) is not their subject. **Idea**: they ask a
//! [`UnwindForm`], place by place, and get states in the terms of DWARF, which can say what the others can.
//! [`UnwindInfo`] is the form of ELF files; [`NoUnwindTables`] that of code of which unwinders know nothing.
//!
//! **Limits.** What is written for moved code is `.eh_frame` ([`write_eh_frame`](crate::write_eh_frame)), in
//! whatever form the original's was read.

use crate::error::CfiError;
use crate::info::{FrameEntry, UnwindInfo, row_at};
use crate::records::Personality;
use crate::state::{FrameAddress, Row};
use restitch_address::{Svma, SvmaRange};

/// A contiguous piece of code that unwinders know.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UnwindPiece {
    /// The code. Never empty.
    pub range: SvmaRange,
    /// Exception handling routine, if it has one.
    pub personality: Option<Personality>,
    /// Its language-specific data: see [`Lsda`](crate::Lsda).
    pub lsda: Option<Svma>,
    /// The "caller" was interrupted at its exact program counter, not behind a call.
    pub signal_frame: bool,
}

impl From<&FrameEntry> for UnwindPiece {
    fn from(entry: &FrameEntry) -> Self {
        let &FrameEntry { range, personality, lsda, signal_frame, .. } = entry;
        Self { range, personality, lsda, signal_frame }
    }
}

/// A form of unwind tables.
///
/// What it has to keep: the same questions have the same answers; no two pieces start at the same address.
/// Where it knows nothing it says so: the code is looked at with more doubt, and stays where it is.
pub trait UnwindForm: Sync {
    /// The piece that holds `at`; `None` if unwinders know nothing of that place. Of pieces that overlap, the
    /// one that starts last.
    fn piece_at(&self, at: Svma) -> Option<UnwindPiece>;

    /// The full unwind state at every address of `piece`, which is one of this form's: sorted rows, the first
    /// at the start of its range, neighbours different.
    ///
    /// # Errors
    /// If what is written of the piece makes no sense.
    fn rows_of(&self, piece: &UnwindPiece) -> Result<Vec<Row>, CfiError>;

    /// The canonical frame address at every address of `piece`, as [`rows_of`](Self::rows_of) has it.
    ///
    /// # Errors
    /// As [`rows_of`](Self::rows_of).
    fn frame_addresses_of(&self, piece: &UnwindPiece) -> Result<Vec<FrameAddress>, CfiError> {
        let frame = |row: Row| FrameAddress { start: row.start, cfa: row.state.cfa.clone() };
        let mut frames: Vec<FrameAddress> = self.rows_of(piece)?.into_iter().map(frame).collect();
        frames.dedup_by(|next, kept| next.cfa == kept.cfa);
        Ok(frames)
    }

    /// The state that holds at `at`; `None` if unwinders know nothing of that place.
    ///
    /// # Errors
    /// As [`rows_of`](Self::rows_of).
    fn state_at(&self, at: Svma) -> Result<Option<Row>, CfiError> {
        let Some(piece) = self.piece_at(at) else { return Ok(None) };
        Ok(row_at(&self.rows_of(&piece)?, at).cloned())
    }
}

impl UnwindForm for UnwindInfo {
    fn piece_at(&self, at: Svma) -> Option<UnwindPiece> {
        self.find(at).map(UnwindPiece::from)
    }

    fn rows_of(&self, piece: &UnwindPiece) -> Result<Vec<Row>, CfiError> {
        self.rows(entry_of(self, piece)?)
    }

    fn frame_addresses_of(&self, piece: &UnwindPiece) -> Result<Vec<FrameAddress>, CfiError> {
        self.frame_addresses(entry_of(self, piece)?)
    }
}

/// The entry of a piece.
fn entry_of<'a>(info: &'a UnwindInfo, piece: &UnwindPiece) -> Result<&'a FrameEntry, CfiError> {
    let at = piece.range.start;
    let entry = info.find(at).filter(|entry| entry.range == piece.range);
    entry.ok_or(CfiError::Malformed { what: ".eh_frame", at, why: "the piece belongs to another file" })
}

/// The form of code of which unwinders know nothing.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct NoUnwindTables;

impl UnwindForm for NoUnwindTables {
    fn piece_at(&self, _at: Svma) -> Option<UnwindPiece> {
        None
    }

    fn rows_of(&self, _piece: &UnwindPiece) -> Result<Vec<Row>, CfiError> {
        Ok(Vec::new())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::registers::Register;
    use crate::state::{Cfa, FrameState};
    use crate::write::{Run, write_eh_frame};
    use std::sync::Arc;

    /// Rows of a piece at 0x2000, of which the second changes no frame address.
    fn rows() -> Vec<Row> {
        let row = |start: u64, offset: i64, args_size: u64| {
            let cfa = Cfa::RegisterOffset { register: Register::RSP, offset };
            let state = FrameState { cfa, args_size, ..FrameState::at_entry() };
            Row { start: Svma::new(start), state: Arc::new(state) }
        };
        vec![row(0x2000, 8, 0), row(0x2001, 8, 16), row(0x2004, 24, 16)]
    }

    /// A form that has nothing but rows.
    struct Rows(UnwindPiece, Vec<Row>);

    impl UnwindForm for Rows {
        fn piece_at(&self, at: Svma) -> Option<UnwindPiece> {
            Some(self.0).filter(|piece| piece.range.contains(at))
        }

        fn rows_of(&self, _piece: &UnwindPiece) -> Result<Vec<Row>, CfiError> {
            Ok(self.1.clone())
        }
    }

    #[test]
    fn forms_that_know_the_same_give_the_same_answers() {
        let range = SvmaRange::new(Svma::new(0x2000), 16);
        let run = Run { range, rows: rows(), personality: None, lsda: None, signal_frame: false };
        let at = Svma::new(0x1000);
        let info = UnwindInfo::parse(&write_eh_frame(at, &[run]).unwrap().bytes, at).unwrap();
        let piece = UnwindPiece { range, personality: None, lsda: None, signal_frame: false };
        let other = Rows(piece, rows());
        let (info, other): (&dyn UnwindForm, &dyn UnwindForm) = (&info, &other);
        for at in [0x1fff, 0x2000, 0x2003, 0x2004, 0x200f, 0x2010].map(Svma::new) {
            assert_eq!(info.piece_at(at), other.piece_at(at), "{at}");
            assert_eq!(info.state_at(at).unwrap(), other.state_at(at).unwrap(), "{at}");
        }
        assert_eq!(info.rows_of(&piece).unwrap(), rows());
        let frames = info.frame_addresses_of(&piece).unwrap();
        assert_eq!((frames.len(), &frames), (2, &other.frame_addresses_of(&piece).unwrap()));
    }

    #[test]
    fn where_nothing_is_known_that_is_said() {
        let (info, none) = (UnwindInfo::parse(&[], Svma::new(0)).unwrap(), NoUnwindTables);
        for form in [&info as &dyn UnwindForm, &none] {
            assert_eq!(form.piece_at(Svma::new(0x2000)), None);
            assert_eq!(form.state_at(Svma::new(0x2000)), Ok(None));
        }
        let range = SvmaRange::new(Svma::new(0x2000), 16);
        let strange = UnwindPiece { range, personality: None, lsda: None, signal_frame: false };
        assert!(info.rows_of(&strange).unwrap_err().to_string().contains("belongs to another file"));
    }
}
