//! The detours of a hook: which functions of the process get one.

use crate::entry_patch::{crosses_page, jump};
use crate::hook::detour::Displaced;
use crate::hook::page::{FIND_AT, FIND_TRAMPOLINE_AT, ITERATE_TRAMPOLINE_AT};
use crate::hook::sites::{Function, Sites, unwind_info};
use crate::state::hook_journal::JournalDetour;
use crate::target::Target;
use restitch_address::Avma;
use restitch_cfi::UnwindInfo;

/// A detoured function with what its module says of it.
pub(crate) struct Detoured {
    /// Where it is.
    function: Function,
    /// Offset of its routine in the hook's page.
    pub routine: u64,
    /// Offset there of the trampoline.
    trampoline: u64,
    /// Its beginning.
    pub displaced: Displaced,
    /// The unwind tables of its module.
    pub unwind: UnwindInfo,
}

/// Displaces the beginnings of all of `sites` that are functions, for the hook at `page`. The error says why
/// one cannot be.
pub(crate) fn detoured(target: &Target, sites: &Sites, page: Avma) -> Result<Vec<Detoured>, String> {
    let mut out = Vec::new();
    for (function, routine) in sites.detours() {
        let module = &target.modules[function.module];
        let (name, trampoline) = match routine {
            FIND_AT => ("_dl_find_object", FIND_TRAMPOLINE_AT),
            _ => ("dl_iterate_phdr", ITERATE_TRAMPOLINE_AT),
        };
        let refused = |why: String| format!("{name} in {} cannot be hooked: {why}", module.path.display());
        let unwind = unwind_info(module).ok_or_else(|| refused("it has no unwind tables".into()))?;
        let to = module.bias.to_stated(page + trampoline);
        let displaced = Displaced::new(&module.image, &unwind, function.at, to).map_err(refused)?;
        out.push(Detoured { function, routine, trampoline, displaced, unwind });
    }
    Ok(out)
}

impl Detoured {
    /// The journal's record of it.
    pub fn journal(&self, target: &Target, page: Avma) -> Result<JournalDetour, String> {
        let at = target.modules[self.function.module].bias.to_actual(self.function.at);
        let now = jump(at, page + self.routine).filter(|_| !crosses_page(at));
        Ok(JournalDetour {
            at: at.get(),
            original: self.displaced.original,
            now: now.ok_or("the unwinders' lookup function cannot take a jump to the hook")?,
            trampoline: (page + self.trampoline).get(),
            boundaries: self.displaced.boundaries.clone(),
        })
    }
}
