//! Test programs: sources in `tests/programs`, compiled on demand and cached by content.

use crate::process::copy_program;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// The ways in which every test program is compiled at least.
pub const VARIANTS: &[&[&str]] = &[&["-O0"], &["-O2"], &["-O2", "-static"], &["-O3", "-no-pie"]];

/// Why a test program could not be made.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The compiler or tool is not installed: a reason to skip.
    #[error("cannot start {tool}; install it")]
    Missing {
        /// The program that could not be started.
        tool: String,
    },
    /// The compiler or tool refused: a bug in the test, or a flag that this version does not know.
    #[error("{tool} failed on {}:\n{messages}", file.display())]
    Refused {
        /// The program that was started.
        tool: String,
        /// What it was to work on.
        file: PathBuf,
        /// What it wrote to standard error.
        messages: String,
    },
    /// A file could not be read or written.
    #[error("cannot access {}: {source}", file.display())]
    Io {
        /// The file.
        file: PathBuf,
        /// The system's reason.
        source: std::io::Error,
    },
}

pub(crate) type Result<T> = std::result::Result<T, Error>;

fn io(file: &Path) -> impl FnOnce(std::io::Error) -> Error + '_ {
    move |source| Error::Io { file: file.into(), source }
}

fn directory() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/programs")
}

/// The test program with this file name, for example `switch.c`.
pub fn program(file_name: &str) -> PathBuf {
    directory().join(file_name)
}

/// All test programs, sorted by name.
pub fn programs() -> Vec<PathBuf> {
    let entries = std::fs::read_dir(directory()).expect("tests/programs is part of the repository");
    let is_source = |p: &PathBuf| p.extension().is_some_and(|e| e == "c" || e == "cc");
    let mut found: Vec<_> = entries.flatten().map(|e| e.path()).filter(is_source).collect();
    found.sort();
    found
}

/// Compiles `source` with gcc (`.c`) or g++ (any other extension). See [`compile_with`].
///
/// # Errors
/// As [`compile_with`]; it panics as that does.
#[track_caller]
pub fn compile(source: &Path, flags: &[&str]) -> Result<PathBuf> {
    let compiler = if source.extension() == Some(OsStr::new("c")) { "gcc" } else { "g++" };
    compile_with(compiler, source, flags)
}

/// The program that `compiler` makes of `source` with `flags` and the flags that a `flags:` line in the
/// source's first comment asks for. Cached by everything that goes into it; safe to call from tests that run
/// at one time.
///
/// # Errors
/// [`Error::Missing`] without the compiler, or without a library or linker that it was to use: that is all
/// that a test may be skipped for.
///
/// # Panics
/// With the messages of a compiler that is there and refuses, as a test that is skipped for it would never
/// run again.
#[track_caller]
pub fn compile_with(compiler: &str, source: &Path, flags: &[&str]) -> Result<PathBuf> {
    or_missing(attempt(compiler, source, flags), &NOT_INSTALLED, compiler)
}

/// What linkers, and compilers that start them, say of libraries, start files and linkers that are not there.
const NOT_INSTALLED: [&str; 8] = [
    "cannot find -l",
    "cannot find lib",
    "unable to find library",
    "cannot find crt",
    "cannot find Scrt",
    "cannot find rcrt",
    "cannot find 'ld'",
    "libclang_rt",
];

/// What is missing: the tool, or parts of it, if its messages name something that is `absent`; all else
/// panics.
#[track_caller]
pub(crate) fn or_missing(made: Result<PathBuf>, absent: &[&str], tool: &str) -> Result<PathBuf> {
    match made {
        Err(Error::Refused { messages, .. }) if absent.iter().any(|a| messages.contains(a)) => {
            let first = messages.lines().find(|line| absent.iter().any(|a| line.contains(a)));
            Err(Error::Missing { tool: format!("all of {tool} ({})", first.unwrap_or_default().trim()) })
        }
        Err(error @ (Error::Refused { .. } | Error::Io { .. })) => panic!("{error}"),
        made => made,
    }
}

/// The same, with what the compiler says where it refuses.
pub(crate) fn attempt(compiler: &str, source: &Path, flags: &[&str]) -> Result<PathBuf> {
    let text = std::fs::read_to_string(source).map_err(io(source))?;
    let wanted = own_flags(&text);
    let mut key = Key::default();
    for part in
        [compiler, &version(compiler)?, &text, &headers(source)?].into_iter().chain(flags.iter().copied())
    {
        key.add(part.as_bytes());
    }
    for included in flags.windows(2).filter(|pair| pair[0] == "-include").map(|pair| Path::new(pair[1])) {
        // What is not found is the compiler's own.
        key.add(&std::fs::read(included).unwrap_or_default());
    }
    let stem = source.file_stem().unwrap_or_default().to_string_lossy();
    made(&format!("{stem}-{:016x}", key.0), |output| {
        let mut command = Command::new(compiler);
        command.arg("-o").arg(output).arg(source).args(flags).args(wanted);
        start(&mut command, compiler, source).map(|_| ())
    })
}

/// Runs a compiler or linker as `command` says. `None` if it, or a part of it, is not installed.
///
/// # Panics
/// As [`compile_with`].
#[track_caller]
pub fn compiled(command: &mut Command) -> Option<()> {
    let tool = command.get_program().to_string_lossy().into_owned();
    let folder = command.get_current_dir().unwrap_or(Path::new(".")).to_owned();
    let made = start(command, &tool, &folder).map(|_| folder);
    or_missing(made, &NOT_INSTALLED, &tool).ok().map(drop)
}

/// A copy of `file` without symbols and debug information (`strip -s`).
///
/// # Errors
/// [`Error::Missing`] without strip.
///
/// # Panics
/// If it is there and fails.
#[track_caller]
pub fn strip(file: &Path) -> Result<PathBuf> {
    let stripped = variant(file, "stripped", |output| {
        let mut command = Command::new("strip");
        command.arg("-s").arg("-o").arg(output).arg(file);
        start(&mut command, "strip", file).map(|_| ())
    });
    or_missing(stripped, &[], "strip")
}

/// A copy of the ELF64 `file` without section headers and what is not loaded, as
/// `strip --strip-section-headers` makes it.
///
/// # Errors
/// [`Error::Io`] if the file cannot be read or the copy not written.
pub fn without_section_headers(file: &Path) -> Result<PathBuf> {
    variant(file, "bare", |output| {
        let mut data = std::fs::read(file).map_err(io(file))?;
        if data.len() >= 64 {
            data[40..48].fill(0); // e_shoff
            data[58..64].fill(0); // e_shentsize, e_shnum, e_shstrndx
            data.truncate(end_of_segments(&data).unwrap_or(data.len()));
        }
        // A copy of a copy with its permissions, so that it can be executed at once.
        let part = output.with_extension("part");
        std::fs::copy(file, &part).map_err(io(file))?;
        std::fs::write(&part, data).map_err(io(&part))?;
        copy_program(&part, output).map_err(io(output))?;
        std::fs::remove_file(&part).map_err(io(&part))
    })
}

/// Where the last byte that a program header speaks of ends.
fn end_of_segments(data: &[u8]) -> Option<usize> {
    let number = |at: usize| Some(u64::from_le_bytes(data.get(at..at + 8)?.try_into().ok()?) as usize);
    let (table, count) = (number(32)?, u16::from_le_bytes([data[56], data[57]]));
    // `p_offset` and `p_filesz` of each entry of 56 bytes.
    let ends =
        (0..usize::from(count)).map(|i| Some(number(table + 56 * i + 8)? + number(table + 56 * i + 32)?));
    ends.max().flatten()
}

/// The flags of the `flags:` line in the first comment.
fn own_flags(text: &str) -> Vec<&str> {
    let comment = text.split("*/").next().unwrap_or_default();
    let line = comment.lines().find_map(|l| l.split_once("flags:").map(|(_, flags)| flags));
    line.unwrap_or_default().split_whitespace().collect()
}

/// The text of all headers beside the source, in the order of their names.
fn headers(source: &Path) -> Result<String> {
    let folder = source.parent().unwrap_or(Path::new("."));
    let entries = std::fs::read_dir(folder).map_err(io(folder))?;
    let mut headers: Vec<_> = entries.flatten().map(|e| e.path()).collect();
    headers.retain(|p| p.extension() == Some(OsStr::new("h")));
    headers.sort();
    headers.iter().map(|h| std::fs::read_to_string(h).map_err(io(h))).collect()
}

fn version(compiler: &str) -> Result<String> {
    let output = start(Command::new(compiler).arg("--version"), compiler, Path::new("--version"))?;
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

fn start(command: &mut Command, tool: &str, file: &Path) -> Result<Output> {
    let output = command.output().map_err(|source| match source.kind() {
        std::io::ErrorKind::NotFound => Error::Missing { tool: tool.into() },
        _ => Error::Io { file: tool.into(), source },
    })?;
    if !output.status.success() {
        let messages = String::from_utf8_lossy(&output.stderr).into_owned();
        return Err(Error::Refused { tool: tool.into(), file: file.into(), messages });
    }
    Ok(output)
}

/// A derived file, cached by the content of `file`.
fn variant(file: &Path, suffix: &str, make: impl FnOnce(&Path) -> Result<()>) -> Result<PathBuf> {
    let mut key = Key::default();
    key.add(&std::fs::read(file).map_err(io(file))?);
    let stem = file.file_stem().unwrap_or_default().to_string_lossy();
    made(&format!("{stem}-{:016x}.{suffix}", key.0), make)
}

/// The cached file `name`, made first if it is not there: under another name, so that tests that run at one
/// time see a whole file or none. The first of them gives its file the name, and none replaces it: to a
/// process that runs a file, one of the same content in its place is another one.
fn made(name: &str, make: impl FnOnce(&Path) -> Result<()>) -> Result<PathBuf> {
    let cache = cache_directory();
    std::fs::create_dir_all(&cache).map_err(io(&cache))?;
    let done = cache.join(name);
    if !done.exists() {
        let work = tempfile::tempdir_in(&cache).map_err(io(&cache))?;
        let output = work.path().join(name);
        make(&output)?;
        match std::fs::hard_link(&output, &done) {
            Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => return Err(io(&done)(error)),
            _ => {}
        }
    }
    Ok(done)
}

/// `target/tmp/programs`, found from the running test (`target/debug/deps/test`).
fn cache_directory() -> PathBuf {
    let test = std::env::current_exe().unwrap_or_default();
    let target = test.ancestors().find(|a| a.join("CACHEDIR.TAG").exists());
    target.map_or_else(std::env::temp_dir, Path::to_path_buf).join("tmp/programs")
}

/// FNV-1a, 64 bits, with lengths, so that moving a byte from one part to the next changes it.
struct Key(u64);

impl Default for Key {
    fn default() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }
}

impl Key {
    fn add(&mut self, part: &[u8]) {
        for byte in part.iter().copied().chain(part.len().to_le_bytes()) {
            self.0 = (self.0 ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_come_from_the_first_comment_only() {
        assert_eq!(own_flags("/* What.\n * flags: -pthread -lm */\nint x;"), ["-pthread", "-lm"]);
        assert!(own_flags("/* What. */\n// flags: -pthread\n").is_empty());
    }

    #[test]
    fn a_file_that_is_there_is_not_replaced() {
        use std::os::unix::fs::MetadataExt;
        let name = format!("made-{}", std::process::id());
        let all_begin = std::sync::Barrier::new(4);
        let inode = || {
            let file = made(&name, |output| {
                all_begin.wait();
                std::fs::write(output, "the same").map_err(io(output))
            });
            std::fs::metadata(file.unwrap()).unwrap().ino()
        };
        let inodes: Vec<u64> = std::thread::scope(|scope| {
            let makers: Vec<_> = (0..4).map(|_| scope.spawn(inode)).collect();
            makers.into_iter().map(|maker| maker.join().unwrap()).collect()
        });
        std::fs::remove_file(cache_directory().join(&name)).unwrap();
        assert_eq!(inodes, [inodes[0]; 4]);
    }

    #[test]
    fn keys_tell_parts_apart() {
        let key = |parts: &[&str]| {
            let mut key = Key::default();
            parts.iter().for_each(|p| key.add(p.as_bytes()));
            key.0
        };
        assert_ne!(key(&["ab", "c"]), key(&["a", "bc"]));
        assert_eq!(key(&["a", "b"]), key(&["a", "b"]));
    }
}
