//! Processes under system call filters: what these permit is done, and what they forbid is not tried.

mod common;

use common::Target;
use restitch_tracee::{
    Backing, Batch, Placement, Protection, Stopped, StubPlace, TraceError, refuse_by_filters, visit,
};

const KILL_PROCESS: u32 = 0x8000_0000;
const EPERM: u32 = 0x0005_0000 | libc::EPERM as u32;
const TRAP: u32 = 0x0003_0000;
/// The calls in which the target waits.
const WAITS: [i64; 2] = [libc::SYS_poll, libc::SYS_read];
const LOG: u32 = 0x7ffc_0000;

/// A process under these filters; `None` (with a note) where that cannot be tested.
fn target(filters: &[&str]) -> Option<Target> {
    // SAFETY: `geteuid` has no arguments and no memory effects.
    if unsafe { libc::geteuid() } != 0 {
        eprintln!("SKIPPED: not root, who alone may read system call filters");
        return None;
    }
    let target = Target::start("filters", filters)?;
    let in_call = || std::fs::read_to_string(format!("/proc/{}/syscall", target.pid())).unwrap();
    while !WAITS.iter().any(|call| in_call().starts_with(&format!("{call} "))) {
        std::thread::yield_now();
    }
    Some(target)
}

fn forbidding(number: i64, action: u32) -> Option<Target> {
    target(&[&format!("{number}:{action:x}")])
}

fn place(target: &Target) -> StubPlace {
    let maps = restitch_procfs::maps(target.pid()).unwrap();
    StubPlace::new(target.pid(), target.padding, &maps).unwrap().with_room()
}

fn some_calls() -> Batch {
    let mut batch = Batch::new();
    batch.mmap(Placement::Anywhere, 4096, Protection::ReadExecute, Backing::Anonymous);
    batch.memfd_create(c"x");
    batch
}

#[test]
fn what_filters_permit_is_done() {
    for filters in [&["1000:0", "999:80000000"][..], &["no-writable-code"], &[&format!("9:{LOG:x}")]] {
        let Some(target) = target(filters) else { return };
        refuse_by_filters(target.pid()).unwrap();
        let results = visit::<_, TraceError>(target.pid(), place(&target), |borrow| {
            borrow.mmap(Placement::Anywhere, 4096, Protection::Read, Backing::Anonymous)?;
            borrow.run(&some_calls())
        });
        for result in results.unwrap().0 {
            result.unwrap();
        }
        target.assert_ok();
    }
}

#[test]
fn each_call_that_is_needed_is_asked_about() {
    for (number, name) in [
        (libc::SYS_getpid, "getpid"),
        (libc::SYS_rt_sigreturn, "rt_sigreturn"),
        (libc::SYS_tkill, "tkill"),
        (libc::SYS_openat, "openat"),
        (libc::SYS_memfd_create, "memfd_create"),
        (libc::SYS_close, "close"),
        (libc::SYS_mmap, "mmap"),
        (libc::SYS_munmap, "munmap"),
        (libc::SYS_munlock, "munlock"),
        (libc::SYS_madvise, "madvise"),
        (libc::SYS_mremap, "mremap"),
        // The target waits in poll, which goes on by this call once it was interrupted: seeing the target end
        // in order below means that it was not made to.
        (libc::SYS_restart_syscall, "restart_syscall"),
    ] {
        let Some(target) = forbidding(number, KILL_PROCESS) else { return };
        let refused = refuse_by_filters(target.pid()).unwrap_err();
        assert!(matches!(refused, TraceError::ForbiddenCall { call, .. } if call == name), "{refused}");
        assert!(refused.to_string().contains("the end of the process"), "{refused}");
        target.assert_ok();
    }
}

#[test]
fn a_borrow_is_refused_before_anything_is_changed() {
    let Some(target) = forbidding(libc::SYS_mremap, KILL_PROCESS) else { return };
    let place = place(&target);
    let mut stopped = Stopped::seize_all(target.pid()).unwrap();
    let refused = stopped.borrow_thread(place).map(drop).unwrap_err();
    assert!(matches!(refused, TraceError::ForbiddenCall { call: "mremap", .. }), "{refused}");
    assert_eq!(stopped.memory().read_vec(target.padding, 16).unwrap(), [0xcc; 16]);
    stopped.resume();
    target.assert_ok();
}

#[test]
fn a_call_with_forbidden_arguments_is_not_made() {
    let Some(target) = target(&["no-writable-code"]) else { return };
    let place = place(&target);
    let mut stopped = Stopped::seize_all(target.pid()).unwrap();
    let mut borrow = stopped.borrow_thread(place).unwrap();
    let page = borrow.mmap(Placement::Anywhere, 4096, Protection::ReadWrite, Backing::Anonymous).unwrap();
    let refused = borrow.mprotect(page, Protection::ReadExecute).unwrap_err();
    assert!(matches!(refused, TraceError::ForbiddenCall { call: "mprotect", .. }), "{refused}");
    borrow.mprotect(page, Protection::Read).unwrap();
    borrow.finish().unwrap();
    stopped.resume();
    target.assert_ok();
}

#[test]
fn a_thread_without_filters_is_borrowed_where_others_have_them() {
    let forbidden = format!("{}:{KILL_PROCESS:x}", libc::SYS_mmap);
    let Some(target) = target(&["thread", &forbidden]) else { return };
    let pid = target.pid();
    refuse_by_filters(pid).unwrap();
    let done = visit::<_, TraceError>(pid, place(&target), |borrow| {
        borrow.mmap(Placement::Anywhere, 4096, Protection::Read, Backing::Anonymous)?;
        Ok(borrow.thread())
    });
    assert_ne!(done.unwrap().0, pid);
    let place = place(&target);
    let mut stopped = Stopped::seize_all(pid).unwrap();
    let borrow = stopped.borrow_thread(place).unwrap();
    assert_ne!(borrow.thread(), pid);
    borrow.finish().unwrap();
    stopped.resume();
    target.assert_ok();
}

#[test]
fn what_would_come_of_a_call_is_told() {
    for (action, words) in [(EPERM, "Operation not permitted"), (TRAP, "SIGSYS"), (0x7fc0_0000, "supervisor")]
    {
        let Some(target) = forbidding(libc::SYS_madvise, action) else { return };
        let refused = refuse_by_filters(target.pid()).unwrap_err().to_string();
        assert!(refused.contains(words) && refused.contains("madvise"), "{refused}");
        target.assert_ok();
    }
}

#[test]
fn strict_mode_is_refused() {
    let Some(target) = target(&["strict"]) else { return };
    let refused = refuse_by_filters(target.pid()).unwrap_err();
    assert!(matches!(refused, TraceError::StrictSeccomp { .. }), "{refused}");
    target.assert_ok();
}
