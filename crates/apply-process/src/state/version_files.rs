//! The files of a version, and how they are recognised in memory maps.

use crate::state::map_file::sum;
use crate::state::state_file;
use restitch_procfs::{FileIdentity, Mapping, MappingName, identity_when_mapped};
use std::ffi::{CString, OsStr};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Ending of every version file's name (also of memory files), by which, with the checksum before it, memory
/// maps are recognised.
pub(crate) const MARK: &str = "restitch-version";
/// Ending of the file with a version's address map.
const MAP: &str = "restitch-map";
/// Ending of the file with a version's journal record.
pub(crate) const RECORD: &str = "restitch-record";
/// Ending of the note that a version is kept for core files.
const ENDED: &str = "restitch-ended";
/// What the kernel puts in front of a memory file's name in memory maps.
const MEMORY_FILE: &str = "/memfd:";

/// Most characters of a module's name in the names of its files: a name may have 255 bytes, and they add to
/// it.
const MOST_OF_NAME: usize = 120;

/// The files of one version that all processes share in which it lies equally far from its module.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct VersionFiles {
    /// The ELF image that targets map.
    pub version: PathBuf,
    /// Its address map.
    pub map: PathBuf,
}

impl VersionFiles {
    /// Those in `folder` of a version of `module`: named by the contents of both, since code that refers to
    /// nothing outside itself is the same bytes at any distance from its module, and its map is not.
    pub fn named(folder: &Path, module: &str, version: &[u8], map: &[u8]) -> Self {
        let safe = |c: char| if c.is_ascii_alphanumeric() || "._-+".contains(c) { c } else { '_' };
        let module: String = module.chars().map(safe).take(MOST_OF_NAME).collect();
        let content = [sum(version), sum(map)].map(u64::to_le_bytes).concat();
        Self::of(&folder.join(format!("{module}.{:016x}.{MARK}", sum(&content))))
    }

    /// From the path of the version file.
    pub fn of(version: &Path) -> Self {
        Self { version: version.into(), map: version.with_extension(MAP) }
    }

    /// The note that the version is kept for core files: empty; its time is that from which on.
    pub fn ended(&self) -> PathBuf {
        self.version.with_extension(ENDED)
    }

    /// The image that a note ([`VersionFiles::ended`]) speaks of, if `path` is one.
    pub fn image_of_note(path: &Path) -> Option<PathBuf> {
        (path.extension()? == ENDED).then(|| path.with_extension(MARK))
    }

    /// The version's journal record for children that inherit its mapping at `start`: other processes have it
    /// elsewhere.
    pub fn record(&self, start: u64) -> PathBuf {
        self.version.with_extension(format!("{start:x}.{RECORD}"))
    }
}

/// The version that a file in the state directory is part of, whether or not its image is there.
pub(crate) fn version_of(path: &Path) -> Option<PathBuf> {
    match path.extension()?.to_str()? {
        MARK | MAP | ENDED => Some(path.with_extension(MARK)),
        // Before the ending is the place.
        RECORD => Some(path.with_extension("").with_extension(MARK)),
        _ => None,
    }
}

/// The name of the memory file that stands for a version's image in a process that does not see the state
/// directory. By it, children of that process are recognised, as by the image's path elsewhere.
pub(crate) fn memory_name(version: &Path) -> CString {
    CString::new(version.file_name().unwrap_or_default().as_bytes()).unwrap_or_default()
}

/// The image in the state directory `folder` that a mapping shows, itself or as a memory file
/// ([`memory_name`]).
///
/// Whoever has mapped a file has chosen its name, and where it lies: only a name is taken from it, and leads
/// nowhere but to what we have written ourselves. A file that is still there has to be that of the directory.
/// Memory files, and files that were removed since, are known by their names alone: a process that maps one
/// under such a name is taken for one that has our version, and spoils nothing but itself.
pub(crate) fn image_of(mapping: &Mapping, folder: &Path) -> Option<PathBuf> {
    let MappingName::File { path, deleted } = &mapping.name else { return None };
    let path = Some(path).filter(|path| is_version_file(path))?;
    let (name, is_gone) = match path.to_str().and_then(|path| path.strip_prefix(MEMORY_FILE)) {
        Some(name) => (OsStr::new(name), true),
        None => (path.file_name()?, *deleted),
    };
    let image = folder.join(name);
    let is_image = image.parent() == Some(folder) && image.extension() == Some(OsStr::new(MARK));
    (is_image && (is_gone || shows(mapping, &image))).then_some(image)
}

/// Whether a mapping shows this file. (Some file systems have another device and inode in memory maps than
/// `stat` gives.)
fn shows(mapping: &Mapping, file: &Path) -> bool {
    let Ok(file) = state_file::open(file) else { return false };
    let as_mapped = || identity_when_mapped(&file).is_ok_and(|identity| identity.matches(mapping));
    FileIdentity::of(&file).is_ok_and(|identity| identity.matches(mapping)) || as_mapped()
}

/// Whether a mapped file has a name that [`VersionFiles::named`] gives to versions. Programs of others that
/// only have the ending's words in theirs, or lie in folders that do, are none.
pub(crate) fn is_version_file(path: &Path) -> bool {
    let is_sum = |sum: &OsStr| {
        sum.len() == 16 && sum.as_bytes().iter().all(|c| matches!(c, b'0'..=b'9' | b'a'..=b'f'))
    };
    let before = path.file_stem().map(Path::new).filter(|_| path.extension() == Some(OsStr::new(MARK)));
    before.and_then(Path::extension).is_some_and(is_sum)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_images_with_other_maps_are_other_versions() {
        let of = |version: &str, map: &str| {
            VersionFiles::named(Path::new("/state"), "lib a.so", version.as_bytes(), map.as_bytes())
        };
        assert_eq!(of("image", "map"), of("image", "map"));
        assert_ne!(of("image", "map").version, of("image", "another").version);
        let long = VersionFiles::named(Path::new("/state"), &"n".repeat(255), b"image", b"map");
        let longest = [long.record(u64::MAX), long.ended(), long.map].into_iter().chain([long.version]);
        // What is being written has a mark of its own (`restitch_apply::writer_of`).
        let fits = |path: PathBuf| path.file_name().is_some_and(|name| name.len() < 220);
        assert!(longest.into_iter().all(fits));
        assert_ne!(of("image", "map").version, of("another", "map").version);
    }

    #[test]
    fn memory_files_are_known_by_their_names() {
        let (state, elsewhere) = (restitch_testkit::scratch(), restitch_testkit::scratch());
        let folder = state.path();
        let files = VersionFiles::named(folder, "libz.so.1", b"image", b"map");
        std::fs::write(&files.version, "image").unwrap();
        let about = FileIdentity::of(&std::fs::File::open(&files.version).unwrap()).unwrap();
        let (device, inode) = (about.device, about.inode);
        let mapped = |name: &str, inode: u64| {
            let line =
                format!("1000-2000 r-xp 00000000 {:x}:{:x} {inode} {name}\n", device.major, device.minor);
            image_of(&restitch_procfs::parse_maps(line.as_bytes()).unwrap()[0], folder)
        };
        let shown = |name: &str| mapped(name, inode);
        let name = memory_name(&files.version).into_string().unwrap();
        assert_eq!(shown(&format!("/memfd:{name} (deleted)")).as_ref(), Some(&files.version));
        let path = files.version.display().to_string();
        assert_eq!(shown(&path).as_ref(), Some(&files.version));
        assert_eq!(
            mapped(&path, inode + 1),
            None,
            "another file, which has that name in another mount namespace"
        );
        assert_eq!(mapped(&format!("{path} (deleted)"), inode + 1).as_ref(), Some(&files.version));
        // Whatever lies beside a file elsewhere is not asked.
        let other = elsewhere.path().join(files.version.file_name().unwrap());
        assert_eq!(
            shown(&other.display().to_string()).as_ref(),
            Some(&files.version),
            "as a container sees it"
        );
        assert_eq!(mapped(&other.display().to_string(), inode + 1), None);
        assert_eq!(shown(&files.map.display().to_string()), None);
        assert_eq!(shown("/memfd:../elsewhere/x.restitch-version (deleted)"), None);
        assert_eq!(shown("/memfd:another (deleted)"), None);
        assert_eq!(shown(""), None);
    }

    #[test]
    fn programs_of_others_are_no_versions() {
        let ours = VersionFiles::named(Path::new("/state"), "libz.so.1", b"image", b"map").version;
        let in_memory = format!("{MEMORY_FILE}{}", memory_name(&ours).to_str().unwrap());
        assert!(is_version_file(&ours) && is_version_file(Path::new(&in_memory)));
        for other in [
            "/usr/bin/restitch-version",
            "/srv/restitch-version-3/bin/server",
            "/srv/0123456789abcdef.restitch-version/server",
            "/usr/bin/server.restitch-version",
            "/usr/bin/server.0123456789abcde.restitch-version",
            "/usr/bin/server.0123456789abcdef.restitch-versions",
        ] {
            assert!(!is_version_file(Path::new(other)), "{other}");
        }
    }

    #[test]
    fn each_file_tells_its_version() {
        let files = VersionFiles::named(Path::new("/state"), "libz.so.1", b"image", b"map");
        assert_ne!(files.record(0x1000), files.record(0x2000));
        for path in [&files.version, &files.map, &files.ended(), &files.record(0x7f00_0000_1000)] {
            assert_eq!(version_of(path).as_ref(), Some(&files.version), "{}", path.display());
        }
        assert_eq!(version_of(Path::new("/state/12-34.json")), None);
        assert_eq!(VersionFiles::image_of_note(&files.ended()).as_ref(), Some(&files.version));
        assert_eq!(VersionFiles::image_of_note(&files.map), None);
    }
}
