//! Whether the status flags that a plain counter changes are dead at a point of the original code.
//!
//! A search of its own over the original bytes, not the analysis that chose the counter's form: from the
//! point on, every path must write OF, SF, ZF, AF and PF before one of them is read (CF is not changed by
//! `inc`).
//!
//! What it takes from the System V ABI (3.2.1) is that a function returns no flags, and that none are handed
//! to another module: `ret` and a jump through a slot at a fixed address (`jmp *slot(%rip)`, a tail call
//! through the GOT) end a path. Flags that are handed *to* a function of this module are looked at: a call is
//! followed into its target. Any other indirect jump goes to each block of its function that indirect jumps
//! reach, or out of it as a tail call.

use crate::subject::Subject;
use iced_x86::{Decoder, DecoderOptions, FlowControl, Instruction, Mnemonic, OpKind, RflagsBits};
use restitch_address::Svma;
use restitch_program::{BlockAttrs, BlockId, Terminator};
use std::collections::HashSet;

/// The flags that `inc` writes.
const WRITTEN_BY_INC: u32 =
    RflagsBits::OF | RflagsBits::SF | RflagsBits::ZF | RflagsBits::AF | RflagsBits::PF;
/// A search that has not ended after this many blocks counts as "live".
const MAX_BLOCKS: usize = 4096;

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct State {
    block: BlockId,
    pending: u32,
}

/// Answers, with a memory of what was found dead.
#[derive(Default)]
pub(crate) struct Flags {
    dead: HashSet<State>,
}

enum Scan {
    Live,
    Dead,
    Pending(u32),
}

impl Flags {
    /// Whether those that a counter changes are dead on entry of the code at `at`.
    pub fn dead_at(&mut self, s: &Subject<'_>, at: Svma) -> bool {
        self.none_read(s, at, WRITTEN_BY_INC)
    }

    /// Whether all of them are dead on entry of the code at `at`.
    pub fn all_dead_at(&mut self, s: &Subject<'_>, at: Svma) -> bool {
        self.none_read(s, at, WRITTEN_BY_INC | RflagsBits::CF)
    }

    fn none_read(&mut self, s: &Subject<'_>, at: Svma, pending: u32) -> bool {
        let Some(block) = s.program.block_at(at) else {
            // Not code that is known: fine for a tail call into the PLT, which takes no flags.
            return s.image.plt_slot_at(at).is_some() || !s.image.is_executable(at);
        };
        let mut found = HashSet::new();
        let mut todo = Vec::new();
        let first = State { block, pending };
        if !self.step(s, first, at, &mut todo) {
            return false;
        }
        while let Some(state) = todo.pop() {
            if self.dead.contains(&state) || !found.insert(state) {
                continue;
            }
            let start = s.program.block(state.block).start;
            if found.len() > MAX_BLOCKS || !self.step(s, state, start, &mut todo) {
                return false;
            }
        }
        self.dead.extend(found);
        true
    }

    /// Goes from `from` to the end of the block. `false`: a flag is live.
    fn step(&self, s: &Subject<'_>, state: State, from: Svma, todo: &mut Vec<State>) -> bool {
        match scan(s, state, from, todo) {
            Scan::Live => false,
            Scan::Dead => true,
            Scan::Pending(pending) => successors(s, state, pending, todo),
        }
    }
}

/// The flags that matter afterwards. `syscall` copies all of them to r11, which system calls destroy by
/// convention (System V ABI, A.2.1).
fn reads(instruction: &Instruction) -> u32 {
    match instruction.mnemonic() {
        Mnemonic::Syscall => 0,
        _ => instruction.rflags_read(),
    }
}

/// Shifts by `cl` and repeated string comparisons change no flag when their count is 0 (Intel SDM vol. 2).
fn always_writes(instruction: &Instruction) -> bool {
    use Mnemonic as M;
    match instruction.mnemonic() {
        M::Shl | M::Sal | M::Shr | M::Sar | M::Rol | M::Ror | M::Rcl | M::Rcr | M::Shld | M::Shrd => {
            let last = instruction.op_count().saturating_sub(1);
            instruction.op_kind(last) != OpKind::Register
                && instruction.try_immediate(last).is_ok_and(|count| count & 31 != 0)
        }
        // The kernel gives the flags back as they were.
        M::Syscall => false,
        M::Cmpsb | M::Cmpsw | M::Cmpsd | M::Cmpsq | M::Scasb | M::Scasw | M::Scasd | M::Scasq => {
            !instruction.has_rep_prefix() && !instruction.has_repne_prefix()
        }
        _ => true,
    }
}

fn scan(s: &Subject<'_>, state: State, from: Svma, todo: &mut Vec<State>) -> Scan {
    let block = s.program.block(state.block);
    let len = block.end().offset_from(from) as usize;
    let Some(bytes) = s.image.read(from, len) else { return Scan::Live };
    let mut decoder = Decoder::with_ip(64, bytes, from.get(), DecoderOptions::NONE);
    let mut instruction = Instruction::default();
    let mut pending = state.pending;
    while decoder.can_decode() {
        decoder.decode_out(&mut instruction);
        if instruction.is_invalid() || reads(&instruction) & pending != 0 {
            return Scan::Live;
        }
        if always_writes(&instruction) {
            pending &= !instruction.rflags_modified();
        }
        if pending == 0 {
            return Scan::Dead;
        }
        match instruction.flow_control() {
            FlowControl::IndirectBranch if instruction.is_ip_rel_memory_operand() => return Scan::Dead,
            FlowControl::Call if instruction.mnemonic() == Mnemonic::Call => {
                if instruction.op0_kind() == OpKind::NearBranch64
                    && let Some(block) =
                        s.program.block_starting_at(Svma::new(instruction.near_branch_target()))
                {
                    todo.push(State { block, pending });
                }
                return Scan::Dead;
            }
            FlowControl::IndirectCall => return Scan::Dead,
            _ => {}
        }
    }
    Scan::Pending(pending)
}

fn successors(s: &Subject<'_>, state: State, pending: u32, todo: &mut Vec<State>) -> bool {
    let block = s.program.block(state.block);
    let mut go = |to: Svma| match s.program.block_starting_at(to) {
        Some(block) => {
            todo.push(State { block, pending });
            true
        }
        None => s.image.plt_slot_at(to).is_some(),
    };
    match block.terminator {
        Terminator::Return => true,
        // A handler may go on behind a trap. Behind the end of a function nobody reads flags.
        Terminator::Stop => s.program.behind_trap(state.block).is_none_or(|_| go(block.end())),
        Terminator::IndirectJump => {
            let inside = s.program.blocks_of(block.function);
            let reached = |b: &BlockId| s.program.block(*b).attrs.contains(BlockAttrs::INDIRECT);
            todo.extend(inside.filter(reached).map(|block| State { block, pending }));
            true
        }
        Terminator::FallThrough => go(block.end()),
        Terminator::Jump(to) => go(to),
        Terminator::Conditional(_, to) | Terminator::ShortConditional(to) => go(to) && go(block.end()),
        Terminator::Table(table) => match s.program.tables.get(table.index()) {
            Some(table) => table.targets.iter().all(|to| s.program.is_unreachable_entry(*to) || go(*to)),
            None => false,
        },
    }
}
