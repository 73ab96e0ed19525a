//! `doctor`: what this machine allows, and the command that would allow more.

use restitch_perf::{Availability, Pmu, SampleEvent};
use restitch_procfs::system;

/// One fact.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Check {
    /// What.
    pub name: &'static str,
    /// Whether restitch can use it.
    pub available: bool,
    /// What is there, or why not.
    pub state: String,
    /// What it is for, and what is done without it.
    pub meaning: &'static str,
    /// The command that would allow more, if there is one.
    pub remedy: Option<String>,
}

/// All facts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Doctor {
    /// In order of importance.
    pub checks: Vec<Check>,
}

impl Doctor {
    /// Whether `attach` can work at all.
    pub fn can_attach(&self) -> bool {
        self.checks
            .iter()
            .filter(|c| ["cpu clock sampling", "ptrace", "state directory"].contains(&c.name))
            .all(|c| c.available)
    }
}

/// Looks at the machine.
pub fn doctor() -> Doctor {
    let pmu = Pmu::probe();
    let event = |name, a: &Availability, meaning| {
        let (state, remedy) = match a {
            Availability::Yes => ("available".to_owned(), None),
            Availability::No { reason, remedy } => (reason.clone(), remedy.clone()),
        };
        Check { name, available: a.is_yes(), state, meaning, remedy }
    };
    let mut checks = vec![
        event("cpu clock sampling", &pmu.cpu_clock, "finds the functions that matter; needed"),
        event(
            "hardware cycles",
            &pmu.cycles,
            "better samples, and a verdict in cycles; else the CPU clock, and --metric for the verdict",
        ),
        event(
            "branch records",
            &pmu.branch_stack,
            "an edge profile from hardware (LBR, BRS); else a counting version runs for some seconds",
        ),
        event("hardware breakpoints", &pmu.hardware_breakpoints, "software branch tracing"),
    ];
    checks.push(sample_cost());
    checks.push(paranoid(pmu.paranoid));
    checks.push(ptrace(system::ptrace_scope()));
    checks.push(filters());
    checks.push(transparent_huge_pages());
    checks.push(state_directory());
    Doctor { checks }
}

fn sample_cost() -> Check {
    let cost = restitch_perf::sample_cost(SampleEvent::CpuClock, false);
    let of = |samples: f64| cost.as_ref().map_or(0.0, |c| samples * c.as_secs_f64() * 100.0);
    Check {
        name: "cost of a sample",
        available: cost.is_ok(),
        state: match &cost {
            Ok(cost) => format!(
                "{:.0} us of the sampled thread: {:.1} % of its time while attach looks for functions (4,000 a second), {:.1} % in batch (250 a second, as long as they tell something new)",
                cost.as_secs_f64() * 1e6,
                of(4000.0),
                of(250.0)
            ),
            Err(error) => error.to_string(),
        },
        meaning: "a sample is a timer interrupt, which virtual machines may make dear",
        remedy: None,
    }
}

fn paranoid(level: Option<i32>) -> Check {
    let allowed = level.is_none_or(|l| l <= 2);
    Check {
        name: "perf_event_paranoid",
        available: allowed,
        state: level.map_or("no such setting".into(), |l| format!("kernel.perf_event_paranoid is {l}")),
        meaning: "2 and less lets users sample their own processes",
        remedy: (!allowed).then(|| "sysctl kernel.perf_event_paranoid=2".into()),
    }
}

fn ptrace(scope: Option<i32>) -> Check {
    let root = restitch_procfs::ProcessId::of(std::process::id() as i32)
        .ok()
        .and_then(|p| restitch_procfs::status(p.pid).ok())
        .and_then(|s| s.effective_uid)
        == Some(0);
    let allowed = match scope {
        None | Some(0) => true,
        Some(1 | 2) => root,
        Some(_) => false,
    };
    Check {
        name: "ptrace",
        available: allowed,
        state: match scope {
            None => "allowed (the kernel has no Yama)".into(),
            Some(s) => {
                format!("kernel.yama.ptrace_scope is {s}{}", if root { ", and this is root" } else { "" })
            }
        },
        meaning: "stopping and changing a process that restitch did not start",
        remedy: match scope {
            Some(3) => Some("reboot without kernel.yama.ptrace_scope=3".into()),
            Some(1 | 2) if !root => Some("sysctl kernel.yama.ptrace_scope=0, or run restitch as root".into()),
            _ => None,
        },
    }
}

fn filters() -> Check {
    let readable = restitch_tracee::may_read_filters();
    Check {
        name: "seccomp filters",
        available: readable,
        state: if readable {
            "those of other processes can be read"
        } else {
            "those of other processes cannot be read: that takes CAP_SYS_ADMIN, and to be under none oneself"
        }
        .into(),
        meaning: "changing processes that run under system call filters, as in containers and hardened services",
        remedy: (!readable).then(|| "run restitch as root, outside of the container".into()),
    }
}

fn transparent_huge_pages() -> Check {
    let state = system::transparent_huge_pages();
    Check {
        name: "transparent huge pages",
        available: state.is_some(),
        state: state.map_or("not in this kernel".into(), |s| format!("{s:?}").to_lowercase()),
        meaning: "large pages for hot code (--huge-pages); files get them from file systems with large folios (ext4, xfs and btrfs of \
                  recent kernels), from others if the kernel has CONFIG_READ_ONLY_THP_FOR_FS",
        remedy: None,
    }
}

fn state_directory() -> Check {
    let dir = restitch_apply_process::StateDir::open();
    Check {
        name: "state directory",
        available: dir.is_ok(),
        state: dir.as_ref().map_or_else(ToString::to_string, |d| d.path().display().to_string()),
        meaning: "undo journals and version files; needed",
        remedy: dir.is_err().then(|| "export RESTITCH_STATE_DIR=/a/writable/directory".into()),
    }
}
