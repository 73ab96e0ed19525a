//! Promoted calls: a comparison of an indirect call's operand with one address, a direct call if they are
//! equal, else the original call.
//!
//! ```text
//! cmpq $target,operand            or      mov s,-8(%rsp); lea target(%rip),s; cmp s,operand; mov -8(%rsp),s
//! jne  stub
//! call target                             stub:  the original call; jmp behind the direct call
//! ```
//!
//! Nothing that lives on is changed: the status flags are dead at calls, which is looked at in the target and
//! is the convention for all others; `s` is r9, r10 or r11, none of the operand's, and has its value again at
//! the branch; and the eight bytes below the stack pointer are where both calls write their return address
//! next. An operand that lies there would be read too late, so an address that is formed with the stack
//! pointer has to be above it; that no other register is used to read what lies below the stack pointer is
//! taken on trust (compilers keep nothing there in functions that make calls).
//!
//! Memory that another thread changes between the comparison and the original call is read twice, each time
//! as the original could have.

use crate::finding::Problem;
use crate::map::Boundary;
use crate::row::RowAt;
use crate::walk::{Current, Walk};
use iced_x86::{Code, Instruction, Mnemonic, OpKind, Register};
use restitch_address::{Svma, SvmaRange};
use restitch_image::ImageKind;

/// The registers that hold a target for a moment, with the three bits that encodings have of them.
pub(crate) const SCRATCH: [(Register, u8); 3] = [(Register::R9, 1), (Register::R10, 2), (Register::R11, 3)];

/// A promoted call, read so far.
struct Guard {
    /// What the operand is compared with.
    target: Svma,
    /// The instructions in front of the branch: place, length, what they equal.
    steps: Vec<(Svma, u32, Boundary)>,
    /// The comparison.
    compare: Svma,
    /// Where the branch is.
    branch: Svma,
}

impl<'a> Walk<'_, 'a> {
    /// Whether the copy at `v` of the indirect call `i` begins with something else than a call.
    pub fn is_promoted(&self, i: &Instruction, v: Svma) -> bool {
        let indirect = i.code() == Code::Call_rm64;
        indirect && self.s.decode(v).is_some_and(|at| matches!(at.mnemonic(), Mnemonic::Mov | Mnemonic::Cmp))
    }

    /// Checks the promoted call at `v` against the original `i`, which consists of `bytes`. Gives the address
    /// behind it.
    pub fn promoted(&mut self, c: &Current<'a>, i: &Instruction, bytes: &[u8], v: Svma) -> Option<Svma> {
        let o = Svma::new(i.ip());
        let read = self.guard(i, bytes, v).and_then(|guard| {
            let branch = self.s.decode(guard.branch).ok_or("there is no branch")?;
            let call = self.s.decode(guard.branch + branch.len() as u64).ok_or("there is no direct call")?;
            match (branch.code(), call.code(), branch.len(), call.len()) {
                (Code::Jne_rel32_64, Code::Call_rel32_64, 6, 5) => Ok((guard, branch, call)),
                _ => Err("the comparison is not followed by jne and a direct call"),
            }
        });
        let (guard, branch, call) = match read {
            Ok(read) => read,
            Err(why) => {
                self.findings.at(v, o, Problem::Promoted(why));
                return None;
            }
        };
        let row = RowAt::of(o);
        for (at, len, boundary) in guard.steps {
            self.visit(at, len, boundary, row);
        }
        self.visit(guard.branch, branch.len() as u32, Boundary::Inserted(o, None), row);
        let direct = Svma::new(call.ip());
        self.visit(direct, call.len() as u32, Boundary::Called(o, i.len() as u32), row);
        let end = direct + call.len() as u64;
        if end.offset_from(c.range.end) > 0 {
            self.findings.at(v, o, Problem::Placement("the copy is longer than its range"));
        }
        if c.copied.is_some() {
            self.findings.at(v, o, Problem::Promoted("it stands between a table's load and its jump"));
        }
        self.calls_target(v, o, Svma::new(call.near_branch_target()), guard.target);
        let len = i.len() as u32;
        self.frames.compare_handling(self.s, guard.compare, o, (0, 0), false, &mut self.findings);
        self.frames.compare_handling(self.s, direct, o, (call.len() as u32, len), true, &mut self.findings);
        self.original_call(c, i, bytes, Svma::new(branch.near_branch_target()), end)?;
        self.report.promoted += 1;
        Some(end)
    }

    /// The instructions in front of the branch.
    fn guard(&self, i: &Instruction, bytes: &[u8], v: Svma) -> Result<Guard, &'static str> {
        let o = Svma::new(i.ip());
        let first = self.s.decode(v).ok_or("it does not decode")?;
        let inserted = Boundary::Inserted(o, None);
        if first.code() == Code::Cmp_rm64_imm32 {
            if self.s.image.kind() != ImageKind::Executable {
                return Err("it compares with a number in a module that is loaded anywhere");
            }
            let target = Svma::new(first.immediate32to64() as u64);
            self.same_operand(i, bytes, &first, 0, 0x48, [0x81, 7 << 3])?;
            let steps = vec![(v, first.len() as u32, inserted)];
            return Ok(Guard { target, steps, compare: v, branch: v + first.len() as u64 });
        }
        let scratch = SCRATCH.into_iter().find(|(r, _)| *r == first.op1_register());
        let (register, bits) =
            scratch.ok_or("it begins neither with a comparison nor by saving r9, r10 or r11")?;
        let moves = |opcode: u8| [0x4c, opcode, 0x44 | bits << 3, 0x24, 0xf8];
        if self.s.text(v, 5) != Some(&moves(0x89)) {
            return Err("the scratch register is not saved below the stack pointer");
        }
        let lea = v + 5;
        let loads =
            self.s.decode(lea).filter(|l| l.code() == Code::Lea_r64_m && l.op0_register() == register);
        let loads = loads.filter(|l| l.is_ip_rel_memory_operand() && l.len() == 7);
        let loads = loads.ok_or("the scratch register is not loaded with an address")?;
        let target = self.s.function_of_address(Svma::new(loads.ip_rel_memory_address()));
        if self.s.text(lea, 3) != Some(&[0x4c, 0x8d, 0x05 | bits << 3]) {
            return Err("the address is loaded by another form");
        }
        let compare = self.s.decode(lea + 7).ok_or("there is no comparison")?;
        if compare.code() != Code::Cmp_rm64_r64 || compare.op1_register() != register {
            return Err("the scratch register is not compared");
        }
        if [i.op0_register(), i.memory_base(), i.memory_index()].contains(&register) {
            return Err("the scratch register is one of the operand");
        }
        self.same_operand(i, bytes, &compare, 0, 0x4c, [0x39, bits << 3])?;
        let restore = Svma::new(compare.next_ip());
        if self.s.text(restore, 5) != Some(&moves(0x8b)) {
            return Err("the scratch register does not get its value back");
        }
        let steps = vec![
            (v, 5, inserted),
            (lea, 7, inserted),
            (lea + 7, compare.len() as u32, Boundary::Inside),
            (restore, 5, Boundary::Inside),
        ];
        Ok(Guard { target, steps, compare: lea + 7, branch: restore + 5 })
    }

    /// The operand of this number of `compare` is that of `call`, in the same encoding: REX `rex`, opcode,
    /// register field of the ModRM byte.
    pub fn same_operand(
        &self,
        call: &Instruction,
        bytes: &[u8],
        compare: &Instruction,
        number: u32,
        rex: u8,
        [opcode, field]: [u8; 2],
    ) -> Result<(), &'static str> {
        let stack = [call.op0_register(), call.memory_index()].contains(&Register::RSP)
            || call.memory_base() == Register::RSP
                && (call.memory_index() != Register::None || (call.memory_displacement64() as i64) < 0);
        if stack {
            return Err("the operand may be below the stack pointer");
        }
        let address = |i: &Instruction, number| {
            (
                i.op_kind(number),
                i.memory_base(),
                i.memory_index(),
                i.memory_index_scale(),
                i.memory_displacement64(),
            )
        };
        let register = |i: &Instruction, number| match i.op_kind(number) {
            OpKind::Register => i.op_register(number),
            _ => Register::None,
        };
        if address(call, 0) != address(compare, number)
            || register(call, 0) != register(compare, number)
            || call.has_segment_prefix()
        {
            return Err("it compares something else than what is called");
        }
        let old_rex = bytes.first().filter(|b| **b & 0xf0 == 0x40).copied();
        let operand = &bytes[usize::from(old_rex.is_some())..];
        let made = self.s.text(Svma::new(compare.ip()), operand.len() + 1).ok_or("it ends early")?;
        // The displacement of an operand relative to the program counter was compared by the address that it
        // gives.
        let rest = if call.is_ip_rel_memory_operand() { 2 } else { operand.len() };
        let same = operand.len() >= 2
            && operand[0] == 0xff
            && made[0] == rex | old_rex.unwrap_or(0) & 3
            && made[1] == opcode
            && made[2] == operand[1] & 0xc7 | field
            && made[3..=rest] == operand[2..rest];
        if same { Ok(()) } else { Err("the comparison is of another form") }
    }

    /// The direct call at `v` goes to `to`: the function at `target`, or its copy.
    fn calls_target(&mut self, v: Svma, o: Svma, to: Svma, target: Svma) {
        if to == target {
            self.exits.push(target);
        } else if self.s.copy_at(to, target).is_none() {
            let what = "a promoted call";
            self.findings.at(v, o, Problem::WrongTarget { what, to, want: target });
        }
        if self.s.program.block_starting_at(target).is_none() {
            self.findings.at(v, o, Problem::Promoted("its target is no code of the module"));
        } else if !self.flags.all_dead_at(self.s, target) {
            self.findings.at(v, o, Problem::FlagsLive);
        }
    }

    /// At `stub`: the original call, and a jump behind the direct one.
    fn original_call(
        &mut self,
        c: &Current<'a>,
        i: &Instruction,
        bytes: &[u8],
        stub: Svma,
        back: Svma,
    ) -> Option<()> {
        let (o, len) = (Svma::new(i.ip()), i.len() as u32);
        let there = Current { range: SvmaRange::new(stub, len.into()), ..*c };
        let jump = self.same_instruction(&there, i, bytes, stub)?;
        self.visit(stub, len, Boundary::Copied(o), RowAt::of(o));
        self.frames.compare_handling(self.s, stub, o, (len, len), true, &mut self.findings);
        let after = o + u64::from(len);
        let Some(jumps) = self.s.decode(jump).filter(|j| j.code() == Code::Jmp_rel32_64 && j.len() == 5)
        else {
            self.findings.at(
                jump,
                after,
                Problem::Promoted("behind the original call there is no jump back"),
            );
            return None;
        };
        let to = Svma::new(jumps.near_branch_target());
        if to != back {
            let what = "the way back from the original of a promoted call";
            self.findings.at(jump, after, Problem::WrongTarget { what, to, want: after });
        }
        let inside =
            self.s.program.functions.get(c.block.function.index()).is_some_and(|f| f.range.contains(after));
        let row = RowAt { originals: [Some(if inside { after } else { after - 1 }), None], lowered: 0 };
        self.visit(jump, 5, Boundary::Added(after), row);
        self.report.branches += 1;
        Some(())
    }
}
