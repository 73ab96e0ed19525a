//! The memory of another process.

use crate::error::TraceError;
use restitch_address::Avma;
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
                advice: "its memory cannot be opened; run as the same user or as root".to_owned(),
            },
            Some(libc::EMFILE | libc::ENFILE) => TraceError::NoFiles { pid, source },
            _ => TraceError::Memory { operation: "open", pid, at: Avma::default(), len: 0, source },
        })?;
        Ok(Self { pid, holder, file, writable })
    }

    /// The process.
    pub fn pid(&self) -> i32 {
        self.pid
    }

    fn failed(&self, operation: &'static str, at: Avma, len: usize, source: io::Error) -> TraceError {
        TraceError::Memory { operation, pid: self.pid, at, len, source }
    }

    /// Fills `buffer` with the bytes at `at`; an error if not all of them can be read.
    pub fn read(&self, at: Avma, buffer: &mut [u8]) -> Result<(), TraceError> {
        let len = buffer.len();
        self.file.read_exact_at(buffer, at.get()).map_err(|source| self.failed("read", at, len, source))
    }

    /// As [`read`](Self::read), for large pieces: the kernel copies once and not twice where the process
    /// itself may read.
    pub fn read_large(&self, at: Avma, buffer: &mut [u8]) -> Result<(), TraceError> {
        let local = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
        let remote = libc::iovec { iov_base: at.get() as *mut libc::c_void, iov_len: buffer.len() };
        // SAFETY: `local` names the live, exclusively borrowed `buffer` with its true length; `remote` is
        // used in the other process only.
        let read =
            unsafe { libc::process_vm_readv(self.holder, &raw const local, 1, &raw const remote, 1, 0) };
        match usize::try_from(read) {
            Ok(read) if read == buffer.len() => Ok(()),
            _ => self.read(at, buffer),
        }
    }

    /// The `len` bytes at `at`.
    pub fn read_vec(&self, at: Avma, len: usize) -> Result<Vec<u8>, TraceError> {
        let mut bytes = vec![0; len];
        self.read(at, &mut bytes)?;
        Ok(bytes)
    }

    /// The little-endian word at `at`.
    pub fn read_u64(&self, at: Avma) -> Result<u64, TraceError> {
        let mut bytes = [0; 8];
        self.read(at, &mut bytes)?;
        Ok(u64::from_le_bytes(bytes))
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
        self.file
            .write_all_at(bytes, at.get())
            .map_err(|source| self.failed("write", at, bytes.len(), source))
    }

    /// Reads what the process itself could read: unlike [`read`](Self::read) it fails on guard pages.
    pub(crate) fn read_accessible(&self, at: Avma, len: usize) -> Result<Vec<u8>, TraceError> {
        let read = self.read_batch(&[(at, len)]).and_then(|mut buffers| buffers.pop());
        read.ok_or_else(|| self.failed("read", at, len, io::Error::from_raw_os_error(libc::EFAULT)))
    }

    /// Writes where the process itself could write: unlike [`write`](Self::write) it fails on guard pages and
    /// on read-only ones.
    pub(crate) fn write_accessible(&self, at: Avma, bytes: &[u8]) -> Result<(), TraceError> {
        let len = bytes.len();
        let local = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: len };
        let remote = libc::iovec { iov_base: at.get() as *mut libc::c_void, iov_len: len };
        // SAFETY: the kernel only reads the live slice that `local` names; `remote` is used in the other
        // process.
        let written =
            unsafe { libc::process_vm_writev(self.holder, &raw const local, 1, &raw const remote, 1, 0) };
        match usize::try_from(written) {
            Ok(written) if written == len => Ok(()),
            Ok(_) => Err(self.failed("write", at, len, io::Error::from_raw_os_error(libc::EFAULT))),
            Err(_) => Err(self.failed("write", at, len, io::Error::last_os_error())),
        }
    }

    /// Writes many words with few system calls (`process_vm_writev`). After an error some may have been
    /// written.
    pub fn write_words(&self, words: &[(Avma, u64)]) -> Result<(), TraceError> {
        for batch in words.chunks(BATCH) {
            self.refuse_unwritable(batch[0].0, 8)?;
            let values: Vec<[u8; 8]> = batch.iter().map(|(_, word)| word.to_le_bytes()).collect();
            let local = libc::iovec {
                iov_base: values.as_ptr().cast_mut().cast(),
                iov_len: size_of_val(&values[..]),
            };
            let word =
                |(at, _): &(Avma, u64)| libc::iovec { iov_base: at.get() as *mut libc::c_void, iov_len: 8 };
            let remote: Vec<libc::iovec> = batch.iter().map(word).collect();
            let count = remote.len() as libc::c_ulong;
            // SAFETY: the kernel only reads the live `values` that `local` names with their true length, and
            // there are at most IOV_MAX remote entries; their addresses are used in the other process only.
            let written = unsafe {
                libc::process_vm_writev(self.holder, &raw const local, 1, remote.as_ptr(), count, 0)
            };
            // Where the process itself may not write, or the kernel refuses this call: one by one.
            let done = usize::try_from(written).unwrap_or(0) / 8;
            for ((at, _), value) in batch.iter().zip(&values).skip(done) {
                self.write(*at, value)?;
            }
        }
        Ok(())
    }

    /// Reads many small ranges with few system calls (`process_vm_readv`). For each request the bytes, or
    /// `None` where they cannot be read as a whole.
    pub fn read_many(&self, requests: &[(Avma, usize)]) -> Vec<Option<Vec<u8>>> {
        let mut results = Vec::with_capacity(requests.len());
        for batch in requests.chunks(BATCH) {
            match self.read_batch(batch) {
                Some(read) => results.extend(read.into_iter().map(Some)),
                // One unreadable range cuts a batch short: find out which one by reading singly.
                None => results.extend(batch.iter().map(|&(at, len)| self.read_vec(at, len).ok())),
            }
        }
        results
    }

    /// Whether each of `expected` is there as it is given, compared with few system calls and no allocation
    /// for each.
    pub fn holds(&self, expected: &[(Avma, Vec<u8>)]) -> bool {
        let mut buffer = Vec::new();
        expected.chunks(COMPARED).all(|batch| {
            buffer.resize(batch.iter().map(|(_, bytes)| bytes.len()).sum(), 0);
            let local = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
            let remote: Vec<libc::iovec> = batch
                .iter()
                .map(|(at, bytes)| libc::iovec {
                    iov_base: at.get() as *mut libc::c_void,
                    iov_len: bytes.len(),
                })
                .collect();
            let count = remote.len() as libc::c_ulong;
            // SAFETY: `local` names the live, exclusively borrowed `buffer` with its true length, and there
            // are at most IOV_MAX remote entries; their addresses are used in the other process only.
            let read = unsafe {
                libc::process_vm_readv(self.holder, &raw const local, 1, remote.as_ptr(), count, 0)
            };
            let mut rest = &buffer[..];
            usize::try_from(read) == Ok(buffer.len())
                && batch.iter().all(|(_, bytes)| {
                    let (found, more) = rest.split_at(bytes.len());
                    rest = more;
                    found == bytes
                })
        })
    }

    fn read_batch(&self, batch: &[(Avma, usize)]) -> Option<Vec<Vec<u8>>> {
        let mut buffers: Vec<Vec<u8>> = batch.iter().map(|&(_, len)| vec![0; len]).collect();
        let local: Vec<libc::iovec> = buffers
            .iter_mut()
            .map(|buffer| libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() })
            .collect();
        let remote: Vec<libc::iovec> = batch
            .iter()
            .map(|&(at, len)| libc::iovec { iov_base: at.get() as *mut libc::c_void, iov_len: len })
            .collect();
        let count = batch.len() as libc::c_ulong;
        // SAFETY: `local` names the live, exclusively borrowed `buffers` with their true lengths, and there
        // are at most IOV_MAX entries; the remote addresses are used in the other process only.
        let read =
            unsafe { libc::process_vm_readv(self.holder, local.as_ptr(), count, remote.as_ptr(), count, 0) };
        let wanted: usize = batch.iter().map(|request| request.1).sum();
        (usize::try_from(read) == Ok(wanted)).then_some(buffers)
    }
}

/// Ranges in one `process_vm_readv`, below the kernel's limit of 1024 (`IOV_MAX`).
const BATCH: usize = 512;
/// Ranges that are compared at a time: few enough for their copies to stay in the processor's cache.
const COMPARED: usize = 32;
