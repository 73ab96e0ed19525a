//! `restitch kernel`: what the kernel allows, and its code.

use crate::kernel_groups::revert;
use crate::outputs::check_outputs;
use clap::{Args, Subcommand};
use restitch_apply::Why;
use restitch_kernel::{Analysis, Kernel, KernelDoctor, Source, kernel_doctor, release};
use restitch_kernel_control::{Control, Groups};
use restitch_report::paragraph;
use restitch_session::{ExitCode, SessionError, write_result};
use std::path::{Path, PathBuf};

/// The commands about the kernel.
#[derive(Debug, Subcommand)]
pub enum KernelCommand {
    /// Show what this kernel allows, and the commands that would allow more.
    Doctor {
        #[command(flatten)]
        options: KernelOptions,
    },
    /// Show the functions and blocks of the kernel's code, and how much of it can be moved.
    ///
    /// It is read as it stands in memory, which takes root.
    Analyze {
        /// Only these, and more of each: names, or addresses in them with 0x in front.
        #[arg(value_name = "FUNCTION")]
        functions: Vec<String>,
        #[command(flatten)]
        options: KernelOptions,
    },
    /// Show the groups of copies that are in the kernel.
    Status {
        #[command(flatten)]
        output: JsonOption,
    },
    /// Take a group out of the kernel: calls go to the original code again.
    Revert {
        /// Its name, as `restitch kernel status` has it.
        #[arg(value_name = "GROUP")]
        group: String,
    },
}

/// Where the result goes beside the screen.
#[derive(Debug, Args)]
pub struct JsonOption {
    /// Write the result as JSON ("-" for standard output).
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
}

/// What those have that look at its code.
#[derive(Debug, Args)]
pub struct KernelOptions {
    /// Read a folder with copies of the kernel's files (proc/kallsyms, proc/kcore, sys/kernel/btf/vmlinux and
    /// others) in place of the running kernel.
    #[arg(long, value_name = "FOLDER")]
    pub view: Option<PathBuf>,
    #[command(flatten)]
    output: JsonOption,
}

impl KernelOptions {
    fn source(&self) -> Source {
        self.view.as_deref().map_or_else(Source::running, Source::folder)
    }
}

impl JsonOption {
    fn check(&self) -> Result<(), SessionError> {
        Ok(check_outputs(&[self.json.as_deref()])?)
    }

    fn is_printed(&self) -> bool {
        self.json.as_deref() == Some(Path::new("-"))
    }

    /// Prints the result, in words or as JSON, and writes it where it was asked for.
    fn publish(&self, text: &str, json: Result<String, impl Into<Why>>) -> Result<(), SessionError> {
        let json = json.map_err(|e| SessionError::Command { command: "json".into(), why: e.into() });
        match &self.json {
            None => print!("{text}"),
            Some(_) if self.is_printed() => print_json!(&json?),
            Some(path) => {
                print!("{text}");
                write_result(path, json?.as_bytes(), 0o644)?;
            }
        }
        Ok(())
    }
}

/// Runs one of them; the exit code.
pub fn kernel_command(command: KernelCommand) -> Result<i32, SessionError> {
    match command {
        KernelCommand::Doctor { options } => {
            options.output.check()?;
            let facts = kernel_doctor(&options.source());
            options.output.publish(&doctor_text(&facts), facts.to_json())?;
            Ok(if facts.can_analyze { ExitCode::Done } else { ExitCode::NotPermitted }.number())
        }
        KernelCommand::Analyze { functions, options } => {
            options.output.check()?;
            let source = options.source();
            let kernel = Kernel::read(&source)?;
            let ids = functions.iter().map(|name| kernel.find(name)).collect::<Result<Vec<_>, _>>()?;
            let analysis = Analysis::of(&kernel, release(&source), &ids);
            options.output.publish(&analysis.to_text(), analysis.to_json())?;
            Ok(ExitCode::Done.number())
        }
        KernelCommand::Status { output } => {
            output.check()?;
            let groups = Groups::new(Control::default().groups()?);
            output.publish(&groups.to_text(), groups.to_json())?;
            Ok(ExitCode::Done.number())
        }
        KernelCommand::Revert { group } => {
            print!("{}", revert(&group)?);
            Ok(ExitCode::Done.number())
        }
    }
}

fn doctor_text(facts: &KernelDoctor) -> String {
    let mut text = String::new();
    for check in &facts.checks {
        let head = format!("{} {:<23}", if check.available { "yes" } else { "no " }, check.name);
        text += &paragraph(&head, &check.state);
        text += &paragraph("      ", check.meaning);
        // Commands are to be copied: whole, on one line.
        text +=
            &check.remedy.iter().map(|remedy| format!("      to allow more: {remedy}\n")).collect::<String>();
    }
    let sum = match (facts.can_analyze, facts.can_redirect) {
        (true, true) => "restitch kernel analyze works here, and copies of functions can be put in force.",
        (true, false) => {
            "restitch kernel analyze works here; for copies in force, see the lines with \"no\"."
        }
        (false, _) => "restitch kernel analyze does not work here: see the lines with \"no\".",
    };
    text + "\n" + &paragraph("", sum)
}
