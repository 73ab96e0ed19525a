//! The format of the files that tell a module by its file, for the agent and for those who write them. No
//! more than `core`.
//!
//! A module without a build id has the hash of its whole content for an identity, which nobody can compute in
//! each process. So the hash is computed once, and beside the overlays lies what a file was like then, under
//! the file's device and inode: [`Known`]. A file whose [`FileKey`] is still the same has the same content,
//! as far as its file system keeps times of change. A module with a build id may have been changed since it
//! was built; where its file is known, it need not be read to find that out.

use crate::format::{MAX_BUILD_ID, word};

/// Bytes of a [`Known`]. Behind them may stand the file's path, for those who look after the files.
pub const KNOWN_LEN: usize = 256;
/// So many words of a module's code are compared.
const SAMPLES: u64 = 32;
const MAGIC: [u8; 16] = *b"restitch module\0";
const FORMAT: u64 = 2;
const FIELDS_AT: usize = 24;
const ID_AT: usize = FIELDS_AT + 8 * 12;
const FNV: (u64, u64) = (0xcbf2_9ce4_8422_2325, 0x0000_0100_0000_01b3);

/// A file, in the state that it has now: every change of its content changes the time of its last change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FileKey {
    /// `st_dev`.
    pub device: u64,
    /// `st_ino`.
    pub inode: u64,
    /// `st_size`.
    pub len: u64,
    /// `st_mtim`: seconds and nanoseconds.
    pub modified: [u64; 2],
    /// `st_ctim`: seconds and nanoseconds.
    pub changed: [u64; 2],
}

/// What is known of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Known {
    /// The file.
    pub key: FileKey,
    /// Its device as `/proc/PID/maps` names it (major number times 2^32 and minor number), which on some file
    /// systems is another one.
    pub mapped_device: u64,
    /// Its inode there.
    pub mapped_inode: u64,
    /// The identity of its content, by which overlays are named.
    pub id: [u8; MAX_BUILD_ID],
    /// Bytes of the identity.
    pub id_len: u64,
    /// [`code_samples`] of its code.
    pub samples: u64,
    /// [`ContentHash`](crate::content::ContentHash) of what is loaded of it.
    pub original: u64,
}

impl Known {
    /// The bytes.
    pub fn encode(&self) -> [u8; KNOWN_LEN] {
        let mut out = [0; KNOWN_LEN];
        let (head, id) = out.split_at_mut(ID_AT);
        head[..16].copy_from_slice(&MAGIC);
        head[16..FIELDS_AT].copy_from_slice(&FORMAT.to_le_bytes());
        let k = &self.key;
        let file = [k.device, k.inode, k.len, k.modified[0], k.modified[1], k.changed[0], k.changed[1]];
        let rest = [self.mapped_device, self.mapped_inode, self.id_len, self.samples, self.original];
        for (slot, field) in head[FIELDS_AT..].chunks_exact_mut(8).zip(file.into_iter().chain(rest)) {
            slot.copy_from_slice(&field.to_le_bytes());
        }
        id[..MAX_BUILD_ID].copy_from_slice(&self.id);
        out
    }

    /// What the bytes say; nothing if they are none of this format.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        if bytes.get(..16)? != MAGIC || word(bytes, 16)? != FORMAT {
            return None;
        }
        let field = |n: usize| word(bytes, FIELDS_AT + 8 * n);
        let key = FileKey {
            device: field(0)?,
            inode: field(1)?,
            len: field(2)?,
            modified: [field(3)?, field(4)?],
            changed: [field(5)?, field(6)?],
        };
        let id = bytes.get(ID_AT..ID_AT + MAX_BUILD_ID)?.try_into().ok()?;
        let (mapped_device, mapped_inode, id_len) = (field(7)?, field(8)?, field(9)?);
        let (samples, original) = (field(10)?, field(11)?);
        let known = Self { key, mapped_device, mapped_inode, id, id_len, samples, original };
        (id_len > 0 && id_len <= MAX_BUILD_ID as u64).then_some(known)
    }
}

/// A hash of some words of a module's code of `len` bytes, spread over all of it; `word_at` reads one, at an
/// offset. Another build of a program differs in nearly all that stands behind the first change.
pub fn code_samples(len: u64, mut word_at: impl FnMut(u64) -> u64) -> u64 {
    let room = len.saturating_sub(8);
    let mut sum = FNV.0 ^ len;
    for n in 0..if len < 8 { 0 } else { SAMPLES } {
        sum = (sum ^ word_at((room / (SAMPLES - 1)).wrapping_mul(n) & !7)).wrapping_mul(FNV.1);
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;

    fn known() -> Known {
        let key = FileKey { device: 1, inode: 2, len: 3, modified: [4, 5], changed: [6, 7] };
        Known {
            key,
            mapped_device: 8,
            mapped_inode: 9,
            id: [10; MAX_BUILD_ID],
            id_len: 40,
            samples: 11,
            original: 12,
        }
    }

    #[test]
    fn what_is_written_is_read_again_and_damage_is_nothing_or_another_file() {
        let bytes = known().encode();
        assert_eq!(Known::decode(&bytes), Some(known()));
        for at in 0..ID_AT + MAX_BUILD_ID {
            let mut other = bytes;
            other[at] ^= 0x41;
            assert_ne!(Known::decode(&other), Some(known()), "byte {at}");
        }
        for end in 0..ID_AT + MAX_BUILD_ID {
            assert_eq!(Known::decode(&bytes[..end]), None);
        }
        let none = Known { id_len: 0, ..known() };
        assert_eq!(Known::decode(&none.encode()), None);
    }

    #[test]
    fn samples_lie_in_the_code_and_tell_other_code() {
        let word =
            |code: &[u8], at: u64| u64::from_le_bytes(code[at as usize..at as usize + 8].try_into().unwrap());
        for len in [0, 7, 8, 9, 100, 4096, 12345] {
            let code: Vec<u8> = (0..len).map(|i| (i * 7 / 3) as u8).collect();
            let hash = |code: &[u8]| code_samples(len as u64, |at| word(code, at));
            let shifted: Vec<u8> = code.iter().map(|b| b.wrapping_add(1)).collect();
            assert!(len < 8 || hash(&code) != hash(&shifted));
        }
    }
}
