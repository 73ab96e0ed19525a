//! Whether what is called reads its return address: a copy of the call would hand it another one.
//!
//! This is a doubt of the checker's own. It follows the first instructions from where a call leads, each path
//! by itself, knows of `rsp`, `rbp` and copies of what `rsp` was at the entry where they point, and believes
//! what it sees only: it stops where something is called, or control goes on at a place that is not named. So
//! it finds less than the analysis (`restitch-program`), and nothing that is not there.

use iced_x86::{
    Decoder, DecoderOptions, FlowControl, Instruction, InstructionInfoFactory, Mnemonic, OpAccess, OpKind,
    Register, UsedMemory,
};
use restitch_address::Svma;
use restitch_image::Image;
use std::collections::HashMap;

/// Instructions that are looked at for one callee, on all its paths together.
const MOST_STEPS: usize = 96;
/// Bytes of the return address.
const WORD: i64 = 8;

/// What is known of callees.
#[derive(Debug, Default)]
pub(crate) struct Callees {
    known: HashMap<Svma, bool>,
}

impl Callees {
    /// Whether code at `entry` of `image` certainly reads its return address on a path.
    pub fn read_return_address(&mut self, image: &Image, entry: Svma) -> bool {
        *self.known.entry(entry).or_insert_with(|| reads(image, entry))
    }
}

/// Where registers point, in bytes from where `rsp` is at the entry.
#[derive(Debug, Clone, Copy, Default)]
struct Pointers([Option<i64>; 16]);

impl Pointers {
    fn at(&self, register: Register) -> Option<i64> {
        if register.is_gpr64() { self.0[register.number()] } else { None }
    }
    fn set(&mut self, register: Register, to: Option<i64>) {
        if register.is_gpr() {
            self.0[register.full_register().number()] = to;
        }
    }
    fn move_stack(&mut self, by: i64) {
        let at = self.at(Register::RSP);
        self.set(Register::RSP, at.map(|at| at + by));
    }
    /// Where a use of memory begins.
    fn place(&self, used: &UsedMemory) -> Option<i64> {
        let plain = used.index() == Register::None && !matches!(used.segment(), Register::FS | Register::GS);
        self.at(used.base()).filter(|_| plain).map(|at| at.wrapping_add(used.displacement() as i64))
    }
}

/// How an instruction touches the word.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Touch {
    No,
    Reads,
    Writes,
}

fn reads(image: &Image, entry: Svma) -> bool {
    let mut start = Pointers::default();
    start.set(Register::RSP, Some(0));
    let mut open = vec![(entry, start)];
    for _ in 0..MOST_STEPS {
        let Some((at, mut pointers)) = open.pop() else { return false };
        let Some(i) = decoded(image, at) else { continue };
        match touch(&i, &pointers) {
            Touch::Reads => return true,
            // It goes on by an address that is not the caller's.
            Touch::Writes => continue,
            Touch::No => {}
        }
        execute(&i, &mut pointers);
        let next = Svma::new(i.next_ip());
        let target = || Svma::new(i.near_branch_target());
        match i.flow_control() {
            FlowControl::Next => open.push((next, pointers)),
            FlowControl::UnconditionalBranch => open.push((target(), pointers)),
            FlowControl::ConditionalBranch => open.extend([(next, pointers), (target(), pointers)]),
            FlowControl::Call if i.op0_kind() == OpKind::NearBranch64 && target() == next => {
                pointers.move_stack(-WORD);
                open.push((next, pointers));
            }
            _ => {}
        }
    }
    false
}

fn decoded(image: &Image, at: Svma) -> Option<Instruction> {
    let bytes = image.read_tail(at).filter(|_| image.is_executable(at))?;
    let i = Decoder::with_ip(64, &bytes[..bytes.len().min(15)], at.get(), DecoderOptions::NONE).decode();
    (!i.is_invalid()).then_some(i)
}

fn touch(i: &Instruction, pointers: &Pointers) -> Touch {
    // `ret` is what the word is for. `push` of the word makes another frame of an aligned stack; a barrier
    // (`lock orl $0,(%rsp)`) leaves it.
    let is_barrier = i.has_lock_prefix() && i.try_immediate(1).is_ok_and(|n| n == 0);
    let copies = i.mnemonic() == Mnemonic::Push && i.op0_kind() == OpKind::Memory;
    if i.flow_control() == FlowControl::Return || is_barrier || copies {
        return Touch::No;
    }
    let mut factory = InstructionInfoFactory::new();
    let mut touch = Touch::No;
    for used in factory.info(i).used_memory() {
        let Some(from) = pointers.place(used) else { continue };
        if from >= WORD || from + used.memory_size().size() as i64 <= 0 {
            continue;
        }
        match used.access() {
            OpAccess::Read | OpAccess::ReadWrite | OpAccess::CondRead | OpAccess::ReadCondWrite => {
                return Touch::Reads;
            }
            OpAccess::Write | OpAccess::CondWrite => touch = Touch::Writes,
            _ => {}
        }
    }
    touch
}

/// Follows where registers point.
fn execute(i: &Instruction, pointers: &mut Pointers) {
    let before = *pointers;
    let mut factory = InstructionInfoFactory::new();
    for used in factory.info(i).used_registers() {
        if !matches!(used.access(), OpAccess::Read | OpAccess::CondRead | OpAccess::None) {
            pointers.set(used.register(), None);
        }
    }
    let to = i.op0_register();
    let result = match i.mnemonic() {
        Mnemonic::Push | Mnemonic::Pushfq | Mnemonic::Pop | Mnemonic::Popfq => {
            // `pop %rsp` sets it.
            let sets = i.mnemonic() == Mnemonic::Pop && to == Register::RSP;
            let by = i64::from(i.stack_pointer_increment());
            pointers.set(Register::RSP, before.at(Register::RSP).filter(|_| !sets).map(|at| at + by));
            return;
        }
        Mnemonic::Mov if (i.op0_kind(), i.op1_kind()) == (OpKind::Register, OpKind::Register) => {
            before.at(i.op1_register())
        }
        Mnemonic::Lea if i.memory_index() == Register::None => {
            before.at(i.memory_base()).map(|at| at.wrapping_add(i.memory_displacement64() as i64))
        }
        Mnemonic::Add if to.is_gpr64() => {
            before.at(to).and_then(|at| Some(at.wrapping_add(i.try_immediate(1).ok()? as i64)))
        }
        Mnemonic::Sub if to.is_gpr64() => {
            before.at(to).and_then(|at| Some(at.wrapping_sub(i.try_immediate(1).ok()? as i64)))
        }
        _ => return,
    };
    if i.op0_kind() == OpKind::Register && to.is_gpr64() {
        pointers.set(to, result.filter(|at| is_followed(to, *at)));
    }
}

/// Whether a register that points there is followed: other registers than those of frames only if they have
/// what `rsp` was at the entry, or the address of the first argument behind it.
fn is_followed(register: Register, at: i64) -> bool {
    matches!(register, Register::RSP | Register::RBP) || at == 0 || at == WORD
}

#[cfg(test)]
mod tests {
    use super::*;
    use restitch_testkit::{compile, program, skipped};

    fn of(name: &str) -> Option<bool> {
        let path = match compile(&program("returns.c"), &["-O2"]) {
            Ok(path) => path,
            Err(error) => {
                skipped(&error.to_string());
                return None;
            }
        };
        let image = Image::parse(std::fs::read(path).expect("readable")).expect("an ELF file");
        let at = image.symbols_named(name).next().unwrap_or_else(|| panic!("no {name}")).range.start;
        Some(Callees::default().read_return_address(&image, at))
    }

    #[test]
    fn who_reads_it_is_found() {
        for name in [
            "position",
            "position_by_jump",
            "wrapper",
            "take_number",
            "take_text",
            "take_popped",
            "skip",
            "call_body",
            "caller",
        ] {
            assert!(of(name).unwrap_or(true), "{name}");
        }
    }

    #[test]
    fn who_only_returns_is_not() {
        for name in ["by_pop", "by_thunk", "by_thrown", "by_skip", "asked", "aligned", "main"] {
            assert!(!of(name).unwrap_or(false), "{name}");
        }
    }
}
