//! Where below a thread's stack scratch space and frame of a [borrow](crate::borrow) may go.
//!
//! Problem: what lies there may be anything. Small stacks of coroutines have other data below them, which
//! others work on if the memory is shared, or if their threads run; and to touch a page that is not there can
//! mean to wait for somebody: for the handler of a userfaultfd(2), or the server of a FUSE file system, who
//! may be a thread that is stopped, or never answer. The kernel lets only SIGKILL end such a wait.
//!
//! Idea: nothing is touched before the maps and the page map have said that it is memory of this process
//! alone which the kernel gives by itself:
//!
//! - private and anonymous; where nothing in a page is missing, also a copy of a file's page;
//! - nobody watches what is missing of it (`um`, `uw`, `ui` in `VmFlags` of smaps), nor was it protected by
//!   the watcher;
//! - where other threads run: one mapping that is this thread's own stack.
//!
//! What is seen holds in a stop. That somebody outside begins to watch in between is not excluded: who can
//! make the kernel wait by that (not `UFFD_USER_MODE_ONLY`) is privileged.

use crate::error::TraceError;
use crate::stopped::Stopped;
use restitch_address::{Avma, AvmaRange, PAGE};
use restitch_procfs::{self as procfs, Mapping, MappingFlags, MappingName, PageState, Pagemap};
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// For how long it is believed that nobody watches a mapping: the kernel looks at every page to say so.
const BELIEVED: Duration = Duration::from_secs(5);
/// Answers that are kept.
const KEPT: usize = 64;

/// A mapping of a process that nobody watched at a time.
type Unwatched = (i32, AvmaRange, Instant);

static UNWATCHED: Mutex<Vec<Unwatched>> = Mutex::new(Vec::new());

/// Why an area cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Unfit {
    #[error(
        "thread {tid} stands on a small stack (a coroutine's, perhaps): {needed} bytes below {below} are needed"
    )]
    Small { tid: i32, needed: u64, below: Avma },
    #[error("thread {tid} has its stack in {mapping}, which others write to as well")]
    Shared { tid: i32, mapping: String },
    #[error("thread {tid} has its stack in {mapping}, whose pages a file system would have to bring first")]
    OfFile { tid: i32, mapping: String },
    #[error(
        "thread {tid} has its stack in {mapping}, which a userfaultfd watches: whoever touches it may wait for ever"
    )]
    Watched { tid: i32, mapping: String },
    #[error("thread {tid} stands on a coroutine's stack in {mapping}, below which running threads may write")]
    NotItsOwn { tid: i32, mapping: String },
}

/// Where a thread stands.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Place {
    pub tid: i32,
    /// What is to be used.
    pub area: AvmaRange,
    /// The thread's own data, at the top of its stack if the thread library has made that.
    pub thread_data: Avma,
    /// Other threads run meanwhile.
    pub others_run: bool,
}

impl Stopped {
    /// Whether `place` can be read and written, harming nobody and waiting for nobody.
    pub(crate) fn refuse_unfit(&self, place: Place) -> Result<(), TraceError> {
        let maps = self.maps()?;
        let pid = self.memory.pid();
        let below = mappings_of(place, &maps).map_err(|unfit| self.unfit(&unfit))?;
        let pages = Pagemap::open(pid)?;
        for mapping in below {
            let range = AvmaRange::between(
                mapping.range.start.max(place.area.start.align_down(PAGE)),
                mapping.range.end.min(place.area.end.align_up(PAGE)),
            );
            let states = pages.states(range)?;
            judge(place.tid, mapping, &states, || is_watched(pid, mapping))
                .map_err(|unfit| self.unfit(&unfit))?;
        }
        Ok(())
    }

    fn unfit(&self, unfit: &Unfit) -> TraceError {
        TraceError::NothingToBorrow { pid: self.pid(), why: unfit.to_string() }
    }
}

/// The mappings that the area is in.
fn mappings_of(place: Place, maps: &[Mapping]) -> Result<Vec<&Mapping>, Unfit> {
    let Place { tid, area, .. } = place;
    let small = Unfit::Small { tid, needed: area.len(), below: area.end };
    let (mut found, mut reached) = (Vec::new(), area.start);
    for mapping in maps.iter().filter(|mapping| mapping.range.overlaps(&area)) {
        let fits = mapping.permissions.read && mapping.permissions.write;
        if mapping.range.start > reached || !fits {
            return Err(small);
        }
        reached = mapping.range.end;
        found.push(mapping);
    }
    if reached < area.end || found.is_empty() {
        return Err(small);
    }
    let is_own = |mapping: &Mapping| {
        mapping.is_special("[stack]")
            || mapping.range.contains(place.thread_data) && !mapping.is_special("[heap]")
    };
    match found[..] {
        [mapping] if is_own(mapping) => Ok(found),
        [.., mapping] if place.others_run => Err(Unfit::NotItsOwn { tid, mapping: describe(mapping) }),
        _ => Ok(found),
    }
}

/// Whether pages of `mapping` with these `states` can be touched. `watched` is asked only if that matters.
fn judge(
    tid: i32,
    mapping: &Mapping,
    states: &[PageState],
    watched: impl FnOnce() -> Result<bool, TraceError>,
) -> Result<(), Unfit> {
    let text = || describe(mapping);
    if mapping.permissions.shared {
        return Err(Unfit::Shared { tid, mapping: text() });
    }
    let is_anonymous = !matches!(mapping.name, MappingName::File { .. }) && mapping.inode == 0;
    if !is_anonymous && !states.iter().all(|state| state.is_own()) {
        return Err(Unfit::OfFile { tid, mapping: text() });
    }
    let all_there = states.iter().all(|state| state.present || state.swapped);
    let protected = states.iter().any(|state| state.write_watched);
    // Who cannot be asked is not trusted.
    match protected || !all_there && watched().unwrap_or(true) {
        true => Err(Unfit::Watched { tid, mapping: text() }),
        false => Ok(()),
    }
}

fn describe(mapping: &Mapping) -> String {
    let name = match &mapping.name {
        MappingName::Anonymous => "anonymous".to_owned(),
        MappingName::File { path, .. } => path.display().to_string(),
        MappingName::Special(name) => name.clone(),
    };
    let kind = if mapping.permissions.shared { ", shared" } else { "" };
    format!("mapping {}-{} ({name}{kind})", mapping.range.start, mapping.range.end)
}

/// Whether a userfaultfd watches a mapping.
fn is_watched(pid: i32, mapping: &Mapping) -> Result<bool, TraceError> {
    let now = Instant::now();
    let mut known = UNWATCHED.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    known.retain(|(_, _, then)| now.duration_since(*then) < BELIEVED);
    if known.iter().any(|(of, range, _)| *of == pid && *range == mapping.range) {
        return Ok(false);
    }
    let flags = procfs::mapping_flags(pid, &[mapping.range.start])?.pop().flatten();
    let watched = flags.is_none_or(|flags| names_a_watcher(&flags));
    if !watched && known.len() < KEPT {
        known.push((pid, mapping.range, now));
    }
    Ok(watched)
}

/// What userfaultfd is asked to tell of: pages that are missing, written to, or not mapped yet.
fn names_a_watcher(flags: &MappingFlags) -> bool {
    ["um", "uw", "ui"].iter().any(|flag| flags.contains(*flag))
}

#[cfg(test)]
mod tests {
    use super::*;

    const THERE: PageState = PageState { present: true, swapped: false, file: false, write_watched: false };
    const OF_FILE: PageState = PageState { file: true, ..THERE };
    const MISSING: PageState = PageState { present: false, ..THERE };

    fn maps(text: &str) -> Vec<Mapping> {
        procfs::parse_maps(text.as_bytes()).expect("lines of maps")
    }

    fn place(from: u64, to: u64, others_run: bool) -> Place {
        let area = AvmaRange::between(Avma::new(from), Avma::new(to));
        Place { tid: 7, area, thread_data: Avma::new(0x9f00), others_run }
    }

    #[test]
    fn an_area_has_to_be_mapped_as_a_whole() {
        let maps = maps(
            "1000-2000 ---p 0 00:00 0\n2000-6000 rw-p 0 00:00 0\n6000-8000 rw-p 0 00:00 0\n\
             8000-a000 rw-p 0 00:00 0 [anon:x]\nb000-c000 rw-p 0 00:00 0 [stack]\nc000-d000 r--p 0 00:00 0\n",
        );
        let found = |from, to, run| mappings_of(place(from, to, run), &maps).map(|found| found.len());
        assert_eq!(found(0x2000, 0x5000, false), Ok(1));
        assert_eq!(found(0x5f00, 0x6100, false), Ok(2));
        let small = |from, to| Err(Unfit::Small { tid: 7, needed: to - from, below: Avma::new(to) });
        assert_eq!(found(0x1f00, 0x3000, false), small(0x1f00, 0x3000), "a guard page");
        assert_eq!(found(0x9f00, 0xb100, false), small(0x9f00, 0xb100), "a gap");
        assert_eq!(found(0xc000, 0xc100, false), small(0xc000, 0xc100), "not writable");
        assert_eq!(found(0xe000, 0xf000, false), small(0xe000, 0xf000), "nothing");
        // While others run only where the thread's own data are, or the first thread's stack.
        assert!(matches!(found(0x2000, 0x5000, true), Err(Unfit::NotItsOwn { .. })));
        assert!(matches!(found(0x7f00, 0x8100, true), Err(Unfit::NotItsOwn { .. })));
        assert_eq!([found(0x8100, 0x9000, true), found(0xb100, 0xb200, true)], [Ok(1), Ok(1)]);
    }

    #[test]
    fn only_memory_of_its_own_that_nobody_watches_is_touched() {
        let judged = |line: &str, states: &[PageState], watched: bool| {
            judge(7, &maps(line)[0], states, || Ok(watched)).map_err(|unfit| unfit.to_string())
        };
        let private = "1000-3000 rw-p 0 00:00 0\n";
        assert_eq!(judged(private, &[THERE, MISSING], false), Ok(()));
        assert_eq!(judged(private, &[THERE, THERE], true), Ok(()), "nothing is missing");
        let refused = judged(private, &[THERE, MISSING], true).expect_err("one is missing");
        assert!(refused.contains("userfaultfd") && refused.contains("mapping 0x1000-0x3000"), "{refused}");
        let written = PageState { write_watched: true, ..THERE };
        assert!(judged(private, &[written], false).expect_err("protected").contains("userfaultfd"));
        let shared = judged("1000-3000 rw-s 0 00:01 5 /dev/zero (deleted)\n", &[THERE], false);
        assert!(shared.expect_err("shared").contains("shared"));
        let file = "1000-3000 rw-p 0 00:2a 5 /mnt/file\n";
        assert_eq!(judged(file, &[THERE, THERE], false), Ok(()), "copies");
        for state in [OF_FILE, MISSING] {
            assert!(judged(file, &[THERE, state], false).expect_err("the file's").contains("/mnt/file"));
        }
        let unknown = judge(7, &maps(private)[0], &[MISSING], || {
            Err(TraceError::Vanished { tid: 7, operation: "a test" })
        });
        assert!(unknown.is_err());
    }

    #[test]
    fn watchers_are_known_by_their_flags() {
        let flags = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<MappingFlags>();
        assert!(!names_a_watcher(&flags(&["rd", "wr", "mr", "mw"])));
        for flag in ["um", "uw", "ui"] {
            assert!(names_a_watcher(&flags(&["rd", flag])));
        }
    }
}
