//! Printing that cannot fail half-way.
//!
//! **Problem.** The standard library's macros of these names panic where nobody reads
//! (`restitch status | head -1`) or a disk is full, and by then a process may have been changed, or a command
//! may be running whose exit code is to be passed on.
//!
//! **Idea.** The macros of this crate take their place. What could not be printed is remembered until the
//! program ends: a reader who has seen enough is no failure, anything else makes a success one. Messages that
//! cannot be written are lost, as there is nobody left to tell.
//!
//! **Names command no terminal.** They come from programs, files and other users' processes, and may hold
//! anything. `println!` and `eprintln!` write one line, in which line ends are escaped as all that would not
//! be seen ([`visible_line`]); `print!` and `eprint!` write texts of several lines, whose makers see to the
//! names in them. JSON is written by `print_json!`, which changes no value.

use restitch_report::{WIDTH, message, visible, visible_json, visible_line};
use std::backtrace::{Backtrace, BacktraceStatus};
use std::fmt::Arguments;
use std::io::{ErrorKind, IsTerminal, Write};
use std::panic::PanicHookInfo;
use std::sync::Mutex;
use terminal_size::terminal_size_of;

/// Why standard output could not be written, if that is worth a message.
static FAILURE: Mutex<Option<std::io::Error>> = Mutex::new(None);

macro_rules! print {
    ($($text:tt)*) => { $crate::print::to_output(format_args!($($text)*)) };
}
macro_rules! println {
    () => { $crate::print::to_output(format_args!("\n")) };
    ($($text:tt)*) => { $crate::print::line_to_output(format_args!($($text)*)) };
}
macro_rules! print_json {
    ($json:expr) => {
        $crate::print::json_to_output($json)
    };
}
macro_rules! eprint {
    ($($text:tt)*) => { $crate::print::to_errors(format_args!($($text)*)) };
}
macro_rules! eprintln {
    ($($text:tt)*) => { $crate::print::line_to_errors(format_args!($($text)*)) };
}

/// Writes lines to standard output.
pub(crate) fn to_output(text: Arguments<'_>) {
    note(std::io::stdout().write_all(visible(&text.to_string()).as_bytes()));
}

/// Writes one line to standard output.
pub(crate) fn line_to_output(text: Arguments<'_>) {
    note(writeln!(std::io::stdout(), "{}", visible_line(&text.to_string())));
}

/// Writes JSON to standard output.
pub(crate) fn json_to_output(json: &str) {
    note(std::io::stdout().write_all(visible_json(json).as_bytes()));
}

/// Writes lines to standard error.
pub(crate) fn to_errors(text: Arguments<'_>) {
    let _ = std::io::stderr().write_all(visible(&text.to_string()).as_bytes());
}

/// Writes one line to standard error, in one go: wrapped where people read it, whole where scripts do.
pub(crate) fn line_to_errors(text: Arguments<'_>) {
    let text = text.to_string();
    let line = visible_line(&text);
    let line = errors_width().map_or_else(|| format!("{line}\n"), |width| message(&line, width));
    let _ = std::io::stderr().write_all(line.as_bytes());
}

/// The columns of the terminal that standard error is; `None` if it is none.
fn errors_width() -> Option<usize> {
    let errors = std::io::stderr();
    let width = terminal_size_of(&errors).map(|(width, _)| usize::from(width.0)).filter(|width| *width > 0);
    errors.is_terminal().then(|| width.unwrap_or(WIDTH))
}

/// Writes why this program has panicked, which may name anything, where the standard library would.
pub(crate) fn panicked(info: &PanicHookInfo<'_>) {
    eprintln!("restitch: {info}");
    let trace = Backtrace::capture();
    if trace.status() == BacktraceStatus::Captured {
        eprint!("{trace}\n");
    }
}

/// Remembers why standard output could not be written.
pub(crate) fn note(written: std::io::Result<()>) {
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
