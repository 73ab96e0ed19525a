//! Programs that are not touched, because their run time looks return addresses or program counters up in tables of its own.
//!
//! State equivalence says that a version differs from the original in program counters and return addresses alone. A run
//! time that walks stacks with its own tables (to collect garbage, to grow stacks) would find addresses that are in
//! none of them. libgcc's tables are extended by the unwinder's hook; these cannot be.

use crate::SessionError;
use restitch_apply_process::Target;
use restitch_image::Image;
use restitch_procfs as procfs;

/// # Errors
/// [`SessionError::Refused`] if the process is of such a kind.
pub(crate) fn refuse(target: &Target) -> Result<(), SessionError> {
    for module in &target.modules {
        let name = module.path.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
        if let Some(why) = run_time(&module.image, &name) {
            return Err(SessionError::Refused { pid: target.pid(), why: format!("{name} {why}") });
        }
    }
    Ok(())
}

/// Returns that match no call end a process whose shadow stack is on.
pub(crate) fn refuse_shadow_stack(pid: i32) -> Result<(), SessionError> {
    let status = std::fs::read_to_string(procfs::shared_path(pid, "status")).unwrap_or_default();
    let features = status.lines().find(|line| line.starts_with("x86_Thread_features:"));
    if features.is_some_and(|line| line.contains("shstk")) {
        let why = "it has a shadow stack, which tracing versions do not keep; use --source trace".into();
        return Err(SessionError::Refused { pid, why });
    }
    Ok(())
}

/// Why an image is not touched, in words that follow its name.
pub(crate) fn run_time(image: &Image, file_name: &str) -> Option<&'static str> {
    let section = |name: &str| image.section(name).is_some();
    let symbol = |name: &str| image.symbols_named(name).next().is_some();
    if section(".gopclntab") || section(".note.go.buildid") || section(".data.rel.ro.gopclntab") {
        return Some("is a Go program, whose run time walks stacks with tables of its own");
    }
    if symbol("caml_frametable") || symbol("caml_system__frametable") {
        return Some("is an OCaml program, whose run time walks stacks with tables of its own");
    }
    if section(".text.ghc") || symbol("stg_upd_frame_info") {
        return Some("is a Haskell program, which keeps tables beside its code");
    }
    match file_name {
        "libjvm.so" => Some("is a Java virtual machine, whose signal handlers interpret program counters"),
        "libcoreclr.so" => Some("is a .NET run time, whose signal handlers interpret program counters"),
        _ => None,
    }
}
