//! Files as they will look once they are mapped, and how far their file system can be trusted.

use crate::files::FileIdentity;
use crate::maps::parse_maps;
use restitch_address::Avma;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

/// How a file is named in the maps of those who map it: some file systems (btrfs, overlayfs) give another
/// device there than `stat` does.
///
/// # Errors
/// If the file cannot be mapped (it is empty, or no regular file), or the maps file says nothing of it.
pub fn identity_when_mapped(file: &File) -> io::Result<FileIdentity> {
    const LEN: usize = 1;
    // SAFETY: a new private mapping at a place of the kernel's choice; it is never read.
    let at = unsafe {
        libc::mmap(std::ptr::null_mut(), LEN, libc::PROT_READ, libc::MAP_PRIVATE, file.as_raw_fd(), 0)
    };
    if at == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    let maps = std::fs::read("/proc/self/maps");
    // SAFETY: mapped above, and nobody else knows of it.
    unsafe { libc::munmap(at, LEN) };
    let maps = parse_maps(&maps?).map_err(io::Error::other)?;
    let address = Avma::new(at as u64);
    let mapping = maps.into_iter().find(|m| m.range.contains(address));
    let mapping = mapping.ok_or_else(|| io::Error::other("the maps file does not have it"))?;
    Ok(FileIdentity { device: mapping.device, inode: mapping.inode })
}

/// How a file system keeps the time at which a file was changed last (`st_ctim`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChangeTimes {
    /// The kernel sets it whenever the content, the mode or a name changes, and nobody else can.
    Kept,
    /// As above, if the layer that the file comes from does so (overlayfs): an image may have a time that was
    /// made up.
    OfLayers,
    /// It may be anything: of network and archive file systems, and those that nothing is known of.
    Unknown,
}

/// How the file system that a file lies on keeps times of change.
///
/// # Errors
/// If the kernel does not say (fstatfs(2)).
pub fn change_times(file: &File) -> io::Result<ChangeTimes> {
    /// ext2 to ext4, XFS, btrfs, tmpfs, F2FS, ZFS, bcachefs (statfs(2)).
    const KEPT: [libc::__fsword_t; 7] =
        [0xef53, 0x5846_5342, 0x9123_683e, 0x0102_1994, 0xf2f5_2010, 0x2fc1_2fc1, 0xca45_1a4e];
    const OVERLAY: libc::__fsword_t = 0x794c_7630;
    let mut about = std::mem::MaybeUninit::<libc::statfs>::zeroed();
    // SAFETY: fstatfs writes a structure of this type; all bytes zero are one, too.
    let kind = unsafe {
        if libc::fstatfs(file.as_raw_fd(), about.as_mut_ptr()) != 0 {
            return Err(io::Error::last_os_error());
        }
        about.assume_init().f_type
    };
    Ok(match kind {
        kind if KEPT.contains(&kind) => ChangeTimes::Kept,
        OVERLAY => ChangeTimes::OfLayers,
        _ => ChangeTimes::Unknown,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::maps::MappingName;

    #[test]
    fn a_file_is_named_as_in_the_maps_of_those_who_have_it_mapped() {
        let own = std::env::current_exe().unwrap();
        let file = File::open(&own).unwrap();
        let identity = identity_when_mapped(&file).unwrap();
        let maps = parse_maps(&std::fs::read("/proc/self/maps").unwrap()).unwrap();
        let is_own = |name: &MappingName| matches!(name, MappingName::File { path, .. } if *path == own);
        let mapping = maps.iter().find(|m| is_own(&m.name)).expect("the program is mapped");
        assert_eq!((identity.device, identity.inode), (mapping.device, mapping.inode));
        assert!(identity_when_mapped(&File::open("/proc/self").unwrap()).is_err());
    }

    #[test]
    fn file_systems_without_files_keep_no_times() {
        assert_eq!(change_times(&File::open("/proc/self/stat").unwrap()).unwrap(), ChangeTimes::Unknown);
    }
}
