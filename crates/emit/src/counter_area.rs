//! The area that a counting version counts in.

use restitch_profile::VoteArea;

/// How wide counters are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum CounterWidth {
    /// They never overflow.
    #[default]
    Bits64,
    /// Twice as many in a cache line, and shorter code; whoever reads them has to do so before they have gone
    /// once round.
    Bits32,
}

impl CounterWidth {
    /// Bytes of a counter.
    pub fn bytes(self) -> u64 {
        match self {
            Self::Bits64 => 8,
            Self::Bits32 => 4,
        }
    }
}

/// Bytes of an area of so many counters and words of votes.
pub fn area_len(width: CounterWidth, counters: usize, votes: usize) -> u64 {
    match votes {
        0 => width.bytes() * counters as u64,
        calls => votes_offset(width, counters) + VoteArea { calls }.bytes(),
    }
}

/// Where the words of votes begin, in bytes from the start of an area.
pub fn votes_offset(width: CounterWidth, counters: usize) -> u64 {
    (width.bytes() * counters as u64).next_multiple_of(8)
}
