//! `/proc/PID/maps`, parsed (proc_pid_maps(5)).

use restitch_address::{Avma, AvmaRange, FileOffset};
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

/// What may be done with a mapped range.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Hash)]
pub struct Permissions {
    /// May be read.
    pub read: bool,
    /// May be written.
    pub write: bool,
    /// May be executed.
    pub execute: bool,
    /// Writes reach the file or other processes (`MAP_SHARED`).
    pub shared: bool,
}

/// A device number.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Hash, PartialOrd, Ord)]
pub struct Device {
    /// Major number; 0 for file systems without a block device of their own (overlayfs, btrfs, tmpfs).
    pub major: u32,
    /// Minor number.
    pub minor: u32,
}

/// What a range shows.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum MappingName {
    /// Plain anonymous memory.
    Anonymous,
    /// A file.
    File {
        /// Its path in the process's own mount namespace, when it was opened.
        path: PathBuf,
        /// The path no longer names the file (or the file itself ends in ` (deleted)`).
        deleted: bool,
    },
    /// Something that the kernel names, such as `[heap]`, `[stack]`, `[vdso]` or `[anon:name]`.
    Special(String),
}

/// One line of the maps file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Mapping {
    /// The addresses.
    pub range: AvmaRange,
    /// What may be done with them.
    pub permissions: Permissions,
    /// Which byte of the file is at `range.start`.
    pub offset: FileOffset,
    /// The file's device, as the maps file gives it (0:0 for anonymous memory).
    pub device: Device,
    /// The file's inode number (0 for anonymous memory).
    pub inode: u64,
    /// What the range shows.
    pub name: MappingName,
}

impl Mapping {
    /// The path of the mapped file, if the range shows a file.
    pub fn path(&self) -> Option<&Path> {
        match &self.name {
            MappingName::File { path, .. } => Some(path),
            _ => None,
        }
    }

    /// Whether the range carries this kernel name, for example `[heap]`.
    pub fn is_special(&self, name: &str) -> bool {
        matches!(&self.name, MappingName::Special(special) if special == name)
    }
}

/// Parses a whole maps file. An unreadable line is an error that names it (counted from 1).
pub fn parse_maps(bytes: &[u8]) -> Result<Vec<Mapping>, String> {
    let lines = bytes.split(|&byte| byte == b'\n').enumerate();
    lines
        .filter(|(_, line)| !line.is_empty())
        .map(|(number, line)| {
            parse_line(line).ok_or_else(|| {
                format!("line {} is no mapping: {}", number + 1, String::from_utf8_lossy(line))
            })
        })
        .collect()
}

fn parse_line(line: &[u8]) -> Option<Mapping> {
    let mut rest = line;
    let range = field(&mut rest)?;
    let permissions = field(&mut rest)?;
    let offset = field(&mut rest)?;
    let device = field(&mut rest)?;
    let inode = decimal(field(&mut rest)?)?;
    let (start, end) = split_once(range, b'-')?;
    let (start, end) = (hexadecimal(start)?, hexadecimal(end)?);
    if end <= start {
        return None;
    }
    let (major, minor) = split_once(device, b':')?;
    Some(Mapping {
        range: AvmaRange::between(Avma::new(start), Avma::new(end)),
        permissions: parse_permissions(permissions)?,
        offset: FileOffset::new(hexadecimal(offset)?),
        device: Device {
            major: u32::try_from(hexadecimal(major)?).ok()?,
            minor: u32::try_from(hexadecimal(minor)?).ok()?,
        },
        inode,
        name: parse_name(trim_start(rest)),
    })
}

fn parse_permissions(text: &[u8]) -> Option<Permissions> {
    let [r, w, x, s] = *<&[u8; 4]>::try_from(text).ok()?;
    let flag = |byte: u8, set: u8| match byte {
        b'-' => Some(false),
        byte if byte == set => Some(true),
        _ => None,
    };
    let shared = match s {
        b's' => true,
        b'p' => false,
        _ => return None,
    };
    Some(Permissions { read: flag(r, b'r')?, write: flag(w, b'w')?, execute: flag(x, b'x')?, shared })
}

pub(crate) fn parse_name(text: &[u8]) -> MappingName {
    const DELETED: &[u8] = b" (deleted)";
    if text.is_empty() {
        return MappingName::Anonymous;
    }
    if text[0] != b'/' {
        return MappingName::Special(String::from_utf8_lossy(text).into_owned());
    }
    let (path, deleted) = match text.strip_suffix(DELETED) {
        Some(path) if !path.is_empty() => (path, true),
        _ => (text, false),
    };
    MappingName::File { path: PathBuf::from(OsString::from_vec(unescape(path))), deleted }
}

/// The kernel writes a newline in a path as `\012` (seq_file's mangling) and nothing else.
fn unescape(path: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(path.len());
    let mut rest = path;
    while let Some((&first, tail)) = rest.split_first() {
        if let Some(tail) = rest.strip_prefix(b"\\012") {
            out.push(b'\n');
            rest = tail;
        } else {
            out.push(first);
            rest = tail;
        }
    }
    out
}

fn trim_start(bytes: &[u8]) -> &[u8] {
    let blanks = bytes.iter().take_while(|&&byte| byte == b' ').count();
    &bytes[blanks..]
}

fn field<'a>(rest: &mut &'a [u8]) -> Option<&'a [u8]> {
    let text = trim_start(rest);
    let end = text.iter().position(|&byte| byte == b' ').unwrap_or(text.len());
    let (field, tail) = text.split_at(end);
    *rest = tail;
    (!field.is_empty()).then_some(field)
}

fn split_once(bytes: &[u8], separator: u8) -> Option<(&[u8], &[u8])> {
    let at = bytes.iter().position(|&byte| byte == separator)?;
    Some((&bytes[..at], &bytes[at + 1..]))
}

fn hexadecimal(bytes: &[u8]) -> Option<u64> {
    number(bytes, 16)
}

fn decimal(bytes: &[u8]) -> Option<u64> {
    number(bytes, 10)
}

fn number(bytes: &[u8], radix: u32) -> Option<u64> {
    // `from_str_radix` would take a leading plus sign.
    let plain = bytes.first()?.is_ascii_alphanumeric();
    plain.then(|| u64::from_str_radix(std::str::from_utf8(bytes).ok()?, radix).ok())?
}
