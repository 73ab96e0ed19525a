//! A conditional branch over the `lock` prefix of the next instruction, as one instruction: a lock skip.
//!
//! Problem: glibc's atomic operations of single-threaded processes are `je .+3; lock cmpxchg ...`: the branch
//! goes one byte into the next instruction, past its prefix. Blocks have no boundary there, so a function
//! with that idiom could not be cut into blocks. Idea: with or without the prefix the same is computed, so
//! the two instructions are taken as one that only reads the condition as well. As long as their bytes stay
//! together they can be copied like any other instruction.
//!
//! Limits: a branch from elsewhere to the `lock` or behind it is one into the middle of an instruction, as
//! before. Reference: glibc 2.36, sysdeps/x86/atomic-machine.h.

use crate::decode::{Flow, Insn, classify};
use iced_x86::{Decoder, DecoderOptions, Instruction};
use restitch_address::Svma;

/// Length in bytes of the branch.
pub(crate) const SKIP: u8 = 2;

/// Where a lock skip is, and what its branch is like.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LockSkip {
    branch: Insn,
}

impl LockSkip {
    /// The lock skip at the start of `bytes`, which stand at `at`.
    pub fn at(bytes: &[u8], at: Svma) -> Option<Self> {
        let [0x70..=0x7f, 1, 0xf0, ..] = bytes else { return None };
        let decoded = |from: usize| {
            let ip = at + from as u64;
            let instruction = Decoder::with_ip(64, &bytes[from..], ip.get(), DecoderOptions::NONE).decode();
            (!instruction.is_invalid()).then_some(instruction)
        };
        let (branch, locked, bare) = (decoded(0)?, decoded(2)?, decoded(3)?);
        let plain = |i: &Instruction| classify(i).flow == Flow::Next;
        // The decoder accepts the prefix only where the processor does.
        let same = locked.has_lock_prefix() && !bare.has_lock_prefix() && locked.code() == bare.code();
        let whole = locked.next_ip() == bare.next_ip();
        (same && whole && plain(&locked) && plain(&bare)).then(|| Self { branch: classify(&branch) })
    }

    /// The second instruction, of the bytes that the lock skip starts.
    pub fn locked<'a>(&self, bytes: &'a [u8]) -> &'a [u8] {
        &bytes[usize::from(SKIP)..]
    }
    /// Where that is.
    pub fn locked_at(&self) -> Svma {
        self.branch.end()
    }
    /// The lock skip as one instruction, whose second one is `locked`.
    pub fn insn(&self, locked: &Insn) -> Insn {
        Insn {
            at: self.branch.at,
            len: SKIP + locked.len,
            flow: Flow::Next,
            flags_read: self.branch.flags_read | locked.flags_read,
            ..*locked
        }
    }
}

/// Like [`crate::scan`], but a conditional branch over the `lock` prefix of the next instruction
/// (`je .+3; lock cmpxchg ...`) and that instruction come as one: of both lengths, with [`Flow::Next`],
/// reading the flags of both. Its bytes have to stay together.
///
/// # Errors
/// As for [`crate::scan`].
pub fn scan_lock_skips(bytes: &[u8], at: Svma, mut sink: impl FnMut(Insn)) -> Result<(), Svma> {
    let mut open: Option<LockSkip> = None;
    crate::decode::scan(bytes, at, |insn| {
        if let Some(skip) = open.take() {
            return sink(skip.insn(&insn));
        }
        let skips = insn.len == SKIP && matches!(insn.flow, Flow::Conditional(_, to) if to == insn.end() + 1);
        let from = insn.at.offset_from(at) as usize;
        open = skips.then(|| bytes.get(from..).and_then(|rest| LockSkip::at(rest, insn.at))).flatten();
        if open.is_none() {
            sink(insn);
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decode::scan;
    use crate::ops::decode_one;
    use crate::relocate::relocate_field;
    use proptest::prelude::*;

    fn joined(bytes: &[u8]) -> Vec<Insn> {
        let mut out = Vec::new();
        let _ = scan_lock_skips(bytes, Svma::new(0x1000), |insn| out.push(insn));
        out
    }

    /// `je .+3; lock cmpxchg %ecx,0x1234(%rip); ret`
    const FREE: &[u8] = &[0x74, 1, 0xf0, 0x0f, 0xb1, 0x0d, 0x34, 0x12, 0, 0, 0xc3];

    #[test]
    fn the_branch_and_the_locked_instruction_are_one() {
        let found = joined(FREE);
        assert_eq!(found.len(), 2);
        assert_eq!((found[0].len, found[0].flow), (10, Flow::Next));
        assert_eq!(found[0].names, Some(Svma::new(0x100a + 0x1234)));
        assert_eq!(found[0].flags_written, crate::ALL_FLAGS);
        // ZF, which the branch reads.
        assert_ne!(found[0].flags_read, 0);
        let (insn, field) = relocate_field(FREE, Svma::new(0x1000)).unwrap();
        assert_eq!((insn, field.unwrap().offset), (found[0], 6));
        assert_eq!(field.unwrap().target, Svma::new(0x100a + 0x1234));
        let decoded = decode_one(FREE, Svma::new(0x1000)).unwrap();
        assert_eq!(decoded.insn, found[0]);
        assert_eq!(decoded.writes, 1, "rax");
        // As the processor sees them there are three.
        let mut all = 0;
        scan(FREE, Svma::new(0x1000), |_| all += 1).unwrap();
        assert_eq!(all, 3);
    }

    #[test]
    fn other_branches_stay_branches() {
        let first = |bytes: &[u8]| joined(bytes)[0];
        for bytes in [
            &[0x74, 2, 0xf0, 0x0f, 0xb1, 0x11][..],   // to somewhere else
            &[0x74, 1, 0xf3, 0x0f, 0xb1, 0x11],       // over another prefix
            &[0x74, 1, 0xc3, 0x90],                   // over a whole instruction
            &[0x74, 1, 0xf0, 0x90],                   // `lock nop` is none
            &[0x74, 1, 0xf0, 0xf0, 0x0f, 0xb1, 0x11], // over one prefix of two
            &[0x74, 1, 0xf0, 0x0f, 0xb1],             // cut off
            &[0xe3, 1, 0xf0, 0x0f, 0xb1, 0x11],       // jrcxz
            &[0xeb, 1, 0xf0, 0x0f, 0xb1, 0x11],       // jmp
        ] {
            assert_eq!(first(bytes).len, 2, "{bytes:x?}");
            assert_ne!(first(bytes).flow, Flow::Next, "{bytes:x?}");
        }
        assert_eq!(first(&[0x75, 1, 0xf0, 0xff, 0x0a]).len, 5, "jne over lock decl (%rdx)");
    }

    proptest! {
        /// Lock skips are what the plain view has, two and two.
        #[test]
        fn lock_skips_are_joined_instructions(mut bytes in proptest::collection::vec(any::<u8>(), 0..40), at in 0usize..30) {
            for (i, byte) in [0x74, 1, 0xf0].into_iter().enumerate() {
                if let Some(place) = bytes.get_mut(at + i) {
                    *place = byte;
                }
            }
            let mut plain = Vec::new();
            let end = scan(&bytes, Svma::new(0x1000), |insn| plain.push(insn));
            let mut joined = Vec::new();
            // A lock skip is taken only if it decodes as a whole, so both end at the same place.
            prop_assert_eq!(scan_lock_skips(&bytes, Svma::new(0x1000), |insn| joined.push(insn)), end);
            let mut plain = plain.into_iter();
            for insn in joined {
                let first = plain.next().unwrap();
                if first == insn {
                    continue;
                }
                let second = plain.next().unwrap();
                prop_assert_eq!(insn.at, first.at);
                prop_assert_eq!(insn.end(), second.end());
                prop_assert_eq!(first.flow, Flow::Conditional(crate::condition::Condition::Equal, second.at + 1));
                prop_assert_eq!(insn.flags_read, first.flags_read | second.flags_read);
                let rest = &bytes[insn.at.offset_from(Svma::new(0x1000)) as usize..];
                prop_assert_eq!(relocate_field(rest, insn.at).map(|r| r.0), Some(insn));
            }
            prop_assert!(plain.next().is_none());
        }
    }
}
