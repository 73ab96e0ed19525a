//! Branch stacks for a profile of counts: a walk through the program that takes each edge as often as the
//! profile says.
//!
//! **Problem.** Tools that read `perf.data` want stacks of branches that followed each other; a profile of
//! counts has only sums. **Idea.** A thread walks through the flow graph. At each fork it chooses at random,
//! weighted by what is *left* of each edge's count, so that the sums come out right, not only their
//! expectation. Calls push a return address, returns pop it. What the profile does not know (the target of an
//! indirect call, the caller of a function) is a branch to or from an address outside of every module. So
//! that no loop is left before its counts are used up, each block keeps one step on its way out for last (the
//! trees of the BEST theorem on Eulerian circuits). **Limits.** What depends on context is lost: the walk
//! remembers nothing but its return addresses.
//!
//! Equal profile and seed give equal bytes.

use crate::flow::entries;
use restitch_address::Svma;
use restitch_profile::Profile;
use restitch_program::{BlockId, CallTarget, EdgeKind, Program, Terminator};
use std::collections::VecDeque;

/// How deep calls may nest before the walk treats them as calls that left the module.
const MAX_CALLS: usize = 4096;

/// How often the walk begins anew where counts are left over (they contradict each other, or a cycle was
/// never entered).
const ROUNDS: usize = 64;

/// A taken branch of the walk; `None` is outside of the module.
pub type Step = (Option<Svma>, Option<Svma>);

/// What was walked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Walked {
    /// Taken branches handed out.
    pub branches: u64,
    /// Steps that were taken although their count had been used up: where counts contradict each other.
    pub overdrawn: u64,
}

/// Walks through `program` until `limit` branches are taken, or all counts of `profile` are used up; with
/// more counts than that, counts are scaled down. `sink` gets the branches in the order in which they were
/// taken.
pub fn walk(
    program: &Program,
    profile: &Profile,
    limit: u64,
    seed: u64,
    mut sink: impl FnMut(Step),
) -> Walked {
    let mut walk = Walk::new(program, profile, limit, seed);
    for round in 0..ROUNDS {
        while walk.walked.branches < walk.limit {
            let Some(start) = walk.starts.take(&mut walk.random) else { break };
            // An earlier walk of this round may have used up what was left here.
            if round > 0 && program.out_edges(start).all(|(e, _)| walk.left[e.index()] <= 0) {
                continue;
            }
            walk.emit((None, Some(program.block(start).start)), &mut sink);
            walk.run(start, &mut sink);
        }
        walk.starts = Starts::new(walk.leftovers());
        if walk.starts.left == 0 || walk.walked.branches >= walk.limit {
            break;
        }
    }
    walk.walked
}

/// Taken branches that `profile` stands for, returns included.
pub fn branches_in(program: &Program, profile: &Profile) -> u64 {
    let taken = program.edges.iter().zip(&profile.edges).filter(|(e, _)| e.kind != EdgeKind::FallThrough);
    let jumps = taken.fold(0u64, |sum, (_, n)| sum.saturating_add(*n));
    // A call, and its return; an entry from outside, and the way back there.
    let both = |sum: u64, n: u64| sum.saturating_add(n.saturating_mul(2));
    let calls = profile.calls.iter().fold(jumps, |sum, n| both(sum, *n));
    entries(program, profile).iter().fold(calls, |sum, (_, n)| both(sum, *n))
}

/// xorshift64*: small, fast, repeatable.
#[derive(Debug, Clone)]
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        let bits = self.0.wrapping_mul(0x2545_f491_4f6c_dd1d);
        ((u128::from(bits) * u128::from(limit.max(1))) >> 64) as u64
    }

    /// `value` rounded up or down at random, so that its expectation stays.
    fn round(&mut self, value: f64) -> i64 {
        let whole = value.floor();
        let up = (self.below(1 << 32) as f64) < (value - whole) * (1u64 << 32) as f64;
        whole as i64 + i64::from(up)
    }
}

/// Entries from outside that are left, in a tree of sums (Fenwick), so that one is chosen in logarithmic
/// time.
#[derive(Debug, Clone)]
struct Starts {
    blocks: Vec<BlockId>,
    sums: Vec<u64>,
    left: u64,
}

impl Starts {
    fn new(counts: Vec<(BlockId, u64)>) -> Self {
        let mut starts = Self { blocks: Vec::new(), sums: vec![0; counts.len() + 1], left: 0 };
        for (index, (block, count)) in counts.into_iter().enumerate() {
            starts.blocks.push(block);
            starts.left += count;
            starts.add(index, count as i64);
        }
        starts
    }

    fn add(&mut self, index: usize, change: i64) {
        let mut at = index + 1;
        while at < self.sums.len() {
            self.sums[at] = self.sums[at].wrapping_add_signed(change);
            at += at & at.wrapping_neg();
        }
    }

    /// Chooses an entry, weighted by what is left, and uses it up.
    fn take(&mut self, random: &mut Random) -> Option<BlockId> {
        if self.left == 0 {
            return None;
        }
        let mut rest = random.below(self.left);
        let mut at = 0;
        let mut width = self.sums.len().next_power_of_two();
        while width > 0 {
            if at + width < self.sums.len() && self.sums[at + width] <= rest {
                at += width;
                rest -= self.sums[at];
            }
            width /= 2;
        }
        self.left -= 1;
        self.add(at, -1);
        self.blocks.get(at).copied()
    }
}

struct Walk<'a> {
    program: &'a Program,
    profile: &'a Profile,
    limit: u64,
    random: Random,
    /// What is left of each edge's count; negative where more was taken.
    left: Vec<i64>,
    starts: Starts,
    /// By block: the share of the direct calls to it that its own count leaves room for.
    called: Vec<f32>,
    /// By block: executions by calls that are left.
    room: Vec<i64>,
    /// By block: the edge that leads out, kept for last.
    last: Vec<Option<u32>>,
    walked: Walked,
}

/// A place to go on at: a block, and how many of its calls are done.
type Place = (BlockId, u32);

impl<'a> Walk<'a> {
    fn new(program: &'a Program, profile: &'a Profile, limit: u64, seed: u64) -> Self {
        let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        let total = branches_in(program, profile);
        let scale = if total > limit { limit as f64 / total as f64 } else { 1.0 };
        let left: Vec<i64> = profile.edges.iter().map(|&n| random.round(n as f64 * scale)).collect();
        let mut counts = Vec::new();
        for (block, count) in entries(program, profile) {
            counts.push((block, random.round(count as f64 * scale).max(0) as u64));
        }
        // Stray entries of contradicting counts must not make it endless; exact walks end by themselves
        // before.
        let limit =
            if scale < 1.0 { limit } else { total.saturating_mul(2).saturating_add(1024).min(limit.max(1)) };
        let (called, room) = called(program, profile);
        let room = room.into_iter().map(|n| random.round(n as f64 * scale)).collect();
        let starts = Starts::new(counts);
        let last = ways_out(program, profile);
        Self { program, profile, limit, random, left, starts, called, room, last, walked: Walked::default() }
    }

    /// Where walks have to begin so that what is left of the counts is used up: blocks that more goes out of
    /// than into; if there are none, the block of the cycle that most is left of.
    fn leftovers(&self) -> Vec<(BlockId, u64)> {
        let mut balance = vec![0i64; self.program.blocks.len()];
        let mut out = balance.clone();
        for (edge, &left) in self.program.edges.iter().zip(&self.left) {
            balance[edge.from.index()] += left.max(0);
            balance[edge.to.index()] -= left.max(0);
            out[edge.from.index()] += left.max(0);
        }
        let surplus = self.program.block_ids().map(|b| (b, balance[b.index()].max(0) as u64));
        let mut starts: Vec<(BlockId, u64)> = surplus.filter(|(_, n)| *n > 0).collect();
        if starts.is_empty() {
            let most = self.program.block_ids().max_by_key(|b| (out[b.index()], std::cmp::Reverse(*b)));
            starts.extend(most.filter(|b| out[b.index()] > 0).map(|b| (b, 1)));
        }
        starts
    }

    fn emit(&mut self, step: Step, sink: &mut impl FnMut(Step)) {
        self.walked.branches += 1;
        sink(step);
    }

    /// Walks from a block that was entered from outside until control leaves again.
    fn run(&mut self, start: BlockId, sink: &mut impl FnMut(Step)) {
        let mut returns: Vec<Place> = Vec::new();
        let mut place = (start, 0);
        while self.walked.branches < self.limit {
            let block = self.program.block(place.0);
            if place.1 < block.call_count {
                place = self.call(place, &mut returns, sink);
                continue;
            }
            match self.choose(place.0) {
                Some(edge) => {
                    let edge = self.program.edges[edge];
                    if edge.kind != EdgeKind::FallThrough {
                        let target = self.program.block(edge.to).start;
                        self.emit((Some(block.terminator_at()), Some(target)), sink);
                    }
                    place = (edge.to, 0);
                }
                None => match self.leave(place.0, &mut returns, sink) {
                    Some(back) => place = back,
                    None => return,
                },
            }
        }
    }

    /// Does the next call of a block: into its target, or, where that is not known or never entered, out and
    /// back.
    fn call(&mut self, place: Place, returns: &mut Vec<Place>, sink: &mut impl FnMut(Step)) -> Place {
        let call = self.program.calls_of(place.0)[place.1 as usize];
        let behind = (place.0, place.1 + 1);
        let index = self.program.block(place.0).first_call.index() + place.1 as usize;
        if self.profile.calls[index] == 0 {
            return behind;
        }
        let target = match call.target {
            CallTarget::Direct(target) => Some(target),
            CallTarget::Indirect => None,
        };
        let entry = target.and_then(|t| self.program.block_starting_at(t));
        let entry = entry.filter(|b| self.enters(*b) && returns.len() < MAX_CALLS);
        self.emit((Some(call.at), target), sink);
        match entry {
            Some(entry) => {
                returns.push(behind);
                (entry, 0)
            }
            None => {
                self.emit((None, Some(call.at + u64::from(call.len))), sink);
                behind
            }
        }
    }

    /// Whether a call of the function at `entry` is followed into it.
    fn enters(&mut self, entry: BlockId) -> bool {
        let share = f64::from(self.called[entry.index()]);
        if self.room[entry.index()] <= 0 {
            return false;
        }
        let enters = share >= 1.0 || (self.random.below(1 << 32) as f64) < share * (1u64 << 32) as f64;
        self.room[entry.index()] -= i64::from(enters);
        enters
    }

    /// The next edge, weighted by what is left of the edges; by their counts where nothing is left.
    fn choose(&mut self, block: BlockId) -> Option<usize> {
        let profile = self.profile;
        let program = self.program;
        let edges = || program.out_edges(block).map(|(id, _)| id.index());
        let known: u64 = edges().map(|e| profile.edges[e]).fold(0, u64::saturating_add);
        let left: u64 = edges().map(|e| self.left[e].max(0) as u64).sum();
        // Executions that leave by no edge: returns, indirect jumps, calls that do not come back.
        let out = profile.block(block).saturating_sub(known);
        let (weights_left, total) = if left > 0 { (true, left) } else { (false, known) };
        let leaves = if known == 0 { 1.0 } else { out as f64 / (out.saturating_add(known)) as f64 };
        if total == 0 || (self.random.below(1 << 32) as f64) < leaves * (1u64 << 32) as f64 {
            return None;
        }
        let mut roll = self.random.clone();
        let kept =
            self.last[block.index()].filter(|e| weights_left && total > 1 && self.left[*e as usize] > 0);
        let weight = |edge: usize| {
            let all = if weights_left { self.left[edge].max(0) as u64 } else { profile.edges[edge] };
            all - u64::from(kept == Some(edge as u32))
        };
        let bound = total - u64::from(kept.is_some());
        let mut rest = roll.below(bound);
        let mut chosen = None;
        for edge in edges() {
            if rest < weight(edge) {
                chosen = Some(edge);
                break;
            }
            rest -= weight(edge);
        }
        self.random = roll;
        let edge = chosen?;
        self.left[edge] -= 1;
        self.walked.overdrawn += u64::from(self.left[edge] < 0);
        Some(edge)
    }

    /// Leaves a block by no edge. A return goes behind the last call, everything else ends the walk.
    fn leave(
        &mut self,
        block: BlockId,
        returns: &mut Vec<Place>,
        sink: &mut impl FnMut(Step),
    ) -> Option<Place> {
        let b = self.program.block(block);
        match b.terminator {
            Terminator::Return => {}
            Terminator::IndirectJump | Terminator::Table(_) | Terminator::Jump(_) => {
                // An indirect tail call comes back to the caller as well.
                let target = match b.terminator {
                    Terminator::Jump(to) => Some(to),
                    _ => None,
                };
                self.emit((Some(b.terminator_at()), target), sink);
                let back = returns.pop()?;
                self.emit((None, Some(self.behind(back))), sink);
                return Some(back);
            }
            _ => return None,
        }
        let back = returns.pop();
        self.emit((Some(b.terminator_at()), back.map(|back| self.behind(back))), sink);
        back
    }

    /// The return address of a call that is done.
    fn behind(&self, place: Place) -> Svma {
        let (block, done) = place;
        let call = self.program.calls_of(block)[done as usize - 1];
        call.at + u64::from(call.len)
    }
}

/// By block: the first edge of the shortest way to a block that executions end in.
fn ways_out(program: &Program, profile: &Profile) -> Vec<Option<u32>> {
    let mut inward: Vec<Vec<u32>> = vec![Vec::new(); program.blocks.len()];
    let mut outward = vec![0u64; program.blocks.len()];
    for (id, edge) in program.edges.iter().enumerate().filter(|(id, _)| profile.edges[*id] > 0) {
        inward[edge.to.index()].push(id as u32);
        outward[edge.from.index()] = outward[edge.from.index()].saturating_add(profile.edges[id]);
    }
    let ends = |b: &BlockId| profile.block(*b) > outward[b.index()];
    let mut queue: VecDeque<BlockId> = program.block_ids().filter(ends).collect();
    let mut reached = vec![false; program.blocks.len()];
    queue.iter().for_each(|b| reached[b.index()] = true);
    let mut last = vec![None; program.blocks.len()];
    while let Some(to) = queue.pop_front() {
        for &edge in &inward[to.index()] {
            let from = program.edges[edge as usize].from;
            if !std::mem::replace(&mut reached[from.index()], true) {
                last[from.index()] = Some(edge);
                queue.push_back(from);
            }
        }
    }
    last
}

/// By block: the share of the direct calls to it that its count leaves room for, at most 1; and how many
/// calls those are.
fn called(program: &Program, profile: &Profile) -> (Vec<f32>, Vec<u64>) {
    let mut room = profile.blocks.clone();
    for (edge, count) in program.edges.iter().zip(&profile.edges) {
        let room = &mut room[edge.to.index()];
        *room = room.saturating_sub(*count);
    }
    let mut calls = vec![0u64; program.blocks.len()];
    for (call, count) in program.calls.iter().zip(&profile.calls) {
        if let CallTarget::Direct(target) = call.target
            && let Some(block) = program.block_starting_at(target)
        {
            calls[block.index()] = calls[block.index()].saturating_add(*count);
        }
    }
    let share = |(r, n): (&u64, &u64)| if *n == 0 { 0.0 } else { (*r as f32 / *n as f32).min(1.0) };
    let shares = room.iter().zip(&calls).map(share).collect();
    (shares, room.into_iter().zip(calls).map(|(r, n)| r.min(n)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use restitch_profile::BranchSamples;
    use restitch_profile::testing::{RandomProgram, walk as random_profile};

    /// Walks, and makes a profile of stacks of `depth` again.
    fn again(program: &Program, profile: &Profile, limit: u64, depth: usize) -> Profile {
        let mut steps = Vec::new();
        walk(program, profile, limit, 7, |step| steps.push(step));
        let mut samples = BranchSamples::default();
        for stack in steps.chunks(depth) {
            let newest_first: Vec<Step> = stack.iter().rev().copied().collect();
            samples.add_stack(&newest_first);
        }
        samples.to_profile(program).0
    }

    fn overlap(a: &[u64], b: &[u64]) -> f64 {
        let sum = |v: &[u64]| v.iter().sum::<u64>().max(1) as f64;
        let (x, y) = (sum(a), sum(b));
        a.iter().zip(b).map(|(m, n)| (*m as f64 / x).min(*n as f64 / y)).sum()
    }

    #[test]
    fn equal_seeds_give_equal_walks() {
        let program = RandomProgram::new(3).program;
        let profile = random_profile(&program, 3, 30, 0.0);
        let steps = |seed| {
            let mut steps = Vec::new();
            walk(&program, &profile, 1000, seed, |s| steps.push(s));
            steps
        };
        assert_eq!(steps(1), steps(1));
        assert!(steps(1).len() <= 1000);
    }

    #[test]
    fn a_loop_without_an_entry_is_walked() {
        let text = "function 0x1000..0x1020 f movable\n 0x1000 +16 entry,target cond(4)/2 -> 0x1000\n 0x1010 +16 - jump/2 -> 0x1000\n";
        let program = Program::from_text(text).unwrap();
        let profile = Profile { blocks: vec![100, 40], edges: vec![40, 60, 40], ..Profile::default() };
        let back = again(&program, &profile, 1000, 16);
        assert!(overlap(&profile.edges, &back.edges) > 0.9, "{:?}", back.edges);
    }

    /// `main` calls `work` in a loop; every count agrees with every other.
    #[test]
    fn calls_are_walked_into_and_back() {
        let text = "\
function 0x1000..0x1030 main movable
  0x1000 +16 entry fall
  0x1010 +16 target cond(5)/2 -> 0x1010
    call 0x1014 +5 -> 0x1030
  0x1020 +16 - return/1
function 0x1030..0x1060 work movable
  0x1030 +16 entry,target cond(4)/2 -> 0x1050
  0x1040 +16 - fall
  0x1050 +16 target return/1
";
        let program = Program::from_text(text).unwrap();
        let profile = Profile {
            blocks: vec![1, 900, 1, 900, 300, 900],
            edges: vec![1, 1, 899, 300, 600, 300],
            calls: vec![900],
            ..Profile::default()
        };
        let mut steps = Vec::new();
        let walked = walk(&program, &profile, u64::MAX, 1, |step| steps.push(step));
        assert_eq!(walked.overdrawn, 0);
        let at = |a| Some(Svma::new(a));
        assert_eq!((steps[0], *steps.last().unwrap()), ((None, at(0x1000)), (at(0x102f), None)));
        assert_eq!(steps.iter().filter(|s| **s == (at(0x105f), at(0x1019))).count(), 900, "returns");
        let back = again(&program, &profile, u64::MAX, usize::MAX);
        assert_eq!((back.edges, back.calls, back.blocks), (profile.edges, profile.calls, profile.blocks));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(60))]
        #[test]
        fn edges_of_profiles_that_agree_with_themselves_come_back(seed: u64) {
            let program = RandomProgram::new(seed).program;
            let mut profile = random_profile(&program, seed, 200, 0.0);
            // The random executions do not go into what they call.
            profile.calls.fill(0);
            let back = again(&program, &profile, u64::MAX, usize::MAX);
            for (edge, (&want, &got)) in program.edges.iter().zip(profile.edges.iter().zip(&back.edges)) {
                if edge.kind == EdgeKind::FallThrough {
                    // What runs behind the last branch before the end of everything is in no record.
                    prop_assert!(got <= want, "{:?}: {} of {}", edge, got, want);
                } else {
                    prop_assert_eq!(got, want, "{:?}", edge);
                }
            }
        }

        #[test]
        fn contradicting_profiles_are_walked_within_the_limit(seed: u64, limit in 1u64..5000) {
            let program = RandomProgram::new(seed).program;
            let profile = random_profile(&program, seed, 50, 0.3);
            let mut count = 0;
            let walked = walk(&program, &profile, limit, seed, |_| count += 1);
            prop_assert_eq!(walked.branches, count);
            // A call that leaves the module, or an indirect jump out of it, brings its return along.
            prop_assert!(count <= limit + 1);
        }
    }
}
