//! System calls that a stop cuts short.
//!
//! **Problem.** A call that moves many bytes and waits in between (a write of more than a pipe has room for,
//! `recv` with `MSG_WAITALL`) gives what it has moved so far when its thread is interrupted, as after SIGSTOP
//! or under a debugger; without a signal handler it never would (pipe(7), recv(2)). A program that counts on
//! that loses the rest. Nothing lets such a call go on: called again with the rest, it would return the
//! rest's length.
//!
//! **Idea.** Before the threads of a process are interrupted it is looked whether one of them waits in such a
//! call; a moment without is waited for, for a while. What was cut all the same is counted, and told.
//!
//! **What is not seen**: calls that are begun between the last look and the interruption; those of which the
//! kernel does not tell (`/proc/PID/task/TID/syscall` needs `CONFIG_HAVE_ARCH_TRACEHOOK` and the right to
//! trace).

use crate::memory::Memory;
use crate::registers::Registers;
use crate::wait::Patience;
use restitch_address::Avma;
use restitch_procfs as procfs;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// For so long a moment without such calls is waited for: who writes to a reader at work is done by then.
const PATIENCE: Duration = Duration::from_secs(1);
/// A thread that has run for so long, and was not seen in such a call, is in none: to copy what a pipe holds
/// takes some microseconds.
const OUT_AFTER: Duration = Duration::from_millis(1);
/// `PIPE_BUF`: no more bytes than these are written to a pipe in one piece.
const IN_ONE_PIECE: u64 = 4096;
/// Random bytes are given in one piece up to here (random(4)).
const RANDOM_IN_ONE_PIECE: u64 = 256;
/// Parts of a vector that are added up, at most; `IOV_MAX`.
const MOST_PARTS: u64 = 1024;
/// Length of `struct iovec`, in bytes, and of what is read of a `struct msghdr`.
const IOVEC: u64 = 16;

/// A system call with its arguments.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Call {
    number: i64,
    arguments: [u64; 6],
}

/// Waits until none of the threads that process `pid` has now is in a call that an interruption would cut
/// short, or time is up.
pub(crate) fn wait_until_none(pid: i32) {
    wait(pid, &procfs::threads(pid).unwrap_or_default().iter().map(|thread| thread.tid).collect::<Vec<_>>());
}

/// The same for one thread.
pub(crate) fn wait_until_not(pid: i32, tid: i32) {
    wait(pid, &[tid]);
}

fn wait(pid: i32, threads: &[i32]) {
    let (mut patience, mut looks) = (Patience::new(PATIENCE), Looks::default());
    // All of them each time: each look counts.
    while threads.iter().filter(|tid| looks.may_be_in_one(pid, **tid)).count() > 0 && !patience.is_over() {
        patience.pause();
    }
}

/// Whether a thread waits in a call that an interruption would cut short.
pub(crate) fn would_be_cut(pid: i32, tid: i32) -> bool {
    matches!(look(pid, tid), Look::In(call) if call.would_be_cut(pid))
}

/// What is known of threads that run: processor time at the last look at which each may have been in such a
/// call.
#[derive(Default)]
struct Looks(BTreeMap<i32, Duration>);

impl Looks {
    /// Whether a thread may be in such a call. The kernel does not say in which call a thread is that runs,
    /// or could: a writer whose reader has made room is one. Such a one goes back to wait soon.
    fn may_be_in_one(&mut self, pid: i32, tid: i32) -> bool {
        let Ok(used) = procfs::thread_cpu_time(pid, tid) else { return false };
        match look(pid, tid) {
            Look::In(call) if call.would_be_cut(pid) => {
                self.0.insert(tid, used);
                true
            }
            Look::Runs => used.saturating_sub(*self.0.entry(tid).or_insert(used)) < OUT_AFTER,
            Look::In(_) | Look::Elsewhere => false,
        }
    }
}

/// What the kernel says of a thread.
enum Look {
    /// It waits in a call.
    In(Call),
    /// It runs, or is ready to.
    Runs,
    /// It waits for something else, or has ended.
    Elsewhere,
}

fn look(pid: i32, tid: i32) -> Look {
    let line = std::fs::read_to_string(format!("/proc/{pid}/task/{tid}/syscall")).unwrap_or_default();
    match parsed(&line) {
        Some(call) => Look::In(call),
        None if line.trim_end() == "running" => Look::Runs,
        None => Look::Elsewhere,
    }
}

/// proc(5): the number, six arguments, the stack pointer and the program counter; or `running`, or -1.
fn parsed(line: &str) -> Option<Call> {
    let mut words = line.split_whitespace();
    let number = words.next()?.parse().ok().filter(|number| *number >= 0)?;
    let mut arguments = [0; 6];
    for argument in &mut arguments {
        *argument = u64::from_str_radix(words.next()?.strip_prefix("0x")?, 16).ok()?;
    }
    Some(Call { number, arguments })
}

/// What a call moves bytes from or to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// A file: the length is the third argument.
    Write,
    /// A file: the parts are an array of `struct iovec`.
    WriteParts,
    /// A socket: the length is the third argument.
    Send,
    /// A socket: the parts are in a `struct msghdr`.
    SendParts,
    /// Random bytes: the length is the second argument.
    Random,
}

impl Call {
    fn of(registers: &Registers) -> Option<Self> {
        let number = registers.system_call()?;
        let r = registers;
        Some(Self { number, arguments: [r.rdi, r.rsi, r.rdx, r.r10, r.r8, r.r9] })
    }

    /// What it moves, if an interruption can cut it.
    fn kind(&self) -> Option<Kind> {
        let waits_for_all = |flags: u64| flags & libc::MSG_WAITALL as u64 != 0;
        Some(match self.number {
            libc::SYS_write => Kind::Write,
            libc::SYS_writev => Kind::WriteParts,
            libc::SYS_sendto => Kind::Send,
            libc::SYS_sendmsg => Kind::SendParts,
            libc::SYS_recvfrom if waits_for_all(self.arguments[3]) => Kind::Send,
            libc::SYS_recvmsg if waits_for_all(self.arguments[2]) => Kind::SendParts,
            libc::SYS_getrandom => Kind::Random,
            _ => return None,
        })
    }

    /// Whether a thread that waits in it may have moved a part.
    fn would_be_cut(&self, pid: i32) -> bool {
        match self.kind() {
            None => false,
            Some(Kind::Write) => self.arguments[2] > IN_ONE_PIECE && is_stream(pid, self.arguments[0]),
            Some(Kind::WriteParts) => is_stream(pid, self.arguments[0]),
            Some(Kind::Send | Kind::SendParts) => true,
            Some(Kind::Random) => self.arguments[1] > RANDOM_IN_ONE_PIECE,
        }
    }

    /// How many bytes it was to move; `None` where that cannot be read.
    fn wanted(&self, memory: &Memory) -> Option<u64> {
        let [_, second, third, ..] = self.arguments;
        match self.kind()? {
            Kind::Write | Kind::Send => Some(third),
            Kind::Random => Some(second),
            Kind::WriteParts => sum_of_parts(memory, second, third),
            Kind::SendParts => {
                // struct msghdr: the array and the number of its parts stand behind the name.
                let [parts, count] = words(memory, second.wrapping_add(16))?;
                sum_of_parts(memory, parts, count)
            }
        }
    }
}

/// Calls that stops of this program have cut short.
static CUT: AtomicUsize = AtomicUsize::new(0);

/// How many system calls had moved a part of their bytes, and returned because this program stopped their
/// threads, since it began.
pub fn cut_calls() -> usize {
    CUT.load(Ordering::Relaxed)
}

/// Counts those of threads that have just been stopped.
pub(crate) fn count_cut<'a>(threads: impl Iterator<Item = &'a Registers>, memory: &Memory) {
    CUT.fetch_add(threads.filter(|registers| is_cut(registers, memory)).count(), Ordering::Relaxed);
}

/// Whether a thread whose registers these are was interrupted in a call that has moved a part of its bytes.
fn is_cut(registers: &Registers, memory: &Memory) -> bool {
    let moved = registers.rax;
    let wanted = || Call::of(registers)?.wanted(memory);
    moved as i64 > 0 && wanted().is_some_and(|wanted| moved < wanted)
}

/// Whether descriptor `fd` is that of a pipe, a socket or a terminal, as far as its name says: writes to
/// files are not interrupted.
fn is_stream(pid: i32, fd: u64) -> bool {
    let name = std::fs::read_link(format!("/proc/{pid}/fd/{}", fd as u32)).unwrap_or_default();
    let name = name.to_string_lossy();
    ["pipe:", "socket:", "/dev/pts/", "/dev/tty"].iter().any(|start| name.starts_with(start))
}

fn sum_of_parts(memory: &Memory, at: u64, count: u64) -> Option<u64> {
    // Registers and memory say what the process likes.
    let len = |i: u64| words(memory, at.wrapping_add(i * IOVEC)).map(|[_, len]| len);
    (0..count.min(MOST_PARTS)).try_fold(0u64, |sum, i| sum.checked_add(len(i)?))
}

fn words(memory: &Memory, at: u64) -> Option<[u64; 2]> {
    let mut bytes = [0; 16];
    at.checked_add(bytes.len() as u64)?;
    memory.read(Avma::new(at), &mut bytes).ok()?;
    let (first, second) = bytes.split_at(8);
    Some([first, second].map(|word| u64::from_le_bytes(word.try_into().unwrap_or_default())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_the_kernel_are_read() {
        let line = "1 0x3 0x7f0000001000 0x100000 0x0 0x0 0x0 0x7ffd00000000 0x7f0000002000\n";
        let call = parsed(line).unwrap();
        assert_eq!(call, Call { number: 1, arguments: [3, 0x7f00_0000_1000, 0x10_0000, 0, 0, 0] });
        assert_eq!(call.kind(), Some(Kind::Write));
        assert_eq!(parsed("running\n"), None);
        assert_eq!(parsed("-1 0x7ffd00000000 0x7f0000002000\n"), None);
        assert_eq!(parsed(""), None);
    }

    #[test]
    fn what_a_process_says_of_its_calls_may_be_anything() {
        let memory = Memory::open(std::process::id() as i32).unwrap();
        let parts = [[0, u64::MAX], [0, u64::MAX]];
        let at = parts.as_ptr() as u64;
        assert_eq!(sum_of_parts(&memory, at, 1), Some(u64::MAX));
        assert_eq!(sum_of_parts(&memory, at, 2), None);
        for end in [0, u64::MAX - 3, u64::MAX - 15] {
            assert_eq!(sum_of_parts(&memory, end, u64::MAX), None);
            let call = Call { number: libc::SYS_sendmsg, arguments: [0, end, 0, 0, 0, 0] };
            assert_eq!(call.wanted(&memory), None);
        }
    }

    #[test]
    fn what_waits_for_all_can_be_cut() {
        let call = |number, arguments| Call { number, arguments };
        let all = libc::MSG_WAITALL as u64;
        assert_eq!(call(libc::SYS_recvfrom, [3, 0, 100, 0, 0, 0]).kind(), None);
        assert_eq!(call(libc::SYS_recvfrom, [3, 0, 100, all, 0, 0]).kind(), Some(Kind::Send));
        assert_eq!(call(libc::SYS_recvmsg, [3, 0, all, 0, 0, 0]).kind(), Some(Kind::SendParts));
        assert_eq!(call(libc::SYS_read, [3, 0, 100, 0, 0, 0]).kind(), None);
    }
}
