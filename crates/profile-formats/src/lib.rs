//! Readers and writers of profile formats: restitch's profiles for other tools, and theirs for restitch.
//!
//! **What you do**: bring bytes or text, and for formats that name functions the [`Names`] of the module.
//! **What this crate does**: one file a format; readers give [`Records`] (what the file says, by address) and
//! typed errors that name the line; [`Records::to_profile`] matches them with the code. **What it does not**:
//! read files, guess which module is meant, or write into a format what that cannot hold ([`Format`] says
//! what each holds).
//!
//! | format | module | read | written |
//! |---|---|---|---|
//! | own store | [`restitch_profile::ProfileFile`] | yes | yes |
//! | `perf.data` | [`restitch_profile::import_perf_data`], [`PerfDataWriter`], [`synthesize`] | yes | yes, stacks synthesized |
//! | BOLT fdata, both modes | [`fdata`] | yes | yes |
//! | BOLT YAML | [`bolt_yaml`] | layout order | layout order |
//! | BOLT pre-aggregated | [`preaggregated`] | yes | yes |
//! | AutoFDO text | [`autofdo`] | entry counts | function counts |
//! | Propeller clusters | [`propeller`] | orders only | with a block address map |
//! | symbol order | [`order`] | orders only | yes |

pub mod autofdo;
mod bolt_blocks;
pub mod bolt_yaml;
mod error;
pub mod fdata;
mod flow;
mod format;
mod names;
pub mod order;
mod perf_data;
pub mod preaggregated;
pub mod propeller;
mod records;
pub mod synthesize;

pub use bolt_blocks::BoltBlocks;
pub use error::FormatError;
pub use flow::{entries, fall_through_ranges};
pub use format::{Format, Holds};
pub use names::Names;
pub use perf_data::*;
pub use records::*;
