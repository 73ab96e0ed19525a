//! waitid(2), for those who wait as tracers and those who wait as parents.

use std::io;

/// What a process or thread reports: its number, `si_code` and `si_status`.
pub(crate) struct Report {
    pub pid: i32,
    pub code: i32,
    pub status: i32,
}

/// Asks for what `tid` (-1: anybody) reports; `None` if that is nothing yet (`WNOHANG`).
///
/// # Errors
/// As waitid(2); a signal to this thread is one, too.
pub(crate) fn waitid(tid: i32, flags: i32) -> io::Result<Option<Report>> {
    let (which, id) = if tid == -1 { (libc::P_ALL, 0) } else { (libc::P_PID, tid as libc::id_t) };
    let mut info = std::mem::MaybeUninit::<libc::siginfo_t>::zeroed();
    // SAFETY: the kernel writes one `siginfo_t`, of which zeros, which `WNOHANG` may leave, are a valid
    // value; the fields that are read are those that waitid(2) says it sets.
    let (result, report) = unsafe {
        let result = libc::waitid(which, id, info.as_mut_ptr(), flags);
        let info = info.assume_init();
        (result, Report { pid: info.si_pid(), code: info.si_code, status: info.si_status() })
    };
    if result == -1 {
        return Err(io::Error::last_os_error());
    }
    Ok(Some(report).filter(|report| report.pid != 0))
}
