//! Slots of procedure linkage tables and of v-tables that lead straight into versions.
//!
//! **Problem.** A call from another module goes through a stub and its slot to the callee's old entry, and
//! from there through the redirect into its version: one more taken branch, in a line and a page with nothing
//! else in them, for every call between two modules. So do calls of virtual methods.
//!
//! **Idea.** Being at the copy of an entry equals being at the entry. So the slot itself may hold the address
//! of the copy, as the redirect at the entry leads there. That needs nothing new in any version: no version
//! refers to another one, callers that stay and modules without a version go straight as well, and any subset
//! of such changes is a correct program.
//!
//! **Which slots.** Those of `R_X86_64_JUMP_SLOT` relocations: a stub jumps through them, and nothing else
//! reads them (a module that makes a function's address has another slot for it), so that addresses that the
//! program compares stay what they were. The loader has filled them and made their pages read-only (RELRO),
//! so that nobody else writes there. And those of v-tables in read-only pages, for methods whose address
//! stands nowhere else (`vtable_slots.rs`; OCOLOS, section IV-B).
//!
//! **What a slot held may be kept.** A stub loads its slot and jumps. What a v-table's slot held may stay in
//! a register or on a stack, in front of a loop say. So addresses in a version that v-tables have led into
//! count wherever they stand (`JournalVersion::by_pointers`): its entries lead on when it is left, and it
//! stays mapped for as long as one is there.
//!
//! **Slots that somebody else takes.** A tool that puts a hook of its own into a slot keeps what the slot
//! held and calls it, and it may keep it where no search finds it, in code that it makes. So the journal says
//! which slots have led into a version: if one of them holds anything else than its function's entry or a
//! copy of that, the version stays for good.
//!
//! **Undoing.** What a slot held is no secret that could be lost: an address in a version says by the
//! version's map which original address it equals. So nothing has to be kept for that: every switch makes
//! each slot what it has to be, whatever a restitch that was killed, or the parent of a process, has left. A
//! slot that cannot be changed back keeps the version mapped ([`leading_into`]).

use crate::address_translation::AddressTranslation;
use crate::attached_process::AttachedProcess;
use crate::error::ProcessError;
use crate::host::CodeMemory;
use crate::memory::search::Hits;
use crate::relro_slots::{is_read_only, read_only_part};
use crate::state::journal::{JournalSlot, JournalVersion, VersionKind};
use crate::switch_plan::{Arriving, Incoming, RetargetedSlots, SlotChange};
use crate::target::{Module, Target};
use crate::vtable_slots;
use restitch_address::{Avma, AvmaRange, PAGE, Svma};
use restitch_image::{DynamicRelocation, RelocationKind};
use restitch_procfs::{self as procfs, Mapping};
use restitch_tracee::Memory;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

/// A slot that nobody changes any more.
#[derive(Debug, Clone, Copy)]
struct Slot {
    at: Avma,
    held: Avma,
    /// Of a v-table.
    is_method: bool,
}

/// The slots of linkage tables and v-tables that nobody changes any more, by module and address.
fn slots(target: &Target, maps: &[Mapping], memory: &Memory) -> Vec<Slot> {
    let mut at = Vec::new();
    for module in &target.modules {
        let methods = vtable_slots::slots(&module.image).into_iter().map(|at| (at, true));
        let all = linkage_slots(module).map(|at| (at, false)).chain(methods);
        let all = all.filter(|(at, _)| at.get().is_multiple_of(8));
        let actual = all.map(|(at, is_method)| (module.bias.to_actual(at), is_method));
        at.extend(actual.filter(|(at, _)| is_read_only(maps, *at)));
    }
    let slots = at.iter().zip(held(memory, at.iter().map(|(at, _)| *at)));
    slots.filter_map(|(&(at, is_method), held)| Some(Slot { at, held: held?, is_method })).collect()
}

/// The slots of a module's linkage table that the loader makes read-only.
fn linkage_slots(module: &Module) -> impl Iterator<Item = Svma> {
    let slots = read_only_part(module).into_iter().flat_map(|part| module.image.relocations_in(part));
    slots.filter(|r| matches!(r.kind, RelocationKind::JumpSlot { .. })).map(|r| r.at)
}

/// The words at these addresses.
fn held(memory: &Memory, at: impl Iterator<Item = Avma>) -> Vec<Option<Avma>> {
    let requests: Vec<(Avma, usize)> = at.map(|at| (at, 8)).collect();
    let words = memory.read_many(&requests).into_iter();
    words.map(|bytes| Some(Avma::new(u64::from_le_bytes(bytes?.try_into().ok()?)))).collect()
}

/// Those of `ranges` into which slots lead, with the reason why they have to stay.
pub(crate) fn leading_into(target: &Target, ranges: &[AvmaRange]) -> Result<Hits, ProcessError> {
    let maps = procfs::maps(target.pid())?;
    let slots = slots(target, &maps, &Memory::open_read_only(target.pid())?);
    let first = |range: &AvmaRange| slots.iter().find(|slot| range.contains(slot.held));
    let hit = |range: &AvmaRange| {
        let slot = first(range)?;
        let table = if slot.is_method { "v-table" } else { "linkage table" };
        Some((*range, format!("the slot at {} of a {table} leads into it", slot.at)))
    };
    Ok(ranges.iter().filter_map(hit).collect())
}

/// Those versions of which a slot has been taken by somebody else, who may go on calling what it held: their
/// ranges, with the reason why they have to stay.
pub(crate) fn taken(attached: &AttachedProcess, ranges: &[AvmaRange]) -> Result<Hits, ProcessError> {
    let retargeted = |v: &&JournalVersion| !v.slots.is_empty() && ranges.contains(&v.range());
    let versions: Vec<&JournalVersion> = attached.journal.versions.iter().filter(retargeted).collect();
    if versions.is_empty() {
        return Ok(Hits::new());
    }
    let target = attached.now();
    // (A slot of a module that is gone has nobody who calls through it.) Whoever has changed one may have
    // left its page writable.
    let slots = target.modules.iter().flat_map(|m| linkage_slots(m).map(|at| m.bias.to_actual(at)));
    let slots: Vec<Avma> = slots.collect();
    let memory = Memory::open_read_only(target.pid())?;
    let held: HashMap<Avma, Option<Avma>> =
        slots.iter().copied().zip(held(&memory, slots.iter().copied())).collect();
    let translation = AddressTranslation::new(attached);
    let is_taken = |slot: &&JournalSlot| {
        let held = held.get(&Avma::new(slot.at)).copied().flatten();
        held.is_some_and(|held| translation.of(held) != Some(Avma::new(slot.entry)))
    };
    let hit = |v: &JournalVersion| {
        let slot = v.slots.iter().find(is_taken)?;
        let at = Avma::new(slot.at);
        Some((
            v.range(),
            format!(
                "another program has taken what the slot at {at} of a linkage table held, and may call it"
            ),
        ))
    };
    Ok(versions.into_iter().filter_map(hit).collect())
}

/// What has to change so that slots lead into the versions of `incoming` that are to be entered by them, and
/// into no other ones. Of `arriving` it is noted which slots lead into which ones.
pub(crate) fn plan(
    attached: &AttachedProcess,
    incoming: &[Incoming<'_>],
    arriving: &mut [Arriving],
) -> Result<Vec<SlotChange>, ProcessError> {
    let leads = |new: &Incoming<'_>, is_method: bool| {
        let wanted = match new.retargeted_slots {
            RetargetedSlots::None => false,
            RetargetedSlots::Linkage => !is_method,
            RetargetedSlots::All => true,
        };
        wanted && new.kind == VersionKind::Optimized
    };
    if !incoming.iter().any(|new| leads(new, false)) && attached.journal.versions.is_empty() {
        return Ok(Vec::new());
    }
    let pid = attached.target.pid();
    // The map first: a slot in a page that is read-only now has its final content.
    let maps = procfs::maps(pid)?;
    let memory = Memory::open_read_only(pid)?;
    let translation = AddressTranslation::new(attached);
    // The number of the version, and the copy in it.
    let copy = |original: Avma, is_method: bool| {
        let versions = incoming.iter().zip(&*arriving).enumerate();
        let mut versions = versions.filter(|(_, (new, _))| leads(new, is_method));
        versions.find_map(|(i, (new, arriving))| {
            let module = &attached.target.modules[new.module];
            let stated = module.stated(original)?;
            let copy = arriving.reverse.boundary(stated)?;
            // The checked map has the last word.
            let proven = new.version.map.to_original(copy) == Some(stated);
            proven.then(|| (i, module.bias.to_actual(copy)))
        })
    };
    let slots = slots(attached.now(), &maps, &memory);
    let resolved = slots.into_iter().filter_map(|slot| {
        let original = translation.of(slot.held)?;
        Some((slot, original, copy(original, slot.is_method)))
    });
    let resolved: Vec<_> = resolved.collect();
    let methods = resolved.iter().filter(|(slot, _, copy)| slot.is_method && copy.is_some());
    let methods: HashSet<Avma> = methods.map(|(_, original, _)| *original).collect();
    let known_otherwise = known_otherwise(attached.now(), &memory, &methods);
    let (mut changes, mut pointed) = (Vec::new(), BTreeSet::new());
    // The same version may have been there before.
    let before = |a: &Arriving| a.record.slots.iter().map(|slot| (slot.at, *slot)).collect();
    let mut linked: Vec<BTreeMap<u64, JournalSlot>> = arriving.iter().map(before).collect();
    for (slot, original, copy) in resolved {
        let copy = copy.filter(|_| !slot.is_method || !known_otherwise.contains(&original));
        match copy {
            Some((version, _)) if slot.is_method => drop(pointed.insert(version)),
            Some((version, _)) => {
                let (at, entry) = (slot.at.get(), original.get());
                linked[version].insert(at, JournalSlot { at, entry });
            }
            None => {}
        }
        let to = copy.map_or(original, |(_, at)| at);
        if to != slot.held {
            changes.push(SlotChange { at: slot.at, from: slot.held, to });
        }
    }
    pointed.into_iter().for_each(|i| arriving[i].record.by_pointers = true);
    for (arriving, linked) in arriving.iter_mut().zip(linked) {
        arriving.record.slots = linked.into_values().collect();
    }
    Ok(changes)
}

/// Those of `methods` whose address something else than slots of v-tables makes.
fn known_otherwise(target: &Target, memory: &Memory, methods: &HashSet<Avma>) -> HashSet<Avma> {
    let mut known = HashSet::new();
    if methods.is_empty() {
        return known;
    }
    for module in &target.modules {
        let entries: HashSet<Svma> = methods.iter().filter_map(|at| module.stated(*at)).collect();
        let slots = vtable_slots::slots(&module.image);
        let made = vtable_slots::made_elsewhere(&module.image, &entries, &slots);
        known.extend(made.into_iter().map(|at| module.bias.to_actual(at)));
        // Words in which the loader has put addresses of other modules' functions.
        let is_symbolic =
            |r: &&DynamicRelocation| matches!(r.kind, RelocationKind::Symbolic { addend: 0, .. });
        let words = module.image.relocations().iter().filter(is_symbolic);
        let words = words.filter(|r| slots.binary_search(&r.at).is_err());
        let words = held(memory, words.map(|r| module.bias.to_actual(r.at)));
        known.extend(words.into_iter().flatten().filter(|word| methods.contains(word)));
    }
    known
}

/// Makes those of `changes` whose slots are as they were; the process stands still, and `maps` is its memory
/// map now. Gives their number.
pub(crate) fn write(
    memory: &impl CodeMemory,
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

    /// Our own process: each slot leads to code of a module, and nothing is to be changed where there is no
    /// version.
    #[test]
    fn slots_of_a_live_process_are_found() {
        let target = Target::open(std::process::id() as i32).expect("our own");
        let maps = procfs::maps(target.pid()).expect("our own");
        let memory = Memory::open_read_only(target.pid()).expect("our own");
        let found = slots(&target, &maps, &memory);
        assert!(found.iter().all(|s| s.at.get() % 8 == 0 && (s.is_method || s.held.get() != 0)));
        let none = slots(&target, &[], &memory);
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
