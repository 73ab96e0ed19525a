//! Printing that cannot fail half-way.
//!
//! **Problem.** The standard library's macros of these names panic where nobody reads
//! (`restitch status | head -1`) or a disk is full, and by then a process may have been changed, or a command
//! may be running whose exit code is to be passed on.
//!
//! **Idea.** The macros of this crate take their place. What could not be printed is remembered until the
//! program ends: a reader who has seen enough is no failure, anything else makes a success one. Messages that
//! cannot be written are lost, as there is nobody left to tell. Where nobody reads a pipe that is full, they
//! wait until this program is asked to end.
//!
//! **Names command no terminal.** They come from programs, files and other users' processes, and may hold
//! anything. `println!` and `eprintln!` write one line, in which line ends are escaped as all that would not
//! be seen ([`visible_line`]); `print!` and `eprint!` write texts of several lines, whose makers see to the
//! names in them. JSON is written by `print_json!`, which changes no value.

use restitch_apply::{GivenUp, write_if_pipe};
use restitch_report::{WIDTH, message, visible, visible_json, visible_line};
use restitch_session::AskedToEnd;
use std::backtrace::{Backtrace, BacktraceStatus};
use std::fmt::Arguments;
use std::io::{ErrorKind, IsTerminal, Write};
use std::os::fd::AsFd;
use std::panic::PanicHookInfo;
use std::sync::{Mutex, MutexGuard, PoisonError};
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
    output(&visible(&text.to_string()));
}

/// Writes one line to standard output: wrapped where people read it, whole where scripts do.
pub(crate) fn line_to_output(text: Arguments<'_>) {
    output(&line(&text.to_string(), &std::io::stdout()));
}

/// Writes JSON to standard output.
pub(crate) fn json_to_output(json: &str) {
    output(&visible_json(json));
}

/// Writes lines to standard error.
pub(crate) fn to_errors(text: Arguments<'_>) {
    let _ = write(std::io::stderr(), &visible(&text.to_string()));
}

/// Writes one line to standard error, in one go: wrapped where people read it, whole where scripts do.
pub(crate) fn line_to_errors(text: Arguments<'_>) {
    let _ = write(std::io::stderr(), &line(&text.to_string(), &std::io::stderr()));
}

/// The line, for what `stream` is.
fn line(text: &str, stream: &(impl AsFd + IsTerminal)) -> String {
    let text = visible_line(text);
    width(stream).map_or_else(|| format!("{text}\n"), |width| message(&text, width))
}

/// The columns of the terminal that `stream` is; `None` if it is none.
fn width(stream: &(impl AsFd + IsTerminal)) -> Option<usize> {
    let width = terminal_size_of(stream).map(|(width, _)| usize::from(width.0)).filter(|width| *width > 0);
    stream.is_terminal().then(|| width.unwrap_or(WIDTH))
}

/// Writes to standard output, unless nobody was there to take it before.
fn output(text: &str) {
    let is_given_up = failure().as_ref().is_some_and(GivenUp::is_in);
    if !is_given_up {
        note(write(std::io::stdout(), text));
    }
}

/// Writes all; to a pipe until this program is asked to end while nobody reads it.
fn write(mut stream: impl Write + AsFd, text: &str) -> std::io::Result<()> {
    stream.flush()?;
    let is_asked = || AskedToEnd::signal().is_some();
    match write_if_pipe(stream.as_fd(), text.as_bytes(), &is_asked) {
        Some(written) => written,
        None => stream.write_all(text.as_bytes()),
    }
}

/// Writes why this program has panicked, which may name anything, where the standard library would.
pub(crate) fn panicked(info: &PanicHookInfo<'_>) {
    eprintln!("restitch: {}", info.to_string().replace('\n', " "));
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
        failure().get_or_insert(error);
    }
}

/// Writes what is left; the first failure of all, if there was any.
pub(crate) fn finish() -> Option<std::io::Error> {
    note(std::io::stdout().flush());
    failure().take()
}

fn failure() -> MutexGuard<'static, Option<std::io::Error>> {
    FAILURE.lock().unwrap_or_else(PoisonError::into_inner)
}
