//! Reading processes: identity, threads, maps, and who runs the same program.

use crate::auxv::AuxVector;
use crate::bounded;
use crate::ended::all_ended;
use crate::error::ProcError;
use crate::files::FileIdentity;
use crate::holder::{path_of, path_of_thread, shared_path};
use crate::maps::{Mapping, parse_maps};
use crate::status::{Stat, Status, parse_run_delay, parse_schedstat, parse_stat};
use restitch_address::Avma;
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

/// Ticks a second (`USER_HZ`, on x86 always this).
const TICKS: u64 = 100;

/// A process that cannot be mistaken for a later one with the same number.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, PartialOrd, Ord)]
pub struct ProcessId {
    /// The process's number in the reader's pid namespace.
    pub pid: i32,
    /// When it started, in clock ticks since boot.
    pub start_time: u64,
}

impl ProcessId {
    /// The process that has this number now.
    pub fn of(pid: i32) -> Result<Self, ProcError> {
        Ok(Self { pid, start_time: thread_stat(pid, pid)?.start_time })
    }

    /// Whether this very process still exists and has not ended (a zombie has, and one that is just ending
    /// and runs no code of its own any more). One that cannot be looked at, for want of open files say, has
    /// not.
    pub fn is_alive(self) -> bool {
        match thread_stat(self.pid, self.pid) {
            Ok(stat) => stat.start_time == self.start_time && !all_ended(self.pid, &stat),
            Err(error) => !error.is_gone(),
        }
    }

    /// When it was started, by the clock of the system, to about a tick; `None` where the time since boot
    /// cannot be read.
    pub fn started(self) -> Option<SystemTime> {
        let text = std::fs::read_to_string("/proc/uptime").ok()?;
        let up = text.split_whitespace().next()?.parse::<f64>().ok()?;
        let since_boot = Duration::from_millis(self.start_time.checked_mul(1000 / TICKS)?);
        SystemTime::now().checked_sub(Duration::try_from_secs_f64(up).ok()?)?.checked_add(since_boot)
    }

    /// An error unless the number still names this very process.
    pub fn verify(self) -> Result<(), ProcError> {
        match Self::of(self.pid)? {
            now if now == self => Ok(()),
            _ => Err(ProcError::Reused { pid: self.pid }),
        }
    }
}

impl std::fmt::Display for ProcessId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.pid)
    }
}

/// A thread of a process.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, PartialOrd, Ord)]
pub struct Thread {
    /// The process.
    pub pid: i32,
    /// The thread's own number; that of the process for its first thread.
    pub tid: i32,
}

fn read(pid: i32, path: &Path) -> Result<Vec<u8>, ProcError> {
    bounded::read(path).map_err(|source| ProcError::from_io(pid, path, source))
}

/// Numbers that name directories in `path`, ascending.
fn numbers_in(pid: i32, path: &Path) -> Result<Vec<i32>, ProcError> {
    let failed = |source| ProcError::from_io(pid, path, source);
    let mut numbers = Vec::new();
    for entry in std::fs::read_dir(path).map_err(failed)? {
        let name = entry.map_err(failed)?.file_name();
        numbers.extend(name.to_str().and_then(|name| name.parse::<i32>().ok()));
    }
    numbers.sort_unstable();
    Ok(numbers)
}

/// The threads of process `pid` that exist now, ascending. Threads that begin or end meanwhile may be missed.
pub fn threads(pid: i32) -> Result<Vec<Thread>, ProcError> {
    let tids = numbers_in(pid, &path_of(pid, "task"))?;
    Ok(tids.into_iter().map(|tid| Thread { pid, tid }).collect())
}

/// All processes that the reader can see, ascending.
pub fn processes() -> Result<Vec<i32>, ProcError> {
    numbers_in(0, Path::new("/proc"))
}

/// The number that a process or thread got last, of those that the reader can see; `None` where the kernel
/// does not tell (`CONFIG_CHECKPOINT_RESTORE`).
pub fn last_number() -> Option<i32> {
    std::fs::read_to_string("/proc/sys/kernel/ns_last_pid").ok()?.trim().parse().ok()
}

/// The memory map of process `pid`, ascending by address. Empty for kernel threads and zombies.
pub fn maps(pid: i32) -> Result<Vec<Mapping>, ProcError> {
    let parse = |path: PathBuf| {
        parse_maps(&read(pid, &path)?).map_err(|what| ProcError::Malformed { pid, path, what })
    };
    let maps = parse(path_of(pid, "maps"));
    match &maps {
        Ok(maps) if !maps.is_empty() => {}
        Ok(_) | Err(ProcError::Gone { .. }) => {
            let path = shared_path(pid, "maps");
            if path != path_of(pid, "maps") {
                return parse(path);
            }
        }
        Err(_) => {}
    }
    maps
}

/// The auxiliary vector of process `pid`.
pub fn auxv(pid: i32) -> Result<AuxVector, ProcError> {
    Ok(AuxVector::parse(&read(pid, &shared_path(pid, "auxv"))?))
}

/// The status of process `pid`.
pub fn status(pid: i32) -> Result<Status, ProcError> {
    Ok(Status::parse(&read(pid, &path_of(pid, "status"))?))
}

/// Whether `/proc` shows the PID namespace that this process is in: only there do numbers of processes mean
/// the same in files and in system calls. Where that cannot be read, nothing else can.
pub fn shows_own_namespace() -> bool {
    std::fs::read("/proc/self/status")
        .map_or(true, |bytes| Status::parse(&bytes).is_seen_from_own_namespace())
}

/// The status of one thread.
pub fn thread_status(pid: i32, tid: i32) -> Result<Status, ProcError> {
    Ok(Status::parse(&read(pid, &path_of_thread(pid, tid, "status"))?))
}

/// The stat line of one thread; that of the process for `tid == pid` (heap start, start time).
pub fn thread_stat(pid: i32, tid: i32) -> Result<Stat, ProcError> {
    let path = if pid == tid { path_of(pid, "stat") } else { path_of_thread(pid, tid, "stat") };
    parse_stat(&read(pid, &path)?).map_err(|what| ProcError::Malformed { pid, path, what })
}

/// Where the `brk` heap of process `pid` starts (even while it is empty); `None` without permission or on
/// older kernels.
pub fn heap_start(pid: i32) -> Option<Avma> {
    shared_stat(pid)?.heap_start
}

/// Where the stack of the first thread of process `pid` began, also if that has ended; `None` without
/// permission.
pub fn stack_start(pid: i32) -> Option<Avma> {
    shared_stat(pid)?.stack_start
}

/// What the stat line says of the memory.
fn shared_stat(pid: i32) -> Option<Stat> {
    parse_stat(&read(pid, &shared_path(pid, "stat")).ok()?).ok()
}

/// CPU time that the thread has used, from `schedstat` (nanoseconds) or else `stat` (hundredths of a second).
pub fn thread_cpu_time(pid: i32, tid: i32) -> Result<Duration, ProcError> {
    let precise = read(pid, &path_of_thread(pid, tid, "schedstat")).ok();
    if let Some(time) = precise.as_deref().and_then(parse_schedstat) {
        return Ok(time);
    }
    let path = path_of_thread(pid, tid, "stat");
    let stat = parse_stat(&read(pid, &path)?).map_err(|what| ProcError::Malformed { pid, path, what })?;
    // SAFETY: `sysconf` only reads its integer argument and has no memory effects.
    let per_second = unsafe { libc::sysconf(libc::_SC_CLK_TCK) }.max(1) as f64;
    let ticks = stat.user_ticks.saturating_add(stat.system_ticks) as f64;
    Ok(Duration::try_from_secs_f64(ticks / per_second).unwrap_or(Duration::MAX))
}

/// The time for which a thread was ready to run and waited for a CPU (`schedstat`), to be read again and
/// again: opening the file takes ten times as long as reading it.
#[derive(Debug)]
pub struct RunDelay {
    file: std::fs::File,
}

impl RunDelay {
    /// That of thread `tid` of process `pid`; `None` where the kernel does not tell.
    pub fn open(pid: i32, tid: i32) -> Option<Self> {
        let file = std::fs::File::open(path_of_thread(pid, tid, "schedstat")).ok()?;
        Some(Self { file })
    }

    /// The time until now; `None` if the thread is gone.
    pub fn read(&self) -> Option<Duration> {
        let mut bytes = [0; 96];
        let length = std::os::unix::fs::FileExt::read_at(&self.file, &mut bytes, 0).ok()?;
        parse_run_delay(&bytes[..length])
    }
}

/// The path of the program that process `pid` runs, as `/proc/PID/exe` states it (` (deleted)` included).
pub fn executable_path(pid: i32) -> Result<PathBuf, ProcError> {
    let path = shared_path(pid, "exe");
    std::fs::read_link(&path).map_err(|source| ProcError::from_io(pid, &path, source))
}

/// All processes that have a file mapped executable which has this identity: the same program or library.
/// Processes that cannot be read or end meanwhile are left out.
pub fn processes_mapping(file: FileIdentity) -> Result<Vec<ProcessId>, ProcError> {
    let shows =
        |mapping: &Mapping| mapping.permissions.execute && mapping.inode != 0 && file.matches(mapping);
    let users = processes()?.into_iter().filter(|&pid| maps(pid).is_ok_and(|m| m.iter().any(shows)));
    Ok(users.filter_map(|pid| ProcessId::of(pid).ok()).collect())
}

/// The processes below `root` (its children, their children, ...), parents before children, without `root`.
pub fn descendants(root: i32) -> Result<Vec<ProcessId>, ProcError> {
    let mut children: HashMap<i32, Vec<ProcessId>> = HashMap::new();
    for pid in processes()? {
        if let Ok(stat) = thread_stat(pid, pid) {
            let child = ProcessId { pid, start_time: stat.start_time };
            children.entry(stat.ppid).or_default().push(child);
        }
    }
    let mut found = children.remove(&root).unwrap_or_default();
    let mut next = 0;
    while let Some(parent) = found.get(next) {
        // Each list is taken out once, so a pid that was reused meanwhile cannot make this go in circles.
        found.extend(children.remove(&parent.pid).unwrap_or_default());
        next += 1;
    }
    Ok(found)
}
