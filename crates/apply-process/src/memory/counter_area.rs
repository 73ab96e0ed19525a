//! The memory that a version writes and restitch reads: the counters and votes of a counting version, or the
//! window of a tracing one.
//!
//! **Narrow counters** ([`CounterWidth::Bits32`]) share twice as many to a cache line, but go round: once in
//! 2^32 increments, of which no processor makes more than one a cycle. So they are read several times a
//! second and what has come since is added up. Where nobody read for too long (this program was stopped, say)
//! it is not known how often they went round, and what all of them have counted since is left out: what is
//! left are the counts of the rest of the time, which agree with each other as ever.

use restitch_emit::{CounterTable, CounterWidth, Vote, VoteArea};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Counters of 32 bits have to be read as often as this: what they count in a longer time between two
/// readings is left out. In this time none goes round: 2^32 increments would be seven a nanosecond.
pub const LONGEST_UNREAD: Duration = Duration::from_millis(600);

/// More increments than a counter takes in a nanosecond.
const MOST_A_NANOSECOND: u64 = 8;

/// More than a counter can have counted: one increment a cycle for a day. The area is the program's to write,
/// and what it says is added up and multiplied.
const MOST_COUNTED: u64 = 1 << 48;

/// What stands where in an area.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Parts {
    width: CounterWidth,
    /// Bytes of the counters.
    counters: u64,
    /// Where the words of votes begin, and how many calls have some.
    votes: (u64, VoteArea),
}

impl Parts {
    /// Those of a counting version.
    pub fn of(table: &CounterTable) -> Self {
        let votes = (table.votes_offset(), table.vote_area());
        Self { width: table.width, counters: table.counters_len(), votes }
    }
}

/// One area.
#[derive(Debug)]
pub(crate) struct CounterArea {
    /// Number of the version.
    pub number: u32,
    /// The shared memory file.
    pub file: File,
    parts: Parts,
    sums: Mutex<Sums>,
}

impl CounterArea {
    /// An area of zeros, which nobody writes yet.
    pub fn new(number: u32, file: File, parts: Parts) -> Self {
        Self { number, file, parts, sums: Mutex::new(Sums::new(Instant::now())) }
    }

    /// What has been counted so far.
    pub fn read(&self) -> io::Result<Vec<u64>> {
        // One reader at a time, and the time from before one reading to behind the next.
        let mut sums = self.sums.lock().unwrap_or_else(PoisonError::into_inner);
        let (begun, mut bytes) = (Instant::now(), vec![0; self.parts.counters as usize]);
        self.file.read_exact_at(&mut bytes, 0)?;
        Ok(match self.parts.width {
            CounterWidth::Bits64 => words(&bytes, |word| u64::from_le_bytes(word).min(MOST_COUNTED)),
            CounterWidth::Bits32 => {
                sums.take_in(begun, Instant::now(), &words(&bytes, u32::from_le_bytes)).to_vec()
            }
        })
    }

    /// What indirect calls have voted for so far.
    pub fn votes(&self) -> io::Result<Vec<Vote>> {
        let (at, area) = self.parts.votes;
        let mut bytes = vec![0; area.bytes() as usize];
        self.file.read_exact_at(&mut bytes, at)?;
        Ok(area.read(&bytes))
    }
}

fn words<const N: usize, T>(bytes: &[u8], word: impl Fn([u8; N]) -> T) -> Vec<T> {
    bytes.as_chunks().0.iter().map(|bytes| word(*bytes)).collect()
}

/// What narrow counters have counted.
#[derive(Debug)]
struct Sums {
    read: Instant,
    last: Vec<u32>,
    total: Vec<u64>,
}

impl Sums {
    fn new(now: Instant) -> Self {
        Self { read: now, last: Vec::new(), total: Vec::new() }
    }

    /// Adds what the counters, read between `begun` and `done`, have counted since they were read last. More
    /// than can be is none: threads that count at the same time may set a counter back a little.
    fn take_in(&mut self, begun: Instant, done: Instant, now: &[u32]) -> &[u64] {
        self.last.resize(now.len(), 0);
        self.total.resize(now.len(), 0);
        let passed = done.duration_since(self.read);
        if passed <= LONGEST_UNREAD {
            let most = passed.as_nanos() as u64 * MOST_A_NANOSECOND;
            for ((total, last), now) in self.total.iter_mut().zip(&self.last).zip(now) {
                let more = u64::from(now.wrapping_sub(*last));
                *total += if more <= most { more } else { 0 };
            }
        }
        self.last.copy_from_slice(now);
        self.read = begun;
        &self.total
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_that_go_round_are_added_up() {
        let begin = Instant::now();
        let at = |ms| begin + Duration::from_millis(ms);
        let (mut sums, many) = (Sums::new(begin), 0xf000_0000);
        let round = 1 << 32;
        assert_eq!(sums.take_in(at(540), at(541), &[7, 0, many]), [7, 0, many.into()]);
        assert_eq!(sums.take_in(at(1080), at(1081), &[6, 1, many]), [round + 6, 1, many.into()]);
        assert_eq!(sums.take_in(at(1680), at(1680), &[8, 1, 2]), [round + 8, 1, round + 2]);
        // 601 ms: nobody knows how often. From there on it goes on.
        assert_eq!(sums.take_in(at(2280), at(2281), &[9, 5, 3]), [round + 8, 1, round + 2]);
        assert_eq!(sums.take_in(at(2380), at(2381), &[11, 5, 4]), [round + 10, 1, round + 3]);
        // In 100 ms none goes round: it was set back.
        assert_eq!(sums.take_in(at(2480), at(2481), &[10, 9, 1]), [round + 10, 5, round + 3]);
    }

    #[test]
    fn words_are_read_in_their_width() {
        let path = std::env::temp_dir().join(format!("restitch-area-{}", std::process::id()));
        let area = VoteArea { calls: 1 };
        let mut bytes = vec![1, 0, 0, 0, 2, 0, 0, 0];
        bytes.resize(8 + area.bytes() as usize, 0);
        bytes[8 + area.samples(0) as usize] = 7;
        std::fs::write(&path, &bytes).unwrap();
        let open = |width| {
            let parts = Parts { width, counters: 8, votes: (8, area) };
            CounterArea::new(1, File::open(&path).unwrap(), parts)
        };
        let read = |width| open(width).read().unwrap();
        let vote = Vote { samples: 7, ..Vote::default() };
        assert_eq!(open(CounterWidth::Bits32).votes().unwrap(), [vote]);
        assert_eq!(read(CounterWidth::Bits64), [0x2_0000_0001]);
        assert_eq!(read(CounterWidth::Bits32), [1, 2]);
        // No such counter was ever made by counting.
        std::fs::write(&path, [0xff; 8]).unwrap();
        assert_eq!(read(CounterWidth::Bits64), [MOST_COUNTED]);
        // The program has cut it off.
        std::fs::write(&path, [0xff; 7]).unwrap();
        assert!(open(CounterWidth::Bits64).read().is_err());
        std::fs::remove_file(&path).unwrap();
    }
}
