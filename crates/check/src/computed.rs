//! Addresses of functions that are computed with.
//!
//! A program that adds something to a function's address wants another place than the function: the global
//! offset table, as prologues of the large code model do, or a part of its code. Such an address has to stay.
//! What an instruction puts into a register is followed through the function by the registers that
//! instructions use: it may be copied, kept, passed on, called and asked for equality.

use iced_x86::{
    Decoder, DecoderOptions, FlowControl, Instruction, InstructionInfoFactory, Mnemonic, OpAccess, OpKind,
    Register, RflagsBits,
};
use restitch_address::{Svma, SvmaRange};
use restitch_image::Image;
use std::collections::BTreeMap;

/// More instructions than this are not followed: then it is not known to be harmless.
const MOST: usize = 4096;
/// Registers that calls preserve: rbx, rsp, rbp, r12 to r15.
const PRESERVED: u16 = 0xf038;

/// The instruction at an address.
type Decode<'a> = &'a dyn Fn(u64) -> Option<Instruction>;

/// Whether something is computed from the address that `lea` makes, in the function of this range.
pub(crate) fn is_computed_with(decode: Decode<'_>, range: SvmaRange, lea: &Instruction) -> bool {
    let mut seen: BTreeMap<u64, u16> = BTreeMap::new();
    let mut open = vec![(lea.next_ip(), bit(lea.op0_register()))];
    let mut steps = 0;
    while let Some((at, held)) = open.pop() {
        let known = seen.entry(at).or_default();
        if held & !*known == 0 || !range.contains(Svma::new(at)) {
            continue;
        }
        *known |= held;
        steps += 1;
        let Some(i) = decode(at).filter(|_| steps <= MOST) else { return true };
        let Some(held) = after(decode, &i, held) else { return true };
        match i.flow_control() {
            FlowControl::UnconditionalBranch => open.push((i.near_branch_target(), held)),
            FlowControl::ConditionalBranch => {
                open.extend([(i.near_branch_target(), held), (i.next_ip(), held)]);
            }
            // A tail call, unless a register that belongs to the caller holds it.
            FlowControl::IndirectBranch if held & PRESERVED != 0 => return true,
            FlowControl::IndirectBranch | FlowControl::Return | FlowControl::Exception => {}
            FlowControl::Call | FlowControl::IndirectCall if i.mnemonic() == Mnemonic::Call => {
                open.push((i.next_ip(), held & PRESERVED));
            }
            _ => open.push((i.next_ip(), held)),
        }
    }
    false
}

/// The registers that hold the address behind the instruction; `None` if it computes something from it.
fn after(decode: Decode<'_>, i: &Instruction, held: u16) -> Option<u16> {
    let (mut read, mut written, mut kept) = (0u16, 0u16, 0u16);
    let mut factory = InstructionInfoFactory::new();
    for used in factory.info(i).used_registers() {
        let register = bit(used.register());
        match used.access() {
            OpAccess::Read | OpAccess::CondRead => read |= register,
            OpAccess::Write => written |= register,
            OpAccess::ReadWrite | OpAccess::ReadCondWrite | OpAccess::CondWrite => {
                read |= register;
                written |= register;
                kept |= register;
            }
            _ => {}
        }
    }
    if read & held == 0 {
        return Some(held & !written);
    }
    let addresses = bit(i.memory_base()) | bit(i.memory_index());
    let memory = (0..i.op_count()).any(|n| i.op_kind(n) == OpKind::Memory);
    if memory && addresses & held != 0 {
        return None;
    }
    let whole = |n: u32| i.op_kind(n) == OpKind::Register && i.op_register(n).is_gpr64();
    let copied = if i.op0_kind() == OpKind::Register { bit(i.op0_register()) } else { 0 };
    match i.mnemonic() {
        Mnemonic::Mov if whole(1) => Some(held & !written | copied),
        Mnemonic::Push | Mnemonic::Call | Mnemonic::Jmp => Some(held & !written),
        Mnemonic::Movq | Mnemonic::Vmovq | Mnemonic::Pinsrq | Mnemonic::Vpinsrq => Some(held),
        Mnemonic::Cmp | Mnemonic::Test if whole(0) || whole(1) => {
            let next = decode(i.next_ip())?;
            (next.rflags_read() == RflagsBits::ZF).then_some(held)
        }
        _ if i.op_count() == 2
            && whole(0)
            && whole(1)
            && format!("{:?}", i.mnemonic()).starts_with("Cmov") =>
        {
            let moved = if bit(i.op1_register()) & held != 0 { copied } else { 0 };
            Some(held & !written | held & kept & copied | moved)
        }
        _ => None,
    }
}

/// The register as a bit by its number, 0 if it is none of the sixteen general ones.
fn bit(register: Register) -> u16 {
    let full = register.full_register();
    if full.is_gpr64() { 1 << full.number() } else { 0 }
}

/// The instruction at `at` in the file.
pub(crate) fn instruction_at(image: &Image, at: u64) -> Option<Instruction> {
    let bytes = image.read_tail(Svma::new(at))?;
    let i = Decoder::with_ip(64, &bytes[..bytes.len().min(15)], at, DecoderOptions::NONE).decode();
    (!i.is_invalid()).then_some(i)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is said of the `lea` that the bytes begin with.
    fn computed(bytes: &[u8]) -> bool {
        let decode = |at: u64| {
            let bytes = bytes.get(usize::try_from(at.checked_sub(0x1000)?).ok()?..)?;
            let i = Decoder::with_ip(64, bytes, at, DecoderOptions::NONE).decode();
            (!i.is_invalid()).then_some(i)
        };
        let lea = decode(0x1000).expect("an instruction");
        is_computed_with(&decode, SvmaRange::new(Svma::new(0x1000), bytes.len() as u64), &lea)
    }

    /// `lea 0x4000(%rip),%rax`.
    const LEA: [u8; 7] = [0x48, 0x8d, 0x05, 0, 0x40, 0, 0];

    #[test]
    fn what_is_kept_passed_called_or_compared_is_not_computed_with() {
        let cases: &[&[u8]] = &[
            &[0xc3],                                           // ret
            &[0x48, 0x89, 0x07, 0xc3],                         // mov %rax,(%rdi)
            &[0x50, 0xff, 0xd0, 0xc3],                         // push %rax; call *%rax
            &[0x48, 0x39, 0xc7, 0x74, 0x00, 0xc3],             // cmp %rax,%rdi; je
            &[0x48, 0x39, 0xc7, 0x0f, 0x94, 0xc0, 0xc3],       // cmp %rax,%rdi; sete %al
            &[0x48, 0x0f, 0x44, 0xd0, 0x48, 0x89, 0x17, 0xc3], // cmove %rax,%rdx; mov %rdx,(%rdi)
            &[0x66, 0x48, 0x0f, 0x6e, 0xc0, 0xc3],             // movq %rax,%xmm0
            &[0x48, 0x31, 0xc0, 0x48, 0x83, 0xc0, 1, 0xc3],    // xor %rax,%rax; add $1,%rax
            &[0xe8, 0, 0, 0, 0, 0x48, 0x83, 0xc0, 1, 0xc3],    // call; add $1,%rax
            &[0xff, 0xe7],                                     // jmp *%rdi
        ];
        for (n, rest) in cases.iter().enumerate() {
            assert!(!computed(&[&LEA[..], rest].concat()), "case {n}");
        }
    }

    #[test]
    fn arithmetic_order_and_access_are_computing() {
        let cases: &[&[u8]] = &[
            &[0x48, 0x83, 0xc0, 16, 0xc3],                                 // add $16,%rax
            &[0x4c, 0x01, 0xd8, 0xc3],                                     // add %r11,%rax
            &[0x49, 0x01, 0xc3, 0xc3],                                     // add %rax,%r11
            &[0x48, 0x8d, 0x50, 8, 0xc3],                                  // lea 8(%rax),%rdx
            &[0x48, 0x8b, 0x10, 0xc3],                                     // mov (%rax),%rdx
            &[0x48, 0x39, 0xc7, 0x77, 0x00, 0xc3],                         // cmp %rax,%rdi; ja
            &[0x48, 0x89, 0xc3, 0xe8, 0, 0, 0, 0, 0x48, 0xf7, 0xdb, 0xc3], // mov %rax,%rbx; call; neg %rbx
            &[0x74, 0x01, 0xc3, 0x48, 0xd1, 0xe8, 0xc3],                   // je .+3; ret; shr %rax
            &[0x48, 0x89, 0xc3, 0xff, 0xe7],                               // mov %rax,%rbx; jmp *%rdi
        ];
        for (n, rest) in cases.iter().enumerate() {
            assert!(computed(&[&LEA[..], rest].concat()), "case {n}");
        }
    }
}
