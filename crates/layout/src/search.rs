//! Local search: an order of hot blocks, improved within a budget.
//!
//! **Problem.** All algorithms here join chains for good: what a later join would have wanted otherwise stays
//! as it is.
//!
//! **Idea.** A *unit*, one or more blocks that stand one behind the other, moves beside a block that it is
//! linked with, if that makes the whole order worth more. What an order is worth is a sum over transfers
//! (`search/worth.rs`: fall-throughs, short jumps, nearness by levels as in [`Stitch`](crate::Stitch), and
//! lines and pages shared by what branch records saw together), so a move is priced exactly by the links of
//! all that moves (`search/order.rs`); before that it is sketched by those of the unit. Units are chains
//! first, parted where control seldom falls through, then single blocks, in turns. Whoever has other
//! neighbours is looked at again, until nothing gains or the budget is used up. (Or-opt, as for the
//! travelling salesman: Or, *Traveling salesman-type combinatorial problems and their relation to the
//! logistics of regional blood banking*, 1976.)
//!
//! **The budget** is a number of links looked at and not a time, so that the same budget makes the same order
//! on any machine; [`SearchBudget::of_time`] takes for a second what the machine that it was measured on
//! looks at in one.
//!
//! **Limits.** Units move by at most [`REACH`] bytes: what is far away is left to the algorithm that made the
//! order. Alignment is not modelled. Units with more than [`HUB`] links stay. It ends where no move beside a
//! linked block gains by itself.

mod order;
mod worth;

use std::collections::VecDeque;
use std::time::Duration;

use restitch_profile::Profile;
use restitch_program::Program;

use crate::distances::Distances;
use crate::graph::{HotGraph, Links};
use crate::model::{Fragment, Layout};
use order::Order;
use worth::Worth;

/// Bytes that a unit moves past, at most.
const REACH: i64 = 32 << 10;
/// Moves of a unit that are priced exactly.
const PRICED: usize = 2;
/// Units with more links stay where they are: each of their moves would look at all of them.
const HUB: usize = 4096;
/// What gains less is rounding, or not worth the move: a share of what the order is worth.
const EPSILON: f64 = 1e-9;
/// Links that are looked at in a second on one core of the machine that this was measured on (Intel Xeon, 2.8
/// GHz).
const PER_SECOND: f64 = 25e6;
/// Chains are parted where control falls through in a smaller share of a block's executions.
const PARTED: f64 = 0.5;
/// The search ends when a round gains less: a share of what the order is worth.
const ENOUGH: f64 = 1e-5;

/// How long a search may take, in links that it looks at.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct SearchBudget(u64);

impl SearchBudget {
    /// So many links looked at.
    pub fn links(count: u64) -> Self {
        Self(count)
    }

    /// About so long on one core; the same work on any machine.
    pub fn of_time(time: Duration) -> Self {
        Self((time.as_secs_f64() * PER_SECOND).round() as u64)
    }

    /// In how many seconds a usual core looks at so many.
    pub fn seconds(self) -> f64 {
        self.0 as f64 / PER_SECOND
    }
}

/// Three seconds.
impl Default for SearchBudget {
    fn default() -> Self {
        Self::of_time(Duration::from_secs(3))
    }
}

/// What a search did.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Searched {
    /// What the order was worth, in executions of fall-throughs.
    pub before: f64,
    /// What it is worth now.
    pub after: f64,
    /// Moves that were made.
    pub moves: u64,
    /// Links that were looked at.
    pub looked_at: u64,
    /// It ended because nothing gains any more.
    pub finished: bool,
}

/// Improves the order of the hot code of `layout`: same blocks, never worth less than before. A fragment
/// begins where one began, unless control falls into that block now. Duplicates and prefetches, which are
/// chosen for an order, are taken out.
pub fn search(
    program: &Program,
    profile: &Profile,
    layout: &mut Layout,
    distances: Distances,
    budget: SearchBudget,
) -> Searched {
    layout.tails.clear();
    layout.prefetches.clear();
    let mut hot = vec![false; program.blocks.len()];
    layout.hot.iter().flat_map(|f| &f.blocks).for_each(|b| hot[b.index()] = true);
    let graph = HotGraph::new(program, profile, &hot, Links::All).with_affinity(program, profile);
    let mut node = vec![0u32; program.blocks.len()];
    graph.blocks.iter().enumerate().for_each(|(n, b)| node[b.index()] = n as u32);
    let nodes = layout.hot.iter().flat_map(|f| &f.blocks).map(|b| node[b.index()]).collect();
    let mut order = Order::new(&graph, nodes);
    let worth = Worth::new(distances);
    let done = improve(&mut order, &worth, budget.0);
    let mut align = vec![0u32; graph.len()];
    layout.hot.iter().for_each(|f| align[node[f.blocks[0].index()] as usize] = f.align);
    layout.hot = fragments(&order, &align);
    done
}

/// The order, cut in front of each node with an alignment into which control does not fall.
fn fragments(order: &Order<'_>, align: &[u32]) -> Vec<Fragment> {
    let mut fragments: Vec<Fragment> = Vec::new();
    for (place, &n) in order.nodes().iter().enumerate() {
        let falls = place > 0 && order.falls(order.nodes()[place - 1], n) > 0.0;
        let block = order.graph.blocks[n as usize];
        match fragments.last_mut() {
            Some(last) if align[n as usize] == 0 || falls => last.blocks.push(block),
            _ => fragments.push(Fragment { blocks: vec![block], align: align[n as usize].max(1) }),
        }
    }
    fragments
}

/// Searches until nothing gains, or `budget` links were looked at.
fn improve(order: &mut Order<'_>, worth: &Worth, budget: u64) -> Searched {
    let before = order.worth(worth);
    let mut done = Searched { before, after: before, ..Searched::default() };
    let least = EPSILON * before;
    loop {
        let gained = sweep(order, worth, budget, least, PARTED, &mut done)
            + sweep(order, worth, budget, least, f64::INFINITY, &mut done);
        if done.looked_at >= budget {
            break;
        }
        if gained <= ENOUGH * before {
            done.finished = true;
            break;
        }
    }
    done.after = order.worth(worth);
    done
}

/// Moves units until none gains. They are parted where less than `parted` of a block's executions fall
/// through. Returns the gain.
fn sweep(
    order: &mut Order<'_>,
    worth: &Worth,
    budget: u64,
    least: f64,
    parted: f64,
    done: &mut Searched,
) -> f64 {
    let mut waiting: VecDeque<u32> = order.part(parted).into();
    let mut is_waiting = vec![false; order.graph.len()];
    waiting.iter().for_each(|&unit| is_waiting[unit as usize] = true);
    let mut gained = 0.0;
    while let Some(unit) = waiting.pop_front() {
        if done.looked_at >= budget {
            break;
        }
        is_waiting[unit as usize] = false;
        let Some(best) = order.best_move(worth, unit, &mut done.looked_at) else { continue };
        if best.gain <= least {
            continue;
        }
        for unit in order.make(unit, best) {
            if !std::mem::replace(&mut is_waiting[unit as usize], true) {
                waiting.push_back(unit);
            }
        }
        gained += best.gain;
        done.moves += 1;
    }
    gained
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::{Link, LinkKind};
    use crate::registry::LayoutChoice;
    use crate::small_graphs::random_graph;
    use proptest::prelude::*;
    use restitch_profile::testing::{Random, RandomProgram, best_of_all, walk};
    use restitch_program::BlockId;

    /// A small graph with links of all kinds.
    fn graph(seed: u64, nodes: u32) -> HotGraph {
        let (sizes, links) = random_graph(seed, nodes);
        let mut random = Random::new(seed);
        let kinds = [LinkKind::Branch, LinkKind::Fixed, LinkKind::Call, LinkKind::Return, LinkKind::Affinity];
        let vary = |link: Link| {
            let kind = kinds[random.below(kinds.len())];
            let (from, to) = (sizes[link.from as usize] as u32, sizes[link.to as usize] as u32);
            let (leaves, arrives) = match kind {
                LinkKind::Branch | LinkKind::Fixed => (from, 0),
                LinkKind::Affinity => (from, to),
                _ => (random.below(from as usize) as u32, random.below(to as usize) as u32),
            };
            Link { kind, leaves, arrives, only: random.chance(0.3), ..link }
        };
        let links: Vec<Link> = links.into_iter().map(vary).collect();
        let counts = sizes.iter().map(|_| 1 + random.below(100) as u64).collect();
        HotGraph { blocks: (0..nodes).map(BlockId).collect(), counts, links, sizes }
    }

    fn worth_of(graph: &HotGraph, nodes: &[u32], worth: &Worth) -> f64 {
        Order::new(graph, nodes.to_vec()).worth(worth)
    }

    proptest! {
        /// What a move is said to gain is what the worth of the whole order grows by, computed anew; and no
        /// node gets lost.
        #[test]
        fn moves_gain_what_they_are_priced_at(seed: u64, nodes in 2u32..40, parted in 0.0f64..1.5) {
            let graph = graph(seed, nodes);
            let worth = Worth::new(Distances::new(&[64, 256, 1024]).unwrap());
            let mut random = Random::new(seed);
            let mut start: Vec<u32> = (0..nodes).collect();
            (1..start.len()).rev().for_each(|i| start.swap(i, random.below(i + 1)));
            let mut order = Order::new(&graph, start);
            for unit in order.part(parted) {
                let Some(best) = order.best_move(&worth, unit, &mut 0) else { continue };
                let before = worth_of(&graph, order.nodes(), &worth);
                let waiting = order.make(unit, best);
                prop_assert!(waiting.contains(&unit));
                let after = worth_of(&graph, order.nodes(), &worth);
                prop_assert!((after - before - best.gain).abs() < 1e-6 * before.max(1.0), "{} {}", after - before, best.gain);
                prop_assert!((order.worth(&worth) - after).abs() < 1e-6 * after.max(1.0));
                let mut all = order.nodes().to_vec();
                all.sort_unstable();
                prop_assert_eq!(all, (0..nodes).collect::<Vec<_>>());
            }
        }

        /// All algorithms' orders: the same blocks, a valid layout, worth no less, the same twice; without a
        /// budget nothing changes.
        #[test]
        fn a_search_keeps_all_blocks_and_loses_nothing(seed: u64, which in 0usize..16, links in 0u64..20_000) {
            let random = RandomProgram::new(seed);
            let (program, profile) = (&random.program, walk(&random.program, seed, 60, 0.1));
            let choices = LayoutChoice::all();
            let layout = choices[which % choices.len()].layout(program, &profile);
            let (distances, budget) = (Distances::default(), SearchBudget::links(links));
            let mut searched = layout.clone();
            let done = search(program, &profile, &mut searched, distances, budget);
            prop_assert_eq!(searched.validate(program), Ok(()));
            prop_assert!(done.after >= done.before);
            let hot = |layout: &Layout| {
                let mut blocks: Vec<BlockId> = layout.hot.iter().flat_map(|f| f.blocks.clone()).collect();
                blocks.sort_unstable();
                blocks
            };
            prop_assert_eq!(hot(&layout), hot(&searched));
            prop_assert_eq!(&layout.cold, &searched.cold);
            let mut again = layout.clone();
            prop_assert_eq!(search(program, &profile, &mut again, distances, budget), done);
            prop_assert_eq!(&again, &searched);
            let mut same = layout.clone();
            search(program, &profile, &mut same, distances, SearchBudget::links(0));
            prop_assert!(same.blocks().eq(layout.blocks()));
        }
    }

    /// From any order, against the best of all orders.
    #[test]
    fn a_search_comes_near_the_optimum() {
        let worth = Worth::new(Distances::new(&[64, 256]).unwrap());
        let (mut reached, mut begun, mut possible, mut least) = (0.0, 0.0, 0.0, 1.0f64);
        for seed in 0..100 {
            let graph = graph(seed, 6);
            let all = [0, 1, 2, 3, 4, 5];
            let optimum = best_of_all(&all, &|order| worth_of(&graph, order, &worth));
            let mut order = Order::new(&graph, all.to_vec());
            let done = improve(&mut order, &worth, u64::MAX);
            assert!(
                done.finished && done.after <= optimum * (1.0 + 1e-9),
                "seed {seed}: {done:?} of {optimum}"
            );
            least = least.min(done.after / optimum);
            (reached, begun, possible) = (reached + done.after, begun + done.before, possible + optimum);
        }
        eprintln!(
            "local search: {:.3} of the optimum, from {:.3}, at least {least:.3}",
            reached / possible,
            begun / possible
        );
        assert!(least > 0.7 && reached > 0.95 * possible);
    }

    #[test]
    fn hubs_stay() {
        let star = |arms: u32| {
            let link = Link {
                from: 0,
                to: 0,
                weight: 9.0,
                leaves: 8,
                arrives: 0,
                kind: LinkKind::Call,
                only: false,
            };
            let count = arms as usize + 2;
            HotGraph {
                blocks: (0..count as u32).map(BlockId).collect(),
                counts: vec![1; count],
                sizes: vec![8; count],
                links: (2..count as u32).map(|to| Link { to, ..link }).collect(),
            }
        };
        let moves = |graph: &HotGraph| {
            let order = Order::new(graph, (0..graph.len() as u32).collect());
            order.best_move(&Worth::new(Distances::default()), 0, &mut 0).is_some()
        };
        assert!(moves(&star(8)));
        assert!(!moves(&star(HUB as u32 + 1)));
    }

    #[test]
    fn alignment_stays_with_a_block_unless_control_falls_into_it() {
        let graph = graph(7, 12);
        let order = Order::new(&graph, (0..12).collect());
        let cut = fragments(&order, &[16; 12]);
        for fragment in &cut {
            assert_eq!(fragment.align, 16);
            let inner = fragment.blocks.windows(2).all(|pair| order.falls(pair[0].0, pair[1].0) > 0.0);
            assert!(inner);
        }
        assert!((2..12).contains(&cut.len()), "{}", cut.len());
        let mut align = [0; 12];
        align[0] = 4;
        let whole = fragments(&order, &align);
        assert_eq!((whole.len(), whole[0].align), (1, 4));
    }
}
