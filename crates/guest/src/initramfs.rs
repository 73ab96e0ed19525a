//! The first root file system of a guest.

use std::fs;
use std::path::Path;

use crate::Result;
use crate::cpio::Cpio;
use crate::error::Error;
use crate::job::{FileIn, Job, Source};
use crate::kernel::Module;

/// The first process.
const INIT: &str = include_str!("init.sh");
/// What stands in front of each script.
const FUNCTIONS: &str = include_str!("functions.sh");

/// What the first root file system is made of.
pub(crate) struct Ingredients<'a> {
    pub(crate) busybox: &'a Path,
    pub(crate) modules: &'a [Module],
    pub(crate) job: &'a Job,
    /// Files besides those of the job.
    pub(crate) more: &'a [FileIn],
    /// Whether the script runs in a root image.
    pub(crate) in_image: bool,
}

/// The archive that the kernel unpacks.
pub(crate) fn initramfs(ingredients: &Ingredients<'_>) -> Result<Vec<u8>> {
    let busybox = fs::read(ingredients.busybox).map_err(Error::file("read", ingredients.busybox))?;
    let mut archive = Cpio::default();
    for folder in ["/dev", "/proc", "/sys", "/tmp", "/in"] {
        archive.folder(folder);
    }
    archive.file("/bin/busybox", 0o755, &busybox);
    archive.file("/init", 0o755, INIT.as_bytes());
    let names: Vec<&str> = ingredients.modules.iter().map(|module| module.name.as_str()).collect();
    archive.file("/restitch/order", 0o644, names.join("\n").as_bytes());
    for module in ingredients.modules {
        archive.file(&format!("/restitch/modules/{}.ko", module.name), 0o644, &module.bytes);
    }
    let job = ingredients.job;
    archive.file("/restitch/script", 0o755, format!("{FUNCTIONS}{}", job.script).as_bytes());
    archive.file("/restitch/shell", 0o644, b"/bin/sh\n");
    let out: String = job.files_out.iter().map(|name| name.clone() + "\n").collect();
    archive.file("/restitch/out", 0o644, out.as_bytes());
    if ingredients.in_image {
        archive.file("/restitch/image", 0o644, b"");
    }
    let below = if ingredients.in_image { "/in" } else { "" };
    for file in ingredients.more.iter().chain(&job.files_in) {
        let permissions = if file.executable { 0o755 } else { 0o644 };
        archive.file(&format!("{below}{}", file.guest), permissions, &content(&file.source)?);
    }
    Ok(archive.finish())
}

fn content(source: &Source) -> Result<Vec<u8>> {
    match source {
        Source::Bytes(bytes) => Ok(bytes.clone()),
        Source::Path(path) => fs::read(path).map_err(Error::file("read", path)),
    }
}
