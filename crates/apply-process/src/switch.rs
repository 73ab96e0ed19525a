//! The switch: from the versions that are in a process to those that are to be.
//!
//! Before the stop (`prepare`): the journal is saved, versions and replacement mappings of the code that is
//! to be are mapped. The order inside the stop, each step harmless if it is the last one that happens
//! (`switch_faults.rs` tries each): tell the unwinder; move threads that stand where bytes will change or in
//! a leaving version into arriving ones, which is right whatever the redirects say; put the replacements in
//! place of the code; make slots of linkage tables and v-tables lead to where the versions are; move threads
//! of leaving versions to the original code, whose bytes are there only now; translate return addresses. All
//! that is written against [`crate::host`]. After the stop: replacements that were not used are unmapped, and
//! the new code is read back.

use crate::attached_process::AttachedProcess;
use crate::error::ProcessError;
use crate::frames::Walker;
use crate::hook;
use crate::host::{CodeMemory, Exchange, StoppedHost};
use crate::memory::memory_room;
use crate::memory::replacement_mapping::FilledReplacement;
use crate::memory::writing::{Page, Sites, verify, write_runs, write_sites};
use crate::module_moves::{forget_gone, refuse_moved};
use crate::plan::plan_switch;
use crate::preempted;
use crate::prepare::{self, Preparation, Ready, undo, unmap_replacements};
use crate::process_host::ProcessHost;
use crate::retire::retire;
use crate::running_host::Host;
use crate::slot_retargeting;
use crate::state::journal::{Journal, VersionKind};
use crate::switch_plan::{Incoming, SwitchPlan, SwitchReport};
use crate::target::Target;
use crate::threads::{ThreadView, forbidden_sites, move_in, move_out, survey};
use restitch_address::{Avma, AvmaRange, PAGE};
use restitch_procfs::{self as procfs, Mapping};
use restitch_tracee::{AloneInMemory, StopTimes, Stopped, TraceError};
use std::collections::BTreeSet;
use std::fs::File;
use std::io;
use std::time::{Duration, Instant};

impl AttachedProcess {
    /// Makes exactly `incoming` the versions in force: maps them, redirects to them, takes out those of
    /// before.
    ///
    /// # Errors
    /// On an error before the code changes the process is as it was; on a later one it is correct, and the
    /// journal knows what is in it.
    pub fn switch(&mut self, incoming: &[Incoming<'_>]) -> Result<SwitchReport, ProcessError> {
        switch(self, incoming, None)
    }

    /// The same for a process that is held still already (just started, before its first instruction).
    ///
    /// # Errors
    /// As for [`AttachedProcess::switch`]. The process runs on in any case.
    pub fn switch_held(
        &mut self,
        held: Stopped,
        incoming: &[Incoming<'_>],
    ) -> Result<SwitchReport, ProcessError> {
        switch(self, incoming, Some(held))
    }

    /// Maps tracing versions, which nothing leads to, and their window, in place of earlier ones; unwinders
    /// learn of them, in a short stop. Gives the window's file. [`AttachedProcess::revert`] and
    /// [`AttachedProcess::reclaim`] take them out again. A process that has no versions yet may be `held`
    /// meanwhile; it runs on afterwards in any case.
    ///
    /// # Errors
    /// [`ProcessError::Occupied`] if versions of another kind are in the process. On any other error call
    /// [`AttachedProcess::revert`].
    pub fn map_tracing(
        &mut self,
        held: Option<Stopped>,
        incoming: &[Incoming<'_>],
    ) -> Result<File, ProcessError> {
        let pid = self.target.pid();
        let others = self.journal.versions.iter().any(|v| v.kind != VersionKind::Burst);
        if others
            || !self.journal.patches.is_empty()
            || incoming.iter().any(|new| new.kind != VersionKind::Burst)
        {
            return Err(ProcessError::Occupied { pid });
        }
        switch(self, incoming, held)?;
        let number = incoming.first().map(|new| new.version.number);
        let window = self.counters.iter().find(|counters| Some(counters.number) == number);
        let file =
            window.map_or(Err(io::Error::other("there is no tracing version")), |w| w.file.try_clone());
        file.map_err(|source| ProcessError::State {
            operation: "use the window in",
            path: format!("/proc/{pid}").into(),
            source,
        })
    }

    /// Gives the process its original code back.
    ///
    /// # Errors
    /// As for [`AttachedProcess::switch`].
    pub fn revert(&mut self) -> Result<SwitchReport, ProcessError> {
        switch(self, &[], None)
    }
}

/// Stops the process (or takes it as it is `held`), switches, lets it run on. Where modules move just then
/// that are none of `incoming`, again.
fn switch(
    attached: &mut AttachedProcess,
    incoming: &[Incoming<'_>],
    held: Option<Stopped>,
) -> Result<SwitchReport, ProcessError> {
    const MOST_TRIES: u32 = 4;
    let mut result = try_switch(attached, incoming, held);
    for _ in 1..MOST_TRIES {
        let Err(error) = &result else { break };
        if !is_by_move(attached, incoming, error)? {
            break;
        }
        result = try_switch(attached, incoming, None);
    }
    result
}

/// Whether a switch has failed because modules moved, none of `incoming`.
///
/// # Errors
/// [`ProcessError::Moved`] if some of those have.
fn is_by_move(
    attached: &AttachedProcess,
    incoming: &[Incoming<'_>],
    error: &ProcessError,
) -> Result<bool, ProcessError> {
    use ProcessError as E;
    let maps = procfs::maps(attached.target.pid()).unwrap_or_default();
    let may_be = matches!(error, E::Moved { .. } | E::Foreign { .. } | E::PlaceTaken { .. } | E::Trace(_));
    if !may_be || maps.is_empty() {
        return Ok(false);
    }
    refuse_moved(&attached.target, incoming, &maps)?;
    Ok(!attached.now().moved_modules(&maps).is_empty())
}

fn try_switch(
    attached: &mut AttachedProcess,
    incoming: &[Incoming<'_>],
    held: Option<Stopped>,
) -> Result<SwitchReport, ProcessError> {
    attached.target.process.verify()?;
    attached.lock()?;
    let alone = AloneInMemory::verify(attached.target.pid())?;
    attached.renew()?;
    refuse_moved(&attached.target, incoming, &procfs::maps(attached.target.pid())?)?;
    forget_gone(attached)?;
    let goes_back = incoming.is_empty();
    let writing = match attached.dir.writing() {
        Err(_) if goes_back => None,
        writing => Some(writing?),
    };
    let mut plan = plan_switch(attached, incoming)?;
    let target = attached.now().clone();
    if held.is_none() {
        preempted::spare(&target, &mut plan)?;
    }
    let preparation = prepare::plan(attached, &plan)?;
    if !goes_back {
        memory_room::refuse_without(target.pid(), &plan, &preparation.sites)?;
    }
    match goes_back {
        true => preparation.journal.save_if_possible(&attached.dir),
        false => list(&preparation.journal, attached)?,
    }
    drop(writing);
    let mut host = ProcessHost { target: &target, stub: &plan.stub, alone, held };
    switch_on(&mut host, attached, &target, &plan, preparation)
}

/// A switch whose journal is on disk, on any host.
///
/// # Errors
/// As for [`AttachedProcess::switch`].
pub(crate) fn switch_on(
    host: &mut impl Host,
    attached: &mut AttachedProcess,
    target: &Target,
    plan: &SwitchPlan<'_>,
    preparation: Preparation,
) -> Result<SwitchReport, ProcessError> {
    let sites = preparation.sites.clone();
    let stop = Stop { plan, target, sites: &sites };
    let before = std::mem::replace(&mut attached.journal, preparation.journal.clone());
    let ready = preparation.carry_out(attached, plan, host);
    let (result, mut report) = match ready.and_then(|ready| change(host, attached, &stop, ready)) {
        Ok(changed) => changed,
        Err(error) => {
            // What cannot be undone is in the journal; the first error tells more.
            let _ = undo(attached, before, plan, host);
            return Err(error);
        }
    };
    let result = result.and_then(|done| stop.look_back(host, attached, done));
    // What stays is in the journal.
    let held = unmap_replacements_soon(attached, host);
    report.borrow_us = report.borrow_us.max(StopTimes::micros(held));
    if result.is_err()
        && let Ok(maps) = host.maps()
    {
        attached.journal.retain_mapped(&maps);
    }
    attached.journal.save_if_possible(&attached.dir);
    result.map(|()| report)
}

/// Stops the host and changes its code.
///
/// # Errors
/// If nothing is changed. What goes wrong later is in what it gives.
fn change(
    host: &mut impl Host,
    attached: &mut AttachedProcess,
    stop: &Stop<'_>,
    ready: Ready,
) -> Result<(Result<Done, ProcessError>, SwitchReport), ProcessError> {
    let walker = Walker::new(stop.target, &stop.plan.leaving);
    let stopped = host.stop(stop.plan)?;
    let seen = Seen::of(&stopped, &walker)?;
    // Beyond this point the code changes.
    Ok(stop.carry_out(attached, stopped, ready, seen))
}

/// Lists what is to be done, or leaves on disk what was listed before.
fn list(planned: &Journal, attached: &AttachedProcess) -> Result<(), ProcessError> {
    let listed = planned.save(&attached.dir).and_then(|()| planned.save_records(&attached.dir));
    if listed.is_err() {
        attached.journal.save_if_possible(&attached.dir);
    }
    listed
}

/// Unmaps what is left of the replacements. Where no thread can be borrowed just now (they come and go, or
/// all wait in the kernel), it is tried again for a moment; then they stay, unused, until the next switch.
/// Gives the time for which a thread was held.
fn unmap_replacements_soon(attached: &mut AttachedProcess, host: &mut impl Host) -> Duration {
    for pause in [1, 4, 16, 64] {
        match unmap_replacements(attached, host) {
            Ok(held) => return held,
            Err(_) => host.wait(Duration::from_millis(pause)),
        }
    }
    unmap_replacements(attached, host).unwrap_or_default()
}

/// Compares the code that was put in place. The process runs: what it has unmapped meanwhile does not count,
/// whatever is there by now.
fn read_back(
    host: &impl Host,
    target: &Target,
    mut pages: Vec<Page>,
    sites: &Sites,
) -> Result<(), ProcessError> {
    // What is left out was unmapped, or mapped anew, since; the rest has to be right.
    while let Err(error) = host.memory().and_then(|memory| verify(&memory, &pages, sites)) {
        let maps = host.maps().unwrap_or_default();
        if !host.is_alive() || maps.is_empty() {
            break;
        }
        let all = pages.len();
        retain_there(target, &maps, &mut pages);
        if let Ok(memory) = host.memory() {
            retain_own(&memory, &mut pages);
        }
        if pages.len() == all {
            return Err(error);
        }
    }
    Ok(())
}

/// Takes out of `pages` those that are the file's, not the process's own, by the page table: whatever was
/// written there, a library was closed and opened again at the same place since. All stay if the kernel does
/// not tell.
fn retain_own(memory: &impl CodeMemory, pages: &mut Vec<Page>) {
    let is_own = |(at, bytes): &Page| {
        let end = *at + bytes.len() as u64;
        let own = memory.own_pages(AvmaRange::between(at.align_down(PAGE), end.align_up(PAGE)));
        own.map_or(true, |own| !own.is_empty())
    };
    pages.retain(is_own);
}

/// Takes out of `pages` those of modules that are no longer where they were, by `maps` of the process, and
/// those where no code is mapped.
fn retain_there(target: &Target, maps: &[Mapping], pages: &mut Vec<Page>) {
    let gone = target.moved_modules(maps);
    let is_code = |at: Avma| maps.iter().any(|m| m.range.contains(at) && m.permissions.execute);
    pages
        .retain(|(at, _)| is_code(*at) && target.module_at(*at).is_none_or(|module| !gone.contains(&module)));
}

/// What was done in the stop.
pub(crate) struct Done {
    /// Replacement mappings that are in place.
    replacements: Vec<FilledReplacement>,
    /// Pages that were written.
    written: Vec<Page>,
    /// Places where the original bytes had to stay.
    forbidden: BTreeSet<Avma>,
}

/// What is looked at in the stop before anything is changed.
pub(crate) struct Seen {
    maps: Vec<Mapping>,
    threads: Vec<ThreadView>,
    /// How long it took, in microseconds.
    us: u64,
}

impl Seen {
    /// # Errors
    /// If the process cannot be read where that is needed.
    pub fn of(stopped: &impl StoppedHost, walker: &Walker<'_>) -> Result<Self, ProcessError> {
        let mut clock = Clock::new();
        let maps = stopped.maps()?;
        let threads = survey(stopped, walker, &maps)?;
        Ok(Self { maps, threads, us: clock.lap() })
    }
}

/// What the stop works on.
pub(crate) struct Stop<'a> {
    pub plan: &'a SwitchPlan<'a>,
    pub target: &'a Target,
    pub sites: &'a Sites,
}

impl Stop<'_> {
    /// Changes the process and lets it go.
    pub fn carry_out(
        &self,
        attached: &mut AttachedProcess,
        mut stopped: impl StoppedHost,
        ready: Ready,
        seen: Seen,
    ) -> (Result<Done, ProcessError>, SwitchReport) {
        let mut report = SwitchReport {
            left_out: self.plan.patches.crossing + self.plan.patches.covering,
            left_to_preempted: self.plan.patches.covering,
            borrow_us: StopTimes::micros(ready.held),
            threads: stopped.threads().len(),
            ..SwitchReport::default()
        };
        let result = self.in_the_stop(attached, &mut stopped, ready, &seen, &mut report);
        let times = stopped.resume();
        report.stop_us = StopTimes::micros(times.stopping);
        report.resume_us = StopTimes::micros(times.resuming);
        report.pause_us = StopTimes::micros(times.stopping + times.stopped + times.resuming);
        (result, report)
    }

    fn in_the_stop(
        &self,
        attached: &mut AttachedProcess,
        stopped: &mut impl StoppedHost,
        ready: Ready,
        seen: &Seen,
        report: &mut SwitchReport,
    ) -> Result<Done, ProcessError> {
        let Seen { maps, threads, us } = seen;
        let mut clock = Clock::new();
        refuse_moved(&attached.target, self.plan.incoming, maps)?;
        hook::write_table(stopped, &mut attached.journal)?;
        report.unwinder_us = clock.lap();
        hook::arm(stopped, &attached.journal, threads, &self.plan.resting)?;
        let forbidden = forbidden_sites(stopped, self.plan, threads)?;
        move_in(stopped, self.plan, report)?;
        report.threads_us = us + clock.lap();
        report.written_in_stop = ready.refused;
        let mut replacements = self.fitting(attached, stopped.memory(), maps, ready.replacements, report);
        self.leave_out(stopped.memory(), &mut replacements, &forbidden)?;
        report.check_us = clock.lap();
        let replacements = self.put_in_place(attached, stopped, maps, replacements, report)?;
        report.remap_us = clock.lap();
        let replaced: Vec<AvmaRange> = replacements.iter().map(FilledReplacement::replaces).collect();
        let rest = self.sites.outside(&replaced, &forbidden);
        let written = write_sites(&attached.journal, stopped.memory(), &rest)?;
        report.slots = slot_retargeting::write(stopped.memory(), maps, &self.plan.slots)?;
        report.write_us = clock.lap();
        self.settle(attached, &forbidden, report);
        move_out(stopped, self.plan, &forbidden, report)?;
        retire(stopped, self.target, self.plan, threads, report)?;
        report.returns_us = clock.lap();
        Ok(Done { replacements, written, forbidden })
    }

    /// After the stop: changes that somebody else has made to the old code while the replacements were filled
    /// are made once more, and everything is read back.
    fn look_back(
        &self,
        host: &mut impl Host,
        attached: &AttachedProcess,
        done: Done,
    ) -> Result<(), ProcessError> {
        let memory = host.memory()?;
        let sites = self.sites.outside(&[], &done.forbidden);
        let (mut changed, mut pages) = (Vec::new(), done.written);
        for replacement in done.replacements {
            changed.extend(replacement.changed(&attached.journal, &memory, &sites)?);
            pages.extend(replacement.into_pages());
        }
        if !changed.is_empty() {
            let stopped = host.stop_anywhere()?;
            retain_there(self.target, &stopped.maps()?, &mut changed);
            write_runs(stopped.memory(), &changed)?;
            stopped.resume();
            pages.retain(|(at, _)| changed.iter().all(|c| c.0 != *at));
        }
        read_back(host, self.target, pages, self.sites)
    }

    /// The replacements whose mappings are still as planned on.
    fn fitting(
        &self,
        attached: &AttachedProcess,
        memory: &impl CodeMemory,
        maps: &[Mapping],
        replacements: Vec<FilledReplacement>,
        report: &mut SwitchReport,
    ) -> Vec<FilledReplacement> {
        let mut out = Vec::new();
        for mut replacement in replacements {
            match replacement.still_fits(maps, memory, attached.journal.hook.as_ref()) {
                Ok(()) => out.push(replacement),
                Err(why) => report.written_in_stop.push((replacement.replaces().start, why.to_string())),
            }
        }
        out
    }

    fn leave_out(
        &self,
        memory: &impl CodeMemory,
        replacements: &mut [FilledReplacement],
        forbidden: &BTreeSet<Avma>,
    ) -> Result<(), ProcessError> {
        for at in forbidden {
            let replacement = replacements.iter_mut().find(|s| s.replaces().contains(*at));
            if let (Some(replacement), Some(original)) = (replacement, self.sites.original(*at)) {
                replacement.leave_out(memory, *at, original)?;
            }
        }
        Ok(())
    }

    /// Exchanges mappings. What was exchanged comes back: none if no thread can be borrowed for it.
    fn put_in_place(
        &self,
        attached: &mut AttachedProcess,
        stopped: &mut impl StoppedHost,
        maps: &[Mapping],
        mut replacements: Vec<FilledReplacement>,
        report: &mut SwitchReport,
    ) -> Result<Vec<FilledReplacement>, ProcessError> {
        if replacements.is_empty() {
            return Ok(replacements);
        }
        let exchanges: Vec<Exchange> = replacements.iter_mut().map(FilledReplacement::put_in_place).collect();
        match stopped.exchange(&self.plan.stub, maps, &exchanges) {
            Ok(()) => {}
            Err(ProcessError::Trace(error @ TraceError::NothingToBorrow { .. })) => {
                let why = |replacement: &FilledReplacement| (replacement.replaces().start, error.to_string());
                report.written_in_stop.extend(replacements.iter().map(why));
                return Ok(Vec::new());
            }
            Err(error) => return Err(error),
        }
        attached
            .journal
            .replacements
            .retain(|s| replacements.iter().all(|replacement| s.range() != replacement.range()));
        Ok(replacements)
    }

    /// Brings journal and report up to date: nothing is left to be undone where the original bytes are.
    fn settle(&self, attached: &mut AttachedProcess, forbidden: &BTreeSet<Avma>, report: &mut SwitchReport) {
        let wanted = &self.plan.patches.wanted;
        let all = attached.journal.patches.len();
        attached.journal.patches.retain(|p| wanted.contains_key(&Avma::new(p.at)));
        report.restored = all - attached.journal.patches.len();
        attached.journal.patches.retain(|p| !forbidden.contains(&Avma::new(p.at)));
        report.patched = attached.journal.patches.len();
        report.left_out += forbidden.len();
    }
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

#[cfg(test)]
mod tests {
    use super::*;
    use restitch_tracee::Memory;

    #[test]
    fn what_is_the_files_again_does_not_count() {
        let own = std::hint::black_box(vec![1u8; 3 * PAGE as usize]);
        let written = Avma::new(own.as_ptr() as u64).align_up(PAGE);
        let code = Avma::new(what_is_the_files_again_does_not_count as fn() as usize as u64);
        let mut pages = vec![(code, vec![0; 5]), (written, vec![1; PAGE as usize])];
        retain_own(&Memory::open_read_only(std::process::id() as i32).expect("our own"), &mut pages);
        assert_eq!(pages.iter().map(|(at, _)| *at).collect::<Vec<_>>(), [written]);
    }
}
