//! Code versions for processes that are only about to begin: the agent that maps them, and the file that it
//! maps.
//!
//! **Problem.** A compiler that runs for half a second is gone before it could be attached to, and a changed
//! file in its place would show: in `/proc/self/exe`, in `$ORIGIN`, in the paths that compilers derive from
//! their own.
//!
//! **Idea.** The original file is executed as ever. A small shared library, the *agent*, comes along by
//! `LD_PRELOAD`; before the program's first instruction it looks for an *overlay* of each loaded module, by
//! build id, beside itself. An overlay holds a code version and the module's code with redirects to it. Both
//! are mapped, and that is all: some twenty system calls. A module without a build id is told by its file
//! ([`Known`]); one with a build id has to have the very bytes that the overlay was made of ([`content`]).
//!
//! **What you do**: write [`AGENT`] to a file named [`AGENT_NAME`], put overlays beside it as
//! [`overlay_name`] says, and start commands with `LD_PRELOAD` naming the agent. The agent passes itself on
//! when a program starts another with an environment of its own.
//!
//! 32-bit loaders complain about a 64-bit library. `LD_PRELOAD` therefore names [`AGENT_OF_EVERY_KIND`], and
//! beside the agent under the names of [`PLATFORMS`] lies [`empty_library_32`] under those of
//! [`PLATFORMS_32`].
//!
//! **What the agent does not do**: allocate, start threads, open anything but overlays and their counts, or
//! print. Where anything is not as expected (another C library, a thread that runs already, a place that is
//! taken, a file of another owner), the process runs its original code.
//!
//! The agent is compiled apart (`agent/`, no standard library, no libc of its own) and shares [`Meta`] with
//! this crate.

pub mod content;
mod empty;
mod format;
mod known;

pub use empty::empty_library_32;
pub use format::{
    AGENT_NAME, AGENT_OF_EVERY_KIND, COUNTS_HEADER, Counts, FORMAT, HELD_AT, HELD_OUT_AT, MAX_BUILD_ID, Meta,
    PAGE, TOLD_AT,
};
pub use known::{FileKey, KNOWN_LEN, Known, code_samples};

/// The agent: a shared library for x86-64 Linux.
pub const AGENT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/librestitch-preload.so"));

/// What the loaders of 64-bit processes put in for `$PLATFORM`: the kernel's word, or what glibc before 2.37
/// knows better.
pub const PLATFORMS: [&str; 3] = ["x86_64", "haswell", "xeon_phi"];
/// What those of 32-bit processes put in.
pub const PLATFORMS_32: [&str; 4] = ["i686", "i586", "i486", "i386"];

/// The file name of the library for a platform: the agent's own, or that of [`empty_library_32`].
pub fn platform_name(platform: &str) -> String {
    AGENT_OF_EVERY_KIND.replace("$PLATFORM", platform)
}

/// The file name of the overlay of the module with this build id.
pub fn overlay_name(build_id: &[u8]) -> String {
    format!("{}.overlay", hex(build_id))
}

/// The file name of the counts of the counting overlay of the module with this build id.
pub fn counts_name(build_id: &[u8]) -> String {
    format!("{}.counts", hex(build_id))
}

/// The name of the file that says which content the file with this device and inode has ([`Known`]).
pub fn known_name(key: &FileKey) -> String {
    let (device, inode) = (key.device.to_be_bytes(), key.inode.to_be_bytes());
    format!("{}.file", hex(&[device, inode].concat()))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}
