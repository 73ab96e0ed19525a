//! Borrowing a thread of the process: where its stub goes.

use crate::{ProcessError, Target};
use restitch_address::{Avma, AvmaRange};
use restitch_procfs as procfs;
use restitch_tracee::{Borrow, STUB_SPACE, SeccompPolicy, Stopped, StubPlace, find_padding, visit};
use std::time::{Duration, Instant};

/// Where a borrowed thread's stub goes for a moment, and the bytes that belong there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct StubSite {
    pub at: Avma,
    pub bytes: Vec<u8>,
}

/// Dead bytes: what fills the last page of an executable segment. (Filler between functions would do too, but an alignment of
/// 16 leaves too little of it, and filler inside functions may be run.)
pub(crate) fn stub_site(target: &Target) -> Result<StubSite, ProcessError> {
    const PAGE: usize = 4096;
    let program = &target.modules[target.program];
    for module in std::iter::once(program).chain(&target.modules) {
        for segment in module.image.segments().iter().filter(|s| s.executable && !s.writable) {
            let end = (segment.file_offset.get() + segment.file_len) as usize;
            let tail = module.image.data().get(end..end.next_multiple_of(PAGE)).unwrap_or_default();
            let start = module.bias.to_actual(segment.range.start + segment.file_len);
            if let Some(at) = find_padding(tail, start) {
                let from = at.offset_from(start) as usize;
                return Ok(StubSite { at, bytes: tail[from..from + STUB_SPACE].to_vec() });
            }
        }
    }
    Err(ProcessError::NoProgram { pid: target.pid() })
}

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
        let place = StubPlace::new(target.pid(), stub.at, &procfs::maps(target.pid())?)?;
        return visit(target.pid(), place, SeccompPolicy::Refuse, work);
    };
    let since = Instant::now();
    let mut borrow = borrow(stopped, stub)?;
    let done = work(&mut borrow)?;
    borrow.finish()?;
    Ok((done, since.elapsed()))
}
