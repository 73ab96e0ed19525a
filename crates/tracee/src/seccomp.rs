//! What the system call filters (seccomp) of a target permit.
//!
//! **Problem.** Services that are hardened and everything that runs in a container are under filters. A call
//! that a filter forbids fails, or ends the process at once, and a borrowed thread makes calls of ours in its
//! name.
//!
//! **Idea.** The kernel hands out the filters of a stopped thread (`PTRACE_SECCOMP_GET_FILTER`), and they are
//! small programs over a call's number and arguments. So each call is put to them here, with the arguments
//! that it is going to have, and is made only if all of them let it through. What a borrow may need is asked
//! when it begins, before anything is changed, so that nothing ends half-way; and each call is asked about
//! again when it is made. Filters can only be added, and only by the thread that they are for or one of its
//! process, which stand still or are on their way into the kernel: that leaves a filter that another thread
//! adds to all (`SECCOMP_FILTER_FLAG_TSYNC`) during a [`crate::visit`].
//!
//! **A stop itself may end a thread**: a wait with a timeout that is interrupted goes on by
//! `restart_syscall`, which a filter sees. So processes of which a thread may not call that are refused
//! ([`refuse_by_filters`]), and the one stop in which that is found out lets the wait begin anew.
//!
//! **Limits.** Reading filters takes `CAP_SYS_ADMIN`, a tracer under no filter itself, and a kernel with
//! `CONFIG_CHECKPOINT_RESTORE`; else processes under filters are refused. Strict mode (`read` and `write`
//! only) is refused always. Filters that ask a supervisor (`SECCOMP_RET_USER_NOTIF`) or a tracer are taken
//! for forbidding.
//!
//! Reference: seccomp(2), ptrace(2), kernel/seccomp.c (`seccomp_run_filters`, `seccomp_get_filter`).

use crate::arguments::{
    Backing, MEMORY_FILE_FLAGS, OPEN_FLAGS, Placement, Protection, RemoteFd, mmap_arguments,
};
use crate::error::{TraceError, Why, explained};
use crate::registers::{PendingRestart, Registers};
use crate::seize::seize_one;
use crate::stopped::Stopped;
use crate::{bpf, sys};
use libc::sock_filter;
use restitch_address::{Avma, FileOffset};
use restitch_procfs::{self as procfs, Status};
use std::io;

/// `AUDIT_ARCH_X86_64`.
const ARCHITECTURE: u32 = 0xc000_003e;
// Actions of <linux/seccomp.h>.
const ACTION: u32 = 0xffff_0000;
const ALLOW: u32 = 0x7fff_0000;
const LOG: u32 = 0x7ffc_0000;
const ERRNO: u32 = 0x0005_0000;

/// More filters than the kernel lets a thread have (32768 instructions, each filter counted as 4 more of
/// them).
const MOST_FILTERS: usize = 8192;

/// A system call as a filter sees it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Asked {
    pub number: i64,
    pub args: [u64; 6],
}

impl Asked {
    const fn new(number: i64, args: [u64; 6]) -> Self {
        Self { number, args }
    }

    /// The call's name.
    fn name(&self) -> &'static str {
        NAMES.iter().find(|(number, _)| *number == self.number).map_or("a system call", |(_, name)| name)
    }

    /// The words of its `struct seccomp_data`, if it is made by the `syscall` in front of `rip`.
    fn words(&self, rip: Avma) -> bpf::Call {
        let mut words = [0; 16];
        words[0] = self.number as u32;
        words[1] = ARCHITECTURE;
        for (place, word) in words[2..].chunks_exact_mut(2).zip(std::iter::once(rip.get()).chain(self.args)) {
            place.copy_from_slice(&[word as u32, (word >> 32) as u32]);
        }
        words
    }
}

/// The names of system calls that are made in other processes.
const NAMES: [(i64, &str); 14] = [
    (libc::SYS_getpid, "getpid"),
    (libc::SYS_rt_sigreturn, "rt_sigreturn"),
    (libc::SYS_tkill, "tkill"),
    (libc::SYS_restart_syscall, "restart_syscall"),
    (libc::SYS_openat, "openat"),
    (libc::SYS_memfd_create, "memfd_create"),
    (libc::SYS_close, "close"),
    (libc::SYS_mmap, "mmap"),
    (libc::SYS_munmap, "munmap"),
    (libc::SYS_munlock, "munlock"),
    (libc::SYS_madvise, "madvise"),
    (libc::SYS_mremap, "mremap"),
    (libc::SYS_mprotect, "mprotect"),
    (libc::SYS_membarrier, "membarrier"),
];

/// The calls of a borrow's own way back and of its loop: `tid` is the thread's number in its own namespace.
fn way_back(tid: i32) -> [Asked; 3] {
    [
        Asked::new(libc::SYS_getpid, [0; 6]),
        Asked::new(libc::SYS_rt_sigreturn, [0; 6]),
        Asked::new(libc::SYS_tkill, [tid as u64, libc::SIGURG as u64, 0, 0, 0, 0]),
    ]
}

/// What restitch makes processes call, with arguments of the kind that it uses: addresses and descriptors
/// differ.
fn kinds_of_calls() -> Vec<Asked> {
    const AT: Avma = Avma::new(0x7fff_0000_0000);
    const LEN: u64 = 0x20_0000;
    let file = RemoteFd::from_result(9);
    let start = FileOffset::new(0);
    let map = |placement, protection, backing| {
        Asked::new(libc::SYS_mmap, mmap_arguments(placement, LEN, protection, backing))
    };
    let moved = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
    let remap = |more: i32| [AT.get(), LEN, LEN, (moved | more) as u64, AT.get() + LEN, 0];
    let advise = |advice: i32| Asked::new(libc::SYS_madvise, [AT.get(), LEN, advice as u64, 0, 0, 0]);
    let open = [libc::AT_FDCWD as u64, AT.get(), OPEN_FLAGS, 0, 0, 0];
    vec![
        Asked::new(libc::SYS_openat, open),
        Asked::new(libc::SYS_memfd_create, [AT.get(), MEMORY_FILE_FLAGS, 0, 0, 0, 0]),
        Asked::new(libc::SYS_close, [9, 0, 0, 0, 0, 0]),
        map(Placement::At(AT), Protection::ReadExecute, Backing::Private(file, start)),
        map(Placement::At(AT), Protection::ReadExecute, Backing::Anonymous),
        map(Placement::At(AT), Protection::ReadWrite, Backing::Shared(file, start)),
        map(Placement::Over(AT), Protection::ReadWrite, Backing::Anonymous),
        Asked::new(libc::SYS_munmap, [AT.get(), LEN, 0, 0, 0, 0]),
        Asked::new(libc::SYS_munlock, [AT.get(), LEN, 0, 0, 0, 0]),
        advise(libc::MADV_RANDOM),
        advise(libc::MADV_DONTNEED),
        Asked::new(libc::SYS_mremap, remap(0)),
        Asked::new(libc::SYS_mremap, remap(libc::MREMAP_DONTUNMAP)),
    ]
}

const RESTART: Asked = Asked::new(libc::SYS_restart_syscall, [0; 6]);

/// The filters of one thread.
#[derive(Debug)]
pub(crate) struct Filters {
    pid: i32,
    tid: i32,
    programs: Vec<Vec<sock_filter>>,
}

impl Filters {
    /// Those of thread `tid`, which stands still and has this status.
    ///
    /// # Errors
    /// [`TraceError::StrictSeccomp`] and [`TraceError::UnreadableFilter`].
    pub fn of(pid: i32, tid: i32, status: &Status) -> Result<Self, TraceError> {
        let programs = match status.seccomp {
            None | Some(0) => Vec::new(),
            Some(1) => return Err(TraceError::StrictSeccomp { pid }),
            Some(_) => programs(pid, tid)?,
        };
        Ok(Self { pid, tid, programs })
    }

    /// Whether all filters let a call through that is made by the `syscall` in front of `rip`.
    ///
    /// # Errors
    /// [`TraceError::ForbiddenCall`], with what would come of it.
    pub fn permit(&self, asked: &Asked, rip: Avma) -> Result<(), TraceError> {
        let words = asked.words(rip);
        let answers = self.programs.iter().map(|program| bpf::answer(program, &words));
        match answers.map(outcome).find_map(Result::err) {
            None => Ok(()),
            Some(outcome) => {
                Err(TraceError::ForbiddenCall { pid: self.pid, tid: self.tid, call: asked.name(), outcome })
            }
        }
    }

    /// Whether a borrow may be made, of a thread with number `own` in its namespace, with a stub at `stub`.
    ///
    /// # Errors
    /// As of [`Filters::permit`].
    pub fn permit_borrow(&self, own: i32, stub: Avma) -> Result<(), TraceError> {
        if self.programs.is_empty() {
            return Ok(());
        }
        let all = way_back(own).into_iter().chain(kinds_of_calls());
        all.into_iter().try_for_each(|asked| self.permit(&asked, stub + 2))
    }
}

/// All filters of a thread in a stop, the newest first.
fn programs(pid: i32, tid: i32) -> Result<Vec<Vec<sock_filter>>, TraceError> {
    let mut programs = Vec::new();
    while programs.len() < MOST_FILTERS {
        match sys::seccomp_filter(tid, programs.len()) {
            Ok(program) => programs.push(program),
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => return Ok(programs),
            Err(error) if error.raw_os_error() == Some(libc::ESRCH) => {
                return Err(TraceError::Vanished { tid, operation: "reading its system call filters" });
            }
            Err(error) => return Err(TraceError::UnreadableFilter { pid, why: unreadable(error) }),
        }
    }
    Err(TraceError::UnreadableFilter { pid, why: "it has too many of them".into() })
}

/// Why the kernel does not hand out filters, and what would help.
fn unreadable(error: io::Error) -> Why {
    let words = match error.raw_os_error() {
        Some(libc::EACCES | libc::EPERM) => {
            "that takes CAP_SYS_ADMIN and a restitch that runs under no filter itself: run it as root, outside of the container".to_owned()
        }
        Some(libc::EINVAL | libc::EIO) => "the kernel was built without CONFIG_CHECKPOINT_RESTORE".to_owned(),
        Some(libc::EMEDIUMTYPE) => "it is no classic BPF program".to_owned(),
        _ => error.to_string(),
    };
    explained(words, error)
}

/// Whether an answer lets a call through; else what would come of the call.
fn outcome(answer: Option<u32>) -> Result<(), String> {
    match answer.map(|value| (value & ACTION, value & !ACTION)) {
        Some((ALLOW | LOG, _)) => Ok(()),
        Some((ERRNO, number)) => {
            Err(format!("it would fail: {}", io::Error::from_raw_os_error(number as i32)))
        }
        Some((0x7fc0_0000, _)) => Err("a supervisor would be asked".to_owned()),
        Some((0x7ff0_0000, _)) => Err("it would fail without a tracer that attends to it".to_owned()),
        Some((0x0003_0000, _)) => Err("the process would get SIGSYS".to_owned()),
        Some(_) => Err("it would be the end of the process".to_owned()),
        None => Err("the filter is not understood".to_owned()),
    }
}

/// Refuses, before anything is changed, a process whose filters forbid what restitch has to make it call: at
/// least one of its threads has to be permitted all of that, and all of them to go on with a wait that a stop
/// has interrupted. Each thread under a filter is stopped for a moment, on its own.
///
/// # Errors
/// [`TraceError::StrictSeccomp`], [`TraceError::UnreadableFilter`], [`TraceError::ForbiddenCall`], and those
/// of a stop.
pub fn refuse_by_filters(pid: i32) -> Result<(), TraceError> {
    let (mut refused, mut permitted) = (None, false);
    for thread in procfs::threads(pid)? {
        if procfs::thread_stat(pid, thread.tid).is_ok_and(|stat| stat.stays_in_kernel()) {
            continue;
        }
        match look_at(pid, thread.tid) {
            Ok(Ok(())) => permitted = true,
            Ok(Err(error)) => refused = Some(error),
            Err(TraceError::Vanished { .. }) => {}
            Err(error) if error.is_gone() => {}
            Err(error) => return Err(error),
        }
    }
    match refused {
        Some(error) if !permitted => Err(error),
        _ => Ok(()),
    }
}

/// Whether a thread may be borrowed; an outer error if the process cannot be stopped at all.
fn look_at(pid: i32, tid: i32) -> Result<Result<(), TraceError>, TraceError> {
    let status = procfs::thread_status(pid, tid)?;
    match status.seccomp {
        _ if status.state.is_some_and(|state| state.is_ended()) => return Ok(Ok(())),
        None | Some(0) => return Ok(Ok(())),
        Some(1) => return Err(TraceError::StrictSeccomp { pid }),
        Some(_) => {}
    }
    if !may_read_filters() {
        let why = unreadable(io::Error::from_raw_os_error(libc::EACCES));
        return Err(TraceError::UnreadableFilter { pid, why });
    }
    let mut held = seize_one(pid, tid)?;
    // Where the wait goes on. A stub is elsewhere, and asked about when it is there.
    let rip = held.registers(tid)?.rip;
    let looked = Filters::of(pid, tid, &status).and_then(|filters| {
        filters.permit(&RESTART, rip)?;
        Ok(filters.permit_borrow(status.own_number().unwrap_or(tid), rip - 2))
    });
    let looked = match looked {
        Err(error) => begin_wait_anew(&mut held, tid).and(Err(error)),
        looked => looked,
    };
    held.resume();
    looked
}

/// Whether the kernel would hand the filters of others to this program, as far as can be told without
/// stopping anybody (a kernel without `CONFIG_CHECKPOINT_RESTORE` hands them to nobody).
pub fn may_read_filters() -> bool {
    const CAP_SYS_ADMIN: u32 = 21;
    let own = procfs::status(std::process::id() as i32).unwrap_or_default();
    let is_capable = own.capabilities.is_none_or(|set| set & 1 << CAP_SYS_ADMIN != 0);
    is_capable && own.seccomp.is_none_or(|mode| mode == 0)
}

/// Lets a wait that the stop has interrupted begin anew, since it may not be continued.
fn begin_wait_anew(held: &mut Stopped, tid: i32) -> Result<(), TraceError> {
    const MINUS_ERESTARTNOINTR: i64 = -513;
    let now = held.registers(tid)?;
    match now.pending_restart() {
        PendingRestart::Continue => {
            held.set_registers(tid, Registers { rax: MINUS_ERESTARTNOINTR as u64, ..now })
        }
        _ => Ok(()),
    }
}
