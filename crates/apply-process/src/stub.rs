//! Borrowing a thread of the process: where its stub goes.

use crate::dead_bytes;
use crate::error::ProcessError;
use crate::target::{Module, Target};
use restitch_address::{Avma, AvmaRange};
use restitch_procfs::{self as procfs, Mapping};
use restitch_tracee::{
    BATCH_SPACE, Borrow, Memory, STUB_SPACE, Stopped, StubPlace, TraceError, find_padding, is_padding, visit,
};
use std::time::{Duration, Instant};

/// How long a thread may take to end what a restitch has made it begin that was killed. It may wait for a
/// processor, or for a file system.
const PATIENCE: Duration = Duration::from_secs(10);
/// The shortest and the longest pause between two looks at it.
const PAUSES: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(200));
/// SIGKILL and SIGSTOP, which cannot be blocked.
const NEVER_BLOCKED: u64 = 1 << (9 - 1) | 1 << (19 - 1);
/// SIGURG, by which a thread ends a batch of calls.
const END_OF_BATCH: u64 = 1 << (23 - 1);

/// Where a borrowed thread's stub goes for a moment, and the bytes that belong there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct StubSite {
    pub at: Avma,
    pub bytes: Vec<u8>,
}

impl StubSite {
    fn place(&self, pid: i32, maps: &[Mapping]) -> Result<StubPlace, TraceError> {
        let place = StubPlace::new(pid, self.at, maps)?;
        Ok(match <[u8; STUB_SPACE]>::try_from(self.bytes.as_slice()) {
            Ok(bytes) if !is_padding(&bytes) => place.with_dead(bytes),
            Ok(_) => place,
            Err(_) => place.with_room(),
        })
    }

    /// What stands there while a thread is borrowed.
    pub fn code(&self) -> Vec<u8> {
        StubPlace::code(self.bytes.len())
    }
}

/// Dead bytes: what fills the last page of an executable segment. Those of the dynamic loader come first,
/// which is never unmapped and never changed, then those of the program. Where all last pages are full, as
/// that of a static program may be, what else is in the pages of code and no part of it, gaps between
/// functions, and the program's first instructions ([`crate::dead_bytes`]).
pub(crate) fn stub_sites(target: &Target) -> Vec<StubSite> {
    let is_loader = |m: &Module| m.path.file_name().is_some_and(|n| n.to_string_lossy().starts_with("ld"));
    // The kernel's pages are shared by all processes.
    let mut modules: Vec<&Module> = target.modules.iter().filter(|m| !m.is_vdso()).collect();
    let program = target.modules[target.program].range;
    modules.sort_by_key(|m| (!is_loader(m), m.range != program));
    let sites: Vec<StubSite> = modules.iter().copied().flat_map(sites_of).collect();
    match sites.is_empty() {
        true => inner_sites(target, &modules),
        false => sites,
    }
}

fn inner_sites(target: &Target, modules: &[&Module]) -> Vec<StubSite> {
    let gaps =
        modules.iter().flat_map(|module| dead_bytes::gaps(module)).filter_map(|(at, gap)| site_in(&gap, at));
    let edges = modules.iter().flat_map(|module| dead_bytes::edges(module));
    let entry = dead_bytes::entry(target.pid(), &target.modules[target.program]);
    gaps.chain(edges.chain(entry).map(|(at, bytes)| StubSite { at, bytes })).collect()
}

/// The first place in dead `bytes`, which stand at `start`.
fn site_in(bytes: &[u8], start: Avma) -> Option<StubSite> {
    let at = find_padding(bytes, start)?;
    let from = at.offset_from(start) as usize;
    let roomy = bytes.get(from..from + BATCH_SPACE).filter(|bytes| is_padding(bytes));
    Some(StubSite { at, bytes: roomy.unwrap_or(&bytes[from..from + STUB_SPACE]).to_vec() })
}

fn sites_of(module: &Module) -> impl Iterator<Item = StubSite> + '_ {
    const PAGE: usize = restitch_address::PAGE as usize;
    module.image.segments().iter().filter(|s| s.executable && !s.writable).filter_map(|segment| {
        let end = (segment.file_offset.get() + segment.file_len) as usize;
        let tail = module.image.data().get(end..end.next_multiple_of(PAGE)).unwrap_or_default();
        let start = module.bias.to_actual(segment.range.start + segment.file_len);
        site_in(tail, start)
    })
}

/// A place in a module where nothing `changes`, if there is one: its code is not exchanged while the stub is
/// in it.
pub(crate) fn stub_site(
    target: &Target,
    changes: impl Fn(AvmaRange) -> bool,
) -> Result<StubSite, ProcessError> {
    let sites = stub_sites(target);
    let quiet = |site: &&StubSite| {
        target.module_at(site.at).is_none_or(|module| !changes(target.modules[module].range))
    };
    let site = sites.iter().find(quiet).or(sites.first()).cloned();
    site.ok_or(ProcessError::NoDeadBytes { pid: target.pid() })
}

/// Borrows a thread. `maps` is the memory map, read in the stop. The stub's place gets the file's bytes
/// first: a restitch that was killed may have left its stub there.
pub(crate) fn borrow<'a>(
    stopped: &'a mut Stopped,
    stub: &StubSite,
    maps: &[Mapping],
) -> Result<Borrow<'a>, ProcessError> {
    let found = stopped.memory().read_vec(stub.at, stub.bytes.len())?;
    if found != stub.bytes && who_needs(stopped, stub)? == Needs::Nobody {
        stopped.memory().write(stub.at, &stub.bytes)?;
    }
    let place = stub.place(stopped.pid(), maps)?;
    Ok(stopped.borrow_thread(place)?)
}

/// Waits until no thread is at what a restitch made it begin that was killed, and puts the bytes back that
/// belong where its stub is. Such a thread ends by itself what it has begun, and needs the stub for that:
/// without it, it would run into whatever the dead bytes are. (The lock of the process is ours, so nobody
/// else borrows a thread.)
///
/// Where threads cannot be stopped (another one traces them, we ourselves perhaps), the stub stays: nothing
/// leads there but its own thread, and the next borrow looks again.
///
/// # Errors
/// [`ProcessError::HalfDone`] if a thread stays in it.
pub(crate) fn settle(target: &Target) -> Result<(), ProcessError> {
    settle_within(target, PATIENCE)
}

fn settle_within(target: &Target, patience: Duration) -> Result<(), ProcessError> {
    let (since, mut pause) = (Instant::now(), PAUSES.0);
    loop {
        let left = left_behind(target);
        if left.is_empty() {
            return Ok(());
        }
        let Ok(stopped) = Stopped::seize_all(target.pid()) else { return Ok(()) };
        let mut needs = Needs::Nobody;
        for site in &left {
            needs = needs.max(who_needs(&stopped, site)?);
        }
        if needs == Needs::Nobody {
            return left.iter().try_for_each(|site| Ok(stopped.memory().write(site.at, &site.bytes)?));
        }
        drop(stopped);
        let waited = since.elapsed();
        match needs {
            Needs::ByThread(tid) if waited > patience => {
                return Err(ProcessError::HalfDone { pid: target.pid(), tid, waited });
            }
            // A mask is no proof, and to leave the stub is right in any case.
            _ if waited > patience => return Ok(()),
            _ => std::thread::sleep(pause),
        }
        pause = (2 * pause).min(PAUSES.1);
    }
}

/// The places where a stub was left.
fn left_behind(target: &Target) -> Vec<StubSite> {
    let Ok(memory) = Memory::open_read_only(target.pid()) else { return Vec::new() };
    let is_left = |site: &StubSite| {
        memory.read_vec(site.at, site.bytes.len()).is_ok_and(|found| found.starts_with(&site.code()))
    };
    stub_sites(target).into_iter().filter(is_left).collect()
}

/// Whether a stub is still needed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Needs {
    Nobody,
    /// A thread blocks all signals, as a borrowed one does: it may handle the one that ends a batch, and come
    /// back.
    Perhaps,
    /// This thread stands there.
    ByThread(i32),
}

fn who_needs(stopped: &Stopped, site: &StubSite) -> Result<Needs, ProcessError> {
    let range = AvmaRange::new(site.at, site.bytes.len() as u64);
    let mut needs = Needs::Nobody;
    for tid in stopped.threads() {
        if range.contains(stopped.registers(tid)?.rip) {
            return Ok(Needs::ByThread(tid));
        }
        if stopped.signal_mask(tid)? | NEVER_BLOCKED | END_OF_BATCH == u64::MAX {
            needs = Needs::Perhaps;
        }
    }
    Ok(needs)
}

/// Borrows a thread for `work`, and says how long it was held: one of a process that is `held` as a whole,
/// else one of a process whose other threads run on.
pub(crate) fn with_borrowed<T>(
    target: &Target,
    stub: &StubSite,
    held: Option<&mut Stopped>,
    mut work: impl FnMut(&mut Borrow<'_>) -> Result<T, ProcessError>,
) -> Result<(T, Duration), ProcessError> {
    let Some(stopped) = held else {
        let place = stub.place(target.pid(), &procfs::maps(target.pid())?)?;
        return visit(target.pid(), place, work);
    };
    let since = Instant::now();
    let maps = stopped.maps()?;
    let mut borrow = borrow(stopped, stub, &maps)?;
    let done = work(&mut borrow)?;
    borrow.finish()?;
    Ok((done, since.elapsed()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attached_process::AttachedProcess;
    use crate::state::store::StateDir;
    use restitch_testkit::{Guarded, compile, require, scratch, wait_until};
    use std::ffi::CString;
    use std::fs::OpenOptions;
    use std::io::{Read, Write};
    use std::process::{Command, Stdio};

    /// Answers each letter by the next one.
    const ANSWERS: &str = r#"
#include <stdio.h>
int main(void) {
    int letter;
    while ((letter = getchar()) != EOF) { putchar(letter + 1); fflush(stdout); }
    return 0;
}
"#;
    /// A static program without a C library and without unwind tables, of which nothing but its code is
    /// known.
    const BARE: &str =
        r#"__asm__(".globl _start\n_start: jmp _start\n.skip 40, 0xc3\n"); const int behind = 1;"#;
    const KILLED: &str = "RESTITCH_TEST_KILLED";
    const LONG: Duration = Duration::from_secs(60);

    /// Not a test by itself: the program that the next test starts and kills. It makes a thread open a pipe,
    /// which waits for somebody who writes.
    #[test]
    fn helper_that_waits_for_a_pipe() {
        let Ok(value) = std::env::var(KILLED) else { return };
        let (pid, pipe) = value.split_once(' ').expect("two words");
        let target = Target::open(pid.parse().expect("a number")).expect("it lives");
        let site = stub_sites(&target).swap_remove(0);
        let pipe = CString::new(pipe).expect("a path");
        let done = with_borrowed(&target, &site, None, |borrow| {
            // (A batch opens without waiting.)
            Ok(borrow.open(&pipe, libc::O_RDONLY, 0)?)
        });
        panic!("it was not killed: {done:?}");
    }

    /// LLVM's linker leaves no padding in the file: what is in the pages of code beside it are other parts of
    /// the file.
    #[test]
    fn a_thread_is_borrowed_where_a_page_of_code_holds_other_bytes() {
        require!(restitch_testkit::find_program("ld.lld"), "lld");
        let folder = scratch();
        let source = folder.path().join("bare.c");
        std::fs::write(&source, BARE).expect("writable");
        let flags = ["-nostdlib", "-static", "-no-pie", "-fuse-ld=lld", "-Wl,--build-id", "-Wl,-z,norelro"];
        let program = require!(compile(&source, &flags).ok(), "gcc");
        let mut child = Guarded::spawn(&mut Command::new(program)).expect("started");
        let pid = child.pid() as i32;
        let target = wait_until(LONG, || Target::open(pid).ok()).expect("it is executed");
        let sites = stub_sites(&target);
        let module = &target.modules[target.program];
        let code = module.image.segments().iter().find(|s| s.executable).expect("it has code");
        let site = &sites[0];
        assert!(dead_bytes::edges(module).iter().any(|(at, _)| *at == site.at), "{sites:?}");
        let at = module.bias.to_stated(site.at);
        assert!(!code.range.contains(at) && !code.range.contains(at + 15), "{at} is code");
        let memory = Memory::open_read_only(target.pid()).expect("it lives");
        let there = || memory.read_vec(site.at, site.bytes.len()).expect("mapped");
        assert_eq!(there(), site.bytes);
        let (found, _) = with_borrowed(&target, site, None, |borrow| {
            assert!(there().starts_with(&site.code()[..11]), "the stub is elsewhere");
            Ok(borrow.raw_system_call(libc::SYS_getpid, [0; 6])?)
        })
        .expect("it can be borrowed");
        assert_eq!(found, i64::from(target.pid()));
        assert_eq!(there(), site.bytes);
        assert!(child.is_running());
    }

    #[test]
    fn what_a_killed_restitch_has_begun_is_waited_for() {
        let folder = scratch();
        let source = folder.path().join("answers.c");
        std::fs::write(&source, ANSWERS).expect("writable");
        let program = require!(compile(&source, &["-O1"]).ok(), "gcc");
        let mut child = Guarded::spawn(Command::new(program).stdin(Stdio::piped()).stdout(Stdio::piped()))
            .expect("started");
        let pid = child.pid() as i32;
        let mut to = child.child().stdin.take().expect("a pipe");
        let mut from = child.child().stdout.take().expect("a pipe");
        let mut answer = |letter: u8| {
            let mut answered = [0];
            to.write_all(&[letter]).expect("it reads");
            from.read_exact(&mut answered).expect("it answers");
            answered[0]
        };
        assert_eq!(answer(b'a'), b'b');
        let pipe = folder.path().join("pipe");
        assert!(Command::new("mkfifo").arg(&pipe).status().expect("mkfifo").success());

        let mut killed = Command::new(std::env::current_exe().expect("a path"))
            .args(["--exact", "stub::tests::helper_that_waits_for_a_pipe", "--nocapture"])
            .env(KILLED, format!("{pid} {}", pipe.display()))
            .stdout(Stdio::null())
            .spawn()
            .expect("started");
        // Its number for openat, as /proc has it of a thread that waits in a call.
        let opens = || {
            std::fs::read_to_string(format!("/proc/{pid}/syscall")).ok()?.starts_with("257 ").then_some(())
        };
        let is_there = wait_until(LONG, opens).is_some();
        killed.kill().expect("killed");
        killed.wait().expect("ended");
        assert!(is_there, "the thread does not open the pipe");

        let target = Target::open(pid).expect("it lives");
        assert_eq!(left_behind(&target).len(), 1);
        let result = settle_within(&target, Duration::from_millis(20));
        let text = result.expect_err("nobody writes").to_string();
        assert!(text.contains(&format!("thread {pid} has not ended")), "{text}");
        assert_eq!(left_behind(&target).len(), 1, "the thread needs it");

        let writer = std::thread::spawn({
            let pipe = pipe.clone();
            move || OpenOptions::new().write(true).open(pipe)
        });
        let dir = StateDir::at(folder.path().join("state")).expect("a folder");
        AttachedProcess::open(pid, dir).expect("it lives").lock().expect("the thread has come to its end");
        assert_eq!(left_behind(&target).len(), 0);
        assert_eq!(answer(b'x'), b'y');
        drop(writer.join().expect("no panic").expect("opened"));
    }
}
