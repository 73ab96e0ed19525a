//! Bursts: threads are put into a version that records branches, and leave it by themselves.

mod code;
mod decode;
#[cfg(test)]
mod oracle_tests;
mod price;
mod reading;
mod report;
mod tracer;

pub use code::{BurstCode, BurstTables, Guard, TracedModule};
pub use report::{BurstEnd, BurstReport, Refusal};
pub use tracer::{BurstOptions, trace_bursts};
