//! Searching a process's memory for words that lead into ranges of code, while the process runs.
//!
//! All private memory that was written is looked through, thread stacks included, since coroutines may have
//! their stacks anywhere: on the heap, in static arrays, in local arrays of a thread's own stack. Words count
//! at whatever byte they begin, since neither stacks nor copies of them need be aligned. Left out is only
//! what is known to be dead, or was looked at while the threads stood still ([`spared`]):
//!
//! * what lies below the stack pointer of a thread that is on its own stack, as its outermost frame shows:
//!   that of the program's start or of `clone`, to which no coroutine returns; unless something alive points
//!   there ([`crate::memory::below`]);
//! * small frames of a thread whose frames were all followed: its return addresses are known, and what else
//!   looks like an address is a dead one, for a frame of less than [`SMALL_FRAME`] bytes has no room for a
//!   stack (but where slots of v-tables have led into a version: it may be what such a slot held);
//! * the used part of a stack whose frames could not be followed: all its words were looked at in the stop;
//! * stacks that the C library keeps of threads that have ended ([`crate::memory::dead_stacks`]).
//!
//! Two searches, one after the other, have to find nothing: words that are copied from where a search has not
//! been to where it has been are found by the second one.
//!
//! Limits: writable shared memory is not searched. A program that copies stacks as data all the time may do
//! so twice at just the wrong moments; those that are known for it keep their versions ([`copies_stacks`]).

use crate::error::ProcessError;
use crate::memory::below::{Below, Doubt, Pointers};
use crate::memory::dead_stacks::dead_stacks;
use crate::memory::exceptions::is_spent_note;
use crate::memory::private_memory::{self, Limits, is_private};
use crate::target::Target;
use crate::threads::ThreadView;
use crate::words::WordFinder;
use restitch_address::{Avma, AvmaRange};
use restitch_procfs::{self as procfs, Mapping};
use restitch_tracee::{Memory, aside};
use restitch_x86::kernel::{NUMBERED_CALL, numbered_call};
use std::ops::ControlFlow;
use std::time::{Duration, Instant};

/// What is looked through. To look at what is swapped out would bring it back in place of what is in use.
const LIMITS: Limits = Limits { bytes: 64 << 30, swapped: 256 << 20 };
/// Address space of mappings that hold something, where the kernel does not scan page tables by itself
/// (before Linux 6.7): 256 GiB of it take more than a second.
pub(crate) const MOST_TEDIOUS: u64 = 256 << 30;
/// More than this is looked through with what others leave of the processors, until that has taken so long:
/// nobody needs the answer but who waits for the end of a session.
const MUCH_MAPPED: u64 = 1 << 30;
const PATIENCE: Duration = Duration::from_secs(5);
/// It is asked so often whether it is worth going on.
const WATCH: Duration = Duration::from_millis(50);
/// Frames of so many bytes may hold a coroutine's stack: half of MINSIGSTKSZ, the least that was ever meant
/// to be one, for coroutines that take no signals. (Unwinders keep copies of frames in less.)
const SMALL_FRAME: i64 = 1024;
/// A program's first instructions, `_start`, call `main` sooner or later and are no longer than this.
const START: i64 = 64;
/// The call behind that of a thread's function, in the C library's `clone`.
const END_OF_THREAD: u32 = libc::SYS_exit as u32;

/// Does `work`, which looks through a process's private memory: with what others leave of the processors if
/// that may take long.
pub(crate) fn gently<T: Send>(
    pid: i32,
    work: impl Fn() -> Result<T, ProcessError> + Sync,
) -> Result<T, ProcessError> {
    let mapped: u64 = procfs::maps(pid)?.iter().filter(|m| is_private(m)).map(|m| m.range.len()).sum();
    match mapped > MUCH_MAPPED {
        true => aside(PATIENCE, &work).unwrap_or_else(|_| work()),
        false => work(),
    }
}

/// Whether the call that ends a thread is somewhere in `code`.
fn ends_thread(code: &[u8]) -> bool {
    let mut calls = code.windows(NUMBERED_CALL).filter_map(|bytes| numbered_call(bytes.first_chunk()?));
    calls.any(|number| number == END_OF_THREAD)
}

/// What to search for, and where not.
pub(crate) struct Search<'a> {
    pub pid: i32,
    /// Words into these count.
    pub ranges: &'a [AvmaRange],
    /// Those of them that count wherever a word into them stands that anybody may still read: what is no
    /// return address may be a pointer.
    pub by_pointers: &'a [AvmaRange],
    /// Where words do not count.
    pub spared: Spared,
}

/// Where words do not count.
#[derive(Debug, Clone, Default)]
pub(crate) struct Spared {
    /// Nobody reads there any more.
    pub dead: Vec<AvmaRange>,
    /// Nobody reads there any more, unless somebody points there.
    pub below: Below,
    /// What returns from there is known.
    pub known: Vec<AvmaRange>,
}

/// For a range that a word points into: where.
pub(crate) type Hits = Vec<(AvmaRange, String)>;

impl Search<'_> {
    /// Searches twice, with what others leave of the processors if it may take long. Ranges that are not
    /// among the hits have nothing that leads into them. `watch` is asked again and again, by whatever
    /// thread, and at the end, whether it is worth going on.
    pub fn twice(&self, watch: &(dyn Fn() -> bool + Sync)) -> Result<Hits, ProcessError> {
        gently(self.pid, || self.searched_twice(watch))
    }

    fn searched_twice(&self, watch: &dyn Fn() -> bool) -> Result<Hits, ProcessError> {
        let mut hits = Hits::new();
        for _ in 0..2 {
            if self.ranges.iter().any(|range| hits.iter().all(|hit| hit.0 != *range)) {
                self.once(watch, &mut hits)?;
            }
        }
        Ok(hits)
    }

    fn once(&self, watch: &dyn Fn() -> bool, hits: &mut Hits) -> Result<(), ProcessError> {
        let maps: Vec<Mapping> = procfs::maps(self.pid)?.into_iter().filter(is_private).collect();
        let tedious = private_memory::tedious(self.pid, &maps);
        if tedious > MOST_TEDIOUS {
            let what = format!(
                "{} GiB of address space hold something, and this kernel does not say where",
                tedious >> 30
            );
            self.hit_all(hits, &too_much(&what));
            return Ok(());
        }
        let finder = WordFinder::of(self.ranges);
        let mut doubts = Vec::new();
        let stopped = self.look_through(&maps, watch, |memory, at, bytes| {
            finder.find(bytes, |i, word| self.look_at(memory, at + i as u64, word, hits, &mut doubts));
        })?;
        if let Some(why) = stopped {
            self.hit_all(hits, &why);
        }
        doubts.retain(|doubt| hits.iter().all(|hit| hit.0 != doubt.range));
        if doubts.is_empty() {
            return Ok(());
        }
        let mut pointers = Pointers::to(&self.spared.below, &doubts);
        let dead = |at: Avma| self.spared.dead.iter().any(|e| e.contains(at));
        let stopped =
            self.look_through(&maps, watch, |_, at, bytes| pointers.look_through(at, bytes, dead))?;
        if let Some(why) = stopped {
            self.hit_all(hits, &why);
        }
        for Doubt { at, range } in pointers.alive(&doubts) {
            if hits.iter().all(|hit| hit.0 != *range) {
                let why = format!(
                    "a word in memory at {at} points into it, in a part of a stack that something points to"
                );
                hits.push((*range, why));
            }
        }
        Ok(())
    }

    /// Gives `see` all pieces of memory; why not, if it was not all.
    fn look_through(
        &self,
        maps: &[Mapping],
        watch: &dyn Fn() -> bool,
        mut see: impl FnMut(&Memory, Avma, &[u8]),
    ) -> Result<Option<String>, ProcessError> {
        let (mut watched, mut goes_on) = (Instant::now(), true);
        let looked_at = private_memory::read(self.pid, maps, LIMITS, |memory, at, bytes| {
            see(memory, at, bytes);
            if watched.elapsed() > WATCH {
                (watched, goes_on) = (Instant::now(), watch());
            }
            if goes_on { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        })?;
        if !goes_on || !watch() {
            return Ok(Some("it was in use while memory was searched".into()));
        }
        if looked_at.is_beyond(LIMITS) {
            let limit = match looked_at.swapped > LIMITS.swapped {
                true => format!("more than {} MiB are swapped out", LIMITS.swapped >> 20),
                false => format!("more than {} GiB", LIMITS.bytes >> 30),
            };
            return Ok(Some(too_much(&limit)));
        }
        Ok(None)
    }

    fn hit_all(&self, hits: &mut Hits, why: &str) {
        hits.extend(self.ranges.iter().map(|range| (*range, why.to_owned())));
    }

    /// What exception objects keep in vain does not count either. What is below a stack pointer is
    /// noted as doubtful.
    fn look_at(&self, memory: &Memory, at: Avma, word: Avma, hits: &mut Hits, doubts: &mut Vec<Doubt>) {
        let is_known = self.spared.known.iter().any(|e| e.contains(at));
        for range in self.ranges.iter().filter(|r| r.contains(word)) {
            let counts = !self.spared.dead.iter().any(|e| e.contains(at))
                && (!is_known || self.by_pointers.contains(range));
            if counts && self.spared.below.contains(at) {
                doubts.push(Doubt { at, range: *range });
                continue;
            }
            if counts && hits.iter().all(|h| h.0 != *range) && !is_spent_note(memory, at) {
                hits.push((*range, format!("a word in memory at {at} points into it")));
            }
        }
    }
}

fn too_much(what: &str) -> String {
    format!("the process has too much memory to look through ({what})")
}

/// The parts of thread stacks that need not be searched. `maps` are of the same stop as `threads`.
pub(crate) fn spared(target: &Target, memory: &Memory, threads: &[ThreadView], maps: &[Mapping]) -> Spared {
    let controls: Vec<Avma> = threads.iter().map(|t| t.registers.fs_base).collect();
    let (mut below, mut known) = (Vec::new(), Vec::new());
    for thread in threads {
        if thread.walk.outermost.is_some_and(|at| begins(target, memory, at)) {
            below.extend(dead_part(thread.registers.rsp, maps, &controls));
        }
        known.extend(known_part(thread));
    }
    let (below, mut dead) = Below::of(memory, threads, below);
    dead.extend(dead_stacks(memory, threads, maps));
    Spared { dead: joined(dead), below, known: joined(known) }
}

/// Whether a thread or the program begins with the function that goes on at `at`, to which no coroutine
/// returns.
pub(crate) fn begins(target: &Target, memory: &Memory, at: Avma) -> bool {
    let program = &target.modules[target.program];
    let entry = program.bias.to_actual(program.image.entry());
    let code = memory.read_vec(at, 16).unwrap_or_default();
    (0..START).contains(&at.offset_from(entry)) || ends_thread(&code)
}

/// What lies below stack pointer `rsp` of a thread that is on its own stack, down to a guard page, where no
/// control block of another thread (System V ABI, 3.4.2: where %fs points) shows that the mapping is shared.
pub(crate) fn dead_part(rsp: Avma, maps: &[Mapping], controls: &[Avma]) -> Option<AvmaRange> {
    let lowest = rsp - 128;
    let m = maps.iter().find(|m| m.range.contains(lowest))?;
    let is_guard = |g: &Mapping| g.range.end == m.range.start && !g.permissions.read && !g.permissions.write;
    let alone = !controls.iter().any(|c| m.range.contains(*c) && *c < lowest);
    let guarded = m.is_special("[stack]") || maps.iter().any(is_guard);
    (alone && guarded).then(|| AvmaRange::between(m.range.start, lowest))
}

/// What the thread's frames, or all words of its stack, told in the stop.
pub(crate) fn known_part(thread: &ThreadView) -> Vec<AvmaRange> {
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

/// The module by which a program copies stacks as data, if it has one: `greenlet` switches stacks of Python
/// by copying them, and so do Ruby's continuations.
pub(crate) fn copies_stacks(target: &Target) -> Option<String> {
    const PREFIXES: [&str; 2] = ["_greenlet.", "libruby"];
    let names = target.modules.iter().filter_map(|m| m.path.file_name());
    let mut names = names.map(|name| name.to_string_lossy().into_owned());
    names.find(|name| PREFIXES.iter().any(|prefix| name.starts_with(prefix)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use restitch_testkit::{Guarded, compile, require, scratch};
    use std::io::{BufRead, BufReader};
    use std::process::{Command, Stdio};

    fn range(from: u64, to: u64) -> AvmaRange {
        AvmaRange::between(Avma::new(from), Avma::new(to))
    }

    #[test]
    fn neighbouring_ranges_become_one() {
        let all = joined(vec![range(30, 40), range(10, 20), range(20, 25), range(12, 14)]);
        assert_eq!(all, [range(10, 25), range(30, 40)]);
        assert_eq!(joined(Vec::new()), []);
    }

    /// Maps more than is looked through by an ordinary thread, with one page in it that holds numbers.
    const LARGE: &str = r#"
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
int main(void) {
    char *pages = mmap(NULL, 3ul << 30, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    *(unsigned long *)(pages + (2ul << 30) + 4088) = 0x1234567800;
    memset(pages + (2ul << 30) + 4096, 0, 2 << 20);
    *(unsigned long *)(pages + (2ul << 30) + (1 << 20) - 3) = 0x7654321000;
    puts("ready");
    fflush(stdout);
    pause();
    return 0;
}
"#;

    #[test]
    fn words_are_found_in_large_memory() {
        let folder = scratch();
        let source = folder.path().join("large.c");
        std::fs::write(&source, LARGE).expect("writable");
        let program = require!(compile(&source, &["-O1"]).ok(), "gcc");
        let mut child = Guarded::spawn(Command::new(program).stdout(Stdio::piped())).expect("started");
        let output = child.child().stdout.take().expect("a pipe");
        BufReader::new(output).read_line(&mut String::new()).expect("an answer");
        // The second number lies in two of the pieces that are read.
        let ranges = [range(0x12_3456_7000, 0x12_3456_8000), range(0x76_5432_0000, 0x76_5433_0000)];
        let search =
            Search { pid: child.pid() as i32, ranges: &ranges, by_pointers: &[], spared: Spared::default() };
        let hits = search.twice(&|| true).expect("it can be read");
        let found: Vec<AvmaRange> = hits.iter().map(|hit| hit.0).collect();
        assert_eq!(found, ranges, "{hits:?}");
        let given_up = search.twice(&|| false).expect("it can be read");
        assert!(ranges.iter().all(|range| given_up.iter().any(|hit| hit.0 == *range)), "{given_up:?}");
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
