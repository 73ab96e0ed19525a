//! Where in a function the flags that a counter overwrites are dead, and where in a block one may stand.
//!
//! A backward data-flow over the function's blocks. Flags are dead at returns, at calls of functions and at
//! jumps to them, by the calling convention. Whether that is so is for the checker, which follows callees and
//! looks for code that reads what calls return; of functions that it finds to differ nothing is believed.

use crate::placed::Spot;
use restitch_address::{Svma, SvmaRange};
use restitch_kernel::{Block, Code, End, Kernel, SiteKind};
use restitch_x86::Flow;
use restitch_x86::kernel_code::{KernelInsn, scan_kernel, target_marker};
use restitch_x86::module_code::{COUNTING_FLAGS, FILL};

/// Behind `sti` (one byte) interrupts wait for one instruction more, which is to be the original's.
const LET_INTERRUPTS_IN: u8 = 0xfb;

/// An instruction.
#[derive(Debug, Clone, Copy)]
struct Step {
    at: Svma,
    reads: u8,
    writes: u8,
    /// Control may go elsewhere, and come back later or never: what counts executions of the block stands in
    /// front.
    leaves: bool,
    /// Nothing may stand in front of it: a function begins with it.
    begins: bool,
    /// Nothing may stand behind it.
    holds: bool,
}

/// What is believed of calls and returns of a function.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Convention {
    /// No flags are handed on.
    Kept,
    /// They may be.
    Unknown,
}

impl Convention {
    /// The flags that are live where control leaves the function.
    fn outside(self) -> u8 {
        if self == Self::Kept { 0 } else { COUNTING_FLAGS }
    }
}

/// The live flags of a function.
#[derive(Debug)]
pub(crate) struct LiveFlags {
    steps: Vec<Vec<Step>>,
    /// By block: at its start.
    live: Vec<u8>,
    /// By block: at its end.
    out: Vec<u8>,
    /// Where control leaves the function.
    outside: u8,
}

impl LiveFlags {
    /// Of a function.
    pub(crate) fn of(kernel: &Kernel, code: &Code, convention: Convention) -> Self {
        let outside = convention.outside();
        let maker = StepMaker { kernel, code, outside };
        let steps = code.blocks.iter().map(|block| maker.steps(block)).collect::<Vec<_>>();
        let blocks = steps.len();
        let mut own = Self { steps, live: vec![0; blocks], out: vec![0; blocks], outside };
        // Flags only ever become live, so this ends.
        while own.update_all(kernel, code) {}
        own
    }

    /// One pass over all blocks; whether it has changed anything.
    fn update_all(&mut self, kernel: &Kernel, code: &Code) -> bool {
        let mut any = false;
        for block in (0..self.live.len()).rev() {
            any |= self.update(kernel, code, block);
        }
        any
    }

    /// Whether flags are live at the start of a block.
    pub(crate) fn at_start(&self, block: usize) -> bool {
        self.live[block] & COUNTING_FLAGS != 0
    }

    /// Whether they are where control goes on to an address.
    pub(crate) fn at(&self, code: &Code, at: Svma) -> bool {
        code.block_at(at).is_none_or(|block| self.at_start(block))
    }

    /// Where in a block a counter of its executions stands best: where the flags are dead, else as early as
    /// it can.
    pub(crate) fn spot(&self, block: &Block, number: usize) -> Option<Spot> {
        let (mut spots, mut may_stand) = (Vec::new(), true);
        let mut live = self.before_each(number).into_iter();
        for step in &self.steps[number] {
            let live = live.next().unwrap_or(COUNTING_FLAGS);
            if may_stand && !step.begins {
                spots.push(Spot { at: step.at, keeps_flags: live & COUNTING_FLAGS != 0 });
            }
            if step.leaves || step.at >= block.branch {
                return best(&spots);
            }
            may_stand = !step.holds;
        }
        if may_stand && block.branch == block.range.end {
            let keeps_flags = self.out[number] & COUNTING_FLAGS != 0;
            spots.push(Spot { at: block.range.end, keeps_flags });
        }
        best(&spots)
    }

    /// The flags that are live in front of each instruction.
    fn before_each(&self, block: usize) -> Vec<u8> {
        let mut live = self.out[block];
        let mut before: Vec<u8> = self.steps[block]
            .iter()
            .rev()
            .map(|step| {
                live = (live & !step.writes) | step.reads;
                live
            })
            .collect();
        before.reverse();
        before
    }

    fn update(&mut self, kernel: &Kernel, code: &Code, number: usize) -> bool {
        let block = &code.blocks[number];
        self.out[number] = self.live_out(kernel, code, block);
        let faults = faults(code, block).map(|fixup| self.flags_at(kernel, code, fixup));
        let at_faults = faults.fold(0, |all, live| all | live);
        let first = self.before_each(number).first().copied().unwrap_or(self.out[number]);
        let written = self.steps[number].split_last().map_or(&[][..], |(_, before)| before);
        let kept = written.iter().fold(COUNTING_FLAGS, |kept, step| kept & !step.writes);
        let live = first | (at_faults & kept);
        std::mem::replace(&mut self.live[number], live) != live
    }

    fn flags_at(&self, kernel: &Kernel, code: &Code, at: Svma) -> u8 {
        match code.block_at(at) {
            Some(block) => self.live[block],
            None if kernel.functions.starting_at(at).is_some() => self.outside,
            None => COUNTING_FLAGS,
        }
    }

    fn live_out(&self, kernel: &Kernel, code: &Code, block: &Block) -> u8 {
        let to = |at: Svma| self.flags_at(kernel, code, at);
        let next = || to(block.range.end);
        let out = match block.end {
            End::Next => next(),
            End::Jump(target) => to(target),
            End::Conditional { taken, .. } | End::ShortConditional(taken) | End::StaticKey { taken, .. } => {
                to(taken) | next()
            }
            End::Return | End::IndirectJump(_) | End::StaticJump { .. } => self.outside,
            End::NoReturn => 0,
            End::Trap if first_byte(kernel, block.range.end.offset(-1)) == Some(FILL) => COUNTING_FLAGS,
            End::Trap => 0,
            End::TableJump => COUNTING_FLAGS,
        };
        // A fault is in the last instruction, which may have written none.
        let faults = faults(code, block).map(to);
        faults.fold(out, |all, live| all | live)
    }
}

/// Where control goes on when an instruction of a block faults.
fn faults<'c>(code: &'c Code, block: &Block) -> impl Iterator<Item = Svma> + use<'c> {
    code.sites_in(block.range).iter().filter_map(|site| match site.kind {
        SiteKind::Exception(exception) => Some(exception.fixup),
        _ => None,
    })
}

/// The first place where the flags need not be kept, else the first one.
fn best(spots: &[Spot]) -> Option<Spot> {
    spots.iter().find(|spot| !spot.keeps_flags).or(spots.first()).copied()
}

/// Reads the instructions of a function.
struct StepMaker<'k> {
    kernel: &'k Kernel,
    code: &'k Code,
    /// The flags that callees may read.
    outside: u8,
}

impl StepMaker<'_> {
    /// The instructions of a block; none if they cannot be read.
    fn steps(&self, block: &Block) -> Vec<Step> {
        let bytes = self.kernel.known.memory.bytes(block.range).unwrap_or_default();
        let mut steps = Vec::new();
        // A block that does not decode keeps its function in place.
        let _ = scan_kernel(bytes, block.range.start, |insn| steps.push(self.step(&insn)));
        if let Some(first) = steps.first_mut() {
            first.begins |= target_marker(bytes) > 0;
        }
        let begin = steps.iter().position(|step| !step.begins).unwrap_or(steps.len());
        steps[begin..].iter_mut().for_each(|step| step.begins = false);
        steps
    }

    fn step(&self, found: &KernelInsn) -> Step {
        let insn = &found.insn;
        let sites = self.code.sites_in(SvmaRange::new(insn.at, 1));
        let is = |kind: fn(&SiteKind) -> bool| sites.iter().any(|site| kind(&site.kind));
        let is_trace = is(|kind| matches!(kind, SiteKind::Trace));
        let is_call = is(|kind| {
            matches!(kind, SiteKind::Call(_) | SiteKind::IndirectCall(_) | SiteKind::StaticCall { .. })
        });
        let is_known = is(|kind| matches!(kind, SiteKind::Exception(_) | SiteKind::Bug { .. }));
        let (reads, writes) = match insn.flow {
            // A place of the function tracer, which keeps all flags.
            _ if is_trace => (0, 0),
            Flow::Call(to) if !is_function(self.kernel, to) && found.indirect.is_none() => {
                (COUNTING_FLAGS, 0)
            }
            _ if is_call => (self.outside, COUNTING_FLAGS),
            _ => (insn.flags_read, insn.flags_written),
        };
        let holds = insn.len == 1 && first_byte(self.kernel, insn.at) == Some(LET_INTERRUPTS_IN);
        Step { at: insn.at, reads, writes, leaves: is_call || is_known, begins: is_trace, holds }
    }
}

fn is_function(kernel: &Kernel, at: Svma) -> bool {
    kernel.functions.starting_at(at).is_some()
}

fn first_byte(kernel: &Kernel, at: Svma) -> Option<u8> {
    kernel.known.memory.at(at)?.first().copied()
}
