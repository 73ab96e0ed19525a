//! The memory of another process.
//!
//! **Problem.** Who reads or writes a page that a userfaultfd(2) watches waits for its handler: a thread that
//! is stopped just now, or somebody who never answers. Only SIGKILL ends that wait. It is the same with files
//! on FUSE, which [`served`](crate::served) is about.
//!
//! **Idea.** Through `/proc/PID/mem` the kernel does not wait: what it would have to ask for is an error
//! (`handle_userfault` in fs/userfaultfd.c asks only where the caller can begin anew, which
//! `__access_remote_vm` in mm/memory.c does not permit). `process_vm_readv` and its like do wait, so they are
//! used for pages only of which the page map says that they are there. What lies side by side is read in one
//! go, so that this costs no more than they do.

use crate::error::TraceError;
use crate::neighbours::runs;
use crate::served::Served;
use restitch_address::{Avma, AvmaRange, PAGE};
use restitch_procfs::{self as procfs, MapsFile, Pagemap};
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;

/// The memory of one process, through `/proc/PID/mem`. Writes reach read-execute pages too while the writer
/// is the process's tracer: the kernel gives the process a private copy of the page, the file stays as it is.
#[derive(Debug)]
pub struct Memory {
    pid: i32,
    /// The thread by whose number the kernel finds the memory, should the first one have ended.
    holder: i32,
    file: File,
    writable: bool,
    served: Served,
}

impl Memory {
    /// Opens the memory of a process for reading and writing.
    pub fn open(pid: i32) -> Result<Self, TraceError> {
        Self::open_with(pid, true)
    }

    /// Opens the memory of a process for reading only. The process need not be traced.
    pub fn open_read_only(pid: i32) -> Result<Self, TraceError> {
        Self::open_with(pid, false)
    }

    fn open_with(pid: i32, writable: bool) -> Result<Self, TraceError> {
        let holder = restitch_procfs::holder(pid);
        let path = restitch_procfs::shared_path(pid, "mem");
        let opened = OpenOptions::new().read(true).write(writable).open(&path);
        let file = opened.map_err(|source| match source.raw_os_error() {
            Some(libc::ENOENT | libc::ESRCH) => {
                TraceError::Vanished { tid: pid, operation: "opening its memory" }
            }
            Some(libc::EACCES | libc::EPERM) if restitch_procfs::has_ended(pid) => {
                TraceError::Vanished { tid: pid, operation: "opening its memory" }
            }
            Some(libc::EACCES | libc::EPERM) => TraceError::Permission {
                pid,
                advice: restitch_procfs::obstacle(pid, restitch_procfs::Access::Trace),
            },
            Some(libc::EMFILE | libc::ENFILE) => TraceError::NoFiles { pid, source },
            _ => TraceError::Memory { operation: "open", pid, at: Avma::default(), len: 0, source },
        })?;
        Ok(Self { pid, holder, file, writable, served: Served::of(pid) })
    }

    /// For a stop: no server of a file system is waited for, who may be stopped as well.
    pub(crate) fn of_stopped(self) -> Self {
        self.served.wait_no_more();
        self
    }

    /// The process.
    pub fn pid(&self) -> i32 {
        self.pid
    }

    fn failed(&self, operation: &'static str, at: Avma, len: usize, source: io::Error) -> TraceError {
        let range = || std::iter::once(AvmaRange::new(at, len as u64));
        if source.raw_os_error() == Some(UNSERVED)
            && let Some(page) = self.served.missing(range(), &self.file)
        {
            return TraceError::Unserved { operation, pid: self.pid, at: page };
        }
        let refused = source.raw_os_error() == Some(libc::EIO);
        match refused.then(|| self.watched(AvmaRange::new(at, len as u64))).flatten() {
            Some(page) => TraceError::Watched { operation, pid: self.pid, at: page },
            None => TraceError::Memory { operation, pid: self.pid, at, len, source },
        }
    }

    /// The page of `range`, if any, that a userfaultfd keeps from being read or written.
    fn watched(&self, range: AvmaRange) -> Option<Avma> {
        let end = Avma::new(range.end.get().checked_next_multiple_of(PAGE)?);
        let range = AvmaRange::between(range.start.align_down(PAGE), end);
        let states = Pagemap::open(self.pid).ok()?.states(range).ok()?;
        let owed = states.iter().position(|s| s.write_watched || !s.present && !s.swapped)?;
        let page = range.start + owed as u64 * PAGE;
        let mapping = MapsFile::open(self.pid).ok()?.mapping_at(page).ok()??;
        let flags = procfs::mapping_flags(self.pid, &[mapping.range.start]).ok()?.pop()??;
        procfs::names_a_watcher(&flags).then_some(page)
    }

    /// Fills `buffer` with the bytes at `at`; an error if not all of them can be read.
    ///
    /// # Errors
    /// [`TraceError::Watched`] if somebody would have to be waited for; [`TraceError::Memory`].
    pub fn read(&self, at: Avma, buffer: &mut [u8]) -> Result<(), TraceError> {
        let len = buffer.len();
        self.try_read(at, buffer).map_err(|source| self.failed("read", at, len, source))
    }

    fn try_read(&self, at: Avma, buffer: &mut [u8]) -> io::Result<()> {
        self.refuse_unserved(AvmaRange::new(at, buffer.len() as u64))?;
        self.file.read_exact_at(buffer, at.get())
    }

    /// The `len` bytes at `at`.
    pub fn read_vec(&self, at: Avma, len: usize) -> Result<Vec<u8>, TraceError> {
        self.try_read_vec(at, len).map_err(|source| self.failed("read", at, len, source))
    }

    fn try_read_vec(&self, at: Avma, len: usize) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; len];
        self.try_read(at, &mut bytes)?;
        Ok(bytes)
    }

    /// The little-endian word at `at`.
    pub fn read_u64(&self, at: Avma) -> Result<u64, TraceError> {
        let mut bytes = [0; 8];
        self.read(at, &mut bytes)?;
        Ok(u64::from_le_bytes(bytes))
    }

    fn refuse_unserved(&self, range: AvmaRange) -> io::Result<()> {
        match self.served.missing(std::iter::once(range), &self.file) {
            None => Ok(()),
            Some(_) => Err(io::Error::from_raw_os_error(UNSERVED)),
        }
    }

    fn refuse_unwritable(&self, at: Avma, len: usize) -> Result<(), TraceError> {
        match self.writable {
            true => Ok(()),
            false => Err(self.failed("write", at, len, io::Error::from_raw_os_error(libc::EBADF))),
        }
    }

    /// Writes `bytes` to `at`, also to pages that the process itself cannot write. After an error part of the
    /// bytes may have been written.
    pub fn write(&self, at: Avma, bytes: &[u8]) -> Result<(), TraceError> {
        self.refuse_unwritable(at, bytes.len())?;
        self.refuse_unserved(AvmaRange::new(at, bytes.len() as u64))
            .and_then(|()| self.file.write_all_at(bytes, at.get()))
            .map_err(|source| self.failed("write", at, bytes.len(), source))
    }

    /// Writes many words of a stopped process with few system calls. After an error some may have been
    /// written.
    pub fn write_words(&self, words: &[(Avma, u64)]) -> Result<(), TraceError> {
        for batch in words.chunks(BATCH) {
            self.refuse_unwritable(batch[0].0, 8)?;
            let done = if self.are_there(batch) { self.write_batch(batch) } else { 0 };
            // Where the process itself may not write, or the kernel refuses that call: one by one.
            for (at, word) in &batch[done..] {
                self.write(*at, &word.to_le_bytes())?;
            }
        }
        Ok(())
    }

    /// Whether the pages of all words are there, and nobody is asked before they are written to.
    fn are_there(&self, words: &[(Avma, u64)]) -> bool {
        let Ok(pages) = Pagemap::open(self.pid) else { return false };
        runs(words, |(at, _)| AvmaRange::new(*at, 8)).all(|(range, _)| {
            let range = AvmaRange::between(range.start.align_down(PAGE), range.end.align_up(PAGE));
            let states = pages.states(range);
            states.is_ok_and(|states| states.iter().all(|s| s.present && !s.write_watched))
        })
    }

    /// How many of `words` were written, by `process_vm_writev`.
    fn write_batch(&self, words: &[(Avma, u64)]) -> usize {
        let values: Vec<[u8; 8]> = words.iter().map(|(_, word)| word.to_le_bytes()).collect();
        let local =
            libc::iovec { iov_base: values.as_ptr().cast_mut().cast(), iov_len: size_of_val(&values[..]) };
        let word =
            |(at, _): &(Avma, u64)| libc::iovec { iov_base: at.get() as *mut libc::c_void, iov_len: 8 };
        let remote: Vec<libc::iovec> = words.iter().map(word).collect();
        let count = remote.len() as libc::c_ulong;
        // SAFETY: the kernel only reads the live `values` that `local` names with their true length, and
        // there are at most IOV_MAX remote entries; their addresses are used in the other process only.
        let written =
            unsafe { libc::process_vm_writev(self.holder, &raw const local, 1, remote.as_ptr(), count, 0) };
        usize::try_from(written).unwrap_or(0) / 8
    }

    /// Reads many ranges; those that lie side by side, in one go. For each request the bytes, or `None` where
    /// they cannot be read as a whole.
    pub fn read_many(&self, requests: &[(Avma, usize)]) -> Vec<Option<Vec<u8>>> {
        // What its server has to bring, at a time.
        self.served.missing(requests.iter().map(|&(at, len)| AvmaRange::new(at, len as u64)), &self.file);
        let mut results = Vec::with_capacity(requests.len());
        let mut buffer = Vec::new();
        for (range, run) in runs(requests, |&(at, len)| AvmaRange::new(at, len as u64)) {
            buffer.resize(range.len() as usize, 0);
            let read = self.try_read(range.start, &mut buffer);
            results.extend(run.iter().map(|&(at, len)| match &read {
                Ok(()) => {
                    let from = at.offset_from(range.start) as usize;
                    Some(buffer[from..from + len].to_vec())
                }
                // One that cannot be read may stand among others.
                Err(_) if run.len() > 1 => self.try_read_vec(at, len).ok(),
                Err(_) => None,
            }));
        }
        results
    }

    /// Whether each of `expected` is there as it is given, compared without an allocation for each.
    pub fn holds(&self, expected: &[(Avma, Vec<u8>)]) -> bool {
        let mut buffer = Vec::new();
        runs(expected, |(at, bytes)| AvmaRange::new(*at, bytes.len() as u64)).all(|(range, run)| {
            buffer.resize(range.len() as usize, 0);
            self.try_read(range.start, &mut buffer).is_ok()
                && run.iter().all(|(at, bytes)| {
                    let from = at.offset_from(range.start) as usize;
                    buffer[from..from + bytes.len()] == bytes[..]
                })
        })
    }
}

/// That the server of a file system does not bring a page; no error of memory itself.
const UNSERVED: i32 = libc::ETIMEDOUT;
/// Words in one `process_vm_writev`, below the kernel's limit of 1024 (`IOV_MAX`).
const BATCH: usize = 512;
