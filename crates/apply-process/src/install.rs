//! The switch: from the versions that are in a process to those that are to be.
//!
//! The order inside the stop, each step harmless if it is the last one that happens:
//! map the new versions; tell the unwinder; move threads that stand where bytes will change or in a leaving version;
//! write redirects; translate return addresses; unmap what nobody needs. Moving comes before writing, because a thread
//! that stands in a mapped version is right whatever the redirects say.

use crate::frames::Walker;
use crate::hook::{self, HookEntry};
use crate::journal::{Journal, JournalHook, JournalVersion, VersionKind};
use crate::live::{Live, OldVersion};
use crate::map_file::StoredMap;
use crate::patches::{LEN, PatchSet, jump};
use crate::{ProcessError, StateDir, Target};
use restitch_address::{Avma, AvmaRange, FileOffset, Svma};
use restitch_check::CheckedVersion;
use restitch_emit::PieceKind;
use restitch_emit::RedirectKind;
use restitch_procfs as procfs;
use restitch_tracee::{
    Backing, Borrow, Placement, Protection, Registers, SeccompPolicy, StepEnd, Stopped, StubPlace,
    find_padding,
};
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::CString;
use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::time::Instant;

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
    /// Part of the pause: unmapping.
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
    /// Versions taken out.
    pub unmapped: Vec<u32>,
    /// Versions that stay mapped, with the reason.
    pub kept: Vec<(u32, String)>,
}

/// Everything that is computed before the stop.
struct Prepared<'a> {
    incoming: &'a [Incoming<'a>],
    /// In the order of `incoming`.
    arriving: Vec<Arriving>,
    patches: PatchSet,
    old: Vec<OldVersion>,
    stub: Avma,
    needs_hook: bool,
}

/// A version that will be mapped.
struct Arriving {
    record: JournalVersion,
    /// Path to open in the target; `None`: through a memory file.
    visible: bool,
    reverse: ReverseMap,
}

/// Stops the process (or takes it as it is `held`), switches, lets it run on.
pub(crate) fn switch(
    live: &mut Live,
    incoming: &[Incoming<'_>],
    held: Option<Stopped>,
) -> Result<SwitchReport, ProcessError> {
    live.target.process.verify()?;
    let prepared = prepare(live, incoming)?;
    let walker_target = live.target.clone();
    let walker = Walker::new(&walker_target, &prepared.old);
    let planned = planned_journal(&live.journal, &prepared);
    planned.save(&live.dir)?;
    let mut report = SwitchReport { left_out: prepared.patches.crossing, ..SwitchReport::default() };
    let mut stopped = match held {
        Some(stopped) => stopped,
        None => Stopped::seize_all(live.target.pid())?,
    };
    let result = in_the_stop(live, &mut stopped, &prepared, &walker, planned, &mut report);
    report.threads = stopped.threads().count();
    let times = stopped.resume();
    report.stop_us = restitch_tracee::StopTimes::micros(times.stopping);
    report.pause_us = restitch_tracee::StopTimes::micros(times.stopped);
    live.journal.save(&live.dir)?;
    forget_files(live, &report);
    result.map(|()| report)
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
    let stub = stub_address(&live.target)?;
    Ok(Prepared {
        incoming,
        arriving,
        patches,
        old,
        stub,
        needs_hook: !incoming.is_empty() && live.journal.hook.is_none(),
    })
}

/// Writes the version's file and its map, and makes its journal record.
fn write_files(live: &Live, new: &Incoming<'_>) -> Result<JournalVersion, ProcessError> {
    let module = &live.target.modules[new.module];
    let v = new.version;
    let name = module.path.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
    let file = live.dir.version_file(live.target.process, &name, v.number);
    let map_file = file.with_extension("restitch-map");
    live.dir.write(&file, &v.bytes, 0o644)?;
    let stored = StoredMap { map: v.map.clone(), redirects: v.redirects.clone() };
    live.dir.write(&map_file, &stored.write(), 0o600)?;
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
        file,
        map_file,
        counters,
        retired: false,
    })
}

/// Dead bytes that a borrowed thread's stub may use for a moment: what fills the last page of an executable segment. (Filler
/// between functions would do too, but an alignment of 16 leaves too little of it, and filler inside functions may be run.)
fn stub_address(target: &Target) -> Result<Avma, ProcessError> {
    const PAGE: usize = 4096;
    let program = &target.modules[target.program];
    for module in std::iter::once(program).chain(&target.modules) {
        for segment in module.image.segments().iter().filter(|s| s.executable && !s.writable) {
            let end = (segment.file_offset.get() + segment.file_len) as usize;
            let tail = module.image.data().get(end..end.next_multiple_of(PAGE)).unwrap_or_default();
            if let Some(at) =
                find_padding(tail, module.bias.to_actual(segment.range.start + segment.file_len))
            {
                return Ok(at);
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
    planned: Journal,
    report: &mut SwitchReport,
) -> Result<(), ProcessError> {
    let mut clock = Clock::new();
    let mut journal = planned;
    map_versions(live, stopped, prepared, &mut journal)?;
    write_hook(live, stopped, prepared, &mut journal)?;
    live.journal = journal;
    report.map_us = clock.lap();
    let threads = survey(stopped, walker)?;
    let forbidden = forbidden_sites(stopped, prepared, &threads)?;
    move_threads(live, stopped, prepared, report)?;
    report.threads_us = clock.lap();
    write_patches(live, stopped, prepared, &forbidden, report)?;
    report.patch_us = clock.lap();
    verify(live, stopped, prepared, &forbidden)?;
    report.verify_us = clock.lap();
    retire(live, stopped, prepared, &threads, walker, report)?;
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

// --- Mapping -----------------------------------------------------------------------------------------------------

fn borrow<'a>(stopped: &'a mut Stopped, stub: Avma) -> Result<Borrow<'a>, ProcessError> {
    let maps = stopped.maps()?;
    let place = StubPlace::new(stopped.pid(), stub, &maps)?;
    Ok(stopped.borrow_thread(place, SeccompPolicy::Refuse)?)
}

fn map_versions(
    live: &mut Live,
    stopped: &mut Stopped,
    prepared: &Prepared<'_>,
    journal: &mut Journal,
) -> Result<(), ProcessError> {
    if prepared.arriving.is_empty() {
        return Ok(());
    }
    let site = match prepared.needs_hook {
        true => Some(hook_site(live, stopped, prepared)?),
        false => None,
    };
    let mut borrow = borrow(stopped, prepared.stub)?;
    for (new, arriving) in prepared.incoming.iter().zip(&prepared.arriving) {
        map_one(&mut borrow, new, arriving)?;
        if let Some(counters) = map_counters(&mut borrow, &arriving.record)? {
            live.counters.push(counters);
        }
    }
    if let Some(Some(site)) = site {
        let page =
            borrow.mmap(Placement::Anywhere, hook::PAGE_LEN, Protection::ReadExecute, Backing::Anonymous)?;
        journal.hook = Some(JournalHook {
            page: page.start.get(),
            len: page.len(),
            slot: site.slot.get(),
            original: site.original.get(),
            link_map: site.link_map.get(),
        });
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
        Err(why) if prepared.incoming.iter().any(|i| i.version.lsda.len() > 0) => {
            Err(ProcessError::NoUnwindHook { pid: live.target.pid(), why })
        }
        Err(_) => Ok(None),
    }
}

/// Writes the hook's table for all versions that will be mapped, then (the first time) the pointer to the hook.
fn write_hook(
    live: &Live,
    stopped: &Stopped,
    prepared: &Prepared<'_>,
    journal: &mut Journal,
) -> Result<(), ProcessError> {
    let Some(h) = &journal.hook else { return Ok(()) };
    let entries: Vec<HookEntry> =
        journal.versions.iter().filter_map(|v| hook_entry(live, prepared, v)).collect();
    let bytes = hook::page(Avma::new(h.original), Avma::new(h.link_map), &entries);
    stopped.memory().write(Avma::new(h.page), &bytes)?;
    stopped.memory().write(Avma::new(h.slot), &h.page.to_le_bytes())?;
    Ok(())
}

/// The table row of a version: its `.eh_frame_hdr` is found in its own program headers, on disk.
fn hook_entry(live: &Live, prepared: &Prepared<'_>, v: &JournalVersion) -> Option<HookEntry> {
    let arriving = prepared.arriving.iter().position(|a| a.record.number == v.number);
    let hdr = match arriving {
        Some(i) => {
            let new = &prepared.incoming[i];
            live.target.modules[new.module].bias.to_actual(new.version.eh_frame_hdr.start)
        }
        None => {
            let image = restitch_image::Image::parse(std::fs::read(&v.file).ok()?).ok()?;
            Avma::new(v.start) + image.eh_frame_hdr()?.start.get()
        }
    };
    Some(HookEntry { range: v.range(), eh_frame_hdr: hdr })
}

// --- Threads -----------------------------------------------------------------------------------------------------

/// One thread's registers and stack.
struct ThreadView {
    tid: i32,
    registers: Registers,
    /// Words of the used parts of its stacks: address of the first, bytes.
    stacks: Vec<(Avma, Vec<u8>)>,
}

/// Most bytes of one stack that are looked through.
const MOST_STACK: u64 = 16 << 20;

fn survey(stopped: &Stopped, walker: &Walker<'_>) -> Result<Vec<ThreadView>, ProcessError> {
    let maps = stopped.maps()?;
    let memory = stopped.memory();
    let mut out = Vec::new();
    for tid in stopped.threads() {
        let registers = stopped.registers(tid)?;
        let mut read = |at: Avma| memory.read_u64(at).ok();
        let (_, frames) = walker.walk(&registers, &mut read);
        // The stack that the thread is on, and those that its frames lead to (below an alternate signal stack).
        let mut lowest: BTreeMap<Avma, (Avma, Avma)> = BTreeMap::new();
        for at in std::iter::once(Avma::new(registers.rsp.get() & !7) - 128).chain(frames) {
            if let Some(m) = maps.iter().find(|m| m.range.contains(at)) {
                let low = lowest.entry(m.range.start).or_insert((at, m.range.end));
                low.0 = low.0.min(at);
            }
        }
        let mut stacks = Vec::new();
        for (from, to) in lowest.into_values() {
            let len = (to.offset_from(from) as u64).min(MOST_STACK);
            if let Ok(bytes) = memory.read_vec(from, len as usize) {
                stacks.push((from, bytes));
            }
        }
        out.push(ThreadView { tid, registers, stacks });
    }
    Ok(out)
}

fn words(stack: &(Avma, Vec<u8>)) -> impl Iterator<Item = (Avma, Avma)> + '_ {
    let (start, bytes) = stack;
    bytes.chunks_exact(8).enumerate().map(move |(i, w)| {
        (*start + 8 * i as u64, Avma::new(u64::from_le_bytes(w.try_into().expect("8 bytes"))))
    })
}

/// Patch sites that some stack word points into, behind the first byte: an interrupted program counter or a return
/// address that will come back there. They are left as they are.
fn forbidden_sites(
    stopped: &Stopped,
    prepared: &Prepared<'_>,
    threads: &[ThreadView],
) -> Result<BTreeSet<Avma>, ProcessError> {
    let mut out = BTreeSet::new();
    let patches = &prepared.patches;
    let (Some(first), Some(last)) = (patches.wanted.keys().next(), patches.wanted.keys().next_back()) else {
        return Ok(out);
    };
    for stack in threads.iter().flat_map(|t| &t.stacks) {
        for (_, word) in words(stack) {
            if word > *first && word < *last + LEN as u64 {
                out.extend(patches.inside(word));
            }
        }
    }
    // A program counter can be moved only if the version holds that very instruction.
    for tid in stopped.threads() {
        let rip = stopped.registers(tid)?.rip;
        if let Some(site) = patches.inside(rip)
            && prepared.destination(rip).is_none()
        {
            out.insert(site);
        }
    }
    Ok(out)
}

impl Prepared<'_> {
    /// Where the instruction at original address `at` stands in the arriving versions.
    fn destination(&self, at: Avma) -> Option<Avma> {
        self.arriving.iter().find_map(|a| {
            let bias = restitch_address::LoadBias::between(Svma::new(0), Avma::new(a.record.bias));
            a.reverse.boundary(bias.to_stated(at)).map(|v| bias.to_actual(v))
        })
    }

    /// Where a thread goes that stands at original address `at` after leaving a version.
    fn destination_or_original(&self, at: Avma) -> Avma {
        self.destination(at).unwrap_or(at)
    }
}

/// Moves threads out of leaving versions and out of bytes that are about to change, into the arriving versions.
fn move_threads(
    live: &Live,
    stopped: &mut Stopped,
    prepared: &Prepared<'_>,
    report: &mut SwitchReport,
) -> Result<(), ProcessError> {
    let tids: Vec<i32> = stopped.threads().collect();
    for tid in tids {
        let registers = leave_opaque(live, stopped, prepared, tid)?;
        // In a system call the kernel may come back to the call itself: that address is the one to translate.
        let back = if registers.system_call().is_some() { 2 } else { 0 };
        let at = registers.rip - back;
        let original = match prepared.old.iter().find(|o| o.range.contains(at)) {
            Some(old) => match old.to_original(at) {
                Some(original) => original,
                None => continue,
            },
            // Original code: whoever stands in a block that has a copy goes on in the copy. A loop that never ends would
            // stay in the old layout for ever otherwise.
            None => at,
        };
        let to = prepared.destination_or_original(original) + back;
        if to != registers.rip {
            stopped.set_registers(tid, Registers { rip: to, ..registers })?;
            report.moved_threads += 1;
        }
    }
    Ok(())
}

/// Steps a thread on until it stands where a version has an original equivalent.
fn leave_opaque(
    live: &Live,
    stopped: &mut Stopped,
    prepared: &Prepared<'_>,
    tid: i32,
) -> Result<Registers, ProcessError> {
    const MOST_STEPS: usize = 64;
    let registers = stopped.registers(tid)?;
    let opaque = |at: Avma| {
        prepared.old.iter().any(|o| o.range.contains(at) && o.to_original(at).is_none() && o.module.is_some())
    };
    if registers.system_call().is_some() || !opaque(registers.rip) {
        return Ok(registers);
    }
    match stopped.step_thread(tid, MOST_STEPS, |at| !opaque(at))? {
        StepEnd::Reached(_) => Ok(stopped.registers(tid)?),
        _ => Err(ProcessError::NotVerified { pid: live.target.pid(), count: 1, at: registers.rip }),
    }
}

impl OldVersion {
    /// The original address that is equal to standing at `at`.
    fn to_original(&self, at: Avma) -> Option<Avma> {
        self.stored.map.to_original(self.bias.to_stated(at)).map(|o| self.bias.to_actual(o))
    }

    /// The original return address for a return address into this version.
    fn return_to_original(&self, value: Avma) -> Option<Avma> {
        let inside = self.bias.to_stated(value - 1);
        let pieces = &self.stored.map.pieces;
        let i = pieces.partition_point(|p| p.version <= inside).checked_sub(1)?;
        let delta = inside.offset_from(pieces[i].version) as u64;
        let linear = pieces[i].kind == PieceKind::Linear && delta < u64::from(pieces[i].len);
        linear.then(|| self.bias.to_actual(pieces[i].original + delta + 1))
    }
}

// --- Writing -----------------------------------------------------------------------------------------------------

/// Writes what has to change. Restores go first: an old redirect may overlap a new one.
fn write_patches(
    live: &mut Live,
    stopped: &Stopped,
    prepared: &Prepared<'_>,
    forbidden: &BTreeSet<Avma>,
    report: &mut SwitchReport,
) -> Result<(), ProcessError> {
    let memory = stopped.memory();
    let wanted = &prepared.patches.wanted;
    for p in &live.journal.patches {
        let at = Avma::new(p.at);
        let keep = wanted.contains_key(&at) && !forbidden.contains(&at);
        let mut found = [0; LEN];
        memory.read(at, &mut found)?;
        if !keep && found != p.original {
            refuse_foreign(live, at, found, p.original)?;
            memory.write(at, &p.original)?;
            report.restored += 1;
        }
    }
    for (&at, (original, now)) in wanted.iter().filter(|(at, _)| !forbidden.contains(at)) {
        let mut found = [0; LEN];
        memory.read(at, &mut found)?;
        if found != *now {
            refuse_foreign(live, at, found, *original)?;
            memory.write(at, now)?;
        }
        report.patched += 1;
    }
    report.left_out += forbidden.len();
    live.journal.patches.retain(|p| {
        let at = Avma::new(p.at);
        wanted.contains_key(&at) && !forbidden.contains(&at)
    });
    Ok(())
}

/// What is there has to be the file's bytes or a jump of ours into a version.
fn refuse_foreign(live: &Live, at: Avma, found: [u8; LEN], original: [u8; LEN]) -> Result<(), ProcessError> {
    let to = at + LEN as u64 + i64::from(i32::from_le_bytes([found[1], found[2], found[3], found[4]])) as u64;
    let ours = found[0] == 0xe9 && live.journal.versions.iter().any(|v| v.range().contains(to));
    if found == original || ours {
        return Ok(());
    }
    Err(ProcessError::Foreign { pid: live.target.pid(), at, found: found.into(), expected: original.into() })
}

fn verify(
    live: &Live,
    stopped: &Stopped,
    prepared: &Prepared<'_>,
    forbidden: &BTreeSet<Avma>,
) -> Result<(), ProcessError> {
    let wanted: Vec<_> = prepared.patches.wanted.iter().filter(|(at, _)| !forbidden.contains(at)).collect();
    let requests: Vec<_> = wanted.iter().map(|(at, _)| (**at, LEN)).collect();
    let mut wrong = Vec::new();
    for (found, (at, (_, now))) in stopped.memory().read_many(&requests).into_iter().zip(&wanted) {
        if found.as_deref() != Some(&now[..]) {
            wrong.push(**at);
        }
    }
    match wrong.first() {
        None => Ok(()),
        Some(&at) => Err(ProcessError::NotVerified { pid: live.target.pid(), count: wrong.len(), at }),
    }
}

// --- Retiring ----------------------------------------------------------------------------------------------------

/// Translates return addresses (out of leaving versions, into arriving ones), then unmaps what nothing leads to.
fn retire(
    live: &mut Live,
    stopped: &mut Stopped,
    prepared: &Prepared<'_>,
    threads: &[ThreadView],
    walker: &Walker<'_>,
    report: &mut SwitchReport,
) -> Result<(), ProcessError> {
    let mut translated = BTreeSet::new();
    for thread in threads {
        translate_returns(stopped, prepared, thread, walker, &mut translated)?;
    }
    report.moved_returns = translated.len();
    if prepared.old.is_empty() {
        return Ok(());
    }
    let mut gone = Vec::new();
    for old in &prepared.old {
        match still_needed(live, stopped, old, threads, &translated)? {
            None => gone.push(old),
            Some(why) => {
                redirect_old_entries(stopped, prepared, old, threads)?;
                report.kept.push((old.number, why));
            }
        }
    }
    let hook_leaves =
        live.journal.hook.is_some() && prepared.incoming.is_empty() && gone.len() == prepared.old.len();
    if hook_leaves {
        unhook(live, stopped)?;
    }
    unmap(live, stopped, prepared, &gone, hook_leaves)?;
    report.unmapped = gone.iter().map(|o| o.number).collect();
    live.counters.retain(|c| !report.unmapped.contains(&c.0));
    write_hook(live, stopped, prepared, &mut live.journal.clone())
}

fn translate_returns(
    stopped: &Stopped,
    prepared: &Prepared<'_>,
    thread: &ThreadView,
    walker: &Walker<'_>,
    translated: &mut BTreeSet<Avma>,
) -> Result<(), ProcessError> {
    let memory = stopped.memory();
    // The frames are those of the registers at the stop: moving a thread changes its program counter only.
    let (slots, _) = walker.walk(&thread.registers, &mut |at| memory.read_u64(at).ok());
    for s in slots {
        let old = prepared.old.iter().find(|o| o.range.contains(s.value - 1));
        let to = match (old, s.interrupted) {
            (Some(old), true) => old.to_original(s.value).map(|o| prepared.destination_or_original(o)),
            (Some(old), false) => old.return_to_original(s.value).map(|o| prepared.return_destination(o)),
            (None, true) => prepared.destination(s.value),
            (None, false) => Some(prepared.return_destination(s.value)),
        };
        let to = to.filter(|to| *to != s.value);
        if let Some(to) = to {
            memory.write(s.slot, &to.get().to_le_bytes())?;
            translated.insert(s.slot);
        }
    }
    Ok(())
}

impl Prepared<'_> {
    /// The return address in an arriving version that equals original return address `at`, else `at` itself.
    fn return_destination(&self, at: Avma) -> Avma {
        self.arriving
            .iter()
            .find_map(|a| {
                let bias = restitch_address::LoadBias::between(Svma::new(0), Avma::new(a.record.bias));
                a.reverse.byte(bias.to_stated(at - 1)).map(|v| bias.to_actual(v + 1))
            })
            .unwrap_or(at)
    }
}

/// Why a leaving version has to stay mapped, if it has to.
fn still_needed(
    live: &Live,
    stopped: &Stopped,
    old: &OldVersion,
    threads: &[ThreadView],
    translated: &BTreeSet<Avma>,
) -> Result<Option<String>, ProcessError> {
    if old.stored.map.pieces.is_empty() || old.module.is_none() {
        return Ok(Some("its address map is missing".into()));
    }
    if let Some(name) = stack_switching_import(&live.target) {
        return Ok(Some(format!(
            "the process uses {name}, so stacks that no thread is on may return into it"
        )));
    }
    for thread in threads {
        let r = stopped.registers(thread.tid)?;
        let in_register = [
            r.rip.get(),
            r.rax,
            r.rbx,
            r.rcx,
            r.rdx,
            r.rsi,
            r.rdi,
            r.rbp,
            r.r8,
            r.r9,
            r.r10,
            r.r11,
            r.r12,
            r.r13,
            r.r14,
            r.r15,
        ];
        if in_register.iter().any(|v| old.range.contains(Avma::new(*v))) {
            return Ok(Some(format!("thread {} has an address in it in a register", thread.tid)));
        }
        for (at, word) in thread.stacks.iter().flat_map(words) {
            if old.range.contains(word) && !translated.contains(&at) && at >= r.rsp - 128 {
                return Ok(Some(format!("thread {} may return into it (stack word at {at})", thread.tid)));
            }
        }
    }
    Ok(None)
}

/// A function that the process imports and that runs code on stacks of its own.
fn stack_switching_import(target: &Target) -> Option<&'static str> {
    const NAMES: [&str; 4] = ["swapcontext", "makecontext", "jump_fcontext", "coro_transfer"];
    target.modules.iter().find_map(|m| {
        let imports = m.image.plt_slots().iter().filter_map(|p| p.name.as_deref());
        imports.filter_map(|n| NAMES.into_iter().find(|known| n.split('@').next() == Some(known))).next()
    })
}

/// Makes the function entries of a version that stays lead to the newest code, so that old frames call new functions.
fn redirect_old_entries(
    stopped: &Stopped,
    prepared: &Prepared<'_>,
    old: &OldVersion,
    threads: &[ThreadView],
) -> Result<(), ProcessError> {
    let pointed: BTreeSet<Avma> = threads
        .iter()
        .flat_map(|t| t.stacks.iter().flat_map(words).map(|w| w.1).chain([t.registers.rip]))
        .filter(|a| old.range.contains(*a))
        .collect();
    let pieces = &old.stored.map.pieces;
    for r in old.stored.redirects.iter().filter(|r| r.kind == RedirectKind::Entry) {
        let at = old.bias.to_actual(r.to);
        let i = pieces.partition_point(|p| p.version <= r.to).saturating_sub(1);
        // Room for a jump inside one piece, of which only the start is a branch target.
        let room = pieces.get(i).is_some_and(|p| {
            p.version.offset_from(r.to) <= 0 && r.to.offset_from(p.version) + LEN as i64 <= i64::from(p.len)
        });
        let busy = pointed.range(at + 1..at + LEN as u64).next().is_some();
        let to = prepared.destination_or_original(old.bias.to_actual(r.at));
        if room
            && !busy
            && let Some(bytes) = jump(at, to)
        {
            stopped.memory().write(at, &bytes)?;
        }
    }
    Ok(())
}

fn unhook(live: &Live, stopped: &Stopped) -> Result<(), ProcessError> {
    if let Some(h) = &live.journal.hook {
        stopped.memory().write(Avma::new(h.slot), &h.original.to_le_bytes())?;
    }
    Ok(())
}

fn unmap(
    live: &mut Live,
    stopped: &mut Stopped,
    prepared: &Prepared<'_>,
    gone: &[&OldVersion],
    hook_leaves: bool,
) -> Result<(), ProcessError> {
    let mut ranges: Vec<AvmaRange> = gone.iter().map(|o| o.range).collect();
    for v in live.journal.versions.iter().filter(|v| gone.iter().any(|o| o.number == v.number)) {
        ranges.extend(v.counters.map(|(start, len)| AvmaRange::new(Avma::new(start), len)));
    }
    if hook_leaves && let Some(h) = &live.journal.hook {
        let page = AvmaRange::new(Avma::new(h.page), h.len);
        let mut in_hook = false;
        for tid in stopped.threads() {
            in_hook |= page.contains(stopped.registers(tid)?.rip);
        }
        // A thread inside the routine goes on to the original from there; the page stays for it.
        if !in_hook {
            ranges.push(page);
        }
        live.journal.hook = None;
    }
    if !ranges.is_empty() {
        let mut borrow = borrow(stopped, prepared.stub)?;
        for range in ranges {
            borrow.munmap(range)?;
        }
        borrow.finish()?;
    }
    live.journal.versions.retain(|v| !gone.iter().any(|o| o.number == v.number));
    Ok(())
}

/// Removes the files of versions that are no longer mapped.
fn forget_files(live: &Live, report: &SwitchReport) {
    let dir: &StateDir = &live.dir;
    for path in std::fs::read_dir(dir.path()).into_iter().flatten().flatten().map(|e| e.path()) {
        let prefix = format!("{}-{}.", live.target.process.pid, live.target.process.start_time);
        let name = path.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
        let of_gone = report.unmapped.iter().any(|n| name.contains(&format!(".v{n}.")));
        if name.starts_with(&prefix) && of_gone && !still_mapped_elsewhere(&path) {
            let _ = std::fs::remove_file(path);
        }
    }
}

/// Whether a forked relative still maps the file.
fn still_mapped_elsewhere(path: &std::path::Path) -> bool {
    let Ok(file) = File::open(path) else { return false };
    let Ok(identity) = procfs::FileIdentity::of(&file) else { return false };
    procfs::processes_mapping(identity).is_ok_and(|p| !p.is_empty())
}

// --- From original to version ------------------------------------------------------------------------------------

/// The address map turned around.
struct ReverseMap {
    /// Sorted by original address: (original, version, length); length 0 for single boundaries.
    pieces: Vec<(Svma, Svma, u32)>,
}

impl ReverseMap {
    fn new(pieces: &[restitch_emit::MapPiece]) -> Self {
        let mut out: Vec<(Svma, Svma, u32)> = pieces
            .iter()
            .filter_map(|p| match p.kind {
                PieceKind::Linear => Some((p.original, p.version, p.len)),
                PieceKind::Branch => Some((p.original, p.version, 0)),
                _ => None,
            })
            .collect();
        out.sort_unstable();
        Self { pieces: out }
    }

    /// Where the instruction at original address `at` stands.
    fn boundary(&self, at: Svma) -> Option<Svma> {
        let i = self.pieces.partition_point(|p| p.0 <= at).checked_sub(1)?;
        let (original, version, len) = self.pieces[i];
        let delta = at.offset_from(original) as u64;
        (delta < u64::from(len) || delta == 0).then_some(version + delta)
    }

    /// Where the copied byte at original address `at` stands.
    fn byte(&self, at: Svma) -> Option<Svma> {
        let i = self.pieces.partition_point(|p| p.0 <= at).checked_sub(1)?;
        let (original, version, len) = self.pieces[i];
        let delta = at.offset_from(original) as u64;
        (delta < u64::from(len)).then_some(version + delta)
    }
}
