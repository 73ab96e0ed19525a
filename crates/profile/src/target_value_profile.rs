//! The target value profile: what indirect calls call, by the votes of a counting version. A vote (a majority
//! vote after Boyer and Moore) holds a candidate for a call's usual target, and how many of the executions
//! that were looked at have called it.
//!
//! ```text
//! countdowns: 4 bytes for each call, padding to 8; then for each call
//! distance from the call to the candidate: i64  samples: u32  hits: u32  balance: u32  0: u32
//! ```
//!
//! Threads write these words without locks, so any of them may be a little wrong, and what is read is
//! believed only as far as it fits the program. It is nothing to rely on for what code does: a promoted call
//! is right for every target.

use crate::model::Profile;
use crate::promote::starts_function;
use restitch_program::{CallId, CallTarget, Program};

/// Bytes of a call's words behind the countdowns.
const SLOT: u64 = 24;
/// Fewer hits than this say nothing about a call.
const LEAST_HITS: u32 = 20;

/// Where the words of votes are, as offsets from the first of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct VoteArea {
    /// How many calls have words.
    pub calls: usize,
}

impl VoteArea {
    /// Bytes of all words.
    pub fn bytes(self) -> u64 {
        self.slots() + SLOT * self.calls as u64
    }
    /// How many executions of call number `i` are left until the next one is looked at: 4 bytes. Below zero,
    /// the next one is.
    pub fn countdown(self, i: usize) -> u64 {
        4 * i as u64
    }
    /// The distance from the call to its candidate: 8 bytes.
    pub fn candidate(self, i: usize) -> u64 {
        self.slots() + SLOT * i as u64
    }
    /// How many executions were looked at: 4 bytes.
    pub fn samples(self, i: usize) -> u64 {
        self.candidate(i) + 8
    }
    /// How many of them called the candidate since it became one: 4 bytes.
    pub fn hits(self, i: usize) -> u64 {
        self.candidate(i) + 12
    }
    /// By how much its votes outweigh those of others: 4 bytes.
    pub fn balance(self, i: usize) -> u64 {
        self.candidate(i) + 16
    }
    fn slots(self) -> u64 {
        (4 * self.calls as u64).next_multiple_of(8)
    }

    /// Reads the words of all calls. What `bytes` do not reach was never looked at.
    pub fn read(self, bytes: &[u8]) -> Vec<Vote> {
        let half = |at: u64| u32::from_le_bytes(word(bytes, at));
        let one = |i| Vote {
            distance: i64::from_le_bytes(word(bytes, self.candidate(i))),
            samples: half(self.samples(i)).into(),
            hits: half(self.hits(i)).into(),
        };
        (0..self.calls).map(one).collect()
    }
}

fn word<const N: usize>(bytes: &[u8], at: u64) -> [u8; N] {
    let at = at as usize;
    bytes.get(at..at + N).and_then(|b| b.try_into().ok()).unwrap_or([0; N])
}

/// What the votes say of one call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Vote {
    /// The distance from the call to the target that it usually has.
    pub distance: i64,
    /// How many executions were looked at.
    pub samples: u64,
    /// How many of them had this target, at least.
    pub hits: u64,
}

impl Vote {
    /// Adds what another process has seen of the same call. Of two targets the one with more hits stays; what
    /// the other one had counts as samples.
    pub fn add(&mut self, other: &Vote) {
        let hits = match self.distance == other.distance {
            true => self.hits + other.hits,
            false => self.hits.max(other.hits),
        };
        if other.hits > self.hits {
            self.distance = other.distance;
        }
        *self = Self { hits, samples: self.samples + other.samples, ..*self };
    }
}

/// Adds what another process has seen of the same calls.
pub fn add_votes(sum: &mut Vec<Vote>, more: &[Vote]) {
    sum.resize(sum.len().max(more.len()), Vote::default());
    sum.iter_mut().zip(more).for_each(|(sum, more)| sum.add(more));
}

/// The indirect calls in the blocks of `scope`, sorted: those that can vote.
pub fn voting_calls(program: &Program, scope: &[bool]) -> Vec<CallId> {
    let calls = program.calls.iter().enumerate();
    let votes = calls.filter(|(_, c)| c.target == CallTarget::Indirect && scope[c.block.index()]);
    votes.map(|(i, _)| CallId(i as u32)).collect()
}

impl Profile {
    /// Takes over the target value profile of `calls`, by their votes: the share that the candidate has of
    /// the samples, for the executions that are counted here. Only functions of the program are targets.
    pub fn adopt_votes(&mut self, program: &Program, calls: &[CallId], votes: &[Vote]) {
        for (&call, vote) in calls.iter().zip(votes) {
            let (Some(site), Some(&count)) = (program.calls.get(call.index()), self.calls.get(call.index()))
            else {
                continue;
            };
            let target = site.at.offset(vote.distance);
            let is_indirect = site.target == CallTarget::Indirect;
            if vote.hits < u64::from(LEAST_HITS) || !is_indirect || !starts_function(program, target) {
                continue;
            }
            let share = u128::from(count) * u128::from(vote.hits.min(vote.samples));
            let executions = share.checked_div(u128::from(vote.samples)).unwrap_or(0);
            if executions > 0 {
                self.add_target(call, target, u64::try_from(executions).unwrap_or(u64::MAX));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::promote::{PromotionLimits, promotions};

    const TEXT: &str = "\
function 0x1000..0x1040 f movable
  0x1000 +64 entry return/1
    call 0x1004 +2 indirect
    call 0x1010 +3 indirect
    call 0x1020 +5 -> 0x1040
function 0x1040..0x1050 g movable
  0x1040 +16 entry return/1
";

    fn vote(distance: i64, samples: u64, hits: u64) -> Vote {
        Vote { distance, samples, hits }
    }

    #[test]
    fn words_do_not_overlap_and_are_read_where_they_are() {
        for calls in 0..5 {
            let area = VoteArea { calls };
            let mut bytes = vec![0u8; area.bytes() as usize];
            for i in 0..calls {
                let words = [
                    (area.countdown(i), 4),
                    (area.candidate(i), 8),
                    (area.samples(i), 4),
                    (area.hits(i), 4),
                    (area.balance(i), 4),
                ];
                for (at, len) in words {
                    assert!(at.is_multiple_of(len));
                    let range = at as usize..(at + len) as usize;
                    assert!(bytes[range.clone()].iter().all(|b| *b == 0));
                    bytes[range].fill(i as u8 + 1);
                }
            }
            for (i, read) in area.read(&bytes).iter().enumerate() {
                let byte = 0x0101_0101 * (i as u64 + 1);
                assert_eq!(*read, vote((byte << 32 | byte) as i64, byte, byte));
            }
            assert_eq!(area.read(&[]), vec![Vote::default(); calls]);
        }
    }

    #[test]
    fn what_processes_have_seen_is_added() {
        let mut sum = Vote::default();
        sum.add(&vote(5, 10, 9));
        sum.add(&vote(5, 100, 90));
        assert_eq!(sum, vote(5, 110, 99));
        sum.add(&vote(-7, 50, 50));
        assert_eq!(sum, vote(5, 160, 99));
        sum.add(&vote(8, 1000, 900));
        assert_eq!(sum, vote(8, 1160, 900));
    }

    fn adopted(count: u64, vote: Vote) -> Vec<(u64, u64)> {
        let program = Program::from_text(TEXT).unwrap();
        let mut profile = Profile::empty(&program);
        profile.calls = vec![count, 0, count];
        profile.adopt_votes(&program, &[CallId(0)], &[vote]);
        let targets = profile.targets.values().flatten();
        targets.map(|(to, n)| (to.get(), *n)).collect()
    }

    #[test]
    fn the_share_of_the_samples_is_that_of_the_executions() {
        assert_eq!(adopted(61_000, vote(0x3c, 1000, 950)), [(0x1040, 57_950)]);
        assert_eq!(adopted(61_000, vote(0x3c, 19, 19)), [], "too few to tell");
        assert_eq!(adopted(61_000, vote(0x3d, 1000, 950)), [], "inside of a function");
        assert_eq!(adopted(61_000, vote(i64::MAX, 1000, 950)), []);
        assert_eq!(adopted(0, vote(0x3c, 1000, 950)), []);
        assert_eq!(
            adopted(100, vote(0x3c, 0, u64::from(u32::MAX))),
            [],
            "words of threads that lost updates"
        );
        assert_eq!(adopted(100, vote(0x3c, 30, 40)), [(0x1040, 100)]);
    }

    #[test]
    fn a_call_is_promoted_by_its_votes() {
        let program = Program::from_text(TEXT).unwrap();
        assert_eq!(voting_calls(&program, &[true, true]), [CallId(0), CallId(1)]);
        assert_eq!(voting_calls(&program, &[false, true]), []);
        for (hits, expected) in [(900, 1), (890, 0)] {
            let mut profile = Profile::empty(&program);
            profile.calls = vec![61_000, 0, 0];
            profile.adopt_votes(&program, &[CallId(0)], &[vote(0x3c, 1000, hits)]);
            assert_eq!(promotions(&program, &profile, &PromotionLimits::default()).len(), expected);
        }
    }
}
