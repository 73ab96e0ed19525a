//! What a run did, as plain data, and its three forms: JSON, text and HTML.
//!
//! **You** fill a [`RunResult`] while a run goes on, and make a [`Verdict`] of measurements with
//! [`stats::verdict`]. **This crate** renders it: [`RunResult::to_json`] for programs (`docs/json.md`
//! describes each field), [`RunResult::to_text`] for a terminal of 80 columns, [`RunResult::to_html`] as one
//! self-contained page. **It does not** do I/O, measure, or know any other crate of restitch; names that come
//! from programs are made visible ([`visible`]) before they reach a terminal or a browser.

mod branches;
mod comparison;
mod continuous;
mod group;
mod group_html;
mod heatmap;
mod html;
mod kernel_counts;
mod model;
mod occupancy;
pub mod stats;
mod table;
mod text;
mod units;
mod verdict;
mod visible;

pub use branches::{BranchRecords, End, Samples};
pub use comparison::{COMPARISON_SCHEMA_VERSION, ComparedProfile, Comparison, TakenDifference};
pub use continuous::{Continuous, Round};
pub use group::{
    BeforeAndAfter, GROUP_SCHEMA_VERSION, GroupCall, GroupCallGoes, GroupFunction, GroupReport, GroupStays,
};
pub use kernel_counts::{COUNTS_SCHEMA_VERSION, CountedBlock, CountedEdge, CountedFunction, CountsReport};
pub use model::*;
pub use occupancy::{CacheShape, Occupancy};
pub use table::table;
pub use text::{WIDTH, message, paragraph};
pub use units::{bytes, count, counted, ending};
pub use verdict::{Better, Helped, Outcome, Verdict};
pub use visible::{visible, visible_json, visible_line};

/// What builds and loads the kernel's control module, as a next step for the user.
pub const CONTROL_MODULE: &str = "sudo dkms add kernel/module && sudo dkms install restitch-kernel/0.1.0 && sudo modprobe restitch-kernel, in restitch's source";
