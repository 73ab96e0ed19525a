//! `Layout`: in which order the blocks of a new version stand.
//!
//! Stage four of the pipeline. Every algorithm is a [`LayoutAlgorithm`] in a file of its own; the cost model that
//! scores a layout ([`Score`]) is apart from all of them and shares no code with them.
//!
//! The caller brings a program and a profile that is parallel to its tables, and picks an algorithm: [`HotChains`] unless
//! there is a reason. A layout holds movable blocks only, each at most once ([`Layout::validate`]), and the same input
//! gives the same layout. Nothing here emits code: sizes are those of the original blocks.

mod c3;
mod chains;
mod ext_tsp;
mod hot_chains;
mod model;
mod original;
mod score;
mod text;
mod validate;

pub use c3::*;
pub use ext_tsp::*;
pub use hot_chains::*;
pub use model::*;
pub use original::*;
pub use score::*;
pub use text::*;
