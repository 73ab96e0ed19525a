//! What an order is worth.

use crate::distances::Distances;
use crate::graph::{Link, LinkKind};
use crate::tsp_worth::{AFFINITY, BACKWARD, FALL, FORWARD, JUMP, LINE, SHORT};

/// What a transfer over no bytes is worth for each level of nearness. (Of a tenth, 0.3, 1 and 3 the first had
/// the least cost in the laboratory's models, cc1plus with another input than the profile's; what is more
/// parts what follows each other.)
const LEVEL: f64 = 0.1;
/// What it is worth that two blocks share a page, for each window of execution in which both ran.
const AFFINITY_IN_PAGE: f64 = 0.02;
/// Bytes of a page.
const PAGE: f64 = restitch_address::PAGE as f64;

/// The value of links by how far apart their ends stand: fall-throughs and short jumps as in the extended
/// TSP, the nearer the more for each level of nearness, and shared lines and pages for blocks that ran at the
/// same time.
pub(super) struct Worth {
    levels: Vec<f64>,
}

impl Worth {
    pub fn new(distances: Distances) -> Self {
        Self { levels: distances.bytes().iter().map(|&d| d as f64).collect() }
    }

    /// What one execution of `link` is worth that leaves and arrives there.
    pub fn of(&self, link: &Link, leaves: i64, arrives: i64) -> f64 {
        if link.kind == LinkKind::Affinity {
            let (first, second) = (leaves - i64::from(link.leaves), arrives - i64::from(link.arrives));
            let between = if first < second { second - leaves } else { first - arrives } as f64;
            let near = |reach: f64| (1.0 - between / reach).max(0.0);
            return AFFINITY * near(LINE) + AFFINITY_IN_PAGE * near(PAGE);
        }
        let ahead = arrives - leaves;
        if ahead == 0 && link.kind == LinkKind::Branch {
            return self.fall(link.only);
        }
        let distance = ahead.unsigned_abs() as f64;
        let reach = if ahead >= 0 { FORWARD } else { BACKWARD };
        SHORT * (1.0 - distance / reach).max(0.0) + self.near(distance)
    }

    /// What a fall-through is worth; `only`: it makes a jump superfluous.
    pub fn fall(&self, only: bool) -> f64 {
        FALL + if only { JUMP } else { 0.0 } + self.near(0.0)
    }

    fn near(&self, distance: f64) -> f64 {
        self.levels.iter().map(|reach| LEVEL * (1.0 - distance / reach).max(0.0)).sum()
    }
}
