//! Pages of files on file systems that a process serves (FUSE).
//!
//! **Problem.** To touch a page that is not there is to wait in the kernel for the server, who may be a
//! thread that is stopped, or may never answer. Not even SIGKILL ends that wait.
//!
//! **Idea.** Where the page map sees a page, nobody is waited for. What is missing is not touched in a stop;
//! else a process of its own touches it, which is given up if that takes too long. Which mappings these are
//! is asked once for each that is read from, a microsecond (before Linux 6.11: all lines of the maps), and
//! believed for a moment; of files on block devices, and of other memory, nothing is asked but that.
//!
//! **Limits.** A process that runs can have a page taken away, or another file mapped, between the look and
//! the touch.

use crate::helper;
use restitch_address::{Avma, AvmaRange, PAGE};
use restitch_procfs::{MapsFile, Mounts, Pagemap};
use std::collections::BTreeMap;
use std::fs::File;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How long it is believed what is mapped at a place.
const BELIEVED: Duration = Duration::from_secs(1);
/// How long a server may take, for all pages that are asked for at a time.
const PATIENCE: Duration = Duration::from_secs(2);

/// What is known of a process's mappings.
#[derive(Debug)]
pub(crate) struct Served {
    pid: i32,
    known: Mutex<Known>,
}

#[derive(Debug)]
struct Known {
    since: Instant,
    /// By their first addresses.
    mappings: BTreeMap<Avma, Extent>,
    mounts: Option<Mounts>,
    /// Servers are waited for.
    waits: bool,
}

/// A mapping, from the address under which it is known.
#[derive(Debug, Clone, Copy)]
struct Extent {
    end: Avma,
    /// Its pages are of a file that a process serves.
    is_served: bool,
}

impl Served {
    pub fn of(pid: i32) -> Self {
        let known = Known { since: Instant::now(), mappings: BTreeMap::new(), mounts: None, waits: true };
        Self { pid, known: Mutex::new(known) }
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for no server from now on.
    pub fn wait_no_more(&self) {
        self.known().waits = false;
    }

    /// The first page of `ranges`, if any, that is missing and that its server does not bring. `memory` is
    /// the process's.
    pub fn missing(&self, ranges: impl Iterator<Item = AvmaRange>, memory: &File) -> Option<Avma> {
        let pages: Vec<Avma> = ranges.flat_map(|range| self.missing_of(range)).collect();
        let first = *pages.first()?;
        if !self.known().waits {
            return Some(first);
        }
        match helper::touch(memory, &pages, PATIENCE) {
            true => pages.into_iter().find(|page| !self.missing_of(AvmaRange::new(*page, 1)).is_empty()),
            false => {
                self.wait_no_more();
                Some(first)
            }
        }
    }

    /// The pages of `range` that a server would have to bring.
    fn missing_of(&self, range: AvmaRange) -> Vec<Avma> {
        let (mut out, mut at) = (Vec::new(), range.start);
        while at < range.end
            && let Some(extent) = self.extent(at)
        {
            let part = AvmaRange::between(at, range.end.min(extent.end));
            if extent.is_served {
                out.extend(self.not_there(part));
            }
            at = extent.end;
        }
        out
    }

    /// The pages of `range` that the page map does not see; all if it cannot be asked.
    fn not_there(&self, range: AvmaRange) -> Vec<Avma> {
        let range = AvmaRange::between(range.start.align_down(PAGE), range.end.align_up(PAGE));
        let states = Pagemap::open(self.pid).and_then(|pages| pages.states(range)).unwrap_or_default();
        let pages = (0..range.len() / PAGE).map(|i| (range.start + i * PAGE, states.get(i as usize)));
        pages.filter(|(_, s)| !s.is_some_and(|s| s.present || s.swapped)).map(|(page, _)| page).collect()
    }

    /// The mapping at `at`, if there is one.
    fn extent(&self, at: Avma) -> Option<Extent> {
        let mut known = self.known();
        if known.since.elapsed() > BELIEVED {
            known.mappings.clear();
            known.mounts = None;
            known.since = Instant::now();
        }
        known.at(at).or_else(|| {
            known.learn(self.pid, at);
            known.at(at)
        })
    }
}

impl Known {
    fn at(&self, at: Avma) -> Option<Extent> {
        let (_, extent) = self.mappings.range(..=at).next_back()?;
        (at < extent.end).then_some(*extent)
    }

    fn learn(&mut self, pid: i32, at: Avma) {
        let found = MapsFile::open(pid).and_then(|maps| maps.mappings_at(at)).unwrap_or_default();
        for mapping in found {
            let is_served = mapping.inode != 0
                && mapping.device.major == 0
                && self.mounts.get_or_insert_with(|| Mounts::of(pid)).may_be_served(mapping.device);
            self.mappings.insert(mapping.range.start, Extent { end: mapping.range.end, is_served });
        }
    }
}
