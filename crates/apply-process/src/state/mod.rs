//! What is on disk: journals, records and files of versions, locks.

pub(crate) mod cores;
pub(crate) mod garbage;
pub(crate) mod hook_journal;
pub(crate) mod journal;
pub(crate) mod locks;
pub(crate) mod map_file;
pub(crate) mod state_file;
pub(crate) mod store;
pub(crate) mod trust;
pub(crate) mod version_files;
