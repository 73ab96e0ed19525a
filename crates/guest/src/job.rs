//! What a guest is to do.

use std::path::PathBuf;

use crate::Result;
use crate::error::Error;

/// Where the bytes of a file come from.
#[derive(Debug, Clone)]
pub enum Source {
    /// From a file of the host.
    Path(PathBuf),
    /// These.
    Bytes(Vec<u8>),
}

/// A file that a guest gets.
#[derive(Debug, Clone)]
pub struct FileIn {
    /// Its absolute path in the guest.
    pub guest: String,
    /// Its content.
    pub source: Source,
    /// Whether it may be executed.
    pub executable: bool,
}

/// What a guest is to do.
#[derive(Debug, Clone, Default)]
pub struct Job {
    /// A script for `/bin/sh`: busybox, or that of the root image. It has the functions of `functions.sh`.
    pub script: String,
    /// Files that it finds.
    pub files_in: Vec<FileIn>,
    /// Absolute paths in the guest of files, and of folders with all that is in them, that come back.
    pub files_out: Vec<String>,
}

impl Job {
    /// Its paths are absolute and have one line each.
    pub(crate) fn check(&self) -> Result<()> {
        let paths = self.files_in.iter().map(|file| &file.guest).chain(&self.files_out);
        let mut wrong = paths.filter(|path| !path.starts_with('/') || path.contains(['\n', '\0']));
        match wrong.next() {
            Some(path) => Err(Error::Usage(format!("{path:?} is no absolute path of a file in the guest"))),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_in_the_guest_are_absolute_and_have_one_line() {
        let asks = |path: &str| Job { files_out: vec![path.into()], ..Job::default() }.check();
        assert!(asks("/a").is_ok());
        assert!(asks("a").is_err() && asks("/a\n/b").is_err());
    }
}
