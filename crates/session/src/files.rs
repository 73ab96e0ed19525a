//! The off-line way: `analyze FILE` and `optimize PROGRAM --profile FILE -o OUTPUT`.

use crate::analysis::{Analyzed, analyze_image};
use crate::attach::{hottest, layout_summary, version_summary};
use crate::huge::alignment;
use crate::make::{
    Place, Wanted, Ways, check_version, emit_version, estimate, lay_out, promoted_bytes, worth_promoting,
};
use crate::phases::Phases;
use crate::{ExitCode, HugePages, SessionError, Watcher};
use restitch_apply::{Existing, Outlives};
use restitch_apply_elf::{ElfPlan, OutputOptions};
use restitch_emit::Executions;
use restitch_image::Image;
use restitch_layout::{LayoutChoice, Reaching};
use restitch_report::{self as report, Outcome, RunResult};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// What to optimize.
#[derive(Debug, Clone)]
pub struct OptimizeOptions {
    /// The program or shared object.
    pub program: PathBuf,
    /// The profile file.
    pub profile: PathBuf,
    /// The new file.
    pub output: PathBuf,
    /// How to lay out.
    pub layout: LayoutChoice,
    /// Large pages for hot code.
    pub huge_pages: HugePages,
    /// Whether hot code is placed within cache lines by how often it runs.
    pub align: bool,
    /// Conditional branches of which neither way stands behind them are turned so that the usual one needs no jump.
    pub turn: bool,
    /// Indirect calls with one usual target compare with it and call it directly.
    pub promote_calls: bool,
    /// Functions stay where they are if the way round by their redirect costs more than a new order gains.
    pub stay: bool,
    /// Blocks behind hot jumps get a second copy in place of the jump.
    pub duplicate: bool,
    /// Lines that the models of the second-level cache miss are fetched ahead.
    pub prefetch: bool,
}

impl OptimizeOptions {
    fn ways(&self) -> Ways {
        let stay = self.stay.then_some(Reaching::Straight);
        Ways { choice: self.layout, stay, duplicate: self.duplicate, prefetch: self.prefetch }
    }
}

/// The facts about a file.
#[derive(Debug)]
pub struct AnalyzeFile {
    /// In reportable form.
    pub module: report::Module,
    /// Recognised jump tables, and how many of them a version can copy.
    pub tables: (usize, usize),
    /// Indirect jumps that are not understood (their targets stay original code).
    pub indirect_jumps: usize,
    /// Whether the file is one of restitch's own outputs.
    pub is_output: bool,
}

pub(crate) fn read_file(path: &Path) -> Result<Vec<u8>, SessionError> {
    std::fs::read(path).map_err(|source| SessionError::File {
        operation: "reading",
        path: path.into(),
        source,
    })
}

/// Reads and analyses a file; of an output of restitch, the original that it holds.
pub(crate) fn load_original(path: &Path) -> Result<Analyzed, SessionError> {
    let bad = |why: String| SessionError::BadFile { path: path.into(), why };
    let mut bytes = read_file(path)?;
    let image = Image::parse(bytes.clone()).map_err(|e| bad(e.to_string()))?;
    // Our own output is optimized from the coordinates of the original, which it contains.
    if restitch_apply_elf::is_restitch_output(&image).is_some() {
        bytes = restitch_apply_elf::original_bytes(&image).map_err(|e| bad(e.to_string()))?;
    }
    let image = Image::parse(bytes).map_err(|e| bad(e.to_string()))?;
    analyze_image(Arc::new(image)).map_err(bad)
}

/// Analyses a file.
///
/// # Errors
/// If it is no usable ELF file.
pub fn analyze_file(path: &Path) -> Result<AnalyzeFile, SessionError> {
    let bad = |why: String| SessionError::BadFile { path: path.into(), why };
    let is_output = {
        let image = Image::parse(read_file(path)?).map_err(|e| bad(e.to_string()))?;
        restitch_apply_elf::is_restitch_output(&image).is_some()
    };
    let analyzed = load_original(path)?;
    let program = &analyzed.program;
    let indirect =
        program.blocks.iter().filter(|b| b.terminator == restitch_program::Terminator::IndirectJump).count();
    Ok(AnalyzeFile {
        module: analyzed.report(&path.display().to_string()),
        tables: (program.tables.len(), program.tables.iter().filter(|t| t.copyable).count()),
        indirect_jumps: indirect,
        is_output,
    })
}

/// Writes an optimized file.
///
/// # Errors
/// [`SessionError`]; an existing output file is as it was.
pub fn optimize(options: &OptimizeOptions, watcher: &mut dyn Watcher) -> Result<RunResult, SessionError> {
    let mut phases = Phases::new();
    check_writable(&options.output)?;
    watcher.phase("analysing", None);
    let module = load_original(&options.program)?;
    phases.end("analysis");
    let (profile, warnings) = crate::imports::read_profile(options, &module)?;
    phases.end("profile");
    watcher.phase("laying out", None);
    let layout = lay_out(options.ways(), &module.program, &profile);
    phases.end("layout");
    let bad = |why: String| SessionError::BadFile { path: options.program.clone(), why };
    let large_pages = options.huge_pages.wanted(&module.program, &layout);
    let file = OutputOptions { large_pages, ..OutputOptions::default() };
    let promote = worth_promoting(options.promote_calls, &module.program, &profile);
    let len = estimate(&module.program, &layout, 0) + promoted_bytes(&promote);
    let len = len.next_multiple_of(alignment(large_pages));
    let start = restitch_apply_elf::place(&module.image, len, &file).map_err(|e| bad(e.to_string()))?;
    let place = Place { number: 1, start, counters: start, bias: None };
    let executions = Executions {
        blocks: if options.align { &profile.blocks } else { &[] },
        edges: if options.turn { &profile.edges } else { &[] },
    };
    let wanted = Wanted { promote: &promote, large_pages, executions, ..Wanted::default() };
    let version = emit_version(&options.program, &module, &layout, place, wanted)?;
    phases.end("emission");
    let version = check_version(&options.program, &module, &layout, version, None)?;
    phases.end("check");
    watcher.phase("writing", None);
    let plan =
        restitch_apply_elf::plan_output(&module.image, &version, &file).map_err(|e| bad(e.to_string()))?;
    write_output(&plan, &options.program, &options.output)?;
    phases.end("write");

    let mut result = RunResult::new(
        "optimize",
        report::Target {
            program: options.program.display().to_string(),
            pid: None,
            processes: 0,
            threads: 0,
        },
    );
    result.warnings = warnings;
    let mut entry = module.report(&options.program.display().to_string());
    entry.layout = Some(layout_summary(&module.program, &profile, &layout, options.layout));
    entry.version = Some(version_summary(&version));
    entry.hottest = hottest(&module.program, &profile, &version);
    result.modules.push(entry);
    phases.end("report");
    phases.finish(&mut result);
    result.outcome = Outcome::InForce;
    result.exit_code = ExitCode::Done.number();
    Ok(result)
}

/// Writes a planned file, once it was read back and verified, with the permissions of the original.
pub(crate) fn write_output(plan: &ElfPlan, original: &Path, output: &Path) -> Result<(), SessionError> {
    let bad = |why: String| SessionError::BadFile { path: original.into(), why };
    let bytes = plan.write();
    let reread =
        Image::parse(bytes.clone()).map_err(|e| bad(format!("the output does not read back: {e}")))?;
    restitch_apply_elf::verify(plan, &reread).map_err(|e| bad(e.to_string()))?;
    let mode = std::fs::metadata(original).map_or(0o755, |m| m.permissions().mode() & 0o7777);
    write_result(output, &bytes, mode)
}

/// Finds out whether a file can be written at `path` before work is spent on its content. What is there stays as it is, and so
/// does what somebody else writes there at the same time.
///
/// # Errors
/// If it cannot.
pub fn check_writable(path: &Path) -> Result<(), SessionError> {
    let fail = |source| SessionError::File { operation: "writing", path: path.into(), source };
    let existing = std::fs::OpenOptions::new().append(true).open(path);
    match existing {
        Ok(_) => Ok(()),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => restitch_apply::can_be_made(path).map_err(fail),
        Err(e) => Err(fail(e)),
    }
}

/// Writes what the user asked for. A file is written whole or not at all, in place of one that is there; a symbolic link
/// is followed. What is no file (a pipe, a terminal, `/dev/stdout`) is written to as it is.
///
/// # Errors
/// If it cannot be written; a file that was there is as before.
pub fn write_result(path: &Path, bytes: &[u8], mode: u32) -> Result<(), SessionError> {
    if std::fs::metadata(path).is_ok_and(|m| !m.is_file()) {
        return std::fs::write(path, bytes).map_err(|source| SessionError::File {
            operation: "writing",
            path: path.into(),
            source,
        });
    }
    let target = std::fs::canonicalize(path).unwrap_or_else(|_| path.into());
    write_whole(&target, bytes, mode)
}

/// Writes a file whole or not at all, in place of one that is there.
pub(crate) fn write_whole(path: &Path, bytes: &[u8], mode: u32) -> Result<(), SessionError> {
    restitch_apply::write_atomically(path, bytes, mode, Existing::Replace, Outlives::PowerCut)
        .map_err(|source| SessionError::File { operation: "writing", path: path.into(), source })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_go_through_links_and_into_devices() {
        let folder = tempfile::tempdir().unwrap();
        let (file, link) = (folder.path().join("file"), folder.path().join("link"));
        std::os::unix::fs::symlink("file", &link).unwrap();
        write_result(&link, b"one", 0o644).unwrap();
        assert!(!file.exists(), "a link to nothing is replaced");
        std::fs::remove_file(&link).unwrap();
        std::fs::write(&file, "old").unwrap();
        std::os::unix::fs::symlink("file", &link).unwrap();
        write_result(&link, b"two", 0o644).unwrap();
        assert_eq!(std::fs::read(&file).unwrap(), b"two");
        assert!(link.is_symlink());
        write_result(Path::new("/dev/null"), b"three", 0o644).unwrap();
        assert!(!Path::new("/dev/null").is_file());
    }

    #[test]
    fn asking_and_writing_at_the_same_time_do_not_meet() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("json");
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..200 {
                        check_writable(&path).unwrap();
                        write_whole(&path, b"{}", 0o644).unwrap();
                        let _ = std::fs::remove_file(&path);
                    }
                });
            }
        });
        let error = check_writable(&folder.path().join("none/json")).unwrap_err();
        assert!(error.to_string().contains("check the path"), "{error}");
    }
}
