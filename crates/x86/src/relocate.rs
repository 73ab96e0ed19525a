//! What of an instruction depends on where it stands.

use crate::decode::{Insn, classify};
use crate::lock_skip::{LockSkip, SKIP};
use iced_x86::{Decoder, DecoderOptions, Register};
use restitch_address::Svma;

/// A RIP-relative operand of an instruction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RipField {
    /// Offset in the instruction of the 4-byte displacement.
    pub offset: u8,
    /// The address that the operand means. The displacement is `target - end of instruction`.
    pub target: Svma,
}

/// Decodes the instruction at the start of `bytes` (which stands at `at`) and says how long it is, what its
/// control flow is, and where its RIP-relative displacement is, if it has one. A 4-byte branch displacement
/// is not reported.
///
/// Returns `None` if there is no instruction.
///
/// A lock skip ([`crate::scan_lock_skips`]) is one instruction here, too.
pub fn relocate_field(bytes: &[u8], at: Svma) -> Option<(Insn, Option<RipField>)> {
    if let Some(skip) = LockSkip::at(bytes, at) {
        let (locked, field) = relocate_instruction(skip.locked(bytes), skip.locked_at())?;
        let field = field.map(|field| RipField { offset: field.offset + SKIP, ..field });
        return Some((skip.insn(&locked), field));
    }
    relocate_instruction(bytes, at)
}

fn relocate_instruction(bytes: &[u8], at: Svma) -> Option<(Insn, Option<RipField>)> {
    let mut decoder = Decoder::with_ip(64, bytes, at.get(), DecoderOptions::NONE);
    let instruction = decoder.decode();
    if instruction.is_invalid() {
        return None;
    }
    let field = instruction.is_ip_rel_memory_operand().then(|| RipField {
        offset: decoder.get_constant_offsets(&instruction).displacement_offset() as u8,
        target: Svma::new(instruction.ip_rel_memory_address()),
    });
    // EIP-relative (0x67-prefixed) operands wrap at 32 bits and cannot be moved.
    if instruction.is_ip_rel_memory_operand() && instruction.memory_base() == Register::EIP {
        return None;
    }
    Some((classify(&instruction), field))
}
