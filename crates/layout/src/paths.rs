//! Disjoint paths over numbered nodes, built link by link.

use crate::graph::NONE;

/// Who stands behind whom. No node has two successors or two predecessors, and there is no cycle.
pub(crate) struct Paths {
    next: Vec<u32>,
    previous: Vec<u32>,
    root: Vec<u32>,
}

impl Paths {
    pub fn new(nodes: usize) -> Self {
        Self { next: vec![NONE; nodes], previous: vec![NONE; nodes], root: (0..nodes as u32).collect() }
    }

    fn find(&mut self, mut node: u32) -> u32 {
        while self.root[node as usize] != node {
            self.root[node as usize] = self.root[self.root[node as usize] as usize];
            node = self.root[node as usize];
        }
        node
    }

    /// Puts `to` right behind `from`, if `from` ends a path and `to` begins another. Whether that was done.
    pub fn join(&mut self, from: u32, to: u32) -> bool {
        if self.next[from as usize] != NONE || self.previous[to as usize] != NONE {
            return false;
        }
        let (a, b) = (self.find(from), self.find(to));
        if a == b {
            return false;
        }
        self.root[a.max(b) as usize] = a.min(b);
        self.next[from as usize] = to;
        self.previous[to as usize] = from;
        true
    }

    /// The node behind this one.
    pub fn next(&self, node: u32) -> Option<u32> {
        Some(self.next[node as usize]).filter(|&n| n != NONE)
    }

    /// All paths, in the order of their first nodes.
    pub fn into_chains(self) -> Vec<Vec<u32>> {
        let heads = (0..self.next.len() as u32).filter(|&n| self.previous[n as usize] == NONE);
        heads.map(|head| std::iter::successors(Some(head), |&n| self.next(n)).collect()).collect()
    }
}
