//! `/proc/kcore`: a kernel's memory as a core file.
//!
//! The file is endless to all purposes, its headers come from the kernel or from anybody, and pages may be
//! gone: only what is asked for is read, and nothing of its size is believed.

use crate::error::KernelError;
use crate::memory::Memory;
use restitch_address::SvmaRange;
use std::io;
use std::path::{Path, PathBuf};

/// What core files of this class begin with: 64 bits, little-endian.
const MARK: [u8; 6] = *b"\x7fELF\x02\x01";
const HEADER: usize = 64;
const PROGRAM_HEADER: usize = 56;
/// The kind of file that a core is.
const CORE: u16 = 4;
/// The kind of header that describes memory.
const LOAD: u32 = 1;
/// The most bytes that are taken from one range; images of kernels have some 60 MB.
const MOST: u64 = 1 << 30;

/// Reads as many bytes of a file as there is room for, from an offset on.
pub trait ReadAt: Fn(u64, &mut [u8]) -> io::Result<()> {}
impl<F: Fn(u64, &mut [u8]) -> io::Result<()>> ReadAt for F {}

/// A core file.
struct Kcore<R> {
    file: R,
    path: PathBuf,
    loads: Vec<Load>,
}

/// Memory in the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Load {
    start: u64,
    len: u64,
    offset: u64,
}

impl<R: ReadAt> Kcore<R> {
    /// Reads the headers.
    fn open(file: R, path: &Path) -> Result<Self, KernelError> {
        let mut core = Self { file, path: path.into(), loads: Vec::new() };
        let header = core.read(0, HEADER)?;
        let half = |at: usize| u16::from_le_bytes([header[at], header[at + 1]]);
        if !header.starts_with(&MARK) || half(16) != CORE || usize::from(half(54)) != PROGRAM_HEADER {
            return Err(KernelError::damaged(path, "it is no core file of 64 bits"));
        }
        let table = core.read(word(&header, 32), usize::from(half(56)) * PROGRAM_HEADER)?;
        core.loads = table.chunks_exact(PROGRAM_HEADER).filter_map(load).collect();
        if core.loads.is_empty() {
            return Err(KernelError::damaged(path, "it has no memory in it"));
        }
        Ok(core)
    }

    /// Adds the memory of `range` to `memory`.
    fn add(&self, range: SvmaRange, memory: &mut Memory) -> Result<(), KernelError> {
        let (start, len) = (range.start.get(), range.len());
        let holds = |load: &&Load| {
            let from = start.checked_sub(load.start);
            from.is_some_and(|from| from < load.len && len <= load.len - from)
        };
        let wrong = |why: String| KernelError::damaged(&self.path, why);
        if len > MOST {
            return Err(wrong(format!("{len} bytes at {start:#x} are more than any kernel has")));
        }
        let load = self.loads.iter().find(holds);
        let load = load.ok_or_else(|| wrong(format!("it does not hold {len} bytes at {start:#x}")))?;
        let offset = load.offset.checked_add(start - load.start);
        let offset =
            offset.ok_or_else(|| wrong(format!("its memory at {start:#x} is behind any file's end")))?;
        memory.add(range.start, self.read(offset, len as usize)?);
        Ok(())
    }

    /// Bytes of the file. Room is taken as they come: a file may promise more than it has.
    fn read(&self, offset: u64, len: usize) -> Result<Vec<u8>, KernelError> {
        const STEP: usize = 4 << 20;
        let mut bytes = Vec::new();
        while bytes.len() < len {
            let from = bytes.len();
            bytes.resize(len.min(from + STEP), 0);
            let at = offset.checked_add(from as u64).filter(|at| i64::try_from(*at).is_ok());
            let at =
                at.ok_or_else(|| KernelError::damaged(&self.path, "its parts are behind any file's end"))?;
            (self.file)(at, &mut bytes[from..]).map_err(|source| match source.kind() {
                io::ErrorKind::UnexpectedEof => KernelError::damaged(
                    &self.path,
                    format!("it ends before {:#x}", at + (bytes.len() - from) as u64),
                ),
                _ => KernelError::Read { path: self.path.clone(), source },
            })?;
        }
        Ok(bytes)
    }
}

fn word(bytes: &[u8], at: usize) -> u64 {
    bytes.get(at..).and_then(<[u8]>::first_chunk).map_or(0, |word| u64::from_le_bytes(*word))
}

fn load(header: &[u8]) -> Option<Load> {
    let load = Load { start: word(header, 16), len: word(header, 32), offset: word(header, 8) };
    let kind = u32::from_le_bytes(*header.first_chunk()?);
    (kind == LOAD && load.start.checked_add(load.len).is_some()).then_some(load)
}

/// Reads `range` of the core `file`, which is at `path`.
///
/// # Errors
/// If the file cannot be read, is no such core, ends early, or does not hold the range.
pub fn read_memory(file: impl ReadAt, path: &Path, range: SvmaRange) -> Result<Memory, KernelError> {
    read_ranges(file, path, &[range])
}

/// The same of several ranges.
///
/// # Errors
/// As [`read_memory`] has them.
pub fn read_ranges(file: impl ReadAt, path: &Path, ranges: &[SvmaRange]) -> Result<Memory, KernelError> {
    let core = Kcore::open(file, path)?;
    let mut memory = Memory::default();
    ranges.iter().try_for_each(|range| core.add(*range, &mut memory))?;
    Ok(memory)
}
