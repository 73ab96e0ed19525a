//! Overlays that `restitch batch` has put into a process when it began.

use crate::error::ProcessError;
use restitch_address::Avma;
use restitch_procfs::{self as procfs, Mapping};
use std::path::{Path, PathBuf};

/// An overlay among the maps of a process, if it runs in one.
pub(crate) fn overlay_in(maps: &[Mapping]) -> Option<PathBuf> {
    let code = maps.iter().filter(|m| m.permissions.execute);
    code.filter_map(Mapping::path).map(PathBuf::from).find(|path| is_overlay(path))
}

/// The code at `at` is not that of the file. A process that was looked at when it had just begun may be in
/// overlays meanwhile: then that is why.
pub(crate) fn foreign_code(pid: i32, at: Avma, found: Vec<u8>, expected: Vec<u8>) -> ProcessError {
    match procfs::maps(pid).ok().as_deref().and_then(overlay_in) {
        Some(overlay) => ProcessError::Overlaid { pid, overlay },
        None => ProcessError::Foreign { pid, at, found, expected },
    }
}

/// Whether a file is an overlay of the preloaded agent: they are named by build id and kind, and `.overlay`
/// where they were exported.
fn is_overlay(path: &Path) -> bool {
    let name = path.file_name().and_then(|n| n.to_str()).unwrap_or_default();
    let id = [".overlay", ".optimized", ".counting"].iter().find_map(|kind| name.strip_suffix(kind));
    let id = id.unwrap_or_default();
    id.len() >= 16 && id.bytes().all(|b| b.is_ascii_hexdigit())
}

#[cfg(test)]
mod tests {
    use super::*;
    use restitch_procfs::MappingName;

    #[test]
    fn overlays_are_told_by_name_and_code() {
        let mut maps = procfs::maps(std::process::id() as i32).expect("our own");
        assert_eq!(overlay_in(&maps), None);
        let code = |m: &&mut Mapping| m.permissions.execute && m.path().is_some();
        let line = maps.iter_mut().find(code).expect("our program");
        let MappingName::File { path, .. } = &mut line.name else { unreachable!("it has a path") };
        *path = "/cache/v1/0123456789abcdef.optimized".into();
        let named = path.clone();
        assert_eq!(overlay_in(&maps), Some(named));
        maps.iter_mut().for_each(|m| m.permissions.execute = false);
        assert_eq!(overlay_in(&maps), None);
    }
}
