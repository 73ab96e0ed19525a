//! Stacks of threads that have ended.
//!
//! Problem: glibc keeps stacks of ended threads for the next ones (`dl_stack_cache`), with all that was on
//! them. A return address into a retired version, or the program counter that a signal has interrupted there,
//! may lie on such a stack for as long as the process lives, and would keep the version mapped. Nobody
//! returns there: a new thread begins at the top and writes before it reads.
//!
//! A stack counts as such a one only if the C library says so in the thread's descriptor (`struct pthread`,
//! which lies at the top): the two pointers to itself are there; it is linked into one of the library's lists
//! of stacks; the memory that it names as its stack, with its guard, is this mapping; and its thread
//! identifier is zero, which the kernel writes when the thread ends (`CLONE_CHILD_CLEARTID`, clone(2)), or
//! -1, which `pthread_join` writes after that. Where the identifier is in a descriptor is no interface: it
//! has to be where the descriptors of all living threads have theirs, else no stack counts. All this is read
//! while the process stands still. Stacks that the program has given itself (`pthread_attr_setstack`) leave
//! the lists when their thread is joined.
//!
//! Limits: other C libraries, guards that are no mappings of their own (glibc 2.42), processes in another
//! namespace of identifiers, more static thread-local data than [`TOP`]: there such words keep versions
//! mapped, as everywhere else.

use crate::threads::ThreadView;
use restitch_address::{Avma, AvmaRange};
use restitch_procfs::Mapping;
use restitch_tracee::Memory;

/// The descriptor is looked for in so many bytes at the end of a stack: it is about 2 KiB, below it lie
/// static thread-local data.
const TOP: u64 = 16 << 10;
/// Most mappings that are looked at, in the stop: the library keeps 40 MiB of stacks, five of the usual size.
const MOST: usize = 64;
/// In `struct pthread` on x86-64 (glibc since 2.11): `header.self`, `list`, `tid`.
const SELF: u64 = 0x10;
const LIST: u64 = 0x2c0;
const TID: u64 = 0x2d0;
/// It is aligned to this.
const ALIGNED: usize = 64;

/// The parts of such stacks below the descriptors. `maps` are of the same stop as `threads`, by address.
pub(crate) fn dead_stacks(memory: &Memory, threads: &[ThreadView], maps: &[Mapping]) -> Vec<AvmaRange> {
    let knows = |t: &ThreadView| {
        let at = t.registers.fs_base;
        let own =
            memory.read_u64(at).ok() == Some(at.get()) && memory.read_u64(at + SELF).ok() == Some(at.get());
        own && memory.read_u64(at + TID).is_ok_and(|tid| tid as u32 == t.tid as u32)
    };
    if !threads.iter().all(knows) {
        return Vec::new();
    }
    let lives = |r: &AvmaRange| {
        threads.iter().any(|t| r.contains(t.registers.fs_base) || r.contains(t.registers.rsp))
    };
    let guarded = maps.windows(2).filter(|w| is_guard(&w[0]) && w[0].range.end == w[1].range.start);
    let stacks = guarded.filter(|w| is_plain(&w[1]) && !lives(&w[1].range)).take(MOST);
    let stacks: Vec<(AvmaRange, AvmaRange)> = stacks.map(|w| (w[0].range, w[1].range)).collect();
    let tops: Vec<(Avma, usize)> = stacks.iter().map(|(_, stack)| top(*stack)).collect();
    let read = memory.read_many(&tops);
    let both = stacks.into_iter().zip(tops).zip(read);
    both.filter_map(|(((guard, stack), (at, _)), bytes)| {
        let descriptor = descriptor(&bytes?, at, guard, stack)?;
        is_listed(memory, descriptor + LIST).then(|| AvmaRange::between(stack.start, descriptor))
    })
    .collect()
}

fn is_guard(m: &Mapping) -> bool {
    !m.permissions.read && !m.permissions.write && !m.permissions.execute
}

fn is_plain(m: &Mapping) -> bool {
    m.permissions.read && m.permissions.write && !m.permissions.shared && m.path().is_none()
}

fn top(stack: AvmaRange) -> (Avma, usize) {
    let len = stack.len().min(TOP);
    (stack.end - len, len as usize)
}

/// The descriptor of an ended thread in `bytes` at `at`, the end of `stack`; if there is exactly one
/// descriptor, and it is of this stack.
fn descriptor(bytes: &[u8], at: Avma, guard: AvmaRange, stack: AvmaRange) -> Option<Avma> {
    let word = |offset: usize| {
        let bytes = bytes.get(offset..offset.checked_add(8)?)?;
        Some(u64::from_le_bytes(bytes.try_into().expect("8 bytes")))
    };
    let is_one = |offset: &usize| {
        let own = Some((at + *offset as u64).get());
        word(*offset) == own && word(*offset + SELF as usize) == own
    };
    let mut all = (0..bytes.len()).step_by(ALIGNED).filter(is_one);
    let (Some(offset), None) = (all.next(), all.next()) else { return None };
    let descriptor = at + offset as u64;
    // `stackblock`, `stackblock_size`, `guardsize`: the block begins with the guard.
    let names_block = |o: usize| {
        let (Some(block), Some(len), Some(guarded)) = (word(o), word(o + 8), word(o + 16)) else {
            return false;
        };
        let (from, to) = (Avma::new(block), block.checked_add(len).map(Avma::new));
        guard.contains(from)
            && guarded == stack.start.offset_from(from) as u64
            && to.is_some_and(|to| descriptor < to && to <= stack.end)
    };
    let names_it = (offset + TID as usize..bytes.len()).step_by(8).any(names_block);
    (names_it && word(offset + TID as usize)? as i32 <= 0).then_some(descriptor)
}

/// Whether the links (`next`, `prev`) at `at` are in a list: their neighbours lead back to them.
fn is_listed(memory: &Memory, at: Avma) -> bool {
    let follow = |from: Avma| memory.read_u64(from).ok().map(Avma::new);
    let (Some(next), Some(previous)) = (follow(at), follow(at + 8)) else { return false };
    next != at && follow(next + 8) == Some(at) && follow(previous) == Some(at)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frames::Walker;
    use crate::target::Target;
    use crate::threads::survey;
    use restitch_testkit::{Guarded, compile, require, scratch};
    use restitch_tracee::Stopped;
    use std::io::{BufRead, BufReader};
    use std::process::{Command, Stdio};

    /// Prints an address on a stack each: of a thread that has ended; of one that lives; of the program's own
    /// stack for a thread that has ended and was joined; of a mapping with a guard that no thread ever had.
    const STACKS: &str = r#"
#define _GNU_SOURCE
#include <pthread.h>
#include <semaphore.h>
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>
static sem_t said;
static void *tell(void *waits) {
    volatile int here = 0;
    printf("%lx\n", (unsigned long)&here);
    fflush(stdout);
    if (waits) { sem_post(&said); pause(); }
    return NULL;
}
static char *guarded(void) {
    char *block = mmap(NULL, 65 * 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    mprotect(block + 4096, 64 * 4096, PROT_READ | PROT_WRITE);
    return block + 4096;
}
int main(void) {
    pthread_t first, second, third;
    pthread_attr_t own;
    char *stack = guarded(), *never = guarded();
    sem_init(&said, 0, 0);
    pthread_attr_init(&own);
    pthread_attr_setstack(&own, stack, 64 * 4096);
    /* Both live at once, so that they have stacks of their own. */
    pthread_create(&second, NULL, tell, &said);
    sem_wait(&said);
    pthread_create(&first, NULL, tell, NULL);
    pthread_join(first, NULL);
    pthread_create(&third, &own, tell, NULL);
    pthread_join(third, NULL);
    never[4096] = 1;
    printf("%lx\n", (unsigned long)never + 4096);
    fflush(stdout);
    pause();
    return 0;
}
"#;

    #[test]
    fn only_stacks_of_ended_threads_count() {
        let folder = scratch();
        let source = folder.path().join("stacks.c");
        std::fs::write(&source, STACKS).expect("writable");
        let program = require!(compile(&source, &["-O1", "-pthread"]).ok(), "gcc");
        let mut child = Guarded::spawn(Command::new(program).stdout(Stdio::piped())).expect("started");
        let lines = BufReader::new(child.child().stdout.take().expect("a pipe")).lines();
        let address = |line: std::io::Result<String>| {
            Avma::new(u64::from_str_radix(line.expect("readable").trim(), 16).expect("an address"))
        };
        let told: Vec<Avma> = lines.take(4).map(address).collect();
        let [lives, ended, own, never] = told[..] else { panic!("{told:?}") };
        let pid = child.pid() as i32;
        let target = Target::open(pid).expect("it lives");
        let walker = Walker::new(&target, &[]);
        let stopped = Stopped::seize_all(pid).expect("it can be stopped");
        let maps = stopped.maps().expect("readable");
        let mut threads = survey(&stopped, &walker, &maps).expect("readable");
        let found = dead_stacks(stopped.memory(), &threads, &maps);
        let counts = |at: Avma| found.iter().any(|r| r.contains(at));
        assert!(counts(ended), "{ended} {found:?}");
        assert!(!counts(lives) && !counts(own) && !counts(never), "{told:?} {found:?}");
        assert_eq!(found.len(), 1);
        // A library whose descriptors look otherwise.
        threads[1].tid += 1;
        assert_eq!(dead_stacks(stopped.memory(), &threads, &maps), []);
    }

    #[test]
    fn descriptors_that_do_not_fit_are_none() {
        let (guard, stack) = (
            AvmaRange::between(Avma::new(0x1_0000), Avma::new(0x1_1000)),
            AvmaRange::between(Avma::new(0x1_1000), Avma::new(0x2_0000)),
        );
        let at = stack.end - TOP;
        let own = at + 0x3000;
        let mut words = vec![0u64; TOP as usize / 8];
        let mut set = |offset: u64, value: u64| words[(0x3000 + offset) as usize / 8] = value;
        set(0, own.get());
        set(SELF, own.get());
        // A flag beside the identifier does not matter.
        set(TID, 1 << 40);
        for (i, word) in [0x1_0000, 0x1_0000, 0x1000].into_iter().enumerate() {
            set(0x690 + 8 * i as u64, word);
        }
        let found = |words: &[u64]| {
            let bytes: Vec<u8> = words.iter().flat_map(|w| w.to_le_bytes()).collect();
            descriptor(&bytes, at, guard, stack)
        };
        assert_eq!(found(&words), Some(own));
        let index = |offset: u64| (0x3000 + offset) as usize / 8;
        let (second, living) = (index(0) - 64, 4711);
        let mut joined = words.clone();
        joined[index(TID)] = 0xffff_ffff;
        assert_eq!(found(&joined), Some(own));
        for (change, value) in [
            (index(0), 0),
            (index(SELF), 0x1_8000),
            (index(TID), living),
            (index(0x690), 0x1_1000),
            (index(0x698), 0x1_1000),
            (index(0x698), 0x1000),
            (index(0x6a0), 0x2000),
        ] {
            let mut other = words.clone();
            other[change] = value;
            assert_eq!(found(&other), None, "{change} {value:#x}");
        }
        let mut two = words.clone();
        (two[second], two[second + 2]) = (own.get() - 512, own.get() - 512);
        assert_eq!(found(&two), None, "which one?");
    }
}
