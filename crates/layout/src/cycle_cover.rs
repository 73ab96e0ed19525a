//! Chains by maximum-weight cycle cover (Lavaee, Criswell and Ding, *Codestitcher*, CC 2019, section 2.2.3).
//!
//! **Problem.** As many executions as possible shall fall through: a maximum-weight path cover, which is
//! NP-hard.
//!
//! **Idea.** A cycle cover may also close cycles, and its best one is an assignment problem: give each block
//! at most one successor and at most one predecessor. Dropping the lightest edge of each cycle leaves paths
//! of at least half the best weight. Greedy additions follow; where plain greedy is better for a function,
//! that is taken.
//!
//! **Limits.** The assignment is solved by successive shortest paths with potentials: O(n m log n) for a
//! function of n blocks and m edges, usually far less, because paths are short. Functions of more than
//! [`COVER_LIMIT`] hot blocks get greedy chains. Branches between functions, tail calls above all, are added
//! greedily at the end; if greedy over the whole program is heavier then, that is taken.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use restitch_program::Program;

use crate::chains::{Joint, add_greedily, greedy, joints};
use crate::graph::{HotGraph, NONE};
use crate::paths::Paths;

/// Functions of more hot blocks are not given to the assignment problem.
pub const COVER_LIMIT: usize = 2000;

/// Chains of all nodes. Chains are in the order of their first nodes.
pub(crate) fn cover_chains(program: &Program, graph: &HotGraph) -> Vec<Vec<u32>> {
    let function = |n: u32| program.block(graph.blocks[n as usize]).function;
    let mut all = joints(graph);
    let mut paths = Paths::new(graph.len());
    let (mut first, mut weight) = (0, 0u64);
    let nodes: Vec<u32> = (0..graph.len() as u32).collect();
    for members in nodes.chunk_by(|&a, &b| function(a) == function(b)) {
        let behind = members[0] + members.len() as u32;
        let last = first + all[first..].partition_point(|j| j.from < behind);
        let local = |j: &&Joint| (members[0]..behind).contains(&j.to);
        let shift = |j: &Joint| Joint { from: j.from - members[0], to: j.to - members[0], ..*j };
        let inside: Vec<Joint> = all[first..last].iter().filter(local).map(shift).collect();
        for pair in best_paths(members.len(), inside).iter().flat_map(|chain| chain.windows(2)) {
            paths.join(pair[0] + members[0], pair[1] + members[0]);
            let ends = (pair[0] + members[0], pair[1] + members[0]);
            let joined = all[first..last].binary_search_by_key(&ends, |j| (j.from, j.to));
            weight = weight.saturating_add(joined.map_or(0, |i| all[first + i].weight));
        }
        first = last;
    }
    weight = weight.saturating_add(add_greedily(&mut paths, &mut all));
    let (greedy, greedy_weight) = greedy(graph.len(), &mut all);
    if greedy_weight > weight { greedy.into_chains() } else { paths.into_chains() }
}

/// The better one of cycle cover with greedy additions, and greedy alone. `joints` are sorted by source.
pub(crate) fn best_paths(nodes: usize, mut joints: Vec<Joint>) -> Vec<Vec<u32>> {
    let cover = (nodes <= COVER_LIMIT).then(|| path_cover(nodes, &joints));
    let (greedy, greedy_weight) = greedy(nodes, &mut joints);
    match cover {
        Some((mut paths, weight)) => {
            let weight = weight.saturating_add(add_greedily(&mut paths, &mut joints));
            if weight > greedy_weight { paths.into_chains() } else { greedy.into_chains() }
        }
        None => greedy.into_chains(),
    }
}

/// The maximum-weight cycle cover without the lightest edge of each cycle, and its weight.
fn path_cover(nodes: usize, joints: &[Joint]) -> (Paths, u64) {
    let cover = cycle_cover(nodes, joints);
    let mut kept: Vec<bool> = vec![true; cover.len()];
    let mut chosen = vec![None; nodes];
    cover.iter().enumerate().for_each(|(i, j)| chosen[j.from as usize] = Some(i));
    let mut seen = vec![false; nodes];
    for start in 0..nodes {
        let (mut at, mut lightest) = (start, None::<usize>);
        while !std::mem::replace(&mut seen[at], true) {
            let Some(i) = chosen[at] else { break };
            if lightest.is_none_or(|l: usize| cover[i].weight < cover[l].weight) {
                lightest = Some(i);
            }
            at = cover[i].to as usize;
        }
        if let Some(i) = lightest.filter(|_| at == start) {
            kept[i] = false;
        }
    }
    let mut paths = Paths::new(nodes);
    let made = cover.iter().zip(kept).filter(|(j, kept)| *kept && paths.join(j.from, j.to));
    let weight = made.fold(0u64, |sum, (j, _)| sum.saturating_add(j.weight));
    (paths, weight)
}

/// A set of joints with at most one from each node and at most one to each, of maximum weight.
pub(crate) fn cycle_cover(nodes: usize, joints: &[Joint]) -> Vec<Joint> {
    let mut assignment = Assignment::new(nodes, joints);
    (0..nodes as u32).for_each(|row| assignment.assign(row));
    let chosen = |j: &&Joint| assignment.row_of[j.to as usize] == j.from && j.weight > 0;
    joints.iter().filter(chosen).copied().collect()
}

/// Rows are sources, columns are targets, and behind them one column a row that stands for "no successor".
/// Costs are negative weights.
struct Assignment<'j> {
    nodes: usize,
    joints: &'j [Joint],
    first: Vec<usize>,
    row_potential: Vec<i64>,
    column_potential: Vec<i64>,
    row_of: Vec<u32>,
    /// Of the search: distance and the row from which each column was reached.
    distance: Vec<i64>,
    reached_from: Vec<u32>,
    /// What the search has yet to look at, the columns that it is done with, and those that have a distance.
    heap: BinaryHeap<Reverse<(i64, usize)>>,
    settled: Vec<(usize, i64)>,
    touched: Vec<usize>,
}

impl<'j> Assignment<'j> {
    fn new(nodes: usize, joints: &'j [Joint]) -> Self {
        let columns = 2 * nodes;
        let mut first = vec![0; nodes + 1];
        joints.iter().for_each(|j| first[j.from as usize + 1] += 1);
        (1..first.len()).for_each(|n| first[n] += first[n - 1]);
        Self {
            nodes,
            joints,
            first,
            row_potential: vec![0; nodes],
            column_potential: vec![0; columns],
            row_of: vec![NONE; columns],
            distance: vec![i64::MAX; columns],
            reached_from: vec![NONE; columns],
            heap: BinaryHeap::new(),
            settled: Vec::new(),
            touched: Vec::new(),
        }
    }

    /// Columns of a row with their costs.
    fn costs(&self, row: u32) -> impl Iterator<Item = (usize, i64)> + use<'j> {
        let row = row as usize;
        let own = self.joints[self.first[row]..self.first[row + 1]].iter();
        // Weights beyond 2^60 would overflow the sums; counts are far from that.
        let real = own.map(|j| (j.to as usize, -(j.weight.min(1 << 60) as i64)));
        real.chain(std::iter::once((self.nodes + row, 0)))
    }

    /// Adds one row by a shortest augmenting path (Dijkstra on reduced costs, which are never negative).
    fn assign(&mut self, row: u32) {
        let cheapest = self.costs(row).map(|(c, cost)| (cost - self.column_potential[c], c)).min();
        let (lowest, column) = cheapest.unwrap_or_default();
        self.row_potential[row as usize] = lowest;
        if self.row_of[column] == NONE {
            // The path has one step and no length.
            self.row_of[column] = row;
            return;
        }
        if let Some((column, length)) = self.nearest_free(row) {
            self.row_potential[row as usize] += length;
            for &(settled, distance) in &self.settled {
                self.row_potential[self.row_of[settled] as usize] += length - distance;
                self.column_potential[settled] -= length - distance;
            }
            self.augment(column, row);
        }
        for column in self.touched.drain(..) {
            self.distance[column] = i64::MAX;
        }
        self.settled.clear();
        self.heap.clear();
    }

    /// The nearest column without a row, and its distance.
    fn nearest_free(&mut self, row: u32) -> Option<(usize, i64)> {
        self.relax(row, 0);
        while let Some(Reverse((distance, column))) = self.heap.pop() {
            if distance > self.distance[column] {
                continue;
            }
            if self.row_of[column] == NONE {
                return Some((column, distance));
            }
            self.settled.push((column, distance));
            self.relax(self.row_of[column], distance);
        }
        None
    }

    fn relax(&mut self, row: u32, distance: i64) {
        for (column, cost) in self.costs(row) {
            let reduced = cost - self.row_potential[row as usize] - self.column_potential[column];
            let new = distance + reduced;
            if new < self.distance[column] {
                if self.distance[column] == i64::MAX {
                    self.touched.push(column);
                }
                self.distance[column] = new;
                self.reached_from[column] = row;
                self.heap.push(Reverse((new, column)));
            }
        }
    }

    /// Gives the columns on the path that ends at `column` to the rows from which they were reached.
    fn augment(&mut self, mut column: usize, start: u32) {
        loop {
            let row = self.reached_from[column];
            let next = self.column_of(row);
            self.row_of[column] = row;
            match next {
                Some(before) if row != start => column = before,
                _ => break,
            }
        }
    }

    /// The column that a row has now.
    fn column_of(&self, row: u32) -> Option<usize> {
        self.costs(row).map(|(column, _)| column).find(|&c| self.row_of[c] == row)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The best weight of any choice of a successor for each of the nodes from `from` on.
    fn best_cover(
        nodes: usize,
        joints: &[Joint],
        from: usize,
        used: &mut Vec<bool>,
        paths: Option<&[u32]>,
    ) -> u64 {
        if from == nodes {
            return 0;
        }
        let mut best = best_cover(nodes, joints, from + 1, used, paths);
        for j in joints.iter().filter(|j| j.from as usize == from) {
            if used[j.to as usize] {
                continue;
            }
            let mut next = paths.map(<[u32]>::to_vec);
            if let Some(next) = &mut next {
                // Labels of paths: equal labels would close a cycle.
                let (a, b) = (next[from], next[j.to as usize]);
                if a == b {
                    continue;
                }
                next.iter_mut().filter(|l| **l == a).for_each(|l| *l = b);
            }
            used[j.to as usize] = true;
            best = best.max(j.weight + best_cover(nodes, joints, from + 1, used, next.as_deref()));
            used[j.to as usize] = false;
        }
        best
    }

    fn weight(joints: &[Joint], chains: &[Vec<u32>]) -> u64 {
        let between =
            |p: &[u32]| joints.iter().find(|j| (j.from, j.to) == (p[0], p[1])).map_or(0, |j| j.weight);
        chains.iter().flat_map(|c| c.windows(2)).map(between).sum()
    }

    fn graph() -> impl Strategy<Value = (usize, Vec<Joint>)> {
        (2usize..7).prop_flat_map(|nodes| {
            let joint = (0..nodes as u32, 0..nodes as u32, 1u64..100);
            prop::collection::btree_map((joint.0, joint.1), joint.2, 0..16).prop_map(move |map| {
                let joints = map.into_iter().filter(|((a, b), _)| a != b);
                (nodes, joints.map(|((from, to), weight)| Joint { from, to, weight }).collect())
            })
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn the_cover_is_optimal_and_the_paths_keep_their_bounds((nodes, joints) in graph()) {
            let cover = cycle_cover(nodes, &joints);
            let mut targets: Vec<u32> = cover.iter().map(|j| j.to).collect();
            targets.sort_unstable();
            prop_assert!(targets.windows(2).all(|w| w[0] != w[1]));
            prop_assert!(cover.windows(2).all(|w| w[0].from < w[1].from));
            let reached: u64 = cover.iter().map(|j| j.weight).sum();
            prop_assert_eq!(reached, best_cover(nodes, &joints, 0, &mut vec![false; nodes], None));
            let labels: Vec<u32> = (0..nodes as u32).collect();
            let optimum = best_cover(nodes, &joints, 0, &mut vec![false; nodes], Some(&labels));
            let (_, half) = path_cover(nodes, &joints);
            prop_assert!(2 * half >= reached && reached >= optimum && half <= optimum, "{half} {reached} {optimum}");
            let best = weight(&joints, &best_paths(nodes, joints.clone()));
            let (_, greedy) = greedy(nodes, &mut joints.clone());
            prop_assert!(best >= greedy && best >= half && best <= optimum, "{best} {greedy} {half} {optimum}");
        }
    }

    /// Greedy takes the 10 and loses both 9s; the cover does not.
    #[test]
    fn the_cover_beats_greedy_where_greedy_is_short_sighted() {
        let joints = [(0, 1, 9), (0, 2, 10), (3, 2, 9)].map(|(from, to, weight)| Joint { from, to, weight });
        assert_eq!(greedy(4, &mut joints.to_vec()).1, 10);
        assert_eq!(weight(&joints, &best_paths(4, joints.to_vec())), 18);
    }
}
