//! Bytes that are written over code: redirects and calls, the fields of their displacements, breakpoints.
//!
//! Whoever changes code asks here for the bytes, and here what bytes mean that were found. Distances count
//! from the first byte of the instruction, whatever the processor counts from.

/// Bytes of a direct branch's displacement.
pub const DISPLACEMENT: usize = 4;
/// Where the displacement of a [`Branch`] is, from its first byte.
pub const DISPLACEMENT_AT: u64 = 1;
/// `int3`: what debuggers and the kernel's probes put in place of an instruction's first byte; also what
/// fills gaps between pieces of code, where nothing executes it.
pub const BREAKPOINT: u8 = 0xcc;

/// `int1` (`icebp`): a program's own debug trap. Its signal is like one of a hardware breakpoint whose cause
/// is lost.
pub const DEBUG_TRAP: u8 = 0xf1;

/// The direct branches that are as long as a [`Patch`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Branch {
    /// `jmp rel32`.
    Jump,
    /// `call rel32`.
    Call,
}

impl Branch {
    const fn opcode(self) -> u8 {
        match self {
            Self::Jump => 0xe9,
            Self::Call => 0xe8,
        }
    }

    /// Which of them begins with this byte.
    pub const fn beginning_with(first: u8) -> Option<Self> {
        match first {
            0xe9 => Some(Self::Jump),
            0xe8 => Some(Self::Call),
            _ => None,
        }
    }
}

/// As many bytes of code as a redirect takes: what is there, or what is to be there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Patch([u8; Patch::LEN]);

impl Patch {
    /// Its length in bytes.
    pub const LEN: usize = 5;

    /// These bytes.
    pub const fn new(bytes: [u8; Self::LEN]) -> Self {
        Self(bytes)
    }

    /// What `code` begins with; none if it is shorter.
    pub fn beginning_of(code: &[u8]) -> Option<Self> {
        code.first_chunk().copied().map(Self)
    }

    /// The bytes.
    pub const fn bytes(&self) -> &[u8; Self::LEN] {
        &self.0
    }

    /// A jump over `distance` bytes; none if that is out of its reach.
    pub fn jump(distance: i64) -> Option<Self> {
        Self::branch(Branch::Jump, distance)
    }

    /// A branch over `distance` bytes; none if that is out of its reach.
    pub fn branch(branch: Branch, distance: i64) -> Option<Self> {
        let field = displacement(distance.checked_sub(DISPLACEMENT_AT as i64)?)?;
        Some(Self([branch.opcode(), field[0], field[1], field[2], field[3]]))
    }

    /// The branch that these bytes are, and over how many bytes it goes; none if they are none.
    pub fn as_branch(&self) -> Option<(Branch, i64)> {
        let branch = Branch::beginning_with(self.0[0])?;
        let [_, field @ ..] = self.0;
        Some((branch, i64::from(i32::from_le_bytes(field)) + Self::LEN as i64))
    }

    /// Over how many bytes the jump goes that these bytes are; none if they are none.
    pub fn as_jump(&self) -> Option<i64> {
        self.as_branch().filter(|(branch, _)| *branch == Branch::Jump).map(|(_, distance)| distance)
    }
}

/// The field of a direct branch that leads `distance` bytes from the field's own first byte; none if that is
/// out of reach.
pub fn displacement(distance: i64) -> Option<[u8; DISPLACEMENT]> {
    Some(i32::try_from(distance.checked_sub(DISPLACEMENT as i64)?).ok()?.to_le_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decode::{Flow, first_insn, scan};
    use proptest::prelude::*;
    use restitch_address::Svma;

    const AT: Svma = Svma::new(1 << 40);

    proptest! {
        #[test]
        fn what_is_made_is_what_is_read_and_what_the_decoder_sees(distance: i32) {
            let distance = i64::from(distance);
            for branch in [Branch::Jump, Branch::Call] {
                let Some(patch) = Patch::branch(branch, distance) else { continue };
                prop_assert_eq!(patch.as_branch(), Some((branch, distance)));
                prop_assert_eq!(patch.as_jump().is_some(), branch == Branch::Jump);
                let insn = first_insn(patch.bytes(), AT).expect("it is an instruction");
                let to = AT.offset(distance);
                prop_assert_eq!(usize::from(insn.len), Patch::LEN);
                prop_assert_eq!(insn.flow, if branch == Branch::Jump { Flow::Jump(to) } else { Flow::Call(to) });
                let field = displacement(distance - DISPLACEMENT_AT as i64).expect("in reach");
                prop_assert_eq!(&patch.bytes()[DISPLACEMENT_AT as usize..], field);
            }
        }
    }

    #[test]
    fn a_patch_has_the_reach_of_its_displacement() {
        let most = i64::from(i32::MAX) + Patch::LEN as i64;
        let least = i64::from(i32::MIN) + Patch::LEN as i64;
        assert!(Patch::jump(most).is_some() && Patch::jump(most + 1).is_none());
        assert!(Patch::jump(least).is_some() && Patch::jump(least - 1).is_none());
        assert!(Patch::jump(i64::MIN).is_none() && displacement(i64::MIN).is_none());
        assert_eq!(Patch::jump(0x8000).map(|p| *p.bytes()), Some([0xe9, 0xfb, 0x7f, 0, 0]));
        assert_eq!(Patch::branch(Branch::Call, 5).map(|p| *p.bytes()), Some([0xe8, 0, 0, 0, 0]));
    }

    #[test]
    fn other_bytes_are_no_branch() {
        assert_eq!(Patch::new([BREAKPOINT, 0, 0, 0, 0]).as_branch(), None);
        assert_eq!(Patch::new([0xe8, 0, 0, 0, 0]).as_jump(), None);
        assert_eq!(Patch::beginning_of(&[0xe9, 0, 0, 0]), None);
        let mut stops = false;
        scan(&[BREAKPOINT], AT, |insn| stops = insn.flow == Flow::Stop && insn.padding).expect("it decodes");
        assert!(stops);
    }
}
