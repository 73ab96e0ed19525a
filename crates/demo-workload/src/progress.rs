//! The progress file: how many requests are finished, for others to read.

use std::{
    fs::File,
    io,
    os::unix::fs::FileExt,
    path::Path,
    time::{Duration, Instant},
};

/// The size of the progress file.
pub const PROGRESS_BYTES: usize = 16;

/// What a progress file holds: two little-endian 64-bit numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Requests finished since the start, by all threads.
    pub requests: u64,
    /// The time since the start when they were counted. Rates taken from two readings are exact, however late
    /// the file was read.
    pub elapsed: Duration,
}

impl Progress {
    /// Reads a progress file. Fails as reading a file does, with `UnexpectedEof` before the first writing.
    pub fn read(path: &Path) -> io::Result<Self> {
        let mut bytes = [0; PROGRESS_BYTES];
        File::open(path)?.read_exact_at(&mut bytes, 0)?;
        let number = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"));
        Ok(Self { requests: number(0), elapsed: Duration::from_nanos(number(8)) })
    }

    fn bytes(self) -> [u8; PROGRESS_BYTES] {
        let mut bytes = [0; PROGRESS_BYTES];
        bytes[..8].copy_from_slice(&self.requests.to_le_bytes());
        bytes[8..].copy_from_slice(&(self.elapsed.as_nanos() as u64).to_le_bytes());
        bytes
    }
}

/// Keeps a progress file up to date.
pub(crate) struct Writer {
    file: File,
    start: Instant,
}

impl Writer {
    pub fn create(path: &Path) -> io::Result<Self> {
        let writer = Self { file: File::create(path)?, start: Instant::now() };
        writer.write(0)?;
        Ok(writer)
    }

    /// Writes with one system call, so that a reader sees both numbers of one moment.
    pub fn write(&self, requests: u64) -> io::Result<()> {
        let progress = Progress { requests, elapsed: self.start.elapsed() };
        self.file.write_all_at(&progress.bytes(), 0)
    }
}
