//! Whether a module is what its overlay was made of, byte for byte.
//!
//! **Problem.** A build id stays when a program is changed: a constant in its code, an entry of a table. An
//! overlay brings the code of before.
//!
//! **Idea.** Either the module's file is known ([`Known`](crate::known::Known)), in the state in which
//! somebody has read all of it, and this process has no pages of its own in the module's code (a debugger's
//! breakpoints); that takes some system calls. Or all that is loaded from the file is hashed: what nobody
//! writes in memory, what the loader relocates in the file. That takes as long as memory is read, a
//! millisecond for some MiB.

use crate::content::{BLOCK, ContentHash};
use crate::files::Folder;
use crate::format::PAGE;
use crate::identify;
use crate::modules::{Load, Module};
use crate::sys::{self, File};

/// Bytes that are read from a file at a time.
const PIECE: usize = 16 << 10;
/// Pages whose state is read at a time.
const STATES: usize = 512;

const _: () = assert!(PIECE.is_multiple_of(BLOCK));

/// Whether the module has the content of this [`ContentHash`]. What is `noted` of its file is known already,
/// or it is looked for.
pub fn is_original(module: &Module, noted: Option<u64>, original: u64, folder: &Folder) -> bool {
    let noted = noted.or_else(|| {
        let known = identify::known(module, folder)?;
        let same = known.id == module.build_id && known.id_len == module.build_id_len as u64;
        same.then_some(known.original)
    });
    match noted {
        Some(content) if content != original => false,
        Some(_) if is_untouched(module) => true,
        _ => hash(module) == Some(original),
    }
}

/// Whether no page of the module's code was written to in this process, which the kernel's page table tells.
fn is_untouched(module: &Module) -> bool {
    try_is_untouched(module).is_some()
}

fn try_is_untouched(module: &Module) -> Option<()> {
    let states = sys::open(b"/proc/self/pagemap\0")?;
    let start = module.bias.wrapping_add(module.segment.0);
    let mut page = start / PAGE;
    let end = start.checked_add(module.segment.1)?.div_ceil(PAGE);
    while page < end {
        let mut bytes = [0; 8 * STATES];
        let count = (end - page).min(STATES as u64) as usize;
        let bytes = bytes.get_mut(..8 * count)?;
        states.read(bytes, page.checked_mul(8)?)?;
        bytes.chunks_exact(8).all(is_of_file).then_some(())?;
        page += count as u64;
    }
    Some(())
}

/// Whether a page, as `/proc/PID/pagemap` tells of it, is the file's, or not there yet: not (present or
/// swapped, and not of a file).
fn is_of_file(state: &[u8]) -> bool {
    let state = state.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes));
    state >> 62 == 0 || state & 1 << 61 != 0
}

/// The hash of all that is loaded.
fn hash(module: &Module) -> Option<u64> {
    let file = module.file()?;
    let len = file.status().filter(|s| s.is_regular())?.len;
    let mut hash = ContentHash::new();
    for load in module.loads().filter(|l| l.file_len > 0) {
        // Behind the end of a file that was cut off nothing may be touched.
        (load.offset.checked_add(load.file_len)? <= len).then_some(())?;
        hash.segment(load.offset, load.start, load.file_len);
        match load.writable {
            true => of_file(&file, &load, &mut hash)?,
            false => of_memory(module, &load, &mut hash)?,
        }
    }
    Some(hash.finish())
}

/// Takes in a segment that nobody writes to.
fn of_memory(module: &Module, load: &Load, hash: &mut ContentHash) -> Option<()> {
    let start = module.bias.wrapping_add(load.start);
    if !load.readable || !sys::populate(start, load.file_len) {
        return None;
    }
    // SAFETY: mapped from a file of at least this length, and may be read; there is one thread, which writes
    // nowhere meanwhile.
    let bytes = unsafe { core::slice::from_raw_parts(start as *const u8, load.file_len as usize) };
    hash.bytes(load.offset, bytes);
    Some(())
}

/// Takes in a segment that is relocated, as it is in the file.
fn of_file(file: &File, load: &Load, hash: &mut ContentHash) -> Option<()> {
    let mut done = 0;
    while done < load.file_len {
        let mut piece = [0; PIECE];
        let bytes = piece.get_mut(..(load.file_len - done).min(PIECE as u64) as usize)?;
        file.read(bytes, load.offset + done)?;
        hash.bytes(load.offset + done, bytes);
        done += bytes.len() as u64;
    }
    Some(())
}
