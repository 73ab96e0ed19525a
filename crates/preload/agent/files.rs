//! The files beside this library: their names, and which of them are trusted.

use crate::modules::Module;
use crate::sys::{self, File};
use crate::versions;
use core::ffi::c_char;

/// Longest path of a file, with its zero byte.
pub const PATH: usize = 512;

/// The path of the folder that this library lies in, in front of more room, and its length.
pub fn folder() -> Option<([u8; PATH], usize)> {
    let own = versions::own_path();
    if own.is_null() {
        return None;
    }
    let mut path = [0; PATH];
    let mut behind_slash = 0;
    for (i, slot) in path.iter_mut().enumerate().take(PATH - 200) {
        // SAFETY: the path ends in a zero byte, which has not been reached yet.
        let byte = unsafe { own.add(i).read() } as u8;
        if byte == 0 {
            return (behind_slash > 0).then_some((path, behind_slash));
        }
        *slot = byte;
        if byte == b'/' {
            behind_slash = i + 1;
        }
    }
    None
}

/// Completes a path: the folder, a module's identity, an ending, a zero byte.
pub fn name<'p>(path: &'p mut [u8; PATH], folder: usize, module: &Module, ending: &[u8]) -> &'p [u8] {
    let id = module.build_id.iter().take(module.build_id_len);
    name_of(path, folder, id.copied(), ending)
}

/// Completes a path: the folder, bytes in hexadecimal digits, an ending, a zero byte.
pub fn name_of<'p>(
    path: &'p mut [u8; PATH],
    folder: usize,
    id: impl Iterator<Item = u8>,
    ending: &[u8],
) -> &'p [u8] {
    let digit = |n: u8| if n < 10 { b'0' + n } else { b'a' + n - 10 };
    let digits = id.flat_map(|b| [digit(b >> 4), digit(b & 15)]);
    let mut len = folder;
    for (slot, byte) in path.iter_mut().skip(folder).zip(digits.chain(ending.iter().copied()).chain([0])) {
        *slot = byte;
        len += 1;
    }
    path.get(..len).unwrap_or(&[])
}

/// Whether the file belongs to this user or to root, and nobody else may write to it.
pub fn is_trusted(file: &File) -> Option<u64> {
    let status = file.status()?;
    let regular = status.mode & 0o170_000 == 0o100_000;
    let trusted = (status.owner == sys::user() || status.owner == 0) && status.mode & 0o022 == 0;
    (regular && trusted).then_some(status.len)
}

const _: () = assert!(size_of::<c_char>() == 1);
