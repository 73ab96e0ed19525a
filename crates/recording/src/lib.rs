//! Branch records of processes, and profiles of them.
//!
//! [`trace_record`] by software branch tracing, [`burst_record`] by tracing versions, [`sampled_record`] by
//! the kernel's samples; [`branch_records`] takes what comes of each of them.

pub mod branch_records;
pub mod branch_result;
mod burst_members;
pub mod burst_record;
mod burst_scope;
mod burst_versions;
pub mod period;
pub mod sampled_record;
pub mod trace_record;
