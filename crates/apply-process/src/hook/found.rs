//! The hook that a process has, whatever its journal says.

use crate::hook::data::DATA_LEN;
use crate::hook::detours::detoured;
use crate::hook::page::{self, GENERATION_AT, ORIGINAL_AT};
use crate::hook::sites::{FindSite, Sites, read_page};
use crate::host::CodeMemory;
use crate::state::hook_journal::JournalHook;
use crate::state::hook_journal::{CODE_LEN, TABLE_AT};
use crate::target::Target;
use restitch_address::Avma;
use restitch_tracee::Memory;

/// The hook of a process whose journal does not know of it: something there leads to a page of ours.
pub(crate) fn recognise(target: &Target, memory: &Memory) -> Option<JournalHook> {
    let mut read = |at| memory.read_u64(at).ok();
    let sites = Sites::find(target, &mut read);
    let page = sites.page_in_force(target, &mut read)?;
    let bytes = read_page(page, &mut read)?;
    let word = |at: u64| bytes[at as usize..].first_chunk().map_or(0, |b| u64::from_le_bytes(*b));
    let mut hook = JournalHook {
        page: page.get(),
        len: CODE_LEN + DATA_LEN,
        original: word(ORIGINAL_AT),
        link_map: word(TABLE_AT + 16),
        generation: word(GENERATION_AT) >> 32,
        debugger: sites.debugger.map_or(0, Avma::get),
        ..JournalHook::default()
    };
    if let Some(FindSite::Pointer(slot)) = sites.find {
        hook.slot = slot.get();
    }
    hook.set_fixed(&bytes);
    let detoured = detoured(target, &sites, page).ok()?;
    hook.detours = detoured.iter().filter_map(|d| d.journal(target, page).ok()).collect();
    Some(hook)
}

/// Whether what the journal's hook names is there, or is the untouched memory that was mapped for it.
pub(crate) fn is_there(hook: &JournalHook, memory: &impl CodeMemory) -> bool {
    let bytes = memory.read_vec(Avma::new(hook.page), CODE_LEN as usize).unwrap_or_default();
    page::is_ours(&bytes) || (!bytes.is_empty() && bytes.iter().all(|b| *b == 0))
}
