//! From a module and a profile to a checked version of it: the stages put together, for files and processes
//! alike.
//!
//! [`analysis`] understands a module, [`profiles`] brings counts from wherever they come, [`selection`]
//! chooses the functions, [`make`] lays them out, emits and checks. Nothing here knows of processes. What can
//! go wrong is a [`PipelineError`], with the documented [`exit code`]; how far it is hears a [`Watcher`].

pub mod analysis;
pub mod build_version;
pub mod counting_version;
pub mod derivation;
pub mod disk;
mod error;
mod exit_code;
pub mod imports;
pub mod large_pages;
pub mod machine;
pub mod make;
pub mod neighbours;
pub mod optimize_options;
pub mod original;
pub mod parallel;
pub mod profiles;
pub mod recorded_builds;
pub mod run_time_refusal;
pub mod selection;
mod skipped_functions;
pub mod summaries;
pub mod timings;
pub mod version_options;
mod watcher;

pub use error::PipelineError;
pub use exit_code::{ExitCode, signal_name};
pub use watcher::{Quiet, Watcher};
