//! The agent: maps prepared code versions into the process that it is loaded into, before that process's
//! first instruction.
//!
//! It is a library of its own, without the standard library and without any library that it would have to
//! bring along; what it needs of the C library it finds by weak symbols, so that it is loaded, and then does
//! nothing, beside an unknown one.
//!
//! Every function here runs in a process that somebody else wrote: nothing is allocated, nothing printed, no
//! error reported. Where anything is not as expected, the process runs its original code.
#![no_std]

mod bytes;
#[path = "../src/content.rs"]
mod content;
mod environment;
mod exec;
mod files;
#[path = "../src/format.rs"]
#[allow(dead_code)]
mod format;
mod identify;
#[path = "../src/known.rs"]
#[allow(dead_code)]
mod known;
mod libc;
mod modules;
mod original;
mod overlay;
mod sys;
mod versions;

/// Reached by nothing: there is no code here that panics. The compiler wants to know what would happen.
#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    sys::trap()
}

/// Runs once, when the loader has mapped and relocated everything and initializes libraries.
extern "C" fn start() {
    let is_in_front = libc::find();
    exec::find();
    versions::find_own_path();
    libc::initialized();
    if is_in_front {
        overlay::install_all();
    }
    overlay::tell();
}

/// Runs when the process ends by `exit` or by returning from `main`.
extern "C" fn end() {
    overlay::count_end();
}

// SAFETY: the loader calls each of these once, with the program's arguments, which `start` and `end` ignore.
#[unsafe(link_section = ".init_array")]
#[used]
static START: extern "C" fn() = start;
// SAFETY: as above.
#[unsafe(link_section = ".fini_array")]
#[used]
static END: extern "C" fn() = end;
