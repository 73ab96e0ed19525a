//! System calls, made directly: the C library's would set `errno` and may be somebody's own.

use crate::format::PAGE;
use crate::known::FileKey;
use core::arch::asm;

/// `open` for reading, closed by `exec`.
const READ_ONLY: usize = 0o2000000;
/// `open` for reading and writing, closed by `exec`.
const READ_WRITE: usize = 0o2000002;
/// `open` of a folder.
const FOLDER: usize = 0o200000;
/// `open` without waiting for whoever is to open the other end of a pipe.
const AT_ONCE: usize = 0o4000;
/// `open` without following a link.
const NO_LINK: usize = 0o400000;
const AT_FDCWD: usize = -100isize as usize;

pub const READ: usize = 1;
pub const WRITE: usize = 2;
pub const EXECUTE: usize = 4;
pub const SHARED: usize = 1;
pub const PRIVATE: usize = 2;
pub const FIXED: usize = 0x10;
pub const NO_REPLACE: usize = 0x10_0000;

/// An open file. Closed when dropped.
pub struct File(usize);

impl Drop for File {
    fn drop(&mut self) {
        // SAFETY: `close` of a descriptor that only this value has.
        unsafe { call(3, [self.0, 0, 0, 0, 0, 0]) };
    }
}

/// What `fstat` says.
#[derive(Clone, Copy)]
pub struct Status {
    pub mode: u32,
    pub owner: u32,
    pub len: u64,
    /// Which file it is, in which state.
    pub key: FileKey,
}

impl Status {
    /// A regular file.
    pub fn is_regular(&self) -> bool {
        self.mode & 0o170_000 == 0o100_000
    }

    /// A folder.
    pub fn is_folder(&self) -> bool {
        self.mode & 0o170_000 == 0o040_000
    }

    /// It belongs to this user or to root, and nobody else may write to it.
    pub fn is_safe(&self) -> bool {
        (self.owner == user() || self.owner == 0) && self.mode & 0o022 == 0
    }

    /// Of `struct stat` of x86-64, in words: st_dev, st_ino, st_nlink, st_mode and st_uid, st_gid, st_rdev,
    /// st_size, st_blksize, st_blocks, st_atim, st_mtim, st_ctim.
    fn of(stat: [u64; 18]) -> Self {
        let key = FileKey {
            device: stat[0],
            inode: stat[1],
            len: stat[6],
            modified: [stat[11], stat[12]],
            changed: [stat[13], stat[14]],
        };
        Self { mode: stat[3] as u32, owner: (stat[3] >> 32) as u32, len: stat[6], key }
    }
}

/// Makes a system call; its result, which is negative (as a signed number) for an error.
///
/// # Safety
/// What the call does to memory must be within what the caller may do.
unsafe fn call(number: usize, a: [usize; 6]) -> usize {
    let result;
    // SAFETY: the kernel changes rax, rcx and r11 only; memory as the caller has promised.
    unsafe {
        asm!("syscall", inlateout("rax") number => result, in("rdi") a[0], in("rsi") a[1], in("rdx") a[2], in("r10") a[3],
             in("r8") a[4], in("r9") a[5], lateout("rcx") _, lateout("r11") _, options(nostack));
    }
    result
}

fn checked(result: usize) -> Option<usize> {
    (result < -4095isize as usize).then_some(result)
}

/// Opens a file for reading; `path` ends in a zero byte.
pub fn open(path: &[u8]) -> Option<File> {
    open_at(AT_FDCWD, path, READ_ONLY)
}

/// Opens a folder; `path` ends in a zero byte.
pub fn open_folder(path: &[u8]) -> Option<File> {
    open_at(AT_FDCWD, path, READ_ONLY | FOLDER)
}

fn open_at(folder: usize, path: &[u8], flags: usize) -> Option<File> {
    if path.last() != Some(&0) {
        return None;
    }
    // SAFETY: `openat` reads the path, which ends within the slice.
    checked(unsafe { call(257, [folder, path.as_ptr() as usize, flags, 0, 0, 0]) }).map(File)
}

/// Opens a file for reading.
///
/// # Safety
/// `path` ends in a zero byte.
pub unsafe fn open_text(path: *const u8) -> Option<File> {
    // SAFETY: `openat` reads the path up to its end.
    checked(unsafe { call(257, [AT_FDCWD, path as usize, READ_ONLY | AT_ONCE, 0, 0, 0]) }).map(File)
}

/// Maps in what is there of a private file mapping that may be read; whether all of it is. (A kernel before
/// 5.14 does that when it is read.)
pub fn populate(start: u64, len: u64) -> bool {
    const POPULATE_READ: usize = 22;
    const UNKNOWN_ADVICE: isize = -22;
    let first = start & !(PAGE - 1);
    let len = (start - first).saturating_add(len);
    // SAFETY: `madvise` with this advice changes no content.
    let done = unsafe { call(28, [first as usize, len as usize, POPULATE_READ, 0, 0, 0]) } as isize;
    done == 0 || done == UNKNOWN_ADVICE
}

/// Whether a program that this process executes now may read a file: `access`, which asks for the real user,
/// without the capabilities that are lost on the way. (Where the effective one is another, the loader
/// preloads nothing.)
///
/// # Safety
/// `path` ends in a zero byte.
pub unsafe fn may_read(path: *const u8) -> bool {
    const READ_PERMISSION: usize = 4;
    // SAFETY: `access` reads the path up to its end.
    unsafe { call(21, [path as usize, READ_PERMISSION, 0, 0, 0, 0]) == 0 }
}

/// What `stat` says of a path.
///
/// # Safety
/// `path` ends in a zero byte.
pub unsafe fn status_of(path: *const u8) -> Option<Status> {
    let mut stat = [0u64; 18];
    // SAFETY: `newfstatat` reads the path and writes 144 bytes into an array of as many.
    checked(unsafe { call(262, [AT_FDCWD, path as usize, stat.as_mut_ptr() as usize, 0, 0, 0]) })?;
    Some(Status::of(stat))
}

impl File {
    /// Opens what this folder has under a name, which ends in a zero byte: no link, and nothing that would
    /// have to be waited for.
    pub fn open(&self, name: &[u8], for_writing: bool) -> Option<Self> {
        let flags = if for_writing { READ_WRITE } else { READ_ONLY };
        open_at(self.0, name, flags | AT_ONCE | NO_LINK)
    }

    /// Where the link of a name in this folder, which ends in a zero byte, leads to: so many bytes.
    pub fn read_link(&self, name: &[u8], target: &mut [u8]) -> Option<usize> {
        if name.last() != Some(&0) {
            return None;
        }
        // SAFETY: `readlinkat` reads the name, which ends within the slice, and writes at most as many bytes
        // as `target` has.
        checked(unsafe {
            call(
                267,
                [self.0, name.as_ptr() as usize, target.as_mut_ptr() as usize, target.len(), 0, 0],
            )
        })
    }

    /// Mode, owner and length.
    pub fn status(&self) -> Option<Status> {
        let mut stat = [0u64; 18];
        // SAFETY: `fstat` writes 144 bytes into an array of as many.
        checked(unsafe { call(5, [self.0, stat.as_mut_ptr() as usize, 0, 0, 0, 0]) })?;
        Some(Status::of(stat))
    }

    /// Reads on, as much as there is and `bytes` have room for; how much.
    pub fn read_on(&self, bytes: &mut [u8]) -> Option<usize> {
        // SAFETY: `read` writes at most as many bytes as the slice has.
        checked(unsafe { call(0, [self.0, bytes.as_mut_ptr() as usize, bytes.len(), 0, 0, 0]) })
    }

    /// Fills `bytes` from the file's byte number `at` on.
    pub fn read(&self, bytes: &mut [u8], at: u64) -> Option<()> {
        // SAFETY: `pread64` writes at most as many bytes as the slice has.
        let read = checked(unsafe {
            call(17, [self.0, bytes.as_mut_ptr() as usize, bytes.len(), at as usize, 0, 0])
        });
        (read? == bytes.len()).then_some(())
    }

    /// Maps a page of code from `offset` on anywhere, and takes it away again: whoever observes mappings from
    /// outside sees it.
    pub fn show(&self, offset: u64) {
        const LEN: usize = 4096;
        // SAFETY: a new mapping at a place of the kernel's choice, which nobody uses; only what was mapped is
        // unmapped.
        unsafe {
            let a = [0, LEN, READ | EXECUTE, PRIVATE, self.0, offset as usize];
            if let Some(at) = checked(call(9, a)) {
                call(11, [at, LEN, 0, 0, 0, 0]);
            }
        }
    }

    /// Maps `len` bytes from `offset` on at `start`.
    ///
    /// # Safety
    /// With [`NO_REPLACE`] in `flags` nothing that is mapped is changed. Without, what is at `start` must be
    /// mapped code that nobody runs, or whose replacement has the same bytes wherever somebody can go on.
    pub unsafe fn map(&self, start: u64, len: u64, protection: usize, flags: usize, offset: u64) -> bool {
        let a = [start as usize, len as usize, protection, flags | FIXED, self.0, offset as usize];
        // SAFETY: promised by the caller.
        match checked(unsafe { call(9, a) }) {
            Some(at) if at as u64 == start => true,
            // A kernel that does not know the flag takes the address as a wish.
            Some(at) => {
                // SAFETY: this was mapped a moment ago, and nobody knows of it.
                unsafe { call(11, [at, len as usize, 0, 0, 0, 0]) };
                false
            }
            None => false,
        }
    }
}

/// Takes away a mapping that nobody uses.
///
/// # Safety
/// Nobody may use it.
pub unsafe fn unmap(start: u64, len: u64) {
    // SAFETY: promised by the caller.
    unsafe { call(11, [start as usize, len as usize, 0, 0, 0, 0]) };
}

/// The effective user.
pub fn user() -> u32 {
    // SAFETY: `geteuid` touches no memory.
    unsafe { call(107, [0; 6]) as u32 }
}

/// `execve` as the kernel has it; returns -errno.
///
/// # Safety
/// As for `execve(2)`.
pub unsafe fn execute(path: *const u8, arguments: *const *const u8, environment: *const *const u8) -> isize {
    // SAFETY: promised by the caller.
    unsafe { call(59, [path as usize, arguments as usize, environment as usize, 0, 0, 0]) as isize }
}

/// Ends the process by SIGILL.
pub fn trap() -> ! {
    // SAFETY: raises an exception and does not come back.
    unsafe { asm!("ud2", options(noreturn)) }
}
