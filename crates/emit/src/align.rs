//! Where hot code stands within cache lines.
//!
//! **Problem.** A front end fetches within a line of 64 bytes; each line that straight code runs on into
//! costs a fetch of its own. A loop of 50 bytes takes one line a round or two, by luck. Compilers align loops
//! and functions; a new order loses that.
//!
//! **Idea.** Padding is free where control never comes from above: behind jumps and returns. Between two such
//! places the code is a *run*, of which it is known how often each byte is executed, and so what each place
//! in a line would cost. A run begins at the place in a line for which the executions of line crossings, plus
//! a price for each byte of padding, are least.
//!
//! **The price** is what a byte of hot code costs by itself: [`PRICE`] times the crossings of an average
//! byte. So loops that are hotter than their surroundings are aligned, flat code (which waits for the
//! instruction cache, not for fetches) is left as dense as it is. Padding is at most a [`PADDING`]th of the
//! hot code in any case.

use crate::areas::HEADERS;
use crate::plan::{Op, Plan};
use crate::relax;
use crate::upper_bound::PADDING;
use restitch_program::{BlockId, Program, Terminator};

/// Bytes of a cache line.
const LINE: u32 = 64;
/// What a byte of padding costs, in line crossings of an average byte of hot code.
const PRICE: f64 = 16.0;
/// Chooses places within lines for the runs of the hot code of a plan whose branches have their lengths.
/// `heat`: executions by block; blocks behind its end never ran.
pub(crate) fn align(plan: &mut Plan, program: &Program, heat: &[u64]) {
    let order: Vec<usize> = plan.order().take(plan.hot_len()).collect();
    let heat_of = |plan: &Plan, slot: usize| heat_of(heat, plan.slots[slot].block);
    let sizes = |plan: &Plan, slot: usize| plan.slots[slot].end - plan.slots[slot].start;
    let bytes: u32 = order.iter().map(|&slot| sizes(plan, slot)).sum();
    let executed: f64 = order.iter().map(|&slot| heat_of(plan, slot) * f64::from(sizes(plan, slot))).sum();
    if executed == 0.0 {
        return;
    }
    let price = PRICE * executed / f64::from(LINE) / f64::from(bytes);
    let mut left = bytes / PADDING;
    let mut at = HEADERS;
    let mut from = 0;
    while from < order.len() {
        let falls = |i: &usize| falls_through(plan, program, order[*i]);
        let to = (from..order.len()).find(|i| !falls(i)).map_or(order.len(), |last| last + 1);
        let run: Vec<(u32, f64)> =
            order[from..to].iter().map(|&slot| (sizes(plan, slot), heat_of(plan, slot))).collect();
        let first = &mut plan.slots[order[from]];
        at = at.next_multiple_of(first.align);
        let padding = best_padding(&crossings(&run), at, first.align, price, left);
        first.in_line = Some(((at + padding) % LINE) as u8);
        left -= padding;
        at += padding + run.iter().map(|(size, _)| size).sum::<u32>();
        from = to;
    }
    relax::relax(plan);
}

fn heat_of(heat: &[u64], block: BlockId) -> f64 {
    heat.get(block.index()).copied().unwrap_or(0) as f64
}

/// Whether control may run on from the end of a slot into what stands behind it.
fn falls_through(plan: &Plan, program: &Program, slot: usize) -> bool {
    let ops = &plan.ops[plan.ops_of(slot)];
    if skips_to_end(ops) {
        return true;
    }
    if matches!(ops.last(), Some(Op::Branch { condition: None, .. })) {
        return false;
    }
    !matches!(
        program.block(plan.slots[slot].block).terminator,
        Terminator::Table(_) | Terminator::IndirectJump | Terminator::Return | Terminator::Stop
    )
}

/// Whether a `loop` or `jrcxz` skips the rest of these, and so leads to what stands behind them.
fn skips_to_end(ops: &[Op]) -> bool {
    let mut skips = ops.iter().enumerate();
    skips.any(|(i, op)| matches!(op, Op::Short { over, .. } if i + 1 + usize::from(*over) == ops.len()))
}

/// For each place in a line at which a run may begin, how often execution crosses from one line into the
/// next. The run is given as bytes and executions of its slots.
fn crossings(run: &[(u32, f64)]) -> [f64; LINE as usize] {
    let mut out = [0.0; LINE as usize];
    // The line border is in front of the byte at `offset`.
    let mut border =
        |offset: u32, executions: f64| out[((LINE - offset % LINE) % LINE) as usize] += executions;
    let mut offset = 0;
    let mut before = 0.0f64;
    for &(size, heat) in run {
        if size == 0 {
            continue;
        }
        border(offset, before.min(heat));
        (offset + 1..offset + size).for_each(|inside| border(inside, heat));
        offset += size;
        before = heat;
    }
    out
}

/// The padding in front of a run that costs least: the smallest of several; a multiple of `align`, at most
/// `most`.
fn best_padding(crossings: &[f64; LINE as usize], at: u32, align: u32, price: f64, most: u32) -> u32 {
    let cost = |padding: u32| crossings[((at + padding) % LINE) as usize] + price * f64::from(padding);
    let possible = (0..LINE.min(most + 1)).step_by(align.min(LINE) as usize);
    possible.min_by(|a, b| cost(*a).total_cmp(&cost(*b))).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Dest;

    #[test]
    fn a_loop_that_fits_is_put_into_one_line() {
        let run = [(4, 1.0), (50, 1000.0), (3, 1.0)];
        let costs = crossings(&run);
        let padding = best_padding(&costs, 40, 1, 0.1, 100);
        assert_eq!((padding, costs[0]), (24, 0.0), "all of it stands in one line");
        let padding = best_padding(&costs, 40, 1, 0.5, 100);
        assert_eq!((padding, costs[60]), (20, 1.0), "the entry ends a line, the loop begins the next one");
    }

    #[test]
    fn cold_code_is_not_padded() {
        let costs = crossings(&[(60, 1.0)]);
        assert_eq!(best_padding(&costs, 40, 1, 0.1, 100), 0);
        assert_eq!(best_padding(&costs, 40, 1, 0.0, 100), 24);
        assert_eq!(best_padding(&costs, 40, 1, 0.0, 10), 0, "no more than is left");
    }

    #[test]
    fn padding_keeps_alignment() {
        let costs = crossings(&[(60, 1.0)]);
        assert_eq!(best_padding(&costs, 32, 16, 0.0, 100), 32);
        assert_eq!(best_padding(&costs, 32, 4096, 0.0, 100), 0);
    }

    #[test]
    fn what_a_short_branch_skips_to_is_run_into() {
        let jump = || Op::Branch { condition: None, near: false, added: true, dest: Dest::Slot(7) };
        let short = |over| Op::Short { over, len: 2 };
        assert!(skips_to_end(&[short(1), jump()]), "jrcxz behind; jmp 7; behind:");
        assert!(!skips_to_end(&[short(1), jump(), jump()]), "jrcxz 1f; jmp 7; 1: jmp 7");
        assert!(!skips_to_end(&[jump()]));
    }

    proptest::proptest! {
        /// The sums are those that one gets by putting the run at each place and looking at each byte.
        #[test]
        fn crossings_are_those_of_every_byte(run in proptest::collection::vec((0u32..100, 0u32..50), 1..12)) {
            let run: Vec<(u32, f64)> = run.into_iter().map(|(size, heat)| (size, f64::from(heat))).collect();
            let bytes: Vec<(usize, f64)> = run.iter().enumerate()
                .flat_map(|(slot, &(size, heat))| (0..size).map(move |_| (slot, heat))).collect();
            let costs = crossings(&run);
            for (place, cost) in costs.iter().enumerate() {
                let crossed = |pair: (usize, &[(usize, f64)])| {
                    let at_border = (place + pair.0 + 1).is_multiple_of(LINE as usize);
                    if at_border { pair.1[0].1.min(pair.1[1].1) } else { 0.0 }
                };
                let want: f64 = bytes.windows(2).enumerate().map(crossed).sum();
                proptest::prop_assert!((cost - want).abs() < 1e-6);
            }
        }
    }
}
