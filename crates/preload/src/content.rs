//! A hash of what a module's file has in memory, for the agent and for those who make overlays. No more than
//! `core`.
//!
//! **Problem.** An overlay takes the place of all of a module's code, and its version was made of more than
//! that: of jump tables, of tables of exceptions, of the addresses that data name. A build id says which
//! build a file came from, and not what was done to it since: a copy in which one constant was changed has
//! the same.
//!
//! **Idea.** All bytes that are loaded from the file are hashed, but for what the ELF header says of sections
//! (a stripped file is the same program). Eight lanes, so that it goes as fast as memory is read; each step
//! is a bijection of the lane, so that no single change is lost, and carries high bits down, so that no two
//! changes of high bits cancel. It tells other builds and changes, not malice: whoever may write a program
//! needs no overlay.

/// Bytes that are taken in at a time.
pub const BLOCK: usize = 8 * LANES;
const LANES: usize = 8;
const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;
/// Where the ELF header says where the sections' headers are, and how many.
const OF_SECTIONS: [(usize, usize); 2] = [(40, 48), (58, 64)];

/// The hash, as far as it has come.
#[derive(Debug, Clone, Copy)]
pub struct ContentHash([u64; LANES]);

impl ContentHash {
    /// Of nothing yet.
    pub const fn new() -> Self {
        let mut lanes = [FACTOR; LANES];
        let mut n = 0;
        while n < LANES {
            lanes[n] = FACTOR.wrapping_mul(2 * n as u64 + 1);
            n += 1;
        }
        Self(lanes)
    }

    /// A segment follows: the bytes `p_offset`, `p_vaddr` and `p_filesz` of its header. Segments without
    /// bytes in the file are left out.
    pub fn segment(&mut self, offset: u64, address: u64, len: u64) {
        let words = [offset, address, len];
        self.0.iter_mut().zip(words).for_each(|(lane, word)| *lane = mixed(*lane, word));
    }

    /// Bytes of the segment, from the file's byte number `offset` on: all of them, or as many as are a
    /// multiple of [`BLOCK`], with more to follow.
    pub fn bytes(&mut self, offset: u64, bytes: &[u8]) {
        // In registers while it goes on.
        let (mut lanes, mut rest) = (self.0, bytes);
        if offset == 0 {
            let mut header = padded(rest);
            for (from, to) in OF_SECTIONS {
                header.iter_mut().take(to).skip(from).for_each(|byte| *byte = 0);
            }
            take(&mut lanes, &header);
            rest = rest.get(BLOCK..).unwrap_or_default();
        }
        let (blocks, tail) = rest.as_chunks::<BLOCK>();
        blocks.iter().for_each(|block| take(&mut lanes, block));
        if !tail.is_empty() {
            take(&mut lanes, &padded(tail));
        }
        self.0 = lanes;
    }

    /// The number.
    pub fn finish(&self) -> u64 {
        self.0.iter().fold(FACTOR, |all, lane| mixed(all, *lane))
    }
}

impl Default for ContentHash {
    fn default() -> Self {
        Self::new()
    }
}

/// The hash of some bytes that are no file's head.
pub fn hash_of(bytes: &[u8]) -> u64 {
    let mut hash = ContentHash::new();
    hash.bytes(BLOCK as u64, bytes);
    hash.finish()
}

/// A word for each lane.
fn take(lanes: &mut [u64; LANES], block: &[u8; BLOCK]) {
    let (words, _) = block.as_chunks();
    lanes.iter_mut().zip(words).for_each(|(lane, word)| *lane = mixed(*lane, u64::from_le_bytes(*word)));
}

/// One step: for each word a bijection of the lane, and for each lane one of the word.
fn mixed(lane: u64, word: u64) -> u64 {
    let lane = (lane ^ word).wrapping_mul(FACTOR);
    lane ^ lane >> 32
}

/// With zeros behind it.
fn padded(bytes: &[u8]) -> [u8; BLOCK] {
    let mut block = [0; BLOCK];
    block.iter_mut().zip(bytes).for_each(|(slot, byte)| *slot = *byte);
    block
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hash(offset: u64, bytes: &[u8]) -> u64 {
        let mut hash = ContentHash::new();
        hash.segment(offset, 0x1000, bytes.len() as u64);
        hash.bytes(offset, bytes);
        hash.finish()
    }

    #[test]
    fn every_change_shows_alone_and_in_pairs() {
        let bytes: Vec<u8> = (0..500u32).map(|n| (n * 7 / 3) as u8).collect();
        let same = hash(64, &bytes);
        for bit in 0..8 * bytes.len() {
            let mut other = bytes.clone();
            other[bit / 8] ^= 1 << (bit % 8);
            assert_ne!(hash(64, &other), same, "bit {bit}");
            // The same bit of the next word of that lane, and of the next lane.
            for next in [bit + 8 * BLOCK, bit + 64].into_iter().filter(|next| next / 8 < bytes.len()) {
                let mut both = other.clone();
                both[next / 8] ^= 1 << (next % 8);
                assert_ne!(hash(64, &both), same, "bits {bit} and {next}");
            }
        }
        assert_ne!(hash(128, &bytes), same, "it is elsewhere in the file");
        assert_ne!(hash(64, &[&bytes[..], &[0]].concat()), same, "it is longer");
    }

    #[test]
    fn pieces_are_as_good_as_the_whole() {
        let bytes: Vec<u8> = (0..1000u32).map(|n| (n * n / 5) as u8).collect();
        for offset in [0, 4096] {
            let mut hash = ContentHash::new();
            hash.segment(offset, 0x1000, bytes.len() as u64);
            hash.bytes(offset, &bytes[..2 * BLOCK]);
            hash.bytes(offset + 2 * BLOCK as u64, &bytes[2 * BLOCK..]);
            assert_eq!(hash.finish(), self::hash(offset, &bytes));
        }
    }

    #[test]
    fn what_the_header_says_of_sections_is_no_matter() {
        let bytes: Vec<u8> = (0..200).collect();
        for at in 0..200 {
            let mut other = bytes.clone();
            other[at] ^= 0x80;
            let is_of_sections = OF_SECTIONS.iter().any(|(from, to)| (*from..*to).contains(&at));
            assert_eq!(hash(0, &other) == hash(0, &bytes), is_of_sections, "byte {at}");
            assert_ne!(hash(64, &other), hash(64, &bytes), "byte {at}");
        }
    }
}
