//! Where code lives: what a switch asks of a host of code that stands still.
//!
//! **Problem.** What a switch does to code, contexts and return addresses is the same wherever the code runs;
//! how bytes are read and written, and how contexts (threads) are stopped, is not. Idea: everything between
//! stop and resume is written against two traits, and what comes before and behind it against a third
//! (`running_host.rs`). Today's host is a process under `ptrace` (`ptrace_host.rs`, `process_host.rs`); the
//! tests' host is bytes and contexts in memory (`fake_host.rs`), which fails or dies between any two steps
//! (`trial_host.rs`). A running kernel could be another one: a loaded module stops the processors, and its
//! text-patching routine writes.
//!
//! **What a host has to keep.** A write of one page or less happens whole or not at all. Writes are seen by
//! every context before [`StoppedHost::resume`] returns. Contexts do not run between the stop and `resume`,
//! whatever fails meanwhile.

use crate::error::ProcessError;
use crate::stub::StubSite;
use restitch_address::{Avma, AvmaRange};
use restitch_apply::Why;
use restitch_procfs::Mapping;
use restitch_tracee::{Registers, StopTimes, TraceError};

/// The bytes of a host.
pub(crate) trait CodeMemory {
    /// The process that errors name.
    fn pid(&self) -> i32;

    /// The `len` bytes at `at`; an error if not all of them can be read.
    fn read_vec(&self, at: Avma, len: usize) -> Result<Vec<u8>, TraceError>;

    /// Writes all of `bytes`, code included, page by page in ascending order.
    fn write(&self, at: Avma, bytes: &[u8]) -> Result<(), TraceError>;

    /// The pages of `range` that do not show what the file holds, ascending; an error says why it is not
    /// known.
    fn own_pages(&self, range: AvmaRange) -> Result<Vec<Avma>, Why>;

    /// Whether `replacement` shows the same as the mapping `wanted`, but for its own pages.
    ///
    /// # Errors
    /// Why not, or why it is not known.
    fn shows_the_same(&self, wanted: &Mapping, replacement: AvmaRange) -> Result<(), Why>;

    /// Has what is in use of `code` be at hand in its replacement as well, where that makes a difference.
    ///
    /// # Errors
    /// Why it cannot be known what is in use.
    fn touch_used(&self, _code: AvmaRange, _replacement: AvmaRange) -> Result<(), Why> {
        Ok(())
    }

    /// The word at `at`.
    fn read_u64(&self, at: Avma) -> Result<u64, TraceError> {
        let bytes = self.read_vec(at, 8)?;
        Ok(bytes.first_chunk().copied().map(u64::from_le_bytes).unwrap_or_default())
    }

    /// Many reads; `None` for those that are not possible.
    fn read_many(&self, requests: &[(Avma, usize)]) -> Vec<Option<Vec<u8>>> {
        requests.iter().map(|(at, len)| self.read_vec(*at, *len).ok()).collect()
    }

    /// Writes words.
    fn write_words(&self, words: &[(Avma, u64)]) -> Result<(), TraceError> {
        words.iter().try_for_each(|(at, word)| self.write(*at, &word.to_le_bytes()))
    }

    /// Whether these bytes are there.
    fn holds(&self, expected: &[(Avma, Vec<u8>)]) -> bool {
        expected.iter().all(|(at, bytes)| self.read_vec(*at, bytes.len()).is_ok_and(|found| found == *bytes))
    }
}

/// A prepared mapping that takes the place of another one, whole or not at all.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Exchange {
    /// The prepared mapping.
    pub from: AvmaRange,
    /// The first address of what it replaces.
    pub to: Avma,
    /// Where what it replaces is laid aside; `None`: it goes.
    pub aside: Option<Avma>,
}

/// A host of code whose contexts stand still.
pub(crate) trait StoppedHost {
    /// Its bytes.
    type Memory: CodeMemory;

    /// Its bytes.
    fn memory(&self) -> &Self::Memory;

    /// What is mapped where, by address.
    fn maps(&self) -> Result<Vec<Mapping>, TraceError>;

    /// The contexts that stand, by number.
    fn threads(&self) -> Vec<i32>;

    /// Where a context stands, and its stack.
    fn registers(&self, thread: i32) -> Result<Registers, TraceError>;

    /// Has a context go on elsewhere.
    fn set_registers(&mut self, thread: i32, registers: Registers) -> Result<(), TraceError>;

    /// Puts prepared mappings in place. `stub`: where a process makes the calls from; `maps`: as they are
    /// now.
    ///
    /// # Errors
    /// [`TraceError::NothingToBorrow`] if no mapping can be exchanged just now and none was: redirects are
    /// written one by one then.
    fn exchange(
        &mut self,
        stub: &StubSite,
        maps: &[Mapping],
        exchanges: &[Exchange],
    ) -> Result<(), ProcessError>;

    /// Lets all contexts run on; what the stop took.
    fn resume(self) -> StopTimes;
}
