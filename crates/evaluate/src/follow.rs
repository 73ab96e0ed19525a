//! Following code until something is not known.

use crate::memory::Memory;
use crate::state::State;
use crate::step::{Step, Stuck};
use restitch_address::{Avma, LoadBias};
use restitch_x86::{Action, Semantic};

/// Instructions that follow each other without a branch between them, in the coordinates of one module.
#[derive(Debug, Clone, Copy)]
pub struct Run<'a> {
    /// The instructions; the first one is the one asked for.
    pub instructions: &'a [Semantic],
    /// Where the module is.
    pub bias: LoadBias,
}

/// The code of a process.
pub trait Code {
    /// The instructions from `at` up to a branch or as far as they are known; `None` if nothing is known
    /// there.
    fn run(&mut self, at: Avma) -> Option<Run<'_>>;
}

/// A taken branch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Taken {
    /// Address of the branch instruction.
    pub from: Avma,
    /// Where it went.
    pub to: Avma,
}

/// How many branches were met, for the paper's figures: `t` is `dynamic_taken` among the dynamic ones, `s`
/// the share of `fixed` among all.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Tally {
    /// Instructions executed.
    pub instructions: u64,
    /// Direct jumps and calls: the instruction alone says where they go.
    pub fixed: u64,
    /// Conditional and indirect branches and returns that were taken.
    pub dynamic_taken: u64,
    /// Conditional branches that were not taken.
    pub not_taken: u64,
}

impl Tally {
    /// Counts an instruction, if it is a branch.
    pub fn add(&mut self, action: &Action, taken: bool) {
        match (action, taken) {
            (Action::Jump(_) | Action::Call(_), _) => self.fixed += 1,
            (_, true) => self.dynamic_taken += 1,
            (Action::JumpIf(..) | Action::CountBranch(..), false) => self.not_taken += 1,
            _ => {}
        }
    }
}

/// Why following ended. [`State::pc`] is at the instruction that was not executed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Ended {
    /// As many taken branches as were asked for.
    Full,
    /// Something about the branch at the state's pc is not known.
    Branch(Stuck),
    /// There is no known code at the state's pc.
    NoCode,
    /// More instructions without a taken branch than any program has.
    TooLong,
}

/// No straight piece of code is that long; it ends runs through data that looks like code.
const MOST_WITHOUT_BRANCH: u32 = 100_000;

/// Follows the code from `state` until `limit` taken branches were reported to `sink`, or something is not
/// known.
pub fn follow(
    state: &mut State,
    code: &mut impl Code,
    memory: &mut impl Memory,
    limit: usize,
    tally: &mut Tally,
    sink: &mut impl FnMut(Taken),
) -> Ended {
    let (mut taken, mut straight) = (0, 0);
    while taken < limit {
        let Some(run) = code.run(state.pc) else { return Ended::NoCode };
        for semantic in run.instructions {
            let from = state.pc;
            let step = state.step(semantic, run.bias, memory);
            if let Step::Stuck(stuck) = step {
                return Ended::Branch(stuck);
            }
            straight += 1;
            tally.instructions += 1;
            tally.add(&semantic.action, step == Step::Taken);
            if step == Step::Taken {
                sink(Taken { from, to: state.pc });
                (taken, straight) = (taken + 1, 0);
                break;
            }
        }
        if straight > MOST_WITHOUT_BRANCH || run.instructions.is_empty() {
            return Ended::TooLong;
        }
    }
    Ended::Full
}
