//! What an instruction set has to give: the contract behind which another one can stand beside this one.
//!
//! Numbered duties:
//! 1. **Files**: the machine of ELF headers, and what relocations do.
//! 2. **Decoding**, a stretch at a time, to the common record [`Insn`]: length, [`Flow`], status flags, the
//!    address that it names, what it does beside the stack pointer.
//! 3. **Branches**: conditions with their opposites and codes for written forms; the reach of direct
//!    branches.
//! 4. **Patches**: the bytes of a redirect, one length for all; made for a distance, and read back. A
//!    breakpoint is no longer than one.
//! 5. **Entries**: how many bytes at the start of a function have to stay, since indirect branches may lead
//!    nowhere else.
//! 6. **Gaps**: what assemblers and linkers fill with.
//! 7. **The kernel**: which instructions enter it.
//!
//! What is outside of this crate since it is no question of bytes (registers of a stop, the first row of an
//! unwinder, routines of machine code) is listed in `docs/extending.md`.
//!
//! [`keeps_contract`] tries an instruction set: it is a test for each.

use crate::condition::Condition;
use crate::decode::{Flow, Insn, scan};
use crate::elf::{self, RelocationType};
use crate::{encode, entry, filler, kernel, patch};
use restitch_address::Svma;

/// An instruction set.
pub trait Isa {
    /// A condition of a branch.
    type Condition: Copy + Eq + std::fmt::Debug;
    /// The bytes of a redirect.
    type Patch: Copy + Eq + std::fmt::Debug;

    /// Duty 1: the machine in the header of its ELF files.
    const MACHINE: u16;
    /// Duty 2: instructions begin at multiples of this.
    const ALIGNMENT: u64;
    /// Duty 2: bytes of the longest instruction.
    const LONGEST: usize;
    /// Duty 4: bytes of a patch.
    const PATCH: usize;
    /// Duty 4: what stops who executes it.
    const BREAKPOINT: &'static [u8];

    /// Duty 1: what relocations of type `number` do; none for those that name no place that this program asks
    /// for.
    fn relocation_type(number: u32) -> Option<RelocationType>;
    /// Duty 2: decodes `code`, which stands at `at`, to the end.
    ///
    /// # Errors
    /// The address of the first bytes that are no instruction.
    fn scan(code: &[u8], at: Svma, sink: impl FnMut(Insn<Self::Condition>)) -> Result<(), Svma>;
    /// Duty 3: all conditions.
    fn conditions() -> impl Iterator<Item = Self::Condition>;
    /// Duty 3: the condition that holds where `condition` does not.
    fn inverted(condition: Self::Condition) -> Self::Condition;
    /// Duty 3: the number of a condition in written forms, and back.
    fn condition_code(condition: Self::Condition) -> u16;
    /// Duty 3: see [`Isa::condition_code`].
    fn condition_from_code(code: u16) -> Option<Self::Condition>;
    /// Duty 3: a conditional branch over `distance` bytes, of the form with the widest reach; none beyond
    /// that.
    fn branch_if(condition: Self::Condition, distance: i64) -> Option<Vec<u8>>;
    /// Duty 4: a jump over `distance` bytes; none beyond its reach.
    fn jump(distance: i64) -> Option<Self::Patch>;
    /// Duty 4: over how many bytes `patch` jumps, if it is one.
    fn as_jump(patch: Self::Patch) -> Option<i64>;
    /// Duty 4: its bytes.
    fn bytes(patch: &Self::Patch) -> &[u8];
    /// Duty 5: bytes of the marker of indirect branch targets that `code` begins with.
    fn entry_marker(code: &[u8]) -> usize;
    /// Duty 6: length of the piece of filler at the start of `code`, 0 if there is none.
    fn filler_len(code: &[u8]) -> usize;
    /// Duty 7: whether the instruction that `code` begins with enters the kernel.
    fn enters_kernel(code: &[u8]) -> bool;
}

/// The instruction set of this crate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct X86_64;

impl Isa for X86_64 {
    type Condition = Condition;
    type Patch = patch::Patch;

    const MACHINE: u16 = elf::MACHINE;
    const ALIGNMENT: u64 = 1;
    const LONGEST: usize = crate::LONGEST;
    const PATCH: usize = patch::Patch::LEN;
    const BREAKPOINT: &'static [u8] = &[patch::BREAKPOINT];

    fn relocation_type(number: u32) -> Option<RelocationType> {
        elf::relocation_type(number)
    }
    fn scan(code: &[u8], at: Svma, sink: impl FnMut(Insn)) -> Result<(), Svma> {
        scan(code, at, sink)
    }
    fn conditions() -> impl Iterator<Item = Condition> {
        Condition::ALL.into_iter()
    }
    fn inverted(condition: Condition) -> Condition {
        condition.inverted()
    }
    fn condition_code(condition: Condition) -> u16 {
        condition.code().into()
    }
    fn condition_from_code(code: u16) -> Option<Condition> {
        Condition::from_code(u8::try_from(code).ok()?)
    }
    fn branch_if(condition: Condition, distance: i64) -> Option<Vec<u8>> {
        let displacement = i32::try_from(distance.checked_sub(encode::JCC_NEAR.into())?).ok()?;
        let mut out = Vec::with_capacity(encode::JCC_NEAR as usize);
        encode::jcc_near(&mut out, condition, displacement);
        Some(out)
    }
    fn jump(distance: i64) -> Option<patch::Patch> {
        patch::Patch::jump(distance)
    }
    fn as_jump(patch: patch::Patch) -> Option<i64> {
        patch.as_jump()
    }
    fn bytes(patch: &patch::Patch) -> &[u8] {
        patch.bytes()
    }
    fn entry_marker(code: &[u8]) -> usize {
        entry::entry_marker(code)
    }
    fn filler_len(code: &[u8]) -> usize {
        filler::filler_len(code)
    }
    fn enters_kernel(code: &[u8]) -> bool {
        kernel::enters_kernel(code)
    }
}

/// Tries what can be tried of the contract without knowing the instruction set.
///
/// # Panics
/// If a duty is not kept, with the duty's number.
pub fn keeps_contract<I: Isa>() {
    assert!(I::relocation_type(u32::MAX).is_none(), "duty 1: all numbers mean something");
    let at = Svma::new(1 << 40);
    let decoded = |code: &[u8]| {
        let mut all = Vec::new();
        let end = I::scan(code, at, |insn| all.push(insn));
        end.ok()
            .filter(|()| all.iter().map(|i| usize::from(i.len)).sum::<usize>() == code.len())
            .map(|()| all)
    };
    let one = |code: &[u8]| decoded(code).filter(|all| all.len() == 1).map(|all| all[0]);
    assert!(I::ALIGNMENT.is_power_of_two() && I::ALIGNMENT as usize <= I::LONGEST, "duty 2: lengths");
    for condition in I::conditions() {
        let (opposite, code) = (I::inverted(condition), I::condition_code(condition));
        assert!(
            opposite != condition && I::inverted(opposite) == condition,
            "duty 3: {condition:?} inverted"
        );
        assert_eq!(I::condition_from_code(code), Some(condition), "duty 3: {condition:?} written and read");
        let branch = I::branch_if(condition, 0x1000).expect("duty 3: a branch over a page");
        let flow = one(&branch).map(|insn| insn.flow);
        assert_eq!(flow, Some(Flow::Conditional(condition, at + 0x1000)), "duty 3: {condition:?} decoded");
        assert_ne!(I::branch_if(opposite, 0x1000), Some(branch), "duty 3: the opposite is another branch");
        assert!(I::branch_if(condition, i64::MAX).is_none(), "duty 3: reach");
    }
    for distance in [0, 0x40, 0x1000, -0x1000, 0x10_0000, -0x10_0000] {
        let patch = I::jump(distance).expect("duty 4: a jump over a megabyte");
        assert_eq!(I::as_jump(patch), Some(distance), "duty 4: read back");
        assert_eq!(I::bytes(&patch).len(), I::PATCH, "duty 4: one length");
        let flow = one(I::bytes(&patch)).map(|insn| insn.flow);
        assert_eq!(flow, Some(Flow::Jump(at.offset(distance))), "duty 4: decoded");
    }
    assert!(I::jump(i64::MAX).is_none() && I::jump(i64::MIN).is_none(), "duty 4: reach");
    assert!(I::PATCH.is_multiple_of(I::ALIGNMENT as usize), "duty 4: whole instructions");
    let breakpoint = one(I::BREAKPOINT).expect("duty 4: a breakpoint is an instruction");
    assert_eq!(breakpoint.flow, Flow::Stop, "duty 4: a breakpoint stops");
    assert!(I::BREAKPOINT.len() <= I::PATCH, "duty 4: a breakpoint is no longer than a patch");
    assert_eq!(
        (I::entry_marker(&[]), I::filler_len(&[])),
        (0, 0),
        "duties 5 and 6: nothing begins with nothing"
    );
    assert!(!I::enters_kernel(&[]), "duty 7: nothing enters nothing");
    let jump = I::jump(0x1000).expect("duty 4: a jump over a page");
    assert_eq!(I::filler_len(I::bytes(&jump)), 0, "duty 6: a jump is no filler");
    assert!(!I::enters_kernel(I::bytes(&jump)), "duty 7: a jump does not");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn x86_64_keeps_the_contract() {
        keeps_contract::<X86_64>();
    }

    /// One whose jumps count from the instruction's end, as the processor's do.
    #[derive(Debug)]
    struct FromTheEnd;

    impl Isa for FromTheEnd {
        type Condition = Condition;
        type Patch = patch::Patch;
        const MACHINE: u16 = X86_64::MACHINE;
        const ALIGNMENT: u64 = X86_64::ALIGNMENT;
        const LONGEST: usize = X86_64::LONGEST;
        const PATCH: usize = X86_64::PATCH;
        const BREAKPOINT: &'static [u8] = X86_64::BREAKPOINT;
        fn relocation_type(number: u32) -> Option<RelocationType> {
            X86_64::relocation_type(number)
        }
        fn scan(code: &[u8], at: Svma, sink: impl FnMut(Insn)) -> Result<(), Svma> {
            X86_64::scan(code, at, sink)
        }
        fn conditions() -> impl Iterator<Item = Condition> {
            X86_64::conditions()
        }
        fn inverted(condition: Condition) -> Condition {
            X86_64::inverted(condition)
        }
        fn condition_code(condition: Condition) -> u16 {
            X86_64::condition_code(condition)
        }
        fn condition_from_code(code: u16) -> Option<Condition> {
            X86_64::condition_from_code(code)
        }
        fn branch_if(condition: Condition, distance: i64) -> Option<Vec<u8>> {
            X86_64::branch_if(condition, distance)
        }
        fn jump(distance: i64) -> Option<patch::Patch> {
            X86_64::jump(distance.checked_add(5)?)
        }
        fn as_jump(patch: patch::Patch) -> Option<i64> {
            X86_64::as_jump(patch).map(|distance| distance - 5)
        }
        fn bytes(patch: &patch::Patch) -> &[u8] {
            X86_64::bytes(patch)
        }
        fn entry_marker(code: &[u8]) -> usize {
            X86_64::entry_marker(code)
        }
        fn filler_len(code: &[u8]) -> usize {
            X86_64::filler_len(code)
        }
        fn enters_kernel(code: &[u8]) -> bool {
            X86_64::enters_kernel(code)
        }
    }

    #[test]
    #[should_panic(expected = "duty 4: decoded")]
    fn what_breaks_a_duty_is_named() {
        keeps_contract::<FromTheEnd>();
    }
}
