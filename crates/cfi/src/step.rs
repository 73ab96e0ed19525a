//! From a frame to its caller.

use crate::error::CfiError;
use crate::expression;
use crate::registers::{Register, Registers};
use crate::state::{Cfa, FrameState, RegisterRule};
use restitch_address::Avma;

/// The caller of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Step {
    /// The canonical frame address: the caller's stack pointer, in ordinary frames.
    pub cfa: Avma,
    /// The caller's registers. `rip` is the return address; `None` there means that this was the outermost
    /// frame.
    pub caller: Registers,
    /// Where on the stack the return address is stored; `None` if it is in a register or there is none.
    pub return_address_slot: Option<Avma>,
}

/// The caller of a frame in which `state` holds and the registers are `regs`. `read` gives the 8 bytes at an
/// address of the process, little-endian.
///
/// To find the state of the next frame, look up `rip - 1`: a return address may lie behind the end of its
/// function. Only where *this* frame's entry is a signal frame, the caller was interrupted exactly at `rip`.
///
/// Registers without a rule keep their value, as in libgcc; those whose rule says undefined become unknown,
/// as do registers that are copied from an unknown one.
///
/// # Errors
/// If the frame address, the return address or a saved register needs a register that is not known or memory
/// that cannot be read, or an expression cannot be evaluated.
pub fn step(
    state: &FrameState,
    regs: &Registers,
    read: &mut dyn FnMut(Avma) -> Option<u64>,
) -> Result<Step, CfiError> {
    let cfa = match &state.cfa {
        Cfa::RegisterOffset { register, offset } => regs
            .get(*register)
            .ok_or(CfiError::UnknownRegister { register: *register })?
            .wrapping_add_signed(*offset),
        Cfa::Expression(bytes) => expression::evaluate(bytes, None, regs, read)?,
    };
    let cfa = Avma::new(cfa);
    let mut caller = *regs;
    caller.set(Register::RSP, Some(cfa.get()));
    caller.set(Register::RIP, None);
    let mut return_address_slot = None;
    for (register, rule) in &state.registers {
        let (value, slot) = apply(rule, *register, cfa, regs, read)?;
        if *register == state.return_address {
            caller.set(Register::RIP, value);
            return_address_slot = slot;
        }
        if *register != Register::RIP {
            caller.set(*register, value);
        }
    }
    Ok(Step { cfa, caller, return_address_slot })
}

/// The value that `rule` gives for `register`, and where it is stored.
fn apply(
    rule: &RegisterRule,
    register: Register,
    cfa: Avma,
    regs: &Registers,
    read: &mut dyn FnMut(Avma) -> Option<u64>,
) -> Result<(Option<u64>, Option<Avma>), CfiError> {
    let slot = match rule {
        RegisterRule::Undefined => return Ok((None, None)),
        RegisterRule::SameValue => return Ok((regs.get(register), None)),
        RegisterRule::Register(from) => return Ok((regs.get(*from), None)),
        RegisterRule::ValOffset(offset) => return Ok((Some(cfa.offset(*offset).get()), None)),
        RegisterRule::ValExpression(bytes) => {
            return Ok((Some(expression::evaluate(bytes, Some(cfa.get()), regs, read)?), None));
        }
        RegisterRule::Offset(offset) => cfa.offset(*offset),
        RegisterRule::Expression(bytes) => {
            Avma::new(expression::evaluate(bytes, Some(cfa.get()), regs, read)?)
        }
    };
    let value = read(slot).ok_or(CfiError::UnreadableStack { at: slot })?;
    Ok((Some(value), Some(slot)))
}
