//! Mapping versions, counter areas and the hook's page into the stopped process.

use crate::ProcessError;
use crate::hook::{self, HookEntry};
use crate::install::{Arriving, Incoming, Prepared, StubSite};
use crate::journal::{Journal, JournalVersion};
use crate::live::Live;
use restitch_address::{Avma, AvmaRange, FileOffset};
use restitch_tracee::{Backing, Borrow, Placement, Protection, SeccompPolicy, Stopped, StubPlace};
use std::ffi::CString;
use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;

/// Borrows a thread. The stub's place gets the file's bytes first: a restitch that was killed may have left its stub there.
pub(crate) fn borrow<'a>(stopped: &'a mut Stopped, stub: &StubSite) -> Result<Borrow<'a>, ProcessError> {
    let maps = stopped.maps()?;
    if !stands_in(stopped, AvmaRange::new(stub.at, stub.bytes.len() as u64))? {
        stopped.memory().write(stub.at, &stub.bytes)?;
    }
    let stub = stub.at;
    let place = StubPlace::new(stopped.pid(), stub, &maps)?;
    Ok(stopped.borrow_thread(place, SeccompPolicy::Refuse)?)
}

pub(crate) fn map_versions(
    live: &mut Live,
    stopped: &mut Stopped,
    prepared: &Prepared<'_>,
) -> Result<(), ProcessError> {
    if prepared.arriving.is_empty() {
        return Ok(());
    }
    let site = match prepared.needs_hook {
        true => Some(hook_site(live, stopped, prepared)?),
        false => None,
    };
    let mut borrow = borrow(stopped, &prepared.stub)?;
    for (new, arriving) in prepared.incoming.iter().zip(&prepared.arriving) {
        map_one(&mut borrow, new, arriving)?;
        if let Some(counters) = map_counters(&mut borrow, &arriving.record)? {
            live.counters.push(counters);
        }
    }
    if let Some(Some(site)) = site {
        let page = match site.page {
            Some(page) => page,
            None => {
                let whole = (hook::PAGE_LEN, Protection::ReadExecute, Backing::Anonymous);
                borrow.mmap(Placement::Anywhere, whole.0, whole.1, whole.2)?.start
            }
        };
        live.journal.hook = Some(site.journal(page));
    }
    borrow.finish()?;
    Ok(())
}

fn map_one(borrow: &mut Borrow<'_>, new: &Incoming<'_>, arriving: &Arriving) -> Result<(), ProcessError> {
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
fn map_counters(
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

/// Where the unwinder's hook goes. `None` if the process needs none: nothing in it can unwind through moved frames.
fn hook_site(
    live: &Live,
    stopped: &Stopped,
    prepared: &Prepared<'_>,
) -> Result<Option<hook::HookSite>, ProcessError> {
    let memory = stopped.memory();
    match hook::find_site(&live.target, |at| memory.read_u64(at).ok()) {
        Ok(site) => Ok(Some(site)),
        Err(why) if prepared.can_unwind => Err(ProcessError::NoUnwindHook { pid: live.target.pid(), why }),
        Err(_) => Ok(None),
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

/// Whether a thread stands in `range`.
pub(crate) fn stands_in(stopped: &Stopped, range: AvmaRange) -> Result<bool, ProcessError> {
    for tid in stopped.threads() {
        if range.contains(stopped.registers(tid)?.rip) {
            return Ok(true);
        }
    }
    Ok(false)
}
