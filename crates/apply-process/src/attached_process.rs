//! A process under restitch: its target, its journal, and what is loaded in it.

use crate::entry_patch::{LEN, crosses_page, jump};
use crate::error::ProcessError;
use crate::hook;
use crate::lost_state::refuse_lost;
use crate::memory::counter_area::CounterArea;
use crate::memory::place::{self, merged};
use crate::memory::stray_pointers::StrayPointers;
use crate::state::journal::{Journal, JournalPatch, VersionKind};
use crate::state::locks::Lock;
use crate::state::map_file::StoredMap;
use crate::state::store::StateDir;
use crate::stub::settle;
use crate::target::{ImageCache, Module, Target, no_program};

use restitch_address::{Avma, AvmaRange, LoadBias, PAGE, Svma};
use restitch_check::CheckedVersion;
use restitch_emit::{Redirect, Vote};
use restitch_procfs::{self as procfs, GapRequest, Mapping};
use restitch_tracee::Memory;
use restitch_x86::patch::Patch;
use std::iter;

/// A process and everything that restitch has in it.
#[derive(Debug)]
pub struct AttachedProcess {
    pub(crate) target: Target,
    /// The same as it is now, if modules have gone or moved since.
    pub(crate) renewed: Option<Target>,
    /// What the journal lists was compared with the process since it was read, and since modules have last
    /// moved.
    pub(crate) compared: bool,
    pub(crate) dir: StateDir,
    pub(crate) journal: Journal,
    /// Counter areas of installed counting versions, windows of tracing ones.
    pub(crate) counters: Vec<CounterArea>,
    /// The process's lock, once it was taken.
    lock: Option<Lock>,
}

/// Distance in bytes that versions of libraries keep from the library downwards.
const DISTANCE: u64 = 1 << 30;
/// Where the kernel maps libraries, at the most randomization that it has, and static programs that are
/// position-independent. Other programs of that kind lie lower (at two thirds of the address space).
const LIBRARIES: Avma = Avma::new(0x6000_0000_0000);

/// Retired versions that may stay mapped: those of eight attaches to a program and its C library, a counting
/// version and a layout each.
const MOST_RETIRED: usize = 32;

/// A place for a version, held until the next call of [`AttachedProcess::reserve`] or
/// [`AttachedProcess::switch`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reservation {
    /// Number of the version to be.
    pub number: u32,
    /// Where it may start, in the module's coordinates.
    pub start: Svma,
    /// How many bytes may be mapped there.
    pub len: u64,
}

/// What a version of the module has to be near to, of at most `most` bytes: whole pages.
fn near(module: &Module, most: u64) -> Option<AvmaRange> {
    if module.range.len() <= most {
        return Some(module.range);
    }
    let near = module.image.span_within(most)?;
    let at = |at| module.bias.to_actual(at);
    Some(AvmaRange::between(at(near.start).align_down(PAGE), at(near.end).align_up(PAGE)))
}

impl AttachedProcess {
    /// Opens process `pid`: reads its memory map and, if it is under restitch already (or was forked off by a
    /// process that was), its journal.
    ///
    /// # Errors
    /// If the process cannot be read or the journal is damaged.
    pub fn open(pid: i32, dir: StateDir) -> Result<Self, ProcessError> {
        Self::open_with(pid, dir, &mut ImageCache::default())
    }

    /// The same with files that were read before: processes that share their modules share what was read of
    /// them.
    ///
    /// # Errors
    /// As for [`AttachedProcess::open`].
    pub fn open_with(pid: i32, dir: StateDir, images: &mut ImageCache) -> Result<Self, ProcessError> {
        let mut target = Target::open_even_moved(pid, images)?;
        let journal = find_journal(&dir, &target)?;
        if journal.is_empty() {
            target = target.with_text_of_its_file()?;
        }
        Ok(Self { target, renewed: None, compared: false, dir, journal, counters: Vec::new(), lock: None })
    }

    /// One of which `target` and `journal` are known without looking.
    #[cfg(test)]
    pub fn of_target(target: Target, dir: StateDir, journal: Journal) -> Self {
        Self { target, renewed: None, compared: false, dir, journal, counters: Vec::new(), lock: None }
    }

    /// Takes the process's lock, which it holds until it is dropped, waits for what a restitch that was
    /// killed has made a thread begin, and reads the journal anew.
    ///
    /// # Errors
    /// [`ProcessError::Busy`] if another restitch is at work on it; [`ProcessError::HalfDone`] if that thread
    /// does not come to an end.
    pub fn lock(&mut self) -> Result<(), ProcessError> {
        if self.lock.is_none() {
            let lock = self.dir.lock_process(self.target.process)?;
            // What is yet to be mapped for a restitch that was killed belongs into the journal.
            settle(&self.target)?;
            self.lock = Some(lock);
            self.journal = find_journal(&self.dir, &self.target)?;
            self.compared = false;
            // A process that was forked off when the versions were gone, and the hook not yet.
            find_hook(&self.target, &mut self.journal);
        }
        Ok(())
    }

    /// What is known of it here may be half changed: it is read from the journal anew, if that can be read.
    pub fn distrust(&mut self) {
        self.counters.clear();
        self.compared = false;
        if let Ok(journal) = find_journal(&self.dir, &self.target) {
            self.journal = journal;
        }
    }

    /// Whether no restitch is at work on it, this one included.
    pub fn is_idle(&self) -> bool {
        self.dir.lock_process(self.target.process).is_ok()
    }

    /// The process and its modules, as they were when it was opened.
    pub fn target(&self) -> &Target {
        &self.target
    }

    /// What is in it.
    pub fn journal(&self) -> &Journal {
        &self.journal
    }

    /// Finds a free place of `len` bytes near module number `module` that avoids all places given before in
    /// `taken`, below the module if possible. The place is free in the processes `relatives` too, and its
    /// address in them a multiple of `align` (a power of two; of a page in any case). It is one that as few
    /// words in their memory as can be point into.
    ///
    /// # Errors
    /// [`ProcessError::NoRoom`].
    pub fn reserve(
        &self,
        module: usize,
        len: u64,
        taken: &[(usize, Reservation)],
        relatives: &[i32],
        align: u64,
    ) -> Result<Reservation, ProcessError> {
        let pid = self.target.pid();
        let m = &self.target.modules[module];
        let mut maps = procfs::maps(pid)?;
        // The maps of a process that is ending are empty.
        self.target.process.verify()?;
        let Some(model) = maps.first().cloned() else { return Err(no_program(self.target.process)) };
        let theirs: Vec<_> = relatives.iter().filter_map(|p| procfs::maps(*p).ok()).flatten().collect();
        maps = merged(maps, theirs);
        for (other, held) in taken {
            let start = self.target.modules[*other].bias.to_actual(held.start);
            let mut line = model.clone();
            line.range = AvmaRange::new(start, held.len);
            let at = maps.partition_point(|m| m.range.start < line.range.start);
            maps.insert(at, line);
        }
        // Mappings grow downwards from where libraries are: keep away from them, so that the place is still
        // free later.
        let far = m.range.start - DISTANCE;
        if module != self.target.program || m.range.start >= LIBRARIES {
            let mut line = model.clone();
            line.range = AvmaRange::between(far, m.range.start);
            maps = merged(maps, vec![line]);
        }
        let heap_start = procfs::heap_start(pid);
        let request = GapRequest { heap_start, align, ..GapRequest::near(m.range, len) };
        let near = near(m, request.reach.saturating_sub(len)).ok_or_else(|| ProcessError::NoRoom {
            pid,
            len,
            module: m.path.clone(),
            why: "its own code is that far apart".into(),
        })?;
        let request = GapRequest { near, ..request };
        let strays = |window| StrayPointers::of(iter::once(pid).chain(relatives.iter().copied()), window);
        let used = self.journal.used.iter().map(|(start, len)| AvmaRange::new(Avma::new(*start), *len));
        let gap = place::find(&maps, used.collect(), &request, strays).map_err(|e| ProcessError::NoRoom {
            pid,
            len,
            module: m.path.clone(),
            why: e.into(),
        })?;
        let number = self.journal.next_number + taken.len() as u32;
        Ok(Reservation { number, start: m.bias.to_stated(gap.range.start), len: len.next_multiple_of(PAGE) })
    }

    /// Whether version `number` is retired.
    pub(crate) fn is_retired(&self, number: u32) -> bool {
        self.journal.versions.iter().any(|v| v.number == number && v.retired)
    }

    /// Refuses more versions where too many retired ones have had to stay mapped: each takes room near its
    /// module, and is searched and led on in every later switch.
    ///
    /// # Errors
    /// [`ProcessError::PiledUp`]; [`ProcessError::TextMoved`] where the program has moved its code.
    pub fn may_have_more(&self) -> Result<(), ProcessError> {
        if self.target.text_moved {
            self.target.clone().with_text_of_its_file()?;
        }
        let retired: Vec<u64> = self.journal.versions.iter().filter(|v| v.retired).map(|v| v.len).collect();
        if retired.len() < MOST_RETIRED {
            return Ok(());
        }
        Err(ProcessError::PiledUp {
            pid: self.target.pid(),
            number: retired.len(),
            bytes: retired.iter().sum(),
            limit: MOST_RETIRED,
        })
    }

    /// The tracing has not ended as it should: a signal may have been delivered to a thread in a tracing
    /// version unseen, so memory has to be looked through before it is unmapped.
    pub fn distrust_tracing(&mut self) {
        self.counters.clear();
    }

    /// Whether tracing versions were mapped here by this very session, and are trusted
    /// ([`AttachedProcess::distrust_tracing`]).
    pub fn has_windows(&self) -> bool {
        self.journal.versions.iter().any(|v| self.has_just_traced(v.number))
    }

    /// Whether version `number` is a tracing version of this very session: threads that are in it, or read
    /// its headers, are then all that there can be, since no signal was delivered to a thread in it. (After
    /// the death of a tracer a handler may have seen it.)
    pub(crate) fn has_just_traced(&self, number: u32) -> bool {
        let tracing = |number: u32| {
            self.journal.versions.iter().any(|v| v.number == number && v.kind == VersionKind::Burst)
        };
        tracing(number) && self.counters.iter().any(|c| tracing(c.number))
    }

    /// The counters of counting version `number`, as they are now. Counters of 32 bits have to be read
    /// several times a second; what they count while nobody reads for more than 0.6 s is left out.
    ///
    /// # Errors
    /// If the area cannot be read.
    pub fn read_counters(&self, number: u32) -> Result<Vec<u64>, ProcessError> {
        self.read_area(number, CounterArea::read)
    }

    /// What the indirect calls of counting version `number` have voted for; empty if the process has no words
    /// of its own for that.
    ///
    /// # Errors
    /// If the area cannot be read.
    pub fn read_votes(&self, number: u32) -> Result<Vec<Vote>, ProcessError> {
        self.read_area(number, CounterArea::votes)
    }

    fn read_area<T>(
        &self,
        number: u32,
        read: impl Fn(&CounterArea) -> std::io::Result<Vec<T>>,
    ) -> Result<Vec<T>, ProcessError> {
        let Some(area) = self.counters.iter().find(|c| c.number == number) else {
            return Ok(Vec::new());
        };
        read(area).map_err(|source| ProcessError::State {
            operation: "read the counters of",
            path: self.dir.journal(self.target.process),
            source,
        })
    }

    /// Whether `version` of module number `module` is in force: it is mapped, and some of its redirects lead
    /// there. (A child that was forked off before its parent's switch was complete has the one and not the
    /// other.)
    pub fn has(&self, module: usize, version: &CheckedVersion) -> bool {
        let bias = self.target.modules[module].bias;
        let Ok(memory) = Memory::open_read_only(self.target.pid()) else { return false };
        let leads = |r: &Redirect| {
            let (at, to) = (bias.to_actual(r.at), bias.to_actual(r.to));
            let found = memory.read_vec(at, LEN).ok();
            found.is_some_and(|found| jump(at, to).is_some_and(|jump| found == jump.bytes()))
        };
        version.redirects.iter().any(leads)
    }

    /// Forgets processes that have ended, this one or others: nothing of them is left in the state directory
    /// but what is kept for core files.
    pub fn forget_ended(&self) {
        self.dir.collect_garbage();
    }
}

/// The journal of the process, or what it has inherited through `fork`; brought in line with what is really
/// mapped.
fn find_journal(dir: &StateDir, target: &Target) -> Result<Journal, ProcessError> {
    // Between the looks at the maps and at the journal another restitch may have given the code back.
    const MOST_LOOKS: u32 = 4;
    let mut known = known_journal(dir, target);
    for _ in 1..MOST_LOOKS {
        if !matches!(known, Err(ProcessError::StateLost { .. })) {
            break;
        }
        known = known_journal(dir, target);
    }
    let mut journal = known?;
    journal.cores = procfs::may_leave_core(target.pid());
    Ok(journal)
}

fn known_journal(dir: &StateDir, target: &Target) -> Result<Journal, ProcessError> {
    let process = target.process;
    let maps = procfs::maps(process.pid)?;
    let own = dir.journal(process);
    let known = match std::fs::symlink_metadata(&own).is_ok().then(|| Journal::read(&own)) {
        Some(Err(damage @ ProcessError::Journal { .. })) => {
            return rebuilt(dir, target, &maps).ok_or(damage);
        }
        known => known.transpose()?,
    };
    if let Some(mut journal) = known {
        believe_the_files(target, &mut journal);
        journal.retain_mapped(&maps);
        forget_module_code(target, &mut journal);
        find_hook(target, &mut journal);
        if journal.is_empty() {
            // Planned by a restitch that was killed before it did anything, or left behind by an `exec`.
            journal.save(dir)?;
        }
        return Ok(journal);
    }
    let journal = from_records(dir, target, &maps).unwrap_or_else(|| Journal::new(process));
    refuse_lost(dir, target, &maps, &journal)?;
    Ok(journal)
}

/// In place of a journal that was damaged: what the records say, and the address maps. `None` if a record is
/// missing.
fn rebuilt(dir: &StateDir, target: &Target, maps: &[Mapping]) -> Option<Journal> {
    let journal = from_records(dir, target, maps).unwrap_or_else(|| Journal::new(target.process));
    journal.lists_all(maps, dir).then_some(journal)
}

/// What a process has by the records of the versions that it has mapped, if it has any.
fn from_records(dir: &StateDir, target: &Target, maps: &[Mapping]) -> Option<Journal> {
    let mut journal = Journal::inherited(target.process, maps, dir)?;
    forget_module_code(target, &mut journal);
    find_hook(target, &mut journal);
    for v in &journal.versions {
        let bias = LoadBias::between(Svma::new(0), Avma::new(v.bias));
        let Some(module) = target.modules.iter().find(|m| m.bias == bias && m.path == v.module) else {
            continue;
        };
        let redirects = StoredMap::redirects_in(&v.map_file).unwrap_or_default();
        journal.patches.extend(redirects.iter().filter_map(|r| inherited_patch(module, r)));
    }
    journal.patches.sort_by_key(|p| p.at);
    journal.patches.dedup_by_key(|p| p.at);
    Some(journal)
}

/// What goes back is what the modules' files have, whatever a journal says.
fn believe_the_files(target: &Target, journal: &mut Journal) {
    let file = |at: u64| -> Option<Patch> {
        let at = Avma::new(at);
        let module = &target.modules[target.module_at(at)?];
        Patch::beginning_of(module.image.read_tail(module.bias.to_stated(at))?)
    };
    for patch in &mut journal.patches {
        patch.original = file(patch.at).unwrap_or(patch.original);
    }
    for detour in journal.hook.iter_mut().flat_map(|hook| &mut hook.detours) {
        detour.original = file(detour.at).unwrap_or(detour.original);
    }
}

/// The journal's form of a redirect that may be there.
fn inherited_patch(module: &Module, redirect: &Redirect) -> Option<JournalPatch> {
    let at = module.bias.to_actual(redirect.at);
    let original = Patch::beginning_of(module.image.read_tail(redirect.at)?)?;
    (!crosses_page(at)).then_some(JournalPatch { at: at.get(), original, now: original })
}

/// What lies where a module's code is, is no replacement mapping of it, whatever a record says (of another
/// process, perhaps).
fn forget_module_code(target: &Target, journal: &mut Journal) {
    journal.replacements.retain(|s| target.modules.iter().all(|m| !m.range.overlaps(&s.range())));
}

/// What is really there of the hook: a journal that was lost does not know of it; one that was written before
/// the hook was mapped may name memory that is not ours.
fn find_hook(target: &Target, journal: &mut Journal) {
    let Ok(memory) = Memory::open_read_only(target.pid()) else { return };
    if journal.hook.as_ref().is_some_and(|h| hook::found::is_there(h, &memory)) {
        return;
    }
    journal.hook = hook::found::recognise(target, &memory);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::journal::JournalVersion;
    use restitch_emit::RedirectKind;

    #[test]
    fn versions_that_stay_are_bounded() {
        let target = Target::open(std::process::id() as i32).expect("our own");
        let process = target.process;
        let folder = std::env::temp_dir().join(format!("restitch-piled-{}", std::process::id()));
        let dir = StateDir::at(folder.clone()).expect("a folder");
        let mut attached = AttachedProcess::of_target(target, dir, Journal::new(process));
        let version = |number: u32, retired: bool| JournalVersion {
            number,
            kind: VersionKind::Optimized,
            module: "/bin/true".into(),
            bias: 0,
            start: u64::from(number) << 20,
            len: 4096,
            file: "version".into(),
            map_file: "map".into(),
            eh_frame_hdr: 0,
            counters: None,
            retired,
            by_pointers: false,
            slots: Vec::new(),
        };
        attached.journal.versions = (0..MOST_RETIRED as u32).map(|i| version(i, i != 5)).collect();
        assert!(attached.may_have_more().is_ok(), "one of them is in force");
        attached.journal.versions.push(version(99, true));
        let text = attached.may_have_more().expect_err("too many").to_string();
        assert!(text.contains("32 versions") && text.contains("131072 bytes"), "{text}");
        std::fs::remove_dir_all(&folder).expect("removed");
    }

    #[test]
    fn redirects_that_cross_pages_were_never_there() {
        let target = Target::open(std::process::id() as i32).expect("our own");
        let module = &target.modules[target.program];
        let code = module.image.segments().iter().find(|s| s.executable).expect("it has code").range;
        let page = code.start.align_up(PAGE) + 4096;
        let patch = |offset| {
            let at = page + offset;
            inherited_patch(module, &Redirect { at, to: at, kind: RedirectKind::Entry })
        };
        assert_eq!(patch(4091).map(|p| p.at), Some(module.bias.to_actual(page + 4091).get()));
        assert_eq!([4092, 4095].map(patch), [None, None]);
    }
}
