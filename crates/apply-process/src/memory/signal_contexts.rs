//! Contexts of threads that signals have interrupted, in a process's memory, found while it runs.
//!
//! Problem: what a signal has interrupted may go on much later, and on another thread, where the handler has
//! switched stacks (user threads that a timer preempts). Its program counter may be at any instruction, and
//! is on a stack that no thread is on, or wherever the handler has copied it to. Idea: the kernel stores a
//! context in one form (`struct sigcontext_64`, `arch/x86/include/uapi/asm/sigcontext.h`), in which the
//! program counter, the flags and the segment selectors follow one another, and the selectors are always the
//! same for 64-bit code. Nothing else looks like these three words.
//!
//! Limits: programs that keep such program counters in a form of their own alone; `ucontext_t` of
//! `getcontext` has no selectors, and returns like a function. More memory than [`LIMITS`]: mappings are
//! looked through by size, small ones first, as stacks mostly are.

use crate::error::ProcessError;
use crate::memory::private_memory::{self, Limits, is_private};
use crate::memory::search::{MOST_TEDIOUS, gently};
use restitch_address::{Avma, AvmaRange};
use restitch_procfs::{self as procfs, Mapping};
use restitch_tracee::Memory;
use std::ops::ControlFlow;

/// What is looked through, some 2.5 GB in a second of processor time.
const LIMITS: Limits = Limits { bytes: 8 << 30, swapped: 256 << 20 };
/// Most contexts that are told: it makes no difference whether there are more.
const MOST: usize = 1 << 16;

/// `cs`, `gs`, `fs` and `ss`, 16 bits each, as the kernel stores them for 64-bit code: in general, and as a
/// guest of Xen without hardware help (`FLAT_USER_CS64`, `FLAT_USER_SS64`).
const SELECTORS: [u64; 2] = [0x002b_0000_0000_0033, 0xe02b_0000_0000_e033];
/// Bytes from the start of the `ucontext` to its parts: address and length of the alternate stack; program
/// counter, flags, selectors.
const STACK: usize = 16;
const STACK_LEN: usize = 32;
const RIP: usize = 168;
const FLAGS: usize = 176;
const CONTEXT_SELECTORS: usize = 184;
const LEN: usize = 192;
/// The flag that is always set, and those that there are (Intel SDM volume 1, 3.4.3).
const SET_FLAG: u64 = 2;
const ALL_FLAGS: u64 = (1 << 22) - 1;

/// A context that a signal has interrupted; whether it will go on, it does not tell.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SignalContext {
    /// Where its program counter is stored.
    pub slot: Avma,
    /// Its program counter.
    pub rip: Avma,
    /// The thread's alternate signal stack, if the context is on it.
    pub alternate: Option<Avma>,
}

/// The contexts in the private memory of process `pid`.
pub(crate) fn find(pid: i32) -> Result<Vec<SignalContext>, ProcessError> {
    // Without handlers there are none.
    if procfs::status(pid)?.caught_signals == Some(0) {
        return Ok(Vec::new());
    }
    gently(pid, || {
        let maps = procfs::maps(pid)?;
        let code: Vec<AvmaRange> = maps.iter().filter(|m| m.permissions.execute).map(|m| m.range).collect();
        let mut private: Vec<Mapping> = maps.into_iter().filter(is_private).collect();
        if private_memory::tedious(pid, &private) > MOST_TEDIOUS {
            return Ok(Vec::new());
        }
        private.sort_by_key(|m| m.range.len());
        let mut found = Vec::new();
        private_memory::read(pid, &private, LIMITS, |memory, at, bytes| {
            for at in selectors(at, bytes) {
                found.extend(context(memory, at).filter(|c| code.iter().any(|range| range.contains(c.rip))));
            }
            if found.len() < MOST { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        })?;
        Ok(found)
    })
}

/// Where in `bytes`, which stand at `start`, selectors may be: at multiples of 8.
fn selectors(start: Avma, bytes: &[u8]) -> impl Iterator<Item = Avma> {
    const PIECE: usize = 512;
    let is_one = |word: &[u8; 8]| SELECTORS.contains(&u64::from_le_bytes(*word));
    // Most pieces have none, which is seen without a branch for each word.
    let has_one = move |piece: &[u8]| piece.as_chunks().0.iter().fold(false, |any, word| any | is_one(word));
    let first = (start.get().wrapping_neg() % 8) as usize;
    let pieces = bytes
        .get(first..)
        .unwrap_or_default()
        .chunks(PIECE)
        .enumerate()
        .filter(move |(_, piece)| has_one(piece));
    pieces.flat_map(move |(number, piece)| {
        let words = piece.as_chunks().0.iter().enumerate().filter(move |(_, word)| is_one(word));
        words.map(move |(i, _)| start + (first + number * PIECE + 8 * i) as u64)
    })
}

/// The context whose selectors are at `at`, if it is one.
fn context(memory: &Memory, at: Avma) -> Option<SignalContext> {
    let start = at - CONTEXT_SELECTORS as u64;
    // What lies in front of a copy of the registers alone may be nothing.
    let bytes = memory.read_vec(start, LEN).or_else(|_| {
        let registers = memory.read_vec(start + RIP as u64, LEN - RIP)?;
        Ok::<_, restitch_tracee::TraceError>([vec![0; RIP], registers].concat())
    });
    parse(start, bytes.ok()?.first_chunk()?)
}

/// The context that `bytes`, which stand at `start`, are; none if they are none.
fn parse(start: Avma, bytes: &[u8; LEN]) -> Option<SignalContext> {
    let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes"));
    let flags = word(FLAGS);
    let is_flags = flags & SET_FLAG != 0 && flags & !ALL_FLAGS == 0;
    if !is_flags || !SELECTORS.contains(&word(CONTEXT_SELECTORS)) {
        return None;
    }
    let stack = Avma::new(word(STACK));
    let is_alternate = stack <= start && start.offset_from(stack) as u64 <= word(STACK_LEN);
    Some(SignalContext {
        slot: start + RIP as u64,
        rip: Avma::new(word(RIP)),
        alternate: is_alternate.then_some(stack),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(words: &[(usize, u64)]) -> [u8; LEN] {
        let mut out = [0; LEN];
        for (at, word) in words {
            out[*at..*at + 8].copy_from_slice(&word.to_le_bytes());
        }
        out
    }

    #[test]
    fn a_context_is_what_the_kernel_stores() {
        let start = Avma::new(0x10_0000);
        let plain = [(RIP, 0x40_1234), (FLAGS, 0x246), (CONTEXT_SELECTORS, SELECTORS[0])];
        let found = SignalContext { slot: start + 168, rip: Avma::new(0x40_1234), alternate: None };
        assert_eq!(parse(start, &bytes(&plain)), Some(found));
        let more = |words: &[(usize, u64)]| parse(start, &bytes(&[&plain[..], words].concat()));
        let alternate = |at: u64| more(&[(STACK, at), (STACK_LEN, 0x1000)]).and_then(|found| found.alternate);
        assert_eq!(alternate(0xf_f800), Some(Avma::new(0xf_f800)));
        assert_eq!(alternate(0xf_e000), None, "it ends below");
        assert_eq!(alternate(0x10_0800), None, "it begins above");
        assert_eq!(more(&[(FLAGS, 0)]), None);
        assert_eq!(more(&[(FLAGS, 0x40_1234)]), None);
        assert_eq!(more(&[(CONTEXT_SELECTORS, 0x2b)]), None);
    }

    #[test]
    fn selectors_are_found_wherever_they_stand() {
        let mut memory = vec![0; 4096];
        for at in [0, 504, 512, 4088] {
            memory[at..at + 8].copy_from_slice(&SELECTORS[at / 8 % 2].to_le_bytes());
        }
        memory[1004..1012].copy_from_slice(&SELECTORS[0].to_le_bytes());
        let found = |start: u64, bytes| selectors(Avma::new(start), bytes).map(Avma::get).collect::<Vec<_>>();
        assert_eq!(found(0x1000, &memory), [0x1000, 0x11f8, 0x1200, 0x1ff8]);
        // A piece of memory begins with the end of the one before it.
        assert_eq!(found(0x1001, &memory[1..]), [0x11f8, 0x1200, 0x1ff8]);
        assert_eq!(found(0x1ff9, &memory[..4]), [0; 0]);
    }
}
