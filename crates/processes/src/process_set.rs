//! The processes of a session: one, or with `--tree` all that run its program.

use crate::busy::{BUSY, BUSY_LOOK, Patience, when_not_traced};
use crate::error::SessionError;
use crate::interrupt::pause;
use crate::refusal::refuse;
use restitch_address::{Avma, Svma, SvmaRange};
use restitch_apply_process::{
    AttachedProcess, ImageCache, Incoming, Module, ProcessError, Reservation, RetargetedSlots, StateDir,
    SwitchReport, Target, VersionKind, VersionMaps,
};
use restitch_check::CheckedVersion;
use restitch_emit::BoundSlot;
use restitch_image::Image;
use restitch_pipeline::neighbours::Neighbours;
use restitch_pipeline::{ExitCode, Watcher};
use restitch_procfs as procfs;
use restitch_profile::{Vote, add_votes};
use restitch_report::counted;
use restitch_tracee::{TraceError, shares_memory};
use std::cell::LazyCell;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Instant;

/// One or more live processes whose modules are loaded at the same addresses (they were forked from one
/// another).
#[derive(Debug)]
pub struct ProcessSet {
    /// The one that was named first. Its module indices serve for all.
    pub leader: AttachedProcess,
    /// The others.
    pub others: Vec<AttachedProcess>,
    /// Which slots are made to lead into optimized versions.
    pub retargeted_slots: RetargetedSlots,
    dir: StateDir,
    tree: bool,
    /// The named process.
    named: i32,
    /// One of another user that belongs to it all the same.
    joined: Option<i32>,
    /// Files of the modules, read once for all processes.
    images: ImageCache,
    /// Processes of other users that run the program, with their users: they stay as they are.
    strangers: BTreeMap<i32, [u32; 3]>,
    /// Processes that run the program and that cannot be looked at, with the reason: they stay as well.
    unopened: BTreeMap<i32, ProcessError>,
    /// CPU time of the processes when they joined, or when it was last asked which are busy.
    ticks: BTreeMap<i32, u64>,
}

/// What became of a process that was to get its original code back.
#[derive(Debug)]
pub enum GivenBack {
    /// It has its original code again.
    Done(SwitchReport),
    /// There was nothing of restitch in it.
    NothingThere,
    /// It could not be changed.
    Failed(SessionError),
}

/// Whether a process that had versions has none any more: it is about to end, or executes something else.
pub(crate) fn has_left(live: &AttachedProcess) -> bool {
    let maps = procfs::maps(live.target().pid()).unwrap_or_default();
    let is_mapped = |start: Avma| maps.iter().any(|m| m.range.start == start);
    let versions = &live.journal().versions;
    !versions.is_empty() && !versions.iter().any(|v| is_mapped(v.range().start))
}

impl GivenBack {
    /// The exit code that goes with it; beside processes that there was something in, nothing to do is done.
    pub fn exit_code(&self) -> ExitCode {
        match self {
            Self::Done(_) | Self::NothingThere => ExitCode::Done,
            Self::Failed(error) => error.exit_code(),
        }
    }
}

impl ProcessSet {
    /// Opens process `pid`, and with `tree` all processes of its user that run the same program at the same
    /// addresses. The process is locked for other sessions.
    pub fn open(pid: i32, tree: bool) -> Result<Self, SessionError> {
        let mut set = Self::leader_alone(pid, tree, ImageCache::default())?;
        set.lock()?;
        set.refresh()?;
        Ok(set)
    }

    /// The same, to give them versions.
    ///
    /// # Errors
    /// Also if nothing in the process may have one.
    pub fn open_to_change(pid: i32, tree: bool) -> Result<Self, SessionError> {
        let set = Self::open(pid, tree)?;
        refuse(set.leader.target())?;
        Ok(set)
    }

    /// Takes the leader's lock. Another restitch may be about to end, or a keeper to give the process back:
    /// that is waited for a little.
    fn lock(&mut self) -> Result<(), SessionError> {
        let end = Instant::now() + BUSY;
        loop {
            match self.leader.lock() {
                Err(ProcessError::Busy { .. }) if Instant::now() < end => pause(BUSY_LOOK)?,
                locked => return Ok(locked?),
            }
        }
    }

    /// The same, only to look at them: another session may change them meanwhile.
    pub fn open_to_look(pid: i32, tree: bool) -> Result<Self, SessionError> {
        let mut set = Self::leader_alone(pid, tree, ImageCache::default())?;
        set.refresh()?;
        Ok(set)
    }

    /// Looks at them anew.
    pub fn look_again(&mut self) -> Result<(), SessionError> {
        let images = std::mem::take(&mut self.images);
        *self = Self { joined: self.joined, ..Self::leader_alone(self.named, self.tree, images)? };
        self.refresh()
    }

    fn leader_alone(pid: i32, tree: bool, mut images: ImageCache) -> Result<Self, SessionError> {
        let dir = StateDir::open()?;
        let pid = process_of(pid)?;
        let leader = AttachedProcess::open_with(pid, dir.clone(), &mut images)?;
        let ticks = BTreeMap::from([(pid, ticks_of(pid))]);
        let (others, strangers, unopened) = (Vec::new(), BTreeMap::new(), BTreeMap::new());
        Ok(Self {
            leader,
            others,
            retargeted_slots: RetargetedSlots::None,
            dir,
            tree,
            named: pid,
            joined: None,
            images,
            strangers,
            unopened,
            ticks,
        })
    }

    /// Takes process `pid` along, whosever it is, if it runs the program at the same addresses: it was named,
    /// though another one of its family leads.
    ///
    /// # Errors
    /// As [`ProcessSet::refresh`].
    pub fn join(&mut self, pid: i32) -> Result<(), SessionError> {
        self.joined = Some(pid);
        self.strangers.remove(&pid);
        self.refresh()
    }

    /// Finds processes that have come meanwhile: with `tree` all of the same program and user, else children
    /// that were forked while something of restitch was in place.
    ///
    /// A program's file may be anybody's to run: whoever named one process has not spoken of those of other
    /// users. Only those have to come along that have our code already: they have inherited it from one of
    /// the set, and changed their user since.
    pub fn refresh(&mut self) -> Result<(), SessionError> {
        self.others.retain(|l| l.target().process.is_alive());
        self.unopened.clear();
        let known: BTreeSet<i32> = self.pids().into_iter().collect();
        let (named, users) = (self.named, users_of(self.named));
        let forked = LazyCell::new(|| procfs::descendants(named).unwrap_or_default());
        for candidate in self.candidates().into_iter().filter(|c| !known.contains(&c.pid)) {
            let is_stranger =
                self.tree && self.joined != Some(candidate.pid) && users_of(candidate.pid) != users;
            if is_stranger && !forked.contains(&candidate) {
                self.note_stranger(candidate.pid);
            } else {
                self.consider(candidate, is_stranger);
            }
        }
        Ok(())
    }

    /// Opens a process, and takes it along if it belongs to the set: a stranger only with our code in it.
    /// Children of `vfork` that have not executed their program yet are in the memory of one that belongs to
    /// it, and do so as its threads do.
    fn consider(&mut self, candidate: procfs::ProcessId, is_stranger: bool) {
        let pid = candidate.pid;
        if self.all().any(|live| shares_memory(live.target().pid(), pid)) {
            return;
        }
        match AttachedProcess::open_with(pid, self.dir.clone(), &mut self.images) {
            Err(error) if self.tree && candidate.is_alive() => {
                self.unopened.insert(pid, error);
            }
            Err(_) => {}
            Ok(live) => {
                let inherited = !live.journal().versions.is_empty();
                if is_stranger && !inherited {
                    self.note_stranger(pid);
                } else if (self.tree || inherited) && self.same_addresses(&live) {
                    self.ticks.insert(pid, ticks_of(pid));
                    self.others.push(live);
                }
            }
        }
    }

    fn note_stranger(&mut self, pid: i32) {
        self.strangers.extend(users_of(pid).map(|users| (pid, users)));
    }

    /// What is to be said of processes that run the program and are left as they are.
    pub fn left_out(&self) -> Vec<String> {
        let of_others = self.of_other_users();
        let first = self.unopened.iter().next().map(|(pid, why)| {
            let left = counted(self.unopened.len() as u64, "process");
            format!("--tree leaves alone {left} of the program; of {pid}: {why}")
        });
        of_others.into_iter().chain(first).collect()
    }

    /// Those of them, with the error that says so, that are in a layout whose state files are not here. They
    /// are told once.
    pub fn take_lost(&mut self) -> Vec<(i32, SessionError)> {
        let all = std::mem::take(&mut self.unopened).into_iter();
        let lost = all.filter(|(_, error)| matches!(error, ProcessError::StateLost { .. }));
        lost.map(|(pid, error)| (pid, error.into())).collect()
    }

    fn of_other_users(&self) -> Option<String> {
        const MOST_NAMED: usize = 3;
        let (first, [real, effective, saved]) = self.strangers.iter().next()?;
        let named: Vec<String> = self.strangers.keys().take(MOST_NAMED).map(i32::to_string).collect();
        let left = counted(self.strangers.len() as u64, "process");
        let ends = if self.strangers.len() > MOST_NAMED { ", ..." } else { "" };
        Some(format!(
            "--tree leaves alone {left} of the program, of other users ({}{ends}; {first} has the user numbers {real}, \
             {effective}, {saved}: real, effective, saved); `restitch attach {first} --tree` is for it and those of its user",
            named.join(", ")
        ))
    }

    /// Whether all processes of the program belong to it.
    pub fn is_tree(&self) -> bool {
        self.tree
    }

    /// The process of the set with this number.
    pub fn find(&mut self, pid: i32) -> Option<&mut AttachedProcess> {
        self.all_mut().find(|live| live.target().pid() == pid)
    }

    /// The processes that have used CPU time since they joined, or since this was last asked, the busiest
    /// first.
    pub fn busiest(&mut self) -> Vec<i32> {
        let mut used: Vec<(u64, i32)> = Vec::new();
        for pid in self.pids() {
            let now = ticks_of(pid);
            let before = self.ticks.insert(pid, now).unwrap_or(now);
            used.push((now.saturating_sub(before), pid));
        }
        used.retain(|(ticks, _)| *ticks > 0);
        used.sort_by_key(|(ticks, pid)| (Reverse(*ticks), *pid));
        used.into_iter().map(|(_, pid)| pid).collect()
    }

    fn candidates(&self) -> Vec<procfs::ProcessId> {
        if !self.tree {
            return procfs::descendants(self.named).unwrap_or_default();
        }
        let same_file = procfs::open_executable(self.named)
            .ok()
            .and_then(|f| procfs::FileIdentity::of(&f.file).ok())
            .and_then(|identity| procfs::processes_mapping(identity).ok());
        same_file.unwrap_or_default()
    }

    /// Whether the modules of `live` that the leader also has are at the same addresses, the program first of
    /// all.
    fn same_addresses(&self, live: &AttachedProcess) -> bool {
        let (ours, theirs) = (self.leader.target(), live.target());
        let program = &ours.modules[ours.program];
        let other = &theirs.modules[theirs.program];
        program.bias == other.bias && program.has_content_of(other)
    }

    /// All process numbers, the leader's first.
    pub fn pids(&self) -> Vec<i32> {
        self.all().map(|l| l.target().pid()).collect()
    }

    /// All processes, the leader first.
    pub fn all(&self) -> impl Iterator<Item = &AttachedProcess> {
        std::iter::once(&self.leader).chain(&self.others)
    }

    /// What the modules of all of them have to know of each other.
    pub fn neighbours(&self) -> Neighbours {
        let mut images: Vec<Arc<Image>> = Vec::new();
        for module in self.all().flat_map(|l| &l.target().modules) {
            if !images.iter().any(|known| Arc::ptr_eq(known, &module.image)) {
                images.push(module.image.clone());
            }
        }
        Neighbours::new(images)
    }

    /// The same, to be changed.
    pub fn all_mut(&mut self) -> impl Iterator<Item = &mut AttachedProcess> {
        std::iter::once(&mut self.leader).chain(&mut self.others)
    }

    /// Says so where the process after which the set is named has ended.
    ///
    /// # Errors
    /// [`SessionError::Ended`] then.
    pub fn verify_leader(&self) -> Result<(), SessionError> {
        match self.leader_is_alive() {
            true => Ok(()),
            false => Err(SessionError::Ended { pid: self.leader.target().pid(), when: "meanwhile".into() }),
        }
    }

    /// Whether the process after which the set is named has not ended.
    pub fn leader_is_alive(&self) -> bool {
        self.leader.target().process.is_alive()
    }

    /// The process of the set with this number; the leader for one that was forked off meanwhile.
    fn of(&self, pid: i32) -> &AttachedProcess {
        self.all().find(|l| l.target().pid() == pid).unwrap_or(&self.leader)
    }

    /// The leader's index of module number `module` of `target`.
    fn leaders(&self, target: &Target, module: usize) -> Option<usize> {
        let leader = self.leader.target();
        if target.pid() == leader.pid() {
            return Some(module);
        }
        leader.modules.iter().position(|m| m.path == target.modules[module].path)
    }

    /// The leader's module index and stated address for an address in process `pid`.
    pub fn locate(&self, pid: i32, at: Avma) -> Option<(usize, Svma)> {
        let target = self.of(pid).target();
        let module = target.module_at(at)?;
        let stated = target.modules[module].bias.to_stated(at);
        Some((self.leaders(target, module)?, stated))
    }

    /// The same for an address in a version: where the original code is that is there.
    pub fn locate_in_version(&self, maps: &mut VersionMaps, pid: i32, at: Avma) -> Option<(usize, Svma)> {
        let live = self.of(pid);
        let (module, stated) = maps.original_byte(live, at)?;
        Some((self.leaders(live.target(), module)?, stated))
    }

    /// Where the original code is, in the same process, that an address in a version stands for.
    pub fn original(&self, maps: &mut VersionMaps, pid: i32, at: Avma) -> Option<Avma> {
        let live = self.of(pid);
        let (module, stated) = maps.original_byte(live, at)?;
        Some(live.target().modules[module].bias.to_actual(stated))
    }

    /// Code of the leader's module number `module` that differs from the file in one of the processes, and
    /// not by redirects.
    pub fn foreign_code(&self, module: usize) -> Result<Vec<SvmaRange>, SessionError> {
        self.in_any(module, AttachedProcess::foreign_code)
    }

    /// Code of the leader's module number `module` that one of the processes may write to.
    pub fn writable_code(&self, module: usize) -> Result<Vec<SvmaRange>, SessionError> {
        self.in_any(module, AttachedProcess::writable_code)
    }

    /// What is found of the leader's module number `module` in any of the processes. Another one than the
    /// leader that has ended does not count.
    fn in_any(
        &self,
        module: usize,
        find: impl Fn(&AttachedProcess, usize) -> Result<Vec<SvmaRange>, ProcessError>,
    ) -> Result<Vec<SvmaRange>, SessionError> {
        let mut found = find(&self.leader, module)?;
        let path = &self.leader.target().modules[module].path;
        for live in &self.others {
            let theirs = live.target().modules.iter().position(|m| m.path == *path);
            found.extend(theirs.and_then(|i| find(live, i).ok()).unwrap_or_default());
        }
        Ok(found)
    }

    /// The slots of the leader's module number `module` that are bound for good, and to the same place in all
    /// processes of the set.
    pub fn bound_slots(&self, module: usize) -> Result<Vec<BoundSlot>, SessionError> {
        let mut bound = self.leader.bound_slots(module)?;
        let wanted = &self.leader.target().modules[module];
        for live in &self.others {
            let same =
                |m: &Module| m.path == wanted.path && m.bias == wanted.bias && m.has_content_of(wanted);
            let Some(i) = live.target().modules.iter().position(same) else { continue };
            // One that has ended does not count.
            let Ok(theirs) = live.bound_slots(i) else { continue };
            bound.retain(|b| theirs.binary_search(b).is_ok());
        }
        Ok(bound)
    }

    /// A free place near a module of the leader that is free in all processes of the set, aligned to `align`
    /// bytes.
    pub fn reserve(
        &self,
        module: usize,
        len: u64,
        taken: &[(usize, Reservation)],
        align: u64,
    ) -> Result<Reservation, SessionError> {
        let others: Vec<i32> = self.others.iter().map(|l| l.target().pid()).collect();
        let number = self.all().map(|l| l.journal().next_number).max().unwrap_or(1);
        let mut place = self.leader.reserve(module, len, taken, &others, align)?;
        place.number = number + taken.len() as u32;
        Ok(place)
    }

    /// Does `work` with each process of the set once, those included that are forked meanwhile: they begin in
    /// the state that their parent had. It may break off. It ends when nobody is there that has not been met,
    /// but for those that need no work: where processes are forked all the time, one has always come.
    ///
    /// # Errors
    /// If no process can be looked at any more.
    fn with_each_but(
        &mut self,
        needs_none: impl Fn(&AttachedProcess) -> bool,
        mut work: impl FnMut(&mut AttachedProcess) -> ControlFlow<()>,
    ) -> Result<(), SessionError> {
        let mut done: BTreeSet<i32> = BTreeSet::new();
        loop {
            for live in self.all_mut().filter(|l| !done.contains(&l.target().pid())) {
                if work(live).is_break() {
                    return Ok(());
                }
            }
            done.extend(self.pids());
            self.refresh()?;
            if self.all().all(|live| done.contains(&live.target().pid()) || needs_none(live)) {
                return Ok(());
            }
        }
    }

    /// Switches all processes to `versions`. Those that end meanwhile do not count; if one cannot be changed,
    /// it gets its original code back and the watcher hears why; if it is the leader, all do.
    ///
    /// # Errors
    /// If the leader cannot be changed.
    pub fn switch(
        &mut self,
        versions: &[(usize, CheckedVersion)],
        kind: VersionKind,
        watcher: &mut dyn Watcher,
    ) -> Result<SwitchReport, SessionError> {
        let leader = self.leader.target().clone();
        if !versions.is_empty() {
            // Whatever way led here: a run time may have been loaded meanwhile.
            refuse(&leader)?;
        }
        let new = Change { leader: &leader, versions, kind, retargeted_slots: self.retargeted_slots };
        let mut total = Total::default();
        let looked = self.with_each_but(|live| new.is_made(live), |live| total.take(new.make(live, watcher)));
        if let Some(error) = total.failed {
            self.give_up_switch(watcher);
            return Err(error.into());
        }
        looked.map(|()| total.sum.unwrap_or_default())
    }

    /// Versions that came to be mapped before a switch failed, in one process or in others, go again, as far
    /// as that can be.
    fn give_up_switch(&mut self, watcher: &mut dyn Watcher) {
        let _ = self.take_back(watcher);
        self.reclaim().iter().for_each(|kept| watcher.note(&kept.to_string()));
    }

    /// Gives all processes in which there is something of restitch their original code back, those that are
    /// forked meanwhile included. Those that end do not count; of one that cannot be changed the watcher
    /// hears why, unless it is the leader.
    ///
    /// # Errors
    /// If the leader cannot be changed; the others are, as far as that can be.
    pub fn take_back(&mut self, watcher: &mut dyn Watcher) -> Result<(), SessionError> {
        let leader = self.leader.target().pid();
        let (mut failed, mut patience) = (None, Patience::default());
        self.with_each_but(has_nothing, |live| {
            // With the lock the journal is read anew.
            let locked = patience.with_lock(|| live.lock());
            let result = locked.and_then(|()| match live.journal().is_empty() {
                true => Ok(()),
                false => live.revert().map(drop),
            });
            if result.is_ok() {
                unmap_at_once(live);
            }
            match result {
                Err(_) if !live.target().process.is_alive() => {}
                Err(error) if live.target().pid() == leader => failed = Some(error),
                Err(error) => watcher.note(&format!("process {}: {error}", live.target().pid())),
                Ok(()) => {}
            }
            ControlFlow::Continue(())
        })?;
        self.leader.forget_ended();
        failed.map_or(Ok(()), |error| Err(error.into()))
    }

    /// Gives all processes their original code back, those that are forked meanwhile included, and says what
    /// became of each. Those that end meanwhile do not count, unless it is the leader. In those that are not
    /// `wanted`, which is asked when nobody else can change them any more, there is nothing to give back.
    pub fn give_back(&mut self, wanted: &dyn Fn(&AttachedProcess) -> bool) -> Vec<(i32, GivenBack)> {
        let leader = self.leader.target().pid();
        let (mut told, mut patience) = (Vec::new(), Patience::default());
        // An error: no process can be looked at any more, and none is added.
        let _ = self.with_each_but(has_nothing, |live| {
            let pid = live.target().pid();
            // With the lock the journal is read anew.
            let locked = patience.with_lock(|| live.lock());
            let result = locked.and_then(|()| match live.journal().is_empty() || !wanted(live) {
                true => Ok(None),
                false => live.revert().map(Some),
            });
            if matches!(result, Ok(Some(_))) {
                unmap_at_once(live);
            }
            match result {
                Ok(None) => told.push((pid, GivenBack::NothingThere)),
                Ok(Some(report)) => told.push((pid, GivenBack::Done(report))),
                Err(_) if pid != leader && (!live.target().process.is_alive() || has_left(live)) => {}
                Err(error) => told.push((pid, GivenBack::Failed(error.into()))),
            }
            ControlFlow::Continue(())
        });
        told
    }

    /// Tells that a layout is to be taken out, where there is one: versions that only stay mapped are none.
    pub fn tell_taken_out(&self, watcher: &mut dyn Watcher) {
        let has_layout = |live: &&AttachedProcess| live.journal().versions.iter().any(|v| !v.retired);
        if let Some(live) = self.all().find(has_layout) {
            watcher.note(&taken_out(live.target().pid()));
        }
    }

    /// Refuses to add versions to processes that too many old ones have had to stay in. What can go by now is
    /// unmapped before.
    pub fn room_for_more(&mut self) -> Result<(), SessionError> {
        for live in self.all_mut() {
            if live.may_have_more().is_err() {
                // An error: the process cannot be stopped now, and its versions stay.
                let _ = live.reclaim();
            }
            live.may_have_more()?;
        }
        Ok(())
    }

    /// The counters of version `number`, summed over all processes that have counters of their own.
    pub fn counters(&self, number: u32) -> Result<Vec<u64>, SessionError> {
        let mut sum: Vec<u64> = Vec::new();
        for live in self.all() {
            let values = live.read_counters(number)?;
            sum.resize(sum.len().max(values.len()), 0);
            for (total, value) in sum.iter_mut().zip(values) {
                *total = total.wrapping_add(value);
            }
        }
        Ok(sum)
    }

    /// What the indirect calls of counting version `number` have voted for, in all processes that have words
    /// of their own for that.
    pub fn votes(&self, number: u32) -> Result<Vec<Vote>, SessionError> {
        let mut sum: Vec<Vote> = Vec::new();
        for live in self.all() {
            add_votes(&mut sum, &live.read_votes(number)?);
        }
        Ok(sum)
    }

    /// Threads of all processes.
    pub fn threads(&self) -> usize {
        self.pids().into_iter().filter_map(|p| procfs::threads(p).ok()).map(|t| t.len()).sum()
    }
}

/// Whether nothing of restitch was in a process when it was opened: nor will its children have anything.
fn has_nothing(live: &AttachedProcess) -> bool {
    live.journal().is_empty()
}

/// Unmaps what has just been taken out of force, if it can go already: each child that is forked until then
/// begins with it, and would have to be given its code back like its parent.
fn unmap_at_once(live: &mut AttachedProcess) {
    // An error: it stays for now, and is tried again when all have been given their code back.
    let _ = live.reclaim();
}

/// The users that a process is of; `None` if it is gone.
fn users_of(pid: i32) -> Option<[u32; 3]> {
    procfs::status(pid).ok()?.users()
}

/// CPU time of a process, in clock ticks, that of threads which have ended included; 0 if it is gone.
fn ticks_of(pid: i32) -> u64 {
    procfs::thread_stat(pid, pid).map_or(0, |stat| stat.user_ticks.saturating_add(stat.system_ticks))
}

/// The versions for one process: those of the modules that it has at the leader's addresses.
pub fn incoming<'a>(
    live: &AttachedProcess,
    leader: &Target,
    versions: &'a [(usize, CheckedVersion)],
    kind: VersionKind,
) -> Vec<Incoming<'a>> {
    let place = |module: usize| {
        let wanted = &leader.modules[module];
        let same = |m: &Module| m.path == wanted.path && m.bias == wanted.bias && m.has_content_of(wanted);
        live.target().modules.iter().position(same)
    };
    let one = |(module, version): &'a (usize, CheckedVersion)| {
        place(*module).map(|module| Incoming {
            module,
            version,
            kind,
            retargeted_slots: RetargetedSlots::None,
        })
    };
    versions.iter().filter_map(one).collect()
}

/// Whether all of `incoming` is in force in a process already: it was forked off after its parent's switch.
fn has_all(live: &AttachedProcess, incoming: &[Incoming<'_>]) -> bool {
    !incoming.is_empty() && incoming.iter().all(|i| live.has(i.module, i.version))
}

/// Refuses, before anything is sampled, what could not be changed in the end.
///
/// # Errors
/// Why it could not.
pub fn refuse_unchangeable(pid: i32) -> Result<(), SessionError> {
    let pid = when_not_traced(pid)?.pid;
    refuse_stopped(pid)?;
    restitch_tracee::refuse_shared_memory(pid)?;
    Ok(restitch_tracee::refuse_by_filters(pid)?)
}

/// Refuses a process that does not run, so that nothing could be seen of its work.
///
/// # Errors
/// If it is stopped, or cannot be looked at.
pub fn refuse_stopped(pid: i32) -> Result<(), SessionError> {
    if procfs::status(pid)?.state == Some(procfs::ProcessState::Stopped) {
        let why = format!("it is stopped and does no work; let it go on (kill -CONT {pid}) and try again");
        return Err(SessionError::Refused { pid, why });
    }
    Ok(())
}

/// The process that `pid` names, which may be the number of one of its threads. A kernel thread has no memory
/// map; that is to be told, not that a file is missing.
///
/// # Errors
/// If it is a kernel thread, or has ended.
pub fn process_of(pid: i32) -> Result<i32, SessionError> {
    let status = procfs::status(pid)?;
    if procfs::has_ended(pid) {
        return Err(TraceError::Zombie { pid }.into());
    }
    match status.kernel_thread {
        true => Err(TraceError::KernelThread { pid }.into()),
        false => Ok(status.tgid.unwrap_or(pid)),
    }
}

/// What is told before a recording that needs the original code.
fn taken_out(pid: i32) -> String {
    format!(
        "process {pid} is under restitch: its layout is taken out for the recording, and stays out (`restitch attach {pid}` makes one active again; `--source ip` records with it active)"
    )
}

/// What the processes of a set are switched to.
struct Change<'a> {
    leader: &'a Target,
    versions: &'a [(usize, CheckedVersion)],
    kind: VersionKind,
    retargeted_slots: RetargetedSlots,
}

impl Change<'_> {
    /// Whether a process was forked off when its parent had been switched: it has everything.
    fn is_made(&self, live: &AttachedProcess) -> bool {
        has_all(live, &incoming(live, self.leader, self.versions, self.kind))
    }

    /// Switches one process, if it has to be; one that cannot be changed gets its original code back.
    ///
    /// # Errors
    /// If it is the leader.
    fn make(
        &self,
        live: &mut AttachedProcess,
        watcher: &mut dyn Watcher,
    ) -> Result<Option<SwitchReport>, ProcessError> {
        let is_leader = live.target().pid() == self.leader.pid();
        if !is_leader && let Err(error) = live.look_again() {
            if live.target().process.is_alive() {
                watcher.note(&format!("process {}: {error}", live.target().pid()));
            }
            return Ok(None);
        }
        let mut incoming = incoming(live, self.leader, self.versions, self.kind);
        incoming.iter_mut().for_each(|new| new.retargeted_slots = self.retargeted_slots);
        if !is_leader && has_all(live, &incoming) {
            return Ok(None);
        }
        match live.switch(&incoming) {
            Ok(report) => return Ok(Some(report)),
            Err(error) if is_leader => return Err(error),
            Err(_) if !live.target().process.is_alive() => {}
            Err(error) => {
                watcher.note(&format!("process {}: {error}", live.target().pid()));
                // It must not go on counting, or in a layout that the others have left.
                let _ = live.revert();
            }
        }
        Ok(None)
    }
}

/// What the switches of several processes come to.
#[derive(Default)]
struct Total {
    /// Of all that were switched.
    sum: Option<SwitchReport>,
    /// Why the leader could not be.
    failed: Option<ProcessError>,
}

impl Total {
    /// Takes in what came of one process; after a failure there are no more.
    fn take(&mut self, switched: Result<Option<SwitchReport>, ProcessError>) -> ControlFlow<()> {
        match switched {
            Ok(Some(report)) => self.sum = Some(add(self.sum.take(), report)),
            Ok(None) => {}
            Err(error) => {
                self.failed = Some(error);
                return ControlFlow::Break(());
            }
        }
        ControlFlow::Continue(())
    }
}

/// The longest pause, and the sums of what was done.
fn add(sum: Option<SwitchReport>, one: SwitchReport) -> SwitchReport {
    let Some(sum) = sum else { return one };
    let (mut longer, shorter) = if one.pause_us > sum.pause_us { (one, sum) } else { (sum, one) };
    longer.borrow_us = longer.borrow_us.max(shorter.borrow_us);
    longer.threads += shorter.threads;
    longer.patched += shorter.patched;
    longer.slots += shorter.slots;
    longer.restored += shorter.restored;
    longer.left_out += shorter.left_out;
    longer.left_to_preempted += shorter.left_to_preempted;
    longer.moved_threads += shorter.moved_threads;
    longer.moved_returns += shorter.moved_returns;
    longer.written_in_stop.extend(shorter.written_in_stop);
    longer
}
