//! Kernel modules, built for a kernel by the distribution's own tools: the control module of `kernel/module`,
//! and those of `kernel/trials`, by which tests have the kernel warn and be patched.
//!
//! Headers, compiler and all that they need are packages, unpacked into a folder that becomes the root for
//! the time of the build: tools of newer kernels need a newer C library than the machine may have. Nothing in
//! that folder is changed: sources and what is made of them are in a folder of their own that is mounted into
//! it.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::Result;
use crate::command::{finish, run, tail};
use crate::error::Error;
use crate::image::{prepare, short_hash};
use crate::kernel::Kernel;
use crate::lab::{Lab, file_name};
use crate::packages::{KERNELS, Line};

/// The module's file.
const MODULE: &str = "restitch-kernel.ko";
/// Its sources.
const SOURCES: &[(&str, &str)] = &[
    ("Kbuild", include_str!("../../../kernel/module/Kbuild")),
    ("main.c", include_str!("../../../kernel/module/main.c")),
    ("redirect.c", include_str!("../../../kernel/module/redirect.c")),
    ("redirect.h", include_str!("../../../kernel/module/redirect.h")),
    ("restitch-kernel.h", include_str!("../../../kernel/module/restitch-kernel.h")),
    ("standing.c", include_str!("../../../kernel/module/standing.c")),
    ("standing.h", include_str!("../../../kernel/module/standing.h")),
];
/// Sources of the modules for tests.
const TRIALS: &[(&str, &str)] = &[
    ("Kbuild", include_str!("../../../kernel/trials/Kbuild")),
    ("trial_patch.c", include_str!("../../../kernel/trials/trial_patch.c")),
    ("trial_warning.c", include_str!("../../../kernel/trials/trial_warning.c")),
];
/// What the kernel's build runs besides the compiler, on which the headers depend.
const TOOLS: [&str; 9] =
    ["bash", "binutils", "coreutils", "dash", "findutils", "grep", "make", "mawk", "sed"];
/// Changed when modules are built in another way.
const RECIPE: &str = "1";

/// Runs what follows in a root (`$1`) that has the machine's processes, which the kernel's tools look at, and
/// a folder (`$2`). What programs complain of is printed with all else.
const IN_ROOT: &str = "mount --rbind /proc \"$1/proc\" && mount --bind \"$2\" \"$1/mnt\" && \
                       root=$1 && shift 2 && exec chroot \"$root\" \"$@\" 2>&1";

/// Builds the control module for a kernel, once for each version of its source; the module's file.
///
/// A warning of the compiler or of the kernel's build is an error.
pub fn build_control_module(lab: &Lab, kernel: &Kernel) -> Result<PathBuf> {
    Ok(build(lab, kernel, "control", SOURCES)?.join(MODULE))
}

/// Builds the modules of `kernel/trials`, in the same way; the folder that they are in.
pub fn build_trial_modules(lab: &Lab, kernel: &Kernel) -> Result<PathBuf> {
    build(lab, kernel, "trials", TRIALS)
}

/// Builds modules of these sources; the folder that they are in.
fn build(lab: &Lab, kernel: &Kernel, what: &str, sources: &[(&str, &str)]) -> Result<PathBuf> {
    let mut all: Vec<u8> =
        sources.iter().flat_map(|(name, text)| [*name, *text]).chain([RECIPE]).collect::<String>().into();
    if kernel.tree().is_some() {
        // Releases of such kernels are what their makers like.
        let path = kernel.system_map()?;
        all.extend(fs::read(&path).map_err(Error::file("read", &path))?);
    }
    let name = format!("{what}-{}-{}", kernel.release(), short_hash(&all));
    lab.cache().entry(&name, |to| {
        for (file, text) in sources {
            let path = to.join(file);
            fs::write(&path, text).map_err(Error::file("write", &path))?;
        }
        let printed = match kernel.tree() {
            Some(tree) => run(&mut in_tree(tree, &compiler(kernel)?, to))?,
            None => {
                let headers = format!("/usr/src/linux-headers-{}", kernel.release());
                let root = tools(lab, kernel)?;
                let mut command = in_root(namespaces()?, &root, to);
                run(command.args(["make", "-C", &headers, "M=/mnt", "modules"]))?
            }
        };
        without_warnings(&String::from_utf8_lossy(&printed))
    })
}

/// The build in the folder that a kernel was built in, by the machine's own tools.
fn in_tree(tree: &Path, compiler: &str, to: &Path) -> Command {
    let mut command = Command::new("sh");
    command.args(["-c", "exec make -C \"$1\" $2 M=\"$3\" modules 2>&1", "sh"]);
    command.arg(tree).arg(compiler).arg(to).env("LC_ALL", "C");
    command
}

/// The words for `make` that name the compiler which a kernel was built by; none for gcc.
fn compiler(kernel: &Kernel) -> Result<String> {
    let path = kernel.config()?;
    let config = fs::read_to_string(&path).map_err(Error::file("read", &path))?;
    let version = config.lines().find_map(|line| line.strip_prefix("CONFIG_CLANG_VERSION="));
    Ok(match version.and_then(|version| version.parse::<u32>().ok()).map(|version| version / 10_000) {
        Some(major @ 1..) => format!("LLVM=-{major}"),
        _ => String::new(),
    })
}

/// The folder with the headers of a kernel, the compiler that it was built by, and all that these need.
fn tools(lab: &Lab, kernel: &Kernel) -> Result<PathBuf> {
    let line = line_of(kernel)?;
    let headers = format!("linux-headers-{}", kernel.release());
    let headers = if kernel.stands_in() { headers } else { format!("{headers}={}", line.version) };
    lab.cache().entry(&format!("tools-{}-{}", kernel.release(), file_name(line.version)), |to| {
        prepare(to)?;
        for name in ["mnt", "proc"] {
            let folder = to.join(name);
            fs::create_dir_all(&folder).map_err(Error::file("make the folder", &folder))?;
        }
        let packages: Vec<String> = [headers].into_iter().chain(TOOLS.map(String::from)).collect();
        lab.with_archive(|archive| archive.unpack_closure(&packages, line.tools, to))?;
        // Packages make this link when they are installed.
        let link = to.join("usr/bin/awk");
        symlink("mawk", &link).map_err(Error::file("make the link", &link))
    })
}

fn line_of(kernel: &Kernel) -> Result<&'static Line> {
    let line = KERNELS.iter().find(|line| line.name == kernel.line());
    line.ok_or_else(|| Error::Usage(format!("there is no kernel {}", kernel.line())))
}

/// Mounts that end with the process: by the right to make them, or else by one that is had in a namespace.
const NAMESPACES: [&[&str]; 2] = [&["--mount"], &["--user", "--map-root-user", "--mount"]];

/// How this user has another root, for a moment of its own.
fn namespaces() -> Result<&'static [&'static str]> {
    let mut said = String::new();
    for words in NAMESPACES {
        let output = finish(Command::new("unshare").args(words).arg("true"))?;
        if output.status.success() {
            return Ok(words);
        }
        said = tail(&String::from_utf8_lossy(&output.stderr), 300);
    }
    Err(Error::missing(
        format!("modules are built in a root of their own, which cannot be had here ({said})"),
        "run as root, or allow user namespaces",
    ))
}

/// A command in another root, behind whose name words may be added.
fn in_root(namespaces: &[&str], root: &Path, folder: &Path) -> Command {
    let mut command = Command::new("unshare");
    command.args(namespaces).args(["sh", "-c", IN_ROOT, "sh"]).arg(root).arg(folder);
    command.env("LC_ALL", "C").env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin");
    command
}

/// An error if a build has warned.
fn without_warnings(printed: &str) -> Result<()> {
    let warning = printed.lines().find(|line| line.to_ascii_lowercase().contains("warning:"));
    match warning {
        Some(line) => Err(Error::Command {
            program: "the build of kernel modules".into(),
            status: "it warned".into(),
            output: line.into(),
        }),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_build_that_warns_is_an_error_and_one_that_says_what_it_does_is_none() {
        let said =
            "  CC [M]  /mnt/main.o\nSkipping BTF generation for /mnt/x.ko due to unavailability of vmlinux\n";
        assert!(without_warnings(said).is_ok());
        for line in ["main.c:3:1: warning: unused variable", "WARNING: modpost: missing MODULE_LICENSE()"] {
            let error = without_warnings(&format!("{said}{line}\n")).unwrap_err();
            assert!(error.to_string().contains(line), "{error}");
        }
    }
}
