//! Code versions for processes that are only about to begin: the agent that maps them, and the file that it maps.
//!
//! **Problem.** A compiler that runs for half a second is gone before it could be attached to, and a changed file in its place would
//! show: in `/proc/self/exe`, in `$ORIGIN`, in the paths that compilers derive from their own.
//!
//! **Idea.** The original file is executed as ever. A small shared library, the *agent*, comes along by `LD_PRELOAD`; before the
//! program's first instruction it looks for an *overlay* of each loaded module, by build id, beside itself. An overlay holds a
//! code version and the module's code with redirects to it. Both are mapped, and that is all: some twenty system calls.
//!
//! **What you do**: write [`AGENT`] to a file named [`AGENT_NAME`], put overlays beside it as [`overlay_name`] says, and start
//! commands with `LD_PRELOAD` naming the agent. The agent passes itself on when a program starts another with an environment of its own.
//!
//! **What the agent does not do**: allocate, start threads, open anything but overlays and their counts, or print. Where anything
//! is not as expected (another C library, a thread that runs already, a place that is taken, a file of another owner), the
//! process runs its original code.
//!
//! The agent is compiled apart (`agent/`, no standard library, no libc of its own) and shares [`Meta`] with this crate.

mod format;

pub use format::{COUNTS_HEADER, Counts, FORMAT, MAX_BUILD_ID, Meta, PAGE};

/// The agent: a shared library for x86-64 Linux.
pub const AGENT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/librestitch-preload.so"));

/// The agent's file name. Overlays are looked for in the folder that it was loaded from.
pub const AGENT_NAME: &str = "librestitch-preload.so";

/// The file name of the overlay of the module with this build id.
pub fn overlay_name(build_id: &[u8]) -> String {
    format!("{}.overlay", hex(build_id))
}

/// The file name of the counts of the counting overlay of the module with this build id.
pub fn counts_name(build_id: &[u8]) -> String {
    format!("{}.counts", hex(build_id))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}
