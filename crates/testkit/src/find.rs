//! Programs that the machine has.

use std::io::Read;
use std::path::{Path, PathBuf};

/// Directories in which distributions keep programs that are on nobody's PATH; `*` stands for a version.
const HIDDEN: &[&str] = &[
    "/usr/sbin",
    "/usr/local/sbin",
    "/sbin",
    "/usr/lib/gcc/x86_64-linux-gnu/*",
    "/usr/lib/gcc/x86_64-redhat-linux/*",
    "/usr/libexec/gcc/x86_64-linux-gnu/*",
    "/usr/libexec",
    "/usr/lib/postgresql/*/bin",
];

/// The program called `name`, in PATH or where distributions hide it (`cc1plus`, `postgres`, `mariadbd`,
/// `nginx`). Of several versions the highest. Scripts of that name are passed over. Links are followed, so
/// that the result is the file that gets mapped.
pub fn find_program(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let candidates = std::env::split_paths(&path).chain(HIDDEN.iter().flat_map(|d| expand(d)));
    candidates.map(|d| d.join(name)).find(|p| is_program(p)).and_then(|p| p.canonicalize().ok())
}

/// An executable ELF file: a wrapper script is not what a test bed wants.
fn is_program(path: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt;
    let mut magic = [0; 4];
    path.metadata().is_ok_and(|m| m.is_file() && m.permissions().mode() & 0o111 != 0)
        && std::fs::File::open(path).is_ok_and(|mut f| f.read_exact(&mut magic).is_ok())
        && &magic == b"\x7fELF"
}

/// The directories that a pattern with at most one `*` names, highest number first.
fn expand(pattern: &str) -> Vec<PathBuf> {
    let Some((parent, rest)) = pattern.split_once("/*") else { return vec![pattern.into()] };
    let entries = std::fs::read_dir(parent).into_iter().flatten().flatten();
    let mut found: Vec<PathBuf> = entries.map(|e| e.path()).collect();
    let number = |p: &PathBuf| p.file_name().and_then(|n| n.to_str()).and_then(|n| n.parse::<u32>().ok());
    found.sort_by_key(|p| std::cmp::Reverse(number(p)));
    found.iter().map(|p| p.join(rest.trim_start_matches('/'))).collect()
}
