//! Dead bytes in code whose last page is full: where a borrowed thread's stub goes if no segment leaves room
//! behind its end.
//!
//! **Gaps between functions** that consist of `nop` and `int3` alone, lie between the ranges of two unwind
//! entries, are in no symbol and not made to be patched (`-fpatchable-function-entry`), and follow an
//! instruction behind which control does not go on. (Zeros do not count: they may be data. Compilers align
//! functions to 16 bytes, which leaves too little; hand-written code in C libraries is aligned to 64.)
//!
//! **What else is in the pages of code.** Pages are mapped whole, and linkers (LLVM's) put parts of different
//! kinds next to each other in the file: so the first and the last page of code hold bytes that no address
//! leads to.
//!
//! **The program's first instructions**, which are executed once, before everything else, if nothing in them
//! can be returned or jumped to. That they have been is seen on the stack of the first thread: above all
//! frames lies the address that they have pushed when they called what runs the program.
//!
//! Limits: a program that calls its own first instructions again; entries that jump where others call.

use crate::target::Module;
use restitch_address::{Avma, PAGE, Svma, SvmaRange};
use restitch_cfi::UnwindInfo;
use restitch_image::Segment;
use restitch_procfs as procfs;
use restitch_tracee::{Memory, STUB_SPACE};
use restitch_x86::{Flow, LONGEST, scan};

/// Bytes of an entry's instructions among which the call stands that never returns (those of glibc and musl
/// take 38 and 22).
const START: u64 = 64;
/// Bytes below where the stack of the first thread began in which the call has left its return address.
const TOP: u64 = 128;

/// Gaps between functions of `module`, as they are in its file.
pub(crate) fn gaps(module: &Module) -> Vec<(Avma, Vec<u8>)> {
    let image = &module.image;
    let table = image.eh_frame().and_then(|r| Some((r.start, image.read(r.start, r.len() as usize)?)));
    let Some(Ok(info)) = table.map(|(at, bytes)| UnwindInfo::parse(bytes, at)) else { return Vec::new() };
    let mut functions: Vec<SvmaRange> = info.entries().iter().map(|entry| entry.range).collect();
    functions.sort_by_key(|range| (range.start, range.end));
    let pairs = functions.windows(2).map(|pair| (pair[0], pair[1].start));
    let gap = |(function, next): (SvmaRange, Svma)| {
        let len = next.offset_from(function.end);
        let is_code =
            image.segments().iter().any(|s| s.executable && !s.writable && s.range.contains(function.end));
        let wide = (STUB_SPACE as i64..PAGE as i64).contains(&len) && is_code;
        let bytes = image.read(function.end, len as usize).filter(|bytes| wide && is_filler(bytes))?;
        let named = (0..len as u64).any(|i| image.symbol_containing(function.end + i).is_some());
        let named = named || image.has_patch_point(SvmaRange::between(function.end, next));
        (!named && does_not_go_on(module, function)).then(|| (function.end, bytes.to_vec()))
    };
    pairs.filter_map(gap).map(|(at, bytes)| (module.bias.to_actual(at), bytes)).collect()
}

/// What lies in the first and the last page of `module`'s code and is no part of it: neighbouring bytes of
/// the file, which are mapped there because pages are mapped whole. No address of the module leads there,
/// whatever the bytes are; they are in its other segments once more.
pub(crate) fn edges(module: &Module) -> Vec<(Avma, Vec<u8>)> {
    let (segments, data) = (module.image.segments(), module.image.data());
    let pages = |range: SvmaRange| SvmaRange::between(range.start.align_down(PAGE), range.end.align_up(PAGE));
    let mut found = Vec::new();
    for (i, code) in segments.iter().enumerate().filter(|(_, s)| s.executable && !s.writable) {
        let filled = code.file_backed();
        if filled != code.range {
            // What is behind it is zeros of the program's own.
            continue;
        }
        let whole = pages(filled);
        let sides =
            [SvmaRange::between(whole.start, filled.start), SvmaRange::between(filled.end, whole.end)];
        for side in sides.into_iter().filter(|side| side.len() >= STUB_SPACE as u64) {
            let is_shared =
                |(j, other): (usize, &Segment)| j != i && pages(other.range).overlaps(&pages(side));
            let from = code.file_offset.get() as i64 + side.start.offset_from(filled.start);
            let bytes = usize::try_from(from).ok().and_then(|from| data.get(from..from + STUB_SPACE));
            if let Some(bytes) = bytes.filter(|_| !segments.iter().enumerate().any(is_shared)) {
                found.push((module.bias.to_actual(side.start), bytes.to_vec()));
            }
        }
    }
    found
}

/// Whether there is nothing but `nop` and `int3`.
fn is_filler(bytes: &[u8]) -> bool {
    let mut all = true;
    scan(bytes, Svma::new(0), |insn| all &= insn.padding).is_ok() && all
}

/// Whether a function's last instruction leads elsewhere for certain. (A call may be one that never returns,
/// but who knows.)
fn does_not_go_on(module: &Module, function: SvmaRange) -> bool {
    let Some(bytes) = module.image.read(function.start, function.len() as usize) else { return false };
    let mut last = None;
    let whole = scan(bytes, function.start, |insn| last = Some(insn)).is_ok();
    let leaves = |flow| matches!(flow, Flow::Jump(_) | Flow::IndirectJump | Flow::Return);
    whole && last.is_some_and(|insn| insn.end() == function.end && leaves(insn.flow))
}

/// The first instructions of the program of process `pid`, if they have been executed and nothing leads there
/// any more.
pub(crate) fn entry(pid: i32, program: &Module) -> Option<(Avma, Vec<u8>)> {
    let at = program.image.entry();
    let bytes = program.image.read(at, STUB_SPACE + LONGEST)?;
    let start = program.bias.to_actual(at);
    (runs_through(bytes, at) && has_started(pid, start)?).then(|| (start, bytes[..STUB_SPACE].to_vec()))
}

/// Whether the first [`STUB_SPACE`] of `bytes`, which stand at `at`, are gone through once and in order: no
/// jump begins there, and no call leads back there.
fn runs_through(bytes: &[u8], at: Svma) -> bool {
    let behind = at + STUB_SPACE as u64;
    let (mut through, mut reached) = (true, at);
    // What is cut off at the end is of no interest.
    let _ = scan(bytes, at, |insn| {
        if insn.at < behind {
            let is_last_call =
                matches!(insn.flow, Flow::Call(_) | Flow::IndirectCall) && insn.end() >= behind;
            through &= insn.flow == Flow::Next || is_last_call;
        }
        reached = insn.end();
    });
    through && reached >= behind
}

/// Whether the call from the instructions at `entry` has left its return address where the stack of process
/// `pid` began.
fn has_started(pid: i32, entry: Avma) -> Option<bool> {
    let top = procfs::stack_start(pid)?;
    let words = Memory::open_read_only(pid).ok()?.read_vec(top - TOP, TOP as usize).ok()?;
    let word = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().expect("8 bytes"));
    let behind = |at: u64| (entry.get() + STUB_SPACE as u64..=entry.get() + START).contains(&at);
    Some(words.chunks_exact(8).any(|bytes| behind(word(bytes))))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::target::Target;
    use restitch_testkit::{Guarded, compile, program, require, wait_until};
    use restitch_tracee::{LaunchOptions, TraceEvent, TraceEvents};
    use std::process::Command;
    use std::time::Duration;

    /// As gcc 12 and glibc 2.36 have it.
    const GLIBC: [u8; 38] = [
        0x31, 0xed, 0x49, 0x89, 0xd1, 0x5e, 0x48, 0x89, 0xe2, 0x48, 0x83, 0xe4, 0xf0, 0x50, 0x54, 0x45, 0x31,
        0xc0, 0x31, 0xc9, 0x48, 0x8d, 0x3d, 0xca, 0x00, 0x00, 0x00, 0xff, 0x15, 0x53, 0x2f, 0x00, 0x00, 0xf4,
        0x66, 0x2e, 0x0f, 0x1f,
    ];

    #[test]
    fn entries_are_gone_through_once() {
        let at = Svma::new(0x1000);
        assert!(runs_through(&GLIBC, at));
        let with = |place: usize, bytes: &[u8]| {
            let mut code = [0x90; 40];
            code[place..place + bytes.len()].copy_from_slice(bytes);
            runs_through(&code, at)
        };
        let call = [0xe8, 1, 0, 0, 0];
        assert!(with(11, &call) && with(15, &call) && !with(10, &call), "where a call returns to");
        assert!(!with(3, &[0xeb, 0xfe]) && !with(14, &[0x74, 0]) && !with(1, &[0xff, 0xe0]), "jumps");
        assert!(with(16, &[0xeb, 0xfe]), "behind them anything may stand");
        assert!(!runs_through(&[0x90; 10], at) && !runs_through(&[0x06; 40], at), "not all is known");
    }

    #[test]
    fn filler_is_nops_and_breakpoints() {
        assert!(is_filler(&[0x66, 0x2e, 0x0f, 0x1f, 0x84, 0, 0, 0, 0, 0, 0xcc, 0x90]));
        assert!(!is_filler(&[0; 16]) && !is_filler(&[0x90, 0xc3]) && !is_filler(&[0x0f, 0x1f]));
    }

    /// Dead bytes of a static program, which has its whole C library in it: the file's own, and outside of
    /// all code that is known.
    #[test]
    fn a_static_program_has_gaps_and_an_entry() {
        let built = require!(compile(&program("switch.c"), &["-O2", "-static"]).ok(), "a static C library");
        let child = Guarded::spawn(Command::new(built).args(["--seconds", "600"])).expect("it starts");
        let pid = child.pid() as i32;
        let entered = || {
            let target = Target::open(pid).ok()?;
            let found = entry(pid, &target.modules[target.program])?;
            Some((target, found))
        };
        let (target, (at, bytes)) = wait_until(Duration::from_secs(60), entered).expect("it has begun");
        let program = &target.modules[target.program];
        assert_eq!(program.bias.to_stated(at), program.image.entry());
        let memory = Memory::open_read_only(pid).expect("ours");
        let found = gaps(program);
        assert!(!found.is_empty());
        for (at, bytes) in found.iter().chain([&(at, bytes)]) {
            assert!(bytes.len() >= STUB_SPACE);
            assert_eq!(memory.read_vec(*at, bytes.len()).expect("mapped"), *bytes);
        }
    }

    /// One that stands before its first instruction has not begun.
    #[test]
    fn what_has_not_begun_has_no_dead_entry() {
        let built = require!(compile(&program("switch.c"), &["-O2", "-static"]).ok(), "a static C library");
        let mut command = Command::new(built);
        command.stdout(std::process::Stdio::null());
        let mut events = TraceEvents::spawn(command, LaunchOptions::default()).expect("it starts");
        let mut begins = None;
        while let Some(event) = events.next_event(Duration::from_secs(60)).expect("it is followed") {
            if let TraceEvent::Exec(stopped) = event {
                let target = Target::open(stopped.pid()).expect("it is there");
                begins = Some(entry(stopped.pid(), &target.modules[target.program]));
            }
        }
        assert_eq!(begins, Some(None));
    }
}
