//! Replacement mappings of code mappings, made before the stop and put in place by one system call each.
//!
//! Problem: tens of thousands of redirects written through `/proc/PID/mem` hold a process still for 10 to 60
//! ms, most of it spent by the kernel on copying pages. Idea: map the same file at the same offset once more
//! elsewhere, give that mapping the redirects while the process runs, and let `mremap(MREMAP_FIXED)` replace
//! the code mapping by it in the stop. That moves page tables, not bytes, happens whole or not at all, and
//! leaves `/proc/PID/maps` as it was. A replacement without any change gives a process its pristine code
//! back, private page copies included.
//!
//! What a replacement has to be: the same file (device and inode), offset, length, protection and kernel
//! flags as the mapping that it replaces; pages that are the process's own (earlier redirects, a debugger's
//! breakpoints) are carried over and compared once more in the stop. Where there are many and they hold
//! nothing but redirects, `mremap(MREMAP_DONTUNMAP)` lays the old code aside instead, and it is compared and
//! freed after the stop. Where any of that does not hold, the redirects are written page by page instead.
//!
//! Nothing ever leads into a replacement. A child that is forked off while there is one inherits it; the
//! records beside the version files tell where it is.
//!
//! Limits: `mremap` removes what it replaces before it moves, and fails in between if the process has as many
//! mappings as it may have; so a replacement needs room for a few more.

use crate::entry_patch::LEN;
use crate::error::ProcessError;
use crate::host::{CodeMemory, Exchange};
use crate::memory::writing::{Page, Sites, lay, write_runs};
use crate::state::hook_journal::JournalHook;
use crate::state::journal::{Journal, JournalReplacement};
use crate::stub::StubSite;
use restitch_address::{Avma, AvmaRange, PAGE};
use restitch_apply::Why;
use restitch_procfs::{self as procfs, GapRequest, Mapping, MappingName, Pagemap, find_gap};
use restitch_tracee::{Backing, Batch, Memory, Placement, Protection, RemoteFd};
use restitch_x86::patch::Patch;
use std::collections::BTreeSet;
use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;

/// Page tables move as wholes where both places have the same distance from a multiple of this.
const TABLE: u64 = 2 << 20;
/// How far from the code a replacement may be: anywhere, as nothing refers to it.
const REACH: u64 = 1 << 46;
/// Mappings that a process must be able to have more of.
const ROOM_FOR_MAPPINGS: usize = 64;
/// A read of one page brings its neighbours into the page table too (`fault_around_bytes` of the kernel).
const AROUND: usize = 16;
/// The first kernel whose MREMAP_DONTUNMAP takes mappings of files.
const KEEPS_FILES: (u32, u32) = (5, 13);
/// So many pages of the process's own are laid aside and compared after the stop, fewer are compared in it:
/// reading one there takes about 0.5 us, laying aside about 20 us.
const KEPT_FROM: usize = 48;

/// A mapping that is to be replaced, and where its replacement goes.
#[derive(Debug, Clone)]
pub(crate) struct PlannedReplacement {
    mapping: Mapping,
    at: Avma,
    /// Where the old code may go.
    keep: Avma,
    can_keep: bool,
}

/// A replacement that is in the process and holds the code that is to be.
#[derive(Debug)]
pub(crate) struct FilledReplacement {
    planned: PlannedReplacement,
    /// Pages of the process's own in the mapping, as they were when the replacement was filled.
    own: Vec<Page>,
    /// Pages that are to differ from the file.
    pages: Vec<Page>,
    /// The old code can be laid aside.
    can_keep: bool,
    /// It was.
    kept: bool,
}

/// Chooses a place for a replacement of each mapping that has `sites` in it; else the reason why there can be
/// none.
pub(crate) fn plan(
    maps: &[Mapping],
    sites: &Sites,
    taken: &[AvmaRange],
    heap_start: Option<Avma>,
) -> Vec<Result<PlannedReplacement, (Avma, String)>> {
    let mut busy: Vec<Mapping> = maps.to_vec();
    if let Some(model) = maps.first() {
        busy.extend(taken.iter().map(|range| Mapping { range: *range, ..model.clone() }));
    }
    let can_keep = procfs::system::kernel_version().is_some_and(|version| version >= KEEPS_FILES);
    let most = procfs::system::max_map_count().unwrap_or(usize::MAX);
    let mut out = Vec::new();
    for mapping in maps.iter().filter(|m| sites.any_in(m.range)) {
        let refuse = |why: &str| Err((mapping.range.start, why.to_owned()));
        let p = &mapping.permissions;
        if !(p.read && p.execute) || p.write || p.shared || mapping.inode == 0 {
            out.push(refuse("it is no private, read-only mapping of a file"));
            continue;
        }
        if maps.len() + ROOM_FOR_MAPPINGS > most {
            out.push(refuse("the process has nearly as many mappings as it may have (vm.max_map_count)"));
            continue;
        }
        busy.sort_by_key(|m| m.range.start);
        let request = GapRequest {
            align: TABLE,
            reach: REACH,
            heap_start,
            ..GapRequest::near(mapping.range, 2 * mapping.range.len().next_multiple_of(TABLE) + TABLE)
        };
        let Ok(gap) = find_gap(&busy, &request) else {
            out.push(refuse("its address space is full"));
            continue;
        };
        let at = gap.range.start + mapping.range.start.get() % TABLE;
        busy.push(Mapping { range: gap.range, ..mapping.clone() });
        let keep = at + mapping.range.len().next_multiple_of(TABLE);
        out.push(Ok(PlannedReplacement { mapping: mapping.clone(), at, keep, can_keep }));
    }
    out
}

impl PlannedReplacement {
    /// The addresses of the replacement.
    pub fn range(&self) -> AvmaRange {
        AvmaRange::new(self.at, self.mapping.range.len())
    }

    /// The first address of the mapping that it is for.
    pub fn replaces(&self) -> Avma {
        self.mapping.range.start
    }

    /// The journal's form: the replacement, and the old code laid aside.
    pub fn journal(&self) -> [JournalReplacement; 2] {
        [self.at, self.keep].map(|start| JournalReplacement {
            start: start.get(),
            len: self.mapping.range.len(),
            inode: self.mapping.inode,
            offset: self.mapping.offset.get(),
        })
    }

    fn kept_range(&self) -> AvmaRange {
        AvmaRange::new(self.keep, self.mapping.range.len())
    }

    /// A name by which the process can open the file. The program itself is still there for the process when
    /// its file was replaced.
    pub fn file(&self) -> CString {
        let path = match &self.mapping.name {
            MappingName::File { path, deleted: false } => CString::new(path.as_os_str().as_bytes()),
            _ => CString::new("/proc/self/exe"),
        };
        path.unwrap_or_default()
    }

    /// The mapping that it is for.
    #[cfg(test)]
    pub fn mapping(&self) -> &Mapping {
        &self.mapping
    }

    /// Maps it, empty as yet.
    pub fn map(&self, batch: &mut Batch, fd: RemoteFd) {
        let backing = Backing::Private(fd, self.mapping.offset);
        batch.mmap(Placement::At(self.at), self.range().len(), Protection::ReadExecute, backing);
    }

    fn in_replacement(&self, at: Avma) -> Avma {
        self.at + at.offset_from(self.mapping.range.start) as u64
    }

    /// Gives the replacement the code that is to be, and reads it back. `stub`: where a borrowed thread's
    /// stub will be while the mappings are exchanged.
    pub fn fill(
        self,
        journal: &Journal,
        memory: &impl CodeMemory,
        sites: &Sites,
        stub: &StubSite,
    ) -> Result<Result<FilledReplacement, (Avma, Why)>, ProcessError> {
        let replaces = self.replaces();
        if let Err(why) = memory.shows_the_same(&self.mapping, self.range()) {
            return Ok(Err((replaces, why)));
        }
        let own = match self.own_pages(memory) {
            Ok(own) => own,
            Err(why) => return Ok(Err((replaces, why))),
        };
        let Some((pages, only_ours)) = self.lay_out(journal, memory, sites, &own)? else {
            return Ok(Err((replaces, "what its file holds cannot be read".into())));
        };
        let can_keep =
            self.can_keep && only_ours && own.len() >= KEPT_FROM && !self.mapping.range.contains(stub.at);
        Ok(match self.write(memory, &pages, stub) {
            Ok(()) => Ok(FilledReplacement { planned: self, own, pages, can_keep, kept: false }),
            Err(why) => Err((replaces, why)),
        })
    }

    /// The pages of the mapping that are the process's own.
    fn own_pages(&self, memory: &impl CodeMemory) -> Result<Vec<Page>, Why> {
        let own = memory.own_pages(self.mapping.range)?;
        let requests: Vec<_> = own.iter().map(|at| (*at, PAGE as usize)).collect();
        let contents: Option<Vec<_>> = memory.read_many(&requests).into_iter().collect();
        Ok(own.into_iter().zip(contents.ok_or("its pages cannot be read")?).collect())
    }

    /// The pages that are to differ from the file, and whether they differ now in nothing but redirects; none
    /// if a page of the process's own would be lost.
    fn lay_out(
        &self,
        journal: &Journal,
        memory: &impl CodeMemory,
        sites: &Sites,
        own: &[Page],
    ) -> Result<Option<(Vec<Page>, bool)>, ProcessError> {
        let mut starts: BTreeSet<Avma> = sites.pages_in(self.mapping.range).collect();
        starts.extend(own.iter().map(|page| page.0));
        let requests: Vec<_> = starts.iter().map(|at| (self.in_replacement(*at), PAGE as usize)).collect();
        let (mut out, mut only_ours) = (Vec::new(), true);
        for (at, pristine) in starts.into_iter().zip(memory.read_many(&requests)) {
            let own = own.binary_search_by_key(&at, |page| page.0).ok().map(|i| &own[i].1);
            let Some(pristine) = pristine else {
                if own.is_some() {
                    return Ok(None);
                }
                // Pages behind the end of a file that has become shorter: whoever touches them gets SIGBUS
                // anyway.
                continue;
            };
            let mut page = own.unwrap_or(&pristine).clone();
            only_ours &= sites.restored(at, page.clone()) == pristine;
            lay(journal, at, &mut page, sites.of_page(at))?;
            if page != pristine {
                out.push((at, page));
            }
        }
        Ok(Some((out, only_ours)))
    }

    /// Writes the pages, compares, and makes the kernel enter into the page table what is in use.
    fn write(&self, memory: &impl CodeMemory, pages: &[Page], stub: &StubSite) -> Result<(), Why> {
        let there: Vec<Page> =
            pages.iter().map(|(at, bytes)| (self.in_replacement(*at), bytes.clone())).collect();
        write_runs(memory, &there)?;
        let requests: Vec<_> = there.iter().map(|(at, bytes)| (*at, bytes.len())).collect();
        let found = memory.read_many(&requests);
        if found.iter().zip(&there).any(|(found, (_, wanted))| found.as_ref() != Some(wanted)) {
            return Err("what was written to the replacement did not read back".into());
        }
        if self.mapping.range.contains(stub.at) {
            memory.write(self.in_replacement(stub.at), &stub.code())?;
        }
        memory.touch_used(self.mapping.range, self.range())
    }
}

/// Whether `replacement` shows the same as the mapping `wanted`, to the kernel's own mind.
pub(crate) fn is_exact(pid: i32, wanted: &Mapping, replacement: AvmaRange) -> Result<(), Why> {
    let maps = procfs::maps(pid)?;
    let found = maps.iter().find(|m| m.range == replacement).ok_or("the replacement is not there")?;
    let same_file = (found.device, found.inode, found.offset) == (wanted.device, wanted.inode, wanted.offset);
    if !same_file || found.permissions != wanted.permissions {
        return Err("the file that it shows can no longer be opened by its name".into());
    }
    if !maps.contains(wanted) {
        return Err("the mapping has changed".into());
    }
    let starts = [wanted.range.start, replacement.start];
    let flags = procfs::mapping_flags(pid, &starts)?;
    let [Some(theirs), Some(ours)] = <[_; 2]>::try_from(flags).unwrap_or_default() else {
        return Err("the kernel does not tell its flags".into());
    };
    match theirs == ours {
        true => Ok(()),
        false => Err(format!("its kernel flags are special ({theirs:?})").into()),
    }
}

/// Pages of `code` that the process has in its page table are read once in the replacement, so that the
/// process need not fault for them after the exchange.
pub(crate) fn touch_used(memory: &Memory, code: AvmaRange, replacement: AvmaRange) -> Result<(), Why> {
    let states = |range| Pagemap::open(memory.pid()).and_then(|map| map.states(range));
    let used = states(code)?;
    let there = states(replacement)?;
    let page = |block: usize| {
        let end = (block + AROUND).min(used.len());
        (block..end).find(|i| used[*i].present && !there[*i].present)
    };
    let pages = (0..used.len()).step_by(AROUND).filter_map(page);
    let requests: Vec<_> = pages.map(|page| (replacement.start + page as u64 * PAGE, 1)).collect();
    // A page that cannot be read is not used.
    memory.read_many(&requests);
    Ok(())
}

/// The pages of `range` that are the process's own, by its page table.
pub(crate) fn own_addresses(pid: i32, range: AvmaRange) -> Result<Vec<Avma>, Why> {
    let states = Pagemap::open(pid).and_then(|map| map.states(range))?;
    let own = states.iter().enumerate().filter(|(_, state)| state.is_own());
    Ok(own.map(|(i, _)| range.start + i as u64 * PAGE).collect())
}

/// Pages as they are once the hook's detours are in place.
fn with_detours(own: &[Page], hook: Option<&JournalHook>) -> Vec<Page> {
    let mut pages = own.to_vec();
    for detour in hook.iter().flat_map(|h| &h.detours) {
        let page = Avma::new(detour.at).align_down(PAGE);
        if let Ok(i) = pages.binary_search_by_key(&page, |p| p.0) {
            let from = Avma::new(detour.at).offset_from(page) as usize;
            pages[i].1[from..from + LEN].copy_from_slice(detour.now.bytes());
        }
    }
    pages
}

impl FilledReplacement {
    /// The addresses of the code that it replaces.
    pub fn replaces(&self) -> AvmaRange {
        self.planned.mapping.range
    }

    /// The addresses of the replacement.
    pub fn range(&self) -> AvmaRange {
        self.planned.range()
    }

    /// In the stop: whether the mapping and the process's own pages in it are still as planned on. What they
    /// hold is compared now if the old code cannot be laid aside; the detours of `hook` are in place already.
    pub fn still_fits(
        &mut self,
        maps: &[Mapping],
        memory: &impl CodeMemory,
        hook: Option<&JournalHook>,
    ) -> Result<(), Why> {
        if !maps.contains(&self.planned.mapping) || !maps.iter().any(|m| m.range == self.range()) {
            return Err("the mapping has changed meanwhile".into());
        }
        self.can_keep &= !maps.iter().any(|m| m.range.overlaps(&self.planned.kept_range()));
        let own = memory.own_pages(self.replaces())?;
        let same = own.iter().eq(self.own.iter().map(|page| &page.0));
        match same && (self.can_keep || memory.holds(&with_detours(&self.own, hook))) {
            true => Ok(()),
            false => Err("its code was changed meanwhile".into()),
        }
    }

    /// In the stop: leaves the original bytes at a site.
    pub fn leave_out(
        &mut self,
        memory: &impl CodeMemory,
        at: Avma,
        original: Patch,
    ) -> Result<(), ProcessError> {
        memory.write(self.planned.in_replacement(at), original.bytes())?;
        let page = at.align_down(PAGE);
        if let Ok(i) = self.pages.binary_search_by_key(&page, |page| page.0) {
            let from = at.offset_from(page) as usize;
            self.pages[i].1[from..from + LEN].copy_from_slice(original.bytes());
        }
        Ok(())
    }

    /// In the stop: puts it in place.
    ///
    /// Laying the old code aside leaves the pristine file in its place, which is right as well: only
    /// redirects differ.
    pub fn put_in_place(&mut self) -> Exchange {
        self.kept = self.can_keep;
        let aside = self.kept.then_some(self.planned.keep);
        Exchange { from: self.range(), to: self.replaces().start, aside }
    }

    /// After the stop: pages of the old code that somebody else has changed since the replacement was filled,
    /// as they are to be with that change.
    pub fn changed(
        &self,
        journal: &Journal,
        memory: &impl CodeMemory,
        sites: &Sites,
    ) -> Result<Vec<Page>, ProcessError> {
        let mut out = Vec::new();
        if !self.kept {
            return Ok(out);
        }
        let start = self.planned.mapping.range.start;
        let kept = |at: Avma| self.planned.keep + at.offset_from(start) as u64;
        let requests: Vec<_> = self.own.iter().map(|(at, bytes)| (kept(*at), bytes.len())).collect();
        for ((at, expected), found) in self.own.iter().zip(memory.read_many(&requests)) {
            if let Some(mut found) = found.filter(|found| found != expected) {
                lay(journal, *at, &mut found, sites.of_page(*at))?;
                out.push((*at, found));
            }
        }
        Ok(out)
    }

    /// The pages that have to read back after the stop.
    pub fn into_pages(self) -> Vec<Page> {
        self.pages
    }
}
