//! Files that the user names: reading, and writing whole or not at all.

use crate::error::PipelineError;
use restitch_apply::{Existing, GivenUp, MOST_NAMED, MOST_PIPED, Outlives};
use restitch_tracee::AskedToEnd;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;

/// Reads a file that the user names, or a pipe to its end, however late that comes: until then, this program
/// can be asked to end. Devices have none.
///
/// # Errors
/// If it cannot be read; [`PipelineError::Interrupted`] after such a request.
pub fn read_file(path: &Path) -> Result<Vec<u8>, PipelineError> {
    if std::fs::metadata(path).is_ok_and(|about| about.file_type().is_fifo()) {
        let bytes = restitch_apply::read_pipe(path, MOST_PIPED, &|| asked().is_some());
        return bytes.map_err(|source| {
            given_up("reading", path, &source).unwrap_or_else(|| unreadable(path, source))
        });
    }
    let file = restitch_apply::open_without_waiting(path);
    let bytes = file.and_then(|mut file| restitch_apply::read_opened(&mut file, MOST_NAMED));
    bytes.map_err(|source| unreadable(path, source))
}

/// The request to end this program, or the command that it stands for.
fn asked() -> Option<i32> {
    AskedToEnd::signal().or_else(AskedToEnd::ended_command)
}

/// Whether there was a request to end this program. (What there is to say of a command that has ended is
/// still to be written.)
fn is_asked() -> bool {
    AskedToEnd::signal().is_some()
}

/// That this program was asked to end before anybody was at the other end of a pipe, if that is why.
fn given_up(operation: &'static str, path: &Path, source: &std::io::Error) -> Option<PipelineError> {
    let signal = asked().filter(|_| GivenUp::is_in(source))?;
    Some(PipelineError::Interrupted { operation, path: path.into(), signal })
}

/// Reads a profile that the user names, as [`read_file`] does.
///
/// # Errors
/// As there; [`PipelineError::NoProfile`] if there is none.
pub fn read_profile(path: &Path) -> Result<Vec<u8>, PipelineError> {
    read_file(path).map_err(|error| match error {
        PipelineError::File { path, source, .. } if source.kind() == std::io::ErrorKind::NotFound => {
            PipelineError::NoProfile { path, source }
        }
        other => other,
    })
}

/// Reads a file that something else than the user may name: a pipe is none, so that nobody waits for its
/// other end.
pub fn read_regular(path: &Path) -> Result<Vec<u8>, PipelineError> {
    restitch_apply::read_regular(path).map_err(|source| unreadable(path, source))
}

/// Why a file was not read.
pub fn unreadable(path: &Path, source: std::io::Error) -> PipelineError {
    use std::io::ErrorKind as K;
    let path = path.into();
    match source.kind() {
        K::InvalidInput | K::FileTooLarge => PipelineError::BadFile { path, why: source.into() },
        _ => PipelineError::File { operation: "reading", path, source },
    }
}

/// Finds out whether a file can be written at `path` before work is spent on its content. What is there stays
/// as it is, and so does what somebody else writes there at the same time.
///
/// # Errors
/// If it cannot.
pub fn check_writable(path: &Path) -> Result<(), PipelineError> {
    restitch_apply::can_be_written(path, &is_asked).map_err(|source| writing(path, source))
}

/// Writes what the user asked for. A file is written whole or not at all, in place of one that is there; a
/// symbolic link is followed, unless it is another user's. What is no file (a pipe, a terminal,
/// `/dev/stdout`) is written to as it is.
///
/// # Errors
/// If it cannot be written; a file that was there is as before.
pub fn write_result(path: &Path, bytes: &[u8], mode: u32) -> Result<(), PipelineError> {
    restitch_apply::write_result(path, bytes, mode, Outlives::PowerCut, &is_asked)
        .map_err(|source| writing(path, source))
}

/// Writes a file whole or not at all, in place of one that is there.
pub fn write_whole(path: &Path, bytes: &[u8], mode: u32) -> Result<(), PipelineError> {
    restitch_apply::write_atomically(path, bytes, mode, Existing::Replace, Outlives::PowerCut)
        .map_err(|source| writing(path, source))
}

fn writing(path: &Path, source: std::io::Error) -> PipelineError {
    given_up("writing", path, &source).unwrap_or_else(|| PipelineError::File {
        operation: "writing",
        path: path.into(),
        source,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_go_through_links_and_into_devices() {
        let folder = tempfile::tempdir().unwrap();
        let (file, link) = (folder.path().join("file"), folder.path().join("link"));
        std::os::unix::fs::symlink("file", &link).unwrap();
        write_result(&link, b"one", 0o644).unwrap();
        assert_eq!(std::fs::read(&file).unwrap(), b"one", "what a link to nothing names is made");
        std::fs::write(&file, "old").unwrap();
        write_result(&link, b"two", 0o644).unwrap();
        assert_eq!(std::fs::read(&file).unwrap(), b"two");
        assert!(link.is_symlink());
        write_result(Path::new("/dev/null"), b"three", 0o644).unwrap();
        assert!(!Path::new("/dev/null").is_file());
    }

    #[test]
    fn asking_and_writing_at_the_same_time_do_not_meet() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("json");
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..200 {
                        check_writable(&path).unwrap();
                        write_whole(&path, b"{}", 0o644).unwrap();
                        let _ = std::fs::remove_file(&path);
                    }
                });
            }
        });
        let error = check_writable(&folder.path().join("none/json")).unwrap_err();
        assert!(error.to_string().contains("check the path"), "{error}");
    }
}
