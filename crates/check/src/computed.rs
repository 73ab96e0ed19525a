//! Addresses of functions that are computed with.
//!
//! A program that adds something to a function's address wants another place than the function: the global offset table, as prologues of the
//! large code model do, or a part of its code. Such an address has to stay. What an instruction puts into a register is followed through the
//! function by the registers that instructions use: it may be copied, kept, passed on, called and asked for equality.

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

/// Whether something is computed from the address that `lea` makes, in the function of this range.
pub(crate) fn is_computed_with(image: &Image, range: SvmaRange, lea: &Instruction) -> bool {
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
        let Some(i) = instruction_at(image, at).filter(|_| steps <= MOST) else { return true };
        let Some(held) = after(image, &i, held) else { return true };
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
fn after(image: &Image, i: &Instruction, held: u16) -> Option<u16> {
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
            let next = instruction_at(image, i.next_ip())?;
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

fn instruction_at(image: &Image, at: u64) -> Option<Instruction> {
    let bytes = image.read_tail(Svma::new(at))?;
    let i = Decoder::with_ip(64, &bytes[..bytes.len().min(15)], at, DecoderOptions::NONE).decode();
    (!i.is_invalid()).then_some(i)
}
