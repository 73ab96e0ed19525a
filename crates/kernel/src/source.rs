//! The files in which a kernel says what it is: of the running one, or copies of them in a folder.

use crate::error::KernelError;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

/// The longest file that is read whole. Lists of symbols have some 20 MB on large systems.
const LONGEST: u64 = 512 << 20;

/// Where the files are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Source {
    root: PathBuf,
    is_running: bool,
}

impl Source {
    /// The running kernel.
    pub fn running() -> Self {
        Self { root: "/".into(), is_running: true }
    }

    /// A folder with copies, under their own names: `proc/kcore`, `sys/kernel/notes`, and so on.
    pub fn folder(root: &Path) -> Self {
        Self { root: root.into(), is_running: false }
    }

    /// Whether it is the running kernel.
    pub fn is_running(&self) -> bool {
        self.is_running
    }

    /// Where the file is that the kernel has under `name`, without a slash in front.
    pub fn path(&self, name: &str) -> PathBuf {
        self.root.join(name)
    }

    /// A file, open; not one that has no end or that would wait (a device, a pipe).
    ///
    /// # Errors
    /// If it cannot be opened or is no ordinary file.
    pub fn open(&self, name: &str) -> Result<File, KernelError> {
        let path = self.path(name);
        let read = |source| KernelError::Read { path: path.clone(), source };
        if !path.metadata().map_err(read)?.is_file() {
            return Err(KernelError::damaged(&path, "it is no ordinary file"));
        }
        File::open(&path).map_err(read)
    }

    /// All bytes of a file.
    ///
    /// # Errors
    /// If it cannot be read, or has no end.
    pub fn bytes(&self, name: &str) -> Result<Vec<u8>, KernelError> {
        let (file, path) = (self.open(name)?, self.path(name));
        let mut bytes = Vec::new();
        let read = file.take(LONGEST + 1).read_to_end(&mut bytes);
        read.map_err(|source| KernelError::Read { path: path.clone(), source })?;
        if bytes.len() as u64 > LONGEST {
            return Err(KernelError::damaged(&path, format!("it is longer than {} MiB", LONGEST >> 20)));
        }
        Ok(bytes)
    }

    /// The text of a file; what is no UTF-8 in it is replaced.
    ///
    /// # Errors
    /// As for [`Self::bytes`].
    pub fn text(&self, name: &str) -> Result<String, KernelError> {
        let bytes = self.bytes(name)?;
        Ok(String::from_utf8(bytes).unwrap_or_else(|e| String::from_utf8_lossy(e.as_bytes()).into_owned()))
    }

    /// The text of a file that a kernel may do without, or not show to everybody.
    ///
    /// # Errors
    /// If it is there and is nothing that a kernel would have there.
    pub fn text_if_any(&self, name: &str) -> Result<Option<String>, KernelError> {
        match self.text(name) {
            Ok(text) => Ok(Some(text)),
            Err(error @ KernelError::Damaged { .. }) => Err(error),
            Err(_) => Ok(None),
        }
    }
}
