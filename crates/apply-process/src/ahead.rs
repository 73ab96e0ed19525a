//! What is done to the process before the stop, while it runs: versions, counter areas, the unwinder's page and spare copies
//! of code mappings come to be mapped, and the spares get the code that is to be.
//!
//! One thread is borrowed for that; nothing leads to what is mapped, so the others do not notice. All of it is in the journal
//! before it exists.

use crate::counter_area::CounterArea;
use crate::frames::names_unwinder;
use crate::hook_journal::JournalHook;
use crate::journal::{Journal, JournalSpare, VersionKind};
use crate::live::{Live, Reservation};
use crate::mapping::{Mapped, in_memory, map_in_memory};
use crate::plan::has_personality;
use crate::prepared::Prepared;
use crate::search::joined;
use crate::spare::{self, Filled, Planned};
use crate::stub::with_borrowed;
use crate::writing::Sites;
use crate::{ProcessError, hook, hook_found};
use restitch_address::{Avma, AvmaRange};
use restitch_emit::LARGE_PAGE;
use restitch_procfs::{self as procfs, Mapping, MappingName};
use restitch_tracee::{Batch, Borrow, Memory, RemoteFd, Stopped, TraceError, collapse_pages};
use std::time::Duration;

/// What is to be mapped before the stop.
pub(crate) struct Ahead {
    /// The journal as it has to be on disk before anything is mapped: everything that may be there during the switch.
    pub journal: Journal,
    pub sites: Sites,
    /// The unwinder's hook, if there is none yet.
    new_hook: Option<JournalHook>,
    /// Spares that a killed restitch has left.
    leftovers: Vec<JournalSpare>,
    spares: Vec<Planned>,
    refused: Vec<(Avma, String)>,
}

/// What is mapped when the stop begins.
pub(crate) struct Ready {
    pub spares: Vec<Filled>,
    /// Mappings without a spare, with the reason.
    pub refused: Vec<(Avma, String)>,
    /// How long one thread was held.
    pub held: Duration,
}

/// Plans it. Nothing is changed yet.
pub(crate) fn plan(live: &Live, prepared: &Prepared<'_>) -> Result<Ahead, ProcessError> {
    let pid = live.target.pid();
    let maps = procfs::maps(pid)?;
    let mut journal = planned_journal(&live.journal, prepared);
    let heap_start = procfs::heap_start(pid);
    let mut taken: Vec<AvmaRange> = prepared.arriving.iter().flat_map(|a| a.ranges()).collect();
    let new_hook = plan_hook(live, prepared)?;
    taken.extend(new_hook.as_ref().map(JournalHook::range));
    journal.hook = new_hook.clone().or(journal.hook);
    let sites = Sites::new(&journal, &prepared.patches);
    let leftovers = std::mem::take(&mut journal.spares);
    let (mut spares, mut refused) = (Vec::new(), Vec::new());
    for planned in spare::plan(&maps, &sites, &taken, heap_start) {
        match planned {
            Ok(spare) => spares.push(spare),
            Err(why) => refused.push(why),
        }
    }
    journal.spares = leftovers.iter().cloned().chain(spares.iter().flat_map(Planned::journal)).collect();
    Ok(Ahead { journal, sites, new_hook, leftovers, spares, refused })
}

/// The journal as it has to be on disk before the first change.
fn planned_journal(now: &Journal, prepared: &Prepared<'_>) -> Journal {
    let mut planned = now.clone();
    planned.patches = prepared.patches.journal(&now.patches);
    planned.versions.retain(|v| prepared.arriving.iter().all(|a| a.record.start != v.start));
    for v in &mut planned.versions {
        v.retired = true;
    }
    planned.versions.extend(prepared.arriving.iter().map(|a| a.record.clone()));
    planned.used.extend(prepared.arriving.iter().map(|a| (a.record.start, a.record.len)));
    // Numbers may have been given to versions that did not come to be.
    let behind = prepared.arriving.iter().map(|a| a.record.number + 1);
    planned.next_number = behind.fold(planned.next_number, u32::max);
    planned
}

/// The unwinder's hook, if versions arrive and there is none yet. `None` also if the process needs none: nothing in it can unwind
/// through moved frames.
fn plan_hook(live: &Live, prepared: &Prepared<'_>) -> Result<Option<JournalHook>, ProcessError> {
    if prepared.incoming.is_empty() || live.journal.hook.is_some() {
        return Ok(None);
    }
    // There is an unwinder, or some function has a personality routine.
    let modules = &live.target.modules;
    let can_unwind = modules.iter().any(|m| names_unwinder(m) || has_personality(m));
    let mut taken: Vec<(usize, Reservation)> = Vec::new();
    for (new, arriving) in prepared.incoming.iter().zip(&prepared.arriving) {
        for range in arriving.ranges() {
            let start = modules[new.module].bias.to_stated(range.start);
            let len = range.len().next_multiple_of(4096);
            taken.push((new.module, Reservation { number: new.version.number, start, len }));
        }
    }
    hook::plan(live, &taken, can_unwind)
}

impl Ahead {
    /// Does it. The journal is on disk already. After an error call [`undo`].
    pub fn carry_out(
        self,
        live: &mut Live,
        prepared: &Prepared<'_>,
        held: Option<&mut Stopped>,
    ) -> Result<Ready, ProcessError> {
        let Self { sites, new_hook, leftovers, spares, mut refused, .. } = self;
        let ((counters, mapped), time) = with_borrowed(live.now(), &prepared.stub, held, |borrow| {
            let unmapped = unmap_all(borrow, &leftovers);
            let mut map = || map_all(borrow, prepared, new_hook.as_ref(), &spares, &mut refused);
            unmapped.and_then(|()| map().map_err(or_taken))
        })?;
        live.counters.extend(counters);
        live.journal.spares.retain(|s| !leftovers.contains(s));
        large_pages(live, prepared);
        let mut ready = Ready { spares: Vec::new(), refused, held: time };
        if mapped.is_empty() {
            return Ok(ready);
        }
        let memory = Memory::open(live.target.pid())?;
        if let Some(new_hook) = &new_hook {
            hook::own_pages(&memory, new_hook)?;
        }
        for spare in mapped {
            match spare.fill(&live.journal, &memory, &sites, &prepared.stub)? {
                Ok(filled) => ready.spares.push(filled),
                Err(why) => ready.refused.push(why),
            }
        }
        Ok(ready)
    }
}

/// Asks for large pages where a version is made for them. What comes of it is no matter of right or wrong: file systems with large
/// folios give them anyway, others may refuse, and a user without privileges may not ask.
fn large_pages(live: &Live, prepared: &Prepared<'_>) {
    for (new, arriving) in prepared.incoming.iter().zip(&prepared.arriving).filter(|(_, a)| !a.inherited) {
        let part =
            AvmaRange::new(Avma::new(arriving.record.start), new.version.large.min(arriving.record.len));
        if !part.is_empty() && part.start.get().is_multiple_of(LARGE_PAGE) {
            let _ = collapse_pages(live.target.pid(), part);
        }
    }
}

/// Counter areas: version number, file, length.
type Counters = Vec<CounterArea>;

/// Opens what has to be opened, then maps everything. A spare that cannot be mapped (limits of the process, a file that is gone) is
/// done without.
fn map_all(
    borrow: &mut Borrow<'_>,
    prepared: &Prepared<'_>,
    new_hook: Option<&JournalHook>,
    spares: &[Planned],
    refused: &mut Vec<(Avma, String)>,
) -> Result<(Counters, Vec<Planned>), ProcessError> {
    let new = prepared.incoming.iter().zip(&prepared.arriving).filter(|(_, a)| !a.inherited);
    let mut versions: Vec<Mapped<'_>> =
        new.map(|(incoming, arriving)| Mapped::new(incoming, arriving)).collect();
    let mut opening = Batch::new();
    // Tracing versions come together, and share the first one's window.
    let tracing = prepared.incoming.iter().all(|incoming| incoming.kind == VersionKind::Burst);
    versions.iter_mut().skip(1).filter(|_| tracing).for_each(Mapped::share);
    versions.iter().for_each(|v| v.open(&mut opening));
    spares.iter().for_each(|s| opening.open(&s.file()));
    let mut results = borrow.run(&opening)?.into_iter();
    let mut counters = Vec::new();
    let mut mapping = Batch::new();
    let mut opened = Ok(());
    let mut window = None;
    for version in &mut versions {
        match version.opened(borrow, &mut results) {
            Ok(found) => counters.extend(found),
            Err(error) => opened = opened.and(Err(error)),
        }
        version.shared(window);
        window = window.or(version.counters());
    }
    if opened.is_ok() {
        opened = in_memory(borrow, versions.iter_mut().filter(|version| version.is_refused()));
    }
    let mut firsts = Vec::new();
    for version in &versions {
        firsts.push(mapping.len());
        version.map(&mut mapping);
    }
    if let Some(new_hook) = new_hook {
        hook::map(&mut mapping, new_hook);
    }
    let mut files: Vec<RemoteFd> = versions.iter().flat_map(Mapped::files).collect();
    let mut open_spares = Vec::new();
    for (spare, fd) in spares.iter().zip(results) {
        match fd {
            Ok(fd) => {
                let fd = RemoteFd::from_result(fd);
                spare.map(&mut mapping, fd);
                files.push(fd);
                open_spares.push(spare);
            }
            Err(error) => refused.push((spare.replaces(), error.to_string())),
        }
    }
    let wanted = mapping.len() - open_spares.len();
    if opened.is_err() {
        mapping = Batch::new();
    }
    let to_map = mapping.len();
    files.into_iter().for_each(|fd| mapping.close(fd));
    let mut results: Vec<_> = borrow.run(&mapping)?.into_iter().take(to_map).collect();
    opened?;
    let mut again = Vec::new();
    for (version, first) in versions.iter_mut().zip(firsts) {
        if version.may_not_map(&results[first]) {
            results[first] = Ok(0);
            again.push(version);
        }
    }
    map_in_memory(borrow, again.into_iter())?;
    let mut mapped = Vec::new();
    for (spare, result) in open_spares.into_iter().zip(results.drain(wanted..)) {
        match result {
            Ok(_) => mapped.push(spare.clone()),
            Err(error) => refused.push((spare.replaces(), error.to_string())),
        }
    }
    results.into_iter().try_for_each(|result| result.map(drop))?;
    Ok((counters, mapped))
}

/// An error of mapping, which says so where the program has mapped something in that place since it was chosen: its other threads run on.
fn or_taken(error: ProcessError) -> ProcessError {
    match error {
        ProcessError::Trace(TraceError::RemoteCall { pid, call: "mmap", source })
            if source.raw_os_error() == Some(libc::EEXIST) =>
        {
            ProcessError::PlaceTaken { pid }
        }
        other => other,
    }
}

fn unmap_all(borrow: &mut Borrow<'_>, spares: &[JournalSpare]) -> Result<(), ProcessError> {
    let mut batch = Batch::new();
    spares.iter().for_each(|spare| batch.munmap(spare.range()));
    for result in borrow.run(&batch)? {
        result?;
    }
    Ok(())
}

/// Unmaps what was mapped for a switch that does not come about, as far as that is possible. The journal knows what stays.
pub(crate) fn undo(
    live: &mut Live,
    before: Journal,
    prepared: &Prepared<'_>,
    held: Option<&mut Stopped>,
) -> Result<(), ProcessError> {
    let maps = procfs::maps(live.target.pid())?;
    live.journal.retain_mapped(&maps);
    let mut ranges: Vec<AvmaRange> = live.journal.spares.iter().map(JournalSpare::range).collect();
    // Of a version and its counters the one may be there without the other.
    let new = prepared.arriving.iter().filter(|a| !a.inherited).flat_map(|a| a.ranges());
    ranges.extend(new.filter(|r| maps.iter().any(|m| m.range.start == r.start && is_ours(m))));
    let hook = live.journal.hook.iter().filter(|h| before.hook.as_ref() != Some(h));
    // Nothing leads to it yet.
    let memory = Memory::open_read_only(live.target.pid())?;
    let is_anonymous =
        |at: Avma| maps.iter().any(|m| m.range.contains(at) && m.name == MappingName::Anonymous);
    ranges.extend(
        hook.filter(|h| hook_found::is_there(h, &memory) && is_anonymous(h.range().start))
            .map(JournalHook::range),
    );
    if !ranges.is_empty() {
        let mut batch = Batch::new();
        joined(ranges).into_iter().for_each(|range| batch.munmap(range));
        let result = with_borrowed(live.now(), &prepared.stub, held, |borrow| {
            Ok(borrow.run(&batch)?.into_iter().try_for_each(|result| result.map(drop))?)
        });
        if let Err(error) = result {
            live.journal.save_if_possible(&live.dir);
            return Err(error);
        }
    }
    let is_new = |number: u32| prepared.arriving.iter().any(|a| a.record.number == number && !a.inherited);
    live.counters.retain(|c| !is_new(c.number));
    live.journal = before;
    live.journal.spares.clear();
    live.journal.save_if_possible(&live.dir);
    Ok(())
}

/// Whether a mapping bears one of our names. (The program may have mapped something of its own where we could not.)
pub(crate) fn is_ours(m: &Mapping) -> bool {
    m.path().is_some_and(|p| p.to_string_lossy().contains("restitch-"))
}

/// Unmaps spares and old code that are still there after the switch; how long one thread was held for it.
pub(crate) fn unmap_spares(live: &mut Live, prepared: &Prepared<'_>) -> Result<Duration, ProcessError> {
    let maps = procfs::maps(live.target.pid())?;
    live.journal.spares.retain(|s| s.is_mapped(&maps));
    let left = live.journal.spares.clone();
    if left.is_empty() {
        return Ok(Duration::ZERO);
    }
    let ((), time) = with_borrowed(live.now(), &prepared.stub, None, |borrow| unmap_all(borrow, &left))?;
    live.journal.spares.clear();
    Ok(time)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Target;
    use crate::stub::stub_sites;
    use restitch_testkit::{Guarded, compile, program, require};
    use restitch_tracee::{Backing, Placement, Protection};
    use std::process::Command;

    /// Other threads run while a version is made, and may map something in the place that was chosen for it.
    #[test]
    fn a_place_that_the_program_has_taken_is_told_as_such() {
        let built = require!(compile(&program("switch.c"), &["-O1"]).ok(), "gcc");
        let child = Guarded::spawn(Command::new(built).args(["--seconds", "600"])).expect("it starts");
        let pid = child.pid() as i32;
        let ready = || Target::open(pid).ok().filter(|target| !stub_sites(target).is_empty());
        let target = restitch_testkit::wait_until(Duration::from_secs(60), ready).expect("it has begun");
        let site = stub_sites(&target).swap_remove(0);
        let map = |at: Avma, len: u64| {
            let result = with_borrowed(&target, &site, None, |borrow| {
                let mut batch = Batch::new();
                batch.mmap(Placement::At(at), len, Protection::ReadWrite, Backing::Anonymous);
                let results = borrow.run(&batch)?;
                results.into_iter().next().expect("one call").map(drop).map_err(ProcessError::from)
            });
            result.map(drop).map_err(or_taken)
        };
        let taken = target.modules[target.program].range.start;
        let error = map(taken, 4096).expect_err("something is there");
        assert!(matches!(error, ProcessError::PlaceTaken { pid: told } if told == pid), "{error}");
        let error = map(Avma::new(4096), 0).expect_err("no length");
        assert!(matches!(error, ProcessError::Trace(_)), "{error}");
    }
}
