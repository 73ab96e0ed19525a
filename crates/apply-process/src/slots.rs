//! Slots of procedure linkage tables that lead straight into versions.
//!
//! **Problem.** A call from another module goes through a stub and its slot to the callee's old entry, and from there through the redirect
//! into its version: one more taken branch, in a line and a page with nothing else in them, for every call between two modules.
//!
//! **Idea.** Being at the copy of an entry equals being at the entry. So the slot itself may hold the address of the copy, as the redirect at the entry
//! leads there. That needs nothing new in any version: no version refers to another one, callers that stay and modules without a version go straight
//! as well, and any subset of such changes is a correct program.
//!
//! **Which slots.** Those of `R_X86_64_JUMP_SLOT` relocations: a stub jumps through them, and nothing else reads them (a module that makes a function's
//! address has another slot for it), so that addresses that the program compares stay what they were. The loader has filled them and made
//! their pages read-only (RELRO), so that nobody else writes there.
//!
//! **Undoing.** What a slot held is no secret that could be lost: an address in a version says by the version's map which original address it equals.
//! So there is nothing to be kept in the journal: every switch makes each slot what it has to be, whatever a restitch that was killed, or the
//! parent of a process, has left. A slot that cannot be changed back keeps the version mapped ([`leading_into`]).

use crate::bound::{is_read_only, read_only_part};
use crate::journal::VersionKind;
use crate::live::Live;
use crate::origin::Origins;
use crate::prepared::{Arriving, Incoming, SlotChange};
use crate::search::Hits;
use crate::writing::PAGE;
use crate::{ProcessError, Target};
use restitch_address::{Avma, AvmaRange};
use restitch_image::RelocationKind;
use restitch_procfs::{self as procfs, Mapping};
use restitch_tracee::Memory;

/// The slots of linkage tables that nobody changes any more, with what they hold, by module and address.
fn linkage_slots(target: &Target, maps: &[Mapping], memory: &Memory) -> Vec<(Avma, Avma)> {
    let mut at = Vec::new();
    for module in &target.modules {
        let Some(part) = read_only_part(module) else { continue };
        let slots = module.image.relocations_in(part).iter();
        let slots = slots.filter(|r| matches!(r.kind, RelocationKind::JumpSlot { .. }));
        let slots = slots.filter(|r| r.at.get().is_multiple_of(8)).map(|r| module.bias.to_actual(r.at));
        at.extend(slots.filter(|at| is_read_only(maps, *at)));
    }
    let requests: Vec<(Avma, usize)> = at.iter().map(|at| (*at, 8)).collect();
    let held = memory.read_many(&requests).into_iter().map(|b| b.and_then(|b| b.try_into().ok()));
    at.into_iter().zip(held).filter_map(|(at, b)| Some((at, Avma::new(u64::from_le_bytes(b?))))).collect()
}

/// Those of `ranges` into which slots lead, with the reason why they have to stay.
pub(crate) fn leading_into(target: &Target, ranges: &[AvmaRange]) -> Result<Hits, ProcessError> {
    let maps = procfs::maps(target.pid())?;
    let slots = linkage_slots(target, &maps, &Memory::open_read_only(target.pid())?);
    let first = |range: &AvmaRange| slots.iter().find(|(_, held)| range.contains(*held));
    let hit = |range: &AvmaRange| {
        first(range).map(|(at, _)| (*range, format!("the slot at {at} of a linkage table leads into it")))
    };
    Ok(ranges.iter().filter_map(hit).collect())
}

/// What has to change so that slots lead into the versions of `incoming` that are to be entered by them, and into no other ones.
pub(crate) fn plan(
    live: &Live,
    incoming: &[Incoming<'_>],
    arriving: &[Arriving],
) -> Result<Vec<SlotChange>, ProcessError> {
    let by_slots = |new: &Incoming<'_>| new.by_slots && new.kind == VersionKind::Optimized;
    if !incoming.iter().any(by_slots) && live.journal.versions.is_empty() {
        return Ok(Vec::new());
    }
    let pid = live.target.pid();
    // The map first: a slot in a page that is read-only now has its final content.
    let maps = procfs::maps(pid)?;
    let memory = Memory::open_read_only(pid)?;
    let origins = Origins::new(live);
    let copy = |original: Avma| {
        incoming.iter().zip(arriving).filter(|(new, _)| by_slots(new)).find_map(|(new, arriving)| {
            let module = &live.target.modules[new.module];
            let stated = module.stated(original)?;
            let copy = arriving.reverse.boundary(stated)?;
            // The checked map has the last word.
            let proven = new.version.map.to_original(copy) == Some(stated);
            proven.then(|| module.bias.to_actual(copy))
        })
    };
    let change = |(at, from): (Avma, Avma)| {
        let original = origins.of(from)?;
        let to = copy(original).unwrap_or(original);
        (to != from).then_some(SlotChange { at, from, to })
    };
    Ok(linkage_slots(live.now(), &maps, &memory).into_iter().filter_map(change).collect())
}

/// Makes those of `changes` whose slots are as they were; the process stands still, and `maps` is its memory map now. Gives their number.
pub(crate) fn write(
    memory: &Memory,
    maps: &[Mapping],
    changes: &[SlotChange],
) -> Result<usize, ProcessError> {
    let mut sorted: Vec<SlotChange> = changes.to_vec();
    sorted.sort_unstable_by_key(|c| c.at);
    let mut written = 0;
    for page in sorted.chunk_by(|a, b| a.at.align_down(PAGE) == b.at.align_down(PAGE)) {
        let (start, end) = (page[0].at, page[page.len() - 1].at + 8);
        if !is_read_only(maps, start) {
            continue;
        }
        // A module that was unloaded meanwhile.
        let Ok(mut bytes) = memory.read_vec(start, AvmaRange::between(start, end).len() as usize) else {
            continue;
        };
        let mut changed = 0;
        for change in page {
            let from = change.at.offset_from(start) as usize;
            let held = &mut bytes[from..from + 8];
            if *held == change.from.get().to_le_bytes() {
                held.copy_from_slice(&change.to.get().to_le_bytes());
                changed += 1;
            }
        }
        if changed > 0 {
            memory.write(start, &bytes)?;
            if memory.read_vec(start, bytes.len())? != bytes {
                return Err(ProcessError::NotVerified { pid: memory.pid(), count: changed, at: start });
            }
            written += changed;
        }
    }
    Ok(written)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Our own process: each slot leads to code of a module, and nothing is to be changed where there is no version.
    #[test]
    fn slots_of_a_live_process_are_found() {
        let target = Target::open(std::process::id() as i32).expect("our own");
        let maps = procfs::maps(target.pid()).expect("our own");
        let memory = Memory::open_read_only(target.pid()).expect("our own");
        let slots = linkage_slots(&target, &maps, &memory);
        assert!(slots.iter().all(|(at, held)| at.get() % 8 == 0 && held.get() != 0));
        let none = linkage_slots(&target, &[], &memory);
        assert!(none.is_empty(), "a page that is not known to be read-only");
    }

    #[test]
    fn only_slots_that_are_as_they_were_are_written() {
        let mut page = Box::new([[0u64; 512]; 2]);
        let base = Avma::new(page.as_ptr() as u64).align_up(PAGE);
        let index = base.offset_from(Avma::new(page.as_ptr() as u64)) as usize / 8;
        let words = page.as_flattened_mut();
        (words[index + 1], words[index + 2], words[index + 4]) = (10, 20, 40);
        let line = |permissions: &str| {
            let text = format!(
                "{:x}-{:x} {permissions} 00000000 08:01 7 /lib/a.so\n",
                base.get(),
                base.get() + PAGE
            );
            procfs::parse_maps(text.as_bytes()).expect("a line of a memory map")
        };
        let change =
            |i: u64, from, to| SlotChange { at: base + 8 * i, from: Avma::new(from), to: Avma::new(to) };
        let changes = [change(4, 40, 41), change(1, 10, 11), change(2, 99, 21)];
        let memory = Memory::open(std::process::id() as i32).expect("our own");
        assert_eq!(write(&memory, &line("rw-p"), &changes).expect("readable"), 0, "it is writable");
        assert_eq!(write(&memory, &line("r--p"), &changes).expect("writable"), 2);
        let words = std::hint::black_box(&page).as_flattened();
        assert_eq!(words[index..index + 5], [0, 11, 20, 0, 41]);
    }
}
