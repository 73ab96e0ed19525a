//! What a kernel says of itself, in a folder.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use crate::Result;
use crate::error::Error;
use crate::guest::Guest;
use crate::job::Job;
use crate::kcore::assemble_kcore;
use crate::kernel::Kernel;

/// What the guest does for it.
const SCRIPT: &str = include_str!("view.sh");

/// Where the guest collects it.
const FOLDER: &str = "view/";

/// Boots a guest and copies what its kernel says of itself into `folder`, which must not exist, under the
/// names that it has in the guest: `proc/kallsyms`, `proc/modules`, `sys/kernel/notes`, and so on.
///
/// `proc/kcore` is a core file with the kernel's own image (text and data) and the areas of its modules, at
/// offsets of their own. `boot/config-RELEASE` and the module files that the guest inserted, in
/// `lib/modules/RELEASE`, are added.
pub fn take_view(guest: &Guest<'_>, kernel: &Kernel, folder: &Path) -> Result<()> {
    if folder.exists() {
        return Err(Error::Usage(format!("{} exists; name a folder that does not", folder.display())));
    }
    let job = Job { script: SCRIPT.into(), files_out: vec!["/view".into()], ..Job::default() };
    let output = guest.run(&job)?;
    if output.status != 0 || !output.text.is_empty() {
        return Err(Error::damaged(
            "the kernel's view",
            format!("status {}: {}", output.status, output.text),
        ));
    }
    let mut parts = BTreeMap::new();
    let mut head = None;
    for (path, bytes) in output.files {
        let Some(path) = path.strip_prefix(FOLDER) else { continue };
        match path.strip_prefix("parts/") {
            Some(address) => {
                let address = u64::from_str_radix(address, 16);
                let address =
                    address.map_err(|_| Error::damaged("the kernel's view", "a part has no address"))?;
                parts.insert(address, bytes);
            }
            None if path == "head" => head = Some(bytes),
            None => write(&folder.join(path), &bytes)?,
        }
    }
    let head = head.ok_or_else(|| Error::damaged("the kernel's view", "it has no head of /proc/kcore"))?;
    write(&folder.join("proc/kcore"), &assemble_kcore(&head, &parts)?)?;
    add_files(kernel, folder)
}

/// What the distribution has in files.
fn add_files(kernel: &Kernel, folder: &Path) -> Result<()> {
    let config = kernel.config()?;
    let bytes = fs::read(&config).map_err(Error::file("read", &config))?;
    write(&folder.join("boot").join(format!("config-{}", kernel.release())), &bytes)?;
    let modules = folder.join("lib/modules").join(kernel.release());
    for module in kernel.needed_modules(&[])? {
        write(&modules.join(format!("{}.ko", module.name)), &module.bytes)?;
    }
    Ok(())
}

fn write(path: &Path, bytes: &[u8]) -> Result<()> {
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder).map_err(Error::file("make the folder", folder))?;
    }
    fs::write(path, bytes).map_err(Error::file("write", path))
}
