//! A file that a command line names twice, where what is written under one name would replace the other: a
//! profile that the output goes over, two results in one file.
//!
//! Some names may be the same, since the file is read whole before it is replaced: `optimize PROGRAM -o
//! PROGRAM`, `profile merge all new -o all`.

use crate::args::Args;
use clap::builder::ValueParser;
use clap::error::ErrorKind;
use clap::parser::ValueSource;
use clap::{Arg, ArgMatches, Command, CommandFactory};
use std::path::{Path, PathBuf};

/// Arguments that name files which the command writes, whatever the command.
const WRITTEN: [&str; 6] = ["json", "html", "svg", "occupancy", "output", "write"];
/// Those that name files which it writes in one command, and reads in others.
const WRITTEN_BY: [(&str, &str); 1] = [("instrument", "counts")];
/// What may be written over what is read: the command above, or the command itself, and both arguments.
const IN_PLACE: [(&str, &str, &str); 4] = [
    ("optimize", "output", "program"),
    ("instrument", "output", "program"),
    ("profile", "output", "profile"),
    ("profile", "output", "profiles"),
];

/// A file that is named.
struct Named {
    id: String,
    /// As it is written on a command line.
    label: String,
    path: PathBuf,
    is_written: bool,
}

/// Refuses a command line two names of which are the same file, one of them to be written.
///
/// # Errors
/// [`ErrorKind::ArgumentConflict`], which names both.
pub(crate) fn refuse(matches: &ArgMatches) -> Result<(), clap::Error> {
    let (root, mut commands, mut matches) = (Args::command(), Vec::new(), matches);
    let mut command = &root;
    while let Some((name, below)) = matches.subcommand() {
        let Some(found) = command.find_subcommand(name) else { return Ok(()) };
        commands.push(name);
        (command, matches) = (found, below);
    }
    let all = named(command, &commands, matches);
    for (i, one) in all.iter().enumerate().filter(|(_, one)| one.is_written) {
        let is_other = |(j, other): &(usize, &Named)| {
            let is_seen = other.is_written && *j <= i;
            *j != i && !is_seen && !is_in_place(&commands, one, other) && is_same(&one.path, &other.path)
        };
        if let Some((_, other)) = all.iter().enumerate().find(is_other) {
            return Err(clap::Error::raw(ErrorKind::ArgumentConflict, told(one, other)));
        }
    }
    Ok(())
}

fn told(one: &Named, other: &Named) -> String {
    let what =
        if other.is_written { "of which one would replace the other" } else { "which would be replaced" };
    let (path, one, other) = (one.path.display(), &one.label, &other.label);
    format!("{one} and {other} name the same file, {what}: {path}; name another one\n")
}

fn named(command: &Command, commands: &[&str], matches: &ArgMatches) -> Vec<Named> {
    let mut all = Vec::new();
    for arg in command.get_arguments().filter(|arg| is_path(arg)) {
        let id = arg.get_id().as_str();
        if matches.value_source(id) != Some(ValueSource::CommandLine) {
            continue;
        }
        let paths = matches.try_get_many::<PathBuf>(id).ok().flatten().into_iter().flatten();
        all.extend(paths.filter(|path| path.as_os_str() != "-").map(|path| Named {
            id: id.into(),
            label: label(arg),
            path: path.clone(),
            is_written: is_written(id, commands),
        }));
    }
    all
}

fn is_path(arg: &Arg) -> bool {
    arg.get_value_parser().type_id() == ValueParser::path_buf().type_id()
}

fn label(arg: &Arg) -> String {
    match (arg.get_long(), arg.get_value_names()) {
        (Some(long), _) => format!("--{long}"),
        (None, Some([name, ..])) => format!("<{name}>"),
        _ => arg.get_id().to_string(),
    }
}

fn is_written(id: &str, commands: &[&str]) -> bool {
    WRITTEN.contains(&id)
        || WRITTEN_BY.iter().any(|(command, known)| *known == id && commands.contains(command))
}

fn is_in_place(commands: &[&str], written: &Named, read: &Named) -> bool {
    IN_PLACE.iter().any(|(command, output, input)| {
        commands.first() == Some(command) && *output == written.id && *input == read.id
    })
}

/// Whether both lead to one regular file, or to one that there is not yet.
fn is_same(one: &Path, other: &Path) -> bool {
    place(one).is_some_and(|place_of_one| place(other) == Some(place_of_one))
}

/// The file, whatever links lead to it. `None` for what is no file: writing twice to a pipe or a device loses
/// nothing.
fn place(path: &Path) -> Option<PathBuf> {
    match std::fs::metadata(path) {
        Ok(about) if !about.is_file() => None,
        Ok(_) => path.canonicalize().ok(),
        Err(_) => {
            let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
            let folder = folder.unwrap_or(Path::new(".")).canonicalize().ok()?;
            Some(folder.join(path.file_name()?))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use restitch_testkit::scratch;

    fn refused(line: &str) -> Option<String> {
        let matches = Args::command().try_get_matches_from(line.split(' ')).expect(line);
        refuse(&matches).err().map(|error| error.to_string())
    }

    #[test]
    fn what_would_be_lost_is_told() {
        let folder = scratch();
        let at = |name: &str| folder.path().join(name).display().to_string();
        let (p, program, json, link) = (at("p"), at("program"), at("json"), at("link"));
        for name in [&p, &program] {
            std::fs::write(name, "").expect("writable");
        }
        std::os::unix::fs::symlink("p", &link).expect("possible");
        let inside = format!("{}/./json", folder.path().display());
        for line in [
            format!("restitch optimize {program} --profile {p} -o {p}"),
            format!("restitch optimize {program} --profile {p} -o {link}"),
            format!("restitch optimize {program} --profile {p} -o new --json {program}"),
            format!("restitch optimize {program} --profile {p} -o {json} --json {inside}"),
            format!("restitch instrument {program} -o {p} --counts {program}"),
            format!("restitch instrument {program} -o {json} --counts {json}"),
            format!("restitch attach 1 --json {json} --html {json}"),
            format!("restitch attach 1 --json {p} --profile {p}"),
            format!("restitch record -p 1 -o {json} --json {json}"),
            format!("restitch profile compare {p} {program} --svg {p}"),
            format!("restitch kernel position f --counts {p} --json {p}"),
        ] {
            let told = refused(&line).unwrap_or_else(|| panic!("{line}: taken"));
            assert!(told.contains("name the same file") && told.contains("--"), "{line}: {told}");
        }
        for line in [
            format!("restitch optimize {program} --profile {p} -o {program}"),
            format!("restitch profile merge {p} {program} -o {p}"),
            format!("restitch profile convert {p} -o {link}"),
            format!("restitch profile compare {p} {p}"),
            format!("restitch attach 1 --json {json} --html {p}"),
            "restitch attach 1 --json /dev/null --html /dev/null".into(),
            "restitch attach 1 --json - --html -".into(),
            "restitch status".into(),
        ] {
            assert_eq!(refused(&line), None, "{line}");
        }
    }

    /// A new argument for a file belongs to one of the lists: those that are written, or this one.
    #[test]
    fn each_argument_for_files_is_known() {
        const READ: [&str; 13] = [
            "program",
            "profile",
            "profiles",
            "file",
            "folder",
            "records",
            "call_targets",
            "config",
            "cache",
            "export",
            "view",
            "counts",
            "from_counts",
        ];
        fn look(command: &Command, path: &mut Vec<String>) {
            for arg in command.get_arguments().filter(|arg| is_path(arg)) {
                let id = arg.get_id().as_str();
                assert!(WRITTEN.contains(&id) || READ.contains(&id), "{path:?} {id}: is it written?");
            }
            for below in command.get_subcommands() {
                path.push(below.get_name().to_owned());
                look(below, path);
                path.pop();
            }
        }
        look(&Args::command(), &mut Vec::new());
    }
}
