//! Functions of a kernel at other places and in another order: from analysed code to a proved module file.
//!
//! **You** read a kernel (`restitch-kernel`) and a module file of it, make a [`Subject`] of both, and say in
//! a [`Request`] which functions are to be copied, and in which [`Order`]. A [`Positioner`] gives the module
//! file that `restitch-kernel-check` has proved ([`Positioned`]), with what is in it and what stays. A
//! [`Search`] says which functions are to be counted to find those that a root's group is to be of, and
//! [`IndirectCalls`] what of them is called through pointers and static calls.
//!
//! The phases: blocks of the analysis become blocks of a group (`convert.rs`); those that control can reach
//! in it are kept (`reach.rs`); they are put in order (`order.rs`); the file is written and proved
//! (`position.rs`).
//!
//! Where a request asks for it, the copies count (`counters.rs`), and [`Counting`] says what counters stand
//! for.
//!
//! **It does not** read files, load modules, count, or decide what is worth moving.
//!
//! Invariants:
//! * No file leaves the crate but in a `CheckedModule`.
//! * A function is copied as a whole, or stays with its reason.
//! * Same kernel, same request: same bytes.

mod block;
mod callees;
mod convert;
mod counters;
mod counting;
mod counts;
mod error;
mod flow;
mod hot;
mod hottest;
mod indirect;
mod inline;
mod live_flags;
mod order;
mod pieces;
mod placed;
mod position;
mod reach;
mod report;
mod request;
mod search;
mod subject;
mod text;

pub use callees::callees;
pub use counting::{BlockCount, CountedPlace, Counting, FunctionCounts, WayCount, counts_text};
pub use counts::Counts;
pub use error::{CountsError, Obstacle, PositionError, Refused, Why};
pub use hottest::{Hottest, HowMany, hot_above};
pub use indirect::{IndirectCall, IndirectCallee, IndirectCalls, Through};
pub use position::{Copied, Moved, NamedCall, Positioned, Positioner};
pub use request::{Hot, Order, Request};
pub use search::Search;
pub use subject::{ModuleFile, Subject};
