//! The off-line way: `analyze FILE` and `optimize PROGRAM --profile FILE -o OUTPUT`.

use restitch_apply_elf::{ElfPlan, OutputOptions};
use restitch_image::Image;
use restitch_layout::Reaching;
use restitch_pipeline::ExitCode;
use restitch_pipeline::PipelineError;
use restitch_pipeline::Watcher;
use restitch_pipeline::disk::{check_writable, read_regular, write_result};
use restitch_pipeline::imports::{ProfileRequest, read_profile};
use restitch_pipeline::large_pages::alignment;
use restitch_pipeline::make::{
    Place, Wanted, check_version, emit_version, estimate, lay_out, led_bytes, promoted_bytes, worth_leading,
    worth_promoting,
};
use restitch_pipeline::optimize_options::OptimizeOptions;
use restitch_pipeline::original::{load_changeable, load_original};
use restitch_pipeline::summaries::{hottest, layout_summary, version_summary};
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
    let bad = |why: String| SessionError::from(PipelineError::BadFile { path: path.into(), why });
    let is_output = {
        let image = Image::parse(read_regular(path)?).map_err(|e| bad(e.to_string()))?;
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
    let mut phases = Timings::new();
    check_writable(&options.output)?;
    watcher.phase("analysing", None);
    let mut module = load_changeable(&options.program)?;
    phases.end("analysis");
    let request = ProfileRequest { program: &options.program, profile: &options.profile };
    let (profile, warnings) = read_profile(request, &module)?;
    phases.end("profile");
    if !options.version.copy_tables {
        module.program.keep_tables();
    }
    watcher.phase("laying out", None);
    let pointers = worth_leading(options.pointers, &module, &profile);
    let layout =
        lay_out(options.version.ways(Reaching::Straight, pointers.functions()), &module.program, &profile);
    phases.end("layout");
    let refused = |why| PipelineError::of_elf(&options.program, why);
    let large_pages = options.version.huge_pages.wanted(&module.program, &layout);
    let file = OutputOptions { large_pages, ..OutputOptions::default() };
    let promote = worth_promoting(options.version.promote_calls, &module.program, &profile);
    let len = estimate(&module.program, &layout, 0) + promoted_bytes(&promote) + led_bytes(&pointers);
    let len = len.next_multiple_of(alignment(large_pages));
    let start = restitch_apply_elf::place(&module.image, len, &file).map_err(refused)?;
    let place = Place { number: 1, start, counters: start, bias: None };
    let wanted = Wanted {
        by_slots: options.version.direct_calls,
        promote: &promote,
        pointers: Some(&pointers),
        large_pages,
        executions: options.version.executions(&profile),
        ..Wanted::default()
    };
    let version = emit_version(&options.program, &module, &layout, place, wanted)?;
    phases.end("emission");
    let version = check_version(&options.program, &module, &layout, version, None)?;
    phases.end("check");
    watcher.phase("writing", None);
    let plan = restitch_apply_elf::plan_output(&module.image, &version, &file).map_err(refused)?;
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
    entry.layout = Some(layout_summary(&module.program, &profile, &layout, options.version.layout));
    entry.version = Some(version_summary(&version));
    entry.hottest = hottest(&module.program, &profile, &layout, &version);
    result.modules.push(entry);
    phases.end("report");
    phases.finish(&mut result);
    result.outcome = Outcome::Written;
    result.exit_code = ExitCode::Done.number();
    Ok(result)
}

/// Writes a planned file, once it was read back and verified, with the permissions of the original.
pub(crate) fn write_output(plan: &ElfPlan, original: &Path, output: &Path) -> Result<(), SessionError> {
    let bad = |why: String| SessionError::from(PipelineError::BadFile { path: original.into(), why });
    let bytes = plan.write();
    let reread =
        Image::parse(bytes.clone()).map_err(|e| bad(format!("the output does not read back: {e}")))?;
    restitch_apply_elf::verify(plan, &reread).map_err(|e| bad(e.to_string()))?;
    let mode = std::fs::metadata(original).map_or(0o755, |m| m.permissions().mode() & 0o7777);
    Ok(write_result(output, &bytes, mode)?)
}
