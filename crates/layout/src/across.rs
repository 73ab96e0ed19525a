//! Inter-procedural extended TSP: the default, before local search ([`search`](crate::search())).
//!
//! 1. **Hot code**, the blocks that make up [`ExtTspAcross::hot_share`] of all executed bytes, becomes
//!    extended-TSP chains over all functions at once: branches, calls and returns alike. The chains are
//!    collocated by nearness, as those of [`Stitch`](crate::Stitch) are, and the densest sequences come
//!    first.
//! 2. **The rest** of the functions that ran, what training hardly met and what it never met, stands behind
//!    that by function (`rest.rs`). Between the hot code it would take up lines and pages; and another input
//!    executes other parts of it, of which only those of one function are known to belong together.
//!
//! Near-linear; ties go to the lower blocks.

use restitch_profile::Profile;
use restitch_program::Program;

use crate::codestitcher::densest_first;
use crate::distances::Distances;
use crate::ext_tsp::ext_tsp_chains;
use crate::graph::{HotGraph, Links};
use crate::hot_chains::HotChains;
use crate::model::{Fragment, Layout, LayoutAlgorithm};
use crate::rest::rest_by_function;
use crate::stitch::{collocate_near, split_by_heat};

/// What the module's documentation says.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ExtTspAcross {
    /// Share of the executed bytes, 0 to 1, whose blocks are ordered across functions.
    pub hot_share: f64,
    /// The levels of nearness.
    pub distances: Distances,
}

impl Default for ExtTspAcross {
    fn default() -> Self {
        Self { hot_share: 0.999, distances: Distances::default() }
    }
}

impl LayoutAlgorithm for ExtTspAcross {
    fn name(&self) -> &'static str {
        "ext-tsp-across"
    }

    fn meaning(&self) -> &'static str {
        "Extended TSP over all hot blocks, with calls and returns, then by nearness"
    }

    fn layout(&self, program: &Program, profile: &Profile) -> Layout {
        self.with_chains(program, profile, ext_tsp_chains)
    }
}

impl ExtTspAcross {
    /// The same with other `chains` of the hot code.
    pub(crate) fn with_chains(
        &self,
        program: &Program,
        profile: &Profile,
        chains: impl FnOnce(&HotGraph) -> Vec<Vec<u32>>,
    ) -> Layout {
        let executed = HotChains::default().hot_blocks(program, profile);
        let (hot, warm) = split_by_heat(program, profile, &executed, self.hot_share);
        let graph = HotGraph::new(program, profile, &hot, Links::All);
        let sequences = collocate_near(&graph, chains(&graph), self.distances.bytes());
        let ordered = graph.to_blocks(densest_first(&graph, sequences));
        let hot = ordered.into_iter().map(|blocks| Fragment { blocks, align: 16 }).collect();
        Layout { hot, cold: rest_by_function(program, profile, &executed, &warm), ..Layout::default() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use restitch_profile::testing::{RandomProgram, walk};
    use restitch_program::{BlockAttrs, BlockId};
    use std::collections::BTreeSet;

    proptest! {
        /// Hot code holds the wanted share of what ran, and nothing colder than what is left out. All else of
        /// functions that ran follows in one piece a function, by address: first what ran, each chain in
        /// order, then what never did.
        #[test]
        fn what_is_not_hot_stays_with_its_function(seed: u64, hot_share in 0.5f64..1.0) {
            let random = RandomProgram::new(seed);
            let (program, profile) = (&random.program, walk(&random.program, seed, 60, 0.1));
            let layout = ExtTspAcross { hot_share, ..ExtTspAcross::default() }.layout(program, &profile);
            prop_assert_eq!(layout.validate(program), Ok(()));
            let ran = |b: &BlockId| program.is_movable(*b) && profile.block(*b) > 0;
            let bytes = |b: BlockId| profile.block(b) as f64 * f64::from(program.block(b).len);
            let hot: BTreeSet<BlockId> = layout.hot.iter().flat_map(|f| f.blocks.iter().copied()).collect();
            let sum = |hot_only: bool| -> f64 {
                let counted = program.block_ids().filter(|b| ran(b) && (!hot_only || hot.contains(b)));
                counted.map(bytes).sum()
            };
            prop_assert!(sum(true) >= hot_share * sum(false) - 1e-6);
            let coldest = hot.iter().map(|b| profile.block(*b)).min().unwrap_or(u64::MAX);
            let mut last = None;
            for fragment in &layout.cold {
                let function = program.block(fragment.blocks[0]).function;
                prop_assert!(last.replace(function) < Some(function), "functions go by address");
                prop_assert!(program.blocks_of(function).any(|b| ran(&b)));
                let own: BTreeSet<BlockId> = fragment.blocks.iter().copied().collect();
                let padding = |b: &BlockId| program.block(*b).attrs.contains(BlockAttrs::PADDING);
                let all = program.blocks_of(function);
                let wanted: BTreeSet<BlockId> =
                    all.filter(|b| program.is_movable(*b) && !hot.contains(b) && !padding(b)).collect();
                prop_assert_eq!(&own, &wanted);
                let warm = fragment.blocks.iter().take_while(|b| ran(b)).count();
                prop_assert!(!fragment.blocks[warm..].iter().any(ran), "what never ran stands behind what did");
                prop_assert!(fragment.blocks[warm..].is_sorted());
                prop_assert!(fragment.blocks[..warm].iter().all(|b| profile.block(*b) < coldest));
            }
        }
    }
}
