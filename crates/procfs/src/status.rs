//! `/proc/PID/status`, `/proc/PID/stat` and `schedstat`, parsed (proc_pid_status(5), proc_pid_stat(5)).

use restitch_address::Avma;
use std::sync::LazyLock;
use std::time::Duration;

/// What a task is doing, the letter of `State:`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ProcessState {
    /// `R`: running or runnable.
    Running,
    /// `S` or `I`: sleeping, wakes up for signals.
    Sleeping,
    /// `D`: sleeping, does not wake up for signals (disk, or a vfork parent).
    Uninterruptible,
    /// `T`: stopped by a signal.
    Stopped,
    /// `t`: stopped by a tracer.
    Traced,
    /// `Z`: ended, not collected by its parent.
    Zombie,
    /// `X`: about to vanish.
    Dead,
    /// A letter that this program does not know.
    Other(char),
}

impl ProcessState {
    /// The state for its letter.
    pub fn from_letter(letter: char) -> Self {
        match letter {
            'R' => Self::Running,
            'S' | 'I' => Self::Sleeping,
            'D' => Self::Uninterruptible,
            'T' => Self::Stopped,
            't' => Self::Traced,
            'Z' => Self::Zombie,
            'X' | 'x' => Self::Dead,
            other => Self::Other(other),
        }
    }

    /// Whether the task has ended.
    pub fn is_ended(self) -> bool {
        matches!(self, Self::Zombie | Self::Dead)
    }
}

/// The fields of `/proc/PID/status` that matter here. A field that the kernel did not give is `None`.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Status {
    /// The command's name, at most 15 bytes, with the kernel's escapes.
    pub name: String,
    /// What the task is doing.
    pub state: Option<ProcessState>,
    /// The process's number.
    pub tgid: Option<i32>,
    /// The task's number.
    pub pid: Option<i32>,
    /// The parent process.
    pub ppid: Option<i32>,
    /// The task that traces this one; 0 for none.
    pub tracer: Option<i32>,
    /// Real user id.
    pub uid: Option<u32>,
    /// Effective user id.
    pub effective_uid: Option<u32>,
    /// Saved user id.
    pub saved_uid: Option<u32>,
    /// User id for files: the owner of those that it makes.
    pub file_system_uid: Option<u32>,
    /// Number of threads.
    pub threads: Option<u32>,
    /// 0 none, 1 strict, 2 filter.
    pub seccomp: Option<u8>,
    /// The process's number in each nested pid namespace, outermost first.
    pub namespace_pids: Vec<i32>,
    /// Effective capabilities, bit `n` for capability `n`.
    pub capabilities: Option<u64>,
    /// Set of blocked signals (of a thread), bit `n - 1` for signal `n`.
    pub blocked_signals: Option<u64>,
    /// Set of ignored signals, bit `n - 1` for signal `n`.
    pub ignored_signals: Option<u64>,
    /// Set of caught signals, bit `n - 1` for signal `n`.
    pub caught_signals: Option<u64>,
    /// Whether the task runs with a CPU-enforced shadow stack (`x86_Thread_features: shstk`).
    pub shadow_stack: bool,
    /// Whether the task has memory of user space: not a kernel thread's, nor what a task that ends has left.
    pub has_memory: bool,
    /// Whether the task is a kernel thread: from the `Kthread` field, or because it has no memory and has not
    /// ended.
    pub kernel_thread: bool,
}

impl Status {
    /// Parses the file. Unknown and damaged lines are skipped, since kernels differ in the lines they write.
    pub fn parse(bytes: &[u8]) -> Self {
        let text = String::from_utf8_lossy(bytes);
        let mut status = Self::default();
        let mut kthread = None;
        for (key, value) in text.lines().filter_map(|line| line.split_once(':')) {
            let value = value.trim();
            match key {
                "Kthread" => kthread = Some(value == "1"),
                "VmSize" => status.has_memory = true,
                _ => status.set(key, value),
            }
        }
        let ended = status.state.is_some_and(ProcessState::is_ended);
        let known = status.pid.is_some();
        status.kernel_thread = kthread.unwrap_or(known && !status.has_memory && !ended);
        status
    }

    /// The real, effective and saved user ids: what the task may do, and who may do something to it. Tasks of
    /// which they are the same are of one user.
    pub fn users(&self) -> Option<[u32; 3]> {
        Some([self.uid?, self.effective_uid?, self.saved_uid?])
    }

    /// Whether the file is one of the pid namespace that the task is in (`NSpid` has the numbers from the
    /// file's namespace down to the task's own), as far as the kernel tells.
    pub(crate) fn is_seen_from_own_namespace(&self) -> bool {
        self.namespace_pids.len() <= 1
    }

    /// The number in its own pid namespace.
    pub fn own_number(&self) -> Option<i32> {
        self.namespace_pids.last().copied()
    }

    fn set(&mut self, key: &str, value: &str) {
        let mut words = value.split_whitespace();
        match key {
            "Name" => self.name = value.to_owned(),
            "State" => self.state = value.chars().next().map(ProcessState::from_letter),
            "Tgid" => self.tgid = value.parse().ok(),
            "Pid" => self.pid = value.parse().ok(),
            "PPid" => self.ppid = value.parse().ok(),
            "TracerPid" => self.tracer = value.parse().ok(),
            "Uid" => {
                let mut uid = || words.next().and_then(|word| word.parse().ok());
                self.uid = uid();
                self.effective_uid = uid();
                self.saved_uid = uid();
                self.file_system_uid = uid();
            }
            "Threads" => self.threads = value.parse().ok(),
            "Seccomp" => self.seccomp = value.parse().ok(),
            "NSpid" => self.namespace_pids = words.filter_map(|word| word.parse().ok()).collect(),
            "CapEff" => self.capabilities = u64::from_str_radix(value, 16).ok(),
            "SigBlk" => self.blocked_signals = u64::from_str_radix(value, 16).ok(),
            "SigIgn" => self.ignored_signals = u64::from_str_radix(value, 16).ok(),
            "SigCgt" => self.caught_signals = u64::from_str_radix(value, 16).ok(),
            "x86_Thread_features" => self.shadow_stack = words.any(|word| word == "shstk"),
            _ => {}
        }
    }
}

/// The fields of `/proc/PID/stat` (or of a thread's) that matter here.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Stat {
    /// The task's number.
    pub pid: i32,
    /// The command's name; may hold any bytes, closing parentheses too.
    pub name: String,
    /// What the task is doing.
    pub state: ProcessState,
    /// The parent process.
    pub ppid: i32,
    /// The kernel's flags of the task (`PF_..` of `include/linux/sched.h`), which mean other things in other
    /// kernels.
    pub flags: u64,
    /// Whether the task is ending (`PF_EXITING`): it runs no code of its own any more.
    pub is_exiting: bool,
    /// Whether a `SIGKILL` waits for the task, as for all others when one of its process ends the process: it
    /// ends when it next leaves the kernel.
    pub is_killed: bool,
    /// Time in user mode, in clock ticks (`_SC_CLK_TCK`, 100 a second).
    pub user_ticks: u64,
    /// Time in the kernel, in clock ticks.
    pub system_ticks: u64,
    /// When the task started, in clock ticks since boot. With the number it identifies a task for good.
    pub start_time: u64,
    /// Where the stack of the first thread began: its number of arguments stands there; `None` without
    /// permission.
    pub stack_start: Option<Avma>,
    /// Where the `brk` heap starts (even while it is empty); `None` without permission or on older kernels.
    pub heap_start: Option<Avma>,
}

/// The flag of a task that is ending (`include/linux/sched.h`).
const PF_EXITING: u64 = 4;
/// Flags of tasks that never leave the kernel, with the first kernel in which they mean that and such tasks
/// are among a process's threads: those of io_uring, and those of any other kind (`vhost`). Before, they were
/// flags of tasks like all others (the first one that of a virtual processor).
const IN_KERNEL: [(u64, (u32, u32)); 2] = [(0x10, (5, 12)), (0x4000, (6, 4))];

impl Stat {
    /// Whether the task is one that the kernel has made in the process's name and that never runs code of the
    /// process: a worker of io_uring (`iou-wrk-`, `iou-sqp-`), or of virtual machines (`vhost-`). It is in
    /// the list of threads, and all its registers are 0.
    pub fn stays_in_kernel(&self) -> bool {
        static KERNEL: LazyLock<Option<(u32, u32)>> = LazyLock::new(crate::system::kernel_version);
        self.stays_in(*KERNEL)
    }

    fn stays_in(&self, kernel: Option<(u32, u32)>) -> bool {
        IN_KERNEL.iter().any(|(flag, since)| self.flags & flag != 0 && kernel.is_some_and(|k| k >= *since))
    }
}

/// Parses a stat file. The error says which field is missing.
pub fn parse_stat(bytes: &[u8]) -> Result<Stat, String> {
    let open = bytes.iter().position(|&byte| byte == b'(').ok_or("no '(' before the name")?;
    let close = bytes.iter().rposition(|&byte| byte == b')').ok_or("no ')' after the name")?;
    if close < open {
        return Err("')' before '('".to_owned());
    }
    let pid = std::str::from_utf8(&bytes[..open]).ok().and_then(|text| text.trim().parse().ok());
    let tail = String::from_utf8_lossy(&bytes[close + 1..]);
    let fields: Vec<&str> = tail.split_whitespace().collect();
    // Field numbers of proc_pid_stat(5) count from 1 and include the two fields before the tail.
    let text =
        |number: usize| fields.get(number - 3).copied().ok_or_else(|| format!("field {number} is missing"));
    let value =
        |number: usize| text(number)?.parse::<u64>().map_err(|_| format!("field {number} is no number"));
    let flags = value(9)?;
    Ok(Stat {
        pid: pid.ok_or("the pid is no number")?,
        name: String::from_utf8_lossy(&bytes[open + 1..close]).into_owned(),
        state: ProcessState::from_letter(text(3)?.chars().next().unwrap_or('?')),
        ppid: text(4)?.parse().map_err(|_| "field 4 is no number".to_owned())?,
        flags,
        is_exiting: flags & PF_EXITING != 0,
        is_killed: value(31)? >> (libc::SIGKILL - 1) & 1 != 0,
        user_ticks: value(14)?,
        system_ticks: value(15)?,
        start_time: value(22)?,
        stack_start: value(28).ok().filter(|&start| start != 0).map(Avma::new),
        heap_start: value(47).ok().filter(|&start| start != 0).map(Avma::new),
    })
}

/// The CPU time from a `schedstat` file, whose first field is nanoseconds on a CPU.
pub fn parse_schedstat(bytes: &[u8]) -> Option<Duration> {
    let text = std::str::from_utf8(bytes).ok()?;
    text.split_whitespace().next()?.parse().ok().map(Duration::from_nanos)
}

/// The time for which the task was ready to run and had no CPU, from a `schedstat` file: its second field, in
/// nanoseconds.
pub fn parse_run_delay(bytes: &[u8]) -> Option<Duration> {
    let text = std::str::from_utf8(bytes).ok()?;
    text.split_whitespace().nth(1)?.parse().ok().map(Duration::from_nanos)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_mean_what_they_mean_in_that_kernel() {
        let with = |flags: u64| {
            let line = format!(
                "7 (x) S 1 1 1 0 -1 {flags} 0 0 0 0 1 1 0 0 20 0 1 0 9 1 1 1 1 1 1 1 1 1 0 0 0 0 0 0 17 0"
            );
            parse_stat(line.as_bytes()).expect("a stat line")
        };
        // As Linux 6.18 has it of a worker of io_uring, and of another thread of its process.
        assert!(with(4_210_768).stays_in(Some((6, 18))));
        assert!(!with(4_194_560).stays_in(Some((6, 18))));
        // A virtual processor, before 5.10.
        assert!(!with(0x10).stays_in(Some((5, 4))) && with(0x10).stays_in(Some((5, 12))));
        assert!(!with(0x4000).stays_in(Some((6, 1))) && with(0x4000).stays_in(Some((6, 4))));
        assert!(!with(u64::MAX).stays_in(None));
    }
}
