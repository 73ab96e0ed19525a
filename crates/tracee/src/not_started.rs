//! Commands that cannot be started: why, in words that help.

use std::ffi::{OsStr, OsString};
use std::io::{self, ErrorKind, Read};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// A command that was named cannot be started.
#[derive(Debug, thiserror::Error)]
#[error("cannot start {command}: {source}; {advice}")]
pub struct NotStarted {
    /// The command, as it was named.
    pub command: String,
    /// What the operating system said.
    pub source: io::Error,
    /// The next step.
    pub advice: String,
}

impl NotStarted {
    /// `program`, as it was named, cannot be started.
    pub fn new(program: &OsStr, source: io::Error) -> Self {
        let command = if program.is_empty() { "\"\"".into() } else { program.to_string_lossy().into_owned() };
        let advice = advice(program, &source);
        Self { command, source, advice }
    }
}

/// The next step.
pub(crate) fn advice(program: &OsStr, source: &io::Error) -> String {
    if program.is_empty() {
        return "name a command".into();
    }
    if let Some(advice) = source.raw_os_error().and_then(advice_on_limits) {
        return advice.into();
    }
    let found = find_program(program);
    match (source.kind(), found) {
        (ErrorKind::NotFound, Some(path)) => match interpreter(&path) {
            Some(name) => format!("it is there, but {name}, which its first line names, is not"),
            None => "it is there, but what it names as its interpreter or loader is not".into(),
        },
        (ErrorKind::NotADirectory, _) => "check the path".into(),
        (ErrorKind::NotFound, None) if has_folder(program) => "check the path".into(),
        (ErrorKind::NotFound, None) if program.as_encoded_bytes().iter().all(u8::is_ascii_digit) => format!(
            "it is in no folder of PATH; a process that runs is named by `restitch attach {0}` or `restitch record --pid {0}`",
            program.display()
        ),
        (ErrorKind::NotFound, None) => "it is in no folder of PATH; check the name, or give its path".into(),
        (ErrorKind::PermissionDenied, Some(path)) if path.is_dir() => "it is a folder; name a program".into(),
        (ErrorKind::PermissionDenied, Some(path)) if !is_executable(&path) => {
            "it is not executable (`chmod +x` makes it so)".into()
        }
        (ErrorKind::PermissionDenied, _) => {
            "check the permissions of its folders, and whether its file system is mounted noexec".into()
        }
        _ => "check that it is a program for this machine".into(),
    }
}

/// The next step where the command is not the reason.
fn advice_on_limits(errno: i32) -> Option<&'static str> {
    Some(match errno {
        libc::EMFILE => "restitch has as many open files as it may; raise the limit (`ulimit -n`)",
        libc::ENFILE => "the machine has as many open files as it may; raise fs.file-max by sysctl",
        libc::E2BIG => {
            "its arguments and the environment are longer than the kernel takes (`getconf ARG_MAX`); give it less"
        }
        libc::EAGAIN => {
            "no more processes or threads may be started; raise the limit (`ulimit -u`, or pids.max of the control group), or end others"
        }
        libc::ENOMEM => {
            "there is no memory for another process; free some, or raise the limit of the control group"
        }
        libc::ECHILD => "it was ended before its program began; try again",
        _ => return None,
    })
}

fn has_folder(program: &OsStr) -> bool {
    program.as_encoded_bytes().contains(&b'/')
}

/// The file that the name stands for, as `execvp` looks for it.
pub fn find_program(program: &OsStr) -> Option<PathBuf> {
    let folders = match has_folder(program) {
        true => OsString::new(),
        false => std::env::var_os("PATH").unwrap_or_else(|| "/bin:/usr/bin".into()),
    };
    std::env::split_paths(&folders).map(|folder| folder.join(program)).find(|path| path.exists())
}

fn is_executable(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|m| m.permissions().mode() & 0o111 != 0)
}

/// What a script names as its interpreter.
fn interpreter(path: &Path) -> Option<String> {
    // The kernel reads no more (`BINPRM_BUF_SIZE`).
    let mut beginning = Vec::new();
    std::fs::File::open(path).ok()?.take(256).read_to_end(&mut beginning).ok()?;
    let line = beginning.strip_prefix(b"#!")?.split(|b| *b == b'\n').next()?;
    let name = String::from_utf8_lossy(line).split_whitespace().next()?.to_owned();
    Some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reason_is_named_with_the_next_step() {
        let folder = tempfile::tempdir().unwrap();
        let file = |name: &str, text: &str, mode: u32| {
            let path = folder.path().join(name);
            std::fs::write(&path, text).unwrap();
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
            path.into_os_string()
        };
        let script = file("script", "#! /no/interpreter -x\n", 0o755);
        let elf = file("elf", "\x7fELF", 0o755);
        let data = file("data", "", 0o644);
        // ENOENT, EACCES, ENOEXEC, ENOTDIR.
        let (not_found, denied, no_format, no_folder) = (2, 13, 8, 20);
        for (program, error, words) in [
            (OsStr::new(""), not_found, "cannot start \"\""),
            (OsStr::new("/no/such/program"), not_found, "check the path"),
            (OsStr::new("/etc/passwd/x"), no_folder, "check the path"),
            (OsStr::new("no-such-program"), not_found, "no folder of PATH"),
            (OsStr::new("99999999"), not_found, "`restitch record --pid 99999999`"),
            (&script, not_found, "/no/interpreter, which its first line"),
            (&elf, not_found, "loader"),
            (folder.path().as_os_str(), denied, "it is a folder"),
            (&data, denied, "not executable"),
            (&elf, denied, "noexec"),
            (&elf, no_format, "for this machine"),
            (&elf, libc::EMFILE, "`ulimit -n`"),
            (&elf, libc::E2BIG, "getconf ARG_MAX"),
            (&elf, libc::EAGAIN, "`ulimit -u`"),
            (&elf, libc::ENOMEM, "memory"),
        ] {
            let text = NotStarted::new(program, io::Error::from_raw_os_error(error)).to_string();
            assert!(text.contains(words) && text.contains(&*program.to_string_lossy()), "{text}");
        }
    }
}
