//! Unmapping retired versions once nothing leads to them.
//!
//! Problem: a return address into a retired version may be on a stack that no thread is on (a coroutine's),
//! where no walk finds it. Idea: nobody can enter a retired version but through such an address, and new ones
//! arise only while somebody runs in it. So all writable private memory of the process is looked through
//! ([`crate::memory::search`]) *without* stopping it, and only registers and thread stacks in two short stops
//! around that; the second one also finds out whether anybody ran in the version meanwhile
//! ([`crate::execution_probe`]): then it stays for now. A false hit (a dead stack slot, a number that looks
//! like an address) only delays the unmapping: reclaim again later.
//!
//! Tracing versions of this very session are left by themselves, and program counters in them are stored
//! nowhere, so memory is not looked through for them. But callbacks of `dl_iterate_phdr` read their headers,
//! so registers and stacks count. Threads pass from one of them into another through the table that all
//! share: none is unmapped while somebody may be in one.
//!
//! Limits: static programs without symbols may hold mangled addresses in `jmp_buf`s of a `setjmp` that was
//! not recognised; there a version stays. So it does where there is too much memory to look through, and in
//! programs that are known to copy stacks as data.

use crate::attached_process::AttachedProcess;
use crate::error::ProcessError;
use crate::execution_probe;
use crate::frames::Walker;
use crate::hook;
use crate::installed_version::InstalledVersion;
use crate::memory::search::{Search, Spared, copies_stacks, joined, spared};
use crate::prepare::is_ours;
use crate::retire::leads_into;
use crate::slot_retargeting;
use crate::state::journal::{JournalVersion, VersionKind};
use crate::stub::{StubSite, borrow, stub_site};
use crate::target::Target;
use crate::threads::{ThreadView, hidden_returns, survey};
use restitch_address::{Avma, AvmaRange, PAGE};
use restitch_emit::MapPiece;
use restitch_procfs::{Mapping, Pagemap};
use restitch_tracee::{AloneInMemory, Batch, StopTimes, Stopped, TraceError};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Mutex;
use std::time::Duration;

/// What a reclaiming did.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ReclaimReport {
    /// Versions taken out.
    pub unmapped: Vec<u32>,
    /// Retired versions that stay, with the reason.
    pub kept: Vec<(u32, String)>,
    /// The longer of the two stops, in microseconds.
    pub pause_us: u64,
}

impl AttachedProcess {
    /// Unmaps retired versions that nothing leads to any more; the hook too, when no version is left. What is
    /// kept may go the next time.
    ///
    /// # Errors
    /// If the process cannot be stopped or read; it is correct in any case.
    pub fn reclaim(&mut self) -> Result<ReclaimReport, ProcessError> {
        reclaim(self)
    }
}

fn reclaim(attached: &mut AttachedProcess) -> Result<ReclaimReport, ProcessError> {
    attached.lock()?;
    attached.renew()?;
    let mut report = ReclaimReport::default();
    let all = InstalledVersion::all(&attached.journal, attached.now());
    let retired: Vec<&InstalledVersion> = all.iter().filter(|o| attached.is_retired(o.number)).collect();
    let nothing_else = retired.len() == all.len();
    if retired.is_empty() && !(nothing_else && attached.journal.hook.is_some()) {
        return Ok(report);
    }
    let is_layout = |v: &&JournalVersion| v.kind == VersionKind::Optimized && attached.journal.cores;
    let layouts = attached.journal.versions.iter().filter(is_layout);
    let layouts: Vec<(u32, PathBuf)> = layouts.map(|v| (v.number, v.file.clone())).collect();
    let target = attached.now().clone();
    let taken = slot_retargeting::taken(attached, &retired.iter().map(|old| old.range).collect::<Vec<_>>())?;
    let is_taken = |old: &&InstalledVersion| taken.iter().find(|taken| taken.0 == old.range);
    report.kept.extend(retired.iter().filter_map(|old| Some((old.number, is_taken(old)?.1.clone()))));
    let retired: Vec<&InstalledVersion> = retired.into_iter().filter(|old| is_taken(old).is_none()).collect();
    let walker = Walker::new(&target, &all);
    let (candidates, spared) = first_stop(attached, &walker, retired, &mut report)?;
    let mut candidates = candidates;
    let stored = || candidates.iter().filter(|o| !attached.has_just_traced(o.number));
    let mut ranges: Vec<AvmaRange> = stored().map(|o| o.range).collect();
    let hook = attached.journal.hook.as_ref().filter(|_| nothing_else);
    ranges.extend(hook.map(|h| h.range()));
    let own_words = attached.journal.hook.as_ref().map(hook::own_words);
    let mut spared = spared;
    spared.dead.extend(own_words.into_iter().flatten());
    let by_pointers = candidates.iter().filter(|old| old.by_pointers).map(|old| old.range);
    let by_pointers: Vec<AvmaRange> = by_pointers.collect();
    let search = Search { pid: attached.target.pid(), ranges: &ranges, by_pointers: &by_pointers, spared };
    // What shows that somebody came back may go again while a large memory is searched: the kernel takes back
    // pages that it needs.
    let came = Mutex::new(BTreeMap::new());
    let watch = || {
        let pages = Pagemap::open(attached.target.pid()).ok();
        let mut came = came.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        for old in stored() {
            if let Some(page) = execution_probe::touched(pages.as_ref(), old) {
                came.entry(old.number).or_insert(page);
            }
        }
        hook.is_some() || stored().any(|old| !came.contains_key(&old.number))
    };
    let mut hits = search.twice(&watch)?;
    let came = came.into_inner().unwrap_or_else(|poisoned| poisoned.into_inner());
    hits.extend(slot_retargeting::leading_into(&target, &ranges)?);
    let hook_held = hook.and_then(|h| hits.iter().find(|hit| hit.0 == h.range())).map(|hit| hit.1.clone());
    candidates.retain(|old| {
        let hit = || hits.iter().find(|hit| hit.0 == old.range).map(|hit| hit.1.clone());
        let why = came.get(&old.number).map(|page| came_back(old, *page)).or_else(hit);
        report.kept.extend(why.iter().map(|why| (old.number, why.clone())));
        why.is_none()
    });
    let held = take_out(attached, &walker, candidates, hook_held.clone(), &mut report)?;
    await_readers(attached, &walker, held, hook_held, &mut report)?;
    attached.journal.save_if_possible(&attached.dir);
    if !report.unmapped.is_empty() {
        // A child that was forked while they were in force may have left a core file, or will.
        let gone = layouts.iter().filter(|(number, _)| report.unmapped.contains(number));
        gone.for_each(|(_, file)| attached.dir.keep_for_cores(file));
        attached.dir.collect_garbage();
    }
    Ok(report)
}

/// The first stop: which versions no thread leads into, and what of the stacks need not be searched. From
/// here on it is seen whether anybody comes back into those versions.
fn first_stop<'a>(
    attached: &AttachedProcess,
    walker: &Walker<'_>,
    retired: Vec<&'a InstalledVersion>,
    report: &mut ReclaimReport,
) -> Result<(Vec<&'a InstalledVersion>, Spared), ProcessError> {
    let stub = stub_site(attached.now(), |_| false)?;
    let mut candidates = Vec::new();
    let alone = AloneInMemory::verify(attached.target.pid());
    let mut stopped = Stopped::seize_all_to_borrow(attached.target.pid())?;
    let shared = alone.and_then(|alone| alone.verify_stopped()).err().map(|error| error.to_string());
    let maps = stopped.maps()?;
    let threads = survey(&stopped, walker, &maps)?;
    let hidden = shared.or_else(|| hidden_returns(&threads, &maps));
    for old in retired {
        match reason_to_keep(attached, &stopped, old, &threads)?.or_else(|| hidden.clone()) {
            // Soon it is over; the second stop looks again.
            Some(_) if attached.has_just_traced(old.number) => candidates.push(old),
            Some(why) => report.kept.push((old.number, why)),
            None => candidates.push(old),
        }
    }
    if let Some(why) = set_probes(&mut stopped, &stub, &maps, &candidates)? {
        report.kept.extend(candidates.drain(..).map(|old| (old.number, why.clone())));
    }
    let spared = spared(attached.now(), stopped.memory(), &threads, &maps);
    report.pause_us = StopTimes::micros(stopped.resume().stopped);
    Ok((candidates, spared))
}

/// Why it could not be done, if no thread can make the calls just now.
fn set_probes(
    stopped: &mut Stopped,
    stub: &StubSite,
    maps: &[Mapping],
    candidates: &[&InstalledVersion],
) -> Result<Option<String>, ProcessError> {
    if candidates.is_empty() {
        return Ok(None);
    }
    let mut borrow = match borrow(stopped, stub, maps) {
        Ok(borrow) => borrow,
        Err(ProcessError::Trace(error @ TraceError::NothingToBorrow { .. })) => {
            return Ok(Some(error.to_string()));
        }
        Err(error) => return Err(error),
    };
    let mut batch = Batch::new();
    candidates.iter().for_each(|old| execution_probe::set(&mut batch, old));
    // What a call could not do shows itself as a page that is there: the version stays.
    borrow.run(&batch)?;
    borrow.finish()?;
    Ok(None)
}

/// The second stop: a last look at the threads, then the unmapping. Gives the tracing versions of this
/// session that somebody is in, or reads.
fn take_out<'a>(
    attached: &mut AttachedProcess,
    walker: &Walker<'_>,
    candidates: Vec<&'a InstalledVersion>,
    hook_held: Option<String>,
    report: &mut ReclaimReport,
) -> Result<Vec<&'a InstalledVersion>, ProcessError> {
    let stub = stub_site(attached.now(), |_| false)?;
    let alone = AloneInMemory::verify(attached.target.pid());
    let mut stopped = Stopped::seize_all_to_borrow(attached.target.pid())?;
    let shared = alone.and_then(|alone| alone.verify_stopped()).err().map(|error| error.to_string());
    let maps = stopped.maps()?;
    let threads = survey(&stopped, walker, &maps)?;
    let hidden = shared.or_else(|| hidden_returns(&threads, &maps));
    let looking = hook::in_use(&stopped, attached.journal.hook.as_ref(), &threads)?;
    let pages = Pagemap::open(attached.target.pid());
    let (mut gone, mut held) = (Vec::new(), Vec::new());
    for old in candidates {
        let has_just_traced = attached.has_just_traced(old.number);
        let touched = match has_just_traced {
            true => None,
            false => execution_probe::touched(pages.as_ref().ok(), old),
        };
        let leading = leads_into(&stopped, old.range, old.by_pointers, &threads)?;
        match (leading.or_else(|| hidden.clone()), touched) {
            (Some(why), _) => {
                report.kept.push((old.number, why));
                held.extend(has_just_traced.then_some(old));
            }
            (None, Some(page)) => report.kept.push((old.number, came_back(old, page))),
            (None, None) => gone.push(old),
        }
    }
    // Whoever is in one tracing version may go on into another.
    let traces = |number: u32| {
        attached.journal.versions.iter().any(|v| v.number == number && v.kind == VersionKind::Burst)
    };
    if let Some(&(number, _)) = report.kept.iter().find(|(number, _)| traces(*number)) {
        let (with_it, others) = gone.into_iter().partition(|old| traces(old.number));
        gone = others;
        for old in with_it {
            report.kept.push((old.number, format!("version {number} stays, which leads into it")));
            held.extend(attached.has_just_traced(old.number).then_some(old));
        }
    }
    let result = unmap(attached, &mut stopped, &stub, &gone, looking.or(hook_held));
    let times = stopped.resume();
    report.pause_us = report.pause_us.max(StopTimes::micros(times.stopped));
    report.unmapped.extend(gone.iter().map(|o| o.number));
    report.kept.extend(result?.map(|why| (0, why)));
    Ok(held)
}

/// Why a version stays in which somebody ran, on `page` of it, while memory was searched.
fn came_back(old: &InstalledVersion, page: Avma) -> String {
    let page = AvmaRange::new(page, PAGE);
    let behind = |p: &&MapPiece| old.bias.to_actual(p.version) + u64::from(p.len) > page.start;
    let piece = old.stored.map.pieces.iter().filter(behind).min_by_key(|p| p.version);
    let copies =
        piece.filter(|p| page.overlaps(&AvmaRange::new(old.bias.to_actual(p.version), u64::from(p.len))));
    let copies = copies.map(|p| format!(", from the copy of {} on", old.bias.to_actual(p.original)));
    format!(
        "somebody came back into it while memory was searched (page {}{})",
        page.start,
        copies.unwrap_or_default()
    )
}

/// Those who stand in tracing versions leave them soon, as those do who read the tables of objects: it is
/// looked at again for a moment. The same holds for the hook, once nothing leads to it any more.
fn await_readers(
    attached: &mut AttachedProcess,
    walker: &Walker<'_>,
    mut held: Vec<&InstalledVersion>,
    hook_held: Option<String>,
    report: &mut ReclaimReport,
) -> Result<(), ProcessError> {
    const MOST_TRIES: u64 = 25;
    for attempt in 1..=MOST_TRIES {
        let is_looked_at = |(number, why): &(u32, String)| *number == 0 && why.starts_with(hook::LOOKING);
        if held.is_empty() && !report.kept.iter().any(is_looked_at) {
            break;
        }
        let is_held = |number: u32| held.iter().any(|old| old.number == number);
        report.kept.retain(|kept| !is_looked_at(kept) && !is_held(kept.0));
        std::thread::sleep(Duration::from_millis(attempt));
        held = take_out(attached, walker, held, hook_held.clone(), report)?;
    }
    Ok(())
}

/// Unmaps versions and, with the last one, the hook. `hook_held` says why the hook's page has to stay for
/// now; it is the answer if it does.
fn unmap(
    attached: &mut AttachedProcess,
    stopped: &mut Stopped,
    stub: &StubSite,
    gone: &[&InstalledVersion],
    hook_held: Option<String>,
) -> Result<Option<String>, ProcessError> {
    let is_gone = |number: u32| gone.iter().any(|o| o.number == number);
    let maps = stopped.maps()?;
    let mut ranges: Vec<AvmaRange> = Vec::new();
    for v in attached.journal.versions.iter().filter(|v| is_gone(v.number)) {
        let counters = v.counters.map(|(start, len)| AvmaRange::new(Avma::new(start), len));
        ranges.extend([Some(v.range()), counters].into_iter().flatten().flat_map(|r| ours_in(r, &maps)));
    }
    attached.journal.versions.retain(|v| !is_gone(v.number));
    attached.counters.retain(|c| !is_gone(c.number));
    // The table first: once a range is unmapped, its tables must not be found any more.
    hook::write_table(stopped, &mut attached.journal)?;
    let mut kept = None;
    if attached.journal.versions.is_empty()
        && let Some(h) = &attached.journal.hook
    {
        hook::disarm(stopped.memory(), h)?;
        // A thread inside goes on to the original from there; the page goes the next time.
        kept = hook_held;
        if kept.is_none() {
            ranges.push(h.range());
            attached.journal.hook = None;
        }
    }
    if !ranges.is_empty() {
        // In one go, which the borrowed thread ends by itself if this program dies: what is mapped in parts
        // only is in no journal.
        let mut batch = Batch::new();
        joined(ranges).into_iter().for_each(|range| batch.munmap(range));
        let mut borrow = borrow(stopped, stub, &maps)?;
        let results = borrow.run(&batch)?;
        borrow.finish()?;
        results.into_iter().collect::<Result<Vec<_>, _>>()?;
    }
    Ok(kept)
}

fn reason_to_keep(
    attached: &AttachedProcess,
    stopped: &Stopped,
    old: &InstalledVersion,
    threads: &[ThreadView],
) -> Result<Option<String>, ProcessError> {
    // Addresses in tracing versions are never stored.
    let is_stored = |v: &JournalVersion| v.number == old.number && v.kind != VersionKind::Burst;
    if let Some(why) =
        hidden_addresses(attached.now()).filter(|_| attached.journal.versions.iter().any(is_stored))
    {
        return Ok(Some(why));
    }
    if let Some(module) = copies_stacks(attached.now()) {
        return Ok(Some(format!("{module} copies stacks, which may hold addresses in it, to and fro")));
    }
    leads_into(stopped, old.range, old.by_pointers, threads)
}

/// Whether the process may hold addresses in a form that no search finds.
fn hidden_addresses(target: &Target) -> Option<String> {
    let program = &target.modules[target.program];
    let named = |name: &str| program.image.symbols_named(name).next().is_some();
    let seen = ["main", "_setjmp", "setjmp", "__sigsetjmp"].iter().any(|name| named(name));
    let blind = program.image.is_static() && !seen;
    blind.then(|| "a static program without symbols may hold mangled addresses in it (setjmp)".into())
}

/// The parts of `range` where something of ours is mapped. A journal may list what was never mapped because
/// restitch was killed before it was, and the program may have mapped something of its own there since.
fn ours_in(range: AvmaRange, maps: &[Mapping]) -> Vec<AvmaRange> {
    let ours = maps.iter().filter(|m| m.range.overlaps(&range) && is_ours(m));
    ours.map(|m| AvmaRange::between(m.range.start.max(range.start), m.range.end.min(range.end))).collect()
}
