//! Memory of a kernel, as bytes.

use restitch_address::{Svma, SvmaRange};

/// Pieces of memory, at the kernel's addresses.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Memory {
    pieces: Vec<Piece>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Piece {
    start: Svma,
    bytes: Vec<u8>,
}

impl Memory {
    /// Adds a piece. What is there already stays in force.
    pub fn add(&mut self, start: Svma, bytes: Vec<u8>) {
        if start.get().checked_add(bytes.len() as u64).is_some() {
            self.pieces.push(Piece { start, bytes });
        }
    }

    /// The bytes of a range; none unless all of it is in one piece.
    pub fn bytes(&self, range: SvmaRange) -> Option<&[u8]> {
        self.at(range.start).and_then(|rest| rest.get(..usize::try_from(range.len()).ok()?))
    }

    /// The bytes from an address to the end of its piece.
    pub fn at(&self, address: Svma) -> Option<&[u8]> {
        self.pieces.iter().find_map(|piece| {
            let from = address.get().checked_sub(piece.start.get())?;
            piece.bytes.get(usize::try_from(from).ok()?..).filter(|rest| !rest.is_empty())
        })
    }

    /// A word of 8 bytes.
    pub fn word(&self, address: Svma) -> Option<u64> {
        Some(u64::from_le_bytes(*self.at(address)?.first_chunk()?))
    }
}

/// The place that a word of 4 bytes at `offset` of what stands at `at` points to, from itself.
pub(crate) fn relative(bytes: &[u8], offset: usize, at: Svma) -> Option<Svma> {
    let word = i32::from_le_bytes(*bytes.get(offset..)?.first_chunk()?);
    Some(Svma::new(at.get().wrapping_add(offset as u64).wrapping_add(i64::from(word) as u64)))
}
