//! An indirect call in front of which its usual target is compared and called directly.
//!
//! ```text
//! cmpq $target,operand                 where the target's address is known and fits
//! jne  elsewhere
//! call target
//!
//! mov  scratch,-8(%rsp)                where code and target have a known distance only
//! lea  target(%rip),scratch
//! cmp  scratch,operand
//! mov  -8(%rsp),scratch
//! jne  elsewhere
//! call target
//! ```
//!
//! `elsewhere` has to hold the original instruction, and a jump behind this code. Both forms change nothing
//! but the status flags, which a call leaves dead (System V ABI 3.2.1), and the eight bytes below the stack
//! pointer, which are where the call is about to write its return address. The scratch register has its own
//! value again before the branch. Signal handlers leave 128 bytes below the stack pointer alone (3.2.2).

/// Length in bytes of the `jne` in its long form, and of the call.
const JNE: usize = 6;
const CALL: usize = 5;

/// How the operand is compared with the target.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Compare {
    /// With a number: the target's address, in a module whose addresses are fixed.
    Number(i32),
    /// With an address relative to the code.
    Relative,
}

/// The code, displacements zero. All fields are offsets of four bytes; displacements count from the end of
/// their instruction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GuardedCall {
    /// Its bytes.
    pub bytes: Vec<u8>,
    /// The displacement of the `lea` that leads to the target.
    pub address: Option<u32>,
    /// The displacement of an operand that is relative to the program counter, and the end of the
    /// instruction.
    pub operand: Option<(u32, u32)>,
    /// The instructions that stand before the branch: where each begins, and whether a register holds a
    /// temporary value there.
    pub before: Vec<(u32, bool)>,
    /// Where the branch begins: its displacement ends it.
    pub branch: u32,
    /// Where the call begins: its displacement ends it, and the code.
    pub call: u32,
}

/// `FF /2` without prefixes but REX, in parts.
pub(crate) struct Parts<'a> {
    rex: u8,
    modrm: u8,
    /// What follows the ModRM byte: SIB and displacement.
    rest: &'a [u8],
}

impl<'a> Parts<'a> {
    pub(crate) fn of(call: &'a [u8]) -> Option<Self> {
        let (rex, call) = match call {
            [rex @ 0x40..=0x4f, call @ ..] => (*rex, call),
            call => (0, call),
        };
        let [0xff, modrm, rest @ ..] = call else { return None };
        let this = Self { rex, modrm: *modrm, rest };
        // A prefix that means nothing would be lost: REX.R, and REX.X where there is no index.
        (modrm >> 3 & 7 == 2 && rest.len() == this.rest_len()? && rex & 0x0c == 0).then_some(this)
    }

    fn is_memory(&self) -> bool {
        self.modrm >> 6 != 3
    }

    fn has_sib(&self) -> bool {
        self.is_memory() && self.modrm & 7 == 4
    }

    pub(crate) fn is_relative(&self) -> bool {
        self.modrm & 0xc7 == 5
    }

    /// How many bytes follow the ModRM byte.
    fn rest_len(&self) -> Option<usize> {
        let sib = usize::from(self.has_sib());
        Some(match self.modrm >> 6 {
            3 => 0,
            0 if self.is_relative() || sib == 1 && self.rest.first()? & 7 == 5 => sib + 4,
            0 => sib,
            1 => sib + 1,
            _ => sib + 4,
        })
    }

    /// The registers that the operand names: base (or the operand itself) and index. `None` if it is not one
    /// that can be read once more after -8(%rsp) was written: the stack pointer, or an address below it.
    pub(crate) fn registers(&self) -> Option<[u8; 2]> {
        const NONE: u8 = 16;
        const RSP: u8 = 4;
        let high = |bit: u8| (self.rex & bit) << 3 >> bit.trailing_zeros();
        if !self.has_sib() {
            let register = if self.is_relative() { NONE } else { self.modrm & 7 | high(1) };
            return (self.is_memory() || register != RSP).then_some([register, NONE]);
        }
        let sib = *self.rest.first()?;
        let (base, index) = (sib & 7 | high(1), sib >> 3 & 7 | high(2));
        let index = if index == RSP { NONE } else { index };
        let below = self.rest.last().is_some_and(|top| self.modrm >> 6 != 0 && top & 0x80 != 0);
        (base != RSP || index == NONE && !below).then_some([base, index])
    }

    /// Another instruction with the same operand: opcode, the register field of its ModRM byte.
    pub(crate) fn with(&self, opcode: u8, register: u8, immediate: &[u8], out: &mut Vec<u8>) {
        out.push(0x48 | self.rex & 3 | (register & 8) >> 1);
        out.extend([opcode, self.modrm & 0xc7 | (register & 7) << 3]);
        out.extend(self.rest);
        out.extend(immediate);
    }
}

/// Guards `call`, the bytes of one indirect call. `None` if it is of a form that is left alone.
pub fn guarded_call(call: &[u8], compare: Compare) -> Option<GuardedCall> {
    let parts = Parts::of(call)?;
    let used = parts.registers()?;
    let scratch = [11u8, 10, 9].into_iter().find(|r| !used.contains(r))?;
    let mut bytes = Vec::with_capacity(40);
    let mut before = vec![(0, false)];
    let (mut address, mut immediate): (_, &[u8]) = (None, &[]);
    let here = |bytes: &Vec<u8>| bytes.len() as u32;
    let number;
    match compare {
        Compare::Number(n) => {
            number = n.to_le_bytes();
            immediate = &number;
            parts.with(0x81, 7, immediate, &mut bytes);
        }
        Compare::Relative => {
            let stack = [0x44 | (scratch & 7) << 3, 0x24, 0xf8];
            bytes.extend([0x4c, 0x89]);
            bytes.extend(stack);
            before.push((here(&bytes), false));
            bytes.extend([0x4c, 0x8d, 0x05 | (scratch & 7) << 3, 0, 0, 0, 0]);
            address = Some(here(&bytes) - 4);
            before.push((here(&bytes), true));
            parts.with(0x39, scratch, &[], &mut bytes);
        }
    }
    let compared = here(&bytes);
    let operand = parts.is_relative().then(|| (compared - immediate.len() as u32 - 4, compared));
    if let Compare::Relative = compare {
        before.push((compared, true));
        bytes.extend([0x4c, 0x8b, 0x44 | (scratch & 7) << 3, 0x24, 0xf8]);
    }
    let branch = here(&bytes);
    bytes.extend([0x0f, 0x85, 0, 0, 0, 0, 0xe8, 0, 0, 0, 0]);
    debug_assert_eq!(bytes.len(), branch as usize + JNE + CALL);
    if let Some((field, _)) = operand {
        bytes[field as usize..field as usize + 4].fill(0);
    }
    Some(GuardedCall { bytes, address, operand, before, branch, call: branch + JNE as u32 })
}

#[cfg(test)]
mod tests {
    use super::*;
    use iced_x86::{Code, Decoder, DecoderOptions, Formatter, GasFormatter, Instruction};

    fn text(bytes: &[u8]) -> Vec<String> {
        let mut formatter = GasFormatter::new();
        let decoder = Decoder::with_ip(64, bytes, 0x1000, DecoderOptions::NONE);
        let one = |i: Instruction| {
            let mut out = String::new();
            formatter.format(&i, &mut out);
            out
        };
        decoder.into_iter().map(one).collect()
    }

    fn relative(call: &[u8]) -> Vec<String> {
        text(&guarded_call(call, Compare::Relative).unwrap().bytes)
    }

    #[test]
    fn registers_and_memory_are_compared_and_called() {
        let lines = relative(&[0xff, 0xd0]);
        assert_eq!(lines.len(), 6);
        let starts = ["mov %r11,-8(%rsp)", "lea 0x", "cmp %r11,%rax", "mov -8(%rsp),%r11", "jne ", "call "];
        assert!(lines.iter().zip(starts).all(|(line, start)| line.starts_with(start)), "{lines:?}");
        assert_eq!(relative(&[0x41, 0xff, 0x53, 0x10])[2], "cmp %r10,0x10(%r11)");
        assert_eq!(relative(&[0x43, 0xff, 0x14, 0xda])[2], "cmp %r9,(%r10,%r11,8)");
        assert_eq!(relative(&[0xff, 0x54, 0x24, 0x18])[2], "cmp %r11,0x18(%rsp)");
        let number = guarded_call(&[0xff, 0x50, 0x10], Compare::Number(0x401000)).unwrap();
        assert_eq!(text(&number.bytes)[0], "cmpq $0x401000,0x10(%rax)");
        assert_eq!(number.before, [(0, false)]);
    }

    #[test]
    fn what_the_first_store_could_change_is_left_alone() {
        for call in [
            &[0xff, 0xd4][..],         // *%rsp
            &[0xff, 0x54, 0x24, 0xf8], // *-8(%rsp)
            &[0xff, 0x94, 0x24, 0xf8, 0xff, 0xff, 0xff],
            &[0xff, 0x14, 0x04], // *(%rsp,%rax)
            &[0x3e, 0xff, 0xd0], // notrack
            &[0x64, 0xff, 0x10], // %fs
            &[0x44, 0xff, 0xd0], // REX.R
            &[0xff, 0xe0],       // jmp
            &[0xff, 0x18],       // far
            &[0xff, 0xd0, 0x90],
            &[0xff, 0x50],
            &[0xff],
            &[],
        ] {
            assert_eq!(guarded_call(call, Compare::Relative), None, "{call:x?}");
        }
    }

    /// All encodings of an indirect call: the comparison has the very operand, and boundaries are where it is
    /// said.
    #[test]
    fn every_form_keeps_its_operand() {
        let mut guarded = 0;
        for rex in std::iter::once(None).chain((0x40..=0x4fu8).map(Some)) {
            for (modrm, sib) in (0..=255u8).flat_map(|m| [0x00, 0x24, 0x25, 0x5a, 0x9c, 0xe5].map(|s| (m, s)))
            {
                let mut call: Vec<u8> = rex.into_iter().collect();
                call.extend([0xff, modrm, sib, 0x12, 0x34, 0x56, 0x08, 0x11]);
                let original = Decoder::with_ip(64, &call, 0x1000, DecoderOptions::NONE).decode();
                if original.code() != Code::Call_rm64 {
                    continue;
                }
                for compare in [Compare::Relative, Compare::Number(0x40_1234)] {
                    let Some(made) = guarded_call(&call[..original.len()], compare) else { continue };
                    guarded += 1;
                    same_operand(&original, &made);
                }
            }
        }
        assert!(guarded > 1500, "{guarded}");
    }

    fn same_operand(original: &Instruction, made: &GuardedCall) {
        let all: Vec<Instruction> =
            Decoder::with_ip(64, &made.bytes, 0, DecoderOptions::NONE).into_iter().collect();
        let starts: Vec<u32> = all.iter().map(|i| i.ip() as u32).collect();
        let stated: Vec<u32> = made.before.iter().map(|b| b.0).chain([made.branch, made.call]).collect();
        assert_eq!(starts, stated);
        let compare = all[if made.address.is_some() { 2 } else { 0 }];
        assert_eq!(compare.op0_kind(), original.op0_kind());
        assert_eq!(compare.op0_register(), original.op0_register());
        assert_eq!(
            (compare.memory_base(), compare.memory_index()),
            (original.memory_base(), original.memory_index())
        );
        assert_eq!(compare.memory_index_scale(), original.memory_index_scale());
        match made.operand {
            Some((field, end)) => assert_eq!(
                (field, end as u64),
                (end - 4 - if made.address.is_some() { 0 } else { 4 }, compare.next_ip())
            ),
            None => assert_eq!(compare.memory_displacement64(), original.memory_displacement64()),
        }
    }
}
