//! What `/proc` says about other processes, as typed values.
//!
//! **What it does**: identifies processes safely against pid reuse ([`ProcessId`]), reads their threads,
//! memory maps, auxiliary vector, status and CPU times, opens the files that they have mapped
//! ([`open_mapped`]), finds processes that run the same program, looks for free address ranges near a module
//! ([`find_gap`]), and says which pages of a mapping are the process's own ([`Pagemap`]). Also the
//! system-wide switches that decide what a tracer or profiler may do ([`system`]).
//!
//! **What the user must do**: treat every answer as a snapshot. A running process can change its maps or die
//! between two calls; only what is read while the process is stopped, or checked again with
//! [`ProcessId::is_alive`] afterwards, is certain.
//!
//! **What it will not do**: change anything, or stop anybody. All parsers ([`parse_maps`], [`parse_stat`],
//! [`Status::parse`], [`AuxVector::parse`]) are pure functions of bytes and accept any bytes without
//! panicking; the functions that read files are thin shells around them.

mod auxv;
mod bounded;
mod cores;
mod ended;
mod error;
mod execution;
mod files;
mod frozen;
mod gap;
mod holder;
mod locks;
mod map_query;
mod mapped;
mod maps;
mod memory_room;
mod mounts;
mod namespaces;
mod obstacle;
mod pages;
mod present;
mod process;
mod status;
pub mod system;

pub use auxv::AuxVector;
pub use cores::may_leave_core;
pub use ended::has_ended;
pub use error::ProcError;
pub use execution::Execution;
pub use files::{FileIdentity, OpenedFile, open_executable, open_mapped, open_regular};
pub use frozen::{Frozen, frozen};
pub use gap::{Gap, GapError, GapRequest, Side, find_gap, find_gaps, find_places};
pub use holder::{holder, shared_path};
pub use locks::{FileLock, LockKind, flock_holders};
pub use map_query::{MappedFile, MapsFile};
pub use mapped::{ChangeTimes, change_times, identity_when_mapped};
pub use maps::{Device, Mapping, MappingName, Permissions, parse_maps};
pub use memory_room::{MemoryRoom, memory_room};
pub use mounts::Mounts;
pub use namespaces::Namespaces;
pub use obstacle::{Access, obstacle};
pub use pages::{MappingFlags, PageState, Pagemap, large_page_bytes, mapping_flags, names_a_watcher};
pub use present::{PageRun, Residents, Wanted};
pub use process::{
    ProcessId, RunDelay, Thread, auxv, descendants, executable_path, heap_start, last_number, maps,
    processes, processes_mapping, shows_own_namespace, stack_start, status, thread_cpu_time, thread_stat,
    thread_status, threads,
};
pub use status::{ProcessState, Stat, Status, parse_run_delay, parse_schedstat, parse_stat};
