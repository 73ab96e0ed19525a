//! Extended TSP (Newell and Pupyrev, *Improved basic block reordering*, IEEE Transactions on Computers 2020), our own
//! implementation of the published score and merge.
//!
//! **Problem.** Fall-throughs are not all: a short jump over a few bytes costs less than a far one. Maximise, over all
//! branches, 1 for a fall-through and up to 0.1 for a jump over at most 1024 bytes forward or 640 backward.
//!
//! **Idea.** Chains begin as single blocks. The pair of chains whose merge gains most is merged, until nothing gains. A merge
//! of X and Y may also split X: of XY, YX, X1 Y X2, Y X2 X1 and X2 X1 Y, at every place in X, the best is taken.
//!
//! **Limits.** Within one function: a branch between functions only joins finished chains end to end, so that programs with
//! hot loops across functions are better served by [`HotChains`], which is also some 60 times as fast. Chains longer than
//! [`SPLIT_LIMIT`] are not split, and functions with more than [`FUNCTION_LIMIT`] hot blocks get greedy chains, because
//! the search is quadratic. Ties go to the lower blocks.

use std::collections::{BTreeMap, BTreeSet};

use restitch_profile::Profile;
use restitch_program::{BlockId, EdgeKind, Program, Terminator};

use crate::chains::{chains as greedy_chains, extend_chains};
use crate::{HotChains, Layout, LayoutAlgorithm};

/// Chains of more blocks are not split. Against 48, the search takes about a third of the time.
const SPLIT_LIMIT: usize = 16;
/// Functions with more hot blocks get greedy chains.
const FUNCTION_LIMIT: usize = 1500;

/// Extended-TSP chains within functions, ordered by call-chain clustering as [`HotChains`] does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ExtTsp {
    /// Threshold, alignment and clustering.
    pub options: HotChains,
}

impl LayoutAlgorithm for ExtTsp {
    fn name(&self) -> &'static str {
        "ext-tsp"
    }

    fn layout(&self, program: &Program, profile: &Profile) -> Layout {
        let hot = self.options.hot_blocks(program, profile);
        let mut chains = Vec::new();
        let mut large = vec![false; hot.len()];
        for function in program.function_ids() {
            let blocks: Vec<BlockId> = program.blocks_of(function).filter(|b| hot[b.index()]).collect();
            if blocks.len() > FUNCTION_LIMIT {
                blocks.iter().for_each(|b| large[b.index()] = true);
            } else if !blocks.is_empty() {
                chains.extend(Search::new(program, profile, blocks).run());
            }
        }
        chains.extend(greedy_chains(program, profile, &large));
        let chains = extend_chains(program, profile, &hot, &chains);
        self.options.arrange(program, profile, &hot, chains)
    }
}

struct Jump {
    from: usize,
    to: usize,
    count: f64,
    /// Whether it can become a fall-through.
    falls: bool,
}

/// The search in one function; blocks are numbered from 0.
struct Search {
    blocks: Vec<BlockId>,
    sizes: Vec<u64>,
    jumps: Vec<Jump>,
    /// Jumps by their source block.
    jumps_from: Vec<Vec<usize>>,
    chains: Vec<Vec<usize>>,
    scores: Vec<f64>,
    neighbours: Vec<BTreeSet<usize>>,
    /// Scratch: where each block of the order under evaluation begins.
    starts: Vec<Option<u64>>,
}

impl Search {
    fn new(program: &Program, profile: &Profile, blocks: Vec<BlockId>) -> Self {
        let number = |b: BlockId| blocks.binary_search(&b).ok();
        let (mut jumps, mut jumps_from) = (Vec::new(), vec![Vec::new(); blocks.len()]);
        let mut neighbours = vec![BTreeSet::new(); blocks.len()];
        for (from, &block) in blocks.iter().enumerate() {
            let short = matches!(program.block(block).terminator, Terminator::ShortConditional(_));
            for (id, edge) in program.out_edges(block) {
                let count = profile.edge(id);
                let Some(to) = number(edge.to).filter(|&to| to != from && count > 0) else { continue };
                let falls = edge.kind == EdgeKind::FallThrough || (edge.kind == EdgeKind::Taken && !short);
                jumps_from[from].push(jumps.len());
                jumps.push(Jump { from, to, count: count as f64, falls });
                neighbours[from].insert(to);
                neighbours[to].insert(from);
            }
        }
        let sizes = blocks.iter().map(|&b| u64::from(program.block(b).len)).collect();
        let count = blocks.len();
        Self {
            chains: (0..count).map(|b| vec![b]).collect(),
            scores: vec![0.0; count],
            starts: vec![None; count],
            blocks,
            sizes,
            jumps,
            jumps_from,
            neighbours,
        }
    }

    fn run(mut self) -> Vec<Vec<BlockId>> {
        let mut merges: BTreeMap<(usize, usize), (f64, Vec<usize>)> = BTreeMap::new();
        for a in 0..self.chains.len() {
            self.evaluate_neighbours(a, &mut merges, |b| b > a);
        }
        // The first of equal gains stays: `max_by` would take the last.
        while let Some((&(a, b), _)) = merges.iter().rev().max_by(|x, y| x.1.0.total_cmp(&y.1.0)) {
            let Some((gain, order)) = merges.remove(&(a, b)) else { break };
            self.scores[a] += self.scores[b] + gain;
            self.chains[a] = order;
            self.chains[b].clear();
            let inherited = std::mem::take(&mut self.neighbours[b]);
            for &other in &inherited {
                self.neighbours[other].remove(&b);
                if other != a {
                    self.neighbours[other].insert(a);
                    self.neighbours[a].insert(other);
                }
            }
            self.neighbours[a].remove(&b);
            merges.retain(|&(x, y), _| ![x, y].contains(&a) && ![x, y].contains(&b));
            self.evaluate_neighbours(a, &mut merges, |_| true);
        }
        let blocks = &self.blocks;
        let full = self.chains.iter().filter(|chain| !chain.is_empty());
        full.map(|chain| chain.iter().map(|&b| blocks[b]).collect()).collect()
    }

    fn evaluate_neighbours(
        &mut self,
        a: usize,
        merges: &mut BTreeMap<(usize, usize), (f64, Vec<usize>)>,
        wanted: impl Fn(usize) -> bool,
    ) {
        for b in self.neighbours[a].iter().copied().filter(|&b| wanted(b)).collect::<Vec<_>>() {
            let (low, high) = (a.min(b), a.max(b));
            if let Some(best) = self.best_merge(low, high) {
                merges.insert((low, high), best);
            }
        }
    }

    /// The best way to merge two chains, if any gains.
    fn best_merge(&mut self, a: usize, b: usize) -> Option<(f64, Vec<usize>)> {
        let (x, y) = (self.chains[a].clone(), self.chains[b].clone());
        let before = self.scores[a] + self.scores[b];
        let mut best: Option<(f64, Vec<usize>)> = None;
        let mut consider = |search: &mut Self, parts: [&[usize]; 3]| {
            let order = parts.concat();
            let gain = search.score(&order) - before;
            if gain > best.as_ref().map_or(1e-9, |(best, _)| *best + 1e-9) {
                best = Some((gain, order));
            }
        };
        consider(self, [&x, &y, &[]]);
        consider(self, [&y, &x, &[]]);
        for (split, whole) in [(&x, &y), (&y, &x)] {
            if split.len() > SPLIT_LIMIT {
                continue;
            }
            for at in 1..split.len() {
                let (head, tail) = split.split_at(at);
                consider(self, [head, whole, tail]);
                consider(self, [whole, tail, head]);
                consider(self, [tail, head, whole]);
            }
        }
        best
    }

    /// The score of the jumps inside an order.
    fn score(&mut self, order: &[usize]) -> f64 {
        let mut at = 0;
        for &block in order {
            self.starts[block] = Some(at);
            at += self.sizes[block];
        }
        let mut score = 0.0;
        for &block in order {
            for &jump in &self.jumps_from[block] {
                let jump = &self.jumps[jump];
                if let (Some(from), Some(to)) = (self.starts[jump.from], self.starts[jump.to]) {
                    score += jump.count * value(from + self.sizes[jump.from], to, jump.falls);
                }
            }
        }
        order.iter().for_each(|&block| self.starts[block] = None);
        score
    }
}

/// The value of one execution of a jump that ends at `end` and goes to `to`.
fn value(end: u64, to: u64, falls: bool) -> f64 {
    let near = |distance: u64, reach: f64| 0.1 * (1.0 - distance as f64 / reach).max(0.0);
    match end.cmp(&to) {
        std::cmp::Ordering::Equal if falls => 1.0,
        std::cmp::Ordering::Greater => near(end - to, 640.0),
        _ => near(to - end, 1024.0),
    }
}
