//! The code of a Linux kernel, understood from what the kernel shows of itself: its memory (`/proc/kcore`),
//! its symbols (`/proc/kallsyms`), its types (BTF) and the lists of the function tracer. No module, no
//! headers, no table of versions.
//!
//! **You** name a [`Source`]: the running kernel, or a folder with copies of its files. [`Kernel::read`]
//! finds the [`Functions`], and what one of them can only know from all others; [`Kernel::code`] gives the
//! [`Code`] of one: blocks, edges, and each place that is no plain copy, as `restitch-kernel-group` wants
//! them; [`Kernel::reasons`] why it stays where it is. [`Survey`] has the figures of all. [`edge_counts`]
//! makes counts of edges of counts of blocks. [`Sampled`] says where a kernel's time goes, by samples;
//! [`Called`] what was called, by its function tracer.
//!
//! **It does not** change anything, load modules, or decide what is worth moving.
//!
//! **Its own blocks.** `restitch-program` does not fit: it starts from unwind tables and symbols of a file,
//! has doubts about data in code, tables of jumps and flags at calls. Kernel code has none of these, and in
//! their place tables that say which traps go on, which branches are rewritten and which faults are expected.
//! What both share, the decoder, is in `restitch-x86` (`kernel_code`).
//!
//! Invariants:
//! * Files are read in `source.rs` and `module_files.rs`, the core by a closure; [`kernel_doctor`] asks for
//!   files by name. All else computes on bytes.
//! * Whatever the files hold, there is an error in words or a reason, no panic.
//! * What is not understood has a [`Reason`], and stays.

mod blocks;
mod btf;
mod called;
mod code;
mod counter_values;
mod doctor;
mod edge_counts;
mod error;
mod functions;
mod kcore;
mod kernel;
mod memory;
mod module_files;
mod places;
mod reason;
mod report;
mod sampled;
mod source;
mod steps;
mod survey;
mod symbols;
mod tables;
mod time_report;

pub use called::{Called, SeenCall, SeenTargets};
pub use code::{Block, Code, Edge, EdgeKind, End, Site, SiteKind, Trouble};
pub use counter_values::counter_values;
pub use doctor::{KERNEL_SCHEMA_VERSION, KernelCheck, KernelDoctor, kernel_doctor, release};
pub use edge_counts::{EdgeCount, FlowEdge, edge_counts, exact_edges};
pub use error::KernelError;
pub use functions::{Function, FunctionId, Functions};
pub use kernel::{Kernel, Lists, image};
pub use memory::Memory;
pub use module_files::{ModuleFiles, module_files, read_module};
pub use places::Places;
pub use reason::Reason;
pub use report::{Analysis, BlockReport, Callee, EdgeReport, FunctionReport, Part, Stays};
pub use sampled::{Sampled, SampledFunction};
pub use source::Source;
pub use steps::Known;
pub use survey::{Counts, Staying, Survey, live_edges};
pub use symbols::{Symbol, Symbols};
pub use tables::{BugEntry, CallEntry, ExceptionEntry, KeyEntry, Tables, UnwindEntry};
pub use time_report::{Knowledge, Sampling, TimeReport, TimedFunction};
