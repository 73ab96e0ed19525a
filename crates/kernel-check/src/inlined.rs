//! Callees that stand in place of their calls: what is proved of code that is entered without a return
//! address, and left without one.
//!
//! From the call on, the copy is followed beside the callee; where that returns, beside what follows the
//! call. Until then the copy's stack is that of the original without the return address, so that what lies
//! above the callee's own frame is one word nearer. So instructions in it may use the stack only below that
//! (as pushes do, and operands in the frame), and control may leave it by its return alone. Where the callee
//! hands over to another function by a jump, the copy calls that.
//!
//! On trust: that the address of a local variable is used for that variable only.

use crate::finding::Problem;
use crate::insn::LONGEST;
use crate::tables::Row;
use iced_x86::{
    Decoder, DecoderOptions, Instruction, InstructionInfoFactory, Mnemonic, OpKind, Register, UsedRegister,
};
use restitch_address::Svma;
use std::collections::HashMap;

/// In which callees a place is, by number; none at first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub(crate) struct Inside(usize);

/// A call in place of which its callee stands.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Inlined {
    /// The original's call, and where it goes on behind it.
    pub(crate) call: Svma,
    pub(crate) back: Svma,
    /// Where the callee begins.
    pub(crate) entry: Svma,
    /// Where the call itself is.
    pub(crate) outer: Inside,
    depth: usize,
    /// The unwinder's row of the copy where the call would be.
    frame: Row,
}

/// All that were met.
#[derive(Debug, Default)]
pub(crate) struct Calls {
    list: Vec<Inlined>,
    numbers: HashMap<(Svma, Inside), Inside>,
}

/// Callees in callees: compilers' own go less deep.
const DEEPEST: usize = 8;
/// Bytes of a return address.
const WORD: i64 = 8;
/// Numbers of registers in rows.
const FRAME_POINTER: u8 = 4;
const STACK_POINTER: u8 = 5;

impl Calls {
    pub(crate) fn get(&self, inside: Inside) -> Option<&Inlined> {
        self.list.get(inside.0.checked_sub(1)?)
    }

    /// The call that is no part of a callee itself.
    pub(crate) fn outermost(&self, inside: Inside) -> Option<&Inlined> {
        let mut call = self.get(inside)?;
        while let Some(outer) = self.get(call.outer) {
            call = outer;
        }
        Some(call)
    }

    /// The state behind a call from `call` to `entry`, which goes on at `back`; there the original's row is
    /// `row`.
    pub(crate) fn enter(
        &mut self,
        [call, back, entry]: [Svma; 3],
        outer: Inside,
        row: Option<Row>,
    ) -> Result<Inside, Problem> {
        if let Some(known) = self.numbers.get(&(call, outer)) {
            return Ok(*known);
        }
        let depth = self.get(outer).map_or(0, |outer| outer.depth) + 1;
        if depth > DEEPEST {
            return Err(Problem::Inlined("is deep in others"));
        }
        let frame = self.row(outer, row)?.ok_or(Problem::Inlined("is called where no row is"))?;
        self.list.push(Inlined { call, back, entry, outer, depth, frame });
        let inside = Inside(self.list.len());
        self.numbers.insert((call, outer), inside);
        Ok(inside)
    }

    /// The row that the copy has where the original has `row`: the caller's frame, with that of the callee
    /// below it.
    pub(crate) fn row(&self, inside: Inside, row: Option<Row>) -> Result<Option<Row>, Problem> {
        let Some(Inlined { frame, .. }) = self.get(inside) else { return Ok(row) };
        let row = row.ok_or(Problem::Inlined("has no row of the unwinder"))?;
        // By the stack pointer, the frame pointer as it was, and of the kind of the caller's.
        if row[2..5] != [0, 0, STACK_POINTER] || row[5] != frame[5] {
            return Err(Problem::Inlined("has a frame that is not found by the stack pointer alone"));
        }
        let mut own = *frame;
        match frame[4] & 0xf {
            STACK_POINTER => {
                let distance = distance(*frame) + distance(row) - WORD;
                let distance = i16::try_from(distance).map_err(|_| Problem::Inlined("has a large frame"))?;
                own[..2].copy_from_slice(&distance.to_le_bytes());
            }
            // It does not write that, or a row would say where it is.
            FRAME_POINTER => {}
            _ => return Err(Problem::Inlined("is called where the frame is found by other registers")),
        }
        Ok(Some(own))
    }
}

/// Bytes from the stack pointer to the end of the frame, by a row that goes by it.
fn distance(row: Row) -> i64 {
    i16::from_le_bytes([row[0], row[1]]).into()
}

/// Whether, by the unwinder's row, the return address is where the stack pointer points to.
pub(crate) fn has_no_frame(row: Row) -> bool {
    distance(row) == WORD && row[2..5] == [0, 0, STACK_POINTER]
}

/// What an instruction has to do with the stack pointer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum StackUse {
    Nothing,
    /// It pushes.
    Pushes,
    /// It takes so many bytes off.
    Drops(i64),
    /// The same, and flags tell of the pointer.
    Computes(i64),
    /// It names memory, from a distance on up to another.
    Names(i64, i64),
    Other,
}

/// Whether an instruction of a callee, the original's row of which is `row`, does the same where the return
/// address is not there. `Some` of whether its flags have to be dead.
pub(crate) fn is_free_of_return_address(bytes: &[u8], row: Row) -> Option<bool> {
    let bytes = &bytes[..bytes.len().min(LONGEST)];
    let insn = Decoder::new(64, bytes, DecoderOptions::NONE).decode();
    let own = distance(row) - WORD;
    let fits = match stack_use(&insn) {
        StackUse::Nothing | StackUse::Pushes => true,
        StackUse::Drops(bytes) | StackUse::Computes(bytes) => bytes <= own,
        StackUse::Names(from, to) => 0 <= from && to <= own,
        StackUse::Other => false,
    };
    (!insn.is_invalid() && fits).then_some(matches!(stack_use(&insn), StackUse::Computes(_)))
}

fn stack_use(insn: &Instruction) -> StackUse {
    let is_pointer = |register: Register| register.full_register() == Register::RSP;
    let kinds = || (0..insn.op_count()).map(|n| (n, insn.op_kind(n)));
    let is_operand = kinds().any(|(n, kind)| kind == OpKind::Register && is_pointer(insn.op_register(n)));
    let in_memory = kinds().any(|(_, kind)| kind == OpKind::Memory) && is_pointer(insn.memory_base());
    let is_first = insn.op0_kind() == OpKind::Register && insn.op0_register() == Register::RSP;
    match insn.mnemonic() {
        Mnemonic::Push | Mnemonic::Pushfq | Mnemonic::Call if !is_operand && !in_memory => StackUse::Pushes,
        Mnemonic::Push if in_memory => named(insn),
        Mnemonic::Pop | Mnemonic::Popfq if !is_operand && !in_memory => StackUse::Drops(WORD),
        Mnemonic::Pop => StackUse::Other,
        Mnemonic::Lea if is_first && in_memory => match named(insn) {
            StackUse::Names(to, _) => StackUse::Drops(to),
            _ => StackUse::Other,
        },
        Mnemonic::Add | Mnemonic::Sub
            if is_first && !matches!(insn.op1_kind(), OpKind::Register | OpKind::Memory) =>
        {
            let by = insn.immediate(1) as i64;
            StackUse::Computes(if insn.mnemonic() == Mnemonic::Add { by } else { by.wrapping_neg() })
        }
        Mnemonic::Call => StackUse::Other,
        _ if is_operand => StackUse::Other,
        _ if in_memory => named(insn),
        _ => {
            let mut factory = InstructionInfoFactory::new();
            let mut used = factory.info(insn).used_registers().iter().map(UsedRegister::register);
            if used.any(is_pointer) { StackUse::Other } else { StackUse::Nothing }
        }
    }
}

/// The memory that an operand relative to the stack pointer names.
fn named(insn: &Instruction) -> StackUse {
    let from = insn.memory_displacement64() as i64;
    let len = insn.memory_size().size() as i64;
    let is_named_only = insn.mnemonic() == Mnemonic::Lea;
    match insn.memory_index() == Register::None && (len > 0 || is_named_only) {
        true => StackUse::Names(from, from.saturating_add(if is_named_only { 0 } else { len })),
        false => StackUse::Other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAIN: Row = [8, 0, 0, 0, 5, 2];

    /// Whether it may be in a callee with a frame of 24 bytes, and whether flags have to be dead.
    fn used(bytes: &[u8]) -> Option<bool> {
        is_free_of_return_address(bytes, [32, 0, 0, 0, 5, 2])
    }

    #[test]
    fn the_stack_may_be_used_below_the_return_address_only() {
        for right in [
            &[0x53][..],                     // push %rbx
            &[0x9c],                         // pushf
            &[0x5b],                         // pop %rbx
            &[0xe8, 0, 0, 0, 0],             // call
            &[0x48, 0x8b, 0x44, 0x24, 0x10], // mov 16(%rsp),%rax
            &[0x89, 0x04, 0x24],             // mov %eax,(%rsp)
            &[0x48, 0x8d, 0x7c, 0x24, 0x08], // lea 8(%rsp),%rdi
            &[0xff, 0x74, 0x24, 0x10],       // push 16(%rsp)
            &[0x48, 0x8d, 0x64, 0x24, 0x18], // lea 24(%rsp),%rsp
            &[0x48, 0x8b, 0x07],             // mov (%rdi),%rax
            &[0xf3, 0xa4],                   // rep movsb
            &[0x0f, 0x0b],                   // ud2
        ] {
            assert_eq!(used(right), Some(false), "{right:x?}");
        }
        for computed in [&[0x48, 0x83, 0xec, 0x40][..], &[0x48, 0x83, 0xc4, 0x18]] {
            assert_eq!(used(computed), Some(true), "{computed:x?}");
        }
        for wrong in [
            &[0x48, 0x8b, 0x44, 0x24, 0x18][..], // mov 24(%rsp),%rax: the return address
            &[0x8b, 0x44, 0x24, 0x16],           // mov 22(%rsp),%eax: two bytes of it
            &[0x48, 0x8b, 0x44, 0x24, 0xf8],     // mov -8(%rsp),%rax
            &[0x48, 0x8d, 0x7c, 0x24, 0x20],     // lea 32(%rsp),%rdi
            &[0x48, 0x89, 0xe0],                 // mov %rsp,%rax
            &[0x89, 0xe0],                       // mov %esp,%eax
            &[0x54],                             // push %rsp
            &[0x5c],                             // pop %rsp
            &[0x48, 0x83, 0xc4, 0x20],           // add $32,%rsp
            &[0x48, 0x83, 0xe4, 0xf0],           // and $-16,%rsp
            &[0x48, 0x01, 0xc4],                 // add %rax,%rsp
            &[0x48, 0x8b, 0x04, 0x04],           // mov (%rsp,%rax),%rax
            &[0x8f, 0x04, 0x24],                 // pop (%rsp)
            &[0xff, 0x14, 0x24],                 // call *(%rsp)
            &[0x0f, 0xae, 0x04, 0x24],           // fxsave (%rsp)
            &[0xc9],                             // leave
            &[0x48, 0xcf],                       // iretq
            &[0x48, 0x39, 0xe0],                 // cmp %rsp,%rax
        ] {
            assert_eq!(used(wrong), None, "{wrong:x?}");
        }
        assert_eq!(is_free_of_return_address(&[0x5b], PLAIN), None, "a pop of the return address");
    }

    #[test]
    fn a_callee_s_frame_lies_below_the_caller_s() {
        let [call, back, entry] = [1, 6, 100].map(Svma::new);
        let mut calls = Calls::default();
        let row = |distance: i16, register: u8| {
            let [low, high] = distance.to_le_bytes();
            [low, high, 0xf0, 0xff, 0x10 | register, 2]
        };
        let by_stack = calls.enter([call, back, entry], Inside::default(), Some(row(32, 5))).unwrap();
        assert_eq!(calls.row(by_stack, Some(PLAIN)), Ok(Some(row(32, 5))));
        assert_eq!(calls.row(by_stack, Some([24, 0, 0, 0, 5, 2])), Ok(Some(row(48, 5))));
        let deeper = calls.enter([entry, back, call], by_stack, Some([24, 0, 0, 0, 5, 2])).unwrap();
        assert_eq!(calls.row(deeper, Some([16, 0, 0, 0, 5, 2])), Ok(Some(row(56, 5))));
        assert_eq!(calls.outermost(deeper).map(|call| call.call), Some(call));
        let other = calls.enter([back, entry, call], Inside::default(), Some(row(16, 4))).unwrap();
        assert_eq!(calls.row(other, Some([24, 0, 0, 0, 5, 2])), Ok(Some(row(16, 4))));
        for odd in [[16, 0, 0xf0, 0xff, 0x15, 2], [16, 0, 0, 0, 4, 2], [8, 0, 0, 0, 5, 3], [0; 6]] {
            assert!(calls.row(by_stack, Some(odd)).is_err(), "{odd:?}");
        }
        assert!(calls.row(by_stack, None).is_err());
        let by_other = calls.enter([call, back, back], other, Some(PLAIN));
        assert!(by_other.is_ok());
        let odd = calls.enter([entry, back, back], Inside::default(), Some(row(16, 10))).unwrap();
        assert!(calls.row(odd, Some(PLAIN)).is_err());
        let mut deep = Inside::default();
        let entered = (0..20).map(|number| {
            deep = calls.enter([Svma::new(number + 500), back, entry], deep, Some(PLAIN))?;
            Ok(())
        });
        assert_eq!(entered.take_while(Result::is_ok).collect::<Vec<Result<(), Problem>>>().len(), DEEPEST);
    }
}
