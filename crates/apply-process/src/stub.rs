//! Borrowing a thread of the process: where its stub goes.

use crate::{Module, ProcessError, Target};
use restitch_address::{Avma, AvmaRange};
use restitch_procfs::{self as procfs, Mapping};
use restitch_tracee::{
    BATCH_SPACE, Borrow, STUB_SPACE, Stopped, StubPlace, TraceError, find_padding, is_padding, visit,
};
use std::time::{Duration, Instant};

/// Where a borrowed thread's stub goes for a moment, and the bytes that belong there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct StubSite {
    pub at: Avma,
    pub bytes: Vec<u8>,
}

impl StubSite {
    fn place(&self, pid: i32, maps: &[Mapping]) -> Result<StubPlace, TraceError> {
        let place = StubPlace::new(pid, self.at, maps)?;
        Ok(if self.bytes.len() >= BATCH_SPACE { place.with_room() } else { place })
    }

    /// What stands there while a thread is borrowed.
    pub fn code(&self) -> Vec<u8> {
        StubPlace::code(self.bytes.len())
    }
}

/// Dead bytes: what fills the last page of an executable segment. (Filler between functions would do too, but an alignment of
/// 16 leaves too little of it, and filler inside functions may be run.) Those of the dynamic loader come first, which is
/// never unmapped and never changed, then those of the program.
pub(crate) fn stub_sites(target: &Target) -> Vec<StubSite> {
    let is_loader = |m: &Module| m.path.file_name().is_some_and(|n| n.to_string_lossy().starts_with("ld"));
    // The kernel's pages are shared by all processes.
    let mut modules: Vec<&Module> = target.modules.iter().filter(|m| !m.is_vdso()).collect();
    let program = target.modules[target.program].range;
    modules.sort_by_key(|m| (!is_loader(m), m.range != program));
    modules.into_iter().flat_map(sites_of).collect()
}

fn sites_of(module: &Module) -> impl Iterator<Item = StubSite> + '_ {
    const PAGE: usize = 4096;
    module.image.segments().iter().filter(|s| s.executable && !s.writable).filter_map(|segment| {
        let end = (segment.file_offset.get() + segment.file_len) as usize;
        let tail = module.image.data().get(end..end.next_multiple_of(PAGE)).unwrap_or_default();
        let start = module.bias.to_actual(segment.range.start + segment.file_len);
        let at = find_padding(tail, start)?;
        let from = at.offset_from(start) as usize;
        let roomy = tail.get(from..from + BATCH_SPACE).filter(|bytes| is_padding(bytes));
        Some(StubSite { at, bytes: roomy.unwrap_or(&tail[from..from + STUB_SPACE]).to_vec() })
    })
}

/// A place in a module where nothing `changes`, if there is one: its code is not exchanged while the stub is in it.
pub(crate) fn stub_site(
    target: &Target,
    changes: impl Fn(AvmaRange) -> bool,
) -> Result<StubSite, ProcessError> {
    let sites = stub_sites(target);
    let quiet = |site: &&StubSite| {
        target.module_at(site.at).is_none_or(|module| !changes(target.modules[module].range))
    };
    let site = sites.iter().find(quiet).or(sites.first()).cloned();
    site.ok_or(ProcessError::NoProgram { pid: target.pid() })
}

/// Borrows a thread. `maps` is the memory map, read in the stop. The stub's place gets the file's bytes first: a restitch that was
/// killed may have left its stub there.
pub(crate) fn borrow<'a>(
    stopped: &'a mut Stopped,
    stub: &StubSite,
    maps: &[Mapping],
) -> Result<Borrow<'a>, ProcessError> {
    let found = stopped.memory().read_vec(stub.at, stub.bytes.len())?;
    if found != stub.bytes && !stands_in(stopped, AvmaRange::new(stub.at, stub.bytes.len() as u64))? {
        stopped.memory().write(stub.at, &stub.bytes)?;
    }
    let place = stub.place(stopped.pid(), maps)?;
    Ok(stopped.borrow_thread(place)?)
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

/// Borrows a thread for `work`, and says how long it was held: one of a process that is `held` as a whole, else one of a process
/// whose other threads run on.
pub(crate) fn with_borrowed<T>(
    target: &Target,
    stub: &StubSite,
    held: Option<&mut Stopped>,
    mut work: impl FnMut(&mut Borrow<'_>) -> Result<T, ProcessError>,
) -> Result<(T, Duration), ProcessError> {
    let Some(stopped) = held else {
        let place = stub.place(target.pid(), &procfs::maps(target.pid())?)?;
        return visit(target.pid(), place, work);
    };
    let since = Instant::now();
    let maps = stopped.maps()?;
    let mut borrow = borrow(stopped, stub, &maps)?;
    let done = work(&mut borrow)?;
    borrow.finish()?;
    Ok((done, since.elapsed()))
}
