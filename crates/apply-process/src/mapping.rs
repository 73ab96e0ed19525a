//! Mapping versions and counter areas into the process.

use crate::ProcessError;
use crate::counter_area::{CounterArea, Parts};
use crate::prepared::{Arriving, Incoming};
use crate::version_files::memory_name;
use restitch_address::{Avma, FileOffset};
use restitch_tracee::{Backing, Batch, Placement, Protection, RemoteFd, TraceError};
use std::ffi::CString;
use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;

/// A version that is being mapped: first its files are opened in the process, then they are mapped.
pub(crate) struct Mapped<'a> {
    new: &'a Incoming<'a>,
    arriving: &'a Arriving,
    version: Option<RemoteFd>,
    counters: Option<RemoteFd>,
    /// Its counters are those of another version: see [`Mapped::share`].
    shares: bool,
}

impl<'a> Mapped<'a> {
    pub fn new(new: &'a Incoming<'a>, arriving: &'a Arriving) -> Self {
        Self { new, arriving, version: None, counters: None, shares: false }
    }

    /// The windows of tracing versions are one file: that of the first one, which `self` is not.
    pub fn share(&mut self) {
        self.shares = true;
    }

    /// Takes over the first version's window.
    pub fn shared(&mut self, first: Option<RemoteFd>) {
        if self.shares {
            self.counters = first;
        }
    }

    /// The counters' file in the process.
    pub fn counters(&self) -> Option<RemoteFd> {
        self.counters
    }

    /// Opens the version's file; counters live in a shared memory file: forked children count into it too, and it can be read
    /// from here.
    pub fn open(&self, batch: &mut Batch) {
        match self.arriving.visible {
            true => batch
                .open(&CString::new(self.arriving.record.file.as_os_str().as_bytes()).unwrap_or_default()),
            false => batch.memfd_create(&memory_name(&self.arriving.record.file)),
        }
        if self.arriving.record.counters.is_some() && !self.shares {
            batch.memfd_create(c"restitch-counters");
        }
    }

    /// Takes the results of `open`, and fills the memory files.
    pub fn opened(
        &mut self,
        pid: i32,
        results: &mut impl Iterator<Item = Result<u64, TraceError>>,
    ) -> Result<Option<CounterArea>, ProcessError> {
        let mut next = || results.next().map(|r| r.map(RemoteFd::from_result)).transpose();
        self.version = next()?;
        let record = &self.arriving.record;
        if record.counters.is_some() && !self.shares {
            self.counters = next()?;
        }
        if let (false, Some(fd)) = (self.arriving.visible, self.version) {
            let file = open_remote(pid, fd.number())?;
            file.write_all_at(&self.new.version.bytes, 0).map_err(|e| remote_file(pid, e))?;
        }
        let (Some((_, len)), Some(fd)) = (record.counters, self.counters) else { return Ok(None) };
        let file = open_remote(pid, fd.number())?;
        file.set_len(len).map_err(|e| remote_file(pid, e))?;
        let parts = self.new.version.counters.as_ref().map(Parts::of).unwrap_or_default();
        Ok(Some(CounterArea::new(record.number, file, parts)))
    }

    /// Maps what was opened.
    pub fn map(&self, batch: &mut Batch) {
        let (record, none) = (&self.arriving.record, FileOffset::new(0));
        if let Some(fd) = self.version {
            let at = Placement::At(Avma::new(record.start));
            batch.mmap(at, record.len, Protection::ReadExecute, Backing::Private(fd, none));
        }
        if let (Some((start, len)), Some(fd)) = (record.counters, self.counters) {
            batch.mmap(
                Placement::At(Avma::new(start)),
                len,
                Protection::ReadWrite,
                Backing::Shared(fd, none),
            );
        }
    }

    /// The files that are open in the process.
    pub fn files(&self) -> impl Iterator<Item = RemoteFd> + use<> {
        self.version.into_iter().chain(self.counters.filter(|_| !self.shares))
    }
}

fn open_remote(pid: i32, fd: i32) -> Result<File, ProcessError> {
    let path = format!("/proc/{pid}/fd/{fd}");
    File::options().read(true).write(true).open(&path).map_err(|e| remote_file(pid, e))
}

fn remote_file(pid: i32, source: std::io::Error) -> ProcessError {
    ProcessError::State {
        operation: "use the memory file in",
        path: format!("/proc/{pid}/fd").into(),
        source,
    }
}
