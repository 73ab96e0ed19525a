//! Where the threads stand, what their stacks hold, and moving them.

use crate::error::ProcessError;
use crate::frames::{Walk, Walker};
use crate::host::{CodeMemory, StoppedHost};
use crate::installed_version::InstalledVersion;
use crate::switch_plan::{SwitchPlan, SwitchReport};
use crate::words::WordFinder;
use restitch_address::{Avma, AvmaRange, LoadBias, Svma};
use restitch_procfs::Mapping;
use restitch_tracee::{Registers, TraceError};
use std::collections::{BTreeMap, BTreeSet};

/// One thread's registers and stack.
pub(crate) struct ThreadView {
    pub tid: i32,
    pub registers: Registers,
    /// The used parts of its stacks: address, bytes.
    pub stacks: Vec<(Avma, Vec<u8>)>,
    /// Its frames at the stop.
    pub walk: Walk,
}

/// Most bytes of one stack that are looked through.
const MOST_STACK: u64 = 16 << 20;

/// Bytes of each thread's stack, from its stack pointer on, that are read for all threads together: most
/// stacks of servers are no deeper, and their frames are followed without another system call.
const AHEAD: u64 = 16 << 10;

/// Walks and reads the stacks of all threads. `maps` is the process's memory map, read in the stop, by
/// address.
///
/// # Errors
/// [`TraceError::Watched`]: there are frames that nobody but a userfaultfd's handler can bring, so that it is
/// not known where they return to.
pub(crate) fn survey(
    stopped: &impl StoppedHost,
    walker: &Walker<'_>,
    maps: &[Mapping],
) -> Result<Vec<ThreadView>, ProcessError> {
    walker.see(maps);
    let memory = stopped.memory();
    let tids = stopped.threads();
    let all: Vec<Registers> = tids.iter().map(|tid| stopped.registers(*tid)).collect::<Result<_, _>>()?;
    let tops: Vec<(Avma, usize)> = all.iter().map(|r| top_of_stack(r, maps)).collect();
    let read = memory.read_many(&tops);
    let mut out = Vec::new();
    for (((tid, registers), (top, _)), bytes) in tids.into_iter().zip(all).zip(tops).zip(read) {
        let ahead = (top, bytes.unwrap_or_default());
        let mut watched = Ok(());
        let mut read = |at: Avma| {
            word_of(ahead.0, &ahead.1, at).or_else(|| unless_watched(memory.read_u64(at), &mut watched))
        };
        let walk = walker.walk(&registers, &mut read);
        let stacks = used_stacks(memory, &registers, &walk, maps, ahead, &mut watched);
        watched?;
        out.push(ThreadView { tid, registers, stacks, walk });
    }
    Ok(out)
}

/// What was read; `watched` is told if somebody would have had to be waited for.
fn unless_watched<T>(read: Result<T, TraceError>, watched: &mut Result<(), TraceError>) -> Option<T> {
    match read {
        Ok(read) => Some(read),
        Err(error @ TraceError::Watched { .. }) => {
            *watched = Err(error);
            None
        }
        Err(_) => None,
    }
}

/// Why the kernel may hold return addresses that no search finds, if it does: a probe of function returns
/// (uretprobe) puts the address of its trampoline on the stack in their place, and has the thread go on where
/// they lead.
pub(crate) fn hidden_returns(threads: &[ThreadView], maps: &[Mapping]) -> Option<String> {
    let trampoline = maps.iter().find(|m| m.is_special("[uprobes]"))?.range;
    let finder = WordFinder::of(&[trampoline]);
    let holds = |t: &&ThreadView| !t.walk.complete && words(t, &finder).next().is_some();
    let thread = threads.iter().find(holds)?;
    Some(format!(
        "a probe of the kernel (uretprobe) holds return addresses of thread {}, which may lead into it",
        thread.tid
    ))
}

/// The lowest word of a thread's stack that may be used: below the stack pointer lies the red zone (System V
/// ABI, 3.2.2).
fn lowest_used(registers: &Registers) -> Avma {
    Avma::new((registers.rsp.get() & !7).saturating_sub(128))
}

/// The mapping that `at` is in.
fn mapping_at(maps: &[Mapping], at: Avma) -> Option<&Mapping> {
    let behind = maps.partition_point(|m| m.range.start <= at);
    maps.get(behind.checked_sub(1)?).filter(|m| m.range.contains(at))
}

/// Where the used part of a thread's stack begins, and how much of it is read ahead.
fn top_of_stack(registers: &Registers, maps: &[Mapping]) -> (Avma, usize) {
    let from = lowest_used(registers);
    let len = mapping_at(maps, from).map_or(0, |m| (m.range.end.offset_from(from) as u64).min(AHEAD));
    (from, len as usize)
}

/// The word at `at`, if it is among the bytes that were read.
fn word_of(start: Avma, bytes: &[u8], at: Avma) -> Option<u64> {
    let offset = usize::try_from(at.offset_from(start)).ok()?;
    let word = bytes.get(offset..offset.checked_add(8)?)?;
    Some(u64::from_le_bytes(word.try_into().expect("8 bytes")))
}

/// The stack that the thread is on, and those that its frames lead to (below an alternate signal stack). What
/// is in `ahead` is not read once more.
fn used_stacks(
    memory: &impl CodeMemory,
    registers: &Registers,
    walk: &Walk,
    maps: &[Mapping],
    ahead: (Avma, Vec<u8>),
    watched: &mut Result<(), TraceError>,
) -> Vec<(Avma, Vec<u8>)> {
    let mut lowest: BTreeMap<Avma, (Avma, Avma)> = BTreeMap::new();
    for at in std::iter::once(lowest_used(registers)).chain(walk.frames.iter().copied()) {
        if let Some(m) = mapping_at(maps, at) {
            let low = lowest.entry(m.range.start).or_insert((at, m.range.end));
            low.0 = low.0.min(at);
        }
    }
    let (mut stacks, mut ahead) = (Vec::new(), Some(ahead));
    for (from, to) in lowest.into_values() {
        let len = (to.offset_from(from) as u64).min(MOST_STACK) as usize;
        if let Some(ahead) = ahead.take_if(|ahead| ahead.0 == from && ahead.1.len() == len) {
            stacks.push(ahead);
        } else if let Some(bytes) = unless_watched(memory.read_vec(from, len), watched) {
            stacks.push((from, bytes));
        }
    }
    stacks
}

/// The words of a thread's stacks that are found, at whatever byte they begin, with their addresses.
pub(crate) fn words<'a>(
    thread: &'a ThreadView,
    finder: &'a WordFinder,
) -> impl Iterator<Item = (Avma, Avma)> + 'a {
    thread.stacks.iter().flat_map(|(start, bytes)| finder.words_at(*start, bytes))
}

/// Patch sites that some stack word points into, behind the first byte: an interrupted program counter or a
/// return address that will come back there. They are left as they are.
pub(crate) fn forbidden_sites(
    stopped: &impl StoppedHost,
    plan: &SwitchPlan<'_>,
    threads: &[ThreadView],
) -> Result<BTreeSet<Avma>, ProcessError> {
    let mut out = BTreeSet::new();
    let patches = &plan.patches;
    if patches.wanted.is_empty() {
        return Ok(out);
    }
    let finder = WordFinder::of(&patches.neighbourhoods());
    for thread in threads {
        out.extend(words(thread, &finder).filter_map(|(_, word)| patches.inside(word)));
    }
    // A program counter can be moved only if the version holds that very instruction.
    for tid in stopped.threads() {
        let rip = stopped.registers(tid)?.rip;
        if let Some(site) = patches.inside(rip)
            && plan.destination(rip).is_none()
        {
            out.insert(site);
        }
    }
    Ok(out)
}

impl SwitchPlan<'_> {
    /// Where the instruction at original address `at` stands in the arriving versions.
    pub fn destination(&self, at: Avma) -> Option<Avma> {
        self.arriving.iter().find_map(|a| {
            let bias = LoadBias::between(Svma::new(0), Avma::new(a.record.bias));
            a.reverse.boundary(bias.to_stated(at)).map(|v| bias.to_actual(v))
        })
    }

    /// Whether original address `at` is between two places of the arriving versions.
    fn is_in_between(&self, at: Avma) -> bool {
        self.arriving.iter().any(|a| {
            let bias = LoadBias::between(Svma::new(0), Avma::new(a.record.bias));
            a.reverse.is_in_between(bias.to_stated(at))
        })
    }

    /// Where a thread goes that stands at original address `at` after leaving a version.
    pub fn destination_or_original(&self, at: Avma) -> Avma {
        self.destination(at).unwrap_or(at)
    }
}

/// Moves threads into the arriving versions, out of leaving ones and out of bytes that are about to change.
/// That is right whatever the original code holds.
pub(crate) fn move_in(
    stopped: &mut impl StoppedHost,
    plan: &SwitchPlan<'_>,
    report: &mut SwitchReport,
) -> Result<(), ProcessError> {
    move_threads(stopped, report, |at| {
        let original = match plan.leaving.iter().find(|o| o.range.contains(at)) {
            Some(old) => old.to_original(at)?,
            // Original code: whoever stands in a block that has a copy goes on in the copy. A loop that never
            // ends would stay in the old layout for ever otherwise.
            None => at,
        };
        plan.destination(original)
    })
}

/// Moves threads out of leaving versions to the original code, once that holds what it is to hold: before
/// that their place may be inside of a redirect. Where it is inside of a new one (all but those `forbidden`),
/// they stay in the version.
pub(crate) fn move_out(
    stopped: &mut impl StoppedHost,
    plan: &SwitchPlan<'_>,
    forbidden: &BTreeSet<Avma>,
    report: &mut SwitchReport,
) -> Result<(), ProcessError> {
    move_threads(stopped, report, |at| {
        let original = plan.leaving.iter().find(|o| o.range.contains(at))?.to_original(at)?;
        let is_free = plan.patches.inside(original).is_none_or(|site| forbidden.contains(&site));
        is_free.then_some(original)
    })
}

/// Moves those threads for whose place there is another one.
fn move_threads(
    stopped: &mut impl StoppedHost,
    report: &mut SwitchReport,
    other: impl Fn(Avma) -> Option<Avma>,
) -> Result<(), ProcessError> {
    for tid in stopped.threads() {
        let registers = stopped.registers(tid)?;
        // In a system call the kernel may come back to the call itself: that address is the one to translate.
        let back = if registers.system_call().is_some() { 2 } else { 0 };
        let Some(to) = other(registers.rip - back).map(|to| to + back) else { continue };
        if to != registers.rip {
            stopped.set_registers(tid, Registers { rip: to, ..registers })?;
            report.moved_threads += 1;
        }
    }
    Ok(())
}

/// Whether a thread stands in `range`.
pub(crate) fn stands_in(stopped: &impl StoppedHost, range: AvmaRange) -> Result<bool, ProcessError> {
    for tid in stopped.threads() {
        if range.contains(stopped.registers(tid)?.rip) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Whether a thread stands where there is no equivalent: between the load and the jump of a dispatch, or
/// inside a flag-keeping counter. It cannot be moved out of a leaving version from there, and its frames
/// cannot be followed; in original code it stays in the old layout until its function is called again, which
/// a loop that does not end never is.
pub(crate) fn in_between(stopped: &impl StoppedHost, plan: &SwitchPlan<'_>) -> Result<bool, ProcessError> {
    let opaque = |at: Avma| {
        let is_in = |o: &InstalledVersion| o.range.contains(at) && o.module.is_some();
        plan.leaving.iter().any(|o| is_in(o) && o.to_original(at).is_none()) || plan.is_in_between(at)
    };
    for tid in stopped.threads() {
        let registers = stopped.registers(tid)?;
        if registers.system_call().is_none() && opaque(registers.rip) {
            return Ok(true);
        }
    }
    Ok(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_that_were_not_read_ahead_are_not_made_up() {
        let ahead = (Avma::new(0x1000), (1..=20).collect::<Vec<u8>>());
        assert_eq!(word_of(ahead.0, &ahead.1, Avma::new(0x1000)), Some(0x0807_0605_0403_0201));
        assert_eq!(word_of(ahead.0, &ahead.1, Avma::new(0x100c)), Some(0x1413_1211_100f_0e0d));
        for outside in [0, 0xfff, 0x100d, 0x1014, u64::MAX] {
            assert_eq!(word_of(ahead.0, &ahead.1, Avma::new(outside)), None, "{outside:#x}");
        }
        assert_eq!(word_of(Avma::new(0), &[], Avma::new(0)), None);
    }

    #[test]
    fn the_mapping_is_the_one_that_holds_the_address() {
        let maps = restitch_procfs::maps(std::process::id() as i32).unwrap();
        for m in &maps {
            for at in [m.range.start, m.range.end - 1] {
                assert_eq!(mapping_at(&maps, at).map(|found| found.range), Some(m.range));
            }
            let behind = maps.iter().any(|other| other.range.start == m.range.end);
            assert_eq!(mapping_at(&maps, m.range.end).is_some(), behind);
        }
        let nowhere = Registers { rsp: Avma::new(64), ..Registers::default() };
        assert_eq!(top_of_stack(&nowhere, &maps), (Avma::new(0), 0));
    }
}
