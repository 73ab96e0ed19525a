//! [`ExtTspAcross`] with time.
//!
//! **Problem.** What shares a line, and is not wanted at the same time, is fetched in vain. Counts do not say
//! what is wanted at the same time.
//!
//! **Idea.** Branch records do ([`Profile::temporal_affinity`]): blocks that ran in the same windows are
//! linked in the graph of which the extended-TSP search makes chains (`ext_tsp.rs` knows what such a link is
//! worth), whether or not control goes from the one to the other. All other steps are those of
//! [`ExtTspAcross`].
//!
//! **Limits.** Without such knowledge both layouts are the same. `docs/layout.md` says what it is worth.
//!
//! [`ExtTspAcross`]: crate::ExtTspAcross

use restitch_profile::Profile;
use restitch_program::Program;

use crate::across::ExtTspAcross;
use crate::distances::Distances;
use crate::ext_tsp::ext_tsp_chains;
use crate::model::{Layout, LayoutAlgorithm};

/// Inter-procedural extended TSP that lets blocks share lines which run at the same time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TemporalAffinity {
    /// The levels of nearness.
    pub distances: Distances,
}

impl LayoutAlgorithm for TemporalAffinity {
    fn name(&self) -> &'static str {
        "together"
    }

    fn meaning(&self) -> &'static str {
        "As ext-tsp-across, and in the same lines what branch records saw at the same time"
    }

    fn layout(&self, program: &Program, profile: &Profile) -> Layout {
        let across = ExtTspAcross { distances: self.distances, ..ExtTspAcross::default() };
        across.with_chains(program, profile, |graph| match profile.temporal_affinity.is_empty() {
            true => ext_tsp_chains(graph),
            false => ext_tsp_chains(&graph.clone().with_affinity(program, profile)),
        })
    }
}
