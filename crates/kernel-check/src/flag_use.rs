//! What single instructions do with the flags that a counter overwrites.

use iced_x86::{Instruction, Mnemonic, OpKind, Register, RflagsBits};

/// What `inc` writes: all but the carry.
pub(crate) const COUNTED: u32 =
    RflagsBits::OF | RflagsBits::SF | RflagsBits::ZF | RflagsBits::AF | RflagsBits::PF;
/// The flags that an instruction uses, of those that `inc` writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Flags {
    pub(crate) reads: u32,
    /// For certain.
    pub(crate) writes: u32,
}

impl Flags {
    pub(crate) fn of(insn: &Instruction) -> Self {
        let writes = if may_keep(insn) { 0 } else { insn.rflags_modified() & COUNTED };
        Self { reads: insn.rflags_read() & COUNTED, writes }
    }
}

/// Whether an instruction that writes flags may leave them: shifts by 0, and repetitions of nothing.
fn may_keep(insn: &Instruction) -> bool {
    let shifts = matches!(
        insn.mnemonic(),
        Mnemonic::Shl | Mnemonic::Sal | Mnemonic::Shr | Mnemonic::Sar | Mnemonic::Shld | Mnemonic::Shrd
    );
    let last = insn.op_count().saturating_sub(1);
    let by_register = insn.op_kind(last) == OpKind::Register && insn.op_register(last) == Register::CL;
    let by_nothing = insn.op_kind(last) == OpKind::Immediate8 && insn.immediate8() & 0x1f == 0;
    insn.has_rep_prefix() || insn.has_repne_prefix() || (shifts && (by_register || by_nothing))
}

#[cfg(test)]
mod tests {
    use super::*;
    use iced_x86::{Decoder, DecoderOptions};

    fn flags(bytes: &[u8]) -> Flags {
        Flags::of(&Decoder::new(64, bytes, DecoderOptions::NONE).decode())
    }

    #[test]
    fn flags_are_written_where_that_is_certain() {
        let [none, all] = [0, COUNTED];
        for (bytes, reads, writes) in [
            (&[0x48, 0x01, 0xc8][..], none, all),        // add
            (&[0x48, 0xff, 0xc0], none, all),            // inc
            (&[0x48, 0x85, 0xc0], none, all),            // test
            (&[0x48, 0x89, 0xc8], none, none),           // mov
            (&[0x48, 0xd3, 0xe0], none, none),           // shl %cl
            (&[0x48, 0xc1, 0xe0, 0x04], none, all),      // shl $4
            (&[0x48, 0xc1, 0xe0, 0x00], none, none),     // shl $0
            (&[0xf3, 0xa6], none, none),                 // repz cmpsb
            (&[0x9c], all, none),                        // pushfq
            (&[0x9d], none, all),                        // popfq
            (&[0x74, 0x00], RflagsBits::ZF, none),       // je
            (&[0x72, 0x00], none, none),                 // jb: the carry alone
            (&[0x0f, 0x44, 0xc1], RflagsBits::ZF, none), // cmove
        ] {
            let flags = flags(bytes);
            assert_eq!((flags.reads, flags.writes), (reads, writes), "{bytes:x?}");
        }
    }
}
