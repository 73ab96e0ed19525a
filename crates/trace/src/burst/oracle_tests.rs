//! What is decoded from bursts, against single steps through tracing versions of real programs.

use super::tracer::end_of;
use super::{BurstCode, BurstEnd, BurstTables, TracedModule};
use restitch_address::{Avma, LoadBias, SvmaRange};
use restitch_apply_process::{
    AttachedProcess, Incoming, Reservation, RetargetedSlots, StateDir, Target, VersionKind,
};
use restitch_check::{CheckedVersion, check};
use restitch_emit::window::{TABLE, WORDS_LEN, window_len};
use restitch_emit::{BurstRequest, burst_bound, emit_burst};
use restitch_evaluate::Taken;
use restitch_layout::Layout;
use restitch_perf::{AlarmEvent, ThreadAlarm};
use restitch_testkit::{Guarded, compile, find_program, scratch, skipped};
use restitch_tracee::{Children, FollowEvent, Followed};
use restitch_x86::{Flow, scan};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

const BITS: u8 = 20;
const DEPTH: usize = 400;
const BURSTS: usize = 12;

/// A process with tracing versions of all its code.
struct Traced {
    live: AttachedProcess,
    code: BurstCode,
}

impl Traced {
    fn of(pid: i32, folder: &Path) -> Self {
        let mut live = AttachedProcess::open(pid, StateDir::at(folder.to_owned()).unwrap()).unwrap();
        live.lock().unwrap();
        let (mut versions, mut taken, mut first) = (Vec::new(), Vec::new(), 0);
        for module in 0..live.target().modules.len() {
            let Some(version) = version(&live, module, &mut taken, first) else { continue };
            first += version.burst.as_ref().unwrap().branches.len() as u32;
            versions.push((module, version));
        }
        let kind = VersionKind::Burst;
        let incoming: Vec<_> = versions
            .iter()
            .map(|(module, version)| Incoming {
                module: *module,
                version,
                kind,
                retargeted_slots: RetargetedSlots::None,
            })
            .collect();
        let file = live.map_tracing(None, &incoming).unwrap();
        let bias = |module: usize| live.target().modules[module].bias;
        let traced = versions.iter();
        let traced =
            traced.map(|(module, version)| TracedModule { bias: bias(*module), version, guard: None });
        let traced: Vec<_> = traced.collect();
        let code = BurstCode::new(pid, Arc::new(BurstTables::new(&traced).unwrap()), file).unwrap();
        Self { live, code }
    }
}

fn version(
    live: &AttachedProcess,
    index: usize,
    taken: &mut Vec<(usize, Reservation)>,
    first: u32,
) -> Option<CheckedVersion> {
    let module = &live.target().modules[index];
    let image = &module.image;
    let at = image.eh_frame()?;
    let unwind = restitch_cfi::UnwindInfo::parse(image.read(at.start, at.len() as usize)?, at.start).ok()?;
    let program = restitch_program::analyze(image, &unwind).ok()?;
    let blocks = vec![true; program.blocks.len()];
    let window_len = if taken.is_empty() { window_len(BITS) } else { WORDS_LEN };
    let place = live.reserve(index, window_len + burst_bound(&program, &blocks), taken, &[], 4096).ok()?;
    let (window, bias) = (SvmaRange::new(place.start, window_len), module.bias);
    let (start, number) = (window.end, place.number);
    let (first_module, first_place) = taken.first().copied().unwrap_or((index, place));
    let table = live.target().modules[first_module].bias.to_actual(first_place.start) + TABLE;
    let request = BurstRequest {
        image,
        program: &program,
        blocks: &blocks,
        start,
        number,
        window,
        table,
        bits: BITS,
        first,
        bias,
    };
    let version = emit_burst(&request).unwrap();
    taken.push((index, place));
    Some(check(image, &program, &Layout::default(), version, Some(bias)).unwrap())
}

/// A burst, and the original's instructions that the thread executed in it: those that are no unconditional
/// branches.
struct Burst {
    at: Avma,
    branches: Vec<Taken>,
    executed: Vec<Avma>,
    end: BurstEnd,
    records: usize,
}

/// Steps a held thread through a burst.
fn stepped(followed: &mut Followed, tid: i32, code: &BurstCode) -> Option<Burst> {
    let mut registers = followed.registers(tid).unwrap();
    let way_in = code.way_in(registers.rip)?;
    let at = code.original(way_in).unwrap();
    let start = code.arm(DEPTH).unwrap();
    registers.rip = way_in;
    followed.set_registers(tid, &registers).unwrap();
    let (ranges, mut rip, mut executed) = (code.ranges(), way_in, Vec::new());
    while ranges.iter().any(|range| range.contains(rip)) {
        if code.inserted(rip).is_none() {
            executed.push(code.original(rip).unwrap());
        }
        let before = rip;
        // (`rep` instructions trap after each round.)
        while rip == before {
            followed.step(tid).unwrap();
            while !matches!(
                followed.next_event(Duration::from_secs(60)).unwrap().expect("a step"),
                FollowEvent::Stepped { .. }
            ) {
                followed.step(tid).unwrap();
            }
            rip = followed.registers(tid).unwrap().rip;
        }
    }
    let position = code.position().unwrap();
    let end = end_of(position);
    let records = code.read_records(start, position.cursor).unwrap();
    let branches = code.branches(at, &records, end);
    Some(Burst { at, branches, executed, end, records: records.len() / 4 })
}

/// An instruction of the original.
struct Original {
    at: Avma,
    flow: Flow,
    /// It begins with a `lock` prefix.
    is_locked: bool,
    bias: LoadBias,
}

impl Original {
    /// Whether a thread in the copy executes its copy.
    fn is_copied(&self) -> bool {
        matches!(self.flow, Flow::Next | Flow::Conditional(..) | Flow::ShortConditional(_))
    }

    /// Fails unless this was executed. (A branch over a `lock` prefix is copied with what it leads to, and
    /// not recorded.)
    fn expect(&self, found: Option<Avma>) {
        let is_bare = self.is_locked && found == Some(self.at + 1);
        assert!(found == Some(self.at) || is_bare, "{}, and not {found:?}", self.at);
    }
}

/// The instructions that begin in the `len` bytes from `at` on.
fn straight(target: &Target, at: Avma, len: u64) -> Vec<Original> {
    let module = &target.modules[target.module_at(at).expect("code of a module")];
    let (stated, bias) = (module.bias.to_stated(at), module.bias);
    // The last one may be longer.
    let with_last = (0..16).rev().find_map(|more| module.image.read(stated, len as usize + more));
    let bytes = with_last.expect("its code");
    let mut found = Vec::new();
    let _ = scan(bytes, stated, |insn| {
        let offset = insn.at.offset_from(stated) as usize;
        if (offset as u64) < len {
            let is_locked = bytes[offset] == 0xf0;
            found.push(Original { at: bias.to_actual(insn.at), flow: insn.flow, is_locked, bias });
        }
    });
    found
}

/// Branches: conditional ones, direct jumps, direct calls, others.
type Mix = [usize; 4];

/// Fails unless the branches lead over exactly the executed instructions.
fn compare(target: &Target, burst: &Burst, mix: &mut Mix) {
    let mut executed = burst.executed.iter().copied();
    let mut at = burst.at;
    for branch in &burst.branches {
        let run = straight(target, at, branch.from.offset_from(at) as u64 + 1);
        for original in &run {
            match original.is_copied() {
                true => original.expect(executed.next()),
                false => assert_eq!(original.at, branch.from, "a branch was left out"),
            }
        }
        let last = run.last().expect("the branch at least");
        assert_eq!(last.at, branch.from, "that is no branch");
        match last.flow {
            Flow::Jump(to) | Flow::Call(to) | Flow::Conditional(_, to) | Flow::ShortConditional(to) => {
                assert_eq!(last.bias.to_actual(to), branch.to, "{branch:?}");
            }
            Flow::Return | Flow::IndirectCall | Flow::IndirectJump => {}
            _ => panic!("{} is no branch", last.at),
        }
        mix[match last.flow {
            Flow::Conditional(..) | Flow::ShortConditional(_) => 0,
            Flow::Jump(_) => 1,
            Flow::Call(_) => 2,
            _ => 3,
        }] += 1;
        at = branch.to;
    }
    // Behind the last one there is none.
    let rest: Vec<Avma> = executed.collect();
    if let Some(last) = rest.last() {
        let run = straight(target, at, last.offset_from(at) as u64 + 1);
        assert!(run.len() == rest.len() && run.iter().all(Original::is_copied), "from {at} to {last}");
        run.iter().zip(rest).for_each(|(original, found)| original.expect(Some(found)));
    }
}

fn bursts_of(command: &Path, arguments: &[&str]) {
    let folder = scratch();
    let child = Guarded::start(command, arguments).unwrap();
    let pid = child.pid() as i32;
    std::thread::sleep(Duration::from_millis(150));
    let mut traced = Traced::of(pid, folder.path());
    let mut followed = Followed::seize(pid, libc::SIGURG, Children::Leave).unwrap();
    let alarm = match ThreadAlarm::open(pid, AlarmEvent::TaskClock, libc::SIGURG) {
        Ok(alarm) => alarm,
        Err(error) => return skipped(&error.to_string()),
    };
    let (mut branches, mut records, mut ends, mut mix) = (0, 0, Vec::new(), Mix::default());
    for i in 0..20 * BURSTS as u64 {
        alarm.set_period(2_000_000 + 37_000 * i).unwrap();
        alarm.start().unwrap();
        while !matches!(
            followed.next_event(Duration::from_secs(60)).unwrap().expect("an event"),
            FollowEvent::Notified { .. }
        ) {}
        alarm.set_period(u64::MAX >> 2).unwrap();
        let in_system_call = followed.registers(pid).unwrap().orig_rax as i64 >= 0;
        let burst = if in_system_call { None } else { stepped(&mut followed, pid, &traced.code) };
        if let Some(burst) = burst {
            compare(traced.live.target(), &burst, &mut mix);
            branches += burst.branches.len();
            records += burst.records;
            ends.push(burst.end);
        }
        followed.resume(pid).unwrap();
        if ends.len() == BURSTS {
            break;
        }
    }
    println!(
        "{}: {branches} branches (conditional, jumps, calls, indirect: {mix:?}) in {records} records, ends {ends:?}",
        command.display()
    );
    assert!(branches > 1000 && branches > records, "{branches} branches in {records} records");
    drop(followed);
    drop(child);
    let _ = traced.live.revert();
}

#[test]
fn bursts_of_dash_are_what_it_executed() {
    let Some(dash) = find_program("dash") else { return skipped("no dash") };
    let script = "i=0; while :; do i=$((i+1)); case $i in *7*) x=$i;; *) y=a$i;; esac; set -- $i $x $y; done";
    bursts_of(&dash, &["-c", script]);
}

/// Recursion without an end but for a condition, calls forwards and back, and a loop that ends with a jump.
const ENDLESS: &str = "
volatile unsigned x = 1;
__attribute__((noinline)) unsigned leaf(unsigned n) { x = x * 5 + n; return x >> 3; }
__attribute__((noinline)) unsigned deep(unsigned n) { if (n == 0) return leaf(7); return deep(n - 1) + leaf(n); }
unsigned (*volatile chosen)(unsigned) = deep;
int main(void) {
    for (;;) {
        if (leaf(3) & 1) x += chosen(x & 15); else x += deep(5);
        if (x == 0) return 1;
    }
}
";

/// Reads of clocks, in the vdso but for those of processor time.
const CLOCKS: &str = "
#define _GNU_SOURCE
#include <sched.h>
#include <sys/time.h>
#include <time.h>
volatile unsigned x = 1;
__attribute__((noinline)) unsigned leaf(unsigned n) { x = x * 5 + n; return x >> 3; }
int main(void) {
    struct timespec now;
    struct timeval day;
    unsigned cpu;
    for (;;) {
        clock_gettime(leaf(3) & 8 ? CLOCK_MONOTONIC : CLOCK_REALTIME_COARSE, &now);
        if (leaf(5) & 16) gettimeofday(&day, 0); else x += time(0);
        if (leaf(7) & 32) getcpu(&cpu, 0);
        if (now.tv_nsec < 0) return 1;
    }
}
";

#[test]
fn bursts_in_the_vdso_are_what_it_executed() {
    let folder = scratch();
    let source = folder.path().join("clocks.c");
    std::fs::write(&source, CLOCKS).unwrap();
    match compile(&source, &["-O2"]) {
        Ok(path) => bursts_of(&path, &[]),
        Err(error) => skipped(&error.to_string()),
    }
}

/// Return addresses are pushed as numbers there.
#[test]
fn bursts_of_a_program_at_a_fixed_address_are_what_it_executed() {
    let folder = scratch();
    let source = folder.path().join("endless.c");
    std::fs::write(&source, ENDLESS).unwrap();
    match compile(&source, &["-O1", "-fno-optimize-sibling-calls", "-no-pie"]) {
        Ok(path) => bursts_of(&path, &[]),
        Err(error) => skipped(&error.to_string()),
    }
}
