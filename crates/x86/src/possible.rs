//! What bytes would do if an instruction began there: for code that is not understood, where any byte may
//! begin one.

use crate::patch::{Branch, DISPLACEMENT};

/// A direct branch among bytes of which it is not known whether they are code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Possible {
    /// Its length in bytes.
    pub len: u8,
    /// Over how many bytes it goes.
    pub distance: i64,
    /// It is a call.
    pub calls: bool,
}

/// The direct branch, of any form, that `bytes` would be if they began an instruction (prefixes are
/// instructions of their own here).
pub fn possible_branch(bytes: &[u8]) -> Option<Possible> {
    let wide = |len, rest: &[u8]| Some((len, i64::from(i32::from_le_bytes(*rest.first_chunk()?))));
    let (len, displacement) = match bytes {
        [0xe8 | 0xe9, rest @ ..] => wide(5, rest)?,
        [0x0f, 0x80..=0x8f, rest @ ..] => wide(6, rest)?,
        [0x70..=0x7f | 0xeb | 0xe0..=0xe3, by, ..] => (2, i64::from(*by as i8)),
        _ => return None,
    };
    let calls = Branch::beginning_with(bytes[0]) == Some(Branch::Call);
    Some(Possible { len, distance: displacement + i64::from(len), calls })
}

/// The displacement of an operand relative to the program counter that `bytes` would be with the byte in
/// front: what says so (ModRM without a register), and the displacement. Where the instruction ends, from
/// which it counts, does not stand there.
pub fn possible_operand(bytes: &[u8; 1 + DISPLACEMENT]) -> Option<i32> {
    let [modrm, field @ ..] = *bytes;
    (modrm & 0xc7 == 0x05).then_some(i32::from_le_bytes(field))
}

/// Bytes of what [`possible_lea`] looks at.
pub const LEA: usize = 2 + DISPLACEMENT;
/// Bytes of a `lea`, relative to the program counter, into a register of 64 bits.
pub const WIDE_LEA: usize = 1 + LEA;

/// How far from its first byte the address is that `lea displacement(%rip),register`, without prefixes, would
/// make of `bytes`.
pub fn possible_lea(bytes: &[u8; LEA]) -> Option<i64> {
    let [opcode, operand @ ..] = *bytes;
    let displacement = possible_operand(&operand).filter(|_| opcode == 0x8d)?;
    Some(i64::from(displacement) + LEA as i64)
}

/// Whether an instruction of these bytes, with an operand relative to the program counter, is a `lea` into a
/// register of 64 bits.
pub fn is_wide_lea(insn: &[u8]) -> bool {
    insn.len() == WIDE_LEA && matches!(insn, [0x48 | 0x4c, 0x8d, ..])
}

/// The registers of a function's first two arguments.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Argument {
    /// `edi`.
    First,
    /// `esi`.
    Second,
}

/// Bytes of `mov $number,%edi` or `%esi`; and where the number is.
pub const ARGUMENT: usize = 5;
/// Where the number is in one.
pub const ARGUMENT_NUMBER_AT: usize = 1;

/// The argument that the instruction which begins with this byte would load with a number (`mov $number,%edi`
/// or `%esi`).
pub fn possible_argument(first: u8) -> Option<Argument> {
    match first {
        0xbf => Some(Argument::First),
        0xbe => Some(Argument::Second),
        _ => None,
    }
}

/// Whether `code` begins with `test %eax,%eax`: it asks whether what a function has returned is zero.
pub fn tests_result(code: &[u8]) -> bool {
    code.starts_with(&[0x85, 0xc0])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decode::{Flow, first_insn};
    use proptest::prelude::*;
    use restitch_address::Svma;

    const AT: Svma = Svma::new(1 << 40);

    proptest! {
        #[test]
        fn branches_are_those_of_the_decoder(bytes: [u8; 8]) {
            let found = possible_branch(&bytes);
            let insn = first_insn(&bytes, AT);
            let (to, calls) = match insn.map(|insn| insn.flow) {
                Some(Flow::Jump(to) | Flow::Conditional(_, to) | Flow::ShortConditional(to)) => (Some(to), false),
                Some(Flow::Call(to)) => (Some(to), true),
                _ => (None, false),
            };
            if let Some(found) = found {
                prop_assert_eq!(Some(found.len), insn.map(|insn| insn.len));
                prop_assert_eq!((Some(AT.offset(found.distance)), found.calls), (to, calls));
            }
        }

        #[test]
        fn addresses_are_made_as_by_the_decoder(displacement: i32, register in 0u8..8, wide: bool) {
            let mut code = vec![0x8d, 5 | register << 3];
            code.extend(displacement.to_le_bytes());
            let distance = possible_lea(code.first_chunk().expect("6 bytes"));
            prop_assert_eq!(distance, Some(i64::from(displacement) + 6));
            let prefix: &[u8] = if wide { &[0x4c] } else { &[] };
            let whole = [prefix, &code].concat();
            let insn = first_insn(&whole, AT - prefix.len() as u64).expect("an instruction");
            prop_assert_eq!(insn.names, distance.map(|by| AT.offset(by)));
            prop_assert_eq!(is_wide_lea(&whole), wide);
        }
    }

    #[test]
    fn other_bytes_are_nothing() {
        assert_eq!(possible_branch(&[0xe8, 0, 0, 0]), None);
        assert_eq!(possible_branch(&[0xff, 0x25, 0, 0, 0, 0]), None);
        assert_eq!(possible_branch(&[]), None);
        assert_eq!(possible_operand(&[0x45, 1, 0, 0, 0]), None);
        assert_eq!(possible_operand(&[0x3d, 1, 0, 0, 0]), Some(1));
        assert_eq!(possible_lea(&[0x8b, 0x05, 1, 0, 0, 0]), None);
        assert!(!is_wide_lea(&[0x48, 0x8b, 0x05, 1, 0, 0, 0]) && !is_wide_lea(&[0x48, 0x8d]));
    }

    #[test]
    fn arguments_and_results_are_recognised() {
        for (first, argument) in [(0xbf, Some(Argument::First)), (0xbe, Some(Argument::Second)), (0xbd, None)]
        {
            assert_eq!(possible_argument(first), argument);
            let code = [first, 0x78, 0x56, 0x34, 0x12];
            assert_eq!(first_insn(&code, AT).map(|i| usize::from(i.len)), Some(ARGUMENT));
            assert_eq!(code[ARGUMENT_NUMBER_AT..], 0x1234_5678u32.to_le_bytes());
        }
        assert!(tests_result(&[0x85, 0xc0, 0x74]) && !tests_result(&[0x85]) && !tests_result(&[0x85, 0xc1]));
    }
}
