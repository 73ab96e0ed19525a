//! A process as a host of code while it runs: versions and replacements are mapped by one thread that is
//! borrowed for that, or, of a process that is held still already, by one of its own.

use crate::error::ProcessError;
use crate::hook;
use crate::memory::counter_area::CounterArea;
use crate::memory::mapping::{Mapped, in_memory, map_in_memory};
use crate::memory::replacement_mapping::PlannedReplacement;
use crate::running_host::{Host, MappedNear, ToMap};
use crate::state::journal::VersionKind;
use crate::stub::{StubSite, with_borrowed};
use crate::switch_plan::SwitchPlan;
use crate::target::Target;
use crate::threads::in_between;
use restitch_address::{Avma, AvmaRange};
use restitch_emit::LARGE_PAGE;
use restitch_procfs::{self as procfs, Mapping};
use restitch_tracee::{AloneInMemory, Batch, Borrow, Memory, RemoteFd, Stopped, TraceError, collapse_pages};
use std::time::Duration;

/// A process.
pub(crate) struct ProcessHost<'a> {
    pub target: &'a Target,
    /// Where a borrowed thread makes its calls.
    pub stub: &'a StubSite,
    /// What was seen of its memory before.
    pub alone: AloneInMemory,
    /// It is held still already, until the stop that is asked for first is over.
    pub held: Option<Stopped>,
}

impl Host for ProcessHost<'_> {
    type Memory = Memory;
    type Stopped<'s>
        = Stopped
    where
        Self: 's;

    fn maps(&self) -> Result<Vec<Mapping>, ProcessError> {
        Ok(procfs::maps(self.target.pid())?)
    }

    fn memory(&self) -> Result<Memory, ProcessError> {
        Ok(Memory::open(self.target.pid())?)
    }

    fn is_alive(&self) -> bool {
        self.target.process.is_alive()
    }

    fn map_near(&mut self, wanted: &ToMap<'_>) -> Result<MappedNear, ProcessError> {
        let mut refused = Vec::new();
        let leftovers: Vec<AvmaRange> = wanted.leftovers.iter().map(|left| left.range()).collect();
        let ((counters, replacements), held) =
            with_borrowed(self.target, self.stub, self.held.as_mut(), |borrow| {
                let unmapped = unmap_all(borrow, &leftovers);
                let mut map = || map_all(borrow, wanted, &mut refused);
                unmapped.and_then(|()| map().map_err(or_taken))
            })?;
        large_pages(self.target.pid(), wanted);
        Ok(MappedNear { counters, replacements, refused, held })
    }

    fn unmap(&mut self, ranges: &[AvmaRange]) -> Result<Duration, ProcessError> {
        let unmap = |borrow: &mut Borrow<'_>| unmap_all(borrow, ranges);
        let ((), held) = with_borrowed(self.target, self.stub, self.held.as_mut(), unmap)?;
        Ok(held)
    }

    fn stop(&mut self, plan: &SwitchPlan<'_>) -> Result<Stopped, ProcessError> {
        match self.held.take() {
            Some(stopped) => Ok(stopped),
            None => stop_alone_at_boundaries(self.target.pid(), self.alone, plan),
        }
    }

    fn stop_anywhere(&mut self) -> Result<Stopped, ProcessError> {
        Ok(Stopped::seize_all(self.target.pid())?)
    }
}

/// Stops all threads where a version has original equivalents and the original has some in what arrives, and
/// nobody else works in the memory, by trying again: such windows are a few instructions long, and such
/// processes mostly live for a moment. (Stepping out of the windows is no way: a thread that is being stepped
/// when this program is killed ends by SIGTRAP.) After many tries a window is accepted, and the version is
/// kept then, or a thread stays in original code.
///
/// # Errors
/// If the process cannot be stopped; [`TraceError::SharedMemory`] after many tries.
fn stop_alone_at_boundaries(
    pid: i32,
    alone: AloneInMemory,
    plan: &SwitchPlan<'_>,
) -> Result<Stopped, ProcessError> {
    const MOST_TRIES: u64 = 40;
    let mut attempt = 1;
    loop {
        let stopped = Stopped::seize_all_to_borrow(pid)?;
        let shared = alone.verify_stopped();
        if shared.is_ok() && (attempt >= MOST_TRIES || !in_between(&stopped, plan)?) {
            return Ok(stopped);
        }
        stopped.resume();
        if attempt >= MOST_TRIES {
            shared?;
        }
        // Odd times, so as not to meet a loop at the same place again and again; longer ones in the end, as a
        // thread goes nowhere while others have the processors.
        std::thread::sleep(Duration::from_micros(37 * attempt * (1 + attempt / 8)));
        attempt += 1;
    }
}

/// Asks for large pages where a version is made for them. What comes of it is no matter of right or wrong:
/// file systems with large folios give them anyway, others may refuse, and a user without privileges may not
/// ask.
fn large_pages(pid: i32, wanted: &ToMap<'_>) {
    for (new, arriving) in wanted.incoming.iter().zip(wanted.arriving).filter(|(_, a)| !a.inherited) {
        let part =
            AvmaRange::new(Avma::new(arriving.record.start), new.version.large.min(arriving.record.len));
        if !part.is_empty() && part.start.get().is_multiple_of(LARGE_PAGE) {
            let _ = collapse_pages(pid, part);
        }
    }
}

/// Counter areas: version number, file, length.
type Counters = Vec<CounterArea>;

/// Opens what has to be opened, then maps everything. A replacement that cannot be mapped (limits of the
/// process, a file that is gone) is done without.
fn map_all(
    borrow: &mut Borrow<'_>,
    wanted: &ToMap<'_>,
    refused: &mut Vec<(Avma, String)>,
) -> Result<(Counters, Vec<PlannedReplacement>), ProcessError> {
    let ToMap { arriving, incoming, new_hook, replacements, .. } = *wanted;
    let new = incoming.iter().zip(arriving).filter(|(_, a)| !a.inherited);
    let mut versions: Vec<Mapped<'_>> =
        new.map(|(incoming, arriving)| Mapped::new(incoming, arriving)).collect();
    let mut opening = Batch::new();
    // Tracing versions come together, and share the first one's window.
    let tracing = incoming.iter().all(|incoming| incoming.kind == VersionKind::Burst);
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
    let needed = mapping.len() - open_replacements.len();
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
    for (replacement, result) in open_replacements.into_iter().zip(results.drain(needed..)) {
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

fn unmap_all(borrow: &mut Borrow<'_>, ranges: &[AvmaRange]) -> Result<(), ProcessError> {
    let mut batch = Batch::new();
    ranges.iter().for_each(|range| batch.munmap(*range));
    for result in borrow.run(&batch)? {
        result?;
    }
    Ok(())
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
