//! What can go wrong, each with the next step for the user.

use restitch_address::Avma;
use restitch_apply::Why;
use restitch_procfs::ProcError;
use restitch_tracee::TraceError;
use std::error::Error;
use std::iter::successors;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Why a process could not be changed. Unless the variant says otherwise, it is as it was.
#[derive(Debug, thiserror::Error)]
pub enum ProcessError {
    /// Reading `/proc` failed.
    #[error(transparent)]
    Proc(#[from] ProcError),
    /// Tracing failed.
    #[error(transparent)]
    Trace(#[from] TraceError),
    /// The program's main image was not found among the mappings.
    #[error(
        "process {pid}: its program image was not found in its memory map; name a process of a 64-bit x86 program"
    )]
    NoProgram {
        /// The process.
        pid: i32,
    },
    /// The program's file cannot be worked with.
    #[error(
        "process {pid}: its program {program} cannot be used: {why}; name a process of a 64-bit x86 program"
    )]
    BadProgram {
        /// The process.
        pid: i32,
        /// The file.
        program: PathBuf,
        /// Why not.
        #[source]
        why: Why,
    },
    /// The program has moved its code.
    #[error(
        "process {pid}: the code of {program} lies in memory that is no mapping of the file any more, as the program has moved it there (onto large pages perhaps, as node --use-largepages and iodlr do); nothing was changed; start it without that, or make a faster copy of the file instead (restitch record, restitch optimize)"
    )]
    TextMoved {
        /// The process.
        pid: i32,
        /// Its program.
        program: PathBuf,
    },
    /// No bytes of the code are known to be dead.
    #[error(
        "process {pid}: no 16 bytes of its code are known to be dead, and restitch needs such for a moment to make a system call on its behalf (the last pages of its code are full, and it has not begun, or not as others do); nothing was changed; try again once it runs, or make a faster copy of its program instead (restitch record, restitch optimize)"
    )]
    NoDeadBytes {
        /// The process.
        pid: i32,
    },
    /// `restitch batch` has put code of its own into the process when it began.
    #[error(
        "process {pid} runs in code that `restitch batch` has put into it when it began (see {overlay}), and is optimized already; start it without LD_PRELOAD to attach to it"
    )]
    Overlaid {
        /// The process.
        pid: i32,
        /// The overlay of one of its modules.
        overlay: PathBuf,
    },
    /// Its memory cgroup would end it.
    #[error(
        "process {pid}: its memory cgroup {group} has {} KiB left of {} KiB, and {} KiB may be needed: the kernel would end it; this change was not made. Raise the group's limit, or free \
         memory in it",
        left >> 10, limit >> 10, needed >> 10
    )]
    NoMemory {
        /// The process.
        pid: i32,
        /// Bytes that may be needed.
        needed: u64,
        /// Bytes that are left.
        left: u64,
        /// Bytes that the group may have.
        limit: u64,
        /// The group's folder.
        group: PathBuf,
    },
    /// No room near a module.
    #[error(
        "process {pid}: no free address range of {len} bytes within 2 GiB of {module}: {why}; nothing was changed; make a faster copy of the file instead (restitch record, restitch optimize)"
    )]
    NoRoom {
        /// The process.
        pid: i32,
        /// What was wanted.
        len: u64,
        /// For which module.
        module: PathBuf,
        /// More.
        #[source]
        why: Why,
    },
    /// Exceptions would not find their way through moved frames.
    #[error(
        "process {pid}: {why}, so C++ exceptions could not pass moved code; nothing was changed. \
         Use `restitch optimize` to write an optimized file instead"
    )]
    NoUnwindHook {
        /// The process.
        pid: i32,
        /// What is missing.
        #[source]
        why: Why,
    },
    /// The program has mapped something where a version was to go.
    #[error(
        "process {pid}: the program has mapped memory of its own meanwhile where new code was to go; nothing was changed. Try again"
    )]
    PlaceTaken {
        /// The process.
        pid: i32,
    },
    /// Tracing versions come alone.
    #[error(
        "process {pid} has other versions of restitch in it; take them out first (restitch revert {pid}), or use --source trace"
    )]
    Occupied {
        /// The process.
        pid: i32,
    },
    /// Too many versions of earlier layouts have had to stay.
    #[error(
        "process {pid}: {number} versions of earlier layouts ({bytes} bytes) are still mapped, because somebody may return into them (a coroutine \
         that has not run since, say), and {limit} are the most that restitch leaves behind; nothing was changed. What can go by then \
         goes with a later attach or `restitch revert {pid}`, all of it with a restart of the program"
    )]
    PiledUp {
        /// The process.
        pid: i32,
        /// How many.
        number: usize,
        /// Their bytes.
        bytes: u64,
        /// How many there may be.
        limit: usize,
    },
    /// Modules are no longer where they were.
    #[error(
        "process {pid}: {} mapped where it was when restitch began, because the program has closed it, or opened it elsewhere, since; nothing was \
         changed. Try again",
        is_no_longer(modules)
    )]
    Moved {
        /// The process.
        pid: i32,
        /// Their paths: all modules of which that is so.
        modules: Vec<PathBuf>,
    },
    /// Bytes in the target are not those of the file.
    #[error(
        "process {pid}: the code at {at} is not that of the file ({found:02x?} instead of {expected:02x?}); something else has patched it, so restitch leaves it alone; take that out first (breakpoints of a debugger, probes, another patcher)"
    )]
    Foreign {
        /// The process.
        pid: i32,
        /// Where.
        at: Avma,
        /// What is there.
        found: Vec<u8>,
        /// What should be.
        expected: Vec<u8>,
    },
    /// A slot of a global offset table is not what the new code was made for.
    #[error(
        "process {pid}: the slot at {at} of {module} does not hold what the new code was made for; nothing was changed. \
         Try again, or with --direct-calls off"
    )]
    Unbound {
        /// The process.
        pid: i32,
        /// The slot.
        at: Avma,
        /// Whose.
        module: PathBuf,
    },
    /// What was written did not arrive.
    #[error(
        "process {pid}: {count} of the writes did not read back as written, first at {at}; run `restitch revert {pid}`"
    )]
    NotVerified {
        /// The process.
        pid: i32,
        /// How many.
        count: usize,
        /// The first.
        at: Avma,
    },
    /// The state directory or a file in it cannot be used.
    #[error("{operation} {path}: {source}{}", state_advice(source))]
    State {
        /// What was tried.
        operation: &'static str,
        /// On what.
        path: PathBuf,
        /// Why not.
        source: std::io::Error,
    },
    /// The journal is damaged.
    #[error("the journal {path} cannot be read: {why}; the process can only be put right by restarting it")]
    Journal {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        why: Why,
    },
    /// Another restitch is at work on it.
    #[error(
        "process {pid}: another restitch{} is at work on it; wait for it to end, or stop it, and try again",
        .by.map(|by| format!(" (process {by})")).unwrap_or_default()
    )]
    Busy {
        /// The process.
        pid: i32,
        /// The other one, as far as known.
        by: Option<i32>,
    },
    /// A restitch was killed, and a thread has still to end what it was made to begin.
    #[error(
        "process {pid}: thread {tid} has not ended for {} s what a restitch made it begin that was killed: it waits for a processor, or in a system call (cat /proc/{pid}/task/{tid}/stack); try again when it has; nothing was changed",
        .waited.as_secs()
    )]
    HalfDone {
        /// The process.
        pid: i32,
        /// The thread.
        tid: i32,
        /// How long was waited for it.
        waited: Duration,
    },
    /// A layout is in force, and what is needed to take it out is not there.
    #[error(
        "process {pid}: a layout of restitch is active in it ({redirects} places of its code lead there), whose state files are not in {dir}: {}; nothing was changed",
        where_state_may_be(*pid, elsewhere.as_deref())
    )]
    StateLost {
        /// The process.
        pid: i32,
        /// How many places of its code lead into versions.
        redirects: usize,
        /// Where state files were looked for.
        dir: PathBuf,
        /// The folder of the versions' files, if it is another one.
        elsewhere: Option<PathBuf>,
    },
    /// There is no journal for the process.
    #[error(
        "process {pid} is not under restitch (there is no journal for it in {dir}): its code is the original one, and there is nothing to take out{}",
        of_root(*pid, *.is_roots)
    )]
    NotAttached {
        /// The process.
        pid: i32,
        /// Where journals are.
        dir: PathBuf,
        /// Whether these are root's.
        is_roots: bool,
    },
}

/// What somebody does who finds no journal; only root's are all that there are.
fn of_root(pid: i32, is_roots: bool) -> String {
    if is_roots {
        format!("; `restitch attach {pid}` optimizes it")
    } else {
        format!("; if root has optimized it: `sudo restitch revert {pid}`")
    }
}

impl ProcessError {
    /// Whether it comes of no more than that the process has ended, whatever could not be done then.
    pub fn is_gone(&self) -> bool {
        match self {
            Self::Proc(error) => error.is_gone(),
            Self::Trace(error) => error.is_gone(),
            other => other.source().is_some_and(tells_of_end),
        }
    }
}

/// Whether an error, or one that it comes of, says that the process has ended.
pub(crate) fn tells_of_end(error: &(dyn Error + 'static)) -> bool {
    let mut all = successors(Some(error), |error: &&(dyn Error + 'static)| (*error).source());
    all.any(|error| {
        let process = error.downcast_ref::<ProcessError>().map(ProcessError::is_gone);
        let trace = || error.downcast_ref::<TraceError>().map(TraceError::is_gone);
        let proc = || error.downcast_ref::<ProcError>().map(ProcError::is_gone);
        process.or_else(trace).or_else(proc).unwrap_or(false)
    })
}

/// The next step after a failure in the state directory; nothing where the failure names one itself.
fn state_advice(source: &std::io::Error) -> &'static str {
    use std::io::ErrorKind as K;
    match (source.raw_os_error(), source.kind()) {
        // The directory is not to blame.
        (Some(libc::EMFILE), _) => {
            "; restitch may not have so many files open: raise the limit (`ulimit -n 1024`)"
        }
        (Some(libc::ENFILE), _) => "; the system has as many files open as it may (fs.file-max)",
        (None, K::PermissionDenied) => "",
        (_, K::StorageFull | K::QuotaExceeded) => {
            "; make room there (`restitch revert` needs none), or set RESTITCH_STATE_DIR to another directory for processes that are not under restitch yet"
        }
        _ => "; set RESTITCH_STATE_DIR to a writable directory on a file system without noexec",
    }
}

/// The next step where state files are not found.
fn where_state_may_be(pid: i32, elsewhere: Option<&Path>) -> String {
    match elsewhere {
        Some(folder) => format!(
            "they may be in {0}, where its versions lie; try RESTITCH_STATE_DIR={0} restitch revert {pid}, as the user of that folder",
            folder.display()
        ),
        None => "they were removed, or are in another state directory (name it by RESTITCH_STATE_DIR, or be the user who attached). If \
                 they are gone, the program runs on in that layout, which computes what the original does, until it is started anew"
            .into(),
    }
}

fn is_no_longer(modules: &[PathBuf]) -> String {
    let first = modules.first().map(|path| path.display().to_string()).unwrap_or_default();
    match modules.len() {
        0 | 1 => format!("{first} is no longer"),
        2 => format!("{first} and another module are no longer"),
        n => format!("{first} and {} other modules are no longer", n - 1),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_of_open_files_are_not_taken_for_the_state_directory() {
        let advice = |errno| state_advice(&std::io::Error::from_raw_os_error(errno));
        for (errno, word) in [(libc::EMFILE, "ulimit -n"), (libc::ENFILE, "fs.file-max")] {
            assert!(advice(errno).contains(word), "{errno}");
            assert!(!advice(errno).contains("RESTITCH_STATE_DIR"), "{errno}");
        }
        assert!(advice(libc::EROFS).contains("RESTITCH_STATE_DIR"));
    }

    #[test]
    fn who_sees_no_journals_of_root_is_told_so() {
        let said = |is_roots| ProcessError::NotAttached { pid: 7, dir: "/dir".into(), is_roots }.to_string();
        assert!(
            said(false).ends_with("nothing to take out; if root has optimized it: `sudo restitch revert 7`")
        );
        assert!(said(true).ends_with("; `restitch attach 7` optimizes it"), "{}", said(true));
    }
}
