//! The `restitch` command: arguments, messages, exit codes. No logic.

mod args;
mod batch;
mod child;
mod commands;
mod demo;
mod lab;
mod outputs;
mod profile_args;
mod profile_commands;
mod progress;
mod sources;

use clap::Parser;
use restitch_session::ExitCode;
use std::process::ExitCode as ProcessExit;

fn main() -> ProcessExit {
    let parsed = match args::Args::try_parse() {
        Ok(parsed) => parsed,
        Err(error) => {
            // Help and version are no errors.
            let _ = error.print();
            let code = if error.use_stderr() { ExitCode::Usage } else { ExitCode::Done };
            return exit(code.number());
        }
    };
    if let args::Command::DemoWorkload { arguments } = parsed.command {
        return demo::workload(arguments);
    }
    match commands::run(parsed) {
        Ok(code) => exit(code),
        Err(error) => {
            eprintln!("restitch: {error}");
            exit(error.exit_code().number())
        }
    }
}

fn exit(code: i32) -> ProcessExit {
    ProcessExit::from(u8::try_from(code).unwrap_or(ExitCode::Failure.number() as u8))
}
