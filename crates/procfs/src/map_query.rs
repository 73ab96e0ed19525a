//! Which file is mapped at an address, asked again and again.

use crate::error::ProcError;
use crate::holder::shared_path;
use crate::maps::{Device, Mapping, Permissions, parse_name};
use crate::process::maps;
use restitch_address::{Avma, AvmaRange, FileOffset};
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::path::PathBuf;

/// A mapping, by what tells it from others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MappedFile {
    /// The addresses.
    pub range: AvmaRange,
    /// Which byte of the file is at `range.start`.
    pub offset: FileOffset,
    /// The file's device.
    pub device: Device,
    /// The file's inode number; 0 for anonymous memory.
    pub inode: u64,
}

/// The maps file of a process, open. Since Linux 6.11 the kernel can be asked about one address
/// (`PROCMAP_QUERY`, a microsecond); before, all lines are read for each question.
#[derive(Debug)]
pub struct MapsFile {
    pid: i32,
    path: PathBuf,
    file: File,
}

/// `struct procmap_query` (`linux/fs.h`).
#[repr(C)]
#[derive(Default)]
struct Query {
    size: u64,
    flags: u64,
    at: u64,
    start: u64,
    end: u64,
    vma_flags: u64,
    page_size: u64,
    offset: u64,
    inode: u64,
    major: u32,
    minor: u32,
    name_size: u32,
    build_id_size: u32,
    name: u64,
    build_id: u64,
}

/// `_IOWR('f', 17, struct procmap_query)`.
const PROCMAP_QUERY: libc::c_ulong = 0xc068_6611;
/// `PROCMAP_QUERY_COVERING_OR_NEXT_VMA`.
const COVERING_OR_NEXT: u64 = 0x10;
/// Room for a name (`PATH_MAX`).
const NAME: usize = 4096;

impl MapsFile {
    /// That of process `pid`.
    ///
    /// # Errors
    /// If there is no such process, or its memory is not to be seen by this user.
    pub fn open(pid: i32) -> Result<Self, ProcError> {
        let path = shared_path(pid, "maps");
        let file = File::open(&path).map_err(|source| ProcError::from_io(pid, &path, source))?;
        Ok(Self { pid, path, file })
    }

    /// The file that is mapped at `at`; `None` if there is none.
    ///
    /// # Errors
    /// If the process has ended.
    pub fn file_at(&self, at: Avma) -> Result<Option<MappedFile>, ProcError> {
        Ok(self.mapping_at(at)?.filter(|mapping| mapping.inode != 0))
    }

    /// What is mapped at `at`; `None` if nothing is.
    ///
    /// # Errors
    /// If the process has ended.
    pub fn mapping_at(&self, at: Avma) -> Result<Option<MappedFile>, ProcError> {
        Ok(self.mappings_at(at)?.into_iter().find(|mapping| mapping.range.contains(at)))
    }

    /// As [`Self::mapping_at`], with all others where the kernel tells of none alone.
    ///
    /// # Errors
    /// If the process has ended.
    pub fn mappings_at(&self, at: Avma) -> Result<Vec<MappedFile>, ProcError> {
        let mut query = Query::about(at);
        match self.ask(&mut query)? {
            Answer::Found => Ok(vec![query.mapping()]),
            Answer::Nothing => Ok(Vec::new()),
            Answer::NotUnderstood => {
                let file = |m: Mapping| MappedFile {
                    range: m.range,
                    offset: m.offset,
                    device: m.device,
                    inode: m.inode,
                };
                Ok(maps(self.pid)?.into_iter().map(file).collect())
            }
        }
    }

    /// The mappings that overlap `range`, as [`crate::maps`] gives them.
    ///
    /// # Errors
    /// If the process has ended.
    pub fn overlapping(&self, range: AvmaRange) -> Result<Vec<Mapping>, ProcError> {
        let (mut found, mut at) = (Vec::new(), range.start);
        while at < range.end {
            let mut name = vec![0u8; NAME];
            let mut query = Query {
                flags: COVERING_OR_NEXT,
                name: name.as_mut_ptr() as u64,
                name_size: NAME as u32,
                ..Query::about(at)
            };
            match self.ask(&mut query)? {
                Answer::Found if query.start < range.end.get() => {
                    name.truncate((query.name_size as usize).saturating_sub(1));
                    at = Avma::new(query.end);
                    found.push(query.line(&name));
                }
                Answer::Found | Answer::Nothing => break,
                Answer::NotUnderstood => {
                    let all = maps(self.pid)?.into_iter();
                    return Ok(all.filter(|mapping| mapping.range.overlaps(&range)).collect());
                }
            }
        }
        Ok(found)
    }

    /// `PROCMAP_QUERY`.
    fn ask(&self, query: &mut Query) -> Result<Answer, ProcError> {
        // SAFETY: the kernel reads and writes one structure of the size that stands in it, which lives for
        // the call, and a name of at most `name_size` bytes where `name` points, to a buffer of that length
        // (zero of both: none is asked for).
        let done = unsafe { libc::ioctl(self.file.as_raw_fd(), PROCMAP_QUERY, std::ptr::from_mut(query)) };
        if done == 0 {
            return Ok(Answer::Found);
        }
        let error = io::Error::last_os_error();
        match error.raw_os_error() {
            Some(libc::ENOENT) => Ok(Answer::Nothing),
            // (A name that is too long for the buffer, too: all lines have it.)
            Some(libc::ENOTTY | libc::EINVAL | libc::ENAMETOOLONG) => Ok(Answer::NotUnderstood),
            _ => Err(ProcError::from_io(self.pid, &self.path, error)),
        }
    }
}

/// What the kernel says to a query.
enum Answer {
    /// The query is filled.
    Found,
    /// There is no such mapping.
    Nothing,
    /// It does not know such queries.
    NotUnderstood,
}

impl Query {
    fn about(at: Avma) -> Self {
        Self { size: size_of::<Self>() as u64, at: at.get(), ..Self::default() }
    }

    fn mapping(&self) -> MappedFile {
        MappedFile {
            range: AvmaRange::between(Avma::new(self.start), Avma::new(self.end)),
            offset: FileOffset::new(self.offset),
            device: Device { major: self.major, minor: self.minor },
            inode: self.inode,
        }
    }

    fn line(&self, name: &[u8]) -> Mapping {
        let MappedFile { range, offset, device, inode } = self.mapping();
        let may = |flag| self.vma_flags & flag != 0;
        let permissions = Permissions { read: may(1), write: may(2), execute: may(4), shared: may(8) };
        Mapping { range, permissions, offset, device, inode, name: parse_name(name) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_mapping_is_as_among_all() {
        let pid = std::process::id() as i32;
        let file = MapsFile::open(pid).unwrap();
        let own = Avma::new(one_mapping_is_as_among_all as *const () as u64);
        let found = file.file_at(own).unwrap().expect("the test itself is mapped");
        let all = maps(pid).unwrap();
        let line = all.iter().find(|m| m.range.contains(own)).unwrap();
        assert_eq!((found.range, found.offset), (line.range, line.offset));
        assert_eq!((found.device, found.inode), (line.device, line.inode));
        assert_eq!(file.file_at(Avma::new(0)).unwrap(), None);
        let local = 0;
        let local = Avma::new(&raw const local as u64);
        assert_eq!(file.file_at(local).unwrap(), None, "a stack is no file");
        assert!(file.mapping_at(local).unwrap().expect("it is mapped").range.contains(local));
    }

    #[test]
    fn mappings_of_a_range_are_as_among_all() {
        let pid = std::process::id() as i32;
        let file = MapsFile::open(pid).unwrap();
        let all = maps(pid).unwrap();
        let local = Avma::new(&raw const pid as u64);
        let own = Avma::new(mappings_of_a_range_are_as_among_all as *const () as u64);
        for at in [local, own] {
            let range = AvmaRange::between(at - (1 << 20), at + (1 << 20));
            let expected: Vec<Mapping> = all.iter().filter(|m| m.range.overlaps(&range)).cloned().collect();
            let found = file.overlapping(range).unwrap();
            assert!(found.iter().any(|m| m.range.contains(at)));
            // (Other threads of the tests map and unmap.)
            assert!(found.iter().filter(|m| expected.contains(m)).count() * 2 > expected.len(), "{found:?}");
        }
        let line = file.overlapping(AvmaRange::new(own, 1)).unwrap();
        assert_eq!(
            line.iter().collect::<Vec<_>>(),
            all.iter().filter(|m| m.range.contains(own)).collect::<Vec<_>>()
        );
        assert_eq!(file.overlapping(AvmaRange::new(Avma::new(0), 4096)).unwrap(), []);
    }
}
