//! A kernel, the distribution's or one that was built here: its image, configuration and module files.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::Result;
use crate::command::run;
use crate::error::Error;

/// Modules without which a guest has no disk and no channel to its host, where the kernel does not have them
/// built in.
const NEEDED: [&str; 2] = ["virtio_console", "virtio_blk"];

/// The file of a kernel that was built here in which its release is.
const RELEASE: &str = "release";
/// The folder beside it that the kernel was built in.
const TREE: &str = "build";

/// A kernel that was fetched, or built here.
#[derive(Debug, Clone)]
pub struct Kernel {
    line: String,
    release: String,
    stands_in: bool,
    root: PathBuf,
    tree: Option<PathBuf>,
}

impl Kernel {
    /// The kernel below `root`, where its packages are unpacked.
    pub(crate) fn new(line: &str, release: String, stands_in: bool, root: PathBuf) -> Self {
        Self { line: line.into(), release, stands_in, root, tree: None }
    }

    /// A kernel that was built here. Its folder has a file `release`, what packages have in `boot` and
    /// `lib/modules`, and `build`, the folder that it was built in.
    pub(crate) fn built(root: &Path) -> Result<Self> {
        let root = root.canonicalize().map_err(Error::file("find the folder of a kernel", root))?;
        let path = root.join(RELEASE);
        let release = fs::read_to_string(&path).map_err(Error::file("read", &path))?.trim().to_owned();
        let tree = Some(root.join(TREE));
        Ok(Self { line: root.display().to_string(), release, stands_in: false, root, tree })
    }

    /// The folder in which it was built, if it was built here.
    pub(crate) fn tree(&self) -> Option<&Path> {
        self.tree.as_deref()
    }

    /// The line: `6.1`; the folder of one that was built here.
    pub fn line(&self) -> &str {
        &self.line
    }

    /// What `uname -r` says in the guest.
    pub fn release(&self) -> &str {
        &self.release
    }

    /// Whether the pinned version is gone from the archive and this one was taken in its place.
    pub fn stands_in(&self) -> bool {
        self.stands_in
    }

    /// The folder of module files.
    pub fn modules(&self) -> PathBuf {
        let beside_usr = self.root.join("lib/modules").join(&self.release);
        let in_usr = self.root.join("usr/lib/modules").join(&self.release);
        if in_usr.exists() { in_usr } else { beside_usr }
    }

    /// The image that is booted.
    pub fn image(&self) -> Result<PathBuf> {
        self.part("vmlinuz")
    }

    /// The configuration that it was built with.
    pub fn config(&self) -> Result<PathBuf> {
        self.part("config")
    }

    /// The addresses of its symbols, as linked.
    pub fn system_map(&self) -> Result<PathBuf> {
        self.part("System.map")
    }

    /// A part by its name: beside the modules, or in `boot` with the release behind it.
    fn part(&self, name: &str) -> Result<PathBuf> {
        let places =
            [self.modules().join(name), self.root.join("boot").join(format!("{name}-{}", self.release))];
        places.into_iter().find(|path| path.exists()).ok_or_else(|| {
            Error::missing(
                format!("the packages of kernel {} have no {name}", self.release),
                "remove their folder from the cache, and see crates/guest/src/packages.rs",
            )
        })
    }

    /// The module files that a guest needs first, and `more`, in the order of loading: name and decompressed
    /// bytes.
    pub(crate) fn needed_modules(&self, more: &[String]) -> Result<Vec<Module>> {
        let mut modules = Vec::new();
        let files = module_files(&self.modules())?;
        for name in NEEDED.into_iter().chain(more.iter().map(String::as_str)) {
            self.add_module(name, &files, &mut modules)?;
        }
        Ok(modules)
    }

    /// The bytes of the module of that name, decompressed; none if there is no file of it (it may be built
    /// in).
    pub fn module(&self, name: &str) -> Result<Option<Vec<u8>>> {
        let files = module_files(&self.modules())?;
        file_of(name, &files).map(|path| decompressed(path)).transpose()
    }

    fn add_module(&self, name: &str, files: &[PathBuf], modules: &mut Vec<Module>) -> Result<()> {
        let name = name.replace('-', "_");
        if modules.iter().any(|known| known.name == name) {
            return Ok(());
        }
        let Some(path) = file_of(&name, files) else { return Ok(()) };
        let bytes = decompressed(path)?;
        for other in depends(&bytes) {
            self.add_module(&other, files, modules)?;
        }
        // What it asks for at run time, not by its symbols.
        if name == "virtio_console" || name == "virtio_blk" {
            self.add_module("virtio_pci", files, modules)?;
        }
        modules.push(Module { name, bytes });
        Ok(())
    }
}

/// A module file, decompressed.
pub(crate) struct Module {
    pub(crate) name: String,
    pub(crate) bytes: Vec<u8>,
}

/// All module files below a folder.
fn module_files(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        let entries = fs::read_dir(&folder).map_err(Error::file("read the folder", &folder))?;
        for entry in entries.filter_map(|entry| entry.ok()) {
            let path = entry.path();
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                folders.push(path);
            } else if path.file_name().is_some_and(|name| name.to_string_lossy().contains(".ko")) {
                files.push(path);
            }
        }
    }
    files.sort();
    Ok(files)
}

/// The file of a module; files use `-` and `_` for the same.
fn file_of<'a>(name: &str, files: &'a [PathBuf]) -> Option<&'a PathBuf> {
    files.iter().find(|path| {
        let file = path.file_name().unwrap_or_default().to_string_lossy().replace('-', "_");
        file.split(".ko").next() == Some(name)
    })
}

fn decompressed(path: &Path) -> Result<Vec<u8>> {
    if path.extension().is_some_and(|extension| extension == "xz") {
        return run(Command::new("xz").arg("-dc").arg(path));
    }
    fs::read(path).map_err(Error::file("read", path))
}

/// The modules that a module file names behind `depends=`.
fn depends(module: &[u8]) -> Vec<String> {
    const KEY: &[u8] = b"\0depends=";
    let Some(at) = module.windows(KEY.len()).position(|window| window == KEY) else { return Vec::new() };
    let text = &module[at + KEY.len()..];
    let end = text.iter().position(|&byte| byte == 0).unwrap_or(text.len());
    let names = String::from_utf8_lossy(&text[..end]).into_owned();
    names.split(',').filter(|name| !name.is_empty()).map(String::from).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modules_are_loaded_behind_those_that_they_depend_on() {
        let folder = restitch_testkit::scratch();
        let at = folder.path().join("lib/modules/1/kernel");
        fs::create_dir_all(&at).unwrap();
        let module = |name: &str, depends: &str| {
            fs::write(at.join(format!("{name}.ko")), format!("\0author=x\0depends={depends}\0")).unwrap();
        };
        module("virtio_console", "virtio,virtio_ring");
        module("virtio", "virtio_ring");
        module("virtio_ring", "");
        module("virtio-pci", "virtio");
        module("more", "virtio");
        let kernel = Kernel::new("1", "1".into(), false, folder.path().into());
        let names: Vec<_> =
            kernel.needed_modules(&["more".into()]).unwrap().into_iter().map(|module| module.name).collect();
        assert_eq!(names, ["virtio_ring", "virtio", "virtio_pci", "virtio_console", "more"]);
    }

    #[test]
    fn a_kernel_that_was_built_here_is_in_a_folder_as_packages_have_it() {
        let folder = restitch_testkit::scratch();
        let error = Kernel::built(folder.path()).unwrap_err();
        assert!(error.to_string().contains("release"), "{error}");
        fs::create_dir_all(folder.path().join("boot")).unwrap();
        fs::write(folder.path().join("release"), "6.1.0-own\n").unwrap();
        fs::write(folder.path().join("boot/vmlinuz-6.1.0-own"), "").unwrap();
        let kernel = Kernel::built(folder.path()).unwrap();
        assert_eq!(kernel.release(), "6.1.0-own");
        assert!(kernel.image().unwrap().ends_with("boot/vmlinuz-6.1.0-own"));
        assert!(kernel.tree().unwrap().ends_with("build") && !kernel.stands_in());
    }
}
