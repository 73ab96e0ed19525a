//! Mapping versions and counter areas into the process.
//!
//! A version is a file of the state directory, so that processes share its pages and tools find its symbols.
//! Where the process does not see the directory (a container), may not read it (another user, AppArmor), or
//! may not execute what lies there (`noexec`, AppArmor, SELinux), it is a memory file of the process's own
//! with the same content.

use crate::error::ProcessError;
use crate::memory::counter_area::{CounterArea, Parts};
use crate::state::version_files::memory_name;
use crate::switch_plan::{Arriving, Incoming};
use restitch_address::{Avma, FileOffset};
use restitch_tracee::{Backing, Batch, Borrow, Placement, Protection, RemoteFd, Sealed, TraceError};
use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;

/// A version that is being mapped: first its files are opened in the process, then they are mapped.
pub(crate) struct Mapped<'a> {
    new: &'a Incoming<'a>,
    arriving: &'a Arriving,
    /// It is to be a file of the state directory.
    from_disk: bool,
    version: Option<RemoteFd>,
    counters: Option<RemoteFd>,
    /// Its counters are those of another version: see [`Mapped::share`].
    shares: bool,
}

impl<'a> Mapped<'a> {
    pub fn new(new: &'a Incoming<'a>, arriving: &'a Arriving) -> Self {
        let from_disk = arriving.visible;
        Self { new, arriving, from_disk, version: None, counters: None, shares: false }
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

    /// Opens the version's file; counters live in a shared memory file: forked children count into it too,
    /// and it can be read from here.
    pub fn open(&self, batch: &mut Batch) {
        match self.from_disk {
            true => batch
                .open(&CString::new(self.arriving.record.file.as_os_str().as_bytes()).unwrap_or_default()),
            false => self.create(batch),
        }
        if self.arriving.record.counters.is_some() && !self.shares {
            batch.memfd_create(c"restitch-counters");
        }
    }

    fn create(&self, batch: &mut Batch) {
        batch.memfd_create(&memory_name(&self.arriving.record.file));
    }

    /// Takes the results of `open`, and fills the memory files. A file that the process may not open is left
    /// to be created ([`in_memory`]).
    pub fn opened(
        &mut self,
        borrow: &Borrow<'_>,
        results: &mut impl Iterator<Item = Result<u64, TraceError>>,
    ) -> Result<Option<CounterArea>, ProcessError> {
        let mut next = || results.next().map(|r| r.map(RemoteFd::from_result)).transpose();
        self.version = match next() {
            Err(error) if self.from_disk && is_denied(&error) => None,
            version => version?,
        };
        let record = &self.arriving.record;
        if record.counters.is_some() && !self.shares {
            self.counters = next()?;
        }
        if !self.from_disk {
            self.fill(borrow)?;
        }
        let (Some((_, len)), Some(fd)) = (record.counters, self.counters) else { return Ok(None) };
        let file = borrow.take_memory_file(fd)?.fill(&[], len, Sealed::Length)?;
        let parts = self.new.version.counters.as_ref().map(Parts::of).unwrap_or_default();
        Ok(Some(CounterArea::new(record.number, file, parts)))
    }

    /// Writes a memory file that is to be the version.
    fn fill(&self, borrow: &Borrow<'_>) -> Result<(), ProcessError> {
        let (Some(fd), bytes) = (self.version, &self.new.version.bytes) else { return Ok(()) };
        borrow.take_memory_file(fd)?.fill(bytes, bytes.len() as u64, Sealed::Content)?;
        Ok(())
    }

    /// Whether the process may not open its file.
    pub fn is_refused(&self) -> bool {
        self.from_disk && self.version.is_none()
    }

    /// Whether the process may not map its file, as this `result` of [`Mapped::map`]'s first call says.
    pub fn may_not_map(&self, result: &Result<u64, TraceError>) -> bool {
        self.from_disk && self.version.is_some() && result.as_ref().is_err_and(is_denied)
    }

    fn map_version(&self, batch: &mut Batch) {
        let record = &self.arriving.record;
        if let Some(fd) = self.version {
            let (at, backing) = (Avma::new(record.start), Backing::Private(fd, FileOffset::new(0)));
            batch.mmap(Placement::At(at), record.len, Protection::ReadExecute, backing);
        }
    }

    /// Maps what was opened, the version first.
    pub fn map(&self, batch: &mut Batch) {
        let (record, none) = (&self.arriving.record, FileOffset::new(0));
        self.map_version(batch);
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

/// Makes memory files of versions whose files the process may not use.
pub(crate) fn in_memory<'v, 'a: 'v>(
    borrow: &mut Borrow<'_>,
    versions: impl Iterator<Item = &'v mut Mapped<'a>>,
) -> Result<(), ProcessError> {
    let versions: Vec<_> = versions.collect();
    let mut batch = Batch::new();
    versions.iter().for_each(|version| version.create(&mut batch));
    for (version, fd) in versions.into_iter().zip(borrow.run(&batch)?) {
        version.from_disk = false;
        version.version = Some(RemoteFd::from_result(fd?));
        version.fill(borrow)?;
    }
    Ok(())
}

/// As [`in_memory`], of versions that the process may not map; then they are mapped.
pub(crate) fn map_in_memory<'v, 'a: 'v>(
    borrow: &mut Borrow<'_>,
    versions: impl Iterator<Item = &'v mut Mapped<'a>>,
) -> Result<(), ProcessError> {
    let mut versions: Vec<_> = versions.collect();
    in_memory(borrow, versions.iter_mut().map(|version| &mut **version))?;
    let mut batch = Batch::new();
    versions.iter().for_each(|version| version.map_version(&mut batch));
    versions.iter().filter_map(|version| version.version).for_each(|fd| batch.close(fd));
    borrow.run(&batch)?.into_iter().try_for_each(|result| result.map(drop)).map_err(ProcessError::from)
}

/// Whether the process may not do it.
fn is_denied(error: &TraceError) -> bool {
    let TraceError::RemoteCall { source, .. } = error else { return false };
    matches!(source.raw_os_error(), Some(libc::EACCES | libc::EPERM))
}
