//! Whether processes leave core files.

use std::path::PathBuf;

/// Whether process `pid` would leave a core file if a signal ended it now: its limit allows one, or the
/// kernel hands cores to a program, which the limit does not concern (core(5)). `false` also where it cannot
/// be read.
pub fn may_leave_core(pid: i32) -> bool {
    let read = |path: PathBuf| std::fs::read_to_string(path).unwrap_or_default();
    is_handed_on(&read("/proc/sys/kernel/core_pattern".into()))
        || limit_allows(&read(format!("/proc/{pid}/limits").into()))
}

/// By the content of `core_pattern`: to a program (`|`), or to a socket (`@`, since Linux 6.16).
fn is_handed_on(pattern: &str) -> bool {
    pattern.starts_with(['|', '@'])
}

/// By the content of a process's `limits`: the first number is the limit in force, in bytes.
fn limit_allows(limits: &str) -> bool {
    let line = limits.lines().find_map(|line| line.strip_prefix("Max core file size"));
    line.and_then(|line| line.split_whitespace().next()).is_some_and(|limit| limit != "0")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_and_patterns_say_whether_there_are_cores() {
        let limits = |soft: &str| {
            format!(
                "Limit  Soft Limit  Hard Limit  Units\nMax core file size        {soft}          unlimited            bytes\n"
            )
        };
        assert!(limit_allows(&limits("unlimited")) && limit_allows(&limits("4096")));
        assert!(!limit_allows(&limits("0")));
        assert!(!limit_allows("") && !limit_allows("Max core file size"));
        assert!(
            is_handed_on("|/usr/lib/systemd/systemd-coredump %P\n") && is_handed_on("@/run/cores.socket")
        );
        assert!(!is_handed_on("core\n") && !is_handed_on("") && !is_handed_on("/var/crash/core.%p"));
    }
}
