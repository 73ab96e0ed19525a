//! Contexts that rest anywhere: what a switch must not do to programs that have such.
//!
//! Problem: a redirect overwrites five bytes. Threads and what is on their stacks are looked at in the stop,
//! and code is chosen so that nothing else comes to the bytes behind the first one; but where the handler of
//! a timer's signal switches to another user thread, the interrupted one rests at any instruction, where no
//! walk finds it. Idea: while the process runs, its memory is looked through for what signals have
//! interrupted ([`crate::memory::signal_contexts`]). If any such context is neither dead nor on its own
//! thread's stack, the program switches stacks in handlers. Which contexts rest changes until the stop; so
//! only redirects of one instruction come to be, between whose bytes nobody rests.
//!
//! A context is dead or its thread's own, judged in a short stop if there is any at all:
//!
//! * below the stack pointer of a thread that is on its own stack, on stacks of threads that have ended, and
//!   in small frames: as for the search of [`crate::memory::search`];
//! * where the frames of a thread lead through it: that thread goes on there;
//! * anywhere on a thread's own stack whose frames could not be followed (code of just-in-time compilers):
//!   nobody is known to switch between stacks that lie in local arrays, below such code;
//! * on alternate signal stacks, where the next signal writes over it, as long as there are no more of those
//!   than threads.
//!
//! All others count, dead ones on stacks of coroutines too: that leaves out redirects in vain, which is
//! right.
//!
//! Limits: a program whose very first context comes to rest between this look and the stop.

use crate::error::ProcessError;
use crate::frames::Walker;
use crate::memory::dead_stacks::dead_stacks;
use crate::memory::search::{begins, dead_part, known_part};
use crate::memory::signal_contexts::{self, SignalContext};
use crate::switch_plan::SwitchPlan;
use crate::target::Target;
use crate::threads::{ThreadView, survey};
use restitch_address::{Avma, AvmaRange};
use restitch_procfs::Mapping;
use restitch_tracee::{Memory, Stopped};
use std::collections::BTreeSet;

/// Leaves out of the plan what would be written where contexts may rest.
///
/// # Errors
/// If the process cannot be read or stopped; it is as it was.
pub(crate) fn spare(target: &Target, plan: &mut SwitchPlan<'_>) -> Result<(), ProcessError> {
    if plan.patches.wanted.is_empty() && plan.leaving.is_empty() {
        return Ok(());
    }
    plan.resting = at_rest(target, plan)?.iter().map(|context| context.rip).collect();
    if !plan.resting.is_empty() {
        plan.patches.leave_out_covering(|at| target.code_at(at));
    }
    Ok(())
}

/// The contexts that rest, or may.
fn at_rest(target: &Target, plan: &SwitchPlan<'_>) -> Result<Vec<SignalContext>, ProcessError> {
    let found = signal_contexts::find(target.pid())?;
    if found.is_empty() {
        return Ok(found);
    }
    let walker = Walker::new(target, &plan.leaving);
    let stopped = Stopped::seize_all(target.pid())?;
    let maps = stopped.maps()?;
    let threads = survey(&stopped, &walker, &maps)?;
    let accounted = accounted_for(target, stopped.memory(), &threads, &maps);
    stopped.resume();
    Ok(unaccounted(found, &threads, &accounted))
}

/// Where contexts are dead, or known.
fn accounted_for(
    target: &Target,
    memory: &Memory,
    threads: &[ThreadView],
    maps: &[Mapping],
) -> Vec<AvmaRange> {
    let controls: Vec<Avma> = threads.iter().map(|t| t.registers.fs_base).collect();
    let mut out = dead_stacks(memory, threads, maps);
    for thread in threads {
        let rsp = thread.registers.rsp;
        let unfollowed = thread.walk.outermost.is_none().then(|| own_stack(thread, maps)).flatten();
        if unfollowed.is_some() || thread.walk.outermost.is_some_and(|at| begins(target, memory, at)) {
            out.extend(dead_part(rsp, maps, &controls));
        }
        match thread.walk.complete {
            true => out.extend(known_part(thread)),
            false => out.extend(unfollowed.map(|stack| AvmaRange::between(rsp - 128, stack.end))),
        }
    }
    out
}

/// The mapping that a thread's stack pointer is in, if it is the stack that the thread was started with: the
/// first one's, or one that has the thread's control block at its top (System V ABI, 3.4.2).
fn own_stack(thread: &ThreadView, maps: &[Mapping]) -> Option<AvmaRange> {
    let (rsp, control) = (thread.registers.rsp, thread.registers.fs_base);
    let m = maps.iter().find(|m| m.range.contains(rsp))?;
    (m.is_special("[stack]") || m.range.contains(control) && rsp < control).then_some(m.range)
}

/// Those of the contexts that are not in `accounted`, not on their thread's way back, and not left on an
/// alternate stack.
fn unaccounted(
    mut found: Vec<SignalContext>,
    threads: &[ThreadView],
    accounted: &[AvmaRange],
) -> Vec<SignalContext> {
    let slots = threads.iter().flat_map(|t| &t.walk.slots).filter(|slot| slot.interrupted);
    let in_use: BTreeSet<Avma> = slots.map(|slot| slot.slot).collect();
    found.retain(|c| !in_use.contains(&c.slot) && !accounted.iter().any(|range| range.contains(c.slot)));
    let alternate: BTreeSet<Avma> = found.iter().filter_map(|context| context.alternate).collect();
    if alternate.len() <= threads.len() {
        found.retain(|context| context.alternate.is_none());
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frames::{ReturnSlot, Walk};
    use restitch_tracee::Registers;

    fn context(slot: u64, alternate: Option<u64>) -> SignalContext {
        SignalContext {
            slot: Avma::new(slot),
            rip: Avma::new(0x40_1000),
            alternate: alternate.map(Avma::new),
        }
    }

    fn thread(rsp: u64, control: u64, slots: &[(u64, bool)]) -> ThreadView {
        let registers =
            Registers { rsp: Avma::new(rsp), fs_base: Avma::new(control), ..Registers::default() };
        let slot = |(slot, interrupted): &(u64, bool)| ReturnSlot {
            slot: Avma::new(*slot),
            value: Avma::new(0x40_1000),
            interrupted: *interrupted,
        };
        let walk = Walk { slots: slots.iter().map(slot).collect(), ..Walk::default() };
        ThreadView { tid: 1, registers, stacks: Vec::new(), walk }
    }

    #[test]
    fn a_context_that_nobody_is_known_to_go_on_with_rests() {
        let threads = [thread(0x1000, 0, &[(0x1100, true), (0x1200, false)])];
        let found = [0x900, 0x1100, 0x1200, 0x5000].map(|slot| context(slot, None)).to_vec();
        let dead = [AvmaRange::between(Avma::new(0), Avma::new(0x1000))];
        let at_rest = unaccounted(found, &threads, &dead);
        assert_eq!(at_rest, [context(0x1200, None), context(0x5000, None)]);
    }

    #[test]
    fn more_alternate_stacks_than_threads_are_those_of_others() {
        let threads = [thread(0x1000, 0, &[]), thread(0x2000, 0, &[])];
        let found: Vec<_> = [0x5000, 0x5000, 0x6000].map(|at| context(at + 0x100, Some(at))).to_vec();
        assert_eq!(unaccounted(found.clone(), &threads, &[]), []);
        assert_eq!(unaccounted(found.clone(), &threads[..1], &[]), found);
    }

    #[test]
    fn a_threads_own_stack_has_its_control_block_above() {
        let line = "20000-30000 rw-p 0 00:00 0 \n40000-50000 rw-p 0 00:00 0 [stack]\n";
        let maps = restitch_procfs::parse_maps(line.as_bytes()).expect("lines of maps");
        let own = |rsp, control| own_stack(&thread(rsp, control, &[]), &maps).map(|r| r.start.get());
        assert_eq!(own(0x2_8000, 0x2_f000), Some(0x2_0000));
        assert_eq!(own(0x2_8000, 0x6_f000), None);
        assert_eq!(own(0x2_8000, 0x2_7000), None);
        assert_eq!(own(0x4_8000, 0x6_f000), Some(0x4_0000));
    }
}
