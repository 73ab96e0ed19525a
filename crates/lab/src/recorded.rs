//! A real execution: branch records, one after the other.

use restitch_address::Svma;
use restitch_profile::ways::run_between;
use restitch_program::{Program, Terminator};

use crate::trace::{How, Step, Trace};

/// A taken branch, by its instruction and its target; `None` is a place outside of the module.
pub type RecordedBranch = (Option<Svma>, Option<Svma>);

impl Trace {
    /// What ran between the branches of each stack (**oldest first**), stack after stack, up to `most` steps.
    /// Where a record leaves the module, or does not fit the program, the trace goes on at the next place
    /// that is known.
    pub fn of_records<'a>(
        program: &Program,
        stacks: impl IntoIterator<Item = &'a [RecordedBranch]>,
        most: usize,
    ) -> Self {
        let mut steps = Vec::new();
        for stack in stacks {
            for pair in stack.windows(2) {
                if steps.len() >= most {
                    break;
                }
                if let (Some(start), Some(end)) = (pair[0].1, pair[1].0) {
                    run(program, start, end, &mut steps);
                }
            }
        }
        steps.truncate(most);
        Self { steps }
    }
}

/// Adds the blocks from `start` to the branch at `end`; nothing if no way leads there.
fn run(program: &Program, start: Svma, end: Svma, steps: &mut Vec<Step>) {
    let Some((first, way)) = run_between(program, start, end) else { return };
    let last = first.0 + way.len() as u32;
    for block in (first.0..=last).map(restitch_program::BlockId) {
        let at = program.block(block);
        let from = if block == first { (start.get() - at.start.get()) as u32 } else { 0 };
        let whole = Step { block, from, to: Step::END, how: How::Branch };
        let step = if block.0 == last { Step { from, ..leaving(program, whole, end) } } else { whole };
        steps.push(step);
    }
}

/// The end of a run: by the block's terminator, or by a call inside of it.
fn leaving(program: &Program, whole: Step, end: Svma) -> Step {
    let block = program.block(whole.block);
    if block.terminator_len > 0 && block.terminator_at() == end {
        let laid_out = matches!(
            block.terminator,
            Terminator::Jump(_) | Terminator::Conditional(..) | Terminator::ShortConditional(_)
        );
        return Step { how: if laid_out { How::Branch } else { How::Taken }, ..whole };
    }
    let call = program.calls_of(whole.block).iter().find(|c| c.at == end);
    let len = call.map_or(1, |c| u32::from(c.len));
    Step { to: (end.get() - block.start.get()) as u32 + len, how: How::Taken, ..whole }
}
