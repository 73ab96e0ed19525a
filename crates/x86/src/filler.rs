//! What assemblers and linkers fill gaps between pieces of code with.

use crate::patch::BREAKPOINT;

/// `nop` in the lengths of the Intel and AMD manuals ("multi-byte NOP"), with the operand-size prefixes that
/// GNU as puts before the long ones.
const NOPS: &[&[u8]] = &[
    &[0x90],
    &[0x66, 0x90],
    &[0x0f, 0x1f, 0x00],
    &[0x0f, 0x1f, 0x40, 0x00],
    &[0x0f, 0x1f, 0x44, 0x00, 0x00],
    &[0x66, 0x0f, 0x1f, 0x44, 0x00, 0x00],
    &[0x0f, 0x1f, 0x80, 0x00, 0x00, 0x00, 0x00],
    &[0x0f, 0x1f, 0x84, 0x00, 0x00, 0x00, 0x00, 0x00],
    &[0x66, 0x0f, 0x1f, 0x84, 0x00, 0x00, 0x00, 0x00, 0x00],
    &[0x2e, 0x0f, 0x1f, 0x84, 0x00, 0x00, 0x00, 0x00, 0x00],
    &[0x66, 0x2e, 0x0f, 0x1f, 0x84, 0x00, 0x00, 0x00, 0x00, 0x00],
];

/// Length of the piece of filler (a breakpoint, a pair of zeros, a `nop`) at the start of `bytes`; 0 if there
/// is none.
pub fn filler_len(bytes: &[u8]) -> usize {
    match bytes {
        [BREAKPOINT, ..] => 1,
        [0x00, 0x00, ..] => 2,
        // More operand-size prefixes in front of a nop that has one.
        [0x66, tail @ ..] if tail.first() == Some(&0x66) => match filler_len(tail) {
            0 => 0,
            len => len + 1,
        },
        _ => NOPS.iter().map(|nop| if bytes.starts_with(nop) { nop.len() } else { 0 }).fold(0, usize::max),
    }
}

/// Whether filler can consist of such a byte: where the start of its pieces is not known.
pub fn is_filler_byte(byte: u8) -> bool {
    matches!(byte, 0x00 | BREAKPOINT | 0x90 | 0x66 | 0x2e | 0x0f | 0x1f | 0x40 | 0x44 | 0x80 | 0x84)
}

/// Whether such a byte fills by itself: a zero, a breakpoint, a `nop`.
pub fn fills_alone(byte: u8) -> bool {
    matches!(byte, 0x00 | BREAKPOINT | 0x90)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decode::first_insn;
    use restitch_address::Svma;

    #[test]
    fn filler_is_recognised_by_its_pieces() {
        for nop in NOPS {
            assert_eq!(filler_len(nop), nop.len());
            assert!(nop.iter().all(|byte| is_filler_byte(*byte)));
            let insn = first_insn(nop, Svma::new(0)).expect("an instruction");
            assert!(insn.padding && usize::from(insn.len) == nop.len(), "{nop:x?}");
            assert_eq!(filler_len(&nop[..nop.len() - 1]), 0, "cut off");
        }
        assert_eq!(filler_len(&[&[0x66, 0x66, 0x66][..], NOPS[10]].concat()), 3 + NOPS[10].len());
        for (bytes, len) in
            [(&[0xcc, 0xc3][..], 1), (&[0, 0, 0], 2), (&[0, 1], 0), (&[0xc3], 0), (&[0x66; 4], 0)]
        {
            assert_eq!(filler_len(bytes), len, "{bytes:x?}");
        }
        assert!(fills_alone(0x90) && fills_alone(0) && !fills_alone(0x66) && !is_filler_byte(0xc3));
    }
}
