//! Folders that nobody else can change.

use crate::state::state_file::effective_user;
use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// The right of group and others to add, remove and rename files.
const WRITABLE_BY_OTHERS: u32 = 0o022;
/// Files in the folder can be renamed and removed by their owners only (as in `/tmp`).
const STICKY: u32 = 0o1000;

/// Why somebody other than this user and root could exchange what is in a folder, and what mends that;
/// `is_own`: it has to be this user's alone.
pub(crate) fn doubt(folder: &Path, about: &Metadata, is_own: bool) -> Option<String> {
    let (name, owner) = (folder.display(), about.uid());
    if !is_trusted(owner) {
        return Some(format!(
            "the folder {name} belongs to user {owner}, who could exchange what is in it; set RESTITCH_STATE_DIR to a \
             folder that is in none but root's and your own"
        ));
    }
    let may_be_shared = !is_own && about.mode() & STICKY != 0;
    (about.mode() & WRITABLE_BY_OTHERS != 0 && !may_be_shared).then(|| {
        format!(
            "others may write to the folder {name} of user {owner} (mode {:o}), and so could exchange what is in it; \
             run: chmod go-w {name}, or set RESTITCH_STATE_DIR to another folder",
            about.mode() & 0o7777
        )
    })
}

/// Whether a user is this one or root. In a user namespace root may be one of those that have no number
/// there, as seen from inside.
fn is_trusted(user: u32) -> bool {
    [0, effective_user()].contains(&user) || is_without_number(user)
}

/// Whether this is the number of all those that have none in this user namespace.
fn is_without_number(user: u32) -> bool {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let is_overflow = || read("/proc/sys/kernel/overflowuid").trim().parse() == Ok(user);
    let has_all = |map: &str| map.split_whitespace().eq(["0", "0", "4294967295"]);
    is_overflow() && !has_all(&read("/proc/self/uid_map"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use restitch_testkit::scratch;
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn folders_that_others_may_change_are_doubted() {
        let folder = scratch();
        let doubted = |mode: u32, is_own: bool| {
            std::fs::set_permissions(folder.path(), Permissions::from_mode(mode)).expect("our own");
            doubt(folder.path(), &std::fs::metadata(folder.path()).expect("there"), is_own)
        };
        for (mode, is_own, is_doubted) in [
            (0o700, true, false),
            (0o755, true, false),
            (0o775, true, true),
            (0o1777, true, true),
            (0o1777, false, false),
            (0o777, false, true),
            (0o702, false, true),
        ] {
            let doubt = doubted(mode, is_own);
            assert_eq!(doubt.is_some(), is_doubted, "{mode:o}");
            let helps = format!(
                "(mode {mode:o}), and so could exchange what is in it; run: chmod go-w {}, ",
                folder.path().display()
            );
            assert!(doubt.is_none_or(|why| why.contains(&helps)), "{mode:o}");
        }
        doubted(0o700, true);
        if effective_user() == 0 {
            std::os::unix::fs::chown(folder.path(), Some(65533), None).expect("root may");
            let why = doubted(0o700, false).expect("somebody else's");
            assert!(why.contains("65533"), "{why}");
        }
    }
}
