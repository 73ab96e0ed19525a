//! Unmapping retired versions once nothing leads to them.
//!
//! Problem: a return address into a retired version may be on a stack that no thread is on (a coroutine's), where no walk
//! finds it. Idea: nobody can enter a retired version but through such an address, and no new ones arise, so they only ever
//! become fewer. All writable private memory of the process is therefore looked through for words that point into
//! the version, *without* stopping it, and only registers and thread stacks in two short stops around that. A false hit (a dead
//! stack slot, a number that looks like an address) only delays the unmapping: sweep again later.
//!
//! Limits: static programs without symbols may hold mangled addresses in `jmp_buf`s of a `setjmp` that was not
//! recognised; there a version stays. So it does where there is too much memory to look through.

use crate::exceptions::is_spent_note;
use crate::frames::Walker;
use crate::hook;
use crate::journal::{JournalVersion, VersionKind};
use crate::live::Live;
use crate::old::OldVersion;
use crate::retire::leads_into;
use crate::stub::{StubSite, borrow, stub_site};
use crate::threads::{ThreadView, survey, words};
use crate::{ProcessError, Target};
use restitch_address::{Avma, AvmaRange};
use restitch_procfs::{self as procfs, Mapping, MappingName, Pagemap};
use restitch_tracee::{Memory, StopTimes, Stopped};
use std::time::Duration;

/// Most bytes that are looked through.
const MOST_MEMORY: u64 = 4 << 30;
const PAGE: u64 = 4096;
const CHUNK: u64 = 1 << 20;

/// What a sweep did.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SweepReport {
    /// Versions taken out.
    pub unmapped: Vec<u32>,
    /// Retired versions that stay, with the reason.
    pub kept: Vec<(u32, String)>,
    /// The longer of the two stops, in microseconds.
    pub pause_us: u64,
}

impl Live {
    /// Unmaps retired versions that nothing leads to any more; the hook too, when no version is left. What is kept may go the next time.
    ///
    /// # Errors
    /// If the process cannot be stopped or read; it is correct in any case.
    pub fn sweep(&mut self) -> Result<SweepReport, ProcessError> {
        sweep(self)
    }
}

fn sweep(live: &mut Live) -> Result<SweepReport, ProcessError> {
    live.lock()?;
    let mut report = SweepReport::default();
    let all = OldVersion::all(&live.journal, &live.target);
    let retired: Vec<&OldVersion> = all.iter().filter(|o| live.is_retired(o.number)).collect();
    let nothing_else = retired.len() == all.len();
    if retired.is_empty() && !(nothing_else && live.journal.hook.is_some()) {
        return Ok(report);
    }
    let target = live.target.clone();
    let walker = Walker::new(&target, &all);
    let mut candidates: Vec<&OldVersion> = Vec::new();
    let stopped = Stopped::seize_all(live.target.pid())?;
    let threads = survey(&stopped, &walker, &stopped.maps()?)?;
    for old in retired {
        match reason_to_keep(live, &stopped, old, &threads)? {
            Some(why) => report.kept.push((old.number, why)),
            None => candidates.push(old),
        }
    }
    report.pause_us = StopTimes::micros(stopped.resume().stopped);
    let stored = candidates.iter().filter(|o| !live.has_just_traced(o.number));
    let mut ranges: Vec<AvmaRange> = stored.map(|o| o.range).collect();
    let hook = live.journal.hook.as_ref().filter(|_| nothing_else);
    ranges.extend(hook.map(|h| h.range()));
    let exempt = hook.map(hook::own_words).unwrap_or_default();
    let hits = scan(live.target.pid(), &ranges, &exempt, &threads)?;
    let hook_held = hook.and_then(|h| hits.iter().find(|hit| hit.0 == h.range())).map(|hit| hit.1.clone());
    candidates.retain(|old| match hits.iter().find(|h| h.0 == old.range) {
        None => true,
        Some((_, why)) => {
            report.kept.push((old.number, why.clone()));
            false
        }
    });
    take_out(live, &walker, candidates, hook_held, &mut report)?;
    await_hook(live, &walker, &mut report)?;
    live.journal.save(&live.dir)?;
    if !report.unmapped.is_empty() {
        live.dir.collect_garbage();
    }
    Ok(report)
}

/// The second stop: a last look at the threads, then the unmapping.
fn take_out(
    live: &mut Live,
    walker: &Walker<'_>,
    candidates: Vec<&OldVersion>,
    hook_held: Option<String>,
    report: &mut SweepReport,
) -> Result<(), ProcessError> {
    let stub = stub_site(&live.target, |_| false)?;
    let mut stopped = Stopped::seize_all(live.target.pid())?;
    let threads = survey(&stopped, walker, &stopped.maps()?)?;
    let looking = hook::in_use(&stopped, live.journal.hook.as_ref(), &threads)?;
    let mut gone = Vec::new();
    for old in candidates {
        match held_by(live, &stopped, old, &threads)? {
            Some(why) => report.kept.push((old.number, why)),
            None => gone.push(old),
        }
    }
    let result = unmap(live, &mut stopped, &stub, &gone, looking.or(hook_held));
    let times = stopped.resume();
    report.pause_us = report.pause_us.max(StopTimes::micros(times.stopped));
    report.unmapped.extend(gone.iter().map(|o| o.number));
    report.kept.extend(result?.map(|why| (0, why)));
    Ok(())
}

/// Once nothing leads to the hook any more, those who stand in it leave it soon: it is looked at again for a moment.
fn await_hook(live: &mut Live, walker: &Walker<'_>, report: &mut SweepReport) -> Result<(), ProcessError> {
    const MOST_TRIES: u32 = 20;
    for _ in 0..MOST_TRIES {
        let Some(at) = report.kept.iter().position(|k| k.0 == 0) else { break };
        if !report.kept[at].1.starts_with(hook::LOOKING) {
            break;
        }
        report.kept.remove(at);
        std::thread::sleep(Duration::from_millis(2));
        take_out(live, walker, Vec::new(), None, report)?;
    }
    Ok(())
}

/// Unmaps versions and, with the last one, the hook. `hook_held` says why the hook's page has to stay for now; it is the answer
/// if it does.
fn unmap(
    live: &mut Live,
    stopped: &mut Stopped,
    stub: &StubSite,
    gone: &[&OldVersion],
    hook_held: Option<String>,
) -> Result<Option<String>, ProcessError> {
    let is_gone = |number: u32| gone.iter().any(|o| o.number == number);
    let mut ranges: Vec<AvmaRange> = gone.iter().map(|o| o.range).collect();
    for v in live.journal.versions.iter().filter(|v| is_gone(v.number)) {
        ranges.extend(v.counters.map(|(start, len)| AvmaRange::new(Avma::new(start), len)));
    }
    live.journal.versions.retain(|v| !is_gone(v.number));
    live.counters.retain(|c| !is_gone(c.0));
    // The table first: once a range is unmapped, its tables must not be found any more.
    hook::write_table(stopped, &mut live.journal)?;
    let mut kept = None;
    if live.journal.versions.is_empty()
        && let Some(h) = &live.journal.hook
    {
        hook::disarm(stopped.memory(), h)?;
        // A thread inside goes on to the original from there; the page goes the next time.
        kept = hook_held;
        if kept.is_none() {
            ranges.push(h.range());
            live.journal.hook = None;
        }
    }
    if !ranges.is_empty() {
        let maps = stopped.maps()?;
        let mut borrow = borrow(stopped, stub, &maps)?;
        for range in ranges {
            borrow.munmap(range)?;
        }
        borrow.finish()?;
    }
    Ok(kept)
}

fn reason_to_keep(
    live: &Live,
    stopped: &Stopped,
    old: &OldVersion,
    threads: &[ThreadView],
) -> Result<Option<String>, ProcessError> {
    // Addresses in tracing versions are never stored.
    let is_stored = |v: &JournalVersion| v.number == old.number && v.kind != VersionKind::Burst;
    if let Some(why) = hidden_addresses(&live.target).filter(|_| live.journal.versions.iter().any(is_stored))
    {
        return Ok(Some(why));
    }
    held_by(live, stopped, old, threads)
}

/// The thread that stands in the version or may come into it.
fn held_by(
    live: &Live,
    stopped: &Stopped,
    old: &OldVersion,
    threads: &[ThreadView],
) -> Result<Option<String>, ProcessError> {
    if !live.has_just_traced(old.number) {
        return leads_into(stopped, old.range, threads, None);
    }
    for thread in threads {
        if old.range.contains(stopped.registers(thread.tid)?.rip) {
            return Ok(Some(format!("thread {} stands in it", thread.tid)));
        }
    }
    Ok(None)
}

/// Whether the process may hold addresses in a form that no search finds.
fn hidden_addresses(target: &Target) -> Option<String> {
    let program = &target.modules[target.program];
    let named = |name: &str| program.image.symbols_named(name).next().is_some();
    let seen = ["main", "_setjmp", "setjmp", "__sigsetjmp"].iter().any(|name| named(name));
    let blind = program.image.is_static() && !seen;
    blind.then(|| "a static program without symbols may hold mangled addresses in it (setjmp)".into())
}

/// Looks through writable private memory, thread stacks apart. For each range that a word points into: where.
fn scan(
    pid: i32,
    ranges: &[AvmaRange],
    exempt: &[AvmaRange],
    threads: &[ThreadView],
) -> Result<Vec<(AvmaRange, String)>, ProcessError> {
    let mut hits = Vec::new();
    if ranges.is_empty() {
        return Ok(hits);
    }
    let maps: Vec<Mapping> = procfs::maps(pid)?.into_iter().filter(|m| is_searched(m, threads)).collect();
    let total: u64 = maps.iter().map(|m| m.range.len()).sum();
    let memory = Memory::open_read_only(pid)?;
    let pages = Pagemap::open(pid).ok();
    let mut looked_at = 0;
    for m in &maps {
        let mut at = m.range.start;
        while at < m.range.end {
            let len = (m.range.end.offset_from(at) as u64).min(CHUNK);
            for run in present(pages.as_ref(), AvmaRange::new(at, len)) {
                looked_at += run.len();
                // Memory that was unmapped meanwhile holds nothing.
                let bytes = memory.read_vec(run.start, run.len() as usize).unwrap_or_default();
                look_at(&memory, &(run.start, bytes), ranges, exempt, &mut hits);
            }
            at = at + len;
            if looked_at > MOST_MEMORY {
                let why = format!("the process has too much memory to look through ({} MiB)", total >> 20);
                return Ok(ranges.iter().map(|r| (*r, why.clone())).collect());
            }
        }
    }
    Ok(hits)
}

/// Words at `exempt` addresses do not count, and neither do what exception objects keep in vain.
fn look_at(
    memory: &Memory,
    chunk: &(Avma, Vec<u8>),
    ranges: &[AvmaRange],
    exempt: &[AvmaRange],
    hits: &mut Vec<(AvmaRange, String)>,
) {
    let low = ranges.iter().map(|r| r.start).min().unwrap_or_default();
    let high = ranges.iter().map(|r| r.end).max().unwrap_or_default();
    for (at, word) in words(chunk) {
        if word < low || word >= high || exempt.iter().any(|e| e.contains(at)) {
            continue;
        }
        for range in ranges.iter().filter(|r| r.contains(word)) {
            if hits.iter().all(|h| h.0 != *range) && !is_spent_note(memory, at) {
                hits.push((*range, format!("a word in memory at {at} points into it")));
            }
        }
    }
}

/// Writable, private, and no stack of a thread (those were looked at while it stood still).
fn is_searched(m: &Mapping, threads: &[ThreadView]) -> bool {
    let p = &m.permissions;
    let stack = threads.iter().flat_map(|t| &t.stacks).any(|(at, _)| m.range.contains(*at));
    let special = matches!(&m.name, MappingName::Special(name) if name.starts_with("[v"));
    p.write && !p.shared && !stack && !special
}

/// The runs of pages in `range` that are in memory or swapped out; all of it if the kernel does not say.
fn present(pages: Option<&Pagemap>, range: AvmaRange) -> Vec<AvmaRange> {
    let Some(states) = pages.and_then(|pages| pages.states(range).ok()) else { return vec![range] };
    let mut out: Vec<AvmaRange> = Vec::new();
    for (i, _) in states.iter().enumerate().filter(|(_, state)| state.present || state.swapped) {
        let page = AvmaRange::new(range.start + i as u64 * PAGE, PAGE);
        match out.last_mut() {
            Some(last) if last.end == page.start => last.end = page.end,
            _ => out.push(page),
        }
    }
    out
}
