//! The process applier: puts code versions into a live process, moves its threads over, and takes them out again.
//!
//! **What the user must do**: open a [`Target`], make checked versions for its modules at places from
//! [`Live::reserve`], and call [`Live::switch`] with the set of versions that is to be in force. An empty set gives
//! the process its original code back.
//!
//! **What it does**: everything that can be done before the stop is done before: new versions are mapped (read-execute, from
//! a file), and a spare copy of each code mapping gets the redirects. In the stop: the unwinder's table learns of the versions,
//! threads that stand in patched bytes or in a leaving version are moved, the spares replace the code mappings,
//! return addresses into leaving versions are translated. Afterwards all is read back. [`Live::sweep`] unmaps retired versions once nothing leads to them.
//!
//! **What it will not do**: leave a process half-changed in a harmful way. Any subset of the redirects is a correct
//! program (state equivalence), a redirect never crosses a page boundary, and the journal on disk is written before the first byte changes;
//! so this program can be killed at any moment, and [`Live::open`] of a later run finds out and can [`Live::revert`].

mod ahead;
mod bound;
mod cores;
mod counter_area;
mod dead_bytes;
mod detour;
mod ended;
mod error;
mod exceptions;
mod foreign;
mod frames;
mod garbage;
mod hook;
mod hook_data;
mod hook_detours;
mod hook_found;
mod hook_journal;
mod hook_page;
mod hook_sites;
mod install;
mod journal;
mod jump;
mod live;
mod locks;
mod map_file;
mod mapping;
mod memory_room;
mod methods;
mod moved;
mod numbers;
mod old;
mod origin;
mod overlay;
mod patches;
pub mod path_text;
mod place;
mod plan;
mod prepared;
mod private_memory;
mod readers;
mod retire;
mod reverse;
mod search;
mod slots;
mod spare;
mod state_file;
mod store;
mod stub;
mod sweep;
mod target;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
mod threads;
mod tripwire;
mod trust;
mod vdso;
mod version_files;
mod writing;

pub use cores::KeptVersions;
pub use counter_area::LONGEST_UNREAD;
pub use error::ProcessError;
pub use journal::{Journal, JournalSpare, JournalVersion, VersionKind};
pub use live::{Live, Reservation};
pub use locks::Lock;
pub use origin::VersionMaps;
pub use prepared::{Incoming, Slots, SwitchReport};
pub use store::StateDir;
pub use sweep::SweepReport;
pub use target::{ImageCache, Module, Target};
pub use vdso::is_vdso;
