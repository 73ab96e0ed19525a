//! The laboratory: what layouts do to a processor's front end, found out by models on a branch trace.
//!
//! **What you do**: bring a program and a profile, choose a [`Machine`], and [`compare()`] layouts.
//!
//! **What it does**: takes one trace (of real branch records, [`Trace::of_records`], or a weighted random
//! walk over the profile's branches, calls and returns, [`Trace::walk`]), runs it through models of
//! instruction cache, L2, instruction TLBs and branch target buffer for each layout ([`simulate`]), and
//! prints the result as a table, JSON and pictures. Also the map of how many hot lines each set of the
//! instruction cache has to hold (Tamches and Miller, *Dynamic kernel code optimization*, Figure 2). The same
//! seed gives the same numbers.
//!
//! What layouts do on a real processor is measured elsewhere and [added](Comparison::add), with the
//! correlation.
//!
//! **What it will not do**: predict times. A random walk has the right frequencies but no memory, so the
//! models know nothing of phases and of correlated branches; they rank layouts of one program. There is no
//! prefetcher in them, and data does not compete for the L2 but by taking half of its ways.

mod cache;
mod compare;
mod machine;
mod measured;
mod occupancy;
mod picture;
mod place;
mod prefetch;
mod recorded;
mod simulate;
mod trace;

pub use cache::Cache;
pub use compare::{Comparison, Entry, compare};
pub use machine::{Geometry, Machine, UnknownMachine};
pub use measured::{Measured, MeasuredLayout, Ratio};
pub use occupancy::Occupancy;
pub use picture::{PictureError, comparison_svg, occupancy_svg};
pub use place::{PlacedDuplicate, Placement};
pub use prefetch::{PrefetchLimits, choose_prefetches};
pub use recorded::RecordedBranch;
pub use simulate::{Counts, simulate};
pub use trace::{How, Step, Trace};
