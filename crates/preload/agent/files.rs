//! The files beside this library: their names, and which of them are trusted.
//!
//! A file is what the folder has under its name, no link to something else, except where the cache itself
//! leads to one of its own files; it belongs to this user or to root, and nobody else may write to it or to
//! the folder. What is no regular file is never waited for.

use crate::modules::Module;
use crate::sys::{self, File};
use crate::versions;
use core::ffi::c_char;

/// Longest path of the folder, with its zero byte.
const PATH: usize = 512;
/// Longest name in it, with its zero byte: twice the longest identity, and an ending.
const NAME: usize = 200;
/// The folder beside the overlays that the link to one in force may lead into.
const STORE: &[u8] = b"store/";

/// The folder that this library lies in.
pub struct Folder(File);

impl Folder {
    /// If nobody but this user and root may write to it.
    pub fn own() -> Option<Self> {
        let own = versions::own_path();
        if own.is_null() {
            return None;
        }
        let mut path = [0; PATH];
        let mut behind_slash = 0;
        for (i, slot) in path.iter_mut().enumerate().take(PATH - 1) {
            // SAFETY: the path ends in a zero byte, which has not been reached yet.
            let byte = unsafe { own.add(i).read() } as u8;
            if byte == 0 {
                path.iter_mut().skip(behind_slash).for_each(|byte| *byte = 0);
                let name = path.get(..=behind_slash).filter(|_| behind_slash > 0)?;
                let folder = Self(sys::open_folder(name)?);
                return folder.0.status().filter(|s| s.is_folder() && s.is_safe()).map(|_| folder);
            }
            *slot = byte;
            if byte == b'/' {
                behind_slash = i + 1;
            }
        }
        None
    }

    /// The file of a module's identity and an ending, and its length, if it is trusted.
    pub fn open(&self, module: &Module, ending: &[u8], for_writing: bool) -> Option<(File, u64)> {
        let id = module.build_id.iter().take(module.build_id_len);
        self.open_named(id.copied(), ending, for_writing)
    }

    /// The file of bytes in hexadecimal digits and an ending, and its length, if it is trusted.
    pub fn open_named(
        &self,
        id: impl Iterator<Item = u8>,
        ending: &[u8],
        for_writing: bool,
    ) -> Option<(File, u64)> {
        let digit = |n: u8| if n < 10 { b'0' + n } else { b'a' + n - 10 };
        let digits = id.flat_map(|b| [digit(b >> 4), digit(b & 15)]);
        let mut name = [0; NAME];
        // The last byte stays zero.
        let text = digits.chain(ending.iter().copied());
        name.iter_mut().take(NAME - 1).zip(text).for_each(|(slot, byte)| *slot = byte);
        let file = match self.0.open(&name, for_writing) {
            Some(file) => file,
            None => self.open_linked(&name, for_writing)?,
        };
        is_trusted(&file).map(|len| (file, len))
    }

    /// The file that a link of that name leads to: beside it, or in the store.
    fn open_linked(&self, name: &[u8; NAME], for_writing: bool) -> Option<File> {
        let mut target = [0; NAME];
        let len = self.0.read_link(name, target.get_mut(..NAME - 1)?)?;
        let path = target.get(..len)?;
        let plain = path.strip_prefix(STORE).unwrap_or(path);
        (!plain.is_empty() && plain.iter().all(|b| *b != b'/')).then_some(())?;
        self.0.open(&target, for_writing)
    }
}

/// The file's length, if it is a regular one that belongs to this user or to root, and nobody else may write
/// to it.
fn is_trusted(file: &File) -> Option<u64> {
    let status = file.status()?;
    (status.is_regular() && status.is_safe()).then_some(status.len)
}

const _: () = assert!(size_of::<c_char>() == 1);
