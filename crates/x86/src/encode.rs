//! The few instructions that restitch writes itself. Each function appends to a buffer and returns nothing;
//! reach is the caller's business through [`fits_short`] and [`fits_near`].

use crate::condition::Condition;

/// Length in bytes of `jmp rel8`.
pub const JMP_SHORT: u32 = 2;
/// Length in bytes of `jmp rel32`: also the size of an entry redirect.
pub const JMP_NEAR: u32 = 5;
/// Length in bytes of `jcc rel8`.
pub const JCC_SHORT: u32 = 2;
/// Length in bytes of `jcc rel32`.
pub const JCC_NEAR: u32 = 6;
/// Length in bytes of a counter where the flags are dead: `incq disp32(%rip)`.
pub const COUNT: u32 = 7;

/// Length in bytes of `prefetcht1 disp32(%rip)`.
pub const PREFETCH: u32 = 7;

/// Whether a displacement fits 8 bits.
pub fn fits_short(displacement: i64) -> bool {
    i8::try_from(displacement).is_ok()
}
/// Whether a displacement fits 32 bits.
pub fn fits_near(displacement: i64) -> bool {
    i32::try_from(displacement).is_ok()
}

/// `jmp rel8`; the displacement counts from the end of the instruction, as for all functions here.
pub fn jmp_short(out: &mut Vec<u8>, displacement: i8) {
    out.extend_from_slice(&[0xeb, displacement as u8]);
}
/// What stands in front of the displacement of `jmp rel32`.
pub const JMP_NEAR_OPCODE: [u8; 1] = [0xe9];
/// What stands in front of the displacement of `jcc rel32`.
pub const fn jcc_near_opcode(condition: Condition) -> [u8; 2] {
    [0x0f, 0x80 | condition.code()]
}
/// `jmp rel32`.
pub fn jmp_near(out: &mut Vec<u8>, displacement: i32) {
    out.extend_from_slice(&JMP_NEAR_OPCODE);
    out.extend_from_slice(&displacement.to_le_bytes());
}
/// `jcc rel8`.
pub fn jcc_short(out: &mut Vec<u8>, condition: Condition, displacement: i8) {
    out.extend_from_slice(&[0x70 | condition.code(), displacement as u8]);
}
/// `jcc rel32`.
pub fn jcc_near(out: &mut Vec<u8>, condition: Condition, displacement: i32) {
    out.extend_from_slice(&jcc_near_opcode(condition));
    out.extend_from_slice(&displacement.to_le_bytes());
}
/// `incq disp32(%rip)`: a counter. Writes all status flags but CF, so it stands only where they are dead.
pub fn count(out: &mut Vec<u8>, displacement: i32) {
    out.extend_from_slice(&[0x48, 0xff, 0x05]);
    out.extend_from_slice(&displacement.to_le_bytes());
}

/// Length in bytes of a [`count_narrow`].
pub const COUNT_NARROW: u32 = 6;

/// `incl displacement(%rip)`: a counter of 32 bits; overwrites the status flags.
pub fn count_narrow(out: &mut Vec<u8>, displacement: i32) {
    out.extend_from_slice(&[0xff, 0x05]);
    out.extend_from_slice(&displacement.to_le_bytes());
}

/// `prefetcht1 disp32(%rip)`: a hint that changes no register, flag or memory and never faults (Intel SDM
/// vol. 2, PREFETCHh).
pub fn prefetch(out: &mut Vec<u8>, displacement: i32) {
    out.extend_from_slice(&[0x0f, 0x18, 0x15]);
    out.extend_from_slice(&displacement.to_le_bytes());
}

/// A counter that keeps flags and registers, for places where the flags are live:
/// `lea -128(%rsp),%rsp; push %rax; lahf; seto %al; incq counter(%rip); add $127,%al; sahf; pop %rax; lea 128(%rsp),%rsp`.
///
/// The first `lea` steps over the red zone (System V ABI 3.2.2); `add $127` sets OF again from the saved bit,
/// `sahf` restores the other five flags (Intel SDM vol. 2, LAHF/SAHF; needs CPUID.80000001H:ECX bit 0).
pub struct KeepingCount {
    /// The bytes, displacement zero.
    pub bytes: [u8; KEEPING_COUNT as usize],
    /// Offset of the 4-byte displacement.
    pub field: u32,
    /// Offset behind the `incq`, from which its displacement counts.
    pub field_end: u32,
    /// `(offset of an instruction boundary, bytes by which rsp is lower there)` for each boundary but the
    /// first.
    pub stack: &'static [(u32, u32)],
}

impl KeepingCount {
    /// The same with a counter of 32 bits: in place of the prefix for 64 bits stands one that means nothing
    /// there (a data segment's, AMD64 manual volume 3, section 1.2.4), so that all boundaries stay.
    pub fn narrow(mut self) -> Self {
        self.bytes[self.field as usize - 3] = 0x3e;
        self
    }
}

/// Length in bytes of [`keeping_count`].
pub const KEEPING_COUNT: u32 = 29;

/// The flag-keeping counter.
pub fn keeping_count() -> KeepingCount {
    KeepingCount {
        bytes: [
            0x48, 0x8d, 0x64, 0x24, 0x80, // lea -128(%rsp),%rsp
            0x50, // push %rax
            0x9f, // lahf
            0x0f, 0x90, 0xc0, // seto %al
            0x48, 0xff, 0x05, 0, 0, 0, 0, // incq 0(%rip)
            0x04, 0x7f, // add $127,%al
            0x9e, // sahf
            0x58, // pop %rax
            0x48, 0x8d, 0xa4, 0x24, 0x80, 0, 0, 0, // lea 128(%rsp),%rsp
        ],
        field: 13,
        field_end: 17,
        stack: &[(5, 128), (6, 136), (7, 136), (10, 136), (17, 136), (19, 136), (20, 136), (21, 128)],
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decode::{Flow, scan};
    use restitch_address::Svma;

    fn decoded(bytes: &[u8]) -> Vec<crate::decode::Insn> {
        let mut out = Vec::new();
        scan(bytes, Svma::new(0x1000), |i| out.push(i)).unwrap();
        out
    }

    #[test]
    fn branches_decode_to_what_was_asked_for() {
        let mut b = Vec::new();
        jmp_short(&mut b, -2);
        jmp_near(&mut b, 0x100);
        jcc_short(&mut b, Condition::Equal, 0x10);
        jcc_near(&mut b, Condition::Less, -0x100);
        count(&mut b, 0x2000);
        count_narrow(&mut b, 0x3000);
        let i = decoded(&b);
        assert_eq!(i[0].flow, Flow::Jump(Svma::new(0x1000)));
        assert_eq!(i[1].flow, Flow::Jump(Svma::new(0x1107)));
        assert_eq!(i[2].flow, Flow::Conditional(Condition::Equal, Svma::new(0x1019)));
        assert_eq!(i[3].flow, Flow::Conditional(Condition::Less, Svma::new(0xf0f)));
        assert_eq!(i[4].names, Some(Svma::new(0x1016 + 0x2000)));
        assert_eq!(i[5].names, Some(Svma::new(0x101c + 0x3000)));
        let lengths: Vec<u32> = i.iter().map(|i| i.len.into()).collect();
        assert_eq!(lengths, [2, 5, 2, 6, COUNT, COUNT_NARROW]);
    }

    #[test]
    fn the_keeping_counter_has_the_boundaries_that_it_states() {
        let k = keeping_count();
        let i = decoded(&k.bytes);
        let starts: Vec<u32> = i.iter().skip(1).map(|i| i.at.offset_from(Svma::new(0x1000)) as u32).collect();
        assert_eq!(starts, k.stack.iter().map(|s| s.0).collect::<Vec<_>>());
        let counter = i.iter().find(|i| i.names.is_some()).unwrap();
        assert_eq!(counter.end().offset_from(Svma::new(0x1000)), i64::from(k.field_end));
        let narrow = decoded(&k.narrow().bytes);
        assert!(narrow.iter().zip(&i).all(|(n, i)| (n.at, n.len, n.names) == (i.at, i.len, i.names)));
    }
}
