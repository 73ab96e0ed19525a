//! Direct jumps and calls that need no record.
//!
//! Problem: a record costs 50 bytes of code at each branch, and a burst begins with cold caches. Idea: who
//! comes to a direct jump or call takes it, so whoever follows the program from one record to the next knows
//! it without a record. But each cycle of the program needs a record, or a burst would have no end. Only
//! conditional branches that are not taken lie between such branches, so from each there is one next one:
//! cycles are found by following them, and in each one branch is recorded.

use super::{Burst, NONE};
use restitch_address::Svma;
use restitch_program::{CallTarget, Terminator};

/// The direct jumps and calls that are not recorded, by address, with the labels of their targets' copies.
#[derive(Debug, Default)]
pub(super) struct Implied(Vec<(Svma, u32)>);

/// What control comes to that runs straight on: where it goes from there, and the label of the copy; nowhere
/// that is known without a record otherwise.
type Stop = (Svma, Option<(Svma, u32)>);

impl Implied {
    pub fn of(burst: &Burst<'_>) -> Self {
        let stops = stops(burst);
        let next: Vec<Option<usize>> = stops.iter().map(|(_, to)| Some(first(&stops, (*to)?.0))).collect();
        let recorded = one_of_each_cycle(&next);
        let silent = stops.iter().zip(recorded).filter(|(_, recorded)| !recorded);
        Self(silent.filter_map(|((at, to), _)| Some((*at, (*to)?.1))).collect())
    }

    /// The label of the copy of the target of the branch at `at`, if it is not recorded.
    pub fn label(&self, at: Svma) -> Option<u32> {
        let i = self.0.binary_search_by_key(&at, |branch| branch.0).ok()?;
        Some(self.0[i].1)
    }
}

/// The first stop at or behind `at`.
fn first(stops: &[Stop], at: Svma) -> usize {
    stops.partition_point(|stop| stop.0 < at)
}

fn stops(burst: &Burst<'_>) -> Vec<Stop> {
    let program = burst.request.program;
    let mut stops = Vec::new();
    for id in program.block_ids().filter(|id| burst.labels[id.index()] != NONE) {
        let to = |to: Svma| Some((to, burst.copy_of(to)?));
        for call in program.calls_of(id) {
            let target = match call.target {
                CallTarget::Direct(target) => to(target),
                _ => None,
            };
            stops.push((call.at, target));
        }
        let block = program.block(id);
        match block.terminator {
            Terminator::FallThrough | Terminator::Conditional(..) | Terminator::ShortConditional(_) => {}
            Terminator::Jump(target) => stops.push((block.terminator_at(), to(target))),
            _ => stops.push((block.terminator_at(), None)),
        }
    }
    stops.sort_unstable();
    stops.dedup_by_key(|stop| stop.0);
    stops
}

/// `next` leads from one number to another, to `next.len()` or above, or nowhere: a choice of numbers without
/// which there is no cycle.
fn one_of_each_cycle(next: &[Option<usize>]) -> Vec<bool> {
    let mut chosen = vec![false; next.len()];
    // The walk that was there first; 0 for none.
    let mut walks = vec![0u32; next.len()];
    for (start, walk) in (0..next.len()).zip(1u32..) {
        let mut at = start;
        while let Some(seen) = walks.get_mut(at) {
            if *seen != 0 {
                chosen[at] |= *seen == walk;
                break;
            }
            *seen = walk;
            match next[at] {
                Some(then) => at = then,
                None => break,
            }
        }
    }
    chosen
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_branch_of_each_cycle_is_recorded() {
        // 0 -> 2 -> 4 -> 2, 1 -> 1, 3 -> nowhere, 5 -> 0, 6 -> behind all.
        let next = [Some(2), Some(1), Some(4), None, Some(2), Some(0), Some(7)];
        assert_eq!(one_of_each_cycle(&next), [false, true, true, false, false, false, false]);
        assert_eq!(one_of_each_cycle(&[]), []);
    }
}
