//! Chains by maximum-weight cycle cover (Lavaee, Criswell and Ding, *Codestitcher*, CC 2019, section 2.2.3).
//!
//! **Problem.** As many executions as possible shall fall through: a maximum-weight path cover, which is NP-hard.
//!
//! **Idea.** A cycle cover may also close cycles, and its best one is an assignment problem: give each block at most one
//! successor and at most one predecessor. Dropping the lightest edge of each cycle leaves paths of at least half the
//! best weight. Greedy additions follow; where plain greedy is better for a function, that is taken.
//!
//! **Limits.** The assignment is solved by successive shortest paths with potentials: O(n m log n) for a function of n blocks and m
//! edges, usually far less, because paths are short. Functions of more than [`COVER_LIMIT`] hot blocks get greedy chains.
//! Branches between functions, tail calls above all, are added greedily at the end.

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
    let mut first = 0;
    let nodes: Vec<u32> = (0..graph.len() as u32).collect();
    for members in nodes.chunk_by(|&a, &b| function(a) == function(b)) {
        let behind = members[0] + members.len() as u32;
        let last = first + all[first..].partition_point(|j| j.from < behind);
        let local = |j: &&Joint| (members[0]..behind).contains(&j.to);
        let shift = |j: &Joint| Joint { from: j.from - members[0], to: j.to - members[0], ..*j };
        let inside: Vec<Joint> = all[first..last].iter().filter(local).map(shift).collect();
        for pair in best_paths(members.len(), inside).iter().flat_map(|chain| chain.windows(2)) {
            paths.join(pair[0] + members[0], pair[1] + members[0]);
        }
        first = last;
    }
    add_greedily(&mut paths, &mut all);
    paths.into_chains()
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
}

impl<'j> Assignment<'j> {
    fn new(nodes: usize, joints: &'j [Joint]) -> Self {
        let columns = 2 * nodes;
        Self {
            nodes,
            joints,
            first: (0..=nodes).map(|n| joints.partition_point(|j| (j.from as usize) < n)).collect(),
            row_potential: vec![0; nodes],
            column_potential: vec![0; columns],
            row_of: vec![NONE; columns],
            distance: vec![i64::MAX; columns],
            reached_from: vec![NONE; columns],
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
        let lowest = self.costs(row).map(|(c, cost)| cost - self.column_potential[c]).min();
        self.row_potential[row as usize] = lowest.unwrap_or(0);
        let mut heap = BinaryHeap::new();
        let (mut settled, mut touched) = (Vec::new(), Vec::new());
        self.relax(row, 0, &mut heap, &mut touched);
        let mut free = None;
        while let Some(Reverse((distance, column))) = heap.pop() {
            if distance > self.distance[column] {
                continue;
            }
            if self.row_of[column] == NONE {
                free = Some((column, distance));
                break;
            }
            settled.push((column, distance));
            self.relax(self.row_of[column], distance, &mut heap, &mut touched);
        }
        if let Some((column, length)) = free {
            self.row_potential[row as usize] += length;
            for &(settled, distance) in &settled {
                self.row_potential[self.row_of[settled] as usize] += length - distance;
                self.column_potential[settled] -= length - distance;
            }
            self.augment(column, row);
        }
        for column in touched {
            self.distance[column] = i64::MAX;
        }
    }

    fn relax(
        &mut self,
        row: u32,
        distance: i64,
        heap: &mut BinaryHeap<Reverse<(i64, usize)>>,
        touched: &mut Vec<usize>,
    ) {
        for (column, cost) in self.costs(row) {
            let reduced = cost - self.row_potential[row as usize] - self.column_potential[column];
            let new = distance + reduced;
            if new < self.distance[column] {
                if self.distance[column] == i64::MAX {
                    touched.push(column);
                }
                self.distance[column] = new;
                self.reached_from[column] = row;
                heap.push(Reverse((new, column)));
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
