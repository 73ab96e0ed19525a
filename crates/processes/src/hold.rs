//! A command stands still while something is made for it.
//!
//! A command that is recorded lives as long as it lives: what it does while its tracing versions are made is
//! lost for the record. A running process is not ours to hold; a command that was started for the record may
//! wait. The threads are held by a thread of its own, so that the one that works is not urgent; should this
//! program die, the command runs on.

use restitch_tracee::Stopped;
use std::sync::mpsc::channel;
use std::thread::Builder;

/// Does `work` while all threads of process `pid`, which this program has started, stand still. Where they
/// cannot be stopped (one is in the kernel for long, the process is about to end, there may be no more
/// threads), they run meanwhile.
pub fn holding<T>(pid: i32, work: impl FnOnce() -> T) -> T {
    let (held, is_held) = channel::<()>();
    let (done, is_done) = channel::<()>();
    std::thread::scope(|scope| {
        let holder = Builder::new().spawn_scoped(scope, move || {
            let stopped = Stopped::seize_all(pid).map(Stopped::of_own_command);
            drop(held);
            // An error: the other side is gone, which says the same.
            let _ = is_done.recv();
            drop(stopped.map(Stopped::resume));
        });
        // What it was to say is hung up where it could not be started.
        drop(holder);
        let _ = is_held.recv();
        let result = work();
        drop(done);
        result
    })
}

#[cfg(test)]
mod tests {
    use super::holding;
    use restitch_testkit::{Guarded, compile, program, skipped};
    use std::process::{Command, Stdio};
    use std::time::Duration;

    fn cpu_time(pid: i32) -> Duration {
        restitch_procfs::thread_cpu_time(pid, pid).unwrap()
    }

    #[test]
    fn a_process_uses_no_time_while_it_is_held() {
        let path = match compile(&program("switch.c"), &["-O2"]) {
            Ok(path) => path,
            Err(error) => return skipped(&error.to_string()),
        };
        let mut command = Command::new(path);
        command.args(["--seconds", "60"]).stdout(Stdio::null());
        let process = Guarded::spawn(&mut command).unwrap();
        let pid = process.pid() as i32;
        let used = holding(pid, || {
            let before = cpu_time(pid);
            std::thread::sleep(Duration::from_millis(300));
            cpu_time(pid) - before
        });
        assert_eq!(used, Duration::ZERO);
        let before = cpu_time(pid);
        while cpu_time(pid) == before {
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    #[test]
    fn what_cannot_be_held_is_no_obstacle() {
        assert_eq!(holding(i32::MAX, || 7), 7);
    }
}
