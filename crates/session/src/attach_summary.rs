//! What `attach` says of the processes and of what was done to them.

use restitch_apply_process::{SwitchReport, Target};
use restitch_check::CheckedVersion;
use restitch_processes::process_set::ProcessSet;
use restitch_report::{self as report, RunResult, counted};
use restitch_tracee::cut_calls;
use std::collections::BTreeSet;

/// What a session works on.
pub(crate) fn target_of(set: &ProcessSet) -> report::Target {
    let target = set.leader.target();
    report::Target {
        program: target.modules[target.program].path.display().to_string(),
        pid: Some(target.pid() as u32),
        processes: set.pids().len() as u32,
        threads: set.threads() as u32,
    }
}

/// Which code could not be exchanged as a whole, and why.
pub(crate) fn written(target: &Target, switches: &[&SwitchReport]) -> Vec<String> {
    let all: BTreeSet<_> = switches.iter().flat_map(|s| &s.written_in_stop).collect();
    let told = all.into_iter().map(|(at, why)| {
        let module = target.module_at(*at).map(|m| target.modules[m].path.display().to_string());
        let module = module.unwrap_or_else(|| at.to_string());
        format!("{module}: its code was written page by page in the pause, which made that longer: {why}")
    });
    told.collect()
}

/// Which entries stay because of user threads at rest, if any do.
pub(crate) fn left_to_preempted(switched: &SwitchReport) -> Option<String> {
    let left = switched.left_to_preempted;
    (left > 0).then(|| {
        format!(
            "threads that a signal has interrupted rest in the process, at whatever instruction: {left} entries of functions, of more than one instruction, stay as they are, and only moved code calls the copies of these"
        )
    })
}

/// That system calls returned early because this program has stopped their threads, if some did.
pub fn calls_cut_short() -> Option<String> {
    let cut = cut_calls();
    (cut > 0).then(|| {
        format!(
            "{} returned early with a part of the bytes when restitch stopped the process, as after SIGSTOP (a write to a full pipe, a receive with MSG_WAITALL): a program that does not go on with the rest has lost it",
            counted(cut as u64, "system call")
        )
    })
}

/// Adds what the kernel says of large pages, now that the code has run.
pub(crate) fn large_page_bytes(
    set: &ProcessSet,
    versions: &[(usize, CheckedVersion)],
    result: &mut RunResult,
) {
    let target = set.leader.target();
    for (entry, (module, version)) in result.modules.iter_mut().zip(versions) {
        let at = target.modules[*module].bias.to_actual(version.range.start);
        if let (Some(summary), true) = (&mut entry.version, version.large > 0) {
            // A process that has ended has none.
            summary.large_page_bytes = restitch_procfs::large_page_bytes(target.pid(), at).unwrap_or(0);
        }
    }
}

/// The pauses of the two switches, and what was moved in them.
pub(crate) fn apply_summary(first: &SwitchReport, second: &SwitchReport) -> report::ApplySummary {
    let part = |name: &str, us: u64| report::PausePart { name: name.into(), us: us as f64 };
    report::ApplySummary {
        how: "process".into(),
        in_force_ms: 0.0,
        pause_us: (first.pause_us + second.pause_us) as f64,
        pause_parts: vec![
            part("to the counting version", first.pause_us),
            part("to the new layout", second.pause_us),
            part("of that: stopping threads", second.stop_us),
            part("of that: the unwinder's table", second.unwinder_us),
            part("of that: threads and stacks", second.threads_us),
            part("of that: comparing the code", second.check_us),
            part("of that: exchanging mappings", second.remap_us),
            part("of that: writing code", second.write_us),
            part("of that: return addresses", second.returns_us),
            part("of that: resuming threads", second.resume_us),
            part("before it: one thread held", second.borrow_us),
        ],
        patches: second.patched as u64,
        moved_threads: (first.moved_threads + second.moved_threads) as u64,
        moved_to_counting: first.moved_threads as u64,
        moved_to_layout: second.moved_threads as u64,
    }
}
