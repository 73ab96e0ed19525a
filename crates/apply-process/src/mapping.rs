//! Mapping versions and counter areas into the process, and the unwinder's table.

use crate::ProcessError;
use crate::hook::{self, HookEntry};
use crate::journal::{Journal, JournalVersion};
use crate::plan::{Arriving, Incoming};
use crate::stub::stands_in;
use restitch_address::{Avma, AvmaRange, FileOffset};
use restitch_tracee::{Backing, Borrow, Placement, Protection, Stopped};
use std::ffi::CString;
use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;

/// Maps a version.
pub(crate) fn map_version(borrow: &mut Borrow<'_>, new: &Incoming<'_>, arriving: &Arriving) -> Result<(), ProcessError> {
    let record = &arriving.record;
    let fd = if arriving.visible {
        let path = CString::new(record.file.as_os_str().as_bytes()).unwrap_or_default();
        borrow.open(&path, 0, 0)?
    } else {
        let fd = borrow.memfd_create(c"restitch-version")?;
        let file = open_remote(borrow.pid(), fd.number())?;
        file.write_all_at(&new.version.bytes, 0).map_err(|e| remote_file(borrow.pid(), e))?;
        fd
    };
    let start = Placement::At(Avma::new(record.start));
    let backing = Backing::Private(fd, FileOffset::new(0));
    let mapped = borrow.mmap(start, record.len, Protection::ReadExecute, backing);
    borrow.close(fd)?;
    mapped?;
    Ok(())
}

/// Counters live in a shared memory file: forked children count into it too, and it can be read from here.
pub(crate) fn map_counters(
    borrow: &mut Borrow<'_>,
    record: &JournalVersion,
) -> Result<Option<(u32, File, u64)>, ProcessError> {
    let Some((start, len)) = record.counters else { return Ok(None) };
    let fd = borrow.memfd_create(c"restitch-counters")?;
    let file = open_remote(borrow.pid(), fd.number())?;
    file.set_len(len).map_err(|e| remote_file(borrow.pid(), e))?;
    let backing = Backing::Shared(fd, FileOffset::new(0));
    let mapped = borrow.mmap(Placement::At(Avma::new(start)), len, Protection::ReadWrite, backing);
    borrow.close(fd)?;
    mapped?;
    Ok(Some((record.number, file, len)))
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

/// Writes the hook's table for all versions that are mapped, then (it may be the first time) the pointer to the hook.
pub(crate) fn write_hook(stopped: &Stopped, journal: &mut Journal) -> Result<(), ProcessError> {
    let Some(h) = &mut journal.hook else { return Ok(()) };
    let busy = stands_in(stopped, AvmaRange::new(Avma::new(h.page), h.len))?;
    let numbers: Vec<u32> = journal.versions.iter().map(|v| v.number).collect();
    h.assign(&numbers, busy, hook::MOST_ENTRIES);
    let row = |number: &u32| match journal.versions.iter().find(|v| v.number == *number) {
        Some(v) => HookEntry { range: v.range(), eh_frame_hdr: Avma::new(v.eh_frame_hdr) },
        None => hook::NO_ENTRY,
    };
    let entries: Vec<HookEntry> = h.rows.iter().map(row).collect();
    let bytes = hook::page(Avma::new(h.original), Avma::new(h.link_map), &entries);
    stopped.memory().write(Avma::new(h.page), &bytes)?;
    stopped.memory().write(Avma::new(h.slot), &h.page.to_le_bytes())?;
    Ok(())
}
