//! What lies below the stack pointers of threads.
//!
//! Problem: it is dead, with return addresses of calls that are long over, unless the program keeps stacks of
//! coroutines there, in the room that a thread's own stack has left. Idea: somebody has to know where such a
//! coroutine rests. So a word below a stack pointer counts if something alive points to it or to what is
//! below it in that stack: from anywhere else in memory, from a register, or from what is pointed to itself;
//! also as the C library keeps it in a `jmp_buf` (`PTR_MANGLE`). What is next to the stack pointer is dead in
//! any case: a signal's frame would be written there.
//!
//! Limits: pointers to what is dead keep a version mapped, until it is written over. Those that are kept in
//! another form are not found.

use crate::threads::ThreadView;
use crate::words::WordFinder;
use restitch_address::{Avma, AvmaRange};
use restitch_tracee::Memory;

/// Below a stack pointer there is room for so many bytes: a signal's frame has up to 4 KiB (AVX-512).
const NEXT: u64 = 4096;
/// Where a thread's key for pointers is, from its thread-local data on (`pointer_guard` in glibc's
/// `tcbhead_t`).
const POINTER_GUARD: u64 = 0x30;

/// The parts of stacks below stack pointers, and what threads know of them.
#[derive(Debug, Clone, Default)]
pub(crate) struct Below {
    /// All of such a part but what is next to the stack pointer.
    parts: Vec<AvmaRange>,
    /// What registers hold.
    registers: Vec<Avma>,
    /// The key by which the C library hides pointers.
    key: u64,
}

/// A word below a stack pointer, and the range that it points into.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Doubt {
    pub at: Avma,
    pub range: AvmaRange,
}

impl Below {
    /// `dead`: what is below a stack pointer, by thread. Gives what is dead in any case as well.
    pub fn of(memory: &Memory, threads: &[ThreadView], dead: Vec<AvmaRange>) -> (Self, Vec<AvmaRange>) {
        let halves = dead.into_iter().map(|part| {
            let middle = Avma::new(part.end.get().saturating_sub(NEXT)).max(part.start);
            (AvmaRange::between(part.start, middle), AvmaRange::between(middle, part.end))
        });
        let (parts, next): (Vec<AvmaRange>, Vec<AvmaRange>) = halves.unzip();
        let registers = threads.iter().flat_map(|t| {
            let r = &t.registers;
            [
                r.rax, r.rbx, r.rcx, r.rdx, r.rsi, r.rdi, r.rbp, r.r8, r.r9, r.r10, r.r11, r.r12, r.r13,
                r.r14, r.r15,
            ]
        });
        let registers = registers.map(Avma::new).collect();
        let key = threads.first().and_then(|t| memory.read_u64(t.registers.fs_base + POINTER_GUARD).ok());
        (Self { parts, registers, key: key.unwrap_or_default() }, next)
    }

    /// Whether `at` is in one of the parts.
    pub fn contains(&self, at: Avma) -> bool {
        self.part(at).is_some()
    }

    fn part(&self, at: Avma) -> Option<usize> {
        self.parts.iter().position(|part| part.contains(at))
    }
}

/// What points into parts of stacks in which there are doubtful words.
pub(crate) struct Pointers<'a> {
    below: &'a Below,
    finder: WordFinder,
    /// By part: whether there are doubtful words, and the lowest place that something alive points to.
    doubtful: Vec<bool>,
    lowest: Vec<Option<Avma>>,
    /// Pointers that are in such parts themselves: place and value.
    within: Vec<(Avma, Avma)>,
}

impl<'a> Pointers<'a> {
    pub fn to(below: &'a Below, doubts: &[Doubt]) -> Self {
        let is_doubtful = |part: &AvmaRange| doubts.iter().any(|doubt| part.contains(doubt.at));
        let doubtful: Vec<bool> = below.parts.iter().map(is_doubtful).collect();
        // The very first byte is where the stack ends: it may be noted as that.
        let wanted = below.parts.iter().zip(&doubtful).filter(|(_, is)| **is);
        let wanted: Vec<AvmaRange> =
            wanted.map(|(part, _)| AvmaRange::between(part.start + 1, part.end)).collect();
        let mut out = Self {
            below,
            finder: WordFinder::of(&wanted),
            lowest: vec![None; doubtful.len()],
            doubtful,
            within: Vec::new(),
        };
        below.registers.iter().for_each(|register| out.lives(*register));
        out
    }

    /// Something alive points to `to`.
    fn lives(&mut self, to: Avma) {
        if let Some(part) = self.below.part(to).filter(|part| self.below.parts[*part].start != to) {
            let lowest = self.lowest[part].get_or_insert(to);
            *lowest = to.min(*lowest);
        }
    }

    /// Looks through `bytes`, which stand at `start`; of what is `dead` nobody reads anything.
    pub fn look_through(&mut self, start: Avma, bytes: &[u8], dead: impl Fn(Avma) -> bool) {
        for (at, to) in self.finder.words_at(start, bytes) {
            match self.below.part(at) {
                _ if dead(at) => {}
                Some(part) if self.doubtful[part] => self.within.push((at, to)),
                _ => self.lives(to),
            }
        }
        // (A `jmp_buf` is aligned.)
        let skipped = (start.get().wrapping_neg() % 8) as usize;
        for word in bytes.get(skipped..).unwrap_or_default().as_chunks::<8>().0 {
            let to = Avma::new(u64::from_le_bytes(*word).rotate_right(17) ^ self.below.key);
            if to.get() >> 47 == 0 && self.below.contains(to) {
                self.lives(to);
            }
        }
    }

    /// Those of `doubts` that somebody may come back to.
    pub fn alive<'d>(mut self, doubts: &'d [Doubt]) -> impl Iterator<Item = &'d Doubt> + use<'a, 'd> {
        let within = std::mem::take(&mut self.within);
        loop {
            let before = self.lowest.clone();
            for (at, to) in &within {
                if self.is_alive(*at) {
                    self.lives(*to);
                }
            }
            if before == self.lowest {
                break;
            }
        }
        doubts.iter().filter(move |doubt| self.is_alive(doubt.at))
    }

    fn is_alive(&self, at: Avma) -> bool {
        self.below.part(at).and_then(|part| self.lowest[part]).is_some_and(|lowest| lowest <= at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: u64 = 0x1234_5678_9abc_def0;

    fn range(from: u64, to: u64) -> AvmaRange {
        AvmaRange::between(Avma::new(from), Avma::new(to))
    }

    /// Whether the word at 0x1_8000 is alive, with these words (place, value), and this register.
    fn is_alive(words: &[(u64, u64)], register: u64) -> bool {
        let below = Below {
            parts: vec![range(0x1_0000, 0x2_0000), range(0x3_0000, 0x4_0000)],
            registers: vec![Avma::new(register)],
            key: KEY,
        };
        let doubts = [Doubt { at: Avma::new(0x1_8000), range: range(0x5_0000, 0x6_0000) }];
        let mut pointers = Pointers::to(&below, &doubts);
        for (at, word) in words {
            pointers.look_through(Avma::new(*at), &word.to_le_bytes(), |at| at.get() >= 0x9_0000);
        }
        pointers.alive(&doubts).count() == 1
    }

    #[test]
    fn only_what_something_alive_points_below_counts() {
        assert!(!is_alive(&[], 0));
        for to in [0x1_0001, 0x1_7ff0, 0x1_8000] {
            assert!(is_alive(&[], to), "{to:#x}: a register");
            for at in [0x8_0000, 0x8_0004, 0x3_1000] {
                assert!(is_alive(&[(at, to)], 0), "{to:#x} at {at:#x}");
            }
            assert!(!is_alive(&[(0x9_0000, to)], 0), "what is dead");
            assert!(is_alive(&[(0x8_0000, (to ^ KEY).rotate_left(17))], 0), "as in a jmp_buf");
        }
        for to in [0x1_0000, 0x1_8001, 0x2_0000, 0x3_8000] {
            assert!(!is_alive(&[(0x8_0000, to)], to), "{to:#x}");
        }
    }

    #[test]
    fn pointers_below_count_if_something_alive_points_there() {
        let chain = [(0x1_9000, 0x1_7000), (0x1_9800, 0x1_9000)];
        assert!(!is_alive(&chain, 0));
        assert!(is_alive(&chain, 0x1_9000));
        assert!(is_alive(&chain, 0x1_9100), "what is above it in that stack");
        assert!(!is_alive(&chain, 0x1_9801));
    }
}
