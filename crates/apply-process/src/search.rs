//! Searching a process's memory for words that lead into ranges of code, while the process runs.
//!
//! All writable private memory is looked through, thread stacks included, since coroutines may have their stacks anywhere: on the
//! heap, in static arrays, in local arrays of a thread's own stack. Left out is only what is known to be dead, or was looked at
//! while the threads stood still ([`spared`]):
//!
//! * what lies below the stack pointer of a thread that is on its own stack, as its outermost frame shows: that of the program's start
//!   or of `clone`, to which no coroutine returns;
//! * small frames of a thread whose frames were all followed: its return addresses are known, and what else looks like an address is a
//!   dead one, for a frame of less than [`SMALL_FRAME`] bytes has no room for a stack (but where slots of v-tables have led into a version: it may be what
//!   such a slot held);
//! * the used part of a stack whose frames could not be followed: all its words were looked at in the stop;
//! * stacks that the C library keeps of threads that have ended ([`crate::ended`]).
//!
//! Two searches, one after the other, have to find nothing: words that are copied from where a search has not been to where it has
//! been are found by the second one.
//!
//! Limits: writable shared memory is not searched. A program that copies stacks as data all the time may do so twice at just the
//! wrong moments; those that are known for it keep their versions ([`copies_stacks`]).

use crate::ended::ended_stacks;
use crate::exceptions::is_spent_note;
use crate::private_memory::{self, is_private};
use crate::threads::{ThreadView, words};
use crate::{ProcessError, Target};
use restitch_address::{Avma, AvmaRange};
use restitch_procfs::{self as procfs, Mapping};
use restitch_tracee::Memory;

/// Most bytes that are looked through.
const MOST_MEMORY: u64 = 4 << 30;
/// Frames of so many bytes may hold a coroutine's stack (MINSIGSTKSZ, the least that was ever meant to be one).
const SMALL_FRAME: i64 = 2048;
/// A program's first instructions, `_start`, call `main` sooner or later and are no longer than this.
const START: i64 = 64;
/// `mov $SYS_exit,%eax; syscall`: what comes behind the call of a thread's function, in the C library's `clone`.
const END_OF_THREAD: [u8; 7] = [0xb8, 0x3c, 0, 0, 0, 0x0f, 0x05];

/// What to search for, and where not.
pub(crate) struct Search<'a> {
    pub pid: i32,
    /// Words into these count.
    pub ranges: &'a [AvmaRange],
    /// Those of them that count wherever a word into them stands that anybody may still read: what is no return address may be a pointer.
    pub by_pointers: &'a [AvmaRange],
    /// Where words do not count.
    pub spared: Spared,
}

/// Where words do not count.
#[derive(Debug, Clone, Default)]
pub(crate) struct Spared {
    /// Nobody reads there any more.
    pub dead: Vec<AvmaRange>,
    /// What returns from there is known.
    pub known: Vec<AvmaRange>,
}

/// For a range that a word points into: where.
pub(crate) type Hits = Vec<(AvmaRange, String)>;

impl Search<'_> {
    /// Searches twice. Ranges that are not among the hits have nothing that leads into them.
    pub fn twice(&self) -> Result<Hits, ProcessError> {
        let mut hits = Hits::new();
        for _ in 0..2 {
            if self.ranges.iter().any(|range| hits.iter().all(|hit| hit.0 != *range)) {
                self.once(&mut hits)?;
            }
        }
        Ok(hits)
    }

    fn once(&self, hits: &mut Hits) -> Result<(), ProcessError> {
        let maps: Vec<Mapping> = procfs::maps(self.pid)?.into_iter().filter(is_private).collect();
        let looked_at = private_memory::read(self.pid, &maps, MOST_MEMORY, |memory, chunk| {
            self.look_at(memory, chunk, hits);
        })?;
        if looked_at > MOST_MEMORY {
            let total: u64 = maps.iter().map(|m| m.range.len()).sum();
            let why = format!("the process has too much memory to look through ({} MiB)", total >> 20);
            hits.extend(self.ranges.iter().map(|r| (*r, why.clone())));
        }
        Ok(())
    }

    /// What exception objects keep in vain does not count either.
    fn look_at(&self, memory: &Memory, chunk: &(Avma, Vec<u8>), hits: &mut Hits) {
        let low = self.ranges.iter().map(|r| r.start).min().unwrap_or_default();
        let high = self.ranges.iter().map(|r| r.end).max().unwrap_or_default();
        for (at, word) in words(chunk) {
            if word < low || word >= high || self.spared.dead.iter().any(|e| e.contains(at)) {
                continue;
            }
            let is_known = self.spared.known.iter().any(|e| e.contains(at));
            for range in self.ranges.iter().filter(|r| r.contains(word)) {
                if is_known && !self.by_pointers.contains(range) {
                    continue;
                }
                if hits.iter().all(|h| h.0 != *range) && !is_spent_note(memory, at) {
                    hits.push((*range, format!("a word in memory at {at} points into it")));
                }
            }
        }
    }
}

/// The parts of thread stacks that need not be searched. `maps` are of the same stop as `threads`.
pub(crate) fn spared(target: &Target, memory: &Memory, threads: &[ThreadView], maps: &[Mapping]) -> Spared {
    let controls: Vec<Avma> = threads.iter().map(|t| t.registers.fs_base).collect();
    let program = &target.modules[target.program];
    let entry = program.bias.to_actual(program.image.entry());
    let (mut dead, mut known) = (Vec::new(), Vec::new());
    for thread in threads {
        let begins = |at: Avma| {
            let code = memory.read_vec(at, 16).unwrap_or_default();
            (0..START).contains(&at.offset_from(entry)) || code.windows(7).any(|w| w == END_OF_THREAD)
        };
        if thread.walk.outermost.is_some_and(begins) {
            dead.extend(dead_part(thread.registers.rsp, maps, &controls));
        }
        known.extend(known_part(thread));
    }
    dead.extend(ended_stacks(memory, threads, maps));
    Spared { dead: joined(dead), known: joined(known) }
}

/// What lies below stack pointer `rsp` of a thread that is on its own stack, down to a guard page, where no control block of another
/// thread (System V ABI, 3.4.2: where %fs points) shows that the mapping is shared.
fn dead_part(rsp: Avma, maps: &[Mapping], controls: &[Avma]) -> Option<AvmaRange> {
    let lowest = rsp - 128;
    let m = maps.iter().find(|m| m.range.contains(lowest))?;
    let is_guard = |g: &Mapping| g.range.end == m.range.start && !g.permissions.read && !g.permissions.write;
    let alone = !controls.iter().any(|c| m.range.contains(*c) && *c < lowest);
    let guarded = m.is_special("[stack]") || maps.iter().any(is_guard);
    (alone && guarded).then(|| AvmaRange::between(m.range.start, lowest))
}

/// What the thread's frames, or all words of its stack, told in the stop.
fn known_part(thread: &ThreadView) -> Vec<AvmaRange> {
    if !thread.walk.complete {
        let lowest = thread.registers.rsp - 128;
        let words = thread.stacks.iter().map(|(at, bytes)| AvmaRange::new(*at, bytes.len() as u64));
        let looked_at = words.map(|r| AvmaRange { start: r.start.max(lowest), ..r });
        return looked_at.filter(|r| r.start < r.end).collect();
    }
    let starts = std::iter::once(thread.registers.rsp - 128).chain(thread.walk.frames.iter().copied());
    let frames = starts.zip(&thread.walk.frames);
    let small = frames.filter(|(start, end)| (0..SMALL_FRAME).contains(&end.offset_from(*start)));
    small.map(|(start, end)| AvmaRange::between(start, *end)).collect()
}

/// The union of `ranges`, ascending, in as few as can be: neighbours become one.
pub(crate) fn joined(mut ranges: Vec<AvmaRange>) -> Vec<AvmaRange> {
    ranges.sort_by_key(|r| r.start);
    let mut out: Vec<AvmaRange> = Vec::new();
    for range in ranges {
        match out.last_mut() {
            Some(last) if range.start <= last.end => last.end = last.end.max(range.end),
            _ => out.push(range),
        }
    }
    out
}

/// The module by which a program copies stacks as data, if it has one: `greenlet` switches stacks of Python by copying them, and so
/// do Ruby's continuations.
pub(crate) fn copies_stacks(target: &Target) -> Option<String> {
    const PREFIXES: [&str; 2] = ["_greenlet.", "libruby"];
    let names = target.modules.iter().filter_map(|m| m.path.file_name());
    let mut names = names.map(|name| name.to_string_lossy().into_owned());
    names.find(|name| PREFIXES.iter().any(|prefix| name.starts_with(prefix)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(from: u64, to: u64) -> AvmaRange {
        AvmaRange::between(Avma::new(from), Avma::new(to))
    }

    #[test]
    fn neighbouring_ranges_become_one() {
        let all = joined(vec![range(30, 40), range(10, 20), range(20, 25), range(12, 14)]);
        assert_eq!(all, [range(10, 25), range(30, 40)]);
        assert_eq!(joined(Vec::new()), []);
    }

    fn mapping(range: AvmaRange, permissions: &str, name: &str) -> Mapping {
        let line = format!("{:x}-{:x} {permissions} 0 00:00 0 {name}\n", range.start.get(), range.end.get());
        procfs::parse_maps(line.as_bytes()).expect("a line of maps").remove(0)
    }

    #[test]
    fn what_is_below_a_thread_on_its_own_stack_is_dead() {
        let maps = [
            mapping(range(0x1_0000, 0x1_1000), "---p", ""),
            mapping(range(0x1_1000, 0x2_0000), "rw-p", ""),
            mapping(range(0x3_0000, 0x4_0000), "rw-p", ""),
        ];
        let dead = |rsp, controls: &[u64]| {
            let controls: Vec<Avma> = controls.iter().map(|c| Avma::new(*c)).collect();
            dead_part(Avma::new(rsp), &maps, &controls)
        };
        assert_eq!(dead(0x1_8080, &[0x1_f800, 0x3_f800]), Some(range(0x1_1000, 0x1_8000)));
        assert_eq!(dead(0x1_8080, &[0x1_f800, 0x1_7000]), None, "another thread's stack lies below");
        assert_eq!(dead(0x3_8080, &[0x3_f800]), None, "there is no guard page");
    }

    #[test]
    fn only_small_frames_hold_nothing_but_data() {
        let registers = restitch_tracee::Registers { rsp: Avma::new(0x1_8080), ..Default::default() };
        let frames = [0x1_8100, 0x1_f000, 0x1_f100].map(Avma::new).to_vec();
        let walk = crate::frames::Walk { frames, complete: true, ..Default::default() };
        let stacks = vec![(Avma::new(0x1_8000), vec![0; 0x8000])];
        let mut thread = ThreadView { tid: 1, registers, stacks, walk };
        assert_eq!(known_part(&thread), [range(0x1_8000, 0x1_8100), range(0x1_f000, 0x1_f100)]);
        thread.walk.complete = false;
        assert_eq!(known_part(&thread), [range(0x1_8000, 0x2_0000)]);
    }
}
