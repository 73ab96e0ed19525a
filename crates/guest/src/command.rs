//! Programs of the machine, run to their end.

use std::process::{Command, Output, Stdio};

use crate::Result;
use crate::error::Error;

/// Characters of a failed program's output that an error keeps.
const KEPT: usize = 2000;

/// The package that has a program which may not be there.
fn package_of(program: &str) -> &'static str {
    match program {
        "apt-get" | "apt-cache" => "apt (Debian or a relative; guests are made of its packages)",
        "dpkg-deb" | "dpkg" => "dpkg",
        "mke2fs" => "e2fsprogs",
        "xz" => "xz-utils",
        "gcc" => "gcc and libc6-dev",
        "setpriv" | "unshare" => "util-linux",
        _ => "the package that has it",
    }
}

/// Runs a program to its end and returns what it printed to standard output; an error if it failed.
pub(crate) fn run(command: &mut Command) -> Result<Vec<u8>> {
    let output = finish(command)?;
    if output.status.success() {
        return Ok(output.stdout);
    }
    Err(failed(command, &output))
}

/// Runs a program to its end.
pub(crate) fn finish(command: &mut Command) -> Result<Output> {
    command.stdin(Stdio::null()).output().map_err(not_started(command))
}

/// Runs two programs, what the first prints being what the second reads; an error if either failed.
pub(crate) fn pipe(from: &mut Command, to: &mut Command) -> Result<()> {
    let mut first = from.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().map_err(not_started(from))?;
    // There is one: it was just asked for.
    let printed = first.stdout.take().map_or_else(Stdio::null, Stdio::from);
    let second = to.stdin(printed).output().map_err(not_started(to));
    let first = first.wait_with_output().map_err(not_started(from))?;
    for (command, output) in [(to, second?), (from, first)] {
        if !output.status.success() {
            return Err(failed(command, &output));
        }
    }
    Ok(())
}

/// The error of a program that could not be started.
fn not_started(command: &Command) -> impl FnOnce(std::io::Error) -> Error + use<> {
    let program = command.get_program().to_string_lossy().into_owned();
    move |source| match source.kind() {
        std::io::ErrorKind::NotFound => {
            Error::missing(format!("{program} is not available"), format!("install {}", package_of(&program)))
        }
        _ => Error::Command { program, status: "not started".into(), output: source.to_string() },
    }
}

/// The error of a program that ended without success.
pub(crate) fn failed(command: &Command, output: &Output) -> Error {
    let mut text = String::from_utf8_lossy(&output.stderr).into_owned();
    text.push_str(&String::from_utf8_lossy(&output.stdout));
    let words: Vec<_> = std::iter::once(command.get_program())
        .chain(command.get_args())
        .map(|word| word.to_string_lossy())
        .collect();
    Error::Command { program: words.join(" "), status: output.status.to_string(), output: tail(&text, KEPT) }
}

/// The last `most` characters of a text, from a line's begin where that leaves something.
pub(crate) fn tail(text: &str, most: usize) -> String {
    let text = text.trim_end();
    let skip = text.chars().count().saturating_sub(most);
    if skip == 0 {
        return text.into();
    }
    let kept: String = text.chars().skip(skip).collect();
    match kept.split_once('\n') {
        Some((_, whole)) if !whole.is_empty() => whole.into(),
        _ => kept,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tail_of_a_text_begins_with_a_whole_line() {
        assert_eq!(tail("one\ntwo\nthree\n", 100), "one\ntwo\nthree");
        assert_eq!(tail("one\ntwo\nthree\n", 8), "three");
        assert_eq!(tail("abcdef", 3), "def");
    }

    #[test]
    fn a_program_that_is_not_there_is_missing_and_one_that_fails_is_not() {
        assert!(run(&mut Command::new("no-such-program")).unwrap_err().is_missing());
        let error = run(Command::new("sh").args(["-c", "echo reason >&2; exit 3"])).unwrap_err();
        assert!(!error.is_missing() && error.to_string().contains("reason"), "{error}");
    }

    #[test]
    fn a_pipe_fails_if_either_side_does() {
        let shell = |script: &str| {
            let mut command = Command::new("sh");
            command.args(["-c", script]);
            command
        };
        assert!(pipe(&mut shell("echo a"), &mut shell("read x; [ $x = a ]")).is_ok());
        assert!(pipe(&mut shell("echo a; exit 1"), &mut shell("cat")).is_err());
        assert!(pipe(&mut shell("echo a"), &mut shell("read x; [ $x = b ]")).is_err());
        assert!(pipe(&mut Command::new("no-such-program"), &mut shell("cat")).unwrap_err().is_missing());
    }
}
