//! Module files of a kernel, which say what modules of it look like.

use crate::error::KernelError;
use crate::source::Source;
use std::fs;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

/// Where they are, by folders with the names of releases.
const MODULES: &str = "lib/modules";
/// How the name of the control module's file begins.
const CONTROL: [&str; 2] = ["restitch_kernel.ko", "restitch-kernel.ko"];
/// The longest file that is taken, as it is and unpacked. The largest modules have some 30 MB.
const LONGEST: u64 = 256 << 20;

/// How a file is packed, the easiest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Packed {
    Plain,
    Xz,
    Zstd,
}

impl Packed {
    fn of(path: &Path) -> Option<Self> {
        let name = path.file_name()?.to_str()?;
        let ends = [(".ko", Self::Plain), (".ko.xz", Self::Xz), (".ko.zst", Self::Zstd)];
        ends.into_iter().find(|(end, _)| name.ends_with(end)).map(|(_, packed)| packed)
    }
}

/// Module files that were built for a kernel.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ModuleFiles {
    /// All that can be read, those first that are not packed.
    pub all: Vec<PathBuf>,
    /// The control module's, if it is installed.
    pub control: Option<PathBuf>,
}

/// Finds the module files of a kernel of that release.
///
/// # Errors
/// If there are none.
pub fn module_files(source: &Source, release: &str) -> Result<ModuleFiles, KernelError> {
    let folder = folder(source, release);
    let mut all = Vec::new();
    let mut open = vec![folder.clone()];
    while let Some(folder) = open.pop() {
        let Ok(entries) = fs::read_dir(&folder) else { continue };
        for entry in entries.filter_map(Result::ok) {
            match entry.file_type() {
                // Links lead out of it, to what modules were built of.
                Ok(kind) if kind.is_dir() => open.push(entry.path()),
                Ok(kind) if kind.is_file() => {
                    all.extend(Packed::of(&entry.path()).map(|packed| (packed, entry.path())));
                }
                _ => {}
            }
        }
    }
    all.sort();
    let all: Vec<PathBuf> = all.into_iter().map(|(_, path)| path).collect();
    if all.is_empty() {
        return Err(KernelError::NoModules { path: folder });
    }
    let is_control = |path: &&PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        CONTROL.iter().any(|control| name.starts_with(control))
    };
    Ok(ModuleFiles { control: all.iter().find(is_control).cloned(), all })
}

/// That of the release; in copies of a kernel's files, the only one.
fn folder(source: &Source, release: &str) -> PathBuf {
    let modules = source.path(MODULES);
    let own = modules.join(release);
    if source.is_running() || own.is_dir() {
        return own;
    }
    let folders = fs::read_dir(&modules).into_iter().flatten().filter_map(Result::ok);
    let folders: Vec<PathBuf> = folders.map(|entry| entry.path()).filter(|path| path.is_dir()).collect();
    if let [only] = &folders[..] { only.clone() } else { own }
}

/// The bytes of a module file, unpacked.
///
/// # Errors
/// If it cannot be read or unpacked, or is too long to be one.
pub fn read_module(path: &Path) -> Result<Vec<u8>, KernelError> {
    let read = |source| KernelError::Read { path: path.into(), source };
    let mut packed = Vec::new();
    fs::File::open(path).and_then(|file| file.take(LONGEST).read_to_end(&mut packed)).map_err(read)?;
    let mut plain = Bounded(Vec::new());
    let unpacked = match Packed::of(path) {
        Some(Packed::Xz) => lzma_rs::xz_decompress(&mut &packed[..], &mut plain).map_err(io::Error::other),
        Some(Packed::Zstd) => ruzstd::decoding::StreamingDecoder::new(&packed[..])
            .map_err(io::Error::other)
            .and_then(|mut file| io::copy(&mut file, &mut plain))
            .map(|_| ()),
        _ => return Ok(packed),
    };
    unpacked.map_err(read)?;
    Ok(plain.0)
}

/// Bytes that do not get longer than a module.
struct Bounded(Vec<u8>);

impl Write for Bounded {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if (self.0.len() + bytes.len()) as u64 > LONGEST {
            return Err(io::Error::other("it is too long for a module"));
        }
        self.0.extend_from_slice(bytes);
        Ok(bytes.len())
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use restitch_testkit::scratch;
    use ruzstd::encoding::{CompressionLevel, compress_to_vec};

    #[test]
    fn module_files_are_found_and_unpacked() {
        let view = scratch();
        let source = Source::folder(view.path());
        let missing = module_files(&source, "6.99").expect_err("there are none").to_string();
        assert!(missing.contains("lib/modules/6.99 holds no module file"), "{missing}");
        let folder = view.path().join("lib/modules/6.98");
        let file = |name: &str, bytes: &[u8]| {
            let path = folder.join(name);
            fs::create_dir_all(path.parent().expect("a folder")).expect("made");
            fs::write(&path, bytes).expect("written");
            path
        };
        let mut xz = Vec::new();
        lzma_rs::xz_compress(&mut &b"packed"[..], &mut xz).expect("packed");
        let packed = file("a/first.ko.xz", &xz);
        let zstd = file("a/first.ko.zst", &compress_to_vec(&b"other"[..], CompressionLevel::Fastest));
        let plain = file("z/last.ko", b"plain");
        let control = file("updates/dkms/restitch_kernel.ko", b"control");
        file("modules.dep", b"");
        std::os::unix::fs::symlink(&folder, folder.join("build")).expect("linked");
        let files = module_files(&source, "6.99").expect("the only folder");
        assert_eq!(files.all, [control.clone(), plain.clone(), packed.clone(), zstd.clone()]);
        assert_eq!(files.control, Some(control));
        let read = |path: &Path| read_module(path).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!((read(&plain), read(&packed)), (b"plain".to_vec(), b"packed".to_vec()));
        assert_eq!(read(&zstd), b"other");
        assert!(read_module(&file("bad.ko.xz", b"none")).is_err());
    }
}
