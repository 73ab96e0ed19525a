//! Who may read a version's file: nobody who could not read the module that it is a copy of.

use crate::target::Module;
use restitch_procfs::FileIdentity;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// The mode of a version's file that is this user's alone.
const OWN: u32 = 0o600;
/// That of one that everybody may read.
const PUBLIC: u32 = 0o644;

/// The mode that the file of a version of `module` is to have. Whoever may not read it gets a memory file of
/// its own.
pub(crate) fn mode_for(module: &Module) -> u32 {
    let is_public = module.is_vdso() || is_public(&module.path, module.identity);
    if is_public { PUBLIC } else { OWN }
}

/// Whether everybody may read a file, by this path. One that has another name here, or none any more, does
/// not count.
fn is_public(path: &Path, identity: FileIdentity) -> bool {
    let Ok(real) = std::fs::canonicalize(path) else { return false };
    let may =
        |path: &Path, right: u32| std::fs::symlink_metadata(path).is_ok_and(|m| m.mode() & right == right);
    let is_it = |file: std::fs::File| {
        restitch_procfs::identity_when_mapped(&file).is_ok_and(|found| found == identity)
    };
    may(&real, 0o004)
        && real.ancestors().skip(1).all(|folder| may(folder, 0o001))
        && restitch_procfs::open_regular(&real).is_ok_and(is_it)
}

#[cfg(test)]
mod tests {
    use super::*;
    use restitch_testkit::scratch;
    use std::fs::{File, Permissions};
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_file_is_public_as_are_the_folders_above() {
        let folder = scratch();
        let file = folder.path().join("program");
        std::fs::write(&file, "text").expect("writable");
        let identity =
            restitch_procfs::identity_when_mapped(&File::open(&file).expect("ours")).expect("mapped");
        let set = |path: &Path, mode| {
            std::fs::set_permissions(path, Permissions::from_mode(mode)).expect("our own")
        };
        for (of_folder, of_file, expected) in
            [(0o711, 0o604, true), (0o755, 0o711, false), (0o700, 0o755, false)]
        {
            set(folder.path(), of_folder);
            set(&file, of_file);
            assert_eq!(is_public(&file, identity), expected, "{of_folder:o} {of_file:o}");
        }
        set(folder.path(), 0o755);
        let other = FileIdentity { inode: identity.inode + 1, ..identity };
        assert!(!is_public(&file, other), "another file");
        assert!(!is_public(&folder.path().join("none"), identity));
    }
}
