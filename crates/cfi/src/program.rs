//! Call frame programs (DWARF 5, section 6.4.2): decoding and evaluation.
//!
//! gimli could evaluate them too; it is not used here because it does not tell "undefined" from "no rule",
//! caps the remember stack at four states, and because the tests then have an independent reader.

use crate::error::CfiError;
use crate::memory::Cursor;
use crate::registers::Register;
use crate::state::{Cfa, RegisterRule};
use restitch_address::{Svma, SvmaRange};

/// Registers above this number do not exist on x86-64 (the ABI ends below 140); the limit bounds memory.
const MAX_REGISTER: u64 = 255;
/// Compilers nest one or two levels; the limit bounds memory.
const MAX_REMEMBERED: usize = 64;

/// The facts of a CIE that its programs need.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Factors {
    pub code_align: u64,
    pub data_align: i64,
    pub return_address: Register,
    pub pointer_encoding: u8,
}

/// A decoded instruction, offsets unfactored.
pub(crate) enum Instruction<'a> {
    Nop,
    Advance(u64),
    SetLocation(Option<Svma>),
    DefCfa(Register, i64),
    DefCfaRegister(Register),
    DefCfaOffset(i64),
    DefCfaExpression(&'a [u8]),
    Rule(Register, RegisterRule),
    Restore(Register),
    Remember,
    Recall,
    ArgsSize(u64),
}

/// Decodes the instruction at the cursor.
pub(crate) fn decode<'a>(c: &mut Cursor<'a>, factors: &Factors) -> Result<Instruction<'a>, CfiError> {
    use Instruction as I;
    use RegisterRule as R;
    let opcode = c.u8()?;
    let low = opcode & 0x3f;
    let advance = |delta: u64| I::Advance(delta.wrapping_mul(factors.code_align));
    match opcode >> 6 {
        1 => return Ok(advance(u64::from(low))),
        2 => return Ok(I::Rule(Register(low.into()), R::Offset(factored(c, factors, false)?))),
        3 => return Ok(I::Restore(Register(low.into()))),
        _ => {}
    }
    Ok(match low {
        0x00 => I::Nop,
        0x01 => I::SetLocation(c.pointer(factors.pointer_encoding)?),
        0x02 => advance(c.u8()?.into()),
        0x03 => advance(c.u16()?.into()),
        0x04 => advance(c.u32()?.into()),
        0x05 => I::Rule(register(c)?, R::Offset(factored(c, factors, false)?)),
        0x06 => I::Restore(register(c)?),
        0x07 => I::Rule(register(c)?, R::Undefined),
        0x08 => I::Rule(register(c)?, R::SameValue),
        0x09 => I::Rule(register(c)?, R::Register(register(c)?)),
        0x0a => I::Remember,
        0x0b => I::Recall,
        0x0c => I::DefCfa(register(c)?, c.uleb()? as i64),
        0x0d => I::DefCfaRegister(register(c)?),
        0x0e => I::DefCfaOffset(c.uleb()? as i64),
        0x0f => I::DefCfaExpression(c.block()?),
        0x10 => I::Rule(register(c)?, R::Expression(c.block()?.into())),
        0x11 => I::Rule(register(c)?, R::Offset(factored(c, factors, true)?)),
        0x12 => I::DefCfa(register(c)?, factored(c, factors, true)?),
        0x13 => I::DefCfaOffset(factored(c, factors, true)?),
        0x14 => I::Rule(register(c)?, R::ValOffset(factored(c, factors, false)?)),
        0x15 => I::Rule(register(c)?, R::ValOffset(factored(c, factors, true)?)),
        0x16 => I::Rule(register(c)?, R::ValExpression(c.block()?.into())),
        0x2e => I::ArgsSize(c.uleb()?),
        // DW_CFA_GNU_negative_offset_extended, by old compilers.
        0x2f => I::Rule(register(c)?, R::Offset(factored(c, factors, false)?.wrapping_neg())),
        _ => return Err(c.malformed("an unknown call frame instruction")),
    })
}

fn register(c: &mut Cursor<'_>) -> Result<Register, CfiError> {
    let number = c.uleb()?;
    if number > MAX_REGISTER {
        return Err(c.malformed("a register number that x86-64 does not have"));
    }
    Ok(Register(number as u16))
}

fn factored(c: &mut Cursor<'_>, factors: &Factors, signed: bool) -> Result<i64, CfiError> {
    let value = if signed { c.sleb()? } else { c.uleb()? as i64 };
    Ok(value.wrapping_mul(factors.data_align))
}

/// What is kept of the rules of registers: all of them, or nothing where only the frame address is asked for.
pub(crate) trait RegisterRules: Clone + Default {
    /// Gives a register a rule, or takes it away.
    fn set(&mut self, register: Register, rule: Option<RegisterRule>);
    /// The rule of a register, if it has one that is known.
    fn get(&self, register: Register) -> Option<&RegisterRule>;
}

impl RegisterRules for Vec<(Register, RegisterRule)> {
    fn set(&mut self, register: Register, rule: Option<RegisterRule>) {
        match (self.binary_search_by_key(&register, |(r, _)| *r), rule) {
            (Ok(i), Some(rule)) => self[i].1 = rule,
            (Ok(i), None) => drop(self.remove(i)),
            (Err(i), Some(rule)) => self.insert(i, (register, rule)),
            (Err(_), None) => {}
        }
    }
    fn get(&self, register: Register) -> Option<&RegisterRule> {
        let i = self.binary_search_by_key(&register, |(r, _)| *r).ok()?;
        Some(&self[i].1)
    }
}

impl RegisterRules for () {
    fn set(&mut self, _: Register, _: Option<RegisterRule>) {}
    fn get(&self, _: Register) -> Option<&RegisterRule> {
        None
    }
}

/// The rules in the making.
#[derive(Clone, Default)]
struct Rules<R> {
    cfa: Option<Cfa>,
    /// The offset that was stated last. It outlives an expression: assembly in libgcrypt names the register
    /// alone when it comes back from one, and libgcc (unwind-dw2.c, execute_cfa_program) and gdb understand
    /// that.
    offset: i64,
    registers: R,
}

/// What holds from a location on.
pub(crate) struct Held<'a, R> {
    /// The location.
    pub start: Svma,
    /// The canonical frame address.
    pub cfa: &'a Cfa,
    /// The registers that have a rule.
    pub registers: &'a R,
    /// Bytes of outgoing arguments.
    pub args_size: u64,
}

/// Evaluates programs, location by location.
pub(crate) struct Machine<R> {
    factors: Factors,
    rules: Rules<R>,
    /// The rules that the CIE's program has left, which `DW_CFA_restore` goes back to.
    initial: Rules<R>,
    remembered: Vec<Rules<R>>,
    args_size: u64,
    location: Svma,
    range: SvmaRange,
}

impl<R: RegisterRules> Machine<R> {
    pub fn new(factors: Factors, range: SvmaRange) -> Self {
        Self {
            factors,
            rules: Rules::default(),
            initial: Rules::default(),
            remembered: Vec::new(),
            args_size: 0,
            location: range.start,
            range,
        }
    }

    /// Runs the CIE's program.
    pub fn run_initial(&mut self, mut program: Cursor<'_>) -> Result<(), CfiError> {
        while !program.is_empty() {
            let instruction = decode(&mut program, &self.factors)?;
            if matches!(instruction, Instruction::Advance(_) | Instruction::SetLocation(_)) {
                return Err(program.malformed("the initial instructions of a CIE advance the location"));
            }
            self.step(instruction, &program)?;
        }
        self.initial = self.rules.clone();
        Ok(())
    }

    /// Runs the FDE's program and hands what holds at each of its locations to `sink`, in order.
    pub fn run(mut self, mut program: Cursor<'_>, mut sink: impl FnMut(Held<'_, R>)) -> Result<(), CfiError> {
        while !program.is_empty() {
            let instruction = decode(&mut program, &self.factors)?;
            let next = match instruction {
                Instruction::Advance(delta) => {
                    let at = self.location.offset_from(self.range.start) as u64;
                    self.range.start + at.saturating_add(delta)
                }
                Instruction::SetLocation(to) => to.unwrap_or(Svma::new(0)),
                other => {
                    self.step(other, &program)?;
                    continue;
                }
            };
            if !self.range.contains(next) {
                // What follows describes code behind the end of the function. Backwards is nonsense.
                if next.offset_from(self.range.start) < 0 {
                    return Err(program.malformed("the location goes backwards"));
                }
                break;
            }
            if next.offset_from(self.location) < 0 {
                return Err(program.malformed("the location goes backwards"));
            }
            if next != self.location {
                sink(self.held(&program)?);
                self.location = next;
            }
        }
        sink(self.held(&program)?);
        Ok(())
    }

    fn held(&self, program: &Cursor<'_>) -> Result<Held<'_, R>, CfiError> {
        let cfa =
            self.rules.cfa.as_ref().ok_or_else(|| program.malformed("no rule for the frame address"))?;
        let registers = &self.rules.registers;
        Ok(Held { start: self.location, cfa, registers, args_size: self.args_size })
    }

    fn step(&mut self, instruction: Instruction<'_>, at: &Cursor<'_>) -> Result<(), CfiError> {
        use Instruction as I;
        match instruction {
            I::Nop | I::Advance(_) | I::SetLocation(_) => {}
            I::DefCfa(register, offset) => {
                self.rules.offset = offset;
                self.rules.cfa = Some(Cfa::RegisterOffset { register, offset });
            }
            I::DefCfaExpression(bytes) => self.rules.cfa = Some(Cfa::Expression(bytes.into())),
            I::DefCfaRegister(register) => match &self.rules.cfa {
                Some(_) => {
                    self.rules.cfa = Some(Cfa::RegisterOffset { register, offset: self.rules.offset });
                }
                None => return Err(at.malformed("the frame address has no register to replace")),
            },
            I::DefCfaOffset(new) => {
                self.rules.offset = new;
                match &mut self.rules.cfa {
                    Some(Cfa::RegisterOffset { offset, .. }) => *offset = new,
                    Some(Cfa::Expression(_)) => {}
                    None => return Err(at.malformed("the frame address has no offset to replace")),
                }
            }
            I::Rule(register, rule) => self.rules.registers.set(register, Some(rule)),
            I::Restore(register) => {
                self.rules.registers.set(register, self.initial.registers.get(register).cloned());
            }
            I::Remember if self.remembered.len() < MAX_REMEMBERED => self.remembered.push(self.rules.clone()),
            I::Remember => return Err(at.malformed("states are remembered too deeply")),
            I::Recall => match self.remembered.pop() {
                Some(rules) => self.rules = rules,
                None => return Err(at.malformed("a state is restored that was never remembered")),
            },
            // Not part of what is remembered: libgcc keeps it apart (unwind-dw2.c, execute_cfa_program).
            I::ArgsSize(bytes) => self.args_size = bytes,
        }
        Ok(())
    }
}
