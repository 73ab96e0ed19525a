//! Random graphs that are small enough to try all orders of their nodes.

use restitch_profile::testing::Random;

use crate::graph::{Link, LinkKind};

/// Sizes of nodes, and calls between them.
pub(crate) fn random_graph(seed: u64, nodes: u32) -> (Vec<u64>, Vec<Link>) {
    let mut random = Random::new(seed);
    let sizes = (0..nodes).map(|_| 10 + random.below(90) as u64).collect();
    let mut links = Vec::new();
    for from in 0..nodes {
        for to in (0..nodes).filter(|&to| to != from) {
            if random.chance(0.4) {
                let weight = 1.0 + random.below(100) as f64;
                links.push(Link {
                    from,
                    to,
                    weight,
                    leaves: 0,
                    arrives: 0,
                    kind: LinkKind::Call,
                    only: false,
                });
            }
        }
    }
    (sizes, links)
}

/// Where the nodes of `order` start, in bytes from the first; `None` for others.
pub(crate) fn starts(sizes: &[u64], order: &[u32]) -> Vec<Option<i64>> {
    let mut starts = vec![None; sizes.len()];
    let mut at = 0;
    for &n in order {
        starts[n as usize] = Some(at);
        at += sizes[n as usize] as i64;
    }
    starts
}
