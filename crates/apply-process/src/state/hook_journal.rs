//! What the journal knows of the unwinder's hook: everything that is needed to put it in force, to extend its
//! table, and to take it out, also by a later run.

use crate::entry_patch::{LEN, written};
use crate::state::state_file::{is_place, is_range};
use restitch_address::{Avma, AvmaRange};
use restitch_x86::LONGEST;
use restitch_x86::patch::Patch;
use serde::{Deserialize, Serialize};

/// Length of the hook's pages with code and table: never writable.
pub(crate) const CODE_LEN: u64 = 0x2000;
/// Where in them the table begins.
pub(crate) const TABLE_AT: u64 = 0x800;
/// Length of one of its rows.
pub(crate) const ENTRY_LEN: u64 = 40;
/// Rows for versions: row 0 is the page itself, and one stays zero, the end mark.
pub(crate) const MOST_ENTRIES: usize = ((CODE_LEN - TABLE_AT) / ENTRY_LEN) as usize - 2;

/// Most bytes of instructions that a detour can have moved: the jump's bytes but one, and the longest
/// instruction.
const MOST_BOUNDARY: usize = LEN - 1 + LONGEST;

/// The unwinder's hook.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct JournalHook {
    /// The page with hook code and version table; its data follow.
    pub page: u64,
    /// Length of both.
    pub len: u64,
    /// The pointer in the dynamic loader's data that leads to it; 0 if there is none.
    pub slot: u64,
    /// The pointer's original value.
    pub original: u64,
    /// Link map of the program, which the table's entries name.
    pub link_map: u64,
    /// The version number in each row of the table; 0 for a row that is free.
    pub rows: Vec<u32>,
    /// Changes with every change of the rows.
    pub generation: u64,
    /// The page's bytes up to the table, as hexadecimal digits.
    pub fixed: String,
    /// Functions whose first bytes lead to it.
    pub detours: Vec<JournalDetour>,
    /// The loader's `struct r_debug_extended`, which leads debuggers to the list of versions; 0 if it has
    /// another form.
    pub debugger: u64,
}

/// A function whose first bytes lead to the hook.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct JournalDetour {
    /// The function.
    pub at: u64,
    /// Its first bytes.
    #[serde(with = "written")]
    pub original: Patch,
    /// The jump that is to be there.
    #[serde(with = "written")]
    pub now: Patch,
    /// Where the overwritten instructions were moved.
    pub trampoline: u64,
    /// Offsets of these instructions.
    pub boundaries: Vec<u8>,
}

impl JournalHook {
    /// The pages with code and table.
    pub(crate) fn code(&self) -> AvmaRange {
        AvmaRange::new(Avma::new(self.page), CODE_LEN)
    }

    /// Start of the data.
    pub(crate) fn data(&self) -> Avma {
        Avma::new(self.page) + CODE_LEN
    }

    /// All of it.
    pub(crate) fn range(&self) -> AvmaRange {
        AvmaRange::new(Avma::new(self.page), self.len)
    }

    /// Keeps the page's bytes up to the table.
    pub(crate) fn set_fixed(&mut self, bytes: &[u8]) {
        self.fixed = bytes.iter().take(TABLE_AT as usize).map(|b| format!("{b:02x}")).collect();
    }

    /// The page's bytes up to the table; `None` if the journal was damaged.
    pub(crate) fn fixed(&self) -> Option<Vec<u8>> {
        let digits = self.fixed.as_bytes().chunks(2);
        let bytes: Option<Vec<u8>> =
            digits.map(|d| u8::from_str_radix(std::str::from_utf8(d).ok()?, 16).ok()).collect();
        bytes.filter(|b| b.len() == TABLE_AT as usize)
    }

    /// What no hook in a process can be.
    pub(crate) fn flaw(&self) -> Option<String> {
        let places = [self.slot, self.debugger];
        let is_detour = |d: &JournalDetour| {
            let is_offset = |offset: &u8| usize::from(*offset) <= MOST_BOUNDARY;
            is_place(d.at, LEN as u64) && is_place(d.trampoline, 0) && d.boundaries.iter().all(is_offset)
        };
        if !is_range(self.page, self.len) || self.len < CODE_LEN || !places.iter().all(|at| is_place(*at, 8))
        {
            return Some("the place of the unwinders' hook is not possible".into());
        }
        if self.rows.len() > MOST_ENTRIES || !self.detours.iter().all(is_detour) {
            return Some("the unwinders' hook is not possible".into());
        }
        self.fixed().is_none().then(|| "the bytes of the unwinders' hook are cut short".into())
    }

    /// Gives each of `versions` a row and frees the rows of others. A freed row is used again only if nobody
    /// stands in the routine (`busy`): it would read a row that is half the one and half the other.
    pub(crate) fn assign(&mut self, versions: &[u32], busy: bool) {
        for row in &mut self.rows {
            if !versions.contains(row) {
                *row = 0;
            }
        }
        for number in versions {
            if self.rows.contains(number) {
                continue;
            }
            match self.rows.iter().position(|r| *r == 0).filter(|_| !busy) {
                Some(free) => self.rows[free] = *number,
                None if self.rows.len() < MOST_ENTRIES => self.rows.push(*number),
                None => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_never_move_and_are_reused_only_when_nobody_looks() {
        let mut h = JournalHook { rows: vec![1, 2], ..JournalHook::default() };
        h.assign(&[2, 3], true);
        assert_eq!(h.rows, [0, 2, 3]);
        h.assign(&[2, 3, 4], false);
        assert_eq!(h.rows, [4, 2, 3]);
        h.assign(&[], true);
        assert_eq!(h.rows, [0, 0, 0]);
    }

    #[test]
    fn a_damaged_page_is_no_page() {
        let mut h = JournalHook::default();
        assert_eq!(h.fixed(), None);
        let bytes: Vec<u8> = (0..TABLE_AT).map(|i| i as u8).collect();
        h.set_fixed(&bytes);
        assert_eq!(h.fixed(), Some(bytes));
        h.fixed.replace_range(6..7, "x");
        assert_eq!(h.fixed(), None);
        h.fixed = "00".into();
        assert_eq!(h.fixed(), None);
    }
}
