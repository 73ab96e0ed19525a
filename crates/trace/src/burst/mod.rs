//! Bursts: threads are put into a version that records branches, and leave it by themselves.

mod code;
mod decode;
mod price;
mod reading;
mod report;
mod tracer;
#[cfg(test)]
mod truth;

pub use code::{BurstCode, BurstTables, Guard, TracedModule};
pub use report::{BurstEnd, BurstReport, Refusal};
pub use tracer::{BurstOptions, trace_bursts};
