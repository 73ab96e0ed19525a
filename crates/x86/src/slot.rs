//! Calls and jumps through a word in memory: slots of the global offset table, and the stubs that jump
//! through them.

use crate::entry::entry_marker;

/// Bytes of a call or jump through a slot.
pub const BY_SLOT: u32 = 6;
/// Where the displacement to the slot is, from the first byte.
pub const SLOT_DISPLACEMENT_AT: usize = 2;

/// `call *disp32(%rip)` and `jmp *disp32(%rip)`, without prefixes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SlotBranch {
    /// A call.
    Call,
    /// A jump.
    Jump,
}

impl SlotBranch {
    /// What stands in front of the displacement to the slot.
    pub const fn opcode(self) -> [u8; SLOT_DISPLACEMENT_AT] {
        match self {
            Self::Call => [0xff, 0x15],
            Self::Jump => [0xff, 0x25],
        }
    }

    /// What stands in front of the displacement of the equally long direct branch: `addr32` and its opcode
    /// (x86-64 psABI, section B.2).
    pub const fn direct_opcode(self) -> [u8; SLOT_DISPLACEMENT_AT] {
        match self {
            Self::Call => [0x67, 0xe8],
            Self::Jump => [0x67, 0xe9],
        }
    }

    /// What `code` begins with, and how far the slot is from its first byte.
    pub fn beginning_of(code: &[u8]) -> Option<(Self, i64)> {
        let (opcode, rest) = code.split_first_chunk()?;
        let branch = [Self::Call, Self::Jump].into_iter().find(|b| b.opcode() == *opcode)?;
        Some((branch, i64::from(i32::from_le_bytes(*rest.first_chunk()?)) + i64::from(BY_SLOT)))
    }
}

/// A stub of a procedure linkage table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PltStub {
    /// Over how many bytes from its first one the slot is that it jumps through.
    pub slot: i64,
    /// Length in bytes, with what fills it.
    pub len: usize,
}

/// The stub that `code` begins with: `[endbr64] [bnd] jmp *slot(%rip)`.
pub fn plt_stub(code: &[u8]) -> Option<PltStub> {
    const BND: u8 = 0xf2;
    let marker = entry_marker(code);
    let jump = marker + usize::from(code.get(marker) == Some(&BND));
    let (branch, slot) = SlotBranch::beginning_of(code.get(jump..)?)?;
    let end = jump + BY_SLOT as usize;
    // `.plt.got` without endbr64: 6 bytes of jump, then `xchg %ax,%ax`.
    let is_short = end == 6 && code.get(6..8) == Some(&[0x66, 0x90]);
    (branch == SlotBranch::Jump)
        .then_some(PltStub { slot: slot + jump as i64, len: if is_short { 8 } else { 16 } })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decode::{Flow, first_insn};
    use restitch_address::Svma;

    #[test]
    fn both_forms_are_as_long_as_each_other_and_what_they_are_called() {
        for branch in [SlotBranch::Call, SlotBranch::Jump] {
            let with = |opcode: [u8; 2]| [&opcode[..], &[0x10, 0, 0, 0]].concat();
            let code = with(branch.opcode());
            assert_eq!(SlotBranch::beginning_of(&code), Some((branch, 0x16)));
            assert_eq!(SlotBranch::beginning_of(&code[..5]), None);
            let insn = first_insn(&code, Svma::new(0x1000)).expect("an instruction");
            assert_eq!((u32::from(insn.len), insn.names), (BY_SLOT, Some(Svma::new(0x1016))));
            let direct =
                first_insn(&with(branch.direct_opcode()), Svma::new(0x1000)).expect("an instruction");
            let to = Svma::new(0x1016);
            let flows = match branch {
                SlotBranch::Call => (Flow::IndirectCall, Flow::Call(to)),
                SlotBranch::Jump => (Flow::IndirectJump, Flow::Jump(to)),
            };
            assert_eq!((insn.flow, direct.flow, direct.len), (flows.0, flows.1, insn.len));
        }
    }

    #[test]
    fn stubs_of_linkers_are_recognised() {
        let jump = [0xff, 0x25, 0x10, 0, 0, 0];
        let stub = |parts: &[&[u8]]| plt_stub(&parts.concat()).map(|s| (s.slot, s.len));
        assert_eq!(stub(&[&jump, &[0x68, 0, 0, 0, 0]]), Some((0x16, 16)));
        assert_eq!(stub(&[&jump, &[0x66, 0x90]]), Some((0x16, 8)));
        assert_eq!(stub(&[&[0xf3, 0x0f, 0x1e, 0xfa], &jump]), Some((0x1a, 16)));
        assert_eq!(stub(&[&[0xf3, 0x0f, 0x1e, 0xfa, 0xf2], &jump]), Some((0x1b, 16)));
        assert_eq!(stub(&[&[0xff, 0x15, 0x10, 0, 0, 0]]), None, "a call");
        assert_eq!(stub(&[&jump[..5]]), None, "cut off");
        assert_eq!(stub(&[]), None);
    }
}
