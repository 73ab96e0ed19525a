//! Which functions a group of the hottest code is to be of, by calls that were seen or by counts, and which
//! of their blocks are hot.
//!
//! Few of them have to be led to: calls between copies are direct. A function is a root where calls come
//! through pointers, or from code that is not in the group.

use crate::counts::Counts;
use restitch_address::Svma;
use restitch_kernel::{Called, Code, End, FunctionId, Kernel, SeenCall, SiteKind};
use restitch_x86::module_code::SITE;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

/// A function that is called from elsewhere more seldom than once in so many calls of anything is no root:
/// who calls it then stays in the original, which does the same.
const SELDOM: u64 = 20_000;

/// Of the code of the hottest functions, what holds so many thousandths of the execution is hot.
const HOT_PER_MILLE: u64 = 999;

/// How many functions are the hottest ones, by the execution of their own code: bytes, each as often as it
/// was executed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HowMany {
    /// So many.
    Functions(usize),
    /// The fewest that hold so many ten-thousandths of what is executed in all that can be copied.
    PerTenThousand(u32),
}

impl HowMany {
    /// Those of `functions`, by address.
    pub fn of(self, kernel: &Kernel, functions: &[FunctionId], counts: &Counts) -> Vec<FunctionId> {
        let executed = functions
            .iter()
            .map(|id| ExecutedFunction { id: *id, bytes: executed_bytes(kernel, *id, counts) });
        let mut executed: Vec<ExecutedFunction> = executed.filter(|function| function.bytes > 0).collect();
        executed.sort_unstable_by_key(|function| (Reverse(function.bytes), function.id));
        let most = match self {
            Self::Functions(most) => most,
            Self::PerTenThousand(share) => {
                let all: u128 = executed.iter().map(|function| function.bytes).sum();
                let mut sum = 0;
                let is_wanted = |function: &&ExecutedFunction| {
                    let is_wanted = sum * 10_000 < all * u128::from(share);
                    sum += function.bytes;
                    is_wanted
                };
                executed.iter().take_while(is_wanted).count()
            }
        };
        let mut hottest: Vec<FunctionId> = executed.iter().take(most).map(|function| function.id).collect();
        hottest.sort_unstable();
        hottest
    }
}

/// A function, and bytes of its code that were executed, each as often as it was.
#[derive(Debug, Clone, Copy)]
struct ExecutedFunction {
    id: FunctionId,
    bytes: u128,
}

fn executed_bytes(kernel: &Kernel, id: FunctionId, counts: &Counts) -> u128 {
    let blocks = executed_blocks(kernel, id, counts);
    blocks.map(|[len, count]| u128::from(len) * u128::from(count)).sum()
}

/// Of each block its bytes, and how often it was executed.
fn executed_blocks(kernel: &Kernel, id: FunctionId, counts: &Counts) -> impl Iterator<Item = [u64; 2]> {
    let Code { blocks, .. } = kernel.code(id);
    blocks.into_iter().map(|block| [block.range.len(), counts.at(block.range.start)])
}

/// Above how many executions blocks of these functions are hot.
pub fn hot_above(kernel: &Kernel, functions: &[FunctionId], counts: &Counts) -> u64 {
    covering(functions.iter().flat_map(|id| executed_blocks(kernel, *id, counts)), HOT_PER_MILLE)
}

/// The functions of a group.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Hottest {
    /// Those whose calls are to be led to copies.
    pub roots: Vec<FunctionId>,
    /// Those that only roots, and each other, call.
    pub callees: Vec<FunctionId>,
}

impl Hottest {
    /// The fewest functions that at least so many thousandths of all calls are of, as far as they can be
    /// moved, with what they call that the tracer does not see.
    pub fn of(kernel: &Kernel, called: &Called, per_mille: u64) -> Self {
        let seen = called.of(&kernel.functions);
        let all: u64 = seen.iter().map(|call| call.count).sum();
        let mut members = often_called(&seen, all, per_mille);
        members.retain(|id| is_movable(kernel, *id));
        let unseen = unseen_callees(kernel, &members);
        let traced = members.clone();
        members.extend(unseen);
        let from_elsewhere = calls_from_elsewhere(kernel, &seen, &members);
        Self::parted(members, |id| {
            traced.contains(id)
                && from_elsewhere.get(id).is_some_and(|calls| calls.saturating_mul(SELDOM) >= all)
        })
    }

    /// The hottest functions by counts, of all that can be moved.
    pub fn counted(kernel: &Kernel, counts: &Counts, how_many: HowMany) -> Self {
        let executed: BTreeSet<FunctionId> =
            counts.executed().filter_map(|at| kernel.functions.at(at)).collect();
        let calls = |id: &FunctionId| counts.at(kernel.functions.get(*id).start());
        let all: u64 = executed.iter().map(calls).sum();
        let movable: Vec<FunctionId> = executed.into_iter().filter(|id| is_movable(kernel, *id)).collect();
        let members: BTreeSet<FunctionId> = how_many.of(kernel, &movable, counts).into_iter().collect();
        let within = calls_within(kernel, &members, counts);
        Self::parted(members, |id| {
            let from_elsewhere = calls(id).saturating_sub(within.get(id).copied().unwrap_or(0));
            from_elsewhere > 0
                && from_elsewhere.saturating_mul(SELDOM) >= all
                && kernel.is_traceable(*id, &kernel.code(*id))
        })
    }

    fn parted(members: BTreeSet<FunctionId>, is_root: impl Fn(&FunctionId) -> bool) -> Self {
        let (roots, callees) = members.into_iter().partition(is_root);
        Self { roots, callees }
    }
}

/// How often each member is called, or gone on to, by direct branches of members.
fn calls_within(
    kernel: &Kernel,
    members: &BTreeSet<FunctionId>,
    counts: &Counts,
) -> BTreeMap<FunctionId, u64> {
    let mut within = BTreeMap::new();
    for id in members {
        let code = kernel.code(*id);
        for block in &code.blocks {
            let count = counts.at(block.range.start);
            let calls = code.sites_in(block.range).iter().filter_map(|site| match site.kind {
                SiteKind::Call(to) => Some((to, count)),
                _ => None,
            });
            let jumps = match block.end {
                End::Jump(to) => Some((to, count)),
                // As often as control does not go on behind it.
                End::Conditional { taken, .. } => {
                    Some((taken, count.saturating_sub(counts.at(block.range.end))))
                }
                _ => None,
            };
            for (to, count) in calls.chain(jumps) {
                if let Some(callee) = kernel.functions.starting_at(to).filter(|callee| callee != id) {
                    *within.entry(callee).or_insert(0) += count;
                }
            }
        }
    }
    within
}

fn often_called(seen: &[SeenCall], all: u64, per_mille: u64) -> BTreeSet<FunctionId> {
    let mut calls: BTreeMap<FunctionId, u64> = BTreeMap::new();
    for call in seen {
        *calls.entry(call.callee).or_insert(0) += call.count;
    }
    let mut calls: Vec<(FunctionId, u64)> = calls.into_iter().collect();
    calls.sort_unstable_by_key(|(id, count)| (Reverse(*count), *id));
    let mut sum: u128 = 0;
    let wanted = u128::from(all) * u128::from(per_mille);
    let of = calls.into_iter().take_while(|(_, count)| {
        let is_wanted = sum * 1000 < wanted;
        sum += u128::from(*count);
        is_wanted
    });
    of.map(|(id, _)| id).collect()
}

fn is_movable(kernel: &Kernel, id: FunctionId) -> bool {
    kernel.reasons(id, &kernel.code(id)).is_empty()
}

/// What members call or go on to, and what that does, without a place of the tracer.
fn unseen_callees(kernel: &Kernel, members: &BTreeSet<FunctionId>) -> BTreeSet<FunctionId> {
    let mut unseen = BTreeSet::new();
    let mut open: Vec<FunctionId> = members.iter().copied().collect();
    while let Some(id) = open.pop() {
        for callee in direct_targets(kernel, id).filter(|callee| !members.contains(callee)) {
            let code = kernel.code(callee);
            let is_unseen = !kernel.is_traceable(callee, &code) && kernel.reasons(callee, &code).is_empty();
            if is_unseen && unseen.insert(callee) {
                open.push(callee);
            }
        }
    }
    unseen
}

/// What a function calls, or jumps to, by its code alone.
fn direct_targets(kernel: &Kernel, id: FunctionId) -> impl Iterator<Item = FunctionId> {
    let code = kernel.code(id);
    let calls = code.sites.iter().filter_map(|site| match site.kind {
        SiteKind::Call(to) => Some(to),
        _ => None,
    });
    let jumps = code.blocks.iter().filter_map(|block| block.end.target());
    let targets: Vec<Svma> = calls.chain(jumps).collect();
    targets.into_iter().filter_map(|to| kernel.functions.starting_at(to))
}

/// How often each member was called in another way than by a direct call in a member.
fn calls_from_elsewhere(
    kernel: &Kernel,
    seen: &[SeenCall],
    members: &BTreeSet<FunctionId>,
) -> BTreeMap<FunctionId, u64> {
    let mut from_elsewhere = BTreeMap::new();
    for call in seen.iter().filter(|call| members.contains(&call.callee)) {
        if !is_within(kernel, members, call) {
            *from_elsewhere.entry(call.callee).or_insert(0) += call.count;
        }
    }
    from_elsewhere
}

/// Whether what stands in front of where a call returns to is a direct call, in a member, of the function,
/// or of a member that goes on to it by a jump.
fn is_within(kernel: &Kernel, members: &BTreeSet<FunctionId>, call: &SeenCall) -> bool {
    let site = Svma::new(call.returns_to.get().wrapping_sub(SITE.into()));
    let Some(caller) = kernel.functions.at(site).filter(|caller| members.contains(caller)) else {
        return false;
    };
    let sites = kernel.code(caller).sites;
    let called = sites.iter().find_map(|other| match other.kind {
        SiteKind::Call(to) if other.at == site => kernel.functions.starting_at(to),
        _ => None,
    });
    called.is_some_and(|called| {
        called == call.callee || (members.contains(&called) && goes_on_to(kernel, called, call.callee))
    })
}

fn goes_on_to(kernel: &Kernel, from: FunctionId, to: FunctionId) -> bool {
    let start = kernel.functions.get(to).start();
    let code = kernel.code(from);
    code.blocks.iter().any(|block| match block.end {
        End::Jump(to) | End::Conditional { taken: to, .. } => to == start,
        _ => false,
    })
}

/// A block, as far as it matters here.
#[derive(Debug, Clone, Copy)]
struct Executed {
    bytes: u128,
    count: u64,
}

/// Above how many executions blocks are, of which the fewest hold at least so many thousandths of all
/// executed bytes. Of each block: its bytes, and its executions.
fn covering(blocks: impl IntoIterator<Item = [u64; 2]>, per_mille: u64) -> u64 {
    let executed = |[len, count]: [u64; 2]| Executed { bytes: u128::from(len) * u128::from(count), count };
    let mut blocks: Vec<Executed> = blocks.into_iter().map(executed).collect();
    blocks.sort_unstable_by_key(|block| Reverse(block.count));
    let all: u128 = blocks.iter().map(|block| block.bytes).sum();
    let mut sum = 0;
    let last = blocks.iter().find(|block| {
        sum += block.bytes;
        sum * 1000 >= all * u128::from(per_mille)
    });
    last.map_or(0, |last| last.count.saturating_sub(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fewest_blocks_that_hold_the_share_are_above() {
        let blocks = [[10, 90], [10, 9], [10, 1], [500, 0]];
        assert_eq!(covering(blocks, 900), 89);
        assert_eq!(covering(blocks, 901), 8);
        assert_eq!(covering(blocks, 990), 8);
        assert_eq!(covering(blocks, 1000), 0);
        assert_eq!(covering([], 900), 0);
        // A block counts as often as it has bytes.
        assert_eq!(covering([[1, 90], [100, 9]], 900), 8);
    }
}
