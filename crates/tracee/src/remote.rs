//! The system calls that are made in the target, with typed arguments and errors.

use crate::arguments::{Backing, MEMORY_FILE_FLAGS, Placement, Protection, RemoteFd, mmap_arguments};
use crate::borrow::Borrow;
use crate::error::TraceError;
use restitch_address::{Avma, AvmaRange};
use std::ffi::CStr;
use std::io;

impl Borrow<'_> {
    /// A system call whose negative results are errors.
    fn call(&mut self, call: &'static str, number: i64, args: [u64; 6]) -> Result<u64, TraceError> {
        let result = self.raw_system_call(number, args)?;
        match u64::try_from(result) {
            Ok(value) => Ok(value),
            // Addresses of user space are not negative, so all negative results are error numbers.
            Err(_) => {
                let number = i32::try_from(-result).unwrap_or(libc::EIO);
                let source = io::Error::from_raw_os_error(number);
                Err(TraceError::RemoteCall { pid: self.pid(), call, source })
            }
        }
    }

    /// `openat(AT_FDCWD, path, flags | O_CLOEXEC, mode)`: the path is looked up by the target, in its own
    /// mount namespace and working directory.
    pub fn open(&mut self, path: &CStr, flags: i32, mode: u32) -> Result<RemoteFd, TraceError> {
        let at = self.put_scratch(path.to_bytes_with_nul())?;
        let flags = (flags | libc::O_CLOEXEC) as u64;
        let args = [libc::AT_FDCWD as u64, at.get(), flags, u64::from(mode), 0, 0];
        self.call("openat", libc::SYS_openat, args).map(|fd| RemoteFd(fd as i32))
    }

    /// `close`.
    pub fn close(&mut self, fd: RemoteFd) -> Result<(), TraceError> {
        self.call("close", libc::SYS_close, [fd.0 as u64, 0, 0, 0, 0, 0]).map(drop)
    }

    /// `memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING)`. [`Borrow::take_memory_file`] is the way to
    /// write it from here.
    pub fn memfd_create(&mut self, name: &CStr) -> Result<RemoteFd, TraceError> {
        let at = self.put_scratch(name.to_bytes_with_nul())?;
        let args = [at.get(), MEMORY_FILE_FLAGS, 0, 0, 0, 0];
        self.call("memfd_create", libc::SYS_memfd_create, args).map(|fd| RemoteFd(fd as i32))
    }

    /// `mmap` of `len` bytes; the new range (of whole pages). A kernel that ignores `MAP_FIXED_NOREPLACE` and
    /// maps elsewhere is an error too, and the mapping is taken back.
    pub fn mmap(
        &mut self,
        placement: Placement,
        len: u64,
        protection: Protection,
        backing: Backing,
    ) -> Result<AvmaRange, TraceError> {
        let args = mmap_arguments(placement, len, protection, backing);
        let at = Avma::new(args[0]);
        let start = Avma::new(self.call("mmap", libc::SYS_mmap, args)?);
        let range = AvmaRange::new(start, len.next_multiple_of(restitch_address::PAGE));
        if placement != Placement::Anywhere && start != at {
            self.munmap(range)?;
            let source = io::Error::from_raw_os_error(libc::EEXIST);
            return Err(TraceError::RemoteCall { pid: self.pid(), call: "mmap", source });
        }
        Ok(range)
    }

    /// `munmap`.
    pub fn munmap(&mut self, range: AvmaRange) -> Result<(), TraceError> {
        let args = [range.start.get(), range.len(), 0, 0, 0, 0];
        self.call("munmap", libc::SYS_munmap, args).map(drop)
    }

    /// `mprotect`.
    pub fn mprotect(&mut self, range: AvmaRange, protection: Protection) -> Result<(), TraceError> {
        let args = [range.start.get(), range.len(), protection.bits() as u64, 0, 0, 0];
        self.call("mprotect", libc::SYS_mprotect, args).map(drop)
    }

    /// `mremap(from, len, len, MREMAP_MAYMOVE | MREMAP_FIXED, to)`: moves the pages of `from`, replacing what
    /// was at `to` in one step.
    pub fn mremap(&mut self, from: AvmaRange, to: Avma) -> Result<(), TraceError> {
        let flags = (libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED) as u64;
        let args = [from.start.get(), from.len(), from.len(), flags, to.get(), 0];
        self.call("mremap", libc::SYS_mremap, args).map(drop)
    }

    /// `mremap` as above, but what was at `from` stays there as a mapping without pages (`MREMAP_DONTUNMAP`,
    /// for files since Linux 5.13): a private mapping of a file shows the file again.
    pub fn mremap_leaving(&mut self, from: AvmaRange, to: Avma) -> Result<(), TraceError> {
        let flags = (libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED | libc::MREMAP_DONTUNMAP) as u64;
        let args = [from.start.get(), from.len(), from.len(), flags, to.get(), 0];
        self.call("mremap", libc::SYS_mremap, args).map(drop)
    }

    /// `madvise` with an `MADV_` constant.
    pub fn madvise(&mut self, range: AvmaRange, advice: i32) -> Result<(), TraceError> {
        let args = [range.start.get(), range.len(), advice as u64, 0, 0, 0];
        self.call("madvise", libc::SYS_madvise, args).map(drop)
    }

    /// `membarrier` with a command of `<linux/membarrier.h>`.
    pub fn membarrier(&mut self, command: i32, flags: u32) -> Result<u64, TraceError> {
        let args = [command as u64, u64::from(flags), 0, 0, 0, 0];
        self.call("membarrier", libc::SYS_membarrier, args)
    }
}
