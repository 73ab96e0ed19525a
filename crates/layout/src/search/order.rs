//! An order of nodes in which units move.

use super::worth::Worth;
use super::{HUB, PRICED, REACH};
use crate::graph::{HotGraph, Link, LinkKind};

/// Nodes one behind the other, and units of them.
pub(super) struct Order<'g> {
    pub graph: &'g HotGraph,
    nodes: Vec<u32>,
    /// Where each node stands in `nodes`.
    places: Vec<u32>,
    /// Where each node starts, in bytes from the first one.
    starts: Vec<i64>,
    /// The links of node n are `links[begin[n]..begin[n + 1]]`, both those from it and those to it.
    begin: Vec<u32>,
    links: Vec<u32>,
    /// The first node of each node's unit.
    heads: Vec<u32>,
    /// By first node: the number of nodes of its unit.
    lengths: Vec<u32>,
}

/// A unit moves past others.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Move {
    pub gain: f64,
    /// To higher addresses, or to lower ones.
    pub up: bool,
    /// The last one that it moves past, itself included.
    pub last: u32,
}

/// A stretch of bytes, and by how many it moves.
#[derive(Debug, Clone, Copy)]
struct Shift {
    from: i64,
    to: i64,
    by: i64,
}

impl Shift {
    fn of(&self, at: i64) -> Option<i64> {
        (self.from <= at && at < self.to).then_some(self.by)
    }
}

impl<'g> Order<'g> {
    /// `nodes`: each node of the graph once.
    pub fn new(graph: &'g HotGraph, nodes: Vec<u32>) -> Self {
        let count = graph.len();
        let mut begin = vec![0u32; count + 1];
        let ends = |l: &Link| [l.from, l.to];
        graph.links.iter().flat_map(ends).for_each(|n| begin[n as usize + 1] += 1);
        (0..count).for_each(|n| begin[n + 1] += begin[n]);
        let mut next = begin.clone();
        let mut links = vec![0u32; graph.links.len() * 2];
        for (number, link) in graph.links.iter().enumerate() {
            for n in ends(link) {
                links[next[n as usize] as usize] = number as u32;
                next[n as usize] += 1;
            }
        }
        let (places, starts, heads) = (vec![0; count], vec![0; count], (0..count as u32).collect());
        let mut order = Self { graph, nodes, places, starts, begin, links, heads, lengths: vec![1; count] };
        order.settle(0, count, 0);
        order
    }

    pub fn nodes(&self) -> &[u32] {
        &self.nodes
    }

    /// What the whole order is worth.
    pub fn worth(&self, worth: &Worth) -> f64 {
        self.graph.links.iter().map(|l| self.value(worth, l, 0, 0)).sum()
    }

    /// How often control falls from `from` into `to` when that stands behind it.
    pub fn falls(&self, from: u32, to: u32) -> f64 {
        let falls = |l: &&Link| l.from == from && l.to == to && l.kind == LinkKind::Branch;
        self.links_of(from)
            .iter()
            .map(|&l| &self.graph.links[l as usize])
            .filter(falls)
            .map(|l| l.weight)
            .sum()
    }

    /// Makes units: the order is parted where less than `share` of a node's executions fall through. Returns
    /// their first nodes, in order.
    pub fn part(&mut self, share: f64) -> Vec<u32> {
        let mut units: Vec<u32> = Vec::new();
        for place in 0..self.nodes.len() {
            let n = self.nodes[place];
            let joined = place > 0 && {
                let before = self.nodes[place - 1];
                self.falls(before, n) >= share * self.graph.counts[before as usize].max(1) as f64
            };
            match units.last() {
                Some(&head) if joined => {
                    self.heads[n as usize] = head;
                    self.lengths[head as usize] += 1;
                }
                _ => {
                    self.heads[n as usize] = n;
                    self.lengths[n as usize] = 1;
                    units.push(n);
                }
            }
        }
        units
    }

    /// The move of a unit that gains most, of those that bring it beside a block that it is linked with. Hubs
    /// stay where they are.
    pub fn best_move(&self, worth: &Worth, unit: u32, looked_at: &mut u64) -> Option<Move> {
        if self.nodes_of(unit).map(|n| self.links_of(n).len()).sum::<usize>() > HUB {
            return None;
        }
        let mut sketches = self.sketches(worth, unit, looked_at);
        sketches.sort_by(|a, b| b.gain.total_cmp(&a.gain).then(a.last.cmp(&b.last)).then(a.up.cmp(&b.up)));
        sketches.truncate(PRICED);
        let price = |sketch: Move| Move { gain: self.gain(worth, unit, sketch, looked_at), ..sketch };
        sketches.into_iter().map(price).reduce(|a, b| if b.gain > a.gain { b } else { a })
    }

    /// The moves of a unit to either side of each unit that it is linked with, with what they gain for its
    /// own links and for its neighbours, which meet.
    fn sketches(&self, worth: &Worth, unit: u32, looked_at: &mut u64) -> Vec<Move> {
        let own = self.extent(unit);
        let [before, behind] = [false, true].map(|up| self.neighbour(unit, up));
        let meet = before.zip(behind).map_or(0.0, |(a, b)| worth.fall(true) * self.falls(self.last_of(a), b));
        let mut targets: Vec<(i64, u32, bool)> = Vec::new();
        for node in self.nodes_of(unit) {
            for &link in self.links_of(node) {
                let link = &self.graph.links[link as usize];
                let other = self.heads[if link.from == node { link.to } else { link.from } as usize];
                let at = self.extent(other);
                let up = at.0 >= own.1;
                let distance = if up { at.1 - own.1 } else { own.0 - at.0 };
                if other == unit || distance > REACH {
                    continue;
                }
                targets.push((distance, other, up));
                // Not past it, but up to it.
                targets.extend(self.neighbour(other, !up).filter(|&n| n != unit).map(|n| {
                    let size = at.1 - at.0;
                    (distance - size, n, up)
                }));
            }
        }
        targets.sort_unstable();
        targets.dedup();
        let mut sketches = Vec::with_capacity(targets.len());
        for (distance, last, up) in targets {
            let passed = self.passed(own, up, distance);
            let shift = Shift { from: own.0, to: own.1, by: if up { distance } else { -distance } };
            let gain: f64 = meet
                + self.nodes_of(unit).map(|n| self.moving(worth, n, shift, passed, looked_at)).sum::<f64>();
            if gain > 0.0 {
                sketches.push(Move { gain, up, last });
            }
        }
        sketches
    }

    /// What a move gains, exactly.
    fn gain(&self, worth: &Worth, unit: u32, what: Move, looked_at: &mut u64) -> f64 {
        let own = self.extent(unit);
        let last = self.extent(what.last);
        let distance = if what.up { last.1 - own.1 } else { own.0 - last.0 };
        let passed = self.passed(own, what.up, distance);
        let shift = Shift { from: own.0, to: own.1, by: if what.up { distance } else { -distance } };
        let (low, high) = self.stretch(unit, what);
        let moved = self.nodes[low..high].iter().filter(|&&n| shift.of(self.starts[n as usize]).is_none());
        let others: f64 = moved.map(|&n| self.passing(worth, n, passed, own, looked_at)).sum();
        others + self.nodes_of(unit).map(|n| self.moving(worth, n, shift, passed, looked_at)).sum::<f64>()
    }

    /// The bytes that a unit passes, and how they move.
    fn passed(&self, own: (i64, i64), up: bool, distance: i64) -> Shift {
        match up {
            true => Shift { from: own.1, to: own.1 + distance, by: own.0 - own.1 },
            false => Shift { from: own.0 - distance, to: own.0, by: own.1 - own.0 },
        }
    }

    /// Where in `nodes` something moves.
    fn stretch(&self, unit: u32, what: Move) -> (usize, usize) {
        let end = |unit: u32| (self.places[unit as usize] + self.lengths[unit as usize]) as usize;
        match what.up {
            true => (self.places[unit as usize] as usize, end(what.last)),
            false => (self.places[what.last as usize] as usize, end(unit)),
        }
    }

    /// What changes if `node` moves with all that is passed, but for its links with the unit at `own`, which
    /// passes.
    fn passing(&self, worth: &Worth, node: u32, passed: Shift, own: (i64, i64), looked_at: &mut u64) -> f64 {
        let change = |link: &Link| {
            let from_node = link.from == node;
            let at = self.starts[if from_node { link.to } else { link.from } as usize];
            if (own.0..own.1).contains(&at) || passed.of(at).is_some() {
                return 0.0;
            }
            let shifts = if from_node { (passed.by, 0) } else { (0, passed.by) };
            self.value(worth, link, shifts.0, shifts.1) - self.value(worth, link, 0, 0)
        };
        *looked_at += self.links_of(node).len() as u64;
        self.links_of(node).iter().map(|&l| change(&self.graph.links[l as usize])).sum()
    }

    /// What changes if `node`, of the unit that `own` moves, does so, and those that it moves past do as
    /// `passed` says.
    fn moving(&self, worth: &Worth, node: u32, own: Shift, passed: Shift, looked_at: &mut u64) -> f64 {
        let shift = |node: u32| {
            let at = self.starts[node as usize];
            own.of(at).or(passed.of(at)).unwrap_or(0)
        };
        let change = |link: &Link| match (shift(link.from), shift(link.to)) {
            (from, to) if from == to => 0.0,
            (from, to) => self.value(worth, link, from, to) - self.value(worth, link, 0, 0),
        };
        *looked_at += self.links_of(node).len() as u64;
        self.links_of(node).iter().map(|&l| change(&self.graph.links[l as usize])).sum()
    }

    /// Moves a unit. Returns those that may move now: it, and whoever has other neighbours or is linked with
    /// it.
    pub fn make(&mut self, unit: u32, what: Move) -> Vec<u32> {
        let length = self.lengths[unit as usize] as usize;
        let (low, high) = self.stretch(unit, what);
        let start = self.starts[self.nodes[low] as usize];
        match what.up {
            true => self.nodes[low..high].rotate_left(length),
            false => self.nodes[low..high].rotate_right(length),
        }
        self.settle(low, high, start);
        let place = self.places[unit as usize] as usize;
        let borders = [low, high, place, place + length]
            .into_iter()
            .flat_map(|border| [border.wrapping_sub(1), border]);
        let mut units: Vec<u32> =
            borders.filter_map(|p| self.nodes.get(p)).map(|&n| self.heads[n as usize]).collect();
        for node in self.nodes_of(unit) {
            let ends = self.links_of(node).iter().flat_map(|&l| {
                let link = &self.graph.links[l as usize];
                [link.from, link.to]
            });
            units.extend(ends.map(|n| self.heads[n as usize]));
        }
        units
    }

    /// Places and starts of `nodes[low..high]`, the first of which starts at `start`.
    fn settle(&mut self, low: usize, high: usize, mut start: i64) {
        for place in low..high {
            let node = self.nodes[place] as usize;
            (self.places[node], self.starts[node]) = (place as u32, start);
            start += self.graph.sizes[node] as i64;
        }
    }

    /// The unit behind this one, or in front of it.
    fn neighbour(&self, unit: u32, up: bool) -> Option<u32> {
        let place = self.places[unit as usize] as usize;
        let place = if up { place + self.lengths[unit as usize] as usize } else { place.checked_sub(1)? };
        self.nodes.get(place).map(|&n| self.heads[n as usize])
    }

    fn last_of(&self, unit: u32) -> u32 {
        self.nodes[(self.places[unit as usize] + self.lengths[unit as usize] - 1) as usize]
    }

    /// Where a unit starts and ends, in bytes.
    fn extent(&self, unit: u32) -> (i64, i64) {
        let last = self.last_of(unit) as usize;
        (self.starts[unit as usize], self.starts[last] + self.graph.sizes[last] as i64)
    }

    fn nodes_of(&self, unit: u32) -> impl Iterator<Item = u32> + '_ {
        let place = self.places[unit as usize] as usize;
        self.nodes[place..place + self.lengths[unit as usize] as usize].iter().copied()
    }

    fn links_of(&self, node: u32) -> &[u32] {
        &self.links[self.begin[node as usize] as usize..self.begin[node as usize + 1] as usize]
    }

    /// What a link is worth with its ends shifted.
    fn value(&self, worth: &Worth, link: &Link, from: i64, to: i64) -> f64 {
        let leaves = self.starts[link.from as usize] + i64::from(link.leaves) + from;
        link.weight * worth.of(link, leaves, self.starts[link.to as usize] + i64::from(link.arrives) + to)
    }
}
