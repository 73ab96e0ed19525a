//! Manual pages, shell completions and `docs/options.md`, made from the definition of the command line.
//! `scripts/package` puts them into the package.

use crate::args::{Args, STAND_IN};
use crate::options;
use clap::{Command, CommandFactory};
use clap_complete::Shell;
use clap_mangen::Man;
use clap_mangen::roff::{Inline, Roff, bold, roman};
use restitch_session::{ExitCode, PipelineError, SessionError, write_result};
use std::io::Error;
use std::path::Path;

/// Something outside of the command line that commands use: its name, what it is for, and the commands
/// (`cache-list` for `restitch cache list`).
struct Outside {
    name: &'static str,
    meaning: &'static str,
    commands: &'static [&'static str],
}

/// Commands that change processes, and so leave journals.
const CHANGING: &[&str] = &["restitch", "attach", "run", "revert", "status", "record", "demo"];
/// Commands that use the cache of `batch`.
const CACHING: &[&str] =
    &["restitch", "batch", "cache", "cache-list", "cache-optimize", "cache-prune", "cache-verify"];

const VARIABLES: &[Outside] = &[
    Outside {
        name: "RESTITCH_STATE_DIR",
        meaning: "The folder of undo journals and of the code that processes have mapped. It has to be the same for all commands that concern a process.",
        commands: CHANGING,
    },
    Outside { name: "RESTITCH_CACHE_DIR", meaning: "The cache of `batch`.", commands: CACHING },
    Outside {
        name: "XDG_CACHE_HOME, HOME",
        meaning: "Where the cache of `batch` is, unless it is named: $XDG_CACHE_HOME/restitch, or ~/.cache/restitch.",
        commands: CACHING,
    },
    Outside {
        name: "RESTITCH_MODULE_KEY, RESTITCH_MODULE_CERTIFICATE",
        meaning: "The private key (PEM) and the certificate with which group modules are signed, by `openssl`. Where they are not set and the kernel takes signed modules only, they are those of DKMS (/var/lib/dkms/mok.key, mok.pub) or of shim-signed (/var/lib/shim-signed/mok).",
        commands: &["kernel-position", "kernel-run", "kernel-count"],
    },
    Outside {
        name: "LD_PRELOAD",
        meaning: "`batch` sets it for its command; what it holds already stays in it.",
        commands: &["batch"],
    },
];

const FILES: &[Outside] = &[
    Outside {
        name: "/var/lib/restitch, /var/tmp/restitch-UID, /tmp/restitch-UID",
        meaning: "Undo journals, and the code that processes have mapped: the first for root, for others the first of the rest that can be used. Files go with the processes that they belong to.",
        commands: CHANGING,
    },
    Outside { name: "~/.cache/restitch", meaning: "The cache of `batch`.", commands: CACHING },
    Outside {
        name: "restitch.toml",
        meaning: "In the current folder: configuration of `batch`. What it says of a cache counts only if the file is named by `--config`.",
        commands: &["batch"],
    },
    Outside {
        name: "/usr/share/doc/restitch",
        meaning: "README.md and docs: a page for each job (usage), all options, profile formats, layouts, the JSON form, design and benchmarks, where restitch is installed as a package.",
        commands: &[],
    },
];

/// Writes `man/man1/*.1`, the completions of three shells and `doc/restitch/options.md` below `folder`.
pub fn write(folder: &Path) -> Result<i32, SessionError> {
    let mut definition = shown(&Args::command()).disable_help_subcommand(true);
    definition.build();
    let options = made(folder.join("doc/restitch"))?.join("options.md");
    write_result(&options, options::page(&definition).as_bytes(), 0o644)?;
    let manual = made(folder.join("man/man1"))?;
    for command in commands(&definition) {
        let name = full_name(command);
        write_result(&manual.join(format!("{name}.1")), page(&definition, command).as_bytes(), 0o644)?;
    }
    let completions = [
        (Shell::Bash, "bash-completion/completions", "restitch"),
        (Shell::Zsh, "zsh/site-functions", "_restitch"),
        (Shell::Fish, "fish/vendor_completions.d", "restitch.fish"),
    ];
    for (shell, place, name) in completions {
        let mut script = Vec::new();
        clap_complete::generate(shell, &mut shown(&Args::command()), "restitch", &mut script);
        write_result(&made(folder.join(place))?.join(name), &script, 0o644)?;
    }
    Ok(ExitCode::Done.number())
}

fn made(folder: std::path::PathBuf) -> Result<std::path::PathBuf, PipelineError> {
    let made = std::fs::create_dir_all(&folder);
    made.map_err(|source| PipelineError::File { operation: "making", path: folder.clone(), source })?;
    Ok(folder)
}

/// The definition without hidden commands, which completions would offer.
fn shown(all: &Command) -> Command {
    Command::new("restitch")
        .version(env!("CARGO_PKG_VERSION"))
        .about(all.get_about().cloned().unwrap_or_default())
        .subcommand_required(true)
        .subcommands(all.get_subcommands().filter(|c| !c.is_hide_set()).cloned())
}

/// `command` and all below it, in the order of help.
fn commands(command: &Command) -> Vec<&Command> {
    std::iter::once(command).chain(command.get_subcommands().flat_map(commands)).collect()
}

/// The name with those of the commands above, as in `restitch-cache-list`.
fn full_name(command: &Command) -> &str {
    command.get_display_name().unwrap_or_else(|| command.get_name())
}

fn page(whole: &Command, command: &Command) -> String {
    let mut text = Vec::new();
    let written = sections(whole, command, &mut text);
    written.expect("writing to memory does not fail");
    // There is no date: the version says how old a page is.
    let title = full_name(command).to_uppercase();
    let version = env!("CARGO_PKG_VERSION");
    let sections = code_in_bold(&String::from_utf8_lossy(&text));
    format!(".TH {title} 1 \"\" \"restitch {version}\" \"User Commands\"\n{sections}")
}

/// The sections of a page, in the order that man-pages(7) asks for.
fn sections(whole: &Command, command: &Command, out: &mut Vec<u8>) -> Result<(), Error> {
    let man = Man::new(command.clone());
    names(command).to_writer(out)?;
    man.render_description_section(out)?;
    man.render_options_section(out)?;
    if command.has_subcommands() {
        man.render_subcommands_section(out)?;
    }
    exit_status(command).to_writer(out)?;
    outside("ENVIRONMENT", VARIABLES, command).to_writer(out)?;
    outside("FILES", FILES, command).to_writer(out)?;
    examples(command).to_writer(out)?;
    see_also(whole, command).to_writer(out)
}

/// Name and synopsis. The usage is that of `--help`, which names values and what stands behind `--`.
fn names(command: &Command) -> Roff {
    let about = command.get_about().map(ToString::to_string).unwrap_or_default();
    let short = about.split([':', '.']).next().unwrap_or_default();
    let usage = command.clone().render_usage().to_string();
    let usage = usage.trim_start_matches("Usage:").trim();
    let called = command.get_bin_name().unwrap_or_else(|| command.get_name());
    let mut roff = Roff::new();
    roff.control("SH", ["NAME"]).text([roman(format!("{} - {short}", full_name(command)))]);
    roff.control("SH", ["SYNOPSIS"]);
    roff.text([bold(called), roman(usage.strip_prefix(called).unwrap_or(usage))]);
    roff
}

fn exit_status(command: &Command) -> Roff {
    let mut roff = Roff::new();
    roff.control("SH", ["EXIT STATUS"]);
    for code in ExitCode::ALL {
        roff.control("TP", ["4"]).text([bold(code.number().to_string())]).text([roman(code.meaning())]);
    }
    if ["restitch", "run", "batch", "record"].contains(&command.get_name()) {
        roff.control("PP", []).text([roman(STAND_IN)]);
    }
    roff
}

/// A section of what `command` uses; nothing where that is nothing.
fn outside(heading: &str, all: &[Outside], command: &Command) -> Roff {
    let name = full_name(command);
    let name = name.strip_prefix("restitch-").unwrap_or(name);
    let concerns = |o: &&Outside| o.commands.is_empty() || o.commands.contains(&name);
    let mut roff = Roff::new();
    for (number, entry) in all.iter().filter(concerns).enumerate() {
        if number == 0 {
            roff.control("SH", [heading]);
        }
        roff.control("TP", []).text([bold(entry.name)]).text([roman(entry.meaning)]);
    }
    roff
}

/// The examples below the help, line by line.
fn examples(command: &Command) -> Roff {
    let after = command.get_after_help().map(ToString::to_string).unwrap_or_default();
    let mut roff = Roff::new();
    let Some(examples) = after.strip_prefix("Examples:\n") else { return roff };
    let (code, rest): (Vec<&str>, Vec<&str>) = examples.lines().partition(|line| line.starts_with(' '));
    roff.control("SH", ["EXAMPLES"]).control("nf", []);
    for line in code {
        roff.text([roman(line.trim_start())]);
    }
    roff.control("fi", []).control("PP", []).text(rest.into_iter().map(roman).collect::<Vec<Inline>>());
    roff
}

/// The pages of the other commands; of a command below another those beside it, and the one above.
fn see_also(whole: &Command, command: &Command) -> Roff {
    let own = full_name(command);
    let above = own.rsplit_once('-').map_or(own, |(above, _)| above);
    let near =
        |name: &str| name == above || name.rsplit_once('-').is_some_and(|(n, _)| n == above || n == own);
    let names = commands(whole).into_iter().map(full_name).filter(|name| *name != own && near(name));
    let mut line = Vec::new();
    for name in names {
        line.extend([bold(name), roman("(1), ")]);
    }
    line.extend([bold("perf"), roman("(1)")]);
    let mut roff = Roff::new();
    roff.control("SH", ["SEE ALSO"]).text(line);
    roff
}

/// What stands in backticks in help is bold in a page, without them.
fn code_in_bold(text: &str) -> String {
    let mut pieces = text.split('`');
    let mut result = pieces.next().unwrap_or_default().to_string();
    for (number, piece) in pieces.enumerate() {
        result.push_str(if number % 2 == 0 { "\\fB" } else { "\\fR" });
        result.push_str(piece);
    }
    result
}
