//! What a kernel says when something is wrong with it.

/// Parts of lines by which kernels complain: oopses, warnings, hangs, corrupted lists, tables and stacks.
const SIGNS: [&str; 21] = [
    "BUG:",
    "Oops",
    "WARNING: ",
    "Kernel panic",
    "kernel BUG at",
    "general protection fault",
    "double fault",
    "invalid opcode",
    "unable to handle",
    "INFO: rcu",
    "INFO: task",
    "rcu_sched detected",
    "rcu_preempt detected",
    "soft lockup",
    "hard LOCKUP",
    "UBSAN",
    "refcount_t",
    "list_add corruption",
    "list_del corruption",
    "Bad page",
    "stack is corrupted",
];

/// The lines of a console by which the kernel complains. Only lines with the kernel's time stamp count.
pub fn complaints(console: &str) -> Vec<String> {
    let lines = console.lines().filter(|line| is_of_the_kernel(line));
    lines.filter(|line| SIGNS.iter().any(|sign| line.contains(sign))).map(|line| line.trim().into()).collect()
}

/// Whether a line begins with a time in brackets.
fn is_of_the_kernel(line: &str) -> bool {
    let time = line.trim_start_matches('\r').strip_prefix('[').and_then(|rest| rest.split_once(']'));
    time.is_some_and(|(time, _)| time.trim().parse::<f64>().is_ok())
}

/// The console from its first complaint on, at most that many lines.
pub(crate) fn from_first_complaint(console: &str, most: usize) -> String {
    let Some(first) = complaints(console).into_iter().next() else { return String::new() };
    let lines = console.lines().skip_while(|line| line.trim() != first);
    lines.take(most).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn oopses_warnings_and_panics_are_found_and_ordinary_lines_are_not() {
        let console = "[    0.000000] Linux version 6.1.0\n\
                       [    1.5] WARNING: CPU: 0 PID: 1 at kernel/x.c:3 f+0x1/0x2\n\
                       [    1.6] BUG: unable to handle page fault for address: 0\n\
                       [    1.7] Kernel panic - not syncing: Fatal exception\n\
                       BUG: said by a program\n\
                       [    1.8] debug: no complaint\n";
        let found = complaints(console);
        assert_eq!(found.len(), 3, "{found:?}");
        assert!(found[0].contains("kernel/x.c:3"));
        assert!(from_first_complaint(console, 2).ends_with("address: 0"));
    }
}
