//! Disjoint paths over numbered nodes, built link by link.

use crate::graph::NONE;

/// Who stands behind whom. No node has two successors or two predecessors, and there is no cycle.
pub(crate) struct Paths(Vec<Step>);

#[derive(Debug, Clone, Copy)]
struct Step {
    next: u32,
    previous: u32,
    root: u32,
}

impl Paths {
    pub fn new(nodes: usize) -> Self {
        Self((0..nodes as u32).map(|root| Step { next: NONE, previous: NONE, root }).collect())
    }

    fn find(&mut self, mut node: u32) -> u32 {
        while self.0[node as usize].root != node {
            let above = self.0[self.0[node as usize].root as usize].root;
            self.0[node as usize].root = above;
            node = above;
        }
        node
    }

    /// Whether `from` ends a path and `to` begins one.
    pub fn are_ends(&self, from: u32, to: u32) -> bool {
        self.0[from as usize].next == NONE && self.0[to as usize].previous == NONE
    }

    /// Puts `to` right behind `from`, if `from` ends a path and `to` begins another. Whether that was done.
    pub fn join(&mut self, from: u32, to: u32) -> bool {
        if !self.are_ends(from, to) {
            return false;
        }
        let (a, b) = (self.find(from), self.find(to));
        if a == b {
            return false;
        }
        self.0[a.max(b) as usize].root = a.min(b);
        self.0[from as usize].next = to;
        self.0[to as usize].previous = from;
        true
    }

    /// The node behind this one.
    pub fn next(&self, node: u32) -> Option<u32> {
        Some(self.0[node as usize].next).filter(|&n| n != NONE)
    }

    /// All paths, in the order of their first nodes.
    pub fn into_chains(self) -> Vec<Vec<u32>> {
        let heads = (0..self.0.len() as u32).filter(|&n| self.0[n as usize].previous == NONE);
        heads.map(|head| std::iter::successors(Some(head), |&n| self.next(n)).collect()).collect()
    }
}
