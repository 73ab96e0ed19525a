//! The cache of fetched packages, and what is in it.

use std::fs;
use std::path::{Path, PathBuf};

use crate::Result;
use crate::archive::Archive;
use crate::cache::Cache;
use crate::error::Error;
use crate::kernel::Kernel;
use crate::packages::{BUSYBOX, KERNELS, Line, QEMU};

/// The environment variable that names the cache folder.
const FOLDER: &str = "RESTITCH_GUEST_CACHE";

/// The cache of QEMU, kernels and images.
#[derive(Debug, Clone)]
pub struct Lab {
    cache: Cache,
}

impl Lab {
    /// The cache in the folder that `RESTITCH_GUEST_CACHE` names, else in the user's folder of caches.
    pub fn open() -> Result<Self> {
        let named = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        let in_home = || named("HOME").map(|home| home.join(".cache"));
        let folder = named(FOLDER)
            .or_else(|| Some(named("XDG_CACHE_HOME").or_else(in_home)?.join("restitch").join("guest")))
            .ok_or_else(|| Error::Usage(format!("no folder for caches; set {FOLDER} or HOME")))?;
        Self::in_folder(&folder)
    }

    /// The cache in that folder.
    pub fn in_folder(folder: &Path) -> Result<Self> {
        Ok(Self { cache: Cache::open(folder)? })
    }

    /// The folder of the cache.
    pub fn folder(&self) -> &Path {
        self.cache.root()
    }

    pub(crate) fn cache(&self) -> &Cache {
        &self.cache
    }

    /// Runs `act` with apt; one at a time.
    pub(crate) fn with_archive(&self, act: impl FnOnce(&Archive) -> Result<()>) -> Result<()> {
        let _lock = self.cache.lock("apt")?;
        act(&Archive::open(&self.cache)?)
    }

    /// The folder below which QEMU and its libraries are.
    pub fn qemu(&self) -> Result<PathBuf> {
        self.cache.entry(&format!("qemu-{}", file_name(QEMU.version)), |to| {
            self.with_archive(|archive| archive.unpack_pinned(&QEMU, to))?;
            for useless in ["usr/share/doc", "usr/share/man", "usr/share/locale"] {
                // Missing is as good as removed.
                let _ = fs::remove_dir_all(to.join(useless));
            }
            Ok(())
        })
    }

    /// The guests' own programs: a static busybox.
    pub(crate) fn busybox(&self) -> Result<PathBuf> {
        let folder = self.cache.entry(&format!("busybox-{}", file_name(BUSYBOX.version)), |to| {
            self.with_archive(|archive| archive.unpack_pinned(&BUSYBOX, to))
        })?;
        let places = ["bin/busybox", "usr/bin/busybox"].map(|place| folder.join(place));
        let found = places.into_iter().find(|path| path.exists());
        found.ok_or_else(|| {
            Error::missing("busybox-static has no busybox", "see crates/guest/src/packages.rs")
        })
    }

    /// A kernel by its line: `6.1`, `6.12` or `7.3`; or one that was built here, by the path of its folder,
    /// which has a `/`.
    pub fn kernel(&self, name: &str) -> Result<Kernel> {
        if name.contains('/') {
            return Kernel::built(Path::new(name));
        }
        let Some(line) = KERNELS.iter().find(|line| line.name == name) else {
            let known: Vec<&str> = KERNELS.iter().map(|line| line.name).collect();
            return Err(Error::Usage(format!("there is no kernel {name}; there are {}", known.join(", "))));
        };
        let folder =
            self.cache.entry(&format!("kernel-{}-{}", line.name, file_name(line.version)), |to| {
                self.with_archive(|archive| {
                    let release = fetch_kernel(archive, line, to)?;
                    let path = to.join("release");
                    fs::write(&path, release).map_err(Error::file("write", &path))
                })
            })?;
        let path = folder.join("release");
        let release = fs::read_to_string(&path).map_err(Error::file("read", &path))?;
        let stands_in = release != line.release;
        Ok(Kernel::new(line.name, release, stands_in, folder))
    }
}

/// Fetches the pinned kernel, or else the newest of its line; returns the release.
fn fetch_kernel(archive: &Archive, line: &Line, to: &Path) -> Result<String> {
    let exact = line.packages.iter().map(|begin| format!("{begin}{}={}", line.release, line.version));
    let missing = match archive.unpack(&exact.collect::<Vec<_>>(), to) {
        Ok(()) => return Ok(line.release.into()),
        Err(error) if error.is_missing() => error,
        Err(error) => return Err(error),
    };
    let Some(release) = archive.newest_release(line.packages[0], line.family)? else { return Err(missing) };
    let newest = line.packages.iter().map(|begin| format!("{begin}{release}"));
    archive.unpack(&newest.collect::<Vec<_>>(), to)?;
    Ok(release)
}

/// A version as a part of a file's name.
pub(crate) fn file_name(version: &str) -> String {
    version.replace([':', '/', '~'], "-")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kernel_that_nobody_knows_is_refused_with_those_that_there_are() {
        let folder = restitch_testkit::scratch();
        let error = Lab::in_folder(folder.path()).unwrap().kernel("2.4").unwrap_err();
        assert_eq!(error.to_string(), "there is no kernel 2.4; there are 6.1, 6.12, 7.3");
    }
}
