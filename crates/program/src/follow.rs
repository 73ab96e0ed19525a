//! What becomes of an address that an instruction makes.
//!
//! Problem: `lea` makes addresses of functions and of data alike; what stands there shows only where the
//! register is used. Idea: follow the register along the straight code and its branches, within one function.
//! Registers hold constants (what is added may bring an address elsewhere, as the prologues of the large code
//! model do) or such an address with something unknown added. Limits: what is kept in memory, passed to a
//! function or returned is not followed.

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
    /// Jumps and calls that go to it with something unknown added, into the middle of an unrolled loop, say:
    /// where they are, and the address apart from what is unknown.
    pub jumped: Vec<(Svma, Svma)>,
}

/// What a register holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Held {
    at: u64,
    /// Comes from the address that is followed.
    ours: bool,
    /// Something unknown was added.
    moved: bool,
}

type Registers = [Option<Held>; 16];

/// Registers that a called function may change (System V ABI 3.2.1): all but rbx, rsp, rbp and r12 to r15.
const LOST_BY_CALLS: u16 = 0x0fc7;

/// Follows the address that the instruction `made` puts into a register, through at most `most` instructions
/// of `range`, which `decode` gives. `before`: the instructions that lead to it, in order, without a jump;
/// they tell constants in other registers.
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
    registers[usize::from(register)] = Some(Held { at, ours: true, moved: false });
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
        uses.jumped.extend(goes_to_moved(&insn, &registers).map(|to| (at, to)));
        step(decode, &insn, &mut registers, &mut uses);
        match insn.insn.flow {
            Flow::Next | Flow::Stop | Flow::Call(_) | Flow::IndirectCall => {
                open.push((insn.insn.end(), registers));
            }
            Flow::Jump(to) => open.push((to, registers)),
            Flow::Conditional(_, to) | Flow::ShortConditional(to) => {
                open.extend([(to, registers), (insn.insn.end(), registers)]);
            }
            // A tail call, unless a register that belongs to the caller holds it.
            Flow::IndirectJump => uses.lost |= mask(&registers) & !LOST_BY_CALLS != 0,
            Flow::Return | Flow::Unsupported => {}
        }
    }
    uses.accessed.sort_unstable();
    uses.accessed.dedup();
    uses
}

/// The address that is followed, if control goes to it with something unknown added.
fn goes_to_moved(insn: &Decoded, registers: &Registers) -> Option<Svma> {
    let goes = matches!(insn.insn.flow, Flow::IndirectJump | Flow::IndirectCall) && insn.memory.is_none();
    let read = registers.iter().enumerate().filter(|(r, _)| insn.reads >> r & 1 == 1);
    let mut held = read.filter_map(|(_, held)| held.filter(|h| h.ours && h.moved));
    held.next().filter(|_| goes).map(|held| Svma::new(held.at))
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
        Op::Constant(dst, at) => (Some((dst, Some(Held { at, ours: false, moved: false }))), false),
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
            *slot = base.filter(|_| computed).map(|held| Held { moved: true, ..held });
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
        // What is multiplied is no address any more.
        let scaled = memory.index.filter(|_| memory.scale > 1);
        if let Some(index) = scaled {
            rest &= !(1 << index.0);
            uses.computed |= ours(index).is_some();
        }
        for register in [memory.base, memory.index.filter(|_| scaled.is_none())].into_iter().flatten() {
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
        (Some(a), Some(b)) => {
            let (ours, moved) = (a.ours || b.ours, a.moved || b.moved);
            Some(Held { at: a.at.wrapping_add(b.at), ours, moved })
        }
        (Some(a), None) | (None, Some(a)) => Some(Held { moved: true, ..a }).filter(|a| a.ours),
        (None, None) => None,
    }
}

/// Whether only equality is asked of the flags that `compare` sets: the next instruction is `je`, `sete`,
/// `cmove` or their like, which read ZF alone.
fn only_equality(decode: &dyn Fn(Svma) -> Option<Decoded>, compare: &Decoded) -> bool {
    decode(compare.insn.end()).is_some_and(|next| next.insn.flags_read == ZERO_FLAG)
}

#[cfg(test)]
mod tests {
    use super::*;
    use restitch_x86::decode_one;

    /// `lea 0x4000(%rip),%rax` at 0x1000 makes this.
    const MADE: u64 = 0x5007;

    /// What becomes of the address in the code `rest` behind the `lea`; `before` stands in front of it.
    fn uses(before: &[u8], rest: &[u8]) -> Uses {
        let bytes = [&[0x48, 0x8d, 0x05, 0, 0x40, 0, 0], rest].concat();
        let decode =
            |at: Svma| decode_one(bytes.get(usize::try_from(at.offset_from(Svma::new(0x1000))).ok()?..)?, at);
        let range = SvmaRange::new(Svma::new(0x1000), bytes.len() as u64);
        let before = Vec::from_iter(decode_one(before, Svma::new(0x900)));
        follow_address(&decode, range, &before, &decode(range.start).expect("a lea"), 64)
    }

    #[test]
    fn memory_is_accessed_where_the_register_and_the_displacement_say() {
        let accessed = |rest: &[u8]| -> Vec<u64> {
            uses(&[], rest).accessed.iter().map(|at| at.offset_from(Svma::new(MADE)) as u64).collect()
        };
        assert_eq!(accessed(&[0x48, 0x33, 0x14, 0xc8, 0xc3]), [0], "xor (%rax,%rcx,8),%rdx");
        assert_eq!(accessed(&[0x48, 0x8b, 0x50, 0x10, 0xc3]), [16], "mov 16(%rax),%rdx");
        assert_eq!(accessed(&[0x48, 0x83, 0xc0, 8, 0x8b, 0x10, 0xc3]), [8], "add $8,%rax; mov (%rax),%edx");
        assert_eq!(accessed(&[0x48, 0x01, 0xc8, 0x8a, 0x10, 0xc3]), [0], "add %rcx,%rax; mov (%rax),%dl");
        assert_eq!(accessed(&[0x48, 0x89, 0xc6, 0xa4, 0xc3]), [0], "mov %rax,%rsi; movsb");
        assert_eq!(accessed(&[0x48, 0x8b, 0x14, 0x81, 0xc3]), [0u64; 0], "mov (%rcx,%rax,4),%rdx");
        assert_eq!(accessed(&[0x74, 1, 0xc3, 0xff, 0x20]), [0], "je .+3; ret; jmp *(%rax)");
        assert_eq!(accessed(&[0xe8, 0, 0, 0, 0, 0x8b, 0x10, 0xc3]), [0u64; 0], "call; mov (%rax),%edx");
        assert_eq!(accessed(&[0x48, 0x89, 0x07, 0xff, 0xd0, 0xc3]), [0u64; 0], "mov %rax,(%rdi); call *%rax");
    }

    #[test]
    fn a_constant_that_is_added_leads_elsewhere() {
        // movabs $0x100000,%r11 in front; add %r11,%rax; mov (%rax),%edx.
        let before = [0x49, 0xbb, 0, 0, 0x10, 0, 0, 0, 0, 0];
        let found = uses(&before, &[0x4c, 0x01, 0xd8, 0x8b, 0x10, 0xc3]);
        assert_eq!(found.accessed, [Svma::new(MADE + 0x10_0000)]);
        assert!(found.computed && !found.lost);
    }

    #[test]
    fn equality_is_nothing_computed_and_order_is() {
        let computed = |rest: &[u8]| uses(&[], rest).computed;
        assert!(!computed(&[0x48, 0x39, 0xc7, 0x74, 0, 0xc3]), "cmp %rax,%rdi; je");
        assert!(computed(&[0x48, 0x39, 0xc7, 0x77, 0, 0xc3]), "cmp %rax,%rdi; ja");
        assert!(
            !computed(&[0x48, 0x89, 0xc3, 0x53, 0xff, 0xd3, 0xc3]),
            "mov %rax,%rbx; push %rbx; call *%rbx"
        );
        assert!(computed(&[0x48, 0x29, 0xc7, 0xc3]), "sub %rax,%rdi");
    }

    #[test]
    fn jumps_to_it_and_something_unknown_are_noted() {
        let jumped = |rest: &[u8]| uses(&[], rest).jumped.len();
        assert_eq!(jumped(&[0x48, 0x8d, 0x04, 0x88, 0xff, 0xe0]), 1, "lea (%rax,%rcx,4),%rax; jmp *%rax");
        assert_eq!(jumped(&[0x48, 0x01, 0xc1, 0xff, 0xd1, 0xc3]), 1, "add %rax,%rcx; call *%rcx");
        assert_eq!(jumped(&[0x48, 0x29, 0xc8, 0x75, 0, 0xff, 0xe0]), 1, "sub %rcx,%rax; jne .+2; jmp *%rax");
        assert_eq!(jumped(&[0x48, 0x83, 0xc0, 8, 0xff, 0xe0]), 0, "add $8,%rax; jmp *%rax");
        assert_eq!(jumped(&[0x48, 0x8b, 0x04, 0xc8, 0xff, 0xe0]), 0, "mov (%rax,%rcx,8),%rax; jmp *%rax");
    }

    #[test]
    fn what_may_live_on_is_lost() {
        assert!(uses(&[], &[0x48, 0x89, 0xc3, 0xff, 0xe7]).lost, "mov %rax,%rbx; jmp *%rdi");
        assert!(!uses(&[], &[0xff, 0xe7]).lost, "jmp *%rdi");
        assert!(uses(&[], &[0x90; 100]).lost, "more than 64 instructions");
    }
}
