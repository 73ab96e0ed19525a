//! Which file systems are served by a process (FUSE), which need not answer.
//!
//! Looked up in the lists of mounts (proc_pid_mountinfo(5)), because to ask such a file system about itself
//! is to ask its server.

use crate::bounded;
use crate::holder::shared_path;
use crate::maps::Device;
use std::collections::BTreeMap;
use std::fs::File;
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::OnceLock;

/// The file systems that a process and this program see.
#[derive(Debug)]
pub struct Mounts {
    /// By device, whether a process serves it.
    served: BTreeMap<Device, bool>,
}

impl Mounts {
    /// Those of process `pid`, and our own.
    pub fn of(pid: i32) -> Self {
        let list = |path: &Path| bounded::read(path).unwrap_or_default();
        let mut served = parse(&list(Path::new("/proc/self/mountinfo")));
        served.extend(parse(&list(&shared_path(pid, "mountinfo"))));
        Self { served }
    }

    /// Whether files on `device` may be served by a process. So are those of a file system that is mounted
    /// nowhere any more. Not those of block devices, which only root can have served, and not memory.
    pub fn may_be_served(&self, device: Device) -> bool {
        let is_disk = device.major != 0;
        !is_disk && Some(device) != device_of_memory() && self.served.get(&device).copied().unwrap_or(true)
    }
}

/// `ID PARENT MAJOR:MINOR ROOT POINT OPTIONS [FIELDS...] - TYPE SOURCE OPTIONS`; what is no such line is
/// none.
fn parse(list: &[u8]) -> BTreeMap<Device, bool> {
    let text = String::from_utf8_lossy(list);
    text.lines().filter_map(parse_line).collect()
}

fn parse_line(line: &str) -> Option<(Device, bool)> {
    let (fields, behind) = line.split_once(" - ")?;
    let (major, minor) = fields.split(' ').nth(2)?.split_once(':')?;
    let device = Device { major: major.parse().ok()?, minor: minor.parse().ok()? };
    let kind = behind.split(' ').next()?;
    let is_fuse = ["fuse", "fuseblk"].contains(&kind.split('.').next()?);
    Some((device, is_fuse))
}

/// The device of the kernel's own file system in memory (memfd_create(2), shared memory), which is mounted
/// nowhere.
fn device_of_memory() -> Option<Device> {
    static DEVICE: OnceLock<Option<Device>> = OnceLock::new();
    *DEVICE.get_or_init(|| {
        // SAFETY: the kernel reads a constant name that ends in zero.
        let fd = unsafe { libc::memfd_create(c"device".as_ptr(), libc::MFD_CLOEXEC) };
        if fd < 0 {
            return None;
        }
        // SAFETY: the call has just made this descriptor for us; nobody else has it.
        let file = unsafe { File::from_raw_fd(fd) };
        debug_assert!(file.as_raw_fd() == fd);
        let number = file.metadata().ok()?.dev();
        Some(Device { major: libc::major(number), minor: libc::minor(number) })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIST: &[u8] = b"22 1 8:1 / / rw - ext4 /dev/sda1 rw\n\
        36 22 0:39 / /mnt/a rw,relatime shared:7 - fuse.sshfs me@there:/ rw\n\
        37 22 0:40 / /mnt/b rw - fuse served rw\n38 22 8:17 / /mnt/c rw - fuseblk /dev/sdb1 rw\n\
        39 22 0:41 / /mnt/fuse rw - tmpfs tmpfs rw\n40 22 0:42 / /sys rw - fusectl fusectl rw\nno line\n";

    #[test]
    fn file_systems_of_processes_are_told_from_those_of_the_kernel() {
        let mounts = Mounts { served: parse(LIST) };
        let served = |major, minor| mounts.may_be_served(Device { major, minor });
        assert!(served(0, 39) && served(0, 40));
        assert!(!served(0, 41) && !served(0, 42) && !served(8, 1));
        assert!(!served(8, 17), "only root can have it served");
        assert!(served(0, 4242) && !served(8, 4242), "mounted nowhere");
    }

    #[test]
    fn our_own_files_and_memory_are_of_the_kernel() {
        let mounts = Mounts::of(std::process::id() as i32);
        let device = device_of_memory().expect("the kernel has memory files");
        assert!(!mounts.may_be_served(device));
        let number = Path::new("/proc/self/status").metadata().expect("there").dev();
        assert!(!mounts.may_be_served(Device { major: libc::major(number), minor: libc::minor(number) }));
    }
}
