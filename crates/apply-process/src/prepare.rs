//! What is done to the process before the stop, while it runs: versions, counter areas, the unwinder's page
//! and replacement mappings of code mappings come to be mapped, and the replacements get the code that is to
//! be.
//!
//! One thread is borrowed for that; nothing leads to what is mapped, so the others do not notice. All of it
//! is in the journal before it exists.

use crate::attached_process::{AttachedProcess, Reservation};
use crate::error::ProcessError;
use crate::frames::names_unwinder;
use crate::hook;
use crate::memory::counter_area::CounterArea;
use crate::memory::mapping::{Mapped, in_memory, map_in_memory};
use crate::memory::replacement_mapping::{self, FilledReplacement, PlannedReplacement};
use crate::memory::search::joined;
use crate::memory::writing::Sites;
use crate::plan::has_personality;
use crate::state::hook_journal::JournalHook;
use crate::state::journal::{Journal, JournalReplacement, VersionKind};
use crate::stub::with_borrowed;
use crate::switch_plan::SwitchPlan;
use restitch_address::{Avma, AvmaRange, PAGE};
use restitch_emit::LARGE_PAGE;
use restitch_procfs::{self as procfs, Mapping, MappingName};
use restitch_tracee::{Batch, Borrow, Memory, RemoteFd, Stopped, TraceError, collapse_pages};
use std::time::Duration;

/// What is to be mapped before the stop.
pub(crate) struct Preparation {
    /// The journal as it has to be on disk before anything is mapped: everything that may be there during the
    /// switch.
    pub journal: Journal,
    pub sites: Sites,
    /// The unwinder's hook, if there is none yet.
    new_hook: Option<JournalHook>,
    /// Replacement mappings that a killed restitch has left.
    leftovers: Vec<JournalReplacement>,
    replacements: Vec<PlannedReplacement>,
    refused: Vec<(Avma, String)>,
}

/// What is mapped when the stop begins.
pub(crate) struct Ready {
    pub replacements: Vec<FilledReplacement>,
    /// Mappings without a replacement, with the reason.
    pub refused: Vec<(Avma, String)>,
    /// How long one thread was held.
    pub held: Duration,
}

/// Plans it. Nothing is changed yet.
pub(crate) fn plan(attached: &AttachedProcess, plan: &SwitchPlan<'_>) -> Result<Preparation, ProcessError> {
    let pid = attached.target.pid();
    let maps = procfs::maps(pid)?;
    let mut journal = planned_journal(&attached.journal, plan);
    let heap_start = procfs::heap_start(pid);
    let mut taken: Vec<AvmaRange> = plan.arriving.iter().flat_map(|a| a.ranges()).collect();
    let new_hook = plan_hook(attached, plan)?;
    taken.extend(new_hook.as_ref().map(JournalHook::range));
    journal.hook = new_hook.clone().or(journal.hook);
    let sites = Sites::new(&journal, &plan.patches);
    let leftovers = std::mem::take(&mut journal.replacements);
    let (mut replacements, mut refused) = (Vec::new(), Vec::new());
    for planned in replacement_mapping::plan(&maps, &sites, &taken, heap_start) {
        match planned {
            Ok(replacement) => replacements.push(replacement),
            Err(why) => refused.push(why),
        }
    }
    journal.replacements =
        leftovers.iter().cloned().chain(replacements.iter().flat_map(PlannedReplacement::journal)).collect();
    Ok(Preparation { journal, sites, new_hook, leftovers, replacements, refused })
}

/// The journal as it has to be on disk before the first change.
pub(crate) fn planned_journal(now: &Journal, plan: &SwitchPlan<'_>) -> Journal {
    let mut planned = now.clone();
    planned.patches = plan.patches.journal(&now.patches);
    planned.versions.retain(|v| plan.arriving.iter().all(|a| a.record.start != v.start));
    for v in &mut planned.versions {
        v.retired = true;
    }
    planned.versions.extend(plan.arriving.iter().map(|a| a.record.clone()));
    planned.used.extend(plan.arriving.iter().map(|a| (a.record.start, a.record.len)));
    // Numbers may have been given to versions that did not come to be.
    let behind = plan.arriving.iter().map(|a| a.record.number + 1);
    planned.next_number = behind.fold(planned.next_number, u32::max);
    planned
}

/// The unwinder's hook, if versions arrive and there is none yet. `None` also if the process needs none:
/// nothing in it can unwind through moved frames.
fn plan_hook(attached: &AttachedProcess, plan: &SwitchPlan<'_>) -> Result<Option<JournalHook>, ProcessError> {
    if plan.incoming.is_empty() || attached.journal.hook.is_some() {
        return Ok(None);
    }
    // There is an unwinder, or some function has a personality routine.
    let modules = &attached.target.modules;
    let can_unwind = modules.iter().any(|m| names_unwinder(m) || has_personality(m));
    let mut taken: Vec<(usize, Reservation)> = Vec::new();
    for (new, arriving) in plan.incoming.iter().zip(&plan.arriving) {
        for range in arriving.ranges() {
            let start = modules[new.module].bias.to_stated(range.start);
            let len = range.len().next_multiple_of(PAGE);
            taken.push((new.module, Reservation { number: new.version.number, start, len }));
        }
    }
    hook::plan(&attached.target, can_unwind, |near, len| {
        let place = attached.reserve(near, len, &taken, &[], PAGE)?;
        Ok(modules[near].bias.to_actual(place.start))
    })
}

impl Preparation {
    /// Does it. The journal is on disk already. After an error call [`undo`].
    pub fn carry_out(
        self,
        attached: &mut AttachedProcess,
        plan: &SwitchPlan<'_>,
        held: Option<&mut Stopped>,
    ) -> Result<Ready, ProcessError> {
        let Self { sites, new_hook, leftovers, replacements, mut refused, .. } = self;
        let ((counters, mapped), time) = with_borrowed(attached.now(), &plan.stub, held, |borrow| {
            let unmapped = unmap_all(borrow, &leftovers);
            let mut map = || map_all(borrow, plan, new_hook.as_ref(), &replacements, &mut refused);
            unmapped.and_then(|()| map().map_err(or_taken))
        })?;
        attached.counters.extend(counters);
        attached.journal.replacements.retain(|s| !leftovers.contains(s));
        large_pages(attached, plan);
        let mut ready = Ready { replacements: Vec::new(), refused, held: time };
        if mapped.is_empty() {
            return Ok(ready);
        }
        let memory = Memory::open(attached.target.pid())?;
        if let Some(new_hook) = &new_hook {
            hook::own_pages(&memory, new_hook)?;
        }
        for replacement in mapped {
            match replacement.fill(&attached.journal, &memory, &sites, &plan.stub)? {
                Ok(filled) => ready.replacements.push(filled),
                Err((at, why)) => ready.refused.push((at, why.to_string())),
            }
        }
        Ok(ready)
    }
}

/// Asks for large pages where a version is made for them. What comes of it is no matter of right or wrong:
/// file systems with large folios give them anyway, others may refuse, and a user without privileges may not
/// ask.
fn large_pages(attached: &AttachedProcess, plan: &SwitchPlan<'_>) {
    for (new, arriving) in plan.incoming.iter().zip(&plan.arriving).filter(|(_, a)| !a.inherited) {
        let part =
            AvmaRange::new(Avma::new(arriving.record.start), new.version.large.min(arriving.record.len));
        if !part.is_empty() && part.start.get().is_multiple_of(LARGE_PAGE) {
            let _ = collapse_pages(attached.target.pid(), part);
        }
    }
}

/// Counter areas: version number, file, length.
type Counters = Vec<CounterArea>;

/// Opens what has to be opened, then maps everything. A replacement that cannot be mapped (limits of the
/// process, a file that is gone) is done without.
fn map_all(
    borrow: &mut Borrow<'_>,
    plan: &SwitchPlan<'_>,
    new_hook: Option<&JournalHook>,
    replacements: &[PlannedReplacement],
    refused: &mut Vec<(Avma, String)>,
) -> Result<(Counters, Vec<PlannedReplacement>), ProcessError> {
    let new = plan.incoming.iter().zip(&plan.arriving).filter(|(_, a)| !a.inherited);
    let mut versions: Vec<Mapped<'_>> =
        new.map(|(incoming, arriving)| Mapped::new(incoming, arriving)).collect();
    let mut opening = Batch::new();
    // Tracing versions come together, and share the first one's window.
    let tracing = plan.incoming.iter().all(|incoming| incoming.kind == VersionKind::Burst);
    versions.iter_mut().skip(1).filter(|_| tracing).for_each(Mapped::share);
    versions.iter().for_each(|v| v.open(&mut opening));
    replacements.iter().for_each(|s| opening.open(&s.file()));
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
    let mut open_replacements = Vec::new();
    for (replacement, fd) in replacements.iter().zip(results) {
        match fd {
            Ok(fd) => {
                let fd = RemoteFd::from_result(fd);
                replacement.map(&mut mapping, fd);
                files.push(fd);
                open_replacements.push(replacement);
            }
            Err(error) => refused.push((replacement.replaces(), error.to_string())),
        }
    }
    let wanted = mapping.len() - open_replacements.len();
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
    for (replacement, result) in open_replacements.into_iter().zip(results.drain(wanted..)) {
        match result {
            Ok(_) => mapped.push(replacement.clone()),
            Err(error) => refused.push((replacement.replaces(), error.to_string())),
        }
    }
    results.into_iter().try_for_each(|result| result.map(drop))?;
    Ok((counters, mapped))
}

/// An error of mapping, which says so where the program has mapped something in that place since it was
/// chosen: its other threads run on.
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

fn unmap_all(borrow: &mut Borrow<'_>, replacements: &[JournalReplacement]) -> Result<(), ProcessError> {
    let mut batch = Batch::new();
    replacements.iter().for_each(|replacement| batch.munmap(replacement.range()));
    for result in borrow.run(&batch)? {
        result?;
    }
    Ok(())
}

/// Unmaps what was mapped for a switch that does not come about, as far as that is possible. The journal
/// knows what stays.
pub(crate) fn undo(
    attached: &mut AttachedProcess,
    before: Journal,
    plan: &SwitchPlan<'_>,
    held: Option<&mut Stopped>,
) -> Result<(), ProcessError> {
    let maps = procfs::maps(attached.target.pid())?;
    attached.journal.retain_mapped(&maps);
    let mut ranges: Vec<AvmaRange> =
        attached.journal.replacements.iter().map(JournalReplacement::range).collect();
    // Of a version and its counters the one may be there without the other.
    let new = plan.arriving.iter().filter(|a| !a.inherited).flat_map(|a| a.ranges());
    ranges.extend(new.filter(|r| maps.iter().any(|m| m.range.start == r.start && is_ours(m))));
    let hook = attached.journal.hook.iter().filter(|h| before.hook.as_ref() != Some(h));
    // Nothing leads to it yet.
    let memory = Memory::open_read_only(attached.target.pid())?;
    let is_anonymous =
        |at: Avma| maps.iter().any(|m| m.range.contains(at) && m.name == MappingName::Anonymous);
    ranges.extend(
        hook.filter(|h| hook::found::is_there(h, &memory) && is_anonymous(h.range().start))
            .map(JournalHook::range),
    );
    if !ranges.is_empty() {
        let mut batch = Batch::new();
        joined(ranges).into_iter().for_each(|range| batch.munmap(range));
        let result = with_borrowed(attached.now(), &plan.stub, held, |borrow| {
            Ok(borrow.run(&batch)?.into_iter().try_for_each(|result| result.map(drop))?)
        });
        if let Err(error) = result {
            attached.journal.save_if_possible(&attached.dir);
            return Err(error);
        }
    }
    let is_new = |number: u32| plan.arriving.iter().any(|a| a.record.number == number && !a.inherited);
    attached.counters.retain(|c| !is_new(c.number));
    attached.journal = before;
    attached.journal.replacements.clear();
    attached.journal.save_if_possible(&attached.dir);
    Ok(())
}

/// Whether a mapping bears one of our names. (The program may have mapped something of its own where we could
/// not.)
pub(crate) fn is_ours(m: &Mapping) -> bool {
    m.path().is_some_and(|p| p.to_string_lossy().contains("restitch-"))
}

/// Unmaps replacements and old code that are still there after the switch; how long one thread was held for
/// it.
pub(crate) fn unmap_replacements(
    attached: &mut AttachedProcess,
    plan: &SwitchPlan<'_>,
) -> Result<Duration, ProcessError> {
    let maps = procfs::maps(attached.target.pid())?;
    attached.journal.replacements.retain(|s| s.is_mapped(&maps));
    let left = attached.journal.replacements.clone();
    if left.is_empty() {
        return Ok(Duration::ZERO);
    }
    let ((), time) = with_borrowed(attached.now(), &plan.stub, None, |borrow| unmap_all(borrow, &left))?;
    attached.journal.replacements.clear();
    Ok(time)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stub::stub_sites;
    use crate::target::Target;
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
