//! The processes of a target: which there are, what runs in them, and how they fare.
//!
//! [`process_set`] holds the processes that get the same versions, [`process_family`] finds those that belong
//! together, [`sampling`] says what runs, [`modules`] which of their modules are worth it, [`verdict`]
//! whether a new layout helps. What can go wrong with processes, here and in all that is built upon this, is
//! a [`SessionError`].

pub mod busy;
pub mod departure;
mod error;
pub mod hold;
pub mod initial_sampling;
pub mod interrupt;
pub mod judgement;
pub mod modules;
pub mod no_file;
pub mod process_family;
pub mod process_set;
pub mod reclaim;
pub mod refusal;
pub mod sampler;
pub mod sampling;
pub mod source;
pub mod start;
pub mod unfinished;
pub mod verdict;

pub use error::SessionError;
