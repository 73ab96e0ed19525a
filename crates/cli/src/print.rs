//! Printing that cannot fail half-way.
//!
//! **Problem.** The standard library's macros of these names panic where nobody reads (`restitch status | head -1`) or a disk is full, and by then a process may have been
//! changed, or a command may be running whose exit code is to be passed on.
//!
//! **Idea.** The macros of this crate take their place. What could not be printed is remembered until the program ends: a reader who has seen enough is no
//! failure, anything else makes a success one. Messages that cannot be written are lost, as there is nobody left to tell.

use std::fmt::Arguments;
use std::io::{ErrorKind, Write};
use std::sync::Mutex;

/// Why standard output could not be written, if that is worth a message.
static FAILURE: Mutex<Option<std::io::Error>> = Mutex::new(None);

macro_rules! print {
    ($($text:tt)*) => { $crate::print::to_output(format_args!($($text)*)) };
}
macro_rules! println {
    () => { $crate::print::to_output(format_args!("\n")) };
    ($($text:tt)*) => { $crate::print::to_output(format_args!("{}\n", format_args!($($text)*))) };
}
macro_rules! eprint {
    ($($text:tt)*) => { $crate::print::to_errors(format_args!($($text)*)) };
}
macro_rules! eprintln {
    ($($text:tt)*) => { $crate::print::to_errors(format_args!("{}\n", format_args!($($text)*))) };
}

/// Writes to standard output.
pub(crate) fn to_output(text: Arguments<'_>) {
    note(std::io::stdout().write_fmt(text));
}

/// Writes to standard error.
pub(crate) fn to_errors(text: Arguments<'_>) {
    let _ = std::io::stderr().write_fmt(text);
}

fn note(written: std::io::Result<()>) {
    if let Err(error) = written
        && error.kind() != ErrorKind::BrokenPipe
    {
        FAILURE.lock().unwrap_or_else(std::sync::PoisonError::into_inner).get_or_insert(error);
    }
}

/// Writes what is left; the first failure of all, if there was any.
pub(crate) fn finish() -> Option<std::io::Error> {
    note(std::io::stdout().flush());
    FAILURE.lock().unwrap_or_else(std::sync::PoisonError::into_inner).take()
}
