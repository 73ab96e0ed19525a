//! Files that tests bring into guests.

use restitch_guest::{FileIn, Source};
use restitch_testkit::find_program;
use std::path::{Path, PathBuf};
use std::process::Command;

pub fn file(guest: impl Into<String>, path: impl Into<PathBuf>) -> FileIn {
    FileIn { guest: guest.into(), source: Source::Path(path.into()), executable: true }
}

/// A program of this machine and the libraries that it needs, at their places.
pub fn with_libraries(program: &Path) -> Vec<FileIn> {
    let needed = Command::new("ldd").arg(program).output().expect("the C library has it");
    let needed = String::from_utf8(needed.stdout).expect("text");
    let libraries =
        needed.lines().filter_map(|line| line.split_whitespace().find(|word| word.starts_with('/')));
    let itself = file(program.display().to_string(), program);
    libraries.map(|path| file(path, path)).chain([itself]).collect()
}

/// restitch without what only debuggers read, as /program, and the libraries that it needs.
pub fn program(folder: &Path) -> Option<Vec<FileIn>> {
    let built = Path::new(env!("CARGO_BIN_EXE_restitch"));
    let strip = find_program("strip")?;
    let stripped = folder.join("restitch");
    let status = Command::new(strip).arg("-o").arg(&stripped).arg(built).status().expect("it starts");
    assert!(status.success());
    let mut files = with_libraries(built);
    files.pop();
    files.push(file("/program", stripped));
    Some(files)
}
