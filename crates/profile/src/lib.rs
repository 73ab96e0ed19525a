//! `Profile`: how often each edge, block and call of a [`Program`](restitch_program::Program) ran.
//!
//! Stage three of the pipeline. Dense counts, parallel to the program's tables; the stored form is keyed by
//! build id and address.
//!
//! **What you do**: bring counts of some kind. Counter values of a counting version that [`plan_counters`]
//! planned ([`CounterPlan::known`], then [`derive()`]); branch records ([`BranchSamples::to_profile`]); a
//! `perf.data` file ([`import_perf_data`]); samples of instructions ([`repair`](repair())); or a stored
//! profile ([`ProfileFile::read`], [`ModuleProfile::resolve`]).
//!
//! **What it does**: makes a whole profile of them by flow equations, says how much of it is exact, and how
//! well it agrees with itself ([`Profile::check_flow`]); of instruction samples, how much of what runs they
//! know ([`sample_coverage`]).
//!
//! **What it does not**: read files or processes; guess what functions without samples do.

mod branches;
mod check;
mod counts_file;
mod derive;
mod equations;
mod estimate;
pub mod matching;
mod merge;
mod model;
mod paths;
mod perf_data;
mod placement;
mod probabilities;
mod promote;
mod repair;
mod sample_coverage;
mod similarity;
mod store;
mod target_value_profile;
mod temporal_affinity;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
mod text;
pub mod ways;
mod weights;

pub use branches::*;
pub use check::*;
pub use counts_file::*;
pub use derive::*;
pub use equations::*;
pub use merge::{MergeError, MergeWeights, merge_profiles};
pub use model::*;
pub use paths::*;
pub use perf_data::*;
pub use placement::*;
pub use promote::*;
pub use repair::*;
pub use sample_coverage::*;
pub use similarity::*;
pub use store::*;
pub use target_value_profile::*;
pub use temporal_affinity::*;
pub use text::*;
pub use weights::Weights;
