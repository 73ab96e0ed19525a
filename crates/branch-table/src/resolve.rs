//! From a branch and a thread's registers to where it goes.

use crate::format::{Branch, Kind, Operand, Place, Segment, Times};
use restitch_address::{Avma, LoadBias};
use restitch_x86::{Condition, Flag};

/// What a branch depends on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Thread {
    /// General registers in encoding order: rax, rcx, rdx, rbx, rsp, rbp, rsi, rdi, r8 to r15.
    pub registers: [u64; 16],
    /// The flags register.
    pub rflags: u64,
    /// Base of fs.
    pub fs_base: u64,
    /// Base of gs.
    pub gs_base: u64,
}

/// Where control goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// The branch is taken, to here.
    Taken(Avma),
    /// It is not taken; control goes on behind it.
    NotTaken,
}

const RCX: usize = 1;
const RSP: usize = 4;

impl Branch {
    /// Where the branch goes in a thread that is about to execute it, in a module with this `bias`. `load`
    /// reads 8 bytes of the thread's memory. `None` for what cannot be told.
    pub fn resolve(
        &self,
        thread: &Thread,
        bias: LoadBias,
        mut load: impl FnMut(Avma) -> Option<u64>,
    ) -> Option<Outcome> {
        let taken_if = |holds, to| if holds { Outcome::Taken(bias.to_actual(to)) } else { Outcome::NotTaken };
        Some(match self.kind {
            Kind::Jump(to) | Kind::Call(to) => Outcome::Taken(bias.to_actual(to)),
            Kind::Conditional(condition, to) => taken_if(holds(condition, thread.rflags)?, to),
            Kind::Counting(times, to) => taken_if(counts(times, thread), to),
            Kind::JumpTo(operand) | Kind::CallTo(operand) => {
                Outcome::Taken(Avma::new(target(&operand, thread, bias, &mut load)?))
            }
            Kind::Return(_) => Outcome::Taken(Avma::new(load(Avma::new(thread.registers[RSP]))?)),
            Kind::Unknown => return None,
        })
    }
}

/// Whether a condition holds with these flags.
fn holds(condition: Condition, rflags: u64) -> Option<bool> {
    condition.holds(|flag| Some(rflags & flag.in_rflags() != 0))
}

fn counts(times: Times, thread: &Thread) -> bool {
    let rcx = thread.registers[RCX];
    let (zero, left) = (thread.rflags & Flag::Zero.in_rflags() != 0, rcx.wrapping_sub(1) != 0);
    match times {
        Times::Loop => left,
        Times::LoopEqual => left && zero,
        Times::LoopNotEqual => left && !zero,
        Times::IfZero => rcx == 0,
        Times::IfZero32 => rcx as u32 == 0,
    }
}

fn target(
    operand: &Operand,
    thread: &Thread,
    bias: LoadBias,
    load: &mut impl FnMut(Avma) -> Option<u64>,
) -> Option<u64> {
    let register = |n: u8| thread.registers[usize::from(n & 15)];
    let segment = match operand.segment {
        None => 0,
        Some(Segment::Fs) => thread.fs_base,
        Some(Segment::Gs) => thread.gs_base,
    };
    let at = match operand.place {
        Place::Register(n) => return Some(register(n)),
        Place::Memory { base, index, scale, displacement } => {
            let index = index.map_or(0, register).wrapping_mul(u64::from(scale));
            Avma::new(base.map_or(0, register).wrapping_add(index)).offset(displacement)
        }
        Place::Stated(at) => bias.to_actual(at),
    };
    load(at + segment)
}
