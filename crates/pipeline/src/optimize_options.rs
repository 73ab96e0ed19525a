//! What `optimize` is asked for.

use crate::version_options::VersionOptions;
use std::path::PathBuf;

/// What to optimize.
#[derive(Debug, Clone)]
pub struct OptimizeOptions {
    /// The program or shared object.
    pub program: PathBuf,
    /// The profile file.
    pub profile: PathBuf,
    /// The new file.
    pub output: PathBuf,
    /// How to make the version.
    pub version: VersionOptions,
    /// In position-independent files, pointers to functions lead straight to the copy.
    pub pointers: bool,
}
