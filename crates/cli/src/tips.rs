//! Tips below what is wrong with a command line, where it can be told what was meant: a process that is named
//! in the way of another command, and a command without `--` in front.

use crate::args::Args;
use clap::builder::StyledStr;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Arg, Command, CommandFactory};

/// Adds the tip, if there is one, in place of the one that takes whatever is there for a value.
pub(crate) fn add(error: &mut clap::Error) {
    if let Some(tip) = tip(error) {
        error.remove(ContextKind::SuggestedArg);
        error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![StyledStr::from(tip)]));
    }
}

fn tip(error: &clap::Error) -> Option<String> {
    let (ErrorKind::UnknownArgument, Some(ContextValue::String(given))) =
        (error.kind(), error.get(ContextKind::InvalidArg))
    else {
        return None;
    };
    let Some(ContextValue::StyledStr(usage)) = error.get(ContextKind::Usage) else { return None };
    let root = Args::command();
    let (name, command) = named_in(&usage.to_string(), &root)?;
    let has = |is_wanted: &dyn Fn(&Arg) -> bool| command.get_arguments().any(is_wanted);
    let is_process = |arg: &Arg| arg.get_id() == "pid";
    let is_number = !given.is_empty() && given.bytes().all(|byte| byte.is_ascii_digit());
    if is_number && has(&|arg| is_process(arg) && !arg.is_positional()) {
        return Some(format!("a process is named by `--pid {given}`"));
    }
    if (given == "-p" || given == "--pid") && has(&|arg| is_process(arg) && arg.is_positional()) {
        return Some(format!("the number of the process stands alone: `{name} PID`"));
    }
    if is_number && name.ends_with(" run") {
        return Some(format!("a process that runs already is optimized by `restitch attach {given}`"));
    }
    let takes_command = !given.starts_with('-') && has(&Arg::is_last_set);
    takes_command.then(|| format!("a command stands behind `--`: `-- {given}`"))
}

/// The command whose usage this is, and its name with those above it.
fn named_in<'a>(usage: &str, root: &'a Command) -> Option<(String, &'a Command)> {
    let mut words = usage.split_whitespace().skip_while(|word| *word != root.get_name()).skip(1);
    let (mut name, mut command) = (root.get_name().to_owned(), root);
    while let Some(below) = words.next().and_then(|word| command.find_subcommand(word)) {
        name = format!("{name} {}", below.get_name());
        command = below;
    }
    (name != root.get_name()).then_some((name, command))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[test]
    fn what_was_meant_is_told() {
        let told = |line: &str| {
            let mut error = Args::try_parse_from(line.split_whitespace()).expect_err("wrong");
            add(&mut error);
            error.to_string()
        };
        for (line, tip) in [
            ("restitch record 99999999", "`--pid 99999999`"),
            ("restitch record 4711 -o profile", "`--pid 4711`"),
            ("restitch record -o profile make", "`-- make`"),
            ("restitch kernel find 4711", "`--pid 4711`"),
            ("restitch attach -p 4711", "`restitch attach PID`"),
            ("restitch status --pid 4711", "`restitch status PID`"),
            ("restitch revert -p 4711", "`restitch revert PID`"),
            ("restitch run 4711", "`restitch attach 4711`"),
            ("restitch batch make", "`-- make`"),
        ] {
            let told = told(line);
            assert!(told.contains(tip) && told.matches("tip:").count() == 1, "{line}: {told}");
        }
        for line in ["restitch record --nothing", "restitch analyze a b", "restitch 4711"] {
            assert!(!told(line).contains("process"), "{line}: {}", told(line));
        }
    }
}
