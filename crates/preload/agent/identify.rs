//! Modules that are known by their files: which content a file has that is as it was when somebody has read
//! all of it.
//!
//! The file that is mapped may not be the one that its path names by now, so three things have to be right:
//! the path's file is one that is known, in the state that it is known in; what the kernel says is mapped is
//! that very file; and some words of the code in memory are those of the file that was read.

use crate::files::Folder;
use crate::known::{FileKey, KNOWN_LEN, Known, code_samples};
use crate::modules::Module;
use crate::sys;

/// The module with the identity of its content, if its file is known, and the hash of what is loaded of it.
pub fn by_file(module: &Module, folder: &Folder) -> Option<(Module, u64)> {
    let known = known(module, folder)?;
    Some((module.identified(known.id, known.id_len as usize), known.original))
}

/// What is known of the module's file.
pub fn known(module: &Module, folder: &Folder) -> Option<Known> {
    // SAFETY: the path ends in a zero byte.
    let key = unsafe { sys::status_of(module.path()?) }?.key;
    let known = noted(&key, folder)?;
    let is_it = known.key == key
        && is_mapped(module.bias.wrapping_add(module.segment.0), known.mapped_device, known.mapped_inode)
        && samples(module)? == known.samples;
    is_it.then_some(known)
}

/// What is noted of a file.
fn noted(key: &FileKey, folder: &Folder) -> Option<Known> {
    let digits = key.device.to_be_bytes().into_iter().chain(key.inode.to_be_bytes());
    let (file, _) = folder.open_named(digits, b".file", false)?;
    let mut bytes = [0; KNOWN_LEN];
    file.read(&mut bytes, 0)?;
    Known::decode(&bytes)
}

/// [`code_samples`] of the code in memory.
fn samples(module: &Module) -> Option<u64> {
    let start = module.bias.wrapping_add(module.segment.0);
    // SAFETY: within the module's executable segment, which is mapped from a file of this length and may be
    // read.
    let word = |at: u64| unsafe { (start.wrapping_add(at) as *const u64).read_unaligned() };
    module.readable.then(|| code_samples(module.segment.1, word))
}

/// Whether what is mapped at an address is the file with this device and inode, as `/proc/self/maps` names
/// it.
fn is_mapped(address: u64, device: u64, inode: u64) -> bool {
    let Some(file) = sys::open(b"/proc/self/maps\0") else { return false };
    let (mut bytes, mut line) = ([0; 1024], Line::default());
    loop {
        let Some(len @ 1..) = file.read_on(&mut bytes) else { return false };
        for byte in bytes.iter().take(len) {
            if line.take(*byte) {
                if line.start <= address && address < line.end {
                    return line.device() == device && line.inode == inode;
                }
                line = Line::default();
            }
        }
    }
}

/// A line of the maps file: `start-end permissions offset major:minor inode path`.
#[derive(Default)]
struct Line {
    field: u32,
    start: u64,
    end: u64,
    major: u64,
    minor: u64,
    inode: u64,
}

impl Line {
    /// Takes a byte in; whether the line ends there.
    fn take(&mut self, byte: u8) -> bool {
        let (number, base) = match self.field {
            0 => (&mut self.start, 16),
            1 => (&mut self.end, 16),
            4 => (&mut self.major, 16),
            5 => (&mut self.minor, 16),
            6 => (&mut self.inode, 10),
            _ => (&mut 0, 16),
        };
        match byte {
            b'0'..=b'9' => *number = number.wrapping_mul(base).wrapping_add(u64::from(byte - b'0')),
            b'a'..=b'f' => *number = number.wrapping_mul(base).wrapping_add(u64::from(byte - b'a' + 10)),
            // The fields 2 and 3 are permissions, which have dashes too, and the offset.
            b'-' if self.field == 0 => self.field = 1,
            b':' if self.field == 4 => self.field = 5,
            b' ' if matches!(self.field, 1 | 2 | 3 | 5 | 6) => self.field += 1,
            b'\n' => return true,
            _ => {}
        }
        false
    }

    fn device(&self) -> u64 {
        self.major << 32 | self.minor
    }
}
