//! What becomes of an address that an instruction makes.
//!
//! Problem: `lea` makes addresses of functions and of data alike; what stands there shows only where the register is used.
//! Idea: follow the register along the straight code and its branches, within one function. Registers hold constants (what
//! is added may bring an address elsewhere, as the prologues of the large code model do) or such an address with something
//! unknown added. Limits: what is kept in memory, passed to a function or returned is not followed.

use restitch_address::{Svma, SvmaRange};
use restitch_x86::{Decoded, Flow, Op, Reg, ZERO_FLAG};
use std::collections::HashMap;

/// What was seen of an address.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Uses {
    /// Where memory is read or written through it, an unknown index apart.
    pub accessed: Vec<Svma>,
    /// Something is computed from it; equality with another address, and copies, are nothing computed.
    pub computed: bool,
    /// It may live on where it was not followed: behind a jump by a table, or too many instructions.
    pub lost: bool,
}

/// What a register holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Held {
    at: u64,
    /// Comes from the address that is followed.
    ours: bool,
}

type Registers = [Option<Held>; 16];

/// Registers that a called function may change (System V ABI 3.2.1): all but rbx, rsp, rbp and r12 to r15.
const LOST_BY_CALLS: u16 = 0x0fc7;

/// Follows the address that the instruction `made` puts into a register, through at most `most` instructions of `range`, which
/// `decode` gives. `before`: the instructions that lead to it, in order, without a jump; they tell constants in other registers.
pub fn follow_address(
    decode: &dyn Fn(Svma) -> Option<Decoded>,
    range: SvmaRange,
    before: &[Decoded],
    made: &Decoded,
    most: usize,
) -> Uses {
    let mut uses = Uses::default();
    let Op::Constant(Reg(register), at) = made.op else { return uses };
    let mut registers: Registers = [None; 16];
    for insn in before {
        step(decode, insn, &mut registers, &mut Uses::default());
    }
    registers[usize::from(register)] = Some(Held { at, ours: true });
    let mut open = vec![(made.insn.end(), registers)];
    let mut seen: HashMap<Svma, u16> = HashMap::new();
    let mut steps = 0;
    while let Some((at, mut registers)) = open.pop() {
        let ours = mask(&registers);
        let known = seen.entry(at).or_default();
        if ours & !*known == 0 || !range.contains(at) {
            continue;
        }
        *known |= ours;
        steps += 1;
        let decoded = decode(at).filter(|_| steps <= most);
        let Some(insn) = decoded else {
            uses.lost = true;
            break;
        };
        step(decode, &insn, &mut registers, &mut uses);
        match insn.insn.flow {
            Flow::Next | Flow::Call(_) | Flow::IndirectCall => open.push((insn.insn.end(), registers)),
            Flow::Jump(to) => open.push((to, registers)),
            Flow::Conditional(_, to) | Flow::ShortConditional(to) => {
                open.extend([(to, registers), (insn.insn.end(), registers)]);
            }
            // A tail call, unless a register that belongs to the caller holds it.
            Flow::IndirectJump => uses.lost |= mask(&registers) & !LOST_BY_CALLS != 0,
            Flow::Return | Flow::Stop | Flow::Unsupported => {}
        }
    }
    uses.accessed.sort_unstable();
    uses.accessed.dedup();
    uses
}

/// The registers that hold something of the address that is followed.
fn mask(registers: &Registers) -> u16 {
    let ours = |held: &Option<Held>| held.is_some_and(|h| h.ours);
    registers.iter().enumerate().fold(0, |mask, (r, held)| mask | u16::from(ours(held)) << r)
}

fn step(
    decode: &dyn Fn(Svma) -> Option<Decoded>,
    insn: &Decoded,
    registers: &mut Registers,
    uses: &mut Uses,
) {
    let held = |r: Reg| registers[usize::from(r.0)];
    let ours = mask(registers);
    access(insn, registers, uses);
    let reads = insn.reads & ours & !insn.addresses;
    let (result, computed) = match insn.op {
        Op::Constant(dst, at) => (Some((dst, Some(Held { at, ours: false }))), false),
        Op::Copy(dst, src, 32..) => (Some((dst, held(src))), false),
        Op::AddConstant(dst, src, c) => {
            let sum = held(src).map(|h| Held { at: h.at.wrapping_add(c as u64), ..h });
            (Some((dst, sum)), reads != 0)
        }
        Op::Add(a, b) => (Some((a, sum(held(a), held(b)))), reads != 0),
        Op::Sum(dst, a, b) => (Some((dst, sum(held(a), held(b)))), reads != 0),
        Op::Select(dst, src) => (Some((dst, held(src).filter(|h| h.ours).or(held(dst)))), false),
        Op::Keep(_) => (None, false),
        Op::Compare => (None, reads != 0 && !only_equality(decode, insn)),
        _ if matches!(insn.insn.flow, Flow::IndirectCall | Flow::IndirectJump) => (None, false),
        _ => (None, reads != 0),
    };
    let base = (0..16).find(|r| reads >> r & 1 == 1).and_then(|r| registers[r]);
    let is_call = matches!(insn.insn.flow, Flow::Call(_) | Flow::IndirectCall);
    for (r, slot) in registers.iter_mut().enumerate() {
        if insn.writes >> r & 1 == 1 {
            // Something else is made of it: it is still an address near there, for all that is known.
            *slot = if computed { base } else { None };
        }
        if is_call && LOST_BY_CALLS >> r & 1 == 1 {
            *slot = None;
        }
    }
    if let Some((Reg(dst), value)) = result {
        registers[usize::from(dst)] = value;
    }
    uses.computed |= computed;
}

/// Notes where the instruction reads or writes memory through the address.
fn access(insn: &Decoded, registers: &Registers, uses: &mut Uses) {
    let ours = |r: Reg| registers[usize::from(r.0)].filter(|h| h.ours);
    let mut rest = insn.addresses;
    if let Some(memory) = insn.memory.filter(|m| !m.rip) {
        for register in [memory.base, memory.index].into_iter().flatten() {
            rest &= !(1 << register.0);
            uses.accessed.extend(ours(register).map(|h| Svma::new(h.at.wrapping_add(memory.disp as u64))));
        }
    }
    let implied = (0..16).filter(|r| rest >> r & 1 == 1).filter_map(|r| ours(Reg(r)));
    uses.accessed.extend(implied.map(|h| Svma::new(h.at)));
}

/// The sum of what two registers hold; something unknown is taken for an index.
fn sum(a: Option<Held>, b: Option<Held>) -> Option<Held> {
    match (a, b) {
        (Some(a), Some(b)) => Some(Held { at: a.at.wrapping_add(b.at), ours: a.ours || b.ours }),
        (Some(a), None) | (None, Some(a)) => Some(a).filter(|a| a.ours),
        (None, None) => None,
    }
}

/// Whether only equality is asked of the flags that `compare` sets: the next instruction is `je`, `sete`, `cmove` or their like, which read ZF alone.
fn only_equality(decode: &dyn Fn(Svma) -> Option<Decoded>, compare: &Decoded) -> bool {
    decode(compare.insn.end()).is_some_and(|next| next.insn.flags_read == ZERO_FLAG)
}
