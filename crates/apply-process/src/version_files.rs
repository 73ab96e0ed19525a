//! The files of a version, and how they are recognised in memory maps.

use std::path::{Path, PathBuf};

/// Part of every version file's name (also of memory files), by which memory maps are recognised.
pub(crate) const MARK: &str = "restitch-version";
/// Ending of the file with a version's address map.
const MAP: &str = "restitch-map";
/// Ending of the file with a version's journal record.
const RECORD: &str = "restitch-record";

/// The files of one version.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct VersionFiles {
    /// The ELF image that targets map.
    pub version: PathBuf,
    /// Its address map.
    pub map: PathBuf,
    /// Its journal record, for children that inherit the mapping.
    pub record: PathBuf,
}

impl VersionFiles {
    /// Those in `folder` of a version of `module` whose file is `bytes`: named by content.
    pub fn named(folder: &Path, module: &str, bytes: &[u8]) -> Self {
        let safe = |c: char| if c.is_ascii_alphanumeric() || "._-+".contains(c) { c } else { '_' };
        let module: String = module.chars().map(safe).collect();
        Self::of(&folder.join(format!("{module}.{:016x}.{MARK}", crate::map_file::sum(bytes))))
    }

    /// From the path of the version file.
    pub fn of(version: &Path) -> Self {
        Self {
            version: version.into(),
            map: version.with_extension(MAP),
            record: version.with_extension(RECORD),
        }
    }
}

/// The version that a file in the state directory is part of, whether or not its image is there.
pub(crate) fn version_of(path: &Path) -> Option<PathBuf> {
    let ending = path.extension()?;
    [MARK, MAP, RECORD].iter().any(|e| ending == *e).then(|| path.with_extension(MARK))
}

/// Whether a mapped file is one of our versions.
pub(crate) fn is_version_file(path: &Path) -> bool {
    path.to_string_lossy().contains(MARK)
}
