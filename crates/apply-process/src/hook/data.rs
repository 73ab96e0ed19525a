//! The hook's data: names of versions, and a list of them for debuggers. It is writable and never executable.
//!
//! Problem: gdb learns of code from the loader's list of objects. Idea: glibc 2.35 and later announce further
//! lists (the namespaces of `dlmopen`) behind the first: `struct r_debug_extended` has a version number, 2
//! with such lists, and a pointer to the next one. One more list, in this data, names the versions; gdb 13
//! and later read it when they attach.
//!
//! The program is not disturbed: the loader walks lists of its own, and appends to this chain only, through
//! the last list's pointer. That may be ours, which is why the data is writable; and it may hold the chain's
//! next list when ours is taken out. Ours comes right behind the first list, so that the pointer which leads
//! to it is the first list's.
//!
//! Reference: glibc, `include/link.h` (`struct r_debug_extended`), `elf/dl-debug.c`; gdb, `svr4_current_sos`.

use crate::state::hook_journal::MOST_ENTRIES;
use restitch_address::Avma;

/// Length of the data.
pub(crate) const DATA_LEN: u64 = 0xd000;
/// `struct r_debug_extended` is at the start.
const LIST_LEN: u64 = 48;
/// Its members (include/link.h).
const R_MAP: u64 = 8;
/// Offset of `r_next` in `struct r_debug_extended`.
pub(crate) const R_NEXT: u64 = 40;
/// Name of the hook's own page, as `dl_iterate_phdr` reports it.
const OWN_NAME_AT: u64 = 0x40;
const OWN_NAME: &[u8] = b"[restitch]\0";
/// `struct link_map`, the public part, one for each row.
const NODES_AT: u64 = 0x100;
const NODE_LEN: u64 = 64;
/// Names, one for each row.
const NAMES_AT: u64 = 0x3000;
const NAME_LEN: u64 = 256;

const _: () = assert!(NODES_AT + NODE_LEN * MOST_ENTRIES as u64 <= NAMES_AT);
const _: () = assert!(NAMES_AT + NAME_LEN * MOST_ENTRIES as u64 <= DATA_LEN);

/// A version in a row.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Named<'a> {
    /// Its first address.
    pub start: Avma,
    /// Its file.
    pub path: &'a [u8],
}

/// Address of the name of row `row`.
pub(crate) fn name(data: Avma, row: usize) -> Avma {
    data + NAMES_AT + NAME_LEN * row as u64
}

/// Address of the name of the hook's page.
pub(crate) fn own_name(data: Avma) -> Avma {
    data + OWN_NAME_AT
}

/// A link map for lookups in programs that have none: that of row 0.
pub(crate) fn link_map(data: Avma) -> Avma {
    data + NODES_AT
}

/// What has to be written so that the data at `data` names `rows`: addresses and bytes. The list's head, but
/// for `r_map`, is [`head`].
pub(crate) fn contents(data: Avma, rows: &[Option<Named<'_>>]) -> Vec<(Avma, Vec<u8>)> {
    let mut nodes = vec![0u8; (NODE_LEN as usize) * rows.len()];
    let mut names = vec![0u8; (NAME_LEN as usize) * rows.len()];
    let used: Vec<usize> = (0..rows.len()).filter(|i| rows[*i].is_some()).collect();
    let node = |i: Option<&usize>| i.map_or(0, |i| (data + NODES_AT + NODE_LEN * *i as u64).get());
    for (n, &i) in used.iter().enumerate() {
        let Some(version) = rows[i] else { continue };
        let (previous, next) = (n.checked_sub(1).and_then(|p| used.get(p)), used.get(n + 1));
        // l_addr, l_name, l_ld, l_next, l_prev. A version has no dynamic section; its address only must not
        // be null.
        let start = version.start.get();
        let words = [start, name(data, i).get(), start, node(next), node(previous)];
        for (j, word) in words.into_iter().enumerate() {
            let at = i * NODE_LEN as usize + 8 * j;
            nodes[at..at + 8].copy_from_slice(&word.to_le_bytes());
        }
        let at = i * NAME_LEN as usize;
        let len = version.path.len().min(NAME_LEN as usize - 1);
        names[at..at + len].copy_from_slice(&version.path[..len]);
    }
    vec![
        (data + OWN_NAME_AT, OWN_NAME.to_vec()),
        (data + NAMES_AT, names),
        (data + NODES_AT, nodes),
        (data + R_MAP, node(used.first()).to_le_bytes().to_vec()),
    ]
}

/// The list's head: `first` holds the bytes of the loader's own. Its `r_map` is zero until [`contents`] are
/// written.
pub(crate) fn head(first: &[u8; LIST_LEN as usize], next: u64) -> [u8; LIST_LEN as usize] {
    let mut out = *first;
    out[..4].copy_from_slice(&2u32.to_le_bytes());
    out[R_MAP as usize..R_MAP as usize + 8].fill(0);
    // r_state: RT_CONSISTENT.
    out[24..28].fill(0);
    out[R_NEXT as usize..].copy_from_slice(&next.to_le_bytes());
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nodes_of_used_rows_are_chained_both_ways() {
        let data = Avma::new(0x5000_0000);
        let version = |start| Some(Named { start: Avma::new(start), path: b"/a/b" });
        let written = contents(data, &[None, version(0x1000), None, version(0x2000)]);
        let node = |row: u64| data.get() + NODES_AT + NODE_LEN * row;
        let word = |at: u64| {
            let (start, bytes) = written
                .iter()
                .find(|(s, b)| s.get() <= at && at + 8 <= s.get() + b.len() as u64)
                .expect("written");
            let from = (at - start.get()) as usize;
            u64::from_le_bytes(bytes[from..from + 8].try_into().expect("8 bytes"))
        };
        assert_eq!(word(data.get() + R_MAP), node(1));
        let fields = |row: u64| [0, 8, 24, 32].map(|o| word(node(row) + o));
        assert_eq!(fields(1), [0x1000, name(data, 1).get(), node(3), 0]);
        assert_eq!(fields(3), [0x2000, name(data, 3).get(), 0, node(1)]);
        assert_eq!(word(name(data, 3).get()).to_le_bytes(), *b"/a/b\0\0\0\0");
    }

    #[test]
    fn a_long_name_is_cut_and_still_ends() {
        let data = Avma::new(0x5000_0000);
        let written = contents(data, &[Some(Named { start: Avma::new(1), path: &[b'x'; 999] }), None]);
        let names = &written.iter().find(|w| w.0 == name(data, 0)).expect("written").1;
        assert_eq!(names[NAME_LEN as usize - 2..NAME_LEN as usize + 1], [b'x', 0, 0]);
    }

    #[test]
    fn the_head_is_the_loaders_with_another_map() {
        let mut first = [7u8; 48];
        first[..4].copy_from_slice(&1u32.to_le_bytes());
        let head = head(&first, 0x1234);
        assert_eq!(head[..4], 2u32.to_le_bytes());
        assert_eq!(head[8..16], [0; 8]);
        assert_eq!(head[16..24], [7; 8]);
        assert_eq!(head[40..], 0x1234u64.to_le_bytes());
    }
}
