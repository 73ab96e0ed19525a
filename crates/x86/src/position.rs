//! Instructions that let a program see where it is, other than by calls and by addresses relative to it.

/// How an instruction tells the program counter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum PositionSource {
    /// `syscall`: rcx holds the address behind it when control comes back.
    SystemCall,
    /// The state of the x87 unit is stored, with the address of its last instruction in it: `fnstenv`,
    /// `fnsave`, `fxsave`, the `xsave` family.
    FloatState,
}

impl PositionSource {
    /// Of the instruction that `code` begins with (Intel SDM vol. 2).
    pub fn beginning_of(code: &[u8]) -> Option<Self> {
        // Those of segments, of operand and address size, of repetition, and REX.
        let is_prefix =
            |b: &u8| matches!(b, 0x26 | 0x2e | 0x36 | 0x3e | 0x40..=0x4f | 0x64..=0x67 | 0xf2 | 0xf3);
        let (prefixes, opcode) = code.split_at(code.iter().take_while(|b| is_prefix(b)).count());
        // With some of them, opcodes of two bytes mean something else.
        let is_plain = !prefixes.iter().any(|b| matches!(b, 0x66 | 0xf2 | 0xf3));
        match *opcode {
            [0x0f, 0x05, ..] => Some(Self::SystemCall),
            // FNSTENV, FNSAVE.
            [0xd9 | 0xdd, modrm, ..] => of_memory(modrm, &[6]),
            // FXSAVE, XSAVE, XSAVEOPT.
            [0x0f, 0xae, modrm, ..] if is_plain => of_memory(modrm, &[0, 4, 6]),
            // XSAVEC, XSAVES.
            [0x0f, 0xc7, modrm, ..] if is_plain => of_memory(modrm, &[4, 5]),
            _ => None,
        }
    }
}

/// Whether the operand is memory and the opcode's extension one of `wanted`.
fn of_memory(modrm: u8, wanted: &[u8]) -> Option<PositionSource> {
    let is_it = modrm >> 6 != 3 && wanted.contains(&(modrm >> 3 & 7));
    is_it.then_some(PositionSource::FloatState)
}

#[cfg(test)]
mod tests {
    use super::*;
    use iced_x86::{Decoder, DecoderOptions, Mnemonic};

    /// By the decoder.
    fn expected(code: &[u8]) -> Option<PositionSource> {
        use Mnemonic::*;
        match Decoder::new(64, code, DecoderOptions::NONE).decode().mnemonic() {
            Syscall => Some(PositionSource::SystemCall),
            Fnstenv | Fnsave | Fxsave | Fxsave64 | Xsave | Xsave64 | Xsaveopt | Xsaveopt64 | Xsavec
            | Xsavec64 | Xsaves | Xsaves64 => Some(PositionSource::FloatState),
            _ => None,
        }
    }

    #[test]
    fn all_opcodes_and_operands_are_told_as_the_decoder_tells_them() {
        for prefix in [&[][..], &[0x48], &[0x41], &[0x66], &[0xf3], &[0xf2], &[0x65, 0x4c]] {
            for opcode in [&[0xd9][..], &[0xdd], &[0x0f, 0xae], &[0x0f, 0xc7], &[0x0f, 0x05], &[0x0f, 0x0b]] {
                for modrm in 0..=255 {
                    let code = [prefix, opcode, &[modrm, 0, 0, 0, 0, 0, 0, 0]].concat();
                    assert_eq!(PositionSource::beginning_of(&code), expected(&code), "{code:x?}");
                }
            }
        }
    }
}
