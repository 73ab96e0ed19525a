//! The process applier: puts code versions into a live process, moves its threads over, and takes them out
//! again.
//!
//! **What the user must do**: open a [`Target`], make checked versions for its modules at places from
//! [`AttachedProcess::reserve`], and call [`AttachedProcess::switch`] with the set of versions that is to be
//! in force. An empty set gives the process its original code back.
//!
//! **What it does**: everything that can be done before the stop is done before: new versions are mapped
//! (read-execute, from a file), and a replacement mapping of each code mapping gets the redirects. In the
//! stop: the unwinder's table learns of the versions, threads that stand in patched bytes or in a leaving
//! version are moved, the replacements replace the code mappings, return addresses into leaving versions are
//! translated. Afterwards all is read back. [`AttachedProcess::reclaim`] unmaps retired versions once nothing
//! leads to them.
//!
//! **What it will not do**: leave a process half-changed in a harmful way. Any subset of the redirects is a
//! correct program (state equivalence), a redirect never crosses a page boundary, and the journal on disk is
//! written before the first byte changes; so this program can be killed at any moment, and
//! [`AttachedProcess::open`] of a later run finds out and can [`AttachedProcess::revert`].

mod address_translation;
mod attached_process;
mod dead_bytes;
mod entry_patch;
mod error;
mod execution_probe;
#[cfg(test)]
mod fake_host;
mod foreign;
mod frames;
mod hook;
mod host;
mod installed_version;
mod lost_state;
mod memory;
mod memory_need;
mod module_moves;
mod overlay;
mod own_pages;
mod patches;
mod plan;
mod preempted;
mod prepare;
mod process_host;
mod ptrace_host;
mod readers;
mod reclaim;
mod relro_slots;
mod retire;
mod reverse;
mod running_host;
mod slot_retargeting;
mod state;
mod stub;
mod switch;
#[cfg(test)]
mod switch_faults;
mod switch_plan;
mod target;
#[cfg(test)]
mod test_target;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
mod threads;
#[cfg(test)]
mod trial_host;
mod vdso;
mod vtable_slots;
mod words;
mod writable_code;

pub use address_translation::VersionMaps;
pub use attached_process::{AttachedProcess, Reservation};
pub use error::ProcessError;
pub use memory::counter_area::LONGEST_UNREAD;
pub use memory_need::MemoryNeed;
pub use reclaim::ReclaimReport;
pub use state::cores::KeptVersions;
pub use state::journal::{Journal, JournalReplacement, JournalVersion, VersionKind};
pub use state::locks::Lock;
pub use state::store::StateDir;
pub use switch_plan::{Incoming, RetargetedSlots, SwitchReport};
pub use target::{ImageCache, Module, Target};
pub use vdso::is_vdso;
