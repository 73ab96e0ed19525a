//! Programs and libraries as users name them.
//!
//! A name is that of a file, or a path. What runs is known by its file behind all links, though: `clang++` is
//! `clang-19`, and where `/bin` is a link nothing runs from there. So a name stands for the file that it
//! leads to as well.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

/// Whether a file has one of these names or paths.
pub(crate) fn is_named(path: &Path, names: &[String]) -> bool {
    names.iter().any(|name| Path::new(name) == path || path.file_name().is_some_and(|n| n == name.as_str()))
}

/// The names, and the files that they lead to by links: paths, and programs that a shell would find in the
/// folders of `search` (the value of `PATH`).
pub(crate) fn with_files(names: &[String], search: Option<&OsStr>) -> Vec<String> {
    let files = names.iter().filter_map(|name| file_of(name, search)?.into_os_string().into_string().ok());
    names.iter().cloned().chain(files).collect()
}

/// The file that a name leads to; nothing if there is none.
fn file_of(name: &str, search: Option<&OsStr>) -> Option<PathBuf> {
    if name.contains('/') {
        return Path::new(name).canonicalize().ok();
    }
    let folders = search.into_iter().flat_map(std::env::split_paths);
    folders.filter_map(|folder| folder.join(name).canonicalize().ok()).find(|file| file.is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_stands_for_what_it_leads_to() {
        let folder = tempfile::tempdir().unwrap();
        let base = folder.path().canonicalize().unwrap();
        let (real, bin, other) = (base.join("lib/tool-19"), base.join("bin"), base.join("other"));
        for folder in [real.parent().unwrap(), &bin, &other.join("tool")] {
            std::fs::create_dir_all(folder).unwrap();
        }
        std::fs::write(&real, "").unwrap();
        std::os::unix::fs::symlink("../lib/tool-19", bin.join("tool")).unwrap();
        let search = std::env::join_paths([&other, &base.join("gone"), &bin]).unwrap();
        let files = |name: &str| with_files(&[name.to_owned()], Some(&search));
        for name in ["tool", &*bin.join("tool").to_string_lossy()] {
            let names = files(name);
            assert!(is_named(&real, &names) && !is_named(&base.join("lib/tool-18"), &names), "{names:?}");
        }
        assert_eq!(
            files("tool-19"),
            ["tool-19"],
            "it is not in these folders, and known by its name all the same"
        );
        assert_eq!(with_files(&["tool".into()], None), ["tool"]);
        assert!(is_named(&real, &["tool-19".into()]) && !is_named(&real, &["tool".into()]));
    }
}
