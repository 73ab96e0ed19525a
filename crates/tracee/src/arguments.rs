//! What system calls in the target are told, as the kernel wants it.

use restitch_address::{Avma, FileOffset};

/// Memory files are not passed on to programs that the target starts, and can be sealed.
pub(crate) const MEMORY_FILE_FLAGS: u64 = (libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING) as u64;

/// Files are opened for reading. What lies at a path may be a FIFO by now: the thread is not to wait for
/// whoever writes it.
pub(crate) const OPEN_FLAGS: u64 = (libc::O_CLOEXEC | libc::O_NONBLOCK) as u64;

/// A file descriptor of the target. It stays open until [`crate::Borrow::close`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RemoteFd(pub(crate) i32);

impl RemoteFd {
    /// From the result of a call in a [`crate::Batch`].
    pub fn from_result(number: u64) -> Self {
        Self(number as i32)
    }

    /// Its number in the target.
    pub fn number(self) -> i32 {
        self.0
    }
}

/// Memory protection for [`crate::Borrow::mmap`] and [`crate::Borrow::mprotect`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Protection {
    /// No access.
    None,
    /// Read only.
    Read,
    /// Read and write.
    ReadWrite,
    /// Read and execute.
    ReadExecute,
}

impl Protection {
    pub(crate) fn bits(self) -> i32 {
        match self {
            Self::None => libc::PROT_NONE,
            Self::Read => libc::PROT_READ,
            Self::ReadWrite => libc::PROT_READ | libc::PROT_WRITE,
            Self::ReadExecute => libc::PROT_READ | libc::PROT_EXEC,
        }
    }
}

/// Where a mapping goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Placement {
    /// Exactly here, an error if anything is mapped there (`MAP_FIXED_NOREPLACE`, Linux 4.17).
    At(Avma),
    /// Exactly here, replacing what is mapped there (`MAP_FIXED`).
    Over(Avma),
    /// Where the kernel likes.
    Anywhere,
}

/// What is mapped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Backing {
    /// Zeroed memory of the process's own.
    Anonymous,
    /// A file, privately.
    Private(RemoteFd, FileOffset),
    /// A file, shared with all that map it.
    Shared(RemoteFd, FileOffset),
}

/// The arguments of `mmap`.
pub(crate) fn mmap_arguments(
    placement: Placement,
    len: u64,
    protection: Protection,
    backing: Backing,
) -> [u64; 6] {
    let (at, place) = match placement {
        Placement::At(at) => (at, libc::MAP_FIXED_NOREPLACE),
        Placement::Over(at) => (at, libc::MAP_FIXED),
        Placement::Anywhere => (Avma::new(0), 0),
    };
    let (kind, fd, offset) = match backing {
        Backing::Anonymous => (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1, FileOffset::new(0)),
        Backing::Private(fd, offset) => (libc::MAP_PRIVATE, fd.0, offset),
        Backing::Shared(fd, offset) => (libc::MAP_SHARED, fd.0, offset),
    };
    let flags = (place | kind) as u64;
    [at.get(), len, protection.bits() as u64, flags, fd as u64, offset.get()]
}
