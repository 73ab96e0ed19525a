//! Several system calls in one go.
//!
//! Problem: each call of [`Borrow`] costs two stops of the borrowed thread, and on a busy machine each of
//! them costs the time until that thread gets a processor again, a scheduler tick (1 to 4 ms) where the
//! kernel preempts lazily. Idea: a loop in the padding behind the stub makes all calls of a table and then
//! one more, `tkill` of the thread itself with SIGURG, which is the only signal that is not blocked: a traced
//! thread stops before a signal is delivered. So one stop is left.
//!
//! If the tracer dies, the thread makes the rest of the calls and returns through `rt_sigreturn` as ever.
//! Then SIGURG is delivered: it is ignored unless the program handles it, and programs that do so have to
//! bear spurious ones (it may always be sent by any connection).

use crate::arguments::{Backing, MEMORY_FILE_FLAGS, OPEN_FLAGS, Placement, Protection, RemoteFd};
use crate::borrow::Borrow;
use crate::error::TraceError;
use crate::registers::Registers;
use crate::seccomp::Asked;
use crate::status::StopKind;
use crate::stub::STUB_SPACE;
use crate::sys::{self, Resume};
use restitch_address::{Avma, AvmaRange};
use restitch_x86::system_call::{AFTER_CALL, ENTRY};
use std::ffi::CStr;

/// System calls that are to be made in one go.
#[derive(Debug, Default)]
pub struct Batch {
    calls: Vec<Call>,
    /// Texts in memory that calls name, with the indices of the call and of the argument that is to be their
    /// address.
    texts: Vec<(usize, usize, Vec<u8>)>,
}

#[derive(Debug, Clone, Copy)]
struct Call {
    name: &'static str,
    number: i64,
    args: [u64; 6],
}

impl Call {
    fn is_fixed_map(&self) -> bool {
        self.number == libc::SYS_mmap && self.args[3] & libc::MAP_FIXED_NOREPLACE as u64 != 0
    }
}

impl Batch {
    /// No calls.
    pub fn new() -> Self {
        Self::default()
    }

    /// Whether there are no calls.
    pub fn is_empty(&self) -> bool {
        self.calls.is_empty()
    }

    /// How many calls there are.
    pub fn len(&self) -> usize {
        self.calls.len()
    }

    fn add(&mut self, name: &'static str, number: i64, args: [u64; 6]) {
        self.calls.push(Call { name, number, args });
    }

    /// As [`Borrow::open`] for reading; the result is the descriptor's number.
    pub fn open(&mut self, path: &CStr) {
        self.texts.push((self.calls.len(), 1, path.to_bytes_with_nul().to_vec()));
        let args = [libc::AT_FDCWD as u64, 0, OPEN_FLAGS, 0, 0, 0];
        self.add("openat", libc::SYS_openat, args);
    }

    /// As [`Borrow::memfd_create`]; the result is the descriptor's number.
    pub fn memfd_create(&mut self, name: &CStr) {
        self.texts.push((self.calls.len(), 0, name.to_bytes_with_nul().to_vec()));
        self.add("memfd_create", libc::SYS_memfd_create, [0, MEMORY_FILE_FLAGS, 0, 0, 0, 0]);
    }

    /// As [`Borrow::close`].
    pub fn close(&mut self, fd: RemoteFd) {
        self.add("close", libc::SYS_close, [fd.number() as u64, 0, 0, 0, 0, 0]);
    }

    /// As [`Borrow::mmap`]; the result is the address.
    pub fn mmap(&mut self, placement: Placement, len: u64, protection: Protection, backing: Backing) {
        self.add(
            "mmap",
            libc::SYS_mmap,
            crate::arguments::mmap_arguments(placement, len, protection, backing),
        );
    }

    /// As [`Borrow::munmap`].
    pub fn munmap(&mut self, range: AvmaRange) {
        self.add("munmap", libc::SYS_munmap, [range.start.get(), range.len(), 0, 0, 0, 0]);
    }

    /// `munlock`.
    pub fn munlock(&mut self, range: AvmaRange) {
        self.add("munlock", libc::SYS_munlock, [range.start.get(), range.len(), 0, 0, 0, 0]);
    }

    /// As [`Borrow::madvise`].
    pub fn madvise(&mut self, range: AvmaRange, advice: i32) {
        let args = [range.start.get(), range.len(), advice as u64, 0, 0, 0];
        self.add("madvise", libc::SYS_madvise, args);
    }

    /// As [`Borrow::mremap`].
    pub fn mremap(&mut self, from: AvmaRange, to: Avma) {
        self.remap(from, to, 0);
    }

    /// As [`Borrow::mremap_leaving`].
    pub fn mremap_leaving(&mut self, from: AvmaRange, to: Avma) {
        self.remap(from, to, libc::MREMAP_DONTUNMAP);
    }

    fn remap(&mut self, from: AvmaRange, to: Avma, more: i32) {
        let flags = (libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED | more) as u64;
        let args = [from.start.get(), from.len(), from.len(), flags, to.get(), 0];
        self.add("mremap", libc::SYS_mremap, args);
    }

    /// The table with `last` at its end, and the texts behind it, for address `at`.
    fn table(&self, at: Avma, last: Call) -> Vec<u8> {
        let mut calls: Vec<Call> = self.calls.iter().copied().chain([last]).collect();
        let mut texts = Vec::new();
        for (index, argument, text) in &self.texts {
            calls[*index].args[*argument] = at.get() + (calls.len() * ENTRY + texts.len()) as u64;
            texts.extend_from_slice(text);
        }
        let words = calls.iter().flat_map(|c| std::iter::once(c.number as u64).chain(c.args));
        words.flat_map(u64::to_le_bytes).chain(texts).collect()
    }
}

impl Borrow<'_> {
    /// Makes all calls, in order, whatever the results of earlier ones are. The results in order: errors of
    /// the calls are inside.
    ///
    /// # Errors
    /// If the thread cannot be made to call, or a filter of it does not let one of the calls through: then
    /// none was made.
    pub fn run(&mut self, batch: &Batch) -> Result<Vec<Result<u64, TraceError>>, TraceError> {
        for &Call { number, args, .. } in &batch.calls {
            self.permit(&Asked { number, args })?;
        }
        let raw = match self.loop_room() {
            true if batch.calls.len() > 1 => self.run_at_once(batch)?,
            _ => None,
        };
        let raw = match raw {
            Some(raw) => raw,
            None => self.run_singly(batch)?,
        };
        let pid = self.pid();
        let judge = |(call, result): (&Call, i64)| {
            let failed = |number| {
                let source = std::io::Error::from_raw_os_error(number);
                TraceError::RemoteCall { pid, call: call.name, source }
            };
            match u64::try_from(result) {
                // A kernel that ignores MAP_FIXED_NOREPLACE has mapped it elsewhere.
                Ok(value) if call.is_fixed_map() && value != call.args[0] => Err(failed(libc::EEXIST)),
                Ok(value) => Ok(value),
                Err(_) => Err(failed(i32::try_from(-result).unwrap_or(libc::EIO))),
            }
        };
        Ok(batch.calls.iter().zip(raw).map(judge).collect())
    }

    fn run_singly(&mut self, batch: &Batch) -> Result<Vec<i64>, TraceError> {
        let mut out = Vec::new();
        for (i, call) in batch.calls.iter().enumerate() {
            let mut args = call.args;
            if let Some((_, argument, text)) = batch.texts.iter().find(|(index, ..)| *index == i) {
                args[*argument] = self.put_scratch(text)?.get();
            }
            out.push(self.raw_system_call(call.number, args)?);
        }
        Ok(out)
    }

    /// `None` if the table is too large.
    fn run_at_once(&mut self, batch: &Batch) -> Result<Option<Vec<i64>>, TraceError> {
        let last = Call {
            name: "tkill",
            number: libc::SYS_tkill,
            args: [self.own_number()? as u64, libc::SIGURG as u64, 0, 0, 0, 0],
        };
        let table = batch.table(self.area(), last);
        if table.len() > self.scratch_len() {
            return Ok(None);
        }
        let at = self.put_scratch(&table)?;
        let count = batch.calls.len();
        let call = self.call_registers(libc::SYS_getpid, [0; 6]);
        let registers =
            Registers { rip: self.stub() + STUB_SPACE as u64, rbx: at.get(), rbp: count as u64 + 1, ..call };
        let tid = self.thread();
        sys::set_registers(tid, &registers)?;
        sys::set_signal_mask(tid, !(1 << (libc::SIGURG - 1)))?;
        sys::resume(tid, Resume::Continue, 0)?;
        self.set_moved(true);
        let end =
            Registers { rip: registers.rip + AFTER_CALL, rbx: at.get() + (count * ENTRY) as u64, ..call };
        self.wait_for_own_signal(&end)?;
        sys::set_signal_mask(tid, u64::MAX)?;
        // In this stop signals are looked at, so a call that was interrupted by the first stop can be
        // restarted from it.
        self.set_moved(false);
        let results = self.memory().read_vec(at, count * ENTRY)?;
        let result = |entry: &[u8]| i64::from_le_bytes(entry[..8].try_into().expect("8 bytes"));
        Ok(Some(results.chunks_exact(ENTRY).map(result).collect()))
    }

    /// Waits for the SIGURG that the loop sends at its `end`. One that somebody else sends is delivered when
    /// the thread is released.
    fn wait_for_own_signal(&mut self, end: &Registers) -> Result<(), TraceError> {
        let tid = self.thread();
        loop {
            match self.next_stop()? {
                StopKind::Signal(libc::SIGURG) => {
                    let now = sys::get_registers(tid)?;
                    let at_end = (now.rip, now.rbx) == (end.rip, end.rbx);
                    if !at_end || !sys::sent_to_thread(tid)? {
                        self.deliver_later(libc::SIGURG);
                    }
                    if at_end {
                        return Ok(());
                    }
                    sys::resume(tid, Resume::Continue, 0)?;
                }
                // Only what cannot be blocked: it leads to a group stop.
                StopKind::Signal(signal) => sys::resume(tid, Resume::Continue, signal)?,
                _ => sys::resume(tid, Resume::Continue, 0)?,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_lie_behind_the_table() {
        let mut batch = Batch::new();
        batch.munmap(AvmaRange::new(Avma::new(0x1000), 0x1000));
        batch.open(c"/a");
        let last = Call { name: "tkill", number: libc::SYS_tkill, args: [7; 6] };
        let table = batch.table(Avma::new(0x5000), last);
        assert_eq!(table.len(), 3 * ENTRY + 3);
        assert_eq!(&table[3 * ENTRY..], b"/a\0");
        let word = |at: usize| u64::from_le_bytes(table[at..at + 8].try_into().unwrap());
        assert_eq!(word(ENTRY + 16), 0x5000 + 3 * ENTRY as u64);
        assert_eq!(word(2 * ENTRY), libc::SYS_tkill as u64);
    }
}
