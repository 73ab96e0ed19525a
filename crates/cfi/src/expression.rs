//! DWARF expressions: what they read, and their value. The decoding is gimli's.

use crate::error::{CfiError, ExpressionError};
use crate::registers::{Register, Registers};
use gimli::{EndianSlice, EvaluationResult, LittleEndian, Location, Operation, Value};
use restitch_address::Avma;

const ENCODING: gimli::Encoding =
    gimli::Encoding { address_size: 8, format: gimli::Format::Dwarf32, version: 4 };
/// Real unwind expressions have about ten operations; branches could make endless loops.
const MAX_ITERATIONS: u32 = 10_000;

/// Whether the expression may read `register`. An expression that does not decode may read everything.
pub(crate) fn may_read(bytes: &[u8], register: Register) -> bool {
    let mut operations = gimli::Expression(EndianSlice::new(bytes, LittleEndian)).operations(ENCODING);
    loop {
        match operations.next() {
            Ok(None) => return false,
            Ok(Some(Operation::RegisterOffset { register: r, .. } | Operation::Register { register: r }))
                if r.0 != register.0 => {}
            Ok(Some(
                Operation::RegisterOffset { .. }
                | Operation::Register { .. }
                | Operation::FrameOffset { .. }
                | Operation::CallFrameCFA
                | Operation::Call { .. }
                | Operation::EntryValue { .. },
            ))
            | Err(_) => return true,
            Ok(Some(_)) => {}
        }
    }
}

/// The value of the expression: an address or a plain value, as the rule that it belongs to says.
pub(crate) fn evaluate(
    bytes: &[u8],
    initial: Option<u64>,
    registers: &Registers,
    read: &mut dyn FnMut(Avma) -> Option<u64>,
) -> Result<u64, CfiError> {
    let expression = gimli::Expression(EndianSlice::new(bytes, LittleEndian));
    let mut evaluation = expression.evaluation(ENCODING);
    evaluation.set_max_iterations(MAX_ITERATIONS);
    if let Some(value) = initial {
        evaluation.set_initial_value(value);
    }
    let mut state = evaluation.evaluate().map_err(failed)?;
    loop {
        state = match state {
            EvaluationResult::Complete => break,
            EvaluationResult::RequiresRegister { register, .. } => {
                let register = Register(register.0);
                let value = registers.get(register).ok_or(CfiError::UnknownRegister { register })?;
                evaluation.resume_with_register(Value::Generic(value)).map_err(failed)?
            }
            EvaluationResult::RequiresMemory { address, size, .. } => {
                let at = Avma::new(address);
                let word = read(at).ok_or(CfiError::UnreadableStack { at })?;
                let mask = if size >= 8 { u64::MAX } else { (1 << (u32::from(size) * 8)) - 1 };
                evaluation.resume_with_memory(Value::Generic(word & mask)).map_err(failed)?
            }
            other => {
                return Err(failed(ExpressionError::Needs { what: format!("{other:?}") }));
            }
        };
    }
    match evaluation.result().first().map(|piece| &piece.location) {
        Some(Location::Address { address }) => Ok(*address),
        Some(Location::Value { value: Value::Generic(value) }) => Ok(*value),
        _ => Err(failed(ExpressionError::NoAddress)),
    }
}

fn failed(why: impl Into<ExpressionError>) -> CfiError {
    CfiError::Expression { why: why.into() }
}
