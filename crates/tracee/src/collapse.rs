//! Large pages for memory of another process, without stopping it.

use crate::taken::pidfd;
use restitch_address::AvmaRange;
use std::io;
use std::os::fd::AsRawFd;

/// `MADV_COLLAPSE` (Linux 6.1).
const MADV_COLLAPSE: libc::c_int = 25;

/// Has the kernel put the pages of `range` (2 MiB-aligned) of process `pid` into large ones, as far as it
/// can: process_madvise(2) with `MADV_COLLAPSE`. Its content stays the same; no thread is held but those that
/// fault there meanwhile.
///
/// # Errors
/// What the kernel says: it wants `CAP_SYS_NICE`, and a file system or kernel that lets files have large
/// pages.
pub fn collapse_pages(pid: i32, range: AvmaRange) -> io::Result<()> {
    let fd = pidfd(pid, 0)?;
    let part =
        libc::iovec { iov_base: range.start.get() as *mut libc::c_void, iov_len: range.len() as usize };
    // SAFETY: the kernel reads one iovec from this process, which lives until the call returns; the addresses
    // in it are the other process's, and the advice changes no content.
    let advised = unsafe {
        libc::syscall(libc::SYS_process_madvise, fd.as_raw_fd(), &raw const part, 1usize, MADV_COLLAPSE, 0)
    };
    if advised < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
