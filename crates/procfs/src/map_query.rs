//! Which file is mapped at an address, asked again and again.

use crate::error::ProcError;
use crate::holder::shared_path;
use crate::maps::{Device, Mapping};
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
        let mut query = Query { size: size_of::<Query>() as u64, at: at.get(), ..Query::default() };
        // SAFETY: the kernel reads and writes one structure of the size that stands in it, which lives for
        // the call; names are not asked for.
        let done = unsafe { libc::ioctl(self.file.as_raw_fd(), PROCMAP_QUERY, &raw mut query) };
        if done == 0 {
            let device = Device { major: query.major, minor: query.minor };
            let range = AvmaRange::between(Avma::new(query.start), Avma::new(query.end));
            let (offset, inode) = (FileOffset::new(query.offset), query.inode);
            return Ok(vec![MappedFile { range, offset, device, inode }]);
        }
        let error = io::Error::last_os_error();
        match error.raw_os_error() {
            Some(libc::ENOENT) => Ok(Vec::new()),
            Some(libc::ENOTTY | libc::EINVAL) => {
                let file = |m: Mapping| MappedFile {
                    range: m.range,
                    offset: m.offset,
                    device: m.device,
                    inode: m.inode,
                };
                Ok(maps(self.pid)?.into_iter().map(file).collect())
            }
            _ => Err(ProcError::from_io(self.pid, &self.path, error)),
        }
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
}
