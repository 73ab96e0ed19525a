//! Where the threads stand, what their stacks hold, and moving them.

use crate::ProcessError;
use crate::frames::{Walk, Walker};
use crate::old::OldVersion;
use crate::patches::LEN;
use crate::plan::{Prepared, SwitchReport};
use restitch_address::{Avma, LoadBias, Svma};
use restitch_procfs::Mapping;
use restitch_tracee::{Registers, Stopped};
use std::collections::{BTreeMap, BTreeSet};

/// One thread's registers and stack.
pub(crate) struct ThreadView {
    pub tid: i32,
    pub registers: Registers,
    /// Words of the used parts of its stacks: address of the first, bytes.
    pub stacks: Vec<(Avma, Vec<u8>)>,
    /// Its frames at the stop.
    pub walk: Walk,
}

/// Most bytes of one stack that are looked through.
const MOST_STACK: u64 = 16 << 20;

/// Walks and reads the stacks of all threads. `maps` is the process's memory map, read in the stop.
pub(crate) fn survey(
    stopped: &Stopped,
    walker: &Walker<'_>,
    maps: &[Mapping],
) -> Result<Vec<ThreadView>, ProcessError> {
    let memory = stopped.memory();
    let mut out = Vec::new();
    for tid in stopped.threads() {
        let registers = stopped.registers(tid)?;
        let mut read = |at: Avma| memory.read_u64(at).ok();
        let walk = walker.walk(&registers, &mut read);
        // The stack that the thread is on, and those that its frames lead to (below an alternate signal stack).
        let mut lowest: BTreeMap<Avma, (Avma, Avma)> = BTreeMap::new();
        for at in
            std::iter::once(Avma::new(registers.rsp.get() & !7) - 128).chain(walk.frames.iter().copied())
        {
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
        out.push(ThreadView { tid, registers, stacks, walk });
    }
    Ok(out)
}

pub(crate) fn words(stack: &(Avma, Vec<u8>)) -> impl Iterator<Item = (Avma, Avma)> + '_ {
    let (start, bytes) = stack;
    bytes.chunks_exact(8).enumerate().map(move |(i, w)| {
        (*start + 8 * i as u64, Avma::new(u64::from_le_bytes(w.try_into().expect("8 bytes"))))
    })
}

/// Patch sites that some stack word points into, behind the first byte: an interrupted program counter or a return
/// address that will come back there. They are left as they are.
pub(crate) fn forbidden_sites(
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
    pub fn destination(&self, at: Avma) -> Option<Avma> {
        self.arriving.iter().find_map(|a| {
            let bias = LoadBias::between(Svma::new(0), Avma::new(a.record.bias));
            a.reverse.boundary(bias.to_stated(at)).map(|v| bias.to_actual(v))
        })
    }

    /// Where a thread goes that stands at original address `at` after leaving a version.
    pub fn destination_or_original(&self, at: Avma) -> Avma {
        self.destination(at).unwrap_or(at)
    }
}

/// Moves threads out of leaving versions and out of bytes that are about to change, into the arriving versions.
pub(crate) fn move_threads(
    stopped: &mut Stopped,
    prepared: &Prepared<'_>,
    report: &mut SwitchReport,
) -> Result<(), ProcessError> {
    let tids: Vec<i32> = stopped.threads().collect();
    for tid in tids {
        let registers = stopped.registers(tid)?;
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

/// Whether a thread stands where a version has no original equivalent: between the load and the jump of a dispatch, or inside a
/// flag-keeping counter. It cannot be moved from there, and its frames cannot be followed.
pub(crate) fn in_between(stopped: &Stopped, old: &[OldVersion]) -> Result<bool, ProcessError> {
    let opaque = |at: Avma| {
        old.iter().any(|o| o.range.contains(at) && o.module.is_some() && o.to_original(at).is_none())
    };
    for tid in stopped.threads() {
        let registers = stopped.registers(tid)?;
        if registers.system_call().is_none() && opaque(registers.rip) {
            return Ok(true);
        }
    }
    Ok(false)
}
