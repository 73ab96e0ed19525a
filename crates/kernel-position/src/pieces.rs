//! A block's code while it is made: bytes of the original, and room of another length for what is written
//! anew.

use restitch_address::Svma;

/// Code, and where in it the original's instructions are.
#[derive(Debug)]
pub(crate) struct Pieces {
    start: Svma,
    /// The code so far.
    pub(crate) code: Vec<u8>,
    /// Places where lengths differ, in order.
    resized: Vec<Resized>,
}

/// An instruction that has another length in the copy.
#[derive(Debug, Clone, Copy)]
struct Resized {
    at: Svma,
    old: u64,
    /// Where it is in the copy, and how long there.
    place: u64,
    new: u64,
}

impl Pieces {
    /// Of a block that starts at `start`.
    pub(crate) fn new(start: Svma) -> Self {
        Self { start, code: Vec::new(), resized: Vec::new() }
    }

    /// Where the next byte goes.
    pub(crate) fn len(&self) -> u32 {
        self.code.len() as u32
    }

    /// Adds bytes as they are.
    pub(crate) fn copy(&mut self, bytes: &[u8]) {
        self.code.extend_from_slice(bytes);
    }

    /// Adds room of `new` bytes for what takes `old` bytes at `at`.
    pub(crate) fn room(&mut self, at: Svma, old: u64, new: u32) {
        if old != u64::from(new) {
            self.resized.push(Resized { at, old, place: self.code.len() as u64, new: new.into() });
        }
        self.code.resize(self.code.len() + new as usize, 0);
    }

    /// Where in the copy is what the original has at `at`. What is in the middle of a resized instruction is
    /// in the middle of the new one.
    pub(crate) fn offset(&self, at: Svma) -> u32 {
        // What was put in front of the instruction there is of its state.
        if let Some(put) = self.resized.iter().find(|resized| resized.at == at && resized.old == 0) {
            return put.place as u32;
        }
        let behind = self.resized.partition_point(|resized| resized.at <= at);
        let Some(resized) = self.resized[..behind].last() else {
            return at.offset_from(self.start) as u32;
        };
        let inside = at.offset_from(resized.at) as u64;
        let moved = match inside < resized.old {
            true => inside.min(resized.new.saturating_sub(1)),
            false => resized.new + (inside - resized.old),
        };
        (resized.place + moved) as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_behind_what_has_another_length_are_moved() {
        let at = |offset: u64| Svma::new(0x1000 + offset);
        let mut pieces = Pieces::new(at(0));
        pieces.copy(&[1, 2, 3]);
        pieces.room(at(3), 2, 5);
        pieces.copy(&[4]);
        pieces.room(at(6), 6, 3);
        assert_eq!(pieces.code, [1, 2, 3, 0, 0, 0, 0, 0, 4, 0, 0, 0]);
        let offsets: Vec<u32> = (0..14).map(|offset| pieces.offset(at(offset))).collect();
        assert_eq!(offsets, [0, 1, 2, 3, 4, 8, 9, 10, 11, 11, 11, 11, 12, 13]);
    }

    #[test]
    fn what_is_put_between_is_where_the_next_one_was() {
        let at = |offset: u64| Svma::new(0x1000 + offset);
        let mut pieces = Pieces::new(at(0));
        pieces.copy(&[1]);
        pieces.room(at(1), 0, 8);
        pieces.room(at(1), 2, 5);
        pieces.copy(&[2]);
        let offsets: Vec<u32> = (0..5).map(|offset| pieces.offset(at(offset))).collect();
        assert_eq!(offsets, [0, 1, 10, 14, 15]);
    }
}
