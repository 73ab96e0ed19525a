//! `Layout`: in which order the blocks of a new version stand.
//!
//! Stage four of the pipeline. Every algorithm is a [`LayoutAlgorithm`] in a file of its own; the cost model
//! that scores a layout ([`Score`]) is apart from all of them and shares no code with them.
//!
//! The caller brings a program and a profile that is parallel to its tables, and picks an algorithm by name
//! ([`LayoutChoice`]) or by type: [`ExtTspAcross`] unless there is a reason, and [`search()`] behind it.
//! `docs/layout.md` compares them. A layout holds movable blocks only, each at most once
//! ([`Layout::validate`]), and the same input gives the same layout. Nothing here emits code: sizes are those
//! of the original blocks.

mod across;
/// The recipe of `docs/extending.md`: not among the layouts that there are.
#[cfg(test)]
mod by_entries;
mod c3;
mod cdsort;
mod chain_merging;
mod chains;
mod codestitcher;
mod cycle_cover;
mod distances;
mod duplicate;
mod ext_tsp;
mod functions;
mod graph;
mod hfsort_plus;
mod hot_chains;
mod hot_cold;
mod leave;
mod model;
mod nodes;
mod original;
mod partial_order;
mod paths;
mod pettis_hansen;
mod ph_bb;
mod registry;
mod rest;
mod score;
mod search;
#[cfg(test)]
mod small_graphs;
mod stitch;
mod temporal_affinity;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
mod text;
mod tsp_worth;
mod validate;

pub use across::*;
pub use c3::*;
pub use cdsort::*;
pub use codestitcher::*;
pub use cycle_cover::COVER_LIMIT;
pub use distances::*;
pub use duplicate::*;
pub use ext_tsp::*;
pub use hfsort_plus::*;
pub use hot_chains::*;
pub use hot_cold::*;
pub use leave::*;
pub use model::*;
pub use nodes::{Arc, Node};
pub use original::*;
pub use pettis_hansen::*;
pub use ph_bb::*;
pub use registry::*;
pub use score::*;
pub use search::*;
pub use stitch::*;
pub use temporal_affinity::*;
pub use text::*;
