//! The off-line way: `analyze FILE` and `optimize PROGRAM --profile FILE -o OUTPUT`.

use restitch_apply::{Why, explained};
use restitch_apply_elf::{ElfPlan, OutputOptions};
use restitch_image::Image;
use restitch_layout::Reaching;
use restitch_pipeline::ExitCode;
use restitch_pipeline::PipelineError;
use restitch_pipeline::Watcher;
use restitch_pipeline::build_version::{Draft, Entrances, Source, build_version};
use restitch_pipeline::disk::{check_writable, write_result};
use restitch_pipeline::imports::{ProfileRequest, read_profile};
use restitch_pipeline::make::{Place, worth_retargeting};
use restitch_pipeline::optimize_options::OptimizeOptions;
use restitch_pipeline::original::{image_of, load_changeable, load_original};
use restitch_pipeline::summaries::module_report;
use restitch_pipeline::timings::Timings;
use restitch_processes::SessionError;
use restitch_program::{Block, Movability, Terminator};
use restitch_report::{self as report, Outcome, RunResult};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

/// The facts about a file.
#[derive(Debug)]
pub struct AnalyzeFile {
    /// In reportable form.
    pub module: report::Module,
    /// Recognised jump tables, and how many of them a version can copy.
    pub tables: (usize, usize),
    /// Indirect jumps that are not understood (they land in the original code). Linkage stubs are not
    /// counted.
    pub indirect_jumps: usize,
    /// Whether the file is one of restitch's own outputs.
    pub is_output: bool,
}

/// Analyses a file.
///
/// # Errors
/// If it is no usable ELF file.
pub fn analyze_file(path: &Path) -> Result<AnalyzeFile, SessionError> {
    let is_output = {
        let image = image_of(path)?;
        restitch_apply_elf::is_restitch_output(&image).is_some()
    };
    let analyzed = load_original(path)?;
    let program = &analyzed.program;
    let is_stub = |b: &Block| program.functions[b.function.index()].movability == Movability::Linkage;
    let is_indirect = |b: &&Block| b.terminator == Terminator::IndirectJump && !is_stub(b);
    let indirect = program.blocks.iter().filter(is_indirect).count();
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
    let mut timings = Timings::new();
    check_writable(&options.output)?;
    watcher.phase("analysing", None);
    let mut module = load_changeable(&options.program)?;
    timings.end("analysis");
    let request = ProfileRequest { program: &options.program, profile: &options.profile };
    let (profile, warnings) = read_profile(request, &module)?;
    timings.end("profile");
    options.version.prepare(&mut module);
    watcher.phase("laying out", None);
    let source =
        Source { path: &options.program, module: &module, profile: &profile, options: &options.version };
    let pointers = Some(worth_retargeting(options.pointers, &module, &profile));
    let entrances = Entrances { reaching: Reaching::Straight, pointers };
    let refused = |why| PipelineError::of_elf(&options.program, why);
    let mut file = OutputOptions::default();
    let place = |draft: &Draft| {
        file.large_pages = draft.large_pages;
        let start = restitch_apply_elf::place(&module.image, draft.room(&module), &file).map_err(refused)?;
        Ok(Place { number: 1, start, counters: start, bias: None })
    };
    let made = build_version(source, entrances, place, &mut timings)?;
    watcher.phase("writing", None);
    let plan = restitch_apply_elf::plan_output(&module.image, &made.version, &file).map_err(refused)?;
    let replaced = replaced(&options.program, &options.output);
    let privileges = without_privileges(&options.program, &options.output);
    write_output(&plan, &options.program, &options.output)?;
    timings.end("write");
    let mut result = RunResult::new("optimize", report::Target::file(&options.program));
    result.warnings = warnings;
    result.warnings.extend(replaced);
    result.warnings.extend(privileges);
    result.warnings.extend(options.version.warning([&module].into_iter()));
    result.modules.push(module_report(source, &made.layout, &made.version));
    timings.end("report");
    timings.finish(&mut result);
    result.outcome = Outcome::Written;
    result.exit_code = ExitCode::Done.number();
    Ok(result)
}

/// What is to be said where the output is to take the place of the program, asked before that.
pub(crate) fn replaced(program: &Path, output: &Path) -> Option<String> {
    let is_same = program.canonicalize().ok()? == output.canonicalize().ok()?;
    is_same.then(|| {
        format!(
            "{} has taken the place of the original, of which no copy is kept; where that came from a package, to install that again brings it back",
            output.display()
        )
    })
}

/// The set-user-id and set-group-id bits.
const SET_IDS: u32 = 0o6000;

/// What is to be said where the program runs with privileges, which an output never has: it is its writer's,
/// and the program may be another user's.
pub(crate) fn without_privileges(program: &Path, output: &Path) -> Option<String> {
    let mode = std::fs::metadata(program).map_or(0, |about| about.permissions().mode());
    let what = match mode & SET_IDS {
        0 if has_capabilities(program) => "has capabilities",
        0 => return None,
        _ => "is a set-user-id or set-group-id program",
    };
    Some(format!(
        "{} {what}; {} is not, and runs with the rights of who starts it; give it those that it is to have by chown, chmod or setcap",
        program.display(),
        output.display()
    ))
}

fn has_capabilities(program: &Path) -> bool {
    rustix::fs::getxattr(program, "security.capability", &mut [0u8; 64][..]).is_ok_and(|len| len > 0)
}

/// The permission bits of an output: those of the original, but that others than its writer change it, or run
/// it with the writer's rights.
fn mode_of_output(original: &Path) -> u32 {
    std::fs::metadata(original).map_or(0o755, |about| about.permissions().mode() & 0o755)
}

/// Writes a planned file, once it was read back and verified, with the permissions of the original, but no
/// privileges.
pub(crate) fn write_output(plan: &ElfPlan, original: &Path, output: &Path) -> Result<(), SessionError> {
    let bad = |why: Why| SessionError::from(PipelineError::BadFile { path: original.into(), why });
    let bytes = plan.write();
    let unread = |e| bad(explained(format!("the output does not read back: {e}"), e));
    let reread = Image::parse(bytes.clone()).map_err(unread)?;
    restitch_apply_elf::verify(plan, &reread).map_err(|e| bad(e.into()))?;
    Ok(write_result(output, &bytes, mode_of_output(original))?)
}
