//! Slots of global offset tables that cannot change any more.
//!
//! The loader fills the slots of a module's RELRO part before any code of the module runs (lazily bound slots
//! are outside of it) and makes the pages read-only. It never writes there again, and a library to which it
//! has bound a module stays for as long as the module does. So a call through such a slot goes to the same
//! place for ever, and the new code may call that place itself. A page that is writable now (a module that is
//! just being loaded, a program without RELRO) is left alone.
//!
//! What this does not see: tools that make such a page writable *later* and put hooks into it. Their hooks
//! are passed by, as are breakpoints that are set in original code that has a copy.

use crate::address_translation::AddressTranslation;
use crate::attached_process::AttachedProcess;
use crate::error::ProcessError;
use crate::switch_plan::Incoming;
use crate::target::Module;
use restitch_address::{Avma, PAGE, SvmaRange};
use restitch_emit::BoundSlot;
use restitch_image::RelocationKind;
use restitch_procfs::{self as procfs, Mapping, MappingName};
use restitch_tracee::Memory;

impl AttachedProcess {
    /// The slots of module number `module` that hold the address of code for good, sorted by slot, in the
    /// module's coordinates.
    ///
    /// # Errors
    /// If the process cannot be read.
    pub fn bound_slots(&self, module: usize) -> Result<Vec<BoundSlot>, ProcessError> {
        let pid = self.target().pid();
        // The map first: a slot in a page that is read-only now has its final content.
        let maps = procfs::maps(pid)?;
        let memory = Memory::open_read_only(pid)?;
        let translation = AddressTranslation::new(self);
        Ok(bound_slots_of(&self.target().modules[module], &maps, &memory, |at| translation.of(at)))
    }
}

/// The part of the module that the loader makes read-only.
pub(crate) fn read_only_part(module: &Module) -> Option<SvmaRange> {
    let relro = module.image.relro()?;
    let (start, end) = (relro.start.align_down(PAGE), relro.end.align_down(PAGE));
    (start < end).then(|| SvmaRange::between(start, end))
}

/// A slot that leads into a version (`translate` leads back) is bound to the original.
fn bound_slots_of(
    module: &Module,
    maps: &[Mapping],
    memory: &Memory,
    translate: impl Fn(Avma) -> Option<Avma>,
) -> Vec<BoundSlot> {
    let Some(part) = read_only_part(module) else { return Vec::new() };
    let is_filled = |kind: &RelocationKind| {
        matches!(
            kind,
            RelocationKind::JumpSlot { .. }
                | RelocationKind::Symbolic { addend: 0, .. }
                | RelocationKind::IRelative { .. }
        )
    };
    let slots = module.image.relocations_in(part).iter().filter(|r| is_filled(&r.kind));
    let slots: Vec<_> = slots.map(|r| r.at).filter(|at| at.get().is_multiple_of(8)).collect();
    let requests: Vec<(Avma, usize)> = slots.iter().map(|at| (module.bias.to_actual(*at), 8)).collect();
    let mut found: Vec<BoundSlot> = Vec::new();
    for ((at, slot), bytes) in requests.iter().zip(slots).zip(memory.read_many(&requests)) {
        let held = bytes.and_then(|b| b.try_into().ok()).map(u64::from_le_bytes).map(Avma::new);
        let Some(held) = held.and_then(&translate) else { continue };
        if is_read_only(maps, at.0) && is_code(maps, held) && found.last().is_none_or(|l| l.slot < slot) {
            found.push(BoundSlot { slot, target: module.bias.to_stated(held) });
        }
    }
    found
}

fn mapping_at(maps: &[Mapping], at: Avma) -> Option<&Mapping> {
    let i = maps.partition_point(|m| m.range.start <= at).checked_sub(1)?;
    Some(&maps[i]).filter(|m| m.range.contains(at))
}

/// Whether the process cannot write there, and nobody else through a shared mapping.
pub(crate) fn is_read_only(maps: &[Mapping], at: Avma) -> bool {
    mapping_at(maps, at).is_some_and(|m| m.permissions.read && !m.permissions.write && !m.permissions.shared)
}

/// Whether it is code of a file. (Generated code comes and goes.)
fn is_code(maps: &[Mapping], at: Avma) -> bool {
    mapping_at(maps, at).is_some_and(|m| {
        let permissions = m.permissions;
        permissions.execute && !permissions.write && matches!(m.name, MappingName::File { .. })
    })
}

/// Whether the process is as `new` takes it to be.
pub(crate) fn verify(attached: &AttachedProcess, new: &Incoming<'_>) -> Result<(), ProcessError> {
    let assumes = &new.version.assumes;
    if assumes.is_empty() {
        return Ok(());
    }
    let (pid, module) = (attached.target().pid(), &attached.target().modules[new.module]);
    let maps = procfs::maps(pid)?;
    let memory = Memory::open_read_only(pid)?;
    let translation = AddressTranslation::new(attached);
    let at = |b: &BoundSlot| module.bias.to_actual(b.slot);
    let requests: Vec<(Avma, usize)> = assumes.iter().map(|b| (at(b), 8)).collect();
    for (bound, held) in assumes.iter().zip(memory.read_many(&requests)) {
        let held = held.and_then(|b| b.try_into().ok()).map(u64::from_le_bytes).map(Avma::new);
        let leads_there =
            held.and_then(|held| translation.of(held)) == Some(module.bias.to_actual(bound.target));
        if !leads_there || !is_read_only(&maps, at(bound)) {
            return Err(ProcessError::Unbound { pid, at: at(bound), module: module.path.clone() });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::target::Target;

    /// Our own process: its C library is bound to itself and the loader, and whatever it is bound to is
    /// there.
    #[test]
    fn slots_of_a_live_process_lead_to_code() {
        let target = Target::open(std::process::id() as i32).expect("our own");
        let maps = procfs::maps(target.pid()).expect("our own");
        let memory = Memory::open_read_only(target.pid()).expect("our own");
        for module in &target.modules {
            let all = bound_slots_of(module, &maps, &memory, Some);
            assert!(all.is_sorted_by(|a, b| a.slot < b.slot), "{}", module.path.display());
            for b in &all {
                let to = module.bias.to_actual(b.target);
                assert!(target.module_at(to).is_some(), "{} is no code", to);
            }
        }
        let is_dynamic = !target.modules[target.program].image.is_static();
        let any = target.modules.iter().any(|m| !bound_slots_of(m, &maps, &memory, Some).is_empty());
        assert!(any || !is_dynamic, "a dynamic program has bound slots");
    }

    #[test]
    fn a_writable_page_and_a_shared_one_are_not_bound() {
        let line = |text: &str| procfs::parse_maps(text.as_bytes()).expect("a line of a memory map");
        let at = Avma::new(0x1008);
        assert!(is_read_only(&line("1000-2000 r--p 00000000 08:01 7 /lib/a.so\n"), at));
        assert!(!is_read_only(&line("1000-2000 rw-p 00000000 08:01 7 /lib/a.so\n"), at));
        assert!(!is_read_only(&line("1000-2000 r--s 00000000 08:01 7 /lib/a.so\n"), at));
        assert!(!is_read_only(&line("2000-3000 r--p 00000000 08:01 7 /lib/a.so\n"), at));
        assert!(is_code(&line("1000-2000 r-xp 00000000 08:01 7 /lib/a.so\n"), at));
        assert!(!is_code(&line("1000-2000 r-xp 00000000 00:00 0\n"), at));
    }
}
