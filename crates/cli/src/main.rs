//! The `restitch` command: arguments, messages, exit codes. No logic.

#[macro_use]
mod print;

mod args;
mod attach_args;
mod batch;
mod child;
mod commands;
mod demo;
mod group_outputs;
mod keeper;
mod kernel;
mod kernel_find;
mod kernel_groups;
mod lab;
mod layout_names;
mod options;
mod outputs;
mod pages;
mod process_number;
mod profile_args;
mod profile_commands;
mod progress;
mod remedy;
mod same_files;
mod seconds;
mod sources;
mod switch;
mod tips;
mod version_args;

use clap::{CommandFactory, FromArgMatches};
use restitch_session::{ExitCode, be_told_of_children, survive_file_limits};
use std::process::ExitCode as ProcessExit;

fn main() -> ProcessExit {
    std::panic::set_hook(Box::new(print::panicked));
    survive_file_limits();
    be_told_of_children();
    let parsed = match parsed() {
        Ok(parsed) => parsed,
        Err(error) => return exit(said_instead(error).number()),
    };
    if let args::Command::DemoWorkload { arguments } = parsed.command {
        return demo::workload(arguments);
    }
    let is_stand_in = parsed.command.is_stand_in();
    match commands::run(parsed) {
        // The exit code of a command that has run says more than that not all that could be said of it was
        // printed.
        Ok(code) if is_stand_in => exit_as(code, code),
        Ok(code) => exit(code),
        Err(error) => {
            eprintln!("restitch: {error}");
            exit(error.exit_code().number())
        }
    }
}

/// The command line.
fn parsed() -> Result<args::Args, clap::Error> {
    let matches = args::Args::command().try_get_matches()?;
    same_files::refuse(&matches)?;
    args::Args::from_arg_matches(&matches).map_err(|error| error.format(&mut args::Args::command()))
}

/// Says what is wrong with the command line. Help and version, which are asked for, are no errors, and say
/// nothing of what was given.
fn said_instead(mut told: clap::Error) -> ExitCode {
    if told.use_stderr() {
        tips::add(&mut told);
        eprint!("{}", told.render());
        return ExitCode::Usage;
    }
    print::note(told.print());
    ExitCode::Done
}

fn exit(code: i32) -> ProcessExit {
    let unprinted = if code == ExitCode::Done.number() { ExitCode::Failure.number() } else { code };
    exit_as(code, unprinted)
}

/// Ends with `code`, or with `unprinted` if not all could be printed.
fn exit_as(mut code: i32, unprinted: i32) -> ProcessExit {
    if let Some(error) = print::finish() {
        eprintln!(
            "restitch: writing to standard output: {error}; not all was printed, all else that was asked for is done"
        );
        code = unprinted;
    }
    ProcessExit::from(u8::try_from(code).unwrap_or(ExitCode::Failure.number() as u8))
}
