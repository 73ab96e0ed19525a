//! Writing code page by page, and what a page of code is to hold.
//!
//! A counting version of a large program has tens of thousands of redirects. Written one by one they cost two
//! system calls each; read, changed and written page by page they cost little more than the copies of the
//! pages that the kernel has to make anyway. A page is written in one piece, and no redirect crosses pages,
//! so a kill leaves whole redirects only.

use crate::entry_patch::{LEN, destination};
use crate::error::ProcessError;
use crate::host::CodeMemory;
use crate::overlay::foreign_code;
use crate::patches::PatchSet;
use crate::state::journal::Journal;
use restitch_address::{Avma, AvmaRange, PAGE};
use restitch_x86::patch::{BREAKPOINT, Patch};
use std::collections::{BTreeMap, BTreeSet};

/// Most bytes that one write call takes.
const MOST_RUN: usize = 1 << 20;

/// The address and the bytes of a page.
pub(crate) type Page = (Avma, Vec<u8>);

/// What one place is to hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Site {
    /// The file's bytes.
    pub original: Patch,
    /// What is to be there.
    pub now: Patch,
}

/// All places that may change, sorted. None crosses a page.
#[derive(Debug, Clone, Default)]
pub(crate) struct Sites(Vec<(Avma, Site)>);

impl Sites {
    /// What the journal lists goes back, unless it is wanted.
    pub fn new(journal: &Journal, patches: &PatchSet) -> Self {
        let mut out: BTreeMap<Avma, Site> = BTreeMap::new();
        for p in &journal.patches {
            out.insert(Avma::new(p.at), Site { original: p.original, now: p.original });
        }
        for (&at, &(original, now)) in &patches.wanted {
            out.insert(at, Site { original, now });
        }
        // The hook's detours stay as long as the hook does.
        for d in journal.hook.iter().flat_map(|h| &h.detours) {
            out.insert(Avma::new(d.at), Site { original: d.original, now: d.now });
        }
        Self(out.into_iter().collect())
    }

    fn within(&self, range: AvmaRange) -> &[(Avma, Site)] {
        let from = self.0.partition_point(|s| s.0 < range.start);
        let to = self.0.partition_point(|s| s.0 < range.end);
        &self.0[from..to.max(from)]
    }

    /// Whether there are places in `range`.
    pub fn any_in(&self, range: AvmaRange) -> bool {
        !self.within(range).is_empty()
    }

    /// The places in the page at `page`.
    pub fn of_page(&self, page: Avma) -> &[(Avma, Site)] {
        self.within(AvmaRange::new(page, PAGE))
    }

    /// The first addresses of the pages of `range` that have places, ascending.
    pub fn pages_in(&self, range: AvmaRange) -> impl Iterator<Item = Avma> + '_ {
        let mut last = None;
        let pages = self.within(range).iter().map(|(at, _)| at.align_down(PAGE));
        pages.filter(move |page| last.replace(*page) != Some(*page))
    }

    /// The page at `page` with the file's bytes at all places.
    pub fn restored(&self, page: Avma, mut bytes: Vec<u8>) -> Vec<u8> {
        for (at, site) in self.of_page(page) {
            let from = at.offset_from(page) as usize;
            bytes[from..from + LEN].copy_from_slice(site.original.bytes());
        }
        bytes
    }

    /// The file's bytes at `at`, if it is one of the places.
    pub fn original(&self, at: Avma) -> Option<Patch> {
        self.0.binary_search_by_key(&at, |s| s.0).ok().map(|i| self.0[i].1.original)
    }

    /// The places outside `ranges`, with the file's bytes wanted at those of `forbidden`.
    pub fn outside(&self, ranges: &[AvmaRange], forbidden: &BTreeSet<Avma>) -> Self {
        let outside = self.0.iter().filter(|(at, _)| !ranges.iter().any(|r| r.contains(*at)));
        let site = |(at, site): &(Avma, Site)| match forbidden.contains(at) {
            true => (*at, Site { now: site.original, ..*site }),
            false => (*at, *site),
        };
        Self(outside.map(site).collect())
    }
}

/// Lays `sites` into the bytes of the page at `start`; whether that changes any.
///
/// Restores go first: an old redirect may overlap a new one.
pub(crate) fn lay(
    journal: &Journal,
    start: Avma,
    bytes: &mut [u8],
    sites: &[(Avma, Site)],
) -> Result<bool, ProcessError> {
    let mut changed = false;
    let place = |at: Avma| {
        let from = at.offset_from(start) as usize;
        from..from + LEN
    };
    for (at, site) in sites {
        let there = &mut bytes[place(*at)];
        let leads = |found| found != site.now && leads_into_version(journal, *at, found);
        if Patch::beginning_of(there).is_some_and(leads) {
            there.copy_from_slice(site.original.bytes());
            changed = true;
        }
    }
    // Only now: what is between two of them was a part of the other one.
    for (at, site) in sites {
        let found = Patch::beginning_of(&bytes[place(*at)]).filter(|found| *found != site.now);
        if let Some(found) = found {
            refuse_foreign(journal, *at, found, site.original)?;
            changed = true;
        }
    }
    for (at, site) in sites.iter().filter(|(_, site)| site.now != site.original) {
        bytes[place(*at)].copy_from_slice(site.now.bytes());
    }
    Ok(changed)
}

/// Writes what has to change at `sites`. The pages that were written come back, as they have to read back.
pub(crate) fn write_sites(
    journal: &Journal,
    memory: &impl CodeMemory,
    sites: &Sites,
) -> Result<Vec<Page>, ProcessError> {
    let everywhere = AvmaRange::between(Avma::new(0), Avma::new(u64::MAX));
    let requests: Vec<(Avma, usize)> = sites.pages_in(everywhere).map(|page| (page, PAGE as usize)).collect();
    let mut pages = Vec::new();
    for ((start, len), bytes) in requests.iter().zip(memory.read_many(&requests)) {
        let mut bytes = match bytes {
            Some(bytes) => bytes,
            None => memory.read_vec(*start, *len)?,
        };
        if lay(journal, *start, &mut bytes, sites.of_page(*start))? {
            pages.push((*start, bytes));
        }
    }
    write_runs(memory, &pages)?;
    Ok(pages)
}

/// Writes `jumps` into a version, page by page. A jump that crosses pages is left out.
pub(crate) fn write_jumps(memory: &impl CodeMemory, jumps: &[(Avma, Patch)]) -> Result<(), ProcessError> {
    let mut by_page: BTreeMap<Avma, Vec<(usize, Patch)>> = BTreeMap::new();
    for (at, bytes) in jumps {
        let page = at.align_down(PAGE);
        let from = at.offset_from(page) as usize;
        if from + LEN <= PAGE as usize {
            by_page.entry(page).or_default().push((from, *bytes));
        }
    }
    let requests: Vec<(Avma, usize)> = by_page.keys().map(|page| (*page, PAGE as usize)).collect();
    let contents = memory.read_many(&requests);
    let mut pages = Vec::with_capacity(contents.len());
    for ((page, jumps), content) in by_page.into_iter().zip(contents) {
        let Some(mut content) = content else { continue };
        for (from, bytes) in jumps {
            content[from..from + LEN].copy_from_slice(bytes.bytes());
        }
        pages.push((page, content));
    }
    write_runs(memory, &pages)
}

/// Writes neighbouring pages together.
pub(crate) fn write_runs(memory: &impl CodeMemory, pages: &[Page]) -> Result<(), ProcessError> {
    let mut run: (Avma, Vec<u8>) = (Avma::new(0), Vec::new());
    for (start, bytes) in pages {
        let follows = run.0 + run.1.len() as u64 == *start;
        if !follows || run.1.len() >= MOST_RUN {
            flush(memory, &run)?;
            run = (*start, Vec::new());
        }
        run.1.extend_from_slice(bytes);
    }
    flush(memory, &run)
}

fn flush(memory: &impl CodeMemory, run: &(Avma, Vec<u8>)) -> Result<(), ProcessError> {
    if !run.1.is_empty() {
        memory.write(run.0, &run.1)?;
    }
    Ok(())
}

/// What is there has to be the file's bytes or a jump of ours into a version.
fn refuse_foreign(journal: &Journal, at: Avma, found: Patch, original: Patch) -> Result<(), ProcessError> {
    if found == original || leads_into_version(journal, at, found) {
        return Ok(());
    }
    Err(foreign_code(journal.process().pid, at, found.bytes().into(), original.bytes().into()))
}

/// Whether `found` at `at` is a jump into a version.
pub(crate) fn leads_into_version(journal: &Journal, at: Avma, found: Patch) -> bool {
    destination(at, found).is_some_and(|to| journal.versions.iter().any(|v| v.range().contains(to)))
}

/// Whether `found` is what was written, but for breakpoints (probes of the kernel) that have come or gone
/// since.
fn is_written(found: &[u8], written: &[u8]) -> bool {
    let same = |(a, b): (&u8, &u8)| a == b || [a, b].contains(&&BREAKPOINT);
    found.len() == written.len() && found.iter().zip(written).all(same)
}

/// Reads back what was written, at `sites`: what else is in these pages is the program's, which runs and may
/// change it.
pub(crate) fn verify(memory: &impl CodeMemory, pages: &[Page], sites: &Sites) -> Result<(), ProcessError> {
    let at_sites = |found: &[u8], (page, bytes): &Page| {
        found.len() == bytes.len()
            && sites.of_page(*page).iter().all(|(at, _)| {
                let from = at.offset_from(*page) as usize;
                is_written(&found[from..from + LEN], &bytes[from..from + LEN])
            })
    };
    let requests: Vec<_> = pages.iter().map(|(at, bytes)| (*at, bytes.len())).collect();
    let found = memory.read_many(&requests);
    let wrong: Vec<Avma> = found
        .into_iter()
        .zip(pages)
        .filter(|(found, page)| !found.as_deref().is_some_and(|found| at_sites(found, page)))
        .map(|(_, (at, _))| *at)
        .collect();
    match wrong.first() {
        None => Ok(()),
        Some(&at) => Err(ProcessError::NotVerified { pid: memory.pid(), count: wrong.len(), at }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::entry_patch::jump;
    use crate::state::journal::{JournalPatch, JournalVersion, VersionKind};
    use restitch_procfs::ProcessId;
    use restitch_tracee::Memory;

    const NOPS: Patch = Patch::new([0x90; LEN]);

    #[test]
    fn only_the_places_have_to_read_back() {
        let mut there = vec![0x90; 2 * PAGE as usize];
        let pid = std::process::id() as i32;
        let page = Avma::new(there.as_ptr() as u64).align_up(PAGE);
        let first = page.offset_from(Avma::new(there.as_ptr() as u64)) as usize;
        let site = Site { original: NOPS, now: Patch::new([0xe9, 1, 2, 3, 4]) };
        let sites = Sites(vec![(page + 64, site)]);
        let mut written = vec![0x90; PAGE as usize];
        written[64..64 + LEN].copy_from_slice(site.now.bytes());
        let pages = [(page, written)];
        there[first + 64..][..LEN].copy_from_slice(site.now.bytes());
        let read_back = || verify(&Memory::open_read_only(pid).expect("our own"), &pages, &sites);
        assert!(read_back().is_ok());
        // The program changes its own code beside it.
        there[first + 200] = 0xc3;
        assert!(read_back().is_ok());
        there[first + 66] = 0xc3;
        assert!(matches!(read_back(), Err(ProcessError::NotVerified { count: 1, .. })));
    }

    fn journal(patches: &[u64]) -> Journal {
        let mut journal = Journal::new(ProcessId { pid: 1, start_time: 1 });
        let patch = |at: &u64| JournalPatch { at: *at, original: NOPS, now: NOPS };
        journal.patches = patches.iter().map(patch).collect();
        journal
    }

    fn version(start: u64) -> JournalVersion {
        JournalVersion {
            number: 1,
            kind: VersionKind::Optimized,
            module: "/bin/true".into(),
            bias: 0,
            start,
            len: 4096,
            file: "version".into(),
            map_file: "map".into(),
            eh_frame_hdr: 0,
            counters: None,
            retired: false,
            by_pointers: false,
            slots: Vec::new(),
        }
    }

    fn wanted(at: &[u64]) -> PatchSet {
        let mut patches = PatchSet::default();
        patches.wanted.extend(at.iter().map(|at| (Avma::new(*at), (NOPS, Patch::new([0xe9, 1, 2, 3, 4])))));
        patches
    }

    #[test]
    fn sites_are_found_by_page_and_range() {
        let sites = Sites::new(&journal(&[0x1ffb, 0x5000]), &wanted(&[0x2000, 0x2010, 0x5000]));
        let range = |from, to| AvmaRange::between(Avma::new(from), Avma::new(to));
        let pages: Vec<u64> = sites.pages_in(range(0x1000, 0x9000)).map(Avma::get).collect();
        assert_eq!(pages, [0x1000, 0x2000, 0x5000]);
        assert_eq!(sites.of_page(Avma::new(0x2000)).len(), 2);
        assert!(!sites.any_in(range(0x3000, 0x5000)) && sites.any_in(range(0x5000, 0x5001)));
        let forbidden = BTreeSet::from([Avma::new(0x5000)]);
        let rest = sites.outside(&[range(0x2000, 0x3000)], &forbidden);
        assert_eq!(rest.0.len(), 2);
        assert!(rest.0.iter().all(|(_, site)| site.now == site.original));
    }

    #[test]
    fn an_old_redirect_under_a_new_one_goes_and_foreign_bytes_are_refused() {
        let mut bytes = vec![0x90; PAGE as usize];
        let journal = journal(&[0x1000]);
        let sites = Sites::new(&journal, &wanted(&[0x1003]));
        let start = Avma::new(0x1000);
        assert!(lay(&journal, start, &mut bytes, sites.of_page(start)).unwrap());
        assert_eq!(bytes[..9], [0x90, 0x90, 0x90, 0xe9, 1, 2, 3, 4, 0x90]);
        // The other way round, as a counting version's redirect follows that of a layout, with the old one
        // still there.
        let mut journal = journal;
        journal.patches[0].at = 0x1002;
        journal.versions = vec![version(0x40_0000)];
        let old = jump(Avma::new(0x1002), Avma::new(0x40_0010)).expect("in reach");
        let mut bytes = vec![0x90; PAGE as usize];
        bytes[2..7].copy_from_slice(old.bytes());
        let sites = Sites::new(&journal, &wanted(&[0x1000]));
        assert!(lay(&journal, start, &mut bytes, sites.of_page(start)).unwrap());
        assert_eq!(bytes[..8], [0xe9, 1, 2, 3, 4, 0x90, 0x90, 0x90]);
        bytes[6] = 0xcc;
        assert!(matches!(
            lay(&journal, start, &mut bytes, sites.of_page(start)),
            Err(ProcessError::Foreign { .. })
        ));
    }

    #[test]
    fn breakpoints_that_have_come_or_gone_are_no_failed_writes() {
        assert!(is_written(&[0x55, 0xe9, 1], &[0x55, 0xe9, 1]));
        assert!(is_written(&[0xcc, 0xe9, 1], &[0x55, 0xe9, 1]) && is_written(&[0x55, 0xe9], &[0xcc, 0xe9]));
        assert!(!is_written(&[0x55, 0x90, 1], &[0x55, 0xe9, 1]) && !is_written(&[0x55], &[0x55, 0xe9]));
    }
}
