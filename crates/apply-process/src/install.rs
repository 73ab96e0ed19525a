//! The switch: from the versions that are in a process to those that are to be.
//!
//! The order inside the stop, each step harmless if it is the last one that happens:
//! map the new versions; tell the unwinder; move threads that stand where bytes will change or in a leaving version;
//! write redirects; translate return addresses; unmap what nobody needs. Moving comes before writing, because a thread
//! that stands in a mapped version is right whatever the redirects say.

use crate::frames::Walker;
use crate::journal::{Journal, JournalVersion, VersionKind};
use crate::live::{Live, OldVersion};
use crate::map_file::StoredMap;
use crate::mapping::{map_versions, write_hook};
use crate::patches::PatchSet;
use crate::retire::retire;
use crate::reverse::ReverseMap;
use crate::threads::{forbidden_sites, in_between, move_threads, survey};
use crate::writing::{verify, write_patches};
use crate::{Module, ProcessError, Target};
use restitch_address::Avma;
use restitch_cfi::UnwindInfo;
use restitch_check::CheckedVersion;
use restitch_tracee::{STUB_SPACE, Stopped, find_padding};
use std::time::{Duration, Instant};

/// A version that is to be in force.
#[derive(Debug, Clone, Copy)]
pub struct Incoming<'a> {
    /// Index of its module in the target.
    pub module: usize,
    /// The version, at a place from [`Live::reserve`] and with its number.
    pub version: &'a CheckedVersion,
    /// Its purpose.
    pub kind: VersionKind,
}

/// What a switch did, times in microseconds.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SwitchReport {
    /// From the first thread's stop to the last one's release.
    pub pause_us: u64,
    /// Part of the pause: until all threads stood.
    pub stop_us: u64,
    /// Part of the pause: mapping versions and counter areas.
    pub map_us: u64,
    /// Part of the pause: looking through threads and stacks, moving threads.
    pub threads_us: u64,
    /// Part of the pause: writing redirects.
    pub patch_us: u64,
    /// Part of the pause: reading back.
    pub verify_us: u64,
    /// Part of the pause: translating return addresses.
    pub retire_us: u64,
    /// Threads of the process.
    pub threads: usize,
    /// Redirects written.
    pub patched: usize,
    /// Places given their original bytes back.
    pub restored: usize,
    /// Redirects left out, because they cross a page or somebody returns into their bytes.
    pub left_out: usize,
    /// Threads whose program counter was moved.
    pub moved_threads: usize,
    /// Return addresses that were translated.
    pub moved_returns: usize,
}

/// Everything that is computed before the stop.
pub(crate) struct Prepared<'a> {
    pub incoming: &'a [Incoming<'a>],
    /// In the order of `incoming`.
    pub arriving: Vec<Arriving>,
    pub patches: PatchSet,
    pub old: Vec<OldVersion>,
    pub stub: StubSite,
    pub needs_hook: bool,
    /// Something in the process may unwind through frames: some function has a personality routine.
    pub can_unwind: bool,
}

/// A version that will be mapped.
pub(crate) struct Arriving {
    pub record: JournalVersion,
    /// Path to open in the target; `None`: through a memory file.
    pub visible: bool,
    pub reverse: ReverseMap,
}

/// Stops the process (or takes it as it is `held`), switches, lets it run on.
pub(crate) fn switch(
    live: &mut Live,
    incoming: &[Incoming<'_>],
    held: Option<Stopped>,
) -> Result<SwitchReport, ProcessError> {
    live.target.process.verify()?;
    live.lock()?;
    let writing = live.dir.writing()?;
    let prepared = prepare(live, incoming)?;
    let walker_target = live.target.clone();
    let walker = Walker::new(&walker_target, &prepared.old);
    let planned = planned_journal(&live.journal, &prepared);
    planned.save(&live.dir)?;
    drop(writing);
    let mut report = SwitchReport { left_out: prepared.patches.crossing, ..SwitchReport::default() };
    let mut stopped = match held {
        Some(stopped) => stopped,
        None => match stop_at_boundaries(live.target.pid(), &prepared.old) {
            Ok(stopped) => stopped,
            Err(error) => {
                // Nothing was done: the journal says so again.
                live.journal.save(&live.dir)?;
                return Err(error);
            }
        },
    };
    live.journal = planned;
    let result = in_the_stop(live, &mut stopped, &prepared, &walker, &mut report);
    if result.is_err()
        && let Ok(maps) = stopped.maps()
    {
        live.journal.retain_mapped(&maps);
    }
    report.threads = stopped.threads().count();
    let times = stopped.resume();
    report.stop_us = restitch_tracee::StopTimes::micros(times.stopping);
    report.pause_us = restitch_tracee::StopTimes::micros(times.stopped);
    live.journal.save(&live.dir)?;
    live.journal.save_records(&live.dir)?;
    result.map(|()| report)
}

/// Stops all threads where a version has original equivalents, by trying again: such windows are a few instructions long.
/// (Stepping out of them is no way: a thread that is being stepped when this program is killed ends by SIGTRAP.) After
/// many tries it is accepted; the version is kept then.
fn stop_at_boundaries(pid: i32, old: &[OldVersion]) -> Result<Stopped, ProcessError> {
    const MOST_TRIES: u32 = 40;
    let mut stopped = Stopped::seize_all(pid)?;
    for attempt in 1..MOST_TRIES {
        if !in_between(&stopped, old)? {
            break;
        }
        stopped.resume();
        // Odd times, so as not to meet a loop at the same place again and again.
        std::thread::sleep(Duration::from_micros(37 * u64::from(attempt)));
        stopped = Stopped::seize_all(pid)?;
    }
    Ok(stopped)
}

fn prepare<'a>(live: &Live, incoming: &'a [Incoming<'a>]) -> Result<Prepared<'a>, ProcessError> {
    let visible = live.dir.visible_to(live.target.pid());
    let mut patches = PatchSet::default();
    let mut arriving = Vec::new();
    for new in incoming {
        let module = &live.target.modules[new.module];
        patches.add(module, &new.version.redirects);
        arriving.push(Arriving {
            record: write_files(live, new)?,
            visible,
            reverse: ReverseMap::new(&new.version.map.pieces),
        });
    }
    let old = live.old_versions();
    let needs_hook = !incoming.is_empty() && live.journal.hook.is_none();
    let can_unwind = needs_hook && live.target.modules.iter().any(has_personality);
    let stub = stub_site(&live.target)?;
    Ok(Prepared { incoming, arriving, patches, old, stub, needs_hook, can_unwind })
}

/// Whether a function of the module takes part in unwinding (static C programs do too: thread cancellation).
fn has_personality(module: &Module) -> bool {
    let tables =
        module.image.eh_frame().and_then(|r| Some((r.start, module.image.read(r.start, r.len() as usize)?)));
    let Some((at, bytes)) = tables else { return false };
    UnwindInfo::parse(bytes, at).is_ok_and(|info| info.entries().iter().any(|e| e.personality.is_some()))
}

/// Writes the version's file and its map, and makes its journal record.
fn write_files(live: &Live, new: &Incoming<'_>) -> Result<JournalVersion, ProcessError> {
    let module = &live.target.modules[new.module];
    let v = new.version;
    let name = module.path.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
    let files = live.dir.version_files(&name, &v.bytes);
    let same = std::fs::metadata(&files.version).is_ok_and(|m| m.len() == v.bytes.len() as u64);
    if !same || !files.map.exists() {
        let stored = StoredMap { map: v.map.clone(), redirects: v.redirects.clone() };
        live.dir.write(&files.map, &stored.write(), 0o600)?;
        live.dir.write(&files.version, &v.bytes, 0o644)?;
    }
    let start = module.bias.to_actual(v.range.start);
    let counters = v
        .counters
        .as_ref()
        .map(|c| (module.bias.to_actual(c.area.start).get(), c.area.len().next_multiple_of(4096)));
    Ok(JournalVersion {
        number: v.number,
        kind: new.kind,
        module: module.path.clone(),
        bias: module.bias.get(),
        start: start.get(),
        len: v.loaded_len,
        file: files.version,
        map_file: files.map,
        eh_frame_hdr: module.bias.to_actual(v.eh_frame_hdr.start).get(),
        counters,
        retired: false,
    })
}

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

/// The journal as it has to be on disk before the first write: everything that may be there during the switch.
fn planned_journal(now: &Journal, prepared: &Prepared<'_>) -> Journal {
    let mut planned = now.clone();
    planned.patches = prepared.patches.journal(&now.patches);
    for v in &mut planned.versions {
        v.retired = true;
    }
    planned.versions.extend(prepared.arriving.iter().map(|a| a.record.clone()));
    planned.next_number += prepared.arriving.len() as u32;
    planned
}

fn in_the_stop(
    live: &mut Live,
    stopped: &mut Stopped,
    prepared: &Prepared<'_>,
    walker: &Walker<'_>,
    report: &mut SwitchReport,
) -> Result<(), ProcessError> {
    let mut clock = Clock::new();
    map_versions(live, stopped, prepared)?;
    write_hook(stopped, &mut live.journal)?;
    report.map_us = clock.lap();
    let threads = survey(stopped, walker)?;
    let forbidden = forbidden_sites(stopped, prepared, &threads)?;
    move_threads(stopped, prepared, report)?;
    report.threads_us = clock.lap();
    let written = write_patches(live, stopped, prepared, &forbidden, report)?;
    report.patch_us = clock.lap();
    verify(live, stopped, &written)?;
    report.verify_us = clock.lap();
    retire(stopped, &live.target, prepared, &threads, report)?;
    report.retire_us = clock.lap();
    Ok(())
}

struct Clock(Instant);

impl Clock {
    fn new() -> Self {
        Self(Instant::now())
    }
    fn lap(&mut self) -> u64 {
        let us = self.0.elapsed().as_micros() as u64;
        self.0 = Instant::now();
        us
    }
}
