//! Where below a thread's stack scratch space and frame of a [borrow](crate::borrow) may go.
//!
//! Problem: what lies there may be anything. Small stacks of coroutines have other data below them, which
//! others work on if the memory is shared, or if their threads run; and to touch a page that is not there can
//! mean to wait for somebody: for the handler of a userfaultfd(2), or the server of a FUSE file system, who
//! may be a thread that is stopped, or never answer.
//!
//! Idea: nothing is touched before the maps have said that it is memory of this process alone which the
//! kernel gives by itself:
//!
//! - private and anonymous; where nothing in a page is missing, also a copy of a file's page;
//! - where other threads run: one mapping that is this thread's own stack.
//!
//! The first thread's stack is mapped as far as it was touched. It may grow into what is wanted: the kernel
//! does that for whoever reads there (`expand_stack` in `__access_remote_vm`), or refuses, by the limit of
//! stacks and by the gap that it keeps above the next mapping.
//!
//! Then it is read, and written as it is, by [`Memory`](crate::Memory), which fails where a userfaultfd's
//! handler would have to be waited for; so all of it is there when the thread uses it.

use crate::error::TraceError;
use crate::stopped::Stopped;
use crate::unborrowable::Unborrowable;
use restitch_address::{Avma, AvmaRange, PAGE};
use restitch_procfs::{Mapping, MappingName, MapsFile, PageState, Pagemap};

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
    /// The bytes of `place`, once it is known that they can be read and written, harming nobody and waiting
    /// for nobody.
    pub(crate) fn fit_area(&self, place: Place) -> Result<Vec<u8>, Unborrowable> {
        let maps = self.mappings_around(place.area).map_err(failed)?;
        let below = mappings_of(place, &maps)?;
        for mapping in &below {
            judge(place.tid, mapping, || self.states(place.area, mapping))?;
        }
        let grows = below.first().is_some_and(|mapping| mapping.range.start > place.area.start);
        self.rewrite(place.area).map_err(|error| match error {
            TraceError::Memory { .. } if grows => small(place),
            TraceError::Watched { at, .. } => {
                let mapping = below.into_iter().find(|mapping| mapping.range.contains(at));
                let mapping = mapping.map_or_else(|| at.to_string(), describe);
                Unborrowable::WatchedStack { tid: place.tid, mapping }
            }
            error => failed(error),
        })
    }

    /// The mappings that `area` is in: some microseconds, however many there are (before Linux 6.11: 0.5 us
    /// for each).
    fn mappings_around(&self, area: AvmaRange) -> Result<Vec<Mapping>, TraceError> {
        Ok(MapsFile::open(self.memory.pid())?.overlapping(area)?)
    }

    /// Reads `area` and writes it as it is.
    fn rewrite(&self, area: AvmaRange) -> Result<Vec<u8>, TraceError> {
        let bytes = self.memory.read_vec(area.start, area.len() as usize)?;
        self.memory.write(area.start, &bytes)?;
        Ok(bytes)
    }

    /// The states of the pages of `area` that are in `mapping`.
    fn states(&self, area: AvmaRange, mapping: &Mapping) -> Result<Vec<PageState>, TraceError> {
        let range = AvmaRange::between(
            mapping.range.start.max(area.start.align_down(PAGE)),
            mapping.range.end.min(area.end.align_up(PAGE)),
        );
        Ok(Pagemap::open(self.memory.pid())?.states(range)?)
    }
}

pub(crate) fn failed(error: TraceError) -> Unborrowable {
    Unborrowable::Failed(Box::new(error))
}

/// The error of a stack that has too little room.
fn small(place: Place) -> Unborrowable {
    Unborrowable::SmallStack { tid: place.tid, needed: place.area.len(), below: place.area.end }
}

/// The mappings that the area is in; of the first thread's stack, that into which it may grow.
fn mappings_of(place: Place, maps: &[Mapping]) -> Result<Vec<&Mapping>, Unborrowable> {
    let Place { tid, area, .. } = place;
    let (mut found, mut reached) = (Vec::new(), area.start);
    for mapping in maps.iter().filter(|mapping| mapping.range.overlaps(&area)) {
        let fits = mapping.permissions.read && mapping.permissions.write;
        let may_grow = found.is_empty() && mapping.is_special("[stack]");
        if mapping.range.start > reached && !may_grow || !fits {
            return Err(small(place));
        }
        reached = mapping.range.end;
        found.push(mapping);
    }
    if reached < area.end || found.is_empty() {
        return Err(small(place));
    }
    let is_own = |mapping: &Mapping| {
        mapping.is_special("[stack]")
            || mapping.range.contains(place.thread_data) && !mapping.is_special("[heap]")
    };
    match found[..] {
        [mapping] if is_own(mapping) => Ok(found),
        [.., mapping] if place.others_run => {
            Err(Unborrowable::NotItsOwnStack { tid, mapping: describe(mapping) })
        }
        _ => Ok(found),
    }
}

/// Whether pages of `mapping` can be touched. Their `states` are asked for only if they matter.
fn judge(
    tid: i32,
    mapping: &Mapping,
    states: impl FnOnce() -> Result<Vec<PageState>, TraceError>,
) -> Result<(), Unborrowable> {
    if mapping.permissions.shared {
        return Err(Unborrowable::SharedStack { tid, mapping: describe(mapping) });
    }
    let is_anonymous = !matches!(mapping.name, MappingName::File { .. }) && mapping.inode == 0;
    // Who cannot be asked is not trusted.
    match is_anonymous || states().is_ok_and(|states| states.iter().all(|state| state.is_own())) {
        true => Ok(()),
        false => Err(Unborrowable::StackOfFile { tid, mapping: describe(mapping) }),
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

#[cfg(test)]
mod tests {
    use super::*;

    const THERE: PageState = PageState { present: true, swapped: false, file: false, write_watched: false };
    const OF_FILE: PageState = PageState { file: true, ..THERE };
    const MISSING: PageState = PageState { present: false, ..THERE };

    fn maps(text: &str) -> Vec<Mapping> {
        restitch_procfs::parse_maps(text.as_bytes()).expect("lines of maps")
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
        let said = |from, to, run| found(from, to, run).map_err(|why| why.to_string());
        assert_eq!(said(0x2000, 0x5000, false), Ok(1));
        assert_eq!(said(0x5f00, 0x6100, false), Ok(2));
        let small = |from: u64, to: u64| {
            Err(Unborrowable::SmallStack { tid: 7, needed: to - from, below: Avma::new(to) }.to_string())
        };
        assert_eq!(said(0x1f00, 0x3000, false), small(0x1f00, 0x3000), "a guard page");
        assert_eq!(said(0xaf00, 0xb100, false), Ok(1), "the first thread's stack may grow");
        assert_eq!(said(0xaf00, 0xb100, true), Ok(1));
        assert_eq!(said(0x9f00, 0xb100, false), small(0x9f00, 0xb100), "a gap below that");
        assert_eq!(said(0xc000, 0xc100, false), small(0xc000, 0xc100), "not writable");
        assert_eq!(said(0xe000, 0xf000, false), small(0xe000, 0xf000), "nothing");
        // While others run only where the thread's own data are, or the first thread's stack.
        assert!(matches!(found(0x2000, 0x5000, true), Err(Unborrowable::NotItsOwnStack { .. })));
        assert!(matches!(found(0x7f00, 0x8100, true), Err(Unborrowable::NotItsOwnStack { .. })));
        assert_eq!([said(0x8100, 0x9000, true), said(0xb100, 0xb200, true)], [Ok(1), Ok(1)]);
    }

    #[test]
    fn only_memory_of_its_own_is_touched() {
        let judged = |line: &str, states: &[PageState]| {
            judge(7, &maps(line)[0], || Ok(states.to_vec())).map_err(|unfit| unfit.to_string())
        };
        assert_eq!(judged("1000-3000 rw-p 0 00:00 0\n", &[THERE, MISSING]), Ok(()));
        let shared = judged("1000-3000 rw-s 0 00:01 5 /dev/zero (deleted)\n", &[THERE]);
        assert!(shared.expect_err("shared").contains("mapping 0x1000-0x3000 (/dev/zero, shared)"));
        let file = "1000-3000 rw-p 0 00:2a 5 /mnt/file\n";
        assert_eq!(judged(file, &[THERE, THERE]), Ok(()), "copies");
        for state in [OF_FILE, MISSING] {
            assert!(judged(file, &[THERE, state]).expect_err("the file's").contains("/mnt/file"));
        }
        let unknown = judge(7, &maps(file)[0], || Err(TraceError::Vanished { tid: 7, operation: "a test" }));
        assert!(unknown.is_err());
    }
}
